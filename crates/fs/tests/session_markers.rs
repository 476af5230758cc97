// SPDX-License-Identifier: Apache-2.0
//! Markers of sessions that more than one process writes, takes over or gives up.
//!
//! Symptom: a collection deleted the set of a live writer, and everything that it had synced.
//! Cause: markers decided whether a session had been given up, and processes removed them by
//! outdated knowledge: a writer that did not know of its takeover, one that died or whose store was
//! full before it checked once more, one that mistook the marker of another attempt for that of a
//! session.
//! Fix: a commit decides. A process that gives a session up commits that, and either loses to a
//! process that has taken the session over or makes that process lose; only then are the markers
//! removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, ProcessIdentity, Result};
use esker_fs::repository::Repository;
use esker_fs::retention::gc::GcReport;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::{Manifest, SetId};
use esker_table::set_writer::SetWriter;
use esker_table::tree::{Durability, Heartbeat, TreeOptions};

use crate::gc::{eager, write};
use crate::interrupted_store::Interrupted;

fn memory() -> SharedStore {
    Arc::new(MemoryStore::new())
}

/// Options of process `pid` of another machine, which takes sessions over.
fn options(pid: u32) -> SessionOptions {
    let process = ProcessIdentity {
        host: "node7".into(),
        boot: "another".into(),
        pid,
        ..ProcessIdentity::current()
    };
    let writer = SetWriter { process, ..SetWriter::default() };
    let heartbeat = Some(Heartbeat { writer, interval: None, on_fenced: None });
    let tree =
        TreeOptions { durability: Durability::Async, background: false, ..Default::default() };
    let identity = Identity::root();
    SessionOptions { identity, tree, heartbeat, take_over: true, ..SessionOptions::default() }
}

/// Options of a process of this machine, which takes no session over.
fn careful() -> SessionOptions {
    SessionOptions { heartbeat: None, take_over: false, ..options(0) }
}

fn collect(store: &SharedStore) -> GcReport {
    Repository::new(store.clone()).gc(&eager()).expect("gc")
}

/// Resumes `set`, and makes a file durable.
fn resume(repository: &Repository, set: SetId) -> Result<Session> {
    let session = repository.resume(set, options(2))?;
    write(&session, "/late", b"2")?;
    session.sync().map(|()| session)
}

/// Checks that `session` continues, and that its publication has the synced changes.
fn assert_lives(session: &Session, case: &str) {
    session.flush().unwrap_or_else(|error| panic!("{case}: {error}"));
    session.publish("name").unwrap_or_else(|error| panic!("{case}: {error}"));
    session
        .namespace()
        .stat("/late", FollowLinks::No)
        .unwrap_or_else(|error| panic!("{case}: {error}"));
}

#[test]
fn a_session_that_was_taken_over_survives_its_former_writer() {
    let store = memory();
    let repository = Repository::new(store.clone());
    let first = repository.begin(&[], options(1)).expect("begin");
    let second = resume(&repository, first.set()).expect("taken over");
    repository.abandon_session(&first).expect("its marker goes");
    drop(first);
    assert_eq!(collect(&store).sets, []);
    let listed = repository.open_sessions().expect("list");
    assert!(listed.iter().any(|session| session.node.set == second.set()));
    assert_lives(&second, "taken over");
    repository.delete("name").expect("delete");
    assert_eq!(collect(&store).sets, [second.set()], "no marker is left");
}

#[test]
fn a_session_that_was_taken_over_twice_is_given_up_by_its_last_writer_only() {
    let store = memory();
    let repository = Repository::new(store.clone());
    let first = repository.begin(&[], options(1)).expect("begin");
    let set = first.set();
    let second = resume(&repository, set).expect("resume");
    let third = repository.resume(set, options(3)).expect("resume");
    repository.abandon_session(&second).expect("its markers go");
    repository.abandon_session(&first).expect("its markers go");
    assert_eq!(collect(&store).sets, []);
    third.flush().expect("it goes on");
    repository.abandon_session(&third).expect("the last one");
    drop(third);
    let again = repository.resume(set, options(4)).expect_err("it was given up");
    assert_eq!(again.kind(), Kind::NotFound, "{again}");
    assert_eq!(collect(&store).sets, [set]);
}

