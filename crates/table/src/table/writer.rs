// SPDX-License-Identifier: Apache-2.0
//! Table writer: streams sorted records, or blocks encoded elsewhere, into one table.

use esker_base::fuse_filter;
use esker_base::store::ObjectWriter;
use esker_base::{Error, Kind, Result};

use super::FILTER_BLOCKS;
use super::footer::{FOOTER_BYTES, TableFooter};
use super::index::IndexBuilder;
use super::{TABLE_BYTES, TABLE_DATA_BYTES_MAX, TAIL_BYTES_MAX};
use crate::block::{BlockBuilder, DecodedBlock};
use crate::column::TEXT_BYTES_MAX;
use crate::schema::{Key, KeyBuffer, Row, STRINGS_MAX, Schema, check_text_bytes};

/// Encoded bytes are passed to the store in pieces of about this size.
const PIECE_BYTES: usize = 1 << 20;

/// The properties of a finished table that a manifest records.
#[derive(Clone, Debug)]
pub struct TableSummary {
    /// Bytes of the whole object.
    pub bytes: u64,
    /// Bytes of its tail.
    pub tail_bytes: u64,
    /// Records in it.
    pub rows: u64,
    /// Highest sequence number in it.
    pub seq_max: u64,
    /// First key.
    pub first: KeyBuffer,
    /// Last key.
    pub last: KeyBuffer,
}

/// A table being written. Dropping it unfinished leaves no object.
pub struct TableWriter {
    schema: &'static Schema,
    object: Box<dyn ObjectWriter>,
    block: BlockBuilder,
    /// First key of the block being collected, and whether its integers equal those of the previous
    /// key.
    block_first: KeyBuffer,
    block_ties: bool,
    index: IndexBuilder,
    /// Digests of the keys of the filter partition being collected.
    digests: Vec<u64>,
    filters: Vec<u8>,
    pending: Vec<u8>,
    written: u64,
    rows: u64,
    seq_max: u64,
    first: Option<KeyBuffer>,
    /// Last key of the last closed block.
    last: KeyBuffer,
    full: bool,
}

impl TableWriter {
    /// Starts a table of `schema` in `object`.
    #[must_use]
    pub fn new(schema: &'static Schema, object: Box<dyn ObjectWriter>) -> Self {
        Self {
            schema,
            object,
            block: BlockBuilder::new(schema),
            block_first: KeyBuffer::default(),
            block_ties: false,
            index: IndexBuilder::new(schema),
            digests: Vec::new(),
            filters: Vec::new(),
            pending: Vec::with_capacity(PIECE_BYTES + (64 << 10)),
            written: 0,
            rows: 0,
            seq_max: 0,
            first: None,
            last: KeyBuffer::default(),
            full: false,
        }
    }

    /// Bytes of the blocks so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    /// Returns whether the table should be closed before another record: its blocks or filters take
    /// [`TABLE_BYTES`], or its index is about to exceed the readers' bound on text.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Adds a record in stored form. Its key must be greater than all before it.
    ///
    /// # Errors
    /// `TooLarge` if it is longer than readers accept, which happens only with a hostile table; and
    /// errors of the store.
    #[inline]
    pub fn push(&mut self, row: &Row) -> Result<()> {
        check_text_bytes(&row.strings)?;
        let key = self.schema.key(row);
        if self.block.is_full() {
            self.close_block()?;
        }
        if self.block.rows() == 0 {
            self.start_block(&key)?;
        }
        self.add_key(&key, row.ints[self.schema.seq()]);
        self.block.push(row);
        Ok(())
    }

    /// Adds an encoded block. The keys of its records, `decoded`, must be greater than all before
    /// them.
    ///
    /// # Errors
    /// As [`TableWriter::push`].
    pub fn push_block(&mut self, encoded: &[u8], decoded: &DecodedBlock) -> Result<()> {
        self.close_block()?;
        let last = decoded.key(self.schema, decoded.rows() - 1);
        for key in [decoded.key(self.schema, 0), last] {
            check_key(&key)?;
        }
        self.start_block(&decoded.key(self.schema, 0))?;
        for row in 0..decoded.rows() {
            let seq = decoded.int(self.schema.seq(), row);
            self.add_key(&decoded.key(self.schema, row), seq);
        }
        self.pending.extend_from_slice(encoded);
        self.last = last.into();
        self.end_block(encoded.len())
    }

