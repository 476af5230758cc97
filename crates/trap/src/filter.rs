// SPDX-License-Identifier: Apache-2.0
//! Filter: makes the kernel hand the system calls that name files to a supervisor.
//!
//! The filter is a classic BPF program that compares the number of a call with those of a list. It
//! applies to the thread that installs it and to all processes and threads that the thread starts,
//! for ever. Source: seccomp(2), seccomp_unotify(2).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use esker_base::{Error, Kind, Result};

use crate::calls::TRAPPED;

/// The architecture whose calls are handed over; see `linux/audit.h`. This crate does not know the
/// call numbers of others.
const ARCHITECTURE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

/// Calls from here on are those of the x32 ABI, whose numbers differ.
const X32_CALLS: u32 = 0x4000_0000;

/// Calls of Linux 6.13 to 6.17 that name files, from setxattrat to file_setattr: programs use older
/// ones if these fail.
const REFUSED_CALLS: std::ops::Range<u32> = 463..470;

/// Calls that programs may make without the supervisor, if they have its pass. None of them has a
/// sixth argument. If a signal interrupts a call with the pass, the register still has it when the
/// handler begins, so these are calls that the C library makes for no other function, or that the
/// preloaded library makes itself.
const PASSED: &[i64] = &[libc::SYS_openat2, libc::SYS_newfstatat, libc::SYS_statx];

/// Offsets in `struct seccomp_data`.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const SIXTH_ARGUMENT_OFFSET: u32 = 16 + 5 * 8;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// The kernel's answer to calls that cannot be handed over: those of programs of another
/// architecture, whose numbers this crate does not know, and those of io_uring, whose requests are
/// not system calls.
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

const fn instruction(code: u16, value: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: if_true, jf: if_false, k: value }
}

/// The filter. A call of [`PASSED`] whose sixth argument is the `pass` is not handed over.
fn program(architecture: u32, pass: Option<u64>) -> Vec<libc::sock_filter> {
    let mut program = vec![
        instruction(LOAD, ARCHITECTURE_OFFSET, 0, 0),
        instruction(JUMP_IF_EQUAL, architecture, 1, 0),
        instruction(RETURN, REFUSE, 0, 0),
        instruction(LOAD, NUMBER_OFFSET, 0, 0),
        instruction(JUMP_IF_AT_LEAST, X32_CALLS, 0, 1),
        instruction(RETURN, REFUSE, 0, 0),
        instruction(JUMP_IF_EQUAL, libc::SYS_io_uring_setup as u32, 0, 1),
        instruction(RETURN, REFUSE, 0, 0),
        instruction(JUMP_IF_AT_LEAST, REFUSED_CALLS.end, 2, 0),
        instruction(JUMP_IF_AT_LEAST, REFUSED_CALLS.start, 0, 1),
        instruction(RETURN, REFUSE, 0, 0),
    ];
    // Behind the list: the return of other calls, the check of the pass, and the last return.
    let check = pass.map_or(Vec::new(), |pass| {
        // Both machines store the lower half first.
        vec![
            instruction(LOAD, SIXTH_ARGUMENT_OFFSET, 0, 0),
            instruction(JUMP_IF_EQUAL, pass as u32, 0, 3),
            instruction(LOAD, SIXTH_ARGUMENT_OFFSET + 4, 0, 0),
            instruction(JUMP_IF_EQUAL, (pass >> 32) as u32, 0, 1),
            instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
        ]
    });
    for (at, &number) in TRAPPED.iter().enumerate() {
        // Jumps over the rest of the list and the return behind it.
        let skipped = if PASSED.contains(&number) { 0 } else { check.len() };
        let distance = TRAPPED.len() - at + skipped;
        let distance = u8::try_from(distance).expect("less than 200 calls are trapped");
        program.push(instruction(JUMP_IF_EQUAL, number as u32, distance, 0));
    }
    program.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    program.extend(check);
    program.push(instruction(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0, 0));
    program
}

