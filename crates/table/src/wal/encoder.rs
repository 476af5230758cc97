// SPDX-License-Identifier: Apache-2.0
//! Encoder: encodes and decodes the operations of one shard since its log began, each against the
//! one before.
//!
//! This file is the only encoder and decoder of operations. An operation is
//! ```text
//! seq - last seq | rows | row …
//! row: group | changed columns and strings (bits) | zigzag differences | strings
//! group: 0 integers: named here only | 1 integers: named as the next number | n + 2: the n-th
//! string: bytes shared with the row before | bytes that follow | those bytes
//! ```
//! All numbers are varints except the integers of a group (8 bytes each). Rows are in stored form.
//! The sequence number, and a hash that follows from the key's string, are not logged.

use esker_base::wire::{WireDamage, WireInput, put_varint, unzigzag, zigzag};

use crate::memtable::GroupKey;
use crate::schema::{
    INTS_MAX, KEY_TEXT_BYTES_MAX, ROW_TEXT_BYTES_MAX, Row, RowBuffer, STRINGS_MAX, Schema,
    differences,
};

/// Maximum rows of an operation.
pub const OPERATION_ROWS_MAX: usize = 1 << 16;

/// Encodes, or decodes, the operations of one shard in one log.
#[derive(Debug, Default)]
pub struct ShardLog {
    pending: Vec<u8>,
    last_seq: u64,
    before: RowBuffer,
    /// Groups by number; kept by the decoder only.
    groups: Vec<GroupKey>,
    group_count: u32,
}

/// The columns that a log leaves out: those of the group, which is named, and derived ones.
fn implied(schema: &Schema) -> u32 {
    let group = (1 << schema.group_ints) - 1;
    let hash = u32::from(schema.hash_of.is_some()) << (schema.key_ints - 1);
    group | hash | 1 << schema.seq()
}

/// The number of bytes that `a` and `b` share at their start.
#[inline]
fn shared_bytes(a: &[u8], b: &[u8]) -> usize {
    let mut shared = 0;
    // Eight bytes at a time: names in one directory share most of theirs.
    while let (Some(x), Some(y)) = (a[shared..].first_chunk(), b[shared..].first_chunk()) {
        let differ = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differ != 0 {
            return shared + differ.trailing_zeros() as usize / 8;
        }
        shared += 8;
    }
    shared + a[shared..].iter().zip(&b[shared..]).take_while(|(x, y)| x == y).count()
}

impl ShardLog {
    /// The encoded bytes that have not been taken yet.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Clears the pending bytes after they were taken.
    pub(crate) fn clear_pending(&mut self) {
        self.pending.clear();
    }

    /// Starts the operation `seq` of `rows` rows; `rows` calls of [`ShardLog::row`] must follow.
    ///
    /// # Panics
    /// If there are more than `OPERATION_ROWS_MAX`.
    pub fn start(&mut self, seq: u64, rows: usize) {
        assert!(rows <= OPERATION_ROWS_MAX, "an operation within its bound");
        put_varint(&mut self.pending, seq.wrapping_sub(self.last_seq));
        put_varint(&mut self.pending, rows as u64);
        self.last_seq = seq;
    }

    /// Adds a row in stored form. `group_number` is the caller's cell for the number of the row's
    /// group plus one, 0 until this log has named the group; `None` for a row of another shard.
    #[inline]
    pub fn row(&mut self, schema: &Schema, row: &Row, group_number: Option<&mut u32>) {
        if schema.group_ints > 0 {
            self.put_group(schema, row, group_number);
        }
        let mut mask = differences(&row.ints, &self.before.ints) & !implied(schema);
        let strings = self.before.strings.iter().zip(row.strings);
        let mut shared = [0; STRINGS_MAX];
        for (column, (before, string)) in strings.enumerate() {
            shared[column] = shared_bytes(before, string);
            let same = shared[column] == before.len() && shared[column] == string.len();
            mask |= u32::from(!same) << (INTS_MAX + column);
        }
        put_varint(&mut self.pending, u64::from(mask));
        let mut changed = mask & ((1 << INTS_MAX) - 1);
        while changed != 0 {
            let column = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            let difference = row.ints[column].wrapping_sub(self.before.ints[column]);
            put_varint(&mut self.pending, zigzag(difference));
            self.before.ints[column] = row.ints[column];
        }
        for column in 0..STRINGS_MAX {
            if mask >> (INTS_MAX + column) & 1 == 1 {
                let (before, string) = (&mut self.before.strings[column], row.strings[column]);
                let shared = shared[column];
                put_varint(&mut self.pending, shared as u64);
                put_varint(&mut self.pending, (string.len() - shared) as u64);
                self.pending.extend_from_slice(&string[shared..]);
                before.truncate(shared);
                before.extend_from_slice(&string[shared..]);
            }
        }
    }

