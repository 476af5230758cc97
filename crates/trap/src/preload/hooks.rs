// SPDX-License-Identifier: Apache-2.0
//! Hooks: functions of the C library that name or describe files, which programs call instead of
//! those of the C library.
//!
//! Each one first finds out whether its file is certainly outside of the namespace: from the text
//! of the path, if the kernel meets no symbolic link on it, and otherwise from the path to which
//! the opened file leads. If so, the kernel carries the call out (with the *pass* as its sixth
//! argument). If not, the call is made as the C library makes it, and the supervisor answers.
//!
//! The functions take no locks, allocate nothing, and keep no state, so they may be called in
//! signal handlers, in children of `vfork`, and before the C library is ready.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::hint::black_box;

use super::path_text::{is_within, stays_outside};
use super::raw_call::{call, number};
use super::settings::{MARK, PATH_BYTES_MAX, SETTINGS_BYTES, Settings};

const AT_FDCWD: c_int = -100;
const AT_SYMLINK_NOFOLLOW: c_int = 0x100;
const AT_EACCESS: c_int = 0x200;
const AT_NO_AUTOMOUNT: c_int = 0x800;
const AT_EMPTY_PATH: c_int = 0x1000;

const O_ACCMODE: c_int = 0o3;
const O_CREAT: c_int = 0o100;
const O_EXCL: c_int = 0o200;
const O_NOCTTY: c_int = 0o400;
const O_TRUNC: c_int = 0o1000;
const O_APPEND: c_int = 0o2000;
const O_NONBLOCK: c_int = 0o4000;
const O_NOATIME: c_int = 0o1_000_000;
const O_CLOEXEC: c_int = 0o2_000_000;
const O_PATH: c_int = 0o10_000_000;
#[cfg(target_arch = "x86_64")]
const O_DIRECTORY: c_int = 0o200_000;
#[cfg(target_arch = "x86_64")]
const O_NOFOLLOW: c_int = 0o400_000;
#[cfg(target_arch = "x86_64")]
const O_LARGEFILE: c_int = 0o100_000;
#[cfg(target_arch = "aarch64")]
const O_DIRECTORY: c_int = 0o40_000;
#[cfg(target_arch = "aarch64")]
const O_NOFOLLOW: c_int = 0o100_000;
#[cfg(target_arch = "aarch64")]
const O_LARGEFILE: c_int = 0o400_000;

/// Flags of opens that are not left to the supervisor.
const OPEN_FLAGS: c_int = O_ACCMODE
    | O_CREAT
    | O_EXCL
    | O_NOCTTY
    | O_TRUNC
    | O_APPEND
    | O_NONBLOCK
    | O_NOATIME
    | O_CLOEXEC
    | O_DIRECTORY
    | O_NOFOLLOW
    | O_LARGEFILE;

const RESOLVE_NO_SYMLINKS: u64 = 4;

const ENOENT: isize = 2;
const EACCES: isize = 13;
const EEXIST: isize = 17;
const ENOTDIR: isize = 20;
const EISDIR: isize = 21;
const ELOOP: isize = 40;

/// `struct open_how`.
#[repr(C)]
struct OpenArguments {
    flags: u64,
    mode: u64,
    resolve: u64,
}

const fn blank_settings() -> [u8; SETTINGS_BYTES] {
    let mut bytes = [0; SETTINGS_BYTES];
    let mut at = 0;
    while at < MARK.len() {
        bytes[at] = MARK[at];
        at += 1;
    }
    bytes
}

/// The supervisor writes its settings here, in the file of the library.
static SETTINGS: [u8; SETTINGS_BYTES] = blank_settings();

fn settings() -> Option<Settings<'static>> {
    // The compiler knows other bytes than those in the file.
    Settings::decode(black_box(&SETTINGS))
}

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// Returns the result of a system call as the C library does.
fn returned(result: isize) -> c_int {
    if result >= 0 {
        return result as c_int;
    }
    // SAFETY: the C library returns the place of this thread's error number.
    unsafe { *__errno_location() = -result as c_int };
    -1
}

fn int(value: c_int) -> usize {
    value as isize as usize
}

/// Makes a system call that the supervisor answers, if it is about the namespace.
///
/// # Safety
/// As [`call`].
unsafe fn supervised(number: usize, arguments: [usize; 5]) -> isize {
    // SAFETY: the caller's.
    unsafe { call(number, arguments, u64::MAX) }
}

