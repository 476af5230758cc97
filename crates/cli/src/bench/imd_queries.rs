// SPDX-License-Identifier: Apache-2.0
//! `esker-bench imd-queries`: how many tables queries of an indexed directory examine.

use std::path::PathBuf;

use clap::Args;
use esker_base::Result;
use esker_bench::plot;
use serde_json::json;

use super::ranks::write_plot;
use crate::commands::imd;
use crate::commands::imd::info::queries_by_tables;
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::text;

/// Bytes of tables that the queries keep in memory.
const CACHE_BYTES: u64 = 64 << 20;

/// Count the tables that queries of an indexed directory examine
///
/// Queries a sample of existing keys in all epochs, and counts the tables whose rows were examined:
/// one per epoch, unless a filter erred or the key has values in several.
#[derive(Args)]
#[command(after_help = "\
Example:
  esker bench imd-queries run:/particles --queries 100000 --plot tables.svg")]
pub struct ImdQueriesCommand {
    /// The directory
    #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
    target: StackPath,
    /// Number of keys to query
    #[arg(long, default_value_t = 1000, value_name = "N")]
    queries: usize,
    /// Draw the histogram, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl ImdQueriesCommand {
    /// Queries.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let (_, reader) = imd::open(context, &self.target, CACHE_BYTES)?;
        let histogram = queries_by_tables(&reader, self.queries)?;
        let epochs = text::counted(u64::from(reader.epochs_complete()?), "epoch");
        let title = format!("Tables examined for a key in {epochs}");
        write_plot(self.plot, || plot::histogram(&title, "tables", "queries", &histogram))?;
        if context.out.is_json() {
            return context.out.json(json!({"queries_by_tables": histogram}));
        }
        for (tables, count) in (0..).zip(&histogram).filter(|(_, count)| **count > 0) {
            let queries = text::counted(*count, "query");
            context.out.line(format!("{queries}: {}", text::counted(tables, "table")))?;
        }
        Ok(())
    }
}
