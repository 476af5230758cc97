// SPDX-License-Identifier: Apache-2.0
//! File data of squashes that do not copy it: the new set refers to data logs of the sets from
//! which it was merged, and a collection keeps exactly these logs while a squash refers to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{CountedStore, FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_fs::job::JobId;
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::ops::AttributeChanges;
use esker_fs::repository::Repository;
use esker_fs::retention::gc::GcOptions;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::session::Session;
use esker_fs::stack::identity::Identity;
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::object_name::ObjectName;

use crate::gc::{eager, later, options, repository, write};
use crate::interrupted_store::Interrupted;
use crate::squash::tree;
use crate::verify::{assert_sound, verify};

fn single(copy_data: bool) -> SquashOptions {
    SquashOptions { threads: 1, copy_data, ..SquashOptions::default() }
}

/// Large enough for a data log of its own.
const LARGE_BYTES: usize = 9 << 20;

fn begin(repository: &Repository, bases: &[SetId]) -> Session {
    repository.begin(bases, options()).expect("begin")
}

/// Publishes `below` with two large files and some small ones, and on top of it `above`, which
/// replaces one of the large files, links the other, truncates a small one and writes into parts of
/// another.
fn prepared(store: &SharedStore) -> (SetId, SetId) {
    let plain = repository(store);
    let session = begin(&plain, &[]);
    let root = session.root().clone();
    write(&session, "/lost", &vec![b'l'; LARGE_BYTES]).expect("write");
    write(&session, "/kept", &vec![b'k'; LARGE_BYTES]).expect("write");
    for name in ["small", "cut", "parts"] {
        write(&session, &format!("/{name}"), &[name.as_bytes()[0]; 3_000]).expect("write");
    }
    let below = session.publish("below").expect("publish");
    let session = begin(&plain, &[below]);
    session.unlink(&root, b"lost").expect("unlink");
    write(&session, "/lost", &[b'n'; 4_000]).expect("write");
    session.link(&root, b"kept", &root, b"linked").expect("link");
    let cut = AttributeChanges { size: Some(1_000), ..AttributeChanges::default() };
    session.setattr(&root, b"cut", &cut).expect("truncate");
    let file = session.open_file(&root, b"parts").expect("open");
    session.file(&file).write(500, &[b'w'; 700]).expect("write");
    session.close_file(file).expect("close");
    let above = session.publish("above").expect("publish");
    (below, above)
}

fn squash_as(repository: &Repository, sets: &[SetId], name: &str) -> SetId {
    let (set, _) = repository.squash(sets, &single(false)).expect("squash");
    repository.publish(set, name).expect("publish");
    set
}

fn shown(repository: &Repository, set: SetId) -> BTreeMap<Vec<u8>, String> {
    tree(&repository.open(&[set], Identity::root()).expect("open"))
}

/// Returns the number of objects of a kind (`data`, `table`, ...) in the folder of `set`.
fn objects(store: &SharedStore, set: SetId, kind: &str) -> usize {
    store.list(&format!("set/{set}/{kind}/")).expect("list").len()
}

fn state(store: &SharedStore, set: SetId) -> SetState {
    Manifest::load(&**store, set).expect("manifest").state
}

fn delete_all_but(repository: &Repository, kept: &str) {
    for name in repository.names().expect("names") {
        if name.name != kept {
            repository.delete(&name.name).expect("delete");
        }
    }
}

/// Returns a copy of `store` without its data logs.
fn without_data(store: &SharedStore) -> SharedStore {
    let copy: SharedStore = Arc::new(MemoryStore::new());
    for object in store.list("").expect("list") {
        if !object.name.contains("/data/") {
            let bytes = store.get(&object.name, u64::MAX).expect("get");
            copy.put_if_absent(&object.name, &bytes).expect("put");
        }
    }
    copy
}

