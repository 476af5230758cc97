// SPDX-License-Identifier: Apache-2.0
//! Paths: from the root and from a directory, through links, and while names change.

use std::collections::BTreeSet;
use std::path::Path;

use esker::{AttributeChanges, FileKind, Identity, Kind, RenameFlags, Result, XattrSet};

use crate::{repository, session};

#[test]
fn a_path_starts_at_its_directory_or_at_the_root() -> Result<()> {
    let session = session();
    let deep = session.create_dir_all("a/b/c")?;
    deep.write("here", "1")?;
    deep.write("../there", "2")?;
    deep.write("/top", "3")?;
    assert_eq!(session.read("/a/b/c/here")?, b"1");
    assert_eq!(session.read("a/b/there")?, b"2");
    assert_eq!(deep.read("../../../top")?, b"3");
    assert_eq!(deep.path()?, Path::new("/a/b/c"));
    assert_eq!(deep.open_dir("..")?.path()?, Path::new("/a/b"));
    assert_eq!(session.root().path()?, Path::new("/"));
    assert!(deep.metadata("")?.is_dir());
    for bad in ["", ".", "..", "/", "../.."] {
        assert_eq!(deep.create(bad).expect_err("no name").kind(), Kind::Invalid, "{bad:?}");
    }
    assert_eq!(deep.create("x/y").expect_err("no x").kind(), Kind::NotFound);
    assert_eq!(deep.create("here/y").expect_err("a file").kind(), Kind::NotADirectory);
    Ok(())
}

/// Symptom: `create_dir_all("new/../b")` failed with `Invalid` where `new` was missing.
/// Cause: it created `new/..` by name once `new` existed.
/// Fix: it opens such a path, so that it makes the same directories as the standard library.
#[test]
fn directories_are_made_as_the_standard_library_makes_them() -> Result<()> {
    let paths =
        ["new/../b", "up/..", "a/./c", "./d", "e//f/", "g/../../h", "i/../j/../k", "b/../b", ""];
    for path in paths {
        let session = session();
        let made = session.create_dir("/in")?.create_dir_all(path);
        let real = tempfile::tempdir().expect("temporary directory");
        std::fs::create_dir(real.path().join("in")).expect("mkdir");
        std::fs::create_dir_all(real.path().join("in").join(path)).expect("mkdir -p");
        made.unwrap_or_else(|error| panic!("{path:?}: {error}"));
        for (root, real) in [("/", real.path().to_owned()), ("/in", real.path().join("in"))] {
            let names = session.entries(root)?.map(|entry| Ok(entry?.name().to_owned()));
            let names: BTreeSet<_> = names.collect::<Result<_>>()?;
            let real_names = std::fs::read_dir(real).expect("list");
            let real_names = real_names.map(|entry| entry.expect("entry").file_name());
            assert_eq!(names, real_names.collect(), "{path:?} in {root}");
        }
    }
    // The standard library fails here, as rust-lang/rust#162243 reports.
    assert_eq!(session().create_dir_all("dot/.")?.path()?, Path::new("/dot"));
    Ok(())
}

#[test]
fn a_directory_is_followed_through_a_rename_and_refused_once_removed() -> Result<()> {
    let session = session();
    let dir = session.create_dir("/old")?;
    session.rename("/old", "/new")?;
    dir.write("a", "1")?;
    assert_eq!(dir.path()?, Path::new("/new"));
    assert_eq!(session.read("/new/a")?, b"1");
    assert_eq!(session.remove_dir("/new").expect_err("it has a").kind(), Kind::NotEmpty);
    session.remove_dir_all("/new")?;
    assert_eq!(dir.create("b").expect_err("it is gone").kind(), Kind::NotFound);
    assert_eq!(dir.path().expect_err("it is gone").kind(), Kind::NotFound);
    Ok(())
}

#[test]
fn links_are_followed_except_by_operations_on_names() -> Result<()> {
    let session = session();
    let root = session.root();
    session.write("/file", "content")?;
    root.hard_link("/file", "/other")?;
    root.symlink("file", "/soft")?;
    assert_eq!(session.read("/soft")?, b"content");
    session.write("/soft", "changed")?;
    assert_eq!(session.read("/other")?, b"changed");
    assert_eq!(session.metadata("/soft")?.links(), 2);
    assert!(root.symlink_metadata("/soft")?.is_symlink());
    assert_eq!(root.read_link("/soft")?, Path::new("file"));
    assert_eq!(root.read_link("/file").expect_err("a file").kind(), Kind::Invalid);
    session.remove_file("/soft")?;
    assert_eq!(session.metadata("/file")?.links(), 2);
    session.remove_file("/file")?;
    root.symlink("a", "/b")?;
    root.symlink("b", "/a")?;
    assert_eq!(session.read("/a").expect_err("a loop").kind(), Kind::Loop);
    Ok(())
}

