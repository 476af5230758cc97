// SPDX-License-Identifier: Apache-2.0
//! Timer: the cost of measuring, measured on the machine that measures.

use esker_base::Clock;
use serde::{Deserialize, Serialize};

use crate::operation::Operation;
use crate::recorder::{OperationRecorder, OperationTiming, RecorderOptions};

/// Repetitions of a measurement; the fastest of [`ROUNDS`] counts.
const REPETITIONS: u64 = 10_000;
const ROUNDS: usize = 5;

/// The cost of measuring an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimerOverhead {
    /// Nanoseconds of one reading of the clock. A recorded latency includes about one.
    pub reading_ns: f64,
    /// Nanoseconds of recording one latency: histogram, sample and outliers.
    pub recording_ns: f64,
    /// Nanoseconds by which measuring delays an operation in a closed loop: two readings and one
    /// recording.
    pub operation_ns: f64,
}

impl TimerOverhead {
    /// Measures the cost with `clock`. Takes a few milliseconds.
    #[must_use]
    pub fn measure(clock: &dyn Clock) -> Self {
        let reading_ns = fastest(clock, || {
            std::hint::black_box(clock.monotonic_ns());
        });
        let options = RecorderOptions::default();
        let mut recorder = OperationRecorder::new(Operation::Stat, &options, 0);
        let mut at_ns = 0;
        let recording_ns = fastest(clock, || {
            at_ns += 100;
            let (start_ns, end_ns) = (at_ns, at_ns + 50);
            let timing = OperationTiming { intended_ns: None, start_ns, end_ns, late_ns: 0 };
            recorder.record(std::hint::black_box(&timing), String::new);
        });
        Self { reading_ns, recording_ns, operation_ns: 2.0 * reading_ns + recording_ns }
    }
}

fn fastest(clock: &dyn Clock, mut work: impl FnMut()) -> f64 {
    let mut round = || {
        let start_ns = clock.monotonic_ns();
        (0..REPETITIONS).for_each(|_| work());
        (clock.monotonic_ns() - start_ns) as f64 / REPETITIONS as f64
    };
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}
