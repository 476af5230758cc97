// SPDX-License-Identifier: Apache-2.0
//! Reserve: room that a store keeps for deletions, which write a few small objects before they free
//! anything.
//!
//! ```text
//! tmp/reserve-<uid>-<n>    files of bytes that do not compress, and differ from file to file
//! ```
//! Each user has a reserve of their own, since quotas are per user: freeing another user's files
//! gives no room back. A user creates and removes only files with their own number; the superuser
//! writes on account of the store's owner (`owner.rs`), and uses that user's. The files have
//! the modes of the store's objects, so that anyone who may copy the store can copy them. Their
//! bytes are derived from user and number; a file system that deduplicates equal blocks would
//! otherwise keep only one file's.
//! There are several files, because a quota or a file system may also run out of inodes.
//! Concurrency: any number of processes create and remove the reserve; a file made twice counts
//! once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::{Errno, retry_on_intr, write};

use super::directories::DirectoryCache;
use crate::Random;
use crate::store::name::UNFINISHED;

/// Files of a reserve.
const FILES: u32 = 8;
/// Maximum bytes of each file.
const FILE_BYTES_MAX: u64 = 128 << 10;
/// A file has a multiple of these bytes: a block of most file systems.
const BLOCK_BYTES: u64 = 4 << 10;
/// A reserve takes at most one part in this many of the remaining room.
const FREE_SHARE_MIN: u64 = 16;
/// Prefix of the names of its files.
pub(super) const PREFIX: &str = "reserve-";

fn file_name(directories: &DirectoryCache, number: u32) -> String {
    format!("{PREFIX}{}-{number}", directories.access().uid().as_raw())
}

/// Makes this user's reserve unless it exists, smaller if there is little room, or none if there is
/// almost no room. Cost: one look-up if it exists. Best effort.
pub(super) fn keep(directories: &DirectoryCache, free_bytes: Option<u64>) {
    let made = directories.with(UNFINISHED, |tmp| {
        // File 0 is made last and removed first.
        match statat(tmp.as_fd(), file_name(directories, 0), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            found => return found.map(drop),
        }
        let share = free_bytes.unwrap_or(0) / FREE_SHARE_MIN / u64::from(FILES);
        let file_bytes = share.min(FILE_BYTES_MAX) / BLOCK_BYTES * BLOCK_BYTES;
        if file_bytes == 0 {
            return Ok(());
        }
        let file_bytes = usize::try_from(file_bytes).expect("FILE_BYTES_MAX is small");
        (0..FILES).rev().try_for_each(|number| make(directories, tmp.as_fd(), number, file_bytes))
    });
    // Files made before the room ran out are kept.
    let _ = made;
}

/// Makes one file of the reserve unless it exists; a file that is too short is removed.
fn make(
    directories: &DirectoryCache,
    tmp: BorrowedFd,
    number: u32,
    file_bytes: usize,
) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = match openat(tmp, file_name(directories, number), flags, Mode::from_raw_mode(0o666))
    {
        Err(Errno::EXIST) => return Ok(()),
        file => file?,
    };
    let filled = fill(directories, &file, number, file_bytes);
    if filled.is_err() {
        let _ = unlinkat(tmp, file_name(directories, number), AtFlags::empty());
    }
    filled
}

fn fill(
    directories: &DirectoryCache,
    file: &OwnedFd,
    number: u32,
    file_bytes: usize,
) -> Result<(), Errno> {
    directories.access().give_to_file(file)?;
    let uid = u64::from(directories.access().uid().as_raw());
    let mut bytes = vec![0; file_bytes];
    Random::from_seed(uid << 32 | u64::from(number)).fill(&mut bytes);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        rest = &rest[retry_on_intr(|| write(file, rest))?..];
    }
    Ok(())
}

/// Removes a file of this user's reserve; returns false if none is left. It removes only one:
/// another writer may take the room before a deletion does, which then has the rest for further
/// attempts, and for the collection that follows.
pub(super) fn release(directories: &DirectoryCache) -> bool {
    let remove = |number| {
        let path = format!("{UNFINISHED}/{}", file_name(directories, number));
        unlinkat(directories.root(), path, AtFlags::empty()).is_ok()
    };
    (0..FILES).any(remove)
}
