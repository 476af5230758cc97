// SPDX-License-Identifier: Apache-2.0
//! Import summary: the calls that an import of a log took, and those that it left out.

/// The counts of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportSummary {
    /// Records of the trace.
    pub records: u64,
    /// Its ranks: processes that have records.
    pub ranks: u32,
    /// The ranks among them that transfer bytes.
    pub transferring_ranks: u32,
    /// Calls on files that were not taken.
    pub left_out: u64,
    /// The directories of those with the most calls, and their calls.
    pub left_out_directories: Vec<(String, u64)>,
    /// Calls about which the log has too little information. In a log of strace, these are calls
    /// that were still going on when it ended, that never returned, or that lost their place
    /// because too many others overtook them; in one of Recorder, calls on a file that the text
    /// does not name.
    pub incomplete: u64,
}
