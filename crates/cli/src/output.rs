//! Output: what a command prints, for people or, with `--json`, for programs.
//!
//! A reader that goes away, as `head` does, ends the command quietly: every write fails from then
//! on, and `main` sees that it was the reader.

use std::cell::{Cell, RefCell};
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::process::ExitCode;

use esker_base::{Error, Result};
use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::location::{Location, Stack};
use crate::text;

/// Standard output.
pub struct Output {
    writer: RefCell<BufWriter<Stdout>>,
    is_json: bool,
    is_terminal: bool,
    reader_left: Cell<bool>,
}

impl Output {
    /// Standard output of this process.
    pub fn new(is_json: bool) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let writer = RefCell::new(BufWriter::with_capacity(64 << 10, io::stdout()));
        Self { writer, is_json, is_terminal, reader_left: Cell::new(false) }
    }

    /// Whether programs read it.
    pub fn is_json(&self) -> bool {
        self.is_json
    }

    /// Whether it is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Whether nobody reads it any more.
    pub fn reader_left(&self) -> bool {
        self.reader_left.get()
    }

    fn note<T>(&self, written: io::Result<T>) -> Result<T> {
        written.map_err(|error| {
            if error.kind() == io::ErrorKind::BrokenPipe {
                self.reader_left.set(true);
            }
            Error::io(error, "write to standard output")
        })
    }

    /// Prints bytes as they are.
    pub fn raw(&self, bytes: &[u8]) -> Result<()> {
        self.note(self.writer.borrow_mut().write_all(bytes))
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

    /// Prints a report for programs.
    pub fn report(&self, report: &impl Serialize) -> Result<()> {
        self.json(value_of(report))
    }

    /// Prints one JSON value as a line.
    pub fn json(&self, value: impl Into<Value>) -> Result<()> {
        self.line(value.into().to_string())
    }

    /// Makes sure that everything printed has left.
    pub fn flush(&self) -> Result<()> {
        self.note(self.writer.borrow_mut().flush())
    }
}

/// A report as JSON.
pub fn value_of(report: &impl Serialize) -> Value {
    serde_json::to_value(report).expect("reports are numbers and words")
}

/// What a command could not do while it did the rest: each problem is a line on standard error, and
/// the first decides the exit code.
#[derive(Default)]
pub struct Problems {
    code: Cell<Option<u8>>,
}

impl Problems {
    /// Reports what went wrong at `path` in `stack`.
    pub fn report(&self, stack: &Stack, path: &[u8], error: &Error) {
        let (path, error_text) = (text::printable(path), error.to_string());
        let shown = match error_text.starts_with(&path) {
            true => format!("{stack}:{error_text}"),
            false => format!("{stack}:{path}: {error_text}"),
        };
        self.add(error, &shown);
    }

    /// Reports an error that says itself what it is of.
    pub fn report_plain(&self, error: &Error) {
        self.add(error, &error.to_string());
    }

    fn add(&self, error: &Error, shown: &str) {
        notice(shown);
        self.code.set(self.code.get().or(Some(error.kind().exit_code())));
    }

    /// Reports an error of `done`, unless nobody reads standard output any more: then it is returned.
    pub fn pass(&self, context: &Context, location: &Location, done: Result<()>) -> Result<()> {
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

/// Says on standard error what the user should know, in one line.
pub fn notice(text: impl AsRef<str>) {
    // Nothing can be done where standard error is closed.
    let _ = writeln!(io::stderr(), "esker: {}", text.as_ref());
}
