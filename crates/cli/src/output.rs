//! Output: what a command prints, for people or, with `--json`, for programs.
//!
//! A reader that goes away, as `head` does, ends the command quietly: every write fails from then
//! on, and `main` sees that it was the reader.

use std::cell::{Cell, RefCell};
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use esker_base::{Error, Result};
use serde::Serialize;
use serde_json::Value;

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

/// Says on standard error what the user should know, in one line.
pub fn notice(text: impl AsRef<str>) {
    // Nothing can be done where standard error is closed.
    let _ = writeln!(io::stderr(), "esker: {}", text.as_ref());
}
