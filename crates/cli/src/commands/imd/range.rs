//! `esker imd range`: records by range of keys.

use clap::Args;
use esker_base::Result;
use esker_imd::entry::{key_of_name, name_of_key};
use serde_json::json;

use super::get::{cost, counts_object, quoted};
use super::open;
use crate::context::Context;
use crate::location::Location;
use crate::output::notice;
use crate::text::hex;

/// List the records with keys from LOW to HIGH, of an ordered directory
///
/// Lines as `esker imd get` has them, in order of key.
#[derive(Args)]
#[command(after_help = "\
Example:
  esker imd range run:/energies 0x3f000000 0x3f7fffff --epoch 3")]
pub struct Range {
    /// The directory
    #[arg(value_name = "NAME:/path", value_parser = Location::parser())]
    target: Location,
    /// The lowest key
    #[arg(value_name = "LOW")]
    low: String,
    /// The highest key
    #[arg(value_name = "HIGH")]
    high: String,
    /// Only this epoch; all of them unless given
    #[arg(long, value_name = "N")]
    epoch: Option<u32>,
    /// Stop after so many records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Say on standard error what it cost
    #[arg(long)]
    counts: bool,
}

impl Range {
    /// Lists.
    pub fn run(self, context: &Context) -> Result<()> {
        let (_, reader) = open(context, &self.target, 0)?;
        let shape = reader.head().shape;
        let low = key_of_name(self.low.as_bytes(), shape)?;
        let high = key_of_name(self.high.as_bytes(), shape)?;
        let epochs = match self.epoch {
            Some(epoch) => epoch..epoch.saturating_add(1),
            None => 0..reader.epochs_complete()?,
        };
        let is_json = context.out.is_json();
        if !is_json {
            context.out.line("key,epoch,value")?;
        }
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut all = esker_imd::Counts::default();
        let mut values = Vec::new();
        for epoch in epochs {
            all += reader.range(&low, &high, epoch, |key, value| {
                if left == 0 {
                    return Ok(false);
                }
                left -= 1;
                let (key, value) = (name_of_key(key, shape), hex(value));
                if is_json {
                    values.push(json!({"key": key, "epoch": epoch, "value": value}));
                } else {
                    context.out.line(format!("{},{epoch},{value}", quoted(&key)))?;
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
