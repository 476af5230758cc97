// SPDX-License-Identifier: Apache-2.0
//! String columns: byte strings without their common prefix, then in few bits a byte or LZ4.
//!
//! Layout: docs/format/table.md, "String columns". This file is its only encoder and decoder.
//! Invariants: a block's strings decode to at most `TEXT_BYTES_MAX` bytes.

use std::cmp::Ordering;
use std::ops::Range;

use esker_base::packed_bits;
use esker_base::wire::{WireDamage, WireInput, put_bytes, put_varint};

use super::{PackedInts, ParsedInts};
use crate::memory::prefetch;

/// Maximum bytes of the strings of one column of one block, which bounds what a hostile block can
/// make a reader allocate.
pub const TEXT_BYTES_MAX: usize = 16 << 20;

const PLAIN: u8 = 0;
const ALPHABET: u8 = 1;
const LZ4: u8 = 2;

/// Maximum distinct bytes for an alphabet; with more it saves too little to pay for decoding.
pub(crate) const ALPHABET_BYTES_MAX: usize = 64;
/// Strings up to this length are copied as pieces of exactly this size.
const PIECE_BYTES: usize = 32;
/// Shorter text is not worth the LZ4 attempt.
const LZ4_TEXT_BYTES_MIN: usize = 256;

/// The strings of one block while they are collected.
#[derive(Debug, Default)]
pub struct StringsBuilder {
    text: Vec<u8>,
    /// The length of each string; empty while all strings are empty.
    lengths: Vec<u64>,
    rows: usize,
}

impl StringsBuilder {
    /// Adds a string.
    #[inline]
    pub fn push(&mut self, string: &[u8]) {
        if !string.is_empty() {
            self.text.extend_from_slice(string);
            self.lengths.resize(self.rows, 0);
            self.lengths.push(string.len() as u64);
        }
        self.rows += 1;
    }

    /// The string added last; empty if there is none.
    #[must_use]
    pub fn last(&self) -> &[u8] {
        let is_last = self.lengths.len() == self.rows;
        let length = self.lengths.last().filter(|_| is_last).map_or(0, |length| *length as usize);
        &self.text[self.text.len() - length..]
    }

    /// Bytes of all strings so far.
    #[must_use]
    pub(crate) fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Removes all strings but keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.lengths.clear();
        self.rows = 0;
    }

    /// Appends the cheapest encoding of the strings to `out`.
    ///
    /// # Panics
    /// If they take more than [`TEXT_BYTES_MAX`].
    pub fn encode(&mut self, out: &mut Vec<u8>) {
        assert!(self.text.len() <= TEXT_BYTES_MAX, "strings within the readers' bound");
        self.lengths.resize(self.rows, 0);
        if self.text.is_empty() {
            ParsedInts::encode_constant(0, out);
            put_bytes(out, &[]);
            out.push(PLAIN);
            return;
        }
        let shared = self.shared_prefix();
        let lengths: Vec<u64> = self.lengths.iter().map(|length| length - shared as u64).collect();
        ParsedInts::encode(&lengths, false, out);
        put_bytes(out, &self.text[..shared]);
        let mut rests = Vec::with_capacity(self.text.len() + 8);
        let mut at = 0;
        for &length in &self.lengths {
            rests.extend_from_slice(&self.text[at + shared..at + length as usize]);
            at += length as usize;
        }
        encode_text(&rests, out);
    }

    fn shared_prefix(&self) -> usize {
        let first = &self.text[..self.lengths[0] as usize];
        let mut shared = first.len();
        let mut at = 0;
        for &length in &self.lengths {
            let string = &self.text[at..at + length as usize];
            at += length as usize;
            if !string.starts_with(&first[..shared]) {
                shared = first.iter().zip(string).take_while(|(a, b)| a == b).count();
            }
        }
        shared
    }
}

