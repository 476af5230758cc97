// SPDX-License-Identifier: Apache-2.0
//! Observation file: rows that are appended one by one and survive a crash.
//!
//! A row is synced before the next run begins. A crash may leave a part of a row at the end, which
//! is removed when the file is opened again; everything before is kept. Layout:
//! docs/format/advisor-observations.md.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};

use crate::observation::{CSV_BYTES_MAX, Observation, read_csv, write_csv};

/// The key of a row: case, system and repetition.
type RowKey = (String, String, u32);

/// An open file of observations.
#[derive(Debug)]
pub struct ObservationFile {
    path: PathBuf,
    file: File,
    rows: HashSet<RowKey>,
}

impl ObservationFile {
    /// Opens the file at `path`, which is made if it is absent.
    ///
    /// # Errors
    /// `Corrupt` for a file that is not a table of observations; as the file system answers.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error| Error::io(error, path.display().to_string());
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.map_err(failed)?;
        let mut bytes = Vec::new();
        (&mut file).take(CSV_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() > CSV_BYTES_MAX {
            let what = format!("{}: larger than {CSV_BYTES_MAX} bytes", path.display());
            return Err(Error::new(Kind::TooLarge, what));
        }
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut rows = HashSet::new();
        if whole > 0 {
            let found = read_csv(&path.display().to_string(), &bytes[..whole])?;
            rows.extend(found.into_iter().map(|row| (row.case, row.system, row.repetition)));
        } else if !write_csv(&[]).as_bytes().starts_with(&bytes) {
            return Err(Error::corrupt(&path.display().to_string(), 0, "no table of observations"));
        }
        file.set_len(whole as u64).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        let mut opened = Self { path: path.to_owned(), file, rows };
        if whole == 0 {
            opened.append(write_csv(&[]).as_bytes())?;
        }
        Ok(opened)
    }

    /// True if the file has the row of a run.
    #[must_use]
    pub fn has(&self, case: &str, system: &str, repetition: u32) -> bool {
        self.rows.contains(&(case.to_owned(), system.to_owned(), repetition))
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
