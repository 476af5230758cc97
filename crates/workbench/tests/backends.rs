// SPDX-License-Identifier: Apache-2.0
//! The conformance suite on every backend.

use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{MemoryStore, PosixStore, url};
use esker_base::{Clock, Kind};
use esker_fs::session::SessionOptions;
use esker_workbench::backend::{
    Backend, LibraryBackend, ObjectStoreBackend, PosixBackend, conformance,
};

#[test]
fn posix_conforms() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    conformance::all(&PosixBackend::new(&path).expect("a new directory"));
    assert!(!path.exists(), "cleanup removes the directory");
}

#[test]
fn object_stores_conform() {
    conformance::all(&ObjectStoreBackend::new(Arc::new(MemoryStore::default())));
    let directory = tempfile::tempdir().expect("a directory");
    let store = PosixStore::new(directory.path()).expect("a store");
    conformance::all(&ObjectStoreBackend::new(Arc::new(store)));
}

#[test]
fn the_library_conforms() {
    let store = url::init("memory:workbench-conformance").expect("a store");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let open = || {
        LibraryBackend::open(store.clone(), "set", SessionOptions::default(), clock.clone())
            .expect("a session")
    };
    conformance::all(&open());
    // A kept working set is found by the next run, and a cleared one is not.
    let first = open();
    first.write_marker(b"{}").expect("a marker");
    first.finish(true).expect("published");
    let second = open();
    assert_eq!(second.read_marker().expect("a marker").as_deref(), Some(&b"{}"[..]));
    assert_eq!(second.clear().expect("cleared"), 0);
    second.finish(false).expect("dropped");
    assert_eq!(open().read_marker().expect("no marker"), None);
}

/// A directory with other files is not taken, and what is added to a working set survives cleanup.
#[test]
fn other_files_are_never_touched() {
    let directory = tempfile::tempdir().expect("a directory");
    let other = directory.path().join("thesis.tex");
    std::fs::write(&other, "text").expect("a file");
    let backend = PosixBackend::new(directory.path()).expect("a directory");
    assert_eq!(backend.write_marker(b"{}").expect_err("not empty").kind(), Kind::NotEmpty);
    assert_eq!(backend.clear().expect_err("no working set").kind(), Kind::NotFound);
    std::fs::remove_file(&other).expect("removed");
    backend.write_marker(b"{}").expect("a marker");
    std::fs::create_dir_all(directory.path().join("rank-0/set-0")).expect("directories");
    let added = directory.path().join("rank-0/set-0/results.csv");
    std::fs::write(&added, "text").expect("a file");
    let outside = tempfile::tempdir().expect("a directory");
    std::fs::write(outside.path().join("object-1"), "text").expect("a file");
    std::os::unix::fs::symlink(outside.path(), directory.path().join("rank-7")).expect("a link");
    for _ in 0..2 {
        backend.clear().expect_err("other files");
        assert!(added.exists() && outside.path().join("object-1").exists());
        assert!(directory.path().join("working-set.json").exists(), "cleanup can be repeated");
    }
    std::fs::remove_file(&added).expect("removed");
    std::fs::remove_file(directory.path().join("rank-7")).expect("removed");
    backend.clear().expect("cleared");
    assert!(!directory.path().join("rank-0").exists());
}
