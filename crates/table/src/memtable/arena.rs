// SPDX-License-Identifier: Apache-2.0
//! Arena: records of one shard, appended in compact form and never moved.
//!
//! A record holds its differences from a template, a recent record of the shard, so uniform
//! attributes cost nothing. Every byte counts: creates wait mostly for memory that is used for the
//! first time. Layout, in memory only:
//! ```text
//! layout u16 | order u64, unless it follows from the key's string | group | distance to the
//! group's record before, or 0 | changes | strings
//! ```
//! The high bit of the first field is set if a later record has the same key (`SUPERSEDED`); the
//! other bits are the number of the layout, a template and a mask. If bit c of the mask is set,
//! integer column c follows as the zigzag difference from the template's; if bit `INTS_MAX + s` is
//! set, string s follows as a length and its bytes. Numbers without a width are varints.
//! Invariants: a position is `chunk << CHUNK_BITS | offset`, is never 0, and grows with time.

use std::sync::Arc;

use esker_base::wire::{VARINT_BYTES_MAX, unzigzag, zigzag};

use super::arena_pool::ArenaPool;
use crate::memory::{ZeroedArray, prefetch};
use crate::schema::{INTS_MAX, ROW_TEXT_BYTES_MAX, Row, STRINGS_MAX, Schema, differences};

const CHUNK_BITS: u32 = 21;
/// Bytes of a chunk.
pub(super) const CHUNK_BYTES: usize = 1 << CHUNK_BITS;
/// Bytes of a shard's first chunk; small, so that a small session stays small.
const FIRST_CHUNK_BYTES: usize = 32 << 10;
/// Bytes of a shard's second chunk.
const SECOND_CHUNK_BYTES: usize = 256 << 10;
/// Maximum bytes of a shard, which must be frozen before it takes more: positions have 32 bits.
pub const SHARD_BYTES_MAX: usize = 3 << 30;
const LAYOUT_BYTES: usize = 2;
/// Flag beside the layout: a later record has the same key.
const SUPERSEDED: u16 = 1 << 15;
const ORDER_BYTES: usize = 8;
/// Maximum bytes before a record's changes.
const HEADER_BYTES_MAX: usize = LAYOUT_BYTES + ORDER_BYTES + 2 * VARINT_BYTES_MAX;
const _: () = assert!(
    ROW_TEXT_BYTES_MAX + HEADER_BYTES_MAX + (INTS_MAX + STRINGS_MAX) * VARINT_BYTES_MAX
        < CHUNK_BYTES
);
/// A record with more changed columns than this becomes the next template.
const CHANGES_MAX: u32 = 8;
/// Maximum number of templates; each has layouts of its own.
const TEMPLATES_MAX: usize = 1 << 10;
/// Number of layouts from which on a new layout counts all columns outside the key as changed.
const LAYOUTS_MAX: usize = SUPERSEDED as usize - TEMPLATES_MAX * (1 << STRINGS_MAX);
/// Number of recent layouts that are searched before a new one is made; all are searched once there
/// are many.
const LAYOUTS_RECENT: usize = 16;
/// Bytes that cover most records.
const TYPICAL_BYTES: usize = 40;

/// The records of a shard.
#[derive(Debug)]
pub struct Arena {
    chunks: Vec<ZeroedArray<u8>>,
    /// Source of all chunks but the first two, which are smaller.
    source: Arc<ArenaPool>,
    /// Bytes used in the last chunk.
    used: usize,
    templates: Vec<[u64; INTS_MAX]>,
    layouts: Vec<DeltaLayout>,
    /// The layout of the last record.
    last_layout: usize,
}

/// A record's template, and the mask of the columns in which it differs from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeltaLayout {
    template: usize,
    mask: u32,
}

/// The link of a record to its group.
#[derive(Clone, Copy, Debug)]
pub struct RecordHeader {
    /// Number of the group within the shard.
    pub group: u32,
    /// Position of the group's previous record, or 0.
    pub previous: u32,
}

impl Arena {
    /// Makes an empty arena whose chunks come from `source`.
    pub fn new(source: Arc<ArenaPool>) -> Self {
        let (templates, layouts) = Default::default();
        Self { chunks: Vec::new(), source, used: 0, templates, layouts, last_layout: 0 }
    }