fn encode_text(text: &[u8], out: &mut Vec<u8>) {
    let mut seen = [false; 256];
    for &byte in text {
        seen[usize::from(byte)] = true;
    }
    let alphabet: Vec<u8> = (0..=255u8).filter(|&byte| seen[usize::from(byte)]).collect();
    let width = packed_bits::width_of(alphabet.len().saturating_sub(1) as u64);
    let packs = alphabet.len() <= ALPHABET_BYTES_MAX
        && !text.is_empty()
        && packed_bits::bytes(text.len(), width) + alphabet.len() + 2 < text.len();
    let cheapest =
        if packs { packed_bits::bytes(text.len(), width) + alphabet.len() } else { text.len() };
    // Packed names are already near their entropy; LZ4 pays off on longer, repetitive text.
    if text.len() >= LZ4_TEXT_BYTES_MIN && (!packs || text.len() > 64 << 10) {
        let compressed = lz4_flex::block::compress(text);
        if compressed.len() + compressed.len() / 8 < cheapest {
            out.push(LZ4);
            put_varint(out, text.len() as u64);
            put_bytes(out, &compressed);
            return;
        }
    }
    if packs {
        out.push(ALPHABET);
        put_bytes(out, &alphabet);
        let mut rank = [0u8; 256];
        for (index, &byte) in alphabet.iter().enumerate() {
            rank[usize::from(byte)] = index as u8;
        }
        let ranks = text.iter().map(|&byte| u64::from(rank[usize::from(byte)]));
        packed_bits::pack(out, ranks, width);
    } else {
        out.push(PLAIN);
        out.extend_from_slice(text);
    }
}

/// A parsed string column. It does not own the encoded bytes: the caller passes them again on each
/// access, since the block owns them.
#[derive(Debug)]
pub struct ParsedStrings {
    shared: Range<usize>,
    bounds: StringBounds,
    text: StringEncoding,
}

/// Start and end of each string's suffix, the part after the common prefix.
#[derive(Debug)]
enum StringBounds {
    /// All suffixes have this length.
    Even(usize),
    /// Row i's suffix is `[ends[i - 1], ends[i])`; its length is among the block's bytes as well,
    /// if `lengths` says where.
    Ends { ends: Vec<u32>, lengths: Option<PackedInts> },
}

/// The positions of a column's strings among the bytes that it was parsed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StringsLayout<'a> {
    /// The prefix that all strings share.
    pub(crate) shared: &'a [u8],
    /// The length of each string's own part.
    pub(crate) lengths: OwnLengths,
    /// The offset at which the own parts start.
    pub(crate) text_at: usize,
    /// Symbols and the bits of a symbol's rank, unless the text is not packed.
    pub(crate) alphabet: Option<(&'a [u8; ALPHABET_BYTES_MAX], u32)>,
}

/// The length of each string's own part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OwnLengths {
    Even(usize),
    Packed(PackedInts),
}

#[derive(Debug)]
enum StringEncoding {
    Plain { at: usize },
    Alphabet { symbols: Box<[u8; ALPHABET_BYTES_MAX]>, width: u32, at: usize },
    Expanded(Vec<u8>),
}

impl ParsedStrings {
    /// Parses a column of `rows` strings.
    pub fn parse(input: &mut WireInput, rows: usize) -> Result<Self, WireDamage> {
        let whole = input.whole();
        let lengths = ParsedInts::parse(input, rows)?;
        let shared = input.bytes(TEXT_BYTES_MAX, "a shared prefix within bounds")?;
        let shared = input.at() - shared.len()..input.at();
        if rows.saturating_mul(shared.len()) > TEXT_BYTES_MAX {
            return Err(input.damage("strings within bounds"));
        }
        let (bounds, text_bytes) = parse_bounds(&lengths, whole, rows)
            .filter(|(_, text_bytes)| *text_bytes <= TEXT_BYTES_MAX)
            .ok_or(input.damage("strings within bounds"))?;
        let text = match input.u8()? {
            PLAIN => {
                input.take(text_bytes)?;
                StringEncoding::Plain { at: input.at() - text_bytes }
            }
            ALPHABET => {
                let alphabet = input.bytes(ALPHABET_BYTES_MAX, "an alphabet within bounds")?;
                if alphabet.is_empty() {
                    return Err(input.damage("an alphabet with a symbol"));
                }
                let width = packed_bits::width_of(alphabet.len() as u64 - 1);
                let packed_bytes = packed_bits::bytes(text_bytes, width);
                input.take(packed_bytes)?;
                // Our encoder never writes a rank past the alphabet; the last symbol stands in.
                let mut symbols = Box::new([alphabet[alphabet.len() - 1]; ALPHABET_BYTES_MAX]);
                symbols[..alphabet.len()].copy_from_slice(alphabet);
                StringEncoding::Alphabet { symbols, width, at: input.at() - packed_bytes }
            }
            LZ4 => {
                input.varint_max(text_bytes, "the text's length").and_then(|length| {
                    if length == text_bytes {
                        Ok(())
                    } else {
                        Err(input.damage("the text's length"))
                    }
                })?;
                let at = input.at();
                let compressed = input.bytes(TEXT_BYTES_MAX, "compressed text within bounds")?;
                let text = lz4_flex::block::decompress(compressed, text_bytes).ok();
                let text = text.filter(|text| text.len() == text_bytes);
                StringEncoding::Expanded(text.ok_or(WireDamage { offset: at, what: "LZ4 text" })?)
            }
            _ => return Err(input.damage("a known string encoding")),
        };
        Ok(Self { shared, bounds, text })
    }

