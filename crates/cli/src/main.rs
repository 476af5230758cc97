// SPDX-License-Identifier: Apache-2.0
//! The `esker` command: thin commands over the crates.
//!
//! `CommandLine` parses the arguments, `CommandContext` opens the store, and a command of `commands/` works and
//! prints through `Output`. An error becomes one line on standard error and its kind's exit code.

mod change;
mod commands;
mod context;
mod graph_lines;
mod indexed_export;
mod interrupt;
mod location;
mod mode_change;
mod mount_overlap;
mod output;
mod progress;
mod quantity;
mod record_table;
mod test_hooks;
mod text;
mod usage;
mod users;
mod writers;

use std::process::ExitCode;

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::commands::Command;
use crate::context::CommandContext;

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
    /// Store: a directory, s3://bucket/prefix, or memory: to experiment
    #[arg(
        long,
        global = true,
        env = "ESKER_STORE",
        value_name = "URL",
        hide_env_values = true,
        help_heading = GLOBAL_HEADING
    )]
    store: Option<String>,
    /// Print JSON for programs
    #[arg(long, global = true, help_heading = GLOBAL_HEADING)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

/// The heading of the options that every command has; a command's own options come first.
const GLOBAL_HEADING: &str = "Store and output";

/// Version, commit and features, for bug reports.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("ESKER_BUILD"));

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

/// Raises the limit on open files as far as permitted: a writer keeps some open for each large
/// file.
fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If that is forbidden the limit stays as it is, and fewer files are kept open.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn main() -> ExitCode {
    // First, since a store adapts to the limit when it is opened.
    raise_open_files_limit();
    esker_base::mapped_file::guard_process();
    let cli = CommandLine::parse_from(commands::find::long_flags(std::env::args_os()));
    let context = CommandContext::new(cli.store, cli.json);
    let watched = cli.command.watch_signals(&context);
    let done = watched.and_then(|()| cli.command.run(&context));
    let done = done.and_then(|code| context.out.flush().map(|()| code));
    interrupt::wait_if_ending();
    match done {
        Ok(code) => code,
        // The reader of the output has left.
        Err(_) if context.out.reader_left() => ExitCode::SUCCESS,
        Err(error) => {
            // Output printed before the error must appear before it.
            let _ = context.out.flush();
            output::notice(error.to_string());
            ExitCode::from(error.kind().exit_code())
        }
    }
}
