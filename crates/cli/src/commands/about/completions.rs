// SPDX-License-Identifier: Apache-2.0
//! `esker completions`: scripts that complete commands in shells.

use clap::Args;
use clap_complete::Shell;
use esker_base::Result;

use crate::command_line;
use crate::context::CommandContext;

/// Print a script that completes commands in a shell
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker completions bash > ~/.local/share/bash-completion/completions/esker
  esker completions zsh > \"${fpath[1]}/_esker\"
  esker completions fish > ~/.config/fish/completions/esker.fish")]
pub struct CompletionsCommand {
    /// The shell
    shell: Shell,
}

impl CompletionsCommand {
    /// Prints the script.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command_line::with_bench(), "esker", &mut script);
        context.out.raw(&script)
    }
}
