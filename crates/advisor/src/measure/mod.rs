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

use esker_base::{Error, Kind, Result};
use esker_workbench::pace::PaceClock;

pub use self::experiment_design::{ExperimentCase, ExperimentDesign, ExperimentRun};
pub use self::observation_file::ObservationFile;
use crate::features::STRIPE_BYTES_DEFAULT;
use crate::observation::{EmulatedVariables, Observation};
use crate::pattern::write_pattern;
use crate::player::{EmulatedTarget, PlanOptions, ReplayPacing, ReplayPlan, ReplayTarget, replay};
use crate::trace::{TraceReader, features};

/// Opens a system; called for each run.
pub type OpenTarget<'a> = dyn Fn() -> Result<Box<dyn ReplayTarget>> + 'a;

/// A system: its name in observations, which tells settings apart, and a function that opens it.
pub struct MeasuredSystem<'a> {
    /// The name.
    pub name: String,
    /// What it names, without passwords, in observations.
    pub target: String,
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
/// called with each, and with the counts up to it.
///
/// # Errors
/// As [`ExperimentDesign::cases`], [`ObservationFile::open`] and
/// [`ObservationFile::check_target`]; `Exists` if a system has data that no measurement made;
/// errors of the systems, whose data is removed first, unless a byte was read wrong.
pub fn measure(
    design: &ExperimentDesign,
    systems: &[MeasuredSystem<'_>],
    path: &Path,
    options: &MeasureOptions,
    clock: &dyn PaceClock,
    report: &mut dyn FnMut(&Observation, &MeasureSummary),
) -> Result<MeasureSummary> {
    let cases = design.cases()?;
    let mut file = ObservationFile::open(path)?;
    for system in systems {
        file.check_target(&system.name, &system.target)?;
    }
    let runs = design.runs(cases.len(), systems.len());
    let mut summary = MeasureSummary { runs: runs.len(), ..MeasureSummary::default() };
    let has = |run: &ExperimentRun| {
        file.has(&cases[run.case].name(), &systems[run.system].name, run.repetition)
    };
    let lacking: Vec<ExperimentRun> = runs.into_iter().filter(|run| !has(run)).collect();
    summary.skipped = summary.runs - lacking.len();
    let start_ns = clock.monotonic_ns();
    for run in lacking {
        let (case, system) = (&cases[run.case], &systems[run.system]);
        if clock.monotonic_ns().saturating_sub(start_ns) >= options.budget_ns {
            continue;
        }
        let observation = observe(case, system, run.repetition, options.processors, clock)?;
        file.push(&observation)?;
        summary.added += 1;
        report(&observation, &summary);
    }
    Ok(summary)
}

/// Opens `system`, and removes data that an interrupted run has left there.
fn open_empty(system: &MeasuredSystem<'_>) -> Result<Box<dyn ReplayTarget>> {
    let target = (system.open)()?;
    match target.load_state()?.data() {
        None => return Ok(target),
        Some(data) if data.is_measured => {}
        Some(_) => {
            let what = "has the data of a replay: name another target, or remove it by `esker \
                        advise cleanup`";
            return Err(Error::new(Kind::Exists, format!("{} {what}", target.target())));
        }
    }
    target.clear()?;
    drop(target);
    (system.open)()
}

fn observe(
    case: &ExperimentCase,
    system: &MeasuredSystem<'_>,
    repetition: u32,
    processors: u32,
    clock: &dyn PaceClock,
) -> Result<Observation> {
    let (trace, _) = write_pattern(case.pattern, &case.size, Vec::new())?;
    let reader = TraceReader::open(&trace[..], "the trace of a pattern")?;
    let features = features(&reader, STRIPE_BYTES_DEFAULT)?;
    let variables = features.variables(&case.storage)?;
    let plan = ReplayPlan::read(&reader, PlanOptions::default())?;
    let plan = ReplayPlan { is_measured: true, ..plan };
    let opened = open_empty(system)?;
    let target: Box<dyn ReplayTarget + '_> = match case.is_emulated {
        true => Box::new(EmulatedTarget::new(opened, case.storage, clock, processors)),
        false => opened,
    };
    target.load(&plan)?;
    let measured = target
        .drop_caches()
        .and_then(|()| replay(&*target, &plan, ReplayPacing::Fast, processors, clock));
    let is_wrong = measured.as_ref().is_err_and(|error| error.kind() == Kind::Corrupt);
    // Data that was read wrong is kept, to be looked at.
    let left = if is_wrong { target.finish(true) } else { target.clear() };
    let measured = measured.map_err(|error| match (is_wrong, &left) {
        (false, Ok(())) => error,
        _ => {
            let target = target.target();
            let stays = "stays until the measurement goes on";
            Error::new(error.kind(), format!("{}; the data at {target} {stays}", error.context()))
        }
    })?;
    left?;
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
        transfers: Some(features.transfers()),
        target: system.target.clone(),
    })
}
