// SPDX-License-Identifier: Apache-2.0
//! `esker-bench segment`: measures the index of shared files.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use esker_base::{Error, Result};
use esker_bench::segment::pattern::{BATCH, PatternSize, WritePattern, dump};
use esker_bench::segment::{SegmentReport, segment};
use esker_table::tree::TreeOptions;

use crate::change::SessionSettings;
use crate::context::CommandContext;

/// Write pattern of the ranks.
#[derive(Clone, Copy, ValueEnum)]
enum SegmentWorkload {
    /// Transfers of the ranks take turns, as with IOR
    Strided,
    /// Each rank has a tile of a two-dimensional array, as in MPI-Tile-IO
    Tile,
    /// Each rank has cells on the diagonals of a cube, as in NAS BTIO
    Btio,
    /// Distinct blocks in random order
    Random,
}

/// Size of BTIO's cube.
#[derive(Clone, Copy, ValueEnum)]
enum BtioClass {
    /// 162 points a side
    C,
    /// 408
    D,
    /// 1,020
    E,
}

/// Put the segments of a shared file in batches, look them up, list them
///
/// Clients are simulated within the process: their batches arrive one after the other, interleaved
/// at random. The put time includes storing everything and finishing compaction; look-ups start
/// with empty caches, and every answer is checked.
#[derive(Args)]
#[command(after_help = "\
Example:
  esker bench segment --store /scratch/segments --pattern strided --clients 1024 --segments 16000000
  esker bench segment --store /scratch/segments --pattern btio --class d --clients 256 --json")]
pub struct BenchSegmentCommand {
    /// Order of offsets
    #[arg(long, value_enum, default_value = "strided", value_name = "PATTERN")]
    pattern: SegmentWorkload,
    /// BTIO's problem size
    #[arg(long, value_enum, default_value = "d", value_name = "CLASS")]
    class: BtioClass,
    /// Bytes of a transfer, of a tile's row, or of a block
    #[arg(long, default_value_t = 4_096, value_name = "BYTES")]
    bytes: u64,
    /// Ranks that write
    #[arg(long, default_value_t = 1_024, value_name = "C")]
    clients: u64,
    /// Total number of segments
    #[arg(long, default_value_t = 16_000_000, value_name = "N")]
    segments: u64,
    /// Segments in a batch
    #[arg(long, default_value_t = BATCH, value_name = "N")]
    batch: usize,
    /// Send batches in random order, even those of one rank
    #[arg(long)]
    shuffled: bool,
    /// Clients send their writes as multi-dimensional strides, not segment by segment: not
    /// comparable with systems that accept only segments
    #[arg(long, conflicts_with_all = ["batch", "shuffled", "dump"])]
    descriptors: bool,
    /// Only write the batches to this file, for other programs
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    #[command(flatten)]
    settings: SessionSettings,
}

impl BenchSegmentCommand {
    fn pattern_size(&self) -> PatternSize {
        let pattern = match self.pattern {
            SegmentWorkload::Strided => WritePattern::Strided(self.bytes),
            SegmentWorkload::Tile => WritePattern::Tile(self.bytes),
            SegmentWorkload::Random => WritePattern::Random(self.bytes),
            SegmentWorkload::Btio => WritePattern::Btio(match self.class {
                BtioClass::C => 162,
                BtioClass::D => 408,
                BtioClass::E => 1_020,
            }),
        };
        let (clients, segments) = (self.clients, self.segments);
        PatternSize { pattern, clients, segments, batch: self.batch, shuffled: self.shuffled }
    }

    /// Measures, or writes the workload.
    pub fn run(&self, context: &CommandContext) -> Result<()> {
        let size = self.pattern_size();
        if let Some(path) = &self.dump {
            let batches = size.batches()?;
            let written = File::create(path)
                .and_then(|file| dump(size.clients, &batches, &mut BufWriter::new(file)));
            return written.map_err(|error| Error::io(error, format!("write {}", path.display())));
        }
        let options: TreeOptions = self.settings.options(context).tree;
        show(context, &segment(&context.store_or_new()?, &size, self.descriptors, options)?)
    }
}

fn show(context: &CommandContext, report: &SegmentReport) -> Result<()> {
    if context.out.is_json() {
        return context.out.report(report);
    }
    let described = match report.descriptors {
        0 => String::new(),
        descriptors => format!(" as {descriptors} descriptors"),
    };
    context.out.line(format!(
        "segment: {}{described} put in {:.3} s, {:.1} M/s until quiet ({:.1} acknowledged), the slowest batch \
         {:.1} ms; {:.3} B each in {} tables; found {:.1} M/s in order, {:.1} M/s at random; listed \
         {:.1} M/s",
        report.operations,
        report.seconds,
        report.puts_per_second / 1e6,
        report.acknowledged_per_second / 1e6,
        report.worst_batch_ms,
        report.store_bytes_per_segment,
        report.tables,
        report.gets_per_second / 1e6,
        report.random_gets_per_second / 1e6,
        report.range_entries_per_second / 1e6,
    ))
}
