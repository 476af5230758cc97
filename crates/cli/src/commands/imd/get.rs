//! `esker imd get`: the values of keys.

use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use esker_base::{Error, Kind, Result};
use esker_imd::entry::{key_of_name, name_of_key};
use esker_imd::{Counts, Value};
use serde_json::json;

use super::open;
use crate::context::Context;
use crate::location::Location;
use crate::output::notice;
use crate::quantity;
use crate::text::{self, hex};

/// Get the values of keys
///
/// A line for each value: key, epoch, value in hexadecimal digits; keys in the order given, values
/// by epoch. Exits with 3 if a key has none. A key is its bytes; 0x and hexadecimal digits; or 16 digits where keys have 8 bytes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker imd get run:/particles 0000000000000042
  esker imd get run:/particles --keys-from tracers.txt --epochs 2..5 --threads 2 --counts
  esker imd get run:/particles --keys-from tracers.txt --output npy --to tracers.npy")]
pub struct Get {
    /// The directory
    #[arg(value_name = "NAME:/path", value_parser = Location::parser())]
    target: Location,
    /// Keys
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    /// Read further keys from a file, one a line; - for standard input
    #[arg(long, value_name = "FILE")]
    keys_from: Option<PathBuf>,
    /// Only these epochs: N, or A..B without B
    #[arg(long, value_parser = epochs, value_name = "A..B")]
    epochs: Option<Range<u32>>,
    /// Threads that look
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// What to write
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    /// Write it here instead of standard output
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Say on standard error what it cost
    #[arg(long)]
    counts: bool,
    /// Memory for what was read
    #[arg(long, default_value = "256M", value_parser = quantity::bytes, value_name = "SIZE")]
    cache: u64,
}

/// What values are written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Comma-separated lines with a head
    #[default]
    Csv,
    /// A NumPy array of records with the fields key, epoch and value; for values of one length
    Npy,
}

impl Get {
    /// Gets.
    pub fn run(self, context: &Context) -> Result<()> {
        let (_, reader) = open(context, &self.target, self.cache)?;
        let shape = reader.head().shape;
        let names = self.names()?;
        let keys = names.iter().map(|name| key_of_name(name.as_bytes(), shape));
        let keys: Vec<Vec<u8>> = keys.collect::<Result<_>>()?;
        let epochs = self.epochs.clone().unwrap_or(0..u32::MAX);
        let answers = reader.get_many(&keys, epochs, self.threads.max(1))?;
        if self.counts {
            notice(cost(&answers.counts));
        }
        let rows = keys
            .iter()
            .zip(&answers.values)
            .flat_map(|(key, values)| values.iter().map(move |value| (key.as_slice(), value)));
        let bytes = match self.output {
            Form::Csv if context.out.is_json() && self.to.is_none() => {
                let values = rows.map(|(key, value)| {
                    let name = name_of_key(key, shape);
                    json!({"key": name, "epoch": value.epoch, "value": hex(&value.bytes)})
                });
                let values: Vec<_> = values.collect();
                let counts = counts_object(&answers.counts);
                context.out.json(json!({"values": values, "counts": counts}))?;
                return self.check_all_found(&names, &answers.values);
            }
            Form::Csv => {
                let mut text = String::from("key,epoch,value\n");
                for (key, value) in rows {
                    let (key, epoch) = (name_of_key(key, shape), value.epoch);
                    text.push_str(&format!("{},{epoch},{}\n", quoted(&key), hex(&value.bytes)));
                }
                text.into_bytes()
            }
            Form::Npy => npy(&rows.collect::<Vec<_>>())?,
        };
        match &self.to {
            Some(path) => {
                let failure = |error| Error::io(error, format!("write {}", path.display()));
                std::fs::write(path, bytes).map_err(failure)?;
            }
            None => context.out.raw(&bytes)?,
        }
        self.check_all_found(&names, &answers.values)
    }

