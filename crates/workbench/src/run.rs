// SPDX-License-Identifier: Apache-2.0
//! Run: a whole run from the first phase to the result, with ranks as threads or processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_base::{Error, Kind, Result};
use esker_comm::threads::{self, ThreadOptions};
use esker_comm::{NodeMap, Rank, Transport};

use crate::backend::Backend;
use crate::environment::{ProcessorTicks, RunEnvironment};
use crate::gather::gather;
use crate::io500::Io500Score;
use crate::options::RunOptions;
use crate::pace::PaceClock;
use crate::progress::RunProgress;
use crate::result::{EndFailure, FORMAT, PhaseResult, RankPhase, RunResult, VERSION};
use crate::runner::{RankRunner, RunContext};
use crate::timer::TimerOverhead;
use crate::working_set::{WorkingSetMarker, cleanup_command};

/// Time that a rank waits for the others at the end of a phase: a phase may take hours.
pub const PHASE_DEADLINE: Duration = Duration::from_secs(7 * 86_400);

/// A preemption this often, per operation, makes latencies suspect.
const SUSPECT_PREEMPTION_SHARE: f64 = 0.01;

/// Response times are suspect if the workbench itself causes this share of them.
const SUSPECT_LATE_SHARE: f64 = 0.1;

/// Runs all ranks as threads of this process.
///
/// # Errors
/// As [`RunOptions::check`] and [`WorkingSetMarker::check_reuse`]; errors of the backend outside
/// measured calls.
pub fn run_threads(
    backend: &dyn Backend,
    options: &RunOptions,
    clock: &dyn PaceClock,
    progress: &RunProgress,
) -> Result<RunResult> {
    let mut begun = BegunRun::begin(backend, options, clock)?;
    let context = begun.context(backend, options, clock, progress);
    let ranks = options.size.ranks;
    let thread_options = ThreadOptions { deadline: PHASE_DEADLINE, ..ThreadOptions::default() };
    let measured = threads::run_with(NodeMap::even(ranks, ranks)?, &thread_options, |transport| {
        let runner = RankRunner::new(&context, transport)?;
        runner.run(&|shift| begun.write_shift(backend, shift)).map(|(phases, _)| phases)
    })?;
    begun.finish(backend, options, measured)
}

/// Runs as one rank of a job of processes; returns the result at rank 0.
///
/// # Errors
/// As [`run_threads`]; `Unavailable` names a rank that is lost; `Unsupported` for a backend that
/// other processes cannot reach.
pub fn run_rank(
    backend: &dyn Backend,
    options: &RunOptions,
    clock: &dyn PaceClock,
    progress: &RunProgress,
    transport: &mut dyn Transport,
) -> Result<Option<RunResult>> {
    if !backend.serves_processes() {
        let what = format!("{}: use threads (-N) as ranks", backend.target());
        return Err(Error::new(Kind::Unsupported, what));
    }
    // All ranks read the marker before rank 0 changes it.
    let mut begun = BegunRun::begin(backend, options, clock)?;
    transport.barrier()?;
    let context = begun.context(backend, options, clock, progress);
    let runner = RankRunner::new(&context, transport)?;
    (begun.node_ranks, begun.environment.processors) = runner.node();
    let (phases, _) = runner.run(&|shift| begun.write_shift(backend, shift))?;
    let is_first = transport.rank() == Rank(0);
    match gather(transport, phases)? {
        Some(measured) if is_first => begun.finish(backend, options, measured).map(Some),
        _ => Ok(None),
    }
}

/// The state that is known when a run begins.
struct BegunRun {
    marker: WorkingSetMarker,
    is_reused: bool,
    /// True once the marker has been written.
    has_marker: AtomicBool,
    began_ns: u64,
    ticks: ProcessorTicks,
    environment: RunEnvironment,
    /// Ranks that share the processors of the environment.
    node_ranks: u32,
    timer: TimerOverhead,
}

impl BegunRun {
    fn begin(backend: &dyn Backend, options: &RunOptions, clock: &dyn PaceClock) -> Result<Self> {
        options.check()?;
        if backend.is_write_once() {
            options.check_write_once(&backend.target())?;
        }
        backend.check(options)?;
        let existing = WorkingSetMarker::read(backend)?;
        if let Some(existing) = &existing {
            existing.check_reuse(&backend.target(), &options.size)?;
            if options.io500 {
                let target = backend.target();
                let what = "has a kept working set, and the phases of IO500 need a new target; \
                            name another, or remove it with";
                let context = format!("{target} {what} `{}`", cleanup_command(&target));
                return Err(Error::new(Kind::Invalid, context));
            }
        }
        Ok(Self {
            is_reused: existing.is_some(),
            has_marker: AtomicBool::new(existing.is_some()),
            marker: existing
                .unwrap_or_else(|| WorkingSetMarker::new(backend.working_set_kind(), options.size)),
            began_ns: clock.now_ns(),
            ticks: ProcessorTicks::read(),
            environment: RunEnvironment {
                service: backend.service()?,
                ..RunEnvironment::capture(backend.directory())
            },
            node_ranks: options.size.ranks,
            timer: TimerOverhead::measure(clock),
        })
    }

