// SPDX-License-Identifier: Apache-2.0
//! Listener: receives suspended system calls, and answers them.
//!
//! Source: seccomp_unotify(2).

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::{fmt, io};

use rustix::io::Errno;

use crate::caller::Caller;

/// Asks the kernel to run the supervisor where the caller ran, and back (Linux 6.6): neither
/// processor is woken by an interrupt.
const SYNCHRONOUS_WAKE_UP: u64 = 1;

/// A system call that a thread has entered, and that the supervisor must answer.
#[derive(Debug)]
pub(crate) struct SuspendedCall {
    id: u64,
    /// The thread.
    pub(crate) caller: Caller,
    /// Number of the call.
    pub(crate) number: i64,
    /// Its arguments.
    pub(crate) arguments: [u64; 6],
}

/// Answer to a suspended call.
#[derive(Debug)]
pub(crate) enum CallAnswer {
    /// The kernel carries it out.
    Continue,
    /// It returns this.
    Value(i64),
    /// It fails.
    Failure(Errno),
    /// It returns a new descriptor of this file.
    Descriptor(NewDescriptor),
}

/// A descriptor for a caller.
pub(crate) struct NewDescriptor {
    pub(crate) file: File,
    pub(crate) closes_on_exec: bool,
    /// Called with whether the caller got the descriptor, before the call returns: an open changes
    /// files only then.
    pub(crate) then: Option<Box<dyn FnOnce(bool)>>,
}

impl fmt::Debug for NewDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewDescriptor").field("file", &self.file).finish_non_exhaustive()
    }
}

impl From<Result<CallAnswer, Errno>> for CallAnswer {
    fn from(result: Result<CallAnswer, Errno>) -> Self {
        result.unwrap_or_else(Self::Failure)
    }
}

/// The descriptor from which suspended calls are received. Several threads may receive.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        // Older kernels do without it.
        // SAFETY: the request takes a number.
        unsafe {
            libc::ioctl(
                descriptor.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
                SYNCHRONOUS_WAKE_UP,
            )
        };
        Self(descriptor)
    }

    /// Waits for the next suspended call.
    ///
    /// # Errors
    /// Errors of the kernel, once there can be no further calls.
    pub(crate) fn receive(&self) -> io::Result<SuspendedCall> {
        loop {
            // SAFETY: zeros are a value of this type; the kernel requires them.
            let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            // SAFETY: the kernel writes to `call`, which has the size of its type.
            let received = unsafe {
                libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call)
            };
            if received == 0 {
                return Ok(SuspendedCall {
                    id: call.id,
                    caller: Caller::new(call.pid),
                    number: i64::from(call.data.nr),
                    arguments: call.data.args,
                });
            }
            let error = io::Error::last_os_error();
            // The caller was killed before its call was received.
            let is_transient = matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT));
            if !is_transient {
                return Err(error);
            }
        }
    }

    /// True if the caller still waits. Then everything that was read from its memory and `/proc` is
    /// that of this thread, and not of a new thread with the number of a dead one.
    pub(crate) fn is_waiting(&self, call: &SuspendedCall) -> bool {
        // SAFETY: the kernel reads the identity of the call.
        let valid = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const call.id)
        };
        valid == 0
    }

    /// Answers a call. A caller that was killed needs no answer.
    pub(crate) fn answer(&self, call: &SuspendedCall, answer: CallAnswer) {
        let answer = match answer {
            CallAnswer::Descriptor(NewDescriptor { file, closes_on_exec, then }) => {
                let added = self.add_descriptor(call, &file, closes_on_exec, then.is_none());
                if let Some(then) = then {
                    then(added.is_ok());
                }
                match added {
                    Ok(None) => return,
                    Ok(Some(number)) => CallAnswer::Value(number.into()),
                    Err(error) => CallAnswer::Failure(error),
                }
            }
            other => other,
        };
        let mut response = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags: 0 };
        match answer {
            CallAnswer::Continue => response.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            CallAnswer::Value(value) => response.val = value,
            CallAnswer::Failure(error) => response.error = -error.raw_os_error(),
            CallAnswer::Descriptor(_) => unreachable!("was answered above"),
        }
        // SAFETY: the kernel reads `response`, which has the size of its type.
        unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response)
        };
    }

    /// Gives the caller a descriptor and, if it `answers`, answers the call with its number in the
    /// same step; otherwise returns the number.
    fn add_descriptor(
        &self,
        call: &SuspendedCall,
        file: &File,
        closes_on_exec: bool,
        answers: bool,
    ) -> Result<Option<i32>, Errno> {
        let added = libc::seccomp_notif_addfd {
            id: call.id,
            flags: if answers { libc::SECCOMP_ADDFD_FLAG_SEND as u32 } else { 0 },
            srcfd: file.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if closes_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        loop {
            // SAFETY: the kernel reads `added`, which has the size of its type.
            let number = unsafe {
                libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const added)
            };
            if number >= 0 {
                return Ok((!answers).then_some(number));
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                // The caller is gone.
                Some(libc::ENOENT | libc::EINPROGRESS) => return Ok(None),
                error => return Err(Errno::from_raw_os_error(error.unwrap_or(libc::EIO))),
            }
        }
    }
}