impl Settings<'_> {
    /// Makes a system call that the kernel carries out.
    ///
    /// # Safety
    /// As [`call`].
    unsafe fn unsupervised(&self, number: usize, arguments: [usize; 5]) -> isize {
        // SAFETY: the caller's.
        unsafe { call(number, arguments, self.pass_complement) }
    }

    fn close(&self, descriptor: isize) {
        // SAFETY: the descriptor is one that the library has just opened.
        unsafe { self.unsupervised(number::CLOSE, [descriptor as usize, 0, 0, 0, 0]) };
    }

    /// The path of an open file, or the kernel's name of a pipe and the like.
    fn path_of<'a>(
        &self,
        descriptor: c_int,
        into: &'a mut [u8; PATH_BYTES_MAX],
    ) -> Option<&'a [u8]> {
        const DIRECTORY: &[u8] = b"/proc/self/fd/";
        let mut link = [0; DIRECTORY.len() + 12];
        link.get_mut(..DIRECTORY.len())?.copy_from_slice(DIRECTORY);
        let (mut rest, mut digits) = (u32::try_from(descriptor).ok()?, 1);
        while rest >= 10 {
            rest /= 10;
            digits += 1;
        }
        rest = u32::try_from(descriptor).ok()?;
        for at in (DIRECTORY.len()..DIRECTORY.len() + digits).rev() {
            *link.get_mut(at)? = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let buffer = into.as_mut_ptr() as usize;
        let arguments = [int(AT_FDCWD), link.as_ptr() as usize, buffer, PATH_BYTES_MAX, 0];
        // SAFETY: the kernel writes to `into` only.
        let length = unsafe { self.unsupervised(number::READLINKAT, arguments) };
        // A longer path is cut.
        into.get(..usize::try_from(length).ok().filter(|length| *length < PATH_BYTES_MAX)?)
    }

    /// True if an open file is certainly none of the namespace.
    fn is_outside(&self, descriptor: c_int) -> bool {
        let mut buffer = [0; PATH_BYTES_MAX];
        let path = self.path_of(descriptor, &mut buffer);
        path.is_some_and(|path| !is_within(path, self.place) && !is_within(path, self.spool))
    }

    /// True if the way along `path` stays outside of the namespace, unless it has symbolic links.
    fn stays_outside(&self, descriptor: c_int, path: &CStr) -> bool {
        let (path, avoided) = (path.to_bytes(), [self.place, self.spool]);
        if path.starts_with(b"/") {
            return stays_outside(b"", path, &avoided);
        }
        if path.is_empty() {
            return false;
        }
        let mut buffer = [0; PATH_BYTES_MAX];
        let start = if descriptor == AT_FDCWD {
            let arguments = [buffer.as_mut_ptr() as usize, PATH_BYTES_MAX, 0, 0, 0];
            // SAFETY: the kernel writes to `buffer` only.
            let length = unsafe { self.unsupervised(number::GETCWD, arguments) };
            // It counts the zero byte.
            usize::try_from(length - 1).ok().and_then(|length| buffer.get(..length))
        } else {
            self.path_of(descriptor, &mut buffer)
        };
        // A directory that cannot be reached has another name.
        start.is_some_and(|start| start.starts_with(b"/") && stays_outside(start, path, &avoided))
    }

    /// Opens `path`, following symbolic links only if `resolve` allows it.
    fn open_resolved(
        &self,
        descriptor: c_int,
        path: &CStr,
        (flags, mode): (c_int, u32),
        resolve: u64,
    ) -> isize {
        let mode = if flags & O_CREAT == 0 { 0 } else { u64::from(mode & 0o7777) };
        let how = OpenArguments { flags: flags as u32 as u64, mode, resolve };
        let (path, bytes) = (path.as_ptr() as usize, size_of::<OpenArguments>());
        let arguments = [int(descriptor), path, &raw const how as usize, bytes, 0];
        // SAFETY: the kernel reads `how` and the path.
        unsafe { self.unsupervised(number::OPENAT2, arguments) }
    }

    /// Opens `path` to read; `None` if what it leads to may be of the namespace.
    fn open_with_links(&self, descriptor: c_int, path: &CStr, flags: c_int) -> Option<isize> {
        let opened = self.open_resolved(descriptor, path, (flags, 0), 0);
        if opened < 0 {
            return None;
        }
        if !self.is_outside(opened as c_int) {
            self.close(opened);
            return None;
        }
        Some(opened)
    }

    /// Opens what `path` leads to, without access to its content, or returns a negative error
    /// number; `None` if it may be of the namespace.
    fn locate(&self, descriptor: c_int, path: &CStr, flags: c_int) -> Option<isize> {
        if !self.stays_outside(descriptor, path) {
            return None;
        }
        let no_follow = if flags & AT_SYMLINK_NOFOLLOW == 0 { 0 } else { O_NOFOLLOW };
        let flags = O_PATH | O_CLOEXEC | no_follow;
        match self.open_resolved(descriptor, path, (flags, 0), RESOLVE_NO_SYMLINKS) {
            located if located >= 0 || located == -ENOENT || located == -ENOTDIR => Some(located),
            failed if failed == -ELOOP => self.open_with_links(descriptor, path, flags),
            _ => None,
        }
    }

    fn open(&self, descriptor: c_int, path: &CStr, flags: c_int, mode: u32) -> Option<isize> {
        // Flags that need room or a mode of their own are rare.
        if flags & !OPEN_FLAGS != 0 || !self.stays_outside(descriptor, path) {
            return None;
        }
        let opened = self.open_resolved(descriptor, path, (flags, mode), RESOLVE_NO_SYMLINKS);
        match -opened {
            error if error <= 0 => Some(opened),
            ENOENT | ENOTDIR | EACCES | EEXIST | EISDIR => Some(opened),
            // A write through a link may make a file where it should not be.
            ELOOP if flags & (O_ACCMODE | O_CREAT | O_TRUNC | O_NOFOLLOW) == 0 => {
                self.open_with_links(descriptor, path, flags)
            }
            _ => None,
        }
    }

    /// Carries out a call about what `path` leads to: `described` gets a descriptor of it. `None`
    /// if it may be of the namespace.
    fn describe(
        &self,
        descriptor: c_int,
        path: &CStr,
        flags: c_int,
        described: impl FnOnce(&Self, usize) -> isize,
    ) -> Option<isize> {
        let located = self.locate(descriptor, path, flags)?;
        if located < 0 {
            return Some(located);
        }
        let result = described(self, located as usize);
        self.close(located);
        Some(result)
    }
}