    fn start_block(&mut self, key: &Key) -> Result<()> {
        if self.first.is_some() && self.last.key() >= *key {
            // Only the blocks of a hostile table that is being merged get here.
            return Err(Error::new(Kind::Corrupt, "records being merged are not in key order"));
        }
        self.block_ties = self.first.is_some() && self.last.ints == key.ints;
        self.block_first.ints = key.ints;
        self.block_first.string.clear();
        self.block_first.string.extend_from_slice(key.string);
        if self.first.is_none() {
            self.first = Some(self.block_first.clone());
        }
        Ok(())
    }

    #[inline]
    fn add_key(&mut self, key: &Key, seq: u64) {
        if self.schema.has_filters {
            self.digests.push(self.schema.digest(key));
        }
        self.rows += 1;
        self.seq_max = self.seq_max.max(seq);
    }

    fn close_block(&mut self) -> Result<()> {
        if self.block.rows() == 0 {
            return Ok(());
        }
        self.block.last_key(&mut self.last);
        let start = self.pending.len();
        self.block.finish(&mut self.pending);
        self.end_block(self.pending.len() - start)
    }

    fn end_block(&mut self, bytes: usize) -> Result<()> {
        self.index.add_block(self.block_ties, &self.block_first.key(), bytes);
        if self.index.blocks().is_multiple_of(FILTER_BLOCKS) {
            self.close_filter();
        }
        if self.pending.len() >= PIECE_BYTES {
            self.write_pending()?;
        }
        self.full = self.bytes().max(self.filters.len() as u64) >= TABLE_BYTES
            || self.index.text_bytes() >= TEXT_BYTES_MAX / 2;
        if self.bytes() > TABLE_DATA_BYTES_MAX {
            let what = "a table over its limit: its writer closes it once it is full";
            return Err(Error::new(Kind::TooLarge, what));
        }
        Ok(())
    }

    fn close_filter(&mut self) {
        let start = self.filters.len();
        if self.schema.has_filters {
            fuse_filter::encode(&mut self.digests, &mut self.filters);
        }
        self.index.add_filter(self.filters.len() - start);
    }

    fn write_pending(&mut self) -> Result<()> {
        self.object.write(&self.pending)?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Writes the tail and makes the table visible and durable.
    ///
    /// # Errors
    /// `Invalid` if no record was added, and errors of the store.
    pub fn finish(mut self) -> Result<TableSummary> {
        self.close_block()?;
        if !self.index.blocks().is_multiple_of(FILTER_BLOCKS) {
            self.close_filter();
        }
        let Some(first) = self.first.take() else {
            return Err(Error::new(Kind::Invalid, "a table needs at least one record"));
        };
        self.write_pending()?;
        let mut tail = std::mem::take(&mut self.filters);
        let filter_bytes = tail.len() as u64;
        self.index.encode(&self.last.key(), &mut tail);
        if tail.len() as u64 + FOOTER_BYTES as u64 > TAIL_BYTES_MAX {
            let what = format!("a table with a tail of {} bytes; nobody could read it", tail.len());
            return Err(Error::new(Kind::TooLarge, what));
        }
        let footer = TableFooter {
            schema: self.schema.id,
            blocks: u32::try_from(self.index.blocks()).expect("TABLE_BYTES bounds the blocks"),
            rows: self.rows,
            seq_max: self.seq_max,
            filter_bytes,
            index_bytes: tail.len() as u64 - filter_bytes,
            tail_checksum: crc32c::crc32c(&tail),
        };
        footer.encode(&mut tail);
        self.object.write(&tail)?;
        self.object.finish()?;
        Ok(TableSummary {
            bytes: self.written + tail.len() as u64,
            tail_bytes: tail.len() as u64,
            rows: self.rows,
            seq_max: self.seq_max,
            first,
            last: self.last,
        })
    }
}

/// Fails if the string of `key` is longer than readers accept.
fn check_key(key: &Key) -> Result<()> {
    let mut strings = [&[][..]; STRINGS_MAX];
    strings[0] = key.string;
    check_text_bytes(&strings)
}
