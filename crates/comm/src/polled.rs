// SPDX-License-Identifier: Apache-2.0
//! Polled transport: ranks over a message passing library that offers asynchronous sends and a
//! probe for messages, but no call that waits for one of several events. Waits poll with backoff.
//!
//! Sends are synchronous in MPI's sense: they complete when the receiver has taken them, so the
//! bound on unsent bytes also bounds what the library may buffer anywhere. Bytes are lent to the
//! library until their send is complete.
//! Concurrency: one thread makes all calls.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Error, Kind, Result};

use crate::barrier::BarrierState;
use crate::queues::held_bytes;
use crate::transport::{
    CHANNEL_BYTES_MAX, DEADLINE, ReceivedMessage, SendOutcome, Transport, TransportCounters,
    check_send,
};
use crate::{Channel, NodeMap, Rank};

/// Polls before a wait begins to sleep between them; a round trip within a node takes fewer.
const LOOKS_AWAKE: u32 = 200;

/// Longest sleep between polls.
const NAP_MAX: Duration = Duration::from_micros(200);

/// A library that moves messages between ranks.
pub trait MessagePassing {
    /// A send that may not be complete.
    type Request;

    /// Starts to send `bytes` to `to`.
    ///
    /// # Safety
    /// The bytes stay as they are until [`MessagePassing::test`] has said that the send is
    /// complete.
    ///
    /// # Errors
    /// Those of the library; nothing refers to the bytes then.
    unsafe fn start_send(
        &mut self,
        to: Rank,
        channel: Channel,
        bytes: &'static [u8],
    ) -> Result<Self::Request>;

    /// Returns the request if its send is not complete.
    ///
    /// # Errors
    /// Those of the library; the request is lost, and its bytes are never used again.
    fn test(&mut self, request: Self::Request) -> Result<Option<Self::Request>>;

    /// Receives a message of `channel` if one has arrived.
    ///
    /// # Errors
    /// Those of the library.
    fn receive(&mut self, channel: Channel) -> Result<Option<(Rank, Vec<u8>)>>;

    /// Gives up a request without waiting for it.
    fn forget(&mut self, request: Self::Request) {
        std::mem::forget(request);
    }
}

/// Bounds of polled transports.
#[derive(Clone, Debug)]
pub struct PolledOptions {
    /// Bound on bytes sent but not yet taken, per channel; [`CHANNEL_BYTES_MAX`] by default.
    pub channel_bytes_max: usize,
    /// The deadline of calls that wait; [`DEADLINE`] by default.
    pub deadline: Duration,
}

impl Default for PolledOptions {
    fn default() -> Self {
        Self { channel_bytes_max: CHANNEL_BYTES_MAX, deadline: DEADLINE }
    }
}

/// A rank that sends and receives by a message passing library.
pub struct PolledTransport<M: MessagePassing> {
    nodes: Arc<NodeMap>,
    rank: Rank,
    options: PolledOptions,
    sends: Vec<PendingSend<M::Request>>,
    /// By channel: bytes of messages that their receivers have not taken.
    unsent: Vec<(Channel, usize)>,
    was_refused: bool,
    counters: TransportCounters,
    barrier: BarrierState,
    messages: M,
}

impl<M: MessagePassing> std::fmt::Debug for PolledTransport<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolledTransport").field("rank", &self.rank).finish_non_exhaustive()
    }
}

/// A message that its receiver has not taken.
struct PendingSend<R> {
    request: R,
    bytes: LentBuffer,
    channel: Channel,
}

/// Bytes lent to the library.
struct LentBuffer {
    start: *mut u8,
    length: usize,
    capacity: usize,
}

// SAFETY: the buffer is the only owner of its bytes, which the library only reads.
unsafe impl Send for LentBuffer {}

impl LentBuffer {
    fn new(bytes: Vec<u8>) -> (Self, &'static [u8]) {
        let mut bytes = ManuallyDrop::new(bytes);
        let (start, length, capacity) = (bytes.as_mut_ptr(), bytes.len(), bytes.capacity());
        // SAFETY: start and length are those of a vector that is never dropped, moved or changed
        // until `reclaim`, which asks that nothing refers to it any more.
        (Self { start, length, capacity }, unsafe { std::slice::from_raw_parts(start, length) })
    }

    /// Frees the bytes.
    ///
    /// # Safety
    /// The slice that `new` returned must not be used any more.
    unsafe fn reclaim(self) {
        // SAFETY: the parts are those of the vector that `new` took, which nobody else frees.
        drop(unsafe { Vec::from_raw_parts(self.start, self.length, self.capacity) });
    }
}

/// Waits before poll number `looks` of a wait.
fn pause(looks: u32) {
    if looks < LOOKS_AWAKE {
        std::thread::yield_now();
    } else {
        std::thread::sleep((Duration::from_micros(10) * (looks / LOOKS_AWAKE)).min(NAP_MAX));
    }
}

impl<M: MessagePassing> PolledTransport<M> {
    /// A transport of `rank` over `messages`.
    pub fn new(rank: Rank, nodes: NodeMap, options: PolledOptions, messages: M) -> Self {
        Self {
            nodes: Arc::new(nodes),
            rank,
            options,
            sends: Vec::new(),
            unsent: Vec::new(),
            was_refused: false,
            counters: TransportCounters::default(),
            barrier: BarrierState::default(),
            messages,
        }
    }

