// SPDX-License-Identifier: Apache-2.0
//! `esker names`: lists published names.

use std::collections::{HashMap, HashSet};
use std::process::ExitCode;

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_fs::inode::timestamp;
use esker_fs::maintenance::graph::GraphNode;
use esker_fs::names::{self, PublishedName};
use esker_fs::repository::Repository;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::SetId;
use serde_json::json;

use crate::context::CommandContext;
use crate::output::CommandProblems;
use crate::text;
use crate::users::UserNames;

/// List published names
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker names
  esker names -l
  esker names --deleted
  esker names --json | jq -r .name")]
pub struct NamesCommand {
    /// Also show the owner of the root directory, the records and bytes of the whole stack, and the
    /// age
    ///
    /// A record is a name that a change set of the stack has or removed, of whatever kind, even if
    /// another set hides it. Files are not counted here; `esker du` counts them.
    #[arg(short, long, conflicts_with = "deleted")]
    long: bool,
    /// List names that were deleted or given to another snapshot, and whose snapshots still exist
    #[arg(long)]
    deleted: bool,
}

/// Details of a snapshot besides its name.
struct SnapshotDetails {
    uid: u32,
    records: u64,
    bytes: u64,
}

impl NamesCommand {
    /// Lists them.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        if self.deleted {
            return list_former(context).map(|()| ExitCode::SUCCESS);
        }
        let repository = context.repository()?;
        let (names, damaged) = names::readable(&**repository.store())?;
        let problems = CommandProblems::default();
        damaged.iter().for_each(|error| problems.report_plain(error));
        match self.long {
            true => show_long(context, &repository, &names, &problems)?,
            false => show_short(context, &names)?,
        }
        Ok(problems.exit_code())
    }
}

fn show_short(context: &CommandContext, names: &[PublishedName]) -> Result<()> {
    if context.out.is_json() {
        return names.iter().try_for_each(|name| {
            context.out.json(json!({
                "name": name.name,
                "set": name.set.to_string(),
                "published_ns": name.published_ns,
            }))
        });
    }
    if names.is_empty() && context.out.is_terminal() {
        return context.out.line("nothing is published yet: esker import DIR NAME");
    }
    let width = names.iter().map(|name| name.name.chars().count()).max().unwrap_or(0);
    names.iter().try_for_each(|name| {
        let (published, set) = (text::minute(timestamp::of_clock(name.published_ns)), name.set);
        context.out.line(format!("{:width$}  {published}  @{set}", name.name))
    })
}

fn show_long(
    context: &CommandContext,
    repository: &Repository,
    names: &[PublishedName],
    problems: &CommandProblems,
) -> Result<()> {
    let sets: Vec<_> = names.iter().map(|name| name.set).collect();
    let graph = repository.graph(&sets)?;
    let nodes: HashMap<_, _> = graph.iter().map(|node| (node.set, node)).collect();
    let users = UserNames::of_machine();
    let width = names.iter().map(|name| name.name.chars().count()).max().unwrap_or(0);
    for name in names {
        let details = match details(context, repository, &nodes, name.set) {
            Err(error) if is_damage(&error) => {
                show_damaged(context, name, &error, width)?;
                problems.report_plain(&error.within(&name.name));
                continue;
            }
            details => details?,
        };
        let SnapshotDetails { uid, records, bytes } = details;
        if context.out.is_json() {
            context.out.json(json!({
                "name": name.name,
                "set": name.set.to_string(),
                "published_ns": name.published_ns,
                "uid": uid,
                "records": records,
                "bytes": bytes,
            }))?;
            continue;
        }
        let age = text::age(context.now_ns().saturating_sub(name.published_ns));
        let (owner, records) = (users.user(uid), text::counted(records, "record"));
        let (bytes, set) = (text::bytes(bytes), name.set);
        context.out.line(format!(
            "{:width$}  {owner:<8}  {records:>16}  {bytes:>10}  {age:>6}  @{set}",
            name.name
        ))?;
    }
    Ok(())
}

/// True if an error concerns one snapshot rather than the store.
fn is_damage(error: &Error) -> bool {
    use Kind::{Corrupt, Invalid, NotFound, TooLarge};
    [Corrupt, Invalid, NotFound, TooLarge].contains(&error.kind())
}

/// Prints the line of a name whose snapshot cannot be read.
fn show_damaged(
    context: &CommandContext,
    name: &PublishedName,
    error: &Error,
    width: usize,
) -> Result<()> {
    if context.out.is_json() {
        return context.out.json(json!({
            "name": name.name,
            "set": name.set.to_string(),
            "published_ns": name.published_ns,
            "error": error.to_string(),
        }));
    }
    context
        .out
        .line(format!("{:width$}  damaged: `esker verify` says more  @{}", name.name, name.set))
}

/// Sums over `set` and all that it builds on, each once. Hidden records count too.
fn details(
    context: &CommandContext,
    repository: &Repository,
    nodes: &HashMap<SetId, &GraphNode>,
    set: SetId,
) -> Result<SnapshotDetails> {
    let root = repository.open(&[set], context.identity())?.stat("/", FollowLinks::Yes)?;
    let mut details = SnapshotDetails { uid: root.uid, records: 0, bytes: 0 };
    let mut seen = HashSet::from([set]);
    let mut waiting = vec![set];
    while let Some(set) = waiting.pop() {
        let Some(node) = nodes.get(&set) else { continue };
        details.records += node.rows;
        details.bytes += node.table_bytes + node.data_bytes + node.referenced_bytes;
        waiting.extend(node.bases().iter().copied().filter(|base| seen.insert(*base)));
    }
    Ok(details)
}

fn list_former(context: &CommandContext) -> Result<()> {
    let names = context.repository()?.former_names()?;
    if context.out.is_json() {
        return names.iter().try_for_each(|former| {
            context.out.json(json!({
                "name": former.name,
                "set": former.set.to_string(),
                "deleted_ns": former.since_ns,
            }))
        });
    }
    let width = names.iter().map(|former| former.name.chars().count()).max().unwrap_or(0);
    names.iter().try_for_each(|former| {
        let (deleted, set) = (text::minute(timestamp::of_clock(former.since_ns)), former.set);
        context.out.line(format!("{:width$}  deleted {deleted}  @{set}", former.name))
    })
}
