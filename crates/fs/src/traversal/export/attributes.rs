// SPDX-License-Identifier: Apache-2.0
//! Attributes: gives a real file the owner, extended attributes, mode and times of an inode.
//!
//! Every call uses a handle, so that no other file can replace the one that was made. The order is
//! the safe one. A file begins with mode 0600 and belongs to the user of the process. The owner
//! comes first, since changing it clears set-id bits and file capabilities; the mode comes after
//! it, so that a set-id bit never applies to another owner; the times come last, since the other
//! calls change them.

use std::os::fd::{AsRawFd, BorrowedFd};

use esker_base::{Error, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::inode::timestamp;
use crate::inode::xattr;
use crate::inode::{FileKind, Inode};
use crate::stack::identity::Identity;

/// Returns the error of a failed call on an exported file; the problem it becomes names the path.
pub(super) fn failure(error: impl Into<std::io::Error>, what: &str) -> Error {
    Error::io(error.into(), what.to_owned())
}

/// Attributes that a file did not get because only the superuser can set them, and not on every
/// file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DroppedAttributes {
    /// True if the file has another owner or group, and no set-id bits.
    pub(super) owner: bool,
    /// Number of missing extended attributes.
    pub(super) attributes: u64,
}

/// A handle of a file that the export has made.
#[derive(Clone, Copy, Debug)]
pub(super) enum FileHandle<'a> {
    /// Handle of a regular file or a directory, open for reading or writing.
    Open(BorrowedFd<'a>),
    /// Handle (`O_PATH`) of a file that cannot be opened without side effects: a symbolic link, a
    /// pipe, a socket, a device. Calls that reject such a handle reach its file through /proc.
    Path(BorrowedFd<'a>),
}

impl FileHandle<'_> {
    /// Returns a path to the file of a handle of either kind.
    pub(super) fn proc_path(fd: BorrowedFd) -> String {
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
pub(super) fn give(
    handle: FileHandle,
    inode: &Inode,
    identity: &Identity,
) -> Result<DroppedAttributes> {
    let is_owner_kept = give_owner(handle, inode, identity)?;
    let xattrs = give_xattrs(handle, inode, identity);
    if inode.kind() != Some(FileKind::Symlink) {
        handle
            .set_mode(Mode::from_raw_mode(exported_mode(inode, is_owner_kept)))
            .map_err(|error| failure(error, "set its mode"))?;
    }
    let times = Timestamps {
        last_access: timespec(inode.atime_ns),
        last_modification: timespec(inode.mtime_ns),
    };
    handle.set_times(&times).map_err(|error| failure(error, "set its times"))?;
    xattrs.map(|attributes| DroppedAttributes { owner: !is_owner_kept, attributes })
}

/// Returns what [`give`] returned for the regular file of `handle`, whose metadata is `stat`;
/// `None` if the file lacks an attribute that [`give`] sets.
pub(super) fn given(
    handle: BorrowedFd,
    stat: &Stat,
    inode: &Inode,
    identity: &Identity,
) -> Result<Option<DroppedAttributes>> {
    let is_owner_kept = (stat.st_uid, stat.st_gid) == (inode.uid, inode.gid);
    let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
    let mtime = timespec(inode.mtime_ns);
    let has_rest = stat.st_mode & 0o7777 == exported_mode(inode, is_owner_kept)
        && (stat.st_mtime, i64::try_from(stat.st_mtime_nsec)) == (mtime.tv_sec, Ok(mtime.tv_nsec));
    // The superuser's export sets owners; on file systems that do not allow it, every file is
    // written again.
    if !has_rest || !(is_owner_kept || is_own && !identity.is_root()) {
        return Ok(None);
    }
    let mut dropped = DroppedAttributes { owner: !is_owner_kept, attributes: 0 };
    for (name, value) in xattr::decode(&inode.xattrs)? {
        let mut found = vec![0; value.len() + 1];
        match rustix::fs::getxattr(FileHandle::proc_path(handle), &name, &mut found) {
            Ok(bytes) if found[..bytes] == value => {}
            Err(_) if is_droppable(&name, identity) => dropped.attributes += 1,
            _ => return Ok(None),
        }
    }
    Ok(Some(dropped))
}

/// Returns the mode of an exported file.
const fn exported_mode(inode: &Inode, is_owner_kept: bool) -> u32 {
    // A program must not run with another user's rights than intended.
    if is_owner_kept { inode.mode } else { inode.mode & !0o6000 }
}

/// True if only the superuser can set an extended attribute, and `identity` is another user.
fn is_droppable(name: &[u8], identity: &Identity) -> bool {
    !identity.is_root() && !name.starts_with(b"user.")
}

/// Makes a directory accessible only to the user of the process, even if it has its final
/// attributes.
pub(super) fn take_back(handle: FileHandle) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let done = handle.set_owner(Some(Uid::ROOT), None);
        done.map_err(|error| failure(error, "set its owner"))?;
    }
    handle.set_mode(Mode::RWXU).map_err(|error| failure(error, "set its mode"))
}

/// Sets the owner and group of `inode`; returns whether the file has both.
fn give_owner(handle: FileHandle, inode: &Inode, identity: &Identity) -> Result<bool> {
    let (uid, gid) = (Uid::from_raw(inode.uid), Gid::from_raw(inode.gid));
    if identity.is_root() {
        return match handle.set_owner(Some(uid), Some(gid)) {
            Ok(()) => Ok(true),
            // On network file systems and in user namespaces the superuser may lack permission.
            Err(Errno::PERM | Errno::INVAL) => Ok(false),
            Err(error) => Err(failure(error, "set its owner")),
        };
    }
    let joined = identity.is_member(inode.gid) && handle.set_owner(None, Some(gid)).is_ok();
    Ok(joined && identity.uid == inode.uid)
}

/// Sets extended attributes; returns the number of those that only the superuser could set.
fn give_xattrs(handle: FileHandle, inode: &Inode, identity: &Identity) -> Result<u64> {
    let mut dropped = 0;
    for (name, value) in xattr::decode(&inode.xattrs)? {
        match handle.set_xattr(&name, &value) {
            Err(Errno::PERM) if is_droppable(&name, identity) => dropped += 1,
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
