// SPDX-License-Identifier: Apache-2.0
//! Trace record: one call of one rank.

use super::TraceOperation;

/// The index of a file's path in the trace's path table. 0 stands for no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceFile(pub u32);

impl TraceFile {
    /// The file of calls that concern no file.
    pub const NONE: Self = Self(0);
}

/// One call. Times count from the beginning of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// The rank in its job; processes of other programs are numbered as they appear.
    pub rank: u32,
    /// The process id, 0 if unknown.
    pub process: u32,
    /// The thread id, 0 if unknown.
    pub thread: u32,
    /// The operation.
    pub operation: TraceOperation,
    /// The file.
    pub file: TraceFile,
    /// The position in the file, for transfers, seeks and truncations; else 0.
    pub offset: u64,
    /// The bytes asked for, of transfers; else 0.
    pub bytes: u64,
    /// When the call began.
    pub begin_ns: u64,
    /// When the call returned; not before it began.
    pub end_ns: u64,
    /// The result of the call: bytes moved by transfers, the negative error number of failed calls.
    pub result: i64,
}

impl TraceRecord {
    /// A record of `rank` without file and times.
    #[must_use]
    pub fn new(rank: u32, operation: TraceOperation) -> Self {
        Self {
            rank,
            process: 0,
            thread: 0,
            operation,
            file: TraceFile::NONE,
            offset: 0,
            bytes: 0,
            begin_ns: 0,
            end_ns: 0,
            result: 0,
        }
    }

    /// The bytes that the call moved: those asked for unless the result says otherwise.
    #[must_use]
    pub fn bytes_moved(&self) -> u64 {
        u64::try_from(self.result).map_or(0, |moved| moved.min(self.bytes))
    }
}
