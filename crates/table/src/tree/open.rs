// SPDX-License-Identifier: Apache-2.0
//! Opening a tree: begins a change set, or takes one over from a writer that is gone.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use esker_base::store::{Store, concurrent};
use esker_base::{Clock, Error, Kind, Result};
use parking_lot::{Condvar, Mutex};

use super::background::BackgroundThreads;
use super::damaged_tables::DamagedTables;
use super::log::WriterLogs;
use super::prefetch::PrefetchTargets;
use super::read_cost::ReadCost;
use super::{
    FlushState, FlusherQueue, Heartbeat, LiveShard, LogCompanion, SyncDependencies, Tree,
    TreeOptions, TreeShared, TreeVersion,
};
use crate::family::Family;
use crate::manifest::{Manifest, SetId, SetState};
use crate::memtable::{ArenaPool, SHARD_BYTES_MAX, SHARDS};
use crate::object_name::{ObjectFolder, ObjectName};
use crate::schema::{Row, Schema};
use crate::set_writer::SetWriter;
use crate::tables::{TableRuns, TableSource};
use crate::wal::{LogContent, LogId, decode_log, prefix_end};

/// Maximum bytes of a log; larger ones are refused.
const LOG_BYTES_MAX: u64 = 1 << 36;
/// Maximum memory of the records of one log, which came from one memtable. A few bytes of a log may
/// be a record of half a mebibyte.
const REPLAYED_BYTES_MAX: usize = SHARD_BYTES_MAX + (512 << 20);

/// A log of an earlier writer.
struct OldLog {
    id: LogId,
    /// Number of its bytes that were whole when it was first read.
    whole_bytes: usize,
}

