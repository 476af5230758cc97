// SPDX-License-Identifier: Apache-2.0
//! Program: the frame of `esker` and `esker-bench`, from the arguments to the exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Parser};
use esker_base::Result;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::context::CommandContext;
use crate::{interrupt, output};

/// The heading of the options that every command has; a command's own options come first.
const GLOBAL_HEADING: &str = "Store and output";

/// Version, commit and features, for bug reports.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("ESKER_BUILD"));

/// Options of every command.
#[derive(Args, Clone)]
pub struct GlobalOptions {
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
}

/// The parsed arguments of a program.
pub trait ProgramArguments: Parser {
    /// Their parser.
    fn parser() -> clap::Command {
        Self::command()
    }

    /// The arguments as the parser expects them.
    fn prepare(arguments: Vec<OsString>) -> Vec<OsString> {
        arguments
    }

    /// The options of every command.
    fn global(&self) -> &GlobalOptions;

    /// Makes a signal that ends the program clean up after it and report what is left.
    fn watch_signals(&self, context: &CommandContext) -> Result<()>;

    /// Runs the command.
    fn run(self, context: &CommandContext) -> Result<ExitCode>;
}

/// Runs a program with the arguments of this process.
pub fn run<A: ProgramArguments>() -> ExitCode {
    // First, since a store adapts to the limit when it is opened.
    let open_files_before = raise_open_files_limit();
    esker_base::mapped_file::guard_process();
    let matches = A::parser().get_matches_from(A::prepare(std::env::args_os().collect()));
    let arguments = A::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let GlobalOptions { store, json } = arguments.global().clone();
    let context =
        CommandContext::new(A::parser, store, json).with_open_files_before(open_files_before);
    let watched = arguments.watch_signals(&context);
    let done = watched.and_then(|()| arguments.run(&context));
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

/// Raises the limit on open files as far as permitted: a writer keeps some open for each large
/// file. Returns the limit as it was; `None` if there was none.
fn raise_open_files_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    // If that is forbidden the limit stays as it is, and fewer files are kept open.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    limit.current
}
