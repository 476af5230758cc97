// SPDX-License-Identifier: Apache-2.0
//! Recorder: the statistics that one rank keeps of one kind of operation in one phase.
//!
//! Memory does not grow with the number of operations: one to three histograms, a sample, the
//! slowest operations, and one count per kind of failure. Failed operations are in no latency.

use std::collections::BTreeMap;

use esker_base::Error;
use serde::{Deserialize, Serialize};

use crate::distribution::LatencyDistribution;
use crate::histogram::LatencyHistogram;
use crate::operation::Operation;
use crate::reservoir::{LatencyPoint, PointReservoir};
use crate::slowest::{SlowOperation, SlowestOperations};

/// Default latency from which each operation is kept as an outlier: 0.1 s, as in MDWorkbench §5.3.
pub const OUTLIER_NS: u64 = 100_000_000;

/// Default number of points of a timeline that one rank samples.
const POINTS_PER_RANK: usize = 4_096;

/// Settings and bounds of a recorder.
#[derive(Clone, Debug)]
pub struct RecorderOptions {
    /// The rank that records.
    pub rank: u32,
    /// True in an open loop, where response times differ from service times.
    pub has_intended_times: bool,
    /// Latency from which every operation is kept, in nanoseconds.
    pub outlier_ns: u64,
    /// Points to sample for timelines.
    pub points_max: usize,
    /// Seed of the sample.
    pub seed: u64,
}

impl Default for RecorderOptions {
    fn default() -> Self {
        Self {
            rank: 0,
            has_intended_times: false,
            outlier_ns: OUTLIER_NS,
            points_max: POINTS_PER_RANK,
            seed: 0,
        }
    }
}

/// The times of one call, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct OperationTiming {
    /// In an open loop, the time at which the call should have begun.
    pub intended_ns: Option<u64>,
    /// When it began.
    pub start_ns: u64,
    /// When it returned.
    pub end_ns: u64,
    /// In an open loop, the time by which it began later because of the workbench itself;
    /// otherwise 0.
    pub late_ns: u64,
}

/// Records one kind of operation.
#[derive(Debug)]
pub struct OperationRecorder {
    operation: Operation,
    rank: u32,
    phase_start_ns: u64,
    service: LatencyHistogram,
    response: Option<LatencyHistogram>,
    lateness: Option<LatencyHistogram>,
    points: PointReservoir,
    slowest: SlowestOperations,
    failures: BTreeMap<String, u64>,
    first_failure: Option<String>,
}

impl OperationRecorder {
    /// Records `operation` of a phase that begins at `phase_start_ns`.
    #[must_use]
    pub fn new(operation: Operation, options: &RecorderOptions, phase_start_ns: u64) -> Self {
        let seed = options.seed ^ u64::from(options.rank) << 8 ^ operation.index() as u64;
        Self {
            operation,
            rank: options.rank,
            phase_start_ns,
            service: LatencyHistogram::default(),
            response: options.has_intended_times.then(LatencyHistogram::default),
            lateness: options.has_intended_times.then(LatencyHistogram::default),
            points: PointReservoir::new(options.points_max.max(1), seed),
            slowest: SlowestOperations::new(options.outlier_ns),
            failures: BTreeMap::new(),
            first_failure: None,
        }
    }

    /// Records a call that succeeded; `path` is called only if the call is among the slowest.
    #[inline]
    pub fn record(&mut self, timing: &OperationTiming, path: impl FnOnce() -> String) {
        let service_ns = timing.end_ns.saturating_sub(timing.start_ns);
        let began_ns = timing.intended_ns.unwrap_or(timing.start_ns);
        let latency_ns = timing.end_ns.saturating_sub(began_ns);
        self.service.record(service_ns);
        if let Some(response) = &mut self.response {
            response.record(latency_ns);
        }
        if let Some(lateness) = &mut self.lateness {
            lateness.record(timing.late_ns);
        }
        let at_ns = began_ns.saturating_sub(self.phase_start_ns);
        self.points.offer(LatencyPoint { at_ns, latency_ns });
        let rank = self.rank;
        self.slowest.offer(latency_ns, || SlowOperation { latency_ns, at_ns, rank, path: path() });
    }

    /// Counts a call that failed. Its time is in no latency.
    pub fn fail(&mut self, error: &Error) {
        *self.failures.entry(format!("{:?}", error.kind())).or_default() += 1;
        self.first_failure.get_or_insert_with(|| error.to_string());
    }

    /// Calls that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Calls that succeeded, and the sum of their service times in nanoseconds.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        (self.service.count(), self.service.sum_ns())
    }

    /// The stored form.
    #[must_use]
    pub fn into_record(self) -> RankOperation {
        let (slowest, outliers_dropped) = self.slowest.into_parts();
        RankOperation {
            operation: self.operation,
            service: self.service.distribution(),
            response: self.response.map(|response| response.distribution()),
            lateness: self.lateness.map(|lateness| lateness.distribution()),
            points: self.points.into_points(),
            slowest,
            outliers_dropped,
            failures: self.failures,
            first_failure: self.first_failure,
        }
    }
}

/// The measurements of one rank for one kind of operation in one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankOperation {
    /// The operation.
    pub operation: Operation,
    /// Times from the beginning of each call to its return.
    pub service: LatencyDistribution,
    /// In an open loop, times from the intended beginning to the return.
    pub response: Option<LatencyDistribution>,
    /// In an open loop, the parts of the response times that the workbench itself causes.
    pub lateness: Option<LatencyDistribution>,
    /// A sample for timelines.
    pub points: Vec<LatencyPoint>,
    /// The slowest operations, the slowest first.
    pub slowest: Vec<SlowOperation>,
    /// Outliers that are not in `slowest`.
    pub outliers_dropped: u64,
    /// Failed calls by the error's kind.
    pub failures: BTreeMap<String, u64>,
    /// The first error.
    pub first_failure: Option<String>,
}
