// SPDX-License-Identifier: Apache-2.0
//! Epoch: the additions of one epoch to a partition; its frame makes them durable.
//! Layout: docs/format/imd.md, "Epochs".

use std::ops::Range;

use esker_base::wire::{WireDamage, WireInput, put_varint};

use crate::block::{BLOCK_BYTES, rows_of_block};
use crate::checksum::CHECKSUM_BYTES;
use crate::record_layout::{RecordLayout, VALUE_BYTES_MAX};
use crate::slot::{LOW_BITS_MAX, SLOT_BITS_MAX};

/// The additions of one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochIndex {
    /// Its number, from 0.
    pub number: u32,
    /// Step given by the writer.
    pub step: u64,
    /// Bytes of the data log at its end.
    pub data_bytes: u64,
    /// Bytes of the values kept by its rank, at its end.
    pub value_bytes: u64,
    /// Bytes of its records' keys and values.
    pub record_bytes: u64,
    /// Its tables and their index, in write order.
    pub groups: Vec<IndexGroup>,
    /// Ranges of its auxiliary tables in their log.
    pub auxiliary: Vec<Range<u64>>,
}

/// Tables whose slots were written together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexGroup {
    /// Offset of its first slot in the index log.
    pub offset: u64,
    /// Each table has 2^`slot_bits` slots, if rows are ordered by hash; else 0.
    pub slot_bits: u32,
    /// Prefix of each slot's first key, if rows are ordered by key; otherwise empty. Such a group
    /// has one table.
    pub slot_keys: Vec<u64>,
    /// End of each slot group (the same slot of all tables, and a checksum) in the index log.
    pub slot_ends: Vec<u64>,
    /// The tables.
    pub tables: Vec<EpochTable>,
}

/// Sorted rows in a data log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochTable {
    /// Number of rows.
    pub rows: u32,
    /// Offset of its first block in the data log.
    pub offset: u64,
    /// Bits of each place below the average gap; 0 if ordered by key.
    pub low_bits: u32,
    /// End of each block, unless the layout implies it.
    pub spans: Vec<BlockEnd>,
}

/// The end of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockEnd {
    /// The row after its last one.
    pub row_end: u32,
    /// Its end in the data log, checksum included.
    pub end: u64,
}

/// Location of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLocation {
    /// Its rows, by their number in the table.
    pub rows: Range<u32>,
    /// Its bytes in the data log.
    pub bytes: Range<u64>,
}

impl EpochIndex {
    /// Number of records.
    #[must_use]
    pub fn rows(&self) -> u64 {
        let tables = self.groups.iter().flat_map(|group| &group.tables);
        tables.map(|table| u64::from(table.rows)).sum()
    }

    /// Number of tables.
    #[must_use]
    pub fn tables(&self) -> usize {
        self.groups.iter().map(|group| group.tables.len()).sum()
    }

