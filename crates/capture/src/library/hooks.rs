// SPDX-License-Identifier: Apache-2.0
//! Hooks: functions of the C library that name, open, read, write or change files, which programs call instead
//! of those of the C library.

use core::ffi::{c_char, c_int, c_uint, c_void};

use super::call_slot::operation::{
    CLOSE, LINK, LIST, MAKE_DIRECTORY, MAP, READ, REMOVE_DIRECTORY, SEEK, SET_ATTRIBUTES, STAT,
    SYNC, TRUNCATE, UNLINK, WRITE,
};
use super::descriptors::{forget, forget_range, forget_working_directory, walk};
use super::kernel::AT_FDCWD;
use super::log_writer::LogWriter;
use super::next_function::{NextFunction, Unimplemented};
use super::recorded;
use super::streams::{self, Stream};

const O_CREAT: c_int = 0o100;
/// The bit of `O_TMPFILE` beside that of `O_DIRECTORY`.
const O_TMPFILE: c_int = 0o20_000_000;
const FTW_CHDIR: c_int = 4;
const F_DUPFD: c_int = 0;
const F_DUPFD_CLOEXEC: c_int = 1030;
const AT_REMOVEDIR: c_int = 0x200;

type Path = *const c_char;
type Bytes = *mut c_void;

// A program may have a function of its own by this name.
static DIRFD: NextFunction = NextFunction::new("dirfd\0");

/// A buffer of a transfer with several.
#[repr(C)]
pub struct Buffer {
    start: *mut c_void,
    bytes: usize,
}

/// The bytes of all buffers of a transfer with this result: none of one that failed, whose buffers may be nowhere.
///
/// # Safety
/// There are `count` buffers if the transfer succeeded.
unsafe fn total(result: i64, buffers: *const Buffer, count: c_int) -> usize {
    let count = if result < 0 { 0 } else { usize::try_from(count).unwrap_or(0) };
    let bytes = |index| {
        // SAFETY: the caller's.
        unsafe { (*buffers.add(index)).bytes }
    };
    (0..count).map(bytes).fold(0, usize::saturating_add)
}

/// Whether an open may make the file, and whether the file has a name.
fn made(flags: c_int) -> (bool, bool) {
    let is_unnamed = flags & O_TMPFILE != 0;
    (flags & O_CREAT != 0 || is_unnamed, !is_unnamed)
}

fn number(result: &c_int) -> i64 {
    (*result).into()
}

/// Reads the attributes of a name.
///
/// # Safety
/// As [`recorded::named`].
unsafe fn stat_named(path: (c_int, Path), call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { recorded::named((STAT, 0), path, call, number) }
}

/// Changes a name.
///
/// # Safety
/// As [`recorded::named`].
unsafe fn change(operation: u32, path: (c_int, Path), call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { recorded::named((operation, 0), path, call, number) }
}

/// Opens a stream.
///
/// # Safety
/// The path and the mode are null or strings.
unsafe fn stream_opened(path: Path, mode: Path, call: impl FnOnce() -> Stream) -> Stream {
    // SAFETY: the caller's.
    let makes = !mode.is_null() && unsafe { mode.read() } as u8 != b'r';
    // SAFETY: the caller's, and the call returns a stream or null.
    unsafe { recorded::open_stream((path, makes), call, |stream| streams::descriptor(*stream)) }
}

/// Makes `call`, which gives the descriptor `new` another file.
fn replaced(new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let forget_new = || {
        if let Some(writer) = LogWriter::get() {
            forget(&writer, new);
        }
    };
    // Another thread may use it in the meantime.
    forget_new();
    let result = call();
    forget_new();
    result
}

/// A descriptor that a call has returned: what was known of its number is no longer true, if the C library itself
/// has closed it.
fn new_descriptor(descriptor: c_int) -> c_int {
    if let Some(writer) = LogWriter::get().filter(|_| descriptor >= 0) {
        forget(&writer, descriptor);
    }
    descriptor
}

/// Makes `call`, which closes a stream that is no file.
///
/// # Safety
/// `stream` is null or a stream.
unsafe fn pipe_closed(stream: Stream, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's.
    let descriptor = unsafe { streams::descriptor(stream) };
    let result = call();
    new_descriptor(descriptor);
    result
}

