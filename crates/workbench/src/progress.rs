// SPDX-License-Identifier: Apache-2.0
//! Progress: the current phase and operations of a run, for a line on a terminal.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A counter with a cache line of its own, so that ranks do not slow each other.
#[derive(Debug, Default)]
#[repr(align(128))]
struct RankCounter(AtomicU64);

/// Counts of a run; ranks add to it, and anybody reads it.
#[derive(Debug)]
pub struct RunProgress {
    operations: Vec<RankCounter>,
    phase: Mutex<String>,
}

impl RunProgress {
    /// Progress of `ranks`.
    #[must_use]
    pub fn new(ranks: u32) -> Self {
        let operations = (0..ranks).map(|_| RankCounter::default()).collect();
        Self { operations, phase: Mutex::default() }
    }

    /// Adds operations of `rank`.
    pub fn add(&self, rank: u32, operations: u64) {
        if let Some(RankCounter(counter)) = self.operations.get(rank as usize) {
            counter.fetch_add(operations, Ordering::Relaxed);
        }
    }

    /// Sets the phase, in words.
    pub fn begin_phase(&self, phase: String) {
        *self.phase.lock() = phase;
    }

    /// The phase, and the number of operations since the run began.
    #[must_use]
    pub fn read(&self) -> (String, u64) {
        let all = self.operations.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum();
        (self.phase.lock().clone(), all)
    }
}
