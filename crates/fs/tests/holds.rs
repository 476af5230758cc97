// SPDX-License-Identifier: Apache-2.0
//! Two writers: opening the session of a live writer is refused, unless it is taken over
//! explicitly.
//!
//! Symptom: `esker compact @SESSION` of a mounted session silently fenced the mount; a command in
//! another user's session did the same; and a session that was given up while a command wrote it
//! came back when that command ended.
//! Cause: a resume fenced any writer of the set, and nothing recorded that there was one.
//! Fix: manifests name the writer; a resume checks whether it is alive.

use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::ManualClock;
use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Error, Kind, ProcessIdentity, Result};
use esker_fs::repository::Repository;
use esker_fs::session::hold::HolderState;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::{Manifest, SetId};
use esker_table::set_writer::SetWriter;
use esker_table::tree::{BEAT_AGE_MAX, Heartbeat};

use crate::gc::{eager, write};
use crate::hooked::{HookedStore, Request, When};
use crate::interrupted_store::Interrupted;

/// Returns a store with the repository's clock.
fn clocked() -> (Arc<ManualClock>, SharedStore, Repository) {
    let clock = Arc::new(ManualClock::new(1 << 60));
    let store: SharedStore = Arc::new(MemoryStore::with_clock(clock.clone()));
    let repository = Repository::with(store.clone(), 1 << 20, clock.clone());
    (clock, store, repository)
}

/// Returns options of a session that `process` writes, with commits as its only signs of life.
fn options(process: &ProcessIdentity) -> SessionOptions {
    let (user, command) = ("ada".to_owned(), "esker mount".to_owned());
    let writer = SetWriter { process: process.clone(), user, command, ..SetWriter::default() };
    let heartbeat = Some(Heartbeat { writer, interval: None, on_fenced: None });
    SessionOptions { identity: Identity::root(), heartbeat, ..SessionOptions::default() }
}

fn taking_over(process: &ProcessIdentity) -> SessionOptions {
    SessionOptions { take_over: true, ..options(process) }
}

fn here() -> ProcessIdentity {
    ProcessIdentity::current()
}

/// A process of another machine.
fn elsewhere() -> ProcessIdentity {
    ProcessIdentity { host: "node7".into(), boot: "another".into(), pid: 12, ..here() }
}

/// A dead process of this machine, whose number now belongs to this one.
fn gone() -> ProcessIdentity {
    ProcessIdentity { started_ticks: here().started_ticks + 1, ..here() }
}

fn refused(resumed: Result<Session>) -> Error {
    let error = resumed.expect_err("somebody writes it");
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
    error
}

