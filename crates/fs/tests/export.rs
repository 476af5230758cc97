// SPDX-License-Identifier: Apache-2.0
//! Concurrent exports, and exports resumed after other users wrote to the partial export: the
//! destination ends up with the content of the snapshot and nothing else.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Error, Kind, Result};
use esker_fs::inode::FileKind;
use esker_fs::inode::indexed::{self, IndexedPart};
use esker_fs::ops::XattrSet;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_fs::traversal::export::{ExportOptions, IndexedForm};
use esker_fs::traversal::tally::TransferTally;
use esker_table::manifest::SetId;

use crate::interrupted_store::Interrupted;
use crate::operation::Content;
use crate::subject::source;

/// Takes a piece of an indexed directory.
type TakePiece<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

fn session(store: &SharedStore) -> Session {
    let options = SessionOptions { identity: Identity::of_process(), ..Default::default() };
    Repository::new(store.clone()).begin(&[], options).expect("begin")
}

fn memory() -> SharedStore {
    Arc::new(MemoryStore::new())
}

/// Creates a file whose content has to be read from the store.
fn put_file(session: &Session, name: &[u8], mode: u32) {
    let mut content = source(Content { bytes: 9_000, seed: 1 });
    let root = session.root().clone();
    session.create_with(&root, name, mode, &mut content).expect("create");
}

fn put_indexed(session: &Session, name: &[u8]) {
    let store = &session.namespace().layers().source().store;
    let root = format!("{}root", indexed::prefix(session.set(), 1));
    if store.get(&root, 1 << 20).is_err() {
        store.put_if_absent(&root, b"root").expect("put");
    }
    let dir = session.root().clone();
    session.create_indexed(&dir, name, 0o644, 1, 4).expect("create");
}

fn shown(store: SharedStore, set: SetId) -> Namespace {
    let repository = Repository::with(store, 0, Arc::new(esker_base::clock::SystemClock));
    repository.open(&[set], Identity::of_process()).expect("open")
}

fn going_on() -> ExportOptions {
    ExportOptions { threads: 1, resume: true, ..Default::default() }
}

fn export(
    namespace: &Namespace,
    start: &str,
    to: &Path,
    options: &ExportOptions,
) -> Result<TransferTally> {
    let tally = TransferTally::default();
    namespace.export(start.as_bytes(), to, options, &tally)?;
    Ok(tally)
}

