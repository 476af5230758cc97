// SPDX-License-Identifier: Apache-2.0
//! Flush: freezes the memtable, writes frozen memtables as compressed runs or as tables, and
//! commits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::available_parallelism;

use esker_base::{Bytes, Error, Kind, Result};

use super::background::FailOnPanic;
use super::no_space::is_full;
use super::{
    FlushMark, FlushState, FlusherQueue, LastCommit, LiveShard, QueuedMemtable, Tree, TreeShared,
    TreeVersion, WriterLogs,
};
use crate::block::{Block, BlockBuilder};
use crate::manifest::{Manifest, TableRef};
use crate::memtable::{FrozenMemtable, FrozenRows, Shard, SortedMemtable};
use crate::merge::{LoneBlock, RecordCursor, RecordMerge};
use crate::run::{CompressedRun, SAMPLE_BLOCKS, SHRINK_MIN};
use crate::run_writer::RunWriter;
use crate::schema::{Key, KeyBuffer, Row, Schema};
use crate::set_writer::SetWriter;
use crate::table::TABLE_BYTES;
use crate::tables::TableRuns;
use crate::wal::ShardLog;

/// Compressed runs take at most one part in this many of a tree's memory.
const COMPRESSED_SHARE: usize = 4;
/// Maximum number of compressed runs; reads would have to search too many.
const COMPRESSED_RUNS_MAX: usize = 64;
/// Minimum rows of a part of a memtable that is worth a thread.
const PART_ROWS_MIN: usize = 1 << 16;
/// Numbers reserved for the tables of one part.
const PART_TABLES_MAX: u64 = 1 << 10;
const _: () = assert!(crate::memtable::SHARD_BYTES_MAX as u64 / TABLE_BYTES < PART_TABLES_MAX);
/// Frozen memtables that may wait for the thread; with more, writers wait too.
const FROZEN_MAX: usize = 1;

impl Tree {
    /// Writes everything put so far into tables and commits them; durable once it returns. Cost:
    /// the tables' bytes, one commit, and one deletion for each log.
    ///
    /// # Errors
    /// `NoSpace`: nothing has changed, and the caller may flush again; `Fenced`; `Closed`; and
    /// errors of the store.
    pub fn flush(&self) -> Result<()> {
        let inner = &*self.inner;
        inner.pending.lock().callers += 1;
        let flushed = inner.flush_all();
        inner.pending.lock().callers -= 1;
        // The next memtable may stay small, unlike after one that was full.
        inner.chunks.release();
        flushed?;
        inner.check_failure()?;
        let mut state = inner.lock_flush();
        inner.with_rollback(&mut state, |state| inner.drain_compressed(state))
    }

    /// Makes everything put so far durable: through the log, or by a flush if there is no log.
    /// Checks that no other writer has taken over. Cost: a log write, a sync and a listing.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over; changes since the takeover may then be lost.
    /// `NoSpace` while there is no room for the log.
    pub fn sync(&self) -> Result<()> {
        let inner = &*self.inner;
        inner.check_failure()?;
        if !inner.logs() {
            return self.flush();
        }
        let below = inner.write_log(true)?;
        inner.check_owned()?;
        let mut log = inner.log.lock();
        log.acknowledged_below = log.acknowledged_below.max(below);
        Ok(())
    }

    /// Checks that no other writer has taken over, without a sync. Cost: a listing.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over; errors of the store.
    pub fn check_owner(&self) -> Result<()> {
        self.inner.check_owned()
    }

    /// Ends writing in order: flushes, and commits that the set has no writer any more, so that
    /// others may open it at once. Every later change fails with `Closed` and `why`. The caller
    /// ensures that no change is under way. Cost: as [`Tree::flush`], plus a commit if the flush
    /// has none.
    ///
    /// # Errors
    /// As [`Tree::flush`]; then the set is held as before.
    pub fn release(&self, why: impl Into<String>) -> Result<()> {
        // No merge commits between the two steps, which would say too early that there is no
        // writer.
        self.inner.pending.lock().callers += 1;
        let released = self.flush_and_release(why.into());
        self.inner.pending.lock().callers -= 1;
        released
    }

