// SPDX-License-Identifier: Apache-2.0
//! `esker ln`: adds names to files, and creates symbolic links.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_fs::session::Session;
use esker_fs::stack::namespace::FollowLinks;

use super::one_stack;
use crate::change::{ChangeArguments, ChangedSession};
use crate::context::CommandContext;
use crate::location::StackPath;

/// Add a name to a file, or create a symbolic link
///
/// As ln(1). If NAME:/path is a directory, the link in it gets the target's own name. Works on a
/// published name with --as, which publishes the result under a new name, or in an open session.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker ln headers:/stdio.h headers:/io.h --as linked
  esker ln -s ../data/run7 @3f2a:/latest")]
pub struct LinkCommand {
    /// The file, in the same name or session; with -s the text of the link
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The new name
    #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
    link: StackPath,
    /// Create a symbolic link
    #[arg(short, long)]
    symbolic: bool,
    /// Remove an existing file of the new name
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    change: ChangeArguments,
}

impl LinkCommand {
    /// Creates the link.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let target = match self.symbolic {
            true => None,
            false => Some(
                StackPath::parse(&self.target).map_err(|error| Error::new(Kind::Invalid, error))?,
            ),
        };
        if let Some(target) = &target {
            one_stack(&[self.link.clone(), target.clone()]);
        }
        ChangedSession::open(context, &self.link.stack, &self.change)?
            .run(context, |session| self.link(session, target.as_ref()))
    }

    fn link(&self, session: &Session, target: Option<&StackPath>) -> Result<()> {
        let own_name = match target {
            Some(target) => target.last(),
            None => {
                let target = self.target.as_bytes();
                target.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty()).unwrap_or(b"")
            }
        };
        let link = match session.namespace().stat(&self.link.path, FollowLinks::Yes) {
            Ok(inode) if inode.is_directory() => self.link.join(own_name),
            _ => self.link.clone(),
        };
        let (dir, name) =
            session.namespace().locate(&link.path).map_err(|error| link.in_error(error))?;
        if self.force && session.namespace().lookup(&dir, name, false).is_ok() {
            session.unlink(&dir, name)?;
        }
        let linked = match target {
            None => session.symlink(&dir, name, self.target.as_bytes()),
            Some(target) => {
                let (old_dir, old_name) = session
                    .namespace()
                    .locate(&target.path)
                    .map_err(|error| target.in_error(error))?;
                session.link(&old_dir, old_name, &dir, name)
            }
        };
        linked.map(drop).map_err(|error| error.within(link))
    }
}
