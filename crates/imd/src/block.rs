// SPDX-License-Identifier: Apache-2.0
//! Block: consecutive rows of a table, keys stored apart from values; the unit that a get reads.
//! Layout: docs/format/imd.md, "Blocks". This file is its only encoder and decoder.
//!
//! ```text
//! fixed     keys | values | checksum
//! variable  key length or 0 | value length + 1 or 0 | key lengths | value lengths | keys | values | checksum
//! ```
//! The checksum also covers the block's location ([`crate::checksum`]).

use std::ops::Range;

use esker_base::wire::{WireDamage, WireInput, put_varint};

use crate::record_layout::{RecordLayout, VALUE_BYTES_MAX};

/// A block ends with the row that reaches this many bytes. Smaller blocks make a get read less;
/// larger ones save nothing measurable, since no metadata is stored for blocks of fixed layout.
pub const BLOCK_BYTES: usize = 8 << 10;

/// Maximum bytes of a 32-bit varint.
const VARINT_BYTES_MAX: usize = 5;

/// Rows of a full block of records of `stride` bytes each.
#[must_use]
pub const fn rows_of_block(stride: usize) -> u32 {
    if stride >= BLOCK_BYTES { 1 } else { (BLOCK_BYTES / stride) as u32 }
}

/// The rows of a variable block while it is built.
#[derive(Debug, Default)]
pub struct VariableBlock {
    keys: Vec<u8>,
    key_lengths: Vec<u8>,
    values: Vec<u8>,
    value_lengths: Vec<u32>,
}

impl VariableBlock {
    /// Adds a row. The caller has checked the lengths.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        if value.len() > BLOCK_BYTES {
            // No spare capacity for a long value.
            self.values.reserve_exact(value.len());
        }
        self.key_lengths.push(u8::try_from(key.len()).expect("keys are checked on append"));
        self.value_lengths.push(u32::try_from(value.len()).expect("values are checked on append"));
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> u32 {
        u32::try_from(self.key_lengths.len()).expect("a block has few rows")
    }

    /// Bytes of keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.keys.len() + self.values.len()
    }

    /// Maximum number of bytes that [`VariableBlock::encode`] appends.
    #[must_use]
    pub fn encoded_bytes_max(&self) -> usize {
        1 + VARINT_BYTES_MAX * (1 + self.value_lengths.len())
            + self.key_lengths.len()
            + self.bytes()
    }

    /// Appends the rows, if there are any, to `out` and clears the builder; adds no checksum.
    pub fn encode(&mut self, out: &mut Vec<u8>) {
        let Some((&key, &value)) = self.key_lengths.first().zip(self.value_lengths.first()) else {
            return;
        };
        let keys_agree = self.key_lengths.iter().all(|&length| length == key);
        let values_agree = self.value_lengths.iter().all(|&length| length == value);
        out.push(if keys_agree { key } else { 0 });
        put_varint(out, if values_agree { u64::from(value) + 1 } else { 0 });
        if !keys_agree {
            out.extend_from_slice(&self.key_lengths);
        }
        if !values_agree {
            self.value_lengths.iter().for_each(|&length| put_varint(out, u64::from(length)));
        }
        out.extend_from_slice(&self.keys);
        out.extend_from_slice(&self.values);
        self.keys.clear();
        self.key_lengths.clear();
        self.values.clear();
        self.value_lengths.clear();
    }
}

/// The rows of a verified block.
#[derive(Debug)]
pub struct BlockRows<'a> {
    body: &'a [u8],
    rows: u32,
    keys: BlockColumn,
    values: BlockColumn,
}

/// Locations of one column's strings.
#[derive(Debug)]
enum BlockColumn {
    Even { start: usize, bytes: usize },
    Uneven { start: usize, ends: Vec<usize> },
}

impl BlockColumn {
    #[inline]
    fn at(&self, row: u32) -> Range<usize> {
        let row = row as usize;
        match self {
            Self::Even { start, bytes } => start + row * bytes..start + (row + 1) * bytes,
            Self::Uneven { start, ends } => {
                let from = if row == 0 { 0 } else { ends[row - 1] };
                start + from..start + ends[row]
            }
        }
    }

    fn bytes(&self, rows: u32) -> usize {
        match self {
            Self::Even { bytes, .. } => bytes.saturating_mul(rows as usize),
            Self::Uneven { ends, .. } => ends.last().copied().unwrap_or(0),
        }
    }

    fn starting_at(self, at: usize) -> Self {
        match self {
            Self::Even { bytes, .. } => Self::Even { start: at, bytes },
            Self::Uneven { ends, .. } => Self::Uneven { start: at, ends },
        }
    }
}

