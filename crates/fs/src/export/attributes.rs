//! Attributes: giving a real file the owner, mode, extended attributes and times of an inode.

use std::path::Path;

use esker_base::{Error, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use crate::identity::Identity;
use crate::inode::{FileKind, Inode};
use crate::xattr;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// A failed call on an exported file; the problem that it becomes names the path.
pub(super) fn failure(error: impl Into<std::io::Error>, what: &str) -> Error {
    Error::io(error.into(), what.to_owned())
}

/// What could not be given although nothing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Kept,
    /// Only the superuser can give files away.
    Dropped,
}

/// Gives the file at `path` the attributes of `inode`, times last, since the others change them.
pub(super) fn give(path: &Path, inode: &Inode, identity: &Identity) -> Result<Owner> {
    let mut mode = inode.mode;
    let mut owner = Owner::Kept;
    if identity.is_root() {
        let ids = (Some(Uid::from_raw(inode.uid)), Some(Gid::from_raw(inode.gid)));
        rustix::fs::chownat(CWD, path, ids.0, ids.1, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| failure(error, "set its owner"))?;
    } else {
        let group = Some(Gid::from_raw(inode.gid));
        let joined = identity.is_member(inode.gid)
            && rustix::fs::chownat(CWD, path, None, group, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if !joined || identity.uid != inode.uid {
            owner = Owner::Dropped;
            // A program must not lend rights that its former owner meant to lend.
            mode &= !0o6000;
        }
    }
    if inode.kind() != Some(FileKind::Symlink) {
        rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())
            .map_err(|error| failure(error, "set its mode"))?;
    }
    let attributes = give_xattrs(path, inode);
    let times = Timestamps {
        last_access: timespec(inode.atime_ns),
        last_modification: timespec(inode.mtime_ns),
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| failure(error, "set its times"))?;
    attributes.map(|()| owner)
}

fn give_xattrs(path: &Path, inode: &Inode) -> Result<()> {
    for (name, value) in xattr::decode(&inode.xattrs)? {
        rustix::fs::lsetxattr(path, name.as_slice(), &value, XattrFlags::empty()).map_err(
            |error| {
                let name = String::from_utf8_lossy(&name);
                failure(error, &format!("set its extended attribute {name}"))
            },
        )?;
    }
    Ok(())
}

fn timespec(ns: u64) -> Timespec {
    let seconds = i64::try_from(ns / NS_PER_SECOND).expect("a part of 64 bits fits 63");
    Timespec { tv_sec: seconds, tv_nsec: (ns % NS_PER_SECOND).cast_signed() }
}
