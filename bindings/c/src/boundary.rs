// SPDX-License-Identifier: Apache-2.0
//! Boundary: results as C sees them, and the last error of each thread.
//!
//! A function returns 0 or a count, or minus an errno; kind and text of the error stay with the
//! thread until its next failure. A panic is a bug: it becomes `EIO` with a text that says so.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use esker::{Error, Kind, Result};

/// The number of an error that is a bug in Esker; those of kinds begin at 3.
const KIND_OF_BUG: c_int = 1;

/// The last failure in a thread.
struct LastError {
    kind: c_int,
    message: CString,
}

thread_local! {
    static LAST_ERROR: RefCell<Option<LastError>> = const { RefCell::new(None) };
}

/// Runs the body of a function that returns 0.
pub fn call(body: impl FnOnce() -> Result<()>) -> c_int {
    // Minus an errno fits.
    count(|| body().map(|()| 0)) as c_int
}

/// Runs the body of a function that returns a count.
pub fn count(body: impl FnOnce() -> Result<u64>) -> i64 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(count)) => i64::try_from(count).unwrap_or(i64::MAX),
        Ok(Err(error)) => raise(&error),
        Err(panic) => raise_bug(&*panic),
    }
}

/// Keeps `error` for the thread and returns minus its errno.
pub fn raise(error: &Error) -> i64 {
    keep(error.kind().exit_code().into(), &error.to_string());
    -i64::from(error.kind().errno())
}

fn raise_bug(panic: &(dyn Any + Send)) -> i64 {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    keep(KIND_OF_BUG, &format!("a bug in Esker, please report it: {text}"));
    -i64::from(libc::EIO)
}

fn keep(kind: c_int, text: &str) {
    let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    let message = CString::new(bytes).unwrap_or_default();
    // While the thread ends, no caller is left that could ask for it.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = Some(LastError { kind, message }));
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_version() -> u32 {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | number(env!("CARGO_PKG_VERSION_PATCH"))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_version_text() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_error_kind() -> c_int {
    let kind = |last: &RefCell<Option<LastError>>| last.borrow().as_ref().map(|last| last.kind);
    LAST_ERROR.try_with(kind).ok().flatten().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_error_message() -> *const c_char {
    let message = |last: &RefCell<Option<LastError>>| {
        last.borrow().as_ref().map(|last| last.message.as_ptr())
    };
    LAST_ERROR.try_with(message).ok().flatten().unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_kind_name(kind: c_int) -> *const c_char {
    let known = u8::try_from(kind).ok().and_then(Kind::of_exit_code);
    let name = match (kind, known) {
        (0, _) => c"none",
        (KIND_OF_BUG, _) => c"bug",
        (_, Some(kind)) => name_of(kind),
        _ => c"unknown",
    };
    name.as_ptr()
}

fn name_of(kind: Kind) -> &'static std::ffi::CStr {
    match kind {
        Kind::NotFound => c"not found",
        Kind::Exists => c"exists",
        Kind::NotADirectory => c"not a directory",
        Kind::IsADirectory => c"is a directory",
        Kind::NotEmpty => c"not empty",
        Kind::Denied => c"denied",
        Kind::Conflict => c"conflict",
        Kind::Fenced => c"fenced",
        Kind::Unavailable => c"unavailable",
        Kind::Corrupt => c"corrupt",
        Kind::Invalid => c"invalid",
        Kind::TooLarge => c"too large",
        Kind::Closed => c"closed",
        Kind::NoSpace => c"no space",
        Kind::ReadOnly => c"read only",
        Kind::NotPermitted => c"not permitted",
        Kind::Loop => c"loop",
        Kind::NoAttribute => c"no attribute",
        Kind::TooManyLinks => c"too many links",
        Kind::FileTooLarge => c"file too large",
        Kind::Unsupported => c"unsupported",
        Kind::DeviceFailed => c"device failed",
        Kind::TooManyOpenFiles => c"too many open files",
        Kind::CrossDevice => c"cross-device",
        _ => c"unknown",
    }
}