    /// Appends the encoded epoch.
    pub fn encode(&self, layout: RecordLayout, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.number));
        put_varint(out, self.step);
        put_varint(out, self.data_bytes);
        put_varint(out, self.value_bytes);
        put_varint(out, self.record_bytes);
        put_varint(out, self.auxiliary.len() as u64);
        for table in &self.auxiliary {
            put_varint(out, table.start);
            put_varint(out, table.end - table.start);
        }
        put_varint(out, self.groups.len() as u64);
        for group in &self.groups {
            put_varint(out, group.offset);
            if group.slot_keys.is_empty() {
                put_varint(out, u64::from(group.slot_bits));
            } else {
                put_varint(out, BY_KEY);
                put_varint(out, group.slot_keys.len() as u64);
                let mut before = 0;
                for &key in &group.slot_keys {
                    put_varint(out, key - before);
                    before = key;
                }
            }
            put_varint(out, group.tables.len() as u64);
            for table in &group.tables {
                put_varint(out, u64::from(table.rows));
                put_varint(out, table.offset);
                put_varint(out, u64::from(table.low_bits));
                if layout == RecordLayout::Variable {
                    put_varint(out, table.spans.len() as u64);
                    let mut before = BlockEnd { row_end: 0, end: table.offset };
                    for &span in &table.spans {
                        put_varint(out, u64::from(span.row_end - before.row_end));
                        put_varint(out, span.end - before.end);
                        before = span;
                    }
                }
            }
            let mut before = group.offset;
            for &end in &group.slot_ends {
                put_varint(out, end - before);
                before = end;
            }
        }
    }

    /// Decodes the epoch in `bytes`; locations in it must be within an index log of `index_bytes`
    /// bytes.
    ///
    /// # Errors
    /// Damage if `bytes` are not an epoch.
    pub fn decode(
        bytes: &[u8],
        layout: RecordLayout,
        index_bytes: u64,
    ) -> Result<Self, WireDamage> {
        let mut input = WireInput::new(bytes);
        let number = narrow(&mut input, "an epoch's number")?;
        let step = input.varint()?;
        let (data_bytes, value_bytes) = (input.varint()?, input.varint()?);
        let record_bytes = input.varint()?;
        let count = input.varint_max(input.left() / 2, "two bytes for each auxiliary table")?;
        let mut auxiliary = Vec::new();
        for _ in 0..count {
            let (start, length) = (input.varint()?, input.varint()?);
            let end = start.checked_add(length).ok_or(input.damage("an auxiliary table's end"))?;
            auxiliary.push(start..end);
        }
        let count = input.varint_max(bytes.len(), "as many segments as bytes")?;
        let mut groups = Vec::new();
        for _ in 0..count {
            groups.push(IndexGroup::decode(&mut input, layout, index_bytes, data_bytes)?);
        }
        input.end()?;
        Ok(Self { number, step, data_bytes, value_bytes, record_bytes, groups, auxiliary })
    }
}

impl IndexGroup {
    fn decode(
        input: &mut WireInput<'_>,
        layout: RecordLayout,
        index_bytes: u64,
        data_bytes: u64,
    ) -> Result<Self, WireDamage> {
        let offset = input.varint()?;
        let slot_bits = input.varint_max(BY_KEY as usize, "bits of a slot")? as u32;
        let (slot_bits, slot_keys) = match u64::from(slot_bits) {
            BY_KEY => (0, decode_keys(input)?),
            _ => (slot_bits, Vec::new()),
        };
        let slots = if slot_keys.is_empty() { 1 << slot_bits } else { slot_keys.len() };
        let count = input.varint_max(input.left(), "as many tables as bytes")?;
        let mut tables = Vec::new();
        for _ in 0..count {
            tables.push(EpochTable::decode(input, layout, data_bytes)?);
        }
        if slots > input.left() {
            return Err(input.damage("a byte for each slot"));
        }
        if !slot_keys.is_empty() && tables.len() != 1 {
            return Err(input.damage("one table by key"));
        }
        let mut slot_ends = Vec::with_capacity(slots);
        let mut end = offset;
        for _ in 0..slots {
            end = end.saturating_add(u64::from(narrow(input, "bytes of a slot")?));
            slot_ends.push(end);
        }
        if end > index_bytes {
            return Err(input.damage("slots within the index log"));
        }
        Ok(Self { offset, slot_bits, slot_keys, slot_ends, tables })
    }

    /// The range of slot `slot` of all tables in the index log.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn slot_range(&self, slot: usize) -> Range<u64> {
        let start = if slot == 0 { self.offset } else { self.slot_ends[slot - 1] };
        start..self.slot_ends[slot]
    }

    /// Bytes of all slots.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.slot_ends.last().map_or(0, |end| end - self.offset)
    }
}

impl EpochTable {
    fn decode(
        input: &mut WireInput<'_>,
        layout: RecordLayout,
        data_bytes: u64,
    ) -> Result<Self, WireDamage> {
        let rows = narrow(input, "a table's rows")?;
        let offset = input.varint()?;
        let low_bits = input.varint_max(LOW_BITS_MAX as usize, "lower bits")? as u32;
        let mut spans = Vec::new();
        if layout == RecordLayout::Variable {
            let count = input.varint_max(input.left() / 2, "two bytes for each block")?;
            spans.reserve(count);
            let mut span = BlockEnd { row_end: 0, end: offset };
            for _ in 0..count {
                let block_rows = narrow(input, "a block's rows")?;
                let bytes = input.varint_max(BLOCK_SPAN_MAX, "a block's bytes")? as u64;
                let row_end = span.row_end.checked_add(block_rows).filter(|&end| end <= rows);
                let (Some(row_end), Some(end)) = (row_end, span.end.checked_add(bytes)) else {
                    return Err(input.damage("blocks that make up the table"));
                };
                span = BlockEnd { row_end, end };
                spans.push(span);
            }
            if span.row_end != rows {
                return Err(input.damage("blocks that make up the table"));
            }
        }
        let table = Self { rows, offset, low_bits, spans };
        if offset.checked_add(table.bytes(layout)).is_none_or(|end| end > data_bytes) {
            return Err(input.damage("a table within the data log"));
        }
        Ok(table)
    }

