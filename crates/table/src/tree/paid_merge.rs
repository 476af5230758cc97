// SPDX-License-Identifier: Apache-2.0
//! Paid merge: merges the runs for which point reads have paid (`read_cost.rs`), while nothing is
//! written.
//!
//! ```text
//! runs, newest first       before            after a piece      at the end
//! newest                   aaaaaaaaaaaa      MMMMaaaaaaaa       MMMMMMMMMMMM
//! older                    bbbbbbbbbbbb          bbbbbbbb
//! oldest                   cccccccccccc          cccccccc
//!                          key →                 ^ the next piece begins here
//! ```
//! A piece is one table of merged records, and one commit: the table becomes part of the newest
//! run, and the visible ranges of the old tables begin after it. The set is therefore whole between
//! any two pieces, reads get cheaper with each, and a merge that gives way keeps its work. A merge
//! gives way, within some thousand records and a commit, to writers that fill the memtable, to
//! callers that wait for a flush, and to the end of the tree. The thread resumes the merge once
//! nothing was frozen, and hardly anything changed, for [`MERGE_QUIET`].
//! Invariant: the runs of a merge that is under way stay neighbours; any other merge of runs drops
//! it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use esker_base::Result;

use super::{Compaction, FlushState, FlusherQueue, TreeShared};
use crate::manifest::{SetState, TableRef};
use crate::merge::{RecordCursor, RecordMerge};
use crate::schema::{Key, KeyBuffer};
use crate::tables::{SortedRun, TableHandle, TableRuns};

/// Time without a frozen memtable after which runs may be merged.
const MERGE_QUIET: Duration = Duration::from_secs(1);
/// Changes in [`MERGE_QUIET`] up to which a tree counts as idle: a few percent of what one writer
/// does.
const IDLE_CHANGES_MAX: u64 = 1 << 15;
/// Records between two checks whether to give way.
const CHECKED_RECORDS: u64 = 1 << 12;

/// A merge that is under way.
#[derive(Clone, Debug)]
pub(super) struct PaidMerge {
    /// The numbers of the runs, newest first.
    runs: Vec<u64>,
    /// The first key that is not merged yet.
    from: KeyBuffer,
}

impl PaidMerge {
    /// The part of a table that stays visible once everything before `next` is merged, or
    /// everything if `next` is `None`.
    fn rest_of(&self, table: &TableRef, next: Option<&KeyBuffer>) -> Option<TableRef> {
        if !self.runs.contains(&table.run) || table.last.key() < self.from.key() {
            return Some(table.clone());
        }
        let next = next.filter(|next| table.last.key() >= next.key())?;
        let mut rest = table.clone();
        if rest.first.key() < next.key() {
            rest.first = next.clone();
        }
        Some(rest)
    }
}

/// Methods for tests, which have no time for millions of reads, nor for a thread.
#[cfg(feature = "internals")]
impl super::Tree {
    /// Merges runs if point reads have paid for that, as the tree's thread does when nothing is
    /// written. Cost: reads and writes the records of these runs once, with a commit for each
    /// table.
    ///
    /// # Errors
    /// `NoSpace`, `Fenced`, `Closed`, and errors of the store. The set is then unchanged, or partly
    /// merged, which readers do not notice; the rest is merged once reads have paid again.
    pub fn merge_paid_runs(&self) -> Result<()> {
        self.inner.merge_paid_runs()
    }

    /// Counts searches of further tables in place of point reads that need them.
    pub fn add_read_cost(&self, searches: u64) {
        self.inner.read_cost.add_searches(searches);
        self.inner.wake_for_merge();
    }
}

impl TreeShared {
    /// Returns how long the thread must wait until it may merge runs; `None` if nothing is to be
    /// merged.
    pub(super) fn merge_wait(&self, pending: &mut FlusherQueue) -> Option<Duration> {
        let is_due =
            pending.paid_merge.is_some() || self.merges_for_reads() && self.read_cost.is_paid();
        if !is_due || self.failure.get().is_some() {
            return None;
        }
        let now_ns = self.clock.monotonic_ns();
        if pending.callers > 0 || self.is_written(pending) {
            pending.seq_seen = self.next_seq.load(Ordering::Relaxed);
            pending.put_off_merge(now_ns);
        }
        Some(Duration::from_nanos(pending.merge_due_ns.saturating_sub(now_ns)))
    }

