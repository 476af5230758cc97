//! Append log in a file: one write(2) an append, one fdatasync for all who wait.
//!
//! Invariants: (1) `synced <= bytes`; (2) once poisoned, never again usable: after a failed write
//! the file may end in a part of it, after a failed sync the kernel may have dropped the pages. A
//! write for which there was no room is taken back instead, and may be tried again.
//! Concurrency: appends take `state`; syncs take `synced`, never both at once, so that appends go
//! on while the device is busy, and syncs that waited for one that covered them return at once.
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

use super::directories::{Directories, split};
use super::failure::failed;
use crate::Result;
use crate::store::{AppendLog, poisoned, taken};

/// Unwritten bytes from which on the device is given work, so that it is not idle until a sync.
/// Also a good size for the allocator of a file system.
const WRITE_BACK_BYTES: u64 = 8 << 20;

#[derive(Debug)]
pub(super) struct PosixLog {
    directories: Arc<Directories>,
    name: String,
    file: OwnedFd,
    /// What was written; held for one write(2).
    state: Mutex<State>,
    /// What is durable; held for one fdatasync.
    synced: Mutex<Synced>,
    /// Whether somebody else writes to the file, so that nobody knows what is durable.
    is_in_place: bool,
}

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// Up to here the kernel was told to write to the device.
    started: u64,
    poisoned: bool,
}

#[derive(Debug)]
struct Synced {
    bytes: u64,
    /// Where the file's name is, until that is durable.
    directory: Option<Arc<OwnedFd>>,
}

impl PosixLog {
    /// Makes the log's file; `Exists` if the name is taken.
    pub(super) fn create(directories: &Arc<Directories>, name: &str) -> Result<Self> {
        let flags = OFlags::WRONLY | OFlags::APPEND;
        make(directories, name, flags, |file, parent| {
            Ok(Self::over(directories, name, file, Some(parent)))
        })
    }

    /// As [`PosixLog::create`], with the file for somebody else to write.
    pub(super) fn create_in_place(
        directories: &Arc<Directories>,
        name: &str,
    ) -> Result<(Self, File)> {
        make(directories, name, OFlags::RDWR, |file, parent| {
            let theirs = fcntl_dupfd_cloexec(&file, 0)?;
            let log = Self::over(directories, name, file, Some(parent));
            Ok((Self { is_in_place: true, ..log }, theirs.into()))
        })
    }

    /// The log of `name` in the empty `file`, whose name in `directory` is not durable yet.
    pub(super) fn over(
        directories: &Arc<Directories>,
        name: &str,
        file: OwnedFd,
        directory: Option<Arc<OwnedFd>>,
    ) -> Self {
        Self {
            directories: Arc::clone(directories),
            name: name.into(),
            file,
            state: Mutex::default(),
            synced: Mutex::new(Synced { bytes: 0, directory }),
            is_in_place: false,
        }
    }

    /// Cuts the file off at `bytes`, where it ended before an append for which there was no room;
    /// whether it did.
    fn take_back(&self, bytes: u64) -> bool {
        retry_on_intr(|| ftruncate(&self.file, bytes)).is_ok()
    }

    /// Has the kernel begin to write `range` to the device, so that a later sync waits for less.
    fn start_writing(&self, range: Range<u64>) {
        // Linux starts writing what is dirty, and keeps it until it is written. Others may do
        // nothing, or refuse, which is as good as before.
        let length = NonZeroU64::new(range.end - range.start);
        let _ = fadvise(&self.file, range.start, length, Advice::DontNeed);
    }

    fn path(&self) -> PathBuf {
        self.directories.path_of(&self.name)
    }

    fn sync_file(&self, synced: &Synced) -> Result<(), Errno> {
        retry_on_intr(|| fdatasync(&self.file))?;
        if let Some(directory) = &synced.directory {
            retry_on_intr(|| fsync(directory))?;
        }
        Ok(())
    }
}

/// Makes the new file of `name` with `flags`; `done` gets it and its directory. If that fails there is
/// no file, so that the name is free.
fn make<T>(
    directories: &Directories,
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
        let shared = directories.shared().map_or(Ok(()), |shared| shared.give_to_file(&file));
        shared.and_then(|()| done(file, Arc::clone(&parent))).inspect_err(|_| {
            // What stays behind is collected.
            let _ = unlinkat(&parent, leaf, AtFlags::empty());
        })
    });
    done.map_err(|errno| match errno {
        Errno::EXIST => taken(name),
        _ => failed("make", &directories.path_of(name), errno),
    })
}

/// Syncs the file of the log `name`, and its name, whoever has written it.
pub(super) fn sync(directories: &Directories, name: &str) -> Result<()> {
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
        assert!(!self.is_in_place, "{}: appended to a log that somebody else writes", self.name);
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
        *synced = Synced { bytes: reached, directory: None };
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}
