// SPDX-License-Identifier: Apache-2.0
//! Hostile stores and hostile neighbours: records that no session writes, with valid checksums, and
//! users who plant files in a directory during an export or import. Nothing outside the target is
//! written, nothing outside the source is read, and nothing panics.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use esker_base::Kind;
use esker_base::random::Random;
use esker_base::store::{MemoryStore, SharedStore};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_fs::traversal::export::ExportOptions;
use esker_fs::traversal::import::ImportOptions;
use esker_fs::traversal::tally::TransferTally;
use esker_table::manifest::SetId;
use esker_table::schema::RowBuffer;

use crate::interrupted_store::Interrupted;
use crate::operation::Content;
use crate::real::become_identity;
use crate::stores::{self, publish, put_table, record};
use crate::subject::source;

const SET: SetId = SetId(1);
/// Values of a record's `entry`.
const FILE: u64 = 1;
const DIRECTORY: u64 = 2;
const SYMLINK: u64 = 3;
const LINK: u64 = 8;

/// Columns of a record, by name.
type Columns<'a> = &'a [(&'a str, u64)];

fn options() -> SessionOptions {
    SessionOptions { identity: Identity::of_process(), ..SessionOptions::default() }
}

/// Returns a namespace of one set with these records.
fn forged(rows: Vec<RowBuffer>) -> Namespace {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let table = put_table(&store, (SET, 0), &esker_fs::inode::INODE, rows);
    publish(&store, SET, &[], vec![table]);
    Repository::new(store).open(&[SET], Identity::of_process()).expect("open")
}

fn file(name: &[u8]) -> RowBuffer {
    let owner = Identity::of_process();
    let ints = [
        ("entry", FILE),
        ("mode", 0o644),
        ("size", 7),
        ("uid", u64::from(owner.uid)),
        ("gid", u64::from(owner.gid)),
    ];
    record(0, name, &ints, b"hostile")
}

fn export(namespace: &Namespace, target: &Path) -> TransferTally {
    let tally = TransferTally::default();
    let options = ExportOptions { threads: 1, ..Default::default() };
    namespace.export(b"/", target, &options, &tally).expect("a target that is free");
    tally
}

fn names_in(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Symptom: an export wrote `../escaped` beside its target, and wrote through symbolic links that
/// it had just made itself.
/// Cause: names of records became parts of paths unchecked.
/// Fix: a listing rejects names that no file can have.
#[test]
fn names_that_are_paths_are_not_exported() {
    for name in [&b"../escaped"[..], b"link/through", b"..", b".", b"a\0b", &[b'n'; 256]] {
        let around = tempfile::tempdir().expect("a directory");
        fs::create_dir(around.path().join("outside")).expect("mkdir");
        let link = record(0, b"link", &[("entry", SYMLINK), ("size", 10)], b"../outside");
        let namespace = forged(vec![file(name), file(b"plain"), link]);
        let tally = export(&namespace, &around.path().join("target"));
        let problems = tally.take_problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].error.kind(), Kind::Corrupt);
        assert!(names_in(&around.path().join("outside")).is_empty());
        assert_eq!(names_in(around.path()), ["outside", "target"]);
    }
}

/// Symptom: a file whose record had the owner 2^32-1 and a set-user-id bit was exported by the
/// superuser as a set-user-id program of the superuser. A generation of 2^64-1 wrapped, and sizes
/// over 2^63 reached system calls.
/// Cause: numbers of records were not validated.
/// Fix: the decoder rejects them.
#[test]
fn numbers_that_no_session_writes_are_refused() {
    let long = [b'x'; 4_096];
    let cases: [(&str, Columns, &[u8]); 11] = [
        ("extent", &[("entry", FILE), ("log_set_low", 1)], b""),
        ("content", &[("entry", FILE), ("size", 1), ("rdev", 1)], b"1"),
        ("owner", &[("entry", FILE), ("uid", u64::from(u32::MAX)), ("mode", 0o4755)], b""),
        ("owner", &[("entry", FILE), ("gid", u64::from(u32::MAX))], b""),
        ("generation", &[("entry", DIRECTORY), ("id_low", 1), ("generation", u64::MAX)], b""),
        ("size", &[("entry", FILE), ("size", 1 << 63)], b""),
        ("mode", &[("entry", FILE), ("mode", 0o10_755)], b""),
        ("content", &[("entry", FILE), ("size", 1)], b"more"),
        ("content", &[("entry", SYMLINK), ("size", 4_096)], &long),
        ("content", &[("entry", SYMLINK), ("size", 3)], b"a\0b"),
        ("content", &[("entry", DIRECTORY), ("id_low", 1), ("size", 3)], b"abc"),
    ];
    for (what, ints, content) in cases {
        let namespace = forged(vec![record(0, b"f", ints, content)]);
        let error = namespace.stat("/f", FollowLinks::No).expect_err(what);
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
}

/// Symptom: a record of a file with several names led to a directory, possibly one that contains
/// the record.
/// Cause: anything found in the links directory was assumed to be a file.
/// Fix: a directory there is rejected.
#[test]
fn a_directory_has_one_name() {
    let link = record(0, b"loop", &[("entry", LINK), ("id_low", 7)], b"");
    let links = [("entry", DIRECTORY), ("id_low", 0), ("mode", 0o755)];
    let links = record(u128::MAX, &7u128.to_be_bytes(), &links, b"");
    let error = forged(vec![link, links]).stat("/loop/loop", FollowLinks::No).expect_err("no tree");
    assert_eq!(error.kind(), Kind::Corrupt);
}

/// Returns a session with directories `a` and `b`, each with a directory `below` and files that
/// take a read of the store each.
fn with_files(store: &SharedStore) -> Session {
    let session = Repository::new(store.clone()).begin(&[], options()).expect("begin");
    let root = session.root().clone();
    for dir in [&b"a"[..], b"b"] {
        let dir = session.mkdir(&root, dir, 0o755).expect("mkdir");
        let below = session.mkdir(&dir, b"below", 0o755).expect("mkdir");
        for name in [&b"one"[..], b"two", b"three"] {
            let mut content = source(Content { bytes: 9_000, seed: 1 });
            session.create_with(&dir, name, 0o644, &mut content).expect("create");
            session.create(&below, name, 0o644).expect("create");
        }
    }
    session
}

/// Replaces each directory in `path` with a symbolic link to `outside`.
fn plant(path: &Path, outside: &Path) {
    for name in names_in(path) {
        let (dir, aside) = (path.join(&name), path.join(format!("{name}-aside")));
        if fs::symlink_metadata(&dir).expect("there").is_dir() && !name.ends_with("-aside") {
            fs::rename(&dir, aside).expect("rename");
            symlink(outside, &dir).expect("symlink");
        }
    }
}

/// Symptom: a user who could write to the target directory of the superuser's export could replace
/// newly made directories with symbolic links, and thereby have files written, and owners and modes
/// set, wherever the links led.
/// Cause: every call used a whole path.
/// Fix: calls use a directory handle and one name in it, and never follow links.
#[test]
fn an_export_does_not_follow_what_others_plant() {
    // The modes of directories that an export makes itself.
    for rights in [0o751, 0o700] {
        check_export_beside_planting(rights);
    }
}

/// Exports while links to a directory with `rights` are planted, between any two requests.
fn check_export_beside_planting(rights: u32) {
    let inner: SharedStore = Arc::new(MemoryStore::new());
    let set = with_files(&inner).publish("base").expect("publish");
    let mut requests = 0;
    loop {
        let around = tempfile::tempdir().expect("a directory");
        let (target, outside) = (around.path().join("target"), around.path().join("outside"));
        fs::create_dir(&outside).expect("mkdir");
        fs::create_dir(outside.join("below")).expect("mkdir");
        fs::set_permissions(&outside, Permissions::from_mode(rights)).expect("chmod");
        let before = fs::metadata(&outside).expect("stat");
        let to = outside.clone();
        let shown = Repository::new(inner.clone()).open(&[set], Identity::of_process());
        let from = shown.expect("open").export_partial_path(b"/", &target, None);
        let planting = Box::new(move || {
            if from.exists() {
                plant(&from, &to);
            }
        });
        let store = Interrupted::new(inner.clone(), requests, planting);
        let repository =
            Repository::with(store.clone(), 0, Arc::new(esker_base::clock::SystemClock));
        let namespace = repository.open(&[set], Identity::of_process()).expect("open");
        let options = ExportOptions { threads: 1, ..Default::default() };
        let _ = namespace.export(b"/", &target, &options, &TransferTally::default());
        assert_eq!(names_in(&outside), ["below"], "at request {requests}");
        assert!(names_in(&outside.join("below")).is_empty(), "at request {requests}");
        let after = fs::metadata(&outside).expect("stat");
        assert_eq!((after.mode(), after.mtime()), (before.mode(), before.mtime()));
        if !store.has_happened() {
            break;
        }
        requests += 1;
    }
    assert!(requests > 6, "an export of {requests} requests");
}

/// Symptom: a user who could write to a directory that the superuser imported could have any other
/// directory imported, by replacing an already listed one with a symbolic link.
/// Cause: directories were opened by their paths.
/// Fix: they are opened by name in the handle of their parent, and never through a link.
#[test]
fn an_import_does_not_follow_what_others_plant() {
    let mut requests = 0;
    loop {
        let around = tempfile::tempdir().expect("a directory");
        let (tree, outside) = (around.path().join("tree"), around.path().join("outside"));
        for dir in ["a/below", "b/below", "c/below"] {
            fs::create_dir_all(tree.join(dir)).expect("mkdir");
            fs::write(tree.join(dir).join("../large"), vec![7; 9_000]).expect("a file");
        }
        fs::create_dir_all(outside.join("below")).expect("mkdir");
        fs::write(outside.join("secret"), "secret").expect("a file");
        fs::write(outside.join("below/secret"), "secret").expect("a file");
        let (to, from) = (outside.clone(), tree.clone());
        let planting = Box::new(move || plant(&from, &to));
        let store = Interrupted::new(Arc::new(MemoryStore::new()), requests, planting);
        let repository = Repository::new(store.clone());
        let session = repository.begin(&[], options()).expect("begin");
        let import = ImportOptions { threads: 1, ..ImportOptions::default() };
        let root = session.root().clone();
        session.import(&tree, &root, &import, &TransferTally::default()).expect("import");
        for dir in ["a", "b", "c"] {
            for path in [format!("/{dir}/secret"), format!("/{dir}/below/secret")] {
                let found = session.namespace().stat(&path, FollowLinks::No);
                assert!(found.is_err(), "{path} was imported at request {requests}");
            }
        }
        if !store.has_happened() {
            break;
        }
        requests += 1;
    }
    assert!(requests > 3, "an import of {requests} requests");
}

/// Symptom: none observed; an export by a user who cannot set owners must not set set-id bits
/// either.
#[test]
fn set_id_bits_go_with_their_owner() {
    let session = Repository::new(Arc::new(MemoryStore::new()))
        .begin(&[], SessionOptions { identity: Identity::root(), ..options() })
        .expect("begin");
    let root = session.root().clone();
    session.create(&root, b"program", 0o6755).expect("create");
    let set = session.publish("base").expect("publish");
    let repository = Repository::new(session.namespace().layers().source().store.clone());
    let around = tempfile::tempdir().expect("a directory");
    fs::set_permissions(around.path(), Permissions::from_mode(0o777)).expect("chmod");
    let mut user = Identity::of_process();
    if user.is_root() {
        user = Identity { uid: 65_534, gid: 65_534, groups: Vec::new() };
    }
    let target = around.path().join("target");
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            become_identity(&user);
            let namespace = repository.open(&[set], user.clone()).expect("open");
            export(&namespace, &target);
        });
        thread.join().expect("the export does not panic");
    });
    let program = fs::metadata(target.join("program")).expect("stat");
    assert_eq!((program.uid(), program.mode() & 0o7777), (user.uid, 0o755));
}

