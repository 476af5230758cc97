// SPDX-License-Identifier: Apache-2.0
//! Key-value stores: the conformance suite and runs on real drivers, and drivers that break the
//! interface.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use esker_base::Kind;
use esker_base::clock::SystemClock;
use esker_comm::threads;
use esker_workbench::backend::{Backend, KeyValueBackend, KeyValueTarget, conformance};
use esker_workbench::options::RunOptions;
use esker_workbench::pattern::{DatasetId, ObjectId, WorkingSetSize};
use esker_workbench::progress::RunProgress;
use esker_workbench::run::{run_rank, run_threads};

use super::driver_library::{DriverLibrary, sources};

const OBJECT: ObjectId = DatasetId { rank: 0, number: 0 }.object(0);

fn backend(target: &str) -> KeyValueBackend {
    let target = KeyValueTarget::parse(target).expect("a target");
    KeyValueBackend::new(target).expect("a driver")
}

fn size(ranks: u32) -> WorkingSetSize {
    let (objects, iterations) = (20, 10);
    WorkingSetSize { ranks, datasets: 2, objects, iterations, object_bytes: 3_901, rank_offset: 1 }
}

/// The suite at every durability, twice, since the directory is gone in between.
fn conforms(library: &Path) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("database");
    let [library, database] = [library, &path].map(|path| path.to_str().expect("a path of ASCII"));
    for options in ["default", "tuned"] {
        for durability in ["none", "async", "always"] {
            let settings = format!("options={options}&durability={durability}");
            let backend = backend(&format!("driver:{library}:{database}?{settings}"));
            conformance::all(&backend);
            assert!(!path.exists(), "{settings}: clear removes the directory");
            conformance::all(&backend);
            let service = backend.service().expect("a description");
            assert!(service.contains(&format!("options={options} durability={durability}")));
        }
    }
    let wrong = KeyValueTarget::parse(&format!("driver:{library}:{database}?options=fastest"));
    let wrong = KeyValueBackend::new(wrong.expect("a target")).expect_err("no such options");
    assert_eq!(wrong.kind(), Kind::Invalid, "{wrong}");
}

#[test]
fn leveldb_conforms() {
    let Some(driver) = DriverLibrary::leveldb() else { return };
    conforms(driver.path());
    runs_measure_and_reuse_a_working_set(driver.path());
}

/// Drivers that others compile: `make -C peers check` names LevelDB's and RocksDB's.
#[test]
fn named_drivers_conform() {
    let Some(libraries) = std::env::var_os("ESKER_WORKBENCH_DRIVERS") else {
        println!("skipped: ESKER_WORKBENCH_DRIVERS names no drivers: run make -C peers check");
        return;
    };
    for library in std::env::split_paths(&libraries) {
        println!("{}", library.display());
        conforms(&library);
        runs_measure_and_reuse_a_working_set(&library);
        killed_runs_are_cleaned_up(&library);
    }
}

/// All phases succeed at every durability, and the next run finds the working set that a run keeps.
fn runs_measure_and_reuse_a_working_set(library: &Path) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("database");
    for durability in ["none", "async", "always"] {
        for keep in [true, true, false] {
            let target =
                format!("driver:{}:{}?durability={durability}", library.display(), path.display());
            let backend = backend(&target);
            let size = size(4);
            let options = RunOptions { keep, names: true, races: true, ..RunOptions::new(size) };
            let progress = RunProgress::new(size.ranks);
            let result = run_threads(&backend, &options, &SystemClock, &progress).expect("a run");
            let failed: u64 = result.phases.iter().map(|phase| phase.failed()).sum();
            assert_eq!(failed, 0, "{:?}", result.warnings);
            assert_eq!(result.backend, "key-value");
            let service = &result.environment.service;
            assert!(service.contains(&format!(" durability={durability} ")), "{service}");
            assert!(!result.environment.file_system.is_empty());
            drop(backend);
            assert_eq!(path.exists(), keep);
        }
    }
}

