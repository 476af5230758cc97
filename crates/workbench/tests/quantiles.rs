// SPDX-License-Identifier: Apache-2.0
//! Quantiles of histograms against exact ones, and merges against the whole.

use esker_workbench::distribution::{LatencyDistribution, RELATIVE_ERROR_MAX, bucket_start};
use esker_workbench::histogram::LatencyHistogram;
use proptest::prelude::*;

fn distribution(latencies: &[u64]) -> LatencyDistribution {
    let mut histogram = LatencyHistogram::default();
    latencies.iter().for_each(|latency| histogram.record(*latency));
    histogram.distribution()
}

/// Latencies of all magnitudes up to half an hour.
fn latencies() -> impl Strategy<Value = Vec<u64>> {
    let latency = (0u32..41, any::<u64>()).prop_map(|(bits, random)| random & ((1 << bits) - 1));
    prop::collection::vec(latency, 1..400)
}

proptest! {
    #[test]
    fn quantiles_are_within_the_stated_error(all in latencies(), quantile in 0.0..=1.0f64) {
        let mut sorted = all.clone();
        sorted.sort_unstable();
        let distribution = distribution(&all);
        prop_assert_eq!(distribution.defect(), None);
        let rank = (quantile * sorted.len() as f64).ceil().max(1.0) as usize;
        let (exact, found) = (sorted[rank - 1], distribution.quantile_ns(quantile));
        let bound = exact as f64 * (1.0 + RELATIVE_ERROR_MAX);
        prop_assert!(exact <= found && found as f64 <= bound, "{} for {}", found, exact);
        prop_assert_eq!(distribution.min_ns, sorted[0]);
        prop_assert_eq!(distribution.max_ns, sorted[sorted.len() - 1]);
        prop_assert_eq!(distribution.sum_ns, sorted.iter().sum::<u64>());
    }

    #[test]
    fn merged_ranks_equal_the_whole(parts in prop::collection::vec(latencies(), 1..6)) {
        let mut merged = LatencyDistribution::default();
        parts.iter().for_each(|part| merged.merge(&distribution(part)));
        prop_assert_eq!(merged, distribution(&parts.concat()));
    }

    #[test]
    fn buckets_begin_where_the_last_one_ends(latency in 0u64..3_600_000_000_000) {
        let found = distribution(&[latency]);
        let last = found.buckets[0].0;
        prop_assert!(bucket_start(last) <= latency && latency <= last);
        let before = bucket_start(last).saturating_sub(1);
        prop_assert!(latency == 0 || distribution(&[before]).buckets[0].0 <= before);
    }
}

/// Latencies over an hour keep the count, and the maximum stays exact.
#[test]
fn latencies_over_the_bound_are_counted() {
    let day = 86_400_000_000_000;
    let found = distribution(&[5, day]);
    assert_eq!((found.count, found.max_ns, found.defect()), (2, day, None));
}
