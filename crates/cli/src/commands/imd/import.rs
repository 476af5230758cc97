//! `esker imd import`: dumps of binary records become the epochs of an indexed directory.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use esker_base::Result;
use esker_base::store::SharedStore;
use esker_comm::threads;
use esker_imd::directory::PartitionTotals;
use esker_imd::import::{Field, Layout, Step, append_all, survey};
use esker_imd::{Imd, Options};
use serde_json::json;

use super::target::{Target, place_of};
use super::write::FormatName;
use crate::context::Context;
use crate::{quantity, text, usage};

/// Layouts that have a name.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Preset {
    /// Particle dumps of VPIC whose weight has the tracer's number
    Vpic,
}

/// Import dumps of fixed-width binary records
///
/// Each file has a header and records of one width, of which some bytes are the key; a record is
/// stored whole, as the value. Files whose headers have one step become one epoch; without --step
/// all files do. Types are u8, u16, u32, u64, with `be` for the other byte order, i32, i64, f32, f64,
/// bytesN, and f32*2^N for a number that is an integer once multiplied. Numbers become keys of eight
/// bytes that sort as the numbers do. Makes the store if there is none.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker imd import run:/tracers --preset vpic dumps/tparticle.*
  esker imd import run:/p --header-bytes 16 --record-bytes 48 --key 0:u64 --step 8:u32 dumps/*")]
pub struct Import {
    #[command(flatten)]
    target: Target,
    /// Files to import
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A known layout, instead of the options below
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = LAYOUT)]
    preset: Option<Preset>,
    /// Bytes before the first record
    #[arg(long, default_value_t = 0, value_name = "N")]
    header_bytes: u32,
    /// Bytes of each record
    #[arg(long, value_name = "N", required_unless_present = "preset")]
    record_bytes: Option<u32>,
    /// The key within a record
    #[arg(long, value_name = "OFFSET:TYPE", required_unless_present = "preset")]
    key: Option<Field>,
    /// The step within the header
    #[arg(long, value_name = "OFFSET:TYPE")]
    step: Option<Field>,
    /// The number of records within the header, to be checked
    #[arg(long, value_name = "OFFSET:TYPE")]
    count: Option<Field>,
    /// Ranks that import, each its share of the files of a step
    #[arg(long, default_value_t = 1, value_name = "R")]
    ranks: u32,
    /// How values get to those who look for them
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: FormatName,
    /// Memory of each rank, as 64M
    #[arg(long, default_value = "256M", value_parser = quantity::bytes, value_name = "SIZE")]
    rank_memory: u64,
}

/// What a preset says.
const LAYOUT: [&str; 5] = ["header_bytes", "record_bytes", "key", "step", "count"];

impl Import {
    /// Imports.
    pub fn run(self, context: &Context) -> Result<()> {
        let layout = self.layout()?;
        let steps = survey(&self.files, &layout)?;
        let ((), published) = self.target.publish(context, |session| {
            let (number, prefix) = place_of(session);
            let directory = u128::from(number) | session.set().0 << 64;
            let mut options = Options::new(directory, self.format.format(), layout.shape());
            options.memory_bytes = self.rank_memory;
            let store = session.layers().source().store.clone();
            let totals = self.append(&store, &prefix, &options, &steps, &layout)?;
            self.target.place(session, number, &totals)
        })?;
        let records: u64 = steps.iter().flat_map(|s| &s.dumps).map(|dump| dump.records).sum();
        let numbers: Vec<i64> = steps.iter().map(|step| step.number).collect();
        if context.out.is_json() {
            return context.out.json(json!({
                "published": published.name,
                "set": published.set,
                "files": self.files.len(),
                "records": records,
                "epochs": steps.len(),
                "steps": numbers,
            }));
        }
        for (epoch, step) in steps.iter().enumerate() {
            let records: u64 = step.dumps.iter().map(|dump| dump.records).sum();
            let (number, files) = (step.number, step.dumps.len());
            let records = text::counted(records, "record");
            let files = text::counted(files as u64, "file");
            context.out.line(format!("epoch {epoch}: step {number}, {records} of {files}"))?;
        }
        context.out.line(format!("published {} @{}", published.name, published.set))
    }

    fn layout(&self) -> Result<Layout> {
        let layout = match (self.preset, self.record_bytes, self.key) {
            (Some(Preset::Vpic), ..) => Layout::vpic(),
            (None, Some(record_bytes), Some(key)) => {
                let Self { header_bytes, step, count, .. } = *self;
                Layout { header_bytes, record_bytes, key, step, count }
            }
            _ => usage::exit("give --record-bytes and --key"),
        };
        layout.check().map(|()| layout)
    }

    /// Every rank appends its share. Returns the sums over all.
    fn append(
        &self,
        store: &SharedStore,
        prefix: &str,
        options: &Options,
        steps: &[Step],
        layout: &Layout,
    ) -> Result<PartitionTotals> {
        let summaries = threads::run(self.ranks, self.ranks, |transport| {
            let mut imd = Imd::create(store, prefix, transport, options)?;
            append_all(&mut imd, steps, layout)?;
            imd.finish()
        })?;
        let mut totals = PartitionTotals::default();
        summaries.iter().for_each(|summary| totals.add(&summary.totals));
        Ok(totals)
    }
}
