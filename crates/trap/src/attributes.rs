// SPDX-License-Identifier: Apache-2.0
//! Attributes: inodes in the forms in which system calls return them.

use esker_fs::inode::timestamp;
use esker_fs::inode::{FileKind, Inode};

/// Preferred size of reads, by which programs size their buffers.
const BLOCK_BYTES: u16 = 4096;
/// Device number of files of a shown namespace, that of no device and of no other file system.
const DEVICE: (u32, u32) = (0, 0xe_5ce5);

/// The attributes of a file that stat(2) returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileAttributes {
    pub(crate) number: u64,
    mode: u32,
    links: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
    size: u64,
    stored_bytes: u64,
    atime_ns: i64,
    mtime_ns: i64,
    ctime_ns: i64,
}

/// The inode number of a file, from its identity; that of the root is 1.
pub(crate) fn number_of(id: u128) -> u64 {
    let number = (id as u64) ^ (id >> 64) as u64;
    number.max(1)
}

/// The type bits of a mode.
pub(crate) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        kind if kind.is_shown_as_directory() => libc::S_IFDIR,
        FileKind::File | FileKind::Directory | FileKind::Indexed => libc::S_IFREG,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

impl FileAttributes {
    /// The attributes of `inode`; `stored_bytes` of its content are not holes.
    pub(crate) fn new(inode: &Inode, stored_bytes: u64) -> Self {
        let kind = inode.kind().unwrap_or(FileKind::File);
        Self {
            number: number_of(inode.id),
            mode: type_bits(kind) | inode.mode & 0o7777,
            links: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: inode.size,
            stored_bytes,
            atime_ns: inode.atime_ns,
            mtime_ns: inode.mtime_ns,
            ctime_ns: inode.ctime_ns,
        }
    }

    /// As `struct stat`.
    pub(crate) fn stat(&self) -> Vec<u8> {
        // SAFETY: zeros are a value of this type.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        stat.st_dev = libc::makedev(DEVICE.0, DEVICE.1);
        stat.st_ino = self.number;
        stat.st_mode = self.mode;
        stat.st_nlink = self.links.into();
        stat.st_uid = self.uid;
        stat.st_gid = self.gid;
        stat.st_rdev = self.rdev;
        stat.st_size = self.size as i64;
        stat.st_blksize = BLOCK_BYTES.into();
        stat.st_blocks = self.stored_bytes.div_ceil(512) as i64;
        (stat.st_atime, stat.st_atime_nsec) = timestamp::parts(self.atime_ns);
        (stat.st_mtime, stat.st_mtime_nsec) = timestamp::parts(self.mtime_ns);
        (stat.st_ctime, stat.st_ctime_nsec) = timestamp::parts(self.ctime_ns);
        bytes_of(&stat)
    }

    /// As `struct statx`.
    pub(crate) fn statx(&self) -> Vec<u8> {
        // SAFETY: zeros are a value of this type.
        let mut stat: libc::statx = unsafe { std::mem::zeroed() };
        let time = |ns: i64| {
            let (seconds, nanoseconds) = timestamp::parts(ns);
            // SAFETY: zeros are a value of this type.
            let mut time: libc::statx_timestamp = unsafe { std::mem::zeroed() };
            (time.tv_sec, time.tv_nsec) = (seconds, nanoseconds as u32);
            time
        };
        stat.stx_mask = libc::STATX_BASIC_STATS;
        stat.stx_blksize = BLOCK_BYTES.into();
        stat.stx_nlink = self.links;
        stat.stx_uid = self.uid;
        stat.stx_gid = self.gid;
        stat.stx_mode = self.mode as u16;
        stat.stx_ino = self.number;
        stat.stx_size = self.size;
        stat.stx_blocks = self.stored_bytes.div_ceil(512);
        (stat.stx_atime, stat.stx_mtime) = (time(self.atime_ns), time(self.mtime_ns));
        stat.stx_ctime = time(self.ctime_ns);
        (stat.stx_rdev_major, stat.stx_rdev_minor) =
            (libc::major(self.rdev), libc::minor(self.rdev));
        (stat.stx_dev_major, stat.stx_dev_minor) = DEVICE;
        bytes_of(&stat)
    }
}

/// The memory of a structure of C without padding that is not written.
pub(crate) fn bytes_of<T: Copy>(value: &T) -> Vec<u8> {
    // SAFETY: the structures passed here were zeroed as a whole, so all their bytes are
    // initialized.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }.to_vec()
}
