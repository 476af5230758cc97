//! Arena: records of one shard, appended in compact form and never moved.
//!
//! A record holds what differs from a template, a recent record of the shard, so that uniform
//! attributes cost nothing. Layout in memory only, never on disk:
//! ```text
//! order u64 | group u32 | previous of the group u32 | template u16 | mask u32 | changes | strings
//! ```
//! Bit c of the mask says that integer column c follows as a zigzag varint of its difference to
//! the template's, bit `INTS_MAX + s` that string s follows as a length and its bytes.
//! Invariants: a position is `chunk << CHUNK_BITS | offset`, is never 0, and grows with time.

use crate::memory::{ZeroedArray, prefetch};
use crate::schema::{INTS_MAX, Row, STRINGS_MAX, Schema, differences};
use crate::wire::{VARINT_BYTES_MAX, unzigzag, zigzag};

const CHUNK_BITS: u32 = 21;
/// Bytes of a chunk.
const CHUNK_BYTES: usize = 1 << CHUNK_BITS;
/// Bytes of a shard's first chunk, so that a small session stays small.
const FIRST_CHUNK_BYTES: usize = 32 << 10;
/// Bytes of its second.
const SECOND_CHUNK_BYTES: usize = 256 << 10;
/// A record's strings take at most this many bytes, so that it fits a chunk.
pub const ROW_TEXT_BYTES_MAX: usize = 512 << 10;
/// A shard must be frozen before it takes more: positions have 32 bits.
pub const SHARD_BYTES_MAX: usize = 3 << 30;
const HEADER_BYTES: usize = 22;
const _: () = assert!(
    ROW_TEXT_BYTES_MAX + HEADER_BYTES + (INTS_MAX + STRINGS_MAX) * VARINT_BYTES_MAX < CHUNK_BYTES
);
/// A record with more changes than this becomes the next template.
const CHANGES_MAX: u32 = 8;

/// The records of a shard.
#[derive(Debug, Default)]
pub struct Arena {
    chunks: Vec<ZeroedArray<u8>>,
    /// Bytes in use of the last chunk.
    used: usize,
    templates: Vec<[u64; INTS_MAX]>,
}

/// The fixed part of a record.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// The last integer of the key.
    pub order: u64,
    /// Number of the group within the shard.
    pub group: u32,
    /// Position of the record that the group got before this one, or 0.
    pub previous: u32,
}

impl Arena {
    /// Appends a record in stored form; returns its position and the bytes newly allocated.
    pub fn push(&mut self, schema: &Schema, header: Header, row: &Row) -> (u32, usize) {
        let mut template_index = self.templates.len().wrapping_sub(1);
        let mut mask = match self.templates.last() {
            Some(template) => changes(schema, &row.ints, template),
            None => u32::MAX,
        };
        if mask.count_ones() > CHANGES_MAX && self.templates.len() < usize::from(u16::MAX) {
            self.templates.push(row.ints);
            template_index = self.templates.len() - 1;
            mask = 0;
        }
        for (column, string) in row.strings.iter().enumerate() {
            mask |= u32::from(!string.is_empty()) << (INTS_MAX + column);
        }
        let text_bytes: usize = row.strings.iter().map(|string| string.len()).sum();
        assert!(text_bytes <= ROW_TEXT_BYTES_MAX, "the tree refuses larger records");
        let bytes_max = HEADER_BYTES + mask.count_ones() as usize * VARINT_BYTES_MAX + text_bytes;
        let allocated = self.reserve(bytes_max);
        let template = &self.templates[template_index];
        let chunk_index = self.chunks.len() - 1;
        let position = (chunk_index << CHUNK_BITS | self.used) as u32;
        let chunk = &mut self.chunks[chunk_index][self.used..];
        let (fixed, rest) = chunk.split_at_mut(HEADER_BYTES);
        fixed[..8].copy_from_slice(&header.order.to_le_bytes());
        fixed[8..12].copy_from_slice(&header.group.to_le_bytes());
        fixed[12..16].copy_from_slice(&header.previous.to_le_bytes());
        fixed[16..18].copy_from_slice(&(template_index as u16).to_le_bytes());
        fixed[18..22].copy_from_slice(&mask.to_le_bytes());
        let mut at = 0;
        let mut changed = mask & ((1 << INTS_MAX) - 1);
        while changed != 0 {
            let column = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            write_varint(rest, &mut at, zigzag(row.ints[column].wrapping_sub(template[column])));
        }
        for string in row.strings.iter().filter(|string| !string.is_empty()) {
            write_varint(rest, &mut at, string.len() as u64);
            rest[at..at + string.len()].copy_from_slice(string);
            at += string.len();
        }
        self.used += HEADER_BYTES + at;
        (position, allocated)
    }

