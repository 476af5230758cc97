// SPDX-License-Identifier: Apache-2.0
//! Failures of the store while a tree writes: acknowledged changes are never silently dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId};
use esker_table::tree::{CloseReasons, Durability, Tree, TreeSetup};

use crate::records::{SET, create, get, options, put, resume, setup};

/// A writer that waits for longer than this is taken to wait forever.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Symptom: after a failed flush, the next one returned success without the first one's records.
/// Cause: the memtable was frozen before its log was written and rotated; when that failed, the
/// memtable was never passed on, and an empty active one has nothing to flush.
/// Fix: a failure to pass a memtable on is the tree's failure, which later calls report.
#[test]
fn a_flush_that_failed_is_not_followed_by_one_that_succeeds_without_its_records() {
    for durability in [Durability::None, Durability::Async] {
        for background in [false, true] {
            fail_each_operation_of_a_flush(durability, background);
        }
    }
}

fn fail_each_operation_of_a_flush(durability: Durability, background: bool) {
    for fault in 1..20 {
        for effect in [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full] {
            let memory: SharedStore = Arc::new(MemoryStore::new());
            let fault_store = Arc::new(FaultStore::new(memory.clone(), fault));
            let store: SharedStore = fault_store.clone();
            let tree = create(&store, options(durability, background)).expect("create");
            put(&tree, b"key", b"value").expect("put");
            let next = fault_store.operations() + fault;
            fault_store.fail_at_with(next, Kind::NoSpace, effect);
            let outcomes = [tree.flush().is_ok(), tree.flush().is_ok()];
            let committed = tree.commit(|_| {}).is_ok();
            if outcomes.contains(&true) || committed {
                drop(tree);
                assert_is_in_tables(&memory, fault, effect);
            }
        }
    }
}

fn assert_is_in_tables(store: &SharedStore, fault: u64, effect: FaultEffect) {
    for name in store.list("").expect("list") {
        if name.name.contains("/wal/") {
            store.delete(&name.name).expect("delete");
        }
    }
    let tree: Tree = resume(store, options(Durability::None, false)).expect("resume");
    let value = get(&tree, b"key").expect("get");
    assert_eq!(value.as_deref(), Some(&b"value"[..]), "operation {fault} failed, {effect:?}");
}

/// Symptom: after a commit whose answer was lost, the next one failed with `Conflict`, "changed by
/// somebody else", and the tree still took changes.
/// Cause: only a commit that failed with `Closed` stopped the tree.
/// Fix: every failed commit does, unless its manifest is certainly not in the store.
#[test]
fn a_commit_that_may_have_taken_effect_stops_the_tree() {
    // An outage that begins with the put of the manifest, or with the check that it rules.
    for (effect, request, outage) in [
        (FaultEffect::None, 1, 1),
        (FaultEffect::None, 1, 9),
        (FaultEffect::Full, 1, 9),
        (FaultEffect::Full, 2, 9),
    ] {
        let fault_store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let store: SharedStore = fault_store.clone();
        let tree = create(&store, options(Durability::Async, false)).expect("create");
        let first = fault_store.operations() + request;
        fault_store.fail_at_with(first, Kind::Unavailable, effect);
        (first + 1..first + outage).for_each(|at| fault_store.fail_at(at, Kind::Unavailable));
        let failed = tree.commit(|_| {}).expect_err("no answer");
        assert_eq!(failed.kind(), Kind::Unavailable);
        for refused in [put(&tree, b"key", b"value").map(drop), tree.sync(), tree.flush()] {
            let error = refused.expect_err("stopped");
            assert!(error.to_string().contains("an earlier write failed"), "{error}");
        }
        let again = tree.commit(|_| {}).expect_err("stopped");
        assert!(again.to_string().contains("an earlier write failed"), "{again}");
        drop(tree);
        while fault_store.operations() < first + outage {
            let _ = store.list("");
        }
        resume(&store, options(Durability::Async, false)).expect("resume");
    }
}

/// A commit that took effect although its answer was lost is recognized, and the tree continues.
#[test]
fn a_commit_that_is_found_in_the_store_has_succeeded() {
    for request in [1, 2] {
        let fault_store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let store: SharedStore = fault_store.clone();
        let tree = create(&store, options(Durability::Async, false)).expect("create");
        let at = fault_store.operations() + request;
        fault_store.fail_at_with(at, Kind::Unavailable, FaultEffect::Full);
        tree.commit(|_| {}).expect("it is there");
        put(&tree, b"key", b"value").expect("put");
        tree.flush().expect("flush");
        drop(tree);
        assert_is_in_tables(&store, at, FaultEffect::Full);
    }
}

