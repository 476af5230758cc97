// SPDX-License-Identifier: Apache-2.0
//! Flush: ends an epoch; every record pushed before is then delivered.
//!
//! The hops end one after another. Once no more records can reach a hop, a rank marks its last
//! batch of that hop, which may be empty, for every next hop. It does so on the first hop when it
//! calls flush; on the middle hop when the first has ended at all ranks of its node; on the last
//! hop when the middle has ended at all nodes that it represents. Messages of one rank on one
//! channel keep their order, so nothing follows a mark. Each batch counts the records before it, so
//! the receiver notices a missing record.
//!
//! A mark takes a message to each next hop: n per rank with direct routing, C + M/C + C with 3-hop.
//! A final barrier keeps records of the next epoch from overtaking the end of this one.

use esker_base::Result;

use super::route::{LAST, MIDDLE};
use super::{HopArrivals, Router};
use crate::Rank;
use crate::transport::{Deadline, LOOK, Transport};

impl<T: Transport> Router<T> {
    /// Ends the epoch. Every rank calls it; it returns once all records that any rank pushed before
    /// its own call are delivered to the sinks. Records pushed afterwards belong to the next epoch.
    ///
    /// # Errors
    /// As [`Router::push`]; `Unavailable` also names ranks whose marks did not come before the
    /// deadline.
    pub fn flush<S>(&mut self, sink: &mut S) -> Result<()>
    where
        S: FnMut(Rank, &[u8]) -> Result<()> + ?Sized,
    {
        self.check_open()?;
        let done = self.end_epoch(sink);
        self.record_failure(done)
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

    /// Names some of the ranks whose mark is missing.
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

    /// Starts `epoch`, in which nothing has arrived yet.
    pub(super) fn begin_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
        for hop in 0..=LAST {
            let slots = self.route.slots(hop);
            let unused = slots.clone().filter(|slot| self.route.is_unused(*slot)).count();
            self.awaited[hop as usize] = slots.len() - unused;
            for slot in slots {
                self.batches[slot].records_before = 0;
                self.arrivals[slot] =
                    HopArrivals { records: 0, is_over: self.route.is_unused(slot) };
            }
        }
    }
}