/// One process gives a session up and dies at any request, while another resumes the session
/// between any two requests of the first. Changes that the second process syncs stay.
#[test]
fn a_resumed_session_survives_a_process_that_dies_while_it_gives_it_up() {
    let mut survived = 0;
    for stop in 1.. {
        let mut is_stopped = false;
        for at in 0..stop {
            let store = memory();
            let plain = Repository::new(store.clone());
            let first = plain.begin(&[], options(1)).expect("begin");
            write(&first, "/a", b"1").expect("write");
            first.end().expect("end");
            let (set, other) = (first.set(), Repository::new(store.clone()));
            drop(first);
            let (sender, receiver) = channel();
            let act = Box::new(move || {
                sender.send(resume(&other, set)).expect("the test keeps it");
            });
            let fault = Arc::new(FaultStore::new(store.clone(), 7));
            fault.stop_at(stop, FaultEffect::Full);
            let dying = Repository::new(Interrupted::new(fault.clone(), at, act));
            let given_up = dying.give_up(set, &careful());
            is_stopped |= fault.is_stopped();
            let case = format!("resumed at {at}, stopped at {stop}: {given_up:?}");
            collect(&store);
            match receiver.try_recv() {
                Ok(Ok(session)) => {
                    assert_lives(&session, &case);
                    survived += 1;
                }
                Ok(Err(error)) => assert_eq!(error.kind(), Kind::NotFound, "{case}: {error}"),
                Err(_) => {}
            }
        }
        if !is_stopped {
            break;
        }
    }
    assert!(survived > 5, "{survived}");
}

/// In a full store without a reserve nothing can be committed, so the session stays, and another
/// process that finds room continues with it.
#[test]
fn a_full_store_gives_up_no_session() {
    for at in 0.. {
        let store = memory();
        let plain = Repository::new(store.clone());
        let first = plain.begin(&[], options(1)).expect("begin");
        first.end().expect("end");
        let (set, other) = (first.set(), Repository::new(store.clone()));
        let (sender, receiver) = channel();
        let act = Box::new(move || {
            sender.send(resume(&other, set)).expect("the test keeps it");
        });
        let full = Arc::new(FaultStore::new(store.clone(), 7));
        full.fill_at(1, FaultEffect::None);
        let dropping = Repository::new(Interrupted::new(full, at, act));
        let refused = dropping.give_up(set, &careful()).expect_err("no room");
        collect(&store);
        let Ok(resumed) = receiver.try_recv() else {
            assert_eq!(refused.kind(), Kind::NoSpace, "{refused}");
            plain.give_up(set, &careful()).expect("there is room");
            assert_eq!(collect(&store).sets, [set]);
            break;
        };
        let session = resumed.unwrap_or_else(|error| panic!("resumed at {at}: {error}"));
        assert_lives(&session, &format!("resumed at {at}: {refused:?}"));
    }
}

/// However often a session is resumed, it has the marker with which it began.
#[test]
fn a_session_that_is_resumed_often_has_one_marker() {
    let store = memory();
    let repository = Repository::new(store.clone());
    let set = repository.begin(&[], options(1)).expect("begin").set();
    for pid in 2..20 {
        repository.resume(set, options(pid)).expect("resume").end().expect("end");
    }
    assert_eq!(marker::holders(&*store, set).expect("list"), [MarkerHolder::Session]);
    repository.give_up(set, &careful()).expect("give up");
    assert_eq!(marker::holders(&*store, set).expect("list"), []);
    assert_eq!(collect(&store).sets, [set]);
}

