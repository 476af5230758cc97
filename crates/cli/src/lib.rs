// SPDX-License-Identifier: Apache-2.0
//! Esker's command-line programs: `esker`, thin commands over the crates, and `esker-bench`, its
//! benchmarks.
//!
//! `CommandLine` and `BenchCommandLine` parse the arguments, `CommandContext` opens the store, and a
//! command of `commands/` or a workload of `bench/` works and prints through `StandardOutput`. An error
//! becomes one line on standard error and its kind's exit code. The programs share this library, but
//! neither links what only the other calls: `esker` has no workloads and draws no plots.

mod bench;
mod change;
mod command_line;
mod commands;
mod context;
mod graph_lines;
mod indexed_export;
mod interrupt;
mod location;
mod mode_change;
mod mount_overlap;
mod output;
mod output_file;
mod program;
mod progress;
mod quantity;
mod rank_transport;
mod record_table;
mod session_outcome;
mod test_hooks;
mod text;
mod usage;
mod users;
mod writers;

use std::process::ExitCode;

/// Runs `esker` with the arguments of this process.
#[must_use]
pub fn esker() -> ExitCode {
    program::run::<command_line::CommandLine>()
}

/// Runs `esker-bench` with the arguments of this process.
#[must_use]
pub fn esker_bench() -> ExitCode {
    program::run::<bench::BenchCommandLine>()
}
