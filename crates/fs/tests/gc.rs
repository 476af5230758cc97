// SPDX-License-Identifier: Apache-2.0
//! Garbage collection: the objects that it deletes and those that it never does, races, and crashes
//! at every operation.

use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::{ManualClock, SystemClock};
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Clock, Kind, Result};
use esker_fs::repository::Repository;
use esker_fs::retention::gc::GcOptions;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::internals::encode_manifest_unchecked;
use esker_table::manifest::{EPOCH_MAX, Manifest, SetId, SetState};
use esker_table::object_name::ObjectFolder;
use esker_table::tree::{Durability, TreeOptions};

use crate::hooked::{HookedStore, Request, When};

pub fn options() -> SessionOptions {
    let tree = TreeOptions { background: false, memory_bytes: 1 << 22, ..TreeOptions::default() };
    SessionOptions {
        identity: Identity::root(),
        tree,
        // Prevents beats between the requests that a test counts.
        heartbeat: None,
        ..SessionOptions::default()
    }
}

pub fn repository(store: &SharedStore) -> Repository {
    Repository::with(store.clone(), 1 << 20, Arc::new(SystemClock))
}

/// Returns the repository two days later.
pub fn later(store: &SharedStore) -> Repository {
    let now_ns = SystemClock.now_ns() + 2 * 86_400 * 1_000_000_000;
    Repository::with(store.clone(), 1 << 20, Arc::new(ManualClock::new(now_ns)))
}

pub fn eager() -> GcOptions {
    GcOptions { grace: Duration::ZERO, dry_run: false, scan_data: true, ..GcOptions::default() }
}

pub fn write(session: &Session, path: &str, bytes: &[u8]) -> Result<()> {
    let (dir, name) = path.rsplit_once('/').expect("a path");
    let dir = session.namespace().dir(dir)?;
    let mut rest = bytes;
    session
        .create_with(&dir, name.as_bytes(), 0o644, &mut |buffer| {
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            Ok(count)
        })
        .map(drop)
}

/// Returns a set on `bases` with a file `/<name>` of 1000 bytes, published as `name`.
pub fn publish(repository: &Repository, bases: &[SetId], name: &str) -> Result<SetId> {
    let session = repository.begin(bases, options())?;
    write(&session, &format!("/{name}"), &[b'x'; 1000])?;
    session.publish(name)
}

fn has_file(repository: &Repository, set: SetId, path: &str) -> Result<bool> {
    let namespace = repository.open(&[set], Identity::root())?;
    let inode = match namespace.stat(path, FollowLinks::No) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(false),
        found => found?,
    };
    namespace.read_all(&inode, &mut |_| Ok(()))?;
    Ok(true)
}

/// Returns all objects except the name table, whose numbers never start over.
pub fn objects(store: &SharedStore) -> Vec<String> {
    let names = store.list("").expect("list").into_iter().map(|object| object.name);
    names.filter(|name| !name.starts_with("name/")).collect()
}

#[test]
fn deleted_sets_go_with_all_that_only_they_hold() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let a = publish(&repository, &[], "a").expect("a");
    let b = publish(&repository, &[a], "b").expect("b");
    let c = publish(&repository, &[b], "c").expect("c");
    repository.delete("a").expect("delete");
    repository.delete("b").expect("delete");
    repository.gc(&eager()).expect("gc");
    assert!(has_file(&repository, c, "/a").expect("a is needed by c"));
    repository.delete("c").expect("delete");
    let planned = repository.gc(&GcOptions { dry_run: true, ..eager() }).expect("dry run");
    assert_eq!(planned.sets.len(), 3);
    assert!(has_file(&repository, c, "/a").expect("a dry run deletes nothing"));
    let report = repository.gc(&eager()).expect("gc");
    assert_eq!(report.sets.len(), 3, "{report:?}");
    assert!(objects(&store).iter().all(|name| name.contains("/manifest/")));
    assert_eq!(later(&store).gc(&eager()).expect("gc").sets, []);
    assert_eq!(objects(&store), Vec::<String>::new());
}

