// SPDX-License-Identifier: Apache-2.0
//! Import: turns dumps of fixed-width binary records, which simulations write as one file per rank
//! and step, into epochs of an indexed directory.
//!
//! ```text
//! file:   header | record | record | …      header: maybe the step and the number of records
//! record: … key …                           stored whole as the value
//! ```
//! [`survey`] checks headers, sizes and some keys of all files and groups the files by step;
//! [`DumpFile::records`] reads one file; [`append_all`] appends all. A file that contradicts the
//! layout is `Invalid`, with its name and the offset: either of the two may be wrong.
//! Concurrency: each rank reads its own files.

mod append;
mod field;
mod layout;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};

pub use append::append_all;
pub use field::DumpField;
pub use layout::DumpLayout;

/// Bytes read of a file at once.
const READ_BYTES: usize = 1 << 20;

/// Maximum step: steps up to here are exact in a 64-bit floating-point number too. A larger value
/// is not a step count but other bytes of the file.
pub const STEP_MAX: u64 = 1 << 53;

/// A file of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The step in its header; 0 if the layout has none.
    pub step: u64,
    /// Number of records.
    pub records: u64,
}

/// The files of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpStep {
    /// Step number, from the files.
    pub number: u64,
    /// Its files, in the order given.
    pub dumps: Vec<DumpFile>,
}

/// Checks the header, the size and the keys at both ends of each file, and groups the files by
/// ascending step; each step becomes an epoch. Writes nothing.
///
/// # Errors
/// `Invalid` if the layout or the list of files makes no sense, or if a file's size, step or keys
/// contradict the layout or its header; those of opening and reading a file.
pub fn survey(paths: &[PathBuf], layout: &DumpLayout) -> Result<Vec<DumpStep>> {
    layout.check()?;
    let mut steps: BTreeMap<u64, Vec<DumpFile>> = BTreeMap::new();
    for path in paths {
        let dump = DumpFile::survey(path, layout)?;
        steps.entry(dump.step).or_default().push(dump);
    }
    if steps.is_empty() {
        return Err(Error::new(Kind::Invalid, "no file to import: name at least one"));
    }
    Ok(steps.into_iter().map(|(number, dumps)| DumpStep { number, dumps }).collect())
}

impl DumpStep {
    /// The files that `rank` of `ranks` reads.
    pub fn of_rank(&self, rank: u32, ranks: u32) -> impl Iterator<Item = &DumpFile> {
        self.dumps.iter().skip(rank as usize).step_by(ranks as usize)
    }
}

/// The error for a file that contradicts the layout.
fn misread(path: &Path, what: &str) -> Error {
    let advice = "check the layout: bytes of the header and of a record, and where its fields are";
    Error::new(Kind::Invalid, format!("{}: {what}; {advice}", path.display()))
}

impl DumpFile {
    fn survey(path: &Path, layout: &DumpLayout) -> Result<Self> {
        let name = path.display();
        let mut file = open(path)?;
        let bytes = file.metadata().map_err(|error| Error::io(error, name.to_string()))?.len();
        let record_bytes = u64::from(layout.record_bytes);
        let body = bytes.checked_sub(u64::from(layout.header_bytes)).ok_or_else(|| {
            let header_bytes = layout.header_bytes;
            misread(path, &format!("its {bytes} bytes are less than a header of {header_bytes}"))
        })?;
        if body % record_bytes != 0 {
            let rest = body % record_bytes;
            let what = format!(
                "its {body} bytes behind the header are not whole records of {record_bytes} bytes: \
                 {rest} are left"
            );
            return Err(misread(path, &what));
        }
        let records = body / record_bytes;
        let mut header = vec![0; layout.header_bytes as usize];
        file.read_exact(&mut header).map_err(|error| Error::io(error, name.to_string()))?;
        if let Some(field) = layout.count {
            let told = field.integer(&header);
            if told != i128::from(records) {
                let what = format!("its header says {told} records, but its size {records}");
                return Err(misread(path, &what));
            }
        }
        let step = layout.step.map_or(Ok(0), |field| {
            let told = field.integer(&header);
            u64::try_from(told).ok().filter(|step| *step <= STEP_MAX).ok_or_else(|| {
                let what = format!(
                    "its step, {field} of its header, would be {told}, not 0 to {STEP_MAX}"
                );
                misread(path, &what)
            })
        })?;
        let dump = Self { path: path.to_owned(), step, records };
        dump.check_keys(&mut file, layout)?;
        Ok(dump)
    }

    /// Checks that the first and last records have valid keys: as many records at either end as one
    /// read covers. `file` is positioned after the header.
    fn check_keys(&self, file: &mut File, layout: &DumpLayout) -> Result<()> {
        let record_bytes = u64::from(layout.record_bytes);
        let count = self.records.min((READ_BYTES as u64 / record_bytes).max(1));
        let last = u64::from(layout.header_bytes) + (self.records - count) * record_bytes;
        self.each_record(file, layout, (0, count), |_, _| Ok(()))?;
        let failed = |error| Error::io(error, self.path.display().to_string());
        file.seek(SeekFrom::Start(last)).map_err(failed)?;
        self.each_record(file, layout, (self.records - count, count), |_, _| Ok(()))
    }

    /// Passes every record to `sink` as (key, record) in file order. Memory: 1 MiB and a record.
    ///
    /// # Errors
    /// `Invalid` if the file is shorter than at the survey, or a record has no valid key; those of
    /// reading and of `sink`.
    pub fn records(
        &self,
        layout: &DumpLayout,
        sink: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut file = open(&self.path)?;
        let failed = |error| Error::io(error, self.path.display().to_string());
        file.seek(SeekFrom::Start(u64::from(layout.header_bytes))).map_err(failed)?;
        self.each_record(&mut file, layout, (0, self.records), sink)
    }

    /// Passes `count` records to `sink`, starting with number `first`, at which `file` is
    /// positioned.
    fn each_record(
        &self,
        file: &mut File,
        layout: &DumpLayout,
        (first, count): (u64, u64),
        mut sink: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let record_bytes = layout.record_bytes as usize;
        let pieces_max = (READ_BYTES / record_bytes).max(1) as u64;
        let mut buffer = vec![0; pieces_max.min(count) as usize * record_bytes];
        let mut left = count;
        let mut at = u64::from(layout.header_bytes) + first * record_bytes as u64;
        let mut key = Vec::new();
        while left > 0 {
            let piece = left.min(pieces_max);
            let bytes = usize::try_from(piece).expect("at most a buffer") * record_bytes;
            file.read_exact(&mut buffer[..bytes]).map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    let records = self.records;
                    misread(&self.path, &format!("it no longer has its {records} records"))
                }
                _ => Error::io(error, self.path.display().to_string()),
            })?;
            for record in buffer[..bytes].chunks_exact(record_bytes) {
                key.clear();
                layout.key.put_key(record, &mut key).map_err(|wanted| {
                    let at = at + u64::from(layout.key.offset);
                    misread(&self.path, &format!("the key at byte {at} is not {wanted}"))
                })?;
                sink(&key, record)?;
                at += record_bytes as u64;
            }
            left -= piece;
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Error::io(error, format!("open {}", path.display())))
}

#[cfg(test)]
mod tests;
