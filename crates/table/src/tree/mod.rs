// SPDX-License-Identifier: Apache-2.0
//! Tree: one writer's view of a change set's records, from its log to its tables.
//!
//! Path of a write: shard of the active memtable (and its log) → frozen memtable → compressed run
//! in memory, or directly tables → fewer tables by compaction. A read searches the same sources,
//! newest first, and stops at the first that has the key.
//!
//! Lock order: `flush` (one flusher or compactor) → `log` → shards in ascending order → family.
//! The version is swapped, never locked. No shard lock is held across store I/O; `log` is, for the
//! reason given in `log.rs`.
//! Source: DESIGN §4; MetaKV §III-A; DeltaFS thesis §4.3.

mod adopt;
mod background;
mod backlog;
mod commit;
mod compact;
mod damaged_tables;
mod family;
mod flush;
mod heartbeat;
mod insert;
mod key_history;
mod last_commit;
mod log;
mod no_space;
mod open;
mod options;
mod paid_merge;
mod prefetch;
mod read;
mod read_cost;
mod replaced_tables;
#[cfg(test)]
mod test_setup;
mod update;
mod version;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use esker_base::store::SharedStore;
use esker_base::{Clock, Error, Kind, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

pub use family::{FamilyWriter, OlderSources};
pub use heartbeat::{BEAT_AGE_MAX, BEAT_INTERVAL, Heartbeat, last_beat_ns};
pub use last_commit::CloseReasons;
pub use open::TreeSetup;
pub use options::{
    Compaction, Durability, LOG_BYTES, LOG_INTERVAL, TIER_RATIO, TIER_RUNS_MAX, TreeOptions,
};
pub use read::GroupCursors;
pub use update::{CurrentRow, WriteBatch};

use crate::family::{Family, FamilyMemtable};
use crate::manifest::{Manifest, SetId};
use crate::memtable::{ArenaPool, FrozenMemtable, Shard, shard_of};
use crate::schema::{Row, Schema};
use crate::tables::{SortedRun, TableRuns, TableSource};
use crate::wal::ShardLog;
use backlog::FlushBacklog;
use damaged_tables::DamagedTables;
use key_history::KeyHistory;
use last_commit::LastCommit;
use log::WriterLogs;
use no_space::{FlushStall, NoSpaceFlags, NoSpaceReason, is_full};
use paid_merge::PaidMerge;
use prefetch::PrefetchTargets;
use read_cost::{ReadCost, ReadSampler};
use version::TreeVersion;

/// Makes the data that records refer to, such as file contents, durable.
pub type SyncDependencies = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Passes a row in readable form, if there is one, that describes the operations under way. It is
/// put whenever the log is written or the memtable frozen, so that no part of these operations
/// survives without it. Called while no operation can be put: it must not use the tree.
pub type LogCompanion = Arc<dyn Fn(&mut dyn FnMut(&Row)) + Send + Sync>;

/// Ends the writing of a tree, for the reason that it receives.
pub type TreeStopper = Box<dyn Fn(&str) + Send + Sync>;

/// A writer of one change set. Dropping it stops it as a crash would: changes that were flushed,
/// logged or synced survive as the durability level says.
///
/// ```
/// use std::sync::Arc;
/// use esker_base::clock::SystemClock;
/// use esker_base::store::{MemoryStore, SharedStore};
/// use esker_table::family::NoFamily;
/// use esker_table::manifest::{Manifest, SetId};
/// use esker_table::schema::RowBuffer;
/// use esker_table::schema::record::{self, RECORD};
/// use esker_table::tables::TableSource;
/// use esker_table::tree::{Durability, Tree, TreeOptions, TreeSetup};
///
/// let store: SharedStore = Arc::new(MemoryStore::new());
/// let setup = || TreeSetup {
///     schema: &RECORD,
///     family: &NoFamily,
///     source: TableSource::new(store.clone(), 16 << 20),
///     clock: Arc::new(SystemClock),
///     options: TreeOptions { durability: Durability::Always, ..TreeOptions::default() },
///     sync_dependencies: Arc::new(|| Ok(())),
///     log_companion: None,
///     heartbeat: None,
/// };
/// let tree = Tree::create(setup(), SetId(1), Manifest::new(vec![], 0))?;
/// // A key that certainly has no record is inserted; any other is updated.
/// assert!(tree.insert(&mut record::row(b"key", b"value"), |_, _| {}, || {})?.is_some());
/// tree.update([record::key(b"key")], None, |[old], batch| {
///     assert_eq!(old.expect("inserted").strings[record::VALUE], b"value");
///     batch.put(&mut [record::row(b"key", b"other")]);
///     Ok(())
/// })?;
/// // At `Always` a change is durable once the call returns. A drop is like a crash.
/// drop(tree);
/// let tree = Tree::resume(setup(), SetId(1), None, &mut |_| Ok(true))?;
/// let mut row = RowBuffer::default();
/// assert!(tree.get(&record::key(b"key"), true, &mut row)?);
/// assert_eq!(row.strings[record::VALUE], b"other");
/// # Ok::<(), esker_base::Error>(())
/// ```
#[derive(Debug)]
pub struct Tree {
    inner: Arc<TreeShared>,
    _threads: background::BackgroundThreads,
}

/// The state that the tree and its threads share.
struct TreeShared {
    schema: &'static Schema,
    set: SetId,
    source: TableSource,
    clock: Arc<dyn Clock>,
    options: TreeOptions,
    sync_dependencies: SyncDependencies,
    log_companion: Option<LogCompanion>,
    shards: Box<[CachePadded<Mutex<LiveShard>>]>,
    /// The family that the tree hosts.
    family: &'static dyn Family,
    /// The active memtable of the family; locked after all shards.
    family_memtable: CachePadded<Mutex<Box<dyn FamilyMemtable>>>,
    /// Memory for records.
    chunks: Arc<ArenaPool>,
    /// Addresses of each shard's tables.
    prefetch_targets: Box<[PrefetchTargets]>,
    /// Number of the next operation; taken under the lock of a shard it writes to.
    next_seq: CachePadded<AtomicU64>,
    /// Number of times the memtable was frozen; changes under the locks of all shards.
    freezes: AtomicU64,
    /// Memory of the active memtable, in steps of its allocations.
    active_bytes: AtomicUsize,
    version: ArcSwap<TreeVersion>,
    /// The tables that the set had when it was opened or has adopted, or the tables that they were
    /// merged into; the shards' presence filters lack their keys. Empty if there were none.
    inherited: OnceLock<ArcSwap<TableRuns>>,
    /// The cost of several runs that point reads have paid.
    read_cost: ReadCost,
    log: Mutex<WriterLogs>,
    flush: Mutex<FlushState>,
    /// A copy of the last committed manifest, for readers that must not wait for a flush.
    committed: ArcSwap<Manifest>,
    /// Guards `FlusherQueue`; waited on with the two conditions.
    pending: Mutex<FlusherQueue>,
    work: Condvar,
    done: Condvar,
    /// Waited on with `pending` by threads that wait only for the end.
    stopped: Condvar,
    backlog: FlushBacklog,
    /// The first failure of a flush, or a takeover; every later operation reports it.
    failure: OnceLock<(Kind, String)>,
    /// The steps for which the store had no room: the next operation retries them before anything
    /// else.
    no_space: NoSpaceFlags,
}

impl std::fmt::Debug for TreeShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("set", &self.set).field("schema", &self.schema.name).finish()
    }
}

