// SPDX-License-Identifier: Apache-2.0
//! Block builder: collects records in key order and encodes them as one block.
//!
//! Most columns of neighbouring records hold a single value. Only columns in which the records of
//! this block differ are collected row by row.

use super::{BLOCK_BYTES_MAX, BLOCK_ROWS_MAX, BLOCK_TEXT_BYTES_MIN};
use crate::column::{ParsedInts, StringsBuilder};
use crate::schema::{INTS_MAX, KEY_INTS_MAX, KeyBuffer, Row, STRINGS_MAX, Schema, differences};

/// Records being collected for one block, in stored form.
#[derive(Debug)]
pub struct BlockBuilder {
    schema: &'static Schema,
    /// Integers of the first record.
    first: [u64; INTS_MAX],
    /// Values of the varying columns.
    varying: u32,
    /// Values of those columns.
    ints: Vec<[u64; BLOCK_ROWS_MAX]>,
    strings: [StringsBuilder; STRINGS_MAX],
    text_bytes: usize,
    rows: usize,
}

impl BlockBuilder {
    /// Makes an empty block of `schema`.
    #[must_use]
    pub fn new(schema: &'static Schema) -> Self {
        Self {
            schema,
            first: [0; INTS_MAX],
            varying: 0,
            ints: vec![[0; BLOCK_ROWS_MAX]; schema.ints.len()],
            strings: Default::default(),
            text_bytes: 0,
            rows: 0,
        }
    }

    /// Adds a record in stored form. Its key must be greater than all others.
    ///
    /// # Panics
    /// If there are [`BLOCK_ROWS_MAX`] records already.
    #[inline]
    pub fn push(&mut self, row: &Row) {
        assert!(self.rows < BLOCK_ROWS_MAX, "a full block is closed first");
        if self.rows == 0 {
            self.first = row.ints;
            self.varying = 0;
        }
        let differ = differences(&row.ints, &self.first);
        let mut fresh = differ & !self.varying;
        while fresh != 0 {
            let column = fresh.trailing_zeros() as usize;
            fresh &= fresh - 1;
            self.ints[column][..self.rows].fill(self.first[column]);
        }
        self.varying |= differ;
        let mut varying = self.varying;
        while varying != 0 {
            let column = varying.trailing_zeros() as usize;
            varying &= varying - 1;
            self.ints[column][self.rows] = row.ints[column];
        }
        for (column, string) in self.strings.iter_mut().zip(row.strings) {
            column.push(string);
            self.text_bytes += string.len();
        }
        self.rows += 1;
    }

    /// The number of records.
    #[must_use]
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Sets `key` to the key of the last record.
    ///
    /// # Panics
    /// If there are no records.
    pub(crate) fn last_key(&self, key: &mut KeyBuffer) {
        assert!(self.rows > 0, "the block has records");
        key.ints = [0; KEY_INTS_MAX];
        for (column, int) in key.ints[..self.schema.key_ints].iter_mut().enumerate() {
            let varies = self.varying >> column & 1 == 1;
            *int = if varies { self.ints[column][self.rows - 1] } else { self.first[column] };
        }
        key.string.clear();
        key.string.extend_from_slice(self.strings[0].last());
    }

    /// Returns whether the block should be closed before another record is added.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.rows >= BLOCK_ROWS_MAX || self.text_bytes >= BLOCK_TEXT_BYTES_MIN
    }

    /// Appends the encoded block to `out` and starts an empty one.
    ///
    /// # Panics
    /// If there are no records.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        assert!(self.rows > 0, "a block has records");
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        let rows = u16::try_from(self.rows).expect("BLOCK_ROWS_MAX fits 16 bits");
        out.extend_from_slice(&rows.to_le_bytes());
        for (index, column) in self.ints.iter().enumerate() {
            if self.varying >> index & 1 == 1 {
                ParsedInts::encode(&column[..self.rows], index + 1 == self.schema.key_ints, out);
            } else {
                ParsedInts::encode_constant(self.first[index], out);
            }
        }
        for column in &mut self.strings[..self.schema.strings.len()] {
            column.encode(out);
            column.clear();
        }
        let checksum = crc32c::crc32c(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
        assert!(out.len() - start <= BLOCK_BYTES_MAX, "a block within the readers' bound");
        (self.rows, self.text_bytes) = (0, 0);
    }
}
