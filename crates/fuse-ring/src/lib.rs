// SPDX-License-Identifier: Apache-2.0
//! FUSE over io_uring: requests of the kernel by rings, one for each processor.
//!
//! By `/dev/fuse` a request wakes a thread on whatever processor, which on virtual machines takes longer
//! than most requests. By rings (Linux 6.14 and later) it wakes the thread that is pinned to the processor
//! of the program that asks. `rings` makes the rings and their threads; what they do not carry, the
//! forgetting of files and interrupts, is read from `/dev/fuse` (`device`).
//!
//! This crate knows nothing of Esker: an [`Answerer`] is what any file system is to it. Mounting, and the
//! first request, by which kernel and file system agree on what they can do, are left to the `fuser` crate,
//! whose types of attributes and errors this one uses.
//! Design: docs/design/0009-mount-transports.md.

mod abi;
mod answer;
mod device;
mod helper_threads;
mod operation;
mod processors;
mod queue;
mod rings;
mod slot;

use std::sync::Arc;

use fuser::Errno;

pub use answer::{Answer, KEPT_SECONDS, Listing};
pub use operation::{AttrChanges, NewTime, Operation, Request};
pub use rings::{RingOptions, RingRefusal, Rings};

/// What answers requests. Several threads ask at a time.
pub trait Answerer: Send + Sync + 'static {
    /// Whether the answer waits for nothing but memory and short locks, so that the thread of a
    /// processor's ring may give it itself.
    fn is_quick(&self, request: &Request<'_>) -> bool;

    /// The answer to `request`.
    ///
    /// # Errors
    /// What the program that asks is told.
    fn answer(&self, request: &Request<'_>) -> Result<Answer, Errno>;

    /// Returns the work that follows the answer to `request`.
    fn follow_up(&self, request: &Request<'_>) -> Option<FollowUp> {
        let _ = request;
        None
    }

    /// The kernel forgets `count` of the times that it was told of the file `node`.
    fn forget(&self, node: u64, count: u64);
}

/// Work that nobody waits for.
pub type FollowUp = Box<dyn FnOnce() + Send>;

/// An answer, unless the answerer panics: a program gets EIO then, as from any other bug.
fn answer_or_eio(
    answerer: &Arc<dyn Answerer>,
    request: &Request<'_>,
) -> (Result<Answer, Errno>, bool) {
    let caught =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| answerer.answer(request)));
    caught.map_or((Err(Errno::EIO), true), |answer| (answer, false))
}
