// SPDX-License-Identifier: Apache-2.0
//! Bench: the command line of `esker-bench`, which measures this machine and store.

mod imd_queries;
mod imd_write;
mod live;
mod ranks;
mod segment;
mod shared_file;

use std::fmt::Display;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use esker_base::{Error, Kind, Result};
use esker_bench::particles::ParticleCount;
use esker_bench::report::BenchReport;
use esker_bench::workload_size::WorkloadSize;
use esker_bench::{
    ImdGet, ImdWrite, QueryOptions, create, imd_get, imd_speedup, imd_throttled, list, remove,
    squash, stat,
};
use esker_imd::entry::IndexedEntry;
use esker_imd::{DirectoryOptions, RecordLayout, ValueFormat};
use serde::Serialize;

use crate::change::SessionSettings;
use crate::commands::imd;
use crate::context::CommandContext;
use crate::interrupt;
use crate::location::StackPath;
use crate::program::{GlobalOptions, ProgramArguments, VERSION};

/// Measure what Esker does: files, ranks, shared files, indexed directories, live namespaces
///
/// `create` creates files like mdtest, in random order, each checked for collision, logged and in
/// tables by the end, and publishes them as `bench`; `stat`, `list` and `remove` run on the result.
/// `imd-get`, `imd-queries` and `imd-speedup` run on the directory that `imd-write` publishes. With
/// --json the fields are the same as those of the rival engines in peers/.
#[derive(Parser)]
#[command(
    name = "esker-bench",
    bin_name = "esker bench",
    version = VERSION,
    max_term_width = 100,
    after_help = "\
Examples:
  esker bench create --store /scratch/bench --files 10000000 --threads 2
  esker bench stat --store /scratch/bench --operations 1000000
  esker bench stat --store /scratch/bench --operations 1000000 --cold
  esker bench list --store /scratch/bench
  esker bench remove --store /scratch/bench
  esker bench squash --store /scratch/squash --sets 8 --threads 2"
)]
pub struct BenchCommandLine {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    workload: BenchWorkload,
}

