// SPDX-License-Identifier: Apache-2.0
//! Source: reads one file of a real file system as the inode that an import writes.
//!
//! Files are addressed by the handle of their directory and one name, and symbolic links are never
//! followed, so that nobody can redirect the import while it runs. All reads of one regular file or
//! directory go through one open file.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use esker_base::{Error, Kind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, seek};
use rustix::io::Errno;

use crate::inode::timestamp;
use crate::inode::xattr::{self, Xattrs};
use crate::inode::{FileKind, Inode, NameKind};
use crate::stack::identity::Identity;

/// Returns the error of a failed call on a file; the problem it becomes names the path.
pub(super) fn failure(error: impl Into<io::Error>, what: &str) -> Error {
    Error::io(error.into(), what.to_owned())
}

/// Returns the attributes of `name` in `dir`.
pub(super) fn stat(dir: &OwnedFd, name: &[u8]) -> Result<Stat> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| failure(error, "stat"))
}

/// Returns the attributes of an open file.
pub(super) fn stat_open(file: &OwnedFd) -> Result<Stat> {
    rustix::fs::fstat(file).map_err(|error| failure(error, "stat"))
}

/// Returns device and inode number.
pub(super) fn number_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

pub(super) fn type_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Returns the inode of the file with `stat`, without content and extended attributes, as
/// `identity` may own it: a user other than the superuser owns everything they import, and a
/// program that changes owners loses its set-id bits.
pub(super) fn inode_of(stat: &Stat, identity: &Identity, now_ns: i64) -> Inode {
    let kind = match type_of(stat) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => FileKind::File,
    };
    let mut inode = Inode::new(NameKind::Is(kind), stat.st_mode & 0o7777, now_ns);
    (inode.uid, inode.gid) = (stat.st_uid, stat.st_gid);
    if !identity.is_root() {
        if inode.uid != identity.uid {
            inode.mode &= !0o4000;
            inode.uid = identity.uid;
        }
        if !identity.is_member(inode.gid) {
            inode.mode &= !0o2000;
            inode.gid = identity.gid;
        }
    }
    inode.mtime_ns = timestamp::of_parts(stat.st_mtime, stat.st_mtime_nsec as i64);
    inode.atime_ns = timestamp::of_parts(stat.st_atime, stat.st_atime_nsec as i64);
    match kind {
        FileKind::File | FileKind::Symlink => {
            inode.size = u64::try_from(stat.st_size).unwrap_or(0);
        }
        FileKind::CharDevice | FileKind::BlockDevice => inode.rdev = stat.st_rdev,
        FileKind::Directory | FileKind::Fifo | FileKind::Socket | FileKind::Indexed => {}
    }
    inode
}

/// Returns the extended attributes of an open file, encoded. Unless `identity` is the superuser,
/// only `user.` attributes, since it may not set others.
pub(super) fn xattrs_of(file: impl AsFd, identity: &Identity) -> Result<Vec<u8>> {
    let file = file.as_fd();
    let list = |buffer: &mut [u8]| rustix::fs::flistxattr(file, buffer);
    encode_xattrs(identity, list, |name, buffer| rustix::fs::fgetxattr(file, name, buffer))
}

/// Like [`xattrs_of`], for a file that cannot be opened: `name` in `dir` itself. Only the superuser
/// can set any on it.
pub(super) fn xattrs_at(dir: &OwnedFd, name: &[u8], identity: &Identity) -> Result<Vec<u8>> {
    if !identity.is_root() {
        return Ok(Vec::new());
    }
    // These calls do not take directory handles; this is a path through one.
    let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat();
    let list = |buffer: &mut [u8]| rustix::fs::llistxattr(&*path, buffer);
    encode_xattrs(identity, list, |name, buffer| rustix::fs::lgetxattr(&*path, name, buffer))
}

fn encode_xattrs(
    identity: &Identity,
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> Result<Vec<u8>> {
    let names = read_growing(list).map_err(|error| failure(error, "list extended attributes"))?;
    let mut xattrs = Xattrs::new();
    let names = names.unwrap_or_default();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        if !identity.is_root() && !name.starts_with(b"user.") {
            continue;
        }
        let value = read_growing(|buffer| get(name, buffer))
            .map_err(|error| failure(error, "read extended attributes"))?;
        // `None` if removed since it was listed.
        if let Some(value) = value {
            xattrs.insert(name.to_vec(), value);
        }
    }
    xattr::encode(&xattrs)
}

/// Calls `read` with a large enough buffer and returns its result; `None` if there is nothing to
/// read.
fn read_growing(
    read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; 256];
    loop {
        match read(&mut buffer) {
            Ok(count) => {
                buffer.truncate(count);
                return Ok(Some(buffer));
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 8, 0),
            Err(Errno::NOTSUP | Errno::NODATA) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Opens the directory `name` in `dir`, never following a link that replaced it.
pub(super) fn open_directory(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(|error| match error {
        Errno::LOOP | Errno::NOTDIR => became_another(),
        error => failure(error, "list"),
    })
}

/// Opens the regular file `name` in `dir` for reading, never following a link or blocking on a pipe
/// that replaced it.
pub(super) fn open(dir: &OwnedFd, name: &[u8]) -> Result<(File, Stat)> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file =
        rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(|error| match error {
            Errno::LOOP => became_another(),
            error => failure(error, "open"),
        })?;
    let stat = stat_open(&file)?;
    if type_of(&stat) != FileType::RegularFile {
        return Err(became_another());
    }
    Ok((file.into(), stat))
}

/// Returns the error for a name that stands for another file than when it was listed.
pub(super) fn became_another() -> Error {
    Error::new(Kind::Conflict, "was replaced while it was being read: import it again")
}

/// Returns where the last data of `file` ends, if a hole follows: the rest need not be read.
pub(super) fn data_end(file: &File, stat: &Stat) -> Option<u64> {
    if stat.st_blocks.saturating_mul(512) >= stat.st_size {
        return None;
    }
    let (mut position, mut end) = (0, 0);
    loop {
        match seek(file, SeekFrom::Data(position)) {
            Ok(start) => match seek(file, SeekFrom::Hole(start)) {
                Ok(hole) => (position, end) = (hole, hole),
                Err(_) => return None,
            },
            Err(Errno::NXIO) => break,
            Err(_) => return None,
        }
    }
    seek(file, SeekFrom::Start(0)).ok()?;
    Some(end)
}
