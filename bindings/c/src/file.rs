// SPDX-License-Identifier: Apache-2.0
//! File: open files.

use std::ffi::{c_char, c_int, c_void};

use esker::{Dir, File, OpenOptions};

use crate::arguments::{bytes, bytes_mut, invalid, path, put, put_new};
use crate::attributes::{CAttributes, CStat};
use crate::boundary::{call, count};
use crate::handle::{ClosedObject, Handle, handle_kind};

handle_kind!(File, 7, "file");

/// The flags of `open(2)` that a file can be opened with.
const FLAGS_KNOWN: c_int =
    libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_CLOEXEC;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_file_open(
    at: Handle<Dir>,
    name: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut Handle<File>,
) -> c_int {
    call(|| unsafe {
        put_new(file, || {
            let name = path(name, "path")?;
            if flags & !FLAGS_KNOWN != 0 {
                let what = format!("{}: flags {:#o} of open", name.display(), flags & !FLAGS_KNOWN);
                return Err(invalid(what));
            }
            let access = flags & libc::O_ACCMODE;
            let creates = flags & libc::O_CREAT != 0;
            let mut options = OpenOptions::new()
                .read(access != libc::O_WRONLY)
                .write(access != libc::O_RDONLY)
                .create(creates)
                .create_new(creates && flags & libc::O_EXCL != 0)
                .truncate(flags & libc::O_TRUNC != 0);
            if creates {
                options = options.mode(mode & 0o7777);
            }
            at.with(|at| at.open_with(name, &options))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_file_pread(
    file: Handle<File>,
    buffer: *mut c_void,
    buffer_bytes: usize,
    offset: u64,
) -> i64 {
    count(|| unsafe {
        let buffer = bytes_mut(buffer, buffer_bytes, "buffer")?;
        file.with(|file| file.read_at(buffer, offset)).map(|read| read as u64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_file_pwrite(
    file: Handle<File>,
    content: *const c_void,
    content_bytes: usize,
    offset: u64,
) -> i64 {
    count(|| unsafe {
        let content = bytes(content, content_bytes, "content")?;
        file.with(|file| file.write_at(content, offset)).map(|()| content_bytes as u64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_file_append(
    file: Handle<File>,
    content: *const c_void,
    content_bytes: usize,
) -> i64 {
    count(|| unsafe {
        let content = bytes(content, content_bytes, "content")?;
        file.with(|file| file.append(content))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_file_size(file: Handle<File>) -> i64 {
    count(|| file.with(File::len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_file_stat(file: Handle<File>, stat: *mut CStat) -> c_int {
    call(|| unsafe { put(stat, CStat::new(&file.with(File::metadata)?)?, "stat") })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_file_truncate(file: Handle<File>, size: u64) -> c_int {
    call(|| file.with(|file| file.set_len(size)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_file_setattr(
    file: Handle<File>,
    attributes: *const CAttributes,
) -> c_int {
    call(|| {
        // SAFETY: as the caller promises.
        let changes = unsafe { CAttributes::read(attributes)? };
        file.with(|file| file.set_attributes(&changes))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_file_sync(file: Handle<File>) -> c_int {
    call(|| file.with(File::sync))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_file_close(file: Handle<File>) -> c_int {
    call(|| match file.take()? {
        ClosedObject::Owned(file) => file.close(),
        ClosedObject::InUse | ClosedObject::Inherited => Ok(()),
    })
}
