// SPDX-License-Identifier: Apache-2.0
//! Claims: which sets are parts of a job while processes begin, fail, damage, rename or delete
//! sets.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use esker_base::store::{CountedStore, FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::job::{JobId, JobPart};
use esker_fs::names::IfTaken;
use esker_fs::repository::Repository;
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::object_name::ObjectFolder;
use parking_lot::Mutex;

use crate::gc::{eager, options, publish, write};
use crate::interrupted_store::Interrupted;

const JOB: JobId = JobId(3);

fn repository() -> Repository {
    Repository::new(Arc::new(MemoryStore::new()))
}

/// A part of `rank` with a file; its session is at an end.
fn part(repository: &Repository, rank: u32) -> SetId {
    let part = repository.begin_part(JOB, rank, &[], options()).expect("begin");
    write(&part, "/f", &[1; 900]).expect("write");
    part.complete().expect("complete")
}

/// Overwrites the newest manifest of `set` with garbage.
fn damage(repository: &Repository, set: SetId) {
    let store = &**repository.store();
    let newest = store
        .list(&ObjectFolder::Manifests(set).to_string())
        .expect("list")
        .pop()
        .expect("one")
        .name;
    store.delete(&newest).expect("delete");
    store.put_if_absent(&newest, b"garbage").expect("put");
}

/// Symptom: two processes that began the part of one rank at once both succeeded, and the job got
/// the changes of both.
/// Cause: each looked for the part, found none, and then began.
/// Fix: each puts a claim before it looks, and keeps a set that has not begun from beginning.
#[test]
fn of_two_that_begin_one_part_at_once_at_most_one_succeeds() {
    let begin = |store: &SharedStore| {
        let begun = Repository::new(store.clone()).begin_part(JOB, 1, &[], options());
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
        let parts = plain.parts(JOB).expect("parts");
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
    let kept = repository.begin_part(JOB, 0, &[], options()).expect("begin");
    let left = repository.begin_part(JOB, 1, &[], options()).expect("begin");
    repository.abandon(left.set()).expect("abandon");
    let claim = |rank: u32, set: SetId| format!("part/{}/{rank:08x}/{set}", JOB);
    store.put_if_absent(&claim(2, SetId(9)), b"").expect("a claim without a set");
    repository.gc(&eager()).expect("gc");
    let names: Vec<String> =
        store.list("part/").expect("list").into_iter().map(|object| object.name).collect();
    assert_eq!(names, [claim(0, kept.set())]);
    assert_eq!(repository.parts(JOB).expect("parts").len(), 1);
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
        repository.begin_part(JOB, rank, &[], options()).expect("begin").end().expect("end");
        assert_eq!(repository.parts(JOB).expect("parts").len(), rank as usize + 1);
        counted.counts().rounds - before
    };
    let (first, second) = (cost(0), cost(1));
    for number in 0..20 {
        publish(&repository, &[], &format!("other{number}")).expect("publish");
    }
    assert_eq!(cost(2) - second, second - first);
}

/// Symptom: after two failed requests of one beginning, a session of the job was left that could be
/// resumed and was no part.
/// Cause: the claim was removed although the set might have begun.
/// Fix: then it stays, until a collection dooms the set.
#[test]
fn what_a_failed_beginning_leaves_is_a_part_or_nothing() {
    let counter = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    Repository::new(counter.clone()).begin_part(JOB, 0, &[], options()).expect("begin");
    let total = counter.operations() + 8;
    let mut failed = 0;
    for first in 1..=total {
        for second in first + 1..=total {
            for effect in [FaultEffect::None, FaultEffect::Full] {
                let store: SharedStore = Arc::new(MemoryStore::new());
                let faults = Arc::new(FaultStore::new(store.clone(), 1));
                faults.fail_at_with(first, Kind::Unavailable, effect);
                faults.fail_at_with(second, Kind::Unavailable, FaultEffect::None);
                let begun = Repository::new(faults).begin_part(JOB, 0, &[], options());
                failed += u32::from(begun.is_err());
                let plain = Repository::new(store);
                let (open, parts) = (plain.open_sessions(), plain.parts(JOB));
                let (open, parts) = (open.expect("sessions").len(), parts.expect("parts").len());
                assert_eq!(open, parts, "{first} {effect:?}, {second}: {begun:?}");
            }
        }
    }
    assert!(failed > 10, "{failed}");
}

