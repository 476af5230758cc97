// SPDX-License-Identifier: Apache-2.0
//! Kernel: the system calls and the variables of the C library that the library itself needs. None of the
//! functions changes `errno`.

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use super::next_function::NextFunction;

/// Numbers of system calls; see `asm/unistd.h`.
#[cfg(target_arch = "x86_64")]
mod number {
    pub const CLOSE: i64 = 3;
    pub const LSEEK: i64 = 8;
    pub const MMAP: i64 = 9;
    pub const MUNMAP: i64 = 11;
    pub const MADVISE: i64 = 28;
    pub const MPROTECT: i64 = 10;
    pub const NANOSLEEP: i64 = 35;
    pub const GETPID: i64 = 39;
    pub const GETCWD: i64 = 79;
    pub const GETTID: i64 = 186;
    pub const EXIT_GROUP: i64 = 231;
    pub const OPENAT: i64 = 257;
    pub const READLINKAT: i64 = 267;
    pub const FACCESSAT: i64 = 269;
}

/// Numbers of system calls; see `asm-generic/unistd.h`.
#[cfg(target_arch = "aarch64")]
mod number {
    pub const CLOSE: i64 = 57;
    pub const LSEEK: i64 = 62;
    pub const MMAP: i64 = 222;
    pub const MUNMAP: i64 = 215;
    pub const MADVISE: i64 = 233;
    pub const MPROTECT: i64 = 226;
    pub const NANOSLEEP: i64 = 101;
    pub const GETPID: i64 = 172;
    pub const GETCWD: i64 = 17;
    pub const GETTID: i64 = 178;
    pub const EXIT_GROUP: i64 = 94;
    pub const OPENAT: i64 = 56;
    pub const READLINKAT: i64 = 78;
    pub const FACCESSAT: i64 = 48;
}

/// The working directory, in calls that take a directory.
pub const AT_FDCWD: c_int = -100;

const CLOCK_BOOTTIME: c_int = 7;
const O_RDWR: i64 = 2;
const O_CLOEXEC: i64 = 0o2_000_000;
const SEEK_CUR: i64 = 1;
const PROT_READ_WRITE: i64 = 3;
const MAP_SHARED: i64 = 1;
const MAP_PRIVATE_ANONYMOUS: i64 = 0x22;
const MADV_WIPEONFORK: i64 = 18;

#[repr(C)]
#[derive(Default)]
struct TimeSpec {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
    fn pthread_key_create(key: *mut c_uint, end: Option<extern "C" fn(*mut c_void)>) -> c_int;
    fn pthread_getspecific(key: c_uint) -> *mut c_void;
    fn pthread_setspecific(key: c_uint, value: *const c_void) -> c_int;
}

// Programs may have functions of their own by these names.
static SYSCALL: NextFunction = NextFunction::new("syscall\0");
static CLOCK_GETTIME: NextFunction = NextFunction::new("clock_gettime\0");
static GETPAGESIZE: NextFunction = NextFunction::new("getpagesize\0");
static GETENV: NextFunction = NextFunction::new("getenv\0");

/// The error number of the thread.
pub fn error_number() -> c_int {
    // SAFETY: the C library returns the place of this thread's error number.
    unsafe { *__errno_location() }
}

/// Sets the error number of the thread.
pub fn set_error_number(number: c_int) {
    // SAFETY: the C library returns the place of this thread's error number.
    unsafe { *__errno_location() = number }
}

/// Makes a system call; an error is a negative number.
///
/// # Safety
/// The arguments are valid for the call.
unsafe fn call(number: i64, arguments: [i64; 6]) -> i64 {
    type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;
    // SAFETY: the function of this name has this type.
    let syscall: Syscall = unsafe { core::mem::transmute(SYSCALL.find()) };
    let before = error_number();
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: the caller's.
    let result = unsafe { syscall(number, first, second, third, fourth, fifth, sixth) };
    let error = error_number();
    set_error_number(before);
    if result == -1 { -i64::from(error) } else { result }
}

