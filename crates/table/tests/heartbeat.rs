// SPDX-License-Identifier: Apache-2.0
//! Writers record who they are, show that they live, and detect a takeover.
//!
//! Symptom: a process that opened the set of a live writer fenced it without warning, and while
//! that writer had nothing to sync, it continued unaware.
//! Cause: nothing in the store recorded that the set had a writer, and only syncs and commits check
//! for another one.
//! Fix: manifests name the writer, beats show that it lives, and each beat checks for another
//! writer.

use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Error, Kind};
use esker_table::manifest::Manifest;
use esker_table::set_writer::SetWriter;
use esker_table::tree::{Durability, Heartbeat, Tree, TreeSetup, last_beat_ns};

use crate::records::{SET, options, put, setup};

/// Short, so that tests need not wait long; they wait for the effects, however long those take.
const INTERVAL: Duration = Duration::from_millis(2);

fn store() -> SharedStore {
    Arc::new(MemoryStore::new())
}

fn heartbeat(user: &str, interval: Option<Duration>) -> Heartbeat {
    Heartbeat { interval, ..Heartbeat::of_process(user) }
}

fn with(store: &SharedStore, heartbeat: Heartbeat) -> TreeSetup {
    let setup = setup(store, options(Durability::Async, false));
    TreeSetup { heartbeat: Some(heartbeat), ..setup }
}

fn create(store: &SharedStore, heartbeat: Heartbeat) -> Tree {
    Tree::create(with(store, heartbeat), SET, Manifest::new(vec![], 0)).expect("create")
}

fn resume(store: &SharedStore, heartbeat: Heartbeat) -> Tree {
    Tree::resume(with(store, heartbeat), SET, None, &mut |_| Ok(true)).expect("resume")
}

fn writer(store: &SharedStore) -> SetWriter {
    Manifest::load(&**store, SET).expect("a manifest").writer.expect("a writer")
}

fn beats(store: &SharedStore) -> usize {
    store.list(&format!("set/{SET}/beat/")).expect("list").len()
}

#[test]
fn a_manifest_names_its_writer_until_that_ends() {
    let store = store();
    let first = create(&store, heartbeat("first", None));
    put(&first, b"a", b"1").expect("put");
    first.flush().expect("flush");
    let said = writer(&store);
    assert_eq!((said.user.as_str(), said.is_writing), ("first", true));
    assert_eq!(said.process.pid, std::process::id());
    put(&first, b"b", b"2").expect("put");
    first.release("it has ended").expect("release");
    assert!(!writer(&store).is_writing);
    assert_eq!(put(&first, b"c", b"3").expect_err("it has ended").kind(), Kind::Closed);
    // A writer that has nothing to flush records its end too.
    let second = resume(&store, heartbeat("second", None));
    assert_eq!((writer(&store).user.as_str(), writer(&store).is_writing), ("second", true));
    second.release("it has ended").expect("release");
    assert!(!writer(&store).is_writing);
    assert_eq!(writer(&store).user, "second");
}

#[test]
fn a_set_that_cannot_be_released_is_held_as_before() {
    let fault = Arc::new(esker_base::store::FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let store: SharedStore = fault.clone();
    let tree = create(&store, heartbeat("one", None));
    put(&tree, b"a", b"1").expect("put");
    fault.fill_at(fault.operations() + 1, esker_base::store::FaultEffect::None);
    assert_eq!(tree.release("it has ended").expect_err("full").kind(), Kind::NoSpace);
    fault.make_room();
    put(&tree, b"b", b"2").expect("it goes on");
    tree.flush().expect("flush");
    assert!(writer(&store).is_writing);
    tree.release("it has ended").expect("there is room");
    assert!(!writer(&store).is_writing);
}

/// Waits for `is_so`, which the heartbeat's thread makes true.
fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::sleep(INTERVAL);
    }
}

#[test]
fn a_writer_beats_while_it_lives_and_leaves_no_beat() {
    let store = store();
    let tree = create(&store, heartbeat("one", Some(INTERVAL)));
    wait_until(|| last_beat_ns(&*store, SET, 1).expect("list").is_some());
    assert_eq!(last_beat_ns(&*store, SET, 2).expect("list"), None, "of another epoch");
    // Each beat replaces the one before, so there are never more than two.
    let first = store.list(&format!("set/{SET}/beat/")).expect("list")[0].name.clone();
    wait_until(|| !store.list("").expect("list").iter().any(|object| object.name == first));
    assert!(beats(&store) <= 2);
    drop(tree);
    assert_eq!(beats(&store), 0);
}

#[test]
fn a_writer_that_ends_before_its_first_beat_puts_none() {
    let store = store();
    drop(create(&store, heartbeat("one", Some(Duration::from_secs(3600)))));
    assert_eq!(beats(&store), 0);
}

/// Channel to which the callback `on_fenced` of the one test that has it sends its error.
static TOLD: OnceLock<Mutex<mpsc::Sender<(Kind, String)>>> = OnceLock::new();

fn on_fenced(error: &Error) {
    let told = TOLD.get().expect("set before the writer begins").lock().expect("no panic");
    told.send((error.kind(), error.to_string())).expect("the test waits");
}

#[test]
fn a_writer_without_work_learns_that_it_was_taken_over() {
    let store = store();
    let (sender, receiver) = mpsc::channel();
    TOLD.set(Mutex::new(sender)).expect("one test uses it");
    let presence = Heartbeat { on_fenced: Some(on_fenced), ..heartbeat("one", Some(INTERVAL)) };
    let first = create(&store, presence);
    put(&first, b"a", b"1").expect("put");
    let _second = resume(&store, heartbeat("the other", None));
    let (kind, said) = receiver.recv().expect("it is told");
    assert_eq!(kind, Kind::Fenced);
    assert!(said.contains("of the other on"), "{said}");
    // At durability `async`, where only beats check for another writer.
    assert_eq!(put(&first, b"b", b"2").expect_err("fenced").kind(), Kind::Fenced);
    assert_eq!(first.check_open().expect_err("fenced").kind(), Kind::Fenced);
    drop(first);
    assert_eq!(beats(&store), 0);
}
