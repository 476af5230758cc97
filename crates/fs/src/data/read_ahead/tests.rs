// SPDX-License-Identifier: Apache-2.0
//! Windows of packed logs: requests and bytes that reads of small files cost, in any order.

use std::sync::Arc;

use esker_base::Random;
use esker_base::store::{CountedStore, MemoryStore};
use esker_table::object_name::ObjectName;

use super::*;

const LOG: DataLog = (SetId(1), 1 << 32);

/// Returns a far store with a packed log of `bytes`.
fn far(bytes: u64) -> CountedStore {
    let store = CountedStore::new(Arc::new(MemoryStore::new())).far(8);
    let log = store.append_log(&ObjectName::Data(LOG.0, LOG.1).to_string()).expect("log");
    log.append(&content(0..bytes)).expect("append");
    store
}

fn content(range: Range<u64>) -> Vec<u8> {
    range.map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Reads files of `file_bytes` in the order of `files`; returns requests and bytes fetched.
fn read(store: &CountedStore, ahead: &ReadAhead, file_bytes: u64, files: &[u64]) -> (u64, u64) {
    let before = store.counts();
    for file in files {
        let range = file * file_bytes..(file + 1) * file_bytes;
        let bytes = ahead.read(store, LOG, range.clone()).expect("read");
        assert!(bytes == content(range.clone()), "{range:?}");
        assert!(ahead.kept.lock().bytes <= KEPT_BYTES_MAX);
    }
    let counts = store.counts() - before;
    (counts.reads, counts.read_bytes)
}

fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut files: Vec<u64> = (0..count).collect();
    let mut random = Random::from_seed(seed);
    for index in (1..files.len()).rev() {
        files.swap(index, random.below(index as u64 + 1) as usize);
    }
    files
}

/// Symptom: each small file of a directory cost a round trip to a far store.
/// Cause: reads fetched only the file's own bytes.
/// Fix: a read fetches a window of the packed log.
#[test]
fn neighbours_come_with_the_first_whatever_the_order() {
    for file_bytes in [300, 8_000, 65_536] {
        let in_order: Vec<u64> = (0..100).collect();
        for files in [in_order, shuffled(100, 1), shuffled(100, 2), shuffled(100, 3)] {
            let store = far(100 * file_bytes);
            let (requests, _) = read(&store, &ReadAhead::default(), file_bytes, &files);
            assert!(requests <= 8, "{file_bytes} bytes: {requests} requests");
        }
    }
}

/// Files picked at random from a large log cost little more than themselves, and bounded memory.
#[test]
fn what_is_fetched_in_vain_is_bounded() {
    let (file_bytes, count) = (4_000, 20_000);
    let (store, ahead) = (far(file_bytes * count), ReadAhead::default());
    let files = &shuffled(count, 4)[..3_000];
    let (_, fetched) = read(&store, &ahead, file_bytes, files);
    let taken = files.len() as u64 * file_bytes;
    assert!(fetched <= taken * FETCHED_PER_TAKEN + SPARE_BYTES, "{fetched} of {taken}");
    assert!(ahead.kept.lock().logs.len() == 1);
}

#[test]
fn large_reads_pass_by() {
    let (store, ahead) = (far(8 << 20), ReadAhead::default());
    let (requests, bytes) = read(&store, &ahead, 1 << 20, &[0, 1, 2]);
    assert!(requests <= 3 && bytes <= 8 << 20, "{requests} requests, {bytes} bytes");
}

#[test]
fn what_is_behind_the_end_is_an_error_and_what_is_missing_too() {
    let (store, ahead) = (far(1_000), ReadAhead::default());
    let behind = ahead.read(&store, LOG, 900..1_001).expect_err("behind the end");
    assert_eq!(behind.kind(), Kind::Corrupt);
    assert_eq!(ahead.read(&store, LOG, 900..1_000).expect("read"), content(900..1_000));
    let missing = ahead.read(&store, (SetId(2), 7), 0..10).expect_err("no log");
    assert_eq!(missing.kind(), Kind::NotFound);
    assert_eq!(ahead.kept.lock().windows.len(), 1, "nothing stays of what failed");
}

/// Many concurrent readers make only one request for bytes in one window.
#[test]
fn readers_share_a_request() {
    let (store, ahead) = (far(60_000), ReadAhead::default());
    std::thread::scope(|scope| {
        for reader in 0..8_u64 {
            let (store, ahead) = (&store, &ahead);
            scope.spawn(move || read(store, ahead, 1_000, &shuffled(60, reader)));
        }
    });
    assert_eq!(store.counts().reads, 1);
}