#[test]
fn the_graph_shows_what_builds_on_what() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let a = publish(&repository, &[], "a").expect("a");
    let b = publish(&repository, &[], "b").expect("b");
    let c = publish(&repository, &[a, b], "c").expect("c");
    let d = publish(&repository, &[c, a], "d").expect("d");
    let nodes = repository.graph(&[d]).expect("graph");
    let order: Vec<SetId> = nodes.iter().map(|node| node.set).collect();
    assert!(order.len() == 4 && order[..2] == [d, c], "a set comes before those it builds on");
    assert_eq!((nodes[0].bases(), &nodes[0].names[..]), (&[c, a][..], &["d".to_owned()][..]));
    assert!(nodes[0].rows > 0 && nodes[0].data_bytes == 1000);
    let all = repository.graph_of_all().expect("graph");
    assert_eq!(all.iter().map(|node| node.set).collect::<Vec<_>>(), order);
}

#[test]
fn open_sessions_are_kept_until_abandoned() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let a = publish(&repository, &[], "a").expect("a");
    repository.delete("a").expect("delete");
    let error = repository.open(&[a], Identity::root()).map(drop);
    assert!(error.is_ok(), "nothing is collected before gc runs");
    let other = publish(&repository, &[], "other").expect("other");
    let session = repository.begin(&[other], options()).expect("begin");
    write(&session, "/f", b"text").expect("write");
    session.sync().expect("sync");
    let report = repository.gc(&eager()).expect("gc");
    assert_eq!(report.sets, [a]);
    write(&session, "/g", b"text").expect("write after gc");
    session.flush().expect("flush after gc");
    repository.abandon(session.set()).expect("abandon");
    let report = repository.gc(&eager()).expect("gc");
    assert_eq!(report.sets, [session.set()]);
    assert!(write(&session, "/h", b"text").is_err(), "its tables are gone");
    let error = session.publish("late").map(drop).expect_err("the set is gone");
    assert!(matches!(error.kind(), Kind::Fenced | Kind::NotFound | Kind::Conflict), "{error:?}");
    assert_eq!(repository.resolve("late").expect_err("no name").kind(), Kind::NotFound);
    assert!(has_file(&repository, other, "/other").expect("other"));
}

#[test]
fn a_writer_that_slept_through_its_deletion_finds_its_number_taken() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let session = repository.begin(&[], options()).expect("begin");
    write(&session, "/f", b"text").expect("write");
    repository.abandon(session.set()).expect("abandon");
    assert_eq!(repository.gc(&eager()).expect("gc").sets, [session.set()]);
    repository.gc(&eager()).expect("gc");
    assert_eq!(session.flush().expect_err("deleted").kind(), Kind::Fenced);
}

#[test]
fn names_protect_what_they_reach_even_without_markers() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let a = publish(&repository, &[], "a").expect("a");
    let b = publish(&repository, &[a], "b").expect("b");
    for object in store.list("ref/").expect("list") {
        store.delete(&object.name).expect("delete");
    }
    let report = repository.gc(&eager()).expect("gc");
    assert_eq!((report.sets.len(), report.restored_markers), (0, 3));
    assert!(has_file(&repository, b, "/a").expect("kept"));
    assert!(marker::is_held(&*store, a, &MarkerHolder::Set(b)).expect("held"));
}

#[test]
fn stale_markers_are_swept_after_the_grace() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let a = publish(&repository, &[], "a").expect("a");
    marker::hold(&*store, a, &MarkerHolder::Name("gone".into())).expect("hold");
    marker::hold(&*store, a, &MarkerHolder::Set(SetId(77))).expect("hold");
    marker::hold(&*store, SetId(78), &MarkerHolder::Session).expect("hold");
    assert_eq!(repository.gc(&GcOptions::default()).expect("gc").stale_markers, 0);
    assert_eq!(repository.gc(&eager()).expect("gc").stale_markers, 3);
    repository.delete("a").expect("delete");
    assert_eq!(repository.gc(&eager()).expect("gc").sets, [a]);
}