/// The same for the first commit of a set that no other process begins. Where others may, a manifest
/// with the same bytes may be another's.
#[test]
fn a_set_whose_identity_was_drawn_begins_although_the_answer_was_lost() {
    for kind in [Kind::Exists, Kind::Unavailable] {
        let begin = |create: fn(TreeSetup, SetId, Manifest) -> Result<Tree>| {
            let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
            store.fail_at_with(1, kind, FaultEffect::Full);
            let setup = setup(&(store as SharedStore), options(Durability::Async, false));
            create(setup, SET, Manifest::new(vec![], 0))
        };
        let tree = begin(Tree::create_drawn).expect("it is there");
        put(&tree, b"key", b"value").expect("put");
        tree.flush().expect("flush");
        let refused = begin(Tree::create).map(drop).expect_err("somebody has begun it");
        assert!(matches!(refused.kind(), Kind::Conflict | Kind::Unavailable), "{refused}");
    }
}

/// Puts records until one is refused, in a thread; fails if that takes too long.
fn put_until_refused(tree: Tree) -> Error {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let refused = (0u64..).find_map(|number| put(&tree, &number.to_be_bytes(), &[7; 99]).err());
        sender.send(refused.expect("one is refused"))
    });
    receiver.recv_timeout(WAIT_MAX).expect("a writer waits for ever")
}

/// Symptom: writers waited forever.
/// Cause: the thread that writes frozen memtables had panicked, which writers did not notice.
/// Fix: a panic of a thread is the tree's failure, and a failure wakes the waiting writers.
#[test]
fn a_panic_of_the_flushing_thread_is_reported_to_writers() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let panics = Arc::new(AtomicBool::new(false));
    let barrier = panics.clone();
    let setup = TreeSetup {
        sync_dependencies: Arc::new(move || {
            assert!(!barrier.load(Ordering::SeqCst), "a bug");
            Ok(())
        }),
        ..setup(&store, options(Durability::None, true))
    };
    let tree = Tree::create(setup, SET, Manifest::new(vec![], 0)).expect("create");
    panics.store(true, Ordering::SeqCst);
    let refused = put_until_refused(tree);
    assert_eq!(refused.kind(), Kind::Closed, "{refused}");
}

/// Writers that wait for the flushing thread get any failure of its store.
#[test]
fn a_failed_flush_is_reported_to_writers() {
    for failing in 1..12 {
        let fault_store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), failing));
        let store: SharedStore = fault_store.clone();
        let tree = create(&store, options(Durability::None, true)).expect("create");
        for later in 0..1_000 {
            fault_store.fail_at(fault_store.operations() + failing + later, Kind::Unavailable);
        }
        assert_eq!(put_until_refused(tree).kind(), Kind::Unavailable);
    }
}

/// Symptom: a session that was complete, as its manifest said, was reported to have failed.
/// Cause: a step after the commit that said so, such as the deletion of a log, failed.
/// Fix: once the edit is committed, the call succeeds.
#[test]
fn an_edit_is_reported_as_committed_exactly_if_it_is() {
    let mut failed_behind = 0;
    for (refuses, effect) in [false, true]
        .into_iter()
        .flat_map(|refuses| [FaultEffect::None, FaultEffect::Full].map(|effect| (refuses, effect)))
    {
        for request in 1.. {
            let memory: SharedStore = Arc::new(MemoryStore::new());
            let fault_store = Arc::new(FaultStore::new(memory.clone(), 1));
            let store: SharedStore = fault_store.clone();
            let tree = create(&store, options(Durability::Async, false)).expect("create");
            put(&tree, b"key", b"value").expect("put");
            let at = fault_store.operations() + request;
            fault_store.fail_at_with(at, Kind::Unavailable, effect);
            let edit = |manifest: &mut Manifest| {
                manifest.properties.insert("edit".to_owned(), "done".to_owned());
            };
            let check = move || match refuses {
                true => Err(Error::new(Kind::Exists, "the name is taken")),
                false => Ok(()),
            };
            let (complete, in_doubt) = ("complete".to_owned(), "in doubt".to_owned());
            let reasons = CloseReasons { complete, in_doubt };
            let done = tree.complete(edit, check, reasons);
            if fault_store.operations() < at {
                break;
            }
            let newest = Manifest::load(&*memory, SET).expect("manifest");
            let is_there = newest.properties.contains_key("edit");
            let is_reported = matches!(done, Ok(Ok(_)));
            assert_eq!(is_reported, is_there, "request {request}, {effect:?}: {done:?}");
            assert!(!(refuses && is_there), "request {request}, {effect:?}");
            let after = tree.sync();
            assert!(after.is_err() || !is_there, "request {request}: no change may follow");
            let is_earlier = after.is_err_and(|error| error.context() != "complete");
            failed_behind += u64::from(is_there && is_earlier);
        }
    }
    assert!(failed_behind > 0, "no step behind the commit failed");
}
