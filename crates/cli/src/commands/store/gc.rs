// SPDX-License-Identifier: Apache-2.0
//! `esker gc`: frees everything that is no longer needed.

use std::time::Duration;

use clap::Args;
use esker_base::Result;
use esker_fs::retention::gc::{GcOptions, GcReport};
use esker_fs::session::open_sessions::{LeftSessions, OpenSession};
use esker_table::manifest::SetId;
use serde_json::json;

use crate::change::SessionSettings;
use crate::commands::snapshots::{log, session};
use crate::context::CommandContext;
use crate::output::notice;
use crate::quantity::age_seconds;
use crate::{progress, text};

/// Free everything that is no longer needed
///
/// Frees change sets that no name, session or other change set needs, and replaced tables and logs
/// in the others. If only squashes still need data of a change set, everything else of it is freed.
/// A snapshot whose name was deleted or given to another snapshot stays for the grace period,
/// during which `esker undelete` can restore a deleted name. Snapshots in use by a mount or another
/// long reader stay at any grace period. Safe to run beside writers and readers, and to interrupt.
/// Sessions without a writer are kept and counted, unless --sessions-older-than selects them;
/// sessions that a killed command had begun for itself are dropped.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker gc --dry-run
  esker gc --grace 0      # free at once; `esker undelete` finds nothing then
  esker gc --sessions-older-than 7d")]
pub struct GcCommand {
    /// Only print what would be freed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Keep everything that lost its name, or was replaced or begun, less than AGE ago
    #[arg(long, default_value = "1h", value_parser = age, value_name = "AGE")]
    grace: Duration,
    /// Drop sessions that nobody has written for this long, as `esker session drop` does
    #[arg(long, value_parser = age, value_name = "AGE")]
    sessions_older_than: Option<Duration>,
    /// Also look for data logs that no record refers to; reads all tables
    #[arg(long)]
    scan_data: bool,
}

fn age(text: &str) -> Result<Duration, String> {
    let seconds = if text == "0" { Some(0) } else { age_seconds(text) };
    let expected = || format!("{text:?}: expected 90s, 15m, 6h, 7d, 2w or 0");
    seconds.map(Duration::from_secs).ok_or_else(expected)
}

impl GcCommand {
    /// Runs the collection.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let session_options = SessionSettings::for_few().options(context);
        let (sessions, report) = progress::watch_store(context, "gc:", |repository| {
            let mut sessions = repository.give_up_left(
                self.sessions_older_than,
                self.dry_run,
                &session_options,
            )?;
            // A set of a live namespace is never given up; a trial run does not try.
            sessions.given_up.retain(|session| log::live_name(&session.node).is_none());
            let given_up = sessions.given_up.iter().map(|session| session.node.set).collect();
            let report = repository.gc(&GcOptions {
                grace: self.grace,
                dry_run: self.dry_run,
                scan_data: self.scan_data,
                given_up,
            })?;
            Ok((sessions, report))
        })?;
        let LeftSessions { given_up: dropped, kept: mut left } = sessions;
        // A live namespace without a server waits for the next one.
        left.retain(|session| log::live_name(&session.node).is_none());
        if context.out.is_json() {
            let ids = |sets: &[SetId]| sets.iter().map(ToString::to_string).collect::<Vec<_>>();
            let (sets, data_only_sets) = (ids(&report.sets), ids(&report.data_only_sets));
            return context.out.json(json!({
                "dry_run": self.dry_run,
                "dropped_sessions": dropped.iter().map(session::object).collect::<Vec<_>>(),
                "left_sessions": left.len(),
                "sets": sets,
                "data_only_sets": data_only_sets,
                "objects": report.objects,
                "bytes": report.bytes,
                "stale_markers": report.stale_markers,
                "restored_markers": report.restored_markers,
                "former_sets": report.former_sets,
                "read_sets": report.read_sets,
                "unfinished": report.unfinished,
                "problems": report.problems,
            }));
        }
        let verb = if self.dry_run { "would free" } else { "freed" };
        let sets = text::counted(report.sets.len() as u64, "change set");
        let objects = text::counted(report.objects, "object");
        let size = text::bytes(report.bytes);
        let now_ns = context.now_ns();
        for gone in &dropped {
            let verb = if self.dry_run { "would drop" } else { "dropped" };
            context.out.line(format!("{verb} {}", session::line(gone, now_ns)))?;
        }
        context.out.line(format!("{verb} {size}: {sets}, {objects}"))?;
        show_left(context, &left)?;
        self.print_kept(context, &report)?;
        for problem in &report.problems {
            notice(problem);
        }
        Ok(())
    }

    /// Prints what only a later collection frees.
    fn print_kept(&self, context: &CommandContext, report: &GcReport) -> Result<()> {
        if report.former_sets > 0 {
            let sets = text::counted(report.former_sets, "change set");
            notice(format!(
                "kept for the grace period: {sets} of deleted names, with what they need; `esker \
                 names --deleted` lists them, `esker gc --grace 0` frees them now"
            ));
        }
        if !report.data_only_sets.is_empty() {
            let sets = text::counted(report.data_only_sets.len() as u64, "change set");
            let verb = if self.dry_run { "would keep" } else { "kept" };
            context.out.line(format!("{verb} only the data of {sets} that squashes refer to"))?;
        }
        if report.read_sets > 0 {
            let sets = text::counted(report.read_sets, "change set");
            notice(format!("kept for mounts and other readers: {sets} without a name"));
        }
        Ok(())
    }
}

/// Prints the kept sessions that have no writer.
fn show_left(context: &CommandContext, left: &[OpenSession]) -> Result<()> {
    if left.is_empty() {
        return Ok(());
    }
    let bytes = left.iter().map(|left| left.node.data_bytes + left.node.table_bytes).sum();
    let them = if left.len() == 1 { "it" } else { "them" };
    context.out.line(format!(
        "kept {} of {} that nobody writes: `esker session list` shows {them}, \
         --sessions-older-than drops {them}",
        text::counted(left.len() as u64, "session"),
        text::bytes(bytes),
    ))
}
