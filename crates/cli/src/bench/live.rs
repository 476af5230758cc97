// SPDX-License-Identifier: Apache-2.0
//! Benchmarks of a live namespace that a server serves.

use clap::Args;
use esker_base::Result;
use esker_base::store::SharedStore;
use esker_live::LiveTree;
use esker_live::client::LiveClientOptions;

use super::show;
use crate::change::SessionSettings;
use crate::context::CommandContext;

/// Measure requests to a live namespace that `esker live serve` serves
///
/// Works in a new directory of its root, which stays. Beside each rate is the processor time of the
/// server.
#[derive(Args)]
#[command(after_help = "\
Example:
  taskset -c 0 esker live serve run &
  taskset -c 1 esker bench live run")]
pub struct LiveBench {
    /// The live namespace
    name: String,
    /// Operations with 64 requests in flight; single requests use a sixteenth of that, batches four
    /// times that
    #[arg(long, default_value_t = 400_000, value_name = "N")]
    operations: u64,
}

impl LiveBench {
    /// Measures.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let mut tree = connect(&context.store()?, &self.name)?;
        let report = esker_bench::live::live(&mut tree, self.operations)?;
        tree.close()?;
        show(context, &report)
    }
}

/// Measure ways to create many files in a live namespace, up to a bulk insertion
///
/// Works in a new directory of its root, which stays. The last rate is that of a session which
/// inserts nothing.
#[derive(Args)]
#[command(after_help = "\
Example:
  taskset -c 0 esker live serve run &
  taskset -c 1 esker bench live-insert run")]
pub struct LiveInsertBench {
    /// The live namespace
    name: String,
    /// Files of each insertion
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    files: u64,
}

impl LiveInsertBench {
    /// Measures.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let repository = context.repository()?;
        let mut tree = connect(repository.store(), &self.name)?;
        let options = SessionSettings::for_many().options(context);
        let report =
            esker_bench::live_insert::live_insert(&repository, &mut tree, &options, self.files)?;
        tree.close()?;
        show(context, &report)
    }
}

/// Measure one directory that is spread over all seats of a live namespace
///
/// Works in a new directory of its root, which stays. Beside each rate is the processor time of all
/// servers.
#[derive(Args)]
#[command(after_help = "\
Example:
  esker live create wide --seats 2
  taskset -c 0 esker live serve wide &
  taskset -c 1 esker bench live-seats wide")]
pub struct LiveSeatsBench {
    /// The live namespace
    name: String,
    /// Files of the directory
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    files: u64,
}

impl LiveSeatsBench {
    /// Measures.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let mut tree = connect(&context.store()?, &self.name)?;
        let report = esker_bench::live_seats::live_seats(&mut tree, self.files)?;
        tree.close()?;
        show(context, &report)
    }
}

fn connect(store: &SharedStore, name: &str) -> Result<LiveTree> {
    LiveTree::connect(store, name, LiveClientOptions::default())
}
