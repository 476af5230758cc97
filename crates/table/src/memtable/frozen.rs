//! Frozen memtable: immutable, readable by key, and in key order once its shards are sorted.

use super::shard::{GroupKey, Shard};
use super::shard_of;
use super::sorted::SortedShard;
use crate::block::DecodedBlock;
use crate::schema::{Key, Row, Schema};

/// How far ahead of the reader records are fetched into the processor's cache.
const PREFETCH_ROWS: usize = 12;

/// The shards of a memtable that takes no more writes.
#[derive(Debug)]
pub struct FrozenMemtable {
    schema: &'static Schema,
    shards: Vec<Shard>,
}

impl FrozenMemtable {
    /// Freezes `shards`, all of a memtable in their order.
    #[must_use]
    pub fn new(schema: &'static Schema, shards: Vec<Shard>) -> Self {
        assert_eq!(shards.len(), super::SHARDS, "a memtable is frozen as a whole");
        Self { schema, shards }
    }

    /// How many records there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shards.iter().map(Shard::rows).sum()
    }

    /// Memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(Shard::bytes).sum()
    }

    /// The record of `key`, in stored form.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Row<'_>> {
        let shard = &self.shards[shard_of(self.schema.order(&key.ints))];
        shard.find(key).map(|position| shard.row(position))
    }

    /// Appends up to `limit` records of `group` from `from` on, by key, to `out`; returns the
    /// order from which on more may follow.
    pub fn collect_group(
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

    /// All records in key order.
    #[must_use]
    pub fn sorted(&self) -> FrozenRows<'_> {
        FrozenRows::new(self)
    }
}

/// Appends records of `group` from `from` on, shard after shard, until there are `limit`; returns
/// the order from which on more may follow. `with_shard` lends each shard in turn.
pub(crate) fn collect_group(
    schema: &'static Schema,
    group: &GroupKey,
    from: &Key,
    limit: usize,
    out: &mut DecodedBlock,
    with_shard: impl Fn(usize, &mut dyn FnMut(&Shard)),
) -> Option<u64> {
    let order = schema.order(&from.ints);
    for number in shard_of(order)..super::SHARDS {
        with_shard(number, &mut |shard| {
            for position in shard.group_positions(group, order) {
                let row = shard.row(position);
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

/// The records of a frozen memtable in key order.
#[derive(Debug)]
pub struct FrozenRows<'a> {
    memtable: &'a FrozenMemtable,
    sorted: Vec<SortedShard>,
    /// Distinct groups of all shards, in order.
    groups: Vec<GroupKey>,
    group: usize,
    shard: usize,
    /// For each shard: the next of its groups and of its positions.
    next: Vec<(usize, usize)>,
}

impl<'a> FrozenRows<'a> {
    fn new(memtable: &'a FrozenMemtable) -> Self {
        let sorted: Vec<_> =
            memtable.shards.iter().map(|shard| SortedShard::of(memtable.schema, shard)).collect();
        let mut groups: Vec<GroupKey> =
            memtable.shards.iter().flat_map(|shard| shard.groups.keys().iter().copied()).collect();
        groups.sort_unstable();
        groups.dedup();
        let next = vec![(0, 0); sorted.len()];
        Self { memtable, sorted, groups, group: 0, shard: 0, next }
    }

    /// Starts over.
    pub fn rewind(&mut self) {
        (self.group, self.shard) = (0, 0);
        self.next.fill((0, 0));
    }

    /// Passes the records of the next shard of the next group to `visit`, in stored form; false
    /// at the end.
    ///
    /// # Errors
    /// What `visit` returns.
    pub fn next_span<E>(
        &mut self,
        visit: &mut impl FnMut(&Row) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some(group) = self.groups.get(self.group) else {
            return Ok(false);
        };
        let (shard, sorted) = (&self.memtable.shards[self.shard], &self.sorted[self.shard]);
        let (own_group, start) = self.next[self.shard];
        if let Some(&(number, end)) = sorted.groups.get(own_group)
            && shard.groups.keys()[number as usize] == *group
        {
            let positions = &sorted.positions[start..end as usize];
            for (at, &position) in positions.iter().enumerate() {
                if let Some(&ahead) = sorted.positions.get(start + at + PREFETCH_ROWS) {
                    shard.arena.prefetch(ahead);
                }
                visit(&shard.row(position))?;
            }
            self.next[self.shard] = (own_group + 1, end as usize);
        }
        self.shard += 1;
        if self.shard == self.sorted.len() {
            (self.shard, self.group) = (0, self.group + 1);
        }
        Ok(true)
    }
}
