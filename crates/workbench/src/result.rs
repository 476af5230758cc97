// SPDX-License-Identifier: Apache-2.0
//! Result: the measurements of a run, all ranks together; docs/format/workbench-result.md describes
//! the JSON.

use std::collections::BTreeMap;
use std::fmt;

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::distribution::LatencyDistribution;
use crate::environment::RunEnvironment;
use crate::io500::{Io500Phase, Io500Score};
use crate::operation::Operation;
use crate::options::RunOptions;
use crate::pace::Pacing;
use crate::recorder::RankOperation;
use crate::reservoir::LatencyPoint;
use crate::slowest::{OUTLIERS_MAX, SlowOperation};
use crate::timer::TimerOverhead;

/// The name of the format.
pub const FORMAT: &str = "esker-workbench-result";
/// Its version.
pub const VERSION: u32 = 3;

/// Most calls of a phase: their number is exact as a floating-point number.
const CALLS_MAX: u64 = 1 << 53;

/// Largest result that is read, in bytes: twenty times that of 256 ranks with full timelines.
pub const RESULT_BYTES_MAX: u64 = 1 << 30;

/// The kind of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PhaseKind {
    /// Creates the working set.
    Precreate,
    /// Stat, read, delete and create, in FIFO order.
    Benchmark,
    /// Stat and read.
    ReadOnly,
    /// Operations in random order at the shares of a mix.
    Mixed,
    /// Renames objects, makes and removes datasets, and lists.
    Names,
    /// All ranks create the same objects; one of them succeeds.
    Races,
    /// Removes the working set.
    Cleanup,
    /// A phase of IO500.
    #[serde(untagged)]
    Io500(Io500Phase),
}

impl PhaseKind {
    /// True if the phase creates or deletes something.
    #[must_use]
    pub const fn changes(self) -> bool {
        match self {
            Self::ReadOnly => false,
            Self::Io500(phase) => phase.changes(),
            _ => true,
        }
    }
}

/// One phase of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhasePlan {
    /// The kind of phase.
    pub kind: PhaseKind,
    /// The rule by which its operations follow each other.
    pub pacing: Pacing,
    /// Number among phases of the same kind and pacing, from 0.
    pub repetition: u32,
}

impl PhasePlan {
    /// A phase in a closed loop without waits.
    #[must_use]
    pub const fn of(kind: PhaseKind) -> Self {
        Self { kind, pacing: Pacing::UNTHROTTLED, repetition: 0 }
    }

    /// True if `other` is the same phase except for the repetition.
    #[must_use]
    pub fn is_repeated_by(&self, other: &Self) -> bool {
        self.kind == other.kind && self.pacing == other.pacing
    }

    /// The name without the repetition.
    #[must_use]
    pub fn name(&self) -> String {
        Self { repetition: 0, ..self.clone() }.to_string()
    }
}

impl fmt::Display for PhasePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            PhaseKind::Precreate => "precreate",
            PhaseKind::Benchmark => "benchmark",
            PhaseKind::ReadOnly => "read-only",
            PhaseKind::Mixed => "mixed",
            PhaseKind::Names => "names",
            PhaseKind::Races => "races",
            PhaseKind::Cleanup => "cleanup",
            PhaseKind::Io500(phase) => phase.name(),
        })?;
        match self.pacing {
            Pacing::Closed { waiting_factor } if waiting_factor > 0.0 => {
                write!(f, " T={waiting_factor}")?;
            }
            Pacing::Closed { .. } => {}
            Pacing::Open { rate, .. } => write!(f, " at {rate:.0}/s")?,
        }
        if self.repetition > 0 {
            write!(f, " #{}", self.repetition + 1)?;
        }
        Ok(())
    }
}

/// The calls of one rank up to the time limit of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StonewallCount {
    /// Nanoseconds since the phase began.
    pub duration_ns: u64,
    /// Calls that had succeeded.
    pub calls: u64,
}