    fn put_group(&mut self, schema: &Schema, row: &Row, group_number: Option<&mut u32>) {
        match group_number {
            Some(number) if *number > 0 => {
                return put_varint(&mut self.pending, u64::from(*number) + 1);
            }
            Some(number) => {
                self.group_count += 1;
                *number = self.group_count;
                self.pending.push(1);
            }
            None => self.pending.push(0),
        }
        for int in &row.ints[..schema.group_ints] {
            self.pending.extend_from_slice(&int.to_le_bytes());
        }
    }

    /// Decodes the next operation of `input`: returns its sequence number and passes each row to
    /// `visit`.
    pub(super) fn decode(
        &mut self,
        schema: &Schema,
        input: &mut WireInput,
        visit: &mut dyn FnMut(u64, &Row),
    ) -> Result<u64, WireDamage> {
        let seq = self.last_seq.wrapping_add(input.varint()?);
        let rows = input.varint_max(OPERATION_ROWS_MAX, "an operation's number of rows")?;
        self.last_seq = seq;
        for _ in 0..rows {
            self.decode_row(schema, input)?;
            self.before.ints[schema.seq()] = seq;
            visit(seq, &self.before.row());
        }
        Ok(seq)
    }

    fn decode_row(&mut self, schema: &Schema, input: &mut WireInput) -> Result<(), WireDamage> {
        if schema.group_ints > 0 {
            let group = self.decode_group(schema, input)?;
            let count = schema.group_ints;
            self.before.ints[..count].copy_from_slice(&group[..count]);
        }
        let mask = input.varint_max(u32::MAX as usize, "a row's changes")? as u32;
        let strings = (1u32 << schema.strings.len()) - 1;
        let known = ((1u32 << schema.ints.len()) - 1) | (strings << INTS_MAX);
        if mask & (implied(schema) | !known) != 0 {
            return Err(input.damage("changes of logged columns"));
        }
        for column in (0..INTS_MAX).filter(|column| mask >> column & 1 == 1) {
            let difference = unzigzag(input.varint()?);
            self.before.ints[column] = self.before.ints[column].wrapping_add(difference);
        }
        for column in (0..STRINGS_MAX).filter(|column| mask >> (INTS_MAX + column) & 1 == 1) {
            let before = &mut self.before.strings[column];
            let shared = input.varint_max(before.len(), "a shared part of the string before")?;
            let rest = input.bytes(ROW_TEXT_BYTES_MAX, "a string within bounds")?;
            before.truncate(shared);
            before.extend_from_slice(rest);
        }
        let text_bytes: usize = self.before.strings.iter().map(Vec::len).sum();
        if text_bytes > ROW_TEXT_BYTES_MAX || self.before.strings[0].len() > KEY_TEXT_BYTES_MAX {
            return Err(input.damage("a row's strings within bounds"));
        }
        if let Some(hash_of) = schema.hash_of {
            self.before.ints[schema.key_ints - 1] = hash_of(&self.before.strings[0]);
        }
        Ok(())
    }

