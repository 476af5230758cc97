// SPDX-License-Identifier: Apache-2.0
//! Requests of clients: the records that changes carry, and files with identities of the caller's.
//! Crashes are in `crash.rs`.

use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::inode::{FileId, FileKind};
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::ops::NewFile;
use esker_fs::repository::Repository;
use esker_fs::session::SessionOptions;
use esker_fs::session::request_record::{REQUEST_RECORD_BYTES_MAX, RequestRecord};
use esker_fs::stack::identity::Identity;
use esker_table::manifest::SetId;

use crate::gc::options;
use crate::model::check_sound;
use crate::squash::tree;

fn repository() -> Repository {
    Repository::new(Arc::new(MemoryStore::new()))
}

fn record(client: u64, content: &[u8]) -> RequestRecord {
    RequestRecord { client, content: content.to_vec() }
}

#[test]
fn a_change_carries_the_record_of_its_handle() -> Result<()> {
    let repository = repository();
    let session = repository.begin(&[], SessionOptions::default())?;
    let (mut first, mut second) =
        (session.acting_as(Identity::root()), session.acting_as(Identity::root()));
    first.attach_request(Some(&record(1, b"one")))?;
    second.attach_request(Some(&record(2, b"two")))?;
    assert_eq!(session.requests()?, []);
    first.mkdir(first.root(), b"d", 0o755)?;
    // A change that fails carries nothing.
    assert_eq!(second.mkdir(second.root(), b"d", 0o755).unwrap_err().kind(), Kind::Exists);
    assert_eq!(session.requests()?, [record(1, b"one")]);
    second.rmdir(second.root(), b"d")?;
    first.attach_request(None)?;
    first.create(first.root(), b"f", 0o644)?;
    let mut found = session.requests()?;
    found.sort_by_key(|record| record.client);
    assert_eq!(found, [record(1, b"one"), record(2, b"two")]);
    session.remove_request(1)?;
    session.remove_request(3)?;
    session.put_request(&record(2, b""))?;
    session.flush()?;
    assert_eq!(session.requests()?, [record(2, b"")]);
    let large = record(1, &vec![0; REQUEST_RECORD_BYTES_MAX + 1]);
    assert_eq!(session.put_request(&large).unwrap_err().kind(), Kind::TooLarge);
    Ok(())
}

/// No path shows the records, other sessions on top do not see them as theirs, and a squash drops
/// them.
#[test]
fn records_are_no_part_of_the_tree() -> Result<()> {
    let repository = repository();
    let mut session = repository.begin(&[], SessionOptions::default())?;
    session.attach_request(Some(&record(7, b"x")))?;
    session.mkdir(session.root(), b"d", 0o755)?;
    assert_eq!(session.namespace().read_dir(session.root(), &Default::default(), 10)?.len(), 1);
    let one = session.publish("one")?;
    check_sound(&repository);
    let above = repository.begin(&[one], SessionOptions::default())?;
    assert_eq!(above.requests()?, []);
    above.put_request(&record(7, b"y"))?;
    assert_eq!(above.requests()?, [record(7, b"y")]);
    let two = above.publish("two")?;
    let (squashed, report) = repository.squash(&[two], &SquashOptions::default())?;
    // The root and `d`.
    assert_eq!(report.counts.written, 2);
    repository.publish(squashed, "three")?;
    check_sound(&repository);
    Ok(())
}

#[test]
fn a_repeated_create_finds_its_own_file() -> Result<()> {
    let repository = repository();
    let base = repository.begin(&[], SessionOptions::default())?;
    base.create_identified(base.root(), b"old", 0o644, FileId(5))?;
    let base = base.publish("base")?;
    let session = repository.begin(&[base], SessionOptions::default())?;
    let root = session.root();
    let create = |name: &[u8], id| session.create_identified(root, name, 0o600, FileId(id));
    create(b"new", 1 << 64 | 3)?;
    create(b"new", 1 << 64 | 3)?;
    assert_eq!(create(b"new", 4).unwrap_err().kind(), Kind::Exists);
    assert_eq!(session.namespace().lookup(root, b"new", false)?.id, 1 << 64 | 3);
    create(b"old", 5)?;
    assert_eq!(create(b"old", 6).unwrap_err().kind(), Kind::Exists);
    session.unlink(root, b"new")?;
    create(b"new", 9)?;
    assert_eq!(session.namespace().lookup(root, b"new", false)?.id, 9);
    session.publish("two")?;
    check_sound(&repository);
    Ok(())
}

