// SPDX-License-Identifier: Apache-2.0
//! `esker imd show`: shows the contents of a directory, and how many tables a query examines.

use clap::Args;
use esker_base::{Random, Result};
use esker_imd::schema::{DirectorySchema, SchemaField};
use esker_imd::{IndexedReader, RecordLayout};
use serde_json::{Value, json};

use super::open;
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::text;

/// Seed for the sample of keys.
const SEED_SAMPLE: u64 = 1;

/// Show the schema, the steps of epochs, sizes, and how many tables queries examine
///
/// Queries a sample of existing keys in all epochs, and counts the tables whose rows were examined:
/// one per epoch, unless a filter erred or the key has values in several.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker imd show run:/particles
  esker imd show run:/particles --json | jq .schema
  esker imd show run:/particles --queries 100000
  esker bench imd-queries run:/particles --queries 100000 --plot tables.svg")]
pub struct ImdInfoCommand {
    /// The directory
    #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
    target: StackPath,
    /// Number of keys to query
    #[arg(long, default_value_t = 1000, value_name = "N")]
    queries: usize,
}

impl ImdInfoCommand {
    /// Shows.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let (entry, reader) = open(context, &self.target, 64 << 20)?;
        let epochs = reader.epochs_complete()?;
        let totals = reader.totals();
        let histogram = queries_by_tables(&reader, self.queries)?;
        let queries: u64 = histogram.iter().sum();
        let asked: u64 = (0..).zip(&histogram).map(|(tables, count)| tables * count).sum();
        let each = asked as f64 / queries.max(1) as f64;
        let bits =
            (totals.index_bytes + totals.auxiliary_bytes) as f64 * 8.0 / totals.rows.max(1) as f64;
        let (layout, schema, steps) = (reader.record_layout(), reader.schema(), reader.steps()?);
        let formats: Vec<&str> = reader.parts().map(|part| part.head().format.name()).collect();
        let partitions: u64 = reader.parts().map(|part| u64::from(part.partitions())).sum();
        if context.out.is_json() {
            let layout = match layout {
                RecordLayout::Fixed { key_bytes, value_bytes } => json!([key_bytes, value_bytes]),
                RecordLayout::Variable => Value::Null,
            };
            return context.out.json(json!({
                "format": formats.last(),
                "parts": formats.len(),
                "partitions": partitions,
                "epochs": epochs,
                "steps": steps,
                "schema": schema_object(schema),
                "record_bytes": layout,
                "records": totals.rows,
                "tables": totals.tables,
                "index_bytes": totals.index_bytes,
                "auxiliary_bytes": totals.auxiliary_bytes,
                "data_bytes": totals.data_bytes,
                "value_bytes": totals.value_bytes,
                "index_bits_per_key": bits,
                "tables_per_query": each,
                "queries_by_tables": histogram,
                "objects": entry.prefixes,
            }));
        }
        let line = |name: &str, value: String| context.out.line(format!("{name:<12} {value}"));
        line("format", formats.join(", "))?;
        line(
            "records",
            match layout {
                RecordLayout::Fixed { .. } => format!("{} of {layout}", text::count(totals.rows)),
                RecordLayout::Variable => text::count(totals.rows),
            },
        )?;
        line(
            "epochs",
            match &steps[..] {
                [] => "0".to_owned(),
                [step] => format!("1, of step {step}"),
                [first, .., last] => format!("{epochs}, of steps {first} to {last}"),
            },
        )?;
        schema_lines(schema).try_for_each(|(name, text)| line(name, text))?;
        line("partitions", partitions.to_string())?;
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
        entry.prefixes.into_iter().try_for_each(|prefix| line("objects", prefix))
    }
}

/// Gets a sample of `queries` keys of `reader`; returns the number of keys by number of tables examined.
pub fn queries_by_tables(reader: &IndexedReader, queries: usize) -> Result<Vec<u64>> {
    let mut random = Random::from_seed(SEED_SAMPLE);
    let mut histogram = Vec::new();
    for key in reader.sample(queries, &mut random)? {
        let tables = usize::try_from(reader.get(&key)?.counts.tables).unwrap_or(usize::MAX);
        if histogram.len() <= tables {
            histogram.resize(tables + 1, 0);
        }
        histogram[tables] += 1;
    }
    Ok(histogram)
}

/// A schema in words: the subject of each line, and its text.
fn schema_lines(schema: &DirectorySchema) -> impl Iterator<Item = (&'static str, String)> {
    let typed = |name: &str, kind: String, unit: &str| match unit {
        "" => format!("{name}: {kind}"),
        _ => format!("{name}: {kind}, in {unit}"),
    };
    let key = typed(&schema.key_name, schema.key_type.to_string(), &schema.key_unit);
    let fields = schema.fields.iter().map(move |field| {
        let kind = format!("{} at byte {}", field.kind, field.offset);
        ("field", typed(&field.name, kind, &field.unit))
    });
    [("key", key)].into_iter().chain(fields)
}

/// A schema as JSON.
fn schema_object(schema: &DirectorySchema) -> Value {
    let fields = schema.fields.iter().map(|field| {
        let SchemaField { name, unit, offset, kind } = field;
        json!({"name": name, "type": kind.to_string(), "unit": unit, "offset": offset})
    });
    let fields: Vec<Value> = fields.collect();
    let DirectorySchema { key_name, key_unit, key_type, .. } = schema;
    let key = json!({"name": key_name, "type": key_type.to_string(), "unit": key_unit});
    json!({"key": key, "fields": fields})
}
