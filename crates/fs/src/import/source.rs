//! Source: what a real file system says of one file, as the inode that an import writes for it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use esker_base::{Error, Kind, Result};
use rustix::fs::{Mode, OFlags, SeekFrom, seek};
use rustix::io::Errno;

use crate::identity::Identity;
use crate::inode::{Entry, FileKind, Inode};
use crate::xattr::{self, Xattrs};

const NS_PER_SECOND: i64 = 1_000_000_000;

/// A failed call on the file at `path`; the problem that it becomes names the path.
pub(super) fn failure(error: impl Into<io::Error>, what: &str) -> Error {
    Error::io(error.into(), what.to_owned())
}

/// The inode of the file with `metadata`, without content and extended attributes, as `identity`
/// may own it: whoever is not the superuser owns all that they import, and a program that comes to
/// another owner loses its set-id bits.
pub(super) fn inode_of(metadata: &Metadata, identity: &Identity, now_ns: u64) -> Inode {
    let kind = kind_of(metadata);
    let mut inode = Inode::new(Entry::Is(kind), metadata.mode() & 0o7777, now_ns);
    (inode.uid, inode.gid) = (metadata.uid(), metadata.gid());
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
    inode.mtime_ns = ns(metadata.mtime(), metadata.mtime_nsec());
    inode.atime_ns = ns(metadata.atime(), metadata.atime_nsec());
    match kind {
        FileKind::File | FileKind::Symlink => inode.size = metadata.size(),
        FileKind::CharDevice | FileKind::BlockDevice => inode.rdev = metadata.rdev(),
        FileKind::Directory | FileKind::Fifo | FileKind::Socket | FileKind::Indexed => {}
    }
    inode
}

fn kind_of(metadata: &Metadata) -> FileKind {
    let kind = metadata.file_type();
    if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_symlink() {
        FileKind::Symlink
    } else if kind.is_fifo() {
        FileKind::Fifo
    } else if kind.is_socket() {
        FileKind::Socket
    } else if kind.is_char_device() {
        FileKind::CharDevice
    } else if kind.is_block_device() {
        FileKind::BlockDevice
    } else {
        FileKind::File
    }
}

/// Times before 1970 read 0.
fn ns(seconds: i64, nanoseconds: i64) -> u64 {
    let total = seconds.saturating_mul(NS_PER_SECOND).saturating_add(nanoseconds);
    u64::try_from(total).unwrap_or(0)
}

/// The extended attributes of `path` itself, encoded; of those who are not the superuser, only the
/// user's own, since nobody else may set others.
pub(super) fn xattrs_of(path: &Path, identity: &Identity) -> Result<Vec<u8>> {
    let Some(names) = read_growing(|buffer| rustix::fs::llistxattr(path, buffer))
        .map_err(|error| failure(error, "list extended attributes"))?
    else {
        return Ok(Vec::new());
    };
    let mut xattrs = Xattrs::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        if !identity.is_root() && !name.starts_with(b"user.") {
            continue;
        }
        let value = read_growing(|buffer| rustix::fs::lgetxattr(path, name, buffer))
            .map_err(|error| failure(error, "read extended attributes"))?;
        // Removed since they were listed.
        if let Some(value) = value {
            xattrs.insert(name.to_vec(), value);
        }
    }
    xattr::encode(&xattrs)
}

/// What `read` fills a buffer with that is large enough; none where there is nothing to read.
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

/// Opens the regular file at `path` for reading, never following a link or waiting for a pipe that
/// took its place.
pub(super) fn open(path: &Path) -> Result<File> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failure(error, "open"))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(|error| failure(error, "stat"))?;
    if !metadata.is_file() {
        return Err(Error::new(Kind::Conflict, "became another kind of file while it was read"));
    }
    Ok(file)
}

/// Where the last data of `file` ends, if a hole follows it: what is behind need not be read.
pub(super) fn data_end(file: &File, metadata: &Metadata) -> Option<u64> {
    if metadata.blocks().saturating_mul(512) >= metadata.size() {
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
