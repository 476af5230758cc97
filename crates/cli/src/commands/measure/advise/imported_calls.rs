// SPDX-License-Identifier: Apache-2.0
//! Imported calls: writes the trace of a log of calls, and reports on it.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use esker_advisor::features::{STRIPE_BYTES_DEFAULT, TraceFeatures};
use esker_advisor::trace::recording::real_path;
use esker_advisor::trace::{ImportSummary, features};
use esker_base::{Error, Kind, Result};
use serde_json::{Value, json};

use super::open_trace;
use crate::output_file::OutputFile;
use crate::{text, usage};

/// Directories of calls that were left out that a report names.
const DIRECTORIES_SHOWN: usize = 3;

/// The files of an import, of which it is known that they can be written before there is anything to write.
pub(super) struct TraceOutputs {
    trace: OutputFile,
    features: Option<OutputFile>,
}

impl TraceOutputs {
    /// Prepares the trace and the file of its features.
    pub fn prepare(trace: &Path, features: Option<&Path>) -> Result<Self> {
        let features = features.map(OutputFile::prepare).transpose()?;
        let trace = OutputFile::prepare(trace)?;
        if features.as_ref().is_some_and(|features| features.path() == trace.path()) {
            usage::exit("the trace and its features are two files");
        }
        if features.is_some() && !trace.is_file() {
            usage::exit("features are computed from the trace, which must be a file for that");
        }
        Ok(Self { trace, features })
    }

    /// Writes the trace by `import`, and its features; a failed import leaves neither.
    pub fn write<T>(
        self,
        import: impl FnOnce(BufWriter<File>) -> Result<(BufWriter<File>, T)>,
    ) -> Result<T> {
        let path = self.trace.path().to_owned();
        let imported = self.trace.write(import)?;
        if let Some(output) = self.features {
            write_features(output, &features(&open_trace(&path)?, STRIPE_BYTES_DEFAULT)?)?;
        }
        Ok(imported)
    }
}

/// The paths that select files of traces of recordings: as they are, and without symbolic links.
pub(super) fn real_paths(paths: &[OsString]) -> Vec<Vec<u8>> {
    let absolute = paths.iter().map(|path| {
        let absolute = std::path::absolute(path);
        absolute.map_or_else(|_| path.clone(), PathBuf::into_os_string).into_vec()
    });
    absolute.flat_map(|path| [real_path(&path), path]).collect()
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
        match summary.records {
            0 => Err(Error::new(Kind::NotFound, self.describe_others(summary))),
            _ => Ok(()),
        }
    }

    /// Says that no call is on the files that were asked for, and on which others calls are.
    pub fn describe_others(&self, summary: &ImportSummary) -> String {
        let log = &self.log;
        let directories: Vec<String> = summary
            .left_out_directories
            .iter()
            .map(|(path, calls)| format!("{path} ({calls})"))
            .collect();
        match (directories.is_empty(), self.paths.is_empty()) {
            (true, _) => format!("{log}: no call is on a file"),
            (false, true) => format!(
                "{log}: all calls are on files of the system or on the output, in {}; `--path /` takes them",
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
        }
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

/// Writes the features of an application.
pub(super) fn write_features(output: OutputFile, features: &TraceFeatures) -> Result<()> {
    output.write_bytes(&serde_json::to_vec(features).expect("numbers and words"))
}
