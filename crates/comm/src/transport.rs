//! Transport: how the ranks of a job reach one another.
//!
//! Contract, the same for threads, TCP and MPI and tested by [`crate::conformance`]:
//! 1. messages of one channel from one rank to another arrive once, whole and in order;
//! 2. a channel never waits for another: what one holds back does not keep others from arriving;
//! 3. memory is bounded: where a channel is full, a send is refused and gives the bytes back;
//! 4. nothing waits for ever, and a rank that dies is named to all others.
//!
//! Concurrency: one thread owns a transport and makes all its calls (MPI_THREAD_FUNNELED). Messages
//! move only during calls, of both sides: a rank that computes for long takes nothing meanwhile.

use std::sync::Arc;
use std::time::Duration;

use esker_base::{Error, Kind, Result};

use crate::{Channel, NodeMap, Rank};

/// The most bytes that one message may have. What is longer is sent in pieces.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Bytes of a channel that a rank holds before it refuses more, or leaves them with their sender.
/// Eight times a usual batch of records: enough that neither side waits for the other's turn.
pub const CHANNEL_BYTES_MAX: usize = 256 << 10;

const _: () = assert!(CHANNEL_BYTES_MAX <= MESSAGE_BYTES_MAX);

/// How long nothing may move before a call that waits for others gives up, unless told otherwise.
/// Long, since ranks may compute between their calls; the death of a rank is noticed at once.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// The longest that a loop which waits for others waits before it looks at its deadline.
pub const LOOK: Duration = Duration::from_millis(50);

/// What a rank received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who sent it.
    pub from: Rank,
    /// The conversation that it belongs to.
    pub channel: Channel,
    /// What was sent.
    pub bytes: Vec<u8>,
}

/// What became of a send.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// The transport has it.
    Done,
    /// The channel is full, or the receiver has ended and nobody said yet how. Here is what was to be
    /// sent; receive before trying again, since the other may be waiting for just that.
    Full(Vec<u8>),
}

/// What went through a transport since it was made. Messages to oneself count, and those of barriers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages handed to the transport.
    pub sent_messages: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Messages handed out by the transport.
    pub received_messages: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Bytes that the transport holds for this rank now, sent but not gone or come but not received.
    pub buffered_bytes: u64,
    /// The most that it ever held.
    pub buffered_bytes_max: u64,
}

/// How one rank of a job reaches the others.
pub trait Transport {
    /// Which rank this is.
    fn rank(&self) -> Rank;

    /// Which ranks share a node.
    fn nodes(&self) -> &Arc<NodeMap>;

    /// Hands `bytes` to the transport for `to`, which may be this rank itself. Never waits.
    ///
    /// # Errors
    /// `Unavailable` names a rank that is lost, or says that `to` has left; `TooLarge` over
    /// [`MESSAGE_BYTES_MAX`]; `Invalid` if there is no such rank or channel.
    fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<Sent>;

    /// The next message of any of `channels`; the first that has one is asked first. Waits for up to
    /// `wait`, or less: `None` comes early when a send that was refused may now succeed. Without
    /// channels it only waits, and moves what is on its way.
    ///
    /// # Errors
    /// `Unavailable` names a rank that is lost, once all that had arrived is received.
    fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<Message>>;

    /// Returns once every rank has called it. What was sent before may still be on its way.
    ///
    /// # Errors
    /// `Unavailable` names a rank that is lost or has left, or that did not come before the deadline.
    fn barrier(&mut self) -> Result<()>;

    /// What went through so far.
    fn counters(&self) -> Counters;

    /// How long nothing may move before a call that waits for others gives up.
    fn deadline(&self) -> Duration;

    /// Nanoseconds of a clock that never steps back.
    fn monotonic_ns(&self) -> u64;

    /// How many ranks there are.
    fn size(&self) -> u32 {
        self.nodes().size()
    }

    /// Hands `bytes` to the transport for `to`, and waits while the channel is full. Two ranks that
    /// fill each other's channels this way, neither receiving, give up at the deadline: where
    /// messages may be many use [`Transport::try_send`], and receive when refused.
    ///
    /// # Errors
    /// As [`Transport::try_send`], and `Unavailable` when `to` took nothing before the deadline.
    fn send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<()> {
        let mut bytes = match self.try_send(to, channel, bytes)? {
            Sent::Done => return Ok(()),
            Sent::Full(bytes) => bytes,
        };
        let deadline = Deadline::start(self);
        loop {
            // Nothing is received; a loss shows at the next try.
            let _ = self.receive(&[], LOOK)?;
            bytes = match self.try_send(to, channel, bytes)? {
                Sent::Done => return Ok(()),
                Sent::Full(bytes) => bytes,
            };
            deadline.check(self, || format!("{to} takes nothing of {channel}"))?;
        }
    }

    /// The next message of any of `channels`, for which it waits until the deadline; `what` says
    /// for what.
    ///
    /// # Errors
    /// As [`Transport::receive`], and `Unavailable` at the deadline.
    fn receive_soon(&mut self, channels: &[Channel], what: &str) -> Result<Message> {
        let deadline = Deadline::start(self);
        loop {
            if let Some(message) = self.receive(channels, LOOK)? {
                return Ok(message);
            }
            deadline.check(self, || format!("{what} did not come"))?;
        }
    }
}

/// When to give up waiting for others.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end_ns: u64,
}

impl Deadline {
    /// The transport's deadline from now on.
    pub fn start<T: Transport + ?Sized>(transport: &T) -> Self {
        let wait_ns = u64::try_from(transport.deadline().as_nanos()).unwrap_or(u64::MAX);
        Self { end_ns: transport.monotonic_ns().saturating_add(wait_ns) }
    }

    /// Nothing if it has not passed; `what` did not happen before, else.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn check<T: Transport + ?Sized>(
        &self,
        transport: &T,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        if transport.monotonic_ns() < self.end_ns {
            return Ok(());
        }
        let wait = transport.deadline();
        let what = format!("{}: gave up waiting after {wait:?}: {}", transport.rank(), what());
        Err(Error::new(Kind::Unavailable, what))
    }
}

/// `Invalid` or `TooLarge` if no transport could send this.
pub(crate) fn check_send(size: u32, to: Rank, channel: Channel, bytes: &[u8]) -> Result<()> {
    if to.0 >= size || channel > Channel::MAX {
        let what = format!("send to {to} on {channel}: the job has {size} ranks");
        return Err(Error::new(Kind::Invalid, what));
    }
    if bytes.len() > MESSAGE_BYTES_MAX {
        let what = format!("a message of {} bytes: send it in pieces", bytes.len());
        return Err(Error::new(Kind::TooLarge, what));
    }
    Ok(())
}

macro_rules! forward {
    ($what:ty) => {
        impl<T: Transport + ?Sized> Transport for $what {
            fn rank(&self) -> Rank {
                (**self).rank()
            }
            fn nodes(&self) -> &Arc<NodeMap> {
                (**self).nodes()
            }
            fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<Sent> {
                (**self).try_send(to, channel, bytes)
            }
            fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<Message>> {
                (**self).receive(channels, wait)
            }
            fn barrier(&mut self) -> Result<()> {
                (**self).barrier()
            }
            fn counters(&self) -> Counters {
                (**self).counters()
            }
            fn deadline(&self) -> Duration {
                (**self).deadline()
            }
            fn monotonic_ns(&self) -> u64 {
                (**self).monotonic_ns()
            }
        }
    };
}

forward!(&mut T);
forward!(Box<T>);
