// SPDX-License-Identifier: Apache-2.0
//! Scan: all rows of one epoch of a partition, in order of place (or key) and arrival.
//!
//! Each table is read from its start in large pieces, and the tables are merged.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use bytes::Bytes;
use esker_base::{Error, Kind, Result};

use super::counts::QueryCounts;
use super::partition::PartitionReader;
use crate::block;
use crate::hash::{home, key_hash};
use crate::index::epoch::{BlockLocation, EpochTable};
use crate::partition::RowOrder;

/// Bytes of a table read at once, if there are few tables.
const PIECE_BYTES: u64 = 1 << 20;

/// Bytes of all tables in memory at once.
const PIECES_BYTES: u64 = 32 << 20;

/// Position in a table that is read row by row.
pub(crate) struct TableCursor<'r> {
    reader: &'r PartitionReader,
    table: &'r EpochTable,
    /// Number of the table in the merge.
    number: usize,
    piece_bytes: u64,
    block: u32,
    block_end: u32,
    /// Blocks read so far, starting at `piece_start` of the data log.
    piece: Bytes,
    piece_start: u64,
    rows: Vec<(Bytes, Bytes)>,
    row: usize,
    place: u64,
}

impl<'r> TableCursor<'r> {
    /// A cursor over blocks `blocks` of `table`; `None` if they have no rows.
    pub(crate) fn new(
        reader: &'r PartitionReader,
        table: &'r EpochTable,
        number: usize,
        tables: usize,
        blocks: std::ops::Range<u32>,
        counts: &mut QueryCounts,
    ) -> Result<Option<Self>> {
        let piece_bytes = (PIECES_BYTES / tables.max(1) as u64).clamp(64 << 10, PIECE_BYTES);
        let mut cursor = Self {
            reader,
            table,
            number,
            piece_bytes,
            block: blocks.start,
            block_end: blocks.end,
            piece: Bytes::new(),
            piece_start: 0,
            rows: Vec::new(),
            row: 0,
            place: 0,
        };
        Ok(cursor.load(counts)?.then_some(cursor))
    }

    pub(crate) fn key(&self) -> &Bytes {
        &self.rows[self.row].0
    }

    pub(crate) fn value(&self) -> &Bytes {
        &self.rows[self.row].1
    }

    /// Advances to the next row; returns false at the end.
    pub(crate) fn advance(&mut self, counts: &mut QueryCounts) -> Result<bool> {
        self.row += 1;
        if self.row < self.rows.len() {
            self.save_position();
            return Ok(true);
        }
        self.load(counts)
    }

    fn save_position(&mut self) {
        let head = self.reader.head();
        if head.row_order() == RowOrder::Hash {
            self.place = home(key_hash(self.key()), head.hash_partitions()).1;
        }
    }

    /// Loads the next block; returns false at the end.
    fn load(&mut self, counts: &mut QueryCounts) -> Result<bool> {
        if self.block >= self.block_end {
            return Ok(false);
        }
        let layout = self.reader.head().row_layout();
        let place = self.table.block_location(self.block, layout);
        let piece_end = self.piece_start + self.piece.len() as u64;
        if place.bytes.end > piece_end || place.bytes.start < self.piece_start {
            self.read_piece(&place, counts)?;
        }
        let start = (place.bytes.start - self.piece_start) as usize;
        let length = (place.bytes.end - place.bytes.start) as usize;
        let bytes = self.piece.slice(start..start + length);
        let opened = self.reader.open_block(&bytes, place.bytes.start)?.len();
        let body = bytes.slice(..opened);
        let rows = self.reader.rows(&body, &place)?;
        self.rows.clear();
        self.rows.extend(
            (0..rows.len())
                .map(|row| (body.slice_ref(rows.key(row)), body.slice_ref(rows.value(row)))),
        );
        self.row = 0;
        self.block += 1;
        self.save_position();
        Ok(true)
    }

    fn read_piece(&mut self, first: &BlockLocation, counts: &mut QueryCounts) -> Result<()> {
        let layout = self.reader.head().row_layout();
        let mut end = first.bytes.end;
        for block in self.block + 1..self.block_end {
            let next = self.table.block_location(block, layout).bytes.end;
            if next - first.bytes.start > self.piece_bytes {
                break;
            }
            end = next;
        }
        self.piece = self.reader.read_data(first.bytes.start..end, counts)?;
        self.piece_start = first.bytes.start;
        if self.piece.len() as u64 != end - first.bytes.start {
            let what = "the store gave fewer bytes than were asked for";
            return Err(self.reader.named(Error::new(Kind::Unavailable, what)));
        }
        Ok(())
    }
}

/// Orders cursors for a heap, with the first one in order on top.
struct CursorHeap<'r>(TableCursor<'r>);

impl Ord for CursorHeap<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (&self.0, &other.0);
        let by_key = || match a.reader.head().row_order() {
            RowOrder::Key => b.key().cmp(a.key()),
            RowOrder::Hash => Ordering::Equal,
        };
        // The heap has its greatest element on top.
        b.place.cmp(&a.place).then_with(by_key).then(b.number.cmp(&a.number))
    }
}

impl PartialOrd for CursorHeap<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for CursorHeap<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for CursorHeap<'_> {}

/// Passes key and value of each row of `cursors`, in order, to `visit`, until it returns false.
pub(crate) fn merge(
    cursors: Vec<TableCursor<'_>>,
    counts: &mut QueryCounts,
    mut visit: impl FnMut(&Bytes, &Bytes, &mut QueryCounts) -> Result<bool>,
) -> Result<()> {
    let mut heap: BinaryHeap<CursorHeap<'_>> = cursors.into_iter().map(CursorHeap).collect();
    while let Some(mut top) = heap.pop() {
        if !visit(top.0.key(), top.0.value(), counts)? {
            return Ok(());
        }
        if top.0.advance(counts)? {
            heap.push(top);
        }
    }
    Ok(())
}

impl PartitionReader {
    /// Passes the rows of each block in `blocks` of `table`, verified, to `visit`; reads in pieces.
    pub(crate) fn each_block(
        &self,
        table: &EpochTable,
        mut blocks: std::ops::Range<u32>,
        counts: &mut QueryCounts,
        visit: &(impl Fn(&block::BlockRows<'_>) + ?Sized),
    ) -> Result<()> {
        let layout = self.head().row_layout();
        while !blocks.is_empty() {
            let start = table.block_location(blocks.start, layout).bytes.start;
            let fits =
                |block: u32| table.block_location(block, layout).bytes.end - start <= PIECE_BYTES;
            let mut end = blocks.start + 1;
            while end < blocks.end && fits(end) {
                end += 1;
            }
            let bytes =
                self.read_data(start..table.block_location(end - 1, layout).bytes.end, counts)?;
            for block in blocks.start..end {
                let place = table.block_location(block, layout);
                let (from, to) = (place.bytes.start - start, place.bytes.end - start);
                let piece = &bytes[from as usize..to as usize];
                visit(&self.rows(self.open_block(piece, place.bytes.start)?, &place)?);
            }
            blocks.start = end;
        }
        Ok(())
    }
}
