// SPDX-License-Identifier: Apache-2.0
//! Command line: the arguments of `esker`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use esker_base::Result;

use crate::bench::BenchCommandLine;
use crate::commands::{self, Command, help};
use crate::context::CommandContext;
use crate::program::{GlobalOptions, ProgramArguments, VERSION};

/// Fast namespaces on shared storage, run by the jobs that use them
///
/// Esker keeps file systems as stacks of change sets in a store: a directory of a parallel file
/// system or a bucket on S3. A job starts from published snapshots, adds its changes at memory
/// speed, and publishes the result under a name. Snapshots never change, so any number of jobs
/// share them without locks or servers.
///
/// Paths are NAME:/path for a published name and @SETID:/path for a change set, whose id may be
/// shortened to a few digits.
#[derive(Parser)]
#[command(name = "esker", version = VERSION, max_term_width = 100, after_long_help = AFTER_HELP)]
pub struct CommandLine {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
A first session:
  export ESKER_STORE=/scratch/store
  esker init
  esker import /usr/include headers
  esker ls -l headers:/
  esker find headers:/ --name '*.h' --size +100K
  esker rm -r headers:/linux --as no-linux
  esker diff headers no-linux
  esker export no-linux:/ /tmp/headers

`esker help COMMAND` explains a command; `esker help exit-codes` lists exit codes.";

/// The arguments of `esker`, with those of `esker bench` as `esker-bench` has them, for manual pages and
/// completions.
pub fn with_bench() -> clap::Command {
    let bench = BenchCommandLine::command().name("bench");
    CommandLine::command().mut_subcommand("bench", |_| bench)
}

impl ProgramArguments for CommandLine {
    fn parser() -> clap::Command {
        help::grouped(Self::command())
    }

    fn prepare(arguments: Vec<OsString>) -> Vec<OsString> {
        commands::read::find::long_flags(arguments.into_iter())
    }

    fn global(&self) -> &GlobalOptions {
        &self.global
    }

    fn watch_signals(&self, context: &CommandContext) -> Result<()> {
        self.command.watch_signals(context)
    }

    fn run(self, context: &CommandContext) -> Result<ExitCode> {
        self.command.run(context)
    }
}