    fn context<'a>(
        &self,
        backend: &'a dyn Backend,
        options: &'a RunOptions,
        clock: &'a dyn PaceClock,
        progress: &'a RunProgress,
    ) -> RunContext<'a> {
        let (is_reused, shift) = (self.is_reused, self.marker.shift);
        RunContext { backend, options, clock, progress, is_reused, shift }
    }

    /// Makes the state of the working set durable: changing, or complete with `shift`.
    fn write_shift(&self, backend: &dyn Backend, shift: Option<u64>) -> Result<()> {
        let mut marker = self.marker.clone();
        marker.is_complete = shift.is_some();
        marker.shift = shift.unwrap_or(marker.shift);
        marker.write(backend, !self.has_marker.swap(true, Ordering::Relaxed))
    }

    fn finish(
        &mut self,
        backend: &dyn Backend,
        options: &RunOptions,
        measured: Vec<Vec<RankPhase>>,
    ) -> Result<RunResult> {
        let mut warnings = self.warnings(options);
        if backend.is_write_once() && !self.is_reused {
            warnings.push(
                "latencies of creates are those of handing an object over: other ranks find it after \
                 the flush that ends the phase and is part of its time"
                    .to_owned(),
            );
        }
        // The measurement is not lost, even if the working set can be neither kept nor removed.
        let ended = Self::end(backend, options.keep, &mut warnings);
        let end_failure = ended.err().map(|error| EndFailure::of(&error));
        self.environment.finish(self.ticks);
        let phases = join(measured, options);
        for phase in &phases {
            let failed = phase.failed();
            if failed > 0 {
                let first = phase.operations.iter().find_map(|o| o.first_failure.as_deref());
                let first = first.unwrap_or_default();
                warnings.push(format!("{}: {failed} calls failed; first: {first}", phase.plan));
            }
        }
        let is_suspect = |phase: &&PhaseResult| {
            phase.preemptions as f64 > SUSPECT_PREEMPTION_SHARE * phase.count() as f64
        };
        let suspects: Vec<String> =
            phases.iter().filter(is_suspect).map(|phase| phase.plan.to_string()).collect();
        if !suspects.is_empty() {
            warnings.push(format!(
                "the scheduler preempted ranks in over 1 % of the operations, so latencies include \
                 waits for a processor: {}",
                suspects.join(", ")
            ));
        }
        warnings.extend(late_warning(&phases));
        Ok(RunResult {
            format: FORMAT.to_owned(),
            version: VERSION,
            program: concat!("esker-workbench ", env!("CARGO_PKG_VERSION")).to_owned(),
            began_ns: self.began_ns,
            backend: backend.kind().to_owned(),
            target: backend.target(),
            options: options.clone(),
            environment: self.environment.clone(),
            timer: self.timer,
            warnings,
            io500: Io500Score::of_phases(&phases),
            phases,
            end_failure,
        })
    }

    /// Removes the working set, or makes it available to later runs.
    fn end(backend: &dyn Backend, keep: bool, warnings: &mut Vec<String>) -> Result<()> {
        if !keep {
            let left = backend.clear()?;
            if left > 0 && !backend.is_write_once() {
                warnings.push(format!("the cleanup phase left {left} objects, which are removed"));
            }
        }
        backend.finish(keep)
    }

    fn warnings(&self, options: &RunOptions) -> Vec<String> {
        let (size, processors) = (&options.size, self.environment.processors);
        let mut warnings = Vec::new();
        if size.reaches_own_datasets() {
            warnings.push(format!(
                "ranks later access datasets that they created, which may be cached: the pattern \
                 assumes N > D·O, here {} > {}·{}",
                size.ranks, size.datasets, size.rank_offset
            ));
        }
        if self.node_ranks > processors {
            warnings.push(format!(
                "{} ranks share {processors} processors: latencies include waits for a processor",
                self.node_ranks
            ));
        }
        warnings
    }
}

/// Names the open loops whose response times are in part those of the workbench.
fn late_warning(phases: &[PhaseResult]) -> Option<String> {
    let is_late = |phase: &&PhaseResult| {
        phase.open_loop().is_some_and(|found| found.late_share() > SUSPECT_LATE_SHARE)
    };
    let late: Vec<String> =
        phases.iter().filter(is_late).map(|phase| phase.plan.to_string()).collect();
    (!late.is_empty()).then(|| {
        format!(
            "the workbench began calls late, which makes up over 10 % of the response times (see the \
             table of open loops): {}; use fewer ranks or a lower rate, or free processors",
            late.join(", ")
        )
    })
}

/// Joins the ranks phase by phase.
fn join(mut measured: Vec<Vec<RankPhase>>, options: &RunOptions) -> Vec<PhaseResult> {
    let count = measured.first().map_or(0, Vec::len);
    let mut queues: Vec<_> = measured.iter_mut().map(|phases| phases.drain(..)).collect();
    let phase = |queues: &mut Vec<std::vec::Drain<'_, RankPhase>>| {
        let ranks: Vec<RankPhase> = queues.iter_mut().filter_map(Iterator::next).collect();
        PhaseResult::of_ranks(ranks, options.points_max as usize)
    };
    (0..count).map(|_| phase(&mut queues)).collect()
}

/// Removes the working set that a run left in `backend`; returns the number of objects.
///
/// # Errors
/// As [`WorkingSetMarker::check_removable`] and [`Backend::clear`].
pub fn cleanup(backend: &dyn Backend) -> Result<u64> {
    WorkingSetMarker::check_removable(backend)?;
    let objects = backend.clear()?;
    backend.finish(false)?;
    Ok(objects)
}
