// SPDX-License-Identifier: Apache-2.0
//! Opening a tree: begins a change set, or takes one over from a writer that is gone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use esker_base::store::concurrent;
use esker_base::{Clock, Error, Kind, Result};
use parking_lot::{Condvar, Mutex};

use super::background::BackgroundThreads;
use super::log::WriterLogs;
use super::prefetch::PrefetchTargets;
use super::{
    FlushState, FlusherQueue, Heartbeat, LiveShard, SyncDependencies, Tree, TreeOptions,
    TreeShared, TreeVersion,
};
use crate::family::Family;
use crate::manifest::{Manifest, SetId, SetState};
use crate::memtable::{ArenaPool, SHARD_BYTES_MAX, SHARDS};
use crate::schema::{Row, Schema};
use crate::set_writer::SetWriter;
use crate::tables::{TableRuns, TableSource};
use crate::wal::{LogContent, LogId, decode_log, prefix_end};

/// Maximum bytes of a log; larger ones are refused.
const LOG_BYTES_MAX: u64 = 1 << 36;
/// Maximum memory of the records of one log, which came from one memtable. A few bytes of a log may
/// be a record of half a mebibyte.
const REPLAYED_BYTES_MAX: usize = SHARD_BYTES_MAX + (512 << 20);

/// What a tree is opened with.
pub struct TreeSetup {
    /// The records' schema.
    pub schema: &'static Schema,
    /// The family of other records that the tree hosts.
    pub family: &'static dyn Family,
    /// The source that tables are read from and written to.
    pub source: TableSource,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Durability and limits.
    pub options: TreeOptions,
    /// Called before records become durable: the data that they refer to must be durable first.
    pub barrier: SyncDependencies,
    /// How the writer makes itself known; `None` if it does not.
    pub heartbeat: Option<Heartbeat>,
}

impl TreeSetup {
    /// The writer as recorded in the manifest when it opens the set now.
    fn writer(&self) -> Option<SetWriter> {
        let now_ns = self.clock.now_ns();
        self.heartbeat.as_ref().map(|heartbeat| heartbeat.writer.beginning(now_ns))
    }
}

impl Tree {
    /// Begins change set `set` by committing `manifest`. One write.
    ///
    /// # Errors
    /// `Conflict` or `Fenced` if the set exists.
    pub fn create(setup: TreeSetup, set: SetId, mut manifest: Manifest) -> Result<Self> {
        setup.schema.check();
        let now_ns = setup.clock.now_ns();
        manifest.writer = setup.writer();
        let store = setup.source.store.clone();
        let mut log = WriterLogs::new(store.clone(), set, manifest.epoch << 32);
        let claim = || manifest.claim(&*store, set, now_ns);
        concurrent::try_join(&*store, claim, || log.begin(setup.options.durability))?;
        Self::start(setup, set, manifest, log)
    }

    /// Takes over change set `set`: fences its writer by a commit with a higher epoch, replays the
    /// operations that its logs hold beyond the tables, and flushes them. Replay ends before the
    /// first operation that is missing, or in which `accepts` refuses a row, in readable form, or
    /// the content of an operation of the family. An operation that a later chunk records as synced is
    /// replayed nevertheless: [`TreeSetup::barrier`] ran before it was synced, so that its data were
    /// lost later.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the set is sealed; `Corrupt` if a log passes its checksums but
    /// cannot be decoded; and what the store reports.
    pub fn resume(
        setup: TreeSetup,
        set: SetId,
        accepts: &mut dyn FnMut(LogContent) -> Result<bool>,
    ) -> Result<Self> {
        let manifest = Manifest::load(&*setup.source.store, set)?;
        Self::resume_from(setup, set, manifest, accepts)
    }