/// A shard of the active memtable and the log of its operations.
struct LiveShard {
    rows: Shard,
    /// Keys that the shard held before.
    history: KeyHistory,
    log: ShardLog,
    sampler: ReadSampler,
}

impl LiveShard {
    fn new(schema: &'static Schema, number: usize, chunks: Arc<ArenaPool>) -> Self {
        let rows = Shard::new(schema, number, chunks);
        Self {
            rows,
            history: Default::default(),
            log: Default::default(),
            sampler: Default::default(),
        }
    }
}

/// The state of the one flusher or compactor.
struct FlushState {
    manifest: Manifest,
    /// Number of the next table, its high half the epoch.
    next_table: u64,
    /// Number of the next run of tables.
    next_run: u64,
    /// The mark up to which tables reach once the compressed runs are in them.
    compressed_mark: Option<FlushMark>,
    /// No manifest names tables with this number or a higher one.
    committed_tables: u64,
    /// Tables that merges could not read.
    damaged: DamagedTables,
    /// Monotonic time from which tables may be merged again, after there was no room for that.
    compaction_due_ns: u64,
    /// The edit that the commit which leaves nothing in memory also applies.
    last: Option<LastCommit>,
}

/// The work that waits for the flusher.
#[derive(Default)]
struct FlusherQueue {
    /// Frozen memtables, oldest first.
    frozen: VecDeque<QueuedMemtable>,
    /// Number of callers that wait for a flush, or for the lock of the flusher's state.
    callers: usize,
    /// The reason that the frozen memtables are not being written.
    stall: Option<FlushStall>,
    /// The merge that reads have paid for, while it is under way; changes under the lock of the
    /// flusher's state, too.
    paid_merge: Option<PaidMerge>,
    /// Monotonic time from which the thread may merge runs for reads.
    merge_due_ns: u64,
    /// The number of the next operation at the last check for writers.
    seq_seen: u64,
    stopping: bool,
}