    fn byte_range(&self, row: usize) -> Range<usize> {
        match &self.bounds {
            StringBounds::Even(length) => row * length..(row + 1) * length,
            StringBounds::Ends { ends, .. } => {
                let start = if row == 0 { 0 } else { ends[row - 1] as usize };
                start..ends[row] as usize
            }
        }
    }

    /// Returns the positions of the strings among the `bytes` that the column was parsed from;
    /// `None` if a string cannot be read without the others.
    pub(crate) fn layout<'a>(&'a self, bytes: &'a [u8]) -> Option<StringsLayout<'a>> {
        let lengths = match &self.bounds {
            StringBounds::Even(length) => OwnLengths::Even(*length),
            StringBounds::Ends { lengths, .. } => OwnLengths::Packed((*lengths)?),
        };
        let (text_at, alphabet) = match &self.text {
            StringEncoding::Plain { at } => (*at, None),
            StringEncoding::Alphabet { symbols, width, at } => (*at, Some((&**symbols, *width))),
            StringEncoding::Expanded(_) => return None,
        };
        Some(StringsLayout { shared: &bytes[self.shared.clone()], lengths, text_at, alphabet })
    }

    /// Returns the offset at which the own part of the string at `row` starts among all own parts.
    pub(crate) fn own_start(&self, row: usize) -> usize {
        self.byte_range(row).start
    }

    /// Hints to the processor that the string at `row` is read soon.
    pub(crate) fn prefetch(&self, bytes: &[u8], row: usize) {
        match &self.bounds {
            StringBounds::Even(length) => {
                let at = match &self.text {
                    StringEncoding::Plain { at } => at + row * length,
                    StringEncoding::Alphabet { width, at, .. } => {
                        at + row * length * *width as usize / 8
                    }
                    StringEncoding::Expanded(_) => return,
                };
                prefetch(bytes.as_ptr().wrapping_add(at));
            }
            StringBounds::Ends { ends, .. } => prefetch(&raw const ends[row]),
        }
    }

    /// Appends the string at `row` of a column that was parsed from `bytes` to `out`.
    #[inline]
    pub fn append(&self, bytes: &[u8], row: usize, out: &mut Vec<u8>) {
        let range = self.byte_range(row);
        out.extend_from_slice(&bytes[self.shared.clone()]);
        match &self.text {
            StringEncoding::Plain { at } => {
                out.extend_from_slice(&bytes[at + range.start..at + range.end])
            }
            StringEncoding::Expanded(text) => out.extend_from_slice(&text[range]),
            StringEncoding::Alphabet { symbols, width, at } => {
                append_ranks(&bytes[*at..], range, *width, symbols, out);
            }
        }
    }

