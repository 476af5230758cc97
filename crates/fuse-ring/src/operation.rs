// SPDX-License-Identifier: Apache-2.0
//! Operation: a parsed request of the kernel.
//!
//! A request is a header, the structure of its operation, and a payload: names, each followed by a
//! zero byte, and bytes to be written. A ring has the three in separate buffers; `/dev/fuse` has
//! them in one message, which [`split`] divides. The parser refuses malformed requests, and never
//! reads beyond their end.

use zerocopy::FromBytes;

use crate::abi::{self, InHeader, fattr, opcode};

/// A request, and the user who makes it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The inode number of the file.
    pub node: u64,
    /// The user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The requested operation.
    pub operation: Operation<'a>,
}

/// An operation of the protocol, with its field names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "these are the protocol's own terms")]
pub enum Operation<'a> {
    LookUp {
        name: &'a [u8],
    },
    GetAttr,
    SetAttr(AttrChanges),
    ReadLink,
    SymLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
    },
    Create {
        name: &'a [u8],
        flags: u32,
        mode: u32,
    },
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        flags: u32,
    },
    StatFs,
    Release,
    Fsync,
    Flush,
    OpenDir,
    ReadDir {
        handle: u64,
        cookie: u64,
        size: u32,
        with_attributes: bool,
    },
    ReleaseDir {
        handle: u64,
    },
    FsyncDir,
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Fallocate {
        offset: u64,
        length: u64,
        mode: i32,
    },
    Lseek {
        offset: i64,
        whence: i32,
    },
    CopyFileRange {
        offset: u64,
        to_node: u64,
        to_offset: u64,
        length: u64,
    },
    Ioctl {
        is_unrestricted: bool,
    },
    /// An operation that this crate does not know, by its number.
    Unknown(u32),
}

/// The attributes that a [`Operation::SetAttr`] changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "these are the protocol's own terms")]
pub struct AttrChanges {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<NewTime>,
    pub mtime: Option<NewTime>,
    pub ctime: Option<NewTime>,
}

/// A new time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// Seconds since 1970, and nanoseconds to add to them.
    At(i64, u32),
    /// The time of the change.
    Now,
}

/// Bit of `fuse_ioctl_in.flags`: the request comes from a character device.
const IOCTL_UNRESTRICTED: u32 = 1 << 1;

impl<'a> Request<'a> {
    /// Parses a request: `arguments` begins with the structure of the operation. `None` if it is
    /// malformed.
    pub(crate) fn parse(
        header: &InHeader,
        arguments: &'a [u8],
        payload: &'a [u8],
    ) -> Option<Request<'a>> {
        let operation = Operation::parse(header.opcode, arguments, payload)?;
        Some(Request { node: header.node, uid: header.uid, gid: header.gid, operation })
    }
}

impl<'a> Operation<'a> {
    fn parse(opcode: u32, arguments: &'a [u8], payload: &'a [u8]) -> Option<Self> {
        let mut names = payload;
        let mut name = || {
            let end = names.iter().position(|byte| *byte == 0)?;
            let name = &names[..end];
            names = &names[end + 1..];
            Some(name)
        };
        Some(match opcode {
            opcode::LOOKUP => Self::LookUp { name: name()? },
            opcode::GETATTR => Self::GetAttr,
            opcode::SETATTR => Self::SetAttr(AttrChanges::of(&read(arguments)?)),
            opcode::READLINK => Self::ReadLink,
            opcode::SYMLINK => Self::SymLink { name: name()?, target: name()? },
            opcode::MKNOD => {
                let abi::MknodIn { mode, rdev, .. } = read(arguments)?;
                Self::MkNod { name: name()?, mode, rdev }
            }
            opcode::MKDIR => {
                Self::MkDir { name: name()?, mode: read::<abi::MkdirIn>(arguments)?.mode }
            }
            opcode::UNLINK => Self::Unlink { name: name()? },
            opcode::RMDIR => Self::RmDir { name: name()? },
            opcode::RENAME => {
                let abi::RenameIn { new_parent } = read(arguments)?;
                Self::Rename { name: name()?, new_parent, new_name: name()?, flags: 0 }
            }
            opcode::RENAME2 => {
                let abi::Rename2In { new_parent, flags, .. } = read(arguments)?;
                Self::Rename { name: name()?, new_parent, new_name: name()?, flags }
            }
            opcode::LINK => {
                Self::Link { node: read::<abi::LinkIn>(arguments)?.node, name: name()? }
            }
            opcode::CREATE => {
                let abi::CreateIn { flags, mode, .. } = read(arguments)?;
                Self::Create { name: name()?, flags, mode }
            }
            opcode::SETXATTR => {
                let abi::SetxattrIn { size, flags } = read(arguments)?;
                let name = name()?;
                Self::SetXattr { name, value: names.get(..size as usize)?, flags }
            }
            opcode::GETXATTR => {
                let abi::GetxattrIn { size, .. } = read(arguments)?;
                Self::GetXattr { name: name()?, size }
            }
            opcode::REMOVEXATTR => Self::RemoveXattr { name: name()? },
            opcode => return Self::parse_nameless(opcode, arguments, payload),
        })
    }

