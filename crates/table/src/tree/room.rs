//! Room: what a tree does while its store is full, and how it goes on once there is room.
//!
//! ```text
//! no room for            the tree is then                         refused              tried again by
//! ─────────────────────  ───────────────────────────────────────  ───────────────────  ────────────────────────
//! a chunk of the log     as before; the chunk stays gathered      all changes (LOG)    each change, each sync,
//!                                                                                      every LOG_INTERVAL
//! the next log           as before; nothing is frozen             changes, once the    the next change, a flush
//!                                                                 memtable is full
//! the end of the log of  frozen; the log is owed its last chunk,  all changes (LOG)    each change, each sync,
//! what was just frozen   which goes before any other                                   every LOG_INTERVAL
//! tables, their commit   stalled: what is frozen stays, to be     changes, once all    a flush; the thread and
//!                        read; tables that nothing names go       memory is taken      refused changes, when it
//!                                                                 (MEMORY)             is due
//! merged tables          as before; what was merged goes          nothing              a flush, when it is due
//! ```
//! A step is due after [`RETRY_MIN`], and so long after one that took long that trying takes a small
//! share of the time. Tables are due at once when the store reports that space was freed since the last
//! attempt and that it suffices, so that no change is refused for lack of space that there is. A stall
//! ends with the first memtable that is written.
//!
//! Invariants: (1) only `NoSpace` is met so, and only where it is known what the store has; any other
//! failure, and a commit that may have taken effect, stops the tree for good. (2) A change is refused
//! before it has done anything; one that finds no room on its way out is done, and the next is told.
//! Only at durability `Always` a change may fail that others see, until it can be logged. (3) Logs are
//! written in order: nothing goes to a log while the one before is owed something, so replay finds a
//! prefix. (4) A number of a table or log that was tried is not used again.
//! Concurrency: LOG changes under the lock of the log; the stall is in `Pending`. MEMORY is a hint that
//! is cleared before it is looked into, so it may be set for nothing, and is never lost.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use esker_base::store::Store;
use esker_base::{Clock, Error, Kind, Result};

use super::{FlushState, Inner, Pending};
use crate::manifest::TableRef;

/// How long a step waits at least before it is tried again.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// It waits this many times as long as it took.
const RETRY_FACTOR: u64 = 4;

/// Why changes look for room before they are made.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Lack {
    /// There was none for the log.
    Log = 1,
    /// Memory is taken, and there was no room for what would free it.
    Memory = 2,
}

/// What a tree lacks.
#[derive(Debug, Default)]
pub(super) struct Lacks(AtomicU8);

impl Lacks {
    #[inline]
    fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    fn has(&self, lack: Lack) -> bool {
        self.0.load(Ordering::Relaxed) & lack as u8 != 0
    }

    pub(super) fn note(&self, lack: Lack, is_lacking: bool) {
        if is_lacking {
            self.0.fetch_or(lack as u8, Ordering::Relaxed);
        } else if self.has(lack) {
            self.0.fetch_and(!(lack as u8), Ordering::Relaxed);
        }
    }
}

/// What keeps frozen memtables from being written.
#[derive(Debug)]
pub(super) struct Stall {
    context: String,
    /// When it is due, by the monotonic clock.
    due_ns: u64,
    /// Bytes that the store had free before the attempt, if it can tell.
    free_bytes: Option<u64>,
}

impl Stall {
    /// How long it is until the next attempt.
    pub(super) fn wait(&self, clock: &dyn Clock) -> Duration {
        Duration::from_nanos(self.due_ns.saturating_sub(clock.monotonic_ns()))
    }

    /// Whether to try again now: it is time to, or the store has freed space since the attempt began
    /// and has enough for `frozen_bytes` of memtables. Tables take less than the memtables they come
    /// from, so an attempt that is made for the second reason rarely fails.
    fn is_due(&self, clock: &dyn Clock, store: &dyn Store, frozen_bytes: usize) -> bool {
        self.wait(clock).is_zero()
            || store
                .free_bytes()
                .zip(self.free_bytes)
                .is_some_and(|(free, before)| free > before && free >= frozen_bytes as u64)
    }