    /// Appends a record in stored form; returns its position and the bytes newly allocated.
    pub fn push(&mut self, schema: &Schema, header: RecordHeader, row: &Row) -> (u32, usize) {
        let mut template = self.templates.len().wrapping_sub(1);
        let mut mask = match self.templates.last() {
            Some(template) => changes(schema, &row.ints, template),
            None => u32::MAX,
        };
        if mask.count_ones() > CHANGES_MAX && self.templates.len() < TEMPLATES_MAX {
            self.templates.push(row.ints);
            (template, mask) = (self.templates.len() - 1, 0);
        }
        for (column, string) in row.strings.iter().enumerate() {
            mask |= u32::from(!string.is_empty()) << (INTS_MAX + column);
        }
        let (layout, mask) = self.layout_of(schema, DeltaLayout { template, mask });
        let text_bytes: usize = row.strings.iter().map(|string| string.len()).sum();
        assert!(text_bytes <= ROW_TEXT_BYTES_MAX, "the tree refuses larger records");
        let bytes_max =
            HEADER_BYTES_MAX + mask.count_ones() as usize * VARINT_BYTES_MAX + text_bytes;
        let allocated = self.reserve(bytes_max);
        let template = &self.templates[template];
        let chunk_index = self.chunks.len() - 1;
        let position = (chunk_index << CHUNK_BITS | self.used) as u32;
        let out = &mut self.chunks[chunk_index][self.used..];
        out[..LAYOUT_BYTES].copy_from_slice(&layout.to_le_bytes());
        let mut at = LAYOUT_BYTES;
        if schema.hash_of.is_none() {
            out[at..at + ORDER_BYTES]
                .copy_from_slice(&schema.last_key_int(&row.ints).to_le_bytes());
            at += ORDER_BYTES;
        }
        write_varint(out, &mut at, u64::from(header.group));
        let distance = if header.previous == 0 { 0 } else { position - header.previous };
        write_varint(out, &mut at, u64::from(distance));
        let mut changed = mask & ((1 << INTS_MAX) - 1);
        while changed != 0 {
            let column = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            write_varint(out, &mut at, zigzag(row.ints[column].wrapping_sub(template[column])));
        }
        for string in row.strings.iter().filter(|string| !string.is_empty()) {
            write_varint(out, &mut at, string.len() as u64);
            out[at..at + string.len()].copy_from_slice(string);
            at += string.len();
        }
        self.used += at;
        (position, allocated)
    }

    /// Returns the number of `layout`, or of a layout with more changes, and that layout's mask.
    #[inline]
    fn layout_of(&mut self, schema: &Schema, layout: DeltaLayout) -> (u16, u32) {
        if self.layouts.get(self.last_layout) != Some(&layout) {
            self.last_layout = self.find_layout(schema, layout);
        }
        (self.last_layout as u16, self.layouts[self.last_layout].mask)
    }

    #[cold]
    fn find_layout(&mut self, schema: &Schema, mut layout: DeltaLayout) -> usize {
        let recent = self.layouts.len().saturating_sub(LAYOUTS_RECENT);
        if let Some(at) = self.layouts[recent..].iter().rposition(|own| *own == layout) {
            return recent + at;
        }
        if self.layouts.len() >= LAYOUTS_MAX {
            // A column may be written as changed although its difference is 0.
            layout.mask |= ((1 << INTS_MAX) - 1) & !((1 << schema.key_ints) - 1);
            if let Some(at) = self.layouts.iter().rposition(|own| *own == layout) {
                return at;
            }
        }
        self.layouts.push(layout);
        self.layouts.len() - 1
    }

    /// Removes the record at `position`, the last one pushed.
    pub fn pop(&mut self, position: u32) {
        let last = self.chunks.len() - 1;
        assert_eq!((position >> CHUNK_BITS) as usize, last, "only the last record is taken back");
        self.used = position as usize & (CHUNK_BYTES - 1);
    }

    /// Marks the record at `position` as superseded by a later one with its key.
    pub(crate) fn supersede(&mut self, position: u32) {
        let at = position as usize & (CHUNK_BYTES - 1);
        // The high byte of a little-endian number.
        self.chunks[(position >> CHUNK_BITS) as usize][at + 1] |= (SUPERSEDED >> 8) as u8;
    }

