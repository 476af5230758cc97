// SPDX-License-Identifier: Apache-2.0
//! Adoption: shows the tables of another, complete change set as the oldest runs of this one, by
//! reference, at the cost of one commit whatever their size.
//!
//! ```text
//! runs, newest first    before    after two runs were adopted
//! own                   2 1       4 3
//! adopted                             1 0
//! ```
//! Large adopted runs are at the bottom, where the policy of compaction expects large runs. The
//! presence filters of creates lack the adopted keys, so the adopted tables answer for themselves
//! from then on (`key_history.rs`).
//! Source: IndexFS, thesis §2.2 (bulk insertion protocol: tables that a client has written).

use arc_swap::ArcSwap;
use esker_base::Result;

use super::{Tree, TreeShared, TreeVersion};
use crate::manifest::{Manifest, TableRef};
use crate::tables::{SortedRun, TableRuns};

impl Tree {
    /// Shows `tables`, those of a complete set in a manifest's order, as older than all tables of
    /// this set; `edit` may change the manifest in the same commit. The caller ensures that this
    /// set has no record of a key that they show and puts none before this returns, and that their
    /// objects stay. Cost: a commit.
    ///
    /// # Errors
    /// `Fenced`; `NoSpace`: then nothing is adopted; errors of the store.
    pub fn adopt(&self, tables: &[TableRef], edit: impl FnOnce(&mut Manifest)) -> Result<()> {
        let inner = &*self.inner;
        let state = &mut inner.lock_flush();
        let mut adopted = tables.to_vec();
        let run_count = number_from_zero(&mut adopted);
        inner.commit(state, |manifest| {
            for table in &mut manifest.tables {
                table.run += run_count;
            }
            manifest.tables.extend(adopted.iter().cloned());
            edit(manifest);
        })?;
        state.next_run += run_count;
        inner.show_adopted(&adopted, run_count);
        // Its runs have other numbers now.
        inner.pending.lock().paid_merge = None;
        inner.price_merges();
        Ok(())
    }
}

impl TreeShared {
    /// Shows readers `adopted` below their tables, whose runs get numbers that are higher by
    /// `run_count`.
    fn show_adopted(&self, adopted: &[TableRef], run_count: u64) {
        let fresh = TableRuns::new(adopted, self.schema, &self.source);
        // Before the version: no create finds a key in neither.
        let inherited = self.inherited.get_or_init(ArcSwap::default);
        inherited.rcu(|inherited| with_older(inherited, &fresh, run_count));
        let committed = self.committed.load();
        let family_tables = self.family.tables().with_newer(&committed.tables, &self.source);
        self.version.rcu(|version| {
            let mut version = TreeVersion::clone(version);
            version.tables = with_older(&version.tables, &fresh, run_count);
            version.family_tables = family_tables.clone();
            version
        });
    }
}

/// Gives the runs of `tables` numbers from 0 on, in the same order; returns how many there are.
fn number_from_zero(tables: &mut [TableRef]) -> u64 {
    let mut numbers: Vec<u64> = tables.iter().map(|table| table.run).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for table in tables {
        let position = numbers.binary_search(&table.run).expect("one of the numbers");
        table.run = position as u64;
    }
    numbers.len() as u64
}

