// SPDX-License-Identifier: Apache-2.0
//! Index group: the slots of an epoch's tables, kept in memory and written together.
//!
//! A reader that looks up a key needs the same slot of every table, so the slots of one range of
//! hashes are adjacent and need one read:
//! ```text
//! for each slot, for each table: first row (4) | rows (4) | slot;  then a checksum (4)
//! ```
//! All tables of an index group have the same number of slots. Tables ordered by key have an index
//! group each, since their slots begin at different keys; a slot is then
//! ```text
//! blocks (varint) | prefix of the first key of each (8) | filter
//! ```
//! An epoch has one index group, or several if its index exceeds its share of memory.
//! Layout: docs/format/imd.md, "Index groups".

use esker_base::Result;
use esker_base::fuse_filter;
use esker_base::wire::put_varint;

use super::RowOrder;
use super::sort::{position_of, prefix};
use crate::checksum::{CHECKSUM_BYTES, LogChecksum};
use crate::hash::{PLACE_BITS, key_hash};
use crate::index::epoch::{BlockEnd, EpochTable, IndexGroup};
use crate::slot::{self, SLOT_BITS_MAX};

/// Minimum rows of a table's slot, unless the table has fewer. A look-up reads and verifies a slot
/// of each table, and every slot costs a dozen bytes.
const SLOT_ROWS: u64 = 2 << 10;

/// Maximum average rows of a table's slot: some four times the usual number.
const SLOT_ROWS_MAX: u64 = 16 << 10;

/// Bytes in front of a table's slot: its first row and its number of rows.
pub(crate) const SLOT_HEADER_BYTES: usize = 8;

/// Low bits of the places of the `number`-th table of an epoch, counted from 0.
///
/// A look-up of a key of one table also matches in another table once in 1.5 * 2^low_bits times.
/// Eight tables with 9 bits make 1.01 searches a key; more bits for later tables keep it so.
const fn low_bits(number: usize) -> u32 {
    if number < 8 { 9 } else { 13 }
}

/// Blocks per slot of a table ordered by key.
const KEY_SLOT_BLOCKS: usize = 64;

/// The index of tables that are already in the data log.
#[derive(Debug, Default)]
pub(super) struct IndexGroupBuilder {
    slot_bits: u32,
    tables: Vec<(EpochTable, TableSlots)>,
}

/// The slots of one table.
#[derive(Debug, Default)]
struct TableSlots {
    /// The first row of each slot, then the number of rows.
    first_rows: Vec<u32>,
    /// End of each slot's bytes.
    ends: Vec<usize>,
    bytes: Vec<u8>,
    /// Prefix of each slot's first key, if ordered by key.
    keys: Vec<u64>,
}

/// The index of a table that is being written.
#[derive(Debug)]
pub(super) enum TableIndex {
    /// Rows are ordered by place.
    Places(PlaceSlots),
    /// Rows are ordered by key.
    Keys(KeySlots),
}

/// The slots of a table ordered by place.
#[derive(Debug)]
pub(super) struct PlaceSlots {
    slot_bits: u32,
    low_bits: u32,
    /// The slot to which `places` belong.
    slot: u64,
    /// The end of that slot's range of places.
    end: u64,
    places: Vec<u64>,
    rows: u32,
    slots: TableSlots,
}

/// The slots of a table ordered by key: the first key of each block and a filter.
#[derive(Debug, Default)]
pub(super) struct KeySlots {
    /// Prefix of each block's first key.
    firsts: Vec<u64>,
    digests: Vec<u64>,
    rows: u32,
    block_is_open: bool,
    slots: TableSlots,
}

impl TableIndex {
    /// Adds the next row.
    #[inline]
    pub(super) fn push(&mut self, row: u64, key: &[u8]) {
        match self {
            Self::Places(slots) => slots.push(position_of(row)),
            Self::Keys(slots) => slots.push(key),
        }
    }

    /// Ends a block, which consists of the rows since the last call.
    #[inline]
    pub(super) fn end_block(&mut self) {
        if let Self::Keys(slots) = self {
            slots.end_block();
        }
    }
}

impl PlaceSlots {
    #[inline]
    fn push(&mut self, place: u64) {
        if place >= self.end {
            self.close_until(slot::slot_of(place, self.slot_bits));
        }
        self.places.push(place);
    }

    /// Encodes the current slot and the empty ones before `next`.
    fn close_until(&mut self, next: u64) {
        while self.slot < next {
            let places = &self.places;
            slot::encode(places, self.slot_bits, self.low_bits, &mut self.slots.bytes);
            self.rows += u32::try_from(places.len()).expect("a table's rows fit 32 bits");
            self.places.clear();
            self.slots.first_rows.push(self.rows);
            self.slots.ends.push(self.slots.bytes.len());
            self.slot += 1;
        }
        self.end = (next + 1) << (PLACE_BITS - self.slot_bits);
    }
}

impl KeySlots {
    fn push(&mut self, key: &[u8]) {
        if !self.block_is_open {
            self.firsts.push(prefix(key));
            self.block_is_open = true;
        }
        self.digests.push(key_hash(key));
        self.rows += 1;
    }

    fn end_block(&mut self) {
        self.block_is_open = false;
        if self.firsts.len() == KEY_SLOT_BLOCKS {
            self.close();
        }
    }

