// SPDX-License-Identifier: Apache-2.0
//! Open files whose names change: by changes that fail and are shown, and while they are being
//! opened.

use std::io::Read;
use std::sync::Arc;

use esker_base::clock::ManualClock;
use esker_base::store::{FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::file::OpenFile;
use esker_fs::ops::RenameFlags;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::namespace::FollowLinks;
use esker_table::tree::{Durability, TreeOptions};

use crate::gc::{options, publish, write};
use crate::hooked::{HookedStore, Request, When};

/// Bytes of a file that is too large for its record.
const BYTES: usize = 9_000;

fn open(session: &Session, name: &str) -> Arc<OpenFile> {
    session.open_file(session.root(), name.as_bytes()).expect("open")
}

fn names(session: &Session, file: &Arc<OpenFile>) -> u32 {
    session.file(file).stat().expect("stat").nlink
}

fn content(session: &Session, path: &str) -> Vec<u8> {
    let inode = session.namespace().stat(path, FollowLinks::No).expect("stat");
    session.namespace().read(&inode, 0, 1 << 20).expect("read").to_vec()
}

/// Options of a session whose changes are durable when they return, without a thread.
fn always() -> SessionOptions {
    let tree =
        TreeOptions { durability: Durability::Always, background: false, ..TreeOptions::default() };
    SessionOptions { tree, ..options() }
}

/// Content for a file that is rewritten.
fn bytes(mut rest: &[u8]) -> impl FnMut(&mut [u8]) -> Result<usize> {
    move |buffer| Ok(rest.read(buffer).expect("in memory"))
}

/// Overwrites the start of an open file, and returns once that is durable.
fn mark(session: &Session, file: &Arc<OpenFile>, byte: u8) {
    session.file(file).write(0, &[byte; 4]).expect("write");
    session.file(file).sync().expect("sync");
}

/// Symptom: after a link that had failed for lack of room, and the removal of the old name,
/// everything that was written and synced through the open file was missing. A file whose removal,
/// or replacement, had failed in the same way still had a name for those who had it open, and its
/// bytes were never freed.
/// Cause: a change that cannot be made durable stays in memory, but open files got it only if it
/// succeeded; they mistook a name that leads nowhere for the removal of the file.
/// Fix: after a failed change they follow the shown state.
#[test]
fn open_files_follow_failed_changes_that_are_shown() {
    let faults = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let repository = Repository::new(faults.clone());
    let session = repository.begin(&[], always()).expect("begin");
    let root = session.root();
    for name in ["linked", "removed", "taken", "after", "two", "pair"] {
        write(&session, &format!("/{name}"), &vec![b'x'; BYTES]).expect("write");
    }
    session.link(root, b"two", root, b"too").expect("link");
    session.link(root, b"pair", root, b"peer").expect("link");
    let [linked, removed, taken, two, pair] =
        ["linked", "removed", "taken", "two", "pair"].map(|name| open(&session, name));
    let without_room = |change: &dyn Fn() -> Result<()>| {
        faults.fail_one_in(1, Kind::NoSpace);
        assert_eq!(change().expect_err("no room").kind(), Kind::NoSpace);
        faults.fail_one_in(0, Kind::NoSpace);
        session.sync().expect("there is room");
    };
    without_room(&|| session.link(root, b"linked", root, b"other").map(drop));
    assert_eq!(names(&session, &linked), 2);
    session.unlink(root, b"linked").expect("unlink");
    mark(&session, &linked, b'L');
    assert_eq!(&content(&session, "/other")[..5], b"LLLLx", "it was synced");

    without_room(&|| session.unlink(root, b"removed").map(drop));
    without_room(&|| {
        session.rename((root, b"after"), (root, b"taken"), RenameFlags::Replace).map(drop)
    });
    without_room(&|| session.unlink(root, b"two").map(drop));
    without_room(&|| session.unlink(root, b"pair").map(drop));
    without_room(&|| session.unlink(root, b"peer").map(drop));
    for (file, left) in [(&removed, 0), (&taken, 0), (&two, 1), (&pair, 0)] {
        assert_eq!(names(&session, file), left);
        mark(&session, file, b'M');
        let read = session.file(file).read(0, BYTES + 1).expect("read");
        assert_eq!((read.len(), &read[..5]), (BYTES, &b"MMMMx"[..]));
    }
    assert_eq!(&content(&session, "/taken")[..5], b"xxxxx", "what replaced the file");
    assert_eq!(&content(&session, "/too")[..5], b"MMMMx");
    for file in [linked, removed, taken, two, pair] {
        session.close_file(file).expect("close");
    }
    // Content that nothing shows is given up, and everything else is whole.
    let set = session.publish("name").expect("publish");
    crate::verify::assert_sound(&repository);
    let found = repository.open(&[set], options().identity).expect("open");
    let listed: Vec<String> =
        ["linked", "other", "removed", "taken", "after", "two", "too", "pair", "peer"]
            .into_iter()
            .filter(|name| found.stat(format!("/{name}"), FollowLinks::No).is_ok())
            .map(str::to_owned)
            .collect();
    assert_eq!(listed, ["other", "taken", "too"]);
}

/// Symptom: after a rewrite that had failed for lack of room, and was shown, an open file continued
/// with its earlier content, and its next sync put that back.
/// Cause: open files got a rewrite only if it succeeded.
/// Fix: after a failed rewrite they follow the shown state.
#[test]
fn open_files_follow_failed_rewrites_that_are_shown() {
    let faults = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let repository = Repository::new(faults.clone());
    let session = repository.begin(&[], always()).expect("begin");
    let root = session.root();
    // Only the record's operation fails: its content is in the record.
    for name in ["one", "two"] {
        write(&session, &format!("/{name}"), b"before").expect("write");
    }
    session.link(root, b"two", root, b"too").expect("link");
    for (name, other) in [("one", "one"), ("two", "too")] {
        let file = open(&session, other);
        mark(&session, &file, b'A');
        faults.fail_one_in(1, Kind::NoSpace);
        let rewritten = session.rewrite(root, name.as_bytes(), &mut bytes(b"rewritten"));
        assert_eq!(rewritten.expect_err("no room").kind(), Kind::NoSpace);
        faults.fail_one_in(0, Kind::NoSpace);
        session.sync().expect("there is room");
        assert_eq!(content(&session, &format!("/{name}")), b"rewritten");
        assert_eq!(&session.file(&file).read(0, 99).expect("read")[..], b"rewritten");
        mark(&session, &file, b'B');
        session.close_file(file).expect("close");
        assert_eq!(content(&session, &format!("/{other}")), b"BBBBitten");
    }
    session.publish("name").expect("publish");
    crate::verify::assert_sound(&repository);
}

/// Symptom: a rewrite that had replaced a file's content, durably, reported an error.
/// Cause: there was no room to record that the old content can go, which is another operation.
/// Fix: the old content then stays until the file is written or removed, and the rewrite succeeds.
#[test]
fn a_rewrite_succeeds_whether_or_not_the_old_content_can_go() {
    let rewrite = |fail_at: Option<u64>| {
        let faults = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let repository = Repository::new(faults.clone());
        let session = repository.begin(&[], always()).expect("begin");
        let root = session.root();
        let file = session.create_file(root, b"f", 0o644).expect("create");
        for part in [1, 0] {
            session.file(&file).write(part << 20, &[7; 1 << 20]).expect("write");
        }
        session.close_file(file).expect("close");
        let before = faults.operations();
        if let Some(at) = fail_at {
            faults.fill_at(before + at, esker_base::store::FaultEffect::None);
        }
        let rewritten = session.rewrite(root, b"f", &mut bytes(b"new"));
        let operations = faults.operations() - before;
        let found = Repository::new(faults.after_process_death().expect("an image"));
        let resumed = found.resume(session.set(), options()).expect("resume");
        let is_durable = content(&resumed, "/f") == b"new";
        faults.make_room();
        session.sync().expect("there is room");
        // Nothing of the old content comes back, even where nothing was written since.
        let file = open(&session, "f");
        session.file(&file).write(9_000, b"end").expect("write");
        session.close_file(file).expect("close");
        let found = content(&session, "/f");
        assert!(!is_durable || (found.starts_with(b"new") && found[3..9_000] == [0; 8_997]));
        (rewritten.is_ok(), is_durable, operations)
    };
    let (is_done, is_durable, operations) = rewrite(None);
    assert!(is_done && is_durable);
    let outcomes = (1..=operations).map(|at| rewrite(Some(at)));
    let outcomes: Vec<(bool, bool)> = outcomes.map(|(done, durable, _)| (done, durable)).collect();
    assert!(outcomes.iter().all(|(is_done, is_durable)| is_done == is_durable), "{outcomes:?}");
    assert!(outcomes.contains(&(false, false)) && outcomes.contains(&(true, true)));
}

/// Symptom: the bytes of a file whose removal had failed for lack of room, and was shown, stayed in
/// the store for as long as its session.
/// Cause: there was no room to record that they can go, and nothing tried again.
/// Fix: the next sync or flush does.
#[test]
fn the_content_of_a_file_whose_removal_failed_is_freed() {
    let memory: SharedStore = Arc::new(MemoryStore::new());
    let faults = Arc::new(FaultStore::new(memory.clone(), 1));
    let repository = Repository::new(faults.clone());
    let session = repository.begin(&[], always()).expect("begin");
    let file = session.create_file(session.root(), b"f", 0o644).expect("create");
    for part in [1, 0] {
        session.file(&file).write(part << 20, &[7; 1 << 20]).expect("write");
    }
    session.close_file(file).expect("close");
    faults.fail_one_in(1, Kind::NoSpace);
    let removed = session.unlink(session.root(), b"f").expect_err("no room");
    assert_eq!(removed.kind(), Kind::NoSpace);
    assert_eq!(session.sync().expect_err("no room").kind(), Kind::NoSpace);
    faults.fail_one_in(0, Kind::NoSpace);
    session.sync().expect("there is room");
    session.end().expect("end");
    // The log of a writer that is gone does not grow.
    let session = repository.resume(session.set(), options()).expect("resume");
    session.compact().expect("compact");
    let folder = format!("set/{}/data/", session.set());
    assert_eq!(memory.list_names(&folder).expect("list"), [""; 0]);
}

/// Runs `change` when `session` has just read the record of `/f` in a base, in order to open it;
/// returns what it has opened.
fn open_beside(change: fn(&Session) -> Result<()>) -> (Arc<Session>, Result<Arc<OpenFile>>) {
    let store = HookedStore::new(Arc::new(MemoryStore::new()));
    let shared: SharedStore = Arc::new(store.clone());
    // Without a cache each look-up reads its block.
    let repository = Repository::with(shared, 0, Arc::new(ManualClock::new(1)));
    let base = publish(&repository, &[], "f").expect("publish");
    let session = Arc::new(repository.begin(&[base], options()).expect("begin"));
    session.namespace().stat("/f", FollowLinks::No).expect("the base has it");
    let other = session.clone();
    store.at(When::After, Request::GetRange, "/table/", move || change(&other));
    let opened = session.open_file(session.root(), b"f");
    assert!(store.has_acted(), "the record is in a table");
    (session, opened)
}

/// Symptom: bytes written to a file and synced were missing, or a file had zeros, if it had been
/// linked or removed while it was being opened.
/// Cause: the record's place was read before the change, and the change found no open file to tell.
/// Fix: such a change makes threads that are opening the file look it up again.
#[test]
fn a_file_that_is_linked_or_removed_while_it_is_opened_is_looked_up_again() {
    let (session, opened) = open_beside(|session| {
        let root = session.root();
        session.link(root, b"f", root, b"g")?;
        session.unlink(root, b"f").map(drop)
    });
    // By its old name, which is gone, or as the file that has the new one.
    if let Ok(file) = opened {
        mark(&session, &file, b'M');
        assert_eq!(&content(&session, "/g")[..4], b"MMMM", "it was synced");
    }
    let (session, opened) = open_beside(|session| {
        let root = session.root();
        session.link(root, b"f", root, b"g").map(drop)
    });
    let file = opened.expect("it has both names");
    session.unlink(session.root(), b"f").expect("unlink");
    mark(&session, &file, b'M');
    assert_eq!(&content(&session, "/g")[..4], b"MMMM", "it was synced");
    let (session, opened) = open_beside(|session| session.unlink(session.root(), b"f").map(drop));
    match opened {
        Ok(file) => assert_eq!(names(&session, &file), 0),
        Err(error) => assert_eq!(error.kind(), Kind::NotFound),
    }
}
