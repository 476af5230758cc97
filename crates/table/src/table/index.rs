//! Index: where each block of a table is, and from which key on.
//!
//! Layout: docs/format/table.md, "Index". This file is its only encoder and decoder.
//! Invariants: block k holds exactly the keys from separator k up to separator k + 1. A separator
//! has a string only where the integers of two neighbouring keys are equal.

use std::ops::Range;

use super::TABLE_DATA_BYTES_MAX;
use crate::block::BLOCK_BYTES_MIN;
use crate::column::{Ints, Strings, StringsBuilder};
use crate::filter::{self, FILTER_BLOCKS};
use crate::schema::{KEY_INTS_MAX, Key, KeyBuffer, Schema};
use crate::wire::{Damage, Input, put_bytes, put_varint};

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
    /// An empty index.
    pub fn new(schema: &'static Schema) -> Self {
        Self {
            schema,
            key_ints: vec![Vec::new(); schema.key_ints],
            separators: StringsBuilder::default(),
            block_bytes: Vec::new(),
            filter_bytes: Vec::new(),
        }
    }

    /// Adds a block of `bytes` whose first key is `first`; `ties` if the key before it has the
    /// same integers.
    pub fn add_block(&mut self, ties: bool, first: &Key, bytes: usize) {
        for (column, int) in self.key_ints.iter_mut().zip(first.ints) {
            column.push(int);
        }
        self.separators.push(if ties { first.string } else { &[] });
        self.block_bytes.push(bytes as u64);
    }

    /// Adds the size of a filter partition.
    pub fn add_filter(&mut self, bytes: usize) {
        self.filter_bytes.push(bytes as u64);
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.block_bytes.len()
    }

    /// Bytes of the separators' strings.
    pub fn text_bytes(&self) -> usize {
        self.separators.text_bytes()
    }

    /// Appends the encoded index, which ends with the table's `last` key, to `out`.
    pub fn encode(&mut self, last: &Key, out: &mut Vec<u8>) {
        for column in &self.key_ints {
            Ints::encode(column, false, out);
        }
        self.separators.encode(out);
        Ints::encode(&self.block_bytes, false, out);
        Ints::encode(&self.filter_bytes, false, out);
        for int in &last.ints[..self.schema.key_ints] {
            put_varint(out, *int);
        }
        put_bytes(out, last.string);
    }
}

/// A decoded index.
#[derive(Debug)]
pub struct Index {
    firsts: Vec<[u64; KEY_INTS_MAX]>,
    buckets: Buckets,
    /// Column of the integer by which groups are ordered, if it is evenly spread.
    spread: Option<usize>,
    separators: Strings,
    /// The encoded bytes, which the separators point into.
    bytes: Vec<u8>,
    /// Where block k starts; one more entry says where the last ends.
    offsets: Vec<u64>,
    /// Where filter partition k starts, from the start of the tail; one more for the end.
    filter_offsets: Vec<u64>,
    last: KeyBuffer,
}

impl Index {
    /// Reads the index of `blocks` blocks that take `data_bytes` in all, with `filter_bytes` of
    /// filters.
    pub fn decode(
        schema: &'static Schema,
        bytes: &[u8],
        blocks: usize,
        data_bytes: u64,
        filter_bytes: u64,
    ) -> Result<Self, Damage> {
        let mut input = Input::new(bytes);
        // This bounds what is allocated below.
        if blocks == 0 || (blocks as u64).saturating_mul(BLOCK_BYTES_MIN as u64) > data_bytes {
            return Err(input.damage("an index of as many blocks as fit the table"));
        }
        let mut firsts = vec![[0; KEY_INTS_MAX]; blocks];
        let mut values = Vec::with_capacity(blocks);
        for column in 0..schema.key_ints {
            values.clear();
            Ints::parse(&mut input, blocks)?.decode(bytes, blocks, &mut values);
            for (first, value) in firsts.iter_mut().zip(&values) {
                first[column] = *value;
            }
        }
        let separators = Strings::parse(&mut input, blocks)?;
        let offsets = parse_offsets(&mut input, blocks, data_bytes)?;
        let partitions = blocks.div_ceil(FILTER_BLOCKS);
        let filter_offsets = parse_offsets(&mut input, partitions, filter_bytes)?;
        let mut last = KeyBuffer::default();
        for int in &mut last.ints[..schema.key_ints] {
            *int = input.varint()?;
        }
        last.string = input.bytes(1 << 16, "a key's string within bounds")?.to_vec();
        input.end()?;
        let index = Self {
            buckets: Buckets::of(&firsts, schema.group_ints),
            spread: schema.hash_of.map(|_| schema.key_ints - 1),
            firsts,
            separators,
            bytes: bytes.to_vec(),
            offsets,
            filter_offsets,
            last,
        };
        if !(1..blocks).all(|block| index.separator(block - 1).key() < index.separator(block).key())
        {
            return Err(Damage { offset: 0, what: "separators that ascend" });
        }
        Ok(index)
    }