    fn flush_and_release(&self, why: String) -> Result<()> {
        let before = self.inner.lock_flush().manifest.writer.clone();
        let released = before.clone().map(SetWriter::released);
        // The next commit records it, no matter which caller makes it.
        self.inner.lock_flush().manifest.writer.clone_from(&released);
        let is_said = || self.inner.committed.load().writer == released;
        let done = self.flush().and_then(|()| if is_said() { Ok(()) } else { self.commit_as_is() });
        match &done {
            Ok(()) => self.close(why),
            Err(_) => self.inner.lock_flush().manifest.writer = before,
        }
        done
    }

    fn commit_as_is(&self) -> Result<()> {
        self.inner.commit(&mut self.inner.lock_flush(), |_| {})
    }
}

impl TreeShared {
    /// Freezes the memtable when it exceeds its share of memory, and has it flushed. Throttles the
    /// caller briefly when writers outrun the flusher.
    ///
    /// # Errors
    /// `NoSpace` if there is no memory for more, and no room in the store for frozen memtables.
    pub(super) fn make_room(&self) -> Result<()> {
        if self.try_without_space()? {
            return Ok(());
        }
        let bytes_max = self.options.active_bytes_max();
        if self.active_bytes.load(Ordering::Relaxed) < bytes_max {
            self.keep_pace(bytes_max);
            return Ok(());
        }
        self.freeze(false, true)?;
        if !self.options.background {
            return self.flush_frozen();
        }
        let mut pending = self.pending.lock();
        let waits =
            |pending: &FlusherQueue| pending.frozen.len() > FROZEN_MAX && pending.stall.is_none();
        while waits(&pending) && self.failure.get().is_none() {
            self.done.wait(&mut pending);
        }
        drop(pending);
        self.check_failure()?;
        self.try_without_space().map(drop)
    }

    fn flush_all(&self) -> Result<()> {
        let is_stalled = self.pending.lock().stall.is_some();
        if is_stalled {
            // However often callers flush, no further memtables pile up.
            self.flush_frozen()?;
        }
        self.freeze(true, true)?;
        self.flush_frozen()
    }

    /// Freezes the active memtable: always if `all`, otherwise only if it exceeds its share. If
    /// there is no room for its log, or for the next, nothing changes. Unless `begins_log`, the
    /// caller must begin the next memtable's log before anything is put.
    pub(super) fn freeze(&self, all: bool, begins_log: bool) -> Result<()> {
        let mut log = self.log.lock();
        if !all && self.active_bytes.load(Ordering::Relaxed) < self.options.active_bytes_max() {
            return Ok(());
        }
        if self.logs() {
            self.write_log_of(&mut log, false)?;
        }
        if self.is_active_empty() {
            return Ok(());
        }
        if self.logs() && begins_log {
            log.prepare()?;
        }
        let mut shards = self.lock_shards();
        self.put_companion(&mut shards);
        let mut family = self.family_memtable.lock();
        let last_seq = self.next_seq.load(Ordering::Acquire) - 1;
        let mut taken = Vec::with_capacity(shards.len());
        for (number, shard) in shards.iter_mut().enumerate() {
            log.chunk.take(number, &mut shard.log);
            let history = std::mem::take(&mut shard.history);
            let rows = Shard::new(self.schema, number, self.chunks.clone());
            let sampler = std::mem::take(&mut shard.sampler);
            let fresh = LiveShard { rows, history, log: ShardLog::default(), sampler };
            taken.push(std::mem::replace(&mut **shard, fresh).rows);
        }
        log.chunk.take_family(family.pending());
        let beside = std::mem::replace(&mut *family, self.family.memtable());
        let memtable = Arc::new(FrozenMemtable::new(self.schema, taken, beside));
        for (shard, targets) in shards.iter_mut().zip(&self.prefetch_targets) {
            shard.history.add(memtable.clone());
            targets.set(shard);
        }
        self.version.rcu(|version| {
            let mut version = TreeVersion::clone(version);
            version.frozen.insert(0, memtable.clone());
            version
        });
        self.freezes.fetch_add(1, Ordering::Relaxed);
        self.active_bytes.store(0, Ordering::Relaxed);
        self.backlog.refresh();
        if self.logs() && begins_log {
            log.switch();
        }
        drop(family);
        drop(shards);
        let handed_over = self.hand_over(&mut log, memtable, last_seq);
        if let Err(error) = &handed_over {
            // Nothing will write this memtable, and a later flush must not skip it.
            self.fail(error);
        }
        handed_over
    }

