// SPDX-License-Identifier: Apache-2.0
//! Index: the place of each block of a table, and the key from which on it holds records.
//!
//! Layout: docs/format/table.md, "Index". This file is its only encoder and decoder.
//! Invariants: block k holds exactly the keys from separator k up to separator k + 1. A separator
//! has a string only where the integers of two neighbouring keys are equal.

use std::ops::Range;

use esker_base::fuse_filter;
use esker_base::wire::{WireDamage, WireInput, put_bytes, put_varint};

use super::FILTER_BLOCKS;
use super::TABLE_DATA_BYTES_MAX;
use super::group_blocks::{GroupStart, NearBlocks, groups_of};
use crate::block::BLOCK_BYTES_MIN;
use crate::column::{ParsedInts, ParsedStrings, StringsBuilder};
use crate::schema::{KEY_INTS_MAX, KEY_TEXT_BYTES_MAX, Key, KeyBuffer, Schema};

/// Collects an index while a table is written.
#[derive(Debug)]
pub struct IndexBuilder {
    schema: &'static Schema,
    key_ints: Vec<Vec<u64>>,
    separators: StringsBuilder,
    block_bytes: Vec<u64>,
    filter_bytes: Vec<u64>,
}

impl IndexBuilder {
    /// Makes an empty index.
    pub(crate) fn new(schema: &'static Schema) -> Self {
        Self {
            schema,
            key_ints: vec![Vec::new(); schema.key_ints],
            separators: StringsBuilder::default(),
            block_bytes: Vec::new(),
            filter_bytes: Vec::new(),
        }
    }

    /// Adds a block of `bytes` bytes whose first key is `first`; `ties` if the previous key has the
    /// same integers.
    pub(crate) fn add_block(&mut self, ties: bool, first: &Key, bytes: usize) {
        for (column, int) in self.key_ints.iter_mut().zip(first.ints) {
            column.push(int);
        }
        self.separators.push(if ties { first.string } else { &[] });
        self.block_bytes.push(bytes as u64);
    }

    /// Adds the size of a filter partition.
    pub(crate) fn add_filter(&mut self, bytes: usize) {
        self.filter_bytes.push(bytes as u64);
    }

    /// The number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.block_bytes.len()
    }

    /// Bytes of the separators' strings.
    pub(crate) fn text_bytes(&self) -> usize {
        self.separators.text_bytes()
    }

    /// Appends the encoded index, which ends with the table's `last` key, to `out`.
    pub(crate) fn encode(&mut self, last: &Key, out: &mut Vec<u8>) {
        for column in &self.key_ints {
            ParsedInts::encode(column, false, out);
        }
        self.separators.encode(out);
        ParsedInts::encode(&self.block_bytes, false, out);
        ParsedInts::encode(&self.filter_bytes, false, out);
        for int in &last.ints[..self.schema.key_ints] {
            put_varint(out, *int);
        }
        put_bytes(out, last.string);
    }
}

/// A decoded index.
#[derive(Debug)]
pub struct BlockIndex {
    firsts: Vec<[u64; KEY_INTS_MAX]>,
    buckets: IndexBuckets,
    /// The groups with which blocks begin, if keys are evenly spread in each. They are few, so the
    /// processor's cache holds them.
    groups: Vec<GroupStart>,
    group_buckets: IndexBuckets,
    anchors: Vec<u32>,
    /// Column of the integer that orders a group, if it is evenly spread.
    spread: Option<usize>,
    separators: ParsedStrings,
    /// The encoded bytes, into which the separators point.
    bytes: Vec<u8>,
    /// The start of each block, and the end of the last one.
    offsets: Vec<u64>,
    /// The start of each filter partition in the tail, and the end of the last one.
    filter_offsets: Vec<u64>,
    /// The first integers of each filter partition. They are so few that the processor's cache
    /// holds those of all tables.
    partition_firsts: Vec<[u64; KEY_INTS_MAX]>,
    last: KeyBuffer,
}

