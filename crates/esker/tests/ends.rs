// SPDX-License-Identifier: Apache-2.0
//! Ends of sessions: the changes that stay, and the handles that keep a session open.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use esker::backend::{FaultStore, MemoryStore};
use esker::{Durability, Kind, Repository, Store};

use crate::repository;

/// Number of sessions that are neither published nor given up.
fn open_sessions(repository: &Repository) -> usize {
    repository.open_sessions().expect("list them").len()
}

#[test]
fn a_private_session_that_is_dropped_is_given_up() {
    let repository = repository();
    let session = repository.session().begin().expect("begin");
    session.write("/a", "1").expect("write");
    let id = session.id();
    assert_eq!(open_sessions(&repository), 1);
    drop(session);
    assert_eq!(open_sessions(&repository), 0);
    let refused = repository.session().resume(id).expect_err("it was given up");
    assert_eq!(refused.kind(), Kind::NotFound);
}

#[test]
fn a_private_session_is_given_up_by_a_panic() {
    let repository = repository();
    let session = repository.session().begin().expect("begin");
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        session.write("/a", "1").expect("write");
        panic!("a bug of the program");
    }));
    assert!(unwound.is_err());
    assert_eq!(open_sessions(&repository), 0);
}

#[test]
fn any_handle_keeps_a_session_open() {
    let repository = repository();
    let session = repository.session().begin().expect("begin");
    let (dir, clone) = (session.create_dir("/d").expect("mkdir"), session.clone());
    let file = dir.create("f").expect("create");
    drop(session);
    clone.write("/a", "1").expect("it is open");
    drop(clone);
    dir.write("b", "2").expect("it is open");
    drop(dir);
    file.write_at(b"3", 0).expect("it is open");
    assert_eq!(open_sessions(&repository), 1);
    file.close().expect("close");
    assert_eq!(open_sessions(&repository), 0);
}

#[test]
fn a_resumable_session_that_is_dropped_keeps_what_its_durability_promises() {
    let repository = repository();
    for durability in [Durability::None, Durability::Async, Durability::Always] {
        let session = repository.session().resumable(durability).begin().expect("begin");
        session.write("/synced", "1").expect("write");
        session.sync().expect("sync");
        session.write("/later", "2").expect("write");
        let id = session.id();
        drop(session);
        let session = repository.session().resume(id).expect("resume");
        assert_eq!(session.read("/synced").expect("it was synced"), b"1");
        let has_later = session.exists("/later").expect("look up");
        assert!(has_later || durability != Durability::Always, "{durability:?}");
        // Resumed sessions stay resumable.
        drop(session);
        repository.session().resume(id).expect("resume again").abandon().expect("abandon");
        let gone = repository.session().resume(id).expect_err("it was given up");
        assert_eq!(gone.kind(), Kind::NotFound);
    }
}

#[test]
fn a_session_is_suspended_whole_if_it_can_be_resumed() {
    let repository = repository();
    let private = repository.session().begin().expect("begin");
    let refused = private.suspend().expect_err("nobody could resume it");
    assert_eq!(refused.kind(), Kind::Invalid);
    private.write("/a", "it goes on").expect("write");

    let session = repository.session().resumable(Durability::None).begin().expect("begin");
    session.write("/a", "kept").expect("write");
    let id = session.suspend().expect("suspend");
    assert_eq!(session.write("/b", "").expect_err("it has ended").kind(), Kind::Closed);
    let resumed = repository.session().resume(id).expect("resume");
    assert_eq!(resumed.read("/a").expect("read"), b"kept");
    resumed.publish("resumed").expect("publish");
    assert_eq!(repository.resolve("resumed").expect("resolve"), id);
}

#[test]
fn a_complete_session_waits_for_its_name() {
    let repository = repository();
    let session = repository.session().begin().expect("begin");
    session.write("/a", "1").expect("write");
    let set = session.complete().expect("complete");
    drop(session);
    let read = repository.snapshot(set).expect("open by id").read("/a").expect("read");
    assert_eq!(read, b"1");
    repository.publish(set, "named").expect("publish");
    assert_eq!(repository.resolve(format!("@{set}")).expect("resolve"), set);
    assert_eq!(repository.resolve("named").expect("resolve"), set);
}

#[test]
fn a_taken_name_leaves_the_session_open() {
    let repository = repository();
    repository.session().begin().expect("begin").publish("taken").expect("publish");
    let session = repository.session().begin().expect("begin");
    assert_eq!(session.publish("taken").expect_err("it is taken").kind(), Kind::Exists);
    session.write("/a", "it goes on").expect("write");
    session.publish("free").expect("publish");
    assert_eq!(open_sessions(&repository), 0);
}

#[test]
fn a_snapshot_is_replaced_only_by_what_builds_on_it() {
    let repository = repository();
    let update = |text: &str| {
        let session = repository.session().on("tree").begin().expect("begin");
        session.write("/a", text).expect("write");
        session
    };
    let first = repository.session().begin().expect("begin").publish("tree").expect("publish");
    let (one, other) = (update("one"), update("other"));
    assert_eq!(one.publish_replacing("tree").expect("replace"), Some(first));
    let conflict = other.publish_replacing("tree").expect_err("it has moved");
    assert_eq!(conflict.kind(), Kind::Conflict);
    assert_eq!(repository.snapshot("tree").expect("open").read("/a").expect("read"), b"one");
    // Its work is not lost.
    other.publish("other").expect("publish");
    assert_eq!(repository.snapshot("other").expect("open").read("/a").expect("read"), b"other");
}

#[test]
fn a_failed_publish_loses_nothing() {
    let faulty = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let repository = Repository::open_in(Store::of_shared(faulty.clone()));
    let session = repository.session().begin().expect("begin");
    session.write("/a", vec![1; 5000]).expect("write");
    faulty.fail_one_in(1, Kind::NoSpace);
    assert_eq!(session.publish("a").expect_err("it is full").kind(), Kind::NoSpace);
    faulty.fail_one_in(0, Kind::NoSpace);
    session.publish("a").expect("there is room again");
    let read = repository.snapshot("a").expect("open").read("/a").expect("read");
    assert_eq!(read, vec![1; 5000]);
}
