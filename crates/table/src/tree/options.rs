//! What a writer promises and what it may use.

use std::time::Duration;

use crate::memtable::SHARD_BYTES_MAX;

/// What survives when a process or a machine dies before the next sync or flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// No log: a crash loses everything since the last flush.
    None,
    /// The log is written through every [`LOG_BYTES`] or [`LOG_INTERVAL`], whichever comes first:
    /// the death of the process loses at most that, power loss what came after the last sync.
    #[default]
    Async,
    /// Every operation is synced before its call returns, together with others that wait.
    Always,
}

/// How tables are merged as they add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compaction {
    /// Not until asked: cheapest to write, for output that is squashed or read once.
    Deferred,
    /// Runs of similar size are merged once there are [`TIER_RUNS_MAX`] of them.
    #[default]
    Tiered,
    /// All runs are merged into one after each flush: cheapest to read.
    Full,
}

/// At durability `Async` at most about this much of the log is pending in the process.
pub const LOG_BYTES: usize = 64 << 10;
/// At durability `Async` the log is pending for at most this long unless told otherwise.
pub const LOG_INTERVAL: Duration = Duration::from_millis(100);
/// Runs of one size class that tiered compaction leaves alone.
pub const TIER_RUNS_MAX: usize = 8;
/// Runs belong to one size class if none is this many times larger than another.
pub const TIER_RATIO: u64 = 4;

/// Settings of a writer.
#[derive(Clone, Debug)]
pub struct TreeOptions {
    /// What survives a crash.
    pub durability: Durability,
    /// How tables are merged.
    pub compaction: Compaction,
    /// Memory for records that are not in tables yet; 32 MiB more may lie ready for the next ones.
    pub memory_bytes: usize,
    /// Whether frozen memtables are written by a thread of the tree, which spares the caller the
    /// wait where a core is idle, or by the caller, which wins where every core has a rank.
    pub background: bool,
    /// How many threads write one frozen memtable together, each a range of its keys. With
    /// `background`, a flush that a caller waits for has all cores.
    pub flush_threads: usize,
    /// For how long the log may be pending at durability `Async`. Without it no thread writes the
    /// log through, as in a simulation, whose threads take turns.
    pub log_interval: Option<Duration>,
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            compaction: Compaction::default(),
            // The less, the less is left to be written at the end; the more, the fewer runs.
            memory_bytes: 768 << 20,
            background: true,
            flush_threads: 1,
            log_interval: Some(LOG_INTERVAL),
        }
    }
}

impl TreeOptions {
    /// The memory that the active memtable may take before it is frozen.
    pub(super) fn active_bytes_max(&self) -> usize {
        // With a thread, one memtable fills while another is written.
        let share = if self.background { 2 } else { 1 };
        (self.memory_bytes / share).min(SHARD_BYTES_MAX)
    }
}
