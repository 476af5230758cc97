// SPDX-License-Identifier: Apache-2.0
//! `esker run`: starts a program as the ranks of a job.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use esker_base::Result;
use esker_base::clock::SystemClock;
use esker_comm::launch::{self, JobLaunch, JobOutcome};

use super::run_foreground;
use super::run_shown::ShownNamespace;
use crate::change::SessionSettings;
use crate::context::CommandContext;
use crate::{output, text, usage};

/// Run a program without a mount, or as the ranks of a job
///
/// ESKER_RANK, ESKER_RANKS, ESKER_JOB and ESKER_NODE identify each rank. Ranks find each other
/// through the store; without --store, through a directory that is removed afterwards. Output and
/// signals are passed on. If a rank fails, the others are ended, and the exit code is that of the
/// rank that failed first. Sessions that commands began for themselves as ranks, and left when they
/// were killed, are dropped.
///
/// With --at, the program and all that it starts see files of the store at a directory, without a mount
/// and without privileges: the kernel hands their system calls that name files to this command (Linux 5.14
/// and later). Closing a file puts its bytes into the session; synced bytes survive power loss. Programs
/// cannot gain privileges there (sudo). With --job, the session becomes one part of a job, which `esker
/// publish --job` joins with the others.
///
/// Programs that use Esker's ranks also run under srun and mpirun, with ESKER_STORE set to a store
/// that all machines see.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker run -n 16 --per-node 4 -- ./simulation --steps 100
  esker run --at src --base linux-6.12 -- grep -r spin_lock src/kernel
  esker run --at out --base headers --write build-1 -- make -C out
  esker run --at work --write tree-1 -- bash          a shell to work in; `exit 0` publishes tree-1
  srun esker run --at /tmp/out --job $job --base in -- ./simulate /tmp/out     a part of a job each
  esker run -n 4 --store /scratch/store -- esker bench imd-write particles:/p")]
pub struct RunCommand {
    /// Number of ranks; with --at and without this, the program is no rank, and has the terminal
    #[arg(short = 'n', long = "ranks", value_name = "N", required_unless_present_any = ["at", "write", "job"])]
    ranks: Option<u32>,
    /// Ranks on each simulated node; all on one unless given
    #[arg(long, value_name = "C")]
    per_node: Option<u32>,
    #[command(flatten)]
    shown: ShownNamespace,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl RunCommand {
    /// Runs it.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let Self { ranks, per_node, shown, command } = self;
        if let Some(option) = command[0].to_str().filter(|word| word.starts_with('-')) {
            usage::exit(format!("no option {option}; `esker run --help` lists them"));
        }
        let store = context.given_store().map(str::to_owned);
        let outcome = shown.run(context, |environment| match ranks {
            Some(ranks) => {
                let launch = JobLaunch { command, environment, ranks, per_node, store };
                launch::run(&launch, &SystemClock)
            }
            None => run_foreground::run(&command, environment),
        })?;
        if outcome != JobOutcome::Success && context.given_store().is_some() {
            give_up_left(context);
        }
        match outcome {
            JobOutcome::Success => {}
            // A shell, too, says nothing of a program that failed.
            JobOutcome::Exit(..) | JobOutcome::Killed(..) if ranks.is_none() => {}
            JobOutcome::Exit(rank, code) => {
                output::notice(format!("{rank} failed first, with exit code {code}"));
            }
            JobOutcome::Killed(rank, signal) => {
                output::notice(format!("{rank} was killed by signal {signal}"));
            }
            JobOutcome::Interrupted(signal) => output::notice(format!("ended by signal {signal}")),
        }
        Ok(ExitCode::from(outcome.exit_code()))
    }
}

/// Abandons sessions of killed ranks; a failure of the job matters more than one here.
fn give_up_left(context: &CommandContext) {
    let options = SessionSettings::for_few().options(context);
    let given_up =
        context.repository().and_then(|repository| repository.give_up_left(None, false, &options));
    match given_up {
        Ok(sessions) if sessions.given_up.is_empty() => {}
        Ok(sessions) => {
            let count = text::counted(sessions.given_up.len() as u64, "session");
            output::notice(format!("dropped {count} of killed commands"));
        }
        Err(error) => output::notice(format!(
            "sessions of killed ranks could not be dropped ({error}); `esker gc` drops them"
        )),
    }
}
