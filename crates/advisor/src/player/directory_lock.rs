// SPDX-License-Identifier: Apache-2.0
//! Directory lock: one command at a time loads, replays and removes data in a directory.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};
use parking_lot::Mutex;

use crate::exclusive_lock::lock_exclusively;

/// Directories that are locked after one another, when others remove them at the same time.
const TRIES_MAX: usize = 4;

/// The lock of a directory, from when it is first taken until the value is dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    directory: PathBuf,
    held: Mutex<Option<File>>,
}

impl DirectoryLock {
    /// The lock of `directory`, not taken.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), held: Mutex::new(None) }
    }

    /// Takes the lock, unless it is held already or there is no directory.
    ///
    /// # Errors
    /// `Conflict` if another command has it, or makes and removes the directory all the time.
    pub fn take(&self) -> Result<()> {
        let mut held = self.held.lock();
        for _ in 0..TRIES_MAX {
            if held.as_ref().is_some_and(|directory| self.is_there(directory)) {
                return Ok(());
            }
            *held = None;
            let Ok(directory) = File::open(&self.directory) else { return Ok(()) };
            lock_exclusively(&directory, || self.taken())?;
            *held = Some(directory);
        }
        Err(Error::new(Kind::Conflict, self.taken()))
    }

    /// True if `directory` has not been removed meanwhile, and perhaps made again.
    fn is_there(&self, directory: &File) -> bool {
        let identity = |found: Metadata| (found.dev(), found.ino());
        let ours = directory.metadata().map(identity);
        let there = self.directory.metadata().map(identity);
        matches!((ours, there), (Ok(ours), Ok(there)) if ours == there)
    }

    fn taken(&self) -> String {
        let directory = self.directory.display();
        format!("{directory}: another replay or measurement is there; name another directory")
    }

    /// Gives the lock up, after which the directory may be removed and made again.
    pub fn release(&self) {
        *self.held.lock() = None;
    }
}
