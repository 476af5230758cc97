// SPDX-License-Identifier: Apache-2.0
//! Bounds: readers accept everything that a writer accepts. A writer refuses anything that exceeds
//! a bound before it has any effect, and continues.

use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_table::internals::{decode_manifest, encode_manifest, encode_manifest_unchecked};
use esker_table::manifest::{Manifest, SetId};
use esker_table::run_writer::RunWriter;
use esker_table::schema::record::{self, RECORD};
use esker_table::schema::{KEY_TEXT_BYTES_MAX, ROW_TEXT_BYTES_MAX, Row, RowBuffer};
use esker_table::set_writer::{SetWriter, WRITER_TEXT_BYTES_MAX};
use esker_table::tree::{Durability, Tree};

use crate::records::{SET, create, options, put, resume};

const LEVELS: [Durability; 3] = [Durability::None, Durability::Async, Durability::Always];

fn store() -> SharedStore {
    Arc::new(MemoryStore::new())
}

/// A row of any key of over eight bytes; keys of `record` are shorter than the engine allows.
fn row<'a>(key: &'a [u8], value: &'a [u8]) -> Row<'a> {
    let head = u64::from_be_bytes(*key.first_chunk().expect("a key of over eight bytes"));
    let mut row = Row { strings: [key, value, &[]], ..Row::default() };
    row.ints[record::HEAD] = head;
    row
}

fn insert(tree: &Tree, row: &Row) -> Result<Option<u64>> {
    tree.insert(&mut row.clone(), |_, _| {}, || {})
}

fn update(tree: &Tree, row: &Row) -> Result<()> {
    tree.update([RECORD.key(row)], None, |_, batch| {
        // Takes the number before the record turns out to be too long.
        batch.seq();
        batch.put(&mut [*row]);
        Ok(())
    })
}

fn has(tree: &Tree, row: &Row) -> bool {
    let mut found = RowBuffer::default();
    tree.get(&RECORD.key(row), true, &mut found).expect("get") && found.strings[1] == row.strings[1]
}

/// Symptom: a put of a long record panicked and left a gap in the log, or was acknowledged although
/// its table could not be read: "a key's string within bounds".
/// Cause: the check existed but was never called; only readers enforced the bounds of logs, tables
/// and manifests.
/// Fix: inserts and updates check before they write.
#[test]
fn records_over_a_bound_are_refused_and_the_writer_goes_on() {
    let long_key = vec![b'k'; KEY_TEXT_BYTES_MAX + 1];
    let long_value = vec![b'v'; ROW_TEXT_BYTES_MAX];
    let (before, after) = (row(b"key before", b"1"), row(b"key after", b"1"));
    for durability in LEVELS {
        let store = store();
        let tree = create(&store, options(durability, false)).expect("create");
        insert(&tree, &before).expect("insert");
        for long in [row(&long_key, b"1"), row(b"a long value", &long_value)] {
            assert_eq!(insert(&tree, &long).expect_err("long").kind(), Kind::TooLarge);
            assert_eq!(update(&tree, &long).expect_err("long").kind(), Kind::TooLarge);
        }
        insert(&tree, &after).expect("insert");
        tree.sync().expect("sync");
        drop(tree);
        let tree = resume(&store, options(durability, false)).expect("resume");
        assert!(has(&tree, &before) && has(&tree, &after), "{durability:?}");
    }
}

#[test]
fn the_longest_records_are_read_from_logs_and_tables() {
    let keys: Vec<Vec<u8>> = (1..10).map(|number| vec![number; KEY_TEXT_BYTES_MAX]).collect();
    let value = vec![b'v'; ROW_TEXT_BYTES_MAX - KEY_TEXT_BYTES_MAX];
    for durability in LEVELS {
        let store = store();
        let tree = create(&store, options(durability, false)).expect("create");
        for key in &keys {
            update(&tree, &row(key, &value)).expect("update");
        }
        tree.sync().expect("sync");
        drop(tree);
        let tree = resume(&store, options(durability, false)).expect("resume");
        tree.compact().expect("compact");
        drop(tree);
        let tree = resume(&store, options(durability, false)).expect("resume");
        assert!(keys.iter().all(|key| has(&tree, &row(key, &value))), "{durability:?}");
    }
}