/// The cost of a squash that docs/guide/durability.md states.
#[test]
fn a_squash_reads_and_writes_no_file_data_unless_told_to() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let (_, above) = prepared(&store);
    let bare = without_data(&store);
    let (_, report) = repository(&bare).squash(&[above], &single(false)).expect("squash");
    assert_eq!((report.counts.data_bytes, report.referenced_sets), (0, 2));
    let missing = repository(&bare).squash(&[above], &single(true)).expect_err("no data");
    assert_eq!(missing.kind(), Kind::NotFound);

    let cost = |copy_data| {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let (_, above) = prepared(&store);
        let counted = Arc::new(CountedStore::new(store.clone()));
        let shared: SharedStore = counted.clone();
        repository(&shared).squash(&[above], &single(copy_data)).expect("squash");
        counted.counts()
    };
    let cheap = cost(false);
    assert_eq!((cheap.appends, cheap.log_bytes, cheap.syncs), (0, 0, 0), "{cheap:?}");
    assert!(cheap.read_bytes + cheap.written_bytes < 64 << 10, "{cheap:?}");
    // Markers of the squash and of its base, two manifests, tables of records and of segments, and
    // a marker on each of the two sets.
    assert_eq!(cheap.writes, 2 + 2 + 2 + 2, "{cheap:?}");
    let dear = cost(true);
    assert!(dear.log_bytes > LARGE_BYTES as u64, "{dear:?}");
    // A listing of manifests and a read for each set.
    assert_eq!(cheap.lists - dear.lists, 2, "{cheap:?} {dear:?}");
    assert_eq!(cheap.writes - dear.writes, 2, "{cheap:?} {dear:?}");
}

/// Symptom: a squash copied all file data, and took as much time and room as writing the whole
/// stack again.
/// Cause: a set kept whole sets or nothing, and a squash was to need none.
/// Fix: it keeps the data logs that its manifest lists, and nothing else of the sets that have
/// them.
#[test]
fn exactly_the_logs_to_which_a_squash_refers_stay() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let (below, above) = prepared(&store);
    let before = shown(&plain, above);
    let flat = squash_as(&plain, &[above], "flat");
    assert_eq!(shown(&plain, flat), before);
    assert_sound(&plain);
    assert_eq!(objects(&store, below, "data"), 3);
    // While the sets have names they stay as they are.
    plain.gc(&eager()).expect("gc");
    assert_eq!((state(&store, below), objects(&store, below, "data")), (SetState::Sealed, 3));
    delete_all_but(&plain, "flat");
    plain.gc(&GcOptions::default()).expect("gc");
    assert_eq!(state(&store, below), SetState::Sealed, "they stay for the grace");
    let planned = plain.gc(&GcOptions { dry_run: true, ..eager() }).expect("dry run");
    let report = plain.gc(&eager()).expect("gc");
    assert_eq!((report.sets.len(), report.data_only_sets.len()), (0, 2), "{report:?}");
    assert_eq!(planned.data_only_sets.len(), 2, "{planned:?}");
    assert_eq!((planned.objects, planned.bytes), (report.objects, report.bytes));
    for set in [below, above] {
        assert_eq!(state(&store, set), SetState::DataOnly);
        assert_eq!(objects(&store, set, "table"), 0);
        assert_eq!(plain.open(&[set], Identity::root()).expect_err("gone").kind(), Kind::NotFound);
    }
    // Only the log of the removed file is gone.
    assert_eq!(objects(&store, below, "data"), 2);
    assert_eq!(shown(&repository(&store), flat), before);
    assert_sound(&plain);
    assert_eq!(plain.gc(&eager()).expect("gc").objects, 0);
    later(&store).gc(&eager()).expect("gc");
    assert_eq!(shown(&repository(&store), flat), before);
    // Nothing refers to the logs any more once the squash is gone.
    plain.delete("flat").expect("delete");
    plain.gc(&eager()).expect("gc");
    assert!([below, above, flat].iter().all(|set| objects(&store, *set, "data") == 0));
    later(&store).gc(&eager()).expect("gc");
    assert_eq!(crate::gc::objects(&store), Vec::<String>::new());
}

