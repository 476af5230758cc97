// SPDX-License-Identifier: Apache-2.0
//! `esker log`: stacks as a graph.

use std::collections::HashMap;

use clap::Args;
use esker_base::Result;
use esker_fs::inode::timestamp;
use esker_fs::job::JobId;
use esker_fs::maintenance::graph::GraphNode;
use esker_fs::retention::marker::MarkerHolder;
use esker_table::manifest::{Manifest, SetId, SetState};
use serde_json::json;

use crate::change::MESSAGE;
use crate::context::CommandContext;
use crate::graph_lines::{ASCII, BOXES, GraphLines};
use crate::location::StackArgument;
use crate::{text, writers};

/// Digits of an id that are enough to tell change sets apart at a glance.
const DIGITS_SHOWN: usize = 8;

/// Draw change sets and their bases
///
/// Shows each change set with its size, how long it was written, and the user, host and command of
/// its last writer. Newest first; a change set is above its bases, and the leftmost base wins. A
/// full circle is complete, an empty circle an open session, a point a set of which only data
/// remains that squashes refer to, and a cross something unreadable.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker log
  esker log climate-7 --json")]
pub struct LogCommand {
    /// Names or change sets; all unless given
    #[arg(value_name = "NAME", value_parser = StackArgument::parser())]
    stacks: Vec<StackArgument>,
    /// Show at most this many change sets
    #[arg(short = 'n', long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true)]
    limit: usize,
    /// Use only ASCII characters
    #[arg(long)]
    ascii: bool,
}

impl LogCommand {
    /// Draws.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let repository = context.repository()?;
        let mut nodes = if self.stacks.is_empty() {
            repository.graph_of_all()?
        } else {
            repository.graph(&context.sets_of(&repository, &self.stacks)?)?
        };
        // Their last manifests stay for a while after everything else is gone.
        let stays = |state| matches!(state, SetState::Open | SetState::Sealed | SetState::DataOnly);
        nodes.retain(|node| node.state().is_none_or(stays));
        if context.out.is_json() {
            let mut nodes = nodes.iter().take(self.limit);
            return nodes.try_for_each(|node| context.out.json(object(node)));
        }
        let pen = if self.ascii { ASCII } else { BOXES };
        let mut lines = GraphLines::new(pen);
        let live_names: HashMap<SetId, String> =
            nodes.iter().filter_map(|node| Some((node.set, live_name(node)?.to_owned()))).collect();
        for node in nodes.iter().take(self.limit) {
            let mark = match (node.state(), self.ascii) {
                (Some(SetState::Sealed), false) => '●',
                (Some(SetState::Sealed), true) => '*',
                (Some(SetState::Open), false) => '○',
                (Some(SetState::Open), true) => 'o',
                (Some(SetState::DataOnly), false) => '·',
                (Some(SetState::DataOnly), true) => '.',
                (_, false) => '✗',
                (_, true) => 'x',
            };
            let drawn = lines.draw(node.set, node.bases(), mark);
            // The second line of a node shares the first connecting line, if there is one.
            let margin = drawn.below.first().cloned().unwrap_or_else(|| lines.margin());
            let width = drawn.node.chars().count().max(margin.chars().count());
            context.out.line(format!(
                "{:width$} {}",
                drawn.node,
                title(node, &live_names) + &message(node)
            ))?;
            context.out.line(format!("{margin:width$} {}", detail(node)))?;
            for line in drawn.below.iter().skip(1) {
                context.out.line(line.trim_end())?;
            }
        }
        Ok(())
    }
}

/// The first line of a node; `live_names` has the live namespaces among the nodes.
fn title(node: &GraphNode, live_names: &HashMap<SetId, String>) -> String {
    let id = &node.set.to_string()[..DIGITS_SHOWN];
    let names = node.names.join(", ");
    if let Some(name) = live_name(node) {
        return format!("@{id}  live namespace {name}");
    }
    match node.state() {
        Some(SetState::Open) if node.holders.iter().any(MarkerHolder::is_session) => {
            format!("@{id}  open session")
        }
        Some(SetState::Open) => format!("@{id}  given up"),
        Some(SetState::DataOnly) => format!("@{id}  deleted; squashes keep data"),
        Some(SetState::Sealed) if names.is_empty() => {
            format!("@{id}  {}", unnamed(node, live_names))
        }
        _ => format!("@{id}  {names}"),
    }
}

