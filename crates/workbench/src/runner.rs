// SPDX-License-Identifier: Apache-2.0
//! Runner: one rank of a run, phase after phase.
//!
//! Phases begin and end together, at barriers. Ranks share nothing else, except three numbers after
//! each phase, from which all of them derive the same next phase. Invariants: (1) failed calls are
//! in no latency; (2) after a benchmark phase every rank has done the same number of iterations, so
//! the working set is the former one, shifted. The same holds after a mixed phase, whose ranks all
//! change datasets equally often.
//!
//! Source: MDWorkbench §3; IO500's stonewall with wear-out.

mod io500_phases;
mod mixed_phase;
mod race_phase;

use std::fmt;

use esker_base::{Error, Kind, Result};
use esker_comm::collective::{CollectiveOptions, Collectives, Reduction};
use esker_comm::{Rank, Transport};

use self::mixed_phase::ChangeCounts;
use crate::backend::{Backend, BackendConnection};
use crate::environment::{preemptions, processor_bits, shared_processors};
use crate::io500::Io500Phase;
use crate::object_content::ObjectContent;
use crate::operation::Operation;
use crate::options::RunOptions;
use crate::pace::{PaceClock, Pacing, RankPace, Waiting, request_exact_sleeps};
use crate::pattern::{DatasetId, ObjectId};
use crate::progress::RunProgress;
use crate::recorder::{OperationRecorder, OperationTiming, RecorderOptions};
use crate::result::{PhaseKind, PhasePlan, RankPhase, StonewallCount};

/// Least improvement of the mean latency for which the adaptive mode doubles the waiting factor
/// once more.
const ADAPTIVE_GAIN: f64 = 0.95;

/// Greatest waiting factor of the adaptive mode.
const ADAPTIVE_FACTOR_MAX: f64 = 64.0;

/// Iterations of a names phase between two listings of a dataset, which take longer by far.
const LISTING_INTERVAL: u64 = 16;

/// Distance from an object's number to that of its other name: no object has such a number.
const SPARE_NUMBERS: u64 = 1 << 60;

/// Rates of the saturation sweep, as shares of the closed loop's rate.
pub const SATURATION_SHARES: [f64; 9] = [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1];

/// Everything that the ranks of one process share.
pub struct RunContext<'a> {
    /// The service.
    pub backend: &'a dyn Backend,
    /// The options of the run.
    pub options: &'a RunOptions,
    /// The clock.
    pub clock: &'a dyn PaceClock,
    /// The counters of progress.
    pub progress: &'a RunProgress,
    /// True if the working set exists already.
    pub is_reused: bool,
    /// The number of the first object.
    pub shift: u64,
}

/// Totals of a phase over all ranks.
struct PhaseTotals {
    seconds: f64,
    operations: u64,
    /// Changes of the working set that failed.
    failed: u64,
    mean_ns: f64,
}

/// One rank of a run.
pub struct RankRunner<'a, 't> {
    context: &'a RunContext<'a>,
    collectives: Collectives<&'t mut dyn Transport>,
    connection: Box<dyn BackendConnection + 'a>,
    rank: u32,
    shift: u64,
    content: ObjectContent,
    found: Vec<u8>,
    /// The recorders of the current phase, by operation.
    recorders: Vec<Option<OperationRecorder>>,
    recorder_options: RecorderOptions,
    phase_start_ns: u64,
    pace: RankPace,
    neighbours: u32,
    processors: u32,
    /// Files of each rank after the write phases of IO500: easy and hard.
    io500_files: [u64; 2],
    /// Entries that listings of the current phase found.
    entries: u64,
    /// The changes of the current mixed phase.
    changed: ChangeCounts,
    /// True once a change of the working set has failed: it stays partial, even if later changes
    /// succeed.
    lacks_objects: bool,
    phases: Vec<RankPhase>,
}

