//! Flush: the end of an epoch, after which every record pushed before is delivered.
//!
//! Each hop ends in turn. A rank marks its last batch of a hop for every next hop (an empty batch
//! will do) once nothing more can come to that hop: the first when it calls flush; the middle when
//! the first has ended at all ranks of its node; the last when the middle has ended at all nodes that
//! it represents. Messages of one rank on one channel keep their order, so behind a mark there is
//! nothing, and a batch says how many records came before it, so nothing is missing.
//! A mark takes a message to each next hop: n a rank with direct routing, C + M/C + C with 3-hop.
//! A barrier at the end keeps records of the next epoch from overtaking the end of this.

use esker_base::Result;

use super::route::{LAST, MIDDLE};
use super::{Arrival, Router};
use crate::Rank;
use crate::transport::{Deadline, LOOK, Transport};

impl<T: Transport> Router<T> {
    /// Ends the epoch: every rank calls it, and it returns once all that any rank pushed before its
    /// own call has been given to the sinks. What is pushed afterwards belongs to the next epoch.
    ///
    /// # Errors
    /// As [`Router::push`]; `Unavailable` also names ranks whose end did not come before the deadline.
    pub fn flush<S>(&mut self, sink: &mut S) -> Result<()>
    where
        S: FnMut(Rank, &[u8]) -> Result<()> + ?Sized,
    {
        self.check_open()?;
        let done = self.end_epoch(sink);
        self.note(done)
    }

    fn end_epoch<S>(&mut self, sink: &mut S) -> Result<()>
    where
        S: FnMut(Rank, &[u8]) -> Result<()> + ?Sized,
    {
        for hop in self.options.routing.hops() {
            for slot in self.route.slots(hop) {
                if !self.route.is_unused(slot) {
                    self.send_batch(slot, true, sink)?;
                }
            }
            self.await_marks(hop, sink)?;
        }
        self.transport.barrier()?;
        self.begin_epoch(self.epoch.wrapping_add(1));
        Ok(())
    }

    fn await_marks<S>(&mut self, hop: u8, sink: &mut S) -> Result<()>
    where
        S: FnMut(Rank, &[u8]) -> Result<()> + ?Sized,
    {
        let mut deadline = Deadline::start(&self.transport);
        while self.awaited[hop as usize] > 0 {
            if self.poll_from(0, LOOK, 1, sink)? > 0 {
                deadline = Deadline::start(&self.transport);
            }
            deadline.check(&self.transport, || self.describe_awaited(hop))?;
        }
        Ok(())
    }

    /// Names a few of those whose mark is missing.
    fn describe_awaited(&self, hop: u8) -> String {
        let missing = self.route.slots(hop).filter(|slot| !self.arrivals[*slot].is_over);
        let names: Vec<String> =
            missing.take(4).map(|slot| self.route.next(slot).1.to_string()).collect();
        let hop = if hop == LAST {
            "last"
        } else if hop == MIDDLE {
            "middle"
        } else {
            "first"
        };
        format!("the end of the {hop} hop of {} ranks, as {}", names.len(), names.join(", "))
    }

    /// Nothing has come in `epoch` yet.
    pub(super) fn begin_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
        for hop in 0..=LAST {
            let slots = self.route.slots(hop);
            let unused = slots.clone().filter(|slot| self.route.is_unused(*slot)).count();
            self.awaited[hop as usize] = slots.len() - unused;
            for slot in slots {
                self.batches[slot].records_before = 0;
                self.arrivals[slot] = Arrival { records: 0, is_over: self.route.is_unused(slot) };
            }
        }
    }
}