/// The parameters with which a tree is opened.
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
    pub sync_dependencies: SyncDependencies,
    /// Put with each write of the log.
    pub log_companion: Option<LogCompanion>,
    /// The heartbeat of the writer; `None` if it sends none.
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
    /// `Conflict` or `Fenced` if the set exists, also if its first manifest is this one and the
    /// answer to its put was lost.
    pub fn create(setup: TreeSetup, set: SetId, manifest: Manifest) -> Result<Self> {
        Self::create_by(setup, set, manifest, Manifest::claim_new)
    }

    /// Begins change set `set` as [`Tree::create`] does. The caller has drawn the identity, which no
    /// other process begins, so a lost answer to the put of the first manifest does no harm.
    ///
    /// # Errors
    /// `Conflict` or `Fenced` if another process has committed to the set.
    pub fn create_drawn(setup: TreeSetup, set: SetId, manifest: Manifest) -> Result<Self> {
        Self::create_by(setup, set, manifest, Manifest::commit)
    }

    fn create_by(
        setup: TreeSetup,
        set: SetId,
        mut manifest: Manifest,
        commit: impl FnOnce(&mut Manifest, &dyn Store, SetId, u64) -> Result<()> + Send,
    ) -> Result<Self> {
        setup.schema.check();
        let now_ns = setup.clock.now_ns();
        manifest.writer = setup.writer();
        let store = setup.source.store.clone();
        let mut log = WriterLogs::new(store.clone(), set, manifest.epoch << 32);
        let commit = || commit(&mut manifest, &*store, set, now_ns);
        concurrent::try_join(&*store, commit, || log.begin(setup.options.durability))?;
        Self::start(setup, set, manifest, log)
    }

    /// Takes over change set `set`: fences its writer by a commit with a higher epoch, replays the
    /// operations that its logs hold beyond the tables, and flushes them. Replay ends before the
    /// first operation that is missing, or in which `accepts` refuses a row, in readable form, or
    /// the content of an operation of the family. Replay keeps a refused operation that a later
    /// chunk records as synced: [`TreeSetup::sync_dependencies`] ran before its sync, so its data
    /// were lost later.
    ///
    /// With `known`, takes the set over only if that is still its newest manifest, so that the
    /// caller fences no writer that it has not seen there.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the set is sealed; `Corrupt` if an operation that was synced is
    /// missing from the logs, as far as later chunks record it, or if a log passes its checksums
    /// but cannot be decoded; `Conflict` if `known` is not the newest manifest, or if a
    /// log loses bytes that were not synced while it is replayed: another attempt succeeds;
    /// `Fenced` if another process takes the set over meanwhile; and errors of the store.
    pub fn resume(
        setup: TreeSetup,
        set: SetId,
        known: Option<Manifest>,
        accepts: &mut dyn FnMut(LogContent) -> Result<bool>,
    ) -> Result<Self> {
        setup.schema.check();
        let store = setup.source.store.clone();
        let load = || Manifest::load(&*store, set);
        let mut manifest = known.map_or_else(load, Ok)?;
        if manifest.state != SetState::Open {
            return Err(Error::new(
                Kind::Invalid,
                format!("change set {set} is complete; start a new session on top of it"),
            ));
        }
        manifest.epoch += 1;
        manifest.writer = setup.writer();
        manifest.claim(&*store, set, setup.clock.now_ns()).map_err(|error| match error.kind() {
            // This process has not written the set, and may try again.
            Kind::Fenced => {
                let what =
                    format!("another process has just taken change set {set} over; try again");
                Error::new(Kind::Conflict, what)
            }
            _ => error,
        })?;
        let epoch = manifest.epoch;
        let resumed = Self::resume_claimed(setup, set, manifest, accepts);
        resumed.map_err(|error| fenced_or(error, &*store, set, epoch))
    }

    /// Resumes `set` once this writer has claimed the epoch of `manifest`.
    fn resume_claimed(
        setup: TreeSetup,
        set: SetId,
        manifest: Manifest,
        accepts: &mut dyn FnMut(LogContent) -> Result<bool>,
    ) -> Result<Self> {
        let store = setup.source.store.clone();
        let mut old_logs = old_logs(&setup, set, &manifest)?;
        let end = replay_end(&setup, &mut old_logs, manifest.last_seq, accepts)?;
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
            store.delete(&log.id.name())?;
        }
        Ok(tree)
    }

    fn start(setup: TreeSetup, set: SetId, manifest: Manifest, log: WriterLogs) -> Result<Self> {
        let tables = TableRuns::new(&manifest.tables, setup.schema, &setup.source);
        let has_tables = !tables.runs.is_empty();
        let inherited = match has_tables {
            true => OnceLock::from(ArcSwap::from_pointee(tables.clone())),
            false => OnceLock::new(),
        };
        let read_cost = ReadCost::new(&tables.runs);
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
            damaged: DamagedTables::default(),
            compaction_due_ns: 0,
            last: None,
        };
        let mut pending = FlusherQueue::default();
        pending.put_off_merge(setup.clock.monotonic_ns());
        pending.seq_seen = next_seq;
        let chunks = ArenaPool::new(setup.options.active_bytes_max(), setup.options.background);
        let chunks = Arc::new(chunks);
        let inner = Arc::new(TreeShared {
            schema: setup.schema,
            set,
            source: setup.source,
            clock: setup.clock,
            options: setup.options,
            sync_dependencies: setup.sync_dependencies,
            log_companion: setup.log_companion,
            shards: (0..SHARDS)
                .map(|number| LiveShard::new(setup.schema, number, chunks.clone()))
                .map(|shard| CachePadded::new(Mutex::new(shard)))
                .collect(),
            chunks,
            family: setup.family,
            family_memtable: CachePadded::new(Mutex::new(setup.family.memtable())),
            prefetch_targets: (0..SHARDS).map(|_| PrefetchTargets::default()).collect(),
            next_seq: CachePadded::new(AtomicU64::new(next_seq)),
            freezes: AtomicU64::new(0),
            active_bytes: AtomicUsize::new(0),
            version: ArcSwap::from_pointee(version),
            inherited,
            read_cost,
            log: Mutex::new(log),
            flush: Mutex::new(state),
            committed,
            pending: Mutex::new(pending),
            work: Condvar::new(),
            done: Condvar::new(),
            stopped: Condvar::new(),
            backlog: Default::default(),
            failure: OnceLock::new(),
            no_space: Default::default(),
        });
        let threads = BackgroundThreads::start(&inner, setup.heartbeat)?;
        Ok(Self { inner, _threads: threads })
    }

    /// Puts the operations of `logs` up to `end` into the memtable. Flushes after each log, as its
    /// writer did, so that memory stays that of one memtable.
    fn replay(&self, logs: &[OldLog], end: u64) -> Result<()> {
        let inner = &*self.inner;
        let after = inner.flush.lock().manifest.last_seq;
        let mut last_seq = after;
        for (at, log) in logs.iter().enumerate() {
            last_seq = last_seq.max(inner.replay_log(log, after, end)?);
            inner.next_seq.store(last_seq + 1, Ordering::Release);
            let next = logs.get(at + 1).map(|log| log.id.number);
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
    fn replay_log(&self, log: &OldLog, after: u64, end: u64) -> Result<u64> {
        let name = log.id.name();
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
                LogContent::SyncedBelow(_) => {}
            }
        };
        let whole_bytes = decode_log(self.schema, self.family, log.id, &bytes, &mut put)
            .map_err(|damage| damage.of(&name, 0))?;
        if whole_bytes < log.whole_bytes {
            // The old writer's machine died, and with it bytes that it had not synced; or the
            // storage lost some.
            let what = format!("{name} lost bytes while it was replayed; resume the set again");
            return Err(Error::new(Kind::Conflict, what));
        }
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
        let order = self.schema.last_key_int(&row.ints);
        let mut shard = self.shards[crate::memtable::shard_of(order)].lock();
        let before = shard.rows.bytes();
        let key = self.schema.key(row);
        let probe = shard.rows.locate_key(&key);
        let newer = |old: Row| old.ints[self.schema.seq()] > seq;
        if !shard.rows.at(&probe).is_some_and(newer) {
            shard.rows.put(&probe, row);
        }
        shard.rows.bytes() - before
    }
}