#[test]
fn a_table_takes_no_record_that_its_readers_refuse() {
    let store = store();
    let mut next_table = 0;
    let mut writer = RunWriter::new(&RECORD, &store, SET, 1, &mut next_table);
    let long_key = vec![b'k'; KEY_TEXT_BYTES_MAX + 1];
    let long_value = vec![b'v'; ROW_TEXT_BYTES_MAX];
    for row in [row(&long_key, b""), row(b"a long value", &long_value)] {
        assert_eq!(writer.push(&row).expect_err("long").kind(), Kind::TooLarge);
    }
}

/// Symptom: a set could never be opened again once its manifest had a property of over 64 KiB.
/// Cause: the manifest was written without a check of its readers' bounds.
/// Fix: a commit checks them before it writes.
#[test]
fn a_commit_over_a_bound_changes_nothing() {
    let edits: [fn(&mut Manifest); 6] = [
        |manifest| drop(manifest.properties.insert("long".into(), "x".repeat((64 << 10) + 1))),
        |manifest| drop(manifest.properties.insert("x".repeat((64 << 10) + 1), "long".into())),
        |manifest| {
            let command = "x".repeat(WRITER_TEXT_BYTES_MAX + 1);
            manifest.writer = Some(SetWriter { command, ..SetWriter::default() });
        },
        |manifest| manifest.epoch = 1 << 30,
        |manifest| manifest.obsolete = vec![0; (1 << 22) + 1],
        |manifest| manifest.tables[0].first.string = vec![b'k'; KEY_TEXT_BYTES_MAX + 1],
    ];
    for (at, edit) in edits.into_iter().enumerate() {
        let store = store();
        let tree = create(&store, options(Durability::Async, false)).expect("create");
        put(&tree, b"key", b"value").expect("put");
        tree.flush().expect("flush");
        let before = tree.manifest();
        let refused = tree.commit(edit).expect_err("over a bound");
        assert_eq!(refused.kind(), Kind::TooLarge, "edit {at}: {refused}");
        assert_eq!(Manifest::load(&*store, SET).expect("load"), *before, "edit {at}");
        put(&tree, b"other", b"value").expect("put");
        tree.commit(|_| {}).expect("the writer goes on");
    }
}

#[test]
fn a_manifest_lists_a_million_sets_of_data() {
    let store = store();
    let mut manifest = Manifest::new(vec![], 0);
    manifest.data_sets = (0..1 << 20).map(|set| SetId(set << 64)).collect();
    manifest.claim(&*store, SET, 0).expect("claim");
    assert_eq!(Manifest::load(&*store, SET).expect("load"), manifest);
    manifest.data_sets.swap(0, 1);
    assert_eq!(encode_manifest(&manifest).expect_err("out of order").kind(), Kind::Invalid);
    assert!(decode_manifest(&encode_manifest_unchecked(&manifest)).is_err());
}

/// Earlier readers take the manifests of all sets but those with their own identities and those
/// into which others were merged, which have versions that they refuse.
#[test]
fn only_manifests_with_newer_parts_have_newer_versions() {
    let mut manifest = Manifest::new(Vec::new(), 1);
    let older = encode_manifest(&manifest).expect("within bounds");
    manifest.has_own_identities = true;
    let newer = encode_manifest(&manifest).expect("within bounds");
    let version = |bytes: &[u8]| u16::from_le_bytes([bytes[8], bytes[9]]);
    assert_eq!((version(&older), version(&newer)), (5, 6));
    assert_eq!(decode_manifest(&newer).as_ref(), Ok(&manifest));
    manifest.merged_sets = vec![SetId(3), SetId(2)];
    let newest = encode_manifest(&manifest).expect("within bounds");
    assert_eq!(version(&newest), 7);
    assert_eq!(decode_manifest(&newest).as_ref(), Ok(&manifest));
    manifest.has_own_identities = false;
    assert_eq!(decode_manifest(&encode_manifest(&manifest).expect("encodes")), Ok(manifest));
    // The parts and the version say the same.
    for (bytes, wrong) in [(older, 6u16), (newer, 5), (newest, 6)] {
        let mut body = bytes[..bytes.len() - 4].to_vec();
        body[8..10].copy_from_slice(&wrong.to_le_bytes());
        let checksum = crc32c::crc32c(&body);
        body.extend_from_slice(&checksum.to_le_bytes());
        assert!(decode_manifest(&body).is_err());
    }
}
