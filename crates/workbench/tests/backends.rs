// SPDX-License-Identifier: Apache-2.0
//! The conformance suite on every backend.

use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{MemoryStore, PosixStore, SharedStore, Store, url};
use esker_base::{Clock, Kind};
use esker_fs::repository::Repository;
use esker_fs::session::SessionOptions;
use esker_workbench::backend::{
    Backend, LibraryBackend, ObjectStoreBackend, PosixBackend, conformance,
};
use esker_workbench::run::cleanup;
use esker_workbench::working_set::WorkingSetMarker;

use crate::simulated_service::options;

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

/// A directory with other files is refused, and files that are added to a working set survive
/// cleanup.
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

/// Symptom: cleanup deleted everything below `rank-…`, and the whole snapshot, even if others had
/// put files there. Cause: it recognized the objects of a working set by a prefix. Fix: it deletes
/// only names that match to the last part, and the snapshot only if nothing else is in it.
#[test]
fn other_objects_and_files_of_a_snapshot_survive_cleanup() {
    let store = Arc::new(MemoryStore::default());
    let backend = ObjectStoreBackend::new(store.clone());
    backend.write_marker(b"{}").expect("a marker");
    let others = ["workbench/rank-notes/x", "workbench/rank-0/set-0/plot", "workbench/rank-0/x"];
    let own = "workbench/rank-0/set-0/object-7";
    for name in others.iter().chain([&own]) {
        store.put_if_absent(name, b"text").expect("put");
    }
    assert_eq!(backend.clear().expect("cleared"), 1);
    assert!(others.iter().all(|name| store.get(name, 10).is_ok()) && store.get(own, 10).is_err());

    let store = url::init("memory:workbench-others").expect("a store");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let repository = Repository::new(store.clone());
    let identity = || SessionOptions::default();
    let session = repository.begin(&[], identity()).expect("a session");
    for name in [&b"working-set.json"[..], b"rank-notes"] {
        session.create(session.root(), name, 0o644).expect("a file");
    }
    session.publish("set").expect("published");
    let library = LibraryBackend::open(store, "set", identity(), clock).expect("a session");
    assert_eq!(library.clear().expect_err("other files").kind(), Kind::NotEmpty);
    library.finish(false).expect("dropped");
    assert!(repository.resolve("set").is_ok());
}

/// Symptom: a run overwrote a file of its user elsewhere, or waited for ever. Cause: it followed a
/// link at the name of the new marker, and opened a pipe at that of the marker. Fix: it makes a new
/// file for the marker, and reads regular files only.
#[test]
fn planted_links_and_pipes_are_not_followed() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, victim) = (directory.path().join("set"), directory.path().join("victim"));
    std::fs::create_dir(&path).expect("a directory");
    std::fs::write(&victim, "text").expect("a file");
    std::os::unix::fs::symlink(&victim, path.join("working-set.json.new")).expect("a link");
    let backend = PosixBackend::new(&path).expect("a directory");
    assert_eq!(backend.create_marker(b"{}").expect_err("a link").kind(), Kind::NotEmpty);
    std::fs::remove_file(path.join("working-set.json.new")).expect("removed");
    backend.create_marker(b"{}").expect("a marker");
    assert_eq!(backend.create_marker(b"{}").expect_err("taken").kind(), Kind::Conflict);
    std::os::unix::fs::symlink(&victim, path.join("working-set.json.new")).expect("a link");
    backend.write_marker(b"{}").expect("another marker");
    assert_eq!(std::fs::read(&victim).expect("a file"), b"text");
    std::os::unix::fs::symlink(directory.path(), path.join("rank-0")).expect("a link");
    backend.connect(0, &conformance::SIZE).expect("a connection").add_rank(0).expect_err("a link");
    std::fs::remove_file(path.join("working-set.json")).expect("removed");
    let pipe = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path.join("working-set.json"), pipe, mode, 0)
        .expect("a pipe");
    backend.read_marker().expect_err("a pipe");
}

