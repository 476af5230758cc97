// SPDX-License-Identifier: Apache-2.0
//! `esker advise import`: the log of a tracer as a trace, or as features.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use esker_advisor::features::STRIPE_BYTES_DEFAULT;
use esker_advisor::parquet_table::{PARQUET_MAGIC, ParquetTable};
use esker_advisor::trace::darshan::{DarshanLog, LOG_BYTES_MAX};
use esker_advisor::trace::recorder::{RecorderImport, is_recorder_line};
use esker_advisor::trace::strace::{StraceOptions, import_strace};
use esker_advisor::trace::{ImportSummary, features, join_traces};
use esker_base::{Error, Kind, Result};
use serde_json::json;

use super::imported_calls::{ImportedCalls, TraceOutputs, real_paths, write_features};
use super::{open, open_trace};
use crate::context::CommandContext;
use crate::output_file::{OutputFile, check_is_not_read};
use crate::text;
use crate::usage;

/// The bytes of a Darshan log by which it is told from text.
const DARSHAN_MAGIC: [u8; 8] = 6_567_223_u64.to_le_bytes();

/// Begins a trace.
const TRACE_MAGIC: &[u8] = b"ARROW1";

/// Bytes of a log by which its source is found out: more than the first line.
const SOURCE_BYTES: u64 = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogSource {
    /// The output of `strace -f -ttt -T -y -s 0 -o LOG`
    Strace,
    /// A log of Darshan
    Darshan,
    /// The directory that `recorder2text` or `recorder2parquet` wrote, or its file of one rank
    Recorder,
    /// Traces, which become one
    Traces,
}

/// Make a trace of the log of strace, Darshan or Recorder, or of several traces
///
/// strace: every call on files; reads and writes without an offset get the position that the kernel
/// has. Darshan: the reads and writes of a job that ran with DXT_ENABLE_IO_TRACE=1. All logs of
/// Darshan have counters, from which --features computes what a prediction needs. Recorder: the calls of
/// POSIX and of streams in what `recorder2text` or `recorder2parquet` wrote. Traces: those of the nodes of
/// a job, for example, whose ranks keep their numbers.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker advise import app.strace -o app.arrow --path /scratch
  esker advise import job.darshan --features job.json
  esker advise import job.darshan -o job.arrow
  esker advise import recorder-trace/_text -o job.arrow
  esker advise import node-*.arrow -o job.arrow")]
pub struct AdviseImport {
    /// The log; of Recorder, the directory `_text` or `_parquet`. Several only if they are traces
    #[arg(required = true)]
    logs: Vec<PathBuf>,
    /// The trace
    #[arg(short, long, value_name = "FILE", required_unless_present = "features")]
    output: Option<PathBuf>,
    /// Also write the features of the application as JSON
    #[arg(long, value_name = "FILE")]
    features: Option<PathBuf>,
    /// The tracer; found out from the log unless given
    #[arg(long, value_enum, value_name = "TRACER")]
    from: Option<LogSource>,
    /// Only files at or below this path (not Darshan), / for all; several are allowed. Without it, files of
    /// the system and shared libraries are left out
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<OsString>,
}