impl BlockIndex {
    /// Decodes the index of `blocks` blocks that take `data_bytes` together, with `filter_bytes` of
    /// filters.
    pub(crate) fn decode(
        schema: &'static Schema,
        bytes: &[u8],
        blocks: usize,
        data_bytes: u64,
        filter_bytes: u64,
    ) -> Result<Self, WireDamage> {
        let mut input = WireInput::new(bytes);
        // Bounds the allocations below.
        if blocks == 0 || (blocks as u64).saturating_mul(BLOCK_BYTES_MIN as u64) > data_bytes {
            return Err(input.damage("an index of as many blocks as fit the table"));
        }
        let mut firsts = vec![[0; KEY_INTS_MAX]; blocks];
        let mut values = Vec::with_capacity(blocks);
        for column in 0..schema.key_ints {
            values.clear();
            ParsedInts::parse(&mut input, blocks)?.decode(bytes, blocks, &mut values);
            for (first, value) in firsts.iter_mut().zip(&values) {
                first[column] = *value;
            }
        }
        let separators = ParsedStrings::parse(&mut input, blocks)?;
        let offsets = parse_offsets(&mut input, blocks, data_bytes)?;
        let partitions = blocks.div_ceil(FILTER_BLOCKS);
        let filter_offsets = parse_offsets(&mut input, partitions, filter_bytes)?;
        let mut last = KeyBuffer::default();
        for int in &mut last.ints[..schema.key_ints] {
            *int = input.varint()?;
        }
        last.string = input.bytes(KEY_TEXT_BYTES_MAX, "a key's string within bounds")?.to_vec();
        input.end()?;
        let spread = schema.hash_of.map(|_| schema.key_ints - 1);
        let groups = |_| groups_of(&firsts, &last.ints, schema.group_ints);
        let (groups, anchors) = spread.map_or_else(Default::default, groups);
        let index = Self {
            buckets: IndexBuckets::of(&firsts, |first| first[0]),
            group_buckets: IndexBuckets::of(&groups, |group| group.ints[0]),
            groups,
            anchors,
            spread,
            partition_firsts: firsts.iter().step_by(FILTER_BLOCKS).copied().collect(),
            firsts,
            separators,
            bytes: bytes.to_vec(),
            offsets,
            filter_offsets,
            last,
        };
        if !(1..blocks).all(|block| index.separator(block - 1).key() < index.separator(block).key())
        {
            return Err(WireDamage { offset: 0, what: "separators that ascend" });
        }
        Ok(index)
    }