fn names_in(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Returns the path of the partial export to `to`, if it exists.
fn partial_of(to: &Path) -> Option<PathBuf> {
    let name = to.file_name().expect("a name").to_string_lossy().into_owned();
    let parent = to.parent().expect("a directory");
    let is_partial = |found: &&String| found.starts_with(&format!("{name}.esker-partial-"));
    names_in(parent).iter().find(is_partial).map(|found| parent.join(found))
}

/// Symptom: the export of one pipe that lacked an attribute reported that, kept the pipe under its
/// partial name, and counted it as exported.
/// Cause: the handle that makes it the destination was noted after its attributes were set.
/// Fix: before; a regular file was always exported so.
#[test]
fn a_single_entry_that_lacks_an_attribute_is_exported() {
    let store = memory();
    let identity = Identity::root();
    let options = SessionOptions { identity, ..Default::default() };
    let writer = Repository::new(store.clone()).begin(&[], options).expect("begin");
    let root = writer.root().clone();
    writer.mknod(&root, b"pipe", FileKind::Fifo, 0o644, 0).expect("mknod");
    put_file(&writer, b"file", 0o644);
    for name in ["pipe", "file"] {
        // No file system has attributes of this name.
        let attribute = (&b"none.a"[..], &b"value"[..]);
        writer.set_xattr(&root, name.as_bytes(), attribute, XattrSet::Any).expect("set");
    }
    let namespace = shown(store.clone(), writer.publish("base").expect("publish"));
    let around = tempfile::tempdir().expect("a directory");
    for name in ["pipe", "file"] {
        let target = around.path().join(name);
        let tally = export(&namespace, name, &target, &ExportOptions::default()).expect("export");
        let problems = tally.take_problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(fs::symlink_metadata(&target).is_ok(), "{name}");
        assert_eq!(partial_of(&target), None, "{name}");
    }
}

/// Turns a complete export into an interrupted one.
fn interrupt(namespace: &Namespace, start: &str, to: &Path) -> PathBuf {
    let partial = namespace.export_partial_path(start.as_bytes(), to, None);
    fs::rename(to, &partial).expect("rename");
    partial
}

/// Symptom: an export wrote a damaged file, and did not name it.
/// Cause: bytes of files that were written in parts were compared with no checksum.
/// Fix: whole files are compared with the checksums of their segments.
#[test]
fn a_damaged_file_that_was_written_in_parts_is_a_problem() {
    let store = memory();
    let writer = session(&store);
    let mut parts: Vec<(u64, Vec<u8>)> = Vec::new();
    for (offset, bytes) in [(0, 3_000), (5_000, 5 << 20), (1_000, 10), (30 << 20, 70_000)] {
        parts.push((offset, vec![b'a' + parts.len() as u8; bytes]));
    }
    for name in [b"damaged", b"written"] {
        let file = writer.create_file(writer.root(), name, 0o644).expect("create");
        for (offset, bytes) in &parts {
            writer.file(&file).write(*offset, bytes).expect("write");
        }
        writer.close_file(file).expect("close");
    }
    let set = writer.publish("base").expect("publish");
    let logs = store.list(&format!("set/{set}/data/")).expect("list");
    let large = logs.into_iter().find(|log| log.bytes > 4 << 20);
    let log = large.expect("the large part of the first file is in it").name;
    let mut bytes = store.get(&log, u64::MAX).expect("get").to_vec();
    bytes[4 << 20] ^= 1;
    store.delete(&log).expect("delete");
    store.put_if_absent(&log, &bytes).expect("put");
    let target = tempfile::tempdir().expect("a directory");
    let (namespace, to) = (shown(store, set), target.path().join("out"));
    let tally = export(&namespace, "/", &to, &ExportOptions::default()).expect("export");
    let problems = tally.take_problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    let error = &problems[0].error;
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains(&log), "{error}");
    assert_eq!(names_in(&to), ["written"]);
    let mut expected = vec![0; (30 << 20) + 70_000];
    for (offset, bytes) in &parts {
        expected[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    assert!(fs::read(to.join("written")).expect("read") == expected);
    for (path, is_whole) in [("/damaged", false), ("/written", true)] {
        let inode = namespace.stat(path, FollowLinks::No).expect("stat");
        let mut read = Vec::new();
        let done = namespace.read_all(&inode, &mut |bytes| {
            read.extend_from_slice(bytes);
            Ok(())
        });
        assert_eq!(done.is_ok(), is_whole, "{path}: {done:?}");
        assert!(!is_whole || read == expected);
    }
}

/// Symptom: two exports of one file to one destination, the second with `resume`, both wrote; the
/// first then renamed the incomplete file of the second.
/// Cause: only directories were locked, and any file with the partial name was renamed.
/// Fix: files are locked as directories are, and an export renames only the file of its own handle.
#[test]
fn exports_of_one_file_exclude_each_other() {
    let inner = memory();
    let writer = session(&inner);
    put_file(&writer, b"f", 0o640);
    let set = writer.publish("base").expect("publish");
    let mut requests = 0;
    let mut refused = 0;
    loop {
        let around = tempfile::tempdir().expect("a directory");
        let target = around.path().join("out");
        let (second, to) = (shown(inner.clone(), set), target.clone());
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = Box::new(move || {
            if partial_of(&to).is_some() {
                let done = export(&second, "/f", &to, &going_on());
                sender.send(done.map(drop)).expect("received");
            }
        });
        let store = Interrupted::new(inner.clone(), requests, other);
        let namespace = shown(store.clone(), set);
        let tally = export(&namespace, "/f", &target, &ExportOptions::default()).expect("export");
        assert_eq!(tally.counts().problems, 0, "at request {requests}");
        if let Ok(done) = receiver.try_recv() {
            assert_eq!(done.expect_err("beside the first").kind(), Kind::Conflict);
            refused += 1;
        }
        assert_eq!(names_in(around.path()), ["out"]);
        assert_eq!(fs::metadata(&target).expect("exported").len(), 9_000);
        if !store.has_happened() {
            break;
        }
        requests += 1;
    }
    assert!(refused > 0, "no export met another in {requests} requests");
}

/// Symptom: at its end, an export renamed any file with the partial name to its destination.
/// Cause: nothing compared it with the file that the export had written.
/// Fix: the name must be that of the file of the export's handle.
#[test]
fn an_export_renames_nothing_but_its_own() {
    for start in ["/f", "/"] {
        let inner = memory();
        let writer = session(&inner);
        put_file(&writer, b"f", 0o640);
        let set = writer.publish("base").expect("publish");
        let around = tempfile::tempdir().expect("a directory");
        let target = around.path().join("out");
        let to = target.clone();
        let (mut requests, mut replaced) = (0, 0);
        loop {
            let to = to.clone();
            let (sender, receiver) = std::sync::mpsc::channel();
            let other = Box::new(move || {
                if let Some(partial) = partial_of(&to) {
                    fs::rename(&partial, to.with_file_name("aside")).expect("rename");
                    match start {
                        "/f" => fs::write(&partial, "another's").expect("planted"),
                        _ => fs::create_dir(&partial).expect("planted"),
                    }
                    sender.send(()).expect("received");
                }
            });
            let store = Interrupted::new(inner.clone(), requests, other);
            let done =
                export(&shown(store.clone(), set), start, &target, &ExportOptions::default());
            if receiver.try_recv().is_ok() {
                let error = done.expect_err("replaced");
                assert_eq!(error.kind(), Kind::Conflict, "{error}");
                assert!(error.to_string().contains("esker-partial-"), "{error}");
                assert!(!target.exists(), "{start} at request {requests}");
                replaced += 1;
            }
            for name in names_in(around.path()) {
                let path = around.path().join(name);
                let _ = fs::remove_file(&path);
                let _ = fs::remove_dir_all(&path);
            }
            if !store.has_happened() {
                break;
            }
            requests += 1;
        }
        assert!(replaced > 0, "{start}: nothing replaced in {requests} requests");
    }
}

/// Symptom: the superuser's resumed export gave the set-group-id bit and group of the snapshot's
/// program to a file that its owner had forged.
/// Cause: a file of the inode's owner with the right size and time counted as the export's own, and
/// got all attributes again.
/// Fix: a file is taken up only if it already has all attributes that the export sets, and none is
/// set.
#[test]
fn an_export_gives_nothing_to_files_that_it_finds() {
    if !Identity::of_process().is_root() {
        println!("skipped: takes the superuser");
        return;
    }
    let store = memory();
    let writer = session(&store);
    put_file(&writer, b"program", 0o2755);
    put_file(&writer, b"plain", 0o644);
    let root = writer.root().clone();
    for name in [&b"program"[..], b"plain"] {
        let owner = esker_fs::ops::AttributeChanges { uid: Some(54_321), ..Default::default() };
        writer.setattr(&root, name, &owner).expect("chown");
        let mode = esker_fs::ops::AttributeChanges { mode: Some(0o2755), ..Default::default() };
        if name == b"program" {
            writer.setattr(&root, name, &mode).expect("chmod");
        }
    }
    let namespace = shown(store.clone(), writer.publish("base").expect("publish"));
    let around = tempfile::tempdir().expect("a directory");
    let target = around.path().join("out");
    export(&namespace, "/", &target, &going_on()).expect("export");
    let partial = interrupt(&namespace, "/", &target);
    let program = partial.join("program");
    let modified = fs::metadata(&program).expect("stat").modified().expect("a time");
    // The owner can do this to the file: a write clears the bit.
    fs::write(&program, [7; 9_000]).expect("forged");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("chmod");
    let forged = fs::File::options().write(true).open(&program).expect("open");
    forged.set_modified(modified).expect("its time");
    let plain = fs::metadata(partial.join("plain")).expect("stat");
    export(&namespace, "/", &target, &going_on()).expect("export");
    let is_forged = fs::read(target.join("program")).expect("readable") == [7; 9_000];
    assert!(!is_forged);
    let metadata = fs::metadata(target.join("program")).expect("stat");
    assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (54_321, 0o2755));
    // A file with all its attributes stays, even if it belongs to another user.
    assert_eq!(fs::metadata(target.join("plain")).expect("stat").ino(), plain.ino());
}

/// Symptom: a resumed export that was refused because another was running had changed the mode of
/// the directory, or of the destination if the other ended just then.
/// Cause: the directory was made private before it was locked.
/// Fix: it is locked first, and must then still have its name.
#[test]
fn an_export_changes_nothing_before_it_holds_the_lock() {
    let store = memory();
    let writer = session(&store);
    put_file(&writer, b"f", 0o000);
    let namespace = shown(store.clone(), writer.publish("base").expect("publish"));
    for (start, mode) in [("/", 0o755), ("/", 0o300), ("/f", 0o000)] {
        let around = tempfile::tempdir().expect("a directory");
        let target = around.path().join("out");
        export(&namespace, start, &target, &ExportOptions::default()).expect("export");
        let partial = interrupt(&namespace, start, &target);
        let locked = fs::File::open(&partial);
        fs::set_permissions(&partial, Permissions::from_mode(mode)).expect("chmod");
        let Ok(locked) = locked else {
            println!("skipped: takes the superuser");
            continue;
        };
        rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).expect("lock");
        let refused = export(&namespace, start, &target, &going_on()).map(drop);
        assert_eq!(refused.expect_err("locked").kind(), Kind::Conflict);
        let after = fs::metadata(&partial).expect("stat");
        assert_eq!(after.mode() & 0o7777, mode, "{start}");
        drop(locked);
        export(&namespace, start, &target, &going_on()).expect("export");
        assert_eq!(names_in(around.path()), ["out"]);
    }
}

