// SPDX-License-Identifier: Apache-2.0
//! Forbidden calls: system calls that fail with EPERM, as profiles of containers make them.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets nobody who runs `command` make the system calls `numbers`. No program that it starts gains
/// privileges.
pub fn forbid_calls(command: &mut Command, numbers: &[i64]) {
    let of = |code: u16, jt: u8, jf: u8, k: u32| libc::sock_filter { code, jt, jf, k };
    // The number of the system call.
    let mut filter = vec![of(0x20, 0, 0, 0)];
    for number in numbers {
        let number = u32::try_from(*number).expect("small");
        filter.push(of(0x15, 0, 1, number));
        filter.push(of(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()));
    }
    filter.push(of(0x06, 0, 0, libc::SECCOMP_RET_ALLOW));
    let forbid = move || {
        let length = u16::try_from(filter.len()).expect("small");
        let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
        // SAFETY: the program is as the kernel wants it, and lives until it has copied it.
        let forbidden = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                    == 0
        };
        if forbidden { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(forbid) };
}
