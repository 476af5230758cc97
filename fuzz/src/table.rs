// SPDX-License-Identifier: Apache-2.0
//! Whole valid tables with some bytes changed in a block, in the tail, or in both.

use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore, Store};
use esker_table::internals::{FOOTER_BYTES, Table, TableWriter};
use esker_table::manifest::{SetId, TableRef};
use esker_table::schema::{Key, KeyBuffer, RowBuffer, Schema};
use esker_table::table::LookupKey;
use esker_table::tables::{TableRuns, TableSource};

use crate::block;
use crate::choices::Choices;
use crate::records;

const SET: SetId = SetId(1);

pub fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let schema = records::schema(&mut choices);
    let rows = records::sorted(schema, &mut choices, 900);
    if rows.is_empty() {
        return;
    }
    let (object, reference) = write(schema, &rows);
    let (changed, object, reference) = mutate(schema, object, reference, &mut choices);
    let store: SharedStore = Arc::new(MemoryStore::new());
    store.put_if_absent(&reference.name(), &object).expect("put");
    let source = TableSource::new(store, 1 << 20);
    let tables = TableRuns::new(&[reference], schema, &source);
    let found = scan(schema, &tables);
    let gets = get(schema, &tables, &rows, &mut choices);
    if !changed {
        let found = found.expect("a table of ours");
        assert!(found.len() == rows.len());
        let same = |(a, b): (&RowBuffer, &RowBuffer)| a.ints == b.ints && a.strings == b.strings;
        assert!(found.iter().zip(&rows).all(same));
        // The additional key may be that of one of the rows.
        let gets = gets.expect("a table of ours");
        assert!(gets == rows.len() || gets == rows.len() + 1);
    }
}

fn write(schema: &'static Schema, rows: &[RowBuffer]) -> (Vec<u8>, TableRef) {
    let store = MemoryStore::new();
    let mut writer = TableWriter::new(schema, store.create("table").expect("create"));
    rows.iter().for_each(|row| writer.push(&row.row()).expect("push"));
    let summary = writer.finish().expect("finish");
    let reference = TableRef {
        set: SET,
        number: 0,
        schema: schema.id,
        run: 0,
        bytes: summary.bytes,
        tail_bytes: summary.tail_bytes,
        rows: summary.rows,
        seq_max: summary.seq_max,
        first: summary.first,
        last: summary.last,
    };
    (store.get("table", u64::MAX).expect("get").to_vec(), reference)
}

/// Changes a block, the filters and index, the footer, or the reference in the manifest.
fn mutate(
    schema: &'static Schema,
    object: Vec<u8>,
    mut reference: TableRef,
    choices: &mut Choices,
) -> (bool, Vec<u8>, TableRef) {
    let tail_start = object.len() - reference.tail_bytes as usize;
    let (blocks, tail) = object.split_at(tail_start);
    let (body, footer) = tail.split_at(tail.len() - FOOTER_BYTES);
    let (mut blocks, mut body, mut footer) = (blocks.to_vec(), body.to_vec(), footer.to_vec());
    let mut changed = false;
    let which = choices.u8();
    if which & 1 != 0 {
        let place = block_place(schema, &object, &reference, choices);
        let mut own = blocks[place.clone()].to_vec();
        changed |= choices.mutate(&mut own);
        own.resize(place.len(), 0);
        block::repair(&mut own);
        changed |= blocks[place.clone()] != own;
        blocks[place].copy_from_slice(&own);
    }
    if which & 2 != 0 {
        let before = body.len();
        changed |= choices.mutate(&mut body);
        // Usually keeps the index where the footer expects its end.
        let grown = (body.len() as u64).wrapping_sub(before as u64);
        add(&mut footer[40..48], grown);
    }
    if which & 4 != 0 {
        let at = 10 + choices.below(FOOTER_BYTES - 22);
        let byte = choices.u8();
        changed |= footer[at] != byte;
        footer[at] = byte;
    }
    if which & 8 != 0 {
        changed = true;
        reference.tail_bytes = reference.tail_bytes.wrapping_add(choices.u64());
    }
    if which & 16 != 0 {
        changed = true;
        reference.first = records::key(schema, choices);
        reference.last = records::key(schema, choices);
    } else if which & 8 == 0 {
        reference.tail_bytes = (body.len() + FOOTER_BYTES) as u64;
        reference.bytes = blocks.len() as u64 + reference.tail_bytes;
    }
    footer[48..52].copy_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    let checksum = crc32c::crc32c(&footer[..FOOTER_BYTES - 4]).to_le_bytes();
    footer[FOOTER_BYTES - 4..].copy_from_slice(&checksum);
    (changed, [blocks, body, footer].concat(), reference)
}

fn add(bytes: &mut [u8], by: u64) {
    let value = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    bytes.copy_from_slice(&value.wrapping_add(by).to_le_bytes());
}

fn block_place(
    schema: &'static Schema,
    object: &[u8],
    reference: &TableRef,
    choices: &mut Choices,
) -> std::ops::Range<usize> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    store.put_if_absent(&reference.name(), object).expect("put");
    let TableSource { store, cache, counters } = TableSource::new(store, 0);
    let sizes = (reference.bytes, reference.tail_bytes);
    let table = Table::open(store, reference.name(), schema, sizes, cache, counters);
    let table = table.expect("a table of ours");
    let place = table.index().block_range(choices.below(table.index().blocks()));
    place.start as usize..place.end as usize
}

/// All records, in stored form.
fn scan(schema: &'static Schema, tables: &TableRuns) -> Option<Vec<RowBuffer>> {
    let mut merge = tables.runs[0].merge(schema, &Key::FIRST, &Key::LAST).ok()?;
    let mut found = Vec::new();
    while merge.advance().ok()? {
        found.push(merge.row().into());
    }
    Some(found)
}

/// The number of `rows` found by their keys.
fn get(
    schema: &'static Schema,
    tables: &TableRuns,
    rows: &[RowBuffer],
    choices: &mut Choices,
) -> Option<usize> {
    let other = records::key(schema, choices);
    let keys: Vec<KeyBuffer> = rows
        .iter()
        .map(|row| records::key_of(schema, row).into())
        .chain([other])
        .filter(|key: &KeyBuffer| {
            let shown = &tables.runs[0].tables[0].reference;
            (&shown.first..=&shown.last).contains(&key)
        })
        .collect();
    let mut found = 0;
    for key in &keys {
        let mut row = RowBuffer::default();
        let wanted = LookupKey { key: key.key(), digest: schema.digest(&key.key()) };
        found += usize::from(tables.get(&wanted, true, &mut row).ok()?);
    }
    Some(found)
}
