//! Inbox: the queues of a rank behind a lock, and the waking of their owner.
//!
//! Who is refused is remembered, and told when half of the queue is free.

use std::time::Duration;

use esker_base::Clock;
use esker_base::clock::SystemClock;
use parking_lot::{Condvar, Mutex};

use crate::queues::Queues;
use crate::transport::Message;
use crate::{Channel, Rank};

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
    queues: Queues<Rank>,
    is_closed: bool,
    /// Elsewhere something changed that the owner may be waiting for.
    nudged: bool,
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
        if !state.queues.has_room(message.channel, message.bytes.len(), channel_bytes_max) {
            state.queues.wait_for_room(message.channel, message.from);
            return Put::Full(message);
        }
        state.queues.put(message);
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
    ) -> Option<(Message, Vec<Rank>)> {
        let mut state = self.state.lock();
        let taken = state.queues.take(channels, channel_bytes_max);
        // A nudge that came while the owner was busy counts: it is about what the owner looked at
        // before.
        if taken.is_some() || wait.is_zero() || std::mem::take(&mut state.nudged) || is_hopeless() {
            return taken;
        }
        let start_ns = SystemClock.monotonic_ns();
        let mut left = wait;
        loop {
            let timed_out = self.changed.wait_for(&mut state, left).timed_out();
            let taken = state.queues.take(channels, channel_bytes_max);
            if taken.is_some() || timed_out || std::mem::take(&mut state.nudged) {
                return taken;
            }
            // A message of another channel came.
            let passed_ns = SystemClock.monotonic_ns() - start_ns;
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
        state.queues.clear()
    }

    /// Whether the owner has ended.
    pub fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Bytes held now, and the most that were.
    pub fn bytes(&self) -> (u64, u64) {
        self.state.lock().queues.bytes()
    }
}
