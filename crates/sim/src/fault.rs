//! Faults: what a plan lets happen at a request.

use std::time::Duration;

use esker_base::Kind;
use esker_base::store::Effect;

/// What happens at one request, whoever makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The number of the request, counted from 1 over all actors.
    pub at: u64,
    /// What happens there.
    pub kind: FaultKind,
}

/// What can happen at a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It fails with `kind`, having done what `effect` says.
    Error {
        /// The kind of the error.
        kind: Kind,
        /// What was done all the same.
        effect: Effect,
    },
    /// The process that makes it dies, the request having done what `effect` says. With
    /// `loses_buffers`, bytes of logs that it did not sync are lost, as where a log gathers them in
    /// memory; otherwise the machine still has them.
    ProcessDeath {
        /// What the request did.
        effect: Effect,
        /// Whether bytes that were not synced are lost.
        loses_buffers: bool,
    },
    /// Every process dies, and what was not synced may be lost, torn or garbled.
    PowerLoss,
    /// The actor waits until others have made `requests` more, or are done; time moves on by `time`.
    Stall {
        /// How many requests others make first.
        requests: u64,
        /// How much time passes.
        time: Duration,
    },
    /// From here on, for `requests` requests of whoever, what takes room fails with `NoSpace`.
    Full {
        /// How long it lasts.
        requests: u64,
    },
}