/// Returns why the resume of `set` under `epoch` failed with `error`: a process that takes the set
/// over deletes the logs that are still being replayed.
fn fenced_or(error: Error, store: &dyn Store, set: SetId, epoch: u64) -> Error {
    match Manifest::load(store, set) {
        Ok(now) if now.epoch > epoch => {
            let what = format!("another process took over @{set} while it was resumed");
            Error::new(Kind::Fenced, what)
        }
        _ => error,
    }
}

/// Returns the logs that `manifest` still needs, in order.
fn old_logs(setup: &TreeSetup, set: SetId, manifest: &Manifest) -> Result<Vec<OldLog>> {
    let folder = ObjectFolder::Logs(set).to_string();
    let names = setup.source.store.list_names(&folder)?;
    let number = |name: &String| match format!("{folder}{name}").parse() {
        Ok(ObjectName::Log(_, number)) => Some(number),
        _ => None,
    };
    let needed = manifest.log_floor..manifest.epoch << 32;
    let mut logs: Vec<OldLog> = names
        .iter()
        .filter_map(number)
        .filter(|number| needed.contains(number))
        .map(|number| OldLog { id: LogId { set, number }, whole_bytes: 0 })
        .collect();
    logs.sort_unstable_by_key(|log| log.id.number);
    Ok(logs)
}

/// Returns the last operation of the prefix of the logs in which `accepts` takes every row that may
/// not have been synced; records how far each log is whole. Fails if the prefix lacks an operation
/// that was synced.
fn replay_end(
    setup: &TreeSetup,
    logs: &mut [OldLog],
    last_seq: u64,
    accepts: &mut dyn FnMut(LogContent) -> Result<bool>,
) -> Result<u64> {
    let (mut seqs, mut refused, mut synced_below) = (Vec::new(), Vec::new(), 0);
    let mut cut = None;
    // The newest log first: a writer that does not know of the takeover yet may still append, and
    // the operations that a log records as synced are then in the logs that are read after it.
    for log in logs.iter_mut().rev() {
        let name = log.id.name();
        let bytes = setup.source.store.get(&name, LOG_BYTES_MAX)?;
        let mut failed = Ok(());
        let mut check = |logged: LogContent| {
            let (seq, accepted) = match logged {
                LogContent::SyncedBelow(below) => return synced_below = below.max(synced_below),
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
                Ok(false) => refused.push(seq),
                Err(error) => failed = Err(error),
            }
        };
        log.whole_bytes = decode_log(setup.schema, setup.family, log.id, &bytes, &mut check)
            .map_err(|damage| damage.of(&name, 0))?;
        failed?;
        if log.whole_bytes < bytes.len() {
            cut = Some((name, log.whole_bytes));
        }
    }
    // Only damage takes the data of synced operations: readers of the file find it.
    let refused = refused.into_iter().filter(|seq| *seq >= synced_below).min();
    let accepted_end = refused.unwrap_or(u64::MAX).saturating_sub(1);
    let end = prefix_end(seqs, last_seq).min(accepted_end).max(last_seq);
    if end < synced_below.saturating_sub(1) {
        return Err(lost_operation(logs, cut, end));
    }
    Ok(end)
}

/// Returns `Corrupt`: the operation after `end` was synced, and is not in `logs`, the first of
/// which that is not whole is `cut`, at the given offset.
fn lost_operation(logs: &[OldLog], cut: Option<(String, usize)>, end: u64) -> Error {
    let lost = format!("operation {}, which was synced, is missing", end + 1);
    let remedy = "restore the logs from a copy of the store, or give up the session; until then \
                  its state at the last flush can be read";
    match cut {
        Some((name, at)) => Error::corrupt(&name, at as u64, format!("{lost}: {remedy}")),
        None => {
            let folder = |log: &OldLog| ObjectFolder::Logs(log.id.set).to_string();
            let logs = logs.first().map_or_else(String::new, folder);
            Error::new(Kind::Corrupt, format!("{logs}: {lost}: {remedy}"))
        }
    }
}

#[cfg(test)]
mod tests;
