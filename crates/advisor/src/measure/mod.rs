// SPDX-License-Identifier: Apache-2.0
//! Measure: the runs of an experiment, each as an observation.
//!
//! `experiment_design` has the runs, `observation_file` the rows. A run loads the data of its case
//! on a system, drops it from caches, replays the trace as fast as possible, and removes the data.
//! Emulated storage slows the replay down, not the load.
//! Rows that the file has are skipped, so a measurement continues where it was interrupted: it
//! removes the data that the interrupted run left on its system. Source: Kougkas et al. 2016,
//! §4.1.3 and §5.2.1.

mod experiment_design;
mod observation_file;

use std::path::Path;

use esker_base::Result;
use esker_workbench::pace::PaceClock;

pub use self::experiment_design::{ExperimentCase, ExperimentDesign, ExperimentRun};
pub use self::observation_file::ObservationFile;
use crate::features::STRIPE_BYTES_DEFAULT;
use crate::observation::{EmulatedVariables, Observation};
use crate::pattern::write_pattern;
use crate::player::{
    EmulatedTarget, LoadState, PlanOptions, ReplayPacing, ReplayPlan, ReplayTarget, replay,
};
use crate::trace::{TraceReader, features};

/// Opens a system; called for each run.
pub type OpenTarget<'a> = dyn Fn() -> Result<Box<dyn ReplayTarget>> + 'a;

/// A system: its name in observations, which tells settings apart, and a function that opens it.
pub struct MeasuredSystem<'a> {
    /// The name.
    pub name: String,
    /// Opens it.
    pub open: Box<OpenTarget<'a>>,
}

/// Options of a measurement.
#[derive(Clone, Debug)]
pub struct MeasureOptions {
    /// No run begins later than this after the first.
    pub budget_ns: u64,
    /// Processors that ranks share.
    pub processors: u32,
}

/// The outcome of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasureSummary {
    /// Runs of the design.
    pub runs: usize,
    /// Rows that were there before.
    pub skipped: usize,
    /// Rows that were added.
    pub added: usize,
}

impl MeasureSummary {
    /// Runs for which there was no time.
    #[must_use]
    pub fn left(&self) -> usize {
        self.runs - self.skipped - self.added
    }
}

/// Measures the runs of `design` that the file at `path` lacks, and appends their rows. `report` is
/// called with each.
///
/// # Errors
/// As [`ExperimentDesign::cases`] and [`ObservationFile::open`]; errors of the systems, whose data
/// is removed first.
pub fn measure(
    design: &ExperimentDesign,
    systems: &[MeasuredSystem<'_>],
    path: &Path,
    options: &MeasureOptions,
    clock: &dyn PaceClock,
    report: &mut dyn FnMut(&Observation),
) -> Result<MeasureSummary> {
    let cases = design.cases()?;
    let mut file = ObservationFile::open(path)?;
    let runs = design.runs(cases.len(), systems.len());
    let mut summary = MeasureSummary { runs: runs.len(), ..MeasureSummary::default() };
    let start_ns = clock.monotonic_ns();
    for run in runs {
        let (case, system) = (&cases[run.case], &systems[run.system]);
        if file.has(&case.name(), &system.name, run.repetition) {
            summary.skipped += 1;
            continue;
        }
        if clock.monotonic_ns().saturating_sub(start_ns) >= options.budget_ns {
            continue;
        }
        let observation = observe(case, system, run.repetition, options, clock)?;
        file.push(&observation)?;
        summary.added += 1;
        report(&observation);
    }
    Ok(summary)
}

/// Opens `system`, and removes data that an interrupted run has left there.
fn open_empty(system: &MeasuredSystem<'_>) -> Result<Box<dyn ReplayTarget>> {
    let target = (system.open)()?;
    if target.load_state()? == LoadState::Absent {
        return Ok(target);
    }
    target.clear()?;
    drop(target);
    (system.open)()
}

fn observe(
    case: &ExperimentCase,
    system: &MeasuredSystem<'_>,
    repetition: u32,
    options: &MeasureOptions,
    clock: &dyn PaceClock,
) -> Result<Observation> {
    let (trace, _) = write_pattern(case.pattern, &case.size, Vec::new())?;
    let reader = TraceReader::open(&trace[..], "the trace of a pattern")?;
    let variables = features(&reader, STRIPE_BYTES_DEFAULT)?.variables(&case.storage)?;
    let plan = ReplayPlan::read(&reader, PlanOptions::default())?;
    let opened = open_empty(system)?;
    let target: Box<dyn ReplayTarget + '_> = match case.is_emulated {
        true => Box::new(EmulatedTarget::new(opened, case.storage, clock, options.processors)),
        false => opened,
    };
    target.load(&plan)?;
    let measured = target
        .drop_caches()
        .and_then(|()| replay(&*target, &plan, ReplayPacing::Fast, options.processors, clock));
    let cleared = target.clear();
    let measured = measured?;
    cleared?;
    Ok(Observation {
        workload: case.pattern.name().to_owned(),
        case: case.name(),
        system: system.name.clone(),
        kind: measured.kind,
        repetition,
        variables,
        // The clock may have seen no time pass, but a row needs a positive time.
        microseconds: (measured.io_seconds * 1e6).max(1e-3),
        emulated: EmulatedVariables::storage(case.is_emulated),
    })
}
