// SPDX-License-Identifier: Apache-2.0
//! Strace: imports the log of `strace -f -ttt -T -y -o LOG COMMAND` as a trace.
//!
//! `line` and `system_call` read the text; `process_table` and `descriptors` keep the state that
//! the kernel keeps, so that reads and writes without an offset get one; `file_calls` makes
//! operations of files that `file_selection` takes, and `begin_order` puts them in order. A process
//! is a rank. Not in a log, and so not in a trace: files in memory (`mmap`) and calls of
//! `io_uring`. Memory is bounded by the longest line, the calls that overlap, the open files and
//! the paths.

mod begin_order;
mod descriptors;
mod file_calls;
mod line;
mod process_table;
mod system_call;

use std::collections::HashMap;
use std::io::{BufRead, Write};

use esker_base::{Error, Result};

use self::begin_order::{BeginOrder, BeginTicket};
use self::file_calls::{FileSizes, file_operations, is_file_call};
use self::line::{LineEvent, StraceLine, call_name};
use self::process_table::{ProcessTable, UnfinishedCall, is_clone};
use self::system_call::SystemCall;
use super::file_selection::{FileSelection, is_file_path};
use super::{ImportSummary, TraceOrigin, TraceRecord, TraceWriter};

/// Longest line: a call has two paths, or a vector of 1,024 buffers.
const LINE_BYTES_MAX: usize = 1 << 18;

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct StraceOptions {
    /// Only files at and below these paths; if there are none, all but those of the system and
    /// shared libraries.
    pub paths: Vec<Vec<u8>>,
}

/// Writes the trace of the log `input` to `output`; errors name the log `object`.
///
/// # Errors
/// `Corrupt` with line and byte for a log that is not of `strace -f -ttt -T -y`, or that ends
/// within a line; as the input and the output answer.
pub fn import_strace<W: Write>(
    mut input: impl BufRead,
    object: &str,
    output: W,
    options: &StraceOptions,
) -> Result<(W, ImportSummary)> {
    let mut line = Vec::new();
    let (mut number, mut position) = (0_u64, 0_u64);
    let mut output = Some(output);
    let mut import: Option<LogImport<'_, W>> = None;
    loop {
        let bytes = read_line(&mut input, &mut line).map_err(|error| Error::io(error, object))?;
        if bytes == 0 {
            break;
        }
        number += 1;
        let wrong = |what: &str| {
            let shown = String::from_utf8_lossy(&line[..line.len().min(80)]);
            let what = format!("line {number}: {what}: {}", shown.trim_end().escape_debug());
            Error::corrupt(object, position, what)
        };
        let Some(text) = line.strip_suffix(b"\n") else {
            let is_long = line.len() > LINE_BYTES_MAX;
            return Err(wrong(if is_long {
                "the line is too long"
            } else {
                "the log ends within"
            }));
        };
        let is_message = text.is_empty() || text.starts_with(b"strace: ");
        if !is_message {
            let expected = "expected a line of `strace -f -ttt -T -y -o LOG`";
            let parsed = StraceLine::parse(text).ok_or_else(|| wrong(expected))?;
            if import.is_none() {
                let output = output.take().expect("taken once");
                import = Some(LogImport::new(output, object, options, &parsed)?);
            }
            let import = import.as_mut().expect("made above");
            import.add(&parsed).map_err(|problem| match problem {
                LineProblem::Text => wrong(expected),
                LineProblem::Processes => wrong("more threads or open files than a node has"),
                LineProblem::Output(error) => error,
            })?;
        }
        position += bytes as u64;
    }
    match import {
        Some(import) => import.finish(),
        None => Err(Error::corrupt(object, 0, "the log has no calls")),
    }
}

/// Reads up to and including a newline, and at most a byte over [`LINE_BYTES_MAX`].
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<usize> {
    line.clear();
    let mut bounded = std::io::Read::take(input, LINE_BYTES_MAX as u64 + 1);
    bounded.read_until(b'\n', line)
}

/// The reason for which a line cannot be added.
enum LineProblem {
    Text,
    Processes,
    Output(Error),
}

impl From<Error> for LineProblem {
    fn from(error: Error) -> Self {
        Self::Output(error)
    }
}

/// An import in progress.
struct LogImport<'a, W: Write> {
    writer: TraceWriter<W>,
    selection: FileSelection<'a>,
    epoch_ns: u64,
    processes: ProcessTable,
    /// By process of the log: its rank in the trace, and whether it transfers bytes.
    ranks: HashMap<u32, (u32, bool)>,
    sizes: FileSizes,
    order: BeginOrder,
    unfinished: u64,
}

impl<'a, W: Write> LogImport<'a, W> {
    fn new(
        output: W,
        object: &str,
        options: &'a StraceOptions,
        first: &StraceLine<'_>,
    ) -> Result<Self> {
        let program = match first.event {
            LineEvent::Call(text) => SystemCall::parse(text)
                .filter(|call| call.name == "execve")
                .and_then(|call| call.text(0)),
            _ => None,
        };
        let program = program.map_or_else(|| object.to_owned(), |path| super::path_text(&path));
        let (source, epoch_ns) = ("strace".to_owned(), first.time_ns);
        let origin = TraceOrigin { program, source, epoch_ns };
        Ok(Self {
            writer: TraceWriter::new(output, format!("the trace of {object}"), origin)?,
            selection: FileSelection::new(&options.paths),
            epoch_ns,
            processes: ProcessTable::default(),
            ranks: HashMap::new(),
            sizes: FileSizes::new(),
            order: BeginOrder::default(),
            unfinished: 0,
        })
    }

