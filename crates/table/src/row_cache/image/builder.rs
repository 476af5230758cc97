// SPDX-License-Identifier: Apache-2.0
//! Image builder: converts a decoded block to the layout of `row_cache/image.rs`.

use esker_base::packed_bits;

use super::{
    BUCKETS, BlockImage, EMPTY, GROUP_BIT, HEAP, INLINE, ImageLayout, KINDS_BIT, StringField,
    WORD_BITS, bucket_of, word_of,
};
use crate::block::DecodedBlock;
use crate::schema::{STRINGS_MAX, Schema};

/// Minimum bits of a tag; with narrower tags most look-ups would compare keys in vain.
const TAG_BITS_MIN: usize = 8;
const TAG_BITS_MAX: usize = 24;
/// Maximum bytes of key strings' own parts that are kept in the rows.
const INLINE_BYTES_MAX: usize = 32;
/// Maximum bytes of a shared prefix; the rest counts as the strings' own.
const SHARED_BYTES_MAX: usize = 255;
/// Bases are rounded to this part of a column's range, as a power of two.
const GRAINS_LOG: u32 = 3;

/// An image being built.
struct ImageBuilder<'a> {
    decoded: &'a DecodedBlock,
    form: Vec<u64>,
    words: Vec<u64>,
    /// Bits used of a row, not counting the tag.
    row_bits: usize,
}

/// An integer column with several values.
struct IntField {
    column: usize,
    base: u64,
    width: u32,
    bit: usize,
}

impl BlockImage {
    /// Builds the image of `decoded`, a block that begins with the group `group` according to the
    /// index; `None` if its records do not fit one.
    pub(in crate::row_cache) fn of(
        schema: &Schema,
        group: &[u64],
        decoded: &DecodedBlock,
    ) -> Option<Self> {
        // If the keys of a hostile block do not ascend, a search finds only some; an image must not
        // find others.
        let ascend = |row| decoded.key(schema, row - 1) < decoded.key(schema, row);
        if !(1..decoded.rows()).all(ascend) {
            return None;
        }
        let rows = decoded.rows();
        let mut order: Vec<u64> = (0..rows)
            .map(|row| schema.digest(&decoded.key(schema, row)) >> 32 << 32 | row as u64)
            .collect();
        order.sort_unstable();
        let mut builder =
            ImageBuilder { decoded, form: Vec::new(), words: Vec::new(), row_bits: 0 };
        let is_group = group
            .iter()
            .enumerate()
            .all(|(column, int)| decoded.values(column).iter().all(|own| own == int));
        let (ones, many, mut fields) = builder.columns(schema, is_group);
        let mut texts: [Option<(u64, StringField)>; STRINGS_MAX] = [None; STRINGS_MAX];
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
        let kinds = (0..STRINGS_MAX).fold(0, |kinds, string| {
            kinds | texts[string].map_or(EMPTY, |(kind, _)| kind) << (2 * string)
        });
        let column_bits = ones.iter().fold(0, |bits, (column, _)| bits | 1 << column);
        builder.form = vec![
            tag_width as u64 | kinds << KINDS_BIT | u64::from(is_group) << GROUP_BIT,
            column_bits | u64::from(many) << 32,
            0,
            0,
        ];
        builder.form.extend(ones.iter().map(|(_, value)| value));
        for field in &fields {
            builder.form.extend([field.base, field.bit as u64 | u64::from(field.width) << 16]);
        }
        let layout = builder.rows(&order, &fields, stride, tag_width)?;
        builder.strings(stride, &order, &mut texts)?;
        let (form, words) = (builder.form, builder.words);
        Some(Self { form, is_form_common: is_group, words, layout })
    }
}

/// Returns a base, at most `low`, that other blocks probably share, and the bits of the differences
/// to it up to that of `high`.
fn frame(low: u64, high: u64) -> (u64, u32) {
    let grain = 1 << packed_bits::width_of(high - low).saturating_sub(GRAINS_LOG);
    let base = low / grain * grain;
    (base, packed_bits::width_of(high - base).max(1))
}

