// SPDX-License-Identifier: Apache-2.0
//! Sessions, parts and squashes whose beginning fails or is given up, although another process
//! already has them.

use std::sync::Arc;
use std::sync::mpsc::channel;

use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::job::JobId;
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::repository::Repository;
use esker_fs::retention::marker;
use esker_fs::session::{Session, SessionOptions};
use esker_table::manifest::SetId;
use esker_table::object_name::ObjectFolder;
use esker_table::tree::Durability;

use crate::gc::{eager, options, publish, write};
use crate::interrupted_store::Interrupted;

/// A job.
pub const JOB: JobId = JobId(77);
/// Requests of the longest operation here.
const REQUESTS_MAX: u64 = 40;

/// An empty store.
pub fn memory() -> SharedStore {
    Arc::new(MemoryStore::new())
}

/// The repository in `store`.
pub fn repository(store: &SharedStore) -> Repository {
    Repository::new(store.clone())
}

/// Options that take a session over from its writer.
pub fn taking_over() -> SessionOptions {
    SessionOptions { take_over: true, ..options() }
}

/// Collects all garbage; returns the sets that were deleted.
pub fn collect(store: &SharedStore) -> Vec<SetId> {
    repository(store).gc(&eager()).expect("gc").sets
}

/// Resumes `set` and syncs a change to it.
fn take_over(store: &SharedStore, set: SetId, options: SessionOptions) -> Result<Session> {
    let session = repository(store).resume(set, options)?;
    write(&session, "/late", b"2")?;
    session.sync().map(|()| session)
}

/// The first part of the job, as another process finds it.
fn found_part(store: &SharedStore) -> Option<SetId> {
    repository(store).parts(JOB).ok()?.first().map(|part| part.set)
}

/// Begins a part while `fault` happens, and while another process, at each request, takes the part
/// over as soon as it finds it. Changes that the other process synced stay.
fn begin_beside_a_takeover(options: &SessionOptions, fault: impl Fn(&FaultStore, u64)) {
    let mut takeovers = 0;
    for stop in 1..REQUESTS_MAX {
        for at in 0..REQUESTS_MAX {
            let (store, (sender, receiver)) = (memory(), channel());
            let plain = store.clone();
            let act = Box::new(move || {
                let taken = found_part(&plain).map(|set| take_over(&plain, set, taking_over()));
                taken.into_iter().flatten().for_each(|session| sender.send(session).expect("kept"));
            });
            let faulty = Arc::new(FaultStore::new(store.clone(), 3));
            fault(&faulty, stop);
            let shared: SharedStore = Interrupted::new(faulty, at, act);
            let begun = repository(&shared).begin_part(JOB, 0, &[], options.clone()).map(drop);
            let Ok(second) = receiver.try_recv() else { continue };
            takeovers += 1;
            assert_eq!(collect(&store), [], "fault at {stop}, takeover at {at}: {begun:?}");
            second.flush().expect("nobody has taken it over again");
        }
    }
    assert!(takeovers > 0);
}

/// Symptom: a session that another process had taken over, and synced, was collected.
/// Cause: the process that had begun it failed, and removed its marker.
/// Fix: markers of a set that has begun go only with a commit that gives it up, which fails for a
/// set that has another writer.
#[test]
fn a_begin_that_fails_leaves_a_session_that_was_taken_over() {
    begin_beside_a_takeover(&options(), |_, _| {});
    let mut always = taking_over();
    always.tree.durability = Durability::Always;
    begin_beside_a_takeover(&always, |_, _| {});
}

#[test]
fn a_begin_beside_a_takeover_may_lose_an_answer_or_its_store() {
    let lost =
        |fault: &FaultStore, at| fault.fail_at_with(at, Kind::Unavailable, FaultEffect::Full);
    begin_beside_a_takeover(&options(), lost);
    begin_beside_a_takeover(&options(), |fault, at| fault.fail_at(at, Kind::Unavailable));
    begin_beside_a_takeover(&options(), |fault, at| fault.fill_at(at, FaultEffect::None));
}

#[test]
fn a_session_that_is_taken_over_and_published_keeps_its_bases() {
    for at in 0..REQUESTS_MAX {
        let store = memory();
        let base = publish(&repository(&store), &[], "base").expect("publish");
        let plain = store.clone();
        let act = Box::new(move || {
            let Some(set) = found_part(&plain) else { return };
            drop(take_over(&plain, set, taking_over()).and_then(|session| session.publish("x")));
        });
        let shared: SharedStore = Interrupted::new(store.clone(), at, act);
        drop(repository(&shared).begin_part(JOB, 0, &[base], options()));
        let found = repository(&store).verify(&VerifyOptions::default()).expect("verify");
        assert!(repository(&store).resolve("x").is_err() || found.is_sound(), "at {at}");
    }
}

/// Symptom: a rank that was started again began a second part while another process wrote the
/// first.
/// Cause: the begin of the first had lost an answer, and removed the session's marker.
#[test]
fn a_rank_whose_begin_lost_an_answer_has_one_writer() {
    for stop in 1..REQUESTS_MAX {
        for at in 0..REQUESTS_MAX {
            let (store, (sender, receiver)) = (memory(), channel());
            let plain = store.clone();
            // Careful: it takes nothing over from a process that is alive.
            let act = Box::new(move || {
                let taken = found_part(&plain).map(|set| take_over(&plain, set, options()));
                taken.into_iter().flatten().for_each(|session| sender.send(session).expect("kept"));
            });
            let faulty = Arc::new(FaultStore::new(store.clone(), 3));
            faulty.fail_at_with(stop, Kind::Unavailable, FaultEffect::Full);
            let shared: SharedStore = Interrupted::new(faulty, at, act);
            drop(repository(&shared).begin_part(JOB, 0, &[], options()));
            let Ok(second) = receiver.try_recv() else { continue };
            let again = repository(&store).begin_part(JOB, 0, &[], options());
            let written = write(&second, "/more", b"3").and_then(|()| second.sync());
            assert!(again.is_err() || written.is_err(), "lost at {stop}, resumed at {at}");
        }
    }
}