    /// How many blocks there are.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.firsts.len()
    }

    fn separator(&self, block: usize) -> KeyBuffer {
        let mut string = Vec::new();
        self.separators.append(&self.bytes, block, &mut string);
        KeyBuffer { ints: self.firsts[block], string }
    }

    /// The key from which on `block` holds records; at most its first key.
    #[must_use]
    pub fn first(&self, block: usize) -> KeyBuffer {
        self.separator(block)
    }

    /// The last key of the table.
    #[must_use]
    pub fn last(&self) -> Key<'_> {
        self.last.key()
    }

    /// The block that holds `key` if any does; the first block for keys before it.
    #[inline]
    #[must_use]
    pub fn block_of(&self, key: &Key) -> usize {
        self.block_before(key, self.after(key))
    }

    /// As [`Index::block_of`], of a key that is not before block `from`: as fast as it is near.
    #[inline]
    pub fn block_from(&self, from: usize, key: &Key) -> usize {
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

    /// The block that holds `key` if any does, where `after` blocks start at or before its integers.
    #[inline]
    fn block_before(&self, key: &Key, after: usize) -> usize {
        if after == 0 || self.firsts[after - 1] != key.ints {
            return after.saturating_sub(1);
        }
        self.block_of_tied(key, after)
    }

    /// The last integers of the blocks' first keys.
    pub fn first_orders(&self, schema: &Schema) -> impl ExactSizeIterator<Item = u64> {
        self.firsts.iter().map(|first| schema.order(first))
    }

    /// Blocks that all start with keys of the group of `key`, one of which, or the one before them,
    /// holds the key if any does; only where the last integers of keys are evenly spread.
    #[inline]
    pub fn group_blocks(&self, key: &Key) -> Option<Range<usize>> {
        let order = self.spread?;
        let (blocks, is_group) = self.buckets.range(key.ints[0]);
        let first = self.firsts.get(blocks.start)?;
        let is_own = is_group && (0..order).all(|at| first[at] == key.ints[at]);
        is_own.then_some(blocks)
    }

    /// How many blocks start at or before the integers of `key`.
    #[inline]
    fn after(&self, key: &Key) -> usize {
        let Range { start: mut low, end: mut high } = self.buckets.range(key.ints[0]).0;
        if low == high {
            return low;
        }
        // Most buckets are of one group, whose blocks are evenly spread.
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

    /// As [`Index::block_of`], where the integers of block `after - 1` are the key's. Neighbouring
    /// blocks, perhaps all, may share them; then their separators decide.
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

    /// Where `block` is in the table.
    #[must_use]
    pub fn place(&self, block: usize) -> Range<u64> {
        self.offsets[block]..self.offsets[block + 1]
    }

    /// Where the filter of `block` is in the tail.
    #[must_use]
    pub fn filter_place(&self, block: usize) -> Range<usize> {
        let partition = block / FILTER_BLOCKS;
        self.filter_offsets[partition] as usize..self.filter_offsets[partition + 1] as usize
    }

    /// Verifies every filter partition of `filters`.
    pub fn check_filters(&self, filters: &[u8]) -> Result<(), Damage> {
        for pair in self.filter_offsets.windows(2) {
            let (start, end) = (pair[0] as usize, pair[1] as usize);
            filter::check(&filters[start..end])
                .map_err(|damage| Damage { offset: start + damage.offset, ..damage })?;
        }
        Ok(())
    }

    /// Memory that the index takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.firsts.capacity() * size_of::<[u64; KEY_INTS_MAX]>()
            + self.bytes.len()
            + self.buckets.starts.capacity() * 4
            + self.separators.heap_bytes()
            + (self.offsets.capacity() + self.filter_offsets.capacity()) * 8
    }
}

