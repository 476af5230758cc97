// SPDX-License-Identifier: Apache-2.0
//! Slowest: the outliers of one kind of operation, each with time, rank and path.
//!
//! All operations at or over the threshold are kept, up to [`OUTLIERS_MAX`] of them per rank, phase
//! and operation; beyond that the slowest of them, and the number of the others. The
//! [`SLOWEST_MIN`] slowest operations below the threshold are kept, too.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

/// Outliers kept per rank, phase and operation: 4,096 of about 100 bytes.
pub const OUTLIERS_MAX: usize = 4_096;

/// Slow operations kept even if none is an outlier.
pub const SLOWEST_MIN: usize = 8;

const _: () = assert!(SLOWEST_MIN <= OUTLIERS_MAX);

/// A slow operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlowOperation {
    /// Its latency in nanoseconds; in an open loop, its response time.
    pub latency_ns: u64,
    /// When it began, as in [`crate::reservoir::LatencyPoint::at_ns`].
    pub at_ns: u64,
    /// The rank that called it.
    pub rank: u32,
    /// The object or dataset.
    pub path: String,
}

/// The slowest operations so far.
#[derive(Debug)]
pub struct SlowestOperations {
    threshold_ns: u64,
    kept: BinaryHeap<Reverse<SlowOperation>>,
    /// Latencies below this are not kept.
    floor_ns: u64,
    dropped: u64,
}

impl SlowestOperations {
    /// Keeps all operations that take at least `threshold_ns`.
    #[must_use]
    pub fn new(threshold_ns: u64) -> Self {
        Self { threshold_ns, kept: BinaryHeap::new(), floor_ns: 0, dropped: 0 }
    }

    /// Offers an operation; `describe` is called only if it is kept.
    pub fn offer(&mut self, latency_ns: u64, describe: impl FnOnce() -> SlowOperation) {
        if latency_ns < self.floor_ns {
            return;
        }
        let is_outlier = latency_ns >= self.threshold_ns;
        let is_full = self.kept.len() >= if is_outlier { OUTLIERS_MAX } else { SLOWEST_MIN };
        if is_full && let Some(Reverse(fastest)) = self.kept.peek() {
            let drops_outlier = fastest.latency_ns >= self.threshold_ns;
            self.dropped += u64::from(is_outlier && drops_outlier);
            if fastest.latency_ns >= latency_ns {
                return;
            }
            self.kept.pop();
        }
        self.kept.push(Reverse(describe()));
        if self.kept.len() >= SLOWEST_MIN {
            let fastest = self.kept.peek().expect("just pushed");
            self.floor_ns = fastest.0.latency_ns.min(self.threshold_ns);
        }
    }

    /// The operations, the slowest first, and the number of outliers that are not among them.
    #[must_use]
    pub fn into_parts(self) -> (Vec<SlowOperation>, u64) {
        let kept = self.kept.into_sorted_vec().into_iter().map(|Reverse(slow)| slow).collect();
        (kept, self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer_all(latencies: impl IntoIterator<Item = u64>) -> (Vec<u64>, u64) {
        let mut slowest = SlowestOperations::new(1_000);
        for latency_ns in latencies {
            let slow = || SlowOperation { latency_ns, at_ns: 0, rank: 0, path: String::new() };
            slowest.offer(latency_ns, slow);
        }
        let (kept, dropped) = slowest.into_parts();
        (kept.into_iter().map(|slow| slow.latency_ns).collect(), dropped)
    }

    #[test]
    fn the_slowest_are_kept_even_without_outliers() {
        let (kept, dropped) = offer_all((0..100).map(|number| number * 37 % 100));
        assert_eq!((kept, dropped), ((92..100).rev().collect(), 0));
    }

    #[test]
    fn outliers_over_the_bound_are_counted() {
        let all = OUTLIERS_MAX as u64 + 10;
        let (kept, dropped) = offer_all((0..all).map(|number| 1_000 + number));
        assert_eq!((kept.len(), kept[0], dropped), (OUTLIERS_MAX, 1_000 + all - 1, 10));
    }
}
