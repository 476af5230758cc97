// SPDX-License-Identifier: Apache-2.0
//! Dumps: files of fixed-width records that become epochs, and their layout.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use esker_base::{Error, Kind, Result};
use esker_comm::threads;
use esker_fs::session::Session;
use esker_imd::import::{DumpField, DumpLayout, DumpStep, append_all, survey};
use esker_imd::schema::SchemaField;
use esker_imd::{DirectoryWriter, SessionDirectory};
use serde_json::json;

use super::target::PublishedDirectory;
use super::value_format::ValueFormatName;
use crate::context::CommandContext;
use crate::{quantity, text, usage};

/// Named layouts.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LayoutPreset {
    /// Particle dumps of VPIC whose weights hold the tracers' numbers
    Vpic,
}

/// The dumps to import, and their layout.
#[derive(Args)]
pub struct DumpArguments {
    /// Files to import
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A known layout, instead of the options below
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = LAYOUT)]
    preset: Option<LayoutPreset>,
    /// Bytes before the first record
    #[arg(long, default_value_t = 0, value_name = "N")]
    header_bytes: u32,
    /// Bytes of each record
    #[arg(long, value_name = "N", required_unless_present = "preset")]
    record_bytes: Option<u32>,
    /// The key within a record, and its name if that is not `key`
    #[arg(long, value_parser = named_key, value_name = "[NAME=]OFFSET:TYPE", required_unless_present = "preset")]
    key: Option<(String, DumpField)>,
    /// A number, or a byte string, within a record, and its unit; may be given several times
    #[arg(long = "field", value_parser = named_field, value_name = "NAME=OFFSET:TYPE[:UNIT]")]
    fields: Vec<SchemaField>,
    /// The step within the header
    #[arg(long, value_name = "OFFSET:TYPE")]
    step: Option<DumpField>,
    /// The number of records within the header, for checking
    #[arg(long, value_name = "OFFSET:TYPE")]
    count: Option<DumpField>,
    /// Ranks that import, each its share of the files of a step
    #[arg(long, default_value_t = 1, value_name = "R")]
    ranks: u32,
    /// How readers reach values
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: ValueFormatName,
    /// Memory of each rank, such as 64M
    #[arg(long, default_value = "256M", value_parser = quantity::bytes, value_name = "SIZE")]
    rank_memory: u64,
}

/// Files that were checked, with their layout and steps.
pub struct SurveyedDumps {
    /// Their layout.
    pub layout: DumpLayout,
    /// Their steps.
    pub steps: Vec<DumpStep>,
}

/// Options that a preset replaces.
const LAYOUT: [&str; 6] = ["header_bytes", "record_bytes", "key", "fields", "step", "count"];

/// Parses `[NAME=]OFFSET:TYPE`.
fn named_key(text: &str) -> Result<(String, DumpField)> {
    let (name, field) = text.split_once('=').unwrap_or(("key", text));
    Ok((name.to_owned(), field.parse()?))
}

/// Parses `NAME=OFFSET:TYPE[:UNIT]`.
fn named_field(text: &str) -> Result<SchemaField> {
    let wrong = || Error::new(Kind::Invalid, format!("`{text}` is not NAME=OFFSET:TYPE[:UNIT]"));
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let unit_at = rest.match_indices(':').nth(1).map(|(at, _)| at);
    let (field, unit) = unit_at.map_or((rest, ""), |at| (&rest[..at], &rest[at + 1..]));
    let DumpField { offset, kind } = field.parse()?;
    Ok(SchemaField { name: name.to_owned(), unit: unit.to_owned(), offset, kind })
}

impl DumpArguments {
    /// Checks all files; writes nothing.
    pub fn survey(&self) -> Result<SurveyedDumps> {
        let layout = self.layout()?;
        let steps = survey(&self.files, &layout)?;
        Ok(SurveyedDumps { layout, steps })
    }

    fn layout(&self) -> Result<DumpLayout> {
        let layout = match (self.preset, self.record_bytes, self.key.clone()) {
            (Some(LayoutPreset::Vpic), ..) => DumpLayout::vpic(),
            (None, Some(record_bytes), Some((key_name, key))) => {
                let Self { header_bytes, step, count, .. } = *self;
                let mut fields = self.fields.clone();
                fields.sort_by_key(|field| field.offset);
                DumpLayout { header_bytes, record_bytes, key, key_name, fields, step, count }
            }
            _ => usage::exit("give --record-bytes and --key"),
        };
        layout.check().map(|()| layout)
    }

    /// Writes and finishes `directory` of `session`: every rank appends its share.
    pub fn write(
        &self,
        session: &Session,
        directory: SessionDirectory,
        SurveyedDumps { layout, steps }: &SurveyedDumps,
    ) -> Result<()> {
        let mut options = directory.options(self.format.format(), layout.record_layout());
        options.memory_bytes = self.rank_memory;
        options.schema = layout.schema();
        let (store, prefix) = (&session.namespace().layers().source().store, directory.prefix());
        let finished = threads::run(self.ranks, self.ranks, |transport| {
            let mut imd = DirectoryWriter::create(store, &prefix, transport, &options)?;
            append_all(&mut imd, steps, layout)?;
            imd.finish()
        });
        finished.map(drop)
    }

    /// Prints what was imported, as epochs from `first_epoch` on, and published.
    pub fn report(
        &self,
        context: &CommandContext,
        steps: &[DumpStep],
        first_epoch: u32,
        published: &PublishedDirectory,
    ) -> Result<()> {
        let records: u64 = steps.iter().flat_map(|s| &s.dumps).map(|dump| dump.records).sum();
        let numbers: Vec<u64> = steps.iter().map(|step| step.number).collect();
        if context.out.is_json() {
            return context.out.json(json!({
                "published": published.name,
                "set": published.set,
                "files": self.files.len(),
                "records": records,
                "epochs": steps.len(),
                "first_epoch": first_epoch,
                "steps": numbers,
            }));
        }
        for (epoch, step) in (first_epoch..).zip(steps) {
            let records: u64 = step.dumps.iter().map(|dump| dump.records).sum();
            let (number, files) = (step.number, step.dumps.len());
            let records = text::counted(records, "record");
            let files = text::counted(files as u64, "file");
            context.out.line(format!("epoch {epoch}: step {number}, {records} of {files}"))?;
        }
        context.out.line(format!("published {} @{}", published.name, published.set))
    }
}
