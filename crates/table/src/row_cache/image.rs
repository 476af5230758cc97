// SPDX-License-Identifier: Apache-2.0
//! Image: the records of one block in a layout for point reads; in memory only.
//!
//! A point read of a large set misses the processor's cache at every access, so its cost is the
//! number of misses, and above all the number that depend on each other. Here none does: rows have
//! one width and are ordered by digest, so a key's digest alone predicts the position of its row,
//! and a row holds everything that its record does not share with the whole block. The shared part
//! is the image's form, which most blocks of a table have in common (`row_cache/mod.rs`): it stays
//! in the cache.
//! ```text
//! form: word 0  width of tags u8 | kinds of strings, 2 bits each | whether one group
//!       word 1  columns of one value but 0, as bits u32 | columns of many values, as bits u32
//!       2, 3    the key's string: shared bytes u16 | lengths at bit u16, of width u8 | places at
//!               bit u16, of width u8; least length u24 | shared bytes at word u16 | heap at word u24
//!       then    the values | base, bit and width of each other column | two words as above for
//!               each further string that is not always empty | shared bytes
//! rows          tag | columns | strings' lengths and places, or the bytes of a short key string
//! heap          bytes of the other strings
//! ```
//! A tag is the bits of the digest after those that name its bucket; [`ImageLayout`] tells with
//! which row each bucket begins. A key's hash that follows from its string is left out, and so is
//! the group if all records are of the one that the index names. Bases are rounded, so that many
//! blocks share theirs.
//! Concurrency: words are atomics because they may be overwritten while they are read. Reading
//! makes no assumption about them: the reader detects that afterwards (`row_cache/mod.rs`).

mod builder;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::prefetch;
use crate::schema::{INTS_MAX, Key, RelativeColumns, RowBuffer, STRINGS_MAX, Schema};
use crate::table::LookupKey;

/// Number of buckets; the highest bits of a digest select one.
pub(super) const BUCKETS: usize = 16;
const WORD_BITS: usize = 64;
const LINE_WORDS: usize = 8;

/// Bits of a form's first word: the kinds of strings, and whether there is one group.
const KINDS_BIT: u32 = 8;
const GROUP_BIT: u32 = KINDS_BIT + 2 * STRINGS_MAX as u32;

/// Kinds of string columns: empty in all rows, stored in the rows, stored on the heap.
const EMPTY: u64 = 0;
const INLINE: u64 = 1;
const HEAP: u64 = 2;

/// An image, with the layout by which its rows are found.
#[derive(Debug)]
pub(super) struct BlockImage {
    pub(super) form: Vec<u64>,
    /// True if other blocks probably have the same form.
    pub(super) is_form_common: bool,
    /// Rows and heap.
    pub(super) words: Vec<u64>,
    pub(super) layout: ImageLayout,
}

/// The number of rows of an image, their width, and the start of each bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImageLayout {
    /// A byte for each bucket's first row. The first bucket begins with row 0, so its byte holds
    /// the number of rows minus one instead.
    pub(super) starts: [u64; BUCKETS / 8],
    /// Words of a row.
    pub(super) stride: u8,
}

/// An image being read.
#[derive(Clone, Copy)]
pub(super) struct ImageView<'a> {
    pub(super) form: AtomicWords<'a>,
    pub(super) rows: AtomicWords<'a>,
    pub(super) layout: ImageLayout,
}

/// Words that a writer may overwrite during reads; all words past the end are 0.
#[derive(Clone, Copy)]
pub(super) struct AtomicWords<'a>(pub(super) &'a [AtomicU64]);

