// SPDX-License-Identifier: Apache-2.0
//! Scans: cursors over many tables, read ahead.

use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore};
use esker_table::manifest::TableRef;
use esker_table::run_writer::RunWriter;
use esker_table::schema::Key;
use esker_table::schema::record::{self, RECORD};
use esker_table::tables::{TableRuns, TableSource};

use crate::records::SET;

const BLOCK_ROWS: u64 = 256;

/// Writes a table of `blocks` blocks of keys from `first` on.
fn write(store: &SharedStore, number: u64, first: u64, blocks: u64) -> TableRef {
    let mut next_table = number;
    let mut writer = RunWriter::new(&RECORD, store, SET, 1, &mut next_table);
    for key in first..first + blocks * BLOCK_ROWS {
        let key = key.to_be_bytes();
        let mut row = record::row(&key, b"");
        RECORD.store(&mut row.ints);
        writer.push(&row).expect("push");
    }
    writer.finish().expect("finish").remove(0)
}

/// Symptom: a scan of a run of many tables panicked, or did not end where overflow is not checked.
/// Cause: with every request a cursor doubled its read-ahead, across all tables.
/// Fix: read-ahead is limited to one request.
#[test]
fn a_scan_of_a_hundred_tables_reads_every_record() {
    const BLOCKS: u64 = 5;
    let store: SharedStore = Arc::new(MemoryStore::new());
    let source = TableSource::new(store.clone(), 1 << 20);
    let rows = BLOCKS * BLOCK_ROWS;
    let references: Vec<TableRef> =
        (0..100).map(|number| write(&store, number, number * rows, BLOCKS)).collect();
    let runs = TableRuns::new(&references, &RECORD, &source).runs;
    assert_eq!(runs.len(), 1);
    let mut merge = runs[0].merge(&RECORD, &Key::FIRST, &Key::LAST).expect("start");
    let mut read = 0;
    while merge.advance().expect("advance") {
        assert_eq!(merge.row().ints[record::HEAD], read);
        read += 1;
    }
    assert_eq!(read, 100 * rows);
}
