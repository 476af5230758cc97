// SPDX-License-Identifier: Apache-2.0
//! Damage: whole tables, logs and manifests, cut at every length and flipped at every byte, read
//! through the ordinary readers.
//!
//! Every damage is an error, with one exception: bytes of a log that nothing records as synced may
//! be missing, and then the result is an earlier state.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_table::internals::encode_manifest;
use esker_table::manifest::{Manifest, TableRef};
use esker_table::object_name::ObjectName;
use esker_table::run_writer::RunWriter;
use esker_table::schema::record::{self, RECORD};
use esker_table::schema::{Key, RowBuffer};
use esker_table::table::LookupKey;
use esker_table::tables::{TableRuns, TableSource};
use esker_table::tree::{Durability, TreeOptions};

use crate::records::{SET, create, key_of, options, put, resume, scan};

type Records = Vec<(Vec<u8>, Vec<u8>)>;
type State = BTreeMap<Vec<u8>, Vec<u8>>;

fn store() -> SharedStore {
    Arc::new(MemoryStore::new())
}

fn store_of(name: &str, bytes: &[u8]) -> SharedStore {
    let store = store();
    store.put_if_absent(name, bytes).expect("put");
    store
}

fn sample() -> Records {
    let record = |number: u64| {
        let key = format!("key.{:05}", number * 7);
        (key.into_bytes(), number.to_be_bytes()[..number as usize % 9].to_vec())
    };
    (0..300).map(record).collect()
}

fn written(records: &Records) -> (Vec<u8>, TableRef) {
    let store = store();
    let mut next_table = 0;
    let mut writer = RunWriter::new(&RECORD, &store, SET, 1, &mut next_table);
    for (key, value) in records {
        let mut row = record::row(key, value);
        RECORD.store(&mut row.ints);
        writer.push(&row).expect("push");
    }
    let reference = writer.finish().expect("finish").remove(0);
    (store.get(&reference.name(), u64::MAX).expect("get").to_vec(), reference)
}

/// Reads all records by a scan, and each by its key.
fn read(bytes: &[u8], reference: &TableRef) -> Result<(Records, Records)> {
    let source = TableSource::new(store_of(&reference.name(), bytes), 1 << 20);
    let tables = TableRuns::new(std::slice::from_ref(reference), &RECORD, &source);
    let mut merge = tables.runs[0].merge(&RECORD, &Key::FIRST, &Key::LAST)?;
    let mut scanned = Vec::new();
    while merge.advance()? {
        let row = merge.row();
        scanned.push((key_of(&row), row.strings[record::VALUE].to_vec()));
    }
    let mut got = Vec::new();
    for (key, _) in &sample() {
        let key = record::key(key);
        let mut row = RowBuffer::default();
        let wanted = LookupKey { key, digest: RECORD.digest(&key) };
        if tables.get(&wanted, true, &mut row)? {
            got.push((key_of(&row.row()), row.strings[record::VALUE].clone()));
        }
    }
    Ok((scanned, got))
}

#[test]
fn a_table_with_any_flipped_bit_is_corrupt() {
    let records = sample();
    let (bytes, reference) = written(&records);
    assert_eq!(read(&bytes, &reference).expect("whole"), (records.clone(), records));
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        let error = read(&flipped, &reference).expect_err("damage");
        assert_eq!(error.kind(), Kind::Corrupt, "byte {at}: {error}");
        assert!(error.to_string().contains(&reference.name()), "byte {at}: {error}");
    }
}

#[test]
fn a_table_cut_at_any_length_is_corrupt() {
    let (bytes, reference) = written(&sample());
    for cut in 0..bytes.len() {
        let error = read(&bytes[..cut], &reference).expect_err("damage");
        assert_eq!(error.kind(), Kind::Corrupt, "cut at {cut}: {error}");
        // A manifest that agrees with the cut makes no difference.
        let short = TableRef { bytes: cut as u64, ..reference.clone() };
        let error = read(&bytes[..cut], &short).expect_err("damage");
        assert_eq!(error.kind(), Kind::Corrupt, "cut at {cut}: {error}");
    }
}

