// SPDX-License-Identifier: Apache-2.0
//! `esker manual`: generates a manual page for each command from its help.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use esker_base::{Error, Result};

use crate::command_line;
use crate::context::CommandContext;

/// Write manual pages for man(1) into a directory
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker manual ~/.local/share/man/man1 && man esker-import")]
pub struct ManualCommand {
    /// Directory for the pages; created if it does not exist
    directory: PathBuf,
}

impl ManualCommand {
    /// Writes `esker.1`, and `esker-COMMAND.1` for each command and subcommand.
    pub fn run(self, _: &CommandContext) -> Result<()> {
        let failed = |error| {
            Error::io(error, format!("writing manual pages to {}", self.directory.display()))
        };
        fs::create_dir_all(&self.directory).map_err(failed)?;
        clap_mangen::generate_to(command_line::with_bench(), &self.directory).map_err(failed)
    }
}