    fn add(&mut self, line: &StraceLine<'_>) -> Result<(), LineProblem> {
        match line.event {
            LineEvent::Call(text) => {
                let ticket = self.ticket(text)?;
                self.call(line.thread, line.time_ns, ticket, text)?;
            }
            LineEvent::Unfinished(text) => {
                let ticket = self.ticket(text)?;
                let call = UnfinishedCall { text: text.to_owned(), begin_ns: line.time_ns, ticket };
                let before = self.processes.thread(line.thread).unfinished.replace(call);
                self.give_up(before);
            }
            LineEvent::Resumed(name, rest) => {
                let before = self.processes.thread(line.thread).unfinished.take();
                // A log that begins in the middle of a call has only its end.
                if let Some(before) = before {
                    if call_name(&before.text).map(str::as_bytes) != Some(name) {
                        return Err(LineProblem::Text);
                    }
                    let text = [&before.text, rest].concat();
                    self.call(line.thread, before.begin_ns, before.ticket, &text)?;
                }
            }
            LineEvent::Signal => {}
            LineEvent::Exit => {
                let left = self.processes.exit(line.thread);
                self.give_up(left);
            }
        }
        while let Some(records) = self.order.next() {
            self.write(&records)?;
        }
        self.check_processes()
    }

    fn check_processes(&mut self) -> Result<(), LineProblem> {
        match self.processes.is_too_large() {
            true => Err(LineProblem::Processes),
            false => Ok(()),
        }
    }

    /// The place of a call that becomes a record.
    fn ticket(&mut self, text: &[u8]) -> Result<Option<BeginTicket>, LineProblem> {
        let name = call_name(text).ok_or(LineProblem::Text)?;
        // Reads of pipes and sockets may wait for the whole run.
        let path = text.iter().position(|byte| *byte == b'<').map(|at| &text[at + 1..]);
        let is_file = path.is_none_or(is_file_path) || name.starts_with("open");
        Ok((is_file_call(name) && is_file).then(|| self.order.begin()))
    }

    fn give_up(&mut self, call: Option<UnfinishedCall>) {
        let Some(call) = call else { return };
        self.unfinished += 1;
        if let Some(ticket) = call.ticket {
            let _ = self.order.end(ticket, Vec::new());
        }
    }

    fn call(
        &mut self,
        thread_id: u32,
        begin_ns: u64,
        ticket: Option<BeginTicket>,
        text: &[u8],
    ) -> Result<(), LineProblem> {
        let call = SystemCall::parse(text).ok_or(LineProblem::Text)?;
        let (process, number) = {
            let thread = self.processes.thread(thread_id);
            (thread.process, thread.rank)
        };
        if is_clone(text) {
            self.processes.cloned(thread_id, &call, text);
            return Ok(());
        }
        let thread = self.processes.thread(thread_id);
        let operations = file_operations(&call, thread, &mut self.sizes);
        let Some(ticket) = ticket else { return Ok(()) };
        let begin_ns = begin_ns.saturating_sub(self.epoch_ns);
        let mut records = Vec::new();
        for operation in operations.iter().filter(|_| call.result.is_some()) {
            if !self.selection.takes(&operation.path) {
                continue;
            }
            let is_far =
                operation.offset.checked_add(operation.bytes).is_none_or(|end| end >> 63 == 1);
            if is_far {
                return Err(LineProblem::Text);
            }
            let rank = self.rank(number);
            let record = TraceRecord {
                process,
                thread: thread_id,
                file: self.writer.file(&operation.path)?,
                offset: operation.offset,
                bytes: operation.bytes,
                begin_ns,
                end_ns: begin_ns.saturating_add(call.duration_ns),
                result: call.result.unwrap_or_default(),
                ..TraceRecord::new(rank, operation.operation)
            };
            let transfers = record.operation.is_transfer() && record.bytes_moved() > 0;
            self.ranks.entry(number).or_default().1 |= transfers;
            records.push(record);
        }
        self.unfinished += u64::from(call.result.is_none());
        let is_kept = self.order.end(ticket, records);
        self.unfinished += u64::from(call.result.is_some() && !is_kept);
        Ok(())
    }

    /// The rank of a process of the log; processes without records have none.
    fn rank(&mut self, process: u32) -> u32 {
        let next = u32::try_from(self.ranks.len()).expect("processes have 32 bits");
        self.ranks.entry(process).or_insert((next, false)).0
    }

    fn write(&mut self, records: &[TraceRecord]) -> Result<()> {
        records.iter().try_for_each(|record| self.writer.push(record))
    }

    fn finish(mut self) -> Result<(W, ImportSummary)> {
        while let Some(records) = self.order.take_first() {
            self.write(&records)?;
        }
        let summary = ImportSummary {
            records: self.writer.rows(),
            ranks: u32::try_from(self.ranks.len()).expect("processes have 32 bits"),
            transferring_ranks: self.ranks.values().filter(|rank| rank.1).count() as u32,
            left_out: self.selection.left_out(),
            left_out_directories: self.selection.directories(),
            incomplete: self.unfinished + self.processes.unfinished(),
        };
        Ok((self.writer.finish()?, summary))
    }
}
