// SPDX-License-Identifier: Apache-2.0
//! Rank transports: messages between the ranks of a run for backends whose writers are collective.
//!
//! The runner keeps the run's own transport, so a backend makes a second one between the same
//! threads.

use esker_base::{Error, Kind, Result};
use esker_comm::NodeMap;
use esker_comm::threads::{self, ThreadOptions, ThreadTransport};
use parking_lot::Mutex;

use crate::run::PHASE_DEADLINE;

/// Transports that ranks take one after the other; all of them are made with the first. A rank that
/// drops its own before it has finished is lost to the others.
#[derive(Debug, Default)]
pub struct RankTransports {
    /// By rank.
    left: Mutex<Vec<Option<ThreadTransport>>>,
}

impl RankTransports {
    /// True until the first transport is taken, and once the last one was.
    pub fn is_unused_or_spent(&self) -> bool {
        self.left.lock().iter().all(Option::is_none)
    }

    /// The transport of `rank` of `ranks`, each of which counts as a node.
    ///
    /// # Errors
    /// `Invalid` if the rank took it before.
    pub fn take(&self, rank: u32, ranks: u32) -> Result<ThreadTransport> {
        let mut left = self.left.lock();
        if left.is_empty() {
            let options = ThreadOptions { deadline: PHASE_DEADLINE, ..ThreadOptions::default() };
            let all = threads::transports(NodeMap::even(ranks, 1)?, &options);
            left.extend(all.into_iter().map(Some));
        }
        let transport = left.get_mut(rank as usize).and_then(Option::take);
        transport.ok_or_else(|| {
            let what = format!("rank {rank} of {ranks} has a connection already, or is no rank");
            Error::new(Kind::Invalid, what)
        })
    }
}