    /// Takes over a set as [`Tree::resume`] does, but only if `manifest` is still its newest: so
    /// the caller fences no writer that it has not seen in the manifest.
    ///
    /// # Errors
    /// `Conflict` if it is not the newest, or if this takeover's own commit took effect and its
    /// answer was lost; otherwise as [`Tree::resume`].
    pub fn resume_from(
        setup: TreeSetup,
        set: SetId,
        mut manifest: Manifest,
        accepts: &mut dyn FnMut(LogContent) -> Result<bool>,
    ) -> Result<Self> {
        setup.schema.check();
        let store = setup.source.store.clone();
        if manifest.state != SetState::Open {
            return Err(Error::new(
                Kind::Invalid,
                format!("change set {set} is complete; start a new session on top of it"),
            ));
        }
        manifest.epoch += 1;
        manifest.writer = setup.writer();
        manifest.claim(&*store, set, setup.clock.now_ns())?;
        let old_logs = old_logs(&setup, set, &manifest)?;
        let end = replay_end(&setup, &old_logs, manifest.last_seq, accepts)?;
        let mut log = WriterLogs::new(store.clone(), set, manifest.epoch << 32);
        log.begin(setup.options.durability)?;
        let tree = Self::start(setup, set, manifest, log)?;
        tree.replay(&old_logs, end)?;
        tree.flush()?;
        // The flush commits nothing if the logs held only abandoned operations. Their numbers are
        // taken nevertheless: the next log continues after them.
        let floor = tree.inner.log.lock().floor();
        tree.commit(move |manifest| {
            manifest.log_floor = manifest.log_floor.max(floor);
            manifest.last_seq = manifest.last_seq.max(end);
        })?;
        for log in old_logs {
            store.delete(&log.name())?;
        }
        Ok(tree)
    }

    fn start(setup: TreeSetup, set: SetId, manifest: Manifest, log: WriterLogs) -> Result<Self> {
        let tables = TableRuns::new(&manifest.tables, setup.schema, &setup.source);
        let inherited = tables.clone();
        let family_tables = setup.family.tables().with_newer(&manifest.tables, &setup.source);
        let (frozen, compressed) = Default::default();
        let version = TreeVersion { frozen, compressed, tables, family_tables };
        let next_seq = manifest.last_seq + 1;
        let next_run = manifest.tables.iter().map(|table| table.run + 1).max().unwrap_or(1);
        let committed = ArcSwap::from_pointee(manifest.clone());
        let first_table = manifest.epoch << 32;
        let state = FlushState {
            next_table: first_table,
            manifest,
            next_run,
            compressed_mark: None,
            committed_tables: first_table,
            compaction_due_ns: 0,
            last: None,
        };
        let chunks = ArenaPool::new(setup.options.active_bytes_max(), setup.options.background);
        let chunks = Arc::new(chunks);
        let inner = Arc::new(TreeShared {
            schema: setup.schema,
            set,
            source: setup.source,
            clock: setup.clock,
            options: setup.options,
            barrier: setup.barrier,
            shards: (0..SHARDS)
                .map(|number| LiveShard::new(setup.schema, number, chunks.clone()))
                .map(|shard| CachePadded::new(Mutex::new(shard)))
                .collect(),
            chunks,
            family: setup.family,
            family_memtable: CachePadded::new(Mutex::new(setup.family.memtable())),
            hints: (0..SHARDS).map(|_| PrefetchTargets::default()).collect(),
            next_seq: CachePadded::new(AtomicU64::new(next_seq)),
            freezes: AtomicU64::new(0),
            active_bytes: AtomicUsize::new(0),
            version: ArcSwap::from_pointee(version),
            inherited,
            log: Mutex::new(log),
            flush: Mutex::new(state),
            committed,
            pending: Mutex::new(FlusherQueue::default()),
            work: Condvar::new(),
            done: Condvar::new(),
            stopped: Condvar::new(),
            backlog: Default::default(),
            failure: OnceLock::new(),
            lacks: Default::default(),
        });
        let threads = BackgroundThreads::start(&inner, setup.heartbeat)?;
        Ok(Self { inner, _threads: threads })
    }

    /// Puts the operations of `logs` up to `end` into the memtable. Flushes after each log, as its
    /// writer did, so that memory stays that of one memtable.
    fn replay(&self, logs: &[LogId], end: u64) -> Result<()> {
        let inner = &*self.inner;
        let after = inner.flush.lock().manifest.last_seq;
        let mut last_seq = after;
        for (at, log) in logs.iter().enumerate() {
            last_seq = last_seq.max(inner.replay_log(*log, after, end)?);
            inner.next_seq.store(last_seq + 1, Ordering::Release);
            let next = logs.get(at + 1).map(|log| log.number);
            inner.log.lock().replayed_from = next;
            if next.is_some() {
                self.flush()?;
            }
        }
        inner.next_seq.store(end + 1, Ordering::Release);
        Ok(())
    }
}

