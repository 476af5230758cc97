// SPDX-License-Identifier: Apache-2.0
//! Rank and channel: the sender of a message, and the conversation that it belongs to.

use std::fmt;

/// A process of a job, numbered from 0 to one less than the job's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The ranks of a job of `size`.
    pub fn all(size: u32) -> impl ExactSizeIterator<Item = Self> + DoubleEndedIterator {
        (0..size).map(Self)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// A conversation between the ranks of a job.
///
/// Messages of one channel from one rank to another arrive in order, and never wait for another
/// channel. Programs use the channels below [`Channel::OWN`]; the others are Esker's, listed in
/// docs/format/message.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(pub u16);

impl Channel {
    /// The first channel that is reserved for Esker.
    pub const OWN: Self = Self(0x7f00);
    /// The first of three consecutive channels for the hops of a [`crate::Router`], unless its
    /// options name others.
    pub const ROUTER: Self = Self(0x7f00);
    /// Collectives.
    pub const COLLECTIVE: Self = Self(0x7f10);
    /// Barriers.
    pub(crate) const BARRIER: Self = Self(0x7f20);
    /// The highest channel: every MPI supports tags up to 32767.
    pub const MAX: Self = Self(0x7fff);
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel {}", self.0)
    }
}