impl AtomicWords<'_> {
    #[inline]
    fn at(self, index: usize) -> u64 {
        self.0.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Reads `width` bits, at least one, from bit `bit` on.
    #[inline]
    fn bits(self, bit: usize, width: u32) -> u64 {
        let (index, shift) = (bit / WORD_BITS, (bit % WORD_BITS) as u32);
        let mut word = self.at(index) >> shift;
        if shift + width > u64::BITS {
            word |= self.at(index + 1).wrapping_shl(u64::BITS - shift);
        }
        word & u64::MAX.wrapping_shr(u64::BITS.wrapping_sub(width))
    }

    /// Returns whether the bytes from bit `bit` on equal `bytes`.
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

/// Returns up to eight bytes as a number.
#[inline]
fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Returns the bucket of a digest, and its relative position in the bucket.
#[inline]
fn bucket_of(digest: u64) -> (usize, u32) {
    let scaled = (digest >> 32) * BUCKETS as u64;
    ((scaled >> 32) as usize, scaled as u32)
}

/// The descriptor of a string column.
#[derive(Clone, Copy)]
struct StringField {
    shared_bytes: usize,
    length_bit: usize,
    length_width: u32,
    place_bit: usize,
    place_width: u32,
    length_base: usize,
    shared_at: usize,
    heap_at: usize,
}

impl StringField {
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
    fn length(&self, words: AtomicWords, row_bit: usize) -> usize {
        let more = match self.length_width {
            0 => 0,
            width => words.bits(row_bit + self.length_bit, width) as usize,
        };
        self.length_base.wrapping_add(more)
    }

    /// The bit at which a row's own part starts.
    #[inline]
    fn start_bit(&self, words: AtomicWords, row_bit: usize, kind: u64) -> usize {
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

/// The first words of a form.
#[derive(Clone, Copy)]
struct ImageHeader {
    tag_width: u32,
    kinds: u64,
    is_group: bool,
    ones: u32,
    many: u32,
}

impl ImageHeader {
    #[inline]
    fn of(words: AtomicWords) -> Self {
        let (first, second) = (words.at(0), words.at(1));
        Self {
            tag_width: u32::from(first as u8),
            kinds: first >> KINDS_BIT,
            is_group: first >> GROUP_BIT & 1 == 1,
            ones: second as u32,
            many: (second >> 32) as u32,
        }
    }

    #[inline]
    fn kind(&self, string: usize) -> u64 {
        self.kinds >> (2 * string) & 3
    }

    /// The word of the first value.
    const ONES_AT: usize = 4;

    #[inline]
    fn many_at(&self) -> usize {
        Self::ONES_AT + self.ones.count_ones() as usize
    }
}

impl ImageLayout {
    /// Builds a layout; `None` if a number does not fit: the start of a bucket after the last of
    /// 256 rows, or the width of rows.
    fn of(starts: [usize; BUCKETS], rows: usize, stride: usize) -> Option<Self> {
        let mut bytes = [0; BUCKETS];
        for (byte, start) in bytes.iter_mut().zip(starts) {
            *byte = u8::try_from(start).ok()?;
        }
        bytes[0] = u8::try_from(rows - 1).ok()?;
        let starts = std::array::from_fn(|word| word_of(&bytes[word * 8..word * 8 + 8]));
        Some(Self { starts, stride: u8::try_from(stride).ok()? })
    }

    #[inline]
    fn rows(&self) -> usize {
        (self.starts[0] & 0xFF) as usize + 1
    }

    /// Returns the rows of a digest's bucket, and the expected row.
    #[inline]
    fn guess(&self, digest: u64) -> (Range<usize>, usize) {
        let (bucket, share) = bucket_of(digest);
        let start_of =
            |bucket: usize| (self.starts[bucket / 8] >> (bucket % 8 * 8) & 0xFF) as usize;
        let start = if bucket == 0 { 0 } else { start_of(bucket) };
        let end = if bucket + 1 < BUCKETS { start_of(bucket + 1) } else { self.rows() };
        let ahead = (u64::from(share) * end.saturating_sub(start) as u64) >> 32;
        (start..end, start + ahead as usize)
    }
}

impl ImageView<'_> {
    #[inline]
    fn row_at(&self, row: usize) -> usize {
        row * usize::from(self.layout.stride)
    }

    /// Hints to the processor that `digest` is looked up soon.
    #[inline]
    pub(super) fn prefetch(&self, digest: u64) {
        let (_, row) = self.layout.guess(digest);
        for at in self.lines_near(row).step_by(LINE_WORDS) {
            prefetch(self.rows.0.as_ptr().wrapping_add(at));
        }
    }

    /// Returns the words around `row`, in whole lines, in which the right row probably begins: the
    /// guess is off by one or two rows.
    #[inline]
    fn lines_near(&self, row: usize) -> Range<usize> {
        let (at, reach) = (self.row_at(row), 2 * usize::from(self.layout.stride));
        let start = at.saturating_sub(reach) / LINE_WORDS * LINE_WORDS;
        start..start + (2 * reach).next_multiple_of(LINE_WORDS) + LINE_WORDS
    }

    /// Returns the rows that begin in those lines, at most 16, including `row`. After the last row
    /// there may be another image, with rows of the same form and other keys.
    #[inline]
    fn rows_near(&self, row: usize) -> Range<usize> {
        let (lines, stride) = (self.lines_near(row), usize::from(self.layout.stride).max(1));
        lines.start.div_ceil(stride)..lines.end.div_ceil(stride).min(self.layout.rows())
    }

    /// Hints to the processor that the form is read soon, if it is the image's own.
    #[inline]
    pub(super) fn prefetch_form(&self) {
        // Reads of a form rarely go beyond these lines.
        prefetch(self.form.0.as_ptr());
        prefetch(self.form.0.as_ptr().wrapping_add(LINE_WORDS));
    }

    /// Returns the first word of the row of a key, if there is one; `is_group` if the key's group
    /// is the one that the index names for the block.
    #[inline]
    pub(super) fn find(
        &self,
        schema: &Schema,
        wanted: &LookupKey,
        is_group: bool,
    ) -> Option<usize> {
        let header = ImageHeader::of(self.form);
        let (range, guess) = self.layout.guess(wanted.digest);
        if range.is_empty() || header.is_group && !is_group {
            return None;
        }
        let mask = (1 << (header.tag_width & 31)) - 1;
        let tag_at = |row: usize| self.rows.at(self.row_at(row)) & mask;
        let share = u64::from(bucket_of(wanted.digest).1);
        let tag = share >> (u32::BITS.wrapping_sub(header.tag_width) & 31);
        let is_key =
            |row: &usize| self.is_key(&header, self.row_at(*row) * WORD_BITS, schema, &wanted.key);
        // All rows nearby are compared before any decision, and the decision is nearly always the
        // same, so the processor can continue while they are fetched.
        let near = self.rows_near(guess);
        let mut same =
            near.clone().rev().fold(0, |same, row| same << 1 | u32::from(tag_at(row) == tag));
        while same != 0 {
            let row = near.start + same.trailing_zeros() as usize;
            if is_key(&row) {
                return Some(self.row_at(row));
            }
            same &= same - 1;
        }
        let behind = (near.end..range.end).take_while(|row| tag_at(row - 1) <= tag);
        let before = (range.start..near.start).rev().take_while(|row| tag_at(row + 1) >= tag);
        behind.chain(before).find(is_key).map(|row| self.row_at(row))
    }

    /// Returns the value of `column` in the row that starts at `row_bit`.
    fn int(&self, header: &ImageHeader, row_bit: usize, column: usize) -> u64 {
        let before = (1u32 << column) - 1;
        if header.many >> column & 1 == 1 {
            let at = header.many_at() + 2 * (header.many & before).count_ones() as usize;
            return self.field(row_bit, at);
        }
        if header.ones >> column & 1 == 1 {
            let at = ImageHeader::ONES_AT + (header.ones & before).count_ones() as usize;
            return self.form.at(at);
        }
        0
    }

    /// Returns the value, in the row that starts at `row_bit`, of the column that the form's words
    /// at `at` describe.
    #[inline]
    fn field(&self, row_bit: usize, at: usize) -> u64 {
        let place = self.form.at(at + 1);
        let bit = row_bit + usize::from(place as u16);
        self.form.at(at).wrapping_add(self.rows.bits(bit, u32::from((place >> 16) as u8)))
    }

    /// Returns whether the row that starts at `row_bit` has `key`. If all rows are of one group,
    /// the caller has compared the group.
    #[inline]
    fn is_key(&self, header: &ImageHeader, row_bit: usize, schema: &Schema, key: &Key) -> bool {
        let derived = usize::from(schema.hash_of.is_some());
        let start = if header.is_group { schema.group_ints } else { 0 };
        for column in start..schema.key_ints - derived {
            if self.int(header, row_bit, column) != key.ints[column] {
                return false;
            }
        }
        let kind = header.kind(0);
        if kind == EMPTY {
            return key.string.is_empty();
        }
        let text = StringField::of(self.form.at(2), self.form.at(3));
        let length = text.length(self.rows, row_bit);
        let Some((shared, own)) = key.string.split_at_checked(text.shared_bytes) else {
            return false;
        };
        own.len() == length
            && self.rows.equal(text.start_bit(self.rows, row_bit, kind), own)
            && self.form.equal(text.shared_at * WORD_BITS, shared)
    }

    /// Reads the row at word `row_at`, the row of `key`, restored from stored form, its strings
    /// only if `with_strings`.
    #[inline]
    pub(super) fn read(
        &self,
        row_at: usize,
        (followers, key): (&RelativeColumns, &Key),
        with_strings: bool,
        out: &mut RowBuffer,
    ) {
        let header = ImageHeader::of(self.form);
        let row_bit = row_at * WORD_BITS;
        out.ints = [0; INTS_MAX];
        out.ints[..key.ints.len()].copy_from_slice(&key.ints);
        let mut at = ImageHeader::ONES_AT;
        let mut ones = header.ones & ((1 << INTS_MAX) - 1);
        while ones != 0 {
            out.ints[ones.trailing_zeros() as usize] = self.form.at(at);
            ones &= ones - 1;
            at += 1;
        }
        let mut many = header.many & ((1 << INTS_MAX) - 1);
        while many != 0 {
            out.ints[many.trailing_zeros() as usize] = self.field(row_bit, at);
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
                let text = StringField::of(self.form.at(at), self.form.at(at + 1));
                at += 2;
                let length = text.length(self.rows, row_bit);
                self.rows.append(text.start_bit(self.rows, row_bit, kind), length, own);
            }
        }
    }
}

#[cfg(test)]
mod tests;