    /// The library.
    pub fn messages(&mut self) -> &mut M {
        &mut self.messages
    }

    fn unsent(&mut self, channel: Channel) -> &mut usize {
        let index = self.unsent.iter().position(|(known, _)| *known == channel);
        let index = index.unwrap_or_else(|| {
            self.unsent.push((channel, 0));
            self.unsent.len() - 1
        });
        &mut self.unsent[index].1
    }

    /// Frees the bytes of completed sends; returns whether that made room for a refused send.
    fn reap_sends(&mut self) -> Result<bool> {
        let mut has_room = false;
        let mut index = 0;
        while index < self.sends.len() {
            let PendingSend { request, bytes, channel } = self.sends.swap_remove(index);
            match self.messages.test(request)? {
                None => {
                    let held = held_bytes(bytes.length);
                    // SAFETY: the send is complete, so the library no longer reads its bytes.
                    unsafe { bytes.reclaim() };
                    self.counters.buffered_bytes -= held as u64;
                    let half = self.options.channel_bytes_max / 2;
                    let unsent = self.unsent(channel);
                    *unsent -= held;
                    has_room |= *unsent <= half;
                }
                Some(request) => {
                    self.sends.push(PendingSend { request, bytes, channel });
                    let last = self.sends.len() - 1;
                    self.sends.swap(index, last);
                    index += 1;
                }
            }
        }
        Ok(has_room && std::mem::take(&mut self.was_refused))
    }

    /// Waits until the receivers have taken everything that was sent.
    ///
    /// # Errors
    /// `Unavailable` if they do not before the deadline.
    pub fn finish_sends(&mut self) -> Result<()> {
        let end_ns = self.monotonic_ns().saturating_add(self.options.deadline.as_nanos() as u64);
        let mut looks = 0;
        while !self.sends.is_empty() {
            self.reap_sends()?;
            if self.monotonic_ns() > end_ns {
                let what = format!("{}: others do not take its last messages", self.rank);
                return Err(Error::new(Kind::Unavailable, what));
            }
            looks += 1;
            pause(looks);
        }
        Ok(())
    }

    fn take(&mut self, channels: &[Channel]) -> Result<Option<ReceivedMessage>> {
        for channel in channels {
            let Some((from, bytes)) = self.messages.receive(*channel)? else { continue };
            self.counters.received_messages += 1;
            self.counters.received_bytes += bytes.len() as u64;
            return Ok(Some(ReceivedMessage { from, channel: *channel, bytes }));
        }
        Ok(None)
    }
}

impl<M: MessagePassing> Transport for PolledTransport<M> {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn nodes(&self) -> &Arc<NodeMap> {
        &self.nodes
    }

    fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<SendOutcome> {
        check_send(self.size(), to, channel, &bytes)?;
        let held = held_bytes(bytes.len());
        let bytes_max = self.options.channel_bytes_max;
        if *self.unsent(channel) > 0 && *self.unsent(channel) + held > bytes_max {
            self.reap_sends()?;
            if *self.unsent(channel) > 0 && *self.unsent(channel) + held > bytes_max {
                self.was_refused = true;
                return Ok(SendOutcome::Full(bytes));
            }
        }
        let sent_bytes = bytes.len() as u64;
        let (bytes, slice) = LentBuffer::new(bytes);
        // SAFETY: the buffer is freed only when `test` has said that the send is complete.
        let request = match unsafe { self.messages.start_send(to, channel, slice) } {
            Ok(request) => request,
            Err(error) => {
                // SAFETY: nothing refers to the bytes of a send that did not start.
                unsafe { bytes.reclaim() };
                return Err(error);
            }
        };
        self.counters.sent_messages += 1;
        self.counters.sent_bytes += sent_bytes;
        self.counters.buffered_bytes += held as u64;
        self.counters.buffered_bytes_max =
            self.counters.buffered_bytes_max.max(self.counters.buffered_bytes);
        *self.unsent(channel) += held;
        self.sends.push(PendingSend { request, bytes, channel });
        Ok(SendOutcome::Done)
    }

    fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<ReceivedMessage>> {
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = self.monotonic_ns().saturating_add(wait_ns);
        let mut looks = 0;
        loop {
            if let Some(message) = self.take(channels)? {
                return Ok(Some(message));
            }
            if self.reap_sends()? || self.monotonic_ns() >= end_ns {
                return Ok(None);
            }
            looks += 1;
            pause(looks);
        }
    }

    fn barrier(&mut self) -> Result<()> {
        let mut barrier = std::mem::take(&mut self.barrier);
        let done = barrier.wait(self, |_, _| false);
        self.barrier = barrier;
        done
    }

    fn counters(&self) -> TransportCounters {
        self.counters
    }

    fn deadline(&self) -> Duration {
        self.options.deadline
    }

    fn monotonic_ns(&self) -> u64 {
        SystemClock.monotonic_ns()
    }
}

impl<M: MessagePassing> Drop for PolledTransport<M> {
    /// Leaks the bytes of incomplete sends: the library may read them until the process ends.
    fn drop(&mut self) {
        for send in std::mem::take(&mut self.sends) {
            self.messages.forget(send.request);
        }
    }
}
