// SPDX-License-Identifier: Apache-2.0
//! Parts of jobs with names or snapshots of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{CountedStore, MemoryStore, SharedStore};
use esker_fs::identity::Identity;
use esker_fs::job::{JobId, JobPart};
use esker_fs::marker::{self, MarkerHolder};
use esker_fs::namespace::{FollowLinks, Namespace};
use esker_fs::repository::Repository;
use esker_fs::session::SessionOptions;
use esker_table::manifest::{Manifest, SetId, SetState};
use parking_lot::Mutex;

use crate::gc::{eager, later, options, publish, write};
use crate::interleave::Interrupted;

fn repository() -> Repository {
    Repository::new(Arc::new(MemoryStore::new()))
}

fn read(namespace: &Namespace, path: &str) -> Vec<u8> {
    let inode = namespace.stat(path, FollowLinks::No).expect("stat");
    namespace.read(&inode, 0, 1_000).expect("read").to_vec()
}

/// Symptom: a snapshot of a part counted as another part of its rank; publishing the job joined it,
/// and reopening the parts of the job would have reopened the published snapshot.
/// Cause: it had all properties of the part, including those that identify it as a part.
/// Fix: it has all others.
#[test]
fn a_snapshot_of_a_part_is_no_part() {
    let repository = repository();
    let id = JobId::random();
    let part = repository.begin_part(id, 0, &[], options()).expect("begin");
    write(&part, "/f", &[1; 900]).expect("write");
    let snapshot = part.snapshot("snapshot").expect("snapshot");
    let set = part.complete().expect("complete");
    let parts: Vec<SetId> =
        repository.parts(id).expect("parts").into_iter().map(|part| part.set).collect();
    assert_eq!(parts, [set]);
    let shown = repository.open(&[snapshot], Identity::root()).expect("open");
    assert_eq!(read(&shown, "/f"), [1; 900]);
}

/// Symptom: a part that had been published under a name of its own could not be opened by that name
/// after the parts of its job had been reopened.
/// Cause: reopening a part checked for sets that build on it, but not for names.
/// Fix: a part with a name stays as it is.
#[test]
fn a_part_with_a_name_is_not_opened_again() {
    let repository = repository();
    let id = JobId::random();
    let part = repository.begin_part(id, 0, &[], options()).expect("begin");
    write(&part, "/f", &[1; 900]).expect("write");
    let set = part.publish("part").expect("publish");
    let refused = repository.reopen_parts(id).expect_err("it has a name");
    assert_eq!(refused.kind(), Kind::Invalid);
    let shown = repository.open(&[set], Identity::root()).expect("open");
    assert_eq!(read(&shown, "/f"), [1; 900]);
    repository.delete("part").expect("delete");
    assert_eq!(repository.reopen_parts(id).expect("it was given up"), []);
}

/// Symptom: a part that had been given up was listed, joined and reopened until it was collected.
/// Cause: all sets that name the job counted as parts.
/// Fix: only those that are held for their own sake, or for the job's, do.
#[test]
fn a_part_that_was_given_up_is_none() {
    let repository = repository();
    let id = JobId::random();
    let given_up = repository.begin_part(id, 0, &[], options()).expect("begin");
    write(&given_up, "/f", &[1; 900]).expect("write");
    given_up.snapshot("snapshot").expect("snapshot");
    assert_eq!(repository.parts(id).expect("parts").len(), 1);
    repository.abandon(given_up.set()).expect("abandon");
    assert_eq!(repository.parts(id).expect("parts"), []);
    let kept = repository.begin_part(id, 0, &[], options()).expect("begin");
    write(&kept, "/f", &[2; 900]).expect("write");
    let part = |is_complete| JobPart { rank: 0, set: kept.set(), is_complete };
    assert_eq!(repository.parts(id).expect("parts"), [part(false)]);
    kept.complete().expect("complete");
    repository.publish_job(&[kept.set()], "job").expect("publish");
    assert_eq!(repository.parts(id).expect("parts"), [part(true)], "the job holds it");
    assert_eq!(repository.reopen_parts(id).expect_err("it is joined").kind(), Kind::Invalid);
}

