// SPDX-License-Identifier: Apache-2.0
//! `esker squash` and `esker compact`: merge tables into fewer and larger ones with the same
//! contents.

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_fs::maintenance::squash::{SquashCounts, SquashOptions, SquashReport};
use esker_fuse::{ControlRequest, ask, mountpoint_of};
use esker_table::manifest::{Manifest, SetId, SetState, TableRef};
use serde_json::json;

use crate::change::{
    MessageArgument, NewNameSource, SessionSettings, TakeOver, announce, check_free, resume,
};
use crate::context::CommandContext;
use crate::location::StackArgument;
use crate::{progress, text};

/// Merge a stack into one change set
///
/// Publishes a snapshot with the same contents as the given ones, of which earlier ones win. It
/// makes reading a deep stack faster. Tables are merged; file data is not read, and stays in its
/// data logs. After `esker delete` of the old names `esker gc` frees them, except for data logs
/// with some of that data, however little. With --copy-data the snapshot gets its own data logs,
/// with only its own data, and needs nothing of the others.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker squash climate-7 --as climate-7-flat
  esker squash fixes climate-7 --as climate-7.1 --threads 8
  esker squash climate-7 --as climate-7-own --copy-data")]
pub struct SquashCommand {
    /// Snapshots; earlier ones win
    #[arg(required = true, value_name = "NAME", value_parser = StackArgument::parser())]
    stacks: Vec<StackArgument>,
    /// Name to publish
    #[arg(long = "as", value_name = "NEWNAME")]
    new_name: String,
    /// Threads that merge; by default one per processor
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Copy all file data, so that the snapshot needs no data logs of others
    #[arg(long)]
    copy_data: bool,
    #[command(flatten)]
    message: MessageArgument,
}

impl SquashCommand {
    /// Merges.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let repository = context.repository()?;
        check_free(&repository, &self.new_name, NewNameSource::Option("--as"))?;
        let bases = context.sets_of(&repository, &self.stacks)?;
        let defaults = SquashOptions::default();
        let threads = self.threads.unwrap_or(defaults.threads);
        let session = SessionSettings::for_few().options(context).private();
        let writer = session.heartbeat.map(|heartbeat| heartbeat.writer);
        let copy_data = self.copy_data;
        let options = SquashOptions { threads, copy_data, writer, ..defaults };
        let squashed = progress::watch_store(context, "squash:", |repository| {
            repository.squash(&bases, &options)
        });
        let (set, report) = squashed?;
        let published = match self.message.property() {
            Some((property, message)) => repository.set_property(set, property, message),
            None => Ok(()),
        };
        let published = published.and_then(|()| repository.publish(set, &self.new_name));
        if let Err(error) = published {
            // Without a name it is garbage, unless the name was published after all.
            repository.abandon(set)?;
            return Err(error);
        }
        announce(context, &self.new_name, set)?;
        show(context, "squashed", &report)
    }
}

/// Merge the tables of one change set
///
/// The contents and the bases stay the same. For snapshots that were written with deferred
/// compaction, and for sessions. If a mount on this machine writes the session, the mount compacts
/// it and continues.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker compact climate-7
  esker compact @3f2a")]
pub struct CompactCommand {
    /// A name or session
    #[arg(value_name = "NAME", value_parser = StackArgument::parser())]
    stack: StackArgument,
    /// Threads that merge
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    #[command(flatten)]
    settings: SessionSettings,
    #[command(flatten)]
    take_over: TakeOver,
}

impl CompactCommand {
    /// Merges.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let repository = context.repository()?;
        let set = context.set_of(&repository, &self.stack)?;
        match Manifest::load(&**repository.store(), set)?.state {
            SetState::Sealed => {
                let compacted = progress::watch_store(context, "compact:", |repository| {
                    repository.compact_set(set, self.threads)
                });
                show(context, "compacted", &compacted?)
            }
            SetState::Open => self.compact_session(context, set),
            _ => Err(Error::new(Kind::NotFound, format!("change set {set} is being deleted"))),
        }
    }

    /// Merges the tables of an open session: in the mount that writes it, if that is on this
    /// machine.
    fn compact_session(&self, context: &CommandContext, set: SetId) -> Result<()> {
        let options = self.settings.options_to_resume(context, self.take_over);
        if !options.take_over
            && let Some(mountpoint) = mountpoint_of(&set.to_string())
        {
            let answer = ask(&mountpoint, &ControlRequest::Compact)?;
            let at = mountpoint.display();
            return match context.out.is_json() {
                true => context.out.json(answer),
                false => context.out.line(format!("compacted @{set} in the mount at {at}")),
            };
        }
        let compacted = progress::watch_store(context, "compact:", |repository| {
            let session = resume(repository, set, options)?;
            session.flush()?;
            let before = Manifest::load(&**repository.store(), set)?;
            let (done, seconds) = context.timed(|| session.compact());
            let after = done.and_then(|()| Manifest::load(&**repository.store(), set))?;
            session.end()?;
            Ok(report_of(&before, &after, seconds))
        });
        show(context, "compacted", &compacted?)
    }
}

/// The report of a session's compaction, from its tables before and after.
fn report_of(before: &Manifest, after: &Manifest, seconds: f64) -> SquashReport {
    let is_new = |table: &&TableRef| !before.tables.iter().any(|old| old.number == table.number);
    let is_gone = |table: &&TableRef| !after.tables.iter().any(|new| new.number == table.number);
    let new: Vec<_> = after.tables.iter().filter(is_new).collect();
    let read = before.tables.iter().filter(is_gone).map(|table| table.rows).sum();
    let written = new.iter().map(|table| table.rows).sum();
    SquashReport {
        sets: 1,
        counts: SquashCounts { read, written, ..SquashCounts::default() },
        directories: 0,
        tables: new.len(),
        table_bytes: new.iter().map(|table| table.bytes).sum(),
        referenced_sets: 0,
        elapsed_ns: (seconds * 1e9) as u64,
    }
}

fn show(context: &CommandContext, verb: &str, report: &SquashReport) -> Result<()> {
    let seconds = report.elapsed_ns as f64 / 1e9;
    let read = report.counts.read;
    let records_per_second = (read as f64 / seconds.max(1e-6)) as u64;
    if context.out.is_json() {
        return context.out.json(json!({
            "operation": verb,
            "sets": report.sets,
            "records_read": read,
            "records_written": report.counts.written,
            "tables": report.tables,
            "table_bytes": report.table_bytes,
            "copied_bytes": report.counts.data_bytes,
            "referenced_sets": report.referenced_sets,
            "seconds": seconds,
            "records_per_second": records_per_second,
        }));
    }
    context.out.line(format!(
        "{verb} {}, {}, into {} of {} in {seconds:.2} s",
        text::counted(report.sets as u64, "change set"),
        text::counted(read, "record"),
        text::counted(report.tables as u64, "table"),
        text::bytes(report.table_bytes),
    ))?;
    let copied = report.counts.data_bytes;
    if copied > 0 {
        context.out.line(format!("copied {} of data", text::bytes(copied)))?;
    }
    if report.referenced_sets > 0 {
        let sets = text::counted(report.referenced_sets as u64, "change set");
        context.out.line(format!("refers to data of {sets}; --copy-data copies it"))?;
    }
    Ok(())
}