/// Blocks by the first integer of their first keys, so that a search need not begin with all.
#[derive(Debug)]
struct Buckets {
    low: u64,
    high: u64,
    shift: u32,
    /// The first block of each bucket, in all but the highest bit, which says that the bucket's
    /// blocks, if any, all start with keys of one group; one more entry for the end.
    starts: Vec<u32>,
}

/// Set if all blocks of a bucket start with keys of one group.
const ONE_GROUP: u32 = 1 << 31;
const _: () = assert!(TABLE_DATA_BYTES_MAX / (BLOCK_BYTES_MIN as u64) < ONE_GROUP as u64);

impl Buckets {
    fn of(firsts: &[[u64; KEY_INTS_MAX]], group_ints: usize) -> Self {
        let (low, high) = (firsts[0][0], firsts[firsts.len() - 1][0]);
        // About as many buckets as blocks. Hostile keys may not ascend; the caller finds out.
        let range = high.saturating_sub(low);
        let shift = (u64::BITS - range.leading_zeros()).saturating_sub(firsts.len().ilog2() + 1);
        let count = (range >> shift) as usize + 1;
        let mut starts = Vec::with_capacity(count + 1);
        for (block, first) in firsts.iter().enumerate() {
            let bucket = (first[0].saturating_sub(low) >> shift) as usize;
            while starts.len() <= bucket.min(count - 1) {
                starts.push(block as u32);
            }
        }
        starts.resize(count + 1, firsts.len() as u32);
        for bucket in 0..count {
            let blocks = &firsts[starts[bucket] as usize..starts[bucket + 1] as usize];
            let groups = blocks.first().zip(blocks.last());
            if groups.is_some_and(|(a, b)| a[..group_ints] == b[..group_ints]) {
                starts[bucket] |= ONE_GROUP;
            }
        }
        Self { low, high, shift, starts }
    }

    /// Blocks of which the last that starts at or before keys with first integer `int` is one, or
    /// comes just before; and whether there are any, and all start with keys of one group.
    #[inline]
    fn range(&self, int: u64) -> (Range<usize>, bool) {
        if int < self.low {
            return (0..0, false);
        }
        let bucket = (int.min(self.high) - self.low) >> self.shift;
        let bucket = (bucket as usize).min(self.starts.len() - 2);
        let start = self.starts[bucket];
        let range = (start & !ONE_GROUP) as usize..(self.starts[bucket + 1] & !ONE_GROUP) as usize;
        (range, start & ONE_GROUP != 0)
    }
}

/// Reads `count` sizes and returns where each starts, if they add up to `total`.
fn parse_offsets(input: &mut Input, count: usize, total: u64) -> Result<Vec<u64>, Damage> {
    let at = input.at();
    let wrong = Damage { offset: at, what: "sizes that add up to the whole" };
    let mut sizes = Vec::with_capacity(count);
    Ints::parse(input, count)?.decode(input.whole(), count, &mut sizes);
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

    fn index(firsts: &[(u64, u64)]) -> Index {
        let mut builder = IndexBuilder::new(&SPREAD);
        for (group, hash) in firsts {
            let first = Key { ints: [*group, *hash, 0], string: b"" };
            builder.add_block(false, &first, BLOCK_BYTES_MIN);
        }
        builder.add_filter(1);
        let (mut bytes, blocks) = (Vec::new(), firsts.len());
        builder.encode(&Key::LAST, &mut bytes);
        let data_bytes = (blocks * BLOCK_BYTES_MIN) as u64;
        Index::decode(&SPREAD, &bytes, blocks, data_bytes, 1).expect("our own index")
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
                if let Some(blocks) = index.group_blocks(&key) {
                    prop_assert!(!blocks.is_empty());
                    prop_assert!(firsts[blocks.clone()].iter().all(|first| first.0 == group));
                    prop_assert!(blocks.start == 0 || firsts[blocks.start - 1].0 != group);
                    prop_assert!(firsts.get(blocks.end).is_none_or(|first| first.0 != group));
                }
            }
        }
    }
}
