//! Image: the records of one block as a point read wants them; in memory only.
//!
//! A point read of a large set misses the processor's cache wherever it looks, so what counts is how
//! many of its misses wait for one another. Here none does: rows have one width and are in order
//! of their digests, so that the digest alone says about where its row is, and a row holds all
//! that its record does not share with the whole block.
//! ```text
//! word 0      rows u16 | width of tags u8 | kinds of strings, 2 bits each | whether one group
//! word 1      columns of one value but 0, as bits u32 | columns of many values, as bits u32
//! words 2, 3  the key's string: shared bytes u16 | lengths at bit u16, of width u8 | places at bit
//!             u16, of width u8; least length u24 | shared bytes at word u16 | heap at word u24
//! words 4, 5  the group's integers, if there is one group; word 1 does not have them then
//! then        the values | base, bit and width of each other column | two words as above for each
//!             further string that is not always empty | shared bytes
//! rows        tag | columns | strings' lengths and places, or the bytes of a short key string
//! heap        bytes of the other strings
//! ```
//! A tag is the digest's bits after those that name its bucket; `starts` says with which row each
//! bucket begins. A key's hash that follows from its string is left out.
//! Concurrency: words are atomics because they may be overwritten while they are read. Reading
//! makes no assumption about them: the reader finds out afterwards (`hot/mod.rs`).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::block::{DecodedBlock, Values};
use crate::column::bits;
use crate::memory::prefetch;
use crate::schema::{Followers, INTS_MAX, KEY_INTS_MAX, Key, RowBuffer, STRINGS_MAX, Schema};
use crate::table::Wanted;

/// Buckets of rows by the highest bits of their digests.
pub(super) const BUCKETS: usize = 16;
/// With narrower tags most look-ups would compare keys in vain.
const TAG_BITS_MIN: usize = 8;
const TAG_BITS_MAX: usize = 24;
/// Key strings whose own parts are no longer than this are kept in the rows.
const INLINE_BYTES_MAX: usize = 32;
/// A longer beginning that all strings share counts as their own.
const SHARED_BYTES_MAX: usize = 255;
const WORD_BITS: usize = 64;
const LINE_WORDS: usize = 8;

/// A string column is empty in all rows; in the rows; on the heap.
const EMPTY: u64 = 0;
const INLINE: u64 = 1;
const HEAP: u64 = 2;

/// An image and how to find its rows.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) words: Vec<u64>,
    pub(super) starts: [u64; BUCKETS / 8],
    pub(super) layout: Layout,
}

/// Where an image's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Words before the first row.
    pub(super) header: u8,
    /// Words of a row.
    pub(super) stride: u8,
}

/// Words that somebody else may overwrite meanwhile; past their end all are 0.
#[derive(Clone, Copy)]
pub(super) struct Words<'a>(pub(super) &'a [AtomicU64]);

impl Words<'_> {
    #[inline]
    fn at(self, index: usize) -> u64 {
        self.0.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// `width` bits, at least one, from bit `bit` on.
    #[inline]
    fn bits(self, bit: usize, width: u32) -> u64 {
        let (index, shift) = (bit / WORD_BITS, (bit % WORD_BITS) as u32);
        let mut word = self.at(index) >> shift;
        if shift + width > u64::BITS {
            word |= self.at(index + 1).wrapping_shl(u64::BITS - shift);
        }
        word & u64::MAX.wrapping_shr(u64::BITS.wrapping_sub(width))
    }

    /// Whether the bytes from bit `bit` on are `bytes`.
    #[inline]
    fn equal(self, mut bit: usize, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while let Some((chunk, behind)) = rest.split_first_chunk::<8>() {
            if self.bits(bit, u64::BITS) != u64::from_le_bytes(*chunk) {
                return false;
            }
            (bit, rest) = (bit.wrapping_add(WORD_BITS), behind);
        }
        rest.is_empty() || self.bits(bit, rest.len() as u32 * 8) == word_of(rest)
    }

    /// Appends `length` bytes from bit `bit` on to `out`.
    fn append(self, mut bit: usize, length: usize, out: &mut Vec<u8>) {
        let end = out.len() + length.min(self.0.len() * 8);
        while out.len() < end {
            let word = self.bits(bit, u64::BITS).to_le_bytes();
            out.extend_from_slice(&word[..(end - out.len()).min(8)]);
            bit = bit.wrapping_add(WORD_BITS);
        }
    }
}

