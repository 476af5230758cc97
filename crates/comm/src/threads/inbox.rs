//! Inbox: messages to one rank, a bounded queue for each channel.
//!
//! A queue takes a message while its bytes stay within the bound, and one whatever its size when it
//! is empty. Who is refused is remembered, and told when half of the queue is free.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::transport::Message;
use crate::{Channel, Rank};

/// What a message counts for: with its place in the queue, so that empty ones are bounded too.
fn held_bytes(message: &Message) -> usize {
    message.bytes.len() + size_of::<Message>()
}

/// The messages to a rank.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Guards all that it holds; never held with another inbox's.
    state: Mutex<State>,
    /// A message came, or there was a nudge.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// One for each channel that ever had a message; few.
    queues: Vec<Queue>,
    is_closed: bool,
    /// Elsewhere something changed that the owner may be waiting for.
    nudged: bool,
    bytes: u64,
    bytes_max: u64,
}

#[derive(Debug)]
struct Queue {
    channel: Channel,
    messages: VecDeque<Message>,
    bytes: usize,
    /// Who was refused since the queue was last emptied by half.
    refused: Vec<Rank>,
}

/// What became of a message.
pub(super) enum Put {
    Done,
    Full(Message),
    Closed,
}

impl Inbox {
    /// Puts `message` at the end of its channel's queue.
    pub fn put(&self, message: Message, channel_bytes_max: usize) -> Put {
        let mut state = self.state.lock();
        if state.is_closed {
            return Put::Closed;
        }
        let bytes = held_bytes(&message);
        let queue = state.queue(message.channel);
        if !queue.messages.is_empty() && queue.bytes + bytes > channel_bytes_max {
            if !queue.refused.contains(&message.from) {
                queue.refused.push(message.from);
            }
            return Put::Full(message);
        }
        queue.bytes += bytes;
        queue.messages.push_back(message);
        state.bytes += bytes as u64;
        state.bytes_max = state.bytes_max.max(state.bytes);
        drop(state);
        self.changed.notify_one();
        Put::Done
    }

    /// Takes the first message of the first of `channels` that has one. Waits for up to `wait`, until
    /// a nudge, or not at all when `is_hopeless`. The ranks returned are to be nudged.
    pub fn take(
        &self,
        channels: &[Channel],
        wait: Duration,
        channel_bytes_max: usize,
        is_hopeless: impl Fn() -> bool,
    ) -> (Option<Message>, Vec<Rank>) {
        let mut state = self.state.lock();
        if let Some(taken) = state.take(channels, channel_bytes_max) {
            return taken;
        }
        // A nudge that came while the owner was busy counts: it is about what the owner looked at
        // before.
        if wait.is_zero() || std::mem::take(&mut state.nudged) || is_hopeless() {
            return (None, Vec::new());
        }
        let mut left = wait;
        let clock = esker_base::clock::SystemClock;
        let start_ns = esker_base::Clock::monotonic_ns(&clock);
        loop {
            let timed_out = self.changed.wait_for(&mut state, left).timed_out();
            if let Some(taken) = state.take(channels, channel_bytes_max) {
                return taken;
            }
            if timed_out || std::mem::take(&mut state.nudged) {
                return (None, Vec::new());
            }
            // A message of another channel came.
            let passed_ns = esker_base::Clock::monotonic_ns(&clock) - start_ns;
            left = wait.saturating_sub(Duration::from_nanos(passed_ns));
        }
    }

    /// Wakes the owner.
    pub fn nudge(&self) {
        self.state.lock().nudged = true;
        self.changed.notify_one();
    }

    /// Takes no more messages; returns who waits to send some.
    pub fn close(&self) -> Vec<Rank> {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.queues.drain(..).flat_map(|queue| queue.refused).collect()
    }

    /// Whether the owner has ended.
    pub fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Bytes held now, and the most that were.
    pub fn bytes(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.bytes, state.bytes_max)
    }
}

impl State {
    fn queue(&mut self, channel: Channel) -> &mut Queue {
        let place = self.queues.iter().position(|queue| queue.channel == channel);
        let place = place.unwrap_or_else(|| {
            let (messages, refused) = (VecDeque::new(), Vec::new());
            self.queues.push(Queue { channel, messages, bytes: 0, refused });
            self.queues.len() - 1
        });
        &mut self.queues[place]
    }

    fn take(
        &mut self,
        channels: &[Channel],
        channel_bytes_max: usize,
    ) -> Option<(Option<Message>, Vec<Rank>)> {
        for channel in channels {
            let queue = self.queues.iter_mut().find(|queue| queue.channel == *channel);
            let Some(queue) = queue else { continue };
            let Some(message) = queue.messages.pop_front() else { continue };
            let bytes = held_bytes(&message);
            queue.bytes -= bytes;
            let has_room = queue.bytes <= channel_bytes_max / 2;
            let refused = if has_room { std::mem::take(&mut queue.refused) } else { Vec::new() };
            self.bytes -= bytes as u64;
            return Some((Some(message), refused));
        }
        None
    }
}
