// SPDX-License-Identifier: Apache-2.0
//! Big file: the first player of the paper. A traced file is a file of a directory. A rank opens it
//! as often as in the trace, and accesses it at the offsets of the trace.
//!
//! ```text
//! <directory>/esker-replay      the load marker, from before the files to after them
//! <directory>/esker-replay.new  the next one, until it is durable
//! <directory>/file-<n>          file n of the trace
//! ```
//! Only names of this form are written and removed, and only where a load marker is, which has the
//! number of files.
//! Source: Kougkas et al. 2016, §4.1.2.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};
use esker_workbench::backend::page_cache::drop_directory;
use rustix::fs::OFlags;

use super::directory_lock::DirectoryLock;
use super::load_marker::{
    LOAD_MARKER_BYTES_MAX, LoadState, LoadedData, is_marker_part, load_marker, load_state,
};
use super::replay_content::fill_content;
use super::{ReplayConnection, ReplayPlan, ReplayStep, ReplayTarget, RequestLayout};
use crate::observation::StorageKind;
use crate::trace::TraceOperation;

const MARKER: &str = "esker-replay";
const NEW_MARKER: &str = "esker-replay.new";
const FILE_PREFIX: &str = "file-";

/// Bytes that are written at once before a replay.
const LOAD_BYTES: usize = 1 << 20;

/// A directory of a file system.
#[derive(Debug)]
pub struct BigFileTarget {
    directory: PathBuf,
    lock: DirectoryLock,
}

impl BigFileTarget {
    /// Replays in `directory`, which is new or empty, or was loaded before.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), lock: DirectoryLock::new(directory) }
    }

    /// The path of a traced file.
    pub(super) fn path(&self, file: u32) -> PathBuf {
        self.directory.join(format!("{FILE_PREFIX}{file}"))
    }

    fn open(&self, file: u32, is_written: bool) -> Result<File> {
        open(&self.path(file), is_written, false)
    }

    /// True if `directory` has the data of a replay on big files.
    #[must_use]
    pub fn has_data(directory: &Path) -> bool {
        directory.join(MARKER).symlink_metadata().is_ok() || has_new_marker(directory)
    }

    /// The names in the directory.
    fn names(&self) -> Result<Vec<String>> {
        let failed = failed(&self.directory);
        let entries = std::fs::read_dir(&self.directory).map_err(&failed)?;
        entries
            .map(|entry| Ok(entry.map_err(&failed)?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    /// Replaces the load marker; a crash leaves the old one or the new one.
    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        let [new, path] = [NEW_MARKER, MARKER].map(|name| self.directory.join(name));
        remove(&new)?;
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create_new(true)
            .open(&new)
            .and_then(|mut file| file.write_all(marker).and_then(|()| file.sync_all()))
            .map_err(failed(&new))?;
        std::fs::rename(&new, &path).map_err(failed(&path))?;
        let directory = File::open(&self.directory).and_then(|directory| directory.sync_all());
        directory.map_err(failed(&self.directory))
    }

    /// Writes the files that `plan` reads.
    fn write_files(&self, plan: &ReplayPlan) -> Result<()> {
        let mut buffer = vec![0; LOAD_BYTES];
        for (number, file) in (0..).zip(&plan.files) {
            let path = self.path(number);
            let opened = open(&path, true, true)?;
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
}

/// True for the name of a file of a trace of `files` files, as far as the number is known.
fn is_traced_file(name: &str, files: Option<u32>) -> bool {
    let is_one = |text: &str, number: u32| {
        number.to_string() == text && files.is_none_or(|files| number < files)
    };
    let number = name.strip_prefix(FILE_PREFIX);
    number.is_some_and(|text| text.parse().is_ok_and(|number| is_one(text, number)))
}

/// True if `directory` has a marker that is not durable yet, or a part of one.
fn has_new_marker(directory: &Path) -> bool {
    let marker = read_marker(&directory.join(NEW_MARKER)).ok().flatten();
    marker.is_some_and(|marker| is_marker_part(&marker))
}

/// The bytes of the marker at `path`, if there is a file.
fn read_marker(path: &Path) -> Result<Option<Vec<u8>>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed(path))?,
    };
    let mut marker = Vec::new();
    let mut bounded = file.take(LOAD_MARKER_BYTES_MAX as u64);
    bounded.read_to_end(&mut marker).map_err(failed(path))?;
    Ok(Some(marker))
}