/// A writer that was fenced gives its session up while the process that took it over still replays
/// the log.
#[test]
fn a_fenced_writer_gives_up_nothing() {
    let mut fenced = 0;
    for at in 0.. {
        let store = memory();
        let first = Repository::new(store.clone()).begin(&[], options(1)).expect("begin");
        write(&first, "/a", b"1").expect("write");
        first.sync().expect("sync");
        let (set, (sender, receiver)) = (first.set(), channel());
        let plain = Repository::new(store.clone());
        let act = Box::new(move || {
            let is_fenced = write(&first, "/b", b"1").and_then(|()| first.sync()).is_err();
            if is_fenced {
                plain.abandon_session(&first).expect("it has nothing to give up");
            }
            sender.send(is_fenced).expect("the test keeps it");
        });
        let resuming = Repository::new(Interrupted::new(store.clone(), at, act));
        let resumed = resuming.resume(set, options(2));
        let Ok(is_fenced) = receiver.try_recv() else { break };
        let session = resumed.unwrap_or_else(|error| panic!("at {at}: {error}"));
        session
            .namespace()
            .stat("/a", FollowLinks::No)
            .unwrap_or_else(|error| panic!("at {at}: {error}"));
        assert_eq!(collect(&store).sets, [], "at {at}");
        write(&session, "/late", b"2").expect("write");
        assert_lives(&session, &format!("at {at}"));
        fenced += u32::from(is_fenced);
    }
    assert!(fenced > 5, "{fenced}");
}

/// A process dies after it has committed that it gives the session up, and before it removes the
/// marker.
#[test]
fn a_session_that_was_given_up_needs_no_removal_of_its_marker() {
    let mut left = 0;
    for stop in 1.. {
        let store = memory();
        let plain = Repository::new(store.clone());
        let first = plain.begin(&[], options(1)).expect("begin");
        first.end().expect("end");
        let set = first.set();
        drop(first);
        let fault = Arc::new(FaultStore::new(store.clone(), 7));
        fault.stop_at(stop, FaultEffect::None);
        drop(Repository::new(fault.clone()).give_up(set, &careful()));
        let is_marked = !marker::holders(&*store, set).expect("list").is_empty();
        let is_given_up = Manifest::load(&*store, set).expect("manifest").is_given_up;
        assert!(is_marked || is_given_up, "stopped at {stop}");
        if is_given_up {
            let error = plain.resume(set, options(2)).expect_err("given up");
            assert_eq!(error.kind(), Kind::NotFound, "stopped at {stop}: {error}");
            assert!(plain.open_sessions().expect("list").is_empty(), "stopped at {stop}");
            assert_eq!(collect(&store).sets, [set], "stopped at {stop}");
            left += u32::from(is_marked);
        }
        if !fault.is_stopped() {
            break;
        }
    }
    assert!(left > 0, "{left}");
}

/// Symptom: a session that had been dropped came to life again, or its rank had two parts.
/// Cause: of two processes that resumed it, one took the marker of the other for that of a session.
#[test]
fn a_session_that_was_dropped_is_resumed_by_nobody() {
    let mut dropped = 0;
    for at in 0.. {
        for later in 1.. {
            let store = memory();
            let first = Repository::new(store.clone()).begin(&[], options(1)).expect("begin");
            first.end().expect("end");
            let set = first.set();
            let (sender, receiver) = channel();
            let other = Repository::new(store.clone());
            let give_up = Box::new(move || {
                sender.send(other.give_up(set, &options(2))).expect("the test keeps it");
            });
            let beside = Interrupted::new(store.clone(), at, give_up);
            let (second_sender, second_receiver) = channel();
            let other = Repository::new(store.clone());
            let resume_too = Box::new(move || {
                second_sender.send(resume(&other, set)).expect("the test keeps it");
            });
            let resuming = Interrupted::new(beside, at + later, resume_too);
            let resumed = Repository::new(resuming).resume(set, options(3));
            let Ok(given_up) = receiver.try_recv() else {
                assert!(dropped > 20, "{dropped}");
                return;
            };
            let second = second_receiver.try_recv();
            let case = format!("at {at}, {later} later");
            given_up.unwrap_or_else(|error| panic!("{case}: {error}"));
            let lives = resumed.and_then(|session| {
                write(&session, "/late", b"2")?;
                session.sync()
            });
            assert!(lives.is_err(), "{case}");
            assert_eq!(marker::holders(&*store, set).expect("list"), [], "{case}");
            assert_eq!(collect(&store).sets, [set], "{case}");
            dropped += 1;
            match second {
                Ok(second) => assert_eq!(second.expect_err(&case).kind(), Kind::NotFound, "{case}"),
                Err(_) => break,
            }
        }
    }
}

