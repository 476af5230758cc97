//! Import: dumps of binary records of a fixed width, as simulations write them, one file a rank and
//! step, become epochs of an indexed directory.
//!
//! ```text
//! file:   header | record | record | …      header: maybe the step and the number of records
//! record: … key …                           stored whole as the value
//! ```
//! [`survey`] looks at the headers of all files and groups them by step; [`Dump::records`] reads
//! one; [`append_all`] appends all. What is wrong with a file is `Corrupt` with its name and the offset.
//! Concurrency: each rank reads its own files.

mod append;
mod field;
mod layout;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};

pub use append::append_all;
pub use field::{Field, KEY_NUMBER_BYTES, Number};
pub use layout::Layout;

/// Bytes read of a file at once.
const READ_BYTES: usize = 1 << 20;

/// A file of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// Where it is.
    pub path: PathBuf,
    /// The step that its header says; 0 if the layout has none.
    pub step: i64,
    /// How many records it has.
    pub records: u64,
}

/// The files of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number in the files.
    pub number: i64,
    /// Its files, in the order given.
    pub dumps: Vec<Dump>,
}

/// Looks at the header and size of each file and groups them by step, which ascend: each becomes an
/// epoch.
///
/// # Errors
/// `Invalid` if the layout or the list of files makes no sense, or a file's size does not fit the
/// layout or its header; what opening and reading a file says.
pub fn survey(paths: &[PathBuf], layout: &Layout) -> Result<Vec<Step>> {
    layout.check()?;
    let mut steps: BTreeMap<i64, Vec<Dump>> = BTreeMap::new();
    for path in paths {
        let dump = Dump::survey(path, layout)?;
        steps.entry(dump.step).or_default().push(dump);
    }
    if steps.is_empty() {
        return Err(Error::new(Kind::Invalid, "no file to import: name at least one"));
    }
    Ok(steps.into_iter().map(|(number, dumps)| Step { number, dumps }).collect())
}

impl Step {
    /// The files that `rank` of `ranks` reads.
    pub fn of_rank(&self, rank: u32, ranks: u32) -> impl Iterator<Item = &Dump> {
        self.dumps.iter().skip(rank as usize).step_by(ranks as usize)
    }
}

/// The error of a file that is not as the layout says; nothing has been written by then.
fn misread(path: &Path, what: &str) -> Error {
    let advice = "check the layout: bytes of the header and of a record, and where its fields are";
    Error::new(Kind::Invalid, format!("{}: {what}; {advice}", path.display()))
}

impl Dump {
    fn survey(path: &Path, layout: &Layout) -> Result<Self> {
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
        let number = |field: Field| {
            let at = field.offset;
            let integer = field.integer(&header);
            integer.map_err(|what| misread(path, &format!("its header at byte {at}: {what}")))
        };
        if let Some(field) = layout.count {
            let told = number(field)?;
            if u64::try_from(told) != Ok(records) {
                let what = format!("its header says {told} records, and its size {records}");
                return Err(misread(path, &what));
            }
        }
        let step = layout.step.map_or(Ok(0), number)?;
        Ok(Self { path: path.to_owned(), step, records })
    }

    /// Gives every record to `sink` as (key, record) in order of the file. Memory: 1 MiB and a record.
    ///
    /// # Errors
    /// `Corrupt` if the file is shorter than when it was surveyed, or a record's key is none; what
    /// reading and the sink say.
    pub fn records(
        &self,
        layout: &Layout,
        mut sink: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let name = self.path.display();
        let record_bytes = layout.record_bytes as usize;
        let mut file = open(&self.path)?;
        let mut header = vec![0; layout.header_bytes as usize];
        let failed = |error| Error::io(error, name.to_string());
        file.read_exact(&mut header).map_err(failed)?;
        let mut buffer = vec![0; (READ_BYTES / record_bytes).max(1) * record_bytes];
        let mut left = self.records;
        let mut at = u64::from(layout.header_bytes);
        let mut key = Vec::new();
        while left > 0 {
            let count = left.min((buffer.len() / record_bytes) as u64);
            let bytes = usize::try_from(count).expect("at most a buffer") * record_bytes;
            file.read_exact(&mut buffer[..bytes]).map_err(failed)?;
            for record in buffer[..bytes].chunks_exact(record_bytes) {
                key.clear();
                layout.key.put_key(record, &mut key).map_err(|what| {
                    Error::corrupt(&name.to_string(), at + u64::from(layout.key.offset), what)
                })?;
                sink(&key, record)?;
                at += record_bytes as u64;
            }
            left -= count;
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Error::io(error, format!("open {}", path.display())))
}

#[cfg(test)]
mod tests;
