// SPDX-License-Identifier: Apache-2.0
//! `esker advise synth`: the trace of a known application or benchmark.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use esker_advisor::pattern::{PatternSize, TracePattern, write_pattern};
use esker_base::Result;
use serde_json::json;

use super::advise::{create_output, finish_output};
use crate::context::CommandContext;
use crate::{text, usage};

/// Make the trace of a known application or benchmark
///
/// Patterns of Kougkas et al. (2016): offset-shift, request-size, noncontiguous, hpio, lanl-app1, and
/// lanl-app2-like, which the paper does not print. Others: ior-segmented, ior-strided, tile, btio-like,
/// workbench-mix. The ranks share one file; in workbench-mix they work on many small ones.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker advise synth offset-shift -p 8 -n 1000 -r 64K -A 1K -o shift.arrow
  esker advise synth lanl-app1 -p 32 -n 768 -o app1.arrow")]
pub struct AdviseSynth {
    /// The application or benchmark
    #[arg(value_parser = PossibleValuesParser::new(TracePattern::ALL.map(TracePattern::name)))]
    pattern: String,
    /// The trace
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    size: PatternArguments,
}

/// The parameters of patterns.
#[derive(Args)]
pub struct PatternArguments {
    /// p: ranks
    #[arg(short = 'p', long, default_value_t = 4, value_name = "N")]
    ranks: u32,
    /// Requests of each rank
    #[arg(short = 'n', long, default_value_t = 1_000, value_name = "N")]
    requests: u64,
    /// r: bytes of a request
    #[arg(short = 'r', long, default_value = "64K", value_name = "SIZE",
          value_parser = crate::quantity::bytes)]
    request: u64,
    /// g: bytes between requests, in noncontiguous and hpio
    #[arg(short = 'g', long, default_value = "0", value_name = "SIZE",
          value_parser = crate::quantity::bytes)]
    gap: u64,
    /// A: bytes by which all requests are shifted
    #[arg(short = 'A', long, default_value = "0", value_name = "SIZE",
          value_parser = crate::quantity::bytes)]
    shift: u64,
    /// Microseconds between the requests of a rank
    #[arg(long, default_value_t = 1_000, value_name = "US")]
    interval: u64,
    /// Write instead of reading
    #[arg(long)]
    write: bool,
}

impl AdviseSynth {
    /// Makes the trace.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let pattern = TracePattern::of_name(&self.pattern).expect("clap knows the names");
        let size = PatternSize {
            ranks: self.size.ranks,
            requests: self.size.requests,
            request_bytes: self.size.request,
            gap_bytes: self.size.gap,
            shift_bytes: self.size.shift,
            interval_ns: self.size.interval.saturating_mul(1_000),
            is_write: self.size.write,
        };
        usage::value_of(size.check(pattern));
        let (written, records) = write_pattern(pattern, &size, create_output(&self.output)?)?;
        finish_output(&self.output, written)?;
        if context.out.is_json() {
            return context.out.json(json!({"records": records, "case": size.case(pattern)}));
        }
        let records = text::counted(records, "record");
        context.out.line(format!("{}: {records}, {}", self.output.display(), size.case(pattern)))
    }
}