impl<'a, 't> RankRunner<'a, 't> {
    /// Connects a rank.
    ///
    /// # Errors
    /// `Invalid` if the job has another number of ranks than the working set; as the backend.
    pub fn new(context: &'a RunContext<'a>, transport: &'t mut dyn Transport) -> Result<Self> {
        let options = context.options;
        if transport.size() != options.size.ranks {
            let what = format!(
                "the job has {} ranks, but the working set is for {}",
                transport.size(),
                options.size.ranks
            );
            return Err(Error::new(Kind::Invalid, what));
        }
        let rank = transport.rank().0;
        let nodes = transport.nodes();
        let neighbours = nodes.members(nodes.node(transport.rank())).len() as u32;
        let has_one_node = nodes.nodes() == 1;
        let recorder_options = RecorderOptions {
            rank,
            has_intended_times: false,
            outlier_ns: options.outlier_ns,
            points_max: (options.points_max / options.size.ranks).max(64) as usize,
            seed: options.seed,
        };
        let connection = context.backend.connect(rank, &options.size)?;
        let mut collectives = Collectives::new(transport, CollectiveOptions::default());
        let own = processor_bits();
        let all = collectives.all_reduce(Rank(0), own.clone(), &mut |all, bits| {
            all.iter_mut().zip(bits).for_each(|(all, bits)| *all |= bits);
        })?;
        // Those of other nodes do not count.
        let processors = shared_processors(&own, if has_one_node { &all } else { &own });
        Ok(Self {
            connection,
            collectives,
            rank,
            shift: context.shift,
            content: ObjectContent::new(options.size.object_bytes as usize),
            found: Vec::new(),
            recorders: Vec::new(),
            recorder_options,
            phase_start_ns: 0,
            pace: RankPace::new(Waiting::of(neighbours, processors)),
            neighbours,
            processors,
            io500_files: [0; 2],
            entries: 0,
            changed: ChangeCounts::default(),
            lacks_objects: false,
            phases: Vec::new(),
            context,
        })
    }

    /// Number of ranks on this rank's node, and of processors that they may use.
    #[must_use]
    pub fn node(&self) -> (u32, u32) {
        (self.neighbours, self.processors)
    }

    /// Runs all phases; returns the measurements of this rank, and the shift of the remaining
    /// working set. `write_shift` makes the shift durable; rank 0 calls it with `None` before a
    /// phase that changes the working set, and with the shift after it.
    ///
    /// # Errors
    /// As the transport, as `write_shift`, and as the backend for calls that are not measured.
    /// Failures of measured calls are counted instead.
    pub fn run(
        mut self,
        write_shift: &dyn Fn(Option<u64>) -> Result<()>,
    ) -> Result<(Vec<RankPhase>, u64)> {
        let options = self.context.options;
        request_exact_sleeps();
        if options.io500 {
            for kind in Io500Phase::ALL.map(PhaseKind::Io500) {
                self.phase(&PhasePlan::of(kind), write_shift)?;
            }
            return Ok((self.phases, self.shift));
        }
        if !self.context.is_reused {
            self.phase(&PhasePlan::of(PhaseKind::Precreate), write_shift)?;
        }
        let mut unthrottled = None;
        for &waiting_factor in &options.waiting_factors {
            let totals = self.repeat(Pacing::Closed { waiting_factor }, write_shift)?;
            if waiting_factor == 0.0 {
                unthrottled = Some(totals);
            }
        }
        if options.adaptive {
            self.adapt(unthrottled.as_ref(), write_shift)?;
        }
        for &rate in &options.rates {
            self.repeat(Pacing::Open { rate, arrivals: options.arrivals }, write_shift)?;
        }
        if options.saturation {
            let peak = match unthrottled {
                Some(totals) => totals,
                None => self.repeat(Pacing::UNTHROTTLED, write_shift)?,
            };
            for share in SATURATION_SHARES {
                let rate = share * peak.operations as f64 / peak.seconds.max(1e-9);
                let pacing = Pacing::Open { rate: rate.max(1e-3), arrivals: options.arrivals };
                self.repeat(pacing, write_shift)?;
            }
        }
        if options.names {
            for repetition in 0..options.repeat.max(1) {
                let plan = PhasePlan { repetition, ..PhasePlan::of(PhaseKind::Names) };
                self.phase(&plan, write_shift)?;
            }
        }
        if options.races {
            for repetition in 0..options.repeat.max(1) {
                let plan = PhasePlan { repetition, ..PhasePlan::of(PhaseKind::Races) };
                self.phase(&plan, write_shift)?;
            }
        }
        // Write-once objects are removed all at once, when the run has ended.
        if !options.keep && !self.context.backend.is_write_once() {
            self.phase(&PhasePlan::of(PhaseKind::Cleanup), write_shift)?;
        }
        Ok((self.phases, self.shift))
    }

