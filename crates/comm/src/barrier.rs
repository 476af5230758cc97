// SPDX-License-Identifier: Apache-2.0
//! Barrier: arrivals travel up the spanning tree of the log-ring ([`ReductionTree`]) to rank 0, and
//! the release travels back to all ranks along the tree's mirror image.
//!
//! ```text
//! n = 5    up: 2 → 4, then 1, 3 and 4 → 0    down: 0 → 4, 2 and 1, then 1 → 3
//! ```
//! A barrier takes 2 (n - 1) messages; a rank sends at most ⌈log2 n⌉ and receives as many. Both
//! trees connect a rank only to ranks 1, 2, 4, … above it on the ring. Ranks keep these connections
//! anyway, to watch each other, so barriers need no others.
//!
//! Message: barrier number (u64), 1 for up or 2 for down (u8). A child may be one barrier ahead;
//! its early message is kept, at most one from each child.
//! Source: MetaKV §III-C, Equation 3. Deviation: the way back is the mirror image.

use esker_base::{Error, Kind, Result};

use crate::collective::{ReductionTree, Topology};
use crate::transport::{Deadline, LOOK, SendOutcome, Transport};
use crate::{Channel, Rank};

const MESSAGE_BYTES: usize = 9;
const UP: u8 = 1;
const DOWN: u8 = 2;

/// One rank's barriers on one channel, for transports, and for wrappers of a transport that have
/// other work to do while they wait.
#[derive(Debug)]
pub struct BarrierState {
    channel: Channel,
    number: u64,
    /// Messages that arrived before this rank waited for them.
    early: Vec<BarrierMessage>,
}

/// A received message: its sender, barrier and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BarrierMessage {
    from: Rank,
    number: u64,
    way: u8,
}

impl Default for BarrierState {
    fn default() -> Self {
        Self::new(Channel::BARRIER)
    }
}

impl BarrierState {
    /// Starts at barrier 0 on `channel`, which must be the same at all ranks and used for nothing
    /// else.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        Self { channel, number: 0, early: Vec::new() }
    }

    /// Returns once every rank has called it as often as this one. `is_gone` returns whether a rank
    /// has left the job.
    ///
    /// # Errors
    /// As [`Transport::barrier`].
    pub fn wait<T: Transport>(
        &mut self,
        transport: &mut T,
        is_gone: impl Fn(&mut T, Rank) -> bool,
    ) -> Result<()> {
        let number = self.number;
        self.number += 1;
        let links = BarrierLinks::of(transport.rank(), transport.size());
        self.await_links(transport, &links, (number, UP), &is_gone)?;
        if let Some(parent) = links.parent {
            self.send_to_links(transport, &links, parent, (number, UP))?;
            self.await_links(transport, &links, (number, DOWN), &is_gone)?;
        }
        links
            .told
            .iter()
            .try_for_each(|rank| self.send_to_links(transport, &links, *rank, (number, DOWN)))
    }

    /// Sends one message. While the channel is full it receives, since the other rank may be doing
    /// the same.
    fn send_to_links<T: Transport>(
        &mut self,
        transport: &mut T,
        links: &BarrierLinks,
        to: Rank,
        (number, way): (u64, u8),
    ) -> Result<()> {
        let deadline = Deadline::start(transport);
        let mut sent = transport.try_send(to, self.channel, encode(number, way))?;
        while let SendOutcome::Full(bytes) = sent {
            if let Some(message) = transport.receive(&[self.channel], LOOK)? {
                self.keep_message(links, message.from, &message.bytes, number)?;
            }
            sent = transport.try_send(to, self.channel, bytes)?;
            deadline.check(transport, || format!("{to} takes no barrier messages"))?;
        }
        Ok(())
    }

    /// Waits for all messages of one barrier and direction.
    fn await_links<T: Transport>(
        &mut self,
        transport: &mut T,
        links: &BarrierLinks,
        (number, way): (u64, u8),
        is_gone: impl Fn(&mut T, Rank) -> bool,
    ) -> Result<()> {
        let deadline = Deadline::start(transport);
        let mut awaited = links.senders(way).to_vec();
        loop {
            awaited.retain(|from| {
                let step = BarrierMessage { from: *from, number, way };
                let place = self.early.iter().position(|early| *early == step);
                place.map(|place| self.early.swap_remove(place)).is_none()
            });
            let Some(first) = awaited.first() else { return Ok(()) };
            // Checked before receiving: a rank that leaves has sent all its messages before.
            let gone = awaited.iter().find(|rank| is_gone(transport, **rank));
            match (transport.receive(&[self.channel], LOOK)?, gone) {
                (Some(message), _) => {
                    self.keep_message(links, message.from, &message.bytes, number)?;
                }
                (None, Some(gone)) => {
                    let what = format!("{gone} has left the job and will reach no barrier");
                    return Err(Error::new(Kind::Unavailable, what));
                }
                (None, None) => deadline.check(transport, || {
                    format!("{first}, or one that it waits for, at a barrier")
                })?,
            }
        }
    }

    /// Stores a message that belongs to barrier `current`, or early to the next.
    fn keep_message(
        &mut self,
        links: &BarrierLinks,
        from: Rank,
        bytes: &[u8],
        current: u64,
    ) -> Result<()> {
        let step = decode(bytes).map(|(number, way)| BarrierMessage { from, number, way });
        let step = step.filter(|step| {
            // The next barrier cannot complete before this rank has arrived.
            let last = if step.way == UP { current + 1 } else { current };
            (current..=last).contains(&step.number) && links.senders(step.way).contains(&from)
        });
        let Some(step) = step.filter(|step| !self.early.contains(step)) else {
            let what = format!("an unexpected barrier message of {from}");
            return Err(Error::new(Kind::Corrupt, what));
        };
        self.early.push(step);
        Ok(())
    }
}

