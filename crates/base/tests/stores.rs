// SPDX-License-Identifier: Apache-2.0
//! Stores in memory and in directories, bare and wrapped, run the conformance suite.

use std::sync::Arc;
use std::time::Duration;

use esker_base::store::{
    CountedStore, FaultStore, MemoryStore, PosixStore, SharedStore, conformance, url,
};

#[test]
fn memory() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    conformance::all(&store);
}

#[test]
fn posix() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let store: SharedStore = Arc::new(PosixStore::new(directory.path()).expect("open"));
    conformance::all(&store);
    // Twice: the second run finds the leftovers of the first.
    conformance::all(&store);
    let left = std::fs::read_dir(directory.path().join("tmp")).expect("tmp").count();
    assert_eq!(left, 0, "unfinished objects are cleaned up");
}

#[test]
fn posix_by_url() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let store = url::init(directory.path().to_str().expect("UTF-8")).expect("init");
    conformance::all(&store);
}

#[test]
fn fault() {
    let store = FaultStore::new(Arc::new(MemoryStore::new()), 1);
    store.delay(Duration::from_micros(20));
    let store: SharedStore = Arc::new(store);
    conformance::all(&store);
}

#[test]
fn counted() {
    let store: SharedStore = Arc::new(CountedStore::new(Arc::new(MemoryStore::new())));
    conformance::all(&store);
}
