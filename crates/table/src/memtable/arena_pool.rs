// SPDX-License-Identifier: Apache-2.0
//! Arena pool: already touched memory for arenas, in pieces of one size, and for hash tables.
//!
//! The first write to a page of memory is slow: the kernel clears the page, and a hypervisor may
//! have to find it. The pool therefore reuses the pieces of memtables that were written to tables.
//! Once a tree takes large pieces, a thread touches some ahead of demand. The thread also prepares
//! slots for the next shard whose hash table grows: shards grow to one size in turn (`shard.rs`),
//! so few suffice.
//! Concurrency: lists behind a lock that is taken once per piece and once per hash table.

use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::SHARDS;
use super::arena::CHUNK_BYTES;
use crate::memory::ZeroedArray;

/// Pieces kept prepared: shards fill alike, so all of them may ask for one at about the same time.
const READY: usize = SHARDS;
/// Hash tables whose slots are kept prepared.
const TABLES_READY: usize = 2;
/// Minimum number of slots for which a thread is worthwhile.
const SLOTS_MIN: usize = 1 << 13;

/// The memory of all memtables of a tree.
#[derive(Debug)]
pub struct ArenaPool {
    shared: Arc<ArenaPoolShared>,
    /// The thread, if it could be started.
    thread: OnceLock<Option<JoinHandle<()>>>,
    /// True if a thread prepares memory.
    prepares: bool,
}

#[derive(Debug)]
struct ArenaPoolShared {
    state: Mutex<ArenaPoolState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ArenaPoolState {
    free: Vec<ZeroedArray<u8>>,
    /// Maximum number of pieces kept here.
    kept_max: usize,
    /// Number of pieces that the thread keeps prepared.
    ready: usize,
    /// Slots of hash tables of one size, all zero.
    tables: Vec<ZeroedArray<u64>>,
    /// That size, in slots.
    slots: usize,
    /// Number of shards that do not have a table of that size yet.
    tables_left: usize,
    /// Slots that the thread returns to the kernel.
    outgrown: Vec<ZeroedArray<u64>>,
    stopping: bool,
}

impl ArenaPool {
    /// Makes an empty source that keeps at most `kept_bytes_max` ready. With `prepares`, a thread
    /// is started once much memory is taken.
    #[must_use]
    pub fn new(kept_bytes_max: usize, prepares: bool) -> Self {
        let state =
            ArenaPoolState { kept_max: kept_bytes_max / CHUNK_BYTES, ..ArenaPoolState::default() };
        let shared =
            Arc::new(ArenaPoolShared { state: Mutex::new(state), changed: Condvar::new() });
        Self { shared, thread: OnceLock::new(), prepares }
    }

    /// Takes a piece of [`CHUNK_BYTES`]; its contents are arbitrary.
    pub(super) fn take(&self) -> ZeroedArray<u8> {
        let taken = {
            let mut state = self.shared.state.lock();
            state.ready = READY.min(state.kept_max);
            self.shared.changed.notify_one();
            state.free.pop()
        };
        self.prepare();
        taken.unwrap_or_else(|| ZeroedArray::new(CHUNK_BYTES))
    }

    /// Takes back pieces that were taken from here.
    pub(super) fn give_back(&self, mut chunks: impl Iterator<Item = ZeroedArray<u8>>) {
        let mut state = self.shared.state.lock();
        let room = state.kept_max.saturating_sub(state.free.len());
        state.free.extend(chunks.by_ref().take(room));
        drop(state);
        // The rest is returned to the kernel after the lock is released, so that nobody waits for
        // it.
        drop(chunks);
    }

    /// Takes `count` slots, all zero, for a hash table that grows.
    pub(super) fn take_slots(&self, count: usize) -> ZeroedArray<u64> {
        if !self.prepares || count < SLOTS_MIN {
            return ZeroedArray::new(count);
        }
        let (taken, others) = {
            let mut state = self.shared.state.lock();
            let mut others = Vec::new();
            if state.slots != count {
                others = std::mem::take(&mut state.tables);
                (state.slots, state.tables_left) = (count, SHARDS);
            }
            state.tables_left = state.tables_left.saturating_sub(1);
            self.shared.changed.notify_one();
            (state.tables.pop(), others)
        };
        drop(others);
        self.prepare();
        taken.unwrap_or_else(|| ZeroedArray::written(count))
    }

