// SPDX-License-Identifier: Apache-2.0
//! No space: how a tree behaves while its store is full, and how it recovers once there is space.
//!
//! ```text
//! no space for           the tree is then                         refused              retried by
//! ─────────────────────  ───────────────────────────────────────  ───────────────────  ────────────────────────
//! a chunk of the log     unchanged; the chunk stays gathered      all changes (LOG)    each change, each sync,
//!                                                                                      every LOG_INTERVAL
//! the next log           unchanged; nothing is frozen             changes, once the    the next change, a flush
//!                                                                 memtable is full
//! the end of the log of  frozen; the log is owed its last chunk,  all changes (LOG)    each change, each sync,
//! the memtable just      which is written before any other                             every LOG_INTERVAL
//! frozen
//! tables, their commit   stalled: frozen memtables stay and can   changes, once all    a flush; the thread and
//!                        be read; unreferenced tables are         memory is taken      refused changes, when it
//!                        deleted                                  (MEMORY)             is due
//! merged tables          unchanged, or merged in part; tables     nothing              a flush, when it is due;
//!                        that are not committed are deleted                            the thread, if reads pay
//! ```
//! A step is due after [`RETRY_MIN`]; a step that took long is due after [`RETRY_FACTOR`] times as
//! long, so that retries take a small share of the time. Tables are due at once when the store
//! reports that space was freed since the last attempt and that it suffices, so no change is
//! refused while there is space. A stall ends with the first memtable that is written.
//!
//! Invariants: (1) Only `NoSpace` is handled this way, and only where the state of the store is
//! known; any other failure, and a commit that may have taken effect, stops the tree for good. (2)
//! A change is refused before it has any effect. A change that has already taken effect succeeds
//! even if its log write finds no space; the next change gets the error. Only at durability
//! `Always` may a change fail although others see it, until it can be logged. (3) Logs are written
//! in order: nothing is written to a log while the one before is owed a chunk, so replay finds a
//! prefix. (4) The number of a table or log that was tried is not used again.
//! Concurrency: LOG changes under the lock of the log; the stall is in `FlusherQueue`. MEMORY is a
//! hint that is cleared before it is acted on, so it may be set needlessly but is never lost.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use esker_base::store::Store;
use esker_base::{Clock, Error, Kind, Result};

use super::{FlushState, FlusherQueue, TreeShared};
use crate::object_name::{ObjectFolder, ObjectName};

/// Minimum wait before a step is retried.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// A step waits this many times as long as it took.
const RETRY_FACTOR: u64 = 4;

/// The shortage for which changes must look for space first.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum NoSpaceReason {
    /// There was no space for the log.
    Log = 1,
    /// Memory is full, and there was no space for writing what would free it.
    Memory = 2,
}

/// The shortages of a tree.
#[derive(Debug, Default)]
pub(super) struct NoSpaceFlags(AtomicU8);

impl NoSpaceFlags {
    #[inline]
    fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    fn has(&self, reason: NoSpaceReason) -> bool {
        self.0.load(Ordering::Relaxed) & reason as u8 != 0
    }

    pub(super) fn set(&self, reason: NoSpaceReason, is_set: bool) {
        if is_set {
            self.0.fetch_or(reason as u8, Ordering::Relaxed);
        } else if self.has(reason) {
            self.0.fetch_and(!(reason as u8), Ordering::Relaxed);
        }
    }
}

/// The reason that frozen memtables are not being written.
#[derive(Debug)]
pub(super) struct FlushStall {
    context: String,
    /// Monotonic time at which the next attempt is due.
    due_ns: u64,
    /// Free bytes of the store before the attempt, if it can tell.
    free_bytes: Option<u64>,
}

impl FlushStall {
    /// Time until the next attempt.
    pub(super) fn wait(&self, clock: &dyn Clock) -> Duration {
        Duration::from_nanos(self.due_ns.saturating_sub(clock.monotonic_ns()))
    }

    /// Returns whether to retry now: an attempt is due, or the store has freed space since the last
    /// one began and has enough for `frozen_bytes` of memtables. Tables take less space than the
    /// memtables they come from, so an attempt made for the second reason rarely fails.
    fn is_due(&self, clock: &dyn Clock, store: &dyn Store, frozen_bytes: usize) -> bool {
        self.wait(clock).is_zero()
            || store
                .free_bytes()
                .zip(self.free_bytes)
                .is_some_and(|(free, before)| free > before && free >= frozen_bytes as u64)
    }

    fn error(&self) -> Error {
        Error::new(Kind::NoSpace, format!("no room for records in memory: {}", self.context))
    }
}

