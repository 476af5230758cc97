// SPDX-License-Identifier: Apache-2.0
//! The statistics of md-workbench and mdtest (IOR 4.0) beside those of the workbench, on the same
//! latencies. The definitions of the originals are restated here:
//!
//! | figure | md-workbench | workbench |
//! |---|---|---|
//! | quantile q of n sorted times | number ⌊q (n - 1) + 0.99⌋, from 0 | number ⌈q n⌉ - 1 |
//! | median | for even n the mean of both middle times | number ⌈n / 2⌉ - 1 |
//! | times | seconds in single precision | buckets at most 1/128 wide |
//! | rate of a benchmark | 4 × reads / longest time of a rank | calls / longest time of a rank |
//! | balance | 100 × shortest / longest time of a rank | shortest / longest |
//! | rate of mdtest | lowest rate of a rank × ranks | calls / longest time of a rank |
//!
//! For n = 100 k + 1 the quantiles of both are of the same call; for others the original's may be
//! of the next slower one.

use esker_base::Random;
use esker_workbench::distribution::{LatencyDistribution, RELATIVE_ERROR_MAX};
use esker_workbench::histogram::LatencyHistogram;
use esker_workbench::operation::Operation;
use esker_workbench::recorder::{OperationRecorder, OperationTiming, RecorderOptions};
use esker_workbench::result::{PhaseKind, PhasePlan, PhaseResult, RankPhase};

/// The quantiles that md-workbench prints, without the median.
const QUANTILES: [f64; 4] = [0.25, 0.75, 0.9, 0.99];

/// The number of md-workbench's quantile in `count` sorted times.
fn original_number(count: usize, quantile: f64) -> usize {
    // It computes in single precision, and rounds halves away from zero.
    (f64::from(quantile as f32 * (count - 1) as f32) + 0.49).round() as usize
}

/// A time in nanoseconds as md-workbench prints it: seconds in single precision.
fn original_seconds(ns: u64) -> f32 {
    (ns as f64 / 1e9) as f32
}

fn distribution(latencies: &[u64]) -> LatencyDistribution {
    let mut histogram = LatencyHistogram::default();
    latencies.iter().for_each(|latency| histogram.record(*latency));
    histogram.distribution()
}

fn random_latencies(count: usize, below: u64, random: &mut Random) -> Vec<u64> {
    (0..count).map(|_| 1 + random.below(below)).collect()
}

/// Up to 256 ns buckets are exact, so both print the same number; above, ours is at most 1/128
/// higher.
#[test]
fn quantiles_equal_those_of_md_workbench() {
    let mut random = Random::from_seed(11);
    for count in [101, 1_001, 20_001] {
        for below in [255, 1 << 30] {
            let mut latencies = random_latencies(count, below, &mut random);
            let ours = distribution(&latencies);
            latencies.sort_unstable();
            let mut figures: Vec<(f64, u64)> = QUANTILES
                .map(|quantile| (quantile, latencies[original_number(count, quantile)]))
                .into();
            figures.extend([(0.5, latencies[count / 2]), (0.0, latencies[0])]);
            figures.push((1.0, latencies[count - 1]));
            for (quantile, theirs) in figures {
                let found = ours.quantile_ns(quantile);
                if below == 255 {
                    assert_eq!(found, theirs, "{quantile} of {count}");
                }
                let ratio = f64::from(original_seconds(found) / original_seconds(theirs));
                let bound = 1.0..=1.0 + RELATIVE_ERROR_MAX + 1e-6;
                assert!(bound.contains(&ratio), "{quantile} of {count}: {found} for {theirs}");
            }
        }
    }
}

/// For any number of calls, the original's quantile is of our call or of the next slower one.
#[test]
fn other_quantiles_differ_by_one_call() {
    let mut agreeing = 0;
    for count in 2..5_000_usize {
        for quantile in QUANTILES {
            let ours = (quantile * count as f64).ceil().max(1.0) as usize - 1;
            let theirs = original_number(count, quantile);
            assert!(
                theirs == ours || theirs == ours + 1,
                "{quantile} of {count}: {ours}, {theirs}"
            );
            agreeing += usize::from(ours == theirs);
        }
    }
    assert!(agreeing > 4_998 * QUANTILES.len() / 2, "{agreeing}");
}

/// Three ranks that call each operation equally often and end at different times.
fn phase(kind: PhaseKind, operations: &[Operation], calls: u64, times_ns: [u64; 3]) -> PhaseResult {
    let rank = |rank: u32| {
        let record = |operation: &Operation| {
            let options = RecorderOptions { rank, ..RecorderOptions::default() };
            let mut recorder = OperationRecorder::new(*operation, &options, 0);
            for number in 0..calls {
                let (start_ns, end_ns) = (number * 1_000, number * 1_000 + 900);
                let timing = OperationTiming { intended_ns: None, start_ns, end_ns, late_ns: 0 };
                recorder.record(&timing, String::new);
            }
            recorder.into_record()
        };
        RankPhase {
            rank,
            plan: PhasePlan::of(kind),
            duration_ns: times_ns[rank as usize],
            iterations: calls,
            stonewall: None,
            entries: 0,
            preemptions: 0,
            operations: operations.iter().map(record).collect(),
        }
    };
    PhaseResult::of_ranks((0..3).map(rank).collect(), 100)
}

#[test]
fn rates_and_balance_equal_those_of_the_originals() {
    let (calls, times_ns) = (1_000, [2_000_000_000, 1_600_000_000, 1_900_000_000]);
    let mixed = [Operation::Stat, Operation::Read, Operation::Delete, Operation::Create];
    let benchmark = phase(PhaseKind::Benchmark, &mixed, calls, times_ns);
    let (reads, longest, shortest) = (3.0 * calls as f64, 2.0, 1.6);
    let close = |ours: f64, theirs: f64| assert!((ours / theirs - 1.0).abs() < 1e-12, "{ours}");
    close(benchmark.rate(), 4.0 * reads / longest);
    close(benchmark.create_rate(), reads / longest);
    close(100.0 * benchmark.balance(), 100.0 * shortest / longest);
    let read_only = phase(PhaseKind::ReadOnly, &mixed[..2], calls, times_ns);
    close(read_only.rate(), 2.0 * reads / longest);
    let created = phase(PhaseKind::Precreate, &[Operation::Create], calls, times_ns);
    let rates = times_ns.map(|ns| calls as f64 * 1e9 / ns as f64);
    close(created.rate(), 3.0 * rates.into_iter().fold(f64::INFINITY, f64::min));
}
