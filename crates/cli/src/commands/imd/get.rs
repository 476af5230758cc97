// SPDX-License-Identifier: Apache-2.0
//! `esker imd get`: the values of keys.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use esker_base::{Error, Kind, Result};
use esker_imd::schema::KeyNames;
use esker_imd::{IndexedValue, QueryCounts};
use serde_json::json;

use super::epoch_range::EpochRange;
use super::open;
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::output::notice;
use crate::output_file::write_output;
use crate::quantity;
use crate::record_table::{RecordTable, ShownRecord};
use crate::text;

/// Get the values of keys
///
/// Prints one line per value: key, epoch number and step, and the fields of the directory's schema,
/// or the value in hexadecimal digits if it has no fields; keys in the order given, values by
/// epoch. Exits with 3 if a key has no value. A numeric key is given in decimal digits, any other
/// as its bytes or, if keys have 8 bytes, as 16 hexadecimal digits; 0x and hexadecimal digits work
/// for every key.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker imd get run:/tracers 12345678
  esker imd get run:/tracers --keys-from tracers.txt --steps 200..500 --threads 2 --counts
  esker imd get run:/tracers --keys-from tracers.txt --output npy --to tracers.npy
  esker imd get run:/tracers 12345678 --steps 300 --output npy --to record.npy
  esker imd get run:/labels electron --steps 300 --bytes > record    # the key is these 8 bytes
  esker cat run:/tracers/12345678 > values                           # bytes of a number's values")]
pub struct ImdGetCommand {
    /// The directory
    #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
    target: StackPath,
    /// Keys
    #[arg(
        value_name = "KEY",
        allow_negative_numbers = true,
        required_unless_present = "keys_from"
    )]
    keys: Vec<String>,
    /// Read more keys from a file, one per line; - for standard input
    #[arg(long, value_name = "FILE")]
    keys_from: Option<PathBuf>,
    #[command(flatten)]
    epochs: EpochRange,
    /// Keys are in hexadecimal digits, and printed keys and values too
    #[arg(long, conflicts_with = "bytes")]
    hex: bool,
    /// Keys are given as their bytes, and only the bytes of the values are printed
    #[arg(long, conflicts_with = "output")]
    bytes: bool,
    /// Threads that search
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Output form
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: ValueForm,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Print the cost on standard error
    #[arg(long)]
    counts: bool,
    /// Memory for cached data
    #[arg(long, default_value = "256M", value_parser = quantity::bytes, value_name = "SIZE")]
    cache: u64,
}

/// Output form of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ValueForm {
    /// Comma-separated lines with a header
    #[default]
    Csv,
    /// A NumPy array with the same typed columns; for values of one length
    Npy,
}

impl ImdGetCommand {
    /// Gets the values.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let (_, reader) = open(context, &self.target, self.cache)?;
        let texts = self.names()?;
        let names = reader.key_names();
        let reading = self.reading();
        let keys = texts.iter().map(|text| reading.key_of(&names, text));
        let keys: Vec<Vec<u8>> = keys.collect::<Result<_>>()?;
        let steps = reader.steps()?;
        let epochs = self.epochs.among(&steps).map_err(|error| error.within(&self.target))?;
        let table = RecordTable::new(reader.schema(), names, steps);
        let table = if self.hex { table.in_hex() } else { table };
        let answers = reader.get_many(&keys, epochs, self.threads.max(1))?;
        if self.counts {
            notice(cost(&answers.counts));
        }
        let records = keys.iter().zip(&answers.values).flat_map(|(key, values)| {
            values.iter().map(|IndexedValue { epoch, bytes }| ShownRecord {
                key,
                epoch: *epoch,
                value: bytes,
            })
        });
        let bytes = match self.output {
            _ if self.bytes => records.flat_map(|record| record.value).copied().collect(),
            ValueForm::Csv if context.out.is_json() && self.to.is_none() => {
                let values: Vec<_> = records.map(|record| table.json(record)).collect();
                let counts = counts_object(&answers.counts);
                context.out.json(json!({"values": values, "counts": counts}))?;
                return self.check_all_found(&names, &texts, &answers.values);
            }
            ValueForm::Csv => {
                let lines = records.map(|record| table.csv(record) + "\n");
                lines.fold(table.csv_head() + "\n", |text, line| text + &line).into_bytes()
            }
            ValueForm::Npy => table.npy(&records.collect::<Vec<_>>())?,
        };
        match &self.to {
            Some(path) => write_output(path, &bytes)?,
            None => context.out.raw(&bytes)?,
        }
        self.check_all_found(&names, &texts, &answers.values)
    }

    const fn reading(&self) -> KeyReading {
        match (self.hex, self.bytes) {
            (true, _) => KeyReading::Hex,
            (_, true) => KeyReading::Bytes,
            _ => KeyReading::Name,
        }
    }

    /// Fails with the first key that has no value.
    fn check_all_found(
        &self,
        names: &KeyNames,
        texts: &[String],
        values: &[Vec<IndexedValue>],
    ) -> Result<()> {
        let mut absent = texts.iter().zip(values).filter(|(_, values)| values.is_empty());
        let Some((first, _)) = absent.next() else { return Ok(()) };
        let epochs = if self.epochs.is_given() { " in these epochs" } else { "" };
        let others = match absent.count() {
            0 => String::new(),
            count => format!(", nor has {count} of the others"),
        };
        let what = format!(
            "{}: no value has the key {first}{epochs}{others}; {}",
            self.target,
            self.reading().describe(names)
        );
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

/// Interpretation of the keys on the command line.
#[derive(Clone, Copy)]
enum KeyReading {
    /// As names.
    Name,
    /// As hexadecimal digits (`--hex`).
    Hex,
    /// As bytes (`--bytes`).
    Bytes,
}

impl KeyReading {
    /// Parses `text` as a key.
    fn key_of(self, names: &KeyNames, text: &str) -> Result<Vec<u8>> {
        let key = match self {
            Self::Name => return names.key_of_name(text.as_bytes()),
            Self::Hex => names.key_of_hex(text),
            Self::Bytes => names.key_of_bytes(text.as_bytes()),
        };
        key.map_err(|error| {
            let what = format!("{text} is no key of this directory: {}", self.describe(names));
            Error::new(error.kind(), what)
        })
    }

    /// Explains this interpretation and the alternatives.
    fn describe(self, names: &KeyNames) -> String {
        let named = names.description();
        match self {
            Self::Name => format!(
                "keys are read as {named}; with --hex as hexadecimal digits, with --bytes as the \
                 bytes that they are"
            ),
            Self::Hex => format!(
                "with --hex keys are read as the hexadecimal digits of their bytes, without it as \
                 {named}"
            ),
            Self::Bytes => format!(
                "with --bytes keys are read as the bytes that they are, without it as {named}, with \
                 --hex as hexadecimal digits"
            ),
        }
    }
}

/// The cost of a query, in words.
pub fn cost(counts: &QueryCounts) -> String {
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

/// The cost of a query, as JSON.
pub fn counts_object(counts: &QueryCounts) -> serde_json::Value {
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