/// Up to eight bytes as a number.
#[inline]
fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// The bucket of a digest, and its share of the way through it.
#[inline]
fn place_of(digest: u64) -> (usize, u32) {
    let place = (digest >> 32) * BUCKETS as u64;
    ((place >> 32) as usize, place as u32)
}

/// A string column's description.
#[derive(Clone, Copy)]
struct Text {
    shared_bytes: usize,
    length_bit: usize,
    length_width: u32,
    place_bit: usize,
    place_width: u32,
    length_base: usize,
    shared_at: usize,
    heap_at: usize,
}

impl Text {
    #[inline]
    fn of(first: u64, second: u64) -> Self {
        Self {
            shared_bytes: usize::from(first as u16),
            length_bit: usize::from((first >> 16) as u16),
            length_width: u32::from((first >> 32) as u8),
            place_bit: usize::from((first >> 40) as u16),
            place_width: u32::from((first >> 56) as u8),
            length_base: second as usize & 0xFF_FFFF,
            shared_at: usize::from((second >> 24) as u16),
            heap_at: (second >> 40) as usize,
        }
    }

    fn words(&self) -> [u64; 2] {
        [
            self.shared_bytes as u64
                | (self.length_bit as u64) << 16
                | u64::from(self.length_width) << 32
                | (self.place_bit as u64) << 40
                | u64::from(self.place_width) << 56,
            self.length_base as u64 | (self.shared_at as u64) << 24 | (self.heap_at as u64) << 40,
        ]
    }

    /// The length of a row's own part.
    #[inline]
    fn length(&self, words: Words, row_bit: usize) -> usize {
        let more = match self.length_width {
            0 => 0,
            width => words.bits(row_bit + self.length_bit, width) as usize,
        };
        self.length_base.wrapping_add(more)
    }

    /// Where a row's own part starts.
    #[inline]
    fn start_bit(&self, words: Words, row_bit: usize, kind: u64) -> usize {
        if kind == INLINE {
            return row_bit + self.place_bit;
        }
        let place = match self.place_width {
            0 => 0,
            width => words.bits(row_bit + self.place_bit, width) as usize,
        };
        (self.heap_at * WORD_BITS).wrapping_add(place.wrapping_mul(8))
    }
}

/// The first words of an image.
#[derive(Clone, Copy)]
struct Header {
    rows: usize,
    tag_width: u32,
    kinds: u64,
    is_group: bool,
    ones: u32,
    many: u32,
}

impl Header {
    #[inline]
    fn of(words: Words) -> Self {
        let (first, second) = (words.at(0), words.at(1));
        Self {
            rows: usize::from(first as u16),
            tag_width: u32::from((first >> 16) as u8),
            kinds: first >> 24,
            is_group: first >> 30 & 1 == 1,
            ones: second as u32,
            many: (second >> 32) as u32,
        }
    }

    #[inline]
    fn kind(&self, string: usize) -> u64 {
        self.kinds >> (2 * string) & 3
    }

    const GROUP_AT: usize = 4;
    /// The word of the first value.
    const ONES_AT: usize = Self::GROUP_AT + KEY_INTS_MAX - 1;

    #[inline]
    fn many_at(&self) -> usize {
        Self::ONES_AT + self.ones.count_ones() as usize
    }

    /// The value of `column` in the row that starts at `row_bit`.
    fn int(&self, words: Words, row_bit: usize, column: usize) -> u64 {
        let before = (1u32 << column) - 1;
        if self.many >> column & 1 == 1 {
            let at = self.many_at() + 2 * (self.many & before).count_ones() as usize;
            return field(words, row_bit, at);
        }
        if self.ones >> column & 1 == 1 {
            return words.at(Self::ONES_AT + (self.ones & before).count_ones() as usize);
        }
        0
    }
}

