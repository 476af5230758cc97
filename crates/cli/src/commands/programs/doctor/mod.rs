// SPDX-License-Identifier: Apache-2.0
//! `esker doctor`: says what works on this machine, and which way a program can use Esker.
//!
//! Every check tries the real thing, where that leaves nothing behind: [`mount_checks`] mounts,
//! [`machine`] runs a shell under a supervisor, [`store_checks`] writes and deletes objects. A
//! program of the user is never run: [`program_file`] reads it, [`elf_file`] its headers, and
//! [`program_way`] compares what it needs with what works.

mod batch_commands;
mod called_functions;
mod check;
mod command_words;
mod elf_file;
mod gained_privilege;
mod limit_checks;
mod machine;
mod mount_checks;
mod mpi_checks;
mod program_file;
mod program_report;
mod program_way;
mod script_line;
mod search_path;
mod spool_checks;
mod store_checks;
mod way_commands;
mod wrapper_words;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use esker_base::Result;

use self::command_words::CommandWords;
use self::machine::MachineReport;
use self::program_report::ProgramReport;
use crate::context::CommandContext;

/// Say what works on this machine, and which way a program needs
///
/// Without COMMAND, checks this machine and the store, if one is given, and prints a line for each
/// check: "works", "limited" (for some uses), "fails" or "info", what was found, and what to do
/// next. The checks try what they report: they mount for a moment, run a shell by `esker run --at`,
/// and write small objects to the store, which they delete. If there is no way for unmodified
/// programs, the command exits with 23; if the store cannot be used, with the code of its error.
///
/// With COMMAND, reads the files of its program and says whether the program can use a mount,
/// `esker run --at` or the MPI-IO library, why, and which commands to paste. It never runs the
/// program. If no way works here, the command says what to ask the administrator for, and exits
/// with 23.
///
/// A program's files show which libraries it needs, but not which files it opens, nor which programs
/// it starts.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker doctor --store /scratch/store
  esker doctor --json | jq -r 'select(.status == \"fails\") | .check'
  esker doctor -- ./simulation --steps 100
  esker doctor -- mpirun -n 16 ./simulation
  esker doctor -- srun -n 64 ./simulation    # commands for a batch script
  esker doctor --json -- make all | jq -r '.ways[0].commands[]'")]
pub struct DoctorCommand {
    /// A program and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl DoctorCommand {
    /// Checks the machine, or reads the program.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        if self.command.is_empty() {
            let report = MachineReport::new(context);
            report.print(context)?;
            report.outcome()?;
        } else {
            let report = ProgramReport::new(context, CommandWords::new(self.command)?)?;
            report.print(context)?;
            report.outcome()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
