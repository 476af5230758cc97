// SPDX-License-Identifier: Apache-2.0
//! Hooks: functions of the C library that open or describe files by their paths, which programs call
//! instead of those of the C library.
//!
//! Each one first finds out whether its file is certainly outside of the namespace: the text of the
//! path says so, and the kernel meets no symbolic link on it. If so, the kernel carries the call
//! out (with the *pass* as its sixth argument). If not, the call is made as the C library makes it,
//! and the supervisor answers.
//!
//! The functions take no locks, allocate nothing, keep no state and need 2 KiB of stack, so they may be
//! called in signal handlers, in children of `vfork`, and before the C library is ready. To stat a
//! file takes a descriptor for a moment, which another thread could take for its own, so that is
//! left to the supervisor once a process has several threads.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::hint::black_box;

use super::path_text::{WAY_BYTES_MAX, stays_outside};
use super::raw_call::{call, number};
use super::settings::{MARK, SETTINGS_BYTES, Settings};

const AT_FDCWD: c_int = -100;
const AT_SYMLINK_NOFOLLOW: c_int = 0x100;
const AT_NO_AUTOMOUNT: c_int = 0x800;
const AT_EMPTY_PATH: c_int = 0x1000;

const O_ACCMODE: c_int = 0o3;
const O_CREAT: c_int = 0o100;
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
const STATX_RESERVED: c_uint = 0x8000_0000;
const STATX_ATTR_AUTOMOUNT: u64 = 0x1000;

const ENOENT: isize = 2;
const EINTR: isize = 4;
const ENOTDIR: isize = 20;

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

/// True if the C library knows that the process has one thread (glibc 2.32 and later).
fn is_single_threaded() -> bool {
    let known: *const c_char;
    // SAFETY: the linker gives the address, or zero where there is no such variable.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            ".weak __libc_single_threaded",
            "mov {}, qword ptr [rip + __libc_single_threaded@GOTPCREL]",
            out(reg) known,
            options(nostack, pure, readonly, preserves_flags),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            ".weak __libc_single_threaded",
            "adrp {0}, :got:__libc_single_threaded",
            "ldr {0}, [{0}, :got_lo12:__libc_single_threaded]",
            out(reg) known,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    // SAFETY: the C library defines the variable as one byte.
    !known.is_null() && unsafe { known.read_volatile() } != 0
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

    /// True if the way along `path` stays outside of the namespace, unless it has symbolic links.
    fn stays_outside(&self, descriptor: c_int, path: &CStr) -> bool {
        let path = path.to_bytes();
        if path.starts_with(b"/") {
            return stays_outside(b"", path, self.place);
        }
        if path.is_empty() || descriptor != AT_FDCWD {
            return false;
        }
        let mut buffer = [0; WAY_BYTES_MAX];
        let arguments = [buffer.as_mut_ptr() as usize, WAY_BYTES_MAX, 0, 0, 0];
        // SAFETY: the kernel writes to `buffer` only.
        let length = unsafe { self.unsupervised(number::GETCWD, arguments) };
        // It counts the zero byte.
        let start = usize::try_from(length - 1).ok().and_then(|length| buffer.get(..length));
        // A directory that cannot be reached has another name.
        start.is_some_and(|start| start.starts_with(b"/") && stays_outside(start, path, self.place))
    }

    /// Opens `path` without following symbolic links.
    fn open_without_links(&self, descriptor: c_int, path: &CStr, flags: c_int) -> isize {
        let how =
            OpenArguments { flags: flags as u32 as u64, mode: 0, resolve: RESOLVE_NO_SYMLINKS };
        let (path, bytes) = (path.as_ptr() as usize, size_of::<OpenArguments>());
        let arguments = [int(descriptor), path, &raw const how as usize, bytes, 0];
        // SAFETY: the kernel reads `how` and the path.
        unsafe { self.unsupervised(number::OPENAT2, arguments) }
    }

    fn open(&self, descriptor: c_int, path: &CStr, flags: c_int) -> Option<isize> {
        // Flags that need a mode of their own are rare, and the supervisor makes what is missing.
        let makes = flags & O_CREAT != 0;
        let is_rare = flags & !OPEN_FLAGS != 0 || makes && flags & O_DIRECTORY != 0;
        if is_rare || !self.stays_outside(descriptor, path) {
            return None;
        }
        let opened = self.open_without_links(descriptor, path, flags & !O_CREAT);
        // Other errors may be those of a link, or of another filter of the program.
        let is_certain = match -opened {
            ENOENT | ENOTDIR => !makes,
            error => error <= 0 || error == EINTR,
        };
        is_certain.then_some(opened)
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
        if !is_single_threaded() || !self.stays_outside(descriptor, path) {
            return None;
        }
        let no_follow = if flags & AT_SYMLINK_NOFOLLOW == 0 { 0 } else { O_NOFOLLOW };
        match self.open_without_links(descriptor, path, O_PATH | O_CLOEXEC | no_follow) {
            missing if missing == -ENOENT || missing == -ENOTDIR => Some(missing),
            located if located >= 0 => {
                let result = described(self, located as usize);
                self.close(located);
                Some(result)
            }
            _ => None,
        }
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
    let opened = known.and_then(|(settings, path)| settings.open(descriptor, path, flags));
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
    let known = known.filter(|_| {
        flags & !(AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0 && mask & STATX_RESERVED == 0
    });
    let done = known.and_then(|(settings, path)| {
        settings.describe(descriptor, path, flags, |settings, located| {
            let empty = c"".as_ptr() as usize;
            let flags = int(flags & !AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH);
            let arguments = [located, empty, flags, mask as usize, into as usize];
            // SAFETY: the kernel checks the memory.
            unsafe { settings.unsupervised(number::STATX, arguments) }
        })
    });
    // The descriptor is one of the place itself, but the call would have mounted there.
    let is_mounted = |result: &isize| {
        // SAFETY: the kernel has filled the memory if it succeeded.
        let attributes = || unsafe { into.cast::<u64>().add(1).read_unaligned() };
        flags & AT_NO_AUTOMOUNT != 0 || *result != 0 || attributes() & STATX_ATTR_AUTOMOUNT == 0
    };
    let done = done.filter(is_mounted);
    let arguments = [int(descriptor), path as usize, int(flags), mask as usize, into as usize];
    // SAFETY: the kernel checks the memory.
    returned(done.unwrap_or_else(|| unsafe { supervised(number::STATX, arguments) }))
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
    [fstatat, fstatat64](at: c_int, path: Path, into: Attributes, flags: c_int) => stat_at(at, path, into, flags);
    [__xstat, __xstat64](_version: c_int, path: Path, into: Attributes) => stat_at(AT_FDCWD, path, into, 0);
    [__lxstat, __lxstat64](_version: c_int, path: Path, into: Attributes) => stat_at(AT_FDCWD, path, into, AT_SYMLINK_NOFOLLOW);
    [__fxstatat, __fxstatat64](_version: c_int, at: c_int, path: Path, into: Attributes, flags: c_int) => stat_at(at, path, into, flags);
    [statx](at: c_int, path: Path, flags: c_int, mask: c_uint, into: Attributes) => statx_at(at, path, flags, mask, into);
}