    /// Doubles the waiting factor until latencies no longer fall: then the service is not
    /// overloaded any more (MDWorkbench §3).
    fn adapt(
        &mut self,
        unthrottled: Option<&PhaseTotals>,
        write_shift: &dyn Fn(Option<u64>) -> Result<()>,
    ) -> Result<()> {
        let mut mean_ns = match unthrottled {
            Some(totals) => totals.mean_ns,
            None => self.repeat(Pacing::UNTHROTTLED, write_shift)?.mean_ns,
        };
        let mut waiting_factor = 1.0;
        while waiting_factor <= ADAPTIVE_FACTOR_MAX {
            let totals = self.repeat(Pacing::Closed { waiting_factor }, write_shift)?;
            if totals.mean_ns > mean_ns * ADAPTIVE_GAIN {
                break;
            }
            mean_ns = totals.mean_ns;
            waiting_factor *= 2.0;
        }
        Ok(())
    }

    /// Runs a benchmark phase as often as requested; returns the totals of the last.
    fn repeat(
        &mut self,
        pacing: Pacing,
        write_shift: &dyn Fn(Option<u64>) -> Result<()>,
    ) -> Result<PhaseTotals> {
        let kind = match &self.context.options {
            options if options.mix.is_some() => PhaseKind::Mixed,
            options if options.read_only => PhaseKind::ReadOnly,
            _ => PhaseKind::Benchmark,
        };
        let mut totals = None;
        for repetition in 0..self.context.options.repeat.max(1) {
            totals = Some(self.phase(&PhasePlan { kind, pacing, repetition }, write_shift)?);
        }
        Ok(totals.expect("at least one repetition"))
    }

    fn phase(
        &mut self,
        plan: &PhasePlan,
        write_shift: &dyn Fn(Option<u64>) -> Result<()>,
    ) -> Result<PhaseTotals> {
        let changes = match &self.context.options.mix {
            Some(mix) if plan.kind == PhaseKind::Mixed => mix.changes(),
            _ => plan.kind.changes(),
        };
        if self.rank == 0 {
            self.context.progress.begin_phase(plan.to_string());
            if changes {
                write_shift(None)?;
            }
        }
        // A backend refuses a new marker where there is something else.
        self.collectives.transport().barrier()?;
        match plan.kind {
            PhaseKind::Precreate => self.connection.add_rank(self.rank)?,
            PhaseKind::Io500(phase) => self.prepare_io500(phase)?,
            _ => {}
        }
        self.begin_phase(plan);
        self.collectives.transport().barrier()?;
        let preempted = preemptions();
        self.phase_start_ns = self.context.clock.monotonic_ns();
        let ranks = (self.rank, self.context.options.size.ranks);
        self.pace.begin_phase(plan.pacing, ranks, self.phase_start_ns, self.phase_seed());
        let (iterations, stonewall) = self.call_all(plan.kind)?;
        let duration_ns = self.context.clock.monotonic_ns() - self.phase_start_ns;
        let preemptions = preemptions().saturating_sub(preempted);
        self.connection.wait_for_ranks()?;
        if plan.kind == PhaseKind::Cleanup {
            // Failed deletes leave objects; the run's end removes them.
            let _ = self.connection.remove_rank(self.rank);
        }
        let shifted_by = match plan.kind {
            PhaseKind::Benchmark => iterations,
            PhaseKind::Mixed => self.complete_changes()?,
            _ => 0,
        };
        let totals = self.totals(duration_ns)?;
        self.shift += shifted_by;
        // A working set without its first objects, or of IO500, can only be removed.
        let is_left = !matches!(plan.kind, PhaseKind::Cleanup | PhaseKind::Io500(_));
        self.lacks_objects |= changes && totals.failed > 0;
        if self.rank == 0 && changes && is_left && !self.lacks_objects {
            write_shift(Some(self.shift))?;
        }
        let recorders = std::mem::take(&mut self.recorders).into_iter().flatten();
        let operations = recorders.map(OperationRecorder::into_record).collect();
        let (rank, plan) = (self.rank, plan.clone());
        self.phases.push(RankPhase {
            rank,
            plan,
            duration_ns,
            iterations,
            stonewall,
            entries: std::mem::take(&mut self.entries),
            preemptions,
            operations,
        });
        Ok(totals)
    }

