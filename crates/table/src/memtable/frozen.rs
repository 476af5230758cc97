// SPDX-License-Identifier: Apache-2.0
//! Frozen memtable: immutable; readable by key, and in key order once its shards are sorted.

use std::ops::Range;
use std::panic::resume_unwind;
use std::slice;
use std::thread::ScopedJoinHandle;

use super::shard::{GroupKey, Shard};
use super::shard_of;
use super::sorted::SortedShard;
use crate::block::DecodedBlock;
use crate::family::FamilyMemtable;
use crate::schema::{Key, Row, Schema};

/// Number of records ahead of the reader that are prefetched into the processor's cache.
const PREFETCH_ROWS: usize = 12;

/// The shards of a memtable that takes no more writes.
#[derive(Debug)]
pub struct FrozenMemtable {
    schema: &'static Schema,
    shards: Vec<Shard>,
    family: Box<dyn FamilyMemtable>,
}

impl FrozenMemtable {
    /// Freezes `shards`, all shards of a memtable in order, and the memtable of the family
    /// beside them.
    #[must_use]
    pub fn new(
        schema: &'static Schema,
        shards: Vec<Shard>,
        family: Box<dyn FamilyMemtable>,
    ) -> Self {
        assert_eq!(shards.len(), super::SHARDS, "a memtable is frozen as a whole");
        Self { schema, shards, family }
    }

    /// The memtable of the hosted family.
    #[must_use]
    pub fn family(&self) -> &dyn FamilyMemtable {
        &*self.family
    }

    /// The number of records.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shards.iter().map(Shard::rows).sum()
    }

    /// Memory that it takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(Shard::bytes).sum::<usize>() + self.family.bytes()
    }

    /// Returns the record of `key`, in stored form.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Row<'_>> {
        let shard = &self.shards[shard_of(self.schema.last_key_int(&key.ints))];
        shard.find(key).map(|position| shard.row(position))
    }

    /// Returns whether there is a record of `key`.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        self.shards[shard_of(self.schema.last_key_int(&key.ints))].find(key).is_some()
    }

    /// Applies `work` to each shard and its number, on `threads` threads; returns the results.
    pub(crate) fn map_shards<T: Send>(
        &self,
        threads: usize,
        work: impl Fn(usize, &Shard) -> T + Sync,
    ) -> Vec<T> {
        let share = self.shards.len().div_ceil(threads.max(1));
        let of_part = |part: usize| -> Vec<T> {
            let shards = self.shards.iter().enumerate().skip(part * share).take(share);
            shards.map(|(number, shard)| work(number, shard)).collect()
        };
        if threads <= 1 {
            return of_part(0);
        }
        let of_part = &of_part;
        std::thread::scope(|scope| {
            let parts = 0..self.shards.len().div_ceil(share);
            let parts: Vec<_> = parts.map(|part| scope.spawn(move || of_part(part))).collect();
            let done = parts.into_iter().map(ScopedJoinHandle::join);
            done.flat_map(|part| part.unwrap_or_else(|panic| resume_unwind(panic))).collect()
        })
    }

    /// Appends up to `limit` records of `group` from `from` on, by key, to `out`; returns the order
    /// from which more may follow.
    pub(crate) fn collect_group(
        &self,
        group: &GroupKey,
        from: &Key,
        limit: usize,
        out: &mut DecodedBlock,
    ) -> Option<u64> {
        collect_group(self.schema, group, from, limit, out, |shard, collect| {
            collect(&self.shards[shard]);
        })
    }

    /// Returns all records in key order, sorted by `threads` threads.
    #[must_use]
    pub fn sorted(&self, threads: usize) -> SortedMemtable<'_> {
        SortedMemtable::new(self, threads)
    }
}

