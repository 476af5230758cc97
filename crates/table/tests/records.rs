// SPDX-License-Identifier: Apache-2.0
//! A tree of opaque keys and values, shared by the tests of several topics, in this crate and in
//! `extent`: the test binary says which family it hosts.

use std::sync::Arc;

use esker_base::Result;
use esker_base::clock::SystemClock;
use esker_base::store::SharedStore;
use esker_table::manifest::{Manifest, SetId};
use esker_table::merge::RecordMerge;
use esker_table::schema::record::{self, RECORD};
use esker_table::schema::{Key, KeyBuffer, Row, RowBuffer};
use esker_table::tables::TableSource;
use esker_table::tree::{Compaction, Durability, Tree, TreeOptions, TreeSetup};

/// The change set that the tests write.
pub const SET: SetId = SetId(7);

/// Little memory, so that a few thousand records are frozen and flushed many times.
pub fn options(durability: Durability, background: bool) -> TreeOptions {
    TreeOptions {
        durability,
        compaction: Compaction::Tiered,
        memory_bytes: 1 << 17,
        background,
        flush_threads: 2,
        ..TreeOptions::default()
    }
}

pub fn setup(store: &SharedStore, options: TreeOptions) -> TreeSetup {
    TreeSetup {
        schema: &RECORD,
        family: crate::FAMILY,
        source: TableSource::new(store.clone(), 1 << 20),
        clock: Arc::new(SystemClock),
        options,
        sync_dependencies: Arc::new(|| Ok(())),
        log_companion: None,
        heartbeat: None,
    }
}

pub fn create(store: &SharedStore, options: TreeOptions) -> Result<Tree> {
    Tree::create(setup(store, options), SET, Manifest::new(vec![], 0))
}

pub fn resume(store: &SharedStore, options: TreeOptions) -> Result<Tree> {
    Tree::resume(setup(store, options), SET, None, &mut |_| Ok(true))
}

/// Binds `key` to `value`; returns its previous value.
pub fn put(tree: &Tree, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>> {
    tree.update([record::key(key)], None, |[old], batch| {
        batch.put(&mut [record::row(key, value)]);
        Ok(old.map(|old| old.strings[record::VALUE].to_vec()))
    })
}

pub fn get(tree: &Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut row = RowBuffer::default();
    let found = tree.get(&record::key(key), true, &mut row)?;
    Ok(found.then(|| std::mem::take(&mut row.strings[record::VALUE])))
}

/// Returns the opaque key of a record in readable or stored form.
pub fn key_of(row: &Row) -> Vec<u8> {
    let key = row.strings[record::KEY];
    if key.is_empty() { row.ints[record::HEAD].to_be_bytes().to_vec() } else { key.to_vec() }
}

/// Returns all keys and values from `from` on, read `limit` at a time.
pub fn scan(tree: &Tree, from: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut out = Vec::new();
    let mut from = KeyBuffer::from(record::key(from));
    loop {
        let sources = tree.group_cursors(&from.key(), limit);
        let mut merge = RecordMerge::new(sources.cursors, &from.key())?;
        while merge.advance()? {
            let row = merge.row();
            if sources.end.is_some_and(|end| row.ints[record::HEAD] >= end) {
                break;
            }
            out.push((key_of(&row), row.strings[record::VALUE].to_vec()));
        }
        match sources.end {
            Some(end) => from = Key { ints: [end, 0, 0], string: &[] }.into(),
            None => return Ok(out),
        }
    }
}