/// Makes `call`, which closes a directory.
///
/// # Safety
/// `directory` is null or a directory.
unsafe fn directory_closed(directory: Stream, call: impl FnOnce() -> c_int) -> c_int {
    if directory.is_null() {
        return call();
    }
    // SAFETY: the function of this name has this type, and the caller's.
    let descriptor = unsafe {
        let dirfd: unsafe extern "C" fn(Stream) -> c_int = core::mem::transmute(DIRFD.find());
        dirfd(directory)
    };
    recorded::close(CLOSE, descriptor, call)
}

fn range_closed(first: c_uint, last: c_uint) {
    if let Some(writer) = LogWriter::get() {
        forget_range(&writer, first, last);
    }
}

/// The path, unless it is in the buffer that the call writes to.
fn apart(path: Path, into: Bytes, bytes: usize) -> Path {
    let is_inside = (path as usize).wrapping_sub(into as usize) < bytes;
    if is_inside { core::ptr::null() } else { path }
}

fn directory_changed(result: c_int) -> c_int {
    if let Some(writer) = LogWriter::get().filter(|_| result == 0) {
        forget_working_directory(&writer);
    }
    result
}

/// Defines functions under their names in the C library. The name after the result is that of the closure that
/// makes the call as the C library does.
macro_rules! hooks {
    ($([$($name:ident),+] $arguments:tt -> $result:ty, $next:ident => $done:expr;)*) => {
        $($(hooks!(@ $name $arguments $result, $next => $done);)+)*

        #[expect(non_upper_case_globals, reason = "the names of functions")]
        mod next_functions {
            use super::NextFunction;

            $($(pub static $name: NextFunction = NextFunction::new(concat!(stringify!($name), "\0"));)+)*
        }

        /// Finds the functions of the C library.
        pub fn find_next_functions() {
            $($(next_functions::$name.find();)+)*
        }
    };
    (@ $name:ident ($($argument:ident: $type:ty),*) $result:ty, $next:ident => $done:expr) => {
        /// The function of the C library.
        ///
        /// # Safety
        /// As there.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            let $next = || {
                let found = next_functions::$name.find();
                if found.is_null() {
                    return <$result>::unimplemented();
                }
                // SAFETY: a function of this name has this type, and the caller keeps to its contract.
                unsafe {
                    let next: unsafe extern "C" fn($($type),*) -> $result = core::mem::transmute(found);
                    next($($argument),*)
                }
            };
            $done
        }
    };
}

