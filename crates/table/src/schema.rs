// SPDX-License-Identifier: Apache-2.0
//! Schemas: the columns of one kind of record, and which of them form its key.
//!
//! A record is a [`Row`]: integers and byte strings, each at the index of its column. The key is
//! the first `key_ints` integers, compared in turn, then the first string. Engine code works on
//! rows of any schema; only the crate that defines a schema knows what its columns mean.
//!
//! Stored form: a column that is `relative_to` another is stored as its zigzag difference to it, so
//! that attributes which usually agree (creation and change time) cost nothing.

use std::cmp::Ordering;

use arrayvec::ArrayVec;
use esker_base::wire::{unzigzag, zigzag};
use esker_base::word_hash::mix;
use esker_base::{Error, Kind, Result};

/// Maximum number of integer columns of a schema: bits of one word name them.
pub const INTS_MAX: usize = 24;
/// Maximum number of string columns of a schema.
pub const STRINGS_MAX: usize = 3;
const _: () = assert!(INTS_MAX + STRINGS_MAX <= 32);
/// Maximum bytes of a record's strings together, so that it fits a chunk of a memtable.
pub const ROW_TEXT_BYTES_MAX: usize = 512 << 10;
/// Maximum bytes of a key's string: tables and manifests hold whole keys.
pub const KEY_TEXT_BYTES_MAX: usize = 64 << 10;
const _: () = assert!(KEY_TEXT_BYTES_MAX <= ROW_TEXT_BYTES_MAX);

/// Fails if the strings of a record, the first of which is the key's, are longer than readers
/// accept.
///
/// # Errors
/// `TooLarge`.
#[inline]
pub(crate) fn check_text_bytes(strings: &[&[u8]; STRINGS_MAX]) -> Result<()> {
    let bytes: usize = strings.iter().map(|string| string.len()).sum();
    if bytes <= KEY_TEXT_BYTES_MAX {
        return Ok(());
    }
    let key_bytes = strings[0].len();
    if bytes <= ROW_TEXT_BYTES_MAX && key_bytes <= KEY_TEXT_BYTES_MAX {
        return Ok(());
    }
    let context = format!(
        "a record of {bytes} bytes with a key of {key_bytes}; at most {ROW_TEXT_BYTES_MAX} with a \
         key of {KEY_TEXT_BYTES_MAX} are possible"
    );
    Err(Error::new(Kind::TooLarge, context))
}

/// One integer column.
#[derive(Clone, Copy, Debug)]
pub struct IntColumn {
    /// Its name in documents and in `esker show`.
    pub name: &'static str,
    /// The column whose value it usually follows; always an earlier one.
    pub relative_to: Option<usize>,
}

impl IntColumn {
    /// Makes a column that is stored as it is.
    #[must_use]
    pub const fn plain(name: &'static str) -> Self {
        Self { name, relative_to: None }
    }

    /// Makes a column that usually follows `column`, an earlier one.
    #[must_use]
    pub const fn follows(name: &'static str, column: usize) -> Self {
        Self { name, relative_to: Some(column) }
    }
}

/// The columns of one kind of record.
#[derive(Debug)]
pub struct Schema {
    /// Number of the schema in tables, logs and manifests.
    pub id: u16,
    /// Name of the schema in documents.
    pub name: &'static str,
    /// Integer columns: first those of the key, then the sequence number, then the others.
    pub ints: &'static [IntColumn],
    /// Names of the string columns; the first string is the last part of the key.
    pub strings: &'static [&'static str],
    /// Number of integers in the key.
    pub key_ints: usize,
    /// Number of leading key integers, all but the last, that name a group, whose records are read
    /// together.
    pub group_ints: usize,
    /// Computes the last integer of the key from the key's string, if it follows from it. Such an
    /// integer is a hash: evenly spread over 64 bits, and not logged.
    pub hash_of: Option<fn(&[u8]) -> u64>,
    /// True if tables have filters; false if keys are looked up by range only.
    pub has_filters: bool,
}

/// The columns of a schema that are relative to others, for callers that restore one row at a time.
#[derive(Clone, Debug)]
pub struct RelativeColumns(ArrayVec<(u8, u8), INTS_MAX>);

impl RelativeColumns {
    /// Does the work of [`Schema::restore`].
    #[inline]
    pub(crate) fn restore(&self, ints: &mut [u64; INTS_MAX]) {
        for &(column, base) in &self.0 {
            let base = ints[usize::from(base)];
            let int = &mut ints[usize::from(column)];
            *int = unzigzag(*int).wrapping_add(base);
        }
    }
}

/// One record, its strings borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Integers by column; those past the schema's are 0.
    pub ints: [u64; INTS_MAX],
    /// Strings by column; those past the schema's are empty.
    pub strings: [&'a [u8]; STRINGS_MAX],
}

impl Default for Row<'_> {
    fn default() -> Self {
        Self { ints: [0; INTS_MAX], strings: [&[]; STRINGS_MAX] }
    }
}