#[test]
fn a_begin_that_fails_alone_leaves_nothing() {
    for effect in [FaultEffect::None, FaultEffect::Full] {
        for stop in 1..REQUESTS_MAX {
            let store = memory();
            let faulty = Arc::new(FaultStore::new(store.clone(), 3));
            faulty.fail_at_with(stop, Kind::Unavailable, effect);
            if repository(&(faulty as SharedStore)).begin_part(JOB, 0, &[], options()).is_ok() {
                continue;
            }
            assert_eq!(repository(&store).open_sessions().expect("list").len(), 0, "at {stop}");
            repository(&store).begin_part(JOB, 0, &[], options()).expect("the rank is free");
        }
    }
}

/// Symptom, cause and fix as for sessions.
#[test]
fn a_squash_that_is_taken_over_leaves_its_set() {
    let mut takeovers = 0;
    for at in 0..2 * REQUESTS_MAX {
        let (store, (sender, receiver)) = (memory(), channel());
        let a = publish(&repository(&store), &[], "a").expect("publish");
        let b = publish(&repository(&store), &[a], "b").expect("publish");
        let plain = store.clone();
        let act = Box::new(move || {
            let open = repository(&plain).open_sessions().expect("list");
            let taken = open.first().map(|found| take_over(&plain, found.node.set, taking_over()));
            taken.into_iter().flatten().for_each(|session| sender.send(session).expect("kept"));
        });
        let shared: SharedStore = Interrupted::new(store.clone(), at, act);
        let one = SquashOptions { threads: 1, ..SquashOptions::default() };
        let squashed = repository(&shared).squash(&[b], &one).map(drop);
        let Ok(second) = receiver.try_recv() else { continue };
        takeovers += 1;
        assert_eq!(collect(&store), [], "at {at}: {squashed:?}");
        second.flush().expect("nobody has taken it over again");
    }
    assert!(takeovers > 0);
}

#[test]
fn a_squash_of_a_session_is_refused_before_it_begins() {
    for stop in 1..REQUESTS_MAX {
        let store = memory();
        let open = repository(&store).begin(&[], options()).expect("begin");
        open.end().expect("end");
        let fault = Arc::new(FaultStore::new(store.clone(), 3));
        fault.stop_at(stop, FaultEffect::None);
        let one = SquashOptions { threads: 1, ..SquashOptions::default() };
        repository(&(fault as SharedStore)).squash(&[open.set()], &one).expect_err("it is open");
        collect(&store);
        let found = repository(&store).verify(&VerifyOptions::default()).expect("verify");
        assert!(found.is_sound(), "stopped at {stop}: {:?}", found.findings);
    }
}

/// Symptom: a collection deleted the synced changes of a session, and its rank got a second part.
/// Cause: it was abandoned before it began, which removed its marker and did not keep it from
/// beginning.
#[test]
fn a_session_that_is_abandoned_before_it_begins_does_not_begin() {
    for at in 0..REQUESTS_MAX {
        let store = memory();
        let plain = store.clone();
        let act = Box::new(move || {
            for marker in marker::all(&*plain).expect("list") {
                repository(&plain).abandon(marker.set).expect("abandon");
            }
        });
        let shared: SharedStore = Interrupted::new(store.clone(), at, act);
        let begun = repository(&shared).begin_part(JOB, 0, &[], options());
        let synced = begun.and_then(|session| {
            write(&session, "/a", b"1")?;
            session.sync().map(|()| session.set())
        });
        let Ok(set) = synced else { continue };
        assert!(!marker::holders(&*store, set).expect("list").is_empty(), "at {at}");
        assert_eq!(collect(&store), [], "at {at}");
    }
}

/// Symptom: the writer of a session whose manifest was damaged synced on after it was dropped, and
/// was collected.
/// Cause: only markers were removed.
#[test]
fn a_damaged_session_that_is_dropped_has_no_writer() {
    let store = memory();
    let session = repository(&store).begin(&[], options()).expect("begin");
    let newest = store
        .list(&ObjectFolder::Manifests(session.set()).to_string())
        .expect("list")
        .pop()
        .expect("one");
    store.delete(&newest.name).expect("delete");
    store.put_if_absent(&newest.name, b"garbage").expect("put");
    repository(&store).give_up(session.set(), &options()).expect("drop");
    write(&session, "/a", b"1").expect("in memory");
    assert_eq!(session.flush().expect_err("it was dropped").kind(), Kind::Fenced);
    assert_eq!(collect(&store), [session.set()]);
}

#[test]
fn a_complete_session_is_given_up_by_its_process_also_with_properties() {
    let store = memory();
    let repository = repository(&store);
    let session = repository.begin(&[], options()).expect("begin");
    let set = session.complete().expect("complete");
    repository.set_property(set, "a".into(), "b".into()).expect("set");
    repository.abandon_session(&session).expect("give up");
    assert_eq!(collect(&store), [set]);
}
