//! `esker bench`: measures this machine and store.

use clap::{Args, Subcommand};
use esker_base::store::{SharedStore, url};
use esker_base::{Error, Kind, Result};
use esker_bench::report::Report;
use esker_bench::shape::Shape;
use esker_bench::{QueryOptions, create, list, remove, squash, stat};
use esker_table::tree::TreeOptions;

use super::bench_ranks;
use crate::change::SessionSettings;
use crate::context::Context;

/// Measure creates, look-ups, listings, removals and squashes
///
/// `create` makes files as mdtest does, in random order, each checked for collision, logged and in
/// tables by the end, and publishes them as `bench`; `stat`, `list` and `remove` run on what it left.
/// With --json, figures come with the same fields as those of the rival engines in peers/.
#[derive(Args)]
#[command(after_help = "\
Example:
  esker bench create --store /scratch/bench --files 10000000 --threads 2
  esker bench stat --store /scratch/bench --operations 1000000
  esker bench stat --store /scratch/bench --operations 1000000 --cold
  esker bench list --store /scratch/bench
  esker bench remove --store /scratch/bench
  esker bench squash --store /scratch/squash --sets 8 --threads 2")]
pub struct Bench {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand)]
enum Workload {
    Routing(bench_ranks::Routing),
    Collective(bench_ranks::Collective),
    Messages(bench_ranks::Messages),
    /// Create files; makes the store if there is none
    #[command(after_help = "Example:\n  esker bench create --store /scratch/bench --files 1000000")]
    Create {
        /// Files
        #[arg(long, default_value_t = 1_000_000, value_name = "N")]
        files: u64,
        /// Directories that they are spread over
        #[arg(long, default_value_t = 1_000, value_name = "N")]
        directories: u64,
        /// Threads that create
        #[arg(long, default_value_t = 1, value_name = "N")]
        threads: usize,
        /// These threads write the tables as well, with no other beside them
        #[arg(long)]
        inline: bool,
        #[command(flatten)]
        settings: SessionSettings,
    },
    /// Look names up, in random order
    #[command(after_help = "Example:\n  esker bench stat --store /scratch/bench --cold --absent")]
    Stat {
        /// How many; each file once unless given
        #[arg(long, value_name = "N")]
        operations: Option<u64>,
        /// Names that are not there
        #[arg(long)]
        absent: bool,
        #[command(flatten)]
        query: Query,
    },
    /// List all directories with attributes
    #[command(after_help = "Example:\n  esker bench list --store /scratch/bench")]
    List {
        #[command(flatten)]
        query: Query,
    },
    /// Make several change sets and squash them into one; makes the store if there is none
    #[command(
        after_help = "Example:\n  esker bench squash --store /scratch/bench --sets 8 --threads 2"
    )]
    Squash {
        /// Change sets
        #[arg(long, default_value_t = 8, value_name = "N")]
        sets: u64,
        /// Files in each
        #[arg(long, default_value_t = 1_000_000, value_name = "N")]
        files: u64,
        /// Directories that they are spread over
        #[arg(long, default_value_t = 1_000, value_name = "N")]
        directories: u64,
        /// Threads that merge
        #[arg(long, default_value_t = 1, value_name = "N")]
        threads: usize,
    },
    Segment(super::bench_segment::Segment),
    /// Remove every file, in random order, in a session on top
    #[command(after_help = "Example:\n  esker bench remove --store /scratch/bench")]
    Remove {
        /// Threads that remove
        #[arg(long, default_value_t = 1, value_name = "N")]
        threads: usize,
        #[command(flatten)]
        settings: SessionSettings,
    },
}

#[derive(Args)]
struct Query {
    /// Threads that ask
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Nothing is cached by the process
    #[arg(long)]
    cold: bool,
}

impl Bench {
    /// Measures.
    pub fn run(self, context: &Context) -> Result<()> {
        let report = match self.workload {
            Workload::Routing(command) => return command.run(context),
            Workload::Collective(command) => return command.run(context),
            Workload::Messages(command) => return command.run(context),
            Workload::Segment(segment) => return segment.run(context, || store_or_new(context)),
            Workload::Create { files, directories, threads, inline, settings } => {
                let store = store_or_new(context)?;
                let tree = tree(context, &settings);
                let tree = TreeOptions { background: tree.background && !inline, ..tree };
                create(&store, Shape { files, directories, threads }, tree)?
            }
            Workload::Squash { sets, files, directories, threads } => {
                let store = store_or_new(context)?;
                squash(&store, sets, Shape { files, directories, threads })?
            }
            Workload::Stat { operations, absent, query } => {
                let (threads, cold) = (query.threads, query.cold);
                stat(&context.store()?, QueryOptions { operations, threads, cold, absent })?
            }
            Workload::List { query } => {
                let (threads, cold) = (query.threads, query.cold);
                let options = QueryOptions { operations: None, threads, cold, absent: false };
                list(&context.store()?, options)?
            }
            Workload::Remove { threads, settings } => {
                remove(&context.store()?, threads, tree(context, &settings))?
            }
        };
        show(context, &report)
    }
}

/// What a session of `settings` gives its tree; a benchmark has the default memory unless told.
fn tree(context: &Context, settings: &SessionSettings) -> TreeOptions {
    settings.options(context).tree
}

/// Opens the store, or makes it where nothing is.
fn store_or_new(context: &Context) -> Result<SharedStore> {
    match context.store() {
        Err(error) if error.kind() == Kind::NotFound => url::init(context.store_url()),
        opened => opened,
    }
}

fn show(context: &Context, report: &Report) -> Result<()> {
    if context.out.is_json() {
        let value = serde_json::to_value(report)
            .map_err(|error| Error::new(Kind::Invalid, format!("a report: {error}")))?;
        return context.out.json(value);
    }
    context.out.line(report.to_string())
}