    /// Fails with the first of the keys that has no value.
    fn check_all_found(&self, names: &[String], values: &[Vec<Value>]) -> Result<()> {
        let mut absent = names.iter().zip(values).filter(|(_, values)| values.is_empty());
        let Some((first, _)) = absent.next() else { return Ok(()) };
        let epochs = if self.epochs.is_some() { " in these epochs" } else { "" };
        let others = match absent.count() {
            0 => String::new(),
            count => format!(", nor has {count} of the others"),
        };
        let what = format!("{}: no value has the key {first}{epochs}{others}", self.target);
        Err(Error::new(Kind::NotFound, what))
    }

    fn names(&self) -> Result<Vec<String>> {
        let mut names = self.keys.clone();
        let Some(path) = &self.keys_from else { return Ok(names) };
        let failure = |error| Error::io(error, format!("read keys of {}", path.display()));
        let text = if path.as_os_str() == "-" {
            std::io::read_to_string(std::io::stdin()).map_err(failure)?
        } else {
            std::fs::read_to_string(path).map_err(failure)?
        };
        names.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(Into::into));
        Ok(names)
    }
}

/// Reads `N` or `A..B`.
fn epochs(text: &str) -> Result<Range<u32>, String> {
    let wrong = || format!("{text:?} is no range of epochs; expected as 3 or 2..5");
    let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
    match text.split_once("..") {
        Some((start, end)) => Ok(number(start)?..number(end)?),
        None => number(text).map(|epoch| epoch..epoch.saturating_add(1)),
    }
}

/// What finding values cost, in words.
pub fn cost(counts: &Counts) -> String {
    format!(
        "{}, {}: {} of index logs, {} of auxiliary tables, {} of data; {} and {} asked",
        text::counted(counts.reads(), "store read"),
        text::counted(counts.bytes(), "byte"),
        counts.index_reads,
        counts.auxiliary_reads,
        counts.data_reads,
        text::counted(counts.tables, "table"),
        text::counted(counts.partitions, "partition"),
    )
}

/// The same for programs.
pub fn counts_object(counts: &Counts) -> serde_json::Value {
    json!({
        "store_reads": counts.reads(),
        "store_bytes_read": counts.bytes(),
        "index_reads": counts.index_reads,
        "auxiliary_reads": counts.auxiliary_reads,
        "data_reads": counts.data_reads,
        "tables": counts.tables,
        "partitions": counts.partitions,
    })
}

/// A field of a comma-separated line.
pub fn quoted(field: &str) -> String {
    if field.contains([',', '"']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// A NumPy array file, version 1.0, of records without padding.
fn npy(rows: &[(&[u8], &Value)]) -> Result<Vec<u8>> {
    let (key_bytes, value_bytes) =
        rows.first().map_or((0, 0), |(key, value)| (key.len(), value.bytes.len()));
    let even = |row: &(&[u8], &Value)| row.0.len() == key_bytes && row.1.bytes.len() == value_bytes;
    if !rows.iter().all(even) {
        let what = "keys or values differ in length, and a NumPy array has one: write CSV";
        return Err(Error::new(Kind::Invalid, what));
    }
    let mut head = format!(
        "{{'descr': [('key', '|V{key_bytes}'), ('epoch', '<u4'), ('value', '|V{value_bytes}')], \
         'fortran_order': False, 'shape': ({},), }}",
        rows.len()
    );
    // Magic, version, length and head make up a multiple of 64 bytes.
    const BEFORE: usize = 10;
    while !(BEFORE + head.len() + 1).is_multiple_of(64) {
        head.push(' ');
    }
    head.push('\n');
    let length = u16::try_from(head.len()).expect("a head of some dozen bytes");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(head.as_bytes());
    for (key, value) in rows {
        out.extend_from_slice(key);
        out.extend_from_slice(&value.epoch.to_le_bytes());
        out.extend_from_slice(&value.bytes);
    }
    Ok(out)
}
