//! `esker imd info`: what a directory has, and how many tables a query asks.

use std::path::PathBuf;

use clap::Args;
use esker_base::{Error, Random, Result};
use esker_bench::plot;
use esker_imd::directory::PartitionTotals;
use esker_imd::{Reader, Shape};
use serde_json::{Value, json};

use super::open;
use crate::context::Context;
use crate::location::Location;
use crate::text;

/// Seed of the keys that are tried.
const SEED_SAMPLE: u64 = 1;

/// Show sizes, bits of index a key, and how many tables queries ask
///
/// Tries some keys that are there, each in all epochs, and counts the tables whose rows were looked
/// at: one an epoch, unless a filter erred or the key has values in several.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker imd info run:/particles
  esker imd info run:/particles --queries 100000 --plot tables.svg")]
pub struct Info {
    /// The directory
    #[arg(value_name = "NAME:/path", value_parser = Location::parser())]
    target: Location,
    /// How many keys to try
    #[arg(long, default_value_t = 1000, value_name = "N")]
    queries: usize,
    /// Draw the histogram of tables per query, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl Info {
    /// Shows.
    pub fn run(self, context: &Context) -> Result<()> {
        let (entry, reader) = open(context, &self.target, 64 << 20)?;
        let epochs = reader.epochs_complete()?;
        let mut totals = PartitionTotals::default();
        for part in reader.directory().iter().flat_map(|directory| &directory.partitions) {
            totals.add(part);
        }
        let histogram = self.histogram(&reader)?;
        if let Some(path) = &self.plot {
            let title =
                format!("Tables asked for a key in {}", text::counted(u64::from(epochs), "epoch"));
            let svg = plot::histogram(&title, "tables", "queries", &histogram)?;
            std::fs::write(path, svg)
                .map_err(|error| Error::io(error, format!("write {}", path.display())))?;
        }
        let queries: u64 = histogram.iter().sum();
        let asked: u64 = (0..).zip(&histogram).map(|(tables, count)| tables * count).sum();
        let each = asked as f64 / queries.max(1) as f64;
        let bits =
            (totals.index_bytes + totals.auxiliary_bytes) as f64 * 8.0 / totals.rows.max(1) as f64;
        let head = reader.head();
        if context.out.is_json() {
            let shape = match head.shape {
                Shape::Fixed { key_bytes, value_bytes } => json!([key_bytes, value_bytes]),
                Shape::Variable => Value::Null,
            };
            return context.out.json(json!({
                "format": head.format.name(),
                "partitions": head.partitions,
                "epochs": epochs,
                "record_bytes": shape,
                "records": totals.rows,
                "tables": totals.tables,
                "index_bytes": totals.index_bytes,
                "auxiliary_bytes": totals.auxiliary_bytes,
                "data_bytes": totals.data_bytes,
                "value_bytes": totals.value_bytes,
                "index_bits_per_key": bits,
                "tables_per_query": each,
                "queries_by_tables": histogram,
                "objects": entry.prefix,
            }));
        }
        let line = |name: &str, value: String| context.out.line(format!("{name:<12} {value}"));
        line("format", head.format.name().to_owned())?;
        line(
            "records",
            match head.shape {
                Shape::Fixed { key_bytes, value_bytes } => {
                    let rows = text::count(totals.rows);
                    format!("{rows} of {key_bytes} + {value_bytes} bytes")
                }
                Shape::Variable => text::count(totals.rows),
            },
        )?;
        line("epochs", epochs.to_string())?;
        line("partitions", head.partitions.to_string())?;
        line("tables", text::count(totals.tables))?;
        line("data", text::bytes(totals.data_bytes + totals.value_bytes))?;
        line("index", format!("{}, {bits:.2} bits a key", text::bytes(totals.index_bytes)))?;
        if totals.auxiliary_bytes > 0 {
            line("auxiliary", text::bytes(totals.auxiliary_bytes))?;
        }
        line("queries", format!("{} tried, {each:.4} tables each", text::count(queries)))?;
        for (tables, count) in histogram.iter().enumerate().filter(|(_, count)| **count > 0) {
            line("", format!("{}: {count}", text::counted(tables as u64, "table")))?;
        }
        line("objects", entry.prefix)
    }

    /// How many of some keys asked how many tables.
    fn histogram(&self, reader: &Reader) -> Result<Vec<u64>> {
        let mut random = Random::from_seed(SEED_SAMPLE);
        let mut histogram = Vec::new();
        for key in reader.sample(self.queries, &mut random)? {
            let tables = usize::try_from(reader.get(&key)?.counts.tables).unwrap_or(usize::MAX);
            if histogram.len() <= tables {
                histogram.resize(tables + 1, 0);
            }
            histogram[tables] += 1;
        }
        Ok(histogram)
    }
}
