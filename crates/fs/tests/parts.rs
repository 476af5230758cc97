// SPDX-License-Identifier: Apache-2.0
//! Parts of jobs with names or snapshots of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{MemoryStore, SharedStore};
use esker_fs::job::{JobId, JobPart};
use esker_fs::repository::Repository;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::session::SessionOptions;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::manifest::{Manifest, SetId, SetState};

use crate::gc::{eager, later, options, publish, write};
use crate::interrupted_store::Interrupted;

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
/// Fix: a process that reopens a part puts a marker of its own, which no other process removes.
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
                let holders = marker::holders(&*store, set).expect("list");
                assert!(holders.iter().any(MarkerHolder::is_session), "at {at}: {holders:?}");
                plain.gc(&eager()).expect("gc");
                plain.resume(set, options()).expect("resume").complete().expect("complete");
            }
        }
    }
    assert!(reopened > 2);
}

/// Symptom: none seen; a collection considered the marker of a complete part needless, like that of
/// a squash that died, although the part may be opened again and need the set that it holds.
/// Cause: the collection did not check whether a complete set takes changes again.
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
    // Once the part is gone, the sets that it held go, too.
    repository.abandon(set).expect("give up");
    for _ in 0..2 {
        repository.gc(&eager()).expect("gc");
    }
    later(&store).gc(&eager()).expect("gc");
    assert_eq!(repository.sets().expect("sets"), []);
}