    /// Returns whether a later record has the key of the one at `position`.
    #[inline]
    pub(crate) fn is_superseded(&self, position: u32) -> bool {
        first_field(self.at(position)) & SUPERSEDED != 0
    }

    fn reserve(&mut self, bytes: usize) -> usize {
        if self.chunks.last().is_some_and(|chunk| chunk.len() - self.used >= bytes) {
            return 0;
        }
        let chunk = match self.chunks.len() {
            0 => ZeroedArray::new(FIRST_CHUNK_BYTES.max(bytes + 1)),
            1 => ZeroedArray::new(SECOND_CHUNK_BYTES.max(bytes)),
            _ => self.source.take(),
        };
        // Position 0 means "none".
        self.used = usize::from(self.chunks.is_empty());
        let count = chunk.len();
        self.chunks.push(chunk);
        assert!(self.chunks.len() <= 1 << (32 - CHUNK_BITS), "SHARD_BYTES_MAX bounds the arena");
        count
    }

    #[inline]
    fn at(&self, position: u32) -> &[u8] {
        let chunk = &self.chunks[(position >> CHUNK_BITS) as usize];
        &chunk[position as usize & (CHUNK_BYTES - 1)..]
    }

    /// Hints to the processor that the record at `position` is read soon.
    #[inline]
    pub fn prefetch(&self, position: u32) {
        // About half of the records reach into a second line.
        let start = self.at(position).as_ptr();
        prefetch(start);
        prefetch(start.wrapping_add(TYPICAL_BYTES));
    }

    /// Returns the layout of the record at the start of `bytes`.
    #[inline]
    fn decode_layout(&self, bytes: &[u8]) -> DeltaLayout {
        self.layouts[usize::from(first_field(bytes) & !SUPERSEDED)]
    }

    /// Reads the fields before the changes of the record at `position` in `bytes`, and advances
    /// `at` past them.
    #[inline]
    fn read_header(schema: &Schema, position: u32, bytes: &[u8], at: &mut usize) -> RecordHeader {
        *at = LAYOUT_BYTES + if schema.hash_of.is_none() { ORDER_BYTES } else { 0 };
        let group = own_varint(bytes, at) as u32;
        let distance = own_varint(bytes, at) as u32;
        RecordHeader { group, previous: if distance == 0 { 0 } else { position - distance } }
    }

    /// Returns the link of the record at `position` to its group.
    #[inline]
    pub fn header(&self, schema: &Schema, position: u32) -> RecordHeader {
        Self::read_header(schema, position, self.at(position), &mut 0)
    }

    /// The last integer of the key of the record at `position`.
    pub fn last_key_int(&self, schema: &Schema, position: u32) -> u64 {
        match schema.hash_of {
            Some(hash_of) => hash_of(self.key_string(schema, position)),
            None => own_order(self.at(position)),
        }
    }

    /// Decodes the record at `position`, except for the integers of its group; returns it with the
    /// group's number.
    #[inline(always)]
    pub fn row(&self, schema: &Schema, position: u32) -> (Row<'_>, u32) {
        let bytes = self.at(position);
        let layout = self.decode_layout(bytes);
        let mut row = Row { ints: self.templates[layout.template], ..Row::default() };
        let mut at = 0;
        let group = Self::read_header(schema, position, bytes, &mut at).group;
        let mut changed = layout.mask & ((1 << INTS_MAX) - 1);
        while changed != 0 {
            let column = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            let difference = unzigzag(own_varint(bytes, &mut at));
            row.ints[column] = row.ints[column].wrapping_add(difference);
        }
        let mut present = layout.mask >> INTS_MAX;
        while present != 0 {
            let column = present.trailing_zeros() as usize;
            present &= present - 1;
            let length = own_varint(bytes, &mut at) as usize;
            row.strings[column] = &bytes[at..at + length];
            at += length;
        }
        row.ints[schema.key_ints - 1] = match schema.hash_of {
            Some(hash_of) => hash_of(row.strings[0]),
            None => own_order(bytes),
        };
        (row, group)
    }

