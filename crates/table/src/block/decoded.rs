// SPDX-License-Identifier: Apache-2.0
//! Decoded block: records column by column, in reused memory, for scans and merges.

use std::cell::Cell;

use crate::schema::{INTS_MAX, KEY_INTS_MAX, Key, Row, STRINGS_MAX, Schema};

/// Sorted records in stored form, each column decoded. A column in which all records agree is kept
/// as that one value: most columns are, and writing the value out for every record would cost more
/// than the rest of decoding.
#[derive(Debug, Default)]
pub struct DecodedBlock {
    pub(super) rows: usize,
    /// Values of the columns in which all records agree.
    pub(super) constants: [u64; INTS_MAX],
    /// The columns in which records differ, as bits.
    pub(super) varies: u32,
    /// Values of the columns in which records differ; empty for the others.
    pub(super) ints: Vec<Vec<u64>>,
    pub(super) strings: [DecodedStrings; STRINGS_MAX],
    /// The column and the bytes of the last search, and whether a string had one of them.
    pub(super) searched: Cell<Option<(usize, [u8; 2], bool)>>,
}

/// Strings, concatenated.
#[derive(Debug, Default)]
pub(super) struct DecodedStrings {
    pub(super) text: Vec<u8>,
    /// The end of each string; may be empty if all strings are.
    pub(super) ends: Vec<u32>,
}

impl DecodedBlock {
    /// Removes all records but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.searched.set(None);
        (self.rows, self.varies) = (0, 0);
        self.ints.iter_mut().for_each(Vec::clear);
        for texts in &mut self.strings {
            texts.text.clear();
            texts.ends.clear();
        }
    }

    /// Adds a record in stored form.
    pub(crate) fn push(&mut self, schema: &Schema, row: &Row) {
        self.ints.resize(schema.ints.len(), Vec::new());
        if self.rows == 0 {
            self.constants = row.ints;
        }
        for (column, values) in self.ints.iter_mut().enumerate() {
            let int = row.ints[column];
            if self.varies >> column & 1 == 0 && int != self.constants[column] {
                self.varies |= 1 << column;
                values.resize(self.rows, self.constants[column]);
            }
            if self.varies >> column & 1 == 1 {
                values.push(int);
            }
        }
        self.rows += 1;
        self.searched.set(None);
        for (texts, string) in self.strings[..schema.strings.len()].iter_mut().zip(row.strings) {
            texts.text.extend_from_slice(string);
            texts.ends.resize(self.rows - 1, 0);
            texts.ends.push(texts.text.len() as u32);
        }
    }

    /// The number of records.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The stored integers of `column`: one if all records are known to agree, else one for each.
    #[inline]
    #[must_use]
    pub fn values(&self, column: usize) -> &[u64] {
        match self.varies >> column & 1 == 1 {
            true => &self.ints[column],
            false => std::slice::from_ref(&self.constants[column]),
        }
    }

    /// True if a string of `column`, of any record, has one of two `bytes`. Strings lie one after
    /// another, so that a search of all takes a fraction of the time of a search of each; the block
    /// remembers the answer of the last one.
    #[inline]
    #[must_use]
    pub fn has_byte(&self, column: usize, bytes: [u8; 2]) -> bool {
        match self.searched.get() {
            Some((searched, for_bytes, found)) if (searched, for_bytes) == (column, bytes) => found,
            _ => self.search(column, bytes),
        }
    }

    #[inline(never)]
    fn search(&self, column: usize, bytes: [u8; 2]) -> bool {
        let found = memchr::memchr2(bytes[0], bytes[1], &self.strings[column].text).is_some();
        self.searched.set(Some((column, bytes, found)));
        found
    }

    /// The string of `column` at `row`; empty if the schema has no such column.
    #[inline(always)]
    #[must_use]
    pub fn string(&self, column: usize, row: usize) -> &[u8] {
        let texts = &self.strings[column];
        let Some(&end) = texts.ends.get(row) else {
            return &[];
        };
        let start = if row == 0 { 0 } else { texts.ends[row - 1] };
        &texts.text[start as usize..end as usize]
    }

    /// The record at `row`, in stored form.
    #[inline]
    #[must_use]
    pub fn row(&self, row: usize) -> Row<'_> {
        let strings = std::array::from_fn(|column| self.string(column, row));
        Row { ints: self.ints(row), strings }
    }

    /// The stored integer of `column` at `row`.
    #[inline(always)]
    #[must_use]
    pub fn int(&self, column: usize, row: usize) -> u64 {
        let varies = self.varies >> column & 1 == 1;
        if varies { self.ints[column][row] } else { self.constants[column] }
    }

    /// The columns in which records differ, as bits.
    #[inline(always)]
    #[must_use]
    pub fn varies(&self) -> u32 {
        self.varies
    }

    /// The stored integer of `column` in all records; `column` must not be in
    /// [`DecodedBlock::varies`].
    #[inline(always)]
    #[must_use]
    pub fn shared(&self, column: usize) -> u64 {
        self.constants[column]
    }

    /// The stored integers at `row`.
    #[inline]
    #[must_use]
    pub(crate) fn ints(&self, row: usize) -> [u64; INTS_MAX] {
        let mut ints = self.constants;
        let mut varies = self.varies;
        while varies != 0 {
            let column = varies.trailing_zeros() as usize;
            varies &= varies - 1;
            ints[column] = self.ints[column][row];
        }
        ints
    }

    /// The integers of the key at `row`.
    #[inline]
    #[must_use]
    pub(crate) fn key_ints(&self, schema: &Schema, row: usize) -> [u64; KEY_INTS_MAX] {
        std::array::from_fn(|at| if at < schema.key_ints { self.int(at, row) } else { 0 })
    }

    /// The key at `row`.
    #[inline]
    #[must_use]
    pub fn key(&self, schema: &Schema, row: usize) -> Key<'_> {
        Key { ints: self.key_ints(schema, row), string: self.string(0, row) }
    }

    /// The first row whose key is at least `key`.
    #[must_use]
    pub(crate) fn lower_bound(&self, schema: &Schema, key: &Key) -> usize {
        let (mut low, mut high) = (0, self.rows);
        while low < high {
            let middle = (low + high) / 2;
            if self.key(schema, middle) < *key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Returns `rows`, sorted records in stored form, as a decoded block.
#[cfg(feature = "internals")]
#[must_use]
pub fn decoded_block(schema: &Schema, rows: &[Row]) -> DecodedBlock {
    let mut block = DecodedBlock::default();
    rows.iter().for_each(|row| block.push(schema, row));
    block
}
