// SPDX-License-Identifier: Apache-2.0
//! Commits whose manifest is in the store although the answer to its put was lost, or was given to
//! an earlier attempt of the store's client.
//!
//! Symptom: on a store that repeats requests (S3), a session, snapshot, squash or join failed to
//! begin with `Conflict`, "changed by another writer", and nobody else had written the set.
//! Cause: the first commit to a set took no manifest that it found for its own.
//! Fix: a set whose identity was just drawn has no other writer, and a commit that is wanted only
//! for its effect has it, so an identical manifest is as good as its own.

use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Error, Kind, Result};
use esker_fs::job::JobId;
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::repository::Repository;
use esker_fs::session::SessionOptions;
use esker_table::manifest::{Manifest, SetId};
use esker_table::tree::Heartbeat;

use crate::gc::{eager, options, publish, repository, write};
use crate::hooked::{HookedStore, Request, When};
use crate::verify::assert_sound;

const JOB: JobId = JobId(5);

/// The sets of the store in which an operation runs.
struct Prepared {
    base: SetId,
    open: SetId,
    parts: [SetId; 2],
}

fn prepare(store: &SharedStore) -> Prepared {
    let plain = repository(store);
    let base = publish(&plain, &[], "base").expect("publish");
    let session = plain.begin(&[base], options()).expect("begin");
    session.flush().expect("flush");
    let open = session.set();
    drop(session);
    let parts = [0, 1].map(|rank| {
        let part = plain.begin_part(JOB, rank, &[], options()).expect("begin");
        write(&part, &format!("/{rank}"), &[7; 900]).expect("write");
        part.complete().expect("complete")
    });
    Prepared { base, open, parts }
}

type Operation = fn(&Repository, &Prepared) -> Result<()>;

/// Operations, each with the number of sets that it adds.
const OPERATIONS: [(&str, Operation, usize); 8] = [
    ("begin", |repository, sets| repository.begin(&[sets.base], options()).map(drop), 1),
    ("begin a part", |repository, _| repository.begin_part(JOB, 2, &[], options()).map(drop), 1),
    (
        "squash",
        |repository, sets| repository.squash(&[sets.base], &SquashOptions::default()).map(drop),
        1,
    ),
    ("join", |repository, sets| repository.publish_job(&sets.parts, "job").map(drop), 1),
    (
        "set a property",
        |repository, sets| repository.set_property(sets.base, "a".into(), "b".into()),
        0,
    ),
    ("keep", |repository, sets| repository.keep_complete(sets.base), 0),
    ("abandon", |repository, sets| repository.abandon(sets.open), 0),
    (
        "give up",
        |repository, sets| {
            let taking_over = SessionOptions { take_over: true, ..options() };
            repository.give_up(sets.parts[0], &taking_over)
        },
        0,
    ),
];

/// Loses the answer to the next put of a manifest in `store`; `kind` is what is reported instead.
fn lose_answer(store: &HookedStore, kind: Kind) {
    let lost = move || Err(Error::new(kind, "the answer was lost"));
    store.at(When::After, Request::Put, "/manifest/", lost);
}

#[test]
fn a_first_commit_is_recognized_although_its_answer_was_lost() {
    for kind in [Kind::Exists, Kind::Unavailable] {
        for (what, operation, new_sets) in OPERATIONS {
            let memory: SharedStore = Arc::new(MemoryStore::new());
            let prepared = prepare(&memory);
            let before = repository(&memory).sets().expect("sets").len();
            let hooked = HookedStore::new(memory.clone());
            lose_answer(&hooked, kind);
            let done =
                operation(&repository(&(Arc::new(hooked.clone()) as SharedStore)), &prepared);
            assert!(hooked.has_acted(), "{what}");
            done.unwrap_or_else(|error| panic!("{what}, {kind:?}: {error}"));
            let after = repository(&memory).sets().expect("sets").len();
            assert_eq!(after - before, new_sets, "{what}, {kind:?}");
        }
    }
}

#[test]
fn a_snapshot_is_taken_although_an_answer_was_lost() {
    for kind in [Kind::Exists, Kind::Unavailable] {
        for lost in ["/manifest/0000000000000001", "/manifest/"] {
            let memory: SharedStore = Arc::new(MemoryStore::new());
            let hooked = HookedStore::new(memory.clone());
            let shared: SharedStore = Arc::new(hooked.clone());
            let session = repository(&shared).begin(&[], options()).expect("begin");
            write(&session, "/f", &[1; 900]).expect("write");
            hooked.at(When::After, Request::Put, lost, move || Err(Error::new(kind, "lost")));
            let taken = session.snapshot("n").unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            assert!(hooked.has_acted());
            assert_eq!(repository(&memory).resolve("n").expect("named").set, taken);
            session.end().expect("it goes on");
        }
    }
}

/// Of several processes that begin to write under one epoch, at most one goes on, even if they would
/// commit the same bytes: a takeover that finds its own manifest fences it.
///
/// Symptom: a takeover, a compaction and a collection failed with `Conflict`, or a server of a live
/// namespace was refused because of itself, if the answer to their first commit was lost.
/// Cause: they took the manifest for that of another process, whose writer was alive.
/// Fix: they claim the next epoch over it.
#[test]
fn a_claim_whose_answer_was_lost_is_repeated_under_another_epoch() {
    for kind in [Kind::Exists, Kind::Unavailable] {
        let heartbeat = Some(Heartbeat { interval: None, ..Heartbeat::of_process("ada") });
        let options = SessionOptions { heartbeat, ..options() };
        let memory: SharedStore = Arc::new(MemoryStore::new());
        let open = prepare(&memory).open;
        let before = Manifest::load(&*memory, open).expect("manifest").epoch;
        let hooked = HookedStore::new(memory.clone());
        lose_answer(&hooked, kind);
        let shared: SharedStore = Arc::new(hooked.clone());
        let session = repository(&shared).resume(open, options);
        let session = session.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert!(hooked.has_acted());
        assert_eq!(Manifest::load(&*memory, open).expect("manifest").epoch, before + 2);
        write(&session, "/f", &[1; 900]).expect("write");
        session.end().expect("end");
        assert_eq!(repository(&memory).gc(&eager()).expect("gc").sets, []);
    }
}

#[test]
fn a_compaction_whose_answer_was_lost_goes_on() {
    for kind in [Kind::Exists, Kind::Unavailable] {
        let memory: SharedStore = Arc::new(MemoryStore::new());
        let session = repository(&memory).begin(&[], options()).expect("begin");
        for name in ["/a", "/b"] {
            write(&session, name, &[1; 900]).expect("write");
            session.flush().expect("flush");
        }
        let set = session.publish("n").expect("publish");
        let hooked = HookedStore::new(memory.clone());
        lose_answer(&hooked, kind);
        let shared: SharedStore = Arc::new(hooked.clone());
        let compacted = repository(&shared).compact_set(set, 1);
        compacted.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert!(hooked.has_acted());
        assert_sound(&repository(&memory));
    }
}