    /// Returns whether nothing was put since the memtable was frozen.
    fn is_active_empty(&self) -> bool {
        let has_rows = self.shards.iter().any(|shard| shard.lock().rows.rows() > 0);
        !has_rows && self.family_memtable.lock().is_empty()
    }

    fn hand_over(
        &self,
        log: &mut WriterLogs,
        memtable: Arc<FrozenMemtable>,
        last_seq: u64,
    ) -> Result<()> {
        match self.write_chunk(log) {
            // The log is owed the chunk, unless the memtable is in tables before there is room.
            written if is_full(&written) => {}
            written => written?,
        }
        // The new log is the first that later memtables need.
        let mark = FlushMark { last_seq, log_floor: log.floor() };
        let mut pending = self.pending.lock();
        pending.frozen.push_back(QueuedMemtable { memtable, mark });
        drop(pending);
        self.work.notify_all();
        Ok(())
    }

    /// Writes all frozen memtables, oldest first.
    pub(super) fn flush_frozen(&self) -> Result<()> {
        self.write_frozen(&mut self.lock_flush())
    }

    pub(super) fn write_frozen(&self, state: &mut FlushState) -> Result<()> {
        let _guard = FailOnPanic(self);
        loop {
            let (began_ns, free_bytes) = (self.clock.monotonic_ns(), self.store().free_bytes());
            let written = self.with_rollback(state, |state| self.write_oldest(state));
            self.record_flush(&written, began_ns, free_bytes);
            self.done.notify_all();
            if !written? {
                return Ok(());
            }
        }
    }

    /// Writes the oldest frozen memtable; returns false if there is none.
    fn write_oldest(&self, state: &mut FlushState) -> Result<bool> {
        if self.is_compressed_full() {
            self.drain_compressed(state)?;
        }
        let pending = self.pending.lock();
        let Some(frozen) = pending.frozen.front().cloned() else {
            return Ok(false);
        };
        // Callers that wait for a flush leave their cores to it.
        let is_awaited = pending.callers > 0 && self.options.background;
        drop(pending);
        let cores = if is_awaited { available_parallelism().map_or(1, usize::from) } else { 1 };
        let threads = self.options.flush_threads.max(cores);
        self.index_frozen(&frozen.memtable, threads);
        self.flush_one(state, &frozen, threads)?;
        let mut pending = self.pending.lock();
        pending.frozen.pop_front();
        pending.put_off_merge(self.clock.monotonic_ns());
        drop(pending);
        self.done.notify_all();
        self.compact_by_policy(state)?;
        Ok(true)
    }

    fn is_compressed_full(&self) -> bool {
        let compressed = &self.version.load().compressed;
        let bytes: usize = compressed.iter().map(|run| run.bytes()).sum();
        bytes > self.options.memory_bytes / COMPRESSED_SHARE
            || compressed.len() >= COMPRESSED_RUNS_MAX
    }

    fn flush_one(
        &self,
        state: &mut FlushState,
        frozen: &QueuedMemtable,
        threads: usize,
    ) -> Result<()> {
        self.backlog.start_flush(frozen.memtable.rows() as u64);
        let sorted = frozen.memtable.sorted(threads);
        // Records of the family go to tables at once, and with them everything that the same mark
        // covers.
        if frozen.memtable.family().is_empty()
            && self.is_structured(&frozen.memtable, &mut sorted.rows())
        {
            let run = Arc::new(self.compress(&mut sorted.rows())?);
            self.version.rcu(|version| {
                let mut version = TreeVersion::clone(version);
                version.frozen.retain(|memtable| !Arc::ptr_eq(memtable, &frozen.memtable));
                version.compressed.insert(0, run.clone());
                version
            });
            state.compressed_mark = Some(frozen.mark);
            return Ok(());
        }
        // Older records in memory must not reach the store after newer ones.
        self.drain_compressed(state)?;
        self.backlog.start_flush(frozen.memtable.rows() as u64);
        let tables = self.write_beside_checks(state, |state| {
            let mut tables = self.write_sorted(state, &sorted, threads)?;
            tables.splice(0..0, self.flush_family(state, frozen.memtable.family())?);
            Ok(tables)
        })?;
        self.install(state, tables, frozen.mark, |version| {
            version.frozen.retain(|memtable| !Arc::ptr_eq(memtable, &frozen.memtable));
        })
    }

