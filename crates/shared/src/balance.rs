//! Balance: slices move by themselves when some servers have much more to do than others.
//!
//! A server counts, by slot, the segments that it is asked to put or to find. The barrier of a job is
//! a reduction, in which all ranks learn the most that one server counted, and the sum. Where that is
//! even nothing more happens. Where it is not, ranks wait for the answers to all that they asked, add
//! up what was counted of each slot, so that all find the same new map, and settle (`settle.rs`).
//! Counts begin anew with that, and when servers counted [`INTERVAL`] each, lest what was long ago
//! hides what is uneven now.
//! Invariant: the map changes between two reductions only, when nothing that was asked is unanswered.

use esker_base::Result;
use esker_comm::Transport;
use esker_comm::collective::Reduction;

use crate::gather;
use crate::job::SharedJob;
use crate::service::Segments;
use crate::slices::SliceMap;

/// Segments that a server has to be asked for beyond the mean before slices move: the flushes and
/// commits of a move take about as long as so many look-ups.
const MOVE_MIN: u64 = 1 << 16;

/// Segments a server that are looked at together. Many times as many as make slices move, so that
/// load which is uneven now and then, and even over it, moves none.
const INTERVAL: u64 = 16 * MOVE_MIN;

/// What servers counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    /// Of the one that counted most.
    most: u64,
    total: u64,
}

impl<T: Transport> SharedJob<T> {
    /// Returns once every rank has called it; answers others meanwhile. Collective. Slices move if
    /// some server was asked for more than one and a half times the mean, and that is worth a move.
    /// Cost: a reduction of 16 bytes along the log-ring; where slices move, another of the counts of
    /// all slots, a flush of those who give and take, and the segments that move.
    ///
    /// # Errors
    /// `Unavailable` names a rank that is lost, or says who did not come before the deadline; what
    /// stores report where slices move: then every later sync fails, too. End the job, and begin it
    /// again: what was synced is there.
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

    /// Moves slices by what was counted of them. All ranks do it together.
    fn even_out(&mut self) -> Result<()> {
        // Of puts, too, whose failures are told to who waits for them, or to the next sync.
        let next = self.segments.exchange().next_id();
        let answered = self.segments.exchange().settle(0, next);
        self.segments.agree(answered)?;
        let load = self.segments.load()?;
        let mut map = self.segments.map().clone();
        if map.balance(&load) {
            self.segments.set_map(map);
            // Some would look for segments where they are not.
            let settled = self.settle();
            settled.inspect_err(|error| self.segments.give_up(error))?;
        }
        Ok(())
    }
}

impl<T: Transport> Segments<T> {
    /// What servers counted since the counts began; collective, and a barrier.
    fn work(&mut self) -> Result<Work> {
        let own = self.exchange().server.work();
        let by = |index| [Reduction::Max, Reduction::Sum][index];
        let all = gather::reduce_numbers(self.collectives(), &[own, own], by)?;
        Ok(Work { most: all[0], total: all[1] })
    }

    /// What was counted of each slot, over all ranks; counts begin anew. Collective.
    fn load(&mut self) -> Result<Vec<u64>> {
        let own = self.exchange().server.take_load();
        gather::reduce_numbers(self.collectives(), &own, |_| Reduction::Sum)
    }
}