    /// Recomputes the prices of merges for the current runs.
    pub(super) fn price_merges(&self) {
        if !self.merges_for_reads() {
            return;
        }
        self.read_cost.set_runs(&self.version.load().tables.runs);
        // A new run can make a merge cheaper than what is paid already.
        if self.read_cost.is_paid() {
            self.wake_for_merge();
        }
    }

    fn merges_for_reads(&self) -> bool {
        self.options.compaction != Compaction::Deferred
    }

    /// Returns whether there were more changes since the last check than in an idle tree.
    fn is_written(&self, pending: &FlusherQueue) -> bool {
        self.next_seq.load(Ordering::Relaxed) > pending.seq_seen + IDLE_CHANGES_MAX
    }

    /// Makes the thread check whether to merge.
    pub(super) fn wake_for_merge(&self) {
        // The thread checks under this lock before it waits.
        let _pending = self.pending.lock();
        self.work.notify_all();
    }

    fn must_give_way(&self) -> bool {
        let pending = self.pending.lock();
        pending.stopping
            || pending.callers > 0
            || !pending.frozen.is_empty()
            || self.is_written(&pending)
            || self.failure.get().is_some()
    }

    fn set_paid_merge(&self, merge: Option<PaidMerge>) {
        self.pending.lock().paid_merge = merge;
    }

    /// Merges the runs that reads have paid for, until that is done or the merge gives way. After
    /// an error reads have to pay again.
    pub(super) fn merge_paid_runs(&self) -> Result<()> {
        let state = &mut self.flush.lock();
        let is_due = self.pending.lock().paid_merge.is_some() || self.read_cost.is_paid();
        self.pending.lock().seq_seen = self.next_seq.load(Ordering::Relaxed);
        let merged = self.merge_pieces(state);
        if let Err(error) = &merged {
            let FlushState { damaged, manifest, .. } = &mut **state;
            damaged.add_named(error, &manifest.tables);
            // Tables that stay are collected with those that writers of earlier epochs left.
            let _ = self.delete_uncommitted(state);
            // Otherwise the thread would read an unreadable table, or fill a full store, again and
            // again.
            self.set_paid_merge(None);
        }
        let mut pending = self.pending.lock();
        if pending.paid_merge.is_some() {
            pending.put_off_merge(self.clock.monotonic_ns());
        } else if is_due {
            self.read_cost.reset();
        }
        merged
    }

    /// Merges piece by piece until the merge is done or gives way.
    fn merge_pieces(&self, state: &mut FlushState) -> Result<()> {
        self.check_failure()?;
        // A complete set takes no commits.
        if state.manifest.state != SetState::Open || !self.merges_for_reads() {
            self.set_paid_merge(None);
            return Ok(());
        }
        let begun = self.pending.lock().paid_merge.clone();
        let mut merge = match begun {
            Some(merge) => Some(merge),
            None => self.next_paid_merge(state)?,
        };
        loop {
            self.set_paid_merge(merge.clone());
            let Some(current) = merge else { return Ok(()) };
            if self.must_give_way() {
                return Ok(());
            }
            let next = self.merge_piece(state, &current)?;
            merge = next.map(|from| PaidMerge { from, ..current });
        }
    }

    /// Returns the merge that reads have paid for, unless the store has too many replaced tables.
    pub(super) fn next_paid_merge(&self, state: &mut FlushState) -> Result<Option<PaidMerge>> {
        let version = self.version.load();
        let runs = &version.tables.runs;
        let Some(window) = self.read_cost.paid_window(runs) else { return Ok(None) };
        let runs = &runs[window];
        if state.damaged.has_run_of(runs) {
            return Ok(None);
        }
        if !self.may_replace(state, runs.iter().map(SortedRun::bytes).sum())? {
            return Ok(None);
        }
        let runs = runs.iter().map(|run| run.number).collect();
        Ok(Some(PaidMerge { runs, from: Key::FIRST.into() }))
    }