/// Returns the form of a directory with two keys, the second of which fails `failures` times.
fn files_form(failures: u64) -> IndexedForm {
    let left = std::sync::atomic::AtomicU64::new(failures);
    IndexedForm::Files(Arc::new(
        move |_: &SharedStore, _: &[IndexedPart], take: &mut TakePiece<'_>| {
            take(b"one", b"1")?;
            let was = left.load(std::sync::atomic::Ordering::SeqCst);
            if was > 0 {
                left.store(was - 1, std::sync::atomic::Ordering::SeqCst);
                return Err(Error::new(Kind::Unavailable, "the store is away"));
            }
            take(b"two", b"2")
        },
    ))
}

fn npy_form() -> IndexedForm {
    IndexedForm::OneFile(
        ".npy",
        Arc::new(|_: &SharedStore, _: &[IndexedPart], take: &mut TakePiece<'_>| {
            take(b"", b"array")
        }),
    )
}

fn going_on_as(form: IndexedForm) -> ExportOptions {
    ExportOptions { indexed: Some(form), ..going_on() }
}

/// Symptom: an export resumed with another form of indexed directories had the files of both forms.
/// Cause: the partial name did not depend on the form.
/// Fix: the form is part of the digest.
#[test]
fn an_export_goes_on_with_the_same_form_only() {
    let store = memory();
    let writer = session(&store);
    put_file(&writer, b"f", 0o644);
    put_indexed(&writer, b"p");
    let namespace = shown(store.clone(), writer.publish("base").expect("publish"));
    let around = tempfile::tempdir().expect("a directory");
    let target = around.path().join("out");
    let ended = export(&namespace, "/", &target, &going_on_as(files_form(1))).map(drop);
    assert_eq!(ended.expect_err("the store failed").kind(), Kind::Unavailable);
    export(&namespace, "/", &target, &going_on_as(npy_form())).expect("export");
    assert_eq!(names_in(&target), ["f", "p.npy"]);
    fs::remove_dir_all(&target).expect("removed");
    export(&namespace, "/", &target, &going_on_as(files_form(0))).expect("export");
    assert_eq!(names_in(&target), ["f", "p"]);
    assert_eq!(names_in(&target.join("p")), ["one", "two"]);
    assert_eq!(names_in(around.path()), ["out"]);
}

