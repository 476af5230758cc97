// SPDX-License-Identifier: Apache-2.0
//! The cost of measuring, in time and memory.
//!
//! Bounds on time hold for release builds: `cargo test --release -p esker-workbench --test main
//! overhead -- --nocapture` asserts and prints them.

use esker_base::clock::SystemClock;
use esker_workbench::backend::NullBackend;
use esker_workbench::operation::Operation;
use esker_workbench::options::RunOptions;
use esker_workbench::progress::RunProgress;
use esker_workbench::recorder::{OperationRecorder, OperationTiming, RecorderOptions};
use esker_workbench::run::run_threads;
use esker_workbench::slowest::OUTLIERS_MAX;
use esker_workbench::timer::TimerOverhead;

/// Nanoseconds by which measuring may delay an operation.
const OPERATION_NS_MAX: f64 = 60.0;

/// Null operations per second of one rank.
const NULL_RATE_MIN: f64 = 5e6;

#[test]
fn measuring_costs_at_most_60_ns_and_null_runs_reach_5_million() {
    let rounds = 10;
    let overhead = (0..rounds).map(|_| TimerOverhead::measure(&SystemClock).operation_ns);
    let overhead = overhead.fold(f64::INFINITY, f64::min);
    let mut options = crate::runs::options();
    options.size.ranks = 1;
    options.size.object_bytes = 3_901;
    (options.size.objects, options.size.iterations) = (100_000, 100_000);
    let run = RunOptions { repeat: rounds, ..options };
    let result = run_threads(&NullBackend::default(), &run, &SystemClock, &RunProgress::new(1));
    let result = result.expect("a run");
    let rate = result.phases.iter().map(|phase| phase.rate()).fold(0.0, f64::max);
    println!("measuring: {overhead:.1} ns an operation; null: {:.2} M operations/s", rate / 1e6);
    if cfg!(not(debug_assertions)) {
        assert!(overhead <= OPERATION_NS_MAX, "{overhead} ns");
        assert!(rate >= NULL_RATE_MIN, "{rate} operations/s");
    }
}

/// The memory of a recorder does not grow with the number of operations.
#[test]
fn memory_is_independent_of_the_number_of_operations() {
    let record = |operations: u64| {
        let options = RecorderOptions { has_intended_times: true, ..RecorderOptions::default() };
        let mut recorder = OperationRecorder::new(Operation::Create, &options, 0);
        for number in 0..operations {
            // Latencies of all magnitudes; one in eight is an outlier.
            let latency_ns = 1 << (number * 7 % 31);
            let timing = OperationTiming {
                intended_ns: Some(number),
                start_ns: number + 1,
                end_ns: number + latency_ns,
                late_ns: 1,
            };
            recorder.record(&timing, || format!("object-{number}"));
        }
        recorder.into_record()
    };
    let (some, many) = (record(100_000), record(3_000_000));
    assert_eq!((some.service.count, many.service.count), (100_000, 3_000_000));
    assert_eq!(some.points.len(), many.points.len());
    assert_eq!((some.slowest.len(), many.slowest.len()), (OUTLIERS_MAX, OUTLIERS_MAX));
    assert_eq!(some.service.buckets.len(), many.service.buckets.len());
    assert!(many.outliers_dropped > some.outliers_dropped);
}
