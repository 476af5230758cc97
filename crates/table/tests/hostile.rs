// SPDX-License-Identifier: Apache-2.0
//! Hostile and extreme sizes: input from which a checksum does not protect, since its maker chose
//! it.
//!
//! Random mutations of whole objects are left to fuzz/; here is one test for each bug found.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::clock::{Clock, SystemClock};
use esker_base::store::{MemoryStore, SharedStore};
use esker_table::family::NoFamily;
use esker_table::internals::encode_manifest_unchecked;
use esker_table::internals::{BlockBuilder, Table, decoded_block};
use esker_table::internals::{ChunkOrigin, LogBlock, ShardLog};
use esker_table::internals::{TableFooter, TableWriter};
use esker_table::manifest::{Manifest, TableRef};
use esker_table::object_name::ObjectName;
use esker_table::run_writer::RunWriter;
use esker_table::schema::record::{self, RECORD};
use esker_table::schema::{KeyBuffer, ROW_TEXT_BYTES_MAX, RowBuffer};
use esker_table::table::LookupKey;
use esker_table::tables::{TableRuns, TableSource};
use esker_table::tree::Durability;
use esker_table::{LOG_MAGIC, LogContent, LogId, decode_log};

use crate::records::{SET, options, resume};

fn store() -> SharedStore {
    Arc::new(MemoryStore::new())
}

fn source(store: &SharedStore) -> TableSource {
    TableSource::new(store.clone(), 1 << 20)
}

/// A key of 255 bytes; all keys share the first 240.
fn long_key(number: u64) -> Vec<u8> {
    format!("{}{number:015}", "k".repeat(240)).into_bytes()
}

/// Symptom: a table that was written and committed could not be opened ("strings within bounds");
/// where it could, a get took time linear in the table's blocks.
/// Cause: if keys share their integers, blocks have separators with the whole string. Nothing kept
/// the sum of these below the reader's bound, and the search among them was linear.
/// Fix: such a table counts as full, and the search is binary.
#[test]
fn a_run_of_long_keys_with_one_head_can_be_read() {
    let store = store();
    let mut next_table = 0;
    let mut writer = RunWriter::new(&RECORD, &store, SET, 1, &mut next_table);
    let blocks = 70_000u64;
    for number in 0..blocks {
        let key = long_key(number);
        let mut row = record::row(&key, b"");
        RECORD.store(&mut row.ints);
        let mut block = BlockBuilder::new(&RECORD);
        block.push(&row);
        let mut encoded = Vec::new();
        block.finish(&mut encoded);
        writer.push_block(&encoded, &decoded_block(&RECORD, &[row])).expect("push");
    }
    let references = writer.finish().expect("finish");
    assert!(references.len() > 1);
    let started = SystemClock.monotonic_ns();
    let mut found = 0;
    for reference in references {
        let tables = TableRuns::new(std::slice::from_ref(&reference), &RECORD, &source(&store));
        for number in 0..blocks {
            let key = long_key(number);
            let key = record::key(&key);
            if (reference.first.key()..=reference.last.key()).contains(&key) {
                let wanted = LookupKey { key, digest: RECORD.digest(&key) };
                let mut row = RowBuffer::default();
                found += u64::from(tables.get(&wanted, true, &mut row).expect("get"));
            }
        }
    }
    assert_eq!(found, blocks);
    let seconds = (SystemClock.monotonic_ns() - started) / 1_000_000_000;
    assert!(seconds < 60, "{blocks} gets took {seconds} s");
}

/// Symptom: a table of a few hundred bytes made its reader allocate a hundred gigabytes.
/// Cause: the reader trusted the footer's number of blocks, and constant columns hold any number of
/// rows in two bytes; the only bound was the object's size, which costs nothing in a sparse file.
/// Fix: the size of tables is checked before their tail is read.
#[test]
fn a_table_of_a_size_that_ours_never_have_is_not_read() {
    let store = store();
    let name = "set/table";
    let mut writer = TableWriter::new(&RECORD, store.create(name).expect("create"));
    writer.push(&record::row(b"key", b"value")).expect("push");
    let summary = writer.finish().expect("finish");
    let open = |bytes, tail_bytes| {
        let TableSource { store, cache, counters } = source(&store);
        Table::open(store, name.into(), &RECORD, (bytes, tail_bytes), cache, counters)
    };
    open(summary.bytes, summary.tail_bytes).expect("our own table");
    for bytes in [1 << 33, 1 << 60, u64::MAX] {
        let error = open(bytes, summary.tail_bytes).expect_err("too large");
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains("too many bytes"), "{error}");
    }
}

