// SPDX-License-Identifier: Apache-2.0
//! Recorder: imports the text of `recorder2text`, one file for each rank, as a trace.
//!
//! `line` reads the text, `rank_calls` keeps positions and makes operations. Calls of POSIX and of
//! streams become records, and `MPI_Barrier` of all ranks a barrier; MPI-IO and HDF5 are left out,
//! since the calls of POSIX that they make are in the text, too. The text of version 3 has neither
//! results nor descriptors: every call counts as successful, and descriptors of one path share a
//! position. That of version 2 has descriptors and the results of opens, but prints 0 for reads and
//! writes, and names streams by address: their calls are counted as unknown. In both, reads and
//! writes count as whole, so that a read at the end of a file counts too. Memory: the records of
//! one rank. Source: uiuc-hpc/Recorder, tools/recorder2text.c and lib/recorder-posix.c; Wang et
//! al., Recorder 2.0: Efficient Parallel I/O Tracing and Analysis, 2020.

mod line;
mod rank_calls;

use std::collections::HashMap;
use std::io::{BufRead, Write};

use esker_base::{Error, Kind, Result};

use self::line::RecorderLine;
use self::rank_calls::{CallOutcome, RankCalls};
use super::file_selection::FileSelection;
use super::{ImportSummary, TraceOrigin, TraceRecord, TraceWriter};

/// Longest line: a call has at most two paths.
const LINE_BYTES_MAX: usize = 1 << 16;

/// Records of a rank, which are sorted in memory: 4 GiB, and half as much for the sort.
const RANK_RECORDS_MAX: usize = 1 << 26;

/// An import in progress.
pub struct RecorderImport<'a, W: Write> {
    writer: TraceWriter<W>,
    selection: FileSelection<'a>,
    /// Known sizes of files, of all ranks.
    sizes: HashMap<String, u64>,
    summary: ImportSummary,
}

/// True if `line` is one of Recorder.
#[must_use]
pub fn is_recorder_line(line: &str) -> bool {
    RecorderLine::parse(line).is_some()
}

impl<'a, W: Write> RecorderImport<'a, W> {
    /// Begins the trace of the job in `object`, of files at and below `paths`, or of all but those
    /// of the system if there are none.
    ///
    /// # Errors
    /// As the output answers.
    pub fn new(output: W, object: &str, paths: &'a [Vec<u8>]) -> Result<Self> {
        let (program, source) = (object.to_owned(), "recorder".to_owned());
        let origin = TraceOrigin { program, source, epoch_ns: 0 };
        Ok(Self {
            writer: TraceWriter::new(output, format!("the trace of {object}"), origin)?,
            selection: FileSelection::new(paths),
            sizes: HashMap::new(),
            summary: ImportSummary::default(),
        })
    }

    /// Adds the text of `rank`; errors name it `object`.
    ///
    /// # Errors
    /// `Corrupt` with line and byte for a text that is not of `recorder2text`; `TooLarge` for more
    /// records than a rank may have; as the input and the output answer.
    pub fn add_rank(&mut self, rank: u32, mut input: impl BufRead, object: &str) -> Result<()> {
        let mut calls = RankCalls::new(&mut self.sizes);
        let (mut records, mut transfers) = (Vec::new(), false);
        let (mut line, mut number, mut position) = (Vec::new(), 0_u64, 0_u64);
        loop {
            line.clear();
            let mut bounded = std::io::Read::take(&mut input, LINE_BYTES_MAX as u64 + 1);
            let bytes = bounded.read_until(b'\n', &mut line);
            let bytes = bytes.map_err(|error| Error::io(error, object))?;
            if bytes == 0 {
                break;
            }
            number += 1;
            let wrong = || {
                let shown = String::from_utf8_lossy(&line[..line.len().min(80)]);
                let what = "expected a line of `recorder2text`, and found";
                let what = format!("line {number}: {what} {}", shown.trim_end().escape_debug());
                Error::corrupt(object, position, what)
            };
            let text = line.strip_suffix(b"\n").and_then(|text| std::str::from_utf8(text).ok());
            let parsed = text.and_then(RecorderLine::parse).ok_or_else(wrong)?;
            let operations = match calls.add(&parsed) {
                CallOutcome::Operations(operations) => operations,
                CallOutcome::Ignored => Vec::new(),
                CallOutcome::Unknown => {
                    self.summary.incomplete += 1;
                    Vec::new()
                }
            };
            for operation in operations {
                let end = operation.offset.checked_add(operation.bytes);
                if end.is_none_or(|end| end >> 63 == 1) {
                    return Err(wrong());
                }
                if !operation.is_barrier() && !self.selection.takes(operation.path.as_bytes()) {
                    continue;
                }
                let record = TraceRecord {
                    file: self.writer.file(operation.path.as_bytes())?,
                    offset: operation.offset,
                    bytes: operation.bytes,
                    begin_ns: parsed.begin_ns,
                    end_ns: parsed.end_ns,
                    result: operation.result,
                    ..TraceRecord::new(rank, operation.operation)
                };
                transfers |= record.operation.is_transfer() && record.bytes_moved() > 0;
                records.push(record);
            }
            if records.len() > RANK_RECORDS_MAX {
                let what = format!("{object}: more than {RANK_RECORDS_MAX} calls on files");
                return Err(Error::new(Kind::TooLarge, what));
            }
            position += bytes as u64;
        }
        // Calls of threads, and those within others, end in another order than they begin.
        records.sort_by_key(|record| record.begin_ns);
        records.iter().try_for_each(|record| self.writer.push(record))?;
        self.summary.ranks += u32::from(!records.is_empty());
        self.summary.transferring_ranks += u32::from(transfers);
        Ok(())
    }

    /// Writes the remaining records, and returns the output.
    ///
    /// # Errors
    /// As the output answers.
    pub fn finish(self) -> Result<(W, ImportSummary)> {
        let summary = ImportSummary {
            records: self.writer.rows(),
            left_out: self.selection.left_out(),
            left_out_directories: self.selection.directories(),
            ..self.summary
        };
        Ok((self.writer.finish()?, summary))
    }
}
