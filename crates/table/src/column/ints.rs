// SPDX-License-Identifier: Apache-2.0
//! Integer columns: the cheapest of six encodings, each readable at one row without the others.
//!
//! Layout: docs/format/table.md, "Integer columns". This file is its only encoder and decoder.
//! Invariants: a column knows its row count from outside; nested columns go `DEPTH_MAX` deep.

use std::ops::Range;

use esker_base::packed_bits;
use esker_base::wire::{WireDamage, WireInput, put_varint, unzigzag, zigzag};

const CONSTANT: u8 = 0;
const PACKED: u8 = 1;
const RUNS: u8 = 2;
const DICTIONARY: u8 = 3;
const DELTA: u8 = 4;
const PHRASE: u8 = 5;

/// The longest repeated sequence of deltas that the encoder looks for.
const PHRASE_ROWS_MAX: usize = 64;
/// Maximum entries of a dictionary; more rarely pay for their indices.
const DICTIONARY_ENTRIES_MAX: usize = 64;
/// Maximum depth to which encodings nest: runs of deltas of packed integers.
const DEPTH_MAX: usize = 3;

/// A parsed integer column. It does not own the encoded bytes: the caller passes them again on each
/// access, since the block owns them.
#[derive(Clone, Debug)]
pub enum ParsedInts {
    /// All rows hold this value.
    Constant(u64),
    /// Frame of reference: `base` plus `width` bits each, packed from byte `at`.
    Packed {
        /// The smallest value.
        base: u64,
        /// Bits of each value's difference from `base`.
        width: u32,
        /// Offset at which the packed bits start.
        at: usize,
    },
    /// `values[k]` holds for the rows from `ends[k - 1]` up to `ends[k]`.
    Runs {
        /// The row after each run.
        ends: Vec<u64>,
        /// The value of each run.
        values: Vec<u64>,
    },
    /// Row i is `values[index i]`, the indices packed from byte `at`.
    Dictionary {
        /// The distinct values.
        values: Vec<u64>,
        /// Bits of each index.
        width: u32,
        /// Offset at which the packed indices start.
        at: usize,
    },
    /// Differences whose sums cannot be computed for a single row; summed when parsed.
    Summed(Vec<u64>),
    /// A repeated sequence of differences.
    Phrase {
        /// The value of row 0.
        first: u64,
        /// Sums of the first k differences of the phrase, from k = 0.
        sums: Vec<u64>,
        /// The sum of one whole phrase.
        total: u64,
    },
}

/// A column of which each row is `width` bits, from byte `at` on, added to `base`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedInts {
    pub(crate) base: u64,
    pub(crate) at: u32,
    pub(crate) width: u8,
}

impl PackedInts {
    /// The bytes that hold the value at `row`.
    #[inline]
    pub(crate) fn span(&self, row: usize) -> Range<usize> {
        let bit = row * usize::from(self.width);
        let at = self.at as usize;
        at + bit / 8..at + (bit + usize::from(self.width)).div_ceil(8)
    }

    /// The value at `row` of a column that was parsed from `bytes`, of which those outside of
    /// [`PackedInts::span`] may be anything.
    #[inline]
    pub(crate) fn get(&self, bytes: &[u8], row: usize) -> u64 {
        self.base.wrapping_add(packed_bits::get(&bytes[self.at as usize..], row, self.width.into()))
    }
}

impl ParsedInts {
    /// Appends the cheapest encoding of `values` to `out`. For `searched` columns it prefers
    /// encodings in which a row is found without summing, unless deltas save a quarter.
    pub fn encode(values: &[u64], searched: bool, out: &mut Vec<u8>) {
        encode_within(values, searched, DEPTH_MAX, out);
    }

    /// Appends the encoding of a column whose rows all hold `value` to `out`.
    pub(crate) fn encode_constant(value: u64, out: &mut Vec<u8>) {
        out.push(CONSTANT);
        put_varint(out, value);
    }

    /// Parses a column of `rows` rows.
    pub fn parse(input: &mut WireInput, rows: usize) -> Result<Self, WireDamage> {
        parse_within(input, rows, DEPTH_MAX)
    }

    /// Returns the value at `row` of a column that was parsed from `bytes`.
    #[inline]
    #[must_use]
    pub fn get(&self, bytes: &[u8], row: usize) -> u64 {
        match self {
            Self::Constant(value) => *value,
            Self::Packed { base, width, at } => {
                base.wrapping_add(packed_bits::get(&bytes[*at..], row, *width))
            }
            Self::Runs { ends, values } => values[ends.partition_point(|&end| end <= row as u64)],
            Self::Dictionary { values, width, at } => {
                // Our encoder never writes an index past the end; the last entry stands in.
                let index = packed_bits::get(&bytes[*at..], row, *width) as usize;
                values[index.min(values.len() - 1)]
            }
            Self::Summed(values) => values[row],
            Self::Phrase { first, sums, total } => {
                let (whole, part) = (row / sums.len(), row % sums.len());
                first.wrapping_add(total.wrapping_mul(whole as u64)).wrapping_add(sums[part])
            }
        }
    }

