// SPDX-License-Identifier: Apache-2.0
//! Arguments: pointers of a caller as references, or an error that names the argument.
//!
//! Every function is unsafe for the reasons that `esker.h` gives its callers: a pointer that is not
//! null refers to as many bytes as its length says, text ends with a zero byte, and both stay for
//! the time of the call.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use esker::{Error, Kind, Result};

use crate::handle::{Handle, HandleKind};

/// Maximum number of elements of an array that a caller passes.
const ELEMENTS_MAX: usize = isize::MAX as usize / 64;

pub fn invalid(what: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, what)
}

#[inline]
fn required<T>(pointer: *const T, argument: &str) -> Result<()> {
    if pointer.is_null() { Err(absent(argument)) } else { Ok(()) }
}

#[cold]
fn absent(argument: &str) -> Error {
    invalid(format!("{argument} is NULL"))
}

/// The bytes of a text.
pub unsafe fn path<'a>(text: *const c_char, argument: &str) -> Result<&'a Path> {
    required(text, argument)?;
    // SAFETY: not null, and the caller ends its text with a zero byte.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// A text of Unicode characters.
pub unsafe fn text<'a>(text: *const c_char, argument: &str) -> Result<&'a str> {
    // SAFETY: as the caller promises.
    let path = unsafe { path(text, argument)? };
    path.to_str().ok_or_else(|| invalid(format!("{argument} is not UTF-8")))
}

/// As [`text`], and `None` for a null pointer.
pub unsafe fn optional_text<'a>(pointer: *const c_char, argument: &str) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    unsafe { text(pointer, argument) }.map(Some)
}

/// An array of elements; a null pointer is an array of none.
#[inline]
pub unsafe fn slice<'a, T>(start: *const T, count: usize, argument: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    required(start, argument)?;
    check_count::<T>(count, start.is_aligned(), argument)?;
    // SAFETY: not null, aligned, and the caller promises `count` elements.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

/// An array of elements that the function fills; a null pointer is an array of none.
pub unsafe fn slice_mut<'a, T>(start: *mut T, count: usize, argument: &str) -> Result<&'a mut [T]> {
    if count == 0 {
        return Ok(&mut []);
    }
    required(start.cast_const(), argument)?;
    check_count::<T>(count, start.is_aligned(), argument)?;
    // SAFETY: not null, aligned, and the caller promises `count` elements that nobody else uses.
    Ok(unsafe { std::slice::from_raw_parts_mut(start, count) })
}

#[inline]
fn check_count<T>(count: usize, is_aligned: bool, argument: &str) -> Result<()> {
    let most = ELEMENTS_MAX.min(isize::MAX as usize / size_of::<T>().max(1));
    if is_aligned && count <= most { Ok(()) } else { Err(impossible(count, argument)) }
}

#[cold]
fn impossible(count: usize, argument: &str) -> Error {
    invalid(format!("{argument}: an array of {count} elements cannot be there"))
}

/// Bytes of any kind.
#[inline]
pub unsafe fn bytes<'a>(start: *const c_void, size: usize, argument: &str) -> Result<&'a [u8]> {
    // SAFETY: as the caller promises.
    unsafe { slice(start.cast(), size, argument) }
}

/// Bytes that the function fills.
pub unsafe fn bytes_mut<'a>(start: *mut c_void, size: usize, what: &str) -> Result<&'a mut [u8]> {
    // SAFETY: as the caller promises.
    unsafe { slice_mut(start.cast(), size, what) }
}

/// Texts in an array.
pub unsafe fn texts<'a>(
    start: *const *const c_char,
    count: usize,
    argument: &str,
) -> Result<Vec<&'a str>> {
    // SAFETY: as the caller promises.
    let pointers = unsafe { slice(start, count, argument)? };
    // SAFETY: as the caller promises.
    pointers.iter().map(|pointer| unsafe { text(*pointer, argument) }).collect()
}

/// Writes a result where the caller wants it.
pub unsafe fn put<T>(target: *mut T, value: T, argument: &str) -> Result<()> {
    required(target.cast_const(), argument)?;
    // SAFETY: not null, and the caller promises room for one value.
    unsafe { target.write_unaligned(value) };
    Ok(())
}

/// As [`put`], but a null pointer says that the caller does not want the result.
pub unsafe fn put_optional<T>(target: *mut T, value: T) {
    if !target.is_null() {
        // SAFETY: not null, and the caller promises room for one value.
        unsafe { target.write_unaligned(value) };
    }
}

/// Runs `open` and hands its object out; the target is null if it fails.
pub unsafe fn put_new<T: HandleKind>(
    target: *mut Handle<T>,
    open: impl FnOnce() -> Result<T>,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { put(target, Handle::NULL, T::NOUN)? };
    let handle = Handle::new(open()?)?;
    // SAFETY: as the caller promises.
    unsafe { put(target, handle, T::NOUN) }
}

/// Writes a text and its zero byte into a buffer of `N` bytes.
pub unsafe fn put_text<const N: usize>(
    target: *mut [c_char; N],
    text: &str,
    what: &str,
) -> Result<()> {
    let mut buffer = [0; N];
    assert!(text.len() < N, "{what} has room for {N} bytes");
    for (target, byte) in buffer.iter_mut().zip(text.bytes()) {
        *target = byte as c_char;
    }
    // SAFETY: as the caller promises.
    unsafe { put(target, buffer, what) }
}