    /// Returns whether the encoding shows that all strings are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty() && matches!(self.bounds, StringBounds::Even(0))
    }

    /// Appends all `rows` strings of a column that was parsed from `bytes` to `out`, and the end of
    /// each to `ends`.
    pub fn decode(&self, bytes: &[u8], rows: usize, out: &mut Vec<u8>, ends: &mut Vec<u32>) {
        let text_bytes = if rows == 0 { 0 } else { self.byte_range(rows - 1).end };
        let shared = &bytes[self.shared.clone()];
        let unpacked;
        let text = match &self.text {
            StringEncoding::Plain { at } => &bytes[*at..],
            StringEncoding::Expanded(text) => text,
            StringEncoding::Alphabet { symbols, width, at } => {
                unpacked = unpack_ranks(&bytes[*at..], text_bytes, *width, symbols);
                &unpacked
            }
        };
        let mut end = out.len();
        if shared.is_empty() {
            out.extend_from_slice(&text[..text_bytes]);
            ends.extend((0..rows).map(|row| (end + self.byte_range(row).end) as u32));
            return;
        }
        // Short strings are copied as pieces of one size, which takes a few instructions and no
        // call; the next string overwrites the excess.
        let mut piece = [0; PIECE_BYTES];
        let is_short = shared.len() <= PIECE_BYTES;
        piece[..shared.len().min(PIECE_BYTES)]
            .copy_from_slice(&shared[..shared.len().min(PIECE_BYTES)]);
        out.resize(end + text_bytes + rows * shared.len() + PIECE_BYTES, 0);
        for row in 0..rows {
            let range = self.byte_range(row);
            match out[end..].first_chunk_mut() {
                Some(to) if is_short => *to = piece,
                _ => out[end..end + shared.len()].copy_from_slice(shared),
            }
            end += shared.len();
            let length = range.len();
            match (out[end..].first_chunk_mut(), text[range.start..].first_chunk::<PIECE_BYTES>()) {
                (Some(to), Some(own)) if length <= PIECE_BYTES => *to = *own,
                _ => out[end..end + length].copy_from_slice(&text[range]),
            }
            end += length;
            ends.push(end as u32);
        }
        out.truncate(end);
    }

    /// Compares the string at `row` with `other`.
    #[must_use]
    pub fn compare(&self, bytes: &[u8], row: usize, other: &[u8]) -> Ordering {
        let mut string = Vec::with_capacity(64);
        self.append(bytes, row, &mut string);
        string.as_slice().cmp(other)
    }

    /// Returns whether the string at `row` equals `other`, without decoding it into memory.
    #[inline]
    #[must_use]
    pub(crate) fn equals(&self, bytes: &[u8], row: usize, other: &[u8]) -> bool {
        let range = self.byte_range(row);
        let shared = &bytes[self.shared.clone()];
        if shared.len() + range.len() != other.len() || !other.starts_with(shared) {
            return false;
        }
        let other = &other[shared.len()..];
        match &self.text {
            StringEncoding::Plain { at } => &bytes[at + range.start..at + range.end] == other,
            StringEncoding::Expanded(text) => &text[range] == other,
            StringEncoding::Alphabet { symbols, width, at } => {
                range.zip(other).all(|(index, &byte)| {
                    symbols[packed_bits::get(&bytes[*at..], index, *width) as usize] == byte
                })
            }
        }
    }

    /// Memory of the parsed column beyond its own size, in bytes.
    #[must_use]
    pub(crate) fn heap_bytes(&self) -> usize {
        let bounds = match &self.bounds {
            StringBounds::Even(_) => 0,
            StringBounds::Ends { ends, .. } => ends.capacity() * 4,
        };
        let text = match &self.text {
            StringEncoding::Plain { .. } => 0,
            StringEncoding::Alphabet { .. } => ALPHABET_BYTES_MAX,
            StringEncoding::Expanded(text) => text.capacity(),
        };
        bounds + text
    }
}

/// Returns the bounds of strings of `lengths`, and the sum of the lengths, if it fits.
fn parse_bounds(lengths: &ParsedInts, whole: &[u8], rows: usize) -> Option<(StringBounds, usize)> {
    if let Some(length) = lengths.constant() {
        let length = usize::try_from(length).ok()?;
        return Some((StringBounds::Even(length), length.checked_mul(rows)?));
    }
    let mut values = Vec::with_capacity(rows);
    lengths.decode(whole, rows, &mut values);
    let mut end = 0u32;
    let mut ends = Vec::with_capacity(rows);
    for length in values {
        end = end.checked_add(u32::try_from(length).ok()?)?;
        ends.push(end);
    }
    Some((StringBounds::Ends { ends, lengths: lengths.packed() }, end as usize))
}