/// Ends the process.
pub fn exit(code: i64) -> ! {
    loop {
        // SAFETY: the call takes a number.
        unsafe { call(number::EXIT_GROUP, [code, 0, 0, 0, 0, 0]) };
    }
}

/// The time by the monotonic clock of `esker_base`, which goes on while the machine is suspended.
pub fn now_ns() -> u64 {
    type ClockGettime = unsafe extern "C" fn(c_int, *mut TimeSpec) -> c_int;
    // SAFETY: the function of this name has this type.
    let clock_gettime: ClockGettime = unsafe { core::mem::transmute(CLOCK_GETTIME.find()) };
    let mut time = TimeSpec::default();
    // SAFETY: the C library writes to `time`.
    unsafe { clock_gettime(CLOCK_BOOTTIME, &raw mut time) };
    (time.seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(time.nanoseconds as u64)
}

/// The id of the process.
pub fn process() -> u32 {
    // SAFETY: the call has no arguments.
    unsafe { call(number::GETPID, [0; 6]) as u32 }
}

/// The key of the ids of threads, and 1; 0 without one.
static THREAD_KEY: AtomicU32 = AtomicU32::new(0);

/// Lets threads remember their ids from now on.
pub fn remember_threads() {
    let mut key = 0;
    // SAFETY: the C library writes to `key`, and calls nothing at the end of a thread.
    if unsafe { pthread_key_create(&raw mut key, None) } == 0 {
        THREAD_KEY.store(key + 1, Ordering::Relaxed);
    }
}

/// The id of the thread, as it remembers it.
pub fn thread() -> u32 {
    let key = THREAD_KEY.load(Ordering::Relaxed).checked_sub(1);
    // SAFETY: the key was made.
    let known = key.map_or(0, |key| unsafe { pthread_getspecific(key) } as u32);
    if known != 0 { known } else { forget_thread() }
}

/// Asks for the id of the thread again, which a forked child has a new one of; returns it.
pub fn forget_thread() -> u32 {
    // SAFETY: the call has no arguments.
    let thread = unsafe { call(number::GETTID, [0; 6]) as u32 };
    if let Some(key) = THREAD_KEY.load(Ordering::Relaxed).checked_sub(1) {
        // SAFETY: the key was made, and the value is not used as an address.
        unsafe { pthread_setspecific(key, thread as usize as *const c_void) };
    }
    thread
}

/// The position of an open file, if it has one.
pub fn position(descriptor: c_int) -> Option<u64> {
    // SAFETY: the call takes numbers.
    let position = unsafe { call(number::LSEEK, [descriptor.into(), 0, SEEK_CUR, 0, 0, 0]) };
    u64::try_from(position).ok()
}

/// Sleeps for a millisecond.
pub fn sleep_a_millisecond() {
    let time = TimeSpec { seconds: 0, nanoseconds: 1_000_000 };
    // SAFETY: the kernel reads `time`.
    unsafe { call(number::NANOSLEEP, [&raw const time as i64, 0, 0, 0, 0, 0]) };
}

/// Reads the text of a symbolic link, as far as `into` has room; returns its length.
pub fn read_link(path: &CStr, into: &mut [u8]) -> Option<usize> {
    let arguments =
        [AT_FDCWD.into(), path.as_ptr() as i64, into.as_mut_ptr() as i64, into.len() as i64, 0, 0];
    // SAFETY: the kernel reads the path, and writes to `into` only.
    usize::try_from(unsafe { call(number::READLINKAT, arguments) }).ok()
}

/// Checks whether a name exists; returns 0, or an error as a negative number.
pub fn check_name(directory: c_int, name: *const c_char) -> i64 {
    // SAFETY: the kernel checks the memory of the name.
    unsafe { call(number::FACCESSAT, [directory.into(), name as i64, 0, 0, 0, 0]) }
}

/// The path of the working directory.
pub enum WorkingDirectory {
    /// A path of this length.
    Path(usize),
    /// There is no room for it.
    TooLong,
    /// It has been removed, or cannot be reached.
    Nowhere,
}

/// Reads the path of the working directory.
pub fn working_directory(into: &mut [u8]) -> WorkingDirectory {
    const ERANGE: i64 = 34;
    let arguments = [into.as_mut_ptr() as i64, into.len() as i64, 0, 0, 0, 0];
    // SAFETY: the kernel writes to `into` only.
    let length = unsafe { call(number::GETCWD, arguments) };
    match usize::try_from(length) {
        // It counts the zero byte.
        Ok(length) if into.starts_with(b"/") => WorkingDirectory::Path(length.saturating_sub(1)),
        Err(_) if length == -ERANGE => WorkingDirectory::TooLong,
        _ => WorkingDirectory::Nowhere,
    }
}

/// Maps `bytes` of the file at `path` from `offset` on, to be shared with others.
pub fn map_shared(path: *const u8, offset: usize, bytes: usize) -> Option<*mut u8> {
    let arguments = [AT_FDCWD.into(), path as i64, O_RDWR | O_CLOEXEC, 0, 0, 0];
    // SAFETY: the kernel reads the path, which ends in a zero byte.
    let descriptor = unsafe { call(number::OPENAT, arguments) };
    if descriptor < 0 {
        return None;
    }
    let arguments = [0, bytes as i64, PROT_READ_WRITE, MAP_SHARED, descriptor, offset as i64];
    // SAFETY: the kernel chooses the address.
    let address = unsafe { call(number::MMAP, arguments) };
    // SAFETY: the descriptor is one that was just opened.
    unsafe { call(number::CLOSE, [descriptor, 0, 0, 0, 0, 0]) };
    is_address(address).then_some(address as *mut u8)
}

/// False for the results of calls that failed.
fn is_address(result: i64) -> bool {
    !(-4095..0).contains(&result)
}

/// Removes a map.
pub fn unmap(address: *mut u8, bytes: usize) {
    // SAFETY: the caller has mapped the memory, and nothing refers to it.
    unsafe { call(number::MUNMAP, [address as i64, bytes as i64, 0, 0, 0, 0]) };
}

/// Maps a page of zeros that is zero again in a forked child, but shared with one of `vfork`.
pub fn map_page_wiped_by_fork() -> Option<*mut u32> {
    const PAGE_BYTES: i64 = 4096;
    let arguments = [0, PAGE_BYTES, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0];
    // SAFETY: the kernel chooses the address.
    let address = unsafe { call(number::MMAP, arguments) };
    if !is_address(address) {
        return None;
    }
    // SAFETY: the page was just mapped.
    let wiped = unsafe { call(number::MADVISE, [address, PAGE_BYTES, MADV_WIPEONFORK, 0, 0, 0]) };
    (wiped == 0).then_some(address as *mut u32)
}

/// Lets the memory of `bytes` at `address` be written; false if the kernel refuses.
pub fn make_writable(address: *mut c_void, bytes: usize) -> bool {
    // SAFETY: the function of this name has this type.
    let page_bytes = unsafe {
        let getpagesize: unsafe extern "C" fn() -> c_int = core::mem::transmute(GETPAGESIZE.find());
        getpagesize() as usize
    };
    let from = address as usize / page_bytes * page_bytes;
    let end = (address as usize + bytes).next_multiple_of(page_bytes);
    let arguments = [from as i64, (end - from) as i64, PROT_READ_WRITE, 0, 0, 0];
    // SAFETY: the memory stays readable.
    unsafe { call(number::MPROTECT, arguments) == 0 }
}

/// The number in the variable `name` of the environment.
pub fn number_in_environment(name: &CStr) -> Option<u32> {
    // SAFETY: the function of this name has this type, and reads the name.
    let value = unsafe {
        let getenv: unsafe extern "C" fn(*const c_char) -> *const c_char =
            core::mem::transmute(GETENV.find());
        getenv(name.as_ptr())
    };
    if value.is_null() {
        return None;
    }
    // SAFETY: the C library returns a string.
    let digits = unsafe { CStr::from_ptr(value) }.to_bytes();
    let mut number: u32 = 0;
    for digit in digits {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number = number.checked_mul(10)?.checked_add(digit.into())?;
    }
    (!digits.is_empty()).then_some(number)
}