    /// Merges up to one table and commits it; returns the first key of the next piece.
    fn merge_piece(&self, state: &mut FlushState, merge: &PaidMerge) -> Result<Option<KeyBuffer>> {
        let from = merge.from.key();
        let cursors: Vec<RecordCursor> = {
            let version = self.version.load();
            let runs = version.tables.runs.iter().filter(|run| merge.runs.contains(&run.number));
            runs.map(|run| run.cursor(self.schema, &from, &Key::LAST)).collect()
        };
        let (mut next, mut count) = (None, 0u64);
        let mut tables = self.write_run(state, self.schema, |writer| {
            let mut records = RecordMerge::new(cursors, &from)?;
            while records.advance()? {
                let is_checked = count > 0 && count.is_multiple_of(CHECKED_RECORDS);
                if writer.is_table_full() || is_checked && self.must_give_way() {
                    next = Some(KeyBuffer::from(records.key()));
                    break;
                }
                writer.push(&records.row())?;
                count += 1;
            }
            Ok(())
        })?;
        for table in &mut tables {
            table.run = merge.runs[0];
        }
        self.commit_piece(state, merge, &tables, next.as_ref())?;
        Ok(next)
    }

    fn commit_piece(
        &self,
        state: &mut FlushState,
        merge: &PaidMerge,
        tables: &[TableRef],
        next: Option<&KeyBuffer>,
    ) -> Result<()> {
        let fresh = TableRuns::new(tables, self.schema, &self.source);
        let is_own = |table: &TableRef| table.schema == self.schema.id;
        let rest = |table: &TableRef| match is_own(table) {
            true => merge.rest_of(table, next),
            false => Some(table.clone()),
        };
        self.replace_tables(state, rest, tables, |version| {
            for run in &mut version.tables.runs {
                let rest =
                    |table: &Arc<TableHandle>| Some(table.with_visible(rest(&table.reference)?));
                run.tables = run.tables.iter().filter_map(rest).collect();
                if run.number == merge.runs[0] {
                    run.tables.extend(fresh.runs.iter().flat_map(|run| run.tables.iter().cloned()));
                    run.tables
                        .sort_by(|a, b| a.reference.first.key().cmp(&b.reference.first.key()));
                }
            }
            version.tables.runs.retain(|run: &SortedRun| !run.tables.is_empty());
        })?;
        self.inherit_merged(&merge.runs);
        Ok(())
    }
}