#[derive(Subcommand)]
enum BenchWorkload {
    /// Create files; creates the store if there is none
    #[command(after_help = "Example:\n  esker bench create --store /scratch/bench --files 1000000")]
    Create {
        /// Number of files
        #[arg(long, default_value_t = 1_000_000, value_name = "N")]
        files: u64,
        /// Number of directories that hold them
        #[arg(long, default_value_t = 1_000, value_name = "N")]
        directories: u64,
        /// Threads that create
        #[arg(long, default_value_t = 1, value_name = "N")]
        threads: usize,
        /// The same threads also write the tables, with no background thread
        #[arg(long)]
        inline: bool,
        /// End the session instead of publishing it, for `stat --session`
        #[arg(long)]
        keep_session: bool,
        /// Number of bases below the session, which are created first
        #[arg(long, default_value_t = 0, value_name = "N")]
        bases: usize,
        #[command(flatten)]
        settings: SessionSettings,
    },
    /// Look up names in random order
    #[command(after_help = "Example:\n  esker bench stat --store /scratch/bench --cold --absent")]
    Stat {
        /// Number of look-ups; each file once unless given
        #[arg(long, value_name = "N")]
        operations: Option<u64>,
        /// Look up names that do not exist
        #[arg(long)]
        absent: bool,
        /// Look up in the session that `create --keep-session` left, which is merged when look-ups have
        /// paid for that; the rates say when
        #[arg(long)]
        session: bool,
        #[command(flatten)]
        query: BenchQuery,
    },
    /// List all directories with attributes
    #[command(after_help = "Example:\n  esker bench list --store /scratch/bench")]
    List {
        #[command(flatten)]
        query: BenchQuery,
    },
    /// Remove every file, in random order, in a session on top
    #[command(after_help = "Example:\n  esker bench remove --store /scratch/bench")]
    Remove {
        /// Threads that remove
        #[arg(long, default_value_t = 1, value_name = "N")]
        threads: usize,
        #[command(flatten)]
        settings: SessionSettings,
    },
    /// Create several change sets and squash them into one; creates the store if there is none
    #[command(
        after_help = "Example:\n  esker bench squash --store /scratch/bench --sets 8 --threads 2"
    )]
    Squash {
        /// Number of change sets
        #[arg(long, default_value_t = 8, value_name = "N")]
        sets: u64,
        /// Files in each
        #[arg(long, default_value_t = 1_000_000, value_name = "N")]
        files: u64,
        /// Number of directories that hold them
        #[arg(long, default_value_t = 1_000, value_name = "N")]
        directories: u64,
        /// Threads that merge
        #[arg(long, default_value_t = 1, value_name = "N")]
        threads: usize,
    },
    SharedFile(Box<shared_file::SharedFileCommand>),
    Segment(segment::BenchSegmentCommand),
    ImdWrite(imd_write::ImdWriteCommand),
    /// Get keys that `imd-write` wrote, in random order
    #[command(after_help = "Example:\n  esker bench imd-get run:/particles --operations 100000")]
    ImdGet {
        /// The directory
        #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
        target: StackPath,
        /// Number of gets
        #[arg(long, default_value_t = 100_000, value_name = "N")]
        operations: u64,
        #[command(flatten)]
        query: BenchQuery,
    },
    ImdQueries(imd_queries::ImdQueriesCommand),
    /// Compare getting keys with scanning for them
    #[command(after_help = "Example:\n  esker bench imd-speedup run:/particles --threads 2")]
    ImdSpeedup {
        /// The directory
        #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
        target: StackPath,
        /// Threads that scan
        #[arg(long, default_value_t = 2, value_name = "N")]
        threads: usize,
    },
    /// Measure the overhead of indexing when storage is the bottleneck
    #[command(
        after_help = "Example:\n  esker bench imd-throttled --store /dev/shm/bench --keys 16000000"
    )]
    ImdThrottled {
        /// Number of records
        #[arg(long, default_value_t = 16_000_000, value_name = "N")]
        keys: u64,
        /// Percentage of the unthrottled rate that the store accepts
        #[arg(long, default_value_t = 25, value_name = "PERCENT")]
        share: u32,
    },
    Live(live::LiveBench),
    LiveInsert(live::LiveInsertBench),
    LiveSeats(live::LiveSeatsBench),
    Messages(ranks::MessagesCommand),
    Routing(ranks::RoutingCommand),
    Collective(ranks::CollectiveCommand),
}

#[derive(Args)]
struct BenchQuery {
    /// Threads that query
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Do not cache in the process
    #[arg(long, conflicts_with = "cache")]
    cold: bool,
    /// Memory for cached data, such as 256M or 1G
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = crate::quantity::bytes)]
    cache: u64,
}

impl BenchQuery {
    fn cache_bytes(&self) -> u64 {
        if self.cold { 0 } else { self.cache }
    }
}

impl ProgramArguments for BenchCommandLine {
    fn global(&self) -> &GlobalOptions {
        &self.global
    }

    fn watch_signals(&self, context: &CommandContext) -> Result<()> {
        let advice = match self.workload {
            BenchWorkload::ImdWrite(_) | BenchWorkload::SharedFile(_) => {
                "no unfinished work is left: nothing was begun, or everything was published, which \
                 `esker names` shows"
            }
            _ => "nothing is left except what `esker names` lists",
        };
        let store = context.given_store().map(str::to_owned);
        interrupt::watch(store, SessionSettings::for_few().options(context), advice)
    }

    fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let measured = self.measure(context);
        measured.inspect_err(|_| interrupt::give_up_after_failure(context))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl BenchCommandLine {
    fn measure(self, context: &CommandContext) -> Result<()> {
        let report = match self.workload {
            BenchWorkload::Routing(command) => return command.run(context),
            BenchWorkload::Collective(command) => return command.run(context),
            BenchWorkload::Messages(command) => return command.run(context),
            BenchWorkload::Segment(segment) => return segment.run(context),
            BenchWorkload::SharedFile(replay) => return replay.run(context),
            BenchWorkload::ImdWrite(write) => return write.run(context),
            BenchWorkload::ImdQueries(queries) => return queries.run(context),
            BenchWorkload::Live(live) => return live.run(context),
            BenchWorkload::LiveInsert(live) => return live.run(context),
            BenchWorkload::LiveSeats(live) => return live.run(context),
            BenchWorkload::Create {
                files,
                directories,
                threads,
                inline,
                keep_session,
                bases,
                settings,
            } => {
                let store = context.store_or_new()?;
                let mut options = settings.options(context);
                options.tree.background &= !inline;
                let size = WorkloadSize { files, directories, threads };
                create(&store, size, options, (bases, !keep_session))?
            }
            BenchWorkload::Squash { sets, files, directories, threads } => {
                let store = context.store_or_new()?;
                let options = SessionSettings::for_few().options(context);
                squash(&store, sets, WorkloadSize { files, directories, threads }, options)?
            }
            BenchWorkload::Stat { operations, absent, session: in_session, query } => {
                let (threads, cache_bytes) = (query.threads, query.cache_bytes());
                let options = QueryOptions { operations, threads, cache_bytes, absent, in_session };
                stat(&context.store()?, options)?
            }
            BenchWorkload::List { query } => {
                let (threads, cache_bytes) = (query.threads, query.cache_bytes());
                let options = QueryOptions { threads, cache_bytes, ..QueryOptions::default() };
                list(&context.store()?, options)?
            }
            BenchWorkload::ImdGet { target, operations, query } => {
                imd_get_at(context, &target, operations, &query)?
            }
            BenchWorkload::ImdSpeedup { target, threads } => {
                let (entry, _) = imd::open(context, &target, 0)?;
                let prefix = only_part(&entry, &target)?;
                return show(context, &imd_speedup(&context.store()?, prefix, threads)?);
            }
            BenchWorkload::ImdThrottled { keys, share } => {
                let store = context.store_or_new()?;
                let particles = ParticleCount { keys, value_bytes: 40, ranks: 1 };
                let layout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 40 };
                let options = DirectoryOptions::new(1, ValueFormat::Base, layout);
                let work = ImdWrite { particles, epochs: 1, options, per_node: 1 };
                let throttled = imd_throttled(&store, &work, f64::from(share) / 100.0)?;
                return show(context, &throttled);
            }
            BenchWorkload::Remove { threads, settings } => {
                remove(&context.store()?, threads, settings.options(context))?
            }
        };
        show(context, &report)
    }
}

/// Object name prefix of `entry`, found at `target`, which must have only one part.
fn only_part<'e>(entry: &'e IndexedEntry, target: &StackPath) -> Result<&'e str> {
    let [prefix] = &entry.prefixes[..] else {
        let what = format!("{target}: benchmarks need a directory without appended epochs");
        return Err(Error::new(Kind::Invalid, what));
    };
    Ok(prefix)
}

/// Gets keys of the directory at `target`, which `imd-write` wrote.
fn imd_get_at(
    context: &CommandContext,
    target: &StackPath,
    operations: u64,
    query: &BenchQuery,
) -> Result<BenchReport> {
    let (entry, reader) = imd::open(context, target, 0)?;
    let prefix = only_part(&entry, target)?;
    let directory = reader.parts().next().and_then(|part| part.directory().cloned());
    let (Some(directory), RecordLayout::Fixed { key_bytes: 8, value_bytes }) =
        (directory, reader.record_layout())
    else {
        let what = format!("{target}: not written by `imd-write`");
        return Err(Error::new(Kind::Invalid, what));
    };
    let epochs = directory.epochs();
    let records: u64 = directory.partitions.iter().map(|totals| totals.rows).sum();
    let particles = ParticleCount {
        keys: records / u64::from(epochs.max(1)),
        value_bytes: value_bytes as usize,
        ranks: directory.head.partitions,
    };
    let (threads, cache_bytes) = (query.threads, query.cache_bytes());
    let work = ImdGet { particles, epochs, operations, threads, cache_bytes };
    imd_get(&context.store()?, prefix, &work)
}

fn show(context: &CommandContext, report: &(impl Serialize + Display)) -> Result<()> {
    if context.out.is_json() {
        return context.out.report(report);
    }
    context.out.line(report.to_string())
}
