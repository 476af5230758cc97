// SPDX-License-Identifier: Apache-2.0
//! Publications on far stores, where steps that do not depend on each other are under way together:
//! others take the session over, give it up, collect or publish between any two requests, and each
//! request fails, is cut short, or loses its answer. The same runs on a near store.

use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{CountedStore, FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::tree::Durability;

use crate::gc::{eager, later, options, repository, write};
use crate::interrupted_store::Interrupted;
use crate::verify::assert_sound;

fn memory() -> SharedStore {
    Arc::new(MemoryStore::new())
}

/// `inner` as a store that takes as many requests at once as S3, or one after the other.
fn at_distance(inner: SharedStore, is_far: bool) -> SharedStore {
    let counted = CountedStore::new(inner);
    Arc::new(if is_far { counted.far(64) } else { counted })
}

fn synced() -> SessionOptions {
    let mut options = options();
    options.tree.durability = Durability::Always;
    options.take_over = true;
    options
}

/// A session with a file `/a`, which is durable.
fn begin(store: &SharedStore) -> Session {
    let repository = Repository::with(store.clone(), 1 << 20, Arc::new(SystemClock));
    let session = repository.begin(&[], synced()).expect("begin");
    write(&session, "/a", &[b'x'; 900]).expect("write");
    session
}

fn shows(repository: &Repository, name: &str) -> bool {
    let Ok(named) = repository.resolve(name) else { return false };
    let namespace = repository.open(&[named.set], Identity::root()).expect("a name can be opened");
    let inode = namespace.stat("/a", FollowLinks::No).expect("what was durable is there");
    namespace.read_all(&inode, &mut |_| Ok(())).expect("read");
    true
}

/// Publishes a session left behind, as `esker publish @SET NAME` does.
fn publish_left(repository: &Repository, set: SetId, name: &str) -> Result<()> {
    match Manifest::load(&**repository.store(), set)?.state {
        SetState::Open => repository.resume(set, synced())?.publish(name).map(drop),
        _ => repository.publish(set, name),
    }
}

/// The concurrent action of another process on the session of a set.
type Meanwhile = fn(&Repository, SetId);

const MEANWHILE: [(&str, Meanwhile); 5] = [
    ("collection", |repository, _| drop(repository.gc(&eager()).expect("gc"))),
    ("takeover", |repository, set| drop(repository.resume(set, synced()))),
    ("takeover and publication", |repository, set| {
        let taken = repository.resume(set, synced());
        drop(taken.and_then(|session| session.publish("other")));
    }),
    ("giving up", |repository, set| {
        drop(repository.give_up(set, &synced()));
        repository.gc(&eager()).expect("gc");
    }),
    ("publication of the same set", |repository, set| {
        drop(repository.publish(set, "n"));
        drop(repository.delete("n"));
        repository.gc(&eager()).expect("gc");
    }),
];

/// For any concurrent action of another process, a publication that succeeds is there. After one
/// that fails, the durable changes can still be published, unless they were given up.
#[test]
fn others_between_any_two_requests_of_a_publication_lose_nothing() {
    for (other, act) in MEANWHILE {
        for is_far in [true, false] {
            for at in 0.. {
                let inner = memory();
                let interrupted = Interrupted::idle(inner.clone(), at);
                let session = begin(&at_distance(interrupted.clone(), is_far));
                let set = session.set();
                let plain = repository(&inner);
                interrupted.begin(Box::new(|_| true), Box::new(move || act(&plain, set)));
                let done = session.publish("n");
                if !interrupted.has_happened() {
                    break;
                }
                drop(session);
                let plain = repository(&inner);
                let case = format!("{other}, far: {is_far}, at {at}: {done:?}");
                let was_named = shows(&plain, "n") || shows(&plain, "other");
                // The name may have been deleted on purpose right after it was put.
                let may_be_gone = other == "giving up" || other == "publication of the same set";
                if done.is_ok() {
                    assert!(was_named || may_be_gone, "{case}");
                } else if !was_named && !may_be_gone {
                    publish_left(&plain, set, "n")
                        .unwrap_or_else(|error| panic!("{case}: {error}"));
                    assert!(shows(&plain, "n"), "{case}");
                }
                if other == "giving up" && done.is_ok() && !was_named {
                    panic!("{case}: the name is not there");
                }
                plain.gc(&eager()).expect("gc");
                later(&inner).gc(&eager()).expect("gc");
                let is_named = shows(&plain, "n") || shows(&plain, "other");
                assert!(is_named || !was_named, "{case}");
                assert_sound(&plain);
            }
        }
    }
}

/// Each request fails with each error, is cut short, or loses its answer; or the process dies
/// there.
#[test]
fn whatever_fails_in_a_publication_it_can_be_repeated() {
    for is_far in [true, false] {
        for (kind, count) in
            [(Kind::NoSpace, 1), (Kind::Unavailable, 1), (Kind::Unavailable, 3), (Kind::Closed, 0)]
        {
            for effect in [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full] {
                for at in 1.. {
                    let inner = memory();
                    let fault = Arc::new(FaultStore::new(inner.clone(), at));
                    let session = begin(&at_distance(fault.clone(), is_far));
                    let set = session.set();
                    let first = fault.operations() + at;
                    match count {
                        0 => fault.stop_at(first, effect),
                        count => (first..first + count)
                            .for_each(|at| fault.fail_at_with(at, kind, effect)),
                    }
                    let done = session.publish("n");
                    if fault.operations() < first {
                        break;
                    }
                    let case =
                        format!("far: {is_far}, {count} {kind:?}, {effect:?}, at {at}: {done:?}");
                    let plain = repository(&inner);
                    if done.is_ok() {
                        assert!(shows(&plain, "n"), "{case}");
                    } else if kind == Kind::NoSpace {
                        // As docs/guide/durability.md says, unless the state of the store is
                        // unknown.
                        if let Err(again) = session.publish("n") {
                            assert_eq!(again.kind(), Kind::Closed, "{case}: {again}");
                        }
                    }
                    drop(session);
                    if !shows(&plain, "n") {
                        plain.gc(&eager()).expect("gc");
                        publish_left(&plain, set, "n")
                            .unwrap_or_else(|error| panic!("{case}: {error}"));
                    }
                    plain.gc(&eager()).expect("gc");
                    assert!(shows(&plain, "n"), "{case}");
                    assert_sound(&plain);
                }
            }
        }
    }
}