// Functions that end in 64 have the same arguments on machines of 64 bits. Those that end in _chk or _2 are of
// fortified programs, those with a version of binaries from before glibc 2.33. C passes the mode of an
// open as if it were a parameter of its own. SAFETY of all blocks: the caller keeps to the contract of the C
// library.
hooks! {
    [open, open64](path: Path, flags: c_int, mode: c_uint) -> c_int, next => unsafe { recorded::open((AT_FDCWD, path), made(flags), next) };
    [openat, openat64](at: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int, next => unsafe { recorded::open((at, path), made(flags), next) };
    [creat, creat64](path: Path, mode: c_uint) -> c_int, next => unsafe { recorded::open((AT_FDCWD, path), (true, true), next) };
    [__open_2, __open64_2](path: Path, flags: c_int) -> c_int, next => unsafe { recorded::open((AT_FDCWD, path), (false, true), next) };
    [__openat_2, __openat64_2](at: c_int, path: Path, flags: c_int) -> c_int, next => unsafe { recorded::open((at, path), (false, true), next) };
    [mkstemp, mkstemp64](template: Path) -> c_int, next => unsafe { recorded::open((AT_FDCWD, template), (true, true), next) };
    [mkostemp, mkostemp64](template: Path, flags: c_int) -> c_int, next => unsafe { recorded::open((AT_FDCWD, template), (true, true), next) };
    [fopen, fopen64](path: Path, mode: Path) -> Stream, next => unsafe { stream_opened(path, mode, next) };
    [freopen, freopen64](path: Path, mode: Path, stream: Stream) -> Stream, next => unsafe { stream_opened(path, mode, next) };

    [close](fd: c_int) -> c_int, next => recorded::close(CLOSE, fd, next);
    [closedir](directory: Stream) -> c_int, next => unsafe { directory_closed(directory, next) };
    [pclose](stream: Stream) -> c_int, next => unsafe { pipe_closed(stream, next) };
    [dup](old: c_int) -> c_int, next => new_descriptor(next());
    [dup2](old: c_int, new: c_int) -> c_int, next => if old == new { next() } else { replaced(new, next) };
    [dup3](old: c_int, new: c_int, flags: c_int) -> c_int, next => replaced(new, next);
    [fcntl, fcntl64](fd: c_int, command: c_int, argument: usize) -> c_int, next => match command {
        F_DUPFD | F_DUPFD_CLOEXEC => new_descriptor(next()),
        _ => next(),
    };
    [socket](domain: c_int, kind: c_int, protocol: c_int) -> c_int, next => new_descriptor(next());
    [accept](fd: c_int, address: Bytes, bytes: Bytes) -> c_int, next => new_descriptor(next());
    [accept4](fd: c_int, address: Bytes, bytes: Bytes, flags: c_int) -> c_int, next => new_descriptor(next());
    [daemon](keeps_directory: c_int, keeps_files: c_int) -> c_int, next => { let result = next(); range_closed(0, 2); directory_changed(result) };
    [close_range](first: c_uint, last: c_uint, flags: c_int) -> c_int, next => { range_closed(first, last); next() };
    [chdir](path: Path) -> c_int, next => directory_changed(next());
    [fchdir](fd: c_int) -> c_int, next => directory_changed(next());
    [nftw, nftw64](path: Path, each: Bytes, depth: c_int, flags: c_int) -> c_int, next => if flags & FTW_CHDIR == 0 { next() } else { walk(next) };
    [fts_read, fts64_read](walked: Stream) -> Stream, next => walk(next);
    [fts_children, fts64_children](walked: Stream, options: c_int) -> Stream, next => walk(next);
    [fts_close, fts64_close](walked: Stream) -> c_int, next => walk(next);
    [closefrom](first: c_int) -> (), next => { range_closed(first.max(0) as c_uint, c_uint::MAX); next() };

    [read](fd: c_int, into: Bytes, bytes: usize) -> isize, next => recorded::transfer(READ, (fd, |_| bytes), next);
    [__read_chk](fd: c_int, into: Bytes, bytes: usize, room: usize) -> isize, next => recorded::transfer(READ, (fd, |_| bytes), next);
    [readv](fd: c_int, buffers: *const Buffer, count: c_int) -> isize, next => unsafe { recorded::transfer(READ, (fd, |result| total(result, buffers, count)), next) };
    [pread, pread64](fd: c_int, into: Bytes, bytes: usize, offset: i64) -> isize, next => recorded::transfer_at(READ, (fd, |_| bytes, offset), next);
    [__pread_chk, __pread64_chk](fd: c_int, into: Bytes, bytes: usize, offset: i64, room: usize) -> isize, next => recorded::transfer_at(READ, (fd, |_| bytes, offset), next);
    [preadv, preadv64](fd: c_int, buffers: *const Buffer, count: c_int, offset: i64) -> isize, next => unsafe { recorded::transfer_at(READ, (fd, |result| total(result, buffers, count), offset), next) };
    [preadv2, preadv64v2](fd: c_int, buffers: *const Buffer, count: c_int, offset: i64, flags: c_int) -> isize, next => match offset {
        -1 => unsafe { recorded::transfer(READ, (fd, |result| total(result, buffers, count)), next) },
        _ => unsafe { recorded::transfer_at(READ, (fd, |result| total(result, buffers, count), offset), next) },
    };
    [write](fd: c_int, from: Bytes, bytes: usize) -> isize, next => recorded::transfer(WRITE, (fd, |_| bytes), next);
    [writev](fd: c_int, buffers: *const Buffer, count: c_int) -> isize, next => unsafe { recorded::transfer(WRITE, (fd, |result| total(result, buffers, count)), next) };
    [pwrite, pwrite64](fd: c_int, from: Bytes, bytes: usize, offset: i64) -> isize, next => recorded::transfer_at(WRITE, (fd, |_| bytes, offset), next);
    [pwritev, pwritev64](fd: c_int, buffers: *const Buffer, count: c_int, offset: i64) -> isize, next => unsafe { recorded::transfer_at(WRITE, (fd, |result| total(result, buffers, count), offset), next) };
    [pwritev2, pwritev64v2](fd: c_int, buffers: *const Buffer, count: c_int, offset: i64, flags: c_int) -> isize, next => match offset {
        -1 => unsafe { recorded::transfer(WRITE, (fd, |result| total(result, buffers, count)), next) },
        _ => unsafe { recorded::transfer_at(WRITE, (fd, |result| total(result, buffers, count), offset), next) },
    };
    [sendfile, sendfile64](to: c_int, from: c_int, offset: *mut i64, bytes: usize) -> isize, next => unsafe { recorded::copy((READ, WRITE), (from, offset), (to, core::ptr::null()), bytes, next) };
    [copy_file_range](from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, bytes: usize, flags: c_uint) -> isize, next => unsafe { recorded::copy((READ, WRITE), (from, from_offset), (to, to_offset), bytes, next) };
    [lseek, lseek64](fd: c_int, offset: i64, whence: c_int) -> isize, next => recorded::seek(SEEK, fd, || next() as i64) as isize;

    [mmap, mmap64](address: Bytes, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> Bytes, next => {
        if fd < 0 { next() } else { recorded::open_file(MAP, (fd, offset, bytes as i64), next) }
    };

    [fsync, fdatasync](fd: c_int) -> c_int, next => recorded::open_file(SYNC, (fd, 0, 0), next);
    [syncfs](fd: c_int) -> c_int, next => recorded::open_file(SYNC, (fd, 0, 0), next);
    [sync_file_range](fd: c_int, offset: i64, bytes: i64, flags: c_uint) -> c_int, next => recorded::open_file(SYNC, (fd, 0, 0), next);
    [ftruncate, ftruncate64](fd: c_int, length: i64) -> c_int, next => recorded::open_file(TRUNCATE, (fd, length, 0), next);
    [truncate, truncate64](path: Path, length: i64) -> c_int, next => unsafe { recorded::named((TRUNCATE, length), (AT_FDCWD, path), next, number) };
    [fallocate, fallocate64](fd: c_int, mode: c_int, offset: i64, bytes: i64) -> c_int, next => recorded::open_file(TRUNCATE, (fd, offset, bytes), next);
    [posix_fallocate, posix_fallocate64](fd: c_int, offset: i64, bytes: i64) -> c_int, next => -recorded::open_file(TRUNCATE, (fd, offset, bytes), || -next());

    [stat, stat64, lstat, lstat64](path: Path, into: Bytes) -> c_int, next => unsafe { stat_named((AT_FDCWD, path), next) };
    [fstat, fstat64](fd: c_int, into: Bytes) -> c_int, next => recorded::open_file(STAT, (fd, 0, 0), next);
    [fstatat, fstatat64](at: c_int, path: Path, into: Bytes, flags: c_int) -> c_int, next => unsafe { stat_named((at, path), next) };
    [__xstat, __xstat64, __lxstat, __lxstat64](version: c_int, path: Path, into: Bytes) -> c_int, next => unsafe { stat_named((AT_FDCWD, path), next) };
    [__fxstat, __fxstat64](version: c_int, fd: c_int, into: Bytes) -> c_int, next => recorded::open_file(STAT, (fd, 0, 0), next);
    [__fxstatat, __fxstatat64](version: c_int, at: c_int, path: Path, into: Bytes, flags: c_int) -> c_int, next => unsafe { stat_named((at, path), next) };
    [statx](at: c_int, path: Path, flags: c_int, mask: c_uint, into: Bytes) -> c_int, next => unsafe { stat_named((at, path), next) };
    [access](path: Path, mode: c_int) -> c_int, next => unsafe { stat_named((AT_FDCWD, path), next) };
    [faccessat](at: c_int, path: Path, mode: c_int, flags: c_int) -> c_int, next => unsafe { stat_named((at, path), next) };
    [readlink](path: Path, into: Bytes, bytes: usize) -> isize, next => unsafe { recorded::named((STAT, 0), (AT_FDCWD, apart(path, into, bytes)), next, |result| *result as i64) };
    [readlinkat](at: c_int, path: Path, into: Bytes, bytes: usize) -> isize, next => unsafe { recorded::named((STAT, 0), (at, apart(path, into, bytes)), next, |result| *result as i64) };

    [opendir](path: Path) -> Stream, next => unsafe { recorded::named((LIST, 0), (AT_FDCWD, path), next, |directory| if directory.is_null() { -1 } else { 0 }) };
    [unlink, remove](path: Path) -> c_int, next => unsafe { change(UNLINK, (AT_FDCWD, path), next) };
    [unlinkat](at: c_int, path: Path, flags: c_int) -> c_int, next => unsafe { change(if flags & AT_REMOVEDIR == 0 { UNLINK } else { REMOVE_DIRECTORY }, (at, path), next) };
    [rmdir](path: Path) -> c_int, next => unsafe { change(REMOVE_DIRECTORY, (AT_FDCWD, path), next) };
    [mkdir](path: Path, mode: c_uint) -> c_int, next => unsafe { change(MAKE_DIRECTORY, (AT_FDCWD, path), next) };
    [mkdirat](at: c_int, path: Path, mode: c_uint) -> c_int, next => unsafe { change(MAKE_DIRECTORY, (at, path), next) };
    [rename](old: Path, new: Path) -> c_int, next => unsafe { recorded::rename((AT_FDCWD, old), (AT_FDCWD, new), next) };
    [renameat](old_at: c_int, old: Path, new_at: c_int, new: Path) -> c_int, next => unsafe { recorded::rename((old_at, old), (new_at, new), next) };
    [renameat2](old_at: c_int, old: Path, new_at: c_int, new: Path, flags: c_uint) -> c_int, next => unsafe { recorded::rename((old_at, old), (new_at, new), next) };
    [link](old: Path, new: Path) -> c_int, next => unsafe { change(LINK, (AT_FDCWD, new), next) };
    [linkat](old_at: c_int, old: Path, new_at: c_int, new: Path, flags: c_int) -> c_int, next => unsafe { change(LINK, (new_at, new), next) };
    [symlink](target: Path, new: Path) -> c_int, next => unsafe { change(LINK, (AT_FDCWD, new), next) };
    [symlinkat](target: Path, new_at: c_int, new: Path) -> c_int, next => unsafe { change(LINK, (new_at, new), next) };
    [chmod](path: Path, mode: c_uint) -> c_int, next => unsafe { change(SET_ATTRIBUTES, (AT_FDCWD, path), next) };
    [fchmod](fd: c_int, mode: c_uint) -> c_int, next => recorded::open_file(SET_ATTRIBUTES, (fd, 0, 0), next);
    [fchmodat](at: c_int, path: Path, mode: c_uint, flags: c_int) -> c_int, next => unsafe { change(SET_ATTRIBUTES, (at, path), next) };
    [chown, lchown](path: Path, uid: c_uint, gid: c_uint) -> c_int, next => unsafe { change(SET_ATTRIBUTES, (AT_FDCWD, path), next) };
    [fchown](fd: c_int, uid: c_uint, gid: c_uint) -> c_int, next => recorded::open_file(SET_ATTRIBUTES, (fd, 0, 0), next);
    [fchownat](at: c_int, path: Path, uid: c_uint, gid: c_uint, flags: c_int) -> c_int, next => unsafe { change(SET_ATTRIBUTES, (at, path), next) };
    [utimensat](at: c_int, path: Path, times: Bytes, flags: c_int) -> c_int, next => unsafe { change(SET_ATTRIBUTES, (at, path), next) };
    [futimens](fd: c_int, times: Bytes) -> c_int, next => recorded::open_file(SET_ATTRIBUTES, (fd, 0, 0), next);
    [utime, utimes, lutimes](path: Path, times: Bytes) -> c_int, next => unsafe { change(SET_ATTRIBUTES, (AT_FDCWD, path), next) };
    [setxattr, lsetxattr](path: Path, name: Path, value: Bytes, bytes: usize, flags: c_int) -> c_int, next => unsafe { change(SET_ATTRIBUTES, (AT_FDCWD, path), next) };
    [fsetxattr](fd: c_int, name: Path, value: Bytes, bytes: usize, flags: c_int) -> c_int, next => recorded::open_file(SET_ATTRIBUTES, (fd, 0, 0), next);
    [removexattr, lremovexattr](path: Path, name: Path) -> c_int, next => unsafe { change(SET_ATTRIBUTES, (AT_FDCWD, path), next) };
    [getxattr, lgetxattr](path: Path, name: Path, into: Bytes, bytes: usize) -> isize, next => unsafe { recorded::named((STAT, 0), (AT_FDCWD, apart(path, into, bytes)), next, |result| *result as i64) };
}
