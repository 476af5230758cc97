// SPDX-License-Identifier: Apache-2.0
//! Tables that outgrow the cache: point reads by outlines of blocks and parts of a mapped file.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_base::mapped_file;
use esker_base::store::{PosixStore, SharedStore};
use esker_base::{Kind, Result};
use esker_table::manifest::TableRef;
use esker_table::run_writer::RunWriter;
use esker_table::schema::{IntColumn, Key, Row, RowBuffer, Schema};
use esker_table::table::LookupKey;
use esker_table::tables::{TableRuns, TableSource};

use crate::records::SET;

const FILES: u64 = 30_000;
const CACHE_BYTES: u64 = 128 << 10;
/// Maximum rounds, each of which reads every block, until all blocks have outlines: a machine may
/// be so slow at times that reads from its memory seem to come from a disk.
const ROUNDS_MAX: usize = 10_000;
const GROUP: u64 = 5;

fn hash(name: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name)
}

static NAMED: Schema = Schema {
    id: 9,
    name: "named",
    ints: &[
        IntColumn::plain("group"),
        IntColumn::plain("hash"),
        IntColumn::plain("seq"),
        IntColumn::plain("time"),
    ],
    strings: &["name"],
    key_ints: 2,
    group_ints: 1,
    hash_of: Some(hash),
    has_filters: true,
};

/// Writes the `named` files into tables of run number `run`; returns the references to the tables.
fn write_run<'a>(
    store: &SharedStore,
    run: u64,
    named: impl Iterator<Item = &'a (u64, String)>,
) -> Vec<TableRef> {
    let mut next_table = run << 10;
    let mut writer = RunWriter::new(&NAMED, store, SET, run, &mut next_table);
    for (at, (hash, name)) in named.enumerate() {
        let mut row = Row::default();
        row.ints[..4].copy_from_slice(&[GROUP, *hash, at as u64, time_of(*hash)]);
        row.strings[0] = name.as_bytes();
        NAMED.store(&mut row.ints);
        writer.push(&row).expect("push");
    }
    writer.finish().expect("finish")
}

/// One table of `FILES` files in a store that is a directory.
struct Outgrown {
    _directory: tempfile::TempDir,
    object: File,
    tables: TableRuns,
    source: TableSource,
    /// Names and their hashes, in order.
    names: Vec<(u64, String)>,
}

impl Outgrown {
    fn new() -> Self {
        mapped_file::guard_process();
        let directory = tempfile::tempdir().expect("temporary directory");
        let store: SharedStore = Arc::new(PosixStore::new(directory.path()).expect("a store"));
        let named = |number| format!("file.{number}");
        let mut names: Vec<(u64, String)> =
            (0..FILES).map(named).map(|name| (hash(name.as_bytes()), name)).collect();
        names.sort();
        let reference = write_run(&store, 1, names.iter()).remove(0);
        let path = directory.path().join(reference.name());
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("chmod");
        let object = OpenOptions::new().read(true).write(true).open(&path).expect("the object");
        let source = TableSource::new(store, CACHE_BYTES);
        let tables = TableRuns::new(&[reference], &NAMED, &source);
        Self { _directory: directory, object, tables, source, names }
    }

    /// The time of a file; `None` if there is none.
    fn get(&self, name: &str) -> Result<Option<u64>> {
        let key = Key { ints: [GROUP, hash(name.as_bytes()), 0], string: name.as_bytes() };
        let wanted = LookupKey { key, digest: NAMED.digest(&key) };
        let mut row = RowBuffer::default();
        let found = self.tables.get(&wanted, true, &mut row)?;
        assert!(!found || row.strings[0] == name.as_bytes());
        Ok(found.then_some(row.ints[3]))
    }

    /// Reads one name of each block, another one than in the round before; returns the number of
    /// blocks fetched.
    fn round(&self, round: usize) -> u64 {
        let fetched = || self.source.counters.block_reads.load(Ordering::Relaxed);
        let before = fetched();
        for (hash, name) in self.names.iter().skip(round * 7 % 256).step_by(256) {
            assert_eq!(self.get(name).expect("whole"), Some(time_of(*hash)));
        }
        fetched() - before
    }

