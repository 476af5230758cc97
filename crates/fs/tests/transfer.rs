// SPDX-License-Identifier: Apache-2.0
//! Import and export of real trees by the library, with faults on either side.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use esker_base::store::MemoryStore;
use esker_base::{Error, Kind};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_fs::traversal::export::ExportOptions;
use esker_fs::traversal::import::ImportOptions;
use esker_fs::traversal::tally::TransferTally;

fn begin(identity: Identity) -> Session {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let options = SessionOptions { identity, ..Default::default() };
    repository.begin(&[], options).expect("begin")
}

#[test]
fn threads_import_and_export_the_same() {
    let real = tempfile::tempdir().expect("a directory");
    for number in 0..40 {
        let dir = real.path().join(format!("in/{number}/below"));
        fs::create_dir_all(&dir).expect("directories");
        for file in 0..20 {
            fs::write(dir.join(format!("{file}")), vec![number; file * 100]).expect("a file");
        }
        let first = dir.join("7");
        fs::hard_link(first, real.path().join(format!("in/{number}/seven"))).expect("a link");
    }
    for threads in [1, 8] {
        let session = begin(Identity::of_process());
        let tally = TransferTally::default();
        let options = ImportOptions { threads, ..Default::default() };
        let root = session.root().clone();
        session.import(&real.path().join("in"), &root, &options, &tally).expect("import");
        let counts = tally.counts();
        assert_eq!((counts.files, counts.directories, counts.links), (800, 81, 40));
        assert_eq!((counts.bytes, counts.problems), (40 * 19_000, 0));
        let out = real.path().join(format!("out-{threads}"));
        let tally = TransferTally::default();
        let options = ExportOptions { threads, ..Default::default() };
        session.namespace().export(b"/", &out, &options, &tally).expect("export");
        assert_eq!(tally.counts(), counts);
        let seven = fs::metadata(out.join("3/seven")).expect("there");
        assert_eq!(seven.ino(), fs::metadata(out.join("3/below/7")).expect("there").ino());
        assert_eq!(fs::read(out.join("3/seven")).expect("readable"), vec![3; 700]);
    }
}

#[test]
fn who_is_not_the_superuser_owns_what_they_import() {
    let real = tempfile::tempdir().expect("a directory");
    fs::write(real.path().join("program"), "#!").expect("a file");
    let mode = Permissions::from_mode(0o6755);
    fs::set_permissions(real.path().join("program"), mode).expect("mode");
    let somebody = Identity { uid: 54_321, gid: 54_321, groups: Vec::new() };
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let root_options = SessionOptions { identity: Identity::root(), ..Default::default() };
    let session = repository.begin(&[], root_options).expect("begin");
    let root = session.root().clone();
    session.mkdir(&root, b"public", 0o777).expect("mkdir");
    session.mkdir(&root, b"private", 0o755).expect("mkdir");
    let base = session.publish("base").expect("publish");
    let options = SessionOptions { identity: somebody, ..Default::default() };
    let session = repository.begin(&[base], options).expect("begin");
    let tally = TransferTally::default();
    let public = session.namespace().dir("/public").expect("dir");
    session.import(real.path(), &public, &ImportOptions::default(), &tally).expect("import");
    let inode = session.namespace().stat("/public/program", FollowLinks::No).expect("stat");
    assert_eq!((inode.uid, inode.gid, inode.mode), (54_321, 54_321, 0o755));
    // The directory belongs to another user and keeps its attributes, which is a problem to report.
    let inode = session.namespace().stat("/public", FollowLinks::No).expect("stat");
    assert_eq!((inode.uid, inode.mode), (0, 0o777));
    assert_eq!(tally.take_problems()[0].error.kind(), Kind::NotPermitted);
    // Where mode bits deny access, nothing is imported, and the import fails.
    let tally = TransferTally::default();
    let private = session.namespace().dir("/private").expect("dir");
    let denied = session.import(real.path(), &private, &ImportOptions::default(), &tally);
    assert_eq!(denied.expect_err("not ours").kind(), Kind::Denied);
    assert_eq!(tally.counts().files, 0);
    assert!(session.namespace().stat("/private/program", FollowLinks::No).is_err());
}