/// Symptom: a file that another user had put into an interrupted export became part of the complete
/// one.
/// Cause: nothing compared the names in a directory with the snapshot's.
/// Fix: a resumed export fails if a directory has names that are not in the snapshot.
#[test]
fn an_export_that_goes_on_keeps_nothing_of_others() {
    let store = memory();
    let writer = session(&store);
    let root = writer.root().clone();
    writer.mkdir(&root, b"d", 0o755).expect("mkdir");
    put_file(&writer, b"f", 0o644);
    put_indexed(&writer, b"p");
    let namespace = shown(store.clone(), writer.publish("base").expect("publish"));
    let around = tempfile::tempdir().expect("a directory");
    let target = around.path().join("out");
    for place in ["foreign", "d/foreign", "p/foreign", "f", "d", "p"] {
        let options = going_on_as(files_form(0));
        let ended = export(&namespace, "/", &target, &going_on_as(files_form(1))).map(drop);
        assert_eq!(ended.expect_err("the store failed").kind(), Kind::Unavailable);
        let partial = partial_of(&target).expect("interrupted");
        let planted = partial.join(place);
        match place {
            "f" => {
                fs::remove_file(&planted).expect("removed");
                fs::create_dir(&planted).expect("planted");
            }
            "d" | "p" => {
                fs::remove_dir_all(&planted).expect("removed");
                symlink("/", &planted).expect("planted");
            }
            _ => fs::write(&planted, "foreign").expect("planted"),
        }
        let refused = export(&namespace, "/", &target, &options).map(drop);
        let refused = refused.expect_err("not the export's");
        assert_eq!(refused.kind(), Kind::Conflict, "{place}: {refused}");
        assert!(refused.to_string().contains(&*planted.to_string_lossy()), "{place}: {refused}");
        assert!(!target.exists());
        let _ = fs::remove_file(&planted);
        let _ = fs::remove_dir(&planted);
        export(&namespace, "/", &target, &options).expect("export");
        assert_eq!(names_in(&target), ["d", "f", "p"]);
        assert_eq!(names_in(&target.join("p")), ["one", "two"]);
        fs::remove_dir_all(&target).expect("removed");
    }
}