/// Sets `width` bits, which are 0, from bit `bit` on.
fn put(words: &mut [u64], bit: usize, width: u32, value: u64) {
    if width == 0 {
        // The bit may be past the last word.
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

impl ImageBuilder<'_> {
    /// Returns the columns with a single value other than 0, with that value, and the columns with
    /// several values, as bits and as fields.
    fn columns(
        &mut self,
        schema: &Schema,
        is_group: bool,
    ) -> (Vec<(usize, u64)>, u32, Vec<IntField>) {
        let derived = schema.hash_of.map(|_| schema.key_ints - 1);
        let start = if is_group { schema.group_ints } else { 0 };
        let (mut ones, mut many, mut fields) = (Vec::new(), 0, Vec::new());
        for column in (start..schema.ints.len()).filter(|column| Some(*column) != derived) {
            match self.decoded.values(column) {
                [0] => {}
                [value] => ones.push((column, *value)),
                values => {
                    let (low, high) = values.iter().fold((u64::MAX, 0), |(low, high), &value| {
                        (low.min(value), high.max(value))
                    });
                    let (base, width) = frame(low, high);
                    fields.push(IntField { column, base, width, bit: self.row_bits });
                    self.row_bits += width as usize;
                    many |= 1 << column;
                }
            }
        }
        (ones, many, fields)
    }

    /// Writes the tags and integers of rows in `order`.
    fn rows(
        &mut self,
        order: &[u64],
        fields: &[IntField],
        stride: usize,
        tag_width: usize,
    ) -> Option<ImageLayout> {
        self.words = vec![0; order.len() * stride];
        let mut starts = [order.len(); BUCKETS];
        for (at, entry) in order.iter().enumerate().rev() {
            let (bucket, share) = bucket_of(*entry);
            starts[..=bucket].fill(at);
            let bit = at * stride * WORD_BITS;
            put(&mut self.words, bit, tag_width as u32, u64::from(share) >> (32 - tag_width));
            for field in fields {
                let value = self.decoded.int(field.column, *entry as u32 as usize);
                put(&mut self.words, bit + field.bit, field.width, value - field.base);
            }
        }
        ImageLayout::of(starts, order.len(), stride)
    }

    /// Plans a string column.
    fn text(&mut self, string: usize) -> Option<(u64, StringField)> {
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
        let length_width = packed_bits::width_of((high - low) as u64);
        let place_width = if kind == INLINE { 0 } else { packed_bits::width_of(total as u64) };
        let length_bit = self.row_bits;
        let place_bit = length_bit + length_width as usize;
        self.row_bits = place_bit + if kind == INLINE { high * 8 } else { place_width as usize };
        let text = StringField {
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

    /// Writes the strings and their descriptors.
    fn strings(
        &mut self,
        stride: usize,
        order: &[u64],
        texts: &mut [Option<(u64, StringField)>; STRINGS_MAX],
    ) -> Option<()> {
        let further = texts[1..].iter().flatten().count();
        let shared_at = self.form.len() + 2 * further;
        for (string, text) in texts.iter_mut().enumerate() {
            let Some((kind, text)) = text else {
                continue;
            };
            (text.shared_at, text.heap_at) = (shared_at, self.words.len());
            let mut heap: Vec<u8> = Vec::new();
            for (at, entry) in order.iter().enumerate() {
                let bit = at * stride * WORD_BITS;
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
            if text.heap_at >> 24 != 0 || text.length_base >> 24 != 0 {
                return None;
            }
            if string == 0 {
                self.form[2..4].copy_from_slice(&text.words());
            } else {
                self.form.extend(text.words());
            }
        }
        if let Some((_, text)) = &texts[0] {
            let shared = &self.decoded.string(0, 0)[..text.shared_bytes];
            self.form.extend(shared.chunks(8).map(word_of));
        }
        Some(())
    }
}
