// SPDX-License-Identifier: Apache-2.0
//! Parts of jobs that are reopened, dropped or named while other processes use them.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use esker_base::clock::{ManualClock, SystemClock};
use esker_base::store::{FaultEffect, FaultStore, SharedStore};
use esker_base::{Clock, Kind};
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::{Manifest, SetId, SetState};

use crate::failed_begins::{JOB, collect, memory, repository, taking_over};
use crate::gc::{eager, later, options, write};
use crate::interrupted_store::Interrupted;

/// Requests of the longest operation here.
const REQUESTS_MAX: u64 = 60;

/// A complete part of rank 0, and the session that completed it.
fn completed(store: &SharedStore) -> Session {
    let part = repository(store).begin_part(JOB, 0, &[], options()).expect("begin");
    write(&part, "/f0", &[1; 900]).expect("write");
    part.complete().expect("complete");
    part
}

fn complete_part(store: &SharedStore) -> SetId {
    completed(store).set()
}

/// Symptom: a name stood for a part that was open again, and showed later writes; after the name
/// was deleted, the part of a live writer was collected.
/// Cause: a session that had completed the part named it without looking whether it was still
/// complete.
#[test]
fn a_part_that_was_reopened_is_not_named_by_who_completed_it() {
    let store = memory();
    let first = completed(&store);
    repository(&store).reopen_parts(JOB).expect("reopen");
    let second = repository(&store).resume(first.set(), taking_over()).expect("resume");
    assert_eq!(first.publish("name").expect_err("it is open").kind(), Kind::Invalid);
    write(&second, "/late", b"2").expect("write");
    second.sync().expect("sync");
    assert_eq!(repository(&store).resolve("name").expect_err("no name").kind(), Kind::NotFound);
    assert_eq!(collect(&store), []);
    second.publish("name").expect("it is complete then");
}

#[test]
fn a_part_that_was_reopened_is_not_kept_by_who_completed_it() {
    let store = memory();
    let set = complete_part(&store);
    repository(&store).reopen_parts(JOB).expect("reopen");
    let second = repository(&store).resume(set, taking_over()).expect("resume");
    repository(&store).keep_complete(set).expect("nothing to keep");
    write(&second, "/late", b"2").expect("write");
    second.sync().expect("nobody has taken it over");
}

/// Runs `work` and, at each of its requests in turn, lets `drop_part` drop the rank's part, or the
/// holder that made it one, and begins another part: the rank has at most one part afterwards.
fn begin_another_beside(
    prepare: impl Fn(&Repository, SetId),
    drop_part: fn(&Repository, SetId),
    work: impl Fn(&Repository, SetId),
) {
    for at in 0..REQUESTS_MAX {
        let (store, (sender, receiver)) = (memory(), channel());
        let first = complete_part(&store);
        prepare(&repository(&store), first);
        let plain = store.clone();
        let act = Box::new(move || {
            drop_part(&repository(&plain), first);
            drop(sender.send(repository(&plain).begin_part(JOB, 0, &[], options())));
        });
        let shared: SharedStore = Interrupted::new(store.clone(), at, act);
        work(&repository(&shared), first);
        if receiver.try_recv().is_err() {
            assert!(at > 0);
            return;
        }
        let parts = repository(&store).parts(JOB).expect("parts");
        assert!(parts.len() <= 1, "at {at}: {parts:?}");
    }
    panic!("more than {REQUESTS_MAX} requests");
}

/// Symptom: a rank had two parts, both with a writer.
/// Cause: a reopening looked for names of the part before it opened it, and not for other parts of
/// the rank.
#[test]
fn a_part_that_loses_its_name_is_not_reopened_beside_its_successor() {
    begin_another_beside(
        |repository, part| repository.publish(part, "n").expect("publish"),
        |repository, _| repository.delete("n").expect("delete"),
        |repository, _| drop(repository.reopen_parts(JOB)),
    );
}

/// Symptom: a part that was dropped was in its published job, and its rank had two parts.
/// Cause: a publication looked at parts before its first commit, and not whether they were given
/// up.
#[test]
fn a_part_that_is_dropped_is_not_published_with_its_job() {
    begin_another_beside(
        |_, _| {},
        |repository, part| repository.give_up(part, &taking_over()).expect("drop"),
        |repository, part| drop(repository.publish_job(&[part], "job")),
    );
}

#[test]
fn a_part_that_is_dropped_is_not_named() {
    begin_another_beside(
        |_, _| {},
        |repository, part| repository.give_up(part, &taking_over()).expect("drop"),
        |repository, part| drop(repository.publish(part, "n")),
    );
    let store = memory();
    let part = complete_part(&store);
    repository(&store).give_up(part, &taking_over()).expect("drop");
    let refused = repository(&store).publish(part, "n").expect_err("it was dropped");
    assert_eq!(refused.kind(), Kind::NotFound);
}

/// Symptom: a part stayed condemned forever: no list had it, and no collection restored or deleted
/// it.
/// Cause: its reopening had failed between its two commits.
#[test]
fn a_part_whose_reopening_failed_is_listed_read_and_collected() {
    for effect in [FaultEffect::None, FaultEffect::Full] {
        for stops in [false, true] {
            for at in 1..REQUESTS_MAX {
                let store = memory();
                let set = complete_part(&store);
                let fault = Arc::new(FaultStore::new(store.clone(), 3));
                match stops {
                    true => fault.stop_at(at, effect),
                    false => fault.fail_at_with(at, Kind::Unavailable, effect),
                }
                let reopened = repository(&(fault as SharedStore)).reopen_parts(JOB).map(drop);
                let what = format!("{effect:?}, stops {stops}, at {at}: {reopened:?}");
                repository(&store).open_unsealed(set, Identity::root()).expect(&what);
                assert_eq!(repository(&store).open_sessions().expect("list").len(), 1, "{what}");
                assert_eq!(collect(&store), [], "{what}");
                let age = Some(Duration::ZERO);
                repository(&store).give_up_left(age, false, &taking_over()).expect("give up");
                assert_eq!(collect(&store), [set], "{what}");
            }
        }
    }
}

