// SPDX-License-Identifier: Apache-2.0
//! Balance: moves slices automatically when some servers have much more load than others.
//!
//! A server counts, by slot, the segments that it puts or looks up. The barrier of a job is a
//! reduction from which all ranks learn the highest count of a server, and the sum. If load is
//! even, no slice moves; ranks only reset their counters once servers have counted [`INTERVAL`] each
//! on average, so that old load does not hide present imbalance. Otherwise ranks wait for the
//! answers to all their requests, add up the counts of each slot and reset their counters, so that
//! all compute the same new map, and migrate segments (`migrate.rs`).
//! Invariant: the map changes only between two reductions, while no request is unanswered.

use esker_base::Result;
use esker_comm::Transport;
use esker_comm::collective::Reduction;

use crate::gather;
use crate::job::SharedJob;
use crate::service::SegmentService;
use crate::slices::SliceMap;

/// Segments by which a server must exceed the mean before slices move: the flushes and commits of a
/// move take about as long as this many look-ups.
const MOVE_MIN: u64 = 1 << 16;

/// Segments per server after which counters are reset. Many times [`MOVE_MIN`], so that load which
/// is uneven at times but even over the interval moves nothing.
const INTERVAL: u64 = 16 * MOVE_MIN;

/// Load of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ServerWork {
    /// Count of the server with the highest one.
    most: u64,
    total: u64,
}

impl<T: Transport> SharedJob<T> {
    /// Returns once every rank has called it; answers others meanwhile. Collective. Slices move if
    /// some server had more than one and a half times the mean load, and the difference is worth a
    /// move. Costs a reduction of 16 bytes along the log-ring. If slices move: another reduction of
    /// the counts of all slots, a flush of each old and new owner, and the segments that move.
    ///
    /// # Errors
    /// `Unavailable` names a rank that is lost or did not arrive before the deadline; errors of
    /// stores while slices move, after which every later sync fails, too. End the job and begin it
    /// again: all synced changes are there.
    pub fn barrier(&mut self) -> Result<()> {
        let work = self.segments.work()?;
        let mean = work.total / self.segments.map().servers().len() as u64;
        if work.most.saturating_sub(mean) >= MOVE_MIN && SliceMap::is_uneven(work.most, mean) {
            return self.even_out();
        }
        if mean >= INTERVAL {
            let _ = self.segments.exchange().server.take_load();
        }
        Ok(())
    }

    /// Moves slices according to the counts. Collective.
    fn even_out(&mut self) -> Result<()> {
        // Includes puts: their failures go to the calls that wait for them, or to the next sync.
        let next = self.segments.exchange().next_id();
        let answered = self.segments.exchange().await_replies(0, next);
        self.segments.agree(answered)?;
        let load = self.segments.load()?;
        let mut map = self.segments.map().clone();
        if map.balance(&load) {
            self.segments.set_map(map);
            // If it fails, some ranks would look for segments at the wrong owner.
            let migrated = self.migrate_segments();
            migrated.inspect_err(|error| self.segments.give_up(error))?;
        }
        Ok(())
    }
}

impl<T: Transport> SegmentService<T> {
    /// The load of servers since the counters were last reset; collective, and a barrier.
    fn work(&mut self) -> Result<ServerWork> {
        let own = self.exchange().server.work();
        let by = |index| [Reduction::Max, Reduction::Sum][index];
        let all = gather::reduce_numbers(self.collectives(), &[own, own], by)?;
        Ok(ServerWork { most: all[0], total: all[1] })
    }

    /// The load of each slot over all ranks; resets the counters. Collective.
    fn load(&mut self) -> Result<Vec<u64>> {
        let own = self.exchange().server.take_load();
        gather::reduce_numbers(self.collectives(), &own, |_| Reduction::Sum)
    }
}