    fn decode_group(
        &mut self,
        schema: &Schema,
        input: &mut WireInput,
    ) -> Result<GroupKey, WireDamage> {
        let at = input.clone();
        let code = input.varint()?;
        if let Some(number) = code.checked_sub(2) {
            let group = usize::try_from(number).ok().and_then(|number| self.groups.get(number));
            return group.copied().ok_or(at.damage("a group that was named before"));
        }
        let mut group = GroupKey::default();
        for int in &mut group[..schema.group_ints] {
            *int = input.u64()?;
        }
        if code == 1 {
            self.groups.push(group);
        }
        Ok(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::IntColumn;

    fn hash(name: &[u8]) -> u64 {
        name.iter().map(|byte| u64::from(*byte)).sum()
    }

    /// Like that of inodes: a group, and a hash that follows from the name.
    static NAMED: Schema = Schema {
        id: 9,
        name: "named",
        ints: &[
            IntColumn::plain("group"),
            IntColumn::plain("hash"),
            IntColumn::plain("seq"),
            IntColumn::plain("a"),
        ],
        strings: &["name", "content"],
        key_ints: 2,
        group_ints: 1,
        hash_of: Some(hash),
        has_filters: true,
    };
    /// Bits of what may change.
    const A: u32 = 3;
    const NAME: u32 = INTS_MAX as u32;
    const CONTENT: u32 = NAME + 1;

    fn row<'a>(group: u64, a: u64, name: &'a [u8], content: &'a [u8]) -> Row<'a> {
        let mut row = Row::default();
        row.ints[..4].copy_from_slice(&[group, hash(name), 0, a]);
        row.strings = [name, content, &[]];
        row
    }

    fn varints(out: &mut Vec<u8>, numbers: &[u64]) {
        numbers.iter().for_each(|number| put_varint(out, *number));
    }

    #[test]
    fn operations_have_the_bytes_of_the_format_and_come_back() {
        const GROUP: u64 = 0x0102_0304_0506_0708;
        let rows = [
            row(GROUP, 7, b"abc", b""),
            row(GROUP, 6, b"abd-and-more-than-eight", b"x"),
            row(GROUP + 1, 6, b"abd-and-more-than-nine", b"x"),
            row(GROUP + 2, 6, b"abd-and-more-than-nine", b"x"),
            row(GROUP + 1, 6, b"", b""),
        ];
        let (mut numbers, mut log) = ([0, 0], ShardLog::default());
        log.start(5, 1);
        log.row(&NAMED, &rows[0], Some(&mut numbers[0]));
        log.start(6, 3);
        log.row(&NAMED, &rows[1], Some(&mut numbers[0]));
        log.row(&NAMED, &rows[2], Some(&mut numbers[1]));
        log.row(&NAMED, &rows[3], None);
        log.start(9, 1);
        log.row(&NAMED, &rows[4], Some(&mut numbers[1]));
        assert_eq!(numbers, [1, 2]);

        let mut expected = Vec::new();
        varints(&mut expected, &[5, 1, 1]);
        expected.extend_from_slice(&GROUP.to_le_bytes());
        varints(&mut expected, &[1 << A | 1 << NAME, 14, 0, 3]);
        expected.extend_from_slice(b"abc");
        varints(&mut expected, &[1, 3, 2, 1 << A | 1 << NAME | 1 << CONTENT, 1, 2, 21]);
        expected.extend_from_slice(b"d-and-more-than-eight");
        varints(&mut expected, &[0, 1]);
        expected.extend_from_slice(b"x");
        varints(&mut expected, &[1]);
        expected.extend_from_slice(&(GROUP + 1).to_le_bytes());
        varints(&mut expected, &[1 << NAME, 18, 4]);
        expected.extend_from_slice(b"nine");
        varints(&mut expected, &[0]);
        expected.extend_from_slice(&(GROUP + 2).to_le_bytes());
        varints(&mut expected, &[0, 3, 1, 3, 1 << NAME | 1 << CONTENT, 0, 0, 0, 0]);
        assert_eq!(log.pending(), expected);

        let (mut decoder, mut input) = (ShardLog::default(), WireInput::new(&expected));
        let mut decoded = rows.iter();
        for (seq, count) in [(5, 1), (6, 3), (9, 1)] {
            let mut left = count;
            let read = decoder.decode(&NAMED, &mut input, &mut |of_row, row| {
                let expected = decoded.next().expect("a row");
                let mut ints = expected.ints;
                ints[2] = seq;
                assert_eq!((of_row, row.ints, row.strings), (seq, ints, expected.strings));
                left -= 1;
            });
            assert_eq!((read.expect("an operation"), left), (seq, 0));
        }
        assert!(decoded.next().is_none() && input.left() == 0);
    }

    #[test]
    fn only_logged_columns_change() {
        for bit in 0..u32::BITS {
            let mut bytes = vec![1, 1, 0];
            bytes.extend_from_slice(&[0; 8]);
            varints(&mut bytes, &[1 << bit, 0, 0, 0]);
            let decoded =
                ShardLog::default().decode(&NAMED, &mut WireInput::new(&bytes), &mut |_, _| {});
            assert_eq!(decoded.is_ok(), [A, NAME, CONTENT].contains(&bit), "bit {bit}");
        }
    }

    #[test]
    fn groups_are_named_before_they_are_referred_to() {
        for code in 2..5 {
            let mut bytes = vec![1, 1];
            varints(&mut bytes, &[code, 0]);
            let groups = vec![GroupKey::default(); 2];
            let mut log = ShardLog { groups, ..ShardLog::default() };
            let decoded = log.decode(&NAMED, &mut WireInput::new(&bytes), &mut |_, _| {});
            assert_eq!(decoded.is_ok(), code < 4);
        }
    }
}