#[test]
fn a_source_that_is_no_directory_is_refused() {
    let real = tempfile::tempdir().expect("a directory");
    fs::write(real.path().join("f"), "x").expect("a file");
    let session = begin(Identity::root());
    let root = session.root().clone();
    for (name, kind) in [("f", Kind::NotADirectory), ("nothing", Kind::NotFound)] {
        let source = real.path().join(name);
        let tally = TransferTally::default();
        let imported = session.import(&source, &root, &ImportOptions::default(), &tally);
        assert_eq!(imported.expect_err("no directory").kind(), kind);
    }
}

#[test]
fn an_export_needs_a_free_place() {
    let real = tempfile::tempdir().expect("a directory");
    let session = begin(Identity::of_process());
    session.create(&session.root().clone(), b"f", 0o644).expect("create");
    fs::create_dir(real.path().join("used")).expect("mkdir");
    fs::write(real.path().join("used/x"), "x").expect("a file");
    let export = |start: &[u8], place: &str| {
        let target = real.path().join(place);
        session.namespace().export(
            start,
            &target,
            &ExportOptions::default(),
            &TransferTally::default(),
        )
    };
    assert_eq!(export(b"/", "used").expect_err("used").kind(), Kind::NotEmpty);
    assert_eq!(export(b"/", "used/x").expect_err("a file").kind(), Kind::Exists);
    assert_eq!(export(b"/f", "used/x").expect_err("a file").kind(), Kind::Exists);
    assert_eq!(export(b"/nothing", "new").expect_err("absent").kind(), Kind::NotFound);
    fs::create_dir(real.path().join("empty")).expect("mkdir");
    export(b"/", "empty").expect("an empty directory will do");
    assert!(real.path().join("empty/f").exists());
}

/// Returns a session with three directories of files.
fn session_to_export() -> Session {
    let session = begin(Identity::of_process());
    let root = session.root().clone();
    for number in 0..3_u8 {
        session.mkdir(&root, &[b'a' + number], 0o755).expect("mkdir");
        let dir = session.namespace().dir([b'/', b'a' + number]).expect("dir");
        for file in 0..4_u8 {
            session.create(&dir, &[b'0' + file], 0o640).expect("create");
        }
    }
    session
}