/// Appends records of `group` from `from` on, shard after shard, until there are `limit`; returns
/// the order from which more may follow. `with_shard` lends each shard in turn.
pub(crate) fn collect_group(
    schema: &'static Schema,
    group: &GroupKey,
    from: &Key,
    limit: usize,
    out: &mut DecodedBlock,
    with_shard: impl Fn(usize, &mut dyn FnMut(&Shard)),
) -> Option<u64> {
    let order = schema.last_key_int(&from.ints);
    for number in shard_of(order)..super::SHARDS {
        with_shard(number, &mut |shard| {
            let positions = shard.group_positions(group, order);
            for (at, position) in positions.iter().enumerate() {
                // In key order the records are scattered over the arena.
                if let Some(soon) = positions.get(at + PREFETCH_ROWS) {
                    shard.arena.prefetch(*soon);
                }
                let row = shard.row(*position);
                if schema.key(&row) >= *from {
                    out.push(schema, &row);
                }
            }
        });
        if out.rows() >= limit && number + 1 < super::SHARDS {
            return Some((number as u64 + 1) << (64 - super::SHARD_BITS));
        }
    }
    None
}

/// A frozen memtable whose shards are sorted.
#[derive(Debug)]
pub struct SortedMemtable<'a> {
    memtable: &'a FrozenMemtable,
    sorted: Vec<SortedShard>,
    /// Runs of neighbouring keys, in order: each holds the records of one group in one shard.
    spans: Vec<ShardSpan>,
}

/// Positions of one shard's records that are adjacent in key order.
#[derive(Clone, Debug)]
struct ShardSpan {
    group: GroupKey,
    shard: usize,
    positions: Range<usize>,
}

impl<'a> SortedMemtable<'a> {
    fn new(memtable: &'a FrozenMemtable, threads: usize) -> Self {
        let sorted =
            memtable.map_shards(threads, |_, shard| SortedShard::of(memtable.schema, shard));
        let mut spans = Vec::new();
        for (shard, sorted) in sorted.iter().enumerate() {
            let keys = memtable.shards[shard].groups.keys();
            let mut start = 0;
            for &(group, end) in &sorted.groups {
                let positions = start..end as usize;
                start = positions.end;
                spans.push(ShardSpan { group: keys[group as usize], shard, positions });
            }
        }
        // Within a group, the records of one shard come before those of the next.
        spans.sort_unstable_by_key(|span| (span.group, span.shard));
        Self { memtable, sorted, spans }
    }

    /// The number of records.
    #[must_use]
    pub fn row_count(&self) -> usize {
        self.memtable.rows()
    }

    /// All records.
    #[must_use]
    pub fn rows(&self) -> FrozenRows<'_> {
        FrozenRows { sorted: self, spans: self.spans.iter() }
    }

    /// Splits the records into `count` parts of about equal size, in key order.
    #[must_use]
    pub fn parts(&self, count: usize) -> Vec<FrozenRows<'_>> {
        let share = self.memtable.rows().div_ceil(count.max(1));
        let mut parts = Vec::new();
        let (mut start, mut rows) = (0, 0);
        for (at, span) in self.spans.iter().enumerate() {
            rows += span.positions.len();
            if rows >= share || at + 1 == self.spans.len() {
                parts.push(FrozenRows { sorted: self, spans: self.spans[start..=at].iter() });
                (start, rows) = (at + 1, 0);
            }
        }
        parts
    }
}

/// Records of a frozen memtable in key order.
#[derive(Debug)]
pub struct FrozenRows<'a> {
    sorted: &'a SortedMemtable<'a>,
    spans: slice::Iter<'a, ShardSpan>,
}

impl FrozenRows<'_> {
    /// Passes the next records of one group to `visit`, in stored form; returns false at the end.
    ///
    /// # Errors
    /// Errors of `visit`.
    pub(crate) fn next_span<E>(
        &mut self,
        visit: &mut impl FnMut(&Row) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some(span) = self.spans.next() else {
            return Ok(false);
        };
        let shard = &self.sorted.memtable.shards[span.shard];
        let all = &self.sorted.sorted[span.shard].positions;
        for at in span.positions.clone() {
            if let Some(&ahead) = all.get(at + PREFETCH_ROWS) {
                shard.arena.prefetch(ahead);
            }
            visit(&shard.row(all[at]))?;
        }
        Ok(true)
    }
}