/// Symptom: a run panicked, in builds with overflow checks, on a marker with an impossible shift or
/// number, and a marker whose name was not one of a number's usual form could not be read. Cause:
/// additions to both were unchecked, and any text that parses as a number counted as a marker. Fix:
/// a marker with such a shift is refused, and objects with other names are not markers.
#[test]
fn impossible_markers_are_refused_or_ignored() {
    let store: SharedStore = Arc::new(MemoryStore::default());
    let backend = ObjectStoreBackend::new(store.clone());
    let size = options(3).size;
    let marker = |shift| {
        let mut marker = WorkingSetMarker::new("store", size);
        marker.shift = shift;
        marker
    };
    marker(u64::MAX).write(&backend, true).expect("write");
    let refused = WorkingSetMarker::read(&backend).expect_err("impossible");
    assert_eq!(refused.kind(), Kind::Corrupt);
    marker(9).write(&backend, false).expect("write");
    for name in ["18446744073709551615", "0007", "+8"] {
        store.put_if_absent(&format!("workbench/marker/{name}"), b"other").expect("put");
    }
    for shift in [9, 10] {
        marker(shift).write(&backend, false).expect("write");
        let read = WorkingSetMarker::read(&backend).expect("a marker").expect("it is there");
        assert_eq!(read, marker(shift));
    }
}

/// A file that only has the marker's name stays, as do a working set of another kind of target and
/// a user's own names below one.
#[test]
fn foreign_markers_and_names_are_never_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    std::fs::create_dir(&path).expect("a directory");
    std::fs::write(path.join("working-set.json"), "my own notes").expect("a file");
    let backend = PosixBackend::new(&path).expect("a directory");
    assert_eq!(cleanup(&backend).expect_err("no marker").kind(), Kind::Corrupt);
    assert!(path.join("working-set.json").exists());
    std::fs::remove_file(path.join("working-set.json")).expect("removed");
    // A crash may leave the beginning of a marker; other files of that name are the user's.
    std::fs::write(path.join("working-set.json.new"), "precious").expect("a file");
    assert_eq!(backend.create_marker(b"{}").expect_err("a file").kind(), Kind::NotEmpty);
    assert_eq!(cleanup(&backend).expect_err("no working set").kind(), Kind::NotFound);
    std::fs::write(path.join("working-set.json.new"), "{\"format\":\"esk").expect("a file");
    assert_eq!(cleanup(&backend).expect("cleared"), 0);
    assert!(!path.exists());

    std::fs::create_dir(&path).expect("a directory");
    let backend = PosixBackend::new(&path).expect("a directory");
    let size = options(3).size;
    WorkingSetMarker::new("indexed-directory", size).write(&backend, true).expect("a marker");
    assert_eq!(cleanup(&backend).expect_err("another kind").kind(), Kind::Invalid);
    WorkingSetMarker::new("posix", size).write(&backend, false).expect("a marker");
    let sets = path.join("rank-0/set-0");
    std::fs::create_dir_all(&sets).expect("directories");
    for name in ["object-007", "object-99999999999999999999999999", "object-7"] {
        std::fs::write(sets.join(name), "text").expect("a file");
    }
    assert_eq!(cleanup(&backend).expect_err("other names").kind(), Kind::NotEmpty);
    assert!(sets.join("object-007").exists() && !sets.join("object-7").exists());
}

/// A snapshot that another publishes under the name while a run lasts keeps it.
#[test]
fn kept_working_sets_replace_no_snapshots_of_others() {
    let store = url::init("memory:workbench-replaced").expect("a store");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let open = || {
        LibraryBackend::open(store.clone(), "set", SessionOptions::default(), clock.clone())
            .expect("a session")
    };
    let run = open();
    run.create_marker(b"{}").expect("a marker");
    let repository = Repository::new(store.clone());
    let session = repository.begin(&[], SessionOptions::default()).expect("a session");
    session.publish("set").expect("published");
    let published = repository.resolve("set").expect("a name").set;
    run.finish(true).expect_err("a name of another");
    assert_eq!(repository.resolve("set").expect("a name").set, published);
    // Nor does a run take a snapshot that has no files.
    let other = open();
    assert_eq!(other.create_marker(b"{}").expect_err("a snapshot").kind(), Kind::NotEmpty);
}