impl FlusherQueue {
    /// Lets no merge begin before nothing was frozen for [`MERGE_QUIET`] after `now_ns`.
    pub(super) fn put_off_merge(&mut self, now_ns: u64) {
        let due_ns = now_ns.saturating_add(MERGE_QUIET.as_nanos() as u64);
        self.merge_due_ns = self.merge_due_ns.max(due_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use esker_base::clock::ManualClock;
    use esker_base::store::{MemoryStore, SharedStore};

    use super::*;
    use crate::manifest::{Manifest, SetId};
    use crate::schema::RowBuffer;
    use crate::schema::record::{self, RECORD, VALUE};
    use crate::tree::{Durability, Tree, TreeSetup, test_setup};

    /// Records of the oldest run, of which the newer ones have some.
    const RECORDS: u64 = 5 * CHECKED_RECORDS;
    const STEPS: [u64; 3] = [1, 2, 3];
    const SET: SetId = SetId(1);

    fn setup(store: &SharedStore) -> TreeSetup {
        test_setup::setup(store, Durability::Async)
    }

    fn key(number: u64) -> [u8; 8] {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
    }

    fn put(tree: &Tree, number: u64, value: &[u8]) -> Result<()> {
        tree.update([record::key(&key(number))], None, |_, batch| {
            batch.put(&mut [record::row(&key(number), value)]);
            Ok(())
        })
    }

    /// A tree of as many runs as there are steps, and the value of each record.
    fn tree(store: &SharedStore) -> Result<(Tree, BTreeMap<u64, u64>)> {
        let tree = Tree::create(setup(store), SET, Manifest::new(vec![], 0))?;
        let mut model = BTreeMap::new();
        for (run, step) in STEPS.into_iter().enumerate() {
            for number in (0..RECORDS).step_by(step as usize) {
                let value = (run as u64) << 32 | number;
                put(&tree, number, &value.to_le_bytes())?;
                model.insert(number, value);
            }
            tree.flush()?;
        }
        Ok((tree, model))
    }

    fn assert_shows(tree: &Tree, model: &BTreeMap<u64, u64>) -> Result<()> {
        let mut row = RowBuffer::default();
        for (number, value) in model {
            assert!(tree.get(&record::key(&key(*number)), true, &mut row)?, "record {number}");
            assert_eq!(row.strings[VALUE], value.to_le_bytes(), "record {number}");
        }
        assert!(!tree.get(&record::key(&key(RECORDS)), false, &mut row)?);
        let first = record::key(&[0]);
        let mut records = RecordMerge::new(tree.group_cursors(&first, 1).cursors, &first)?;
        let mut count = 0;
        while records.advance()? {
            count += 1;
        }
        assert_eq!(count, model.len());
        Ok(())
    }

    /// Makes a caller wait for a flush while `tree` merges.
    fn merge_beside_a_caller(tree: &Tree) -> Result<Option<KeyBuffer>> {
        let state = &mut tree.inner.flush.lock();
        let begun = tree.inner.pending.lock().paid_merge.take();
        let merge = match begun {
            None => tree.inner.next_paid_merge(state)?,
            begun => begun,
        };
        let merge = merge.expect("paid for");
        tree.inner.pending.lock().callers = 1;
        let next = tree.inner.merge_piece(state, &merge)?;
        tree.inner.pending.lock().callers = 0;
        tree.inner.set_paid_merge(next.clone().map(|from| PaidMerge { from, ..merge }));
        Ok(next)
    }

    #[test]
    fn a_merge_that_gives_way_keeps_its_work_and_goes_on() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let (tree, model) = tree(&store)?;
        tree.add_read_cost(u64::MAX / 2);
        assert_shows(&tree, &model)?;
        for piece in 1..=3 {
            merge_beside_a_caller(&tree)?.expect("there are more records");
            assert_eq!(tree.statistics().runs, STEPS.len());
            assert_eq!(tree.statistics().tables, STEPS.len() + piece);
            assert_shows(&tree, &model)?;
        }
        // Readers of the store find a whole set between two pieces, too.
        let manifest = tree.manifest();
        let shown = TableRuns::new(&manifest.tables, &RECORD, &tree.inner.source);
        assert_eq!(shown.references(), tree.older_sources().rows().references());
        assert!(manifest.obsolete.is_empty(), "every old table still shows a part");
        tree.merge_paid_runs()?;
        assert_eq!(tree.statistics().runs, 1);
        assert_eq!(tree.statistics().table_rows, RECORDS);
        assert_eq!(tree.manifest().obsolete.len(), STEPS.len());
        assert_shows(&tree, &model)
    }

    #[test]
    fn a_set_that_was_left_between_two_pieces_is_resumed_whole() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let (tree, mut model) = tree(&store)?;
        tree.add_read_cost(u64::MAX / 2);
        merge_beside_a_caller(&tree)?.expect("there are more records");
        drop(tree);
        let tree = Tree::resume(setup(&store), SET, None, &mut |_| Ok(true))?;
        assert_shows(&tree, &model)?;
        for number in (0..RECORDS).step_by(7) {
            put(&tree, number, &number.to_le_bytes())?;
            model.insert(number, number);
        }
        tree.flush()?;
        tree.add_read_cost(u64::MAX / 2);
        tree.merge_paid_runs()?;
        assert_eq!(tree.statistics().runs, 1);
        assert_shows(&tree, &model)?;
        // Tables that the set had when it was resumed are not held for checks of new keys.
        let inherited = tree.inner.inherited.get().expect("it had tables").load();
        assert_eq!(inherited.references(), tree.older_sources().rows().references());
        let is_inserted = |number: u64| {
            let key = key(number);
            tree.insert(&mut record::row(&key, b""), |_, _| {}, || {}).map(|seq| seq.is_some())
        };
        assert!(!is_inserted(0)? && !is_inserted(RECORDS - 1)?);
        Ok(())
    }

