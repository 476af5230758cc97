// SPDX-License-Identifier: Apache-2.0
//! Exclusive lock: the kernel's lock of a file or a directory, which ends with its descriptor, also
//! after a kill.
//!
//! Some file systems of clusters have no locks, or none of directories: nothing is locked there.

use std::fs::{File, TryLockError};

use esker_base::{Error, Kind, Result};

/// Locks `file` until it is closed; does not wait.
///
/// # Errors
/// `Conflict` with the text `taken` if somebody else has the lock.
pub fn lock_exclusively(file: &File, taken: impl FnOnce() -> String) -> Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Error::new(Kind::Conflict, taken())),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}
