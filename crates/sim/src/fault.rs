// SPDX-License-Identifier: Apache-2.0
//! Faults: the events that a plan injects at requests.

use std::time::Duration;

use esker_base::Kind;
use esker_base::store::FaultEffect;

/// A fault at one request, of any actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFault {
    /// The number of the request, counted from 1 over all actors.
    pub at: u64,
    /// The event at that request.
    pub kind: FaultKind,
}

/// The events that can happen at a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It fails with `kind`, after it had the given `effect`.
    Error {
        /// The kind of the error.
        kind: Kind,
        /// The part of the request that was done despite the error.
        effect: FaultEffect,
    },
    /// The process that makes it dies, after the request had the given `effect`. With
    /// `loses_buffers`, unsynced bytes of its logs are lost, as if they were buffered in its
    /// memory; otherwise the machine still has them.
    ProcessDeath {
        /// The part of the request that was done.
        effect: FaultEffect,
        /// True if unsynced bytes are lost.
        loses_buffers: bool,
    },
    /// Every process dies; unsynced data may be lost, torn or garbled.
    PowerLoss,
    /// The actor waits until others have made `requests` more requests, or are done; the clock
    /// advances by `time`.
    Stall {
        /// Number of requests that others make first.
        requests: u64,
        /// Time that passes.
        time: Duration,
    },
    /// During the next `requests` requests, of any actor, those that need space fail with
    /// `NoSpace`.
    Full {
        /// Number of requests that it lasts.
        requests: u64,
    },
}