/// Begins a session that another process takes over, syncs a file in, and leaves, while the first,
/// which takes the session for its own, gives it up.
fn taken_over_and_left(store: &SharedStore) -> SetId {
    let repository = Repository::new(store.clone());
    let first = repository.begin(&[], options(1)).expect("begin");
    let second = resume(&repository, first.set()).expect("taken over");
    repository.abandon_session(&first).expect("its marker goes");
    second.end().expect("end");
    let left = marker::holders(&**store, second.set()).expect("list");
    assert_eq!(left, [MarkerHolder::Session]);
    second.set()
}

/// Runs `other` before each request of a resume of `set_up`'s set in turn. Returns the outcomes.
fn beside_each_request<T: Send + 'static>(
    set_up: impl Fn(&SharedStore) -> SetId,
    other: impl Fn(&SharedStore, SetId) -> T + Clone + Send + 'static,
    mut check: impl FnMut(u64, &SharedStore, SetId, Result<Session>, T),
) {
    for at in 0.. {
        let store = memory();
        let set = set_up(&store);
        let (sender, receiver) = channel();
        let (inner, other) = (store.clone(), other.clone());
        let act = Box::new(move || {
            sender.send(other(&inner, set)).expect("the test keeps it");
        });
        let resuming = Repository::new(Interrupted::new(store.clone(), at, act));
        let resumed = resuming.resume(set, options(3));
        let Ok(done) = receiver.try_recv() else {
            assert!(at > 5, "{at}");
            return;
        };
        check(at, &store, set, resumed, done);
    }
}

#[test]
fn a_collection_beside_a_resume_leaves_the_session() {
    beside_each_request(
        taken_over_and_left,
        |store, _| collect(store).sets,
        |at, _, _, resumed, collected| {
            assert_eq!(collected, [], "at {at}");
            let session = resumed.unwrap_or_else(|error| panic!("at {at}: {error}"));
            assert_lives(&session, &format!("at {at}"));
        },
    );
}

/// Two processes resume the session under one epoch, while its former writer, which takes it for
/// its own, gives it up.
#[test]
fn a_session_that_two_processes_resume_at_once_survives_its_former_writer() {
    let mut survived = 0;
    for at in 0.. {
        for later in 1.. {
            let store = memory();
            let repository = Repository::new(store.clone());
            let first = repository.begin(&[], options(1)).expect("begin");
            let set = first.set();
            let (sender, receiver) = channel();
            let other = repository.clone();
            let resume_and_end = Box::new(move || {
                let ended = resume(&other, set).and_then(|session| session.end());
                sender.send(ended).expect("the test keeps it");
            });
            let beside = Interrupted::new(store.clone(), at, resume_and_end);
            let (plain, done) = (repository.clone(), Arc::new(AtomicBool::new(false)));
            let abandoned = done.clone();
            let abandon = Box::new(move || {
                plain.abandon_session(&first).expect("its marker goes");
                abandoned.store(true, Ordering::Relaxed);
            });
            let resuming = Interrupted::new(beside, at + later, abandon);
            drop(Repository::new(resuming).resume(set, options(3)));
            let Ok(ended) = receiver.try_recv() else {
                assert!(survived > 20, "{survived}");
                return;
            };
            if !done.load(Ordering::Relaxed) {
                break;
            }
            ended.unwrap_or_else(|error| panic!("at {at}, {later} later: {error}"));
            assert_eq!(collect(&store).sets, [], "at {at}, {later} later");
            let again = repository.resume(set, options(4)).expect("resume");
            assert_lives(&again, &format!("at {at}, {later} later"));
            survived += 1;
        }
    }
}

#[test]
fn a_session_that_is_dropped_beside_a_resume_is_collected() {
    let mut dropped = 0;
    beside_each_request(
        taken_over_and_left,
        |store, set| Repository::new(store.clone()).give_up(set, &careful()),
        |at, store, set, resumed, given_up| {
            if given_up.is_ok() {
                let kept = resumed.and_then(|session| session.flush());
                assert!(kept.is_err(), "at {at}");
                assert_eq!(marker::holders(&**store, set).expect("list"), [], "at {at}");
                assert_eq!(collect(store).sets, [set], "at {at}");
                dropped += 1;
            }
        },
    );
    assert!(dropped > 2, "{dropped}");
}