#[test]
fn replaced_tables_wait_for_the_grace_and_for_snapshots_that_show_them() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let session = repository.begin(&[], options()).expect("begin");
    write(&session, "/f", &[b'x'; 1000]).expect("write");
    session.flush().expect("flush");
    write(&session, "/g", &[b'x'; 1000]).expect("write");
    let snapshot = session.snapshot("snapshot").expect("snapshot");
    session.compact().expect("compact");
    let set = session.publish("whole").expect("publish");
    let tables = || store.list(&format!("set/{set}/table/")).expect("list").len();
    assert_eq!(tables(), 3);
    repository.gc(&GcOptions::default()).expect("gc");
    assert_eq!(tables(), 3);
    repository.gc(&eager()).expect("gc");
    assert_eq!(tables(), 3, "the snapshot shows two of them");
    assert!(has_file(&repository, snapshot, "/g").expect("read"));
    repository.delete("snapshot").expect("delete");
    repository.gc(&eager()).expect("gc");
    assert_eq!(tables(), 1);
    assert!(has_file(&repository, set, "/g").expect("read"));
    assert_eq!(store.list(&format!("set/{set}/wal/")).expect("list").len(), 0);
}

/// Makes the newest manifest of `set` unreadable.
pub fn damage(store: &SharedStore, set: SetId) {
    let folder = ObjectFolder::Manifests(set).to_string();
    let newest = store.list(&folder).expect("list").pop().expect("a manifest");
    let mut bytes = store.get(&newest.name, u64::MAX).expect("get").to_vec();
    bytes.truncate(bytes.len() / 2);
    store.delete(&newest.name).expect("delete");
    store.put_if_absent(&newest.name, &bytes).expect("put");
}

/// Symptom: a set whose manifest could not be read could be neither given up nor collected, and
/// kept everything on which it had been built.
#[test]
fn a_set_that_cannot_be_read_is_collected_once_nothing_holds_it() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let base = publish(&plain, &[], "base").expect("base");
    let named = publish(&plain, &[base], "named").expect("named");
    let session = plain.begin(&[named], options()).expect("begin");
    write(&session, "/f", b"text").expect("write");
    session.flush().expect("flush");
    let open = session.set();
    drop(session);
    plain.delete("base").expect("delete");
    damage(&store, named);
    damage(&store, open);
    for marker in [MarkerHolder::Name("named".into()), MarkerHolder::Set(open)] {
        marker::release(&*store, named, &marker).expect("release");
    }
    let report = plain.gc(&eager()).expect("gc");
    assert_eq!((report.sets.len(), report.problems.len()), (0, 2), "{report:?}");
    assert!(marker::is_held(&*store, named, &MarkerHolder::Name("named".into())).expect("held"));
    assert!(Manifest::load(&*store, base).is_ok(), "what it needs is kept by its markers");
    plain.abandon(open).expect("abandon");
    assert_eq!(plain.gc(&GcOptions { dry_run: true, ..eager() }).expect("gc").sets, [open]);
    assert_eq!(plain.gc(&eager()).expect("gc").sets, [open]);
    let error = plain.resume(open, options()).map(drop).expect_err("it is gone");
    assert_eq!(error.kind(), Kind::NotFound);
    plain.delete("named").expect("delete");
    let mut gone = plain.gc(&eager()).expect("gc").sets;
    gone.sort();
    let mut expected = vec![base, named];
    expected.sort();
    assert_eq!(gone, expected);
    later(&store).gc(&eager()).expect("gc");
    assert_eq!(objects(&store), Vec::<String>::new());
}

/// The writer of a set whose newest manifest gets damaged continues, unless the set was given up.
#[test]
fn a_writer_of_a_set_that_cannot_be_read_is_not_disturbed_until_the_set_is_given_up() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let session = plain.begin(&[], options()).expect("begin");
    write(&session, "/f", &[b'x'; 1000]).expect("write");
    session.flush().expect("flush");
    damage(&store, session.set());
    plain.gc(&eager()).expect("gc");
    write(&session, "/g", &[b'x'; 1000]).expect("write");
    session.flush().expect("the next manifest can be read");
    assert!(Manifest::load(&*store, session.set()).is_ok());
    damage(&store, session.set());
    write(&session, "/h", &[b'x'; 1000]).expect("write");
    plain.abandon(session.set()).expect("abandon");
    assert_eq!(plain.gc(&eager()).expect("gc").sets, [session.set()]);
    assert_eq!(session.flush().expect_err("given up").kind(), Kind::Fenced);
}