    /// Returns the byte of the block at which the bits of `row` start, if they are packed.
    #[must_use]
    pub(crate) fn bit_offset(&self, row: usize) -> Option<usize> {
        self.span(row).map(|span| span.start)
    }

    /// The block's bytes that the value at `row` is in, if it is packed.
    pub(crate) fn span(&self, row: usize) -> Option<Range<usize>> {
        match self {
            Self::Packed { width, at, .. } | Self::Dictionary { width, at, .. } => {
                let (bit, width) = (row * *width as usize, *width as usize);
                Some(at + bit / 8..at + (bit + width).div_ceil(8))
            }
            _ => None,
        }
    }

    /// The column's description, if each row has bits of its own among the block's bytes.
    pub(crate) fn packed(&self) -> Option<PackedInts> {
        let Self::Packed { base, width, at } = *self else { return None };
        Some(PackedInts { base, at: u32::try_from(at).ok()?, width: u8::try_from(width).ok()? })
    }

    /// Appends all `rows` values to `out`.
    pub fn decode(&self, bytes: &[u8], rows: usize, out: &mut Vec<u64>) {
        match self {
            Self::Constant(value) => out.resize(out.len() + rows, *value),
            Self::Packed { base, width, at } => {
                packed_bits::unpack(&bytes[*at..], rows, *base, *width, out);
            }
            Self::Summed(values) => out.extend_from_slice(values),
            _ => out.extend((0..rows).map(|row| self.get(bytes, row))),
        }
    }

    /// Returns the value that all rows share, if the encoding is a constant.
    #[must_use]
    pub fn constant(&self) -> Option<u64> {
        match self {
            Self::Constant(value) => Some(*value),
            _ => None,
        }
    }

    /// Memory of the parsed column beyond its own size, in bytes.
    #[must_use]
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Constant(_) | Self::Packed { .. } => 0,
            Self::Runs { ends, values } => (ends.capacity() + values.capacity()) * 8,
            Self::Dictionary { values, .. } | Self::Summed(values) => values.capacity() * 8,
            Self::Phrase { sums, .. } => sums.capacity() * 8,
        }
    }
}

/// Statistics of the values, from one pass.
struct ValueStats {
    low: u64,
    high: u64,
    runs: usize,
    delta_low: u64,
    delta_high: u64,
}

impl ValueStats {
    fn of(values: &[u64]) -> Self {
        let mut stats =
            Self { low: values[0], high: values[0], runs: 1, delta_low: u64::MAX, delta_high: 0 };
        let mut before = values[0];
        for &value in &values[1..] {
            stats.low = stats.low.min(value);
            stats.high = stats.high.max(value);
            stats.runs += usize::from(value != before);
            let delta = zigzag(value.wrapping_sub(before));
            stats.delta_low = stats.delta_low.min(delta);
            stats.delta_high = stats.delta_high.max(delta);
            before = value;
        }
        stats
    }
}

fn encode_within(values: &[u64], searched: bool, depth: usize, out: &mut Vec<u8>) {
    let Some((&first, rest)) = values.split_first() else {
        out.extend_from_slice(&[CONSTANT, 0]);
        return;
    };
    if rest.iter().fold(0, |differ, value| differ | (value ^ first)) == 0 {
        return ParsedInts::encode_constant(first, out);
    }
    let rows = values.len();
    let stats = ValueStats::of(values);
    let width = packed_bits::width_of(stats.high - stats.low);
    let packed_bytes = packed_bits::bytes(rows, width);
    if depth > 1 {
        if packed_bytes > 16 && encode_phrase(values, packed_bytes, depth, out) {
            return;
        }
        // A run costs about one value and one end.
        let run_bytes = stats.runs * (packed_bits::bytes(1, width) + 2);
        let delta_width = packed_bits::width_of(stats.delta_high - stats.delta_low);
        let delta_bytes = packed_bits::bytes(rows, delta_width) + 8;
        let delta_wins = if searched {
            delta_bytes + packed_bytes / 4 < packed_bytes
        } else {
            delta_bytes < packed_bytes
        };
        if run_bytes + 8 < packed_bytes && (run_bytes < delta_bytes || !delta_wins) {
            encode_runs(values, stats.runs, depth, out);
            return;
        }
        if width >= 8 && encode_dictionary(values, packed_bytes, out) {
            return;
        }
        if delta_wins {
            out.push(DELTA);
            put_varint(out, first);
            let deltas: Vec<u64> =
                values.windows(2).map(|pair| zigzag(pair[1].wrapping_sub(pair[0]))).collect();
            encode_within(&deltas, false, depth - 1, out);
            return;
        }
    }
    out.push(PACKED);
    put_varint(out, stats.low);
    out.push(width as u8);
    packed_bits::pack(out, values.iter().map(|value| value - stats.low), width);
}

