// SPDX-License-Identifier: Apache-2.0
//! `esker advise synth`: the trace of a known application or benchmark.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use esker_advisor::pattern::{PatternSize, TracePattern, write_pattern};
use esker_base::Result;
use serde_json::json;

use crate::context::CommandContext;
use crate::output_file::OutputFile;
use crate::{text, usage};

/// Make the trace of a known application or benchmark
///
/// Patterns of Kougkas et al. (2016): offset-shift, request-size, noncontiguous, hpio, lanl-app1, and
/// lanl-app2-like, which the paper does not print. Others: ior-segmented, ior-strided, ior-random, tile,
/// btio-like, workbench-mix. The ranks share one file unless --file-per-process; in workbench-mix they
/// work on many small ones.
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
    /// R: bytes of each rank, instead of -n. The last request has the rest; patterns whose requests differ
    /// end with their last whole loop, and have at least one
    #[arg(short = 'R', long, conflicts_with = "requests", value_name = "SIZE",
          value_parser = crate::quantity::bytes)]
    input: Option<u64>,
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
    /// Requests of each rank that write, spread evenly; the others read
    #[arg(long, default_value_t = 0, conflicts_with = "write", value_name = "N")]
    written: u64,
    /// A file for each rank instead of one for all
    #[arg(long)]
    file_per_process: bool,
}

impl PatternArguments {
    /// The parameters of `pattern`. The caller checks them: 0 is refused there.
    fn size(&self, pattern: TracePattern) -> PatternSize {
        let (requests, last_bytes) = match self.input {
            None => (self.requests, None),
            Some(input) if !pattern.has_one_size() => {
                (pattern.requests_of(input, self.request), None)
            }
            Some(input) => {
                let left = input.checked_rem(self.request).filter(|left| *left > 0);
                (input.checked_div(self.request).unwrap_or(0) + u64::from(left.is_some()), left)
            }
        };
        PatternSize {
            ranks: self.ranks,
            requests,
            request_bytes: self.request,
            gap_bytes: self.gap,
            shift_bytes: self.shift,
            interval_ns: self.interval.saturating_mul(1_000),
            written: if self.write { u64::MAX } else { self.written },
            last_bytes,
            is_file_per_rank: self.file_per_process,
        }
    }

    /// Exits if an argument says what `pattern` of this `size` cannot do.
    fn check(&self, pattern: TracePattern, size: &PatternSize) {
        usage::value_of(size.check(pattern));
        let name = pattern.name();
        if self.gap > 0 && !pattern.has_gaps() {
            usage::exit(format!("{name} has no gaps between its requests: leave -g out"));
        }
        if pattern == TracePattern::WorkbenchMix && (self.write || self.written > 0) {
            usage::exit(format!("half of the requests of {name} write, whatever --write says"));
        }
        if self.written > size.requests {
            let requests = text::counted(size.requests, "request");
            usage::exit(format!("--written {}: a rank has {requests}", self.written));
        }
    }
}

impl AdviseSynth {
    /// Makes the trace.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let pattern = TracePattern::of_name(&self.pattern).expect("clap knows the names");
        let size = self.size.size(pattern);
        self.size.check(pattern, &size);
        let output = OutputFile::prepare(&self.output)?;
        let records = output.write(|output| write_pattern(pattern, &size, output))?;
        if context.out.is_json() {
            return context.out.json(json!({"records": records, "case": size.case(pattern)}));
        }
        let records = text::counted(records, "record");
        context.out.line(format!("{}: {records}, {}", self.output.display(), size.case(pattern)))
    }
}
