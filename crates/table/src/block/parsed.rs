// SPDX-License-Identifier: Apache-2.0
//! Parsed block: finds and reads records without decoding the rest.
//!
//! In a large table a point read misses the processor's cache at every line that it touches. So
//! columns of one value are kept as that value, side by side, and only the few others have a
//! descriptor.

use std::cmp::Ordering;

use esker_base::Bytes;
use esker_base::wire::{WireDamage, WireInput};

use super::{BLOCK_BYTES_MAX, BLOCK_ROWS_MAX, HEADER_BYTES};
use super::{DecodedBlock, order_search};
use crate::column::{ParsedInts, ParsedStrings};
use crate::memory::prefetch;
use crate::schema::{INTS_MAX, KEY_INTS_MAX, Key, RowBuffer, Schema};

/// A block whose checksum and structure have been verified.
#[derive(Debug)]
pub struct Block {
    pub(super) schema: &'static Schema,
    bytes: Bytes,
    rows: usize,
    /// Values of the integer columns in which all rows agree, in stored form.
    constants: [u64; INTS_MAX],
    /// The columns in which rows differ, as bits; their descriptors follow one another.
    varies: u32,
    ints: Vec<ParsedInts>,
    pub(super) strings: Vec<ParsedStrings>,
    /// The last integer of the first and of the last key.
    pub(super) order_bounds: (u64, u64),
}

impl Block {
    /// Verifies and parses `bytes`, one encoded block and nothing else.
    pub fn parse(schema: &'static Schema, bytes: Bytes) -> Result<Self, WireDamage> {
        let mut input = WireInput::new(&bytes);
        if bytes.len() > BLOCK_BYTES_MAX {
            return Err(input.damage("a block within bounds"));
        }
        let checksum = input.u32()?;
        if checksum != crc32c::crc32c(&bytes[4..]) {
            return Err(WireDamage { offset: 0, what: "a block's checksum" });
        }
        let rows = usize::from(input.u16()?);
        if rows == 0 || rows > BLOCK_ROWS_MAX {
            return Err(WireDamage { offset: HEADER_BYTES - 2, what: "a block's number of rows" });
        }
        let (mut constants, mut varies) = ([0; INTS_MAX], 0u32);
        let mut ints = Vec::new();
        for (column, constant) in constants[..schema.ints.len()].iter_mut().enumerate() {
            match ParsedInts::parse(&mut input, rows)? {
                ParsedInts::Constant(value) => *constant = value,
                other => {
                    varies |= 1 << column;
                    ints.push(other);
                }
            }
        }
        ints.shrink_to_fit();
        let mut strings = Vec::with_capacity(schema.strings.len());
        for _ in schema.strings {
            strings.push(ParsedStrings::parse(&mut input, rows)?);
        }
        input.end()?;
        let order_bounds = (0, 0);
        let mut block =
            Self { schema, bytes, rows, constants, varies, ints, strings, order_bounds };
        let order = schema.key_ints - 1;
        block.order_bounds = (block.int(order, 0), block.int(order, rows - 1));
        Ok(block)
    }

