// SPDX-License-Identifier: Apache-2.0
//! Collectives: all ranks reduce their values to one, and receive the result.
//!
//! There are two levels. On each node some ranks are delegates ([`Delegates`]); every other rank is
//! a client and sends its value to a delegate of its node, which reduces its clients' values. The
//! delegates reduce along the spanning tree of the log-ring ([`tree`]), so that each handles at
//! most ⌈log2 n⌉ messages in each direction besides those of its clients. Results take the reverse
//! path.
//!
//! Message: number of the collective (u64), 1 towards the root or 2 back (u8), value.
//! A rank may be ahead of another by up to [`WINDOW`] collectives; early messages are kept, and a
//! barrier every [`WINDOW`] collectives enforces the bound.
//! Source: MetaKV §III-C.

pub mod agreement;
pub mod model;
pub mod tree;

use esker_base::{Error, Kind, Result};

pub use self::tree::{ReductionTree, Topology};
use crate::transport::{Deadline, LOOK, ReceivedMessage, SendOutcome, Transport};
use crate::{Channel, NodeMap, Rank};

/// Collectives between two barriers. Bounds the early messages that a rank keeps; the barriers cost
/// a small fraction of the collectives.
pub const WINDOW: u64 = 64;

/// Largest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

const HEADER_BYTES: usize = 9;
const TO_ROOT: u8 = 1;
const FROM_ROOT: u8 = 2;

/// The choice of the ranks that are members of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delegates {
    /// All ranks.
    All,
    /// This many ranks of each node, or all of a smaller one; the node's other ranks are assigned
    /// to them in turn as clients.
    PerNode(u32),
}

/// Options of collectives.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveOptions {
    /// The ranks that are members of the tree.
    pub delegates: Delegates,
    /// The tree along which members reach the root.
    pub topology: Topology,
    /// A channel used by these collectives alone; [`Channel::COLLECTIVE`] by default.
    pub channel: Channel,
}

impl Default for CollectiveOptions {
    fn default() -> Self {
        let channel = Channel::COLLECTIVE;
        Self { delegates: Delegates::PerNode(1), topology: Topology::LogRing, channel }
    }
}

/// Reductions and broadcasts among all ranks. Every rank creates one with the same options, and
/// calls the same collectives with the same roots in the same order.
#[derive(Debug)]
pub struct Collectives<T> {
    transport: T,
    options: CollectiveOptions,
    /// The members of the tree, ascending.
    members: Vec<Rank>,
    /// By rank: the index of its delegate among the members.
    delegate_of: Vec<u32>,
    /// The clients of this rank, excluding itself.
    clients: Vec<Rank>,
    number: u64,
    early: Vec<ReceivedMessage>,
    has_failed: bool,
}

impl<T: Transport> Collectives<T> {
    /// Creates collectives over `transport`. Sends nothing.
    pub fn new(transport: T, options: CollectiveOptions) -> Self {
        let (members, delegate_of) = appoint(transport.nodes(), options.delegates);
        let me = transport.rank();
        let is_mine =
            |rank: &Rank| *rank != me && members[delegate_of[rank.index()] as usize] == me;
        let clients = Rank::all(transport.size()).filter(is_mine).collect();
        let (number, early, has_failed) = (0, Vec::new(), false);
        Self { transport, options, members, delegate_of, clients, number, early, has_failed }
    }

    /// The transport, for use of other channels.
    pub fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Reduces the values of all ranks to one at `root`; all other ranks get `None`. `combine`
    /// merges a value into another; the order is unspecified.
    ///
    /// # Errors
    /// `Unavailable` names a rank that is lost or did not arrive before the deadline; `TooLarge`
    /// over [`VALUE_BYTES_MAX`]; `Invalid` if there is no such root; `Corrupt` for a message that
    /// is not a collective's. After any error but `TooLarge` and `Invalid` all calls fail with
    /// `Closed`.
    pub fn reduce(
        &mut self,
        root: Rank,
        value: Vec<u8>,
        combine: &mut dyn FnMut(&mut Vec<u8>, &[u8]),
    ) -> Result<Option<Vec<u8>>> {
        self.check(root, value.len())?;
        let done = self.reduce_to(root, value, combine).and_then(|done| self.end().map(|()| done));
        self.has_failed |= done.is_err();
        done
    }

    /// Sends the value of `root` to all ranks; the values of the others are ignored.
    ///
    /// # Errors
    /// As [`Collectives::reduce`].
    pub fn broadcast(&mut self, root: Rank, value: Vec<u8>) -> Result<Vec<u8>> {
        self.check(root, value.len())?;
        let value = (self.transport.rank() == root).then_some(value);
        let done = self.broadcast_from(root, value).and_then(|done| self.end().map(|()| done));
        self.has_failed |= done.is_err();
        done
    }

