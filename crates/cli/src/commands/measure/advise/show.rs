// SPDX-License-Identifier: Apache-2.0
//! `esker advise show` and `esker advise verify`: what is in a trace.

use std::path::PathBuf;

use clap::Args;
use esker_advisor::features::STRIPE_BYTES_DEFAULT;
use esker_advisor::trace::{features, page};
use esker_base::Result;
use serde_json::json;

use super::open_trace;
use crate::context::CommandContext;
use crate::output_file::{check_is_not_read, write_output};
use crate::text;

/// Show a trace as one HTML page
///
/// Ranks over time, offsets over time, sizes of requests, distances between them, and features. The
/// page has everything in it and opens from disk, without a network.
#[derive(Args)]
#[command(after_help = "Example:\n  esker advise show app.arrow --to app.html")]
pub struct AdviseShow {
    /// The trace
    trace: PathBuf,
    /// The page
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// The stripe to which alignment refers
    #[arg(long, default_value_t = STRIPE_BYTES_DEFAULT, value_name = "BYTES",
          value_parser = clap::value_parser!(u64).range(1..))]
    stripe: u64,
}

impl AdviseShow {
    /// Writes the page.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        check_is_not_read(&self.to, [self.trace.as_path()]);
        let name = self.trace.display().to_string();
        let page = page::page(&open_trace(&self.trace)?, &name, self.stripe)?;
        write_output(&self.to, page.as_bytes())?;
        if context.out.is_json() {
            return context.out.json(json!({"page": self.to}));
        }
        context.out.line(format!("wrote {}", self.to.display()))
    }
}

/// Check every record of a trace, and print its features
#[derive(Args)]
#[command(after_help = "Example:\n  esker advise verify app.arrow --json")]
pub struct AdviseVerify {
    /// The trace
    trace: PathBuf,
}

impl AdviseVerify {
    /// Reads the whole trace.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let found = features(&open_trace(&self.trace)?, STRIPE_BYTES_DEFAULT)?;
        found.validate()?;
        if context.out.is_json() {
            return context.out.report(&found);
        }
        context.out.line(format!(
            "{}: {} of {} on {}, {} read, {} written; the trace is sound",
            self.trace.display(),
            text::counted(found.requests(), "request"),
            text::counted(u64::from(found.processes), "rank"),
            text::counted(found.files, "file"),
            text::bytes(found.read_bytes),
            text::bytes(found.written_bytes)
        ))
    }
}
