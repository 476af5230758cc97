// SPDX-License-Identifier: Apache-2.0
//! Dir: directories, and the calls that take a path from one.

use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use esker::{Dir, RenameFlags, Result};

use crate::arguments::{bytes, bytes_mut, invalid, path, put_new};
use crate::boundary::{call, count};
use crate::handle::{Handle, handle_kind};

handle_kind!(Dir, 5, "directory");

/// Copies as much of `source` as there is room for and returns its whole length.
pub fn copy_out(source: &[u8], target: &mut [u8]) -> u64 {
    let copied = source.len().min(target.len());
    target[..copied].copy_from_slice(&source[..copied]);
    source.len() as u64
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_dir_open(
    at: Handle<Dir>,
    name: *const c_char,
    dir: *mut Handle<Dir>,
) -> c_int {
    call(|| unsafe {
        put_new(dir, || {
            let name = path(name, "path")?;
            at.with(|at| at.open_dir(name))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_dir_path(
    dir: Handle<Dir>,
    buffer: *mut c_void,
    buffer_bytes: usize,
) -> i64 {
    count(|| unsafe {
        let buffer = bytes_mut(buffer, buffer_bytes, "buffer")?;
        let path = dir.with(Dir::path)?;
        Ok(copy_out(path.as_os_str().as_bytes(), buffer))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_dir_close(dir: Handle<Dir>) -> c_int {
    call(|| dir.take().map(drop))
}

/// Runs `act` with a directory and a path from it.
unsafe fn with_path(
    at: Handle<Dir>,
    name: *const c_char,
    act: impl FnOnce(&Dir, &std::path::Path) -> Result<()>,
) -> c_int {
    call(|| {
        // SAFETY: as the caller promises.
        let name = unsafe { path(name, "path")? };
        at.with(|at| act(at, name))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_mkdir(at: Handle<Dir>, name: *const c_char) -> c_int {
    unsafe { with_path(at, name, |at, name| at.create_dir(name).map(drop)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_mkdir_all(at: Handle<Dir>, name: *const c_char) -> c_int {
    unsafe { with_path(at, name, |at, name| at.create_dir_all(name).map(drop)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_create(at: Handle<Dir>, name: *const c_char) -> c_int {
    unsafe { with_path(at, name, |at, name| at.create_empty(name)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_unlink(at: Handle<Dir>, name: *const c_char) -> c_int {
    unsafe { with_path(at, name, |at, name| at.remove_file(name)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_rmdir(at: Handle<Dir>, name: *const c_char) -> c_int {
    unsafe { with_path(at, name, |at, name| at.remove_dir(name)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_remove_all(at: Handle<Dir>, name: *const c_char) -> c_int {
    unsafe { with_path(at, name, |at, name| at.remove_dir_all(name)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_rename(
    at: Handle<Dir>,
    from: *const c_char,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    call(|| unsafe {
        let (from, to) = (path(from, "from")?, path(to, "to")?);
        let flags = match flags {
            0 => RenameFlags::Replace,
            1 => RenameFlags::NoReplace,
            2 => RenameFlags::Exchange,
            _ => return Err(invalid(format!("there are no flags {flags:#x}"))),
        };
        at.with(|at| at.rename_with(from, to, flags))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_link(
    at: Handle<Dir>,
    file: *const c_char,
    link: *const c_char,
) -> c_int {
    call(|| unsafe {
        let (file, link) = (path(file, "file")?, path(link, "link")?);
        at.with(|at| at.hard_link(file, link))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_symlink(
    at: Handle<Dir>,
    target: *const c_char,
    link: *const c_char,
) -> c_int {
    call(|| unsafe {
        let (target, link) = (path(target, "target")?, path(link, "link")?);
        at.with(|at| at.symlink(target, link))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_readlink(
    at: Handle<Dir>,
    link: *const c_char,
    buffer: *mut c_void,
    buffer_bytes: usize,
) -> i64 {
    count(|| unsafe {
        let link = path(link, "link")?;
        let buffer = bytes_mut(buffer, buffer_bytes, "buffer")?;
        let target = at.with(|at| at.read_link(link))?;
        Ok(copy_out(target.as_os_str().as_bytes(), buffer))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_read_file(
    at: Handle<Dir>,
    name: *const c_char,
    buffer: *mut c_void,
    buffer_bytes: usize,
) -> i64 {
    count(|| unsafe {
        let name = path(name, "path")?;
        let buffer = bytes_mut(buffer, buffer_bytes, "buffer")?;
        at.with(|at| Ok(copy_out(&at.read(name)?, buffer)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_write_file(
    at: Handle<Dir>,
    name: *const c_char,
    content: *const c_void,
    content_bytes: usize,
) -> c_int {
    unsafe {
        with_path(at, name, |at, name| at.write(name, bytes(content, content_bytes, "content")?))
    }
}
