// SPDX-License-Identifier: Apache-2.0
//! `esker rm`: removes files and whole trees.

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_fs::session::Session;
use esker_fs::stack::namespace::FollowLinks;

use super::one_stack;
use crate::change::{ChangeArguments, ChangedSession};
use crate::context::CommandContext;
use crate::location::StackPath;

/// Remove files and whole trees
///
/// Works on a published name with --as, which publishes the result under a new name and leaves the
/// old one unchanged, or in an open session. Removing a tree takes one step, whatever its size.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker rm -r headers:/linux headers:/drm --as small
  esker rm @3f2a:/results/old.nc")]
pub struct RemoveCommand {
    /// Files or, with -r, directories, all in one name or session
    #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Remove directories and everything in them
    #[arg(short, long)]
    recursive: bool,
    /// Ignore paths that do not exist
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    change: ChangeArguments,
}

impl RemoveCommand {
    /// Removes them.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let stack = one_stack(&self.locations);
        ChangedSession::open(context, stack, &self.change)?.run(context, |session| {
            for location in &self.locations {
                match self.remove(session, location) {
                    Err(error) if self.force && error.kind() == Kind::NotFound => {}
                    removed => removed.map_err(|error| location.in_error(error))?,
                }
            }
            Ok(())
        })
    }

    fn remove(&self, session: &Session, location: &StackPath) -> Result<()> {
        let inode = session.namespace().stat(&location.path, FollowLinks::No)?;
        let (dir, name) = session.namespace().locate(&location.path)?;
        if !inode.is_directory() {
            return session.unlink(&dir, name).map(drop);
        }
        if !self.recursive {
            let what = format!("{location} is a directory: add -r to remove all that is in it");
            return Err(Error::new(Kind::IsADirectory, what));
        }
        session.remove_tree(&dir, name)
    }
}
