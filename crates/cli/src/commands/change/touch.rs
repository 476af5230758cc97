// SPDX-License-Identifier: Apache-2.0
//! `esker touch`: sets times, and creates empty files.

use clap::Args;
use esker_base::{Kind, Result};
use esker_fs::inode::timestamp;
use esker_fs::ops::AttributeChanges;
use esker_fs::session::Session;
use esker_fs::stack::namespace::FollowLinks;

use super::{attributes, one_stack};
use crate::change::{ChangeArguments, ChangedSession};
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::{quantity, usage};

/// Set times of files, and create missing files
///
/// As touch(1). Works on a published name with --as, which publishes the result under a new name,
/// or in an open session.
#[derive(Args)]
// As of the program of this name, -m is another option.
#[command(mut_arg("message", |argument| argument.short(None::<char>)))]
#[command(after_help = "\
Examples:
  esker touch headers:/STAMP --as stamped
  esker touch -d 2026-01-31T17:30 @3f2a:/results
  esker touch -r headers:/stdio.h @3f2a:/results")]
pub struct TouchCommand {
    /// Files, all in one name or session
    #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Do not create files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Set only the access time
    #[arg(short = 'a', conflicts_with = "modification")]
    access: bool,
    /// Set only the modification time
    #[arg(short = 'm')]
    modification: bool,
    /// Use this time instead of now: 2026-01-31, 2026-01-31T17:30 (UTC), @SECONDS, or an age such
    /// as 7d
    #[arg(short, long, value_name = "TIME")]
    date: Option<String>,
    /// Use the times of this file instead of now
    #[arg(short, long, value_name = "NAME:/path", value_parser = StackPath::parser(), conflicts_with = "date")]
    reference: Option<StackPath>,
    #[command(flatten)]
    change: ChangeArguments,
}

impl TouchCommand {
    /// Touches them.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let stack = one_stack(&self.locations);
        let (atime_ns, mtime_ns) = self.times(context)?;
        let changes = AttributeChanges {
            atime_ns: (!self.modification).then_some(atime_ns),
            mtime_ns: (!self.access).then_some(mtime_ns),
            ..AttributeChanges::default()
        };
        ChangedSession::open(context, stack, &self.change)?.run(context, |session| {
            self.locations.iter().try_for_each(|location| {
                let touched = self.touch(session, location, &changes, 0o666 & !context.umask);
                touched.map_err(|error| location.in_error(error))
            })
        })
    }

    /// The times of access and modification to set.
    fn times(&self, context: &CommandContext) -> Result<(i64, i64)> {
        if let Some(reference) = &self.reference {
            let view = context.view(&context.repository()?, &reference.stack)?;
            let inode = view.stat(&reference.path, FollowLinks::Yes)?;
            return Ok((inode.atime_ns, inode.mtime_ns));
        }
        let now_ns = timestamp::of_clock(context.now_ns());
        let time_ns = match &self.date {
            Some(date) => usage::value_of(quantity::moment(date, now_ns)),
            None => now_ns,
        };
        Ok((time_ns, time_ns))
    }

    fn touch(
        &self,
        session: &Session,
        location: &StackPath,
        changes: &AttributeChanges,
        mode: u32,
    ) -> Result<()> {
        match session.namespace().find(&location.path, FollowLinks::Yes) {
            Err(error) if error.kind() == Kind::NotFound => {
                if self.no_create {
                    return Ok(());
                }
                let (dir, name) = session.namespace().locate(&location.path)?;
                session.create(&dir, name, mode)?;
                if self.date.is_some() || self.reference.is_some() {
                    session.setattr(&dir, name, changes)?;
                }
                Ok(())
            }
            found => attributes::change(session, &found?, changes),
        }
    }
}