    /// The number of records.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Memory that the block takes, in bytes, for a cache's budget.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len()
            + size_of::<Self>()
            + self
                .ints
                .iter()
                .map(|column| size_of::<ParsedInts>() + column.heap_bytes())
                .sum::<usize>()
            + self
                .strings
                .iter()
                .map(|c| size_of::<ParsedStrings>() + c.heap_bytes())
                .sum::<usize>()
    }

    /// The stored integer of `column` at `row`.
    #[inline]
    fn int(&self, column: usize, row: usize) -> u64 {
        match self.varying(column) {
            Some(ints) => ints.get(&self.bytes, row),
            None => self.constants[column],
        }
    }

    /// The descriptor of `column`, unless all rows agree.
    #[inline]
    pub(super) fn varying(&self, column: usize) -> Option<&ParsedInts> {
        let before = self.varies & ((1 << column) - 1);
        let varies = self.varies >> column & 1 == 1;
        varies.then(|| &self.ints[before.count_ones() as usize])
    }

    /// Returns the value of `column` that all rows share, in stored form, if the encoding shows
    /// one.
    #[must_use]
    pub fn constant(&self, column: usize) -> Option<u64> {
        (self.varies >> column & 1 == 0).then(|| self.constants[column])
    }

    /// Appends the stored integers of `column` to `out`.
    pub fn column(&self, column: usize, out: &mut Vec<u64>) {
        match self.varying(column) {
            Some(ints) => ints.decode(&self.bytes, self.rows, out),
            None => out.resize(out.len() + self.rows, self.constants[column]),
        }
    }

    /// Compares the key at `row` with `key`.
    fn compare(&self, row: usize, key: &Key) -> Ordering {
        for column in 0..self.schema.key_ints {
            match self.int(column, row).cmp(&key.ints[column]) {
                Ordering::Equal => {}
                unequal => return unequal,
            }
        }
        self.strings[0].compare(&self.bytes, row, key.string)
    }

    /// Returns the first row whose key is at least `key`.
    #[must_use]
    pub fn lower_bound(&self, key: &Key) -> usize {
        let last = self.schema.key_ints - 1;
        if key.string.is_empty() && self.is_group(key) {
            return self.hash_lower_bound(last, key.ints[last]);
        }
        let (mut low, mut high) = (0, self.rows);
        while low < high {
            let middle = (low + high) / 2;
            if self.compare(middle, key) == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns whether all rows agree with `key` in all key integers but the last.
    fn is_group(&self, key: &Key) -> bool {
        let last = self.schema.key_ints - 1;
        (0..last).all(|column| self.constant(column) == Some(key.ints[column]))
    }

    /// Prefetches the column descriptors of a block that is about to be searched.
    #[inline]
    pub(crate) fn prefetch_columns(&self) {
        prefetch(self.ints.as_ptr());
        prefetch(self.ints.as_ptr().wrapping_add(1));
    }

    /// Prefetches the records near the expected position of `key`.
    #[inline]
    pub(crate) fn prefetch_near(&self, key: &Key) {
        let (below, above) = self.order_bounds;
        let order = key.ints[self.schema.key_ints - 1];
        let share = order.saturating_sub(below) as f64 / above.saturating_sub(below).max(1) as f64;
        self.prefetch(((share * (self.rows - 1) as f64) as usize).min(self.rows - 1));
    }

    /// Returns the row whose key equals `key`.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<usize> {
        let last = self.schema.key_ints - 1;
        if self.schema.hash_of.is_none() || !self.is_group(key) {
            let row = self.lower_bound(key);
            return (row < self.rows && self.compare(row, key) == Ordering::Equal).then_some(row);
        }
        let mut row = self.hash_lower_bound(last, key.ints[last]);
        while row < self.rows && self.int(last, row) == key.ints[last] {
            if self.strings[0].equals(&self.bytes, row, key.string) {
                return Some(row);
            }
            row += 1;
        }
        None
    }

    /// Returns the first row whose `column` is at least `hash`; fast if the column is evenly
    /// spread. Starts at the position interpolated from the bounds, and searches from there in
    /// growing steps.
    fn hash_lower_bound(&self, column: usize, hash: u64) -> usize {
        let (below, above) = self.order_bounds;
        if hash <= below {
            return 0;
        }
        if hash > above {
            return self.rows;
        }
        let guess = order_search::guess(self.rows, self.order_bounds, hash);
        self.prefetch(guess);
        let value = |row| Some(self.int(column, row));
        order_search::lower_bound(self.rows, guess, hash, value).expect("all rows can be read")
    }

    /// Hints to the processor that the record at `row` is read soon.
    fn prefetch(&self, row: usize) {
        for ints in &self.ints {
            if let Some(at) = ints.bit_offset(row) {
                prefetch(self.bytes.as_ptr().wrapping_add(at));
            }
        }
        self.strings[0].prefetch(&self.bytes, row);
    }

    /// The integers of the key at `row`.
    #[must_use]
    pub fn key_ints(&self, row: usize) -> [u64; KEY_INTS_MAX] {
        let mut ints = [0; KEY_INTS_MAX];
        for (column, int) in ints[..self.schema.key_ints].iter_mut().enumerate() {
            *int = self.int(column, row);
        }
        ints
    }

    /// Decodes all records into `out`, in stored form.
    ///
    /// # Panics
    /// If `out` is not empty.
    pub fn decode(&self, out: &mut DecodedBlock) {
        assert_eq!(out.rows, 0, "a block is decoded into an empty one");
        out.rows = self.rows;
        out.searched.set(None);
        (out.constants, out.varies) = (self.constants, self.varies);
        out.ints.resize(self.schema.ints.len(), Vec::new());
        let mut varies = self.varies;
        for ints in &self.ints {
            ints.decode(&self.bytes, self.rows, &mut out.ints[varies.trailing_zeros() as usize]);
            varies &= varies - 1;
        }
        for (column, texts) in self.strings.iter().zip(&mut out.strings) {
            if !column.is_empty() {
                column.decode(&self.bytes, self.rows, &mut texts.text, &mut texts.ends);
            }
        }
    }

    /// The encoded block.
    #[must_use]
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Reads the integers at `row`, restored from stored form, and the strings if `with_strings`.
    pub fn read(&self, row: usize, with_strings: bool, out: &mut RowBuffer) {
        out.ints = self.constants;
        let mut varies = self.varies;
        for ints in &self.ints {
            out.ints[varies.trailing_zeros() as usize] = ints.get(&self.bytes, row);
            varies &= varies - 1;
        }
        self.schema.restore(&mut out.ints);
        if with_strings {
            for (column, string) in self.strings.iter().zip(&mut out.strings) {
                string.clear();
                column.append(&self.bytes, row, string);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::BlockBuilder;
    use super::*;
    use crate::schema::record::{self, RECORD};

    fn sample() -> (Vec<Vec<u8>>, Vec<u8>) {
        let mut keys: Vec<Vec<u8>> = (0..200u64)
            .map(|i| {
                let spread = (i * i).to_be_bytes();
                spread[8 - (1 + i as usize % 8)..]
                    .iter()
                    .chain(&[7u8][..(i % 2) as usize])
                    .copied()
                    .collect()
            })
            .collect();
        keys.sort();
        keys.dedup();
        let mut builder = BlockBuilder::new(&RECORD);
        for key in &keys {
            let mut row = record::row(key, b"value");
            RECORD.store(&mut row.ints);
            builder.push(&row);
        }
        let mut bytes = Vec::new();
        builder.finish(&mut bytes);
        (keys, bytes)
    }

    #[test]
    fn every_key_is_found_and_no_other() {
        let (keys, bytes) = sample();
        let block = Block::parse(&RECORD, bytes.into()).expect("our own block");
        assert_eq!(block.rows(), keys.len());
        let mut decoded = DecodedBlock::default();
        block.decode(&mut decoded);
        for (row, key) in keys.iter().enumerate() {
            assert_eq!(block.find(&record::key(key)), Some(row));
            assert_eq!(block.lower_bound(&record::key(key)), row);
            assert_eq!(decoded.string(record::VALUE, row), b"value");
            assert_eq!(decoded.key(&RECORD, row), record::key(key));
            let mut absent = key.clone();
            absent.extend_from_slice(b"\x01z");
            assert_eq!(block.find(&record::key(&absent)), None);
        }
    }

    #[test]
    fn every_truncation_and_bit_flip_is_refused() {
        let (_, bytes) = sample();
        for cut in 0..bytes.len() {
            assert!(Block::parse(&RECORD, bytes[..cut].to_vec().into()).is_err());
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(Block::parse(&RECORD, flipped.into()).is_err(), "byte {at}");
        }
    }
}