/// The value of the column that the words at `at` describe in the row that starts at `row_bit`.
#[inline]
fn field(words: Words, row_bit: usize, at: usize) -> u64 {
    let place = words.at(at + 1);
    let bit = row_bit + usize::from(place as u16);
    words.at(at).wrapping_add(words.bits(bit, u32::from((place >> 16) as u8)))
}

impl Layout {
    /// The rows of a digest's bucket, of `rows` in all, and where among them it should be.
    #[inline]
    fn guess(starts: &[u64; BUCKETS / 8], rows: usize, digest: u64) -> (Range<usize>, usize) {
        let (bucket, share) = place_of(digest);
        let start_of = |bucket: usize| (starts[bucket / 8] >> (bucket % 8 * 8) & 0xFF) as usize;
        let start = start_of(bucket);
        let end = if bucket + 1 < BUCKETS { start_of(bucket + 1).min(rows) } else { rows };
        let ahead = (u64::from(share) * end.saturating_sub(start) as u64) >> 32;
        (start..end, start + ahead as usize)
    }

    #[inline]
    fn row_at(self, row: usize) -> usize {
        usize::from(self.header) + row * usize::from(self.stride)
    }

    /// Hints the processor that `digest` is looked up soon.
    #[inline]
    pub(super) fn prefetch(self, words: Words, starts: &[u64; BUCKETS / 8], digest: u64) {
        // How many rows the last bucket has is not known yet; about as many as others do.
        let last = (starts[BUCKETS / 8 - 1] >> 56) as usize;
        let (_, row) = Self::guess(starts, last + last / BUCKETS, digest);
        let start = words.0.as_ptr();
        // What is read of a header is rarely longer.
        prefetch(start);
        prefetch(start.wrapping_add(LINE_WORDS));
        // The guess is one or two rows off.
        let (at, reach) = (self.row_at(row), 2 * usize::from(self.stride));
        prefetch(start.wrapping_add(at.saturating_sub(reach)));
        prefetch(start.wrapping_add(at));
        prefetch(start.wrapping_add(at + reach));
    }

    /// The first word of the row of a key, if it is there.
    #[inline]
    pub(super) fn find(
        self,
        words: Words,
        starts: &[u64; BUCKETS / 8],
        schema: &Schema,
        wanted: &Wanted,
    ) -> Option<usize> {
        let header = Header::of(words);
        let (range, mut row) = Self::guess(starts, header.rows, wanted.digest);
        if range.is_empty() {
            return None;
        }
        let mask = (1 << (header.tag_width & 31)) - 1;
        let tag_at = |row: usize| words.at(self.row_at(row)) & mask;
        let share = u64::from(place_of(wanted.digest).1);
        let tag = share >> (u32::BITS.wrapping_sub(header.tag_width) & 31);
        if tag_at(row) < tag {
            row += 1;
            while row < range.end && tag_at(row) < tag {
                row += 1;
            }
        } else {
            while row > range.start && tag_at(row - 1) >= tag {
                row -= 1;
            }
        }
        while row < range.end && tag_at(row) == tag {
            let at = self.row_at(row);
            if is_key(words, &header, at * WORD_BITS, schema, &wanted.key) {
                return Some(at);
            }
            row += 1;
        }
        None
    }
}

