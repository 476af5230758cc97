//! Decoded block: records column by column in reused memory, as scans and merges pass them on.

use crate::schema::{KEY_INTS_MAX, Key, Row, STRINGS_MAX, Schema};

/// Sorted records in stored form, each column decoded.
#[derive(Debug, Default)]
pub struct DecodedBlock {
    pub(super) rows: usize,
    pub(super) ints: Vec<Vec<u64>>,
    pub(super) strings: [Texts; STRINGS_MAX],
}

/// Strings one after the other.
#[derive(Debug, Default)]
pub(super) struct Texts {
    pub(super) text: Vec<u8>,
    /// Where each string ends.
    pub(super) ends: Vec<u32>,
}

impl DecodedBlock {
    /// Forgets all records, keeping the memory.
    pub fn clear(&mut self) {
        self.rows = 0;
        self.ints.iter_mut().for_each(Vec::clear);
        for texts in &mut self.strings {
            texts.text.clear();
            texts.ends.clear();
        }
    }

    /// Adds a record in stored form.
    pub fn push(&mut self, schema: &Schema, row: &Row) {
        self.rows += 1;
        self.ints.resize(schema.ints.len(), Vec::new());
        for (values, int) in self.ints.iter_mut().zip(row.ints) {
            values.push(int);
        }
        for (texts, string) in self.strings[..schema.strings.len()].iter_mut().zip(row.strings) {
            texts.text.extend_from_slice(string);
            texts.ends.push(texts.text.len() as u32);
        }
    }

    /// How many records there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The stored integers of `column`.
    #[must_use]
    pub fn column(&self, column: usize) -> &[u64] {
        &self.ints[column]
    }

    /// The string of `column` at `row`; empty if the schema has no such column.
    #[inline]
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
        let mut out = Row::default();
        for (int, column) in out.ints.iter_mut().zip(&self.ints) {
            *int = column[row];
        }
        for (column, string) in out.strings.iter_mut().enumerate() {
            *string = self.string(column, row);
        }
        out
    }

    /// The key at `row`.
    #[inline]
    #[must_use]
    pub fn key(&self, schema: &Schema, row: usize) -> Key<'_> {
        let mut ints = [0; KEY_INTS_MAX];
        for (int, column) in ints[..schema.key_ints].iter_mut().zip(&self.ints) {
            *int = column[row];
        }
        Key { ints, string: self.string(0, row) }
    }

    /// The first row whose key is at least `key`.
    #[must_use]
    pub fn lower_bound(&self, schema: &Schema, key: &Key) -> usize {
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
