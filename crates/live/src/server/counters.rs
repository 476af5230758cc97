// SPDX-License-Identifier: Apache-2.0
//! Counters of a server, for operators.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// What a server has done since it began.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct ServerCounters {
    /// Connections accepted.
    pub connections: u64,
    /// Connections refused: strangers, other versions, other namespaces.
    pub refused: u64,
    /// Frames answered.
    pub frames: u64,
    /// Items that changed the namespace.
    pub changes: u64,
    /// Items that read it.
    pub reads: u64,
    /// Items that failed.
    pub failures: u64,
    /// Items that were repeated, and not carried out again.
    pub repeated: u64,
    /// Syncs of the session.
    pub commits: u64,
}

/// The counters while they change.
#[derive(Debug, Default)]
pub(super) struct RunningCounters {
    pub connections: AtomicU64,
    pub refused: AtomicU64,
    pub frames: AtomicU64,
    pub changes: AtomicU64,
    pub reads: AtomicU64,
    pub failures: AtomicU64,
    pub repeated: AtomicU64,
}

impl RunningCounters {
    /// The counters now, with the number of `commits`.
    pub fn read(&self, commits: u64) -> ServerCounters {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServerCounters {
            connections: of(&self.connections),
            refused: of(&self.refused),
            frames: of(&self.frames),
            changes: of(&self.changes),
            reads: of(&self.reads),
            failures: of(&self.failures),
            repeated: of(&self.repeated),
            commits,
        }
    }

    /// Adds `count` to one of the counters.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}