/// The measurements of one rank in a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankPhase {
    /// The rank.
    pub rank: u32,
    /// The phase.
    pub plan: PhasePlan,
    /// Nanoseconds from the barrier until the rank was done.
    pub duration_ns: u64,
    /// Iterations done.
    pub iterations: u64,
    /// The calls up to the time limit.
    pub stonewall: Option<StonewallCount>,
    /// Entries that the rank's listings found; only in the find phase of IO500.
    pub entries: u64,
    /// Number of times that the scheduler preempted the rank.
    pub preemptions: u64,
    /// By operation.
    pub operations: Vec<RankOperation>,
}

/// One rank's share of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankSummary {
    /// The rank.
    pub rank: u32,
    /// Calls that succeeded.
    pub count: u64,
    /// Mean latency.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

/// One kind of operation in a phase, over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationResult {
    /// The operation.
    pub operation: Operation,
    /// Times from the beginning of each call to its return.
    pub service: LatencyDistribution,
    /// In an open loop, times from the intended beginning to the return.
    pub response: Option<LatencyDistribution>,
    /// In an open loop, the parts of the response times that the workbench itself causes.
    pub lateness: Option<LatencyDistribution>,
    /// Calls that failed, by kind of error; none of them is in a latency.
    pub failures: BTreeMap<String, u64>,
    /// The first error of the lowest rank that had one.
    pub first_failure: Option<String>,
    /// By rank: service times, in an open loop response times.
    pub ranks: Vec<RankSummary>,
    /// A sample for timelines.
    pub points: Vec<LatencyPoint>,
    /// The slowest operations, the slowest first.
    pub slowest: Vec<SlowOperation>,
    /// Outliers that are not in `slowest`.
    pub outliers_dropped: u64,
}

impl OperationResult {
    /// The times that a user waits: response times in an open loop, otherwise service times.
    #[must_use]
    pub fn latency(&self) -> &LatencyDistribution {
        self.response.as_ref().unwrap_or(&self.service)
    }

    /// Number of failed calls.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }
}

/// A phase in an open loop, all operations together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenLoop {
    /// Operations per second of all ranks that the phase offers.
    pub offered_rate: f64,
    /// Times from the intended beginning of each call to its return.
    pub response: LatencyDistribution,
    /// The parts of them that the workbench itself causes.
    pub lateness: LatencyDistribution,
}

impl OpenLoop {
    /// The share of all response times together that the workbench causes, from 0 to 1.
    #[must_use]
    pub fn late_share(&self) -> f64 {
        self.lateness.sum_ns as f64 / self.response.sum_ns.max(1) as f64
    }
}

/// A phase, over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    /// The phase.
    pub plan: PhasePlan,
    /// Seconds until the last rank was done: t_max.
    pub seconds: f64,
    /// Seconds until the first rank was done: t_min.
    pub seconds_min: f64,
    /// Iterations of each rank.
    pub iterations: u64,
    /// With a time limit: operations per second of all ranks until it was over.
    pub stonewall_rate: Option<f64>,
    /// Entries that listings found; only in the find phase of IO500.
    pub entries: u64,
    /// Number of preemptions of ranks, which may explain outliers.
    pub preemptions: u64,
    /// By operation.
    pub operations: Vec<OperationResult>,
}

impl PhaseResult {
    /// Joins the measurements of the ranks in one phase.
    #[must_use]
    pub fn of_ranks(ranks: Vec<RankPhase>, points_max: usize) -> Self {
        let plan = ranks.first().expect("a job has ranks").plan.clone();
        let seconds = |phase: &RankPhase| phase.duration_ns as f64 / 1e9;
        let stonewalls: Option<Vec<StonewallCount>> =
            ranks.iter().map(|phase| phase.stonewall).collect();
        let stonewall_rate = stonewalls.map(|counts| {
            let calls: u64 = counts.iter().map(|count| count.calls).sum();
            let longest = counts.iter().map(|count| count.duration_ns).max().unwrap_or(0);
            calls as f64 * 1e9 / longest.max(1) as f64
        });
        let mut result = Self {
            plan,
            seconds: ranks.iter().map(seconds).fold(0.0, f64::max),
            seconds_min: ranks.iter().map(seconds).fold(f64::INFINITY, f64::min),
            iterations: ranks.iter().map(|phase| phase.iterations).max().unwrap_or(0),
            stonewall_rate,
            entries: ranks.iter().map(|phase| phase.entries).sum(),
            preemptions: ranks.iter().map(|phase| phase.preemptions).sum(),
            operations: Vec::new(),
        };
        let mut by_operation: BTreeMap<Operation, OperationResult> = BTreeMap::new();
        for phase in ranks {
            for measured in phase.operations {
                let joined = by_operation
                    .entry(measured.operation)
                    .or_insert_with(|| OperationResult::empty(measured.operation));
                joined.add(phase.rank, measured);
            }
        }
        for operation in by_operation.values_mut() {
            operation.bound(points_max);
        }
        result.operations = by_operation.into_values().collect();
        result
    }