/// Symptom: with a file `p.npy`, and an indexed directory `p` exported as a file of this name, a
/// resumed export kept one or the other, and reported nothing.
/// Cause: the name given to the directory was not looked up in the snapshot.
/// Fix: it is; the directory is then a problem, however often the export is resumed.
#[test]
fn an_indexed_directory_takes_no_file_s_name() {
    let store = memory();
    let writer = session(&store);
    put_file(&writer, b"p.npy", 0o644);
    put_indexed(&writer, b"p");
    let namespace = shown(store.clone(), writer.publish("base").expect("publish"));
    let around = tempfile::tempdir().expect("a directory");
    let target = around.path().join("out");
    for round in 0..2 {
        if round > 0 {
            let form = Some(npy_form());
            let partial = namespace.export_partial_path(b"/", &target, form.as_ref());
            fs::rename(&target, partial).expect("rename");
        }
        let tally = export(&namespace, "/", &target, &going_on_as(npy_form())).expect("export");
        let problems = tally.take_problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].error.kind(), Kind::Exists, "{problems:?}");
        assert_eq!(fs::metadata(target.join("p.npy")).expect("exported").len(), 9_000);
    }
}

/// An export does not take over another user's directory in place of its own.
#[test]
fn an_export_takes_up_no_directory_of_others() {
    if !Identity::of_process().is_root() {
        println!("skipped: takes the superuser");
        return;
    }
    let store = memory();
    let writer = session(&store);
    let root = writer.root().clone();
    writer.mkdir(&root, b"d", 0o755).expect("mkdir");
    let namespace = shown(store.clone(), writer.publish("base").expect("publish"));
    let around = tempfile::tempdir().expect("a directory");
    let target = around.path().join("out");
    for place in ["", "d"] {
        export(&namespace, "/", &target, &going_on()).expect("export");
        let partial = interrupt(&namespace, "/", &target);
        let planted = if place.is_empty() { partial } else { partial.join(place) };
        chown(&planted, Some(54_321), None).expect("given away");
        let refused = export(&namespace, "/", &target, &going_on()).map(drop);
        assert_eq!(refused.expect_err("another's").kind(), Kind::Conflict, "{place}");
        assert_eq!(fs::metadata(&planted).expect("stat").uid(), 54_321);
        chown(&planted, Some(0), None).expect("taken back");
        export(&namespace, "/", &target, &going_on()).expect("export");
        let found = namespace.stat("/d", FollowLinks::No).expect("stat");
        assert_eq!(fs::metadata(target.join("d")).expect("exported").mode() & 0o7777, found.mode);
        fs::remove_dir_all(&target).expect("removed");
    }
}

