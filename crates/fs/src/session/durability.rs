// SPDX-License-Identifier: Apache-2.0
//! Durability of a session: from changes in memory to synced logs and tables, and to its end.
//!
//! Each call first writes back the changes cached outside the tree: those of open files, and times
//! of directories. Crash guarantees of each level: docs/guide/durability.md.

use esker_base::Result;
use esker_table::tree::Durability;

use crate::session::Session;

impl Session {
    /// Returns once every change made so far survives power loss. Cost: a write and a sync of the
    /// log and of data logs with new bytes, and a check for a takeover by another writer.
    ///
    /// # Errors
    /// `Fenced` after a takeover; `Closed` after a failed write; errors of the store.
    pub fn sync(&self) -> Result<()> {
        self.write_back_metadata()?;
        self.data().sync()?;
        self.tree().sync()
    }

    /// Fails if another writer has taken the session over. Cost: a listing.
    ///
    /// # Errors
    /// `Fenced`; errors of the store.
    pub fn check_owner(&self) -> Result<()> {
        self.tree().check_owner()
    }

    /// True at durability `Always`: every change returns only once it survives power loss.
    #[must_use]
    pub fn syncs_each_change(&self) -> bool {
        self.shared.durability == Durability::Always
    }

    /// Writes every change made so far into tables and commits them: like [`Session::sync`], and
    /// leaves the log empty.
    pub fn flush(&self) -> Result<()> {
        self.write_back_metadata()?;
        self.tree().flush()
    }

    /// Ends the session for now: flushes it, and records that it has no writer any more, so that
    /// another process can resume it at once. Every later change fails with `Closed`. Cost: as
    /// [`Session::flush`]; a commit if there was nothing to flush.
    ///
    /// # Errors
    /// As [`Session::flush`]; the call may then be repeated.
    pub fn end(&self) -> Result<()> {
        self.write_back_metadata()?;
        let set = self.set();
        self.alone(|| self.tree().release(format!("session @{set} has ended; resume it")))
    }

    /// Fails if the session takes no more changes, since it was taken over, completed or ended, or
    /// a write failed before.
    ///
    /// # Errors
    /// `Fenced`; `Closed`; the earlier failure.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        self.tree().check_open()
    }

    /// Merges the change set's tables into one run, and reclaims data logs that are mostly
    /// overwritten ([`Session::reclaim_data`]).
    pub fn compact(&self) -> Result<()> {
        self.write_back_metadata()?;
        self.tree().compact()?;
        self.reclaim_data().map(drop)
    }
}
