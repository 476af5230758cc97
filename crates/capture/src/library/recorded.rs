// SPDX-License-Identifier: Apache-2.0
//! Recorded: makes the calls of hooks, and records them around it. None changes what the program sees, `errno`
//! included.

use core::ffi::{CStr, c_char, c_int, c_void};

use super::call_slot::operation::{CREATE, OPEN, RENAME, RENAME_TARGET};
use super::descriptors::{closing, directory_of, file_of, forget_working_directory, opened};
use super::kernel::{self, AT_FDCWD};
use super::log_writer::{BegunCall, LogWriter, logged_result};

/// A position that is not known.
const UNKNOWN_OFFSET: u64 = u64::MAX;

/// The result of a C function, as a number.
pub trait CallResult: Copy {
    fn number(self) -> i64;
}

impl CallResult for c_int {
    fn number(self) -> i64 {
        self.into()
    }
}

impl CallResult for isize {
    fn number(self) -> i64 {
        self as i64
    }
}

/// An address, or -1.
impl CallResult for *mut c_void {
    fn number(self) -> i64 {
        if self as isize == -1 { -1 } else { 0 }
    }
}

impl CallResult for i64 {
    fn number(self) -> i64 {
        self
    }
}

/// A range of a file as callers give it: those that are negative count as unknown.
fn range(offset: i64, bytes: i64) -> (u64, u64) {
    (u64::try_from(offset).unwrap_or(UNKNOWN_OFFSET), u64::try_from(bytes).unwrap_or(0))
}

/// Makes `call`, of `operation` on an open file, in the place that `place` says after it.
fn on_open_file<R: CallResult>(
    (operation, descriptor): (u32, c_int),
    call: impl FnOnce() -> R,
    place: impl FnOnce(i64) -> (u64, u64),
) -> R {
    let begun = LogWriter::get().and_then(|writer| {
        let file = file_of(&writer, descriptor)?;
        writer.begin(operation, file)
    });
    let Some(begun) = begun else { return call() };
    let result = call();
    let end_ns = kernel::now_ns();
    let logged = logged_result(result.number());
    begun.end_at(end_ns, logged, place(logged));
    result
}

/// Makes `call`, which transfers bytes at the position of an open file, as many as `bytes` says of its result.
pub fn transfer<R: CallResult>(
    operation: u32,
    (descriptor, bytes): (c_int, impl FnOnce(i64) -> usize),
    call: impl FnOnce() -> R,
) -> R {
    on_open_file((operation, descriptor), call, |result| {
        let end = kernel::position(descriptor).unwrap_or(UNKNOWN_OFFSET);
        (end.wrapping_sub(result.max(0) as u64), bytes(result) as u64)
    })
}

/// Makes `call`, which transfers bytes at `offset`, as many as `bytes` says of its result.
pub fn transfer_at<R: CallResult>(
    operation: u32,
    (descriptor, bytes, offset): (c_int, impl FnOnce(i64) -> usize, i64),
    call: impl FnOnce() -> R,
) -> R {
    on_open_file((operation, descriptor), call, |result| range(offset, bytes(result) as i64))
}

/// Makes `call`, which copies `bytes` from one file to another, each at its position, or at the offset that the
/// caller's number has and gets.
///
/// # Safety
/// After a call that succeeds, the offsets are null or numbers.
pub unsafe fn copy(
    operations: (u32, u32),
    (from, from_offset): (c_int, *const i64),
    (to, to_offset): (c_int, *const i64),
    bytes: usize,
    call: impl FnOnce() -> isize,
) -> isize {
    let writer = LogWriter::get();
    let begin = |operation, descriptor| {
        let file = file_of(&writer?, descriptor)?;
        writer?.begin(operation, file)
    };
    let (read, written) = (begin(operations.0, from), begin(operations.1, to));
    let result = call();
    let end_ns = kernel::now_ns();
    let logged = logged_result(result.number());
    let moved = logged.max(0) as u64;
    let end = |begun: Option<BegunCall>, descriptor, offset: *const i64| {
        let Some(begun) = begun else { return };
        let end = match offset.is_null() {
            true => kernel::position(descriptor).unwrap_or(UNKNOWN_OFFSET),
            false if logged < 0 => UNKNOWN_OFFSET,
            // SAFETY: the call has used the number.
            false => unsafe { offset.read() as u64 },
        };
        begun.end_at(end_ns, logged, (end.wrapping_sub(moved), bytes as u64));
    };
    end(read, from, from_offset);
    end(written, to, to_offset);
    result
}

/// Makes `call`, which returns the new position of an open file.
pub fn seek(operation: u32, descriptor: c_int, call: impl FnOnce() -> i64) -> i64 {
    on_open_file((operation, descriptor), call, |result| range(result.max(0), 0))
}

/// Makes `call`, of an open file, with the range that the caller gives.
pub fn open_file<R: CallResult>(
    operation: u32,
    (descriptor, offset, bytes): (c_int, i64, i64),
    call: impl FnOnce() -> R,
) -> R {
    on_open_file((operation, descriptor), call, |_| range(offset, bytes))
}

