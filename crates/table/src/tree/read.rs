// SPDX-License-Identifier: Apache-2.0
//! Reads: one key, and cursors over one group.

use esker_base::Result;

use super::{Tree, TreeShared};
use crate::block::DecodedBlock;
use crate::memtable::{GroupKey, collect_group, shard_of};
use crate::merge::RecordCursor;
use crate::schema::{Key, RowBuffer};
use crate::table::LookupKey;

/// Sources of one group's records from a key on.
#[derive(Debug)]
pub struct GroupCursors {
    /// Cursors, newest source first.
    pub cursors: Vec<RecordCursor>,
    /// Records from this order on are incomplete: continue there with new cursors.
    pub end: Option<u64>,
}

/// The outcome of a read in the active memtable.
enum ActiveRead {
    Found,
    Absent {
        /// True if the cost of the rest of the read is counted.
        is_sampled: bool,
    },
}

impl Tree {
    /// Reads the record of `key` into `out`, in readable form, with its strings only if
    /// `with_strings`; returns false if there is none. Cost: none while the record is in memory,
    /// else a block read.
    pub fn get(&self, key: &Key, with_strings: bool, out: &mut RowBuffer) -> Result<bool> {
        let inner = &*self.inner;
        let active = inner.get_active(key, out);
        let wanted = || LookupKey { digest: inner.schema.digest(key), key: *key };
        match active {
            ActiveRead::Found => Ok(true),
            ActiveRead::Absent { is_sampled: false } => {
                inner.version.load().get(inner.schema, &wanted(), with_strings, out)
            }
            ActiveRead::Absent { is_sampled: true } => {
                inner.get_sampled(&wanted(), with_strings, out)
            }
        }
    }

    /// Returns cursors over the records of the group of `from`, from that key on. They cover at
    /// least `limit` records of the active memtable, if it has that many. Records put meanwhile may
    /// or may not be included; all others are.
    pub fn group_cursors(&self, from: &Key, limit: usize) -> GroupCursors {
        let inner = &*self.inner;
        let mut group = GroupKey::default();
        group[..inner.schema.group_ints].copy_from_slice(&from.ints[..inner.schema.group_ints]);
        let mut active = DecodedBlock::default();
        let mut end =
            collect_group(inner.schema, &group, from, limit, &mut active, |shard, use_it| {
                use_it(&inner.shards[shard].lock().rows);
            });
        // Loaded after the active memtable was read, so it has everything frozen since.
        let version = inner.version.load_full();
        let mut cursors = vec![RecordCursor::over_decoded(inner.schema, active)];
        for memtable in &version.frozen {
            let mut rows = DecodedBlock::default();
            let bound = memtable.collect_group(&group, from, limit, &mut rows);
            end = match (end, bound) {
                (Some(end), Some(bound)) => Some(end.min(bound)),
                (end, bound) => end.or(bound),
            };
            cursors.push(RecordCursor::over_decoded(inner.schema, rows));
        }
        cursors.extend(version.compressed.iter().map(|run| run.cursor(from)));
        version.tables.cursors(inner.schema, from, &inner.schema.group_last(from), &mut cursors);
        GroupCursors { cursors, end }
    }
}

impl TreeShared {
    /// Reads the record of `key` in the active memtable.
    #[inline]
    fn get_active(&self, key: &Key, out: &mut RowBuffer) -> ActiveRead {
        let mut shard = self.shards[shard_of(self.schema.last_key_int(&key.ints))].lock();
        let Some(position) = shard.rows.find(key) else {
            return ActiveRead::Absent { is_sampled: shard.sampler.is_sampled() };
        };
        out.set(&shard.rows.row(position));
        self.schema.restore(&mut out.ints);
        ActiveRead::Found
    }

    /// Reads a key's record below the active memtable, and counts the extra tables that it
    /// searches.
    #[cold]
    fn get_sampled(
        &self,
        wanted: &LookupKey,
        with_strings: bool,
        out: &mut RowBuffer,
    ) -> Result<bool> {
        let (version, mut tables) = (self.version.load(), 0);
        let found = version.get_counting(self.schema, wanted, (with_strings, out), &mut tables)?;
        if self.read_cost.add_sample(tables) {
            self.wake_for_merge();
        }
        Ok(found)
    }
}
