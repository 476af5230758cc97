// SPDX-License-Identifier: Apache-2.0
//! Key history: tells whether a shard's older memtables may have held a key, wherever its record is
//! now.
//!
//! A frozen memtable is searched directly until the flusher has added its keys to the presence
//! filters, which is the first step of a flush. So filters are filled in the order of their lines,
//! off the path of writers, and a memtable that is never frozen needs none. The tables that a set
//! had when it was resumed, and those that it adopted, answer by their own filters; the first
//! operation that has to search a table that is not open yet reads that table's filters.
//! Concurrency: the shard's lock guards its key history; filters change only under `flush`.

use std::sync::Arc;

use super::{LiveShard, TreeShared};
use crate::memtable::FrozenMemtable;
use crate::presence::KeyPresence;
use crate::schema::Key;
use crate::table::LookupKey;

/// Keys that a shard held in memtables before the active one.
#[derive(Debug, Default)]
pub(super) struct KeyHistory {
    presence: KeyPresence,
    /// Memtables whose keys are not in the filter yet.
    unindexed: Vec<Arc<FrozenMemtable>>,
}

impl KeyHistory {
    /// The filter.
    pub(super) fn presence(&self) -> &KeyPresence {
        &self.presence
    }

    /// Adds a memtable that was just frozen.
    pub(super) fn add(&mut self, memtable: Arc<FrozenMemtable>) {
        self.unindexed.push(memtable);
    }

    /// Returns whether the shard may have held `key`, whose tag is `tag`; never a false "no".
    #[inline]
    pub(super) fn may_contain(&self, tag: u32, key: &Key) -> bool {
        self.presence.may_contain(tag)
            || self.unindexed.iter().any(|memtable| memtable.contains(key))
    }
}

impl TreeShared {
    /// Returns whether a table that the set had when it was opened, or has adopted since, may have a
    /// record of `key`; never a false "no". One filter probe for each run of those tables.
    #[inline]
    pub(super) fn inherited_may_contain(&self, key: &Key) -> bool {
        self.inherited.get().is_some_and(|inherited| {
            let wanted = LookupKey { digest: self.schema.digest(key), key: *key };
            inherited.load().may_contain(&wanted)
        })
    }

    /// Adds the keys of a frozen memtable to the filters, on `threads` threads.
    pub(super) fn index_frozen(&self, memtable: &Arc<FrozenMemtable>, threads: usize) {
        memtable.map_shards(threads, |number, frozen| {
            let is_this = |own: &Arc<FrozenMemtable>| Arc::ptr_eq(own, memtable);
            let mut live = self.shards[number].lock();
            if !live.history.unindexed.iter().any(is_this) {
                return;
            }
            let presence = &mut live.history.presence;
            if let Some(generation) = presence.with_room(frozen.rows()) {
                generation.extend(frozen.tags());
            } else {
                let mut generation = presence.next_generation(frozen.rows());
                drop(live);
                generation.extend(frozen.tags());
                live = self.shards[number].lock();
                live.history.presence.push(generation);
            }
            live.history.unindexed.retain(|own| !is_this(own));
            let live: &LiveShard = &live;
            self.prefetch_targets[number].set(live);
        });
    }
}

#[cfg(test)]
mod tests {
    use esker_base::Result;
    use esker_base::store::{MemoryStore, SharedStore};

    use super::*;
    use crate::manifest::{Manifest, SetId};
    use crate::schema::RowBuffer;
    use crate::schema::record;
    use crate::tree::test_setup::setup;
    use crate::tree::{Durability, Tree};

    fn tree() -> Result<Tree> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        Tree::create(setup(&store, Durability::Async), SetId(1), Manifest::new(vec![], 0))
    }

    /// Counts those of `numbers` that can be inserted without a look at older sources.
    fn inserted(tree: &Tree, numbers: std::ops::Range<u64>) -> usize {
        let is_inserted = |number: &u64| {
            let key = number.to_be_bytes();
            tree.insert(&mut record::row(&key, b""), |_, _| {}, || {}).expect("memory").is_some()
        };
        numbers.filter(is_inserted).count()
    }

    #[test]
    fn frozen_keys_are_found_before_and_after_they_are_indexed() -> Result<()> {
        let tree = tree()?;
        let inner = &*tree.inner;
        assert_eq!(inserted(&tree, 0..3_000), 3_000);
        inner.freeze(true, true)?;
        assert_eq!(inserted(&tree, 0..6_000), 3_000, "the frozen memtable is asked");
        inner.freeze(true, true)?;
        for frozen in inner.version.load().frozen.iter().rev() {
            inner.index_frozen(frozen, 2);
            assert_eq!(inserted(&tree, 0..6_000), 0);
        }
        assert!(inner.shards.iter().all(|shard| shard.lock().history.unindexed.is_empty()));
        assert!(inserted(&tree, 6_000..16_000) > 9_900, "the filters know few others");
        tree.flush()?;
        assert_eq!(inserted(&tree, 0..16_000), 0);
        Ok(())
    }

    /// Symptom: creates in a resumed session took twice as long, until it ended.
    /// Cause: the presence filters of a resumed tree are empty, so each create read older tables.
    /// Fix: the filters of the tables with which the tree was resumed answer for those.
    #[test]
    fn a_resumed_tree_knows_which_keys_its_tables_lack() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        drop({
            let tree =
                Tree::create(setup(&store, Durability::Async), SetId(1), Manifest::new(vec![], 0))?;
            assert_eq!(inserted(&tree, 0..3_000), 3_000);
            tree.flush()?;
            assert_eq!(inserted(&tree, 3_000..4_000), 1_000);
            tree.sync()?;
            tree
        });
        let tree =
            Tree::resume(setup(&store, Durability::Async), SetId(1), None, &mut |_| Ok(true))?;
        let mut found = RowBuffer::default();
        assert!(tree.get(&record::key(&7u64.to_be_bytes()), false, &mut found)?);
        assert_eq!(inserted(&tree, 0..4_000), 0);
        assert!(inserted(&tree, 4_000..14_000) > 9_500, "the tables' filters know few others");
        tree.compact()?;
        assert_eq!(inserted(&tree, 0..4_000), 0);
        assert!(inserted(&tree, 14_000..24_000) > 9_500);
        Ok(())
    }
}