/// Symptom: a part that could not be read was left out without a word once it had a name, or the
/// job was published.
/// Cause: only the marker of a session distinguished a part that cannot be read from one that was
/// given up.
/// Fix: every holder that makes a set a part does.
#[test]
fn parts_that_cannot_be_read_are_reported() {
    type Hold = fn(&Repository, &[SetId]);
    let holds: [Hold; 3] = [
        |_, _| {},
        |repository, sets| repository.publish(sets[0], "name").expect("publish"),
        |repository, sets| drop(repository.publish_job(sets, "job").expect("publish")),
    ];
    for hold in holds {
        let repository = repository();
        let sets = [part(&repository, 0), part(&repository, 1)];
        hold(&repository, &sets);
        assert_eq!(repository.parts(JOB).expect("parts").len(), 2);
        damage(&repository, sets[0]);
        let begun = repository.begin_part(JOB, 0, &[], options()).map(drop);
        for error in [repository.parts(JOB).map(drop), begun].map(|done| done.expect_err("damaged"))
        {
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains("the part of rank 0"), "{error}");
        }
    }
}

/// Symptom: a snapshot that could not be read, of a part that had been given up, kept the rank from
/// beginning another part, and the job from being published.
/// Cause: it might have been the set that joins the parts.
/// Fix: a set that joins parts has a manifest before its newest, which tells.
#[test]
fn a_damaged_snapshot_of_a_part_that_was_given_up_holds_nothing_up() {
    let repository = repository();
    let given_up = repository.begin_part(JOB, 0, &[], options()).expect("begin");
    write(&given_up, "/f", &[1; 900]).expect("write");
    let snapshot = given_up.snapshot("snapshot").expect("snapshot");
    repository.abandon(given_up.set()).expect("abandon");
    damage(&repository, snapshot);
    assert_eq!(repository.parts(JOB).expect("parts"), []);
    repository.begin_part(JOB, 0, &[], options()).expect("begin");
}

/// Symptom: a part whose name was changed meanwhile was missing from the parts of its job.
/// Cause: the old name's marker was listed, and the name did not stand for the set any more.
/// Fix: an answer of "none" takes two looks.
#[test]
fn a_part_that_is_renamed_stays_a_part() {
    for at in 0.. {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let plain = Repository::new(store.clone());
        let set = part(&plain, 0);
        plain.publish(set, "a").expect("publish");
        let act = move || assert!(plain.rename("a", "b", IfTaken::Refuse).is_ok());
        let interrupted = Interrupted::new(store, at, Box::new(act));
        let shared: SharedStore = interrupted.clone();
        let parts = Repository::new(shared).parts(JOB).expect("parts");
        if !interrupted.has_happened() {
            assert!(at > 3, "{at}");
            break;
        }
        assert_eq!(parts, [JobPart { rank: 0, set, is_complete: true }], "at {at}");
    }
}

/// Symptom: a complete part that a collection had condemned, and not restored before it ended, was
/// missing from the parts of its job.
/// Cause: condemned sets counted as gone, although a set that is held is restored when it is used.
/// Fix: only sets that are being deleted count as gone.
#[test]
fn a_condemned_part_that_is_held_is_a_part() {
    let repository = repository();
    let set = part(&repository, 0);
    let store = &**repository.store();
    let mut manifest = Manifest::load(store, set).expect("load");
    manifest.state = SetState::CondemnedSealed;
    manifest.epoch += 1;
    manifest.claim(store, set, 5).expect("commit");
    let parts = [JobPart { rank: 0, set, is_complete: true }];
    assert_eq!(repository.parts(JOB).expect("parts"), parts);
    let again = repository.begin_part(JOB, 0, &[], options()).expect_err("there is a part");
    assert_eq!(again.kind(), Kind::Exists);
    repository.publish_job(&[set], "job").expect("publish");
}

/// Symptom: a job was published with two parts of one rank.
/// Cause: a part got its deleted name back after its rank had begun another part.
/// Fix: such a job is refused, and the error names both parts.
#[test]
fn two_parts_of_one_rank_are_refused() {
    let repository = repository();
    let first = part(&repository, 0);
    repository.publish(first, "first").expect("publish");
    repository.delete("first").expect("delete");
    let second = part(&repository, 0);
    repository.undelete("first").expect("undelete");
    let parts = repository.parts(JOB).expect("parts");
    let sets: Vec<SetId> = parts.iter().map(|part| part.set).collect();
    let error = repository.publish_job(&sets, "job").expect_err("two of one rank");
    assert_eq!((sets.len(), error.kind()), (2, Kind::Invalid));
    let said = error.to_string();
    assert!([first, second].iter().all(|set| said.contains(&set.to_string())), "{said}");
    repository.delete("first").expect("delete");
    repository.publish_job(&[second], "job").expect("publish");
}

/// A process that begins a part in a thread of its own and stands still before one of its requests.
struct StandingStill {
    thread: std::thread::JoinHandle<Result<SetId>>,
    go_on: Sender<()>,
}

impl StandingStill {
    /// Returns once it stands still before request `at`, or has ended before that.
    fn begin(store: &SharedStore, at: u64) -> Self {
        let ((stopped, stands), (go_on, continued)) = (channel(), channel::<()>());
        let ended = stopped.clone();
        let stop = Box::new(move || {
            stopped.send(()).expect("the test waits");
            // It also continues if the test has failed.
            let _ = continued.recv();
        });
        let slow: SharedStore = Interrupted::new(store.clone(), at, stop);
        let thread = std::thread::spawn(move || {
            let begun = Repository::new(slow).begin_part(JOB, 0, &[], options());
            let begun = begun.map(|session| {
                session.end().expect("end");
                session.set()
            });
            let _ = ended.send(());
            begun
        });
        stands.recv().expect("it stands still or ends");
        Self { thread, go_on }
    }