/// Encodes `values` if their deltas repeat with a short period and that costs less than packing.
fn encode_phrase(values: &[u64], packed_bytes: usize, depth: usize, out: &mut Vec<u8>) -> bool {
    let rows = values.len();
    let delta = |row: usize| values[row + 1].wrapping_sub(values[row]);
    let period_max = PHRASE_ROWS_MAX.min((rows - 1) / 2);
    let period = (1..=period_max)
        .find(|&period| (period..rows - 1).all(|row| delta(row) == delta(row - period)));
    let Some(period) = period else {
        return false;
    };
    let start = out.len();
    out.push(PHRASE);
    put_varint(out, values[0]);
    put_varint(out, period as u64);
    let phrase: Vec<u64> = (0..period).map(|row| zigzag(delta(row))).collect();
    encode_within(&phrase, false, depth - 1, out);
    if out.len() - start < packed_bytes {
        return true;
    }
    out.truncate(start);
    false
}

fn encode_runs(values: &[u64], runs: usize, depth: usize, out: &mut Vec<u8>) {
    out.push(RUNS);
    put_varint(out, runs as u64);
    let (mut ends, mut run_values) = (Vec::with_capacity(runs), Vec::with_capacity(runs));
    for (row, &value) in values.iter().enumerate() {
        if run_values.last() != Some(&value) {
            if row > 0 {
                ends.push(row as u64);
            }
            run_values.push(value);
        }
    }
    ends.push(values.len() as u64);
    encode_within(&run_values, false, depth - 1, out);
    encode_within(&ends, false, depth - 1, out);
}

/// Encodes `values` if they have few distinct values and that costs less than packing.
fn encode_dictionary(values: &[u64], packed_bytes: usize, out: &mut Vec<u8>) -> bool {
    let mut distinct: Vec<u64> = Vec::with_capacity(DICTIONARY_ENTRIES_MAX);
    for (row, value) in values.iter().enumerate() {
        if !distinct.contains(value) {
            // Give up early if more than half of the first rows differ, or there are too many
            // values.
            if distinct.len() == DICTIONARY_ENTRIES_MAX || distinct.len() > 8 + row / 4 {
                return false;
            }
            distinct.push(*value);
        }
    }
    distinct.sort_unstable();
    let width = packed_bits::width_of(distinct.len() as u64 - 1);
    if distinct.len() * 8 + packed_bits::bytes(values.len(), width) >= packed_bytes {
        return false;
    }
    out.push(DICTIONARY);
    put_varint(out, distinct.len() as u64);
    encode_within(&distinct, false, 1, out);
    let indices: Vec<u64> = values
        .iter()
        .map(|value| {
            distinct.binary_search(value).expect("every value is in the dictionary") as u64
        })
        .collect();
    packed_bits::pack(out, indices.into_iter(), width);
    true
}

fn parse_within(
    input: &mut WireInput,
    rows: usize,
    depth: usize,
) -> Result<ParsedInts, WireDamage> {
    if depth == 0 {
        return Err(input.damage("an encoding nested less deep"));
    }
    match input.u8()? {
        CONSTANT => Ok(ParsedInts::Constant(input.varint()?)),
        PACKED => {
            let base = input.varint()?;
            let (width, at) = take_packed(input, rows)?;
            Ok(ParsedInts::Packed { base, width, at })
        }
        RUNS => parse_runs(input, rows, depth),
        DICTIONARY => {
            let entries = input.varint_max(DICTIONARY_ENTRIES_MAX, "a dictionary's size")?;
            if entries == 0 {
                return Err(input.damage("a dictionary with an entry"));
            }
            let values = parse_values(input, entries, depth - 1)?;
            let width = packed_bits::width_of(entries as u64 - 1);
            let at = input.at();
            input.take(packed_bits::bytes(rows, width))?;
            Ok(ParsedInts::Dictionary { values, width, at })
        }
        DELTA => {
            let mut value = input.varint()?;
            if rows == 0 {
                return Err(input.damage("a delta column with rows"));
            }
            let deltas = parse_values(input, rows - 1, depth - 1)?;
            let mut sums = Vec::with_capacity(rows);
            sums.push(value);
            for delta in deltas {
                value = value.wrapping_add(unzigzag(delta));
                sums.push(value);
            }
            Ok(ParsedInts::Summed(sums))
        }
        PHRASE => {
            let first = input.varint()?;
            let period = input.varint_max(PHRASE_ROWS_MAX.min(rows), "a phrase's length")?;
            if period == 0 {
                return Err(input.damage("a phrase with a difference"));
            }
            let deltas = parse_values(input, period, depth - 1)?;
            let mut sums = Vec::with_capacity(period);
            let mut total = 0u64;
            for delta in deltas {
                sums.push(total);
                total = total.wrapping_add(unzigzag(delta));
            }
            Ok(ParsedInts::Phrase { first, sums, total })
        }
        _ => Err(input.damage("a known integer encoding")),
    }
}

