// SPDX-License-Identifier: Apache-2.0
//! Streams: the calls that the GNU C library makes for streams (`FILE`), which no library can replace by name.
//!
//! A stream has a table of functions, and those for files lead to the system calls, so the library puts
//! its own into these two tables. It does so only if it finds the known functions there, and the
//! recorder says of how many processes the streams were not recorded.
//! Source: glibc, `libio/libioP.h` (`struct _IO_jump_t`), since 2.0.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::call_slot::operation::{CLOSE, READ, SEEK, WRITE};
use super::kernel;
use super::next_function::{NextFunction, find_symbol};
use super::recorded::{close, seek, transfer};

/// Places of functions in a table, of which the first two are unused numbers.
const READ_AT: usize = 14;
const WRITE_AT: usize = 15;
const SEEK_AT: usize = 16;
const CLOSE_AT: usize = 17;
const FUNCTIONS: usize = 21;

/// A stream (`FILE`), or a directory that is open (`DIR`).
pub type Stream = *mut c_void;

static KNOWN: [AtomicPtr<c_void>; FUNCTIONS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; FUNCTIONS];
static ARE_RECORDED: AtomicBool = AtomicBool::new(false);

// A program may have a function of its own by this name.
static FILENO: NextFunction = NextFunction::new("fileno\0");

/// True if the calls of streams are recorded.
pub fn are_recorded() -> bool {
    ARE_RECORDED.load(Ordering::Relaxed)
}

/// The descriptor of `stream`, -1 for none.
///
/// # Safety
/// `stream` is null or a stream.
pub unsafe fn descriptor(stream: Stream) -> c_int {
    if stream.is_null() {
        return -1;
    }
    let before = kernel::error_number();
    // SAFETY: the function of this name has this type, and the caller's.
    let descriptor = unsafe {
        let fileno: unsafe extern "C" fn(Stream) -> c_int = core::mem::transmute(FILENO.find());
        fileno(stream)
    };
    kernel::set_error_number(before);
    descriptor
}

/// Records the calls of streams from now on, if the tables are as they are known.
pub fn record() {
    let hooks: [(usize, &'static str, *mut c_void); 4] = [
        (READ_AT, "_IO_file_read\0", read_stream as *mut c_void),
        (WRITE_AT, "_IO_file_write\0", write_stream as *mut c_void),
        (SEEK_AT, "_IO_file_seek\0", seek_stream as *mut c_void),
        (CLOSE_AT, "_IO_file_close\0", close_stream as *mut c_void),
    ];
    let tables = ["_IO_file_jumps\0", "_IO_wfile_jumps\0"].map(find_symbol);
    if tables.iter().any(|table| table.is_null()) {
        return;
    }
    for (at, name, _) in hooks {
        let known = find_symbol(name);
        let is_known = |table: &*mut c_void| {
            // SAFETY: the symbol is that of a table of functions.
            !known.is_null() && unsafe { table.cast::<*mut c_void>().add(at).read() } == known
        };
        if !tables.iter().all(is_known) {
            return;
        }
        KNOWN[at].store(known, Ordering::Relaxed);
    }
    let bytes = FUNCTIONS * size_of::<*mut c_void>();
    if !tables.iter().all(|table| kernel::make_writable(*table, bytes)) {
        return;
    }
    ARE_RECORDED.store(true, Ordering::Relaxed);
    for table in tables {
        for (at, _, hook) in hooks {
            // SAFETY: the table is writable, and other threads read whole addresses.
            let entry = unsafe { AtomicPtr::from_ptr(table.cast::<*mut c_void>().add(at)) };
            entry.store(hook, Ordering::Release);
        }
    }
}

fn known(at: usize) -> *mut c_void {
    KNOWN[at].load(Ordering::Relaxed)
}

unsafe extern "C" fn read_stream(stream: Stream, into: *mut c_void, bytes: isize) -> isize {
    // SAFETY: the function has this type, and the stream is one; so below.
    let next: unsafe extern "C" fn(Stream, *mut c_void, isize) -> isize =
        unsafe { core::mem::transmute(known(READ_AT)) };
    let place = (unsafe { descriptor(stream) }, |_| bytes as usize);
    transfer(READ, place, || unsafe { next(stream, into, bytes) })
}

unsafe extern "C" fn write_stream(stream: Stream, from: *const c_void, bytes: isize) -> isize {
    // SAFETY: as above.
    let next: unsafe extern "C" fn(Stream, *const c_void, isize) -> isize =
        unsafe { core::mem::transmute(known(WRITE_AT)) };
    let place = (unsafe { descriptor(stream) }, |_| bytes as usize);
    transfer(WRITE, place, || unsafe { next(stream, from, bytes) })
}

unsafe extern "C" fn seek_stream(stream: Stream, offset: i64, whence: c_int) -> i64 {
    // SAFETY: as above.
    let next: unsafe extern "C" fn(Stream, i64, c_int) -> i64 =
        unsafe { core::mem::transmute(known(SEEK_AT)) };
    let descriptor = unsafe { descriptor(stream) };
    seek(SEEK, descriptor, || unsafe { next(stream, offset, whence) })
}

unsafe extern "C" fn close_stream(stream: Stream) -> c_int {
    // SAFETY: as above.
    let next: unsafe extern "C" fn(Stream) -> c_int =
        unsafe { core::mem::transmute(known(CLOSE_AT)) };
    let descriptor = unsafe { descriptor(stream) };
    close(CLOSE, descriptor, || unsafe { next(stream) })
}
