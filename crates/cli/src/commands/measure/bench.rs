// SPDX-License-Identifier: Apache-2.0
//! `esker bench`: runs `esker-bench`, a program of its own, in place of this process.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use esker_base::{Error, Kind, Result};

use crate::context::CommandContext;

/// The program, which is installed beside this one.
const PROGRAM: &str = "esker-bench";

/// Measure this machine and store with the program esker-bench
///
/// `esker bench ARGUMENTS` is `esker-bench ARGUMENTS`; `esker bench --help` lists the workloads.
#[derive(Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  esker bench --help
  esker bench create --store /scratch/bench --files 10000000 --threads 2"
)]
pub struct BenchCommand {
    #[command(flatten)]
    words: BenchWords,
}

/// The name by which earlier versions had `esker bench shared-file`
#[derive(Args)]
pub struct SegmentCommand {
    #[command(subcommand)]
    command: SegmentSubcommand,
}

#[derive(clap::Subcommand)]
enum SegmentSubcommand {
    #[command(disable_help_flag = true)]
    Replay(BenchWords),
}

/// Arguments that `esker-bench` parses.
#[derive(Args)]
pub struct BenchWords {
    /// A workload, and its options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    words: Vec<OsString>,
}

impl BenchCommand {
    /// Runs the program; returns only if that fails.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        self.words.run(None, context)
    }
}

impl SegmentCommand {
    /// Runs the program; returns only if that fails.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let SegmentSubcommand::Replay(words) = self.command;
        words.run(Some("shared-file"), context)
    }
}

impl BenchWords {
    /// Replaces this process by `esker-bench`, which runs `workload`, or the one that the arguments
    /// name; returns only if that fails.
    pub fn run(self, workload: Option<&str>, context: &CommandContext) -> Result<()> {
        let mut command = Command::new(program());
        command.args(workload).args(self.words);
        if let Some(store) = context.given_store() {
            command.env("ESKER_STORE", store);
        }
        if context.out.is_json() {
            command.arg("--json");
        }
        let error = command.exec();
        if error.kind() != std::io::ErrorKind::NotFound {
            return Err(Error::io(error, format!("run {PROGRAM}")));
        }
        let what = format!(
            "{PROGRAM} is neither beside esker nor in PATH: install it from where esker came from, or \
             build it with `cargo build --release -p esker-cli`"
        );
        Err(Error::new(Kind::NotFound, what))
    }
}

/// The program beside this one, or else the one in PATH.
fn program() -> PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join(PROGRAM)));
    beside.filter(|path| path.exists()).unwrap_or_else(|| OsStr::new(PROGRAM).into())
}
