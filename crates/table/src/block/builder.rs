//! Block builder: collects records in key order and encodes them as one block.

use super::{BLOCK_ROWS_MAX, BLOCK_TEXT_BYTES_MIN};
use crate::column::{Ints, StringsBuilder};
use crate::schema::{KEY_INTS_MAX, KeyBuffer, Row, Schema};

/// Records being collected for one block, in stored form.
#[derive(Debug)]
pub struct BlockBuilder {
    schema: &'static Schema,
    ints: Vec<Vec<u64>>,
    strings: Vec<StringsBuilder>,
    rows: usize,
}

impl BlockBuilder {
    /// An empty block of `schema`.
    #[must_use]
    pub fn new(schema: &'static Schema) -> Self {
        Self {
            schema,
            ints: vec![Vec::with_capacity(BLOCK_ROWS_MAX); schema.ints.len()],
            strings: schema.strings.iter().map(|_| StringsBuilder::default()).collect(),
            rows: 0,
        }
    }

    /// Adds a record in stored form, whose key is over all others'.
    #[inline]
    pub fn push(&mut self, row: &Row) {
        for (column, value) in self.ints.iter_mut().zip(row.ints) {
            column.push(value);
        }
        for (column, string) in self.strings.iter_mut().zip(row.strings) {
            column.push(string);
        }
        self.rows += 1;
    }

    /// How many records there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Sets `key` to the key of the last record.
    pub fn last_key(&self, key: &mut KeyBuffer) {
        key.ints = [0; KEY_INTS_MAX];
        for (int, column) in key.ints[..self.schema.key_ints].iter_mut().zip(&self.ints) {
            *int = *column.last().expect("the block has records");
        }
        key.string.clear();
        key.string.extend_from_slice(self.strings[0].last());
    }

    /// Whether the block should be closed before another record.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.rows >= BLOCK_ROWS_MAX
            || self.strings.iter().map(StringsBuilder::text_bytes).sum::<usize>()
                >= BLOCK_TEXT_BYTES_MIN
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
        for (index, column) in self.ints.iter_mut().enumerate() {
            Ints::encode(column, index + 1 == self.schema.key_ints, out);
            column.clear();
        }
        for column in &mut self.strings {
            column.encode(out);
            column.clear();
        }
        let checksum = crc32c::crc32c(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
        self.rows = 0;
    }
}