/// Installs the filter in this thread, and returns the descriptor from which a supervisor receives
/// calls. Programs that this thread starts gain no privileges any more (`no_new_privs`). Calls with
/// the `pass` are not received.
///
/// # Errors
/// `Conflict` if the thread has a supervisor already; `Unsupported` if the kernel, or a container,
/// does not allow it.
pub(crate) fn install(pass: Option<u64>) -> Result<OwnedFd> {
    let architecture =
        ARCHITECTURE.ok_or_else(|| refused(&io::Error::from_raw_os_error(libc::ENOSYS)))?;
    let program = program(architecture, pass);
    let filter =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the call takes no pointers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(refused(&io::Error::last_os_error()));
    }
    // Without the second flag, which Linux has since 5.19, a signal may interrupt a call whose
    // effect the supervisor has already had.
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let flags = [listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, listener];
    let mut error = io::Error::from_raw_os_error(libc::EINVAL);
    for flags in flags {
        // SAFETY: `filter` points to `program`, which lives until the call returns.
        let descriptor = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const filter,
            )
        };
        if descriptor >= 0 {
            // SAFETY: the kernel has just made this descriptor for the caller.
            return Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
        }
        error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            break;
        }
    }
    Err(refused(&error))
}

fn refused(error: &io::Error) -> Error {
    if error.raw_os_error() == Some(libc::EBUSY) {
        let what = "this process is already inside of an `esker run --at`, or of something else that supervises \
                    its system calls; there can be one at a time";
        return Error::new(Kind::Conflict, what);
    }
    let what = format!(
        "the kernel, or the container, hands no system calls to a supervisor ({error}): Linux 5.14 or later \
         with seccomp can, on x86-64 and aarch64; `esker mount` is another way"
    );
    Error::new(Kind::Unsupported, what)
}

/// Fails unless this kernel hands system calls to supervisors.
///
/// # Errors
/// `Unsupported`, with the reason.
pub fn is_available() -> Result<()> {
    // The filter stays with its thread, which ends.
    let installed = std::thread::scope(|scope| scope.spawn(|| install(None)).join());
    installed.expect("installing a filter does not panic").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of a call in the kernel's interpreter of such programs.
    fn outcome(program: &[libc::sock_filter], number: i64, sixth: u64) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                LOAD => {
                    value = match step.k {
                        NUMBER_OFFSET => number as u32,
                        ARCHITECTURE_OFFSET => ARCHITECTURE.expect("a known machine"),
                        SIXTH_ARGUMENT_OFFSET => sixth as u32,
                        _ => (sixth >> 32) as u32,
                    }
                }
                RETURN => return step.k,
                _ => {
                    let is_true = match step.code {
                        JUMP_IF_EQUAL => value == step.k,
                        _ => value >= step.k,
                    };
                    at += usize::from(if is_true { step.jt } else { step.jf });
                }
            }
        }
    }

    #[test]
    fn trapped_calls_are_handed_over_unless_they_have_the_pass() {
        let architecture = ARCHITECTURE.expect("tests run on x86-64 or aarch64");
        let pass = 0x1234_5678_9abc_def0;
        for (has_pass, program) in
            [(true, program(architecture, Some(pass))), (false, program(architecture, None))]
        {
            assert!(PASSED.iter().all(|number| TRAPPED.contains(number)));
            for &number in TRAPPED {
                for sixth in [0, 1, pass ^ 1, pass ^ 1 << 63, u64::MAX] {
                    assert_eq!(outcome(&program, number, sixth), libc::SECCOMP_RET_USER_NOTIF);
                }
                let allowed = outcome(&program, number, pass) == libc::SECCOMP_RET_ALLOW;
                assert_eq!(allowed, has_pass && PASSED.contains(&number), "call {number}");
            }
            for sixth in [0, pass] {
                assert_eq!(outcome(&program, libc::SYS_read, sixth), libc::SECCOMP_RET_ALLOW);
                assert_eq!(outcome(&program, libc::SYS_io_uring_setup, sixth), REFUSE);
            }
        }
    }
}