/// A path that a program has passed; `None` for a null pointer.
///
/// # Safety
/// `path` is null or points to a string.
unsafe fn text<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// # Safety
/// `path` is null or points to a string.
unsafe fn open_at(descriptor: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's.
    let known = settings().zip(unsafe { text(path) });
    let opened = known.and_then(|(settings, path)| settings.open(descriptor, path, flags, mode));
    let arguments = [int(descriptor), path as usize, int(flags), mode as usize, 0];
    // SAFETY: the kernel checks the path.
    returned(opened.unwrap_or_else(|| unsafe { supervised(number::OPENAT, arguments) }))
}

/// # Safety
/// `path` is null or points to a string; `into` has room for the attributes.
unsafe fn stat_at(
    descriptor: c_int,
    path: *const c_char,
    into: *mut c_void,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's.
    let known = settings().zip(unsafe { text(path) });
    let known = known.filter(|_| flags & !(AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0);
    let done = known.and_then(|(settings, path)| {
        settings.describe(descriptor, path, flags, |settings, located| {
            let empty = c"".as_ptr() as usize;
            let arguments = [located, empty, into as usize, int(AT_EMPTY_PATH), 0];
            // SAFETY: the kernel checks the memory.
            unsafe { settings.unsupervised(number::NEWFSTATAT, arguments) }
        })
    });
    let arguments = [int(descriptor), path as usize, into as usize, int(flags), 0];
    // SAFETY: the kernel checks the memory.
    returned(done.unwrap_or_else(|| unsafe { supervised(number::NEWFSTATAT, arguments) }))
}

/// # Safety
/// `into` has room for the attributes.
unsafe fn stat_open(descriptor: c_int, into: *mut c_void) -> c_int {
    let arguments = [int(descriptor), into as usize, 0, 0, 0];
    // SAFETY: the kernel checks the memory.
    returned(match settings().filter(|settings| settings.is_outside(descriptor)) {
        Some(settings) => unsafe { settings.unsupervised(number::FSTAT, arguments) },
        None => unsafe { supervised(number::FSTAT, arguments) },
    })
}

/// # Safety
/// `path` is null or points to a string; `into` has room for the attributes.
unsafe fn statx_at(
    descriptor: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    into: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    let known = settings().zip(unsafe { text(path) });
    let known = known.filter(|_| flags & AT_EMPTY_PATH == 0);
    let done = known.and_then(|(settings, path)| {
        settings.describe(descriptor, path, flags, |settings, located| {
            let empty = c"".as_ptr() as usize;
            let flags = int(flags & !AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH);
            let arguments = [located, empty, flags, mask as usize, into as usize];
            // SAFETY: the kernel checks the memory.
            unsafe { settings.unsupervised(number::STATX, arguments) }
        })
    });
    let arguments = [int(descriptor), path as usize, int(flags), mask as usize, into as usize];
    // SAFETY: the kernel checks the memory.
    returned(done.unwrap_or_else(|| unsafe { supervised(number::STATX, arguments) }))
}

/// # Safety
/// `path` is null or points to a string.
unsafe fn access_at(descriptor: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    let known = settings().zip(unsafe { text(path) });
    let known = known.filter(|_| flags & !(AT_SYMLINK_NOFOLLOW | AT_EACCESS) == 0);
    let done = known.and_then(|(settings, path)| {
        settings.describe(descriptor, path, flags, |settings, located| {
            let empty = c"".as_ptr() as usize;
            let flags = int(flags & AT_EACCESS | AT_EMPTY_PATH);
            let arguments = [located, empty, int(mode), flags, 0];
            // SAFETY: the kernel takes numbers and a string.
            unsafe { settings.unsupervised(number::FACCESSAT2, arguments) }
        })
    });
    let arguments = [int(descriptor), path as usize, int(mode), int(flags), 0];
    let number = if flags == 0 { number::FACCESSAT } else { number::FACCESSAT2 };
    // SAFETY: the kernel checks the path.
    returned(done.unwrap_or_else(|| unsafe { supervised(number, arguments) }))
}

/// Defines functions under their names in the C library; not in tests, whose own calls they would
/// replace.
macro_rules! hooks {
    ($([$($name:ident),+] $arguments:tt => $done:expr;)*) => {
        $($(hooks!(@ $name $arguments => $done);)+)*
    };
    (@ $name:ident ($($argument:ident: $type:ty),*) => $done:expr) => {
        /// The function of the C library.
        ///
        /// # Safety
        /// As there.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller keeps to the contract of the C library.
            unsafe { $done }
        }
    };
}