#[test]
fn a_session_of_a_live_writer_is_refused_with_its_name_and_taken_over_on_demand() {
    let (clock, _, repository) = clocked();
    let first = repository.begin(&[], options(&elsewhere())).expect("begin");
    write(&first, "/a", b"1").expect("write");
    first.sync().expect("sync");
    clock.advance(Duration::from_secs(4));
    let error = refused(repository.resume(first.set(), options(&here()))).to_string();
    for part in ["esker mount", "process 12 of ada on node7", "last seen 4 s ago", "--take-over"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    first.sync().expect("it goes on");
    let second = repository.resume(first.set(), taking_over(&here())).expect("taken over");
    assert!(first.sync().expect_err("fenced").to_string().contains("taken over by"));
    second.end().expect("end");
}

#[test]
fn a_writer_that_was_not_seen_for_long_counts_as_gone() {
    let (clock, _, repository) = clocked();
    let first = repository.begin(&[], options(&elsewhere())).expect("begin");
    clock.advance(BEAT_AGE_MAX - Duration::from_nanos(1));
    refused(repository.resume(first.set(), options(&here())));
    clock.advance(Duration::from_nanos(1));
    drop(repository.resume(first.set(), options(&here())).expect("nobody holds it"));
}

/// A container with the same process numbers cannot tell that the writer is gone.
#[test]
fn a_young_writer_of_another_container_counts_as_alive() {
    let (clock, _, repository) = clocked();
    let container = ProcessIdentity { pid_namespace: here().pid_namespace + 1, ..gone() };
    let first = repository.begin(&[], options(&container)).expect("begin");
    refused(repository.resume(first.set(), options(&here())));
    clock.advance(BEAT_AGE_MAX);
    drop(repository.resume(first.set(), options(&here())).expect("it is old"));
}

#[test]
fn beats_make_a_writer_young() {
    let (clock, store, repository) = clocked();
    let first = repository.begin(&[], options(&elsewhere())).expect("begin");
    let set = first.set();
    clock.advance(BEAT_AGE_MAX);
    // One beat of an earlier epoch, and one of its own.
    store.put_if_absent(&format!("set/{set}/beat/00000000-00000001"), b"").expect("put");
    let manifest = Manifest::load(&*store, set).expect("load");
    let state = || repository.hold(set, &manifest).expect("list").expect("a writer").state;
    assert_eq!(state(), HolderState::Silent);
    store.put_if_absent(&format!("set/{set}/beat/00000001-00000007"), b"").expect("put");
    assert_eq!(state(), HolderState::Alive);
    refused(repository.resume(set, options(&here())));
    clock.advance(BEAT_AGE_MAX);
    assert_eq!(state(), HolderState::Silent);
}

#[test]
fn a_process_of_this_machine_that_died_is_followed_at_once() {
    let (_, _, repository) = clocked();
    let first = repository.begin(&[], options(&gone())).expect("begin");
    drop(repository.resume(first.set(), options(&here())).expect("its process is gone"));
}

/// However long it was not seen: it may have been stopped.
#[test]
fn a_process_of_this_machine_that_lives_is_never_taken_for_gone() {
    let (clock, _, repository) = clocked();
    let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("a child");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
    let started_ticks = stat.split(' ').nth(21).expect("a field").parse().expect("a number");
    let process = ProcessIdentity { pid: child.id(), started_ticks, ..here() };
    let first = repository.begin(&[], options(&process)).expect("begin");
    clock.advance(BEAT_AGE_MAX * 100);
    refused(repository.resume(first.set(), options(&here())));
    child.kill().and_then(|()| child.wait()).expect("it is ours");
    drop(repository.resume(first.set(), options(&here())).expect("its process is gone"));
}

#[test]
fn a_session_that_ended_in_order_is_free_at_once_and_takes_no_more_changes() {
    let (_, store, repository) = clocked();
    let first = repository.begin(&[], options(&elsewhere())).expect("begin");
    write(&first, "/a", b"1").expect("write");
    first.end().expect("end");
    assert_eq!(write(&first, "/b", b"2").expect_err("it has ended").kind(), Kind::Closed);
    let manifest = Manifest::load(&*store, first.set()).expect("load");
    let hold = repository.hold(first.set(), &manifest).expect("list").expect("a writer");
    assert_eq!((hold.state, hold.writer.user.as_str()), (HolderState::Released, "ada"));
    let second = repository.resume(first.set(), options(&here())).expect("nobody holds it");
    assert!(
        second.namespace().dir("/").is_ok()
            && second.namespace().stat("/a", FollowLinks::No).is_ok()
    );
}

#[test]
fn a_process_takes_its_own_sessions_over_unasked() {
    let (_, _, repository) = clocked();
    let first = repository.begin(&[], options(&here())).expect("begin");
    let second = repository.resume(first.set(), options(&here())).expect("its own");
    assert_eq!(first.sync().expect_err("fenced").kind(), Kind::Fenced);
    second.sync().expect("sync");
}

/// Two concurrent commands: the second must see the first, even if it read the manifest before the
/// first had committed its own.
#[test]
fn of_two_that_resume_at_once_one_is_refused() {
    let memory: SharedStore = Arc::new(MemoryStore::new());
    let repository = Repository::new(memory.clone());
    let first = repository.begin(&[], options(&elsewhere())).expect("begin");
    first.end().expect("end");
    let set = first.set();
    let hooked = HookedStore::new(memory);
    let other = repository.clone();
    let (sender, receiver) = std::sync::mpsc::channel();
    hooked.at(When::Before, Request::Put, "/manifest/", move || {
        sender.send(other.resume(set, options(&elsewhere()))?).expect("the test keeps it");
        Ok(())
    });
    let late = Repository::new(Arc::new(hooked.clone()));
    refused(late.resume(set, options(&here())));
    assert!(hooked.has_acted());
    let winner = receiver.recv().expect("it resumed");
    winner.sync().expect("nobody fenced it");
}

/// Symptom: a fenced mount continued to accept writes to open files, which were lost.
/// Cause: a write that fits into a file's buffer checked nothing.
/// Fix: changes of open files first check that the session still takes any.
#[test]
fn a_fenced_session_refuses_every_write_at_once() {
    let (_, _, repository) = clocked();
    let first = repository.begin(&[], options(&elsewhere())).expect("begin");
    let file = first.create_file(first.root(), b"f", 0o644).expect("create");
    first.file(&file).write(0, b"before").expect("write");
    let _second = repository.resume(first.set(), taking_over(&here())).expect("resume");
    assert_eq!(first.sync().expect_err("fenced").kind(), Kind::Fenced);
    let fenced = |done: Result<()>| assert_eq!(done.expect_err("fenced").kind(), Kind::Fenced);
    fenced(first.file(&file).write(0, b"after"));
    fenced(first.file(&file).append(b"after").map(drop));
    fenced(first.file(&file).truncate(1));
    fenced(first.file(&file).allocate(0..10, false));
    fenced(first.file(&file).punch(0..1, true));
    fenced(first.file(&file).setattr(&Default::default()).map(drop));
    fenced(first.file(&file).sync());
    fenced(write(&first, "/new", b"x"));
    fenced(first.unlink(first.root(), b"f").map(drop));
    fenced(first.publish("name").map(drop));
}

#[test]
fn a_session_is_given_up_only_if_nobody_writes_it_or_on_demand() {
    let (_, store, repository) = clocked();
    let first = repository.begin(&[], options(&elsewhere())).expect("begin");
    let set = first.set();
    let error = repository.give_up(set, &options(&here())).expect_err("somebody writes it");
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
    write(&first, "/a", b"1").expect("write");
    repository.give_up(set, &taking_over(&here())).expect("on demand");
    // Nothing that it does from now on brings the set back.
    assert_eq!(first.flush().expect_err("fenced").kind(), Kind::Fenced);
    assert_eq!(first.publish("name").expect_err("fenced").kind(), Kind::Fenced);
    let again = repository.resume(set, taking_over(&here())).expect_err("it was given up");
    assert_eq!(again.kind(), Kind::NotFound, "{again}");
    assert!(again.to_string().contains("given up"), "{again}");
    assert_eq!(repository.gc(&eager()).expect("gc").sets, [set]);
    assert!(Manifest::load(&*store, SetId(set.0)).is_ok(), "its last manifest stays for a day");
}

/// Symptom: a process that resumed a session while another gave it up lost everything it wrote
/// next.
/// Cause: giving up fences, and then removes the marker; a takeover between the two continued
/// without a marker, until a collection deleted the set.
/// Fix: each of the two checks once more for the other.
#[test]
fn of_a_session_that_is_resumed_while_it_is_given_up_one_gives_way() {
    let resume = |repository: &Repository, set: SetId| {
        let session = repository.resume(set, options(&elsewhere()))?;
        write(&session, "/late", b"2")?;
        session.sync().map(|()| session)
    };
    for is_resumed_first in [false, true] {
        for at in 0.. {
            let memory: SharedStore = Arc::new(MemoryStore::new());
            let plain = Repository::new(memory.clone());
            let first = plain.begin(&[], options(&elsewhere())).expect("begin");
            write(&first, "/a", b"1").expect("write");
            first.end().expect("end");
            let (set, other) = (first.set(), Repository::new(memory.clone()));
            let (sender, receiver) = std::sync::mpsc::channel();
            let act = Box::new(move || {
                let done = match is_resumed_first {
                    true => (None, Some(other.give_up(set, &options(&here())))),
                    false => (Some(resume(&other, set)), None),
                };
                sender.send(done).expect("the test keeps it");
            });
            let interrupted = Interrupted::new(memory.clone(), at, act);
            let shared = Repository::new(interrupted.clone());
            let (resumed, given_up) = match is_resumed_first {
                true => (resume(&shared, set), None),
                false => {
                    let given_up = shared.give_up(set, &options(&here()));
                    let Ok((resumed, _)) = receiver.try_recv() else { break };
                    (resumed.expect("resumed"), Some(given_up))
                }
            };
            let given_up = match given_up {
                Some(given_up) => given_up,
                None => match receiver.try_recv() {
                    Ok((_, given_up)) => given_up.expect("given up"),
                    Err(_) => break,
                },
            };
            let case = format!("resumed first: {is_resumed_first}, at {at}: {given_up:?}");
            plain.gc(&eager()).expect("gc");
            match resumed {
                Ok(session) => {
                    assert_eq!(given_up.expect_err(&case).kind(), Kind::Conflict, "{case}");
                    session.flush().unwrap_or_else(|error| panic!("{case}: {error}"));
                    session.publish("name").unwrap_or_else(|error| panic!("{case}: {error}"));
                }
                Err(error) => {
                    let kinds = [Kind::NotFound, Kind::Fenced, Kind::Conflict];
                    assert!(kinds.contains(&error.kind()), "{case}: {error}");
                }
            }
        }
    }
}

#[test]
fn a_collection_sweeps_beats_of_writers_that_died_and_takes_none_for_a_reason_to_keep_a_set() {
    let (_, store, repository) = clocked();
    let first = repository.begin(&[], options(&gone())).expect("begin");
    let set = first.set();
    let beat = |epoch: u64| format!("set/{set}/beat/{epoch:08x}-00000001");
    store.put_if_absent(&beat(1), b"").expect("put");
    let second = repository.resume(set, options(&here())).expect("resume");
    store.put_if_absent(&beat(2), b"").expect("put");
    let beats = || store.list(&format!("set/{set}/beat/")).expect("list").len();
    repository.gc(&eager()).expect("gc");
    assert_eq!(beats(), 1, "that of the live writer stays");
    second.publish("name").expect("publish");
    repository.gc(&eager()).expect("gc");
    assert_eq!(beats(), 0);
    repository.delete("name").expect("delete");
    store.put_if_absent(&beat(3), b"").expect("put");
    assert_eq!(repository.gc(&eager()).expect("gc").sets, [set]);
    assert_eq!(beats(), 0);
}