/// Symptom: the owner of a file in the snapshot put a file with other content under the partial
/// name, and the superuser's resumed export made that file the destination; it also removed links
/// and files of others that had that name.
/// Cause: only size, times and attributes were compared, and an owner can give his own files any of
/// these.
/// Fix: the file with the partial name must belong to the export's user and have no other name;
/// otherwise the export is refused, and changes nothing.
#[test]
fn an_export_takes_up_no_file_that_others_may_have_forged() {
    if !Identity::of_process().is_root() {
        println!("skipped: takes the superuser");
        return;
    }
    let store = memory();
    let writer = session(&store);
    let root = writer.root().clone();
    put_file(&writer, b"f", 0o644);
    let owner = esker_fs::ops::AttributeChanges { uid: Some(54_321), ..Default::default() };
    writer.setattr(&root, b"f", &owner).expect("chown");
    writer.mknod(&root, b"p", FileKind::Fifo, 0o644, 0).expect("mknod");
    let namespace = shown(store.clone(), writer.publish("base").expect("publish"));
    let forge = |partial: &Path, how: &str| match how {
        "content" => {
            // The owner can write, and set the time again.
            let modified = fs::metadata(partial).expect("stat").modified().expect("a time");
            fs::write(partial, [7; 9_000]).expect("forged");
            let forged = fs::File::options().write(true).open(partial).expect("open");
            forged.set_modified(modified).expect("its time");
        }
        "link" => {
            let own = partial.with_file_name("own");
            fs::write(&own, "of the superuser").expect("written");
            fs::remove_file(partial).expect("removed");
            fs::hard_link(&own, partial).expect("planted");
        }
        _ => {
            fs::remove_file(partial).expect("removed");
            symlink("/etc/hostname", partial).expect("planted");
            std::os::unix::fs::lchown(partial, Some(54_321), None).expect("given away");
        }
    };
    for (start, how) in [("/f", "content"), ("/f", "link"), ("/f", "symlink"), ("/p", "symlink")] {
        let around = tempfile::tempdir().expect("a directory");
        let target = around.path().join("out");
        export(&namespace, start, &target, &ExportOptions::default()).expect("export");
        let partial = interrupt(&namespace, start, &target);
        forge(&partial, how);
        let before = fs::symlink_metadata(&partial).expect("stat");
        let refused = export(&namespace, start, &target, &going_on()).map(drop);
        let refused = refused.expect_err("forged");
        assert_eq!(refused.kind(), Kind::Conflict, "{start}, {how}: {refused}");
        assert!(refused.to_string().contains(&*partial.to_string_lossy()), "{refused}");
        let after = fs::symlink_metadata(&partial).expect("it stays");
        let seen =
            |found: &fs::Metadata| (found.ino(), found.mode(), found.uid(), found.ctime_nsec());
        assert_eq!(seen(&after), seen(&before), "{start}, {how}");
        assert!(fs::symlink_metadata(&target).is_err(), "{start}, {how}");
        fs::remove_file(&partial).expect("removed");
        export(&namespace, start, &target, &going_on()).expect("export");
        assert!(fs::symlink_metadata(&target).is_ok());
    }
}

/// Symptom: a resumed export changed the mode of a file for a moment, which another export had just
/// completed and was about to make its destination; one that was killed just then left it so.
/// Cause: a file whose mode keeps its owner from reading it was made readable so that it could be
/// locked.
/// Fix: nothing is changed without the lock; such a file is refused.
#[test]
fn an_export_makes_nothing_readable_in_order_to_lock_it() {
    if !Identity::of_process().is_root() {
        println!("skipped: takes the superuser");
        return;
    }
    let around = tempfile::tempdir().expect("a directory");
    let user = Identity { uid: 54_321, gid: 54_321, groups: vec![54_321] };
    let store = memory();
    let writer = session(&store);
    // All but its owner and group may read it.
    put_file(&writer, b"f", 0o004);
    put_file(&writer, b"denied", 0o000);
    let set = writer.publish("base").expect("publish");
    chown(around.path(), Some(user.uid), Some(user.gid)).expect("given away");
    let exported = std::thread::scope(|scope| {
        let export_as_user = || {
            crate::real::become_identity(&user);
            let namespace = Repository::new(store).open(&[set], user.clone()).expect("open");
            let target = around.path().join("out");
            let tally = export(&namespace, "/denied", &target, &going_on()).expect("export");
            assert_eq!(tally.take_problems()[0].error.kind(), Kind::Denied);
            assert_eq!(names_in(around.path()), [""; 0]);
            export(&namespace, "/f", &target, &going_on()).expect("export");
            let partial = interrupt(&namespace, "/f", &target);
            let before = fs::symlink_metadata(&partial).expect("stat");
            let refused = export(&namespace, "/f", &target, &going_on()).map(drop);
            let refused = refused.expect_err("nobody may read it");
            assert_eq!(refused.kind(), Kind::Conflict, "{refused}");
            assert!(refused.to_string().contains("chmod u+r"), "{refused}");
            let after = fs::symlink_metadata(&partial).expect("stat");
            assert_eq!((after.mode(), after.ctime_nsec()), (before.mode(), before.ctime_nsec()));
            fs::set_permissions(&partial, Permissions::from_mode(0o400)).expect("as advised");
            export(&namespace, "/f", &target, &going_on()).expect("export");
            fs::symlink_metadata(&target).expect("exported").mode() & 0o7777
        };
        scope.spawn(export_as_user).join().expect("it does not panic")
    });
    assert_eq!(exported, 0o004);
}