impl FlusherQueue {
    /// Memory of the frozen memtables.
    fn frozen_bytes(&self) -> usize {
        self.frozen.iter().map(|frozen| frozen.memtable.bytes()).sum()
    }
}

/// A frozen memtable on its way to tables.
#[derive(Clone)]
struct QueuedMemtable {
    memtable: Arc<FrozenMemtable>,
    mark: FlushMark,
}

/// The point up to which tables reach once a memtable is in them.
#[derive(Clone, Copy, Debug)]
struct FlushMark {
    /// The highest sequence number in the memtable.
    last_seq: u64,
    /// The log of the memtable after it: older logs are no longer needed.
    log_floor: u64,
}

/// Counts of a tree's work and content.
#[derive(Clone, Debug, Default)]
pub struct TreeStatistics {
    /// Bytes written to write-ahead logs.
    pub log_bytes: u64,
    /// Bytes of all tables; for a partly visible table, approximately the bytes of the visible
    /// part.
    pub table_bytes: u64,
    /// Records in all tables, including shadowed ones; for a partly visible table, approximately
    /// those of the visible part.
    pub table_rows: u64,
    /// Number of tables.
    pub tables: usize,
    /// Number of sorted runs that they form.
    pub runs: usize,
}

impl Tree {
    /// The set being written.
    #[must_use]
    pub fn set(&self) -> SetId {
        self.inner.set
    }

    /// Ends writing: every later change, flush, sync and commit fails with `Closed` and `why`.
    /// Reads continue. The caller ensures that no change is under way.
    fn close(&self, why: String) {
        // An earlier failure says more.
        let _ = self.inner.failure.set((Kind::Closed, why));
    }

    /// Returns a function that ends writing, even while changes are under way, for use when
    /// something that records depend on has failed: every later change, flush, sync and commit fails
    /// with `Closed` and the reason. Changes acknowledged before survive as they would a crash at
    /// that moment. The function does not keep the tree alive.
    #[must_use]
    pub fn stopper(&self) -> TreeStopper {
        let inner = Arc::downgrade(&self.inner);
        Box::new(move |why| {
            if let Some(inner) = inner.upgrade() {
                // An earlier failure says more.
                let _ = inner.failure.set((Kind::Closed, why.to_owned()));
            }
        })
    }

    /// Fails if the tree takes no more changes: it has failed, was closed, or found that another
    /// writer has taken over. No store request.
    ///
    /// # Errors
    /// The failure or the call that ended it.
    pub fn check_open(&self) -> Result<()> {
        self.inner.check_failure()
    }

    /// Returns the last committed manifest.
    #[must_use]
    pub fn manifest(&self) -> Arc<Manifest> {
        self.inner.committed.load_full()
    }

    /// Returns counts of the tree's work and content.
    #[must_use]
    pub fn statistics(&self) -> TreeStatistics {
        let log_bytes = self.inner.log.lock().written_bytes;
        let version = self.inner.version.load();
        let runs = &version.tables.runs;
        TreeStatistics {
            log_bytes,
            table_bytes: runs.iter().map(SortedRun::bytes).sum(),
            table_rows: runs.iter().map(SortedRun::rows).sum(),
            tables: runs.iter().map(|run| run.tables.len()).sum(),
            runs: runs.len(),
        }
    }
}

