// SPDX-License-Identifier: Apache-2.0
//! `esker mv`: renames files and whole trees.

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_fs::ops::RenameFlags;
use esker_fs::session::Session;
use esker_fs::stack::namespace::FollowLinks;

use super::one_stack;
use crate::change::{ChangeArguments, ChangedSession};
use crate::context::CommandContext;
use crate::location::StackPath;

/// Rename files and whole trees
///
/// The last argument is the new path, or a directory to move into. Renaming takes one step, however
/// large the tree is. Works on a published name with --as, which publishes the result under a new
/// name, or in an open session.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker mv headers:/linux headers:/kernel --as renamed
  esker mv @3f2a:/a @3f2a:/b @3f2a:/archive")]
pub struct MoveCommand {
    /// Paths to rename, then the new path; all in one name or session
    #[arg(required = true, num_args = 2.., value_name = "NAME:/path", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Fail if the new path is taken
    #[arg(short = 'n', long, conflicts_with = "exchange")]
    no_replace: bool,
    /// Exchange the two paths
    #[arg(long)]
    exchange: bool,
    #[command(flatten)]
    change: ChangeArguments,
}

impl MoveCommand {
    /// Renames them.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let stack = one_stack(&self.locations);
        let (target, sources) = self.locations.split_last().expect("clap asks for two");
        let flags = match (self.no_replace, self.exchange) {
            (true, _) => RenameFlags::NoReplace,
            (_, true) => RenameFlags::Exchange,
            _ => RenameFlags::Replace,
        };
        ChangedSession::open(context, stack, &self.change)?.run(context, |session| {
            let into = !self.exchange && is_directory(session, target)?;
            if sources.len() > 1 && !into {
                let what = format!("{target} is not a directory, which several files need");
                return Err(Error::new(Kind::NotADirectory, what));
            }
            for source in sources {
                let target = if into { target.join(source.last()) } else { target.clone() };
                rename(session, source, &target, flags)?;
            }
            Ok(())
        })
    }
}

fn is_directory(session: &Session, location: &StackPath) -> Result<bool> {
    match session.namespace().stat(&location.path, FollowLinks::Yes) {
        Ok(inode) => Ok(inode.is_directory()),
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn rename(
    session: &Session,
    source: &StackPath,
    target: &StackPath,
    flags: RenameFlags,
) -> Result<()> {
    let locate = |location: &'_ StackPath| {
        let found =
            session.namespace().locate(&location.path).map(|(dir, name)| (dir, name.to_vec()));
        found.map_err(|error| location.in_error(error))
    };
    let ((old_dir, old_name), (dir, name)) = (locate(source)?, locate(target)?);
    session
        .rename((&old_dir, &old_name), (&dir, &name), flags)
        .map(drop)
        .map_err(|error| error.within(format!("rename {source} to {target}")))
}
