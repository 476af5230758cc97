// SPDX-License-Identifier: Apache-2.0
//! Imported calls: writes the trace of a log of calls, and reports on it.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use esker_advisor::features::{STRIPE_BYTES_DEFAULT, TraceFeatures};
use esker_advisor::trace::{ImportSummary, features};
use esker_base::{Error, Kind, Result};
use serde_json::{Value, json};

use super::{create_output, finish_output, open_trace};
use crate::commands::measure::workbench::write;
use crate::text;

/// A log of calls on its way to a trace.
pub(super) struct ImportedCalls<'a> {
    /// The log, as messages name it.
    pub log: String,
    /// The trace.
    pub output: &'a Path,
    /// The paths that select files.
    pub paths: &'a [OsString],
    /// The file for the features.
    pub features: Option<&'a Path>,
}

impl ImportedCalls<'_> {
    /// Writes the trace, and the features; the trace of a failed import is removed.
    pub fn write(
        &self,
        import: impl FnOnce(BufWriter<File>) -> Result<(BufWriter<File>, ImportSummary)>,
    ) -> Result<ImportSummary> {
        let output = self.output;
        let imported = import(create_output(output)?)
            .and_then(|(written, summary)| finish_output(output, written).map(|()| summary))
            .and_then(|summary| self.check_records(&summary).map(|()| summary))
            .inspect_err(|_| remove_output(output))?;
        if let Some(path) = self.features {
            let found = features(&open_trace(output)?, STRIPE_BYTES_DEFAULT)?;
            write_features(path, &found)?;
        }
        Ok(imported)
    }

    /// Fails for a trace without records, and names the paths that the log has.
    fn check_records(&self, summary: &ImportSummary) -> Result<()> {
        if summary.records > 0 {
            return Ok(());
        }
        let log = &self.log;
        let directories: Vec<String> = summary
            .left_out_directories
            .iter()
            .map(|(path, calls)| format!("{path} ({calls})"))
            .collect();
        let what = match (directories.is_empty(), self.paths.is_empty()) {
            (true, _) => format!("{log}: no call is on a file"),
            (false, true) => format!(
                "{log}: all calls are on files of the system, in {}; `--path /` imports them",
                directories.join(", ")
            ),
            (false, false) => {
                let paths = self.paths.iter().map(|path| path.to_string_lossy());
                format!(
                    "{log}: no call is on a file at or below {}; most are in {}",
                    paths.collect::<Vec<_>>().join(" or "),
                    directories.join(", ")
                )
            }
        };
        Err(Error::new(Kind::NotFound, what))
    }

    /// The report on an import as JSON.
    pub fn json(source: &str, summary: &ImportSummary) -> Value {
        json!({
            "source": source, "records": summary.records, "ranks": summary.ranks,
            "transferring_ranks": summary.transferring_ranks, "left_out": summary.left_out,
            "incomplete": summary.incomplete,
        })
    }

    /// The report for people: what the trace has, and what was left out.
    pub fn report(&self, summary: &ImportSummary) -> Vec<String> {
        let mut lines = vec![format!(
            "{}: {} of {} ({} read or write), {} incomplete",
            self.output.display(),
            text::counted(summary.records, "record"),
            text::counted(u64::from(summary.ranks), "rank"),
            summary.transferring_ranks,
            text::counted(summary.incomplete, "call")
        )];
        if summary.left_out > 0 {
            let directories = summary.left_out_directories.iter().map(|(path, _)| path.as_str());
            lines.push(format!(
                "left out: {} on files in {}; `--path` selects files, and `--path /` all",
                text::counted(summary.left_out, "call"),
                directories.collect::<Vec<_>>().join(", ")
            ));
        }
        lines
    }
}

/// Removes what a failed import has written; never a pipe or a device.
fn remove_output(path: &Path) {
    if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
        let _ = std::fs::remove_file(path);
    }
}

pub(super) fn write_features(path: &Path, features: &TraceFeatures) -> Result<()> {
    write(path, &serde_json::to_vec(features).expect("numbers and words"))
}