    /// Parses an operation without names.
    fn parse_nameless(opcode: u32, arguments: &'a [u8], payload: &'a [u8]) -> Option<Self> {
        Some(match opcode {
            opcode::OPEN => Self::Open { flags: read::<abi::OpenIn>(arguments)?.flags },
            opcode::READ => {
                let abi::ReadIn { offset, size, .. } = read(arguments)?;
                Self::Read { offset, size }
            }
            opcode::WRITE => {
                let abi::WriteIn { offset, size, write_flags: flags, .. } = read(arguments)?;
                Self::Write { offset, data: payload.get(..size as usize)?, flags }
            }
            opcode::STATFS => Self::StatFs,
            opcode::RELEASE => Self::Release,
            opcode::FSYNC => Self::Fsync,
            opcode::FLUSH => Self::Flush,
            opcode::OPENDIR => Self::OpenDir,
            opcode::READDIR | opcode::READDIRPLUS => {
                let abi::ReadIn { handle, offset: cookie, size, .. } = read(arguments)?;
                let with_attributes = opcode == opcode::READDIRPLUS;
                Self::ReadDir { handle, cookie, size, with_attributes }
            }
            opcode::RELEASEDIR => {
                Self::ReleaseDir { handle: read::<abi::ReleaseIn>(arguments)?.handle }
            }
            opcode::FSYNCDIR => Self::FsyncDir,
            opcode::LISTXATTR => Self::ListXattr { size: read::<abi::GetxattrIn>(arguments)?.size },
            opcode::FALLOCATE => {
                let abi::FallocateIn { offset, length, mode, .. } = read(arguments)?;
                Self::Fallocate { offset, length, mode }
            }
            opcode::LSEEK => {
                let abi::LseekIn { offset, whence, .. } = read(arguments)?;
                Self::Lseek { offset, whence }
            }
            opcode::COPY_FILE_RANGE => {
                let abi::CopyIn { offset, to_node, to_offset, length, .. } = read(arguments)?;
                Self::CopyFileRange { offset, to_node, to_offset, length }
            }
            opcode::IOCTL => {
                let flags = read::<abi::IoctlIn>(arguments)?.flags;
                Self::Ioctl { is_unrestricted: flags & IOCTL_UNRESTRICTED != 0 }
            }
            unknown => Self::Unknown(unknown),
        })
    }
}

impl AttrChanges {
    fn of(asked: &abi::SetattrIn) -> Self {
        let if_set = |bit: u32| asked.valid & bit != 0;
        let time = |bit: u32, now: u32, seconds: i64, nanoseconds: u32| {
            let time = if if_set(now) { NewTime::Now } else { NewTime::At(seconds, nanoseconds) };
            if_set(bit).then_some(time)
        };
        Self {
            mode: if_set(fattr::MODE).then_some(asked.mode),
            uid: if_set(fattr::UID).then_some(asked.uid),
            gid: if_set(fattr::GID).then_some(asked.gid),
            size: if_set(fattr::SIZE).then_some(asked.size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, asked.atime, asked.atime_ns),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, asked.mtime, asked.mtime_ns),
            ctime: time(fattr::CTIME, 0, asked.ctime, asked.ctime_ns),
        }
    }
}

/// The structure at the beginning of `bytes`.
pub(crate) fn read<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// Divides a message of `/dev/fuse` into header, structure of the operation and what follows.
pub(crate) fn split(message: &[u8]) -> Option<(InHeader, &[u8], &[u8])> {
    let header: InHeader = read(message)?;
    let message = message.get(size_of::<InHeader>()..header.bytes as usize)?;
    let (arguments, payload) = message.split_at_checked(argument_bytes(header.opcode))?;
    Some((header, arguments, payload))
}