    /// Writes a sorted memtable as one run, its parts on several threads if that is worthwhile.
    fn write_sorted(
        &self,
        state: &mut FlushState,
        sorted: &SortedMemtable,
        threads: usize,
    ) -> Result<Vec<TableRef>> {
        let copy = |mut rows: FrozenRows, writer: &mut RunWriter| {
            while rows.next_span(&mut |row: &Row| writer.push(row))? {}
            Ok(())
        };
        let threads = threads.min(sorted.row_count() / PART_ROWS_MIN);
        if threads < 2 {
            return self.write_run(state, self.schema, |writer| copy(sorted.rows(), writer));
        }
        let run = state.next_run;
        state.next_run += 1;
        let parts = sorted.parts(threads);
        let first_table = state.next_table;
        state.next_table += parts.len() as u64 * PART_TABLES_MAX;
        std::thread::scope(|scope| {
            let writers: Vec<_> = parts
                .into_iter()
                .zip((first_table..).step_by(PART_TABLES_MAX as usize))
                .map(|(part, mut next_table)| {
                    scope.spawn(move || {
                        let (store, set) = (self.store(), self.set);
                        let mut writer =
                            RunWriter::new(self.schema, store, set, run, &mut next_table);
                        writer = writer.counting(self.backlog.written());
                        copy(part, &mut writer)?;
                        writer.finish()
                    })
                })
                .collect();
            let mut tables = Vec::new();
            for writer in writers {
                let part = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                tables.extend(part?);
            }
            Ok(tables)
        })
    }

    /// Returns whether the first blocks of `rows` shrink enough to be kept in memory.
    fn is_structured(&self, memtable: &FrozenMemtable, rows: &mut FrozenRows) -> bool {
        let mut builder = BlockBuilder::new(self.schema);
        let (mut encoded, mut blocks, mut sampled) = (Vec::new(), 0, 0usize);
        let full = loop {
            let more = rows.next_span(&mut |row: &Row| {
                if builder.is_full() {
                    builder.finish(&mut encoded);
                    blocks += 1;
                    if blocks == SAMPLE_BLOCKS {
                        return Err(());
                    }
                }
                builder.push(row);
                sampled += 1;
                Ok(())
            });
            match more {
                Ok(true) => {}
                Ok(false) => break false,
                Err(()) => break true,
            }
        };
        let raw = memtable.bytes() / memtable.rows().max(1) * sampled;
        full && encoded.len() * SHRINK_MIN <= raw
    }

    fn compress(&self, rows: &mut FrozenRows) -> Result<CompressedRun> {
        let mut builder = BlockBuilder::new(self.schema);
        let mut blocks = Vec::new();
        let mut close = |builder: &mut BlockBuilder| {
            let (mut encoded, mut last) = (Vec::new(), KeyBuffer::default());
            builder.last_key(&mut last);
            builder.finish(&mut encoded);
            let block = Block::parse(self.schema, Bytes::from(encoded));
            blocks.push((last, Arc::new(block.expect("a block just built is whole"))));
        };
        while rows.next_span(&mut |row: &Row| -> Result<()> {
            if builder.is_full() {
                close(&mut builder);
            }
            builder.push(row);
            Ok(())
        })? {}
        if builder.rows() > 0 {
            close(&mut builder);
        }
        Ok(CompressedRun::new(self.schema, blocks))
    }