fn manifest() -> (String, Vec<u8>) {
    let mut manifest = Manifest::new(vec![SET], 5);
    manifest.number = 9;
    manifest.tables = vec![written(&sample()).1];
    manifest.properties.insert("job".into(), "7".into());
    (ObjectName::Manifest(SET, 9).to_string(), encode_manifest(&manifest).expect("within bounds"))
}

#[test]
fn a_manifest_with_any_flipped_bit_or_cut_is_corrupt() {
    let (name, bytes) = manifest();
    Manifest::load(&*store_of(&name, &bytes), SET).expect("whole");
    let damaged = |bytes: &[u8], what: &str, at: usize| {
        let error = Manifest::load(&*store_of(&name, bytes), SET).expect_err("damage");
        assert_eq!(error.kind(), Kind::Corrupt, "{what} {at}: {error}");
        assert!(error.to_string().contains(&name), "{what} {at}: {error}");
    };
    for at in 0..bytes.len() {
        damaged(&bytes[..at], "cut at", at);
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            damaged(&flipped, "byte", at);
        }
    }
}

/// A set without tables: its manifest, its log, and after each sync the length of the log and the
/// records.
struct Logged {
    manifest: (String, Vec<u8>),
    log: (String, Vec<u8>),
    synced: Vec<(usize, State)>,
}

impl Logged {
    fn new() -> Self {
        let store = store();
        // Enough memory to keep everything in one log.
        let settings = TreeOptions { memory_bytes: 1 << 26, ..options(Durability::Async, false) };
        let tree = create(&store, settings).expect("create");
        let log = store.list("").expect("list").remove(1).name;
        let manifest = store.list("").expect("list").remove(0).name;
        assert!(log.contains("/wal/") && manifest.contains("/manifest/"));
        let mut records = BTreeMap::new();
        let mut synced = vec![(0, records.clone())];
        for turn in 0..6u8 {
            for number in 0..5u8 {
                let key = vec![number * 40 + turn % 2 + 1, turn];
                let value = vec![turn; usize::from(number)];
                put(&tree, &key, &value).expect("put");
                records.insert(key, value);
            }
            tree.sync().expect("sync");
            let bytes = store.size(&log).expect("size");
            synced.push((usize::try_from(bytes).expect("small"), records.clone()));
        }
        let bytes = |name: String| {
            let bytes = store.get(&name, u64::MAX).expect("get").to_vec();
            (name, bytes)
        };
        Self { manifest: bytes(manifest), log: bytes(log), synced }
    }

    /// The state that a takeover finds if `log` is what remains of the log.
    fn resumed(&self, log: &[u8]) -> Result<State> {
        let store = store_of(&self.manifest.0, &self.manifest.1);
        store.put_if_absent(&self.log.0, log).expect("put");
        let tree = resume(&store, options(Durability::None, false))?;
        Ok(scan(&tree, &[0], 10)?.into_iter().collect())
    }
}

#[test]
fn a_log_cut_at_any_length_gives_what_was_whole() {
    let logged = Logged::new();
    for cut in 0..=logged.log.1.len() {
        let whole = logged.synced.iter().rfind(|(bytes, _)| *bytes <= cut).expect("the first");
        let found = logged.resumed(&logged.log.1[..cut]).expect("a cut is no damage");
        assert_eq!(found, whole.1, "cut at {cut}");
    }
}

#[test]
fn a_log_with_any_flipped_bit_is_corrupt_or_lacks_its_unsynced_end() {
    let logged = Logged::new();
    let [.., (last_chunk, without_last), _] = &logged.synced[..] else {
        panic!("several syncs");
    };
    for at in 0..logged.log.1.len() {
        for bit in [0, 3, 7] {
            let mut flipped = logged.log.1.clone();
            flipped[at] ^= 1 << bit;
            match logged.resumed(&flipped) {
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Corrupt, "byte {at}: {error}");
                    assert!(error.to_string().contains(&logged.log.0), "byte {at}: {error}");
                }
                Ok(found) => {
                    assert!(at >= *last_chunk, "byte {at} had been synced");
                    assert_eq!(found, *without_last, "byte {at}");
                }
            }
        }
    }
}
