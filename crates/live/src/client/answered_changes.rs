// SPDX-License-Identifier: Apache-2.0
//! Answered changes: counts the changes of a client that may be lost with the server that answered
//! them, so that a sync at a later server does not succeed for them.
//!
//! A server may answer a change before it survives power loss. A takeover loses such changes unless
//! the server ended in order; the greeting of the next one says so, and its epoch that no other came
//! between.

use esker_base::{Error, Kind, Result};

use super::pending::PendingRequest;
use crate::wire::{ServerWelcome, Verb};

/// A moment in the history of one client's changes, from which another client of the same server
/// syncs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPoint {
    /// The server that answered last.
    pub server: u64,
    /// Changes without durability that were answered.
    pub answered: u64,
    /// Takeovers that may have lost answered changes.
    pub losses: u64,
}

/// The changes of one client that were answered, and what may have become of them.
#[derive(Debug, Default)]
pub(super) struct AnsweredChanges {
    /// The greeting of the current server.
    welcome: Option<ServerWelcome>,
    /// Changes that were answered without durability, and how many of them survive power loss.
    answered: u64,
    synced: u64,
    /// Takeovers that may have lost answered changes, and how many of them a sync has reported.
    losses: u64,
    reported_losses: u64,
}

impl AnsweredChanges {
    /// Counts the answer to `request`, which waited until everything before survived power loss if
    /// `is_durable`: a server in a full store does not keep a change waiting that had no room.
    ///
    /// # Errors
    /// `DeviceFailed` for a sync, once, if changes before it may be lost.
    pub fn count(&mut self, request: &PendingRequest, is_durable: bool) -> Result<()> {
        if is_durable {
            self.synced = self.answered;
        } else if request.is_change() {
            self.answered += 1;
        }
        if request.verb() == Verb::Sync && self.losses > self.reported_losses {
            self.reported_losses = self.losses;
            let what = "changes that were answered and not synced may be lost: their server died";
            return Err(Error::new(Kind::DeviceFailed, what));
        }
        Ok(())
    }

    /// Compares a server's greeting with that of the one before.
    pub fn meet(&mut self, welcome: ServerWelcome) {
        if let Some(before) = self.welcome.replace(welcome)
            && before.instance != welcome.instance
        {
            let is_orderly =
                welcome.follows_orderly_end && Some(welcome.epoch) == before.epoch.checked_add(1);
            if !is_orderly && self.answered > self.synced {
                self.losses += 1;
            }
            self.synced = self.answered;
        }
    }

    /// The server that answers: a random number; 0 before there is one.
    pub fn server(&self) -> u64 {
        self.welcome.map_or(0, |welcome| welcome.instance)
    }

    /// The current moment.
    pub fn sync_point(&self) -> SyncPoint {
        SyncPoint { server: self.server(), answered: self.answered, losses: self.losses }
    }

    /// Records that the first `changes` of them survive power loss, as another client has learned.
    pub fn set_synced(&mut self, changes: u64) {
        self.synced = self.synced.max(changes);
    }

    /// Number of takeovers that may have lost answered changes.
    pub fn losses(&self) -> u64 {
        self.losses
    }
}