/// Symptom: none observed; a mode that is set before the owner is that of a program of the superuser
/// for a moment, and the kernel clears its set-id bits when the owner follows.
#[test]
fn owners_come_before_set_id_bits() {
    if !Identity::of_process().is_root() {
        println!("skipped: takes the superuser");
        return;
    }
    let attributes = [("entry", FILE), ("uid", 1_234), ("gid", 1_235), ("mode", 0o6755)];
    let namespace = forged(vec![record(0, b"program", &attributes, b"")]);
    let around = tempfile::tempdir().expect("a directory");
    export(&namespace, &around.path().join("target"));
    let program = fs::metadata(around.path().join("target/program")).expect("stat");
    let found = (program.uid(), program.gid(), program.mode() & 0o7777);
    assert_eq!(found, (1_234, 1_235, 0o6755));
}

/// Holes of any size cost nothing.
#[test]
fn a_file_that_is_one_hole_is_exported_at_once() {
    let size = 1 << 42;
    let namespace = forged(vec![record(0, b"hole", &[("entry", FILE), ("size", size)], b"")]);
    let around = tempfile::tempdir().expect("a directory");
    let tally = export(&namespace, &around.path().join("target"));
    // Its file system may have a lower limit.
    if tally.counts().problems == 0 {
        let hole = fs::metadata(around.path().join("target/hole")).expect("stat");
        assert_eq!((hole.len(), hole.blocks()), (size, 0));
    }
}

/// The records of a store are derived from its seed.
#[test]
fn hostile_stores_are_withstood() {
    const SEEDS: u64 = 600;
    let (mut exported, mut failed) = (0, Vec::new());
    for seed in 0..SEEDS {
        let mut random = Random::from_seed(seed);
        let mut bytes = vec![0; 1_000 + random.below(5_000) as usize];
        random.fill(&mut bytes);
        match std::panic::catch_unwind(|| stores::run(&bytes)) {
            Ok(count) => exported += count,
            Err(_) => failed.push(seed),
        }
    }
    assert!(failed.is_empty(), "the stores of seeds {failed:?}");
    assert!(exported > SEEDS, "{exported} entries were exported");
}
