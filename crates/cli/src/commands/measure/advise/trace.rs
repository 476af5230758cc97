// SPDX-License-Identifier: Apache-2.0
//! `esker advise trace`: runs a program, and makes a trace of its calls on files.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use esker_advisor::trace::recording::{RecordedFiles, RecordingSummary, import_recording};
use esker_base::clock::SystemClock;
use esker_base::{Error, Kind, Result};
use esker_capture::{CallLog, CallRecorder};
use esker_comm::launch::JobOutcome;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag::register_conditional_default;

use super::imported_calls::{ImportedCalls, TraceOutputs, real_paths};
use crate::commands::programs::run_foreground;
use crate::context::CommandContext;
use crate::output::{notice, stderr_line};
use crate::{text, usage};

/// Run a program, and make a trace of its calls on files
///
/// The program and all that it starts load a small library, which records each call of the C library on a
/// file: a fraction of a microsecond a call, where strace takes tens. Each process with calls on files is a
/// rank; below mpirun, srun and `esker run`, it has the number that these give it. Nothing is recorded
/// of files in memory (mmap), io_uring, and static or set-user-id programs; `esker advise import` takes logs of
/// strace, which sees these calls.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker advise trace -o app.arrow --path /scratch -- ./app --steps 100
  esker advise trace -o job.arrow -- mpirun -n 4 ./app
  esker advise trace -o pipe.arrow -- sh -c './a | ./b'
  esker advise show app.arrow --to app.html")]
pub struct AdviseTrace {
    /// The trace; replaces an existing file once it is whole
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also write the features of the application as JSON
    #[arg(long, value_name = "FILE")]
    features: Option<PathBuf>,
    /// Only files at or below this path, / for all; several are allowed. Without it, files of the system,
    /// shared libraries, and files to which this command's own output goes are left out
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<OsString>,
    /// Keep the log in DIR until the program has ended: 16 MiB, and more for over 100,000 calls
    /// [default: $TMPDIR or /tmp]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl AdviseTrace {
    /// Runs the program, and ends with its exit code.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        if let Some(option) = self.command[0].to_str().filter(|word| word.starts_with('-')) {
            usage::exit(format!("no option {option}; `esker advise trace --help` lists them"));
        }
        let Some(output) = &self.output else {
            usage::exit("write the trace where? Give -o FILE");
        };
        let program = self.command[0].to_string_lossy().into_owned();
        let outputs = TraceOutputs::prepare(output, self.features.as_deref())?;
        let mut paths = real_paths(&self.paths);
        let spool = self.spool.clone().unwrap_or_else(std::env::temp_dir);
        let recorder = CallRecorder::begin(&spool, &SystemClock);
        let recorder = recorder.map_err(|error| {
            error.within(
                "the log of calls cannot be kept; --spool DIR names another directory for it",
            )
        })?;
        let outcome = run_foreground::run(&self.command, vec![recorder.variable()]);
        let outcome = outcome.map_err(|error| error.within("could not start the program"))?;
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            // They were the program's, and end this command from now on.
            register_conditional_default(signal, Arc::new(AtomicBool::new(true)))
                .map_err(|error| Error::io(error, "set what a signal does"))?;
        }
        let log = recorder.end()?;
        let calls = ImportedCalls { log: program.clone(), output, paths: &self.paths };
        // Directories that a path leads through may be new, or gone.
        paths.extend(real_paths(&self.paths));
        let imported = outputs.write(|output| import((&log, &calls), &paths, output));
        let failed = outcome != JobOutcome::Success;
        match imported {
            Ok(summary) => report(context, &calls, &summary, &log)?,
            // The program has said why it failed, and that matters more.
            Err(error) if failed => notice(error.to_string()),
            Err(error) => return Err(error),
        }
        if let JobOutcome::Killed(_, signal) = outcome {
            notice(format!(
                "the program was ended by signal {signal}; the trace has its calls up to then"
            ));
        }
        Ok(ExitCode::from(outcome.exit_code()))
    }
}

/// Makes the trace of a log.
fn import(
    (log, calls): (&CallLog, &ImportedCalls<'_>),
    paths: &[Vec<u8>],
    output: BufWriter<File>,
) -> Result<(BufWriter<File>, RecordingSummary)> {
    let own = ["/proc/self/fd/1", "/proc/self/fd/2"].map(std::fs::read_link);
    let own = own.into_iter().flatten().map(|path| path.into_os_string().into_vec());
    let own: Vec<Vec<u8>> = own.collect();
    let files = RecordedFiles { paths, outputs: &own };
    let object = format!("the trace of {}", calls.log);
    let (output, summary) = import_recording(log, &object, output, files)?;
    if summary.processes == 0 {
        let what = format!(
            "{} did not load the library that records calls, as static and set-user-id programs do \
             not, and those of AddressSanitizer without ASAN_OPTIONS=verify_asan_link_order=0; \
             `strace -f -ttt -T -y -s 0 -o LOG` and `esker advise import LOG` trace it",
            calls.log
        );
        return Err(Error::new(Kind::Unsupported, what));
    }
    calls.check_records(&summary.import)?;
    Ok((output, summary))
}

/// Reports on stderr, since the output is the program's.
fn report(
    context: &CommandContext,
    calls: &ImportedCalls<'_>,
    summary: &RecordingSummary,
    log: &CallLog,
) -> Result<()> {
    let RecordingSummary { import, without_streams, mapped_files, .. } = summary;
    if context.out.is_json() {
        let mut value = ImportedCalls::json("recording", import);
        value["without_streams"] = (*without_streams).into();
        value["mapped_files"] = (*mapped_files).into();
        value["ends_early"] = (log.unrecorded() > 0).into();
        value["took_all"] = summary.instead.is_some().into();
        return context.out.json(value);
    }
    if let Some(others) = &summary.instead {
        notice(format!("{}; the trace has all calls", calls.describe_others(others)));
    }
    calls.report(import).into_iter().for_each(stderr_line);
    if *without_streams > 0 {
        notice(format!(
            "streams (fread, fprintf) of {} are not in the trace: their C library has others than those known",
            text::counted(*without_streams, "process")
        ));
    }
    if *mapped_files > 0 {
        notice(format!(
            "{} mapped into memory (mmap): accesses there are not in the trace",
            match mapped_files {
                1 => "1 file was".to_owned(),
                _ => format!("{} were", text::counted(*mapped_files, "file")),
            }
        ));
    }
    match log.failure() {
        Some(failure) => notice(format!(
            "the trace ends early for {}: {failure}; --spool names a directory with more room",
            text::counted(log.unrecorded(), "process")
        )),
        None if log.unrecorded() > 0 => notice(format!(
            "the trace ends early for {}",
            text::counted(log.unrecorded(), "process")
        )),
        None => {}
    }
    Ok(())
}
