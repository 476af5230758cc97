// SPDX-License-Identifier: Apache-2.0
//! Big file: the first player of the paper. A traced file is a file of a directory, which a rank opens
//! as often as the trace does, and accesses at the offsets of the trace.
//!
//! ```text
//! <directory>/esker-replay      says whose directory it is, from before the files to after them
//! <directory>/file-<n>          file n of the trace
//! ```
//! Only names of this form are written and removed.
//! Source: Kougkas et al. 2016, §4.1.2.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};
use rustix::fs::{Advice, OFlags, fadvise};

use super::replay_content::fill_content;
use super::{ReplayConnection, ReplayPlan, ReplayStep, ReplayTarget};
use crate::observation::StorageKind;
use crate::trace::TraceOperation;

const OWNER: &str = "esker-replay";

/// Bytes that are written at once before a replay.
const LOAD_BYTES: usize = 1 << 20;

/// A directory of a file system.
#[derive(Debug)]
pub struct BigFileTarget {
    directory: PathBuf,
}

impl BigFileTarget {
    /// Replays in `directory`, which is new or empty, or was loaded before.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    fn path(&self, file: u32) -> PathBuf {
        self.directory.join(format!("file-{file}"))
    }

    fn open(&self, file: u32) -> Result<File> {
        open(&self.path(file), false)
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| Error::io(error, path.display().to_string())
}

/// Opens a file without following a symbolic link.
fn open(path: &Path, creates: bool) -> Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(creates).custom_flags(flags);
    options.open(path).map_err(failed(path))
}

impl ReplayTarget for BigFileTarget {
    fn system(&self) -> String {
        "posix-shared-file".to_owned()
    }

    fn storage_kind(&self) -> StorageKind {
        StorageKind::FileSystem
    }

    fn is_loaded(&self) -> Result<bool> {
        Ok(self.directory.join(OWNER).is_file())
    }

    fn load(&self, plan: &ReplayPlan) -> Result<()> {
        std::fs::create_dir_all(&self.directory).map_err(failed(&self.directory))?;
        let owner = self.directory.join(OWNER);
        let mut entries = std::fs::read_dir(&self.directory).map_err(failed(&self.directory))?;
        if !owner.is_file() && entries.next().is_some() {
            let what = "has other files; name a new or an empty directory";
            let what = format!("{} {what}", self.directory.display());
            return Err(Error::new(Kind::NotEmpty, what));
        }
        File::create(&owner)
            .and_then(|mut file| file.write_all(b"files of `esker advise replay`\n"))
            .map_err(failed(&owner))?;
        let mut buffer = vec![0; LOAD_BYTES];
        for (number, file) in (0..).zip(&plan.files) {
            let path = self.path(number);
            let opened = open(&path, true)?;
            opened.set_len(file.bytes).map_err(failed(&path))?;
            for range in file.read_ranges() {
                let mut position = range.start;
                while position < range.end {
                    let count = (range.end - position).min(LOAD_BYTES as u64) as usize;
                    fill_content(number, position, &mut buffer[..count]);
                    opened.write_all_at(&buffer[..count], position).map_err(failed(&path))?;
                    position += count as u64;
                }
            }
            opened.sync_all().map_err(failed(&path))?;
        }
        Ok(())
    }

    fn drop_caches(&self) -> Result<()> {
        drop_file_caches(&self.directory)
    }

    fn connect(&self, _rank: u32, _plan: &ReplayPlan) -> Result<Box<dyn ReplayConnection + '_>> {
        Ok(Box::new(BigFileConnection { target: self, open: HashMap::new() }))
    }

    fn clear(&self, plan: &ReplayPlan) -> Result<()> {
        for number in (0..).take(plan.files.len()) {
            let path = self.path(number);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(failed(&path)(error));
                }
                _ => {}
            }
        }
        let owner = self.directory.join(OWNER);
        std::fs::remove_file(&owner).map_err(failed(&owner))?;
        // The directory stays if the user has put something else there, or owns only it.
        let _ = std::fs::remove_dir(&self.directory);
        Ok(())
    }
}

/// Takes the files in and below `directory` out of the page cache, once they are on the device.
///
/// # Errors
/// As the file system answers.
pub fn drop_file_caches(directory: &Path) -> Result<()> {
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).map_err(failed(&directory))? {
            let entry = entry.map_err(failed(&directory))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(failed(&path))?;
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file() {
                let file = File::open(&path).map_err(failed(&path))?;
                file.sync_all().map_err(failed(&path))?;
                fadvise(&file, 0, None, Advice::DontNeed)
                    .map_err(|error| failed(&path)(error.into()))?;
            }
        }
    }
    Ok(())
}

/// Descriptors of one rank: as many of each file as it has open.
struct BigFileConnection<'a> {
    target: &'a BigFileTarget,
    open: HashMap<u32, Vec<File>>,
}

impl BigFileConnection<'_> {
    /// A descriptor of `file`; a trace of transfers alone has no opens.
    fn file(&mut self, file: u32) -> Result<&File> {
        let open = self.open.entry(file).or_default();
        if open.is_empty() {
            open.push(self.target.open(file)?);
        }
        Ok(open.last().expect("opened above"))
    }
}

impl ReplayConnection for BigFileConnection<'_> {
    fn call(&mut self, step: &ReplayStep, buffer: &mut Vec<u8>) -> Result<bool> {
        let target = self.target;
        let failed = |error| Error::io(error, target.path(step.file).display().to_string());
        match step.operation {
            TraceOperation::Open | TraceOperation::Create => {
                let file = target.open(step.file)?;
                self.open.entry(step.file).or_default().push(file);
            }
            TraceOperation::Close => drop(self.open.entry(step.file).or_default().pop()),
            TraceOperation::Read => {
                self.file(step.file)?.read_exact_at(buffer, step.offset).map_err(failed)?;
            }
            TraceOperation::Write => {
                self.file(step.file)?.write_all_at(buffer, step.offset).map_err(failed)?;
            }
            TraceOperation::Stat => {
                target.path(step.file).metadata().map_err(failed)?;
            }
            TraceOperation::Sync => self.file(step.file)?.sync_all().map_err(failed)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}
