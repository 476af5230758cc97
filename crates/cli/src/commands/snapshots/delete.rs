// SPDX-License-Identifier: Apache-2.0
//! `esker delete`, `undelete` and `rename`: remove, restore and change published names.

use clap::Args;
use esker_base::{Error, Result};
use serde_json::json;

use crate::change::{NameReplacement, announce};
use crate::context::CommandContext;
use crate::{progress, usage};

/// Delete published names
///
/// Snapshots that build on a deleted one stay whole. `esker undelete` restores a name while its
/// snapshot still exists. `esker gc` frees snapshots that are no longer needed, by default an hour
/// after the deletion.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker delete headers-old && esker gc
  esker delete headers-old && esker gc --grace 0    # free it at once")]
pub struct DeleteCommand {
    /// Names to delete
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl DeleteCommand {
    /// Deletes them.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        self.names.iter().for_each(|name| check_is_name(name));
        progress::watch_store(context, "delete:", |repository| {
            for (at, name) in self.names.iter().enumerate() {
                repository.delete(name).map_err(|error| {
                    let (deleted, left) = (&self.names[..at], &self.names[at + 1..]);
                    let list = |what: &str, names: &[String]| match names {
                        [] => String::new(),
                        _ => format!("; {what} {}", names.join(" ")),
                    };
                    let rest = list("deleted before that:", deleted) + &list("left:", left);
                    Error::new(error.kind(), format!("{}{rest}", error.context()))
                })?;
            }
            Ok(())
        })
    }
}

/// Ends the command if `name` is not a published name but another form of reference.
fn check_is_name(name: &str) {
    let what = if name.starts_with('@') {
        format!(
            "{name} is a change set, not a name: drop a session with `esker session drop {name}`"
        )
    } else if name.contains(['*', '?', '[']) {
        format!("{name:?} is not a name; patterns are not expanded; `esker names` lists names")
    } else if let Some((name, _)) = name.split_once(':') {
        format!("a whole name is deleted: `esker delete {name}`; for paths see `esker rm --help`")
    } else {
        return;
    };
    usage::exit(what)
}

/// Restore a deleted name, for the snapshot that lost it last
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker names --deleted
  esker undelete headers-old")]
pub struct UndeleteCommand {
    /// The name
    #[arg(value_name = "NAME")]
    name: String,
}

impl UndeleteCommand {
    /// Restores it.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let named = context.repository()?.undelete(&self.name)?;
        announce(context, &named.name, named.set)
    }
}

/// Rename a published name
///
/// The new name appears before the old one disappears: a reader always finds one of them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker rename run-7 climate-7
  esker rename candidate current --replace")]
pub struct RenameCommand {
    /// The old name
    #[arg(value_name = "OLD")]
    old: String,
    /// The new name
    #[arg(value_name = "NEW")]
    new: String,
    #[command(flatten)]
    replacing: NameReplacement,
}

impl RenameCommand {
    /// Renames it.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        [&self.old, &self.new].into_iter().for_each(|name| usage::check_name(name));
        let renamed = context.repository()?.rename(&self.old, &self.new, self.replacing.if_taken());
        let set = renamed.map_err(|error| {
            NameReplacement::advise(error, std::slice::from_ref(&self.old), &self.new)
        })?;
        if context.out.is_json() {
            let (from, to) = (&self.old, &self.new);
            return context.out.json(json!({"renamed": from, "name": to, "set": set.to_string()}));
        }
        context.out.line(format!("{} is {} now @{set}", self.old, self.new))
    }
}
