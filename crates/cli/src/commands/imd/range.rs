// SPDX-License-Identifier: Apache-2.0
//! `esker imd range`: lists records by key range.

use clap::Args;
use esker_base::Result;
use serde_json::json;

use super::epoch_range::EpochRange;
use super::get::{cost, counts_object};
use super::open;
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::output::notice;
use crate::record_table::{RecordTable, ShownRecord};

/// List the records with keys from LOW to HIGH, of an ordered directory
///
/// Prints lines like `esker imd get`, in key order.
#[derive(Args)]
#[command(after_help = "\
Example:
  esker imd range run:/energies 0.5 0.75 --steps 300")]
pub struct ImdRangeCommand {
    /// The directory
    #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
    target: StackPath,
    /// The lowest key
    #[arg(value_name = "LOW", allow_negative_numbers = true)]
    low: String,
    /// The highest key
    #[arg(value_name = "HIGH", allow_negative_numbers = true)]
    high: String,
    #[command(flatten)]
    epochs: EpochRange,
    /// Stop after this many records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print the cost on standard error
    #[arg(long)]
    counts: bool,
}

impl ImdRangeCommand {
    /// Lists.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let (_, reader) = open(context, &self.target, 0)?;
        let names = reader.key_names();
        let low = names.key_of_name(self.low.as_bytes())?;
        let high = names.key_of_name(self.high.as_bytes())?;
        let steps = reader.steps()?;
        let epochs = self.epochs.among(&steps).map_err(|error| error.within(&self.target))?;
        let epochs = epochs.start..epochs.end.min(reader.epochs_complete()?);
        let table = RecordTable::new(reader.schema(), names, steps);
        let is_json = context.out.is_json();
        if !is_json {
            context.out.line(table.csv_head())?;
        }
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut all = esker_imd::QueryCounts::default();
        let mut values = Vec::new();
        for epoch in epochs {
            all += reader.range(&low, &high, epoch, |key, value| {
                if left == 0 {
                    return Ok(false);
                }
                left -= 1;
                let record = ShownRecord { key, epoch, value };
                if is_json {
                    values.push(table.json(record));
                } else {
                    context.out.line(table.csv(record))?;
                }
                Ok(left > 0)
            })?;
            if left == 0 {
                break;
            }
        }
        if self.counts {
            notice(cost(&all));
        }
        if is_json {
            return context.out.json(json!({"values": values, "counts": counts_object(&all)}));
        }
        Ok(())
    }
}
