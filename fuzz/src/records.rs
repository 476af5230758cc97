// SPDX-License-Identifier: Apache-2.0
//! Records of two schemas: opaque keys, and names in groups ordered by hash.

use esker_table::schema::record::RECORD;
use esker_base::word_hash::mix;
use esker_table::schema::{IntColumn, Key, KeyBuffer, RowBuffer, Schema};

use crate::choices::Choices;

/// Like inodes: two integers that identify a group, the hash of a name, attributes relative to
/// others.
static NAMED: Schema = Schema {
    id: 900,
    name: "named",
    ints: &[
        IntColumn { name: "group high", relative_to: None },
        IntColumn { name: "group low", relative_to: None },
        IntColumn { name: "hash", relative_to: None },
        IntColumn { name: "seq", relative_to: None },
        IntColumn { name: "mode", relative_to: None },
        IntColumn { name: "size", relative_to: None },
        IntColumn { name: "created", relative_to: None },
        IntColumn { name: "changed", relative_to: Some(6) },
    ],
    strings: &["name", "data", "attributes"],
    key_ints: 3,
    group_ints: 2,
    hash_of: Some(hash_of),
    has_filters: true,
};

fn hash_of(name: &[u8]) -> u64 {
    name.iter().fold(name.len() as u64, |hash, &byte| mix(hash ^ u64::from(byte)))
}

pub fn schema(choices: &mut Choices) -> &'static Schema {
    if choices.u8().is_multiple_of(2) { &RECORD } else { &NAMED }
}

/// Up to `rows_max` records in stored form, in order of distinct keys.
pub fn sorted(schema: &'static Schema, choices: &mut Choices, rows_max: usize) -> Vec<RowBuffer> {
    let mut rows = Vec::new();
    let count = choices.below(rows_max + 1);
    let step = choices.u64();
    for number in 0..count as u64 {
        let mut row = RowBuffer::default();
        // Half of the records are regular, so that every encoding occurs.
        let regular = choices.u8() < 0x80 || choices.rest().is_empty();
        for (column, int) in row.ints[..schema.ints.len()].iter_mut().enumerate() {
            *int = if regular { step.wrapping_mul(number) >> (column * 5) } else { choices.u64() };
        }
        for string in &mut row.strings[..schema.strings.len()] {
            *string = if regular { format!("n.{number}").into() } else { choices.string(300) };
        }
        if let Some(hash_of) = schema.hash_of {
            row.ints[schema.key_ints - 1] = hash_of(&row.strings[0]);
            row.ints[0] %= 2;
            row.ints[1] = 0;
        }
        schema.store(&mut row.ints);
        rows.push(row);
    }
    rows.sort_by(|a, b| schema.key(&a.row()).cmp(&schema.key(&b.row())));
    rows.dedup_by(|a, b| schema.key(&a.row()) == schema.key(&b.row()));
    rows
}

/// A key that may or may not exist.
pub fn key(schema: &Schema, choices: &mut Choices) -> KeyBuffer {
    let mut key = KeyBuffer { string: choices.string(300), ..KeyBuffer::default() };
    for int in &mut key.ints[..schema.key_ints] {
        *int = choices.u64();
    }
    if let Some(hash_of) = schema.hash_of {
        key.ints = [key.ints[0] % 2, 0, hash_of(&key.string)];
    }
    key
}

/// Returns whether `a`, in readable form, equals `b`, in stored form.
pub fn same(schema: &Schema, a: &RowBuffer, b: &RowBuffer) -> bool {
    let mut b = b.clone();
    schema.restore(&mut b.ints);
    a.ints == b.ints && a.strings == b.strings
}

pub fn key_of<'a>(schema: &Schema, row: &'a RowBuffer) -> Key<'a> {
    schema.key(&row.row())
}
