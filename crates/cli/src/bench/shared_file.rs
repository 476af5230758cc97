// SPDX-License-Identifier: Apache-2.0
//! `esker-bench shared-file`: ranks write and read a file that they share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use esker_base::store::url;
use esker_base::{Error, Result};
use esker_bench::replay::{ReplayReport, ReplayedWork, TraceReplay, replay};
use esker_comm::job::RankContext;
use esker_comm::{Rank, tcp, threads};
use esker_fs::repository::Repository;
use esker_shared::{RemoteReads, SLICE_BYTES, SharedOptions};

use crate::change::{NewNameSource, SessionSettings, check_free};
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::quantity;

/// Arrangement of the ranks' transfers in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum TransferOrder {
    /// Ranks take turns
    #[default]
    Strided,
    /// Each rank has a separate block
    Segmented,
}

/// Source of bytes that other ranks wrote.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ReadsName {
    /// From the store
    #[default]
    Store,
    /// Through messages to the rank that wrote them
    Ranks,
}

/// Replay a program's writes to a shared file, read them back, and compare every byte
///
/// Ranks are threads or, if started by `esker run`, srun or mpirun, processes. Each rank writes its
/// transfers, syncs, and then reads those of the rank --shift above it; at the end the file is
/// published. A trace has a line `rank offset length` for each write. Creates the store if there is
/// none.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker bench shared-file run:/output --ranks 8 --transfer 32K --block 1M --segments 4
  esker bench shared-file run:/output --trace writes.txt --check-published
  esker run -n 16 --per-node 4 -- esker bench shared-file run:/output --reads ranks --json")]
pub struct SharedFileCommand {
    /// Path of the new file; published as NAME
    #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
    target: StackPath,
    /// Publish as NEWNAME, on top of NAME
    #[arg(long = "as", value_name = "NEWNAME")]
    new_name: Option<String>,
    /// Number of ranks, as threads; at least those of the trace
    #[arg(long, default_value_t = 4, value_name = "R")]
    ranks: u32,
    /// Ranks on each simulated node, for threads; all on one unless given
    #[arg(long, value_name = "C")]
    per_node: Option<u32>,
    /// Ranks on each node that serve segments
    #[arg(long, default_value_t = 1, value_name = "S")]
    servers: u32,
    /// Bytes whose segments one server owns
    #[arg(long, value_parser = quantity::bytes, value_name = "SIZE")]
    slice: Option<u64>,
    /// Bytes per write
    #[arg(long, default_value = "64K", value_parser = quantity::bytes, value_name = "SIZE")]
    transfer: u64,
    /// Bytes of each rank in a segment
    #[arg(long, default_value = "1M", value_parser = quantity::bytes, value_name = "SIZE")]
    block: u64,
    /// Number of segments; every rank has a block in each
    #[arg(long, default_value_t = 1, value_name = "N")]
    segments: u64,
    /// Arrangement of transfers in a segment
    #[arg(long, value_enum, default_value_t, value_name = "ORDER")]
    order: TransferOrder,
    /// Each rank writes a separate file, named by the path and its number
    #[arg(long)]
    file_per_process: bool,
    /// Replay the lines of this file instead
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Each rank reads what the rank this many above it wrote
    #[arg(long, default_value_t = 1, value_name = "N")]
    shift: u32,
    /// Source of bytes that other ranks wrote
    #[arg(long, value_enum, default_value_t, value_name = "WAY")]
    reads: ReadsName,
    /// Send the index to all ranks before they read
    #[arg(long)]
    laminate: bool,
    /// Read everything again after publishing
    #[arg(long)]
    check_published: bool,
    #[command(flatten)]
    settings: SessionSettings,
}

impl SharedFileCommand {
    /// Replays.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let job = RankContext::from_env()?;
        let rank = job.as_ref().map_or(Rank(0), |job| job.rank);
        let store = context.store_of_rank(rank)?;
        let repository = Repository::new(store.clone());
        let new_name = self.new_name.as_deref();
        let (bases, published) =
            context.bases_and_name(&repository, &self.target.stack, new_name)?;
        check_free(&repository, published, NewNameSource::of_option(new_name))?;
        let work = self.work()?;
        let ranks = self.ranks.max(work.ranks_min());
        let replayed = TraceReplay {
            work,
            file_per_process: self.file_per_process,
            path: self.target.path.clone(),
            shift: self.shift,
            laminate: self.laminate,
            check_published: self.check_published,
            name: published.to_owned(),
        };
        let options = self.options(context);
        let report = match job {
            None => {
                let per_node = self.per_node.unwrap_or(ranks);
                let reports = threads::run(ranks, per_node, |transport| {
                    replay(transport, &repository, &bases, &options, &replayed)
                })?;
                reports.into_iter().flatten().next()
            }
            Some(job) => {
                let meet = job.meet.as_deref().map_or(Ok(store), url::open)?;
                tcp::run(&*meet, &job, &tcp::TcpOptions::default(), |transport| {
                    replay(transport, &repository, &bases, &options, &replayed)
                })?
            }
        };
        report.map_or(Ok(()), |report| show(context, &report))
    }

    fn work(&self) -> Result<ReplayedWork> {
        if let Some(path) = &self.trace {
            let read = std::fs::read_to_string(path);
            let text =
                read.map_err(|error| Error::io(error, format!("read {}", path.display())))?;
            return ReplayedWork::parse_trace(&text);
        }
        Ok(ReplayedWork::Blocks {
            transfer_bytes: self.transfer,
            block_bytes: self.block,
            segments: self.segments,
            is_strided: self.order == TransferOrder::Strided,
        })
    }

    fn options(&self, context: &CommandContext) -> SharedOptions {
        SharedOptions {
            servers_per_node: self.servers,
            slice_bytes: self.slice.unwrap_or(SLICE_BYTES),
            reads: match self.reads {
                ReadsName::Store => RemoteReads::Store,
                ReadsName::Ranks => RemoteReads::Ranks,
            },
            session: self.settings.options(context).private(),
        }
    }
}

fn show(context: &CommandContext, report: &ReplayReport) -> Result<()> {
    if !context.out.is_json() {
        context.out.line(report.to_string())?;
        return context.out.line(format!("published {} @{}", report.published, report.set));
    }
    context.out.report(report)
}