    /// Merges all compressed runs into tables. Only blocks that overlap are decoded and encoded
    /// again (MetaKV §III-A).
    pub(super) fn drain_compressed(&self, state: &mut FlushState) -> Result<()> {
        let Some(mark) = state.compressed_mark else {
            return Ok(());
        };
        let runs = self.version.load().compressed.clone();
        let cursors: Vec<RecordCursor> = runs.iter().map(|run| run.cursor(&Key::FIRST)).collect();
        let tables = self.write_run(state, self.schema, |writer| {
            let mut merge = RecordMerge::new(cursors, &Key::FIRST)?;
            let push = |writer: &mut RunWriter, block: &LoneBlock| {
                writer.push_block(block.encoded, block.records).map(|()| true)
            };
            while merge.advance_past(|block| push(writer, block))? {
                writer.push(&merge.row())?;
            }
            Ok(())
        })?;
        self.install(state, tables, mark, |version| version.compressed.clear())?;
        state.compressed_mark = None;
        self.compact_by_policy(state)
    }

    /// Writes one run of tables of `schema`.
    pub(super) fn write_run(
        &self,
        state: &mut FlushState,
        schema: &'static Schema,
        fill: impl FnOnce(&mut RunWriter) -> Result<()>,
    ) -> Result<Vec<TableRef>> {
        let run = state.next_run;
        state.next_run += 1;
        let next_table = &mut state.next_table;
        let mut writer = RunWriter::new(schema, self.store(), self.set, run, next_table)
            .counting(self.backlog.written());
        fill(&mut writer)?;
        writer.finish()
    }

    /// Commits `tables` as the newest run and shows them to readers, in place of the sources that
    /// `replaces` removes.
    fn install(
        &self,
        state: &mut FlushState,
        tables: Vec<TableRef>,
        mark: FlushMark,
        replaces: impl Fn(&mut TreeVersion),
    ) -> Result<()> {
        let mut shown = TreeVersion::clone(&self.version.load());
        replaces(&mut shown);
        let is_last = shown.frozen.is_empty() && shown.compressed.is_empty();
        let last_edit = state.last.as_ref().filter(|_| is_last).and_then(LastCommit::edit).cloned();
        self.commit(state, |manifest| {
            manifest.tables.splice(0..0, tables.iter().cloned());
            manifest.last_seq = mark.last_seq;
            manifest.log_floor = mark.log_floor;
            if let Some(edit) = &last_edit {
                edit(manifest);
            }
        })?;
        if last_edit.is_some() {
            state.last = Some(LastCommit::Committed);
        }
        let fresh = TableRuns::new(&tables, self.schema, &self.source);
        self.version.rcu(|version| {
            let mut version = TreeVersion::clone(version);
            replaces(&mut version);
            version.tables.runs.splice(0..0, fresh.runs.iter().cloned());
            version.family_tables = version.family_tables.with_newer(&tables, &self.source);
            version
        });
        self.price_merges();
        self.log.lock().delete_below(mark.log_floor)
    }

    /// Commits the manifest as changed by `edit`. A failed commit stops the tree, unless the
    /// manifest is certainly not in the store: because there was no room, or because readers would
    /// refuse it.
    pub(super) fn commit(
        &self,
        state: &mut FlushState,
        edit: impl FnOnce(&mut Manifest),
    ) -> Result<()> {
        self.check_failure()?;
        (self.sync_dependencies)()?;
        let mut next = state.manifest.clone();
        edit(&mut next);
        let committed = next.commit(&**self.store(), self.set, self.clock.now_ns());
        let is_absent = matches!(&committed, Err(error) if is_never_committed(error));
        if !is_absent {
            // Even if the commit failed, its manifest may be in the store and name these tables.
            state.committed_tables = state.next_table;
        }
        if let Err(error) = &committed
            && !is_absent
        {
            self.fail(error);
        }
        committed?;
        self.committed.store(Arc::new(next.clone()));
        state.manifest = next;
        Ok(())
    }

    /// Checks that no other writer has taken over; if one has, makes that the tree's failure.
    pub(super) fn check_owned(&self) -> Result<()> {
        let owned = self.committed.load().check_owned(&**self.store(), self.set);
        if let Err(error) = &owned
            && error.kind() == Kind::Fenced
        {
            self.fail(error);
        }
        owned
    }
}

/// True if a commit that failed with `error` has put no manifest into the store: there was no room
/// for it, or readers would refuse it.
fn is_never_committed(error: &Error) -> bool {
    matches!(error.kind(), Kind::NoSpace | Kind::TooLarge)
}
