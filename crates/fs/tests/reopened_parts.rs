// SPDX-License-Identifier: Apache-2.0
//! Parts of jobs that are reopened beside other processes, or by processes that die.
//!
//! Symptom: a published part of a job changed.
//! Cause: a process opened the part, and only then looked for names; until it had closed the part
//! again, others resumed it, and if it died in between, the part stayed open.
//! Fix: it condemns the part, fences publications of its former names, and opens the part only if
//! none of them stands for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;

use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Error, Kind, Result};
use esker_fs::job::JobId;
use esker_fs::names::IfTaken;
use esker_fs::repository::Repository;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::session::SessionOptions;
use esker_table::manifest::{Manifest, SetId, SetState};

use crate::gc::{eager, options, publish, write};
use crate::interrupted_store::Interrupted;
use crate::verify::assert_sound;

const JOB: JobId = JobId(9);

/// A store with a complete part of [`JOB`].
fn with_part() -> (SharedStore, SetId) {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let part = Repository::new(store.clone()).begin_part(JOB, 0, &[], options()).expect("begin");
    write(&part, "/f", &[1; 900]).expect("write");
    let set = part.complete().expect("complete");
    (store, set)
}

fn taking_over() -> SessionOptions {
    SessionOptions { take_over: true, ..options() }
}

/// Resumes the part and adds a file, if it is open.
fn change(store: &SharedStore, set: SetId) -> Result<()> {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let session = Repository::new(store.clone()).resume(set, taking_over())?;
    write(&session, &format!("/{}", FILES.fetch_add(1, Ordering::Relaxed)), &[2; 900])?;
    session.end()
}

fn reopen(store: &SharedStore) -> Result<()> {
    Repository::new(store.clone()).reopen_parts(JOB).map(drop)
}

/// Names the part, which takes several steps if the name stands for another set.
fn name(store: &SharedStore, set: SetId) -> Result<()> {
    let repository = Repository::new(store.clone());
    repository.publish_replacing(set, "name", IfTaken::Replace).map(drop)
}

/// Checks that the part is not both named and open. Returns whether it is open.
fn check(store: &SharedStore, set: SetId, case: &str) -> bool {
    let state = Manifest::load(&**store, set).expect("manifest").state;
    let is_open = matches!(state, SetState::Open | SetState::CondemnedOpen);
    let named = Repository::new(store.clone()).resolve("name");
    let is_named = named.is_ok_and(|named| named.set == set);
    assert!(!(is_open && is_named), "{case}");
    is_open
}

/// The action of a process on the part.
type Step = fn(&SharedStore, SetId) -> Result<()>;

/// Runs `outer`; runs `middle` before request `at` of `outer`, and `inner` before request `within`
/// of `middle`. Returns their results, as far as they ran.
fn nested(
    store: &SharedStore,
    set: SetId,
    (outer, at): (Step, u64),
    (middle, within): (Step, u64),
    inner: Step,
) -> (Result<()>, Option<Result<()>>, Option<Result<()>>) {
    let (of_middle, middle_done) = channel();
    let (of_inner, inner_done) = channel();
    let plain = store.clone();
    let act = Box::new(move || {
        let own = plain.clone();
        let act = Box::new(move || of_inner.send(inner(&own, set)).expect("the test keeps it"));
        let shared: SharedStore = Interrupted::new(plain, within, act);
        of_middle.send(middle(&shared, set)).expect("the test keeps it");
    });
    let shared: SharedStore = Interrupted::new(store.clone(), at, act);
    let done = outer(&shared, set);
    (done, middle_done.try_recv().ok(), inner_done.try_recv().ok())
}