    /// Bytes of its blocks.
    #[must_use]
    pub fn bytes(&self, layout: RecordLayout) -> u64 {
        match layout {
            RecordLayout::Fixed { key_bytes, value_bytes } => {
                let stride = u64::from(key_bytes) + u64::from(value_bytes);
                let blocks = self.rows.div_ceil(rows_of_block(stride as usize));
                u64::from(self.rows) * stride + u64::from(blocks) * CHECKSUM_BYTES as u64
            }
            RecordLayout::Variable => self.spans.last().map_or(0, |span| span.end - self.offset),
        }
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self, layout: RecordLayout) -> u32 {
        match layout {
            RecordLayout::Fixed { key_bytes, value_bytes } => {
                self.rows.div_ceil(rows_of_block(key_bytes as usize + value_bytes as usize))
            }
            RecordLayout::Variable => self.spans.len() as u32,
        }
    }

    /// Location of block number `block`.
    ///
    /// # Panics
    /// If there is no such block.
    #[must_use]
    pub fn block_location(&self, block: u32, layout: RecordLayout) -> BlockLocation {
        match layout {
            RecordLayout::Fixed { key_bytes, value_bytes } => {
                let stride = key_bytes as usize + value_bytes as usize;
                let (full_rows, stride) = (rows_of_block(stride), stride as u64);
                let first = block * full_rows;
                let end = first.saturating_add(full_rows).min(self.rows);
                let full = u64::from(full_rows) * stride + CHECKSUM_BYTES as u64;
                let start = self.offset + u64::from(block) * full;
                let bytes = u64::from(end - first) * stride + CHECKSUM_BYTES as u64;
                BlockLocation { rows: first..end, bytes: start..start + bytes }
            }
            RecordLayout::Variable => {
                let block = block as usize;
                let first = BlockEnd { row_end: 0, end: self.offset };
                let before = if block == 0 { first } else { self.spans[block - 1] };
                let span = self.spans[block];
                BlockLocation { rows: before.row_end..span.row_end, bytes: before.end..span.end }
            }
        }
    }

    /// The block that contains `row`.
    #[must_use]
    pub fn block_of(&self, row: u32, layout: RecordLayout) -> u32 {
        match layout {
            RecordLayout::Fixed { key_bytes, value_bytes } => {
                row / rows_of_block(key_bytes as usize + value_bytes as usize)
            }
            RecordLayout::Variable => self.spans.partition_point(|span| span.row_end <= row) as u32,
        }
    }
}

/// Stored in place of a slot's bits if rows are ordered by key.
const BY_KEY: u64 = SLOT_BITS_MAX as u64 + 1;

fn decode_keys(input: &mut WireInput<'_>) -> Result<Vec<u64>, WireDamage> {
    let count = input.varint_max(input.left(), "a byte for each slot")?;
    let mut keys = Vec::with_capacity(count);
    let mut key = 0_u64;
    for _ in 0..count {
        let step = input.varint()?;
        key = key.checked_add(step).ok_or(input.damage("keys that ascend"))?;
        keys.push(key);
    }
    if keys.is_empty() {
        return Err(input.damage("a first key"));
    }
    Ok(keys)
}

/// Maximum bytes of a block: one oversized record, or about [`BLOCK_BYTES`], lengths included.
const BLOCK_SPAN_MAX: usize = VALUE_BYTES_MAX + 4 * BLOCK_BYTES;

fn narrow(input: &mut WireInput<'_>, what: &'static str) -> Result<u32, WireDamage> {
    input.varint_max(u32::MAX as usize, what).map(|value| value as u32)
}