/// A process that dies with the database open leaves a working set that the next one can remove.
/// The test copies an open database, which has the files that such a process leaves.
fn killed_runs_are_cleaned_up(library: &Path) {
    let directory = tempfile::tempdir().expect("a directory");
    let open = directory.path().join("open");
    for durability in ["none", "async", "always"] {
        let target = |path: &Path| {
            format!("driver:{}:{}?durability={durability}", library.display(), path.display())
        };
        let running = backend(&target(&open));
        running.write_marker(b"{}").expect("a marker");
        let mut connection = running.connect(0, &size(1)).expect("a connection");
        for number in 0..100 {
            let object = ObjectId { number, ..OBJECT };
            connection.create(object, &[1; 3_901]).expect("created");
        }
        // Longer than a log is held back.
        std::thread::sleep(std::time::Duration::from_millis(300));
        let left = directory.path().join(durability);
        copy_files(&open, &left);
        drop(connection);
        running.clear().expect("cleared");
        drop(running);
        let next = backend(&target(&left));
        // Without a log neither the marker nor the objects are there: they are not in tables yet.
        let expected = if durability == "none" { 0 } else { 100 };
        assert_eq!(next.clear().expect("cleared"), expected, "{durability}");
        assert!(!left.exists());
    }
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a new directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

#[test]
fn killed_runs_on_leveldb_are_cleaned_up() {
    let Some(driver) = DriverLibrary::leveldb() else { return };
    killed_runs_are_cleaned_up(driver.path());
}

/// Files of others are not touched, and one backend at a time has the database.
#[test]
fn other_files_are_never_touched() {
    let Some(driver) = DriverLibrary::leveldb() else { return };
    let foreign = driver.new_directory("foreign");
    std::fs::create_dir(&foreign).expect("a directory");
    std::fs::write(foreign.join("thesis.tex"), "text").expect("a file");
    let refused = backend(&driver.target(&foreign, ""));
    assert_eq!(refused.read_marker().expect("no database"), None);
    assert_eq!(refused.write_marker(b"{}").expect_err("files").kind(), Kind::NotEmpty);
    assert_eq!(refused.clear().expect_err("no working set").kind(), Kind::NotFound);
    assert_eq!(std::fs::read_dir(&foreign).expect("a directory").count(), 1, "nothing is added");
    // Another program's database is not even opened.
    std::fs::remove_file(foreign.join("thesis.tex")).expect("removed");
    let own = backend(&driver.target(&foreign, ""));
    own.write_marker(b"{}").expect("an empty directory");
    drop(own);
    std::fs::remove_file(foreign.join("esker-workbench-database")).expect("removed");
    let files = || {
        let entries = std::fs::read_dir(&foreign).expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name()).collect::<BTreeSet<_>>()
    };
    let before = files();
    assert_eq!(refused.read_marker().expect("not its own"), None);
    assert_eq!(refused.write_marker(b"{}").expect_err("a database").kind(), Kind::NotEmpty);
    assert_eq!(refused.clear().expect_err("no working set").kind(), Kind::NotFound);
    assert_eq!(files(), before);

    let orphan = backend(&driver.target(&driver.new_directory("absent/database"), ""));
    assert_eq!(orphan.write_marker(b"{}").expect_err("no parent").kind(), Kind::NotFound);

    // A process that dies while it makes or removes the database leaves parts of it.
    std::fs::write(foreign.join("esker-workbench-database"), "").expect("a file");
    std::fs::remove_file(foreign.join("CURRENT")).expect("removed");
    let next = backend(&driver.target(&foreign, ""));
    assert_eq!(next.read_marker().expect("no database"), None);
    next.write_marker(b"{}").expect("a new database");
    drop(next);
    std::fs::remove_file(foreign.join("CURRENT")).expect("removed");
    assert_eq!(backend(&driver.target(&foreign, "")).clear().expect("cleared"), 0);
    assert!(!foreign.exists());

    // One open at a time, and files that are not the database's.
    let path = driver.new_directory("database");
    let first = backend(&driver.target(&path, ""));
    first.write_marker(b"{}").expect("a marker");
    let second = backend(&driver.target(&path, ""));
    let busy = second.read_marker().expect_err("open elsewhere");
    assert_eq!(busy.kind(), Kind::Unavailable, "{busy}");
    std::fs::write(path.join("notes.txt"), "text").expect("a file");
    assert_eq!(first.clear().expect("cleared"), 0);
    assert!(path.join("notes.txt").exists(), "only files of the database are removed");
    assert_eq!(std::fs::read_dir(&path).expect("a directory").count(), 1);
}

/// Ranks that are processes are refused before anything is made.
#[test]
fn processes_are_refused() {
    let Some(driver) = DriverLibrary::leveldb() else { return };
    let path = driver.new_directory("database");
    let backend = backend(&driver.target(&path, ""));
    let options = RunOptions::new(size(1));
    let progress = RunProgress::new(1);
    let refused = threads::run(1, 1, |transport| {
        run_rank(&backend, &options, &SystemClock, &progress, transport)
    });
    let refused = refused.expect_err("processes");
    assert_eq!(refused.kind(), Kind::Unsupported);
    assert!(refused.to_string().contains("use threads (-N)") && !path.exists(), "{refused}");
}

