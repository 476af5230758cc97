// SPDX-License-Identifier: Apache-2.0
//! Far stores: number of round trips where independent requests run concurrently, with the same
//! guarantees as on near stores.

use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{
    CountedStore, FaultEffect, FaultStore, MemoryStore, RequestCounts, SharedStore,
};
use esker_base::{Kind, Result};
use esker_fs::repository::Repository;
use esker_fs::retention::gc::GcOptions;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::session::SessionOptions;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::tree::Durability;

use crate::gc::{options, write};
use crate::verify::assert_sound;

/// More than fits into a record.
const CONTENT: &[u8] = &[7; 5_000];

/// Returns a store that allows as many concurrent requests as S3.
fn far(inner: SharedStore) -> Arc<CountedStore> {
    Arc::new(CountedStore::new(inner).far(64))
}

fn repository(store: &Arc<CountedStore>) -> Repository {
    Repository::with(store.clone(), 64 << 20, Arc::new(SystemClock))
}

fn spent<T>(store: &CountedStore, act: impl FnOnce() -> T) -> (T, RequestCounts) {
    let before = store.counts();
    let done = act();
    (done, store.counts() - before)
}

/// Publishes `name` with `files` files of [`CONTENT`] in one directory.
fn publish_files(repository: &Repository, name: &str, files: usize) -> SetId {
    let session = repository.begin(&[], options()).expect("begin");
    session.mkdir(&session.namespace().dir("/").expect("root"), b"d", 0o755).expect("mkdir");
    for file in 0..files {
        write(&session, &format!("/d/{file}"), CONTENT).expect("write");
    }
    session.publish(name).expect("publish")
}

/// Symptom: a collection that found nothing took two or more round trips for each set and name.
/// Cause: requests were made one after the other, and the same manifests were read repeatedly.
/// Fix: independent requests run concurrently, and folders are swept only where the survey found
/// something.
#[test]
fn a_collection_of_nothing_takes_few_round_trips() {
    let store = far(Arc::new(MemoryStore::new()));
    let repository = repository(&store);
    let mut base = publish_files(&repository, "base", 3);
    for name in 0..12 {
        let session = repository.begin(&[base], options()).expect("begin");
        write(&session, &format!("/d/more-{name}"), CONTENT).expect("write");
        base = session.publish(&format!("name-{name}")).expect("publish");
    }
    let left = repository.begin(&[base], options()).expect("begin");
    let collect = || {
        let left = repository.give_up_left(None, false, &options()).expect("sessions");
        assert!(left.given_up.is_empty());
        repository.gc(&GcOptions::default()).expect("gc")
    };
    let (report, counts) = spent(&store, collect);
    assert_eq!((report.objects, report.sets.len()), (0, 0));
    assert!(counts.rounds <= 9, "{counts:?}");
    drop(left);
}

/// Symptom: a session of one file took 39 round trips from its beginning to its name.
/// Cause: independent requests were made one after the other; a flush, a completion and a check
/// each committed or listed; logs that were never needed were created and deleted in between.
/// Fix: one commit says that everything is in tables and the set is complete; independent requests
/// run concurrently.
#[test]
fn a_session_with_one_file_takes_few_round_trips() {
    let store = far(Arc::new(MemoryStore::new()));
    let base = publish_files(&repository(&store), "base", 3);
    let repository = repository(&store);
    let (session, begun) = spent(&store, || repository.begin(&[base], options()).expect("begin"));
    let (_, written) = spent(&store, || write(&session, "/d/new", CONTENT).expect("write"));
    let (_, published) = spent(&store, || session.publish("new").expect("publish"));
    let rounds = [begun.rounds, written.rounds, published.rounds];
    assert!(rounds.iter().sum::<u64>() <= 10, "{rounds:?}");
    assert_sound(&repository);
    assert!(shows(&repository, "new", "/d/new") && shows(&repository, "new", "/d/0"));
}