    /// Returns the first string of the record at `position` without decoding the rest.
    #[inline]
    pub(crate) fn key_string(&self, schema: &Schema, position: u32) -> &[u8] {
        let bytes = self.at(position);
        let layout = self.decode_layout(bytes);
        if layout.mask >> INTS_MAX & 1 == 0 {
            return &[];
        }
        let mut at = 0;
        Self::read_header(schema, position, bytes, &mut at);
        for _ in 0..(layout.mask & ((1 << INTS_MAX) - 1)).count_ones() {
            own_varint(bytes, &mut at);
        }
        let length = own_varint(bytes, &mut at) as usize;
        &bytes[at..at + length]
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.source.give_back(self.chunks.drain(..).skip(2));
    }
}

/// Returns the columns outside the key in which `ints` and `template` differ, as bits.
#[inline]
fn changes(schema: &Schema, ints: &[u64; INTS_MAX], template: &[u64; INTS_MAX]) -> u32 {
    differences(ints, template) & !((1 << schema.key_ints) - 1)
}

/// Writes a varint at `at`; the caller guarantees room for it.
#[inline]
fn write_varint(out: &mut [u8], at: &mut usize, mut value: u64) {
    while value >= 0x80 {
        out[*at] = value as u8 | 0x80;
        *at += 1;
        value >>= 7;
    }
    out[*at] = value as u8;
    *at += 1;
}

/// The number of the layout of the record in `bytes`, and its superseded flag.
#[inline]
fn first_field(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

/// The order stored in the record in `bytes`, if it does not follow from the key's string.
#[inline]
fn own_order(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes[LAYOUT_BYTES..].first_chunk().expect("a record has an order"))
}

/// Reads a varint that this process wrote.
#[inline]
fn own_varint(bytes: &[u8], at: &mut usize) -> u64 {
    let mut value = 0u64;
    let mut shift = 0;
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return value;
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::IntColumn;
    use esker_base::word_hash::mix;

    const COLUMN: IntColumn = IntColumn::plain("c");

    /// The maximum number of columns, so that there can be more layouts than numbers for them.
    static WIDE: Schema = Schema {
        id: 9,
        name: "wide",
        ints: &[COLUMN; INTS_MAX],
        strings: &["name", "content", "more"],
        key_ints: 2,
        group_ints: 1,
        hash_of: None,
        has_filters: true,
    };
    static NAMED: Schema = Schema { hash_of: Some(xxhash_rust::xxh3::xxh3_64), ..WIDE };

    fn check(schema: &'static Schema, rows: u64, varying: u64) {
        let mut arena = Arena::new(Arc::new(ArenaPool::new(0, false)));
        let names: Vec<Vec<u8>> = (0..rows).map(|at| vec![b'n'; (mix(at) % 30) as usize]).collect();
        let mut pushed: Vec<(u32, RecordHeader, Row)> = Vec::new();
        for (at, name) in (0..rows).zip(&names) {
            let mut row = Row::default();
            for column in 1..INTS_MAX {
                let changes = mix(at ^ (column as u64) << 32).is_multiple_of(varying);
                row.ints[column] = if changes { mix(at + column as u64) } else { 7 };
            }
            row.strings = [name, &name[name.len() / 2..], if at % 5 == 0 { b"x" } else { b"" }];
            if let Some(hash_of) = schema.hash_of {
                row.ints[1] = hash_of(name);
            }
            let previous = pushed.get(at as usize / 2).map_or(0, |(position, ..)| *position);
            let header = RecordHeader { group: (mix(at) % 300) as u32, previous };
            let (dropped, _) = arena.push(schema, header, &row);
            arena.pop(dropped);
            pushed.push((arena.push(schema, header, &row).0, header, row));
        }
        for (position, ..) in pushed.iter().filter(|(_, header, _)| header.group % 2 == 0) {
            arena.supersede(*position);
        }
        for (position, header, row) in pushed {
            let (found, group) = arena.row(schema, position);
            assert_eq!(found.ints[1..], row.ints[1..]);
            assert_eq!(found.strings, row.strings);
            assert_eq!(group, header.group);
            assert_eq!(arena.header(schema, position).previous, header.previous);
            assert_eq!(arena.last_key_int(schema, position), row.ints[1]);
            assert_eq!(arena.key_string(schema, position), row.strings[0]);
            assert_eq!(arena.is_superseded(position), header.group % 2 == 0);
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        check(&WIDE, 20_000, 5);
        check(&NAMED, 20_000, 20);
    }

    #[test]
    fn shapes_beyond_their_numbers_are_written_in_full() {
        check(&WIDE, 100_000, 3);
    }
}