type Path = *const c_char;
type Attributes = *mut c_void;

// C passes the mode as if it were a parameter of its own, on all machines that this is made for.
// Functions with a version are those of binaries from before glibc 2.33; those that end in _2 check
// the flags of fortified programs.
hooks! {
    [open, open64](path: Path, flags: c_int, mode: c_uint) => open_at(AT_FDCWD, path, flags, mode);
    [openat, openat64](at: c_int, path: Path, flags: c_int, mode: c_uint) => open_at(at, path, flags, mode);
    [creat, creat64](path: Path, mode: c_uint) => open_at(AT_FDCWD, path, O_CREAT | O_TRUNC | 1, mode);
    [__open_2, __open64_2](path: Path, flags: c_int) => open_at(AT_FDCWD, path, flags, 0);
    [__openat_2, __openat64_2](at: c_int, path: Path, flags: c_int) => open_at(at, path, flags, 0);
    [stat, stat64](path: Path, into: Attributes) => stat_at(AT_FDCWD, path, into, 0);
    [lstat, lstat64](path: Path, into: Attributes) => stat_at(AT_FDCWD, path, into, AT_SYMLINK_NOFOLLOW);
    [fstat, fstat64](descriptor: c_int, into: Attributes) => stat_open(descriptor, into);
    [fstatat, fstatat64](at: c_int, path: Path, into: Attributes, flags: c_int) => stat_at(at, path, into, flags);
    [__xstat, __xstat64](_version: c_int, path: Path, into: Attributes) => stat_at(AT_FDCWD, path, into, 0);
    [__lxstat, __lxstat64](_version: c_int, path: Path, into: Attributes) => stat_at(AT_FDCWD, path, into, AT_SYMLINK_NOFOLLOW);
    [__fxstat, __fxstat64](_version: c_int, descriptor: c_int, into: Attributes) => stat_open(descriptor, into);
    [__fxstatat, __fxstatat64](_version: c_int, at: c_int, path: Path, into: Attributes, flags: c_int) => stat_at(at, path, into, flags);
    [statx](at: c_int, path: Path, flags: c_int, mask: c_uint, into: Attributes) => statx_at(at, path, flags, mask, into);
    [access](path: Path, mode: c_int) => access_at(AT_FDCWD, path, mode, 0);
    [eaccess, euidaccess](path: Path, mode: c_int) => access_at(AT_FDCWD, path, mode, AT_EACCESS);
    [faccessat](at: c_int, path: Path, mode: c_int, flags: c_int) => access_at(at, path, mode, flags);
}