#[test]
fn a_resume_that_fails_leaves_no_marker() {
    let mut failed = 0;
    for at in 1.. {
        let store = memory();
        let first = Repository::new(store.clone()).begin(&[], options(1)).expect("begin");
        let set = first.set();
        let full = Arc::new(FaultStore::new(store.clone(), 7));
        full.fill_at(at, FaultEffect::None);
        match Repository::new(full).resume(set, options(2)) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), Kind::NoSpace, "at {at}: {error}"),
        }
        failed += 1;
        assert_eq!(marker::holders(&*store, set).expect("list"), [MarkerHolder::Session]);
        Repository::new(store.clone()).give_up(set, &options(1)).expect("give up");
        assert_eq!(collect(&store).sets, [set], "at {at}");
    }
    assert!(failed > 2, "{failed}");
}

/// Symptom: a resume of a session that was published at the same time reported that it had been
/// given up.
/// Cause: the markers were listed after the publication, and the manifest was read before it.
/// Fix: such an answer takes two checks.
#[test]
fn a_resume_beside_a_publication_tells_what_became_of_the_session() {
    let mut refused = 0;
    for at in 0.. {
        let store = memory();
        let session = Repository::new(store.clone()).begin(&[], options(1)).expect("begin");
        let (set, (sender, receiver)) = (session.set(), channel());
        let act = Box::new(move || sender.send(session.publish("n")).expect("the test keeps it"));
        let resumed = Repository::new(Interrupted::new(store, at, act)).resume(set, options(2));
        let Ok(published) = receiver.try_recv() else { break };
        let Err(error) = resumed else {
            assert_eq!(published.expect_err("taken over").kind(), Kind::Fenced, "at {at}");
            continue;
        };
        assert!(matches!(error.kind(), Kind::Invalid | Kind::Fenced), "at {at}: {error}");
        refused += 1;
    }
    assert!(refused > 1, "{refused}");
}

/// Symptom: a process whose session was taken over while it resumed it was told that a log was
/// missing.
/// Cause: the other process deletes the logs that it has replayed.
/// Fix: a process that misses a log checks whether it was taken over.
#[test]
fn a_resume_that_is_taken_over_says_so() {
    let mut fenced = 0;
    beside_each_request(
        |store| {
            let first = Repository::new(store.clone()).begin(&[], options(1)).expect("begin");
            write(&first, "/a", b"1").expect("write");
            first.sync().expect("sync");
            first.set()
        },
        |store, set| resume(&Repository::new(store.clone()), set).and_then(|session| session.end()),
        |at, _, _, resumed, ended| {
            ended.unwrap_or_else(|error| panic!("at {at}: {error}"));
            if let Err(error) = resumed {
                assert_eq!(error.kind(), Kind::Fenced, "at {at}: {error}");
                fenced += 1;
            }
        },
    );
    assert!(fenced > 3, "{fenced}");
}

/// Symptom: a session that one of two processes had dropped stayed, and the other one said that it
/// had been resumed.
/// Cause: each drop commits an epoch, and the first took that of the second for one of a resume.
/// Fix: the commit says that the session was given up.
#[test]
fn a_session_that_two_processes_drop_at_once_goes() {
    for at in 0.. {
        let store = memory();
        let first = Repository::new(store.clone()).begin(&[], options(1)).expect("begin");
        first.end().expect("end");
        let set = first.set();
        drop(first);
        let (sender, receiver) = channel();
        let other = Repository::new(store.clone());
        let act = Box::new(move || {
            sender.send(other.give_up(set, &careful())).expect("the test keeps it");
        });
        let dropping = Repository::new(Interrupted::new(store.clone(), at, act));
        let given_up = dropping.give_up(set, &careful());
        let Ok(other) = receiver.try_recv() else { break };
        assert!(given_up.is_ok() && other.is_ok(), "at {at}: {given_up:?}, {other:?}");
        assert_eq!(collect(&store).sets, [set], "at {at}");
    }
}
