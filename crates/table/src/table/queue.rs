// SPDX-License-Identifier: Apache-2.0
//! Queue: the blocks of a table that batches wait for, each batch on its own thread.
//!
//! A batch queues the blocks that it lacks. Each waiting thread then reads the queued region with
//! the most requests per block, no matter which batch asked for it, and every batch gets the blocks
//! that it asked for; a block that several batches wait for is read once. The queue computes
//! regions anew when the number of queued requests reaches another level, and when no region is
//! left.
//! Concurrency: one lock, not held while a region is read.
//! Source: MetaKV §III-B.

use std::collections::BTreeMap;
use std::ops::Range;

use esker_base::Result;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::cluster::{BlockRegion, RequestedBlock, cluster};

/// Requests per level.
const LEVEL_REQUESTS: usize = 1_000;

/// Reads the blocks of a region, and returns those with the given numbers, in order.
pub(super) type RegionRead<'a, B> = dyn Fn(Range<usize>, &[usize]) -> Result<Vec<B>> + 'a;

/// The blocks that batches of one table wait for; `B` is a block, cheap to clone.
#[derive(Debug)]
pub(super) struct BlockQueue<B> {
    state: Mutex<BlockQueueState<B>>,
    /// Signalled when blocks were read, or could not be.
    changed: Condvar,
}

impl<B> Default for BlockQueue<B> {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: Condvar::new() }
    }
}

#[derive(Debug)]
struct BlockQueueState<B> {
    /// Blocks that no thread is reading yet, and the number of requests for each.
    queued: BTreeMap<usize, usize>,
    /// The sum of these requests.
    requests: usize,
    /// The regions last computed, densest at the end, and the level at that time.
    regions: Vec<BlockRegion>,
    level: usize,
    /// The batches that wait for each block that is queued or being read.
    waiting: HashMap<usize, Vec<u64>>,
    /// Blocks that other threads have read for each batch.
    arrived: HashMap<u64, Vec<(usize, B)>>,
    next_batch: u64,
}

impl<B> Default for BlockQueueState<B> {
    fn default() -> Self {
        Self {
            queued: BTreeMap::new(),
            requests: 0,
            regions: Vec::new(),
            level: 0,
            waiting: HashMap::new(),
            arrived: HashMap::new(),
            next_batch: 0,
        }
    }
}

impl<B: Clone> BlockQueue<B> {
    /// Passes each block of `missing`, which must ascend, to `take` once it has been read, by this
    /// call or a concurrent one. Regions have a locality factor of at least `percent_min`.
    ///
    /// # Errors
    /// The error of `read`, for a region that had some of `missing` or came before them. Other
    /// batches that wait for its blocks then read them themselves.
    pub(super) fn read(
        &self,
        missing: &[RequestedBlock],
        percent_min: usize,
        read: &RegionRead<'_, B>,
        take: &mut dyn FnMut(usize, &B),
    ) -> Result<()> {
        let state = &mut self.state.lock();
        let batch = state.add(missing);
        let mut left = missing.len();
        while left > 0 {
            let arrived = state.arrived.get_mut(&batch).map(std::mem::take).unwrap_or_default();
            left -= arrived.len();
            MutexGuard::unlocked(state, || arrived.iter().for_each(|(at, block)| take(*at, block)));
            if left == 0 {
                break;
            }
            let Some((blocks, numbers)) = state.next_region(percent_min) else {
                if state.arrived.get(&batch).is_none_or(Vec::is_empty) {
                    self.changed.wait(state);
                }
                continue;
            };
            match MutexGuard::unlocked(state, || read(blocks, &numbers)) {
                Ok(found) => state.serve(&numbers, &found),
                Err(error) => {
                    state.queue_again(&numbers);
                    state.leave(batch, missing);
                    self.changed.notify_all();
                    return Err(error);
                }
            }
            self.changed.notify_all();
        }
        state.arrived.remove(&batch);
        Ok(())
    }
}

impl<B: Clone> BlockQueueState<B> {
    /// Queues `missing` for a new batch, and returns the batch's number.
    fn add(&mut self, missing: &[RequestedBlock]) -> u64 {
        let batch = self.next_batch;
        self.next_batch += 1;
        self.arrived.insert(batch, Vec::new());
        for RequestedBlock { block, count } in missing {
            let waiting = self.waiting.entry(*block).or_default();
            waiting.push(batch);
            // Unless another thread is already reading it.
            if waiting.len() == 1 || self.queued.contains_key(block) {
                *self.queued.entry(*block).or_default() += count;
                self.requests += count;
            }
        }
        batch
    }

    /// Returns the region to read next and those of its blocks that are wanted, and removes these
    /// from the queue.
    fn next_region(&mut self, percent_min: usize) -> Option<(Range<usize>, Vec<usize>)> {
        while !self.queued.is_empty() {
            let level = self.requests / LEVEL_REQUESTS;
            if self.regions.is_empty() || level != self.level {
                let queued = self.queued.iter();
                let queued: Vec<RequestedBlock> =
                    queued.map(|(&block, &count)| RequestedBlock { block, count }).collect();
                self.regions = cluster(&queued, percent_min);
                self.regions.reverse();
                self.level = level;
            }
            let Some(region) = self.regions.pop() else { continue };
            let wanted: Vec<(usize, usize)> =
                self.queued.range(region.blocks.clone()).map(|(at, count)| (*at, *count)).collect();
            for (number, count) in &wanted {
                self.queued.remove(number);
                self.requests -= count;
            }
            if !wanted.is_empty() {
                return Some((
                    region.blocks,
                    wanted.into_iter().map(|(number, _)| number).collect(),
                ));
            }
        }
        None
    }