    /// Makes the calls of a phase. Returns the number of iterations, and the calls up to the
    /// stonewall.
    fn call_all(&mut self, kind: PhaseKind) -> Result<(u64, Option<StonewallCount>)> {
        Ok(match kind {
            PhaseKind::Precreate if self.context.backend.is_write_once() => {
                (self.write_once()?, None)
            }
            PhaseKind::Precreate => (self.precreate(), None),
            PhaseKind::Cleanup => (self.cleanup(), None),
            PhaseKind::Names => (self.names(), None),
            PhaseKind::Races => (self.races()?, None),
            PhaseKind::Io500(phase) => self.io500(phase)?,
            PhaseKind::Benchmark | PhaseKind::ReadOnly => self.benchmark(kind)?,
            PhaseKind::Mixed => self.mixed()?,
        })
    }

    fn begin_phase(&mut self, plan: &PhasePlan) {
        self.recorder_options.has_intended_times = matches!(plan.pacing, Pacing::Open { .. });
        self.recorders = Operation::ALL.map(|_| None).into();
    }

    /// The same for all ranks; differs for each phase.
    fn phase_seed(&self) -> u64 {
        self.context.options.seed ^ (self.phases.len() as u64) << 48
    }

    /// Figure 1 of the paper. Returns 0 iterations.
    fn precreate(&mut self) -> u64 {
        let size = self.context.options.size;
        for number in 0..size.datasets {
            let dataset = DatasetId { rank: self.rank, number };
            self.measure(Operation::Mkdir, dataset, |connection| connection.mkdir(dataset));
        }
        for object in 0..size.objects {
            for number in 0..size.datasets {
                let dataset = DatasetId { rank: self.rank, number };
                self.call(Operation::Create, dataset.object(object));
            }
            self.context.progress.add(self.rank, u64::from(size.datasets));
        }
        0
    }

    /// Creates the same objects as [`RankRunner::precreate`], in no datasets, and makes them
    /// visible. Returns 0 iterations. Without the flush there is nothing to measure, so its failure
    /// ends the run.
    fn write_once(&mut self) -> Result<u64> {
        let size = self.context.options.size;
        for object in 0..size.objects {
            for number in 0..size.datasets {
                self.call(Operation::Create, DatasetId { rank: self.rank, number }.object(object));
            }
            self.context.progress.add(self.rank, u64::from(size.datasets));
        }
        let mut flushed = Ok(());
        self.measure(Operation::Flush, "all objects", |connection| {
            connection.flush().inspect_err(|error| {
                flushed = Err(Error::new(error.kind(), format!("flush: {}", error.context())));
            })
        });
        flushed.map(|()| 0)
    }