/// What a complete set without a name is.
fn unnamed(node: &GraphNode, live_names: &HashMap<SetId, String>) -> String {
    if !node.manifest.as_ref().is_ok_and(|manifest| manifest.has_own_identities) {
        return "(no name)".to_owned();
    }
    let inserted = node.holders.iter().find_map(|holder| match holder {
        MarkerHolder::Set(set) => live_names.get(set),
        _ => None,
    });
    match inserted {
        Some(name) => format!("directory inserted into live namespace {name}"),
        None => "directory for a bulk insertion (no name)".to_owned(),
    }
}

/// The name of the live namespace that the set is, if it is one.
pub fn live_name(node: &GraphNode) -> Option<&str> {
    node.holders.iter().find_map(|holder| match holder {
        MarkerHolder::Live(name) => Some(&name[..]),
        _ => None,
    })
}

/// The publisher's message of the set.
fn message(node: &GraphNode) -> String {
    let properties = node.manifest.as_ref().ok().map(|manifest| &manifest.properties);
    let message = properties.and_then(|properties| properties.get(MESSAGE));
    message.map_or(String::new(), |message| format!("  {}", text::printable(message.as_bytes())))
}

fn detail(node: &GraphNode) -> String {
    match &node.manifest {
        Ok(manifest) => {
            let writer = manifest.writer.as_ref();
            let author = writer.map_or(String::new(), |w| format!(", by {}", writers::author(w)));
            format!(
                "{}, {}, {} of tables, {} of data{}, in {:.1} s{author}",
                text::minute(timestamp::of_clock(manifest.written_ns)),
                text::counted(node.rows, "record"),
                text::bytes(node.table_bytes),
                text::bytes(node.data_bytes),
                referenced(node),
                seconds(manifest),
            )
        }
        Err(error) => error.clone(),
    }
}

/// The sets that a squash refers to, if any.
fn referenced(node: &GraphNode) -> String {
    match node.referenced_bytes {
        0 => String::new(),
        bytes => format!(" and {} of others", text::bytes(bytes)),
    }
}

/// How long a change set has been written.
fn seconds(manifest: &Manifest) -> f64 {
    manifest.written_ns.saturating_sub(manifest.created_ns) as f64 / 1e9
}

/// A change set as JSON; docs/guide/command.md describes it.
pub fn object(node: &GraphNode) -> serde_json::Value {
    let bases: Vec<String> = node.bases().iter().map(ToString::to_string).collect();
    let holders: Vec<String> = node.holders.iter().map(ToString::to_string).collect();
    let mut object = json!({
        "set": node.set.to_string(),
        "names": node.names,
        "state": node.state().map(|state| state.to_string()),
        "bases": bases,
        "holders": holders,
        "rows": node.rows,
        "runs": node.runs,
        "table_bytes": node.table_bytes,
        "data_bytes": node.data_bytes,
        "referenced_bytes": node.referenced_bytes,
    });
    match &node.manifest {
        Ok(manifest) => {
            object["created_ns"] = manifest.created_ns.into();
            object["written_ns"] = manifest.written_ns.into();
            if let Some(membership) = manifest.job {
                object["job"] = JobId(membership.job).to_string().into();
                object["rank"] = membership.rank.into();
            }
            object["seconds"] = seconds(manifest).into();
            object["author"] = json!(manifest.writer.as_ref().map(|writer| json!({
                "user": writer.user,
                "host": writer.process.host,
                "command": writer.command,
            })));
            object["properties"] = json!(manifest.properties);
        }
        Err(error) => object["error"] = error.clone().into(),
    }
    object
}