    /// The number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.firsts.len()
    }

    fn separator(&self, block: usize) -> KeyBuffer {
        let mut string = Vec::new();
        self.separators.append(&self.bytes, block, &mut string);
        KeyBuffer { ints: self.firsts[block], string }
    }

    /// The key from which on `block` holds records; at most the block's first key.
    #[must_use]
    pub fn first(&self, block: usize) -> KeyBuffer {
        self.separator(block)
    }

    /// The last key of the table.
    #[must_use]
    pub fn last(&self) -> Key<'_> {
        self.last.key()
    }

    /// Returns the block that holds `key` if any does; the first block for keys before all.
    #[inline]
    #[must_use]
    pub fn block_of(&self, key: &Key) -> usize {
        self.block_before(key, self.after(key))
    }

    /// Finds the block as [`BlockIndex::block_of`] does, for a key that is not before block `from`;
    /// the nearer, the faster.
    #[inline]
    pub(crate) fn block_from(&self, from: usize, key: &Key) -> usize {
        let (mut low, mut step) = (from, 1);
        while low + step < self.firsts.len() && self.firsts[low + step] <= key.ints {
            low += step;
            step *= 2;
        }
        // Block `low` starts at or before the key, unless no block does.
        let high = self.firsts.len().min(low + step);
        let after = low + self.firsts[low..high].partition_point(|first| *first <= key.ints);
        self.block_before(key, after)
    }

    /// Returns the block that holds `key` if any does, given that `after` blocks start at or before
    /// its integers.
    #[inline]
    fn block_before(&self, key: &Key, after: usize) -> usize {
        if after == 0 || self.firsts[after - 1] != key.ints {
            return after.saturating_sub(1);
        }
        self.block_of_tied(key, after)
    }

    /// The group of the first key of `block`.
    #[inline]
    pub(crate) fn first_group(&self, block: usize, schema: &Schema) -> &[u64] {
        &self.firsts[block][..schema.group_ints]
    }

    /// The last integers of the blocks' first keys.
    pub(crate) fn first_orders(&self, schema: &Schema) -> impl ExactSizeIterator<Item = u64> {
        self.firsts.iter().map(|first| schema.last_key_int(first))
    }

    /// Returns the blocks that start with keys of the group of `key`. One of these, or the block
    /// before them, holds the key if any does. Only if the last integers of keys are evenly spread.
    #[inline]
    pub(crate) fn near_blocks(&self, key: &Key) -> Option<NearBlocks> {
        let order = self.spread?;
        let ints = std::array::from_fn(|at| if at < order { key.ints[at] } else { 0 });
        let near = &self.groups[self.group_buckets.range(key.ints[0])];
        let group = near.get(near.partition_point(|group| group.ints < ints))?;
        (group.ints == ints).then(|| group.blocks.near(key.ints[order], &self.anchors))
    }

    /// Returns the number of blocks that start at or before the integers of `key`.
    #[inline]
    fn after(&self, key: &Key) -> usize {
        let Range { start: mut low, end: mut high } = self.buckets.range(key.ints[0]);
        if low == high {
            return low;
        }
        // Most buckets hold one group, whose blocks are evenly spread.
        let share = self.spread.map_or(1 << 63, |column| key.ints[column]);
        let guess = low + ((u128::from(share) * (high - low) as u128) >> 64) as usize;
        let mut step = 1;
        if self.firsts[guess] <= key.ints {
            low = guess + 1;
            while low < high && self.firsts[(low + step).min(high) - 1] <= key.ints {
                low = (low + step).min(high);
                step *= 2;
            }
            high = high.min(low + step);
        } else {
            high = guess;
            while low < high && self.firsts[high.saturating_sub(step).max(low)] > key.ints {
                high = high.saturating_sub(step).max(low);
                step *= 2;
            }
            low = low.max(high.saturating_sub(step));
        }
        low + self.firsts[low..high].partition_point(|first| *first <= key.ints)
    }

    /// Finds the block as [`BlockIndex::block_of`] does, where the integers of block `after - 1`
    /// equal the key's. Neighbouring blocks, perhaps all, may share them; then their separators
    /// decide.
    fn block_of_tied(&self, key: &Key, after: usize) -> usize {
        let mut low = self.firsts[..after].partition_point(|first| *first < key.ints);
        let mut high = after;
        while low < high {
            let middle = (low + high) / 2;
            if self.separators.compare(&self.bytes, middle, key.string).is_gt() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low.saturating_sub(1)
    }

    /// The byte range of `block` in the table.
    #[must_use]
    pub fn block_range(&self, block: usize) -> Range<u64> {
        self.offsets[block]..self.offsets[block + 1]
    }

    /// Returns the filter partition of the block that holds `key` if any does, without finding the
    /// block; `None` if a partition starts with the key's integers, so that the one before may hold
    /// it, too.
    #[inline]
    pub(crate) fn partition_of(&self, key: &Key) -> Option<usize> {
        let after = self.partition_firsts.partition_point(|first| *first <= key.ints);
        let partition = after.saturating_sub(1);
        (self.partition_firsts[partition] != key.ints).then_some(partition)
    }

    /// The byte range of a filter partition in the tail.
    #[inline]
    pub(crate) fn partition_range(&self, partition: usize) -> Range<usize> {
        self.filter_offsets[partition] as usize..self.filter_offsets[partition + 1] as usize
    }

    /// The byte range of the filter of `block` in the tail.
    #[must_use]
    pub(crate) fn filter_range(&self, block: usize) -> Range<usize> {
        self.partition_range(block / FILTER_BLOCKS)
    }

    /// Verifies every filter partition of `filters`.
    pub(crate) fn check_filters(&self, filters: &[u8]) -> Result<(), WireDamage> {
        for pair in self.filter_offsets.windows(2) {
            let (start, end) = (pair[0] as usize, pair[1] as usize);
            fuse_filter::check(&filters[start..end])
                .map_err(|damage| WireDamage { offset: start + damage.offset, ..damage })?;
        }
        Ok(())
    }
}

/// Blocks or groups by their first integer, which narrows a search.
#[derive(Debug)]
struct IndexBuckets {
    low: u64,
    high: u64,
    shift: u32,
    /// The first item of each bucket, and the end of the last one.
    starts: Vec<u32>,
}

const _: () = assert!(TABLE_DATA_BYTES_MAX / (BLOCK_BYTES_MIN as u64) < u32::MAX as u64);

