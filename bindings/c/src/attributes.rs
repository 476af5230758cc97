// SPDX-License-Identifier: Apache-2.0
//! Attributes of files: `stat`, changes, extended attributes.

use std::ffi::{c_char, c_int, c_void};
use std::time::{SystemTime, UNIX_EPOCH};

use esker::{AttributeChanges, Dir, FileKind, LiveAttributes, Metadata, Result, XattrSet};

use crate::arguments::{bytes, bytes_mut, invalid, path, put, text};
use crate::boundary::{call, count};
use crate::dir::copy_out;
use crate::handle::Handle;

/// `ESKER_NOFOLLOW`.
pub const NOFOLLOW: c_int = 1;

/// `esker_stat_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CStat {
    pub(crate) file_id: [u8; 16],
    pub(crate) size: u64,
    pub(crate) atime_ns: i64,
    pub(crate) mtime_ns: i64,
    pub(crate) ctime_ns: i64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) is_indexed: u32,
    pub(crate) reserved: [u32; 7],
}

impl CStat {
    pub fn new(metadata: &Metadata) -> Result<Self> {
        let kind = metadata.kind()?;
        Ok(Self {
            file_id: metadata.file_id().to_le_bytes(),
            size: metadata.len(),
            atime_ns: nanoseconds(metadata.accessed()),
            mtime_ns: nanoseconds(metadata.modified()),
            ctime_ns: nanoseconds(metadata.changed()),
            mode: type_bits(kind) | metadata.mode() & !libc::S_IFMT,
            uid: metadata.uid(),
            gid: metadata.gid(),
            nlink: metadata.links(),
            is_indexed: (kind == FileKind::Indexed).into(),
            reserved: [0; 7],
        })
    }

    pub fn of_live(attributes: &LiveAttributes) -> Self {
        let kind = attributes.kind;
        Self {
            file_id: attributes.id.to_le_bytes(),
            size: attributes.size,
            atime_ns: attributes.atime_ns,
            mtime_ns: attributes.mtime_ns,
            ctime_ns: attributes.ctime_ns,
            mode: type_bits(kind) | attributes.mode & !libc::S_IFMT,
            uid: attributes.uid,
            gid: attributes.gid,
            nlink: attributes.nlink,
            is_indexed: (kind == FileKind::Indexed).into(),
            reserved: [0; 7],
        }
    }
}

fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory | FileKind::Indexed => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

/// Nanoseconds since the Unix epoch, negative before it.
fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => {
            i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, std::ops::Neg::neg)
        }
    }
}

/// `esker_attributes`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CAttributes {
    pub(crate) changes: u32,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) atime_ns: i64,
    pub(crate) mtime_ns: i64,
}

/// The bits of `esker_attributes.changes`, in the order of the members.
const CHANGES_KNOWN: u32 = 0b11_1111;

impl CAttributes {
    /// Reads the changes at `pointer`.
    pub unsafe fn read(pointer: *const Self) -> Result<AttributeChanges> {
        if pointer.is_null() {
            return Err(invalid("attributes is NULL"));
        }
        // SAFETY: not null, and the caller promises a struct.
        let given = unsafe { pointer.read_unaligned() };
        if given.changes & !CHANGES_KNOWN != 0 {
            return Err(invalid(format!("there are no changes {:#x}", given.changes)));
        }
        let has = |bit: u32| given.changes & 1 << bit != 0;
        Ok(AttributeChanges {
            mode: has(0).then_some(given.mode),
            uid: has(1).then_some(given.uid),
            gid: has(2).then_some(given.gid),
            size: has(3).then_some(given.size),
            atime_ns: has(4).then_some(given.atime_ns),
            mtime_ns: has(5).then_some(given.mtime_ns),
            ctime_ns: None,
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_stat(
    at: Handle<Dir>,
    name: *const c_char,
    flags: c_int,
    stat: *mut CStat,
) -> c_int {
    call(|| unsafe {
        let name = path(name, "path")?;
        let found = at.with(|at| match flags {
            0 => at.metadata(name),
            NOFOLLOW => at.symlink_metadata(name),
            _ => Err(invalid(format!("there are no flags {flags:#x}"))),
        })?;
        put(stat, CStat::new(&found)?, "stat")
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_setattr(
    at: Handle<Dir>,
    name: *const c_char,
    attributes: *const CAttributes,
) -> c_int {
    call(|| unsafe {
        let name = path(name, "path")?;
        let changes = CAttributes::read(attributes)?;
        at.with(|at| at.set_attributes(name, &changes))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_getxattr(
    at: Handle<Dir>,
    name: *const c_char,
    attribute: *const c_char,
    buffer: *mut c_void,
    buffer_bytes: usize,
) -> i64 {
    count(|| unsafe {
        let (name, attribute) = (path(name, "path")?, text(attribute, "attribute")?);
        let buffer = bytes_mut(buffer, buffer_bytes, "buffer")?;
        let all = at.with(|at| at.metadata(name)?.xattrs())?;
        let value = all.get(attribute.as_bytes()).ok_or_else(|| {
            let what = format!("{}: no attribute {attribute}", name.display());
            esker::Error::new(esker::Kind::NoAttribute, what)
        })?;
        Ok(copy_out(value, buffer))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_listxattr(
    at: Handle<Dir>,
    name: *const c_char,
    buffer: *mut c_void,
    buffer_bytes: usize,
) -> i64 {
    count(|| unsafe {
        let name = path(name, "path")?;
        let buffer = bytes_mut(buffer, buffer_bytes, "buffer")?;
        let all = at.with(|at| at.metadata(name)?.xattrs())?;
        let list: Vec<u8> = all.keys().flat_map(|key| key.iter().copied().chain([0])).collect();
        Ok(copy_out(&list, buffer))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_setxattr(
    at: Handle<Dir>,
    name: *const c_char,
    attribute: *const c_char,
    value: *const c_void,
    value_bytes: usize,
    flags: c_int,
) -> c_int {
    call(|| unsafe {
        let (name, attribute) = (path(name, "path")?, text(attribute, "attribute")?);
        let value = bytes(value, value_bytes, "value")?;
        let how = match flags {
            0 => XattrSet::Any,
            libc::XATTR_CREATE => XattrSet::Create,
            libc::XATTR_REPLACE => XattrSet::Replace,
            _ => return Err(invalid(format!("there are no flags {flags:#x}"))),
        };
        at.with(|at| at.set_xattr(name, attribute, value, how))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_removexattr(
    at: Handle<Dir>,
    name: *const c_char,
    attribute: *const c_char,
) -> c_int {
    call(|| unsafe {
        let (name, attribute) = (path(name, "path")?, text(attribute, "attribute")?);
        at.with(|at| at.remove_xattr(name, attribute))
    })
}