/// The hostile driver, compiled with `definitions`.
fn hostile(directory: &Path, definitions: &[&str]) -> PathBuf {
    let library = directory.join(format!("hostile{}.so", definitions.concat()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile_driver.c");
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"])
        .args(definitions)
        .arg("-I")
        .arg(sources())
        .arg(source)
        .arg("-o")
        .arg(&library)
        .output()
        .expect("a C compiler runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library
}

#[test]
fn libraries_that_are_no_drivers_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let load = |library: &Path| {
        let target = format!("driver:{}:{}/d", library.display(), directory.path().display());
        KeyValueBackend::new(KeyValueTarget::parse(&target).expect("a target"))
            .expect_err("refused")
    };
    let text = directory.path().join("text.so");
    std::fs::write(&text, "text").expect("a file");
    for (library, kind, said) in [
        (directory.path().join("absent.so"), Kind::NotFound, "make -C peers drivers"),
        (text, Kind::Invalid, "cannot be loaded"),
        (loaded_library(), Kind::Invalid, "it lacks esker_driver_version"),
        (
            hostile(directory.path(), &["-DWITHOUT_SCAN"]),
            Kind::Invalid,
            "it lacks esker_driver_scan",
        ),
        (hostile(directory.path(), &["-DHOSTILE_VERSION=2"]), Kind::Invalid, "has version 2 of"),
    ] {
        let refused = load(&library);
        assert_eq!(refused.kind(), kind, "{refused}");
        assert!(refused.to_string().contains(said), "{refused}");
    }
}

/// The C library, as an example of a library that is not a driver.
fn loaded_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let path = maps.lines().find_map(|line| {
        let path = line.split_whitespace().nth(5)?;
        path.contains("/libc.so").then(|| PathBuf::from(path))
    });
    path.expect("the C library is loaded")
}

/// No answer makes the workbench panic, allocate without bound or run for ever.
#[test]
fn hostile_answers_are_errors() {
    let directory = tempfile::tempdir().expect("a directory");
    let library = hostile(directory.path(), &[]);
    let open = |option: &str| {
        let database = directory.path().join(option);
        let _ = std::fs::remove_dir_all(&database);
        backend(&format!("driver:{}:{}?options={option}", library.display(), database.display()))
    };
    // Nothing in the database: the driver itself is sound.
    open("default").write_marker(b"{}").expect("a marker");

    let described = open("description").service().expect("a description");
    assert_eq!(described.chars().count(), 1 << 10, "bounded");
    let refused = open("no-handle").write_marker(b"{}").expect_err("no handle");
    assert!(refused.to_string().contains("gave no handle"), "{refused}");
    let refused = open("status").write_marker(b"{}").expect_err("no such status");
    assert!(refused.to_string().contains("answered 77"), "{refused}");
    let refused = open("message").write_marker(b"{}").expect_err("a failure");
    assert!(!refused.to_string().contains('\x1b'), "{refused}");
    assert_eq!(refused.kind(), Kind::DeviceFailed);

    for (option, kind) in [
        ("huge-value", Kind::TooLarge),
        ("large-value", Kind::TooLarge),
        ("growing-value", Kind::TooLarge),
    ] {
        let backend = open(option);
        let refused = backend.write_marker(b"{}").expect_err(option);
        assert_eq!(refused.kind(), kind, "{refused}");
    }
    let backend = open("huge-value");
    backend.write_marker(b"{}").expect_err("a marker of 2^64 bytes");
    let mut connection = backend.connect(0, &size(1)).expect("a connection");
    let mut content = Vec::new();
    let refused = connection.read(OBJECT, &mut content).expect_err("2^64 bytes");
    assert_eq!(refused.kind(), Kind::TooLarge, "{refused}");
    assert!(content.capacity() < 1 << 20, "nothing is allocated for it");
    assert_eq!(connection.stat(OBJECT).expect_err("2^64 bytes").kind(), Kind::TooLarge);
    drop(connection);
    drop(backend);

    let backend = open("growing-value");
    backend.write_marker(b"{}").expect_err("too large");
    let mut connection = backend.connect(0, &size(1)).expect("a connection");
    let refused = connection.read(OBJECT, &mut content).expect_err("another length");
    assert_eq!(refused.kind(), Kind::Corrupt, "{refused}");
    drop(connection);
    drop(backend);

    for option in ["no-key", "long-key", "repeated-key"] {
        let backend = open(option);
        let result = backend.write_marker(b"{}").expect_err(option);
        let expected = if option == "no-key" { Kind::Corrupt } else { Kind::NotEmpty };
        assert_eq!(result.kind(), expected, "{result}");
        let mut connection = backend.connect(0, &size(1)).expect("a connection");
        match (option, connection.list(OBJECT.dataset, false)) {
            ("no-key", listed) => assert_eq!(listed.expect_err("no key").kind(), Kind::Corrupt),
            ("long-key", listed) => assert_eq!(listed.expect("a listing"), 0),
            (_, listed) => assert_eq!(listed.expect("a listing"), 100_000),
        }
    }
}

/// A cleanup removes nothing from a database with keys of others, and ends even if the driver
/// passes one key again and again.
#[test]
fn cleanups_refuse_other_keys_and_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let library = hostile(directory.path(), &[]);
    let database = directory.path().join("database");
    let target = |option: &str| {
        format!("driver:{}:{}?options={option}", library.display(), database.display())
    };
    let backend = backend(&target("default"));
    backend.write_marker(b"{}").expect("a marker");
    // The option of a library that is loaded twice is the last one.
    let choose = |option: &str| drop(self::backend(&target(option)));
    choose("long-key");
    let refused = backend.clear().expect_err("another key");
    assert_eq!(refused.kind(), Kind::NotEmpty, "{refused}");
    assert_eq!(backend.read_marker().expect("an answer").as_deref(), Some(&b"{}"[..]));
    choose("repeated-key");
    assert_eq!(backend.clear().expect("cleared"), 1);
}
