// SPDX-License-Identifier: Apache-2.0
//! Transport: messages between the ranks of a job.
//!
//! Contract, the same for threads, TCP and MPI and tested by [`crate::conformance`]:
//! 1. messages of one channel from one rank to another arrive once, whole and in order;
//! 2. channels are independent: a full channel does not delay messages of another;
//! 3. memory is bounded: a send on a full channel is refused and returns the bytes to the caller;
//! 4. no call waits forever, and when a rank dies, all others get an error that names it.
//!
//! Concurrency: one thread owns a transport and makes all its calls (MPI_THREAD_FUNNELED). Messages
//! move only during calls of both sides: a rank that computes for long receives nothing meanwhile.

use std::sync::Arc;
use std::time::Duration;

use esker_base::{Error, Kind, Result};

use crate::{Channel, NodeMap, Rank};

/// Largest message, in bytes. Callers split longer data.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Bytes that a rank holds for a channel before it refuses more or leaves them with the sender.
/// Eight times a usual batch of records: enough that neither side waits for the other's turn.
pub const CHANNEL_BYTES_MAX: usize = 256 << 10;

const _: () = assert!(CHANNEL_BYTES_MAX <= MESSAGE_BYTES_MAX);

/// Default deadline: a call that waits for other ranks fails once nothing has moved for this long.
/// Long, since ranks may compute between calls; the death of a rank is noticed at once.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// Longest single wait of a loop that waits for other ranks, between two checks of its deadline.
pub const LOOK: Duration = Duration::from_millis(50);

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The sender.
    pub from: Rank,
    /// The conversation that it belongs to.
    pub channel: Channel,
    /// The payload.
    pub bytes: Vec<u8>,
}

/// Outcome of a send.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The transport has taken the message.
    Done,
    /// The channel is full, or the receiver has ended and this rank does not know yet how. Returns
    /// the unsent bytes; receive before retrying, since the other rank may be waiting for that.
    Full(Vec<u8>),
}

/// Totals of a transport since its creation, including messages to oneself and those of barriers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportCounters {
    /// Messages handed to the transport.
    pub sent_messages: u64,
    /// Bytes of those messages.
    pub sent_bytes: u64,
    /// Messages handed out by the transport.
    pub received_messages: u64,
    /// Bytes of those messages.
    pub received_bytes: u64,
    /// Bytes that the transport holds for this rank now: sent but not yet gone, or arrived but not
    /// yet received.
    pub buffered_bytes: u64,
    /// High-water mark of `buffered_bytes`.
    pub buffered_bytes_max: u64,
}

/// One rank's connection to the other ranks of its job.
///
/// ```
/// use esker_comm::{Channel, Rank, Transport, threads};
///
/// /// Sends `text` to rank 0, which returns all texts in the order of their ranks.
/// fn gather(transport: &mut impl Transport, text: &str) -> esker_base::Result<Vec<String>> {
///     const TEXTS: Channel = Channel(7);
///     transport.send(Rank(0), TEXTS, text.into())?;
///     let mut texts = vec![String::new(); transport.size() as usize];
///     for _ in 0..if transport.rank() == Rank(0) { transport.size() } else { 0 } {
///         let message = transport.receive_soon(&[TEXTS], "a text")?;
///         texts[message.from.0 as usize] = String::from_utf8_lossy(&message.bytes).into();
///     }
///     Ok(texts)
/// }
///
/// let texts = threads::run(3, 1, |transport| {
///     let text = format!("rank {}", transport.rank().0);
///     gather(transport, &text)
/// })?;
/// assert_eq!(texts[0], ["rank 0", "rank 1", "rank 2"]);
/// # Ok::<(), esker_base::Error>(())
/// ```
pub trait Transport {
    /// This rank.
    fn rank(&self) -> Rank;

    /// The map from ranks to nodes.
    fn nodes(&self) -> &Arc<NodeMap>;