    /// t_min / t_max: 1 if all ranks were done at once.
    #[must_use]
    pub fn balance(&self) -> f64 {
        if self.seconds > 0.0 { self.seconds_min / self.seconds } else { 1.0 }
    }

    /// Calls that succeeded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.operations.iter().map(|operation| operation.service.count).sum()
    }

    /// Calls that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.operations.iter().map(OperationResult::failed).sum()
    }

    /// Calls that succeeded per second; entries per second in the find phase of IO500.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let count = match self.plan.kind {
            PhaseKind::Io500(Io500Phase::Find) => self.entries,
            _ => self.count(),
        };
        count as f64 / self.seconds.max(1e-9)
    }

    /// The operation, if the phase had any.
    #[must_use]
    pub fn operation(&self, operation: Operation) -> Option<&OperationResult> {
        self.operations.iter().find(|result| result.operation == operation)
    }

    /// Created objects per second; the paper's rate.
    #[must_use]
    pub fn create_rate(&self) -> f64 {
        let creates = self.operation(Operation::Create).map_or(0, |create| create.service.count);
        creates as f64 / self.seconds.max(1e-9)
    }

    /// The rate that as many ranks would reach without waiting: the rate multiplied by 1 + T.
    #[must_use]
    pub fn virtual_factor(&self) -> f64 {
        match self.plan.pacing {
            Pacing::Closed { waiting_factor } => 1.0 + waiting_factor,
            Pacing::Open { .. } => 1.0,
        }
    }

    /// In an open loop, the response times of all operations, and the part of them that the
    /// workbench itself adds; `None` in a closed loop.
    #[must_use]
    pub fn open_loop(&self) -> Option<OpenLoop> {
        let Pacing::Open { rate, .. } = self.plan.pacing else { return None };
        let mut found = OpenLoop { offered_rate: rate, ..OpenLoop::default() };
        for operation in &self.operations {
            found.response.merge(operation.latency());
            operation.lateness.iter().for_each(|lateness| found.lateness.merge(lateness));
        }
        Some(found)
    }

    /// Describes the first number that is impossible; phases from files may have any content.
    fn defect(&self) -> Option<String> {
        let mut calls = 0u64;
        for operation in &self.operations {
            let lateness = operation.lateness.as_ref().and_then(LatencyDistribution::defect);
            let defect = operation.service.defect().or(operation.latency().defect()).or(lateness);
            if let Some(defect) = defect {
                return Some(format!("{} of {}: {defect}", operation.operation, self.plan));
            }
            let late = operation.lateness.as_ref().map_or(0, |lateness| lateness.count);
            let counts = [operation.service.count, operation.latency().count, late];
            calls = operation
                .failures
                .values()
                .chain(&counts)
                .fold(calls, |sum, count| sum.saturating_add(*count));
        }
        (calls > CALLS_MAX).then(|| format!("{}: more calls than are possible", self.plan))
    }

    /// The slowest operation of all kinds, in nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.operations.iter().map(|result| result.latency().max_ns).max().unwrap_or(0)
    }
}

impl OperationResult {
    fn empty(operation: Operation) -> Self {
        Self {
            operation,
            service: LatencyDistribution::default(),
            response: None,
            lateness: None,
            failures: BTreeMap::new(),
            first_failure: None,
            ranks: Vec::new(),
            points: Vec::new(),
            slowest: Vec::new(),
            outliers_dropped: 0,
        }
    }

