// SPDX-License-Identifier: Apache-2.0
//! Histogram: counts latencies while they are measured, in constant time and memory.
//!
//! The buckets are those of the crate `hdrhistogram` with two significant digits: 37 KiB from 1 ns
//! to an hour, allocated once. `distribution` has the stored form and its error bound. Concurrency:
//! one rank owns a histogram; ranks are merged afterwards.

use hdrhistogram::Histogram;

use crate::distribution::LatencyDistribution;

/// Greatest latency with a bucket of its own magnitude: one hour. Longer ones count in the last
/// bucket; the maximum stays exact.
const LATENCY_NS_MAX: u64 = 3_600 * 1_000_000_000;

/// Significant decimal digits: 256 buckets for the first 256 ns, then 128 for every power of two.
const DIGITS: u8 = 2;

/// A histogram of latencies that is being filled.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    counts: Histogram<u64>,
    min_ns: u64,
    max_ns: u64,
    sum_ns: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        let counts = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
        let counts = counts.expect("constant bounds that are good");
        Self { counts, min_ns: u64::MAX, max_ns: 0, sum_ns: 0 }
    }
}

impl LatencyHistogram {
    /// Counts a latency. Allocates nothing.
    pub fn record(&mut self, latency_ns: u64) {
        self.counts.saturating_record(latency_ns);
        self.min_ns = self.min_ns.min(latency_ns);
        self.max_ns = self.max_ns.max(latency_ns);
        self.sum_ns = self.sum_ns.saturating_add(latency_ns);
    }

    /// Number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Sum of the latencies, in nanoseconds.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The stored form.
    #[must_use]
    pub fn distribution(&self) -> LatencyDistribution {
        let buckets: Vec<(u64, u64)> = self
            .counts
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
            .collect();
        let count = self.count();
        let min_ns = if count == 0 { 0 } else { self.min_ns };
        LatencyDistribution { count, min_ns, max_ns: self.max_ns, sum_ns: self.sum_ns, buckets }
    }
}