/// One record that owns its strings; reused between reads to avoid allocations.
#[derive(Clone, Debug, Default)]
pub struct RowBuffer {
    /// Integers by column.
    pub ints: [u64; INTS_MAX],
    /// Strings by column.
    pub strings: [Vec<u8>; STRINGS_MAX],
}

impl RowBuffer {
    /// The record, with strings borrowed from this buffer.
    #[must_use]
    pub fn row(&self) -> Row<'_> {
        Row { ints: self.ints, strings: [&self.strings[0], &self.strings[1], &self.strings[2]] }
    }

    /// Copies `row` into this buffer.
    pub(crate) fn set(&mut self, row: &Row) {
        self.ints = row.ints;
        for (own, string) in self.strings.iter_mut().zip(row.strings) {
            own.clear();
            own.extend_from_slice(string);
        }
    }
}

impl From<Row<'_>> for RowBuffer {
    fn from(row: Row) -> Self {
        Self { ints: row.ints, strings: row.strings.map(<[u8]>::to_vec) }
    }
}

/// A key: the leading integers of a row and its first string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// The key's integers; those past the schema's `key_ints` are 0.
    pub ints: [u64; KEY_INTS_MAX],
    /// The key's string.
    pub string: &'a [u8],
}

/// Maximum number of integers of a key.
pub const KEY_INTS_MAX: usize = 3;

impl<'a> Key<'a> {
    /// The key that sorts before all others.
    pub const FIRST: Key<'static> = Key { ints: [0; KEY_INTS_MAX], string: &[] };
    /// A key that sorts after all others: no key's string is as long.
    pub const LAST: Key<'static> = Key { ints: [u64::MAX; KEY_INTS_MAX], string: &[0xFF; 300] };
}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key<'_> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.ints.cmp(&other.ints).then_with(|| self.string.cmp(other.string))
    }
}

/// A key that owns its string. Buffers compare as their keys do.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyBuffer {
    /// The key's integers.
    pub ints: [u64; KEY_INTS_MAX],
    /// The key's string.
    pub string: Vec<u8>,
}

impl KeyBuffer {
    /// The key, with its string borrowed from this buffer.
    #[must_use]
    pub fn key(&self) -> Key<'_> {
        Key { ints: self.ints, string: &self.string }
    }
}

impl From<Key<'_>> for KeyBuffer {
    fn from(key: Key) -> Self {
        Self { ints: key.ints, string: key.string.to_vec() }
    }
}

impl Schema {
    /// The column of the sequence number.
    #[must_use]
    pub(crate) const fn seq(&self) -> usize {
        self.key_ints
    }

    /// The key of `row`.
    #[inline]
    #[must_use]
    pub fn key<'a>(&self, row: &Row<'a>) -> Key<'a> {
        // A copy whose length is known only at run time would compile to a call.
        let ints = std::array::from_fn(|at| if at < self.key_ints { row.ints[at] } else { 0 });
        Key { ints, string: row.strings[0] }
    }

    /// The integer that orders the records of one group first: the last of the key's.
    #[inline]
    #[must_use]
    pub(crate) fn last_key_int(&self, ints: &[u64]) -> u64 {
        ints[self.key_ints - 1]
    }

    /// Returns a key that sorts after all others of the group of `key`.
    #[must_use]
    pub fn group_last(&self, key: &Key) -> Key<'static> {
        let mut ints = [u64::MAX; KEY_INTS_MAX];
        ints[..self.group_ints].copy_from_slice(&key.ints[..self.group_ints]);
        Key { ints, ..Key::LAST }
    }

    /// A well-mixed hash of a key, for filters and hash tables.
    #[inline]
    #[must_use]
    pub fn digest(&self, key: &Key) -> u64 {
        let mut digest = 0x9E37_79B9_7F4A_7C15u64;
        for &int in &key.ints[..self.key_ints] {
            digest = mix(digest ^ int);
        }
        if self.hash_of.is_none() && !key.string.is_empty() {
            digest = mix(digest ^ xxhash_rust::xxh3::xxh3_64(key.string));
        }
        digest
    }

    /// Converts a row's integers into stored form, in place.
    #[inline]
    pub fn store(&self, ints: &mut [u64; INTS_MAX]) {
        for column in (0..self.ints.len()).rev() {
            if let Some(base) = self.ints[column].relative_to {
                ints[column] = zigzag(ints[column].wrapping_sub(ints[base]));
            }
        }
    }

    /// Converts stored integers into a row's, in place.
    #[inline]
    pub fn restore(&self, ints: &mut [u64; INTS_MAX]) {
        for (column, spec) in self.ints.iter().enumerate() {
            if let Some(base) = spec.relative_to {
                ints[column] = unzigzag(ints[column]).wrapping_add(ints[base]);
            }
        }
    }

    /// The columns that are relative to others.
    #[must_use]
    pub(crate) fn followers(&self) -> RelativeColumns {
        let columns = self.ints.iter().enumerate();
        let relative = |(column, spec): (usize, &IntColumn)| {
            spec.relative_to.map(|base| (column as u8, base as u8))
        };
        RelativeColumns(columns.filter_map(relative).collect())
    }

    /// Asserts the rules that the engine relies on; called once per tree.
    ///
    /// # Panics
    /// If the schema breaks a rule, which is a bug in the crate that defines it.
    pub(crate) fn check(&self) {
        assert!(self.ints.len() <= INTS_MAX && self.strings.len() <= STRINGS_MAX);
        assert!(
            (1..=KEY_INTS_MAX).contains(&self.key_ints) && self.group_ints + 1 == self.key_ints
        );
        assert!(self.ints.len() > self.key_ints && !self.strings.is_empty());
        for (column, spec) in self.ints.iter().enumerate() {
            assert!(spec.relative_to.is_none_or(|base| base < column && column > self.key_ints));
        }
    }
}