#[test]
fn a_snapshot_refuses_every_change() -> Result<()> {
    let repository = repository();
    let session = repository.session().begin()?;
    session.write("/file", "1")?;
    session.publish("a")?;
    let snapshot = repository.snapshot("a")?;
    let root = snapshot.root();
    let changes = AttributeChanges { mode: Some(0), ..AttributeChanges::default() };
    let refused = [
        root.create("new").map(drop),
        root.create_empty("new"),
        root.write("file", "2"),
        root.create_dir("new").map(drop),
        root.create_dir_all("new/er").map(drop),
        root.remove_file("file"),
        root.remove_dir("file"),
        root.remove_dir_all("file"),
        root.rename("file", "new"),
        root.hard_link("file", "new"),
        root.symlink("file", "new"),
        root.set_attributes("file", &changes),
        root.set_xattr("file", "user.a", "b", XattrSet::Any),
        root.remove_xattr("file", "user.a"),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused.expect_err("it never changes").kind(), Kind::ReadOnly, "{number}");
    }
    // Existing directories need no change.
    root.create_dir_all("/")?;
    let file = root.open("file")?;
    assert_eq!(file.write_at(b"2", 0).expect_err("read only").kind(), Kind::Denied);
    assert_eq!(snapshot.read("/file")?, b"1");
    Ok(())
}

#[test]
fn a_listing_of_any_size_has_every_name_once() -> Result<()> {
    let session = session();
    assert_eq!(session.entries("/")?.count(), 0);
    for count in [1, 1023, 1024, 1025, 2048, 5000] {
        let dir = session.create_dir(format!("/{count}"))?;
        for number in 0..count {
            dir.create_empty(format!("{number}"))?;
        }
        let names: Vec<_> = dir.entries()?.collect::<Result<_>>()?;
        let unique: BTreeSet<_> = names.iter().map(|entry| entry.name().to_owned()).collect();
        assert_eq!((names.len(), unique.len()), (count, count));
        assert!(names.iter().all(|entry| entry.metadata().is_file()));
        // It goes on after a name, also of one that was removed.
        let middle = names[count / 2].name();
        dir.remove_file(middle)?;
        assert_eq!(dir.entries_after(middle).count(), count - count / 2 - 1);
    }
    session.write("/file", "1")?;
    assert_eq!(session.entries("/file").expect_err("a file").kind(), Kind::NotADirectory);
    Ok(())
}

#[test]
fn attributes_are_those_that_were_set() -> Result<()> {
    let session = session();
    session.write("/f", "12345")?;
    let changes =
        AttributeChanges { mode: Some(0o600), mtime_ns: Some(7), ..AttributeChanges::default() };
    session.set_attributes("/f", &changes)?;
    session.root().set_xattr("/f", "user.origin", "here", XattrSet::Create)?;
    let found = session.metadata("/f")?;
    assert_eq!((found.kind()?, found.len(), found.mode()), (FileKind::File, 5, 0o600));
    let since_epoch = found.modified().duration_since(std::time::UNIX_EPOCH);
    assert_eq!(since_epoch.expect("after 1970").as_nanos(), 7);
    assert_eq!(found.xattrs()?.get(&b"user.origin"[..]), Some(&b"here".to_vec()));
    session.root().remove_xattr("/f", "user.origin")?;
    assert!(session.metadata("/f")?.xattrs()?.is_empty());
    let root = AttributeChanges { mode: Some(0o700), ..AttributeChanges::default() };
    session.set_attributes("/", &root)?;
    assert_eq!(session.root().dir_metadata()?.mode(), 0o700);
    Ok(())
}

#[test]
fn permissions_are_those_of_the_session() -> Result<()> {
    let repository = repository();
    let (owner, other) = (Identity { uid: 7, gid: 7, groups: vec![] }, 8);
    let session = repository.session().identity(owner.clone()).begin()?;
    session.write("/secret", "1")?;
    let private = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
    session.set_attributes("/secret", &private)?;
    session.publish("a")?;
    let other = Identity { uid: other, gid: other, groups: vec![] };
    let session = repository.session().identity(other).on("a").begin()?;
    let denied = [
        session.open("/secret").map(drop),
        session.read("/secret").map(drop),
        session.write("/secret", "2"),
        session.create("/new").map(drop),
        session.remove_file("/secret"),
    ];
    for (number, denied) in denied.into_iter().enumerate() {
        assert_eq!(denied.expect_err("another's").kind(), Kind::Denied, "{number}");
    }
    let session = repository.session().identity(owner).on("a").begin()?;
    session.write("/secret", "2")?;
    Ok(())
}

#[test]
fn threads_change_one_directory_together() -> Result<()> {
    let session = session();
    std::thread::scope(|scope| {
        let work = |thread: u32| {
            for round in 0..50 {
                let dir = session.create_dir_all(format!("/shared/{round}"))?;
                dir.write("last", format!("{thread}"))?;
                dir.write(format!("{thread}"), "own")?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    for round in 0..50 {
        let dir = session.open_dir(format!("/shared/{round}"))?;
        assert_eq!(dir.entries()?.count(), 5);
        assert_eq!(dir.read("last")?.len(), 1);
    }
    session.root().rename_with("/shared", "/moved", RenameFlags::NoReplace)?;
    Ok(())
}
