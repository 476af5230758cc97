// SPDX-License-Identifier: Apache-2.0
//! Rates: the number of operations of a benchmark in each second, over all of its threads.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::report::{BenchRate, ResourceMeter};

/// Operations of a thread between two updates.
const UPDATE: u64 = 1 << 10;
/// Length of a part, in seconds.
const PART_SECONDS: f64 = 1.0;

/// Counts operations of threads.
pub struct RateMeter<'a> {
    meter: ResourceMeter,
    done: AtomicU64,
    parts: Mutex<RateParts>,
    /// Returns the runs of tables.
    runs: &'a (dyn Fn() -> usize + Sync),
}

/// The parts that have ended, and the end of the last one.
#[derive(Default)]
struct RateParts {
    rates: Vec<BenchRate>,
    seconds: f64,
    done: u64,
}

impl<'a> RateMeter<'a> {
    /// Starts measuring; `runs` returns the number of runs of tables.
    pub fn start(runs: &'a (dyn Fn() -> usize + Sync)) -> Self {
        let (done, parts) = Default::default();
        Self { meter: ResourceMeter::start(), done, parts, runs }
    }

    /// Records that `thread` has done `count` operations so far; call it after each of them.
    #[inline]
    pub fn count(&self, thread: usize, count: u64) {
        if count.is_multiple_of(UPDATE) {
            let done = self.done.fetch_add(UPDATE, Ordering::Relaxed) + UPDATE;
            // One thread looks at the clock.
            if thread == 0 {
                self.end_part(done, PART_SECONDS);
            }
        }
    }

    fn end_part(&self, done: u64, seconds_min: f64) {
        let (seconds, mut parts) = (self.meter.seconds(), self.parts.lock());
        let length = seconds - parts.seconds;
        if length < seconds_min {
            return;
        }
        let operations_per_second = (done - parts.done) as f64 / length.max(1e-9);
        parts.rates.push(BenchRate { seconds, operations_per_second, runs: (self.runs)() });
        (parts.seconds, parts.done) = (seconds, done);
    }

    /// Ends the measurement after `operations` operations; returns the rates.
    pub fn stop(self, operations: u64) -> Vec<BenchRate> {
        // A short last part gives an inaccurate rate, but is all that a short benchmark has.
        let seconds_min = if self.parts.lock().rates.is_empty() { 0.0 } else { PART_SECONDS / 2.0 };
        self.end_part(operations, seconds_min);
        self.parts.into_inner().rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_benchmark_has_one_rate_of_all_operations() {
        let runs = || 3;
        let meter = RateMeter::start(&runs);
        (1..=2 * UPDATE).for_each(|count| meter.count(0, count));
        std::thread::sleep(std::time::Duration::from_millis(20));
        let rates = meter.stop(3 * UPDATE);
        assert_eq!(rates.len(), 1);
        let operations = rates[0].operations_per_second * rates[0].seconds;
        assert!((operations - (3 * UPDATE) as f64).abs() < 1.0, "{rates:?}");
        assert_eq!(rates[0].runs, 3);
    }
}
