// SPDX-License-Identifier: Apache-2.0
//! Options: structs of a caller that may be older or newer than this library.
//!
//! The first member is the size of the struct as the caller knows it. Members that an older caller
//! does not have are zero, which means the default everywhere; members that a newer caller sets and
//! this library does not know are an error.

use std::ffi::c_void;

use esker::Result;

use crate::arguments::{bytes, invalid};

/// A struct of options in C: its first member is its size, and all bytes zero are its defaults.
///
/// # Safety
/// Any bytes are a value of it.
pub unsafe trait COptions: Copy {}

/// Reads the options at `pointer`; the defaults if it is null.
pub unsafe fn read_options<T: COptions>(pointer: *const T, argument: &str) -> Result<T> {
    // SAFETY: as the caller promises.
    let (options, is_known) = unsafe { read_known(pointer, argument)? };
    is_known.map(|()| options)
}

/// Reads the members of the options at `pointer` that this library knows; returns them, and whether
/// there are no others.
pub unsafe fn read_known<T: COptions>(
    pointer: *const T,
    argument: &str,
) -> Result<(T, Result<()>)> {
    // SAFETY: any bytes are a value of the type.
    let mut options: T = unsafe { std::mem::zeroed() };
    if pointer.is_null() {
        return Ok((options, Ok(())));
    }
    // SAFETY: the caller's struct begins with its size.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    if size < size_of::<usize>() || size > STRUCT_BYTES_MAX {
        let what = format!("{argument}: struct_size is {size}; begin with the INIT macro");
        return Err(invalid(what));
    }
    // SAFETY: the caller says that its struct has as many bytes.
    let theirs = unsafe { bytes(pointer.cast::<c_void>(), size, argument)? };
    let (known, unknown) = theirs.split_at(size.min(size_of::<T>()));
    // SAFETY: `known` is no longer than the struct, and any bytes are a value of it.
    unsafe {
        std::ptr::copy_nonoverlapping(known.as_ptr(), (&raw mut options).cast(), known.len());
    }
    let is_known = match unknown.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => {
            let what = format!("{argument}: it sets options of a newer Esker than {VERSION}");
            Err(invalid(what))
        }
    };
    Ok((options, is_known))
}

/// Bound on the size that a caller gives: no struct of options grows to it.
const STRUCT_BYTES_MAX: usize = 64 << 10;

const VERSION: &str = env!("CARGO_PKG_VERSION");