impl<'a> BlockRows<'a> {
    /// Parses `body` as a block of `rows` rows.
    ///
    /// # Errors
    /// Damage if it does not hold exactly that many.
    pub fn parse(body: &'a [u8], rows: u32, layout: RecordLayout) -> Result<Self, WireDamage> {
        let (keys, values, at) = match layout {
            RecordLayout::Fixed { key_bytes, value_bytes } => {
                let keys = BlockColumn::Even { start: 0, bytes: usize::from(key_bytes) };
                (keys, BlockColumn::Even { start: 0, bytes: value_bytes as usize }, 0)
            }
            RecordLayout::Variable => {
                let mut input = WireInput::new(body);
                let (keys, values) = parse_lengths(&mut input, rows)?;
                (keys, values, input.at())
            }
        };
        let keys = keys.starting_at(at);
        let values = values.starting_at(at + keys.bytes(rows));
        let (BlockColumn::Even { start, .. } | BlockColumn::Uneven { start, .. }) = values;
        if start.checked_add(values.bytes(rows)) != Some(body.len()) {
            return Err(WireDamage { offset: at, what: "keys and values that fill the block" });
        }
        Ok(Self { body, rows, keys, values })
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.rows
    }

    /// True if there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The key of `row`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    #[must_use]
    pub fn key(&self, row: u32) -> &'a [u8] {
        &self.body[self.keys.at(row)]
    }

    /// The value of `row`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    #[must_use]
    pub fn value(&self, row: u32) -> &'a [u8] {
        &self.body[self.values.at(row)]
    }
}

fn parse_lengths(
    input: &mut WireInput,
    rows: u32,
) -> Result<(BlockColumn, BlockColumn), WireDamage> {
    let key_bytes = usize::from(input.u8()?);
    let value_bytes = input.varint_max(VALUE_BYTES_MAX + 1, "a value's length")?;
    // A valid block has at least one byte per row; its directory may claim more rows.
    if rows as usize > input.left() {
        return Err(input.damage("a byte for each row"));
    }
    let keys = if key_bytes > 0 {
        BlockColumn::Even { start: 0, bytes: key_bytes }
    } else {
        let mut end = 0;
        let lengths = input.take(rows as usize)?;
        let ends = lengths.iter().map(|&length| {
            end += usize::from(length);
            end
        });
        BlockColumn::Uneven { start: 0, ends: ends.collect() }
    };
    let values = if value_bytes > 0 {
        BlockColumn::Even { start: 0, bytes: value_bytes - 1 }
    } else {
        let (mut end, mut ends) = (0, Vec::with_capacity(rows as usize));
        for _ in 0..rows {
            end += input.varint_max(VALUE_BYTES_MAX, "a value's length")?;
            ends.push(end);
        }
        BlockColumn::Uneven { start: 0, ends }
    };
    Ok((keys, values))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(rows: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut block = VariableBlock::default();
        rows.iter().for_each(|row| block.push(row.0, row.1));
        block.encode(&mut out);
        let count = u32::try_from(rows.len()).expect("few");
        let parsed =
            BlockRows::parse(&out, count, RecordLayout::Variable).expect("what was encoded");
        for (row, (key, value)) in (0..).zip(rows) {
            assert_eq!((parsed.key(row), parsed.value(row)), (*key, *value));
        }
        out
    }

    #[test]
    fn variable_rows_round_trip() {
        round_trip(&[(b"a", b"")]);
        round_trip(&[(b"a", b"x"), (b"b", b"y")]);
        round_trip(&[(b"a", b"xyz"), (b"bcd", b"")]);
        round_trip(&[(b"aa", b"xyz"), (b"bb", b""), (b"cc", &[7; 300])]);
    }

    #[test]
    fn cut_and_hostile_blocks_are_refused() {
        let body = round_trip(&[(b"a", b"xyz"), (b"bcd", b"pq")]);
        for cut in 0..body.len() {
            assert!(BlockRows::parse(&body[..cut], 2, RecordLayout::Variable).is_err());
        }
        for rows in [0, 1, 3, 1000, u32::MAX] {
            assert!(BlockRows::parse(&body, rows, RecordLayout::Variable).is_err());
        }
        let fixed = RecordLayout::Fixed { key_bytes: 2, value_bytes: 3 };
        assert!(BlockRows::parse(&[0; 10], 2, fixed).is_ok());
        assert!(BlockRows::parse(&[0; 11], 2, fixed).is_err());
        assert!(BlockRows::parse(&[0; 10], u32::MAX, fixed).is_err());
    }
}
