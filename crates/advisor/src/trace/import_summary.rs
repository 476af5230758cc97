// SPDX-License-Identifier: Apache-2.0
//! Import summary: what an import of a log of calls took, and what it left out.

/// What an import found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportSummary {
    /// Records of the trace.
    pub records: u64,
    /// Its ranks: processes that have records.
    pub ranks: u32,
    /// Of those, the ranks that transfer bytes.
    pub transferring_ranks: u32,
    /// Calls on files that were not taken.
    pub left_out: u64,
    /// The directories of those with the most calls, and their calls.
    pub left_out_directories: Vec<(String, u64)>,
    /// Calls on files of which the log does not tell enough: in a log of strace, those that were still
    /// going on when it ended, that never returned, or that too many others overtook to keep their
    /// place; in one of Recorder, those on a file that the text does not name.
    pub incomplete: u64,
}