    /// Takes back the record at `position`, the last one pushed.
    pub fn pop(&mut self, position: u32) {
        let last = self.chunks.len() - 1;
        assert_eq!((position >> CHUNK_BITS) as usize, last, "only the last record is taken back");
        self.used = position as usize & (CHUNK_BYTES - 1);
    }

    fn reserve(&mut self, bytes: usize) -> usize {
        if self.chunks.last().is_some_and(|chunk| chunk.len() - self.used >= bytes) {
            return 0;
        }
        let count = match self.chunks.len() {
            0 => FIRST_CHUNK_BYTES.max(bytes + 1),
            1 => SECOND_CHUNK_BYTES.max(bytes),
            _ => CHUNK_BYTES,
        };
        // Position 0 stands for "none".
        self.used = usize::from(self.chunks.is_empty());
        self.chunks.push(ZeroedArray::new(count));
        assert!(self.chunks.len() <= 1 << (32 - CHUNK_BITS), "SHARD_BYTES_MAX bounds the arena");
        count
    }

    #[inline]
    fn at(&self, position: u32) -> &[u8] {
        let chunk = &self.chunks[(position >> CHUNK_BITS) as usize];
        &chunk[position as usize & (CHUNK_BYTES - 1)..]
    }

    /// Hints the processor that the record at `position` is read soon.
    #[inline]
    pub fn prefetch(&self, position: u32) {
        // A record of typical size reaches into a second line.
        let start = self.at(position).as_ptr();
        prefetch(start);
        prefetch(start.wrapping_add(64));
    }

    /// The fixed part of the record at `position`.
    #[inline]
    pub fn header(&self, position: u32) -> Header {
        let bytes: &[u8; 16] = self.at(position).first_chunk().expect("a record has a header");
        Header {
            order: u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")),
            group: u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes")),
            previous: u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")),
        }
    }

    /// Decodes the record at `position` but for the integers of its group.
    #[inline(always)]
    pub fn row(&self, schema: &Schema, position: u32) -> Row<'_> {
        let bytes = self.at(position);
        let fixed: &[u8; HEADER_BYTES] = bytes.first_chunk().expect("a record has a header");
        let template = u16::from_le_bytes([fixed[16], fixed[17]]);
        let mask = u32::from_le_bytes([fixed[18], fixed[19], fixed[20], fixed[21]]);
        let mut row = Row { ints: self.templates[usize::from(template)], ..Row::default() };
        row.ints[schema.key_ints - 1] =
            u64::from_le_bytes(fixed[..8].try_into().expect("eight bytes"));
        let mut at = HEADER_BYTES;
        let mut changed = mask & ((1 << INTS_MAX) - 1);
        while changed != 0 {
            let column = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            let difference = unzigzag(own_varint(bytes, &mut at));
            row.ints[column] = row.ints[column].wrapping_add(difference);
        }
        let mut present = mask >> INTS_MAX;
        while present != 0 {
            let column = present.trailing_zeros() as usize;
            present &= present - 1;
            let length = own_varint(bytes, &mut at) as usize;
            row.strings[column] = &bytes[at..at + length];
            at += length;
        }
        row
    }

    /// The first string of the record at `position`, without decoding the rest.
    pub fn key_string(&self, schema: &Schema, position: u32) -> &[u8] {
        self.row(schema, position).strings[0]
    }
}

/// The columns outside the key in which `ints` and `template` differ, as bits.
#[inline]
fn changes(schema: &Schema, ints: &[u64; INTS_MAX], template: &[u64; INTS_MAX]) -> u32 {
    differences(ints, template) & !((1 << schema.key_ints) - 1)
}

/// Writes a varint at `at`, for which there is room.
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

/// A varint that this process wrote.
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
