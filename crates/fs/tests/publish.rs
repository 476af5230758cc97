// SPDX-License-Identifier: Apache-2.0
//! Publishing: names lost to others, lost responses, crashes. Acknowledged changes are in the
//! published set, or the session takes no more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Error, Kind, Result};
use esker_fs::job::JobId;
use esker_fs::names::IfTaken;
use esker_fs::repository::Repository;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::tree::Durability;

use crate::gc::{eager, later, objects, options, publish, repository, write};
use crate::hooked::{HookedStore, Request, When};
use crate::interrupted_store::Interrupted;
use crate::verify::assert_sound;

fn memory() -> SharedStore {
    Arc::new(MemoryStore::new())
}

fn synced() -> SessionOptions {
    let mut options = options();
    options.tree.durability = Durability::Always;
    options
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

/// Publishes a session left behind, as `esker publish @SET NAME` does.
fn publish_left(repository: &Repository, set: SetId, name: &str) -> Result<()> {
    match Manifest::load(&**repository.store(), set)?.state {
        SetState::Open => repository.resume(set, synced())?.publish(name).map(drop),
        _ => repository.publish(set, name),
    }
}

/// Symptom: a session that lost the race for its name continued, and its later syncs were lost.
/// Cause: its set stayed complete, so that its log was never read again.
/// Fix: it takes no more changes, and can be published under another name.
#[test]
fn a_session_that_loses_its_name_takes_no_more_changes_and_keeps_all_others() {
    for at in 0.. {
        let store = memory();
        let other = repository(&store).begin(&[], synced()).expect("begin");
        let interrupted = Interrupted::idle(store.clone(), at);
        let shared: SharedStore = interrupted.clone();
        let session = repository(&shared).begin(&[], synced()).expect("begin");
        let set = session.set();
        write(&session, "/a", &[1; 900]).expect("write");
        interrupted.begin(Box::new(|_| true), Box::new(move || drop(other.publish("n"))));
        let lost = session.publish("n");
        if !interrupted.has_happened() {
            break;
        }
        let plain = repository(&store);
        let winner = plain.resolve("n").expect("somebody has it").set;
        if lost.is_ok() {
            assert_eq!(winner, set, "at {at}");
            continue;
        }
        assert_eq!(lost.expect_err("lost").kind(), Kind::Exists, "at {at}");
        let later = write(&session, "/later", &[2; 900]).and_then(|()| session.sync());
        assert!(later.is_ok() || later.is_err_and(|error| error.kind() == Kind::Closed));
        let was_written = session.namespace().stat("/later", FollowLinks::No).is_ok();
        if at % 2 == 0 {
            session.publish("m").expect("another name");
        } else {
            drop(session);
            plain.gc(&eager()).expect("gc");
            publish_left(&plain, set, "m").expect("another name");
        }
        assert!(shows(&plain, "m", "/a"), "at {at}");
        assert_eq!(shows(&plain, "m", "/later"), was_written, "at {at}");
        assert_sound(&plain);
    }
}

#[test]
fn a_published_session_takes_no_more_changes() {
    let store = memory();
    let plain = repository(&store);
    let session = plain.begin(&[], options()).expect("begin");
    write(&session, "/a", &[1; 900]).expect("write");
    session.publish("n").expect("publish");
    assert_eq!(write(&session, "/b", b"late").expect_err("late").kind(), Kind::Closed);
    assert_eq!(session.sync().expect_err("late").kind(), Kind::Closed);
    session.publish("n").expect("it is published");
    session.publish("further").expect("a further name");
    assert!(shows(&plain, "further", "/a") && !shows(&plain, "n", "/b"));
    assert!(session.namespace().stat("/a", FollowLinks::No).is_ok(), "it can be read");
}

/// Concurrent changes during a publication are in it, or are refused.
#[test]
fn what_is_acknowledged_beside_a_publication_is_published() {
    for round in 0..20 {
        let store = memory();
        let plain = repository(&store);
        let session = plain.begin(&[], options()).expect("begin");
        let has_begun = AtomicBool::new(false);
        let done: Vec<String> = std::thread::scope(|scope| {
            let write_until_refused = |thread: usize| {
                let mut done = Vec::new();
                for number in 0.. {
                    let path = format!("/{thread}.{number}");
                    let bytes = [b'x'; 900];
                    match write(&session, &path, &bytes[..if number % 2 == 0 { 5 } else { 900 }]) {
                        Ok(()) => done.push(path),
                        Err(error) => {
                            assert_eq!(error.kind(), Kind::Closed);
                            break;
                        }
                    }
                    has_begun.store(true, Ordering::Release);
                }
                done
            };
            let writers = [0, 1].map(|thread| scope.spawn(move || write_until_refused(thread)));
            while !has_begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            session.publish("n").expect("publish");
            writers.into_iter().flat_map(|writer| writer.join().expect("writer")).collect()
        });
        for path in done {
            assert!(shows(&plain, "n", &path), "round {round}: {path}");
        }
    }
}

/// Symptom: `put --as` failed although its name was published, and a retry found the name taken; a
/// session was "changed by somebody else" after a lost response.
/// Fix: a writer recognizes its own manifest and its own name, and steps after the name do not fail
/// the publication.
#[test]
fn whatever_answers_are_lost_a_session_is_published_once() {
    let run = |store: &SharedStore, set: &mut Option<SetId>| -> Result<()> {
        let repository = repository(store);
        let session = repository.begin(&[], synced())?;
        *set = Some(session.set());
        write(&session, "/f", &[b'x'; 1000])?;
        session.publish("top").map(drop)
    };
    let counter = Arc::new(FaultStore::new(memory(), 1));
    run(&(counter.clone() as SharedStore), &mut None).expect("run");
    for at in 1..=counter.operations() {
        for (count, effect) in
            [(1, FaultEffect::None), (1, FaultEffect::Full), (2, FaultEffect::Full)]
        {
            let inner = memory();
            let fault = Arc::new(FaultStore::new(inner.clone(), at));
            for failing in at..at + count {
                fault.fail_at_with(failing, Kind::Unavailable, effect);
            }
            let case = format!("operation {at}, {count} failing, {effect:?}");
            let mut set = None;
            let done = run(&(fault.clone() as SharedStore), &mut set);
            let plain = repository(&inner);
            if let Err(error) = &done {
                // A writer whose commit is in doubt stops, and reports it.
                let is_told = matches!(error.kind(), Kind::Unavailable | Kind::Closed);
                assert!(is_told, "{case}: {error:?}");
                if count == 1 {
                    assert!(plain.resolve("top").is_err(), "{case}: {error:?}");
                }
                let Some(set) = set else { continue };
                publish_left(&plain, set, "top").expect("nothing disturbs the next attempt");
            }
            plain.gc(&eager()).expect("gc");
            if done.is_ok() {
                assert!(shows(&plain, "top", "/f"), "{case}");
            }
            assert_sound(&plain);
            // Leftover markers do not keep the set.
            plain.delete("top").expect("delete");
            plain.gc(&eager()).expect("gc");
            later(&inner).gc(&eager()).expect("gc");
            assert_eq!(plain.sets().expect("sets"), [], "{case}");
        }
    }
}

/// Symptom: a snapshot that failed at its name was never collected, nor were the sets that it
/// shows.
#[test]
fn nothing_is_left_of_a_snapshot_that_fails_or_crashes() {
    // Without the thread that writes the log, operations have the same numbers every time.
    let mut options = options();
    options.tree.durability = Durability::None;
    let begin = |store: &SharedStore| {
        let session = repository(store).begin(&[], options.clone()).expect("begin");
        write(&session, "/f", &[b'x'; 1000]).expect("write");
        session
    };
    let collect_all = |store: &SharedStore, own: SetId, case: &str| {
        let plain = repository(store);
        plain.gc(&eager()).expect("gc");
        if let Ok(named) = plain.resolve("snapshot") {
            assert!(shows(&plain, "snapshot", "/f"), "{case}");
            assert_ne!(named.set, own);
            plain.delete("snapshot").expect("delete");
        }
        plain.gc(&eager()).expect("gc");
        later(store).gc(&eager()).expect("gc");
        later(store).gc(&eager()).expect("gc");
        assert_eq!(plain.sets().expect("sets"), [own], "{case}");
        let holders = marker::holders(&**plain.store(), own).expect("holders");
        assert_eq!(holders, [MarkerHolder::Session], "{case}");
    };
    for at in 1.. {
        for effect in [FaultEffect::None, FaultEffect::Full] {
            for stops in [true, false] {
                let inner = memory();
                let fault = Arc::new(FaultStore::new(inner.clone(), at));
                let session = begin(&(fault.clone() as SharedStore));
                let first = fault.operations();
                match stops {
                    true => fault.stop_at(first + at, effect),
                    false => fault.fail_at_with(first + at, Kind::Unavailable, effect),
                }
                let done = session.snapshot("snapshot");
                if fault.operations() < first + at {
                    return;
                }
                let case = format!("operation {at}, {effect:?}, stops: {stops}: {done:?}");
                let own = session.set();
                drop(session);
                collect_all(&inner, own, &case);
            }
        }
    }
}

#[test]
fn nothing_is_left_of_a_snapshot_that_loses_its_name() {
    let store = memory();
    let plain = repository(&store);
    let other = plain.begin(&[], options()).expect("begin");
    let interrupted = Interrupted::idle(store.clone(), 0);
    let session: Session =
        repository(&(interrupted.clone() as SharedStore)).begin(&[], options()).expect("begin");
    write(&session, "/a", &[1; 900]).expect("write");
    // The first request for a name checks whether it is free.
    let asked = AtomicBool::new(false);
    interrupted.begin(
        Box::new(move |name| name.starts_with("name/") && asked.swap(true, Ordering::SeqCst)),
        Box::new(move || assert!(other.publish("n").is_ok())),
    );
    assert_eq!(session.snapshot("n").expect_err("taken").kind(), Kind::Exists);
    assert!(interrupted.has_happened());
    session.publish("m").expect("publish");
    plain.delete("m").expect("delete");
    plain.delete("n").expect("delete");
    plain.gc(&eager()).expect("gc");
    later(&store).gc(&eager()).expect("gc");
    assert_eq!(objects(&store), [""; 0]);
}

/// Symptom: a session's marker left by a crash kept its published set forever.
#[test]
fn a_sessions_marker_does_not_keep_a_set_that_has_a_name() {
    let store = memory();
    let plain = repository(&store);
    let set = publish(&plain, &[], "n").expect("publish");
    marker::hold(&*store, set, &MarkerHolder::Session).expect("hold");
    assert_eq!(plain.gc(&eager()).expect("gc").stale_markers, 1);
    plain.delete("n").expect("delete");
    assert_eq!(plain.gc(&eager()).expect("gc").sets, [set]);
}

/// Symptom: a command reported that its session stays, but none of its changes were in it.
/// Cause: a publication under a taken name ended before anything was written, and then the process
/// ended.
/// Fix: it writes everything first.
#[test]
fn a_session_whose_name_is_taken_keeps_everything() {
    let store = memory();
    let plain = repository(&store);
    plain.begin(&[], options()).expect("begin").publish("n").expect("publish");
    let session = plain.begin(&[], options()).expect("begin");
    let set = session.set();
    write(&session, "/a", &[1; 900]).expect("write");
    assert_eq!(session.publish("n").expect_err("taken").kind(), Kind::Exists);
    // The process ends without cleaning up.
    std::mem::forget(session);
    publish_left(&plain, set, "m").expect("another name");
    assert!(shows(&plain, "m", "/a"));
}

/// Symptom: a name stood for a set that was being deleted.
/// Cause: a publisher found its set live, a collection without a grace period doomed the set, and
/// the publisher put the name; then it died, or found the store full, before it took the name back.
/// Fix: the collection changes the part of the name table before it dooms the set, so the publisher
/// has to read it again, and then finds the set condemned.
#[test]
fn a_name_never_stands_for_a_set_that_is_being_deleted() {
    let cases = [
        ("a complete set", publish_complete as PreparePublication),
        ("a replacement", publish_replacement),
        ("a session that was given up", publish_session),
        ("a snapshot", publish_snapshot),
    ];
    let cases = cases.into_iter().flat_map(|case| [(case, true), (case, false)]);
    for ((case, prepare), dies) in cases {
        let mut refused = 0;
        for at in 0.. {
            let inner = memory();
            let fault = Arc::new(FaultStore::new(inner.clone(), at));
            let hooked = HookedStore::new(fault.clone());
            let interrupted = Interrupted::idle(Arc::new(hooked.clone()), at);
            let publish = prepare(&inner, &(interrupted.clone() as SharedStore));
            let collector = repository(&inner);
            interrupted.begin(
                Box::new(|_| true),
                Box::new(move || drop(collector.gc(&eager()).expect("gc"))),
            );
            if dies {
                // Once it has put the name, or lost the race for the number of the part.
                hooked.at(When::After, Request::Put, "name/", move || {
                    fault.stop_at(fault.operations() + 1, FaultEffect::None);
                    Ok(())
                });
            }
            let done = publish();
            if !interrupted.has_happened() {
                break;
            }
            if repository(&inner).resolve("n").is_ok() {
                assert!(shows(&repository(&inner), "n", "/f"), "{case}, at {at}: {done:?}");
            }
            let is_refused = |error: Error| matches!(error.kind(), Kind::NotFound | Kind::Fenced);
            refused += usize::from(done.is_err_and(is_refused));
        }
        assert!(refused > 0, "{case}: no collection comes first");
    }
}

/// Prepares a publication of a set with the file `/f` as `n`, with requests to the second store.
type PreparePublication = fn(&SharedStore, &SharedStore) -> Box<dyn FnOnce() -> Result<()>>;

/// Returns a complete set that nothing holds.
fn forsaken(store: &SharedStore) -> SetId {
    let plain = repository(store);
    let session = plain.begin(&[], options()).expect("begin");
    write(&session, "/f", &[b'x'; 900]).expect("write");
    let set = session.complete().expect("complete");
    plain.abandon(set).expect("abandon");
    set
}

fn publish_complete(store: &SharedStore, other: &SharedStore) -> Box<dyn FnOnce() -> Result<()>> {
    let (set, repository) = (forsaken(store), repository(other));
    Box::new(move || repository.publish(set, "n"))
}

fn publish_replacement(
    store: &SharedStore,
    other: &SharedStore,
) -> Box<dyn FnOnce() -> Result<()>> {
    repository(store).publish(forsaken(store), "n").expect("publish");
    let (set, repository) = (forsaken(store), repository(other));
    Box::new(move || repository.publish_replacing(set, "n", IfTaken::Replace).map(drop))
}

fn publish_session(store: &SharedStore, other: &SharedStore) -> Box<dyn FnOnce() -> Result<()>> {
    let session = repository(other).begin(&[], options()).expect("begin");
    write(&session, "/f", &[b'x'; 900]).expect("write");
    repository(store).abandon(session.set()).expect("abandon");
    Box::new(move || session.publish("n").map(drop))
}

fn publish_snapshot(_: &SharedStore, other: &SharedStore) -> Box<dyn FnOnce() -> Result<()>> {
    let session = repository(other).begin(&[], options()).expect("begin");
    write(&session, "/f", &[b'x'; 900]).expect("write");
    Box::new(move || session.snapshot("n").map(drop))
}

/// Symptom: when two threads published a session under two names, one failed with `Closed`.
/// Cause: it checked whether the set was complete before it waited for the other.
/// Fix: it checks again.
#[test]
fn two_threads_publish_a_session_under_two_names() {
    let hooked = HookedStore::new(memory());
    let repository = Repository::new(Arc::new(hooked.clone()));
    let session = Arc::new(repository.begin(&[], options()).expect("begin"));
    write(&session, "/f", &[5; 90_000]).expect("write");
    let (sender, receiver) = mpsc::channel();
    let other = session.clone();
    hooked.at(When::Before, Request::SyncLog, "/data/", move || {
        std::thread::spawn(move || sender.send(other.publish("b")));
        // Long enough for it to wait for this one.
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    });
    let set = session.publish("a").expect("publish");
    assert!(hooked.has_acted());
    let other = receiver.recv_timeout(Duration::from_secs(60)).expect("it ends");
    assert_eq!(other.expect("publish"), set);
    assert!(shows(&repository, "a", "/f") && shows(&repository, "b", "/f"));
}

/// Symptom: a name that had just been published was gone.
/// Cause: a publisher that found its set collected, or reopened, after it had put its name removed
/// that name, which another user had by then deleted and published for another set.
/// Fix: whether the set can be named is decided before the name is put.
#[test]
fn a_publisher_takes_nobody_elses_name() {
    let complete = |repository: &Repository, job: JobId| {
        let session = repository.begin_part(job, 0, &[], options()).expect("begin");
        write(&session, "/f", &[1; 900]).expect("write");
        session.complete().expect("complete")
    };
    let collects: fn(&Repository, SetId, JobId) = |other, set, _| {
        other.abandon(set).expect("abandon");
        other.gc(&eager()).expect("gc");
    };
    let opens_again: fn(&Repository, SetId, JobId) = |other, _, job| {
        assert_eq!(other.reopen_parts(job).expect("open again").len(), 1);
    };
    for act in [collects, opens_again] {
        let (inner, job) = (memory(), JobId::random());
        let hooked = HookedStore::new(inner.clone());
        let other = repository(&inner);
        let own = Repository::new(Arc::new(hooked.clone()));
        let set = complete(&own, job);
        let next = other.begin(&[], options()).expect("begin");
        let expected = next.set();
        hooked.at(When::After, Request::Put, "name/", move || {
            other.delete("n")?;
            act(&other, set, job);
            next.publish("n").map(drop)
        });
        own.publish(set, "n").expect("it had the name");
        assert!(hooked.has_acted());
        assert_eq!(own.resolve("n").expect("somebody else's").set, expected);
    }
}

/// Symptom: `workbench cleanup` deleted a name that another process had published anew meanwhile.
/// Cause: it compared the set for which the name stands, and then deleted the name without another
/// check.
/// Fix: one change of the name table does both.
#[test]
fn a_name_is_deleted_only_from_the_expected_set() {
    for at in 0.. {
        let store = memory();
        let plain = repository(&store);
        let [old, new] = ["n", "m"].map(|name| publish(&plain, &[], name).expect("published"));
        let interrupted = Interrupted::idle(store.clone(), at);
        let shared: SharedStore = interrupted.clone();
        let other = repository(&store);
        let replace = move || other.publish_replacing(new, "n", IfTaken::Replace).map(drop);
        interrupted.begin(Box::new(|_| true), Box::new(move || replace().expect("replaced")));
        let deleted = repository(&shared).delete_if_unchanged("n", old);
        if !interrupted.has_happened() {
            break;
        }
        if let Err(error) = deleted {
            assert_eq!(error.kind(), Kind::Conflict, "at {at}: {error}");
        }
        assert_eq!(plain.resolve("n").expect("it was published anew").set, new, "at {at}");
    }
    let (store, absent) = (memory(), SetId(7));
    let plain = repository(&store);
    let set = publish(&plain, &[], "n").expect("published");
    assert_eq!(plain.delete_if_unchanged("n", absent).expect_err("other").kind(), Kind::Conflict);
    plain.delete_if_unchanged("n", set).expect("deleted");
    assert_eq!(plain.delete_if_unchanged("n", set).expect_err("gone").kind(), Kind::NotFound);
}
