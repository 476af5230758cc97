//! Attributes: giving a real file the owner, extended attributes, mode and times of an inode.
//!
//! Every call names a handle, so that no other file can take the place of the one that was made.
//! The order is the safe one. A file begins with mode 0600 and belongs to the user of the process.
//! The owner comes first, since changing it clears set-id bits and file capabilities; the mode
//! comes after it, so that a set-id bit never meets another owner; the times come last, since the
//! other calls change them.

use std::os::fd::{AsRawFd, BorrowedFd};

use esker_base::{Error, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::identity::Identity;
use crate::inode::{FileKind, Inode};
use crate::timestamp;
use crate::xattr;

/// A failed call on an exported file; the problem that it becomes names the path.
pub(super) fn failure(error: impl Into<std::io::Error>, what: &str) -> Error {
    Error::io(error.into(), what.to_owned())
}

/// What a file did not get because only the superuser can give it, and not on every file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    /// Whether the file has another owner or group, and no set-id bits.
    pub(super) owner: bool,
    /// How many extended attributes are missing.
    pub(super) attributes: u64,
}

/// A handle of a file that the export has made.
#[derive(Clone, Copy, Debug)]
pub(super) enum FileHandle<'a> {
    /// Of a regular file or a directory, open for reading or writing.
    Open(BorrowedFd<'a>),
    /// Of a file that cannot be opened without side effects: a symbolic link, a pipe, a socket, a
    /// device (`O_PATH`). Calls that refuse such a handle reach its file by way of /proc.
    Path(BorrowedFd<'a>),
}

impl FileHandle<'_> {
    fn proc_path(fd: BorrowedFd) -> String {
        format!("/proc/self/fd/{}", fd.as_raw_fd())
    }

    fn set_owner(self, uid: Option<Uid>, gid: Option<Gid>) -> rustix::io::Result<()> {
        match self {
            Self::Open(fd) => rustix::fs::fchown(fd, uid, gid),
            Self::Path(fd) => rustix::fs::chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH),
        }
    }

    fn set_mode(self, mode: Mode) -> rustix::io::Result<()> {
        match self {
            Self::Open(fd) => rustix::fs::fchmod(fd, mode),
            Self::Path(fd) => rustix::fs::chmodat(CWD, Self::proc_path(fd), mode, AtFlags::empty()),
        }
    }

    fn set_xattr(self, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
        match self {
            Self::Open(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
            Self::Path(fd) => {
                rustix::fs::setxattr(Self::proc_path(fd), name, value, XattrFlags::empty())
            }
        }
    }

    fn set_times(self, times: &Timestamps) -> rustix::io::Result<()> {
        match self {
            Self::Open(fd) => rustix::fs::futimens(fd, times),
            Self::Path(fd) => {
                rustix::fs::utimensat(CWD, Self::proc_path(fd), times, AtFlags::empty())
            }
        }
    }
}

/// Gives the file behind `handle` the attributes of `inode`.
pub(super) fn give(handle: FileHandle, inode: &Inode, identity: &Identity) -> Result<Dropped> {
    let is_owner_kept = give_owner(handle, inode, identity)?;
    let xattrs = give_xattrs(handle, inode, identity);
    if inode.kind() != Some(FileKind::Symlink) {
        let mut mode = inode.mode;
        if !is_owner_kept {
            // A program must not lend rights that its former owner meant to lend.
            mode &= !0o6000;
        }
        handle
            .set_mode(Mode::from_raw_mode(mode))
            .map_err(|error| failure(error, "set its mode"))?;
    }
    let times = Timestamps {
        last_access: timespec(inode.atime_ns),
        last_modification: timespec(inode.mtime_ns),
    };
    handle.set_times(&times).map_err(|error| failure(error, "set its times"))?;
    xattrs.map(|attributes| Dropped { owner: !is_owner_kept, attributes })
}

/// Makes a directory that may have its final attributes one of the user of the process alone.
pub(super) fn take_back(handle: FileHandle) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let done = handle.set_owner(Some(Uid::ROOT), None);
        done.map_err(|error| failure(error, "set its owner"))?;
    }
    handle.set_mode(Mode::RWXU).map_err(|error| failure(error, "set its mode"))
}

/// Whether the file has the owner and group of `inode`.
fn give_owner(handle: FileHandle, inode: &Inode, identity: &Identity) -> Result<bool> {
    let (uid, gid) = (Uid::from_raw(inode.uid), Gid::from_raw(inode.gid));
    if identity.is_root() {
        return match handle.set_owner(Some(uid), Some(gid)) {
            Ok(()) => Ok(true),
            // Network file systems and user namespaces know superusers who may not.
            Err(Errno::PERM | Errno::INVAL) => Ok(false),
            Err(error) => Err(failure(error, "set its owner")),
        };
    }
    let joined = identity.is_member(inode.gid) && handle.set_owner(None, Some(gid)).is_ok();
    Ok(joined && identity.uid == inode.uid)
}

/// Returns how many attributes the file did not get because they are the superuser's to give.
fn give_xattrs(handle: FileHandle, inode: &Inode, identity: &Identity) -> Result<u64> {
    let mut dropped = 0;
    for (name, value) in xattr::decode(&inode.xattrs)? {
        match handle.set_xattr(&name, &value) {
            Err(Errno::PERM) if !identity.is_root() && !name.starts_with(b"user.") => dropped += 1,
            given => given.map_err(|error| {
                let name = String::from_utf8_lossy(&name);
                failure(error, &format!("set its extended attribute {name}"))
            })?,
        }
    }
    Ok(dropped)
}

pub(super) fn timespec(ns: i64) -> Timespec {
    let (tv_sec, tv_nsec) = timestamp::parts(ns);
    Timespec { tv_sec, tv_nsec }
}