    /// Writers pay nothing for reads: a merge waits until they are done, and gives way to them.
    #[test]
    fn a_merge_waits_while_anything_is_written() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        drop(tree(&store)?);
        let clock = Arc::new(ManualClock::new(1));
        let tree = Tree::resume(
            TreeSetup { clock: clock.clone(), ..setup(&store) },
            SET,
            None,
            &mut |_| Ok(true),
        )?;
        let inner = &*tree.inner;
        let wait = || inner.merge_wait(&mut inner.pending.lock());
        assert_eq!(wait(), None, "nothing is paid");
        tree.add_read_cost(u64::MAX / 2);
        assert_eq!(wait(), Some(MERGE_QUIET), "it has just been opened");
        clock.advance(MERGE_QUIET);
        assert_eq!(wait(), Some(Duration::ZERO));
        let many = 0..=IDLE_CHANGES_MAX;
        many.clone().try_for_each(|number| put(&tree, number, b"new"))?;
        assert!(inner.must_give_way());
        assert_eq!(wait(), Some(MERGE_QUIET), "it is written");
        assert!(!inner.must_give_way(), "what was written is seen");
        clock.advance(MERGE_QUIET / 2);
        assert_eq!(wait(), Some(MERGE_QUIET / 2));
        put(&tree, 0, b"few changes are not many")?;
        clock.advance(MERGE_QUIET / 2);
        assert_eq!(wait(), Some(Duration::ZERO));
        inner.freeze(true, true)?;
        assert!(inner.must_give_way(), "a memtable waits for the thread");
        tree.flush()?;
        assert_eq!(wait(), Some(MERGE_QUIET), "a memtable was written");
        clock.advance(MERGE_QUIET);
        inner.pending.lock().callers = 1;
        assert_eq!(wait(), Some(MERGE_QUIET), "a caller waits for the flush lock");
        inner.pending.lock().callers = 0;
        clock.advance(MERGE_QUIET);
        assert_eq!(wait(), Some(Duration::ZERO));
        tree.merge_paid_runs()?;
        assert_eq!((tree.statistics().runs, wait()), (1, None));
        Ok(())
    }

    /// A merge of all runs, or by policy, makes one for reads that is under way needless.
    #[test]
    fn a_merge_under_way_is_dropped_when_its_runs_are_merged() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let (tree, model) = tree(&store)?;
        tree.add_read_cost(u64::MAX / 2);
        merge_beside_a_caller(&tree)?.expect("there are more records");
        tree.compact()?;
        assert_eq!(tree.inner.merge_wait(&mut tree.inner.pending.lock()), None, "nothing is left");
        let before = tree.manifest();
        tree.merge_paid_runs()?;
        assert_eq!(tree.manifest(), before);
        assert_shows(&tree, &model)
    }

    /// The thread gives way to callers of all kinds, and they continue before it does.
    #[test]
    fn a_merge_gives_way_to_a_release() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let (tree, model) = tree(&store)?;
        tree.add_read_cost(u64::MAX / 2);
        let inner = &*tree.inner;
        std::thread::scope(|scope| -> Result<()> {
            let mut state = inner.flush.lock();
            let releaser = scope.spawn(|| tree.release("it ends"));
            while inner.pending.lock().callers == 0 {
                std::thread::yield_now();
            }
            let merge = inner.next_paid_merge(&mut state)?.expect("paid for");
            let next = inner.merge_piece(&mut state, &merge)?;
            assert!(next.is_some(), "the merge went on beside a caller");
            drop(state);
            releaser.join().expect("no panic")
        })?;
        assert_shows(&tree, &model)
    }

    /// A flush can make a merge cheaper than what is paid already, and no read announces that.
    #[test]
    fn a_new_price_that_is_paid_already_wakes_the_thread() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let (tree, _) = tree(&store)?;
        let inner = &*tree.inner;
        inner.read_cost.set_runs(&[]);
        assert!(!inner.read_cost.add_searches(u64::MAX / 2), "there is nothing to merge");
        std::thread::scope(|scope| {
            // The thread waits with this lock, which the waking thread takes.
            let mut pending = inner.pending.lock();
            scope.spawn(|| inner.price_merges());
            let waited = inner.work.wait_for(&mut pending, Duration::from_secs(60));
            assert!(!waited.timed_out(), "nobody woke the thread");
        });
        Ok(())
    }

    #[test]
    fn a_complete_set_is_not_merged() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let (tree, _) = tree(&store)?;
        tree.add_read_cost(u64::MAX / 2);
        let complete = tree.commit(|manifest| manifest.state = SetState::Sealed)?;
        tree.merge_paid_runs()?;
        assert_eq!(Manifest::load(&*store, SET)?, complete);
        Ok(())
    }
}
