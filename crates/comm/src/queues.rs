// SPDX-License-Identifier: Apache-2.0
//! Queues: messages that arrived and are not yet received, in one bounded queue per channel.
//!
//! A queue is full when its messages reach the bound; an empty queue has room for any message. Each
//! message also counts its queue entry, so empty messages are bounded too. A sender that finds a
//! queue full may register a waiter, which it gets back once half of the queue is free.

use std::collections::VecDeque;

use crate::Channel;
use crate::transport::ReceivedMessage;

/// The queues of a rank; `W` identifies a sender that waits for room.
#[derive(Debug)]
pub(crate) struct SendQueues<W> {
    /// One for each channel that ever had a message; few.
    queues: Vec<SendQueue<W>>,
    bytes: u64,
    bytes_max: u64,
}

#[derive(Debug)]
struct SendQueue<W> {
    channel: Channel,
    messages: VecDeque<ReceivedMessage>,
    /// Bytes of the messages, including those of which only a part has arrived.
    bytes: usize,
    waiting: Vec<W>,
}

impl<W> Default for SendQueues<W> {
    fn default() -> Self {
        Self { queues: Vec::new(), bytes: 0, bytes_max: 0 }
    }
}

/// Bytes that a message of `length` counts for.
pub(crate) fn held_bytes(length: usize) -> usize {
    length + size_of::<ReceivedMessage>()
}

impl<W: PartialEq> SendQueues<W> {
    /// Returns whether `channel` has room for a message of `length`; 0 asks for any room at all.
    pub fn has_room(&mut self, channel: Channel, length: usize, bytes_max: usize) -> bool {
        let queue = self.queue(channel);
        queue.bytes == 0 || queue.bytes + held_bytes(length) <= bytes_max
    }

    /// Appends `message` to its queue, even if that is full.
    pub fn put(&mut self, message: ReceivedMessage) {
        let bytes = held_bytes(message.bytes.len());
        self.reserve(message.channel, bytes);
        self.queue(message.channel).messages.push_back(message);
    }

    /// Counts `bytes` that are on their way into the queue.
    pub fn reserve(&mut self, channel: Channel, bytes: usize) {
        self.queue(channel).bytes += bytes;
        self.bytes += bytes as u64;
        self.bytes_max = self.bytes_max.max(self.bytes);
    }

    /// Takes back a reservation.
    pub fn release(&mut self, channel: Channel, bytes: usize) {
        self.queue(channel).bytes -= bytes;
        self.bytes -= bytes as u64;
    }

    /// Registers `who` as waiting for room.
    pub fn wait_for_room(&mut self, channel: Channel, who: W) {
        let waiting = &mut self.queue(channel).waiting;
        if !waiting.contains(&who) {
            waiting.push(who);
        }
    }

    /// Takes the first message of the first of `channels` that has one. Also returns the registered
    /// waiters if half of the queue is now free.
    pub fn take(
        &mut self,
        channels: &[Channel],
        bytes_max: usize,
    ) -> Option<(ReceivedMessage, Vec<W>)> {
        for channel in channels {
            let queue = self.queues.iter_mut().find(|queue| queue.channel == *channel);
            let Some(queue) = queue else { continue };
            let Some(message) = queue.messages.pop_front() else { continue };
            let bytes = held_bytes(message.bytes.len());
            queue.bytes -= bytes;
            self.bytes -= bytes as u64;
            let has_room = queue.bytes <= bytes_max / 2;
            let waiting = if has_room { std::mem::take(&mut queue.waiting) } else { Vec::new() };
            return Some((message, waiting));
        }
        None
    }

    /// Drops all messages; returns the registered waiters.
    pub fn clear(&mut self) -> Vec<W> {
        self.bytes = 0;
        self.queues.drain(..).flat_map(|queue| queue.waiting).collect()
    }

    /// Bytes held now, and their high-water mark.
    pub fn bytes(&self) -> (u64, u64) {
        (self.bytes, self.bytes_max)
    }

    fn queue(&mut self, channel: Channel) -> &mut SendQueue<W> {
        let place = self.queues.iter().position(|queue| queue.channel == channel);
        let place = place.unwrap_or_else(|| {
            let (messages, waiting) = (VecDeque::new(), Vec::new());
            self.queues.push(SendQueue { channel, messages, bytes: 0, waiting });
            self.queues.len() - 1
        });
        &mut self.queues[place]
    }
}
