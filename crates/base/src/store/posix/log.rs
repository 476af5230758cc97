// SPDX-License-Identifier: Apache-2.0
//! Append log in a file: one write(2) per append, one fdatasync for all waiting threads.
//!
//! Invariants: (1) `synced <= bytes`; (2) a poisoned log is never usable again: after a failed
//! write the file may end in part of it, after a failed sync the kernel may have dropped the pages.
//! A write that found no room is taken back instead, and may be retried.
//! Concurrency: appends take `state` and syncs take `synced`, never both at once. So appends
//! continue while the device is busy, and a sync that waited for one that covered it returns at
//! once.
//! Source: fsync after failure, Rebello et al., "Can applications recover from fsync failures?",
//! USENIX ATC 2020.

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Advice, AtFlags, Mode, OFlags};
use rustix::fs::{fadvise, fdatasync, fsync, ftruncate, openat, unlinkat};
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr, write};

use super::directories::{DirectoryCache, split};
use super::failure::failed;
use crate::Result;
use crate::store::{AppendLog, poisoned, taken};

/// Unwritten bytes from which on write-back is started, so that the device is not idle until a
/// sync. Also a good size for the allocator of a file system.
const WRITE_BACK_BYTES: u64 = 8 << 20;

#[derive(Debug)]
pub(super) struct PosixLog {
    directories: Arc<DirectoryCache>,
    name: String,
    file: OwnedFd,
    /// The length written so far; held for one write(2).
    state: Mutex<PosixLogState>,
    /// The durable length; held for one fdatasync.
    synced: Mutex<SyncedLength>,
    /// True if callers write to the file directly, so that the log does not know what is durable.
    is_in_place: bool,
}

#[derive(Debug, Default)]
struct PosixLogState {
    bytes: u64,
    /// The offset up to which write-back has been started.
    started: u64,
    poisoned: bool,
}

#[derive(Debug)]
struct SyncedLength {
    bytes: u64,
    /// The directory of the file's name, until that is durable.
    directory: Option<Arc<OwnedFd>>,
}

impl PosixLog {
    /// Creates the log's file; `Exists` if the name is taken.
    pub(super) fn create(directories: &Arc<DirectoryCache>, name: &str) -> Result<Self> {
        let flags = OFlags::WRONLY | OFlags::APPEND;
        make(directories, name, flags, |file, parent| {
            Ok(Self::over(directories, name, file, Some(parent)))
        })
    }

    /// Creates the log as [`PosixLog::create`] does, and returns its file for the caller to write.
    pub(super) fn create_in_place(
        directories: &Arc<DirectoryCache>,
        name: &str,
    ) -> Result<(Self, File)> {
        make(directories, name, OFlags::RDWR, |file, parent| {
            let theirs = fcntl_dupfd_cloexec(&file, 0)?;
            let log = Self::over(directories, name, file, Some(parent));
            Ok((Self { is_in_place: true, ..log }, theirs.into()))
        })
    }

    /// Makes the log of `name` in the empty `file`, whose name in `directory` is not durable yet.
    pub(super) fn over(
        directories: &Arc<DirectoryCache>,
        name: &str,
        file: OwnedFd,
        directory: Option<Arc<OwnedFd>>,
    ) -> Self {
        Self {
            directories: Arc::clone(directories),
            name: name.into(),
            file,
            state: Mutex::default(),
            synced: Mutex::new(SyncedLength { bytes: 0, directory }),
            is_in_place: false,
        }
    }

    /// Truncates the file to `bytes`, its length before an append that found no room; returns
    /// whether it succeeded.
    fn take_back(&self, bytes: u64) -> bool {
        retry_on_intr(|| ftruncate(&self.file, bytes)).is_ok()
    }

    /// Starts write-back of `range`, so that a later sync waits for less.
    fn start_writing(&self, range: Range<u64>) {
        // Linux starts writing dirty pages, and keeps them until they are written. Other systems
        // may do nothing, or refuse, which does no harm.
        let length = NonZeroU64::new(range.end - range.start);
        let _ = fadvise(&self.file, range.start, length, Advice::DontNeed);
    }

    fn path(&self) -> PathBuf {
        self.directories.path_of(&self.name)
    }

    fn sync_file(&self, synced: &SyncedLength) -> Result<(), Errno> {
        retry_on_intr(|| fdatasync(&self.file))?;
        if let Some(directory) = &synced.directory {
            retry_on_intr(|| fsync(directory))?;
        }
        Ok(())
    }
}

/// Creates the file of `name` with `flags` and passes it and its directory to `done`. If any of
/// that fails, the file is removed, so that the name is free.
fn make<T>(
    directories: &DirectoryCache,
    name: &str,
    flags: OFlags,
    done: impl FnOnce(OwnedFd, Arc<OwnedFd>) -> Result<T, Errno>,
) -> Result<T> {
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let (directory, leaf) = split(name);
    let made = directories.with(directory, |fd| {
        let file = retry_on_intr(|| openat(fd, leaf, flags, Mode::from_raw_mode(0o666)))?;
        Ok((file, Arc::clone(fd)))
    });
    let done = made.and_then(|(file, parent)| {
        let given = directories.access().give_to_file(&file);
        given.and_then(|()| done(file, Arc::clone(&parent))).inspect_err(|_| {
            // A file that stays behind is collected.
            let _ = unlinkat(&parent, leaf, AtFlags::empty());
        })
    });
    done.map_err(|errno| match errno {
        Errno::EXIST => taken(name),
        _ => failed("make", &directories.path_of(name), errno),
    })
}

/// Syncs the file of the log `name`, and its name, no matter which process wrote it.
pub(super) fn sync(directories: &DirectoryCache, name: &str) -> Result<()> {
    let (directory, leaf) = split(name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let synced = directories.with(directory, |fd| {
        let file = retry_on_intr(|| openat(fd, leaf, flags, Mode::empty()))?;
        retry_on_intr(|| fsync(&file))?;
        retry_on_intr(|| fsync(fd))
    });
    synced.map_err(|errno| failed("sync", &directories.path_of(name), errno))
}

impl AppendLog for PosixLog {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        assert!(!self.is_in_place, "{}: append to a log that is written in place", self.name);
        let mut state = self.state.lock();
        if state.poisoned {
            return Err(poisoned(&self.name));
        }
        let offset = state.bytes;
        let mut rest = bytes;
        while !rest.is_empty() {
            match retry_on_intr(|| write(&self.file, rest)) {
                Ok(written) => rest = &rest[written..],
                Err(errno) => {
                    let is_full = matches!(errno, Errno::NOSPC | Errno::DQUOT);
                    state.poisoned = !is_full || !self.take_back(offset);
                    return Err(failed("append to", &self.path(), errno));
                }
            }
        }
        state.bytes += bytes.len() as u64;
        if state.bytes - state.started >= WRITE_BACK_BYTES {
            let range = state.started..state.bytes;
            state.started = range.end;
            drop(state);
            self.start_writing(range);
        }
        Ok(offset)
    }

    fn sync(&self) -> Result<()> {
        let wanted = self.state.lock().bytes;
        let mut synced = self.synced.lock();
        let reached = {
            let state = self.state.lock();
            if state.poisoned {
                return Err(poisoned(&self.name));
            }
            state.bytes
        };
        if !self.is_in_place && synced.directory.is_none() && synced.bytes >= wanted {
            return Ok(());
        }
        if let Err(errno) = self.sync_file(&synced) {
            self.state.lock().poisoned = true;
            return Err(failed("sync", &self.path(), errno));
        }
        *synced = SyncedLength { bytes: reached, directory: None };
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}