    fn go_on(self) -> Result<SetId> {
        let _ = self.go_on.send(());
        self.thread.join().expect("it does not panic")
    }
}

/// Symptom: a job had two parts of one rank, without a report: one that was resumed while it was
/// given up, and one that its rank began in between.
/// Cause: giving up removes the marker that makes a set a part, and puts it back if the set was
/// resumed; a process that looked in between found no part.
/// Fix: a process that resumes a part has a marker of its own, so the set is a part all along.
#[test]
fn a_part_that_is_resumed_while_it_is_given_up_stays_the_only_one_of_its_rank() {
    let mut refused = 0;
    for resume_at in 0.. {
        let mut has_happened = false;
        for beside_at in resume_at.. {
            let outcomes = (0..20)
                .map_while(|begin_at| give_up_beside(resume_at, beside_at, begin_at, &mut refused));
            if outcomes.count() == 0 {
                break;
            }
            has_happened = true;
        }
        if !has_happened {
            break;
        }
    }
    assert!(refused > 0);
}

/// Gives up a part that is resumed before request `resume_at` of that, while another process begins
/// the part of the rank: it starts before request `beside_at`, and stands still before its own
/// request `begin_at` until the part is given up or not. Returns `None` if giving up takes fewer
/// requests.
fn give_up_beside(resume_at: u64, beside_at: u64, begin_at: u64, refused: &mut u64) -> Option<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = Repository::new(store.clone());
    let first = plain.begin_part(JOB, 0, &[], options()).expect("begin");
    write(&first, "/f", &[1; 900]).expect("write");
    first.end().expect("end");
    let (set, (sender, resumes), (starts, others)) = (first.set(), channel(), channel());
    let (inner, outer) = (store.clone(), store.clone());
    let begin = move || starts.send(StandingStill::begin(&inner, begin_at)).expect("received");
    let resume = move || {
        let resumed = Repository::new(outer).resume(set, options());
        sender.send(resumed).expect("received");
    };
    let beside: SharedStore = Interrupted::new(store.clone(), beside_at, Box::new(begin));
    let shared: SharedStore = Interrupted::new(beside, resume_at, Box::new(resume));
    let given_up = Repository::new(shared).give_up(set, &options());
    let beside = others.try_recv().ok()?;
    let resumed = resumes.try_recv().expect("it was resumed before");
    let begun = beside.go_on();
    let case = format!("{resume_at}, {beside_at}, {begin_at}: {given_up:?}, {begun:?}");
    let parts = plain.parts(JOB).expect("parts");
    // If it was resumed before it was fenced, it is given up all the same.
    let written = resumed.and_then(|session| {
        write(&session, "/g", &[2; 900])?;
        session.sync()
    });
    assert_eq!(written.is_ok(), given_up.is_err(), "{case}");
    assert_eq!(parts.iter().any(|part| part.set == set), given_up.is_err(), "{case}");
    assert!(parts.len() <= 1, "{case}: {parts:?}");
    match begun {
        Ok(second) => assert_eq!(parts[0].set, second, "{case}"),
        Err(error) => {
            assert_eq!(error.kind(), Kind::Exists, "{case}");
            *refused += 1;
        }
    }
    Some(())
}

/// Symptom: a collection on a full store reported claims as removed that it had not removed, and
/// did not try again once it had freed room.
/// Cause: a removal that was put off for lack of room was counted, and its claim forgotten.
/// Fix: it is counted once it is done.
#[test]
fn a_claim_whose_removal_is_put_off_is_removed_later_in_the_same_collection() {
    let build = || -> (SharedStore, Repository) {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let repository = Repository::new(store.clone());
        for rank in [0, 1] {
            repository.abandon(part(&repository, rank)).expect("abandon");
        }
        (store, repository)
    };
    let (_, plain) = build();
    let expected = plain.gc(&eager()).expect("gc").stale_markers;
    assert_eq!(expected, 2);
    let mut failed = 0;
    for at in 1.. {
        let (store, _) = build();
        let faults = Arc::new(FaultStore::new(store.clone(), 1));
        faults.fail_at(at, Kind::NoSpace);
        let collected = Repository::new(faults.clone()).gc(&eager());
        if faults.operations() < at {
            break;
        }
        let left = store.list("part/").expect("list").len();
        // Objects that could not be freed at all are reported as an error.
        let Ok(report) = collected else { continue };
        assert_eq!(report.stale_markers + left as u64, expected, "at {at}: {report:?}");
        failed += 1;
    }
    assert!(failed > 0);
}
