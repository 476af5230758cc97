// SPDX-License-Identifier: Apache-2.0
//! ABI: the parts of the kernel's FUSE interface that the ring needs.
//!
//! Layout: `include/uapi/linux/fuse.h` of Linux 6.18 (protocol 7.45), native byte order. The tests
//! compare sizes and offsets with that header.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of `in_out` and of `op_in` in a [`RingHeader`].
pub(crate) const HEADER_PART_BYTES: usize = 128;
/// Minimum buffer of a read of `/dev/fuse`, in addition to the bytes of a write request.
pub(crate) const READ_BUFFER_BYTES_MIN: usize = 8192;
/// `fuse_uring_cmd`.
pub(crate) const CMD_REGISTER: u32 = 1;
pub(crate) const CMD_COMMIT_AND_FETCH: u32 = 2;

/// Operation codes, `fuse_opcode`.
pub(crate) mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
}

/// Bits of `fuse_setattr_in.valid`.
pub(crate) mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
}

/// Declares structures of the interface, which have no implicit padding.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $kind),* }
    )*};
}

wire! {
    /// `fuse_uring_req_header`, of each entry of a ring, in both directions.
    RingHeader {
        in_out: [u8; HEADER_PART_BYTES],
        op_in: [u8; HEADER_PART_BYTES],
        entry: RingEntry,
    }
    /// `fuse_uring_ent_in_out`.
    RingEntry { flags: u64, commit_id: u64, payload_bytes: u32, padding: u32, reserved: u64 }
    /// `fuse_uring_cmd_req`: in a submission.
    RingCommand { flags: u64, commit_id: u64, queue: u16, padding: [u8; 6] }

    /// `fuse_in_header`.
    InHeader {
        bytes: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        extension_bytes: u16, padding: u16,
    }
    /// `fuse_out_header`.
    OutHeader { bytes: u32, error: i32, unique: u64 }

    /// `fuse_attr`.
    AttrOut {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atime_ns: u32,
        mtime_ns: u32, ctime_ns: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        block_bytes: u32, flags: u32,
    }
    /// `fuse_entry_out`.
    EntryOut {
        node: u64, generation: u64, entry_seconds: u64, attr_seconds: u64, entry_ns: u32,
        attr_ns: u32, attr: AttrOut,
    }
    /// `fuse_attr_out`.
    AttrReplyOut { attr_seconds: u64, attr_ns: u32, padding: u32, attr: AttrOut }
    /// `fuse_open_out`.
    OpenOut { handle: u64, flags: u32, backing: u32 }
    /// `fuse_entry_out` and `fuse_open_out`.
    CreateOut { entry: EntryOut, open: OpenOut }
    /// `fuse_write_out`, and `fuse_getxattr_out`.
    SizeOut { size: u32, padding: u32 }
    /// `fuse_lseek_out`.
    LseekOut { offset: i64 }
    /// `fuse_statfs_out`.
    StatfsOut {
        blocks: u64, free: u64, available: u64, files: u64, files_free: u64, block_bytes: u32,
        name_bytes_max: u32, fragment_bytes: u32, padding: u32, spare: [u32; 6],
    }
    /// `fuse_dirent`; the name follows.
    DirentOut { ino: u64, cookie: u64, name_bytes: u32, kind: u32 }
    /// `fuse_direntplus`; the name follows.
    DirentPlusOut { entry: EntryOut, dirent: DirentOut }

    /// `fuse_setattr_in`.
    SetattrIn {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64,
        ctime: i64, atime_ns: u32, mtime_ns: u32, ctime_ns: u32, mode: u32, unused: u32, uid: u32,
        gid: u32, unused_too: u32,
    }
    /// `fuse_mknod_in`.
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// `fuse_mkdir_in`.
    MkdirIn { mode: u32, umask: u32 }
    /// `fuse_rename_in`.
    RenameIn { new_parent: u64 }
    /// `fuse_rename2_in`.
    Rename2In { new_parent: u64, flags: u32, padding: u32 }
    /// `fuse_link_in`.
    LinkIn { node: u64 }
    /// `fuse_open_in`.
    OpenIn { flags: u32, open_flags: u32 }
    /// `fuse_create_in`.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// `fuse_read_in`.
    ReadIn {
        handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// `fuse_write_in`.
    WriteIn {
        handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// `fuse_release_in`.
    ReleaseIn { handle: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// `fuse_setxattr_in` without the extension that has to be asked for.
    SetxattrIn { size: u32, flags: i32 }
    /// `fuse_getxattr_in`.
    GetxattrIn { size: u32, padding: u32 }
    /// `fuse_fallocate_in`.
    FallocateIn { handle: u64, offset: u64, length: u64, mode: i32, padding: u32 }
    /// `fuse_lseek_in`.
    LseekIn { handle: u64, offset: i64, whence: i32, padding: u32 }
    /// `fuse_copy_file_range_in`.
    CopyIn {
        handle: u64, offset: u64, to_node: u64, to_handle: u64, to_offset: u64, length: u64,
        flags: u64,
    }
    /// `fuse_ioctl_in`.
    IoctlIn { handle: u64, flags: u32, command: u32, argument: u64, in_bytes: u32, out_bytes: u32 }
    /// `fuse_forget_in`.
    ForgetIn { count: u64 }
    /// `fuse_batch_forget_in`; `count` [`ForgetOne`] follow.
    BatchForgetIn { count: u32, padding: u32 }
    /// `fuse_forget_one`.
    ForgetOne { node: u64, count: u64 }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernels_header() {
        let sizes = [
            ("fuse_uring_req_header", size_of::<RingHeader>(), 288),
            ("fuse_uring_ent_in_out", size_of::<RingEntry>(), 32),
            ("fuse_uring_cmd_req", size_of::<RingCommand>(), 24),
            ("fuse_in_header", size_of::<InHeader>(), 40),
            ("fuse_out_header", size_of::<OutHeader>(), 16),
            ("fuse_attr", size_of::<AttrOut>(), 88),
            ("fuse_entry_out", size_of::<EntryOut>(), 128),
            ("fuse_attr_out", size_of::<AttrReplyOut>(), 104),
            ("fuse_open_out", size_of::<OpenOut>(), 16),
            ("fuse_write_out", size_of::<SizeOut>(), 8),
            ("fuse_lseek_out", size_of::<LseekOut>(), 8),
            ("fuse_statfs_out", size_of::<StatfsOut>(), 80),
            ("fuse_dirent", size_of::<DirentOut>(), 24),
            ("fuse_direntplus", size_of::<DirentPlusOut>(), 152),
            ("fuse_setattr_in", size_of::<SetattrIn>(), 88),
            ("fuse_mknod_in", size_of::<MknodIn>(), 16),
            ("fuse_mkdir_in", size_of::<MkdirIn>(), 8),
            ("fuse_rename_in", size_of::<RenameIn>(), 8),
            ("fuse_rename2_in", size_of::<Rename2In>(), 16),
            ("fuse_link_in", size_of::<LinkIn>(), 8),
            ("fuse_open_in", size_of::<OpenIn>(), 8),
            ("fuse_create_in", size_of::<CreateIn>(), 16),
            ("fuse_read_in", size_of::<ReadIn>(), 40),
            ("fuse_write_in", size_of::<WriteIn>(), 40),
            ("fuse_release_in", size_of::<ReleaseIn>(), 24),
            ("fuse_setxattr_in", size_of::<SetxattrIn>(), 8),
            ("fuse_getxattr_in", size_of::<GetxattrIn>(), 8),
            ("fuse_fallocate_in", size_of::<FallocateIn>(), 32),
            ("fuse_lseek_in", size_of::<LseekIn>(), 24),
            ("fuse_copy_file_range_in", size_of::<CopyIn>(), 56),
            ("fuse_ioctl_in", size_of::<IoctlIn>(), 32),
            ("fuse_forget_one", size_of::<ForgetOne>(), 16),
        ];
        for (name, size, expected) in sizes {
            assert_eq!(size, expected, "{name}");
        }
    }

    #[test]
    fn fields_are_where_the_kernels_header_has_them() {
        let offsets = [
            ("fuse_uring_req_header.op_in", offset_of!(RingHeader, op_in), 128),
            ("fuse_uring_req_header.ring_ent_in_out", offset_of!(RingHeader, entry), 256),
            ("fuse_uring_ent_in_out.commit_id", offset_of!(RingEntry, commit_id), 8),
            ("fuse_uring_ent_in_out.payload_sz", offset_of!(RingEntry, payload_bytes), 16),
            ("fuse_uring_cmd_req.commit_id", offset_of!(RingCommand, commit_id), 8),
            ("fuse_uring_cmd_req.qid", offset_of!(RingCommand, queue), 16),
            ("fuse_in_header.unique", offset_of!(InHeader, unique), 8),
            ("fuse_in_header.nodeid", offset_of!(InHeader, node), 16),
            ("fuse_in_header.uid", offset_of!(InHeader, uid), 24),
            ("fuse_attr.atimensec", offset_of!(AttrOut, atime_ns), 48),
            ("fuse_attr.mode", offset_of!(AttrOut, mode), 60),
            ("fuse_attr.blksize", offset_of!(AttrOut, block_bytes), 80),
            ("fuse_entry_out.attr", offset_of!(EntryOut, attr), 40),
            ("fuse_direntplus.dirent", offset_of!(DirentPlusOut, dirent), 128),
            ("fuse_setattr_in.size", offset_of!(SetattrIn, size), 16),
            ("fuse_setattr_in.atime", offset_of!(SetattrIn, atime), 32),
            ("fuse_setattr_in.atimensec", offset_of!(SetattrIn, atime_ns), 56),
            ("fuse_setattr_in.mode", offset_of!(SetattrIn, mode), 68),
            ("fuse_setattr_in.uid", offset_of!(SetattrIn, uid), 76),
            ("fuse_write_in.write_flags", offset_of!(WriteIn, write_flags), 20),
            ("fuse_copy_file_range_in.nodeid_out", offset_of!(CopyIn, to_node), 16),
            ("fuse_copy_file_range_in.off_out", offset_of!(CopyIn, to_offset), 32),
        ];
        for (name, offset, expected) in offsets {
            assert_eq!(offset, expected, "{name}");
        }
    }
}
