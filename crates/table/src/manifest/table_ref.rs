// SPDX-License-Identifier: Apache-2.0
//! Table references: the tables, or parts of them, that a manifest lists.
//!
//! Layout: docs/format/manifest.md. This file is their only encoder and decoder.

use esker_base::wire::{WireDamage, WireInput, put_bytes, put_varint};

use super::{NUMBER_MAX, ROWS_MAX, SetId};
use crate::object_name::ObjectName;
use crate::schema::{KEY_INTS_MAX, KEY_TEXT_BYTES_MAX, Key, KeyBuffer};
use crate::table::{TABLE_DATA_BYTES_MAX, TAIL_BYTES_MAX};

/// A table that a change set shows, or part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRef {
    /// The set in whose folder the object is.
    pub set: SetId,
    /// Its number there.
    pub number: u64,
    /// [`crate::schema::Schema::id`] of its records.
    pub schema: u16,
    /// Tables of one run do not overlap; a higher run is newer and wins.
    pub run: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// Bytes of its tail.
    pub tail_bytes: u64,
    /// Records in the whole object.
    pub rows: u64,
    /// Highest sequence number in it.
    pub seq_max: u64,
    /// First visible key.
    pub first: KeyBuffer,
    /// Last visible key.
    pub last: KeyBuffer,
}

impl TableRef {
    /// The object's name.
    #[must_use]
    pub fn name(&self) -> String {
        ObjectName::Table(self.set, self.number).to_string()
    }

    /// Returns whether a manifest may list it.
    pub(super) fn is_within_bounds(&self) -> bool {
        let keys = [&self.first, &self.last];
        self.bytes <= TABLE_DATA_BYTES_MAX + TAIL_BYTES_MAX
            && self.tail_bytes <= self.bytes
            && self.rows <= ROWS_MAX
            && self.number.max(self.run) <= NUMBER_MAX
            && keys.into_iter().all(|key| key.string.len() <= KEY_TEXT_BYTES_MAX)
    }

    /// Returns whether `key` is in the visible range.
    #[inline]
    #[must_use]
    pub(crate) fn shows(&self, key: &Key) -> bool {
        self.first.key() <= *key && *key <= self.last.key()
    }
}

pub(super) fn encode_table(table: &TableRef, out: &mut Vec<u8>) {
    out.extend_from_slice(&table.set.0.to_le_bytes());
    out.extend_from_slice(&table.schema.to_le_bytes());
    for value in [table.number, table.run, table.bytes, table.tail_bytes, table.rows, table.seq_max]
    {
        put_varint(out, value);
    }
    for key in [&table.first, &table.last] {
        for int in key.ints {
            put_varint(out, int);
        }
        put_bytes(out, &key.string);
    }
}

pub(super) fn decode_table(input: &mut WireInput) -> Result<TableRef, WireDamage> {
    let set = SetId(input.u128()?);
    let schema = input.u16()?;
    let mut values = [0; 6];
    for value in &mut values {
        *value = input.varint()?;
    }
    let [number, run, bytes, tail_bytes, rows, seq_max] = values;
    let mut key = || -> Result<KeyBuffer, WireDamage> {
        let mut ints = [0; KEY_INTS_MAX];
        for int in &mut ints {
            *int = input.varint()?;
        }
        let string = input.bytes(KEY_TEXT_BYTES_MAX, "a key's string within bounds")?.to_vec();
        Ok(KeyBuffer { ints, string })
    };
    let (first, last) = (key()?, key()?);
    Ok(TableRef { set, number, schema, run, bytes, tail_bytes, rows, seq_max, first, last })
}