    /// Passes the blocks `numbers`, which were read, to the batches that wait for them.
    fn serve(&mut self, numbers: &[usize], blocks: &[B]) {
        for (number, block) in numbers.iter().zip(blocks) {
            for batch in self.waiting.remove(number).unwrap_or_default() {
                if let Some(arrived) = self.arrived.get_mut(&batch) {
                    arrived.push((*number, block.clone()));
                }
            }
        }
    }

    /// Queues the blocks `numbers`, which could not be read, again.
    fn queue_again(&mut self, numbers: &[usize]) {
        for number in numbers {
            let count = self.waiting.get(number).map_or(0, Vec::len);
            self.requests += count;
            self.queued.insert(*number, count);
        }
    }

    /// Removes a batch that no longer waits.
    fn leave(&mut self, batch: u64, missing: &[RequestedBlock]) {
        self.arrived.remove(&batch);
        for RequestedBlock { block, .. } in missing {
            let Some(waiting) = self.waiting.get_mut(block) else { continue };
            waiting.retain(|other| *other != batch);
            if waiting.is_empty() {
                self.waiting.remove(block);
                self.requests -= self.queued.remove(block).unwrap_or(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use esker_base::{Error, Kind};

    use super::*;

    fn requested(blocks: impl IntoIterator<Item = usize>, count: usize) -> Vec<RequestedBlock> {
        blocks.into_iter().map(|block| RequestedBlock { block, count }).collect()
    }

    #[test]
    fn regions_are_found_anew_at_each_level() {
        let mut state = BlockQueueState::<u8>::default();
        state.add(&requested([0, 50], 400));
        assert_eq!(state.next_region(80), Some((0..1, vec![0])));
        assert_eq!((state.level, state.regions.len()), (0, 1));
        // A denser block arrives at the same level: the region already computed is read first.
        state.add(&requested([90], 450));
        assert_eq!(state.next_region(80), Some((50..51, vec![50])));
        // Enough requests for the next level: the densest region comes first.
        state.add(&requested([51, 52], 300));
        state.add(&requested([91], 500));
        assert_eq!(state.next_region(80), Some((90..92, vec![90, 91])));
        assert_eq!(state.level, 1);
        assert_eq!(state.next_region(80), Some((51..53, vec![51, 52])));
        assert_eq!((state.next_region(80), state.requests), (None, 0));
    }

    #[test]
    fn batches_that_wait_together_share_what_is_read() {
        let queue = BlockQueue::<usize>::default();
        let (together, reads) = (Barrier::new(4), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for first in 0..4usize {
                let (queue, together, reads) = (&queue, &together, &reads);
                scope.spawn(move || {
                    // Each thread lacks some blocks that others lack too; nothing is read before
                    // all have queued theirs.
                    let missing = requested((first * 10..first * 10 + 40).step_by(2), 3);
                    let mut taken = Vec::new();
                    let read = |blocks: Range<usize>, numbers: &[usize]| {
                        if reads.fetch_add(numbers.len(), Ordering::Relaxed) == 0 {
                            while queue.state.lock().next_batch < 4 {
                                std::thread::yield_now();
                            }
                        }
                        assert!(numbers.iter().all(|number| blocks.contains(number)));
                        Ok(numbers.iter().map(|number| number * 7).collect())
                    };
                    together.wait();
                    let mut take = |number, block: &usize| taken.push((number, *block));
                    queue.read(&missing, 100, &read, &mut take).expect("no failure");
                    taken.sort_unstable();
                    let expected = missing.iter().map(|one| (one.block, one.block * 7));
                    assert_eq!(taken, expected.collect::<Vec<_>>());
                });
            }
        });
        assert!(reads.into_inner() < 4 * 20, "35 blocks are asked for 80 times");
        let state = queue.state.into_inner();
        assert!(state.queued.is_empty() && state.waiting.is_empty() && state.arrived.is_empty());
        assert_eq!(state.requests, 0);
    }

    #[test]
    fn who_cannot_read_leaves_it_to_the_others() {
        let queue = BlockQueue::<usize>::default();
        let other = requested([1, 2], 1);
        let batch = queue.state.lock().add(&other);
        let failing = |_: Range<usize>, _: &[usize]| Err(Error::new(Kind::Unavailable, "gone"));
        let mut take = |_, _: &usize| panic!("nothing was read");
        let failed = queue.read(&requested([2, 9], 1), 100, &failing, &mut take);
        assert_eq!(failed.expect_err("it fails").kind(), Kind::Unavailable);
        let mut state = queue.state.lock();
        assert_eq!(state.queued.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert!(state.waiting.values().all(|waiting| *waiting == [batch]));
        state.leave(batch, &other);
        assert!(state.queued.is_empty() && state.waiting.is_empty() && state.arrived.is_empty());
        assert_eq!(state.requests, 0);
    }
}