/// Symptom: a reader was about to trust a footer that promises four thousand million blocks.
/// Cause and fix: as above.
#[test]
fn an_index_of_more_blocks_than_fit_the_table_is_refused() {
    let store = store();
    let mut index = vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut footer = TableFooter {
        schema: RECORD.id,
        blocks: u32::MAX,
        rows: 1,
        seq_max: 0,
        filter_bytes: 0,
        index_bytes: index.len() as u64,
        tail_checksum: 0,
    };
    footer.tail_checksum = crc32c::crc32c(&index);
    footer.encode(&mut index);
    let bytes = [vec![0; 1 << 20], index.clone()].concat();
    store.put_if_absent("hostile", &bytes).expect("put");
    let sizes = (bytes.len() as u64, index.len() as u64);
    let TableSource { store, cache, counters } = source(&store);
    let opened = Table::open(store, "hostile".into(), &RECORD, sizes, cache, counters);
    assert_eq!(opened.expect_err("hostile").kind(), Kind::Corrupt);
}

/// Symptom: taking over a set whose manifest has the highest possible numbers panicked.
/// Cause: numbers continue from there: the next manifest, epoch, run and operation.
/// Fix: a manifest whose numbers leave no room is corrupt.
#[test]
fn manifests_with_numbers_at_the_end_of_their_range_are_refused() {
    let table = TableRef {
        set: SET,
        number: 1,
        schema: RECORD.id,
        run: 1,
        bytes: 100,
        tail_bytes: 80,
        rows: 1,
        seq_max: 1,
        first: KeyBuffer::default(),
        last: KeyBuffer::default(),
    };
    let edits: [fn(&mut Manifest); 8] = [
        |manifest| manifest.number = u64::MAX,
        |manifest| manifest.epoch = u64::MAX,
        |manifest| manifest.epoch = 1 << 32,
        |manifest| manifest.last_seq = u64::MAX,
        |manifest| manifest.log_floor = u64::MAX,
        |manifest| manifest.tables[0].run = u64::MAX,
        |manifest| manifest.tables[0].bytes = u64::MAX,
        |manifest| manifest.tables[0].rows = u64::MAX,
    ];
    for (at, edit) in edits.into_iter().enumerate() {
        let mut manifest = Manifest::new(vec![], 0);
        manifest.tables.push(table.clone());
        edit(&mut manifest);
        let store = store();
        let name = ObjectName::Manifest(SET, manifest.number).to_string();
        store.put_if_absent(&name, &encode_manifest_unchecked(&manifest)).expect("put");
        let resumed = resume(&store, options(Durability::None, false));
        assert_eq!(resumed.expect_err("hostile").kind(), Kind::Corrupt, "edit {at}");
    }
}

/// A log of `rows` puts of one row, a few bytes each: the log holds a row as its differences from
/// the one before.
fn log_of_equal_rows(id: LogId, value: &[u8], rows: u64) -> Vec<u8> {
    let (mut shard, mut chunk) = (ShardLog::default(), LogBlock::default());
    for seq in 1..=rows {
        shard.start(seq, 1);
        shard.row(&RECORD, &record::row(b"key of over eight bytes", value), None);
    }
    chunk.take(0, &mut shard);
    let origin = ChunkOrigin { log: id, offset: LOG_MAGIC.len() as u64 };
    [&LOG_MAGIC[..], chunk.seal(&origin, 0)].concat()
}

const LOG: LogId = LogId { set: SET, number: 1 << 32 };

/// Symptom: taking over a set panicked in the memtable, which refuses records over its limit.
/// Cause: each string of a logged row was bounded, but not their sum.
/// Fix: the sum is bounded.
#[test]
fn a_logged_row_over_the_memtables_limit_is_refused() {
    let log = log_of_equal_rows(LOG, &vec![b'v'; ROW_TEXT_BYTES_MAX], 1);
    let mut rows = 0;
    let mut count = |logged: LogContent| rows += usize::from(matches!(logged, LogContent::Row(..)));
    assert!(decode_log(&RECORD, &NoFamily, LOG, &log, &mut count).is_err());
    assert_eq!(rows, 0);
}

/// Symptom: a log of 600 kB took over four gigabytes to replay, and then panicked.
/// Cause: rows are logged as differences, so a few bytes may be a row of half a mebibyte, and
/// replay put all of them into one memtable.
/// Fix: the rows of one log may take no more memory than a memtable.
#[test]
#[ignore = "takes 3.5 GiB of memory"]
fn a_log_whose_records_are_more_than_a_memtable_is_refused() {
    let store = store();
    let mut manifest = Manifest::new(vec![], 0);
    manifest.claim(&*store, SET, 0).expect("claim");
    let value = vec![b'v'; ROW_TEXT_BYTES_MAX - 100];
    let log = log_of_equal_rows(LOG, &value, 8_000);
    assert!(log.len() < 1 << 20);
    store.put_if_absent(&ObjectName::Log(LOG.set, LOG.number).to_string(), &log).expect("put");
    let error = resume(&store, options(Durability::None, false)).expect_err("hostile");
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("more memory than a memtable has"), "{error}");
}