#[test]
fn a_repeated_make_finds_its_own_file_and_no_other() -> Result<()> {
    let repository = repository();
    let mut session = repository.begin(&[], SessionOptions::default())?;
    let own = session.namespace().identity().clone();
    let root = session.root().clone();
    for (number, kind) in
        [FileKind::File, FileKind::Fifo, FileKind::Symlink].into_iter().enumerate()
    {
        let name = format!("f{number}").into_bytes();
        let new =
            NewFile { kind, mode: 0o640, uid: own.uid, gid: own.gid, rdev: 0, target: b"target" };
        let id = FileId(1 << 70 | number as u128);
        session.attach_request(Some(&record(7, &name)))?;
        let made = session.make_identified(&root, &name, &new, id)?;
        assert_eq!((made.id, made.kind(), made.uid), (id.0, Some(kind), own.uid));
        // Also by another of its names, at which only a link is.
        session.link(&root, &name, &root, &[&name[..], b"-linked"].concat())?;
        assert_eq!(session.make_identified(&root, &name, &new, id)?.nlink, 2);
        let other = session.make_identified(&root, &name, &new, FileId(id.0 + 100));
        assert_eq!(other.unwrap_err().kind(), Kind::Exists);
        assert_eq!(session.requests()?, [record(7, &name)]);
    }
    let new = NewFile {
        kind: FileKind::Directory,
        mode: 0o755,
        uid: own.uid,
        gid: own.gid,
        rdev: 0,
        target: b"",
    };
    let made = session.make_identified(&root, b"d", &new, FileId(9));
    assert_eq!(made.unwrap_err().kind(), Kind::Invalid);
    session.publish("made")?;
    check_sound(&repository);
    Ok(())
}

/// Symptom: a regular file made with a device number had a record that nobody could read, so its
/// directory could not be listed any more.
/// Cause: in the records of regular files, the column of device numbers has flags.
#[test]
fn a_device_number_of_a_regular_file_does_not_count() -> Result<()> {
    let session = Repository::new(Arc::new(MemoryStore::new())).begin(&[], options())?;
    let root = session.root().clone();
    session.mknod(&root, b"file", FileKind::File, 0o644, 5)?;
    let file = NewFile { kind: FileKind::File, mode: 0o644, uid: 0, gid: 0, rdev: 5, target: &[] };
    session.make_identified(&root, b"other", &file, FileId::hashed(session.set(), 1))?;
    assert_eq!(session.namespace().lookup(&root, b"file", false)?.rdev, 0);
    assert_eq!(session.namespace().read_dir(&root, &Default::default(), 10)?.len(), 2);
    session.unlink(&root, b"file").map(drop)
}

/// Symptom: what files made through mounts of live namespaces took in the store stayed after they
/// were removed.
/// Cause: their identities, hashes of requests, did not say that the session had made them.
#[test]
fn files_with_hashed_identities_give_their_space_back() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let session = Repository::new(store.clone()).begin(&[], options())?;
    let root = session.root().clone();
    let new = NewFile { kind: FileKind::File, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: &[] };
    for number in 0..20u32 {
        let (name, id) = (number.to_string(), FileId::hashed(session.set(), number.into()));
        session.make_identified(&root, name.as_bytes(), &new, id)?;
        let file = session.open_file(&root, name.as_bytes())?;
        for at in [0, 1 << 20, 1 << 19] {
            session.file(&file).write(at, &vec![b'w'; 1 << 20])?;
        }
        session.close_file(file)?;
        session.sync()?;
        session.unlink(&root, name.as_bytes())?;
    }
    session.compact()?;
    let data = format!("set/{}/data/", session.set());
    let left: u64 = store.list(&data)?.iter().map(|object| object.bytes).sum();
    assert!(left < 4 << 20, "{left} bytes of removed files stay");
    Ok(())
}

/// A stack of branches shows such a file under the identity that a squash of the stack gives it.
#[test]
fn a_squash_of_branches_keeps_hashed_identities() -> Result<()> {
    let repository = repository();
    let branch = |name: &str| -> Result<SetId> {
        let session = repository.begin(&[], options())?;
        let root = session.root().clone();
        let own =
            NewFile { kind: FileKind::File, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: &[] };
        let id = FileId::hashed(session.set(), 7);
        session.make_identified(&root, name.as_bytes(), &own, id)?;
        let file = session.open_file(&root, name.as_bytes())?;
        for at in [0, 1 << 20, 1 << 19] {
            session.file(&file).write(at, &vec![name.as_bytes()[0]; 1 << 20])?;
        }
        session.close_file(file)?;
        session.publish(name)
    };
    let branches = [branch("one")?, branch("two")?];
    let stack = repository.open(&branches, Identity::root())?;
    let (flat, _) = repository.squash(&branches, &SquashOptions::default())?;
    let flat = repository.open(&[flat], Identity::root())?;
    assert!(tree(&stack).len() == 2 && tree(&stack) == tree(&flat));
    check_sound(&repository);
    Ok(())
}
