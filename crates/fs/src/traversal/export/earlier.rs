// SPDX-License-Identifier: Apache-2.0
//! Earlier: takes up the files and directories that an interrupted export left under the partial
//! name.
//!
//! Between the two exports other users may have had access to directories they own, and anyone who
//! can write to the directory of the destination may have put anything under the partial name. So a
//! resumed export
//! - takes up the file or directory with the partial name only if it belongs to its own user and
//!   has no other name, and removes no other;
//! - locks it before it changes anything, and then checks that it still has the name;
//! - takes up a directory only if it belongs to its own user or to the owner in the snapshot;
//! - takes up a file only if it has every attribute that the export sets, and sets none of them;
//! - fails if a directory has names that are not in the snapshot, and removes none of them.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use esker_base::{Error, Kind, Result};
use hashbrown::HashSet;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::attributes::{self, DroppedAttributes, FileHandle, failure};
use super::destination::{NO_FOLLOW, open_directory, type_of};
use crate::inode::{FileKind, Inode};
use crate::stack::identity::Identity;

/// Names that a resumed export has found in a directory and not yet reached in the snapshot.
#[derive(Debug, Default)]
pub(super) struct UnclaimedNames(HashSet<Vec<u8>>);

impl UnclaimedNames {
    fn of(dir: &OwnedFd) -> Result<Self> {
        let list = || -> rustix::io::Result<HashSet<Vec<u8>>> {
            let mut names = HashSet::new();
            for entry in Dir::read_from(dir)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if !matches!(name, b"." | b"..") {
                    names.insert(name.to_vec());
                }
            }
            Ok(names)
        };
        list().map(Self).map_err(|error| failure(error, "list"))
    }

    /// Removes a name that the snapshot has.
    pub(super) fn claim(&mut self, name: &[u8]) {
        self.0.remove(name);
    }

    /// Removes all names, if the snapshot's entries in the directory cannot be read.
    pub(super) fn claim_all(&mut self) {
        self.0.clear();
    }

    /// Returns the first unclaimed name, if any.
    pub(super) fn first(&self) -> Option<&OsStr> {
        self.0.iter().min().map(|name| OsStr::from_bytes(name))
    }
}

/// Returns the error for a file or directory that the interrupted export has not made.
pub(super) fn foreign() -> Error {
    let what = "the interrupted export did not write this: move it elsewhere or remove it, then export \
                again with --resume";
    Error::new(Kind::Conflict, what)
}

/// Locks the file or directory of `handle` without waiting; fails if another process exports to it,
/// or if it no longer has the name `name` in `dir`.
pub(super) fn lock(handle: &OwnedFd, dir: &OwnedFd, name: &[u8]) -> Result<()> {
    let conflict = || {
        let what = "another process is running the same export; wait until it ends";
        Error::new(Kind::Conflict, what)
    };
    match rustix::fs::flock(handle, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Err(conflict()),
        // Some network file systems have no locks.
        Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL) => {}
        locked => locked.map_err(|error| failure(error, "lock"))?,
    }
    // The last holder of the lock may have removed or renamed it since it was opened.
    if has_name(handle, dir, name)? { Ok(()) } else { Err(conflict()) }
}

/// Returns whether `name` in `dir` is the file of `handle`.
pub(super) fn has_name(handle: &OwnedFd, dir: &OwnedFd, name: &[u8]) -> Result<bool> {
    let held = rustix::fs::fstat(handle).map_err(|error| failure(error, "stat"))?;
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(failure(error, "stat")),
        Ok(named) => Ok((named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)),
    }
}

