// SPDX-License-Identifier: Apache-2.0
//! `esker advise trace`: runs a program, and makes a trace of its calls on files.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use esker_advisor::trace::recording::import_recording;
use esker_base::clock::SystemClock;
use esker_base::{Error, Kind, Result};
use esker_capture::CallRecorder;
use esker_comm::launch::JobOutcome;

use super::imported_calls::ImportedCalls;
use crate::commands::programs::run_foreground;
use crate::context::CommandContext;
use crate::output::notice;
use crate::{text, usage};

/// Run a program, and make a trace of its calls on files
///
/// The program and all that it starts load a small library, which records each call of the C library on a
/// file: a fraction of a microsecond a call, where strace takes tens. Each process that reads or writes is
/// a rank; below mpirun, srun and `esker run`, it has the number that these give it. Nothing is recorded
/// of files in memory (mmap), io_uring, and static or set-user-id programs; `esker advise import` takes logs of
/// strace, which sees these calls.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker advise trace -o app.arrow --path /scratch -- ./app --steps 100
  esker advise trace -o job.arrow -- mpirun -n 4 ./app
  esker advise show app.arrow --to app.html")]
pub struct AdviseTrace {
    /// The trace
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Also write the features of the application as JSON
    #[arg(long, value_name = "FILE")]
    features: Option<PathBuf>,
    /// Only files at or below this path, / for all; several are allowed. Without it, files of the system and
    /// shared libraries are left out
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<OsString>,
    /// Keep the log in DIR until the program has ended, 64 to 128 bytes a call [default: $TMPDIR or /tmp]
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
        let spool = self.spool.clone().unwrap_or_else(std::env::temp_dir);
        let recorder = CallRecorder::begin(&spool, &SystemClock)?;
        let outcome = run_foreground::run(&self.command, vec![recorder.variable()])?;
        let log = recorder.end()?;
        let program = self.command[0].to_string_lossy().into_owned();
        let calls = ImportedCalls {
            log: program.clone(),
            output: &self.output,
            paths: &self.paths,
            features: self.features.as_deref(),
        };
        // Files have paths without symbolic links in a recording.
        let paths = self.paths.iter().map(|path| {
            let found = std::fs::canonicalize(path);
            found.map_or_else(|_| path.clone(), PathBuf::into_os_string).into_vec()
        });
        let paths: Vec<Vec<u8>> = paths.collect();
        let object = format!("the trace of {program}");
        let mut without_streams = 0;
        let imported = calls.write(|output| {
            let (output, summary) = import_recording(&log, &object, output, &paths)?;
            if summary.processes == 0 {
                let what = format!(
                    "{program} did not load the library that records calls, as static and set-user-id \
                     programs do not; `strace -f -ttt -T -y -s 0 -o LOG` and `esker advise import LOG` trace it"
                );
                return Err(Error::new(Kind::Unsupported, what));
            }
            without_streams = summary.without_streams;
            Ok((output, summary.import))
        });
        let failed = outcome != JobOutcome::Success;
        match imported {
            Ok(summary) => {
                if context.out.is_json() {
                    context.out.json(ImportedCalls::json("recording", &summary))?;
                } else {
                    // The output is the program's.
                    calls.report(&summary).into_iter().for_each(notice);
                }
                warn(without_streams, log.unrecorded(), log.failure());
            }
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

/// Says what a trace lacks.
fn warn(without_streams: u64, unrecorded: u64, failure: Option<&Error>) {
    if without_streams > 0 {
        notice(format!(
            "streams (fread, fprintf) of {} are not in the trace: their C library has others than those known",
            text::counted(without_streams, "process")
        ));
    }
    if let Some(failure) = failure {
        notice(format!(
            "the trace ends early for {}: {failure}; --spool names a directory with more room",
            text::counted(unrecorded, "process")
        ));
    } else if unrecorded > 0 {
        notice(format!("the trace ends early for {}", text::counted(unrecorded, "process")));
    }
}
