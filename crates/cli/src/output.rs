// SPDX-License-Identifier: Apache-2.0
//! Output: prints results for people or, with `--json`, for programs.
//!
//! A reader that leaves early, as `head` does, ends the command quietly: every later write fails,
//! and `main` recognizes the cause.

use std::cell::{Cell, RefCell};
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::process::ExitCode;

use esker_base::{Error, Result};
use serde::Serialize;
use serde_json::Value;

use crate::context::CommandContext;
use crate::location::{StackArgument, StackPath};
use crate::text;

/// Standard output.
pub struct StandardOutput {
    writer: RefCell<BufWriter<Stdout>>,
    is_json: bool,
    is_terminal: bool,
    reader_left: Cell<bool>,
}

impl StandardOutput {
    /// Standard output of this process.
    pub fn new(is_json: bool) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let writer = RefCell::new(BufWriter::with_capacity(64 << 10, io::stdout()));
        Self { writer, is_json, is_terminal, reader_left: Cell::new(false) }
    }

    /// True if output is for programs.
    pub fn is_json(&self) -> bool {
        self.is_json
    }

    /// True if it is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// True if its reader has left.
    pub fn reader_left(&self) -> bool {
        self.reader_left.get()
    }

    fn check_written<T>(&self, written: io::Result<T>) -> Result<T> {
        written.map_err(|error| {
            if error.kind() == io::ErrorKind::BrokenPipe {
                self.reader_left.set(true);
            }
            Error::io(error, "write to standard output")
        })
    }

    /// Prints bytes as they are.
    pub fn raw(&self, bytes: &[u8]) -> Result<()> {
        self.check_written(self.writer.borrow_mut().write_all(bytes))
    }

    /// Prints a line.
    pub fn line(&self, text: impl AsRef<str>) -> Result<()> {
        self.raw(text.as_ref().as_bytes())?;
        self.raw(b"\n")
    }

    /// Prints a name or path, escaped for a terminal.
    pub fn name(&self, name: &[u8]) -> Result<()> {
        if self.is_terminal { self.raw(text::printable(name).as_bytes()) } else { self.raw(name) }
    }

    /// Prints a report as JSON.
    pub fn report(&self, report: &impl Serialize) -> Result<()> {
        self.json(value_of(report))
    }

    /// Prints one JSON value as a line.
    pub fn json(&self, value: impl Into<Value>) -> Result<()> {
        self.line(value.into().to_string())
    }

    /// Flushes all output.
    pub fn flush(&self) -> Result<()> {
        self.check_written(self.writer.borrow_mut().flush())
    }
}

/// A report as JSON.
pub fn value_of(report: &impl Serialize) -> Value {
    serde_json::to_value(report).expect("reports are numbers and words")
}

/// Failures of parts of a command whose other parts succeed: each problem is a line on standard
/// error, and the first determines the exit code.
#[derive(Default)]
pub struct CommandProblems {
    code: Cell<Option<u8>>,
}

impl CommandProblems {
    /// Reports a failure at `path` in `stack`.
    pub fn report(&self, stack: &StackArgument, path: &[u8], error: &Error) {
        let (path, error_text) = (text::printable(path), error.to_string());
        let shown = match error_text.starts_with(&path) {
            true => format!("{stack}:{error_text}"),
            false => format!("{stack}:{path}: {error_text}"),
        };
        self.add(error, &shown);
    }

    /// Reports an error that names its own object.
    pub fn report_plain(&self, error: &Error) {
        self.add(error, &error.to_string());
    }

    fn add(&self, error: &Error, shown: &str) {
        notice(shown);
        self.code.set(self.code.get().or(Some(error.kind().exit_code())));
    }

    /// Reports the error of `done`, but returns it if the reader of standard output has left.
    pub fn pass(
        &self,
        context: &CommandContext,
        location: &StackPath,
        done: Result<()>,
    ) -> Result<()> {
        match done {
            Err(error) if !context.out.reader_left() => {
                self.report(&location.stack, &location.path, &error);
                Ok(())
            }
            done => done,
        }
    }

    /// The exit code of the command.
    pub fn exit_code(&self) -> ExitCode {
        self.code.get().map_or(ExitCode::SUCCESS, ExitCode::from)
    }
}

/// Prints one line on standard error: a report, where the output is a program's.
pub fn stderr_line(text: impl AsRef<str>) {
    // If standard error is closed nothing can be done.
    let _ = writeln!(io::stderr(), "{}", text.as_ref());
}

/// Prints one line for the user on standard error.
pub fn notice(text: impl AsRef<str>) {
    stderr_line(format!("esker: {}", text.as_ref()));
}