/// Whether the row that starts at `row_bit` has `key`.
#[inline]
fn is_key(words: Words, header: &Header, row_bit: usize, schema: &Schema, key: &Key) -> bool {
    let derived = usize::from(schema.hash_of.is_some());
    for column in 0..schema.key_ints - derived {
        let own = match header.is_group && column < schema.group_ints {
            true => words.at(Header::GROUP_AT + column),
            false => header.int(words, row_bit, column),
        };
        if own != key.ints[column] {
            return false;
        }
    }
    let kind = header.kind(0);
    if kind == EMPTY {
        return key.string.is_empty();
    }
    let text = Text::of(words.at(2), words.at(3));
    let length = text.length(words, row_bit);
    let Some((shared, own)) = key.string.split_at_checked(text.shared_bytes) else {
        return false;
    };
    own.len() == length
        && words.equal(text.start_bit(words, row_bit, kind), own)
        && words.equal(text.shared_at * WORD_BITS, shared)
}

/// Reads the row at word `row_at`, that of `key`, not in stored form, its strings only if
/// `with_strings`.
#[inline]
pub(super) fn read(
    words: Words,
    row_at: usize,
    (followers, key): (&Followers, &Key),
    with_strings: bool,
    out: &mut RowBuffer,
) {
    let header = Header::of(words);
    let row_bit = row_at * WORD_BITS;
    out.ints = [0; INTS_MAX];
    out.ints[..key.ints.len()].copy_from_slice(&key.ints);
    let mut at = Header::ONES_AT;
    let mut ones = header.ones & ((1 << INTS_MAX) - 1);
    while ones != 0 {
        out.ints[ones.trailing_zeros() as usize] = words.at(at);
        ones &= ones - 1;
        at += 1;
    }
    let mut many = header.many & ((1 << INTS_MAX) - 1);
    while many != 0 {
        out.ints[many.trailing_zeros() as usize] = field(words, row_bit, at);
        many &= many - 1;
        at += 2;
    }
    followers.restore(&mut out.ints);
    if !with_strings {
        return;
    }
    for (string, own) in out.strings.iter_mut().enumerate() {
        own.clear();
        let kind = header.kind(string);
        if string == 0 {
            own.extend_from_slice(key.string);
        } else if kind != EMPTY {
            let text = Text::of(words.at(at), words.at(at + 1));
            at += 2;
            let length = text.length(words, row_bit);
            words.append(text.start_bit(words, row_bit, kind), length, own);
        }
    }
}

/// Puts an image together.
struct Builder<'a> {
    decoded: &'a DecodedBlock,
    words: Vec<u64>,
    /// Bits of a row that are taken, tags not counted.
    row_bits: usize,
}

/// An integer column of many values.
struct Field {
    column: usize,
    base: u64,
    width: u32,
    bit: usize,
}

