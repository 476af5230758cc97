// SPDX-License-Identifier: Apache-2.0
//! Options of a writer: the durability that it promises, and the resources that it may use.

use std::time::Duration;

use crate::memtable::SHARD_BYTES_MAX;

/// The changes that survive when a process or a machine dies before the next sync or flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// No log: a crash loses everything since the last flush.
    None,
    /// The log is written every [`LOG_BYTES`] or [`LOG_INTERVAL`], whichever comes first. Death of
    /// the process loses at most that; power loss loses the operations since the last sync.
    #[default]
    Async,
    /// Every operation is synced before its call returns, together with others that wait.
    Always,
}

/// Policy for merging tables as they accumulate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compaction {
    /// Not until asked: cheapest to write, for output that is squashed or read only once.
    Deferred,
    /// Runs of similar size are merged once there are [`TIER_RUNS_MAX`] of them. While nothing is
    /// written, a background thread also merges runs once point reads have paid for that.
    #[default]
    Tiered,
    /// All runs are merged into one after each flush: cheapest to read.
    Full,
}

/// At durability `Async`, approximate maximum of log bytes pending in the process.
pub const LOG_BYTES: usize = 64 << 10;
/// At durability `Async`, default of the maximum time that log bytes are pending.
pub const LOG_INTERVAL: Duration = Duration::from_millis(100);
/// Runs of one size class that tiered compaction leaves unmerged.
pub const TIER_RUNS_MAX: usize = 8;
/// Runs belong to one size class if no run is this many times larger than another.
pub const TIER_RATIO: u64 = 4;

/// Settings of a writer.
#[derive(Clone, Debug)]
pub struct TreeOptions {
    /// The changes that survive a crash.
    pub durability: Durability,
    /// The policy for merging tables.
    pub compaction: Compaction,
    /// Memory for records that are not in tables yet; up to 32 MiB more may be kept for the next
    /// ones.
    pub memory_bytes: usize,
    /// True if a thread of the tree writes frozen memtables, which saves the caller the wait where
    /// a core is idle; false if the caller does, which wins where every core has a rank.
    pub background: bool,
    /// Number of threads that write one frozen memtable together, each a range of its keys. With
    /// `background`, a flush that a caller waits for uses all cores.
    pub flush_threads: usize,
    /// Maximum time that log bytes are pending at durability `Async`. `None` starts no thread that
    /// writes the log, as in a simulation, whose threads take turns.
    pub log_interval: Option<Duration>,
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            compaction: Compaction::default(),
            // Less memory leaves less to write at the end; more makes fewer runs.
            memory_bytes: 768 << 20,
            background: true,
            flush_threads: 1,
            log_interval: Some(LOG_INTERVAL),
        }
    }
}

impl TreeOptions {
    /// Maximum memory of the active memtable before it is frozen.
    pub(super) fn active_bytes_max(&self) -> usize {
        // With a thread, one memtable fills while another is written.
        let share = if self.background { 2 } else { 1 };
        (self.memory_bytes / share).min(SHARD_BYTES_MAX)
    }
}
