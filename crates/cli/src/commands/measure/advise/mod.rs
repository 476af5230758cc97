// SPDX-License-Identifier: Apache-2.0
//! `esker advise`: traces of applications, their replay on storage, and what follows.

mod import;
mod imported_calls;
mod measure;
mod model;
mod mpi_replay;
mod paper;
mod replay;
mod show;
mod storage;
mod synth;
mod trace;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use esker_advisor::trace::TraceReader;
use esker_base::{Error, Result};

use self::import::AdviseImport;
use self::measure::AdviseMeasure;
use self::model::AdviseModel;
use self::paper::AdvisePaper;
use self::replay::{AdviseCleanup, AdviseLoad, AdviseReplay};
use self::show::{AdviseShow, AdviseVerify};
use self::storage::AdviceArguments;
use self::synth::AdviseSynth;
use self::trace::AdviseTrace;
use crate::context::CommandContext;
use crate::interrupt;

/// Find the storage for an application, from a trace of its I/O
///
/// A trace has each call of each process; `trace` records those of a program, logs of strace, Darshan and
/// Recorder are imported, and patterns of known applications make synthetic ones. It is an Arrow file, which
/// data frames read.
///
/// With a trace, the command answers on one screen: the better storage and how sure that is, the
/// expected rates, what separates the two best, and which change of the application would gain most.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  esker advise trace -o app.arrow --path /scratch -- ./app
  esker advise show app.arrow --to app.html
  esker advise synth hpio -p 8 -n 1000 -r 64K -g 4K -o hpio.arrow
  esker advise replay hpio.arrow /scratch/replay
  esker advise model rows.csv --to model.json
  esker advise app.arrow --model model.json --report app.html")]
pub struct AdviseCommand {
    #[command(subcommand)]
    action: Option<AdviseAction>,
    #[command(flatten)]
    advice: AdviceArguments,
}

#[derive(Subcommand)]
enum AdviseAction {
    Trace(AdviseTrace),
    Import(AdviseImport),
    Synth(AdviseSynth),
    Show(AdviseShow),
    Verify(AdviseVerify),
    Load(AdviseLoad),
    Replay(Box<AdviseReplay>),
    Cleanup(AdviseCleanup),
    Measure(Box<AdviseMeasure>),
    Model(AdviseModel),
    Paper(AdvisePaper),
}

impl AdviseCommand {
    /// What a user does after an interruption in which nothing was begun; `None` for a command whose program
    /// gets the signals.
    pub fn advice_at_begin(&self) -> Option<&'static str> {
        let runs_program = matches!(self.action, Some(AdviseAction::Trace(_)));
        (!runs_program).then_some("nothing was loaded; the same command again does all of it")
    }

    /// Advises, or makes what advice needs.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        // A target in a store may have begun a session.
        let may_have_begun = matches!(
            self.action,
            Some(
                AdviseAction::Load(_)
                    | AdviseAction::Replay(_)
                    | AdviseAction::Cleanup(_)
                    | AdviseAction::Measure(_)
            )
        );
        let done = match self.action {
            None => self.advice.run(context),
            Some(AdviseAction::Trace(trace)) => return trace.run(context),
            Some(AdviseAction::Import(import)) => import.run(context),
            Some(AdviseAction::Synth(synth)) => synth.run(context),
            Some(AdviseAction::Show(show)) => show.run(context),
            Some(AdviseAction::Verify(verify)) => verify.run(context),
            Some(AdviseAction::Load(load)) => load.run(context),
            Some(AdviseAction::Replay(replay)) => replay.run(context),
            Some(AdviseAction::Cleanup(cleanup)) => cleanup.run(context),
            Some(AdviseAction::Measure(measure)) => measure.run(context),
            Some(AdviseAction::Model(model)) => model.run(context),
            Some(AdviseAction::Paper(paper)) => paper.run(context),
        };
        if may_have_begun && done.is_err() {
            interrupt::give_up_after_failure(context);
        }
        done.map(|()| ExitCode::SUCCESS)
    }
}

/// Opens a trace.
pub(super) fn open_trace(path: &Path) -> Result<TraceReader<File>> {
    TraceReader::open(open(path)?, path.display().to_string())
}

/// Opens a file for reading.
pub(super) fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Error::io(error, path.display().to_string()))
}