/// Three processes at once: one names the part, one reopens it, one changes it as soon as it is
/// open.
#[test]
fn what_is_named_is_never_open() {
    let (mut named, mut reopened, mut changed) = (0, 0, 0);
    let reopen: Step = |store, _| reopen(store);
    for (outer, middle) in [(name as Step, reopen), (reopen, name as Step)] {
        for at in 0.. {
            let mut has_run = false;
            for within in 0.. {
                let (store, set) = with_part();
                // The name stands for another set.
                publish(&Repository::new(store.clone()), &[], "name").expect("publish");
                let (done, beside, resumed) =
                    nested(&store, set, (outer, at), (middle, within), change);
                let case = format!("at {at}, {within}: {done:?}, {beside:?}, {resumed:?}");
                let is_open = check(&store, set, &case);
                has_run |= beside.is_some();
                for failed in [Some(&done), beside.as_ref()].into_iter().flatten() {
                    let kind = failed.as_ref().err().map(|error| error.kind());
                    let is_expected = matches!(kind, None | Some(Kind::Invalid | Kind::Conflict));
                    assert!(is_expected, "{case}");
                }
                assert!(done.is_ok() || beside.is_none_or(|beside| beside.is_ok()), "{case}");
                (named, reopened) = (named + u32::from(!is_open), reopened + u32::from(is_open));
                changed += u32::from(matches!(resumed, Some(Ok(()))));
                if resumed.is_none() {
                    break;
                }
            }
            if !has_run {
                break;
            }
        }
    }
    assert!(named > 100 && reopened > 100 && changed > 10, "{named} {reopened} {changed}");
}

/// A process dies while it reopens the part, or the answer to any of its requests is lost, or the
/// store is full, while another names the part before any of its requests. A third then changes the
/// part if it can. Afterwards the part can be reopened, unless it is named.
#[test]
fn a_process_that_dies_while_it_reopens_a_part_leaves_what_is_named() {
    type Fault = fn(&FaultStore, u64);
    let faults: [Fault; 4] = [
        |fault, at| fault.stop_at(at, FaultEffect::Full),
        |fault, at| fault.stop_at(at, FaultEffect::None),
        |fault, at| fault.fail_at_with(at, Kind::Unavailable, FaultEffect::Full),
        |fault, at| fault.fill_at(at, FaultEffect::None),
    ];
    let (mut kept, mut reopened) = (0, 0);
    for set_fault in faults {
        for stop in 1.. {
            for at in (0..stop).chain([u64::MAX]) {
                let (store, set) = with_part();
                let plain = store.clone();
                let act = Box::new(move || drop(name(&plain, set)));
                let fault = Arc::new(FaultStore::new(store.clone(), 7));
                set_fault(&fault, stop);
                let done = reopen(&(Interrupted::new(fault.clone(), at, act) as SharedStore));
                let case = format!("named at {at}, stopped at {stop}: {done:?}");
                drop(change(&store, set));
                check(&store, set, &case);
                Repository::new(store.clone()).gc(&eager()).expect("gc");
                if Repository::new(store.clone()).resolve("name").is_err() {
                    reopen(&store).unwrap_or_else(|error| panic!("{case}: {error}"));
                    change(&store, set).unwrap_or_else(|error| panic!("{case}: {error}"));
                    reopened += 1;
                } else {
                    assert_eq!(reopen(&store).expect_err(&case).kind(), Kind::Invalid, "{case}");
                    kept += 1;
                }
            }
            let (store, _) = with_part();
            let fault = Arc::new(FaultStore::new(store, 7));
            set_fault(&fault, stop);
            if reopen(&(fault as SharedStore)).is_ok() {
                break;
            }
        }
    }
    assert!(kept > 100 && reopened > 10, "{kept} {reopened}");
}

/// As before; the process that names the part dies instead, and the part is reopened and changed
/// before any of its requests.
#[test]
fn a_publisher_that_dies_leaves_a_part_named_or_open() {
    let mut reopened = 0;
    for effect in [FaultEffect::Full, FaultEffect::None] {
        for stop in 1.. {
            let mut is_stopped = false;
            for at in 0..stop {
                let (store, set) = with_part();
                let plain = store.clone();
                let act = Box::new(move || drop(reopen(&plain).and_then(|()| change(&plain, set))));
                let fault = Arc::new(FaultStore::new(store.clone(), 7));
                fault.stop_at(stop, effect);
                let done = name(&(Interrupted::new(fault.clone(), at, act) as SharedStore), set);
                is_stopped |= fault.is_stopped();
                let case = format!("reopened at {at}, stopped at {stop}: {done:?}");
                reopened += u32::from(check(&store, set, &case));
                Repository::new(store.clone()).gc(&eager()).expect("gc");
                if check(&store, set, &case) {
                    change(&store, set).unwrap_or_else(|error| panic!("{case}: {error}"));
                }
            }
            if !is_stopped {
                break;
            }
        }
    }
    assert!(reopened > 5, "{reopened}");
}