/// Returns the columns in which `a` and `b` differ, as bits.
#[inline]
#[must_use]
pub(crate) fn differences(a: &[u64; INTS_MAX], b: &[u64; INTS_MAX]) -> u32 {
    // One column at a time: the rows have just been written, and a load wider than the store before
    // it stalls until that reaches the cache.
    (0..INTS_MAX).rev().fold(0, |bits, column| bits << 1 | u32::from(a[column] != b[column]))
}

/// Records with an opaque key of 1 to 255 bytes and a value.
pub mod record {
    use super::{IntColumn, Key, Row, Schema};

    /// The first eight bytes of the key, big-endian, padded with zeros.
    pub const HEAD: usize = 0;
    /// The sequence number.
    pub const SEQ: usize = 1;
    /// 1 for a tombstone.
    pub const TOMBSTONE: usize = 2;
    /// String column of the whole key; empty if the head alone identifies it: a key of eight bytes,
    /// the last of which is not zero.
    pub const KEY: usize = 0;
    /// String column of the value.
    pub const VALUE: usize = 1;
    /// Maximum bytes of a key.
    pub const KEY_BYTES_MAX: usize = 255;

    /// The schema.
    pub static RECORD: Schema = Schema {
        id: 2,
        name: "record",
        ints: &[IntColumn::plain("head"), IntColumn::plain("seq"), IntColumn::plain("tombstone")],
        strings: &["key", "value"],
        key_ints: 1,
        group_ints: 0,
        hash_of: None,
        has_filters: true,
    };

    /// Returns the engine's key of an opaque `key`. Keys sort in the order of their bytes.
    ///
    /// # Panics
    /// If `key` is empty or longer than [`KEY_BYTES_MAX`].
    #[must_use]
    pub fn key(key: &[u8]) -> Key<'_> {
        assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "a key has 1 to 255 bytes");
        let mut head = [0u8; 8];
        let count = key.len().min(8);
        head[..count].copy_from_slice(&key[..count]);
        // A head that does not end in a zero belongs to a key of at least eight bytes, and the key
        // of exactly eight sorts first among those: its string may be empty.
        let string = if key.len() == 8 && head[7] != 0 { &[][..] } else { key };
        Key { ints: [u64::from_be_bytes(head), 0, 0], string }
    }

    /// Makes a row that binds `opaque` to `value`.
    #[must_use]
    pub fn row<'a>(opaque: &'a [u8], value: &'a [u8]) -> Row<'a> {
        let key = key(opaque);
        let mut row = Row::default();
        row.ints[HEAD] = key.ints[0];
        row.strings = [key.string, value, &[]];
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static RELATIVE: Schema = Schema {
        id: 9,
        name: "relative",
        ints: &[
            IntColumn::plain("k"),
            IntColumn::plain("seq"),
            IntColumn::follows("a", 1),
            IntColumn::follows("b", 2),
        ],
        strings: &["name"],
        key_ints: 1,
        group_ints: 0,
        hash_of: None,
        has_filters: true,
    };

    #[test]
    fn each_difference_has_its_bit() {
        let mut ints = [7; INTS_MAX];
        assert_eq!(differences(&ints, &[7; INTS_MAX]), 0);
        assert_eq!(differences(&ints, &[1 << 40; INTS_MAX]), (1 << INTS_MAX) - 1);
        for column in 0..INTS_MAX {
            let before = ints;
            ints[column] = 7 | 1 << (column + 40);
            assert_eq!(differences(&ints, &before), 1 << column);
        }
    }

    #[test]
    fn stored_form_round_trips_through_chains_of_columns() {
        RELATIVE.check();
        record::RECORD.check();
        let mut ints = [0; INTS_MAX];
        ints[..4].copy_from_slice(&[5, 100, 90, u64::MAX]);
        let before = ints;
        RELATIVE.store(&mut ints);
        assert_eq!(ints[2], zigzag(10u64.wrapping_neg()));
        RELATIVE.restore(&mut ints);
        assert_eq!(ints, before);
    }
}