/// Returns the names in `path`, sorted.
fn names_in(path: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Symptom: an export into a directory with files was refused, without an option to replace them,
/// and an interrupted export left part of a tree under its final name.
/// Cause: files were written at their final place.
/// Fix: they are written beside it, and renamed.
#[test]
fn an_export_replaces_what_is_there_in_one_step() {
    let real = tempfile::tempdir().expect("a directory");
    let session = session_to_export();
    let target = real.path().join("out");
    fs::create_dir(&target).expect("mkdir");
    fs::write(target.join("old"), "old").expect("a file");
    // Users of the old tree can continue.
    let old = fs::File::open(&target).expect("open");
    let export = |start: &[u8], overwrite| {
        let options = ExportOptions { overwrite, ..Default::default() };
        session.namespace().export(start, &target, &options, &TransferTally::default())
    };
    let refused = export(b"/", false).expect_err("not empty");
    assert_eq!(refused.kind(), Kind::NotEmpty);
    assert!(refused.to_string().contains("--overwrite"), "{refused}");
    export(b"/", true).expect("replaced");
    assert_eq!(names_in(&target), ["a", "b", "c"]);
    assert_eq!(names_in(real.path()), ["out"]);
    assert_ne!(old.metadata().expect("stat").ino(), fs::metadata(&target).expect("stat").ino());
    // A file does not replace a directory, nor vice versa.
    assert_eq!(export(b"/a/0", true).expect_err("a directory").kind(), Kind::Exists);
    fs::remove_dir_all(&target).expect("removed");
    fs::write(&target, "old").expect("a file");
    assert_eq!(export(b"/", true).expect_err("a file").kind(), Kind::Exists);
    assert_eq!(export(b"/a/0", false).expect_err("a file").kind(), Kind::Exists);
    export(b"/a/0", true).expect("replaced");
    assert_eq!(fs::read(&target).expect("readable"), b"");
    assert_eq!(names_in(real.path()), ["out"]);
}

/// A resumed export does not write completed files again, regardless of their attributes; it writes
/// the rest.
#[test]
fn an_export_goes_on_where_it_was_interrupted() {
    let real = tempfile::tempdir().expect("a directory");
    let session = session_to_export();
    let target = real.path().join("out");
    let partial = session.namespace().export_partial_path(b"/", &target, None);
    assert_ne!(partial, session.namespace().export_partial_path(b"/a", &target, None));
    let export = |resume| {
        let options = ExportOptions { resume, ..Default::default() };
        session.namespace().export(b"/", &target, &options, &TransferTally::default())
    };
    export(false).expect("export");
    // As if it had ended early: a closed directory, a truncated file, a missing file.
    fs::rename(&target, &partial).expect("rename");
    let cut = fs::File::create(partial.join("a/1")).expect("a file");
    drop(cut);
    fs::remove_file(partial.join("b/2")).expect("removed");
    let kept = fs::metadata(partial.join("a/0")).expect("stat");
    fs::set_permissions(partial.join("a"), Permissions::from_mode(0o0)).expect("mode");
    let refused = export(false).expect_err("interrupted before");
    assert_eq!(refused.kind(), Kind::Exists);
    assert!(refused.to_string().contains("--resume"), "{refused}");
    // While another process holds the lock.
    let other = fs::File::open(&partial).expect("open");
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).expect("lock");
    assert_eq!(export(true).expect_err("locked").kind(), Kind::Conflict);
    drop(other);
    export(true).expect("export");
    assert_eq!(names_in(real.path()), ["out"]);
    assert_eq!(names_in(&target.join("b")), ["0", "1", "2", "3"]);
    let mode = |name: &str| fs::metadata(target.join(name)).expect("stat").mode() & 0o7777;
    assert_eq!((mode("a"), mode("a/1")), (0o755, 0o640));
    let (is, was) = (fs::metadata(target.join("a/0")).expect("stat"), kept);
    assert_eq!((is.ino(), is.mtime_nsec()), (was.ino(), was.mtime_nsec()));
    let of_session = session.namespace().stat("/a/1", FollowLinks::No).expect("stat").mtime_ns;
    let of_copy = fs::metadata(target.join("a/1")).expect("stat");
    assert_eq!(of_copy.mtime() * 1_000_000_000 + of_copy.mtime_nsec(), of_session);
}

/// Symptom: a resumed export by the superuser gave the owner and set-id bits of the snapshot's file
/// to a file that another user had put in its place.
/// Cause: only size and time told the export's own files from others.
/// Fix: the owner and the number of names do, too.
#[test]
fn an_export_takes_up_no_file_of_others() {
    if !Identity::of_process().is_root() {
        println!("skipped: takes the superuser");
        return;
    }
    let real = tempfile::tempdir().expect("a directory");
    let session = begin(Identity::root());
    let root = session.root().clone();
    let mut rest = &b"own"[..];
    let mut content = |buffer: &mut [u8]| rest.read(buffer).map_err(|e| Error::io(e, "read"));
    session.create_with(&root, b"program", 0o4755, &mut content).expect("create");
    let (target, partial) = (
        real.path().join("out"),
        session.namespace().export_partial_path(b"/", &real.path().join("out"), None),
    );
    for plants_link in [false, true] {
        let options = ExportOptions { resume: true, ..Default::default() };
        session
            .namespace()
            .export(b"/", &target, &options, &TransferTally::default())
            .expect("export");
        fs::rename(&target, &partial).expect("rename");
        let (program, beside) = (partial.join("program"), real.path().join("beside"));
        let modified = fs::metadata(&program).expect("stat").modified().expect("a time");
        fs::remove_file(&program).expect("removed");
        fs::write(&program, "bad").expect("planted");
        if plants_link {
            fs::hard_link(&program, &beside).expect("a further name");
        } else {
            std::os::unix::fs::chown(&program, Some(54_321), None).expect("given away");
        }
        let planted = fs::File::options().write(true).open(&program).expect("open");
        planted.set_modified(modified).expect("its time");
        session
            .namespace()
            .export(b"/", &target, &options, &TransferTally::default())
            .expect("export");
        assert_eq!(fs::read(target.join("program")).expect("readable"), b"own");
        if plants_link {
            assert_eq!(fs::metadata(&beside).expect("stat").mode() & 0o4000, 0);
        }
        fs::remove_dir_all(&target).expect("removed");
    }
}