/// Appends the symbols of the packed ranks `range` to `out`.
fn append_ranks(
    packed: &[u8],
    range: Range<usize>,
    width: u32,
    symbols: &[u8; ALPHABET_BYTES_MAX],
    out: &mut Vec<u8>,
) {
    if width == 0 {
        out.resize(out.len() + range.len(), symbols[0]);
        return;
    }
    let mask = (1u64 << width) - 1;
    let mut index = range.start;
    // One eight-byte load yields at least nine symbols of at most six bits.
    let per_load = 57 / width as usize;
    while index < range.end {
        let bit = index * width as usize;
        let Some(word) = packed.get(bit / 8..bit / 8 + 8) else {
            break;
        };
        let mut word = u64::from_le_bytes(word.try_into().expect("eight bytes")) >> (bit % 8);
        let count = per_load.min(range.end - index);
        out.extend((0..count).map(|_| {
            let symbol = symbols[(word & mask) as usize];
            word >>= width;
            symbol
        }));
        index += count;
    }
    out.extend(
        (index..range.end).map(|index| symbols[packed_bits::get(packed, index, width) as usize]),
    );
}

/// Returns the symbols of the first `count` packed ranks, and one piece more.
fn unpack_ranks(
    packed: &[u8],
    count: usize,
    width: u32,
    symbols: &[u8; ALPHABET_BYTES_MAX],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(count + PIECE_BYTES);
    append_ranks(packed, 0..count, width, symbols, &mut out);
    out.resize(count + PIECE_BYTES, 0);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(strings: &[Vec<u8>]) -> usize {
        let mut builder = StringsBuilder::default();
        for string in strings {
            builder.push(string);
        }
        let mut out = Vec::new();
        builder.encode(&mut out);
        let mut input = WireInput::new(&out);
        let column = ParsedStrings::parse(&mut input, strings.len()).expect("our own encoding");
        input.end().expect("nothing is left");
        let (mut all, mut ends) = (b"before".to_vec(), Vec::new());
        column.decode(&out, strings.len(), &mut all, &mut ends);
        assert_eq!(all[6..], strings.concat());
        assert_eq!(ends.len(), strings.len());
        for (row, string) in strings.iter().enumerate() {
            let mut decoded = Vec::new();
            column.append(&out, row, &mut decoded);
            assert_eq!(&decoded, string);
            assert!(column.equals(&out, row, string));
            let start = if row == 0 { 6 } else { ends[row - 1] as usize };
            assert_eq!(&all[start..ends[row] as usize], string);
            assert_eq!(column.compare(&out, row, string), Ordering::Equal);
            let mut other = string.clone();
            other.push(b'x');
            assert!(!column.equals(&out, row, &other));
        }
        out.len()
    }

    #[test]
    fn mdtest_names_take_four_bits_a_digit() {
        let names: Vec<Vec<u8>> = (0..256u64)
            .map(|i| format!("file.mdtest.0.{}", 1_000_000 + i * 7_919 % 9_000_000).into_bytes())
            .collect();
        assert!(round_trip(&names) < 256 * 4);
    }

    #[test]
    fn repetitive_text_takes_lz4() {
        let text: Vec<Vec<u8>> = (0..50u8).map(|i| (0..=255).chain([i]).collect()).collect();
        assert!(round_trip(&text) < 50 * 64);
    }

    proptest! {
        #[test]
        fn any_strings_round_trip(strings in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..80)) {
            round_trip(&strings);
        }

        #[test]
        fn names_round_trip(strings in proptest::collection::vec("[a-c]{0,3}/[0-9]{0,9}", 0..80)) {
            round_trip(&strings.into_iter().map(String::into_bytes).collect::<Vec<_>>());
        }

        #[test]
        fn hostile_bytes_are_refused_or_decode(bytes in proptest::collection::vec(any::<u8>(), 0..96), rows in 0usize..200) {
            if let Ok(column) = ParsedStrings::parse(&mut WireInput::new(&bytes), rows) {
                for row in 0..rows {
                    let mut out = Vec::new();
                    column.append(&bytes, row, &mut out);
                }
                column.decode(&bytes, rows, &mut Vec::new(), &mut Vec::new());
            }
        }
    }
}
