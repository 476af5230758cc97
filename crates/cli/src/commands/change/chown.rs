// SPDX-License-Identifier: Apache-2.0
//! `esker chown` and `esker chgrp`: change owners and groups.

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_fs::ops::AttributeChanges;

use super::{attributes, one_stack};
use crate::change::{ChangeArguments, ChangedSession};
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::users::UserNames;

/// Change owners and groups
///
/// As chown(1). Only the superuser can change owners; an owner can change the group to one of their
/// own groups. Works on a published name with --as, which publishes the result under a new name, or
/// in an open session.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker chown -R alice:staff headers:/alice --as given
  esker chown 1001 @3f2a:/results")]
pub struct ChownCommand {
    /// Owner, by name or number; OWNER:GROUP also sets the group, :GROUP only the group
    #[arg(value_name = "OWNER[:GROUP]")]
    owner: String,
    #[command(flatten)]
    arguments: OwnerArguments,
}

/// Change groups
///
/// As chgrp(1): an owner can change the group to one of their own groups. Works on a published name
/// with --as, which publishes the result under a new name, or in an open session.
#[derive(Args)]
#[command(after_help = "\
Example:
  esker chgrp -R staff @3f2a:/results")]
pub struct ChgrpCommand {
    /// Group, by name or number
    #[arg(value_name = "GROUP")]
    group: String,
    #[command(flatten)]
    arguments: OwnerArguments,
}

#[derive(Args)]
struct OwnerArguments {
    /// Paths to change, all in one name or session
    #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Change directories and everything in them; symbolic links in them are skipped
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    change: ChangeArguments,
}

impl ChownCommand {
    /// Changes them.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let (owner, group) = match self.owner.split_once(':') {
            Some((owner, group)) => (owner, group),
            None => (self.owner.as_str(), ""),
        };
        let users = UserNames::of_machine();
        let uid = number(owner, "user", |name| users.uid(name))?;
        let gid = number(group, "group", |name| users.gid(name))?;
        self.arguments.run(context, &AttributeChanges { uid, gid, ..AttributeChanges::default() })
    }
}

impl ChgrpCommand {
    /// Changes them.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let users = UserNames::of_machine();
        let gid = number(&self.group, "group", |name| users.gid(name))?;
        self.arguments.run(context, &AttributeChanges { gid, ..AttributeChanges::default() })
    }
}

impl OwnerArguments {
    fn run(&self, context: &CommandContext, changes: &AttributeChanges) -> Result<()> {
        let stack = one_stack(&self.locations);
        ChangedSession::open(context, stack, &self.change)?.run(context, |session| {
            self.locations.iter().try_for_each(|location| {
                attributes::change_tree(session, location, self.recursive, |_| *changes)
            })
        })
    }
}

/// The number of a user or group; `None` for empty text.
fn number(text: &str, what: &str, find: impl Fn(&str) -> Option<u32>) -> Result<Option<u32>> {
    if text.is_empty() {
        return Ok(None);
    }
    match find(text).or_else(|| text.parse().ok()) {
        Some(number) => Ok(Some(number)),
        None => {
            let what = format!("{text:?}: this machine has no such {what}; give its number");
            Err(Error::new(Kind::Invalid, what))
        }
    }
}
