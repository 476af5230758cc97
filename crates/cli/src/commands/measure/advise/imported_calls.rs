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

use super::open_trace;
use super::output_file::OutputFile;
use crate::commands::measure::workbench::write;
use crate::{text, usage};

/// Directories of calls that were left out that a report names.
const DIRECTORIES_SHOWN: usize = 3;

/// The files of an import, which are begun before there is anything to write.
pub(super) struct TraceOutputs<'a> {
    trace: OutputFile,
    trace_path: &'a Path,
    features: Option<OutputFile>,
}

impl<'a> TraceOutputs<'a> {
    /// Begins the trace and the file of its features.
    pub fn begin(trace: &'a Path, features: Option<&Path>) -> Result<Self> {
        if features == Some(trace) {
            usage::exit("the trace and its features are two files");
        }
        let features = features.map(OutputFile::begin).transpose()?;
        Ok(Self { trace: OutputFile::begin(trace)?, trace_path: trace, features })
    }

    /// Writes the trace by `import`, and its features; a failed import leaves neither.
    pub fn write<T>(
        self,
        import: impl FnOnce(BufWriter<File>) -> Result<(BufWriter<File>, T)>,
    ) -> Result<T> {
        let imported = self.trace.write(import)?;
        if let Some(output) = self.features {
            let found = features(&open_trace(self.trace_path)?, STRIPE_BYTES_DEFAULT)?;
            output.write(|mut output| {
                serde_json::to_writer(&mut output, &found)
                    .map_err(|error| Error::io(error.into(), "write the features"))?;
                Ok((output, ()))
            })?;
        }
        Ok(imported)
    }
}

/// A log of calls on its way to a trace.
pub(super) struct ImportedCalls<'a> {
    /// The log, as messages name it.
    pub log: String,
    /// The trace.
    pub output: &'a Path,
    /// The paths that select files.
    pub paths: &'a [OsString],
}

impl ImportedCalls<'_> {
    /// Fails for a trace without records, and names the paths that the log has.
    pub fn check_records(&self, summary: &ImportSummary) -> Result<()> {
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
        let verb =
            if summary.transferring_ranks == 1 { "reads or writes" } else { "read or write" };
        let mut lines = vec![format!(
            "{}: {} of {}, of which {} {verb}; {} incomplete",
            self.output.display(),
            text::counted(summary.records, "record"),
            text::counted(u64::from(summary.ranks), "rank"),
            summary.transferring_ranks,
            text::counted(summary.incomplete, "call")
        )];
        if summary.left_out > 0 {
            let directories = &summary.left_out_directories;
            let shown = directories.iter().take(DIRECTORIES_SHOWN).map(|(path, _)| path.as_str());
            let more = if directories.len() > DIRECTORIES_SHOWN { " and others" } else { "" };
            lines.push(format!(
                "left out (`--path /` takes all, `--path` selects): {} on files in {}{more}",
                text::counted(summary.left_out, "call"),
                shown.collect::<Vec<_>>().join(", ")
            ));
        }
        lines
    }
}

pub(super) fn write_features(path: &Path, features: &TraceFeatures) -> Result<()> {
    write(path, &serde_json::to_vec(features).expect("numbers and words"))
}