/// Bytes of the structure of an operation that something follows.
fn argument_bytes(opcode: u32) -> usize {
    match opcode {
        opcode::MKNOD => size_of::<abi::MknodIn>(),
        opcode::MKDIR => size_of::<abi::MkdirIn>(),
        opcode::RENAME => size_of::<abi::RenameIn>(),
        opcode::RENAME2 => size_of::<abi::Rename2In>(),
        opcode::LINK => size_of::<abi::LinkIn>(),
        opcode::CREATE => size_of::<abi::CreateIn>(),
        opcode::WRITE => size_of::<abi::WriteIn>(),
        opcode::SETXATTR => size_of::<abi::SetxattrIn>(),
        opcode::GETXATTR => size_of::<abi::GetxattrIn>(),
        opcode::LOOKUP
        | opcode::SYMLINK
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::REMOVEXATTR
        | opcode::READLINK
        | opcode::STATFS
        | opcode::GETATTR => 0,
        opcode::SETATTR => size_of::<abi::SetattrIn>(),
        opcode::OPEN | opcode::OPENDIR => size_of::<abi::OpenIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<abi::ReadIn>(),
        opcode::RELEASE | opcode::RELEASEDIR => size_of::<abi::ReleaseIn>(),
        opcode::LISTXATTR => size_of::<abi::GetxattrIn>(),
        opcode::FALLOCATE => size_of::<abi::FallocateIn>(),
        opcode::LSEEK => size_of::<abi::LseekIn>(),
        opcode::COPY_FILE_RANGE => size_of::<abi::CopyIn>(),
        opcode::IOCTL => size_of::<abi::IoctlIn>(),
        opcode::FORGET => size_of::<abi::ForgetIn>(),
        opcode::BATCH_FORGET => size_of::<abi::BatchForgetIn>(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    fn header(opcode: u32, bytes: usize) -> InHeader {
        let bytes = u32::try_from(size_of::<InHeader>() + bytes).expect("small");
        let (unique, node, uid, gid, pid) = (7, 1, 1000, 100, 1);
        InHeader { bytes, opcode, unique, node, uid, gid, pid, extension_bytes: 0, padding: 0 }
    }

    /// As `/dev/fuse` gives it.
    fn message(opcode: u32, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        [header(opcode, body.len()).as_bytes(), &body].concat()
    }

    fn parsed(message: &[u8]) -> Option<Operation<'_>> {
        let (header, arguments, payload) = split(message)?;
        Some(Request::parse(&header, arguments, payload)?.operation)
    }

    #[test]
    fn names_and_bytes_follow_the_structure_of_the_operation() {
        let made = abi::CreateIn { flags: 0o101, mode: 0o100_644, umask: 0, open_flags: 0 };
        let create = message(opcode::CREATE, &[made.as_bytes(), b"name\0"]);
        let expected = Operation::Create { name: b"name", flags: 0o101, mode: 0o100_644 };
        assert_eq!(parsed(&create), Some(expected));
        let symlink = message(opcode::SYMLINK, &[b"name\0", b"target\0"]);
        let expected = Operation::SymLink { name: b"name", target: b"target" };
        assert_eq!(parsed(&symlink), Some(expected));
        let asked = abi::SetxattrIn { size: 3, flags: 1 };
        let set = message(opcode::SETXATTR, &[asked.as_bytes(), b"user.x\0", b"a\0b"]);
        let expected = Operation::SetXattr { name: b"user.x", value: b"a\0b", flags: 1 };
        assert_eq!(parsed(&set), Some(expected));
        assert_eq!(parsed(&message(4095, &[])), Some(Operation::Unknown(4095)));
    }

    #[test]
    fn times_keep_seconds_before_1970_and_their_nanoseconds_apart() {
        let mut asked = abi::SetattrIn::new_zeroed();
        asked.valid = fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME | fattr::CTIME;
        (asked.mtime, asked.mtime_ns, asked.ctime) = (-2, 300, 5);
        let changes = AttrChanges::of(&asked);
        assert_eq!(changes.atime, Some(NewTime::Now));
        assert_eq!(changes.mtime, Some(NewTime::At(-2, 300)));
        assert_eq!(changes.ctime, Some(NewTime::At(5, 0)));
        assert_eq!((changes.mode, changes.size), (None, None));
    }

    #[test]
    fn cut_off_messages_are_refused() {
        let write = abi::WriteIn { size: 4, ..abi::WriteIn::new_zeroed() };
        let made = abi::MknodIn { mode: 0o644, rdev: 0, umask: 0, padding: 0 };
        let renamed = abi::Rename2In { new_parent: 1, flags: 0, padding: 0 };
        let whole: [(u32, Vec<u8>); 3] = [
            (opcode::WRITE, [write.as_bytes(), b"data"].concat()),
            (opcode::MKNOD, [made.as_bytes(), b"name\0"].concat()),
            (opcode::RENAME2, [renamed.as_bytes(), b"from\0to\0"].concat()),
        ];
        for (opcode, body) in whole {
            let whole = message(opcode, &[&body]);
            assert!(parsed(&whole).is_some());
            for length in 0..body.len() {
                // The header states the short length in the first message, and the full length in
                // the second.
                assert_eq!(parsed(&message(opcode, &[&body[..length]])), None, "{opcode}");
                assert_eq!(parsed(&whole[..size_of::<InHeader>() + length]), None, "{opcode}");
            }
        }
    }
}