/// Symptom: two processes that began the part of one rank at once both succeeded, and the job got the
/// changes of both.
/// Cause: each looked for the part, found none, and then began.
/// Fix: each puts a claim before it looks, and keeps a set that has not begun from beginning.
#[test]
fn of_two_that_begin_one_part_at_once_at_most_one_succeeds() {
    let id = JobId(3);
    let begin = move |store: &SharedStore| {
        let begun = Repository::new(store.clone()).begin_part(id, 1, &[], options());
        begun.map(|session| session.end().expect("end"))
    };
    let (mut firsts, mut seconds) = (0, 0);
    for at in 0.. {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let (inner, second) = (store.clone(), Arc::new(Mutex::new(None)));
        let done = second.clone();
        let act = Box::new(move || *done.lock() = Some(begin(&inner)));
        let interrupted = Interrupted::new(store.clone(), at, act);
        let shared: SharedStore = interrupted.clone();
        let first = begin(&shared);
        if !interrupted.has_happened() {
            first.expect("it was alone");
            break;
        }
        let second = second.lock().take().expect("it has happened");
        for error in [&first, &second].into_iter().filter_map(|begun| begun.as_ref().err()) {
            assert!(matches!(error.kind(), Kind::Exists | Kind::Conflict), "at {at}: {error}");
            assert!(error.to_string().contains("rank 1"), "at {at}: {error}");
        }
        (firsts, seconds) =
            (firsts + u32::from(first.is_ok()), seconds + u32::from(second.is_ok()));
        let plain = Repository::new(store.clone());
        let parts = plain.parts(id).expect("parts");
        let begun = usize::from(first.is_ok()) + usize::from(second.is_ok());
        assert!(begun < 2 && parts.len() == begun, "at {at}: {first:?}, {second:?}, {parts:?}");
        assert_eq!(begin(&store).is_ok(), begun == 0, "at {at}");
    }
    assert!(firsts > 0 && seconds > 0, "{firsts} and {seconds}");
}

/// Claims go with their parts, whether these were given up or never began.
#[test]
fn claims_of_parts_that_are_gone_are_collected() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = Repository::new(store.clone());
    let kept = repository.begin_part(JobId(3), 0, &[], options()).expect("begin");
    let left = repository.begin_part(JobId(3), 1, &[], options()).expect("begin");
    repository.abandon(left.set()).expect("abandon");
    let claim = |rank: u32, set: SetId| format!("part/{}/{rank:08x}/{set}", JobId(3));
    store.put_if_absent(&claim(2, SetId(9)), b"").expect("a claim without a set");
    repository.gc(&eager()).expect("gc");
    let names: Vec<String> =
        store.list("part/").expect("list").into_iter().map(|object| object.name).collect();
    assert_eq!(names, [claim(0, kept.set())]);
    assert_eq!(repository.parts(JobId(3)).expect("parts").len(), 1);
    // A claim without a set was doomed, so its process cannot begin any more.
    assert_eq!(Manifest::load(&*store, SetId(9)).expect("load").state, SetState::Doomed);
}

/// Symptom: each rank that began its part read the manifests of all change sets of the store.
/// Cause: parts were found by reading every set.
/// Fix: claims list the parts of a job.
#[test]
fn finding_parts_costs_the_same_in_a_large_store() {
    let counted = Arc::new(CountedStore::new(Arc::new(MemoryStore::new())));
    let repository = Repository::new(counted.clone());
    let cost = |rank: u32| {
        let before = counted.counts().rounds;
        repository.begin_part(JobId(3), rank, &[], options()).expect("begin").end().expect("end");
        assert_eq!(repository.parts(JobId(3)).expect("parts").len(), rank as usize + 1);
        counted.counts().rounds - before
    };
    let (first, second) = (cost(0), cost(1));
    for number in 0..20 {
        publish(&repository, &[], &format!("other{number}")).expect("publish");
    }
    assert_eq!(cost(2) - second, second - first);
}