/// Symptom: a part was given up and reopened at once, both without an error, and a collection
/// deleted later writes to it.
/// Cause: giving up a complete part did not fence a process that reopens it.
/// Fix: giving up is a commit, after which no process opens or writes the part.
#[test]
fn a_part_that_is_given_up_is_not_reopened() {
    let (mut dropped, mut refused) = (0, 0);
    let reopen: Step = |store, _| reopen(store);
    let give_up: Step = |store, set| Repository::new(store.clone()).give_up(set, &taking_over());
    for (outer, middle, is_dropped_first) in [(give_up, reopen, true), (reopen, give_up, false)] {
        for at in 0.. {
            let (store, set) = with_part();
            let nothing: Step = |_, _| Ok(());
            let (done, beside, _) = nested(&store, set, (outer, at), (middle, u64::MAX), nothing);
            let Some(beside) = beside else { break };
            let case = format!("at {at}: {done:?}, {beside:?}");
            let (given_up, opened) = if is_dropped_first { (done, beside) } else { (beside, done) };
            given_up.unwrap_or_else(|error| panic!("{case}: {error}"));
            let kind = change(&store, set).expect_err(&case).kind();
            assert!(matches!(kind, Kind::NotFound | Kind::Invalid), "{case}");
            let parts = Repository::new(store.clone()).parts(JOB).expect("parts");
            assert_eq!(parts, [], "{case}");
            assert_eq!(marker::holders(&*store, set).expect("list"), [], "{case}");
            let collected = Repository::new(store.clone()).gc(&eager()).expect("gc").sets;
            assert_eq!(collected, [set], "{case}");
            dropped += 1;
            if let Err(error) = opened {
                assert_eq!(error.kind(), Kind::NotFound, "{case}");
                refused += 1;
            }
        }
    }
    assert!(dropped > 10 && refused > 3, "{dropped} {refused}");
}

/// Symptom: parts of a published job kept markers of sessions forever.
/// Cause: the publisher died before it removed them, and a collection took them for markers of a
/// session because the parts have no names of their own.
/// Fix: the name of the job is theirs, too. A process that may still reopen the part is fenced
/// first.
#[test]
fn a_collection_removes_session_markers_of_parts_of_a_published_job() {
    for epoch in [None, Some(1), Some(5)] {
        let (store, set) = with_part();
        let repository = Repository::new(store.clone());
        repository.publish_job(&[set], "job").expect("publish");
        let left =
            epoch.map_or(MarkerHolder::Session, |epoch| MarkerHolder::Reopened { epoch, id: 3 });
        marker::hold(&*store, set, &left).expect("hold");
        let before = Manifest::load(&*store, set).expect("manifest").epoch;
        repository.gc(&eager()).expect("gc");
        let holders = marker::holders(&*store, set).expect("list");
        assert!(!holders.iter().any(MarkerHolder::is_session), "{holders:?}");
        let raised = Manifest::load(&*store, set).expect("manifest").epoch - before;
        assert_eq!(raised, u64::from(epoch == Some(5)), "{epoch:?}");
    }
}

/// The error of a publication that is refused because of its report.
fn refused() -> Error {
    Error::new(Kind::Conflict, "parts disagree")
}

/// A store with a complete part of [`JOB`], and the set that joined it and was given up.
fn with_join_given_up() -> (SharedStore, SetId, SetId) {
    let (store, part) = with_part();
    let mut join = None;
    let done = Repository::new(store.clone()).publish_job_as(None, &[part], "job", |report| {
        join = Some(report.set);
        Err(refused())
    });
    assert_eq!(done.expect_err("refused").kind(), Kind::Conflict);
    (store, part, join.expect("it was joined"))
}