/// Removes a file, if there is one.
fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(path)(error)),
        _ => Ok(()),
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| Error::io(error, path.display().to_string())
}

/// Opens a file without following a symbolic link.
fn open(path: &Path, is_written: bool, creates: bool) -> Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(is_written).create(creates).custom_flags(flags);
    options.open(path).map_err(failed(path))
}

impl ReplayTarget for BigFileTarget {
    fn system(&self) -> String {
        "posix-shared-file".to_owned()
    }

    fn storage_kind(&self) -> StorageKind {
        StorageKind::FileSystem
    }

    fn layout(&self) -> RequestLayout {
        RequestLayout::File
    }

    fn target(&self) -> String {
        self.directory.display().to_string()
    }

    fn load_state(&self) -> Result<LoadState> {
        self.lock.take()?;
        let path = self.directory.join(MARKER);
        let Some(marker) = read_marker(&path)? else { return Ok(LoadState::Absent) };
        load_state(&marker).ok_or_else(|| {
            let what = "is no marker of a replay; name a new or an empty directory";
            Error::new(Kind::NotEmpty, format!("{} {what}", path.display()))
        })
    }

    fn load(&self, plan: &ReplayPlan) -> Result<()> {
        std::fs::create_dir_all(&self.directory).map_err(failed(&self.directory))?;
        self.lock.take()?;
        let own = if has_new_marker(&self.directory) { NEW_MARKER } else { "" };
        if self.names()?.iter().any(|name| name != own) {
            let what = "has other files; name a new or an empty directory";
            let what = format!("{} {what}", self.directory.display());
            return Err(Error::new(Kind::NotEmpty, what));
        }
        let data = LoadedData::of(plan);
        self.write_marker(&load_marker(data, false))?;
        self.write_files(plan)
            .and_then(|()| self.write_marker(&load_marker(data, true)))
            .inspect_err(|_| drop(self.clear()))
    }

    fn drop_caches(&self) -> Result<()> {
        drop_directory(&self.directory)
    }

    fn connect(&self, rank: u32, plan: &ReplayPlan) -> Result<Box<dyn ReplayConnection + '_>> {
        let steps = &plan.ranks[rank as usize];
        let written = steps.iter().filter(|step| step.operation == TraceOperation::Write);
        let written = written.map(|step| step.file).collect();
        Ok(Box::new(BigFileConnection { target: self, written, open: HashMap::new() }))
    }

    fn clear(&self) -> Result<()> {
        let loaded = self.load_state()?.data();
        let has_new_marker = has_new_marker(&self.directory);
        if loaded.is_none() && !has_new_marker {
            let what = format!("{} has no data of a replay", self.directory.display());
            return Err(Error::new(Kind::NotFound, what));
        }
        if let Some(LoadedData { files, .. }) = loaded {
            for name in self.names()?.iter().filter(|name| is_traced_file(name, files)) {
                remove(&self.directory.join(name))?;
            }
        }
        if has_new_marker {
            remove(&self.directory.join(NEW_MARKER))?;
        }
        remove(&self.directory.join(MARKER))?;
        // The directory stays if the user has put something else there, or owns only it.
        let _ = std::fs::remove_dir(&self.directory);
        self.lock.release();
        Ok(())
    }
}

/// The descriptors of one rank: one for each open of a file.
struct BigFileConnection<'a> {
    target: &'a BigFileTarget,
    /// The files that the rank writes.
    written: HashSet<u32>,
    open: HashMap<u32, Vec<File>>,
}

impl BigFileConnection<'_> {
    /// A descriptor of `file`; a trace of transfers alone has no opens.
    fn file(&mut self, file: u32) -> Result<&File> {
        let open = self.open.entry(file).or_default();
        if open.is_empty() {
            open.push(self.target.open(file, self.written.contains(&file))?);
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
                let file = target.open(step.file, self.written.contains(&step.file))?;
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
