// SPDX-License-Identifier: Apache-2.0
//! Rank records: makes records of a trace from the calls of one rank.

use std::collections::HashMap;
use std::io::Write;

use esker_base::{Error, Kind, Result};

use super::call::RecorderCall;
use super::rank_calls::{CallOutcome, RankCalls};
use crate::trace::file_selection::FileSelection;
use crate::trace::{ImportSummary, TraceRecord, TraceWriter};

/// Records of a rank, which are sorted in memory: 4 GiB, and half as much for the sort.
const RANK_RECORDS_MAX: usize = 1 << 26;

/// The records of a rank whose calls are being read.
pub struct RankRecords<'i, 'a, W: Write> {
    rank: u32,
    object: &'i str,
    calls: RankCalls<'i>,
    writer: &'i mut TraceWriter<W>,
    selection: &'i mut FileSelection<'a>,
    summary: &'i mut ImportSummary,
    records: Vec<TraceRecord>,
    transfers: bool,
}

impl<'i, 'a, W: Write> RankRecords<'i, 'a, W> {
    /// No records of `rank`; errors name its calls `object`.
    pub fn new(
        (rank, object): (u32, &'i str),
        sizes: &'i mut HashMap<String, u64>,
        writer: &'i mut TraceWriter<W>,
        selection: &'i mut FileSelection<'a>,
        summary: &'i mut ImportSummary,
    ) -> Self {
        let (calls, records) = (RankCalls::new(sizes), Vec::new());
        Self { rank, object, calls, writer, selection, summary, records, transfers: false }
    }

    /// Adds a call; `wrong` is the error for one that Recorder does not write.
    ///
    /// # Errors
    /// That of `wrong`; `TooLarge` for more records than a rank may have; as the output answers.
    pub fn add(&mut self, call: &RecorderCall<'_>, wrong: &dyn Fn() -> Error) -> Result<()> {
        let operations = match self.calls.add(call) {
            CallOutcome::Operations(operations) => operations,
            CallOutcome::Ignored => return Ok(()),
            CallOutcome::Unknown => {
                self.summary.incomplete += 1;
                return Ok(());
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
                begin_ns: call.begin_ns,
                end_ns: call.end_ns,
                result: operation.result,
                ..TraceRecord::new(self.rank, operation.operation)
            };
            self.transfers |= record.operation.is_transfer() && record.bytes_moved() > 0;
            self.records.push(record);
        }
        if self.records.len() > RANK_RECORDS_MAX {
            let what = format!("{}: more than {RANK_RECORDS_MAX} calls on files", self.object);
            return Err(Error::new(Kind::TooLarge, what));
        }
        Ok(())
    }

    /// Writes the records.
    ///
    /// # Errors
    /// As the output answers.
    pub fn finish(mut self) -> Result<()> {
        // Calls of threads, and those within others, end in another order than they begin.
        self.records.sort_by_key(|record| record.begin_ns);
        self.records.iter().try_for_each(|record| self.writer.push(record))?;
        self.summary.ranks += u32::from(!self.records.is_empty());
        self.summary.transferring_ranks += u32::from(self.transfers);
        Ok(())
    }
}
