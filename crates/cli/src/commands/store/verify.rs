// SPDX-License-Identifier: Apache-2.0
//! `esker verify`: reads everything and reports damage.

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use esker_base::{Kind, Result};
use esker_fs::maintenance::verify::{
    Finding, Severity, VerifyOptions, VerifyReport, VerifyTargets,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::context::CommandContext;
use crate::location::StackArgument;
use crate::text;

/// Check every checksum, order, reference and path
///
/// Reads names, markers, manifests, tables and file data, and reports each damaged object with the
/// location of the damage. Exits with 12 if something is lost or damaged.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker verify
  esker verify climate-7 --no-data")]
pub struct VerifyCommand {
    /// Names or change sets, with their bases; the whole store unless given
    #[arg(value_name = "NAME", value_parser = StackArgument::parser())]
    stacks: Vec<StackArgument>,
    /// Do not read file data; only check that it exists
    #[arg(long)]
    no_data: bool,
    /// Also report harmless findings, such as garbage that waits for `esker gc`
    #[arg(short, long)]
    all: bool,
    /// Threads that read; all processors unless given
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl VerifyCommand {
    /// Checks.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let repository = context.repository()?;
        let targets = match self.stacks.is_empty() {
            true => VerifyTargets::All,
            false => VerifyTargets::Sets(context.sets_of(&repository, &self.stacks)?),
        };
        let line = progress_line();
        let shown = line.clone();
        let defaults = VerifyOptions::default();
        let options = VerifyOptions {
            targets,
            data: !self.no_data,
            indexed: Some(Arc::new(|store, prefix, tell| esker_imd::verify(store, prefix, tell))),
            threads: self.threads.unwrap_or(defaults.threads),
            progress: Some(Arc::new(move |done, of| {
                shown.set_length(of);
                shown.set_position(done);
            })),
        };
        let (report, seconds) = context.timed(|| repository.verify(&options));
        line.finish_and_clear();
        let report = report?;
        self.show(context, &report, seconds)?;
        let code = if report.is_sound() { 0 } else { Kind::Corrupt.exit_code() };
        Ok(ExitCode::from(code))
    }

    fn show(&self, context: &CommandContext, report: &VerifyReport, seconds: f64) -> Result<()> {
        let least = if self.all { Severity::Information } else { Severity::Warning };
        let findings = report.findings.iter().filter(|finding| finding.severity >= least);
        if context.out.is_json() {
            return context.out.json(json!({
                "sound": report.is_sound(),
                "sets": report.sets,
                "names": report.names,
                "tables": report.tables,
                "records": report.records,
                "table_bytes": report.table_bytes,
                "data_bytes": report.data_bytes,
                "directories": report.directories,
                "seconds": seconds,
                "findings": findings.map(object).collect::<Vec<_>>(),
            }));
        }
        for finding in findings {
            context.out.line(finding.to_string())?;
        }
        let errors = report.count(Severity::Error);
        context.out.line(format!(
            "{}: {}, {}, {}, {} of tables, {} of data in {seconds:.2} s",
            if report.is_sound() {
                "sound".to_owned()
            } else {
                text::counted(errors as u64, "error")
            },
            text::counted(report.sets as u64, "change set"),
            text::counted(report.tables as u64, "table"),
            text::counted(report.records, "record"),
            text::bytes(report.table_bytes),
            text::bytes(report.data_bytes),
        ))
    }
}

fn object(finding: &Finding) -> serde_json::Value {
    json!({
        "severity": finding.severity.to_string(),
        "object": finding.object,
        "offset": finding.offset,
        "expected": finding.expected,
        "got": finding.got,
        "paths": finding.paths,
        "more_paths": finding.more_paths,
    })
}

/// A bar on a terminal, nothing in a pipe.
fn progress_line() -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("verify: {bar:30} {bytes} of {total_bytes} [{elapsed}]")
            .expect("a constant template that is good");
    ProgressBar::no_length().with_style(style)
}
