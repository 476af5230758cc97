// SPDX-License-Identifier: Apache-2.0
//! Table scan: every block of one table with the statements that index and filters make about it.
//!
//! For programs that check tables: a damaged block does not end the scan. Bypasses the cache.

use std::vec;

use esker_base::{Bytes, Result};

use super::reader::{READ_AHEAD_BLOCKS, Table};
use crate::block::DecodedBlock;
use crate::manifest::TableRef;
use crate::schema::{KeyBuffer, Schema};
use crate::tables::TableSource;

/// Reads all blocks of one table in order.
#[derive(Debug)]
pub struct TableScan {
    /// The number of records, according to the footer.
    pub rows: u64,
    /// The highest sequence number, according to the footer.
    pub seq_max: u64,
    /// The first key, according to the index.
    pub first: KeyBuffer,
    /// The last key, according to the index.
    pub last: KeyBuffer,
    table: Table,
    schema: &'static Schema,
    /// Number of the next block.
    number: usize,
    /// Blocks fetched ahead, the next one first.
    ahead: vec::IntoIter<Bytes>,
    /// Blocks before this one are fetched one by one, since a request for several of them failed.
    alone_before: usize,
    decoded: DecodedBlock,
}

/// A block of a [`TableScan`].
#[derive(Debug)]
pub struct ScannedBlock<'a> {
    /// Offset of the block in the object.
    pub offset: u64,
    /// The least key that the block can have, according to the index.
    pub first: KeyBuffer,
    /// The first key of the next block, which follows all of this one; `None` for the last block.
    pub next: Option<KeyBuffer>,
    /// Its records in stored form, or the reason that they cannot be read.
    pub records: Result<&'a DecodedBlock>,
    /// The first row whose key the filter does not have, although it should have every key.
    pub row_missing_in_filter: Option<usize>,
}

impl TableScan {
    /// Opens the table that `reference` names. One store request.
    ///
    /// # Errors
    /// `Corrupt` if the tail is damaged, and errors of the store.
    pub fn open(
        reference: &TableRef,
        schema: &'static Schema,
        source: &TableSource,
    ) -> Result<Self> {
        let table = Table::open(
            source.store.clone(),
            reference.name(),
            schema,
            (reference.bytes, reference.tail_bytes),
            source.cache.clone(),
            source.counters.clone(),
        )?;
        Ok(Self {
            rows: table.footer().rows,
            seq_max: table.footer().seq_max,
            first: table.index().first(0),
            last: table.index().last().into(),
            table,
            schema,
            number: 0,
            ahead: Vec::new().into_iter(),
            alone_before: 0,
            decoded: DecodedBlock::default(),
        })
    }

    /// Returns the next block, also if it cannot be read; `None` at the end. Cost: one store
    /// request for up to 64 blocks, and one for each of them if that fails.
    pub fn next_block(&mut self) -> Option<ScannedBlock<'_>> {
        let (number, blocks) = (self.number, self.table.index().blocks());
        if number == blocks {
            return None;
        }
        self.number += 1;
        let read = self.read(number).and_then(|bytes| self.table.parse_block(number, bytes));
        let records = read.map(|block| {
            self.decoded.clear();
            block.decode(&mut self.decoded);
            &self.decoded
        });
        let row_missing_in_filter = records.as_ref().ok().and_then(|records| {
            let digest = |row| self.schema.digest(&records.key(self.schema, row));
            (0..records.rows()).find(|row| !self.table.may_contain(number, digest(*row)))
        });
        let index = self.table.index();
        Some(ScannedBlock {
            offset: index.block_range(number).start,
            first: index.first(number),
            next: (number + 1 < blocks).then(|| index.first(number + 1)),
            records,
            row_missing_in_filter,
        })
    }

    /// Returns the bytes of block `number`, the next one; reads ahead unless that has just failed.
    fn read(&mut self, number: usize) -> Result<Bytes> {
        if let Some(bytes) = self.ahead.next() {
            return Ok(bytes);
        }
        if number >= self.alone_before {
            let end = self.table.index().blocks().min(number + READ_AHEAD_BLOCKS);
            match self.table.read_ahead(number, end) {
                Ok(read) => {
                    self.ahead = read.into_iter();
                    return Ok(self.ahead.next().expect("a request is for at least one block"));
                }
                Err(_) => self.alone_before = end,
            }
        }
        let mut alone = self.table.read_ahead(number, number + 1)?;
        Ok(alone.remove(0))
    }
}
