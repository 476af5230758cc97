// SPDX-License-Identifier: Apache-2.0
//! Fencing: once another writer has taken over a change set, the first writer's changes have no
//! effect.
//!
//! Each test has a first writer that continues as if nothing had happened.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::clock::ManualClock;
use esker_base::store::{MemoryStore, SharedStore};
use esker_table::manifest::Manifest;
use esker_table::object_name::ObjectFolder;
use esker_table::tree::{Durability, Tree, TreeSetup};

use crate::records::{SET, create, get, options, put, resume, setup};

const ASYNC: Durability = Durability::Async;

fn store() -> SharedStore {
    Arc::new(MemoryStore::new())
}

/// Makes a second writer take over, put `puts` records with a flush after each, and stay.
fn take_over(store: &SharedStore, puts: u64) -> Tree {
    let second = resume(store, options(ASYNC, false)).expect("resume");
    for number in 0..puts {
        put(&second, &number.to_be_bytes(), b"second").expect("put");
        second.flush().expect("flush");
    }
    second
}

#[test]
fn the_first_writer_is_fenced_at_sync() {
    for puts in 0..5 {
        let store = store();
        let first = create(&store, options(ASYNC, false)).expect("create");
        put(&first, b"before", b"first").expect("put");
        first.sync().expect("sync");
        let second = take_over(&store, puts);
        assert_eq!(get(&second, b"before").expect("get").as_deref(), Some(&b"first"[..]));
        put(&first, b"after", b"first").expect("put");
        assert_eq!(first.sync().expect_err("fenced").kind(), Kind::Fenced, "after {puts} puts");
        assert_eq!(get(&second, b"after").expect("get"), None);
    }
}

/// Symptom: a flush or commit of a fenced writer succeeded, and its changes were lost.
/// Cause: the new writer had already deleted the manifest number that the first one put next, so
/// the put found the name free.
/// Fix: a commit checks that its number is the highest, as readers do, before it counts.
#[test]
fn the_first_writer_is_fenced_at_flush_and_commit_however_far_the_second_went_on() {
    for puts in 0..5 {
        for durability in [Durability::None, ASYNC] {
            let store = store();
            let first = create(&store, options(durability, false)).expect("create");
            let second = take_over(&store, puts);
            put(&first, b"after", b"first").expect("put");
            let flushed = first.flush().expect_err("fenced");
            assert_eq!(flushed.kind(), Kind::Fenced, "flush after {puts} puts");
            let committed = first.commit(|_| {}).expect_err("fenced");
            assert_eq!(committed.kind(), Kind::Fenced, "commit after {puts} puts");
            assert_eq!(Manifest::load(&*store, SET).expect("load"), *second.manifest());
        }
    }
}

/// Symptom: a writer whose set had been deleted committed, and created a set of that commit alone.
/// Cause: a commit only checked that there was nothing newer.
/// Fix: the preceding snapshot must be present too.
#[test]
fn a_commit_to_a_deleted_set_is_refused_and_leaves_nothing() {
    let store = store();
    let tree = create(&store, options(ASYNC, false)).expect("create");
    put(&tree, b"key", b"value").expect("put");
    for object in store.list(&ObjectFolder::Manifests(SET).to_string()).expect("list") {
        store.delete(&object.name).expect("delete");
    }
    assert_eq!(tree.commit(|_| {}).expect_err("deleted").kind(), Kind::Fenced);
    assert!(store.list(&ObjectFolder::Manifests(SET).to_string()).expect("list").is_empty());
}

/// Symptom: beginning a change set that existed succeeded.
/// Cause and fix: as above; its first manifest had been deleted by later commits.
#[test]
fn a_set_that_exists_is_not_begun_again() {
    for commits in 0..5 {
        let store = store();
        let tree = create(&store, options(Durability::None, false)).expect("create");
        for _ in 0..commits {
            tree.commit(|_| {}).expect("commit");
        }
        let again = create(&store, options(Durability::None, false)).expect_err("again");
        assert_eq!(again.kind(), Kind::Conflict, "after {commits} commits");
    }
}

/// Symptom: at durability `always` a fenced writer's puts were acknowledged and lost.
/// Cause: they were synced into a log that the new writer had already read and deleted.
/// Fix: a group commit checks for a takeover after its sync, as `sync` does.
#[test]
fn the_first_writer_is_fenced_at_a_put_that_is_to_be_durable() {
    for puts in 0..3 {
        let store = store();
        let first = create(&store, options(Durability::Always, false)).expect("create");
        put(&first, b"before", b"first").expect("put");
        let second = take_over(&store, puts);
        assert_eq!(get(&second, b"before").expect("get").as_deref(), Some(&b"first"[..]));
        let refused = put(&first, b"after", b"first").expect_err("fenced");
        assert_eq!(refused.kind(), Kind::Fenced, "after {puts} puts");
    }
}

/// Symptom: two writers owned one change set.
/// Cause: both committed the same snapshot, to the nanosecond of a coarse clock. The one whose put
/// found the name taken mistook the other's snapshot for its own, acknowledged late.
/// Fix: a writer that begins a set never recognizes a snapshot as its own, and one that takes a set
/// over fences the snapshot that it finds.
#[test]
fn a_set_that_is_begun_twice_in_one_nanosecond_has_one_writer() {
    let store = store();
    let clock = Arc::new(ManualClock::new(1));
    let begin = || {
        let setup = TreeSetup { clock: clock.clone(), ..setup(&store, options(ASYNC, false)) };
        Tree::create(setup, SET, Manifest::new(vec![], 1))
    };
    let _first = begin().expect("the first");
    assert_eq!(begin().expect_err("the second").kind(), Kind::Conflict);
}

/// If two writers take over at once, one gets the set and the other gets an error.
#[test]
fn of_two_that_take_over_at_once_one_wins() {
    for _ in 0..20 {
        let store = store();
        let first = create(&store, options(ASYNC, false)).expect("create");
        put(&first, b"key", b"value").expect("put");
        first.sync().expect("sync");
        drop(first);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let racer = || resume(&store, options(ASYNC, false));
            let racers = [scope.spawn(racer), scope.spawn(racer)];
            racers.map(|racer| racer.join().expect("no panic")).into()
        });
        let mut owners = 0;
        for outcome in outcomes {
            match outcome {
                Ok(tree) => {
                    assert_eq!(get(&tree, b"key").expect("get").as_deref(), Some(&b"value"[..]));
                    owners += usize::from(tree.sync().is_ok());
                }
                Err(error) => assert!(
                    matches!(error.kind(), Kind::Conflict | Kind::Fenced | Kind::NotFound),
                    "{error:?}"
                ),
            }
        }
        assert_eq!(owners, 1);
    }
}
