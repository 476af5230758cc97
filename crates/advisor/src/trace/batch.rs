// SPDX-License-Identifier: Apache-2.0
//! Trace batch: records column by column, as they lie in a trace.
//! Invariant: every column that was read has `len` values.

use super::{TraceFile, TraceOperation, TraceRecord};

/// Records, one vector a column. A reader that skips columns leaves theirs empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceBatch {
    /// Ranks.
    pub rank: Vec<u32>,
    /// Process ids.
    pub process: Vec<u32>,
    /// Thread ids.
    pub thread: Vec<u32>,
    /// Numbers of operations; each is one of [`TraceOperation::ALL`].
    pub operation: Vec<u8>,
    /// Indices of paths.
    pub file: Vec<u32>,
    /// Positions in files.
    pub offset: Vec<u64>,
    /// Bytes asked for.
    pub bytes: Vec<u64>,
    /// Beginnings.
    pub begin_ns: Vec<u64>,
    /// Ends; none is before its beginning.
    pub end_ns: Vec<u64>,
    /// Results.
    pub result: Vec<i64>,
}

impl TraceBatch {
    /// The number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operation.len()
    }

    /// True without records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operation.is_empty()
    }

    /// Appends a record.
    pub fn push(&mut self, record: &TraceRecord) {
        self.rank.push(record.rank);
        self.process.push(record.process);
        self.thread.push(record.thread);
        self.operation.push(record.operation.number());
        self.file.push(record.file.0);
        self.offset.push(record.offset);
        self.bytes.push(record.bytes);
        self.begin_ns.push(record.begin_ns);
        self.end_ns.push(record.end_ns);
        self.result.push(record.result);
    }

    /// The operation at `index`.
    #[must_use]
    pub fn operation_at(&self, index: usize) -> TraceOperation {
        TraceOperation::of_number(self.operation[index]).expect("batches have known operations")
    }

    /// The record at `index`; columns that were not read are 0.
    #[must_use]
    pub fn record(&self, index: usize) -> TraceRecord {
        let of = |column: &[u32]| column.get(index).copied().unwrap_or_default();
        TraceRecord {
            rank: of(&self.rank),
            process: of(&self.process),
            thread: of(&self.thread),
            operation: self.operation_at(index),
            file: TraceFile(of(&self.file)),
            offset: self.offset[index],
            bytes: self.bytes[index],
            begin_ns: self.begin_ns[index],
            end_ns: self.end_ns[index],
            result: self.result[index],
        }
    }

    /// All records.
    pub fn records(&self) -> impl Iterator<Item = TraceRecord> + '_ {
        (0..self.len()).map(|index| self.record(index))
    }

    /// Removes all records; keeps the memory.
    pub fn clear(&mut self) {
        self.rank.clear();
        self.process.clear();
        self.thread.clear();
        self.operation.clear();
        self.file.clear();
        self.offset.clear();
        self.bytes.clear();
        self.begin_ns.clear();
        self.end_ns.clear();
        self.result.clear();
    }
}