/// Returns whether `done` failed for lack of space.
pub(super) fn is_full<T>(done: &Result<T>) -> bool {
    done.as_ref().is_err_and(|error| error.kind() == Kind::NoSpace)
}

impl TreeShared {
    /// Fails if changes are refused: after a failure, and while there is no space for the log or
    /// for memtables that must leave memory. So a change that reports an error has had no effect.
    #[inline]
    pub(super) fn check_writable(&self) -> Result<()> {
        self.check_failure()?;
        if self.no_space.any() { self.retry_after_no_space() } else { Ok(()) }
    }

    #[cold]
    fn retry_after_no_space(&self) -> Result<()> {
        if self.no_space.has(NoSpaceReason::Log) {
            self.write_log(false)?;
        }
        if self.no_space.has(NoSpaceReason::Memory) {
            self.no_space.set(NoSpaceReason::Memory, false);
            self.make_room().inspect_err(|_| self.no_space.set(NoSpaceReason::Memory, true))?;
        }
        Ok(())
    }

    /// Returns true if frozen memtables wait for space in the store and the active one may still
    /// grow. If it may not grow, retries the write if that is due, or fails.
    pub(super) fn try_without_space(&self) -> Result<bool> {
        {
            let pending = self.pending.lock();
            let Some(stall) = &pending.stall else { return Ok(false) };
            let left = self.options.memory_bytes.saturating_sub(pending.frozen_bytes());
            let bytes_max = left.min(self.options.active_bytes_max());
            if self.active_bytes.load(Ordering::Relaxed) < bytes_max {
                self.backlog.allow(bytes_max);
                return Ok(true);
            }
            self.check_due(stall, &pending)?;
        }
        let mut state = self.lock_flush();
        {
            // Another thread may have had the lock and retried just now.
            let pending = self.pending.lock();
            pending.stall.as_ref().map_or(Ok(()), |stall| self.check_due(stall, &pending))?;
        }
        self.write_frozen(&mut state)?;
        Ok(false)
    }

    /// Fails with the stall's error unless another attempt is due.
    fn check_due(&self, stall: &FlushStall, pending: &FlusherQueue) -> Result<()> {
        let is_due = stall.is_due(&*self.clock, &**self.store(), pending.frozen_bytes());
        if is_due { Ok(()) } else { Err(stall.error()) }
    }

    /// Records the outcome of an attempt to write frozen memtables, which began at `began_ns`, when
    /// the store had `free_bytes`.
    pub(super) fn record_flush<T>(
        &self,
        flushed: &Result<T>,
        began_ns: u64,
        free_bytes: Option<u64>,
    ) {
        let stall = match flushed {
            Ok(_) => None,
            Err(error) if error.kind() == Kind::NoSpace => Some(FlushStall {
                context: error.to_string(),
                due_ns: self.due_ns(began_ns),
                free_bytes,
            }),
            Err(error) => return self.fail(error),
        };
        self.pending.lock().stall = stall;
        self.backlog.refresh();
    }

    /// Returns when a step that began at `began_ns`, and has just found no space, is due again.
    pub(super) fn due_ns(&self, began_ns: u64) -> u64 {
        let now_ns = self.clock.monotonic_ns();
        let took_ns = now_ns.saturating_sub(began_ns);
        let wait_ns = took_ns.saturating_mul(RETRY_FACTOR).max(RETRY_MIN.as_nanos() as u64);
        now_ns.saturating_add(wait_ns)
    }

    /// Runs `act`. If there is no space for it, deletes the tables that it wrote, so that the
    /// caller may retry it.
    pub(super) fn with_rollback<T>(
        &self,
        state: &mut FlushState,
        act: impl FnOnce(&mut FlushState) -> Result<T>,
    ) -> Result<T> {
        let done = act(state);
        if is_full(&done) {
            // Tables that stay are collected with those that writers of earlier epochs left.
            let _ = self.delete_uncommitted(state);
        }
        done
    }

    /// Deletes tables written since the last commit that may have taken effect: no manifest names
    /// them.
    pub(super) fn delete_uncommitted(&self, state: &mut FlushState) -> Result<()> {
        let uncommitted = state.committed_tables..state.next_table;
        if uncommitted.is_empty() {
            return Ok(());
        }
        let folder = ObjectFolder::Tables(self.set).to_string();
        for name in self.store().list_names(&folder)? {
            let name = format!("{folder}{name}");
            if let Ok(ObjectName::Table(_, number)) = name.parse()
                && uncommitted.contains(&number)
            {
                self.store().delete(&name)?;
            }
        }
        state.committed_tables = state.next_table;
        Ok(())
    }
}