    fn close(&mut self) {
        let Some(&first) = self.firsts.first() else { return };
        let slots = &mut self.slots;
        slots.keys.push(first);
        put_varint(&mut slots.bytes, self.firsts.len() as u64);
        self.firsts.iter().for_each(|key| slots.bytes.extend_from_slice(&key.to_le_bytes()));
        fuse_filter::encode(&mut self.digests, &mut slots.bytes);
        slots.first_rows.push(self.rows);
        slots.ends.push(slots.bytes.len());
        self.firsts.clear();
    }
}

impl IndexGroupBuilder {
    /// True if a table of `rows` rows would fill the existing slots so much that readers are better
    /// off with a new index group. That happens if the first table of an epoch had very long
    /// records, or one key over and over.
    pub(super) fn is_too_coarse(&self, rows: u64) -> bool {
        !self.tables.is_empty() && rows >> self.slot_bits > SLOT_ROWS_MAX
    }

    /// Begins the index of a table of `rows` rows, the `number`-th of the epoch; later tables are
    /// expected to have `scale` times as many rows.
    pub(super) fn begin(
        &mut self,
        rows: u64,
        scale: u64,
        number: usize,
        row_order: RowOrder,
    ) -> TableIndex {
        let mut slots = TableSlots { first_rows: vec![0], ..TableSlots::default() };
        if row_order == RowOrder::Key {
            return TableIndex::Keys(KeySlots { slots, ..KeySlots::default() });
        }
        if self.tables.is_empty() {
            self.slot_bits = (rows * scale / SLOT_ROWS).max(1).ilog2().min(SLOT_BITS_MAX);
        }
        let end = 1 << (PLACE_BITS - self.slot_bits);
        let (slot_bits, low_bits) = (self.slot_bits, low_bits(number));
        let places = Vec::new();
        let bits = rows * (5 + 2 * u64::from(low_bits)) / 2;
        let spare = (3 << slot_bits) + 64;
        slots.bytes.reserve_exact(usize::try_from(bits / 8 + spare).expect("an index fits memory"));
        slots.first_rows.reserve_exact(1 << slot_bits);
        slots.ends.reserve_exact(1 << slot_bits);
        TableIndex::Places(PlaceSlots { slot_bits, low_bits, slot: 0, end, places, rows: 0, slots })
    }

    /// Adds a table after it is written.
    pub(super) fn add(&mut self, mut table: EpochTable, index: TableIndex) {
        let mut slots = match index {
            TableIndex::Places(mut index) => {
                index.close_until(1 << index.slot_bits);
                (table.rows, table.low_bits) = (index.rows, index.low_bits);
                index.slots
            }
            TableIndex::Keys(mut index) => {
                index.close();
                table.rows = index.rows;
                index.slots
            }
        };
        if slots.bytes.capacity() > 2 * slots.bytes.len() {
            slots.bytes.shrink_to_fit();
        }
        self.tables.push((table, slots));
    }

    /// True if there is no table.
    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> u64 {
        let bytes = |(table, slots): &(EpochTable, TableSlots)| {
            table.spans.len() * size_of::<BlockEnd>()
                + slots.bytes.capacity()
                + slots.ends.len() * 12
                + slots.keys.len() * 8
        };
        self.tables.iter().map(bytes).sum::<usize>() as u64
    }

    /// Number of slots of each table.
    fn slots(&self) -> usize {
        self.tables.first().map_or(0, |table| table.1.ends.len())
    }

    /// Encoded bytes of all slots.
    pub(super) fn encoded_bytes(&self) -> u64 {
        let bits: u64 = self.tables.iter().map(|table| table.1.bytes.len() as u64).sum();
        let slot = (self.tables.len() * SLOT_HEADER_BYTES + CHECKSUM_BYTES) as u64;
        bits + slot * self.slots() as u64
    }

    /// Writes all slots through `append` in pieces of about `piece_bytes`, starting at `offset` of
    /// the index log `log`, and clears the builder.
    pub(super) fn write(
        &mut self,
        log: LogChecksum,
        offset: u64,
        piece_bytes: usize,
        mut append: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<IndexGroup> {
        let mut slot_ends = Vec::with_capacity(self.slots());
        let mut out = Vec::new();
        let mut at = offset;
        for slot in 0..self.slots() {
            let start = out.len();
            for (_, slots) in &self.tables {
                let (first, end) = (slots.first_rows[slot], slots.first_rows[slot + 1]);
                out.extend_from_slice(&first.to_le_bytes());
                out.extend_from_slice(&(end - first).to_le_bytes());
                let from = if slot == 0 { 0 } else { slots.ends[slot - 1] };
                out.extend_from_slice(&slots.bytes[from..slots.ends[slot]]);
            }
            log.seal(&mut out, start, at);
            at += (out.len() - start) as u64;
            slot_ends.push(at);
            if out.len() >= piece_bytes {
                append(&out)?;
                out.clear();
            }
        }
        append(&out)?;
        let mut tables = std::mem::take(&mut self.tables);
        let slot_keys = tables.first_mut().map(|table| std::mem::take(&mut table.1.keys));
        let slot_keys = slot_keys.unwrap_or_default();
        let tables = tables.into_iter().map(|table| table.0).collect();
        let slot_bits = std::mem::take(&mut self.slot_bits);
        Ok(IndexGroup { offset, slot_bits, slot_keys, slot_ends, tables })
    }
}