impl Image {
    /// The image of `decoded`; `None` if its records do not suit one.
    pub(super) fn of(schema: &Schema, decoded: &DecodedBlock) -> Option<Self> {
        // Of a hostile block's keys that do not ascend a search finds some only: so must this.
        let ascend = |row| decoded.key(schema, row - 1) < decoded.key(schema, row);
        if !(1..decoded.rows()).all(ascend) {
            return None;
        }
        let rows = decoded.rows();
        let mut order: Vec<u64> = (0..rows)
            .map(|row| schema.digest(&decoded.key(schema, row)) >> 32 << 32 | row as u64)
            .collect();
        order.sort_unstable();
        let mut builder = Builder { decoded, words: Vec::new(), row_bits: 0 };
        let group = group_of(schema, decoded);
        let (ones, many, mut fields) = builder.columns(schema, group.is_some());
        let mut texts: [Option<(u64, Text)>; STRINGS_MAX] = [None; STRINGS_MAX];
        for (string, text) in texts[..schema.strings.len()].iter_mut().enumerate() {
            *text = builder.text(string);
        }
        let stride = (builder.row_bits + TAG_BITS_MIN).div_ceil(WORD_BITS);
        let tag_width = (stride * WORD_BITS - builder.row_bits).min(TAG_BITS_MAX);
        fields.iter_mut().for_each(|field| field.bit += tag_width);
        for (_, text) in texts.iter_mut().flatten() {
            text.length_bit += tag_width;
            text.place_bit += tag_width;
        }
        let further = texts[1..].iter().flatten().count();
        let shared_at = Header::ONES_AT + ones.len() + 2 * (fields.len() + further);
        let shared_bytes = texts[0].map_or(0, |(_, text)| text.shared_bytes);
        let header = shared_at + shared_bytes.div_ceil(8);
        let layout = Layout { header: header.try_into().ok()?, stride: stride.try_into().ok()? };
        let kinds = (0..STRINGS_MAX).fold(0, |kinds, string| {
            kinds | texts[string].map_or(EMPTY, |(kind, _)| kind) << (2 * string)
        });
        let column_bits = |columns: &[(usize, u64)]| -> u64 {
            columns.iter().fold(0, |bits, (column, _)| bits | 1 << column)
        };
        builder.words = vec![0; header + rows * stride];
        builder.words[0] =
            rows as u64 | (tag_width as u64) << 16 | kinds << 24 | u64::from(group.is_some()) << 30;
        builder.words[1] = column_bits(&ones) | u64::from(many) << 32;
        let group = group.iter().flatten().take(KEY_INTS_MAX - 1);
        for (at, int) in group.enumerate() {
            builder.words[Header::GROUP_AT + at] = *int;
        }
        for (at, (_, value)) in ones.iter().enumerate() {
            builder.words[Header::ONES_AT + at] = *value;
        }
        for (at, field) in fields.iter().enumerate() {
            let at = Header::ONES_AT + ones.len() + 2 * at;
            builder.words[at] = field.base;
            builder.words[at + 1] = field.bit as u64 | u64::from(field.width) << 16;
        }
        let mut starts = [u8::try_from(rows).unwrap_or(u8::MAX); BUCKETS];
        for (at, entry) in order.iter().enumerate().rev() {
            let (bucket, share) = place_of(*entry);
            starts[..=bucket].fill(at as u8);
            let bit = layout.row_at(at) * WORD_BITS;
            put(&mut builder.words, bit, tag_width as u32, u64::from(share) >> (32 - tag_width));
            for field in &fields {
                let value = decoded.column(field.column).at(*entry as u32 as usize);
                put(&mut builder.words, bit + field.bit, field.width, value - field.base);
            }
        }
        builder.strings(layout, &order, &mut texts, shared_at)?;
        Some(Self { words: builder.words, starts: pack_starts(starts), layout })
    }
}

fn pack_starts(starts: [u8; BUCKETS]) -> [u64; BUCKETS / 8] {
    std::array::from_fn(|word| word_of(&starts[word * 8..word * 8 + 8]))
}

/// Sets `width` bits, which are 0, from bit `bit` on.
fn put(words: &mut [u64], bit: usize, width: u32, value: u64) {
    if width == 0 {
        // There may be no word any more.
        return;
    }
    let (index, shift) = (bit / WORD_BITS, (bit % WORD_BITS) as u32);
    words[index] |= value << shift;
    if shift + width > u64::BITS {
        words[index + 1] |= value >> (u64::BITS - shift);
    }
}

fn put_bytes(words: &mut [u64], mut bit: usize, bytes: &[u8]) {
    for chunk in bytes.chunks(8) {
        put(words, bit, chunk.len() as u32 * 8, word_of(chunk));
        bit += WORD_BITS;
    }
}

/// The integers of the group of all records, if there is one, padded with 0.
fn group_of(schema: &Schema, decoded: &DecodedBlock) -> Option<[u64; KEY_INTS_MAX]> {
    let mut group = [0; KEY_INTS_MAX];
    for (column, int) in group[..schema.group_ints].iter_mut().enumerate() {
        match decoded.column(column) {
            Values::One(value) => *int = value,
            Values::Each(_) => return None,
        }
    }
    Some(group)
}