    /// Reduces the values of all ranks by way of `root`, and returns the result at every rank.
    ///
    /// # Errors
    /// As [`Collectives::reduce`].
    pub fn all_reduce(
        &mut self,
        root: Rank,
        value: Vec<u8>,
        combine: &mut dyn FnMut(&mut Vec<u8>, &[u8]),
    ) -> Result<Vec<u8>> {
        let reduced = self.reduce(root, value, combine)?;
        self.broadcast(root, reduced.unwrap_or_default())
    }

    /// As [`Collectives::all_reduce`], for numbers.
    ///
    /// # Errors
    /// As [`Collectives::reduce`].
    pub fn all_reduce_u64(&mut self, root: Rank, value: u64, by: Reduction) -> Result<u64> {
        let mut is_number = true;
        let mut combine =
            |into: &mut Vec<u8>, other: &[u8]| match (decode_u64(into), decode_u64(other)) {
                (Some(a), Some(b)) => *into = by.combine(a, b).to_le_bytes().to_vec(),
                _ => is_number = false,
            };
        let reduced = self.all_reduce(root, value.to_le_bytes().to_vec(), &mut combine)?;
        decode_u64(&reduced).filter(|_| is_number).ok_or_else(|| {
            Error::new(Kind::Corrupt, "a rank reduced another kind of value than a number")
        })
    }

    fn check(&self, root: Rank, bytes: usize) -> Result<()> {
        if self.has_failed {
            return Err(Error::new(Kind::Closed, "an earlier collective failed"));
        }
        if root.0 >= self.transport.size() {
            return Err(Error::new(Kind::Invalid, format!("{root} is to be the root")));
        }
        if bytes > VALUE_BYTES_MAX {
            return Err(Error::new(Kind::TooLarge, format!("a value of {bytes} bytes")));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.number += 1;
        if self.number.is_multiple_of(WINDOW) { self.transport.barrier() } else { Ok(()) }
    }

    /// The tree to the delegate of `root`, and this rank's index in it if it is a member.
    fn tree(&self, root: Rank) -> (ReductionTree, Option<u32>) {
        let size = u32::try_from(self.members.len()).expect("no more members than ranks");
        let tree = ReductionTree::new(self.options.topology, size, self.delegate_of[root.index()]);
        let me = self.transport.rank();
        let place = self.delegate_of[me.index()];
        (tree, (self.members[place as usize] == me).then_some(place))
    }

    fn my_delegate(&self) -> Rank {
        self.members[self.delegate_of[self.transport.rank().index()] as usize]
    }

    fn reduce_to(
        &mut self,
        root: Rank,
        mut value: Vec<u8>,
        combine: &mut dyn FnMut(&mut Vec<u8>, &[u8]),
    ) -> Result<Option<Vec<u8>>> {
        let me = self.transport.rank();
        let (tree, place) = self.tree(root);
        let Some(place) = place else {
            self.send(self.my_delegate(), TO_ROOT, &value)?;
            // A root that is not a delegate gets the result from its own delegate.
            return if me == root {
                self.recv(FROM_ROOT, self.my_delegate()).map(Some)
            } else {
                Ok(None)
            };
        };
        let mut senders = self.clients.clone();
        senders.extend(tree.children(place).map(|child| self.members[child as usize]));
        for _ in 0..senders.len() {
            let other = self.recv_any(TO_ROOT, &mut senders)?;
            combine(&mut value, &other);
        }
        match tree.parent(place) {
            Some(parent) => self.send(self.members[parent as usize], TO_ROOT, &value)?,
            None if root == me => return Ok(Some(value)),
            None => self.send(root, FROM_ROOT, &value)?,
        }
        Ok(None)
    }

    fn broadcast_from(&mut self, root: Rank, value: Option<Vec<u8>>) -> Result<Vec<u8>> {
        let me = self.transport.rank();
        let (tree, place) = self.tree(root);
        let Some(place) = place else {
            let delegate = self.my_delegate();
            if let Some(value) = value {
                self.send(delegate, TO_ROOT, &value)?;
                return Ok(value);
            }
            return self.recv(FROM_ROOT, delegate);
        };
        let value = match (value, tree.parent(place)) {
            (Some(value), _) => value,
            (None, Some(parent)) => self.recv(FROM_ROOT, self.members[parent as usize])?,
            // The root is a client of this delegate.
            (None, None) => self.recv(TO_ROOT, root)?,
        };
        let mut receivers: Vec<Rank> =
            tree.children(place).map(|child| self.members[child as usize]).collect();
        receivers.extend(self.clients.iter().filter(|client| **client != root && **client != me));
        for receiver in receivers {
            self.send(receiver, FROM_ROOT, &value)?;
        }
        Ok(value)
    }

    fn recv(&mut self, way: u8, from: Rank) -> Result<Vec<u8>> {
        self.recv_any(way, &mut vec![from])
    }

    /// Returns the value of one of `senders`, and removes it from the list.
    fn recv_any(&mut self, way: u8, senders: &mut Vec<Rank>) -> Result<Vec<u8>> {
        let awaited = (self.number, way);
        let deadline = Deadline::start(&self.transport);
        loop {
            let fits = |message: &ReceivedMessage| {
                head(message).ok() == Some(awaited) && senders.contains(&message.from)
            };
            if let Some(place) = self.early.iter().position(fits) {
                let mut message = self.early.swap_remove(place);
                senders.retain(|sender| *sender != message.from);
                return Ok(message.bytes.split_off(HEADER_BYTES));
            }
            match self.transport.receive(&[self.options.channel], LOOK)? {
                Some(message) => self.keep(message)?,
                None => deadline.check(&self.transport, || {
                    let first = senders.first().expect("somebody is awaited");
                    format!(
                        "{} of {} ranks, as {first}, in a collective",
                        senders.len(),
                        self.transport.size()
                    )
                })?,
            }
        }
    }

    /// Keeps a message of this collective or a later one.
    fn keep(&mut self, message: ReceivedMessage) -> Result<()> {
        let (number, way) = head(&message)?;
        let is_known = |known: &ReceivedMessage| {
            known.from == message.from && head(known).ok() == Some((number, way))
        };
        if number < self.number
            || number >= self.number + WINDOW
            || message.bytes.len() > HEADER_BYTES + VALUE_BYTES_MAX
            || self.early.iter().any(is_known)
        {
            let what = format!("collective {number} of {}, here is {}", message.from, self.number);
            return Err(Error::new(Kind::Corrupt, what));
        }
        self.early.push(message);
        Ok(())
    }

    fn send(&mut self, to: Rank, way: u8, value: &[u8]) -> Result<()> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + value.len());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.push(way);
        bytes.extend_from_slice(value);
        let deadline = Deadline::start(&self.transport);
        let mut sent = self.transport.try_send(to, self.options.channel, bytes)?;
        while let SendOutcome::Full(bytes) = sent {
            // The receiver may be waiting to send to this rank.
            if let Some(message) = self.transport.receive(&[self.options.channel], LOOK)? {
                self.keep(message)?;
            }
            sent = self.transport.try_send(to, self.options.channel, bytes)?;
            deadline.check(&self.transport, || format!("{to} takes no values"))?;
        }
        Ok(())
    }
}

