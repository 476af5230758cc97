// SPDX-License-Identifier: Apache-2.0
//! Observation file: rows that are appended one by one and survive a crash.
//!
//! A row is synced before the next run begins. A crash may leave a part of a row at the end, which
//! is removed when the file is opened again; everything before is kept. A file is open in one
//! process at a time, by a lock of the kernel. Layout: docs/format/advisor-observations.md.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};

use crate::exclusive_lock::lock_exclusively;
use crate::observation::{CSV_BYTES_MAX, Observation, read_csv, write_csv};

/// The key of a row: case, system and repetition.
type RowKey = (String, String, u32);

/// An open file of observations.
#[derive(Debug)]
pub struct ObservationFile {
    path: PathBuf,
    file: File,
    rows: HashSet<RowKey>,
    /// For each system the targets of its rows, as far as these name any.
    targets: HashMap<String, HashSet<String>>,
}

impl ObservationFile {
    /// Opens the file at `path`, which is made if it is absent.
    ///
    /// # Errors
    /// `Corrupt` for a file that is not a table of observations; `Conflict` if it is open elsewhere;
    /// `Unsupported` for other columns than rows are appended with; as the file system answers.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error| Error::io(error, path.display().to_string());
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.map_err(failed)?;
        lock_exclusively(&file, || {
            format!("{}: another measurement appends to it", path.display())
        })?;
        let mut bytes = Vec::new();
        (&mut file).take(CSV_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() > CSV_BYTES_MAX {
            let what = format!("{}: larger than {CSV_BYTES_MAX} bytes", path.display());
            return Err(Error::new(Kind::TooLarge, what));
        }
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let (mut rows, mut targets) = (HashSet::new(), HashMap::<_, HashSet<_>>::new());
        let header = write_csv(&[]);
        if whole > 0 {
            for row in read_csv(&path.display().to_string(), &bytes[..whole])? {
                if !row.target.is_empty() {
                    targets.entry(row.system.clone()).or_default().insert(row.target);
                }
                rows.insert((row.case, row.system, row.repetition));
            }
            if !bytes.starts_with(header.as_bytes()) {
                return Err(Error::new(Kind::Unsupported, other_columns(path)));
            }
        } else if !header.as_bytes().starts_with(&bytes) {
            return Err(Error::corrupt(&path.display().to_string(), 0, "no table of observations"));
        }
        file.set_len(whole as u64).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        let mut opened = Self { path: path.to_owned(), file, rows, targets };
        if whole == 0 {
            opened.append(header.as_bytes())?;
        }
        Ok(opened)
    }

    /// True if the file has the row of a run.
    #[must_use]
    pub fn has(&self, case: &str, system: &str, repetition: u32) -> bool {
        self.rows.contains(&(case.to_owned(), system.to_owned(), repetition))
    }

    /// Checks that rows of `system` may be measured on `target`.
    ///
    /// # Errors
    /// `Conflict` if the file has rows of it on another one.
    pub fn check_target(&self, system: &str, target: &str) -> Result<()> {
        let known = self.targets.get(system);
        let Some(other) = known.and_then(|known| known.iter().find(|known| *known != target))
        else {
            return Ok(());
        };
        let what = format!(
            "{}: its rows of {system} are of {other}, not of {target}: give the system another \
             name, or measure into another file",
            self.path.display()
        );
        Err(Error::new(Kind::Conflict, what))
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Appends a row, durably.
    ///
    /// # Errors
    /// As the file system answers; the row may then be there in part, which the next opening
    /// removes.
    pub fn push(&mut self, observation: &Observation) -> Result<()> {
        observation.validate()?;
        let table = write_csv(std::slice::from_ref(observation));
        let row = table.split_once('\n').map_or("", |(_, row)| row);
        self.append(row.as_bytes())?;
        let Observation { case, system, repetition, .. } = observation;
        self.rows.insert((case.clone(), system.clone(), *repetition));
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        written.map_err(|error| Error::io(error, self.path.display().to_string()))
    }
}

fn other_columns(path: &Path) -> String {
    let path = path.display();
    format!(
        "{path}: its columns are not those of rows that are measured now: measure into another file, \
         and give both to `esker advise model`"
    )
}