/// Symptom: parts of a job whose publication was refused, or whose joined set was dropped, could not
/// be reopened, and a rank whose part was dropped could not begin another, until a collection ran.
/// Cause: any complete join counted, also one that was given up.
/// Fix: a process that needs the parts discards such a join, as a collection would.
#[test]
fn a_part_is_reopened_once_its_join_was_given_up() {
    let (store, part, join) = with_join_given_up();
    reopen(&store).expect("reopen");
    change(&store, part).expect("change");
    assert_eq!(Manifest::load(&*store, join).expect("manifest").state, SetState::Doomed);
    let repository = Repository::new(store.clone());
    assert_eq!(repository.publish(join, "late").expect_err("doomed").kind(), Kind::NotFound);
    repository.resume(part, taking_over()).expect("resume").complete().expect("complete");
    repository.publish_job(&[part], "job").expect("publish");
    repository.gc(&eager()).expect("gc");
    let holders = marker::holders(&*store, part).expect("list");
    assert!(!holders.contains(&MarkerHolder::Set(join)), "{holders:?}");
    assert_sound(&repository);
}

#[test]
fn a_rank_begins_another_part_once_the_first_and_its_join_were_given_up() {
    let (store, part, join) = with_join_given_up();
    let repository = Repository::new(store.clone());
    repository.give_up(part, &taking_over()).expect("drop");
    let other = repository.begin_part(JOB, 0, &[], options()).expect("begin");
    write(&other, "/g", &[3; 900]).expect("write");
    let other = other.complete().expect("complete");
    repository.publish_job(&[other], "job").expect("publish");
    assert_eq!(repository.gc(&eager()).expect("gc").sets, [part]);
    assert_eq!(Manifest::load(&*store, join).expect("manifest").state, SetState::Doomed);
    assert_sound(&repository);
}

/// A join that was given up and is in use nevertheless keeps its parts as they are.
#[test]
fn a_join_that_was_given_up_and_is_in_use_stays() {
    let (store, part, join) = with_join_given_up();
    let repository = Repository::new(store.clone());
    let reader = repository.hold_for_reading(&[join]).expect("hold");
    assert_eq!(reopen(&store).expect_err("it is read").kind(), Kind::Invalid);
    drop(reader);
    repository.publish(join, "name").expect("it is still there");
    assert_eq!(reopen(&store).expect_err("it is named").kind(), Kind::Invalid);
    assert_eq!(repository.gc(&eager()).expect("gc").sets, []);
    assert_sound(&repository);
    repository.delete("name").expect("delete");
    assert_eq!(reopen(&store).expect_err("it may be undeleted").kind(), Kind::Invalid);
    repository.undelete("name").expect("undelete");
    let parts = repository.parts(JOB).expect("parts");
    assert!(parts.iter().all(|known| known.set == part && known.is_complete), "{parts:?}");
}

/// Before any request of a reopening, the join is named, or collected, and the other way round: a
/// name never stands for a join of a part that is open, and a collection hinders nobody.
#[test]
fn a_join_that_was_given_up_is_named_or_its_parts_are_reopened() {
    let reopen: Step = |store, _| reopen(store);
    let collect: Step = |store, _| Repository::new(store.clone()).gc(&eager()).map(drop);
    let (mut named, mut reopened) = (0, 0);
    for (outer, inner, is_collected) in [
        (reopen, name as Step, false),
        (name, reopen, false),
        (reopen, collect, true),
        (collect, reopen, true),
    ] {
        for at in 0.. {
            let (store, part, join) = with_join_given_up();
            let nothing: Step = |_, _| Ok(());
            let (done, beside, _) = nested(&store, join, (outer, at), (inner, u64::MAX), nothing);
            let Some(beside) = beside else { break };
            let case = format!("at {at}: {done:?}, {beside:?}");
            let is_open = Manifest::load(&*store, part).expect("part").state == SetState::Open;
            let is_named = Repository::new(store.clone()).resolve("name").is_ok();
            assert!(is_open != is_named, "{case}");
            assert!(!is_collected || (done.is_ok() && beside.is_ok()), "{case}");
            (named, reopened) = (named + u32::from(is_named), reopened + u32::from(is_open));
            Repository::new(store.clone()).gc(&eager()).expect("gc");
            assert_sound(&Repository::new(store.clone()));
        }
    }
    assert!(named > 10 && reopened > 20, "{named} {reopened}");
}