    fn add(&mut self, rank: u32, measured: RankOperation) {
        let latency = measured.response.as_ref().unwrap_or(&measured.service);
        self.ranks.push(RankSummary {
            rank,
            count: latency.count,
            mean_ns: latency.mean_ns(),
            p50_ns: latency.quantile_ns(0.5),
            p99_ns: latency.quantile_ns(0.99),
            max_ns: latency.max_ns,
        });
        self.service.merge(&measured.service);
        if let Some(response) = &measured.response {
            self.response.get_or_insert_default().merge(response);
        }
        if let Some(lateness) = &measured.lateness {
            self.lateness.get_or_insert_default().merge(lateness);
        }
        for (kind, count) in measured.failures {
            *self.failures.entry(kind).or_default() += count;
        }
        self.first_failure = self.first_failure.take().or(measured.first_failure);
        self.points.extend(measured.points);
        self.slowest.extend(measured.slowest);
        self.outliers_dropped += measured.outliers_dropped;
    }

    fn bound(&mut self, points_max: usize) {
        self.points.sort_unstable_by_key(|point| point.at_ns);
        let found = self.points.len();
        if found > points_max {
            // Evenly over time, so that no rank and no part of the phase is left out.
            let kept = (0..points_max).map(|kept| self.points[kept * found / points_max]);
            self.points = kept.collect();
        }
        self.slowest.sort_unstable_by(|a, b| b.cmp(a));
        let extra = self.slowest.len().saturating_sub(OUTLIERS_MAX);
        self.outliers_dropped += extra as u64;
        self.slowest.truncate(OUTLIERS_MAX);
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The program that measured.
    pub program: String,
    /// When the run began, in nanoseconds since the Unix epoch.
    pub began_ns: u64,
    /// The kind of backend.
    pub backend: String,
    /// The target as the user named it.
    pub target: String,
    /// The options of the run.
    pub options: RunOptions,
    /// The machine on which it ran.
    pub environment: RunEnvironment,
    /// The cost of measuring.
    pub timer: TimerOverhead,
    /// Warnings that the reader should know before trusting the numbers.
    pub warnings: Vec<String>,
    /// The metadata score of IO500, if its phases ran.
    pub io500: Option<Io500Score>,
    /// The phases, in order.
    pub phases: Vec<PhaseResult>,
    /// The reason that the working set could be neither removed nor kept, for the program that
    /// measured.
    #[serde(skip)]
    pub end_failure: Option<EndFailure>,
}

/// An error after the last phase.
#[derive(Clone, Debug, PartialEq)]
pub struct EndFailure {
    kind: Kind,
    context: String,
}

impl EndFailure {
    /// The failure with the kind and text of `error`.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        Self { kind: error.kind(), context: error.context().to_owned() }
    }

    /// The error, for a caller that has saved the result.
    #[must_use]
    pub fn error(&self) -> Error {
        Error::new(self.kind, self.context.clone())
    }
}

impl RunResult {
    /// The name of the run in reports.
    #[must_use]
    pub fn label(&self) -> &str {
        if self.options.label.is_empty() { &self.target } else { &self.options.label }
    }

    /// Reads a result.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are not a result, `Invalid` for another version; `name` says whose.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self> {
        let corrupt = |what: String| Error::new(Kind::Corrupt, format!("{name}: {what}"));
        let result: Self = serde_json::from_slice(bytes).map_err(|error| {
            corrupt("not a result of the workbench".to_owned()).with_source(error)
        })?;
        if result.format != FORMAT || result.version != VERSION {
            let what = format!(
                "{name}: {} of version {}, expected {FORMAT} of version {VERSION}",
                result.format, result.version
            );
            return Err(Error::new(Kind::Invalid, what));
        }
        match result.phases.iter().find_map(PhaseResult::defect) {
            Some(defect) => Err(corrupt(defect)),
            None => Ok(result),
        }
    }

    /// The first phase of each group of repetitions, with all of them.
    #[must_use]
    pub fn groups(&self) -> Vec<Vec<&PhaseResult>> {
        let mut groups: Vec<Vec<&PhaseResult>> = Vec::new();
        for phase in &self.phases {
            match groups.iter_mut().find(|group| group[0].plan.is_repeated_by(&phase.plan)) {
                Some(group) => group.push(phase),
                None => groups.push(vec![phase]),
            }
        }
        groups
    }
}