    /// Hands `bytes` to the transport for `to`, which may be this rank itself. Never waits.
    ///
    /// # Errors
    /// `Unavailable` names a rank that is lost, or says that `to` has left; `TooLarge` over
    /// [`MESSAGE_BYTES_MAX`]; `Invalid` if there is no such rank or channel.
    fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<SendOutcome>;

    /// Receives the next message of any of `channels`; earlier channels in the list take priority.
    /// Waits for up to `wait`. Returns `None` early when a send that was refused may now succeed.
    /// With no channels it only waits and moves messages that are on their way.
    ///
    /// # Errors
    /// `Unavailable` names a lost rank, once all messages that had arrived are received.
    fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<ReceivedMessage>>;

    /// Returns once every rank has called it. Messages sent before may still be on their way.
    ///
    /// # Errors
    /// `Unavailable` names a rank that is lost, has left, or did not arrive before the deadline.
    fn barrier(&mut self) -> Result<()>;

    /// Totals so far.
    fn counters(&self) -> TransportCounters;

    /// Time without any movement after which a call that waits for other ranks fails.
    fn deadline(&self) -> Duration;

    /// Nanoseconds of a monotonic clock.
    fn monotonic_ns(&self) -> u64;

    /// Number of ranks.
    fn size(&self) -> u32 {
        self.nodes().size()
    }

    /// Hands `bytes` to the transport for `to`, and waits while the channel is full. Two ranks that
    /// fill each other's channels this way, with neither receiving, both fail at the deadline:
    /// where messages may be many, use [`Transport::try_send`] and receive when refused.
    ///
    /// # Errors
    /// As [`Transport::try_send`], and `Unavailable` if `to` took nothing before the deadline.
    fn send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<()> {
        let mut bytes = match self.try_send(to, channel, bytes)? {
            SendOutcome::Done => return Ok(()),
            SendOutcome::Full(bytes) => bytes,
        };
        let deadline = Deadline::start(self);
        loop {
            // No channel is given, so nothing is received; a loss shows at the next try.
            let _ = self.receive(&[], LOOK)?;
            bytes = match self.try_send(to, channel, bytes)? {
                SendOutcome::Done => return Ok(()),
                SendOutcome::Full(bytes) => bytes,
            };
            deadline.check(self, || format!("{to} takes nothing of {channel}"))?;
        }
    }

    /// Receives the next message of any of `channels`, waiting until the deadline; `what` names it
    /// in the error.
    ///
    /// # Errors
    /// As [`Transport::receive`], and `Unavailable` at the deadline.
    fn receive_soon(&mut self, channels: &[Channel], what: &str) -> Result<ReceivedMessage> {
        let deadline = Deadline::start(self);
        loop {
            if let Some(message) = self.receive(channels, LOOK)? {
                return Ok(message);
            }
            deadline.check(self, || format!("{what} did not come"))?;
        }
    }
}

/// The time at which a call stops waiting for other ranks.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end_ns: u64,
}

impl Deadline {
    /// Starts the transport's deadline now.
    pub fn start<T: Transport + ?Sized>(transport: &T) -> Self {
        let wait_ns = u64::try_from(transport.deadline().as_nanos()).unwrap_or(u64::MAX);
        Self { end_ns: transport.monotonic_ns().saturating_add(wait_ns) }
    }

    /// Succeeds until the deadline has passed; then fails with an error that `what` describes.
    ///
    /// # Errors
    /// `Unavailable` after the deadline.
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

/// Returns `Invalid` or `TooLarge` if no transport could send this message.
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
            fn try_send(
                &mut self,
                to: Rank,
                channel: Channel,
                bytes: Vec<u8>,
            ) -> Result<SendOutcome> {
                (**self).try_send(to, channel, bytes)
            }
            fn receive(
                &mut self,
                channels: &[Channel],
                wait: Duration,
            ) -> Result<Option<ReceivedMessage>> {
                (**self).receive(channels, wait)
            }
            fn barrier(&mut self) -> Result<()> {
                (**self).barrier()
            }
            fn counters(&self) -> TransportCounters {
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