#[test]
fn what_crashed_epochs_left_is_swept() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let session = repository.begin(&[], options()).expect("begin");
    write(&session, "/f", &[b'x'; 1000]).expect("write");
    session.sync().expect("sync");
    let set = session.set();
    // Data without a record, and a table that no manifest lists.
    let lost = format!("set/{set}/data/00000001-00000009");
    store.put_if_absent(&lost, b"lost").expect("put");
    let orphan = format!("set/{set}/table/{:016x}", 1u64 << 32 | 9);
    store.put_if_absent(&orphan, b"lost").expect("put");
    drop(session);
    repository.gc(&eager()).expect("gc");
    assert!(objects(&store).contains(&orphan), "it may be on its way");
    let session = repository.resume(set, options()).expect("resume");
    repository.gc(&eager()).expect("gc");
    assert!(!objects(&store).contains(&orphan));
    assert!(objects(&store).contains(&lost));
    session.publish("whole").expect("publish");
    repository.gc(&eager()).expect("gc");
    assert!(!objects(&store).contains(&lost));
    assert!(has_file(&repository, set, "/f").expect("read"));
}

#[test]
fn an_interrupted_collection_loses_nothing_and_is_finished_by_the_next() {
    let build = || {
        let inner: SharedStore = Arc::new(MemoryStore::new());
        let plain = repository(&inner);
        let a = publish(&plain, &[], "a").expect("a");
        let b = publish(&plain, &[a], "b").expect("b");
        let c = publish(&plain, &[b], "c").expect("c");
        plain.delete("c").expect("delete");
        plain.delete("b").expect("delete");
        (inner, a, [b, c])
    };
    let (inner, ..) = build();
    let counter = Arc::new(FaultStore::new(inner, 1));
    repository(&(counter.clone() as SharedStore)).gc(&eager()).expect("gc");
    for stop in 1..=counter.operations() {
        for effect in [FaultEffect::None, FaultEffect::Full] {
            let (inner, a, gone) = build();
            let fault = Arc::new(FaultStore::new(inner, stop));
            fault.stop_at(stop, effect);
            let stopped = repository(&(fault.clone() as SharedStore)).gc(&eager());
            assert!(stopped.is_err(), "operation {stop}");
            let image = fault.after_power_loss().expect("image");
            let plain = repository(&image);
            assert!(has_file(&plain, a, "/a").expect("live"), "operation {stop}");
            plain.gc(&eager()).expect("gc");
            later(&image).gc(&eager()).expect("gc");
            let left = objects(&image);
            assert!(has_file(&plain, a, "/a").expect("live"), "operation {stop}");
            for set in gone {
                let set = set.to_string();
                assert!(!left.iter().any(|name| name.contains(&set)), "{stop}: {left:?}");
            }
        }
    }
}

#[test]
fn a_crash_anywhere_in_publish_leaves_a_session_to_resume_or_a_name() {
    let build = || -> SharedStore { Arc::new(MemoryStore::new()) };
    let run = |store: &SharedStore| -> Result<SetId> {
        let repository = repository(store);
        let base = publish(&repository, &[], "base")?;
        let mut options = options();
        options.tree.durability = Durability::Always;
        let session = repository.begin(&[base], options)?;
        write(&session, "/f", &[b'x'; 1000])?;
        session.publish("top")
    };
    let counter = Arc::new(FaultStore::new(build(), 1));
    run(&(counter.clone() as SharedStore)).expect("run");
    for stop in 1..=counter.operations() {
        for effect in [FaultEffect::None, FaultEffect::Full] {
            let fault = Arc::new(FaultStore::new(build(), stop));
            fault.stop_at(stop, effect);
            assert!(run(&(fault.clone() as SharedStore)).is_err());
            let image = fault.after_power_loss().expect("image");
            let plain = repository(&image);
            plain.gc(&eager()).expect("gc");
            for name in plain.names().expect("names") {
                let path = format!("/{}", if name.name == "top" { "f" } else { "base" });
                assert!(has_file(&plain, name.set, &path).expect("live"), "operation {stop}");
            }
            // Sets left open are given up, and then nothing of them remains.
            for set in plain.sets().expect("sets") {
                plain.abandon(set).expect("abandon");
            }
            plain.gc(&eager()).expect("gc");
            later(&image).gc(&eager()).expect("gc");
            let named: Vec<SetId> =
                plain.names().expect("names").iter().map(|name| name.set).collect();
            let kept = plain.sets().expect("sets");
            assert!(kept.iter().all(|set| named.contains(set)), "operation {stop}");
            for name in plain.names().expect("names") {
                has_file(&plain, name.set, "/base").expect("live");
            }
        }
    }
}

