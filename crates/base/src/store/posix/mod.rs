// SPDX-License-Identifier: Apache-2.0
//! POSIX store: a directory of a local or parallel file system.
//!
//! ```text
//! <root>/esker.json      marks the directory as a store
//! <root>/<name>          an object or append log, one regular file each
//! <root>/tmp/<hex>       objects not yet finished
//! <root>/tmp/reserve-…   room for deletions
//! ```
//! A put writes an aside file, then runs fdatasync, `link` and fsync of the directory: at most
//! three metadata operations on the server besides the data. Reads by range keep files open.
//! Invariants: (1) a name is linked only once its bytes are durable; (2) nothing below the root is
//! opened through a symbolic link, and opening never blocks on a special file.
//! Concurrency: any number of threads and processes on any number of machines, provided that the
//! file system keeps `link` atomic, as every POSIX file system does.

mod aside;
mod beneath;
mod directories;
mod failure;
mod local_file;
mod log;
mod open_files;
mod owner;
mod requirements;
mod reserve;
mod sharing;
mod walk;
mod writer;

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{AtFlags, OFlags, fsync, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};

use self::aside::AsideFiles;
use self::directories::{DirectoryCache, split};
use self::failure::failed;
pub use self::local_file::{LocalFile, LocalFileStatus};
use self::log::PosixLog;
use self::open_files::DescriptorCache;
pub(super) use self::requirements::check as check_file_system;
pub use self::sharing::StoreSharing;
use self::writer::PosixWriter;
use super::{
    AppendLog, InPlaceLog, LocalFiles, ObjectInfo, ObjectWriter, Store, coalesce, name, url,
};
use crate::{Error, Kind, Result};

/// A store in a directory.
#[derive(Debug)]
pub struct PosixStore {
    directories: Arc<DirectoryCache>,
    asides: AsideFiles,
    open_files: DescriptorCache,
}

impl PosixStore {
    /// Opens the directory at `path`, regardless of its contents; [`super::url::open`] checks that
    /// it is a store.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory, `NotADirectory` if it is something else, `Denied`
    /// if it may not be read.
    pub fn new(path: impl AsRef<Path>) -> Result<Self> {
        let path = std::path::absolute(&path)
            .map_err(|error| Error::io(error, format!("open {}", path.as_ref().display())))?;
        let directories = Arc::new(DirectoryCache::open(path)?);
        let asides = AsideFiles::new(Arc::clone(&directories));
        Ok(Self { directories, asides, open_files: DescriptorCache::new() })
    }

    /// Calls `act`. If that fails with too many open files, closes those kept open for reading and
    /// calls it once more; `act` must not have had any effect then.
    fn within_limit<T>(&self, act: impl Fn() -> Result<T>) -> Result<T> {
        match act() {
            Err(error) if error.kind() == Kind::TooManyOpenFiles && self.open_files.close_all() => {
                act()
            }
            outcome => outcome,
        }
    }
}

/// Append logs of one writer may take this share of the process's limit of open files. Other
/// writers take theirs, and each log may be opened once more to be written in place or read.
const LOGS_SHARE_OF_LIMIT: u64 = 16;

impl Store for PosixStore {
    fn url(&self) -> String {
        url::of_path(self.directories.path())
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        name::check(name)?;
        self.within_limit(|| {
            let aside = self.asides.create()?;
            aside.write(bytes)?;
            aside.publish(name)
        })
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        name::check(name)?;
        let aside = self.within_limit(|| self.asides.create())?;
        Ok(Box::new(PosixWriter::new(name.into(), aside)))
    }

    fn size(&self, name: &str) -> Result<u64> {
        name::check(name)?;
        self.within_limit(|| open_files::size(&self.directories, name))
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        name::check(name)?;
        self.within_limit(|| open_files::read_whole(&self.directories, name, bytes_max))
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        name::check(name)?;
        coalesce::check_range(name, &range)?;
        self.within_limit(|| self.open_files.read(&self.directories, name, &range))
    }

    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        name::check(name)?;
        coalesce::read(name, ranges, |runs| {
            let read = |run| self.open_files.read(&self.directories, name, run);
            runs.iter().map(|run| self.within_limit(|| read(run))).collect()
        })
    }

    fn local_files(&self) -> Option<&dyn LocalFiles> {
        Some(self)
    }

    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        name::check(name)?;
        let log = self.within_limit(|| PosixLog::create(&self.directories, name))?;
        Ok(Box::new(log))
    }

    fn open_logs_max(&self) -> usize {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        usize::try_from((limit / LOGS_SHARE_OF_LIMIT).max(1)).unwrap_or(usize::MAX)
    }

    fn sync_log(&self, name: &str) -> Result<()> {
        name::check(name)?;
        log::sync(&self.directories, name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        name::check_prefix(prefix)?;
        self.within_limit(|| walk::objects(&self.directories, prefix))
    }

    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        name::check_prefix(prefix)?;
        self.within_limit(|| walk::names(&self.directories, prefix))
    }

    fn delete(&self, name: &str) -> Result<()> {
        name::check(name)?;
        let failure = |errno| failed("delete", &self.directories.path_of(name), errno);
        let (directory, leaf) = split(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let open = || match beneath::open(self.directories.root(), directory, flags) {
            Ok(parent) => Ok(Some(parent)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(failure(errno)),
        };
        let Some(parent) = self.within_limit(open)? else { return Ok(()) };
        let outcome = retry_on_intr(|| unlinkat(&parent, leaf, AtFlags::empty()));
        self.open_files.forget(name);
        match outcome {
            // If it was absent, the process that removed it may not have made that durable yet.
            Ok(()) | Err(Errno::NOENT) => retry_on_intr(|| fsync(&parent)).map_err(failure)?,
            Err(Errno::ISDIR) => return Ok(()),
            Err(errno) => return Err(failure(errno)),
        }
        self.directories.prune(directory);
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        let status = rustix::fs::fstatvfs(self.directories.root()).ok()?;
        Some(status.f_bavail.saturating_mul(status.f_frsize))
    }

    fn keep_reserve(&self) {
        reserve::keep(&self.directories, self.free_bytes());
    }

    fn release_reserve(&self) -> bool {
        reserve::release(&self.directories)
    }

    fn sweep_unfinished(&self, before_ns: u64, dry_run: bool) -> Result<u64> {
        aside::sweep(&self.directories, before_ns, dry_run)
    }
}

impl LocalFiles for PosixStore {
    fn open(&self, name: &str) -> Result<File> {
        name::check(name)?;
        self.within_limit(|| open_files::anew(&self.directories, name))
    }

    fn create_log(&self, name: &str) -> Result<InPlaceLog> {
        name::check(name)?;
        let (log, file) =
            self.within_limit(|| PosixLog::create_in_place(&self.directories, name))?;
        Ok((Box::new(log), LocalFile::new(name, file)))
    }
}

#[cfg(test)]
mod tests;
