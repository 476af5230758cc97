//! Chunks: the memory of arenas, in pieces of one size that have been in use when they are needed.
//!
//! Memory that a process writes to for the first time is slow: the kernel clears it, and a hypervisor
//! may have to find it. So the pieces of memtables that were written to tables serve the next ones,
//! and once a tree takes large ones a thread writes to some ahead of whoever needs them.
//! Concurrency: a list behind a lock that is taken once a piece.

use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use parking_lot::{Condvar, Mutex};

use super::SHARDS;
use super::arena::CHUNK_BYTES;
use crate::memory::ZeroedArray;

/// Pieces that lie ready: shards fill alike, so all of them may ask for one at about the same time.
const READY: usize = SHARDS;
/// Writing to one byte of each page is writing to it for the first time.
const PAGE_BYTES: usize = 4096;

/// Memory of arenas: of all memtables of a tree.
#[derive(Debug)]
pub struct Chunks {
    shared: Arc<Shared>,
    /// The thread, if it could be started.
    thread: OnceLock<Option<JoinHandle<()>>>,
    /// Whether a thread prepares pieces.
    prepares: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: Vec<ZeroedArray<u8>>,
    /// How many may lie here.
    kept_max: usize,
    /// How many the thread sees to.
    ready: usize,
    stopping: bool,
}

impl Chunks {
    /// None yet; at most `kept_bytes_max` will lie ready. With `prepares`, a thread is started with the
    /// first that is taken.
    #[must_use]
    pub fn new(kept_bytes_max: usize, prepares: bool) -> Self {
        let kept_max = kept_bytes_max / CHUNK_BYTES;
        let state = State { free: Vec::new(), kept_max, ready: 0, stopping: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        Self { shared, thread: OnceLock::new(), prepares }
    }

    /// A piece of [`CHUNK_BYTES`]; what is in it is left from others.
    pub(super) fn take(&self) -> ZeroedArray<u8> {
        let taken = {
            let mut state = self.shared.state.lock();
            state.ready = READY.min(state.kept_max);
            self.shared.changed.notify_one();
            state.free.pop()
        };
        if self.prepares {
            // Without it everything takes longer, nothing else.
            self.thread.get_or_init(|| {
                let shared = self.shared.clone();
                Builder::new().name("esker-memory".to_owned()).spawn(move || shared.prepare()).ok()
            });
        }
        taken.unwrap_or_else(|| ZeroedArray::new(CHUNK_BYTES))
    }

    /// Takes pieces back that were taken here.
    pub(super) fn give_back(&self, mut chunks: impl Iterator<Item = ZeroedArray<u8>>) {
        let mut state = self.shared.state.lock();
        let room = state.kept_max.saturating_sub(state.free.len());
        state.free.extend(chunks.by_ref().take(room));
        drop(state);
        // The others go to the kernel while nobody waits.
        drop(chunks);
    }

    /// Gives all that lies here to the kernel: it may be long until more is taken.
    pub fn release(&self) {
        let mut state = self.shared.state.lock();
        state.ready = 0;
        let free = std::mem::take(&mut state.free);
        drop(state);
        drop(free);
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_one();
        if let Some(Some(thread)) = self.thread.take() {
            // A panic in it has been reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Sees to it that pieces lie ready, until it is stopped.
    fn prepare(&self) {
        let mut state = self.state.lock();
        while !state.stopping {
            if state.free.len() >= state.ready {
                self.changed.wait(&mut state);
                continue;
            }
            drop(state);
            let mut chunk = ZeroedArray::new(CHUNK_BYTES);
            chunk.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
            state = self.state.lock();
            state.free.push(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_use_serves_again_up_to_a_bound() {
        let chunks = Chunks::new(2 * CHUNK_BYTES, false);
        let mut taken: Vec<_> = (0..3).map(|_| chunks.take()).collect();
        taken.iter_mut().for_each(|chunk| chunk[7] = 9);
        chunks.give_back(taken.into_iter());
        assert_eq!(chunks.shared.state.lock().free.len(), 2);
        assert_eq!([0; 3].map(|_| chunks.take()[7]), [9, 9, 0]);
    }

    #[test]
    fn a_thread_has_some_ready_once_one_was_taken() {
        let chunks = Chunks::new(READY * CHUNK_BYTES, true);
        assert_eq!(chunks.take().len(), CHUNK_BYTES);
        while chunks.shared.state.lock().free.len() < READY {
            std::thread::yield_now();
        }
        chunks.release();
        assert!(chunks.shared.state.lock().free.len() <= 1, "but for one that was on its way");
    }
}