impl TreeShared {
    fn store(&self) -> &SharedStore {
        &self.source.store
    }

    fn logs(&self) -> bool {
        self.options.durability != Durability::None
    }

    fn check_failure(&self) -> Result<()> {
        match self.failure.get() {
            None => Ok(()),
            Some((kind, context)) => Err(Error::new(*kind, context.clone())),
        }
    }

    /// Stops the tree with its first failure, which every later operation reports, and wakes the
    /// writers that wait for room.
    fn fail(&self, error: &Error) {
        // Writers check for a failure under this lock before they wait.
        let _pending = self.pending.lock();
        let context = match error.kind() {
            // Nothing failed: the set has another writer.
            Kind::Fenced => error.context().to_owned(),
            _ => format!("an earlier write failed: {error}"),
        };
        let _ = self.failure.set((error.kind(), context));
        self.done.notify_all();
    }

    /// Locks the state of the flusher; a paid merge that is under way gives way.
    fn lock_flush(&self) -> MutexGuard<'_, FlushState> {
        self.pending.lock().callers += 1;
        let state = self.flush.lock();
        self.pending.lock().callers -= 1;
        state
    }

    /// Writes the gathered chunk to the log, and records whether there was room for it.
    fn write_chunk(&self, log: &mut WriterLogs) -> Result<()> {
        let written = log.write();
        self.no_space.set(NoSpaceReason::Log, is_full(&written));
        written
    }

    /// Locks every shard, in order.
    fn lock_shards(&self) -> Vec<MutexGuard<'_, LiveShard>> {
        self.shards.iter().map(|shard| shard.lock()).collect()
    }

    /// Puts the row that describes the operations under way, if there is one.
    fn put_companion(&self, shards: &mut [MutexGuard<'_, LiveShard>]) {
        let Some(companion) = &self.log_companion else { return };
        companion(&mut |row| {
            let (schema, mut row) = (self.schema, *row);
            let seq = self.next_seq.fetch_add(1, Ordering::AcqRel);
            row.ints[schema.seq()] = seq;
            schema.store(&mut row.ints);
            let number = shard_of(schema.last_key_int(&row.ints));
            let LiveShard { rows, log, .. } = &mut *shards[number];
            let before = rows.bytes();
            let probe = rows.locate_key(&schema.key(&row));
            rows.put(&probe, &row);
            if self.logs() {
                log.start(seq, 1);
                log.row(schema, &row, Some(&mut rows.group_mut(&probe).logged));
            }
            let grown_bytes = rows.bytes() - before;
            self.active_bytes.fetch_add(grown_bytes, Ordering::Relaxed);
            self.prefetch_targets[number].set(&shards[number]);
        });
    }

    /// Writes the pending operations of all shards to the log, and syncs it if `sync`. Returns the
    /// number below which all operations are written.
    fn write_log(&self, sync: bool) -> Result<u64> {
        self.write_log_of(&mut self.log.lock(), sync)
    }

    /// Does the work of [`TreeShared::write_log`].
    fn write_log_of(&self, log: &mut WriterLogs, sync: bool) -> Result<u64> {
        // Operations below this number are in their shard's log once that shard's lock has been
        // taken.
        let below = self.next_seq.load(Ordering::Acquire);
        self.write_chunk(log)?;
        if self.log_companion.is_some() {
            // All at once, so that the companion covers exactly what is taken.
            let mut shards = self.lock_shards();
            self.put_companion(&mut shards);
            for (number, shard) in shards.iter_mut().enumerate() {
                log.chunk.take(number, &mut shard.log);
            }
        } else {
            for (number, shard) in self.shards.iter().enumerate() {
                log.chunk.take(number, &mut shard.lock().log);
            }
        }
        log.chunk.take_family(self.family_memtable.lock().pending());
        self.write_chunk(log)?;
        if sync {
            (self.sync_dependencies)()?;
            log.sync()?;
        }
        Ok(below)
    }
}
