// SPDX-License-Identifier: Apache-2.0
//! FUSE over io_uring: one ring of kernel requests for each processor.
//!
//! A request through `/dev/fuse` wakes a thread on any processor, which on virtual machines takes
//! longer than most requests. A request through a ring (Linux 6.14 and later) wakes the thread that
//! is pinned to the processor of the requesting program. `rings` makes the rings and their threads;
//! `device` reads from `/dev/fuse` the messages that rings do not carry: forgotten files and
//! interrupts.
//!
//! This crate knows nothing of Esker: a file system implements [`Answerer`]. The `fuser` crate
//! mounts it and answers the first request, INIT; this crate uses its types of attributes and
//! errors. Design: docs/design/0009-mount-transports.md.

mod abi;
mod answer;
mod device;
mod helper_threads;
mod operation;
mod processors;
mod queue;
mod rings;
mod slot;

use fuser::Errno;

pub use answer::{Answer, KEPT_SECONDS, Listing};
pub use operation::{AttrChanges, NewTime, Operation, Request};
pub use rings::{RingOptions, RingRefusal, Rings};

/// A file system that answers requests. Several threads call it at a time.
///
/// A panic in any method is an error of the mount once it ends; until then it goes on, and the
/// program whose request was being answered gets EIO.
pub trait Answerer: Send + Sync + 'static {
    /// True if the answer waits for nothing but memory and short locks, so that the thread of a
    /// processor's ring may compute it. Helpers compute the others.
    fn is_quick(&self, request: &Request<'_>) -> bool;

    /// The answer to `request`.
    ///
    /// # Errors
    /// The error of the program's system call.
    fn answer(&self, request: &Request<'_>) -> Result<Answer, Errno>;

    /// Returns the work that follows the answer to `request`.
    fn follow_up(&self, request: &Request<'_>) -> Option<FollowUp> {
        let _ = request;
        None
    }

    /// Subtracts `count` from the kernel's look-ups of the file `node`.
    fn forget(&self, node: u64, count: u64);
}

/// Work for which no program waits.
pub type FollowUp = Box<dyn FnOnce() + Send>;

/// The result of `work`; `None` if it panics. The panic has been printed by then.
fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
}

/// The error of a mount whose file system panicked.
fn panicked() -> std::io::Error {
    std::io::Error::other("a thread panicked")
}