impl TreeShared {
    /// Puts the operations of `log` after `after` up to `end` into the memtable; returns the last.
    fn replay_log(&self, log: LogId, after: u64, end: u64) -> Result<u64> {
        let name = log.name();
        let bytes = self.store().get(&name, LOG_BYTES_MAX)?;
        let (mut last_seq, mut row_bytes, mut family_bytes) = (after, 0, 0);
        let mut put = |logged: LogContent| {
            let (LogContent::Row(seq, _) | LogContent::Family(seq, _) | LogContent::Operation(seq)) =
                logged
            else {
                return;
            };
            if seq <= after || seq > end || row_bytes > REPLAYED_BYTES_MAX {
                return;
            }
            match logged {
                LogContent::Row(_, row) => row_bytes += self.replay_row(seq, row),
                LogContent::Family(_, operation) => {
                    let mut live = self.family_memtable.lock();
                    let before = live.bytes();
                    live.replay(operation);
                    family_bytes += live.bytes().saturating_sub(before);
                }
                LogContent::Operation(_) => last_seq = last_seq.max(seq),
                LogContent::Chunk { .. } => {}
            }
        };
        decode_log(self.schema, self.family, log, &bytes, &mut put)
            .map_err(|damage| damage.of(&name, 0))?;
        if row_bytes > REPLAYED_BYTES_MAX {
            let what = "records of one log that take more memory than a memtable has";
            return Err(Error::corrupt(&name, 0, what));
        }
        self.active_bytes.fetch_add(row_bytes + family_bytes, Ordering::Relaxed);
        Ok(last_seq)
    }

    /// Puts a logged row, in stored form, unless a later operation on its key was replayed before
    /// it.
    fn replay_row(&self, seq: u64, row: &Row) -> usize {
        let order = self.schema.order(&row.ints);
        let mut shard = self.shards[crate::memtable::shard_of(order)].lock();
        let before = shard.rows.bytes();
        let key = self.schema.key(row);
        let place = shard.rows.locate_key(&key);
        let newer = |old: Row| old.ints[self.schema.seq()] > seq;
        if !shard.rows.at(&place).is_some_and(newer) {
            shard.rows.put(&place, row);
        }
        shard.rows.bytes() - before
    }
}

/// Returns the logs that `manifest` still needs, in order.
fn old_logs(setup: &TreeSetup, set: SetId, manifest: &Manifest) -> Result<Vec<LogId>> {
    let names = setup.source.store.list_names(&LogId::folder(set))?;
    let needed = manifest.log_floor..manifest.epoch << 32;
    let mut logs: Vec<LogId> = names
        .iter()
        .filter_map(|name| LogId::parse(set, name))
        .filter(|log| needed.contains(&log.number))
        .collect();
    logs.sort_unstable_by_key(|log| log.number);
    Ok(logs)
}

/// Returns the last operation of the prefix of the logs in which `accepts` takes every row that may
/// not have been synced.
fn replay_end(
    setup: &TreeSetup,
    logs: &[LogId],
    last_seq: u64,
    accepts: &mut dyn FnMut(LogContent) -> Result<bool>,
) -> Result<u64> {
    let mut seqs = Vec::new();
    let mut refused = u64::MAX;
    for &log in logs {
        let name = log.name();
        let bytes = setup.source.store.get(&name, LOG_BYTES_MAX)?;
        let mut failed = Ok(());
        // The first refused operation of each chunk, by the chunk's offset.
        let mut doubtful: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut chunk, mut synced_bytes_max) = (0, 0);
        let mut check = |logged: LogContent| {
            let (seq, accepted) = match logged {
                LogContent::Chunk { offset, synced_bytes } => {
                    chunk = offset;
                    synced_bytes_max = synced_bytes.max(synced_bytes_max);
                    return;
                }
                // Already in tables: the data that it referred to may since be gone.
                LogContent::Row(seq, _) | LogContent::Family(seq, _) if seq <= last_seq => return,
                LogContent::Row(seq, row) => {
                    let mut readable = *row;
                    setup.schema.restore(&mut readable.ints);
                    (seq, accepts(LogContent::Row(seq, &readable)))
                }
                LogContent::Family(seq, ..) => (seq, accepts(logged)),
                LogContent::Operation(seq) => return seqs.push(seq),
            };
            match accepted {
                Ok(true) => {}
                Ok(false) => {
                    let first = doubtful.entry(chunk).or_insert(seq);
                    *first = seq.min(*first);
                }
                Err(error) => failed = Err(error),
            }
        };
        decode_log(setup.schema, setup.family, log, &bytes, &mut check)
            .map_err(|damage| damage.of(&name, 0))?;
        failed?;
        // Of synced operations, only damage takes the data: readers of the file find it.
        let lost = doubtful.range(synced_bytes_max..).map(|(_, seq)| *seq);
        refused = lost.min().unwrap_or(u64::MAX).min(refused);
    }
    Ok(prefix_end(seqs, last_seq).min(refused.saturating_sub(1)).max(last_seq))
}