/// The operation of a numeric reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The greatest.
    Max,
    /// The least.
    Min,
    /// The sum, modulo 2^64.
    Sum,
    /// Bitwise or.
    Or,
}

impl Reduction {
    /// Combines two numbers.
    #[must_use]
    pub fn combine(self, a: u64, b: u64) -> u64 {
        match self {
            Self::Max => a.max(b),
            Self::Min => a.min(b),
            Self::Sum => a.wrapping_add(b),
            Self::Or => a | b,
        }
    }
}

/// The members of the tree, and for each rank the index of its delegate among them.
fn appoint(nodes: &NodeMap, delegates: Delegates) -> (Vec<Rank>, Vec<u32>) {
    let per_node = match delegates {
        Delegates::All => u32::MAX,
        Delegates::PerNode(count) => count.max(1),
    };
    let members: Vec<Rank> = nodes.first_of_each(per_node).collect();
    let mut places = vec![0; nodes.size() as usize];
    for (place, member) in (0..).zip(&members) {
        places[member.index()] = place;
    }
    let delegate_of = Rank::all(nodes.size()).map(|rank| {
        let mates = nodes.members(nodes.node(rank));
        let count = mates.len().min(per_node as usize);
        places[mates[nodes.local_index(rank) as usize % count].index()]
    });
    let delegate_of = delegate_of.collect();
    (members, delegate_of)
}

/// The number and direction of a message.
fn head(message: &ReceivedMessage) -> Result<(u64, u8)> {
    let head = message.bytes.split_first_chunk::<8>();
    match head {
        Some((number, [way @ (TO_ROOT | FROM_ROOT), ..])) => {
            Ok((u64::from_le_bytes(*number), *way))
        }
        _ => {
            let what = format!("a message of {} is not of a collective", message.from);
            Err(Error::new(Kind::Corrupt, what))
        }
    }
}

fn decode_u64(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}
