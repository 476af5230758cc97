// SPDX-License-Identifier: Apache-2.0
//! Directory lock: one command at a time loads, replays and removes data in a directory.

use std::fs::File;
use std::path::{Path, PathBuf};

use esker_base::Result;
use parking_lot::Mutex;

use crate::exclusive_lock::lock_exclusively;

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
    /// `Conflict` if another command has it.
    pub fn take(&self) -> Result<()> {
        let mut held = self.held.lock();
        if held.is_some() {
            return Ok(());
        }
        let Ok(directory) = File::open(&self.directory) else { return Ok(()) };
        lock_exclusively(&directory, || {
            let directory = self.directory.display();
            format!("{directory}: another replay or measurement is there; name another directory")
        })?;
        *held = Some(directory);
        Ok(())
    }

    /// Gives the lock up, after which the directory may be removed and made again.
    pub fn release(&self) {
        *self.held.lock() = None;
    }
}
