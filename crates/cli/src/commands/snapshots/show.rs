// SPDX-License-Identifier: Apache-2.0
//! `esker show`: prints the contents of a change set's manifest.

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use esker_base::Result;
use esker_fs::inode::INODE;
use esker_fs::inode::timestamp;
use esker_fs::job::JobId;
use esker_fs::maintenance::graph::GraphNode;
use esker_fs::repository::Repository;
use esker_table::column_sizes;
use esker_table::manifest::{Manifest, SetState, TableRef};
use serde_json::json;

use super::log;
use crate::context::CommandContext;
use crate::location::StackArgument;
use crate::{text, writers};

/// Show the contents of a change set
///
/// Prints its manifest: state, bases, properties, and tables with their sizes and ranges. With
/// --columns, also prints the size of each column of its records, for which it reads all tables.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker show headers
  esker show @3f2a --columns")]
pub struct ShowCommand {
    /// A name or change set
    #[arg(value_name = "NAME", value_parser = StackArgument::parser())]
    stack: StackArgument,
    /// Print the bytes of each column
    #[arg(short, long)]
    columns: bool,
}

impl ShowCommand {
    /// The command for `stack`, without columns.
    pub fn of(stack: StackArgument) -> Self {
        Self { stack, columns: false }
    }

    /// Shows.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let repository = context.repository()?;
        let set = context.set_of(&repository, &self.stack)?;
        let manifest = Manifest::load(&**repository.store(), set)?;
        let nodes = repository.graph(&[set])?;
        let node = nodes.iter().find(|node| node.set == set).expect("a graph has its roots");
        let hold = repository.hold(set, &manifest)?;
        let log_bytes = repository.unflushed_bytes(set)?;
        let columns = if self.columns { Some(column_bytes(&repository, &manifest)?) } else { None };
        if context.out.is_json() {
            let mut object = log::object(node);
            object["writer"] = writers::object(hold.as_ref());
            object["log_bytes"] = log_bytes.into();
            object["number"] = manifest.number.into();
            object["epoch"] = manifest.epoch.into();
            object["last_seq"] = manifest.last_seq.into();
            object["tables"] = manifest.tables.iter().map(table_object).collect();
            if let Some(columns) = columns {
                object["column_bytes"] = columns.into_iter().collect();
            }
            return context.out.json(object);
        }
        let out = &context.out;
        let field = |name: &str, value: String| out.line(format!("{name:>10}  {value}"));
        field("set", format!("@{set}"))?;
        field("names", node.names.join(", "))?;
        field("state", manifest.state.to_string())?;
        field("created", text::instant(timestamp::of_clock(manifest.created_ns)))?;
        field("written", text::instant(timestamp::of_clock(manifest.written_ns)))?;
        if let Some(hold) = &hold {
            let line = match manifest.state {
                SetState::Sealed => writers::author(&hold.writer),
                _ => writers::line(hold, context.now_ns()),
            };
            field("writer", line)?;
        }
        field("manifest", format!("{}, epoch {}", manifest.number, manifest.epoch))?;
        for base in &manifest.bases {
            let names = nodes.iter().find(|node| node.set == *base).map(|node| &node.names);
            field("base", format!("@{base} {}", names.map_or(String::new(), |n| n.join(", "))))?;
        }
        for holder in &node.holders {
            field("held by", holder.to_string())?;
        }
        if let Some(membership) = manifest.job {
            let rank = membership.rank.map_or(String::new(), |rank| format!(", rank {rank}"));
            field("job", format!("{}{rank}", JobId(membership.job)))?;
        }
        for (name, value) in &manifest.properties {
            field("property", format!("{name} = {value}"))?;
        }
        field("records", text::count(node.rows))?;
        if log_bytes > 0 {
            field("log", format!("{} not flushed", text::bytes(log_bytes)))?;
        }
        field("data", format!("{} in data logs", text::bytes(node.data_bytes)))?;
        if let Some(referenced) = referenced(node, &manifest) {
            field("refers to", referenced)?;
        }
        let each = node.table_bytes as f64 / node.rows.max(1) as f64;
        let (size, runs) = (text::bytes(node.table_bytes), text::counted(node.runs as u64, "run"));
        field("tables", format!("{size} in {runs}, {each:.1} bytes a record"))?;
        if !manifest.tables.is_empty() {
            out.line(tables(&manifest.tables).to_string())?;
        }
        if let Some(columns) = columns {
            out.line(columns_table(&columns, node.rows).to_string())?;
        }
        Ok(())
    }
}

/// The sets that a squash refers to, if any.
fn referenced(node: &GraphNode, manifest: &Manifest) -> Option<String> {
    let (size, sets) = (text::bytes(node.referenced_bytes), manifest.referenced_logs.len() as u64);
    let sets = text::counted(sets, "change set");
    (node.referenced_bytes > 0).then(|| format!("{size} in data logs of {sets}"))
}

fn table_object(table: &TableRef) -> serde_json::Value {
    json!({
        "object": table.name(),
        "run": table.run,
        "rows": table.rows,
        "bytes": table.bytes,
        "seq_max": table.seq_max,
        "first_dir": dir_of(&table.first.ints),
        "last_dir": dir_of(&table.last.ints),
    })
}

/// The directory of a key, in hexadecimal.
fn dir_of(ints: &[u64]) -> String {
    format!("{:016x}{:016x}", ints[0], ints[1])
}

fn tables(tables: &[TableRef]) -> Table {
    let mut drawn = Table::new();
    drawn.load_style(presets::NOTHING);
    drawn.set_header(["run", "table", "records", "bytes", "directories"]);
    for table in tables {
        let short = |ints: &[u64]| dir_of(ints)[..4].to_owned();
        drawn.add_row([
            table.run.to_string(),
            format!("{:x}", table.number),
            text::count(table.rows),
            text::bytes(table.bytes),
            format!("{}…–{}…", short(&table.first.ints), short(&table.last.ints)),
        ]);
    }
    for column in [0, 2, 3] {
        if let Some(column) = drawn.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    drawn
}

fn columns_table(columns: &[(String, u64)], rows: u64) -> Table {
    let mut drawn = Table::new();
    drawn.load_style(presets::NOTHING);
    drawn.set_header(["column", "bytes", "a record"]);
    for (name, bytes) in columns {
        let each = *bytes as f64 / rows.max(1) as f64;
        drawn.add_row([name.clone(), text::bytes(*bytes), format!("{each:.2}")]);
    }
    for column in [1, 2] {
        if let Some(column) = drawn.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    drawn
}

/// Bytes of each column in all tables of `manifest`, largest first, and of everything else.
fn column_bytes(repository: &Repository, manifest: &Manifest) -> Result<Vec<(String, u64)>> {
    let mut columns = column_sizes::column_bytes(repository.source(), &INODE, &manifest.tables)?;
    columns.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    Ok(columns)
}