    /// Each rank removes its own datasets, whose objects have shifted. Returns 0 iterations.
    fn cleanup(&mut self) -> u64 {
        let size = self.context.options.size;
        for object in self.shift..self.shift + size.objects {
            for number in 0..size.datasets {
                let dataset = DatasetId { rank: self.rank, number };
                self.call(Operation::Delete, dataset.object(object));
            }
            self.context.progress.add(self.rank, u64::from(size.datasets));
        }
        for number in 0..size.datasets {
            let dataset = DatasetId { rank: self.rank, number };
            self.measure(Operation::Rmdir, dataset, |connection| connection.rmdir(dataset));
        }
        0
    }

    /// Renames the objects of the consumed datasets and back, makes and removes datasets, and
    /// lists. Leaves the working set as it was. Returns 0 iterations.
    fn names(&mut self) -> u64 {
        let size = self.context.options.size;
        for iteration in 0..size.iterations {
            for number in 0..size.datasets {
                let consumed = size.read_dataset(self.rank, number);
                let old = consumed.object(self.shift + iteration);
                let new = consumed.object(old.number + SPARE_NUMBERS);
                self.measure(Operation::Rename, old, |connection| connection.rename(old, new));
                self.measure(Operation::Rename, new, |connection| connection.rename(new, old));
                let made = DatasetId { rank: self.rank, number: size.datasets + number };
                self.measure(Operation::Mkdir, made, |connection| connection.mkdir(made));
                self.measure(Operation::Rmdir, made, |connection| connection.rmdir(made));
                if iteration % LISTING_INTERVAL == 0 {
                    for (operation, with_attributes) in
                        [(Operation::List, false), (Operation::ListAttributes, true)]
                    {
                        self.measure(operation, consumed, |connection| {
                            connection.list(consumed, with_attributes).map(drop)
                        });
                    }
                }
            }
            self.context.progress.add(self.rank, 4 * u64::from(size.datasets));
        }
        0
    }

    /// Figure 3 of the paper. Returns the number of iterations, and the calls up to the stonewall.
    fn benchmark(&mut self, kind: PhaseKind) -> Result<(u64, Option<StonewallCount>)> {
        let iterations = self.context.options.size.iterations;
        self.until_stonewall(iterations, |runner, iteration| runner.iterate(kind, iteration))
    }

    /// Iterates until the time of the phase is over, and then until all ranks have done as much as
    /// the fastest. Returns the number of iterations, and the calls up to the stonewall.
    fn until_stonewall(
        &mut self,
        iterations: u64,
        mut iterate: impl FnMut(&mut Self, u64),
    ) -> Result<(u64, Option<StonewallCount>)> {
        let Some(wall_ns) = self.context.options.stonewall_ns else {
            (0..iterations).for_each(|iteration| iterate(self, iteration));
            return Ok((iterations, None));
        };
        let mut done = 0;
        while done < iterations && self.elapsed_ns() < wall_ns {
            iterate(self, done);
            done += 1;
        }
        let calls = self.recorders.iter().flatten().map(|recorder| recorder.totals().0).sum();
        let count = StonewallCount { duration_ns: self.elapsed_ns(), calls };
        self.connection.wait_for_ranks()?;
        let most = self.collectives.all_reduce_u64(Rank(0), done, Reduction::Max)?;
        (done..most).for_each(|iteration| iterate(self, iteration));
        Ok((most, Some(count)))
    }

    fn elapsed_ns(&self) -> u64 {
        self.context.clock.monotonic_ns() - self.phase_start_ns
    }

    fn iterate(&mut self, kind: PhaseKind, iteration: u64) {
        let size = &self.context.options.size;
        for number in 0..size.datasets {
            let object = self.shift + iteration;
            let consumed = size.read_dataset(self.rank, number).object(object);
            self.call(Operation::Stat, consumed);
            self.call(Operation::Read, consumed);
            if kind == PhaseKind::Benchmark {
                self.call(Operation::Delete, consumed);
                let extended = size.write_dataset(self.rank, number);
                self.call(Operation::Create, extended.object(object + size.objects));
            }
        }
        let calls = if kind == PhaseKind::Benchmark { 4 } else { 2 };
        self.context.progress.add(self.rank, calls * u64::from(size.datasets));
    }