impl IndexBuckets {
    fn of<T>(items: &[T], int_of: impl Fn(&T) -> u64) -> Self {
        let (Some(low), Some(high)) = (items.first().map(&int_of), items.last().map(&int_of))
        else {
            return Self { low: 0, high: 0, shift: 0, starts: vec![0; 2] };
        };
        // About as many buckets as items. Hostile keys may not ascend; the caller detects that.
        let range = high.saturating_sub(low);
        let shift = (u64::BITS - range.leading_zeros()).saturating_sub(items.len().ilog2() + 1);
        let count = (range >> shift) as usize + 1;
        let mut starts = Vec::with_capacity(count + 1);
        for (at, item) in items.iter().enumerate() {
            let bucket = (int_of(item).saturating_sub(low) >> shift) as usize;
            while starts.len() <= bucket.min(count - 1) {
                starts.push(at as u32);
            }
        }
        starts.resize(count + 1, items.len() as u32);
        Self { low, high, shift, starts }
    }

    /// Returns items that include the last one at or before first integer `int`, unless it comes
    /// just before them.
    #[inline]
    fn range(&self, int: u64) -> Range<usize> {
        if int < self.low {
            return 0..0;
        }
        let bucket = (int.min(self.high) - self.low) >> self.shift;
        let bucket = (bucket as usize).min(self.starts.len() - 2);
        self.starts[bucket] as usize..self.starts[bucket + 1] as usize
    }
}