/// Symptom: `gc --sessions-older-than` dropped complete parts of a job whose other ranks were still
/// writing.
/// Cause: the age of each part was looked at alone.
#[test]
fn complete_parts_are_not_old_while_another_part_is_written() {
    let store = memory();
    let set = complete_part(&store);
    let hour = 3_600_000_000_000;
    let late = |ns: u64| {
        let clock = ManualClock::new(SystemClock.now_ns() + ns);
        Repository::with(store.clone(), 1 << 20, Arc::new(clock))
    };
    let other = late(hour).begin_part(JOB, 1, &[], options()).expect("begin");
    other.flush().expect("flush");
    let age = Some(Duration::from_secs(1_800));
    let left = late(hour).give_up_left(age, false, &taking_over()).expect("give up");
    assert_eq!(left.given_up.len(), 0, "{left:?}");
    let mut parts = [set, other.set()];
    drop(other);
    let left = late(2 * hour).give_up_left(age, false, &taking_over()).expect("give up");
    let mut dropped: Vec<SetId> = left.given_up.iter().map(|own| own.node.set).collect();
    parts.sort_unstable();
    dropped.sort_unstable();
    assert_eq!(dropped, parts);
}

#[test]
fn a_job_that_is_published_beside_a_reopening_that_fails_is_sound_and_goes() {
    for stop in 1..REQUESTS_MAX / 2 {
        for at in 0..stop {
            for effect in [FaultEffect::None, FaultEffect::Full] {
                let store = memory();
                let set = complete_part(&store);
                let plain = store.clone();
                let act = Box::new(move || drop(repository(&plain).publish_job(&[set], "job")));
                let fault = Arc::new(FaultStore::new(store.clone(), 3));
                fault.fail_at_with(stop, Kind::Unavailable, effect);
                let shared: SharedStore = Interrupted::new(fault.clone(), at, act);
                let reopened = repository(&shared).reopen_parts(JOB).map(drop);
                let what = format!("{effect:?} {stop}, at {at}: {reopened:?}");
                let found = repository(&store).verify(&VerifyOptions::default()).expect("verify");
                assert!(found.is_sound(), "{what}: {:?}", found.findings);
                collect(&store);
                let state = Manifest::load(&*store, set).expect("a part").state;
                assert!(matches!(state, SetState::Open | SetState::Sealed), "{what}: {state:?}");
                if repository(&store).delete("job").is_err() {
                    continue;
                }
                for _ in 0..3 {
                    collect(&store);
                    let age = Some(Duration::ZERO);
                    repository(&store).give_up_left(age, false, &taking_over()).expect("give up");
                }
                (0..2).for_each(|_| drop(later(&store).gc(&eager())));
                assert_eq!(repository(&store).sets().expect("sets"), [], "{what}");
            }
        }
    }
}

/// Symptom: a resume said that synced operations were missing (`Corrupt`), although they were in
/// tables.
/// Cause: another process had taken the session over, and died while it deleted the logs.
#[test]
fn a_resume_beside_one_that_dies_says_that_it_was_taken_over() {
    for at in 0..REQUESTS_MAX {
        for stop in 1..REQUESTS_MAX {
            let store = memory();
            let set = two_logs(&store);
            let plain = store.clone();
            let act = Box::new(move || {
                let fault = Arc::new(FaultStore::new(plain.clone(), 3));
                fault.stop_at(stop, FaultEffect::Full);
                drop(repository(&(fault as SharedStore)).resume(set, taking_over()));
            });
            let shared: SharedStore = Interrupted::new(store.clone(), at, act);
            if let Err(error) = repository(&shared).resume(set, taking_over()) {
                let is_race = matches!(error.kind(), Kind::Fenced | Kind::Conflict);
                assert!(is_race, "at {at}, stopped at {stop}: {error}");
            }
            let third = repository(&store).resume(set, taking_over()).expect("resume");
            for path in ["/a", "/b", "/c"] {
                third.namespace().stat(path, FollowLinks::No).expect("it was synced");
            }
        }
    }
}

/// A session that died with synced changes in two logs and in no table.
fn two_logs(store: &SharedStore) -> SetId {
    for at in 1..REQUESTS_MAX {
        let inner = memory();
        let fault = Arc::new(FaultStore::new(inner.clone(), 3));
        let mut synced = options();
        synced.tree.durability = esker_table::tree::Durability::Async;
        synced.tree.background = false;
        let session =
            repository(&(fault.clone() as SharedStore)).begin(&[], synced).expect("begin");
        let sync = |name: &str| write(&session, name, b"1").and_then(|()| session.sync());
        sync("/a").expect("sync");
        fault.fail_at(fault.operations() + at, Kind::NoSpace);
        if session.flush().is_ok() || sync("/b").is_err() {
            continue;
        }
        sync("/c").expect("sync");
        let logs = inner.list(&format!("set/{}/wal/", session.set())).expect("list");
        if logs.len() < 2 || logs.iter().any(|log| log.bytes < 20) {
            continue;
        }
        for object in inner.list("").expect("list") {
            let bytes = inner.get(&object.name, 1 << 30).expect("get");
            store.put_if_absent(&object.name, &bytes).expect("put");
        }
        let set = session.set();
        std::mem::forget(session);
        return set;
    }
    panic!("no request leaves two logs");
}