    /// Returns to the kernel the slots that a hash table has outgrown.
    pub(super) fn outgrow(&self, slots: ZeroedArray<u64>) {
        if self.prepares && slots.len() >= SLOTS_MIN {
            self.shared.state.lock().outgrown.push(slots);
            self.shared.changed.notify_one();
        }
    }

    /// Returns all memory kept here to the kernel, since it may be long until more is taken.
    pub fn release(&self) {
        let mut state = self.shared.state.lock();
        (state.ready, state.tables_left) = (0, 0);
        let free = std::mem::take(&mut state.free);
        let tables = std::mem::take(&mut state.tables);
        drop(state);
        drop((free, tables));
    }

    /// Starts the thread. Without it everything still works, but more slowly.
    fn prepare(&self) {
        if self.prepares {
            self.thread.get_or_init(|| {
                let shared = self.shared.clone();
                Builder::new().name("esker-memory".to_owned()).spawn(move || shared.prepare()).ok()
            });
        }
    }
}

impl Drop for ArenaPool {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_one();
        if let Some(Some(thread)) = self.thread.take() {
            // A panic in the thread has already been reported there.
            let _ = thread.join();
        }
    }
}

impl ArenaPoolShared {
    /// Keeps memory prepared until it is stopped.
    fn prepare(&self) {
        let mut state = self.state.lock();
        while !state.stopping {
            let slots = state.slots;
            if !state.outgrown.is_empty() {
                let outgrown = std::mem::take(&mut state.outgrown);
                MutexGuard::unlocked(&mut state, || drop(outgrown));
            } else if state.tables.len() < TABLES_READY.min(state.tables_left) {
                let table = MutexGuard::unlocked(&mut state, || ZeroedArray::written(slots));
                // Another size may have been asked for meanwhile.
                if state.slots == slots {
                    state.tables.push(table);
                }
            } else if state.free.len() < state.ready {
                let chunk = MutexGuard::unlocked(&mut state, || ZeroedArray::written(CHUNK_BYTES));
                state.free.push(chunk);
            } else {
                self.changed.wait(&mut state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_use_serves_again_up_to_a_bound() {
        let chunks = ArenaPool::new(2 * CHUNK_BYTES, false);
        let mut taken: Vec<_> = (0..3).map(|_| chunks.take()).collect();
        taken.iter_mut().for_each(|chunk| chunk[7] = 9);
        chunks.give_back(taken.into_iter());
        assert_eq!(chunks.shared.state.lock().free.len(), 2);
        assert_eq!([0; 3].map(|_| chunks.take()[7]), [9, 9, 0]);
    }

    #[test]
    fn a_thread_has_some_ready_once_one_was_taken() {
        let chunks = ArenaPool::new(READY * CHUNK_BYTES, true);
        assert_eq!(chunks.take().len(), CHUNK_BYTES);
        while chunks.shared.state.lock().free.len() < READY {
            std::thread::yield_now();
        }
        chunks.release();
        assert!(chunks.shared.state.lock().free.len() <= 1, "but for one that was on its way");
    }

    #[test]
    fn slots_lie_ready_for_as_many_shards_as_there_are() {
        let chunks = ArenaPool::new(0, true);
        let ready = || chunks.shared.state.lock().tables.len();
        for count in [SLOTS_MIN, 2 * SLOTS_MIN] {
            for left in (0..SHARDS).rev() {
                let mut slots = chunks.take_slots(count);
                assert!(slots.len() == count && slots.iter().all(|&slot| slot == 0));
                slots.fill(7);
                chunks.outgrow(slots);
                while ready() < TABLES_READY.min(left) {
                    std::thread::yield_now();
                }
            }
            assert_eq!(ready(), 0);
        }
    }
}