/// The export of a squash to whose data logs it refers is that of its sources, byte by byte, after
/// these were deleted and collected; also if a file was written in place.
#[test]
fn an_export_of_a_squash_is_that_of_its_sources() {
    let folder = tempfile::tempdir().expect("a directory");
    let store = esker_base::store::url::init(folder.path().join("store").to_str().expect("text"));
    let store: SharedStore = store.expect("a store");
    let plain = repository(&store);
    let (below, above) = prepared(&store);
    // Written over an open file's log, so that the shown content is in segments of two sets.
    let session = begin(&plain, &[above]);
    let root = session.root().clone();
    let file = session.open_file(&root, b"kept").expect("open");
    for at in (0..LARGE_BYTES as u64).step_by(1 << 20) {
        session.file(&file).write(at + 77, &[b'p'; 5_000]).expect("write");
    }
    session.close_file(file).expect("close");
    let top = session.publish("top").expect("publish");
    let export = |set: SetId, name: &str| {
        let target = folder.path().join(name);
        let view = plain.open(&[set], Identity::root()).expect("open");
        let tally = esker_fs::traversal::tally::TransferTally::default();
        let options =
            esker_fs::traversal::export::ExportOptions { threads: 2, ..Default::default() };
        view.export(b"/", &target, &options, &tally).expect("export");
        assert_eq!(tally.counts().problems, 0);
        let files = std::fs::read_dir(&target).expect("a directory").map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_owned();
            (name, std::fs::read(path).expect("a file"))
        });
        files.collect::<BTreeMap<_, _>>()
    };
    let before = export(top, "before");
    assert_eq!(before.len(), 6);
    let flat = squash_as(&plain, &[top], "flat");
    delete_all_but(&plain, "flat");
    let report = plain.gc(&eager()).expect("gc");
    assert_eq!(report.data_only_sets.len(), 3, "{report:?}");
    assert!(state(&store, below) == SetState::DataOnly && state(&store, top) == SetState::DataOnly);
    assert!(export(flat, "after") == before, "contents differ");
    assert_sound(&plain);
}

#[test]
fn a_squash_with_copied_data_needs_no_other_set() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let (below, above) = prepared(&store);
    let before = shown(&plain, above);
    let first = squash_as(&plain, &[above], "flat");
    let (own, report) = plain.squash(&[first], &single(true)).expect("squash");
    plain.publish(own, "own").expect("publish");
    assert_eq!(report.referenced_sets, 0);
    delete_all_but(&plain, "own");
    let report = plain.gc(&eager()).expect("gc");
    assert_eq!((report.sets.len(), report.data_only_sets.len()), (3, 0), "{report:?}");
    assert!([below, above, first].iter().all(|set| objects(&store, *set, "data") == 0));
    assert_eq!(shown(&plain, own), before);
    assert_sound(&plain);
}

#[test]
fn a_squash_of_a_squash_refers_to_the_logs_themselves() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let (below, above) = prepared(&store);
    let first = squash_as(&plain, &[above], "first");
    delete_all_but(&plain, "first");
    plain.gc(&eager()).expect("gc");
    // A set above the first removes the other large file, too.
    let session = begin(&plain, &[first]);
    let root = session.root().clone();
    session.unlink(&root, b"kept").expect("unlink");
    session.unlink(&root, b"linked").expect("unlink");
    let top = session.publish("top").expect("publish");
    let before = shown(&plain, top);
    let second = squash_as(&plain, &[top], "second");
    delete_all_but(&plain, "second");
    let report = plain.gc(&eager()).expect("gc");
    assert_eq!(report.sets.len(), 2, "neither has data: {report:?}");
    assert_eq!(objects(&store, below, "data"), 1, "of small files");
    assert_eq!(objects(&store, above, "data"), 2, "of records and of segments");
    assert_eq!(shown(&plain, second), before);
    assert_sound(&plain);
}

/// A set that has become data-only frees more with every squash that is deleted. Sets have random
/// identities, and a collection takes them in their order, so several stores are tried.
#[test]
fn each_squash_keeps_its_own_logs_of_a_deleted_set() {
    for _ in 0..10 {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let plain = repository(&store);
        let (below, above) = prepared(&store);
        let old = squash_as(&plain, &[below], "old");
        let new = squash_as(&plain, &[above], "new");
        let (before_old, before_new) = (shown(&plain, old), shown(&plain, new));
        plain.delete("below").expect("delete");
        plain.delete("above").expect("delete");
        plain.gc(&eager()).expect("gc");
        assert_eq!(objects(&store, below, "data"), 3);
        assert_eq!((shown(&plain, old), shown(&plain, new)), (before_old, before_new.clone()));
        plain.delete("old").expect("delete");
        plain.gc(&eager()).expect("gc");
        assert_eq!(objects(&store, below, "data"), 2);
        assert_eq!(shown(&plain, new), before_new);
        assert_sound(&plain);
    }
}