    fn outlined() -> Self {
        let this = Self::new();
        (0..ROUNDS_MAX).find(|round| this.round(*round) == 0).expect("outlines of all blocks");
        this
    }
}

fn time_of(hash: u64) -> u64 {
    hash.rotate_left(20) >> 24
}

/// Symptom: a warm stat of a namespace that the cache did not hold read, checked and parsed a whole
/// block; one in ten was as fast as in the cache.
/// Fix: blocks leave outlines, which later reads use.
#[test]
fn blocks_that_the_cache_does_not_hold_are_fetched_once() {
    let outgrown = Outgrown::outlined();
    let fetched: u64 = (0..32).map(|round| outgrown.round(round)).sum();
    let blocks = FILES.div_ceil(256);
    assert!(fetched < 4 * blocks, "{fetched} of {blocks} blocks in 32 rounds");
    assert!(outgrown.source.cache.memory_bytes() <= CACHE_BYTES);
    for number in 0..1_000 {
        assert_eq!(outgrown.get(&format!("absent.{number}")).expect("whole"), None);
    }
}

#[test]
fn damage_that_comes_later_is_corrupt_or_not_used() {
    let outgrown = Outgrown::outlined();
    let reference = &outgrown.tables.runs[0].tables[0].reference;
    let bytes = reference.bytes - reference.tail_bytes;
    let mut refused = 0;
    for at in (0..bytes).step_by(41) {
        let mut byte = [0];
        outgrown.object.read_exact_at(&mut byte, at).expect("read");
        outgrown.object.write_all_at(&[byte[0] ^ 1 << (at % 8)], at).expect("write");
        // Rows near the byte, and others of its block.
        let near = (at * FILES / bytes) as usize;
        for step in [0, 9, 60, 120] {
            let (hash, name) = &outgrown.names[(near + step) % FILES as usize];
            match outgrown.get(name) {
                Ok(found) => assert_eq!(found, Some(time_of(*hash)), "byte {at}"),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Corrupt, "byte {at}: {error}");
                    refused += 1;
                }
            }
        }
        outgrown.object.write_all_at(&byte, at).expect("write");
    }
    assert!(refused > 100, "{refused}");
    outgrown.round(0);
}

#[test]
fn a_table_that_is_cut_while_it_is_mapped_is_corrupt() {
    let outgrown = Outgrown::outlined();
    let (mut found, mut refused) = (0, 0);
    outgrown.object.set_len(0).expect("cut");
    for (hash, name) in outgrown.names.iter().step_by(16) {
        match outgrown.get(name) {
            Ok(time) => {
                assert_eq!(time, Some(time_of(*hash)));
                found += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > found, "{refused} refused, {found} found in the cache");
}

/// Several runs of tables with several filter partitions each: the filters tell which run has a
/// file before the search for its block.
#[test]
fn files_of_several_runs_are_found_by_filters() {
    const RUNS: u64 = 6;
    mapped_file::guard_process();
    let directory = tempfile::tempdir().expect("temporary directory");
    let store: SharedStore = Arc::new(PosixStore::new(directory.path()).expect("a store"));
    let named = |number| format!("file.{number}");
    let mut names: Vec<(u64, String)> =
        (0..20 * FILES).map(named).map(|name| (hash(name.as_bytes()), name)).collect();
    names.sort();
    let of_run = |run| names.iter().filter(move |(hash, _)| hash % RUNS == run);
    let references: Vec<TableRef> =
        (0..RUNS).flat_map(|run| write_run(&store, run, of_run(run))).collect();
    let source = TableSource::new(store, 16 * CACHE_BYTES);
    let runs = TableRuns::new(&references, &NAMED, &source);
    let mut row = RowBuffer::default();
    let mut get = |name: &str| {
        let key = Key { ints: [GROUP, hash(name.as_bytes()), 0], string: name.as_bytes() };
        let wanted = LookupKey { key, digest: NAMED.digest(&key) };
        let found = runs.get(&wanted, false, &mut row).expect("whole");
        found.then_some(row.ints[3])
    };
    for round in 0..8 {
        for (hash, name) in names.iter().skip(round).step_by(7) {
            assert_eq!(get(name), Some(time_of(*hash)), "{name}");
        }
        for number in 0..10_000 {
            assert_eq!(get(&format!("absent.{number}")), None);
        }
    }
}