/// Makes `call`, which closes a descriptor.
pub fn close(operation: u32, descriptor: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let begun = LogWriter::get().and_then(|writer| {
        let file = closing(&writer, descriptor)?;
        writer.begin(operation, file)
    });
    let Some(begun) = begun else { return call() };
    let result = call();
    let end_ns = kernel::now_ns();
    begun.end_at(end_ns, logged_result(result.into()), (0, 0));
    result
}

/// Makes `call`, which opens `path` and returns a descriptor; `is_named` is false if the file gets no name.
///
/// # Safety
/// `path` is null, points to a string, or the call fails before it reads the string.
pub unsafe fn open(
    (directory, path): (c_int, *const c_char),
    (makes, is_named): (bool, bool),
    call: impl FnOnce() -> c_int,
) -> c_int {
    let writer = LogWriter::get();
    let operation = if makes { CREATE } else { OPEN };
    let begun = writer.and_then(|writer| writer.begin(operation, 0));
    let descriptor = call();
    if let (Some(writer), Some(begun)) = (writer, begun) {
        let end_ns = kernel::now_ns();
        let logged = logged_result(descriptor.into());
        // SAFETY: the caller's.
        let file = unsafe { put_path(&writer, (directory, path), logged) };
        if descriptor >= 0 {
            opened(&writer, descriptor, if is_named { file } else { 0 });
        }
        begun.set_file(file);
        begun.end_at(end_ns, logged, (0, 0));
    }
    descriptor
}

/// Records the call that opened a stream with `descriptor`, -1 if it failed.
///
/// # Safety
/// `path` is null or points to a string.
pub unsafe fn open_stream<S>(
    (path, makes): (*const c_char, bool),
    call: impl FnOnce() -> S,
    descriptor_of: impl FnOnce(&S) -> c_int,
) -> S {
    let mut stream = None;
    let opened = || descriptor_of(stream.insert(call()));
    // SAFETY: the caller's.
    unsafe { open((AT_FDCWD, path), (makes, true), opened) };
    match stream {
        Some(stream) => stream,
        None => kernel::exit(134),
    }
}

/// Makes `call`, of the name `path`.
///
/// # Safety
/// `path` is null, points to a string, or the call fails before it reads the string.
pub unsafe fn named<R>(
    (operation, offset): (u32, i64),
    path: (c_int, *const c_char),
    call: impl FnOnce() -> R,
    number: impl FnOnce(&R) -> i64,
) -> R {
    let writer = LogWriter::get();
    let begun = writer.and_then(|writer| writer.begin(operation, 0));
    let result = call();
    if let (Some(writer), Some(begun)) = (writer, begun) {
        let end_ns = kernel::now_ns();
        let logged = logged_result(number(&result));
        // SAFETY: the caller's.
        begun.set_file(unsafe { put_path(&writer, path, logged) });
        begun.end_at(end_ns, logged, range(offset, 0));
    }
    result
}

/// Makes `call`, which renames the first name to the second.
///
/// # Safety
/// As [`named`], of both.
pub unsafe fn rename(
    old: (c_int, *const c_char),
    new: (c_int, *const c_char),
    call: impl FnOnce() -> c_int,
) -> c_int {
    let writer = LogWriter::get();
    let begun = writer.and_then(|writer| writer.begin_two(RENAME, RENAME_TARGET));
    let result = call();
    if let (Some(writer), Some(begun)) = (writer, begun) {
        let end_ns = kernel::now_ns();
        let logged = logged_result(result.into());
        for (begun, path) in begun.into_iter().zip([old, new]) {
            // SAFETY: the caller's.
            begun.set_file(unsafe { put_path(&writer, path, logged) });
            begun.end_at(end_ns, logged, (0, 0));
        }
        // It may have been the working directory, or one above.
        forget_working_directory(&writer);
    }
    result
}

const EFAULT: i64 = 14;

/// True if a call with this result has read the name that it was given: it succeeded, or failed for something that
/// only the name says.
fn has_read_name(result: i64) -> bool {
    // EACCES, EBUSY, EDQUOT, EEXIST, EISDIR, ELOOP, EMFILE, ENFILE, ENODATA, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY,
    // ENXIO, EROFS, ETXTBSY, EXDEV.
    const OF_NAMES: [i64; 17] = [13, 16, 122, 17, 21, 40, 24, 23, 61, 2, 28, 20, 39, 6, 30, 26, 18];
    result >= 0 || OF_NAMES.contains(&-result)
}

/// Puts the path at which a name leads from a directory, after a call with this result; 0 if it is unknown.
///
/// # Safety
/// The name is null, a string, or the call failed before it read the name.
unsafe fn put_path(
    writer: &LogWriter,
    (directory, path): (c_int, *const c_char),
    result: i64,
) -> u64 {
    // Other errors may be of flags, which the kernel looks at before the name.
    let is_readable = || {
        has_read_name(result)
            || result != -EFAULT && has_read_name(kernel::check_name(directory, path))
    };
    if path.is_null() || !is_readable() {
        return 0;
    }
    // SAFETY: the caller's.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path.starts_with(b"/") {
        return writer.put_text(0, path);
    }
    match directory_of(writer, directory) {
        0 => 0,
        start if matches!(path, b"" | b".") => start,
        start => writer.put_text(start, path),
    }
}