    fn error(&self) -> Error {
        Error::new(Kind::NoSpace, format!("no room for what waits in memory: {}", self.context))
    }
}

/// Whether `done` found no room.
pub(super) fn is_full<T>(done: &Result<T>) -> bool {
    done.as_ref().is_err_and(|error| error.kind() == Kind::NoSpace)
}

impl Inner {
    /// Fails if nothing can be changed: after a failure, and while there is no room for the log or
    /// for what must leave memory, so that nothing is done that an error says was not.
    #[inline]
    pub(super) fn check_writable(&self) -> Result<()> {
        self.check_failure()?;
        if self.lacks.any() { self.regain() } else { Ok(()) }
    }

    #[cold]
    fn regain(&self) -> Result<()> {
        if self.lacks.has(Lack::Log) {
            self.write_log(false)?;
        }
        if self.lacks.has(Lack::Memory) {
            self.lacks.note(Lack::Memory, false);
            self.make_room().inspect_err(|_| self.lacks.note(Lack::Memory, true))?;
        }
        Ok(())
    }

    /// Whether frozen memtables wait for room on the store, and the active one may grow all the same.
    /// If it may not, tries again if that is due.
    pub(super) fn make_do(&self) -> Result<bool> {
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
        let mut state = self.flush.lock();
        {
            // Another thread may have had the lock, and tried, just now.
            let pending = self.pending.lock();
            pending.stall.as_ref().map_or(Ok(()), |stall| self.check_due(stall, &pending))?;
        }
        self.write_frozen(&mut state)?;
        Ok(false)
    }

    /// Fails with the stall's error unless another attempt is due.
    fn check_due(&self, stall: &Stall, pending: &Pending) -> Result<()> {
        let is_due = stall.is_due(&*self.clock, &**self.store(), pending.frozen_bytes());
        if is_due { Ok(()) } else { Err(stall.error()) }
    }

    /// Notes how an attempt to write what is frozen went, which began at `began_ns`, when the store
    /// had `free_bytes`.
    pub(super) fn note_flush<T>(
        &self,
        flushed: &Result<T>,
        began_ns: u64,
        free_bytes: Option<u64>,
    ) {
        let stall = match flushed {
            Ok(_) => None,
            Err(error) if error.kind() == Kind::NoSpace => Some(Stall {
                context: error.to_string(),
                due_ns: self.due_ns(began_ns),
                free_bytes,
            }),
            Err(error) => return self.fail(error),
        };
        self.pending.lock().stall = stall;
        self.backlog.look_again();
    }

    /// When a step that began at `began_ns`, and found no room just now, is due again.
    pub(super) fn due_ns(&self, began_ns: u64) -> u64 {
        let now_ns = self.clock.monotonic_ns();
        let took_ns = now_ns.saturating_sub(began_ns);
        let wait_ns = took_ns.saturating_mul(RETRY_FACTOR).max(RETRY_MIN.as_nanos() as u64);
        now_ns.saturating_add(wait_ns)
    }

    /// Does `act`; if there is no room for it, deletes the tables that were written for it, and it
    /// may be done again.
    pub(super) fn attempt<T>(
        &self,
        state: &mut FlushState,
        act: impl FnOnce(&mut FlushState) -> Result<T>,
    ) -> Result<T> {
        let done = act(state);
        if is_full(&done) {
            // What stays is collected with what writers of earlier epochs left.
            let _ = self.delete_uncommitted(state);
        }
        done
    }

    /// Deletes tables written since the last commit: no manifest names them.
    fn delete_uncommitted(&self, state: &mut FlushState) -> Result<()> {
        let uncommitted = state.committed_tables..state.next_table;
        if uncommitted.is_empty() {
            return Ok(());
        }
        let folder = TableRef::folder(self.set);
        for name in self.store().list_names(&folder)? {
            if u64::from_str_radix(&name, 16).is_ok_and(|number| uncommitted.contains(&number)) {
                self.store().delete(&format!("{folder}{name}"))?;
            }
        }
        state.committed_tables = state.next_table;
        Ok(())
    }
}
