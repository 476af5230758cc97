// SPDX-License-Identifier: Apache-2.0
//! Inbox: the queues of a rank behind a lock, and a condition variable that wakes their owner.
//!
//! A refused sender is remembered, and nudged when half of the queue is free.

use std::time::Duration;

use esker_base::Clock;
use esker_base::clock::SystemClock;
use parking_lot::{Condvar, Mutex};

use crate::queues::SendQueues;
use crate::transport::ReceivedMessage;
use crate::{Channel, Rank};

/// The incoming messages of one rank.
#[derive(Debug, Default)]
pub(super) struct RankInbox {
    /// Guards all of the inbox; two inboxes are never locked at once.
    state: Mutex<InboxState>,
    /// Signalled for every message and every nudge.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct InboxState {
    queues: SendQueues<Rank>,
    is_closed: bool,
    /// Set when something changed elsewhere that the owner may be waiting for.
    nudged: bool,
}

/// Outcome of a put.
pub(super) enum Delivery {
    Done,
    Full(ReceivedMessage),
    Closed,
}

impl RankInbox {
    /// Appends `message` to its channel's queue.
    pub fn put(&self, message: ReceivedMessage, channel_bytes_max: usize) -> Delivery {
        let mut state = self.state.lock();
        if state.is_closed {
            return Delivery::Closed;
        }
        if !state.queues.has_room(message.channel, message.bytes.len(), channel_bytes_max) {
            state.queues.wait_for_room(message.channel, message.from);
            return Delivery::Full(message);
        }
        state.queues.put(message);
        drop(state);
        self.changed.notify_one();
        Delivery::Done
    }

    /// Takes the first message of the first of `channels` that has one. Waits for up to `wait` or
    /// until a nudge; does not wait if `is_hopeless`. The caller must nudge the returned ranks.
    pub fn take(
        &self,
        channels: &[Channel],
        wait: Duration,
        channel_bytes_max: usize,
        is_hopeless: impl Fn() -> bool,
    ) -> Option<(ReceivedMessage, Vec<Rank>)> {
        let mut state = self.state.lock();
        let taken = state.queues.take(channels, channel_bytes_max);
        // A nudge that came while the owner was busy counts: it concerns state that the owner has
        // already checked.
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
            // The message was for another channel.
            let passed_ns = SystemClock.monotonic_ns() - start_ns;
            left = wait.saturating_sub(Duration::from_nanos(passed_ns));
        }
    }

    /// Wakes the owner.
    pub fn nudge(&self) {
        self.state.lock().nudged = true;
        self.changed.notify_one();
    }

    /// Refuses further messages; returns the ranks that wait to send.
    pub fn close(&self) -> Vec<Rank> {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.queues.clear()
    }

    /// Returns whether the owner has ended.
    pub fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Bytes held now, and their high-water mark.
    pub fn bytes(&self) -> (u64, u64) {
        self.state.lock().queues.bytes()
    }
}