/// A scan of records finds the data log to be garbage in a set that still has its name.
#[test]
fn a_scan_for_data_keeps_logs_to_which_only_a_squash_refers() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let session = begin(&plain, &[]);
    write(&session, "/f", &vec![b'f'; LARGE_BYTES]).expect("write");
    let snapshot = session.snapshot("snapshot").expect("snapshot");
    let before = shown(&plain, snapshot);
    let flat = squash_as(&plain, &[snapshot], "flat");
    session.unlink(session.root(), b"f").expect("unlink");
    write(&session, "/g", &[b'g'; 900]).expect("write");
    session.compact().expect("compact");
    plain.delete("snapshot").expect("delete");
    let set = session.publish("session").expect("publish");
    plain.gc(&eager()).expect("gc");
    assert_eq!(shown(&plain, flat), before);
    plain.delete("flat").expect("delete");
    plain.gc(&eager()).expect("gc");
    plain.gc(&eager()).expect("gc");
    assert_eq!(objects(&store, set, "data"), 1);
    assert_sound(&plain);
}

/// A live session reclaims its garbage, except logs to which a squash of its snapshot refers.
#[test]
fn a_session_reclaims_all_logs_but_those_of_a_squash() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let session = begin(&plain, &[]);
    write(&session, "/f", &vec![b'f'; LARGE_BYTES]).expect("write");
    let snapshot = session.snapshot("snapshot").expect("snapshot");
    let before = shown(&plain, snapshot);
    let flat = squash_as(&plain, &[snapshot], "flat");
    plain.delete("snapshot").expect("delete");
    plain.gc(&eager()).expect("gc");
    for round in 0..3 {
        session.unlink(session.root(), if round == 0 { b"f" } else { b"g" }).expect("unlink");
        write(&session, "/g", &vec![round; LARGE_BYTES]).expect("write");
    }
    session.reclaim_data().expect("reclaim");
    assert_eq!(objects(&store, session.set(), "data"), 2, "of the squash, and of the last round");
    assert_eq!(shown(&plain, flat), before);
    plain.delete("flat").expect("delete");
    plain.gc(&eager()).expect("gc");
    session.reclaim_data().expect("reclaim");
    assert_eq!(objects(&store, session.set(), "data"), 1);
    // A session that is given up keeps logs to which a squash refers.
    let snapshot = session.snapshot("snapshot").expect("snapshot");
    let before = shown(&plain, snapshot);
    let flat = squash_as(&plain, &[snapshot], "flat");
    plain.delete("snapshot").expect("delete");
    plain.abandon(session.set()).expect("abandon");
    let report = plain.gc(&eager()).expect("gc");
    assert_eq!(report.data_only_sets, [session.set()], "{report:?}");
    write(&session, "/late", &[1; 900]).expect("into memory");
    assert_eq!(session.flush().expect_err("its number is taken").kind(), Kind::Fenced);
    assert_eq!(shown(&plain, flat), before);
    assert_sound(&plain);
}

/// Symptom: a squash that was killed kept a live session from giving up any garbage until the
/// collection after the next, and until its markers were as old as the grace.
/// Cause: a collection released only the markers that the manifest of a set that it dooms implies,
/// and the manifest of a squash that did not end implies none; and a session waited for doomed sets
/// to become complete.
/// Fix: a collection releases all markers of an open set that it dooms, and doomed sets hold
/// nothing.
#[test]
fn a_squash_that_was_killed_holds_no_logs_after_a_collection() {
    let mut held = 0;
    for stop in 1.. {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let plain = repository(&store);
        let session = begin(&plain, &[]);
        write(&session, "/f", &vec![b'f'; LARGE_BYTES]).expect("write");
        let snapshot = session.snapshot("snapshot").expect("snapshot");
        let fault = Arc::new(FaultStore::new(store.clone(), stop));
        fault.stop_at(stop, FaultEffect::Full);
        let killed =
            repository(&(fault.clone() as SharedStore)).squash(&[snapshot], &single(false));
        if killed.is_ok() {
            break;
        }
        for round in 0..3 {
            session.unlink(session.root(), if round == 0 { b"f" } else { b"g" }).expect("unlink");
            write(&session, "/g", &vec![round; LARGE_BYTES]).expect("write");
        }
        let may_reclaim = session.reclaim_data().expect("reclaim") > 0;
        held += u64::from(!may_reclaim);
        let left: Vec<SetId> = plain.sets().expect("sets").into_iter().collect();
        for set in left.into_iter().filter(|set| ![session.set(), snapshot].contains(set)) {
            plain.abandon(set).expect("give up");
        }
        plain.gc(&GcOptions::default()).expect("gc");
        session.reclaim_data().expect("reclaim");
        assert_eq!(
            objects(&store, session.set(), "data"),
            2,
            "of the snapshot, and the last: {stop}"
        );
        let holders = marker::holders(&*store, session.set()).expect("holders");
        assert_eq!(holders.len(), 2, "of the session and of the snapshot: {stop}, {holders:?}");
        plain.delete("snapshot").expect("delete");
        plain.gc(&eager()).expect("gc");
        assert_sound(&plain);
    }
    assert!(held > 0);
}