/// The peers with which a rank exchanges messages in each direction; rank 0 has no parent and no
/// teller.
#[derive(Debug)]
struct BarrierLinks {
    children: Vec<Rank>,
    parent: Option<Rank>,
    /// The rank that releases this one.
    teller: Option<Rank>,
    told: Vec<Rank>,
}

impl BarrierLinks {
    fn of(me: Rank, size: u32) -> Self {
        let tree = ReductionTree::new(Topology::LogRing, size, 0);
        let mirrored = |rank: u32| (size - rank) % size;
        Self {
            children: tree.children(me.0).map(Rank).collect(),
            parent: tree.parent(me.0).map(Rank),
            teller: tree.parent(mirrored(me.0)).map(|rank| Rank(mirrored(rank))),
            told: tree.children(mirrored(me.0)).map(|rank| Rank(mirrored(rank))).collect(),
        }
    }

    /// The ranks from which this rank receives messages of direction `way`.
    fn senders(&self, way: u8) -> &[Rank] {
        if way == UP { &self.children } else { self.teller.as_slice() }
    }
}

fn encode(number: u64, way: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MESSAGE_BYTES);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.push(way);
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u64, u8)> {
    let (number, way) = bytes.split_first_chunk::<8>()?;
    let [way @ (UP | DOWN)] = way else { return None };
    Some((u64::from_le_bytes(*number), *way))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every number of ranks each message has one sender and one receiver, goes to a rank 1, 2,
    /// 4, … above, and is one of 2 (n - 1). A rank that releases another knows of all arrivals.
    #[test]
    fn messages_go_to_ranks_that_are_connected() {
        for size in 1..=300_u32 {
            let links: Vec<BarrierLinks> =
                Rank::all(size).map(|rank| BarrierLinks::of(rank, size)).collect();
            let mut messages = 0;
            for (me, own) in Rank::all(size).zip(&links) {
                assert_eq!((own.parent.is_none(), own.teller.is_none()), (me.0 == 0, me.0 == 0));
                for to in own.parent.iter().chain(&own.told) {
                    let distance = (to.0 + size - me.0) % size;
                    assert!(distance.is_power_of_two(), "{me} to {to} of {size}");
                    messages += 1;
                }
                assert!(own.told.iter().all(|to| links[to.index()].teller == Some(me)));
                assert!(own.children.iter().all(|from| links[from.index()].parent == Some(me)));
            }
            assert_eq!(messages, 2 * (size - 1));
            assert_eq!(links.iter().map(|own| own.children.len()).sum::<usize>() as u32, size - 1);
            assert_eq!(links.iter().map(|own| own.told.len()).sum::<usize>() as u32, size - 1);
        }
    }

    #[test]
    fn the_example() {
        let of_five = |rank| BarrierLinks::of(Rank(rank), 5);
        assert_eq!(of_five(0).children, [Rank(4), Rank(3), Rank(1)]);
        assert_eq!(of_five(2).parent, Some(Rank(4)));
        assert_eq!(of_five(0).told, [Rank(1), Rank(2), Rank(4)]);
        assert_eq!((of_five(1).told, of_five(3).teller), (vec![Rank(3)], Some(Rank(1))));
    }

    #[test]
    fn messages_come_back_and_others_are_refused() {
        for way in [UP, DOWN] {
            let bytes = encode(1 << 40, way);
            assert_eq!((bytes.len(), decode(&bytes)), (MESSAGE_BYTES, Some((1 << 40, way))));
            assert!((0..bytes.len()).all(|length| decode(&bytes[..length]).is_none()));
            assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
        }
        assert_eq!((decode(&encode(3, 0)), decode(&encode(3, 3))), (None, None));
    }
}