/// Symptom: 100 small files of one directory took 100 requests.
/// Cause and fix: see `data::read_ahead`.
#[test]
fn neighbours_in_a_packed_log_come_together() {
    let store = far(Arc::new(MemoryStore::new()));
    let set = publish_files(&repository(&store), "base", 100);
    let namespace = repository(&store).open(&[set], Identity::root()).expect("open");
    let read = || {
        for file in (0..100).rev() {
            let inode = namespace.stat(format!("/d/{file}"), FollowLinks::No).expect("stat");
            assert_eq!(namespace.read(&inode, 0, 1 << 20).expect("read"), CONTENT);
        }
    };
    let ((), counts) = spent(&store, read);
    assert!(counts.reads + counts.sizes + counts.lists <= 10, "{counts:?}");
}

fn shows(repository: &Repository, name: &str, path: &str) -> bool {
    let set = repository.resolve(name).expect("the name").set;
    let namespace = repository.open(&[set], Identity::root()).expect("open");
    match namespace.stat(path, FollowLinks::No) {
        Err(error) if error.kind() == Kind::NotFound => false,
        found => {
            namespace.read_all(&found.expect("stat"), &mut |_| Ok(())).expect("read");
            true
        }
    }
}

fn synced() -> SessionOptions {
    let mut options = options();
    options.tree.durability = Durability::Always;
    options
}

/// A session continues after its name was found taken: changes that it acknowledges then survive
/// its death.
#[test]
fn a_session_whose_name_is_taken_goes_on() {
    let near: SharedStore = Arc::new(MemoryStore::new());
    let stores = [("far", far(near.clone())), ("near", Arc::new(CountedStore::new(near)))];
    for (distance, store) in stores {
        let repository = repository(&store);
        let taken = format!("taken-{distance}");
        publish_files(&repository, &taken, 1);
        let session = repository.begin(&[], synced()).expect("begin");
        write(&session, "/first", CONTENT).expect("write");
        assert_eq!(session.publish(&taken).expect_err("taken").kind(), Kind::Exists);
        write(&session, "/second", CONTENT).expect("write");
        let set = session.set();
        drop(session);
        let session = repository.resume(set, synced()).expect("resume");
        let free = format!("free-{distance}");
        session.publish(&free).expect("publish");
        assert!(shows(&repository, &free, "/first") && shows(&repository, &free, "/second"));
        assert!(!marker::is_held(&*store, set, &MarkerHolder::Session).expect("look"));
        assert_sound(&repository);
    }
}

/// Each request of a session on a far store fails once, or its response is lost: acknowledged
/// changes are in the published set, now or after a retry.
#[test]
fn each_request_of_a_session_may_fail() {
    for effect in [FaultEffect::None, FaultEffect::Full] {
        for at in 1.. {
            let memory: SharedStore = Arc::new(MemoryStore::new());
            let base = publish_files(&repository(&far(memory.clone())), "base", 1);
            let fault = Arc::new(FaultStore::new(memory.clone(), 1));
            let failing = repository(&far(fault.clone()));
            fault.fail_at_with(at, Kind::Unavailable, effect);
            let (set, done) = run(&failing, base);
            let is_over = fault.operations() < at;
            let well = repository(&far(memory));
            match done {
                Ok(()) => assert!(shows(&well, "new", "/new"), "request {at}"),
                Err(_) => {
                    if let Some(set) = set {
                        finish(&well, set).expect("it can be gone on with");
                        assert!(shows(&well, "new", "/new"), "request {at}");
                    }
                }
            }
            assert_sound(&well);
            well.gc(&GcOptions::default()).expect("gc");
            assert_sound(&well);
            if is_over {
                break;
            }
        }
    }
}

/// Begins a session, writes a file and publishes; returns the set if it was begun.
fn run(repository: &Repository, base: SetId) -> (Option<SetId>, Result<()>) {
    let session = match repository.begin(&[base], synced()) {
        Ok(session) => session,
        Err(error) => return (None, Err(error)),
    };
    let set = session.set();
    let written = write(&session, "/new", CONTENT);
    let is_written = written.is_ok();
    let done = written.and_then(|()| session.publish("new").map(drop));
    (is_written.then_some(set), done)
}

/// Publishes the set of `run`, if it is not published yet.
fn finish(repository: &Repository, set: SetId) -> Result<()> {
    match Manifest::load(&**repository.store(), set)?.state {
        SetState::Open => repository.resume(set, synced())?.publish("new").map(drop),
        _ => repository.publish(set, "new"),
    }
}