impl Builder<'_> {
    /// Columns of one value but 0 with it, and those of many values, as bits and as fields.
    fn columns(&mut self, schema: &Schema, is_group: bool) -> (Vec<(usize, u64)>, u32, Vec<Field>) {
        let derived = schema.hash_of.map(|_| schema.key_ints - 1);
        let start = if is_group { schema.group_ints } else { 0 };
        let (mut ones, mut many, mut fields) = (Vec::new(), 0, Vec::new());
        for column in (start..schema.ints.len()).filter(|column| Some(*column) != derived) {
            match self.decoded.column(column) {
                Values::One(0) => {}
                Values::One(value) => ones.push((column, value)),
                Values::Each(values) => {
                    let (low, high) = values.iter().fold((u64::MAX, 0), |(low, high), &value| {
                        (low.min(value), high.max(value))
                    });
                    let width = bits::width_of(high - low).max(1);
                    fields.push(Field { column, base: low, width, bit: self.row_bits });
                    self.row_bits += width as usize;
                    many |= 1 << column;
                }
            }
        }
        (ones, many, fields)
    }

    /// Plans a string column.
    fn text(&mut self, string: usize) -> Option<(u64, Text)> {
        let texts = || (0..self.decoded.rows()).map(|row| self.decoded.string(string, row));
        let total: usize = texts().map(<[u8]>::len).sum();
        if total == 0 {
            return None;
        }
        let first = self.decoded.string(string, 0);
        let mut shared = if string == 0 { first.len().min(SHARED_BYTES_MAX) } else { 0 };
        for text in texts() {
            if !text.starts_with(&first[..shared]) {
                shared = first.iter().zip(text).take_while(|(a, b)| a == b).count();
            }
        }
        let own = || texts().map(|text| text.len() - shared);
        let (low, high) = (own().min()?, own().max()?);
        let rows = self.decoded.rows();
        let is_short = high <= INLINE_BYTES_MAX && high * rows <= 2 * (total - shared * rows) + 8;
        let kind = if string == 0 && is_short { INLINE } else { HEAP };
        let length_width = bits::width_of((high - low) as u64);
        let place_width = if kind == INLINE { 0 } else { bits::width_of(total as u64) };
        let length_bit = self.row_bits;
        let place_bit = length_bit + length_width as usize;
        self.row_bits = place_bit + if kind == INLINE { high * 8 } else { place_width as usize };
        let text = Text {
            shared_bytes: shared,
            length_bit,
            length_width,
            place_bit,
            place_width,
            length_base: low,
            shared_at: 0,
            heap_at: 0,
        };
        Some((kind, text))
    }

    /// Writes strings and their descriptions.
    fn strings(
        &mut self,
        layout: Layout,
        order: &[u64],
        texts: &mut [Option<(u64, Text)>; STRINGS_MAX],
        shared_at: usize,
    ) -> Option<()> {
        let further = texts[1..].iter().flatten().count();
        let mut description_at = shared_at - 2 * further;
        for (string, text) in texts.iter_mut().enumerate() {
            let Some((kind, text)) = text else {
                continue;
            };
            (text.shared_at, text.heap_at) = (shared_at, self.words.len());
            let mut heap: Vec<u8> = Vec::new();
            for (at, entry) in order.iter().enumerate() {
                let bit = layout.row_at(at) * WORD_BITS;
                let own = &self.decoded.string(string, *entry as u32 as usize)[text.shared_bytes..];
                let more = (own.len() - text.length_base) as u64;
                put(&mut self.words, bit + text.length_bit, text.length_width, more);
                if *kind == INLINE {
                    put_bytes(&mut self.words, bit + text.place_bit, own);
                } else {
                    put(&mut self.words, bit + text.place_bit, text.place_width, heap.len() as u64);
                    heap.extend_from_slice(own);
                }
            }
            self.words.extend(heap.chunks(8).map(word_of));
            if string == 0 {
                let shared = &self.decoded.string(0, 0)[..text.shared_bytes];
                put_bytes(&mut self.words, shared_at * WORD_BITS, shared);
            }
            if text.heap_at >> 24 != 0 || text.length_base >> 24 != 0 {
                return None;
            }
            let at = if string == 0 { 2 } else { description_at };
            description_at += if string == 0 { 0 } else { 2 };
            self.words[at..at + 2].copy_from_slice(&text.words());
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