/// Something bound to a path, unbound at the end.
struct Bound(std::path::PathBuf);

impl Bound {
    /// Returns `None`, with a message, if the user may not mount.
    fn new(what: &str, at: &std::path::Path) -> Option<Self> {
        let bound = std::process::Command::new("mount").args(["--bind", what]).arg(at).output();
        if bound.is_ok_and(|bound| bound.status.success()) {
            return Some(Self(at.to_owned()));
        }
        println!("skipped: this user cannot mount");
        None
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let unbound = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(unbound.is_ok_and(|unbound| unbound.success()));
    }
}

/// Symptom: an import removed the file that it was to replace, and then could not read the new one.
/// Cause: it made room before it read.
/// Fix: the new file gets its name once it has all of its content.
#[test]
fn an_import_that_cannot_read_a_file_keeps_the_one_there() {
    let real = tempfile::tempdir().expect("a directory");
    fs::write(real.path().join("file"), "new").expect("a file");
    fs::write(real.path().join("other"), "new").expect("a file");
    let session = begin(Identity::of_process());
    let root = session.root().clone();
    for name in [&b"file"[..], b"other"] {
        let mut rest = &b"old"[..];
        let mut content = |buffer: &mut [u8]| rest.read(buffer).map_err(|e| Error::io(e, "read"));
        session.create_with(&root, name, 0o644, &mut content).expect("create");
    }
    // Its reads fail.
    let Some(_bound) = Bound::new("/proc/self/mem", &real.path().join("file")) else { return };
    let tally = TransferTally::default();
    session.import(real.path(), &root, &ImportOptions::default(), &tally).expect("the rest");
    assert_eq!(tally.counts().problems, 1);
    let read = |path: &str| {
        let inode = session.namespace().stat(path, FollowLinks::No).expect("stat");
        session.namespace().read(&inode, 0, 100).expect("read").to_vec()
    };
    assert_eq!((read("/file"), read("/other")), (b"old".to_vec(), b"new".to_vec()));
    let names = session.namespace().read_dir(&root, &Default::default(), 10).expect("list");
    assert_eq!(names.len(), 2);
}

/// Symptom: an export that replaced a directory removed the files of another file system that was
/// mounted below it.
/// Cause: only the directory itself was looked at.
/// Fix: a directory with mounts below it is not replaced.
#[test]
fn an_export_removes_nothing_that_is_mounted_below_its_target() {
    let real = tempfile::tempdir().expect("a directory");
    let target = real.path().join("target");
    let (inner, elsewhere) = (target.join("in side"), real.path().join("elsewhere"));
    fs::create_dir_all(&inner).expect("directories");
    fs::create_dir(&elsewhere).expect("a directory");
    fs::write(elsewhere.join("precious"), "kept").expect("a file");
    let Some(bound) = Bound::new(elsewhere.to_str().expect("UTF-8"), &inner) else { return };
    let session = begin(Identity::of_process());
    let options = ExportOptions { overwrite: true, ..Default::default() };
    let tally = TransferTally::default();
    let export = || session.namespace().export(b"/", &target, &options, &tally);
    let refused = export().expect_err("something is mounted there");
    assert!(refused.to_string().contains("in side is mounted below it"), "{refused}");
    assert_eq!(fs::read(elsewhere.join("precious")).expect("readable"), b"kept");
    drop(bound);
    export().expect("export");
    assert_eq!(fs::read(elsewhere.join("precious")).expect("readable"), b"kept");
    assert!(!inner.exists());
}
