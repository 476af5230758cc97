// SPDX-License-Identifier: Apache-2.0
//! Raw calls: system calls without the C library, whose own are hooked.
//!
//! The sixth argument is in its register only while the kernel carries out the call: other calls
//! of the program, which have fewer arguments, leave in that register what they find there.

/// Numbers of system calls; see `asm/unistd.h`.
#[cfg(target_arch = "x86_64")]
pub mod number {
    pub const CLOSE: usize = 3;
    pub const GETCWD: usize = 79;
    pub const OPENAT: usize = 257;
    pub const NEWFSTATAT: usize = 262;
    pub const STATX: usize = 332;
    pub const OPENAT2: usize = 437;
}

/// Numbers of system calls; see `asm-generic/unistd.h`.
#[cfg(target_arch = "aarch64")]
pub mod number {
    pub const CLOSE: usize = 57;
    pub const GETCWD: usize = 17;
    pub const OPENAT: usize = 56;
    pub const NEWFSTATAT: usize = 79;
    pub const STATX: usize = 291;
    pub const OPENAT2: usize = 437;
}

/// Makes a system call whose sixth argument is the complement of `sixth_complement`; returns its
/// result, or an error as a negative number.
///
/// # Safety
/// The arguments are valid for the call.
#[cfg(target_arch = "x86_64")]
pub unsafe fn call(number: usize, arguments: [usize; 5], sixth_complement: u64) -> isize {
    let result: isize;
    let [first, second, third, fourth, fifth] = arguments;
    // SAFETY: the kernel changes these registers only, and memory that the caller answers for.
    unsafe {
        core::arch::asm!(
            "not r9",
            "syscall",
            "xor r9d, r9d",
            inlateout("rax") number as isize => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            inlateout("r9") sixth_complement => _,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call whose sixth argument is the complement of `sixth_complement`; returns its
/// result, or an error as a negative number.
///
/// # Safety
/// The arguments are valid for the call.
#[cfg(target_arch = "aarch64")]
pub unsafe fn call(number: usize, arguments: [usize; 5], sixth_complement: u64) -> isize {
    let result: isize;
    let [first, second, third, fourth, fifth] = arguments;
    // SAFETY: the kernel changes these registers only, and memory that the caller answers for.
    unsafe {
        core::arch::asm!(
            "mvn x5, x5",
            "svc 0",
            "mov x5, xzr",
            in("x8") number,
            inlateout("x0") first as isize => result,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x4") fifth,
            inlateout("x5") sixth_complement => _,
            options(nostack),
        );
    }
    result
}