/// Skips `rows` packed values after their width; returns the width and the offset of the values.
fn take_packed(input: &mut WireInput, rows: usize) -> Result<(u32, usize), WireDamage> {
    let width = u32::from(input.u8()?);
    if width > 64 {
        return Err(input.damage("a width of at most 64 bits"));
    }
    let at = input.at();
    input.take(packed_bits::bytes(rows, width))?;
    Ok((width, at))
}

fn parse_runs(input: &mut WireInput, rows: usize, depth: usize) -> Result<ParsedInts, WireDamage> {
    let runs = input.varint_max(rows, "at most as many runs as rows")?;
    let values = parse_values(input, runs, depth - 1)?;
    let ends = parse_values(input, runs, depth - 1)?;
    let ascend = ends.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascend || ends.last() != Some(&(rows as u64)) {
        return Err(input.damage("runs that end with the rows"));
    }
    Ok(ParsedInts::Runs { ends, values })
}

/// Parses and decodes a nested column; the caller bounds `rows`.
fn parse_values(input: &mut WireInput, rows: usize, depth: usize) -> Result<Vec<u64>, WireDamage> {
    let start = input.clone();
    let column = parse_within(input, rows, depth)?;
    let mut values = Vec::with_capacity(rows);
    column.decode(start.whole(), rows, &mut values);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(values: &[u64], searched: bool) -> Vec<u8> {
        let mut out = vec![0xEE; 3];
        ParsedInts::encode(values, searched, &mut out);
        let mut input = WireInput::new(&out);
        input.take(3).expect("the prefix");
        let column = ParsedInts::parse(&mut input, values.len()).expect("our own encoding");
        input.end().expect("nothing is left");
        let mut decoded = Vec::new();
        column.decode(&out, values.len(), &mut decoded);
        assert_eq!(decoded, values);
        for (row, value) in values.iter().enumerate() {
            assert_eq!(column.get(&out, row), *value);
        }
        out
    }

    #[test]
    fn structured_columns_cost_bytes_not_rows() {
        let tiles: Vec<u64> = (0..512u64).map(|i| (i / 8) * 65_536 + (i % 8) * 1_024).collect();
        assert!(round_trip(&tiles, true).len() < 32);
        let stride: Vec<u64> = (0..512u64).map(|i| 7 + i * 4_096).collect();
        assert!(round_trip(&stride, true).len() < 16);
        let runs: Vec<u64> = (0..512u64).map(|i| 1_000_000_007 * (i / 100)).collect();
        assert!(round_trip(&runs, false).len() < 64);
        let few: Vec<u64> =
            (0..512u64).map(|i| [3, u64::MAX, 1 << 40][(i * i % 7 % 3) as usize]).collect();
        assert!(round_trip(&few, false).len() < 200);
    }

    proptest! {
        #[test]
        fn any_column_round_trips(values in proptest::collection::vec(any::<u64>(), 0..300), searched: bool) {
            round_trip(&values, searched);
        }

        #[test]
        fn small_and_sorted_columns_round_trip(mut values in proptest::collection::vec(0u64..5_000, 0..300), sort: bool) {
            if sort { values.sort_unstable(); }
            round_trip(&values, sort);
        }

        #[test]
        fn hostile_bytes_are_refused_or_decode(bytes in proptest::collection::vec(any::<u8>(), 0..64), rows in 0usize..400) {
            let mut input = WireInput::new(&bytes);
            if let Ok(column) = ParsedInts::parse(&mut input, rows) {
                let mut out = Vec::new();
                column.decode(&bytes, rows, &mut out);
                prop_assert_eq!(out.len(), rows);
            }
        }
    }
}
