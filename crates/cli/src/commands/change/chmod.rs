// SPDX-License-Identifier: Apache-2.0
//! `esker chmod`: changes permission bits.

use clap::Args;
use esker_base::Result;
use esker_fs::ops::AttributeChanges;

use super::{attributes, one_stack};
use crate::change::{ChangeArguments, ChangedSession};
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::mode_change::ModeChange;

/// Change permission bits
///
/// As chmod(1). Works on a published name with --as, which publishes the result under a new name,
/// or in an open session.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker chmod 600 headers:/secret --as closed
  esker chmod -R go-w,a+X @3f2a:/tree")]
pub struct ChmodCommand {
    /// Permission bits in octal, or changes such as u+x, go-w or g=u
    #[arg(value_name = "MODE", value_parser = ModeChange::parse, allow_hyphen_values = true)]
    mode: ModeChange,
    /// Paths to change, all in one name or session
    #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Change directories and everything in them; symbolic links in them are skipped
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    change: ChangeArguments,
}

impl ChmodCommand {
    /// Changes them.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let stack = one_stack(&self.locations);
        ChangedSession::open(context, stack, &self.change)?.run(context, |session| {
            self.locations.iter().try_for_each(|location| {
                attributes::change_tree(session, location, self.recursive, |inode| {
                    let mode = self.mode.apply(inode.mode, inode.is_directory(), context.umask);
                    AttributeChanges { mode: Some(mode), ..AttributeChanges::default() }
                })
            })
        })
    }
}