#[test]
fn a_squash_of_a_joined_job_keeps_the_data_of_its_parts() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let mut parts = Vec::new();
    for rank in 0..3 {
        let part = plain.begin_part(JobId(7), rank, &[], options()).expect("begin");
        write(&part, &format!("/part{rank}"), &[rank as u8; 900]).expect("write");
        parts.push(part.complete().expect("complete"));
    }
    let joined = plain.publish_job(&parts, "job").expect("join").set;
    let before = shown(&plain, joined);
    let flat = squash_as(&plain, &[joined], "flat");
    // Likewise for a squash of one part alone.
    let alone = squash_as(&plain, &parts[..1], "alone");
    delete_all_but(&plain, "flat");
    plain.gc(&eager()).expect("gc");
    assert_eq!(shown(&plain, flat), before);
    assert!(parts.iter().all(|part| state(&store, *part) == SetState::DataOnly));
    assert!(plain.parts(JobId(7)).expect("parts").is_empty());
    assert_eq!(plain.open_sessions().expect("sessions").len(), 0);
    assert_sound(&plain);
    assert!(plain.open(&[alone], Identity::root()).is_err());
}

/// A squash that stops at any point leaves its bases as they are, and nothing else once its
/// leftovers are collected; markers that it did not release in time are swept.
#[test]
fn what_a_squash_leaves_that_stops_anywhere_is_collected() {
    let run = |store: SharedStore, above: SetId| {
        let repository = repository(&store);
        let (set, _) = repository.squash(&[above], &single(false))?;
        repository.publish(set, "flat")?;
        repository.delete("below")?;
        repository.delete("above")?;
        repository.gc(&eager()).map(drop)
    };
    let build = || {
        let inner: SharedStore = Arc::new(MemoryStore::new());
        let (_, above) = prepared(&inner);
        let before = shown(&repository(&inner), above);
        (inner, above, before)
    };
    let (inner, above, _) = build();
    let counter = Arc::new(FaultStore::new(inner, 1));
    run(counter.clone(), above).expect("squash");
    for stop in 1..=counter.operations() {
        let (inner, above, before) = build();
        let fault = Arc::new(FaultStore::new(inner, stop));
        fault.stop_at(stop, if stop % 2 == 0 { FaultEffect::None } else { FaultEffect::Full });
        assert!(run(fault.clone(), above).is_err());
        let image = fault.after_power_loss().expect("image");
        let plain = repository(&image);
        for set in plain.sets().expect("sets") {
            plain.abandon(set).expect("abandon");
        }
        for _ in 0..2 {
            plain.gc(&eager()).expect("gc");
        }
        for name in plain.names().expect("names").iter().filter(|name| name.name != "below") {
            assert_eq!(shown(&plain, name.set), before, "{stop}: {}", name.name);
        }
        assert_sound(&plain);
        delete_all_but(&plain, "");
        for _ in 0..2 {
            plain.gc(&eager()).expect("gc");
        }
        later(&image).gc(&eager()).expect("gc");
        assert_eq!(crate::gc::objects(&image), Vec::<String>::new(), "{stop}");
    }
}

/// Returns a first squash of `prepared`, whose other names are gone, and its tree.
fn squashed_once() -> (SharedStore, SetId, BTreeMap<Vec<u8>, String>) {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let (_, above) = prepared(&store);
    let first = squash_as(&plain, &[above], "first");
    delete_all_but(&plain, "first");
    plain.gc(&eager()).expect("gc");
    let before = shown(&plain, first);
    (store, first, before)
}

