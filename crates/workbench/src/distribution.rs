// SPDX-License-Identifier: Apache-2.0
//! Distribution: the latencies of one kind of operation, as counts of buckets.
//!
//! Bucket `u` holds the latencies whose bucket ends at `u` nanoseconds. Buckets are exact below 256
//! ns; above, each is at most 1/128 of its lower bound wide. A quantile is therefore never below
//! the exact one, and at most [`RELATIVE_ERROR_MAX`] above it. Minimum, maximum and sum are exact.
//! Invariants: buckets ascend and none is empty; their counts add up to `count`.

use serde::{Deserialize, Serialize};

/// Bound on the relative error of a quantile, always upwards: the width of a bucket divided by its
/// lower bound.
pub const RELATIVE_ERROR_MAX: f64 = 1.0 / 128.0;

/// Values below this have buckets of their own.
const EXACT_BELOW: u64 = 256;

/// Latencies as counts of buckets; distributions of several ranks merge without loss.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyDistribution {
    /// Number of latencies.
    pub count: u64,
    /// The least, in nanoseconds; 0 if there are none.
    pub min_ns: u64,
    /// The greatest, in nanoseconds.
    pub max_ns: u64,
    /// Their sum, in nanoseconds.
    pub sum_ns: u64,
    /// The last value of each bucket that is not empty, in nanoseconds, and its count.
    pub buckets: Vec<(u64, u64)>,
}

/// The first value of the bucket that ends at `last`.
#[must_use]
pub const fn bucket_start(last: u64) -> u64 {
    if last < EXACT_BELOW {
        return last;
    }
    let shift = 63 - last.leading_zeros() - 7;
    last >> shift << shift
}

impl LatencyDistribution {
    /// Adds the latencies of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min_ns = if self.count == 0 { other.min_ns } else { self.min_ns.min(other.min_ns) };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        // Files may state any counts.
        self.count = self.count.saturating_add(other.count);
        let mut merged: Vec<(u64, u64)> =
            Vec::with_capacity(self.buckets.len().max(other.buckets.len()));
        let (mut ours, mut theirs) =
            (self.buckets.iter().peekable(), other.buckets.iter().peekable());
        loop {
            let take_ours = match (ours.peek(), theirs.peek()) {
                (None, None) => break,
                (Some(a), Some(b)) => a.0 <= b.0,
                (ours, _) => ours.is_some(),
            };
            let next = if take_ours { ours.next() } else { theirs.next() };
            let &(last, count) = next.expect("peeked");
            match merged.last_mut() {
                Some((before, sum)) if *before == last => *sum = sum.saturating_add(count),
                _ => merged.push((last, count)),
            }
        }
        self.buckets = merged;
    }

    /// The latency in nanoseconds that a share of `quantile` (0 to 1) of all latencies does not
    /// exceed; at most [`RELATIVE_ERROR_MAX`] above the exact one. 0 if there are none.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let target = (quantile.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for &(last, count) in &self.buckets {
            below += count;
            if below >= target {
                return last.clamp(self.min_ns, self.max_ns);
            }
        }
        self.max_ns
    }

    /// The mean in nanoseconds; 0 if there are none.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_ns as f64 / self.count as f64 }
    }

    /// Describes the first broken invariant; distributions from files may have any content.
    #[must_use]
    pub fn defect(&self) -> Option<&'static str> {
        let counted = self.buckets.iter().try_fold(0u64, |sum, (_, count)| sum.checked_add(*count));
        if !self.buckets.is_sorted_by(|a, b| a.0 < b.0) {
            return Some("buckets do not ascend");
        }
        if self.buckets.iter().any(|(_, count)| *count == 0) {
            return Some("a bucket is empty");
        }
        if counted != Some(self.count) {
            return Some("the counts of the buckets do not add up to `count`");
        }
        (self.min_ns > self.max_ns).then_some("the minimum exceeds the maximum")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_distribution_has_quantiles() {
        let none = LatencyDistribution::default();
        assert_eq!((none.quantile_ns(0.5), none.mean_ns(), none.defect()), (0, 0.0, None));
    }

    #[test]
    fn broken_files_are_recognized() {
        let of = |count, buckets: &[(u64, u64)]| LatencyDistribution {
            count,
            max_ns: 9,
            buckets: buckets.to_vec(),
            ..LatencyDistribution::default()
        };
        assert!(of(2, &[(5, 1), (9, 1)]).defect().is_none());
        for broken in [of(2, &[(9, 1), (5, 1)]), of(1, &[(5, 0), (9, 1)]), of(3, &[(5, 1)])] {
            assert!(broken.defect().is_some());
        }
        assert!(of(1, &[(1, u64::MAX), (2, 2)]).defect().is_some());
    }
}