    /// Calls and measures one operation on `target`.
    fn measure(
        &mut self,
        operation: Operation,
        target: impl fmt::Display,
        call: impl FnOnce(&mut dyn BackendConnection) -> Result<()>,
    ) {
        let intended_ns = self.pace.wait_for_turn(self.context.clock);
        let start_ns = self.context.clock.monotonic_ns();
        let done = call(&mut *self.connection);
        let end_ns = self.context.clock.monotonic_ns();
        let timing = self.pace.timing(intended_ns, start_ns, end_ns);
        self.record(operation, &timing, done, || target.to_string());
    }

    /// Calls, measures and verifies one operation on an object.
    fn call(&mut self, operation: Operation, object: ObjectId) {
        let content = match operation {
            Operation::Create => self.content.of(object),
            _ => &[],
        };
        let intended_ns = self.pace.wait_for_turn(self.context.clock);
        let start_ns = self.context.clock.monotonic_ns();
        let done = match operation {
            Operation::Create => self.connection.create(object, content),
            Operation::Stat => self.connection.stat(object).map(drop),
            Operation::Read => self.connection.read(object, &mut self.found),
            Operation::Delete => self.connection.delete(object),
            _ => unreachable!("{operation} is not of an object"),
        };
        let end_ns = self.context.clock.monotonic_ns();
        let done = match operation {
            Operation::Read if done.is_ok() && self.context.backend.keeps_content() => {
                self.content.check(object, &self.found)
            }
            _ => done,
        };
        let timing = self.pace.timing(intended_ns, start_ns, end_ns);
        self.record(operation, &timing, done, || object.to_string());
    }

    fn record(
        &mut self,
        operation: Operation,
        timing: &OperationTiming,
        done: Result<()>,
        path: impl FnOnce() -> String,
    ) {
        let recorder = self.recorder(operation);
        match done {
            Ok(()) => recorder.record(timing, path),
            Err(error) => recorder.fail(&error),
        }
        self.pace.wait_after(self.context.clock, timing);
    }

    /// The recorder of `operation` in this phase.
    fn recorder(&mut self, operation: Operation) -> &mut OperationRecorder {
        let (options, start_ns) = (&self.recorder_options, self.phase_start_ns);
        self.recorders[operation.index()]
            .get_or_insert_with(|| OperationRecorder::new(operation, options, start_ns))
    }

    /// Adds up the totals of the phase over all ranks.
    fn totals(&mut self, duration_ns: u64) -> Result<PhaseTotals> {
        let (mut operations, mut sum_ns) = (0, 0u64);
        for recorder in self.recorders.iter().flatten() {
            let (count, service_ns) = recorder.totals();
            operations += count;
            sum_ns = sum_ns.saturating_add(service_ns);
        }
        let changes = [
            Operation::Create,
            Operation::Delete,
            Operation::Rename,
            Operation::Mkdir,
            Operation::Rmdir,
            Operation::Flush,
        ];
        let failed = changes.map(|change| {
            self.recorders[change.index()].as_ref().map_or(0, OperationRecorder::failed)
        });
        let failed = failed.into_iter().sum();
        let mut all = |value, by| self.collectives.all_reduce_u64(Rank(0), value, by);
        let seconds = all(duration_ns, Reduction::Max)? as f64 / 1e9;
        let operations = all(operations, Reduction::Sum)?;
        let failed = all(failed, Reduction::Sum)?;
        let mean_ns = all(sum_ns, Reduction::Sum)? as f64 / operations.max(1) as f64;
        Ok(PhaseTotals { seconds, operations, failed, mean_ns })
    }
}
