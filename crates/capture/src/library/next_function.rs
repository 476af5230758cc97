// SPDX-License-Identifier: Apache-2.0
//! Next function: the function of the C library, or of another library that is preloaded, in whose place a
//! hook is called.
//!
//! All are sought before the program's `main`: to seek a function clears the error that `dlerror` returns.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::kernel;

/// The libraries after this one.
const RTLD_NEXT: *mut c_void = -1_isize as *mut c_void;
const ENOSYS: c_int = 38;

unsafe extern "C" {
    fn dlsym(libraries: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A function that is sought before the program begins, or when it is called earlier.
pub struct NextFunction {
    name: &'static str,
    found: AtomicPtr<c_void>,
}

impl NextFunction {
    /// The function `name`, which ends in a zero byte.
    pub const fn new(name: &'static str) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The function; null if no library has it.
    pub fn find(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = find_symbol(self.name);
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// The symbol `name`, which ends in a zero byte, of the libraries after this one.
pub fn find_symbol(name: &'static str) -> *mut c_void {
    // SAFETY: the name ends in a zero byte.
    unsafe { dlsym(RTLD_NEXT, name.as_ptr().cast()) }
}

/// The result of a function that no library has: programs learn that it is not implemented.
pub trait Unimplemented {
    fn unimplemented() -> Self;
}

impl Unimplemented for c_int {
    fn unimplemented() -> Self {
        kernel::set_error_number(ENOSYS);
        -1
    }
}

impl Unimplemented for isize {
    fn unimplemented() -> Self {
        kernel::set_error_number(ENOSYS);
        -1
    }
}

impl Unimplemented for *mut c_void {
    fn unimplemented() -> Self {
        kernel::set_error_number(ENOSYS);
        ptr::null_mut()
    }
}

impl Unimplemented for () {
    fn unimplemented() -> Self {}
}