impl AdviseImport {
    /// Imports the log.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let source = match self.from {
            Some(source) => source,
            None => source_of(self.log())?,
        };
        if source != LogSource::Traces && self.logs.len() > 1 {
            usage::exit("several logs make no trace; import each, and then their traces");
        }
        // A trace may be replaced by a selection of itself.
        let is_selection = matches!(source, LogSource::Traces) && self.logs.len() == 1;
        let output = self.output.iter().filter(|_| !is_selection);
        for output in output.chain(&self.features) {
            check_is_not_read(output, self.logs.iter().map(PathBuf::as_path));
        }
        match source {
            LogSource::Traces => self.join_traces(context),
            LogSource::Strace => self.import_strace(context),
            LogSource::Darshan if self.paths.is_empty() => self.import_darshan(context),
            LogSource::Darshan => usage::exit("--path is for logs of calls and for traces"),
            LogSource::Recorder => self.import_recorder(context),
        }
    }

    fn log(&self) -> &Path {
        &self.logs[0]
    }

    fn join_traces(&self, context: &CommandContext) -> Result<()> {
        let traces = self.logs.iter().map(|log| open_trace(log)).collect::<Result<Vec<_>>>()?;
        let paths = real_paths(&self.paths);
        self.import_calls(context, "traces", |output| join_traces(&traces, &paths, output))
    }

    fn import_strace(&self, context: &CommandContext) -> Result<()> {
        let input = BufReader::with_capacity(1 << 20, open(self.log())?);
        let object = self.log().display().to_string();
        let options = StraceOptions { paths: self.selected_paths() };
        self.import_calls(context, "strace", |output| {
            import_strace(input, &object, output, &options)
        })
    }

    fn import_recorder(&self, context: &CommandContext) -> Result<()> {
        let (object, paths) = (self.log().display().to_string(), self.selected_paths());
        let ranks = recorder_ranks(self.log())?;
        self.import_calls(context, "recorder", |output| {
            let mut import = RecorderImport::new(output, &object, &paths)?;
            for (rank, path) in &ranks {
                let (input, object) = (open(path)?, path.display().to_string());
                if start_of(path)?.starts_with(PARQUET_MAGIC) {
                    let table = ParquetTable::open(input, &object)?;
                    import.add_parquet(*rank, &table, &object)?;
                } else {
                    let input = BufReader::with_capacity(1 << 20, input);
                    import.add_text(*rank, input, &object)?;
                }
            }
            import.finish()
        })
    }

    fn selected_paths(&self) -> Vec<Vec<u8>> {
        self.paths.iter().map(|path| path.clone().into_vec()).collect()
    }

    fn import_calls(
        &self,
        context: &CommandContext,
        source: &str,
        import: impl FnOnce(BufWriter<File>) -> Result<(BufWriter<File>, ImportSummary)>,
    ) -> Result<()> {
        let Some(output) = &self.output else {
            usage::exit("the features of a log of calls are those of its trace: give -o as well");
        };
        let log = self.log().display().to_string();
        let calls = ImportedCalls { log, output, paths: &self.paths };
        let outputs = TraceOutputs::prepare(output, self.features.as_deref())?;
        let summary = outputs.write(|output| {
            let (output, summary) = import(output)?;
            calls.check_records(&summary)?;
            Ok((output, summary))
        })?;
        if context.out.is_json() {
            return context.out.json(ImportedCalls::json(source, &summary));
        }
        calls.report(&summary).into_iter().try_for_each(|line| context.out.line(line))
    }

    fn import_darshan(&self, context: &CommandContext) -> Result<()> {
        let object = self.log().display().to_string();
        let mut bytes = Vec::new();
        let mut file = open(self.log())?.take(LOG_BYTES_MAX + 1);
        file.read_to_end(&mut bytes).map_err(|error| Error::io(error, object.clone()))?;
        if bytes.len() as u64 > LOG_BYTES_MAX {
            let what = format!("{object}: larger than {LOG_BYTES_MAX} bytes");
            return Err(Error::new(Kind::TooLarge, what));
        }
        let log = DarshanLog::open(&bytes, &object)?;
        let found = log.features()?;
        if let Some(path) = &self.features {
            write_features(OutputFile::prepare(path)?, &found)?;
        }
        let (mut records, mut transferring) = (0, None);
        if let Some(output) = &self.output {
            // Nothing is made for a log without a trace.
            log.write_trace(std::io::sink())?;
            records = OutputFile::prepare(output)?.write(|output| log.write_trace(output))?;
            let traced = features(&open_trace(output)?, STRIPE_BYTES_DEFAULT)?;
            transferring = Some(traced.processes);
        }
        let processes = log.job().processes;
        if context.out.is_json() {
            let value = json!({
                "source": "darshan", "records": records, "ranks": processes,
                "transferring_ranks": transferring,
            });
            return context.out.json(value);
        }
        let transferring = transferring
            .map_or(String::new(), |ranks| format!(" ({ranks} read or write in the trace)"));
        context.out.line(format!(
            "{}{transferring}, {} of reads and writes, {} read, {} written",
            text::counted(u64::from(processes), "rank"),
            text::counted(records, "record"),
            text::bytes(found.read_bytes),
            text::bytes(found.written_bytes)
        ))
    }
}

/// The files of all ranks, such as `0.txt` or `0.parquet`, in a directory of Recorder's tools; a
/// single file is that of the rank in its name, or of rank 0.
fn recorder_ranks(log: &Path) -> Result<Vec<(u32, PathBuf)>> {
    let rank_of = |path: &Path| {
        let extension = path.extension()?;
        let is_of_recorder = ["txt", "parquet"].iter().any(|known| extension == *known);
        let name = path.file_stem().filter(|_| is_of_recorder)?.to_str()?;
        name.parse::<u32>().ok().filter(|rank| rank.to_string() == name)
    };
    if !log.is_dir() {
        return Ok(vec![(rank_of(log).unwrap_or(0), log.to_owned())]);
    }
    let failed = |error| Error::io(error, log.display().to_string());
    let mut ranks = Vec::new();
    for entry in std::fs::read_dir(log).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        ranks.extend(rank_of(&path).map(|rank| (rank, path)));
    }
    if ranks.is_empty() {
        let what = "has no files such as 0.txt or 0.parquet; name the directory _text that \
                    `recorder2text` wrote, or _parquet of `recorder2parquet`";
        return Err(Error::new(Kind::NotFound, format!("{} {what}", log.display())));
    }
    ranks.sort_unstable();
    if let Some(twice) = ranks.windows(2).find(|two| two[0].0 == two[1].0) {
        let what = format!("{} and {}", twice[0].1.display(), twice[1].1.display());
        return Err(Error::new(Kind::Invalid, format!("{what} are of one rank; import one")));
    }
    Ok(ranks)
}

/// The bytes with which a log begins, by which its source is found out.
fn start_of(path: &Path) -> Result<Vec<u8>> {
    let mut start = Vec::new();
    let read = open(path)?.take(SOURCE_BYTES).read_to_end(&mut start);
    read.map_err(|error| Error::io(error, path.display().to_string()))?;
    Ok(start)
}

fn source_of(path: &Path) -> Result<LogSource> {
    if path.is_dir() {
        return Ok(LogSource::Recorder);
    }
    let start = start_of(path)?;
    if start.starts_with(TRACE_MAGIC) {
        return Ok(LogSource::Traces);
    }
    if start.get(8..16) == Some(&DARSHAN_MAGIC) {
        return Ok(LogSource::Darshan);
    }
    let first = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let is_line = std::str::from_utf8(first).is_ok_and(is_recorder_line);
    Ok(if is_line || start.starts_with(PARQUET_MAGIC) {
        LogSource::Recorder
    } else {
        LogSource::Strace
    })
}