/// Deletes the squashed set, and collects without a grace period, between any two requests of the
/// squash and of its publication.
#[test]
fn a_deletion_and_a_collection_between_any_two_requests_of_a_squash() {
    for at in 0.. {
        let (store, first, before) = squashed_once();
        let other = repository(&store);
        let act = Box::new(move || {
            other.delete("first").expect("delete");
            other.gc(&eager()).expect("gc");
        });
        let interrupted = Interrupted::new(store.clone(), at, act);
        let repository = repository(&(interrupted.clone() as SharedStore));
        let done = repository.squash(&[first], &single(false));
        let done = done.and_then(|(set, _)| repository.publish(set, "second").map(|()| set));
        if !interrupted.has_happened() {
            break;
        }
        check_second(&store, &done, &before, at);
    }
}

/// Vice versa: squashes a set that has lost its name between any two requests of the collection.
#[test]
fn a_squash_between_any_two_requests_of_a_collection() {
    for at in 0.. {
        let (store, first, before) = squashed_once();
        let plain = repository(&store);
        plain.delete("first").expect("delete");
        let outcome = Arc::new(parking_lot::Mutex::new(None));
        let kept = outcome.clone();
        let act = Box::new(move || {
            let done = plain.squash(&[first], &single(false));
            let done = done.and_then(|(set, _)| plain.publish(set, "second").map(|()| set));
            *kept.lock() = Some(done);
        });
        let interrupted = Interrupted::new(store.clone(), at, act);
        repository(&(interrupted as SharedStore)).gc(&eager()).expect("gc");
        let Some(done) = outcome.lock().take() else { break };
        check_second(&store, &done, &before, at);
    }
}

fn check_second(
    store: &SharedStore,
    done: &esker_base::Result<SetId>,
    before: &BTreeMap<Vec<u8>, String>,
    at: u64,
) {
    let plain = repository(store);
    for _ in 0..2 {
        match done {
            Ok(second) => assert_eq!(&shown(&plain, *second), before, "at {at}"),
            Err(error) => {
                let kinds = [Kind::NotFound, Kind::Conflict, Kind::Fenced];
                assert!(kinds.contains(&error.kind()), "at {at}: {error:?}");
                assert!(plain.resolve("second").is_err(), "at {at}");
            }
        }
        assert_sound(&plain);
        plain.gc(&eager()).expect("gc");
    }
    delete_all_but(&plain, "");
    for set in plain.sets().expect("sets") {
        plain.abandon(set).expect("abandon");
    }
    for _ in 0..2 {
        plain.gc(&eager()).expect("gc");
    }
    later(store).gc(&eager()).expect("gc");
    assert_eq!(crate::gc::objects(store), Vec::<String>::new(), "at {at}");
}

/// Lost markers are restored from the manifest's list, and a set whose manifest cannot be read
/// keeps everything that it may need.
#[test]
fn what_a_manifest_lists_is_kept_without_markers_and_what_it_may_list_if_it_is_damaged() {
    let (store, first, before) = squashed_once();
    let plain = repository(&store);
    let below = Manifest::load(&*store, first).expect("manifest").referenced_logs[0].set;
    marker::release(&*store, below, &MarkerHolder::Data(first)).expect("release");
    assert!(!verify(&plain).is_sound());
    let report = plain.gc(&eager()).expect("gc");
    assert_eq!(report.restored_markers, 1, "{report:?}");
    assert_eq!(shown(&plain, first), before);
    assert_sound(&plain);
    let logs = objects(&store, below, "data");
    let number = Manifest::newest_number(&*store, first).expect("number");
    let name = ObjectName::Manifest(first, number + 1).to_string();
    store.put_if_absent(&name, b"no manifest").expect("put");
    let report = plain.gc(&eager()).expect("gc");
    assert_eq!((report.objects, report.problems.len()), (0, 1), "{report:?}");
    assert_eq!(objects(&store, below, "data"), logs);
    // Without a name it is deleted, and then so is everything that it may have needed.
    plain.delete("first").expect("delete");
    plain.gc(&eager()).expect("gc");
    assert_eq!(objects(&store, below, "data"), 0);
}