/// Returns `own` with numbers that are higher by `run_count`, and `older` below.
fn with_older(own: &TableRuns, older: &TableRuns, run_count: u64) -> TableRuns {
    let own = own.runs.iter().map(|run| {
        let number = run.number + run_count;
        let renumbered = run
            .tables
            .iter()
            .map(|table| table.with_visible(TableRef { run: number, ..table.reference.clone() }));
        SortedRun { number, tables: renumbered.collect() }
    });
    TableRuns { runs: own.chain(older.runs.iter().cloned()).collect() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::Kind;
    use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};

    use super::*;
    use crate::manifest::SetId;
    use crate::merge::RecordMerge;
    use crate::schema::record::{self, VALUE};
    use crate::schema::{Key, RowBuffer};
    use crate::tree::Durability;
    use crate::tree::test_setup::setup;

    const OWN: SetId = SetId(1);
    const OTHER: SetId = SetId(2);

    fn create(store: &SharedStore, set: SetId) -> Result<Tree> {
        Tree::create(setup(store, Durability::Async), set, Manifest::new(vec![], 0))
    }

    fn put(tree: &Tree, number: u32, value: &[u8]) -> Result<()> {
        let key = number.to_be_bytes();
        tree.update([record::key(&key)], None, |_, batch| {
            batch.put(&mut [record::row(&key, value)]);
            Ok(())
        })
    }

    fn value(tree: &Tree, number: u32) -> Result<Option<Vec<u8>>> {
        let mut row = RowBuffer::default();
        let found = tree.get(&record::key(&number.to_be_bytes()), true, &mut row)?;
        Ok(found.then(|| row.strings[VALUE].clone()))
    }

    fn is_inserted(tree: &Tree, number: u32) -> Result<bool> {
        let key = number.to_be_bytes();
        Ok(tree.insert(&mut record::row(&key, b"made"), |_, _| {}, || {})?.is_some())
    }

    fn records(tree: &Tree) -> Result<usize> {
        let first = record::key(&[0]);
        let mut records = RecordMerge::new(tree.group_cursors(&first, 1).cursors, &first)?;
        let mut count = 0;
        while records.advance()? {
            count += 1;
        }
        Ok(count)
    }

    /// The tables of a complete set with the keys 0 to 2999, of which a newer run overwrites those
    /// below 10.
    fn other_tables(store: &SharedStore) -> Result<Vec<TableRef>> {
        let other = create(store, OTHER)?;
        (0..3_000).try_for_each(|number| put(&other, number, b"old"))?;
        other.flush()?;
        (0..10).try_for_each(|number| put(&other, number, b"new"))?;
        other.flush()?;
        let tables = other.manifest().tables.clone();
        assert_eq!(tables.len(), 2);
        Ok(tables)
    }

    fn assert_shows_all(tree: &Tree) -> Result<()> {
        for (number, expected) in [(0, "new"), (9, "new"), (10, "old"), (2_999, "old")] {
            assert_eq!(value(tree, number)?.as_deref(), Some(expected.as_bytes()), "{number}");
        }
        for number in (0..3_000).step_by(7) {
            assert!(!is_inserted(tree, number)?, "{number} was created twice");
        }
        assert_eq!(value(tree, 5_000)?.as_deref(), Some(&b"own"[..]));
        assert_eq!(records(tree)?, 3_000 + 1_000);
        Ok(())
    }

    #[test]
    fn an_adopted_key_is_never_created_twice() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let tables = other_tables(&store)?;
        let tree = create(&store, OWN)?;
        (5_000..5_500).try_for_each(|number| put(&tree, number, b"own"))?;
        tree.flush()?;
        (5_500..6_000).try_for_each(|number| put(&tree, number, b"own"))?;
        tree.adopt(&tables, |manifest| manifest.data_sets.push(OTHER))?;
        assert_shows_all(&tree)?;
        let runs: Vec<u64> = tree.manifest().tables.iter().map(|table| table.run).collect();
        assert_eq!(runs, [3, 1, 0]);
        assert_eq!(tree.manifest().data_sets, [OTHER]);
        tree.flush()?;
        assert_shows_all(&tree)?;
        drop(tree);
        let tree = Tree::resume(setup(&store, Durability::Async), OWN, None, &mut |_| Ok(true))?;
        assert_shows_all(&tree)?;
        tree.compact()?;
        assert_shows_all(&tree)?;
        // The other set's objects are not this set's to delete.
        assert!(tree.manifest().tables.iter().all(|table| table.set == OWN));
        assert!(tables.iter().all(|table| store.get(&table.name(), 1 << 20).is_ok()));
        Ok(())
    }

    #[test]
    fn records_put_later_hide_adopted_ones() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let tables = other_tables(&store)?;
        let tree = create(&store, OWN)?;
        tree.adopt(&tables, |_| {})?;
        put(&tree, 0, b"latest")?;
        assert_eq!(value(&tree, 0)?.as_deref(), Some(&b"latest"[..]));
        tree.flush()?;
        assert_eq!(value(&tree, 0)?.as_deref(), Some(&b"latest"[..]));
        tree.compact()?;
        assert_eq!(value(&tree, 0)?.as_deref(), Some(&b"latest"[..]));
        Ok(())
    }

    /// The merge would otherwise take the adopted runs, or others, for the runs that it began with.
    #[test]
    fn a_merge_under_way_ends_when_runs_are_adopted() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let tables = other_tables(&store)?;
        let tree = create(&store, OWN)?;
        for half in 0..2 {
            (0..500).try_for_each(|number| put(&tree, 5_000 + 2 * number + half, b"own"))?;
            tree.flush()?;
        }
        let inner = &*tree.inner;
        tree.add_read_cost(u64::MAX / 2);
        let merge = inner.next_paid_merge(&mut inner.flush.lock())?.expect("paid for");
        inner.pending.lock().paid_merge = Some(merge);
        tree.adopt(&tables, |_| {})?;
        assert!(inner.pending.lock().paid_merge.is_none());
        assert_shows_all(&tree)?;
        tree.add_read_cost(u64::MAX / 2);
        tree.merge_paid_runs()?;
        assert_eq!(tree.statistics().runs, 1);
        assert_shows_all(&tree)
    }

    #[test]
    fn nothing_is_adopted_without_room() -> Result<()> {
        let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let shared: SharedStore = store.clone();
        let tables = other_tables(&shared)?;
        let tree = create(&shared, OWN)?;
        (5_000..6_000).try_for_each(|number| put(&tree, number, b"own"))?;
        tree.flush()?;
        let before = tree.manifest();
        store.fill_at(store.operations() + 1, FaultEffect::None);
        assert_eq!(tree.adopt(&tables, |_| {}).unwrap_err().kind(), Kind::NoSpace);
        assert_eq!((tree.manifest(), value(&tree, 0)?), (before, None));
        store.make_room();
        tree.adopt(&tables, |_| {})?;
        assert_shows_all(&tree)
    }

    #[test]
    fn runs_keep_their_order_and_get_numbers_from_zero() {
        let run = |run: u64| TableRef {
            set: OTHER,
            number: run,
            schema: 1,
            run,
            bytes: 1,
            tail_bytes: 1,
            rows: 1,
            seq_max: 1,
            first: Key::FIRST.into(),
            last: Key::LAST.into(),
        };
        let mut tables = [run(9), run(9), run(7), run(2)];
        assert_eq!(number_from_zero(&mut tables), 3);
        assert_eq!(tables.map(|table| table.run), [2, 2, 1, 0]);
    }
}