/// Opens and locks the file or directory with the partial name, and leaves it as it was. Returns
/// `None` if there is none, or only a file of a kind that cannot be locked. Fails for one that
/// another user may have made or may still write by another name, and for one that cannot be locked
/// because this user may not read it: its mode is never changed without the lock, since an export
/// that is just ending may make it the destination.
pub(super) fn lock_what_is_there(dir: &OwnedFd, name: &[u8]) -> Result<Option<OwnedFd>> {
    let handle = match rustix::fs::openat(dir, name, OFlags::PATH | NO_FOLLOW, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened.map_err(|error| failure(error, "open"))?,
    };
    let stat = rustix::fs::fstat(&handle).map_err(|error| failure(error, "stat"))?;
    let file_type = type_of(&stat);
    if let Some(reason) = reason_to_distrust(&stat) {
        let what = format!(
            "{reason}, so it may be forged: move it elsewhere or remove it, then export again with \
             --resume"
        );
        return Err(Error::new(Kind::Conflict, what));
    }
    if !matches!(file_type, FileType::RegularFile | FileType::Directory) {
        return Ok(None);
    }
    let path = FileHandle::proc_path(handle.as_fd());
    let opened = match rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let what = "its mode does not let you read it, so it cannot be locked: if no other export \
                        writes it, run chmod u+r on it, then export again with --resume";
            return Err(Error::new(Kind::Conflict, what));
        }
        opened => opened.map_err(|error| failure(error, "open"))?,
    };
    lock(&opened, dir, name)?;
    Ok(Some(opened))
}

/// Returns why the file or directory with the partial name is not certainly the export's own.
fn reason_to_distrust(stat: &Stat) -> Option<String> {
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        return Some(format!(
            "it belongs to user {}, and the export is run by {user}",
            stat.st_uid
        ));
    }
    (type_of(stat) != FileType::Directory && stat.st_nlink != 1)
        .then(|| format!("it has {} names", stat.st_nlink))
}

/// Opens a directory of an interrupted export, which may already have its final attributes, and
/// makes it writable only by this process's user. Also returns the names in it.
pub(super) fn retake_directory(
    parent: &OwnedFd,
    name: &[u8],
    inode: &Inode,
) -> Result<(OwnedFd, UnclaimedNames)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | NO_FOLLOW;
    let handle = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT) => return Err(foreign()),
        opened => opened.map_err(|error| failure(error, "open"))?,
    };
    let stat = rustix::fs::fstat(&handle).map_err(|error| failure(error, "stat"))?;
    if !is_owner_expected(&stat, inode) {
        return Err(foreign());
    }
    attributes::take_back(FileHandle::Path(handle.as_fd()))?;
    let handle = open_directory(&handle, b".")?;
    let names = UnclaimedNames::of(&handle)?;
    Ok((handle, names))
}

fn is_owner_expected(stat: &Stat, inode: &Inode) -> bool {
    [inode.uid, rustix::process::geteuid().as_raw()].contains(&stat.st_uid)
}

/// Returns the attributes dropped from the file `name` in `dir` if an interrupted export has
/// completed it: files get their times last. Otherwise removes the name and returns `None`; fails
/// if it is a directory.
pub(super) fn complete_file(
    dir: &OwnedFd,
    name: &[u8],
    inode: &Inode,
    identity: &Identity,
) -> Result<Option<DroppedAttributes>> {
    let handle = match rustix::fs::openat(dir, name, OFlags::PATH | NO_FOLLOW, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened.map_err(|error| failure(error, "open"))?,
    };
    let stat = rustix::fs::fstat(&handle).map_err(|error| failure(error, "stat"))?;
    // With a second name, it may be an older file.
    if inode.kind() == Some(FileKind::File)
        && type_of(&stat) == FileType::RegularFile
        && u64::try_from(stat.st_size) == Ok(inode.size)
        && stat.st_nlink == 1
    {
        let dropped = attributes::given(handle.as_fd(), &stat, inode, identity)?;
        if dropped.is_some() {
            return Ok(dropped);
        }
    }
    remove(dir, name)?;
    Ok(None)
}

/// Removes `name` from `dir` if it exists; fails if it is a directory.
pub(super) fn remove(dir: &OwnedFd, name: &[u8]) -> Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        // The error for a directory depends on the kernel.
        Err(Errno::ISDIR | Errno::PERM) if is_directory(dir, name) => Err(foreign()),
        Err(error) => Err(failure(error, "remove")),
    }
}

fn is_directory(dir: &OwnedFd, name: &[u8]) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| type_of(&stat) == FileType::Directory)
}