/// Reads `count` sizes and returns the start of each, if they add up to `total`.
fn parse_offsets(input: &mut WireInput, count: usize, total: u64) -> Result<Vec<u64>, WireDamage> {
    let at = input.at();
    let wrong = WireDamage { offset: at, what: "sizes that add up to the whole" };
    let mut sizes = Vec::with_capacity(count);
    ParsedInts::parse(input, count)?.decode(input.whole(), count, &mut sizes);
    let mut offsets = Vec::with_capacity(count + 1);
    let mut end = 0u64;
    offsets.push(0);
    for size in sizes {
        end = end.checked_add(size).filter(|end| *end <= total).ok_or(wrong)?;
        offsets.push(end);
    }
    if end == total { Ok(offsets) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schema::IntColumn;

    static SPREAD: Schema = Schema {
        id: 9,
        name: "spread",
        ints: &[IntColumn::plain("group"), IntColumn::plain("hash"), IntColumn::plain("seq")],
        strings: &["name"],
        key_ints: 2,
        group_ints: 1,
        hash_of: Some(|_| 0),
        has_filters: true,
    };

    fn index(firsts: &[(u64, u64)]) -> BlockIndex {
        index_to(firsts, Key::LAST)
    }

    fn index_to(firsts: &[(u64, u64)], last: Key) -> BlockIndex {
        let mut builder = IndexBuilder::new(&SPREAD);
        for (group, hash) in firsts {
            let first = Key { ints: [*group, *hash, 0], string: b"" };
            builder.add_block(false, &first, BLOCK_BYTES_MIN);
        }
        let (mut bytes, blocks) = (Vec::new(), firsts.len());
        let partitions = blocks.div_ceil(FILTER_BLOCKS);
        (0..partitions).for_each(|_| builder.add_filter(1));
        builder.encode(&last, &mut bytes);
        let data_bytes = (blocks * BLOCK_BYTES_MIN) as u64;
        BlockIndex::decode(&SPREAD, &bytes, blocks, data_bytes, partitions as u64)
            .expect("our own index")
    }

    proptest! {
        #[test]
        fn the_block_of_a_key_is_the_last_that_starts_before_it(
            groups in proptest::collection::btree_map(
                prop_oneof![0u64..9, any::<u64>()], proptest::collection::btree_set(any::<u64>(), 1..12), 1..20),
            others in proptest::collection::vec(any::<(u64, u64)>(), 20),
        ) {
            let firsts: Vec<(u64, u64)> = groups
                .iter()
                .flat_map(|(group, hashes)| hashes.iter().map(|hash| (*group, *hash)))
                .collect();
            let index = index(&firsts);
            let near = firsts.iter().flat_map(|&(group, hash)| {
                [(group, hash), (group, hash.saturating_sub(1)), (group, hash / 2), (group, u64::MAX)]
            });
            for (group, hash) in near.chain(others) {
                let after = firsts.partition_point(|first| *first <= (group, hash));
                let key = Key { ints: [group, hash, 0], string: b"x" };
                prop_assert_eq!(index.block_of(&key), after.saturating_sub(1));
                let blocks = index.near_blocks(&key);
                prop_assert_eq!(blocks.is_some(), groups.contains_key(&group));
                if let Some(near) = blocks {
                    let blocks = near.range();
                    prop_assert!(blocks.contains(&near.guess()));
                    prop_assert!(!blocks.is_empty());
                    prop_assert!(firsts[blocks.clone()].iter().all(|first| first.0 == group));
                    prop_assert!(blocks.start == 0 || firsts[blocks.start - 1].0 != group);
                    prop_assert!(firsts.get(blocks.end).is_none_or(|first| first.0 != group));
                }
            }
        }
    }

    #[test]
    fn the_partition_of_a_key_is_that_of_its_block() {
        let firsts: Vec<(u64, u64)> = (0..3_000).map(|block| (block / 700, block * 10)).collect();
        let index = index(&firsts);
        for (block, (group, hash)) in firsts.iter().enumerate() {
            for order in [*hash, hash + 1, hash + 9] {
                let key = Key { ints: [*group, order, 0], string: b"x" };
                let is_start = block % FILTER_BLOCKS == 0 && order == *hash;
                let expected = (!is_start).then(|| index.block_of(&key) / FILTER_BLOCKS);
                assert_eq!(index.partition_of(&key), expected, "block {block}");
            }
        }
        let before = Key { ints: [0, 0, 0], string: b"" };
        assert_eq!(index.partition_of(&before), None);
        assert_eq!(index.partition_of(&Key::LAST), Some(firsts.len() / FILTER_BLOCKS));
    }

    /// Symptom: the guess was off by most of a table's blocks. Cause: a directory of millions of
    /// names is spread over many tables, each with a part of its hashes, but the guess assumed that
    /// each table has all of them.
    #[test]
    fn the_guess_is_near_whatever_part_of_a_group_a_table_has() {
        const BLOCKS: u64 = 10_000;
        let part = |from: u64, to: u64| {
            let step = (to - from) / BLOCKS;
            move |block: u64| from + block * step
        };
        let full = u64::MAX - u64::MAX % BLOCKS;
        for (from, to) in [(0, full), (full / 8, full / 7), (full / 3, full), (0, full / 100)] {
            let first_of = part(from, to);
            let firsts: Vec<(u64, u64)> = (0..BLOCKS).map(|block| (5, first_of(block))).collect();
            let index = index_to(&firsts, Key { ints: [5, to, 0], string: b"z" });
            for block in 0..BLOCKS {
                let order = first_of(block) + (to - from) / BLOCKS / 2;
                let key = Key { ints: [5, order, 0], string: b"x" };
                let guess = index.near_blocks(&key).expect("its group").guess();
                assert!(guess.abs_diff(block as usize) <= 1, "{guess} for {block}");
            }
        }
    }

    /// Hashes of millions of names are even only on the whole: a guess by share alone is several
    /// blocks off in the middle, each of which is a line of memory to fetch.
    #[test]
    fn the_guess_is_near_in_the_middle_of_a_large_group_too() {
        const BLOCKS: usize = 20_000;
        const ROWS: usize = 64;
        let mut hashes: Vec<u64> =
            (0..(BLOCKS * ROWS) as u64).map(esker_base::word_hash::mix).collect();
        hashes.sort_unstable();
        let firsts: Vec<(u64, u64)> = hashes.iter().step_by(ROWS).map(|hash| (5, *hash)).collect();
        let last = hashes[hashes.len() - 1];
        let index = index_to(&firsts, Key { ints: [5, last, 0], string: b"z" });
        let off_by = |at: usize| {
            let key = Key { ints: [5, hashes[at], 0], string: b"x" };
            index.near_blocks(&key).expect("its group").guess().abs_diff(at / ROWS)
        };
        let off: Vec<usize> = (0..hashes.len()).step_by(7).map(off_by).collect();
        assert!(off.iter().all(|off| *off <= 2));
        let right = off.iter().filter(|off| **off == 0).count();
        assert!(right * 10 > off.len() * 8, "{right} of {}", off.len());
    }
}
