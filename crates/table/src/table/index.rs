//! Index: where each block of a table is, and from which key on.
//!
//! Layout: docs/format/table.md, "Index". This file is its only encoder and decoder.
//! Invariants: block k holds exactly the keys from separator k up to separator k + 1. A separator
//! has a string only where the integers of two neighbouring keys are equal.

use std::ops::Range;

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
        let index =
            Self { firsts, separators, bytes: bytes.to_vec(), offsets, filter_offsets, last };
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
        let after = self.firsts.partition_point(|first| *first <= key.ints);
        if after == 0 || self.firsts[after - 1] != key.ints {
            return after.saturating_sub(1);
        }
        self.block_of_tied(key, after)
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
            + self.separators.heap_bytes()
            + (self.offsets.capacity() + self.filter_offsets.capacity()) * 8
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