/// Symptom: a session to which its user gave certain properties was deleted, or mistaken for a part
/// of a job.
/// Cause: the internal state that collections and jobs record about a set was stored among user
/// properties.
/// Fix: it is stored in fields of the manifest.
#[test]
fn what_a_user_says_of_a_set_decides_nothing() {
    let repository = repository();
    let id = JobId::random();
    let words = [
        ("esker.job", id.to_string()),
        ("esker.rank", "0".to_owned()),
        ("esker.collect", "doomed".to_owned()),
    ];
    let words: BTreeMap<String, String> =
        words.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let options = SessionOptions { properties: words.clone(), ..options() };
    let session = repository.begin(&[], options).expect("begin");
    write(&session, "/f", &[1; 900]).expect("write");
    let set = session.publish("named").expect("publish");
    assert_eq!(repository.parts(id).expect("parts"), []);
    repository.gc(&eager()).expect("gc");
    let manifest = Manifest::load(&**repository.store(), set).expect("manifest");
    assert_eq!((manifest.properties, manifest.job), (words, None));
    let shown = repository.open(&[set], Identity::root()).expect("open");
    assert_eq!(read(&shown, "/f"), [1; 900]);
}

/// Symptom: a reopened part of a job counted as given up, and was collected.
/// Cause: one user published the part under a name; another deleted that name and reopened the
/// part; then the publisher released the session's marker, as it does once a set has a name. A
/// collection that sweeps such a marker did the same.
/// Fix: after releasing the marker of a part, a process checks whether the part is open, and puts
/// it back; a reopen puts the marker after the commit that reopens the part.
#[test]
fn a_part_that_loses_its_name_and_is_opened_again_keeps_its_session() {
    let publish: fn(&Repository, SetId) = |repository, part| {
        drop(repository.publish(part, "part"));
    };
    let publish_and_collect: fn(&Repository, SetId) = |repository, part| {
        drop(repository.publish(part, "part"));
        marker::hold(&**repository.store(), part, &MarkerHolder::Session).expect("hold");
        repository.gc(&eager()).expect("gc");
    };
    let mut reopened = 0;
    for work in [publish, publish_and_collect] {
        for at in 0.. {
            let store: SharedStore = Arc::new(MemoryStore::new());
            let plain = Repository::new(store.clone());
            let id = JobId::random();
            let part = plain.begin_part(id, 0, &[], options()).expect("begin");
            write(&part, "/f", &[1; 900]).expect("write");
            let set = part.complete().expect("complete");
            drop(part);
            let other = plain.clone();
            let act = Box::new(move || {
                drop(other.delete("part"));
                drop(other.reopen_parts(id));
            });
            let interrupted = Interrupted::new(store.clone(), at, act);
            work(&Repository::new(interrupted.clone() as SharedStore), set);
            if !interrupted.has_happened() {
                break;
            }
            if Manifest::load(&*store, set).expect("manifest").state == SetState::Open {
                reopened += 1;
                let is_held = marker::is_held(&*store, set, &MarkerHolder::Session).expect("look");
                assert!(is_held, "at {at}");
                plain.gc(&eager()).expect("gc");
                plain.resume(set, options()).expect("resume").complete().expect("complete");
            }
        }
    }
    assert!(reopened > 2);
}

/// Symptom: none seen; a collection took the marker of a part that was complete for needless, as it is
/// that of a squash that died, though the part may be opened again and need what it holds.
/// Cause: whether a complete set takes changes again was not asked.
/// Fix: markers of parts stay until the part goes.
#[test]
fn a_collection_leaves_the_markers_of_a_part_that_may_be_opened_again() {
    let repository = repository();
    let store = repository.store().clone();
    let needed = publish(&repository, &[], "needed").expect("publish");
    let id = JobId::random();
    let part = repository.begin_part(id, 0, &[], options()).expect("begin");
    write(&part, "/f", &[1; 900]).expect("write");
    let set = part.complete().expect("complete");
    drop(part);
    for holder in [MarkerHolder::Set(set), MarkerHolder::Data(set)] {
        marker::hold(&*store, needed, &holder).expect("hold");
    }
    repository.delete("needed").expect("delete");
    repository.gc(&eager()).expect("gc");
    for holder in [MarkerHolder::Set(set), MarkerHolder::Data(set)] {
        assert!(marker::is_held(&*store, needed, &holder).expect("look"), "{holder:?}");
    }
    repository.open(&[needed], Identity::root()).expect("it is kept");
    repository.reopen_parts(id).expect("opened");
    repository.gc(&eager()).expect("gc");
    repository.open(&[needed], Identity::root()).expect("it is kept");
    // Once the part is gone, what it held goes.
    repository.abandon(set).expect("give up");
    for _ in 0..2 {
        repository.gc(&eager()).expect("gc");
    }
    later(&store).gc(&eager()).expect("gc");
    assert_eq!(repository.sets().expect("sets"), []);
}