/// Symptom: a collection reported "no change set" as a problem, and kept unneeded data logs.
/// Cause: sweeping a set's data read every set that holds it; one of them may just have been
/// deleted, or may not be written yet.
/// Fix: the data waits for the next collection, as tables do.
#[test]
fn a_holder_that_is_gone_is_no_problem() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let session = plain.begin(&[], options()).expect("begin");
    session.snapshot("snapshot").expect("snapshot");
    write(&session, "/a", &[b'x'; 900]).expect("write");
    session.publish("name").expect("publish");
    plain.delete("snapshot").expect("delete");
    for days in [2, 4, 6] {
        let now_ns = SystemClock.now_ns() + days * 86_400 * 1_000_000_000;
        let clock = Arc::new(ManualClock::new(now_ns));
        let report = Repository::with(store.clone(), 0, clock).gc(&eager()).expect("gc");
        assert_eq!(report.problems, [""; 0], "after {days} days");
    }
    assert_eq!(plain.sets().expect("sets").len(), 1);
}

/// Symptom: a collection reported a missing table as a problem.
/// Cause: another collection deleted the set, whose name had just gone, while this one read it.
/// Fix: the set is read again before a missing object is reported.
#[test]
fn a_set_that_another_collection_deletes_is_no_problem() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    publish(&plain, &[], "name").expect("publish");
    let hooked = HookedStore::new(store.clone());
    hooked.at(When::Before, Request::GetRange, "/table/", move || {
        plain.delete("name")?;
        assert_eq!(plain.gc(&eager())?.sets.len(), 1);
        Ok(())
    });
    let report = Repository::with(Arc::new(hooked.clone()), 0, Arc::new(SystemClock)).gc(&eager());
    assert_eq!(report.expect("gc").problems, [""; 0]);
    assert!(hooked.has_acted(), "no table was read");
}

/// Symptom: no collection of a store succeeded if one set had the highest epoch, or an object
/// whose name had digits that no manifest's name has.
/// Cause: a set that takes no further manifest, or none of that name, failed the whole collection.
/// Fix: it is a problem of that set only; names of manifests are parsed strictly.
#[test]
fn a_hostile_set_does_not_keep_others_from_being_collected() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let garbage = publish(&plain, &[], "garbage").expect("publish");
    let put = |set: SetId, name: &str, state: SetState, number: u64| {
        let manifest = Manifest { number, epoch: EPOCH_MAX, state, ..Manifest::new(vec![], 1) };
        let object = format!("{}{name}", ObjectFolder::Manifests(set));
        store.put_if_absent(&object, &encode_manifest_unchecked(&manifest)).expect("put");
    };
    // One set without markers, one with an unlisted table of its epoch, and one with a malformed
    // manifest name.
    put(SetId(1), "0000000000000001", SetState::Sealed, 1);
    put(SetId(2), "0000000000000001", SetState::Sealed, 1);
    marker::hold(&*store, SetId(2), &MarkerHolder::Name("n".into())).expect("mark");
    marker::hold(&*store, SetId(2), &MarkerHolder::Set(SetId(3))).expect("mark");
    let table = format!("set/{}/table/{:016x}", SetId(2), EPOCH_MAX << 32);
    store.put_if_absent(&table, b"").expect("put");
    put(SetId(3), "000000000000000A", SetState::Sealed, 10);
    marker::hold(&*store, SetId(3), &MarkerHolder::Session).expect("mark");
    plain.delete("garbage").expect("delete");
    let hour = GcOptions { grace: Duration::from_secs(60), ..eager() };
    let report = later(&store).gc(&hour).expect("gc");
    assert!(report.sets.contains(&garbage), "{report:?}");
    assert!(!report.problems.is_empty(), "{report:?}");
    later(&store).gc(&eager()).expect("gc");
}
