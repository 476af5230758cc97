// SPDX-License-Identifier: Apache-2.0
//! Tests of features that only the POSIX store has: files, leftovers, hostile directories, full
//! disks.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use rustix::process::{Rlimit, setrlimit};

use super::*;
use crate::store::{AppendLog, ObjectWriter};

fn store() -> (tempfile::TempDir, PosixStore) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let store = PosixStore::new(directory.path()).expect("open");
    (directory, store)
}

fn unfinished(directory: &tempfile::TempDir) -> usize {
    std::fs::read_dir(directory.path().join("tmp")).map_or(0, Iterator::count)
}

#[test]
fn objects_and_logs_are_plain_files() {
    let (directory, store) = store();
    store.put_if_absent("a/b", b"object").expect("put");
    store.append_log("a/c").expect("log").append(b"log").expect("append");
    for (name, bytes) in [("a/b", "object"), ("a/c", "log")] {
        let path = directory.path().join(name);
        assert_eq!(std::fs::read_to_string(&path).expect("read"), bytes);
        assert_eq!(std::fs::metadata(&path).expect("stat").nlink(), 1);
    }
    assert_eq!(unfinished(&directory), 0);
}

#[test]
fn appends_are_visible_before_they_are_synced() {
    let (_directory, store) = store();
    let log = store.append_log("log").expect("log");
    log.append(b"abc").expect("append");
    assert_eq!(store.get_range("log", 0..3).expect("read"), "abc");
    log.append(b"def").expect("append");
    assert_eq!(store.get_range("log", 2..6).expect("read"), "cdef");
}

#[test]
fn reads_by_range_keep_the_file_open() {
    let (directory, store) = store();
    store.put_if_absent("a", b"0123").expect("put");
    assert_eq!(store.get_range("a", 0..2).expect("read"), "01");
    std::fs::remove_file(directory.path().join("a")).expect("remove behind its back");
    assert_eq!(store.get_range("a", 2..4).expect("read"), "23");
    assert_eq!(store.get("a", 4).expect_err("gone").kind(), Kind::NotFound);
}

#[test]
fn a_file_cut_short_is_corrupt() {
    let (directory, store) = store();
    store.put_if_absent("a", b"0123456789").expect("put");
    assert_eq!(store.get_range("a", 0..10).expect("read"), "0123456789");
    std::fs::OpenOptions::new()
        .write(true)
        .open(directory.path().join("a"))
        .expect("open")
        .set_len(4)
        .expect("cut");
    let error = store.get_range("a", 2..10).expect_err("cut short");
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("byte 4"), "{error}");
}

#[test]
fn a_hostile_size_does_not_exhaust_memory() {
    let (directory, store) = store();
    let file = std::fs::File::create(directory.path().join("a")).expect("create");
    file.set_len(1 << 42).expect("a sparse file");
    assert_eq!(store.get("a", 1 << 20).expect_err("over the limit").kind(), Kind::TooLarge);
    assert_eq!(store.get_range("a", (1 << 42) - 2..1 << 42).expect("read"), "\0\0");
}

#[test]
fn special_files_do_not_hang_and_links_are_not_followed() {
    let (directory, store) = store();
    let path = directory.path();
    let outside = tempfile::tempdir().expect("temporary directory");
    std::fs::write(outside.path().join("secret"), b"secret").expect("write");
    symlink(outside.path(), path.join("out")).expect("symlink");
    symlink(outside.path().join("secret"), path.join("link")).expect("symlink");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, path.join("fifo"), mode).expect("mkfifo");
    drop(std::os::unix::net::UnixListener::bind(path.join("socket")).expect("bind"));

    for name in ["fifo", "socket", "link", "out/secret"] {
        for kind in [
            store.get(name, 10).expect_err(name).kind(),
            store.get_range(name, 0..1).expect_err(name).kind(),
            store.size(name).expect_err(name).kind(),
        ] {
            assert!(matches!(kind, Kind::Denied | Kind::Corrupt), "{name}: {kind:?}");
        }
        assert!(store.append_log(name).is_err(), "{name}");
    }
    store.put_if_absent("out/new", b"x").expect_err("through a link");
    // No objects of this store are below a link, so there is nothing to remove.
    store.delete("out/secret").expect("an absent one");
    assert_eq!(std::fs::read_dir(outside.path()).expect("list").count(), 1);
    assert_eq!(store.list("").expect("list"), []);
    assert_eq!(store.list_names("").expect("list"), [""; 0]);
    // Entries that should not be there can be removed.
    for name in ["fifo", "socket", "link"] {
        store.delete(name).expect(name);
    }
}

#[test]
fn foreign_files_are_not_listed() {
    use std::os::unix::ffi::OsStrExt;
    let (directory, store) = store();
    let bad = std::ffi::OsStr::from_bytes(b"\xff");
    std::fs::write(directory.path().join(bad), b"x").expect("write");
    std::fs::write(directory.path().join("a\nb"), b"x").expect("write");
    std::fs::create_dir(directory.path().join("empty")).expect("mkdir");
    store.put_if_absent("a", b"x").expect("put");
    assert_eq!(store.list_names("").expect("list"), ["a"]);
    assert_eq!(store.list("").expect("list").len(), 1);
}

#[test]
fn directories_that_fell_empty_are_removed() {
    let (directory, store) = store();
    store.put_if_absent("a/b/c", b"x").expect("put");
    store.put_if_absent("a/d", b"x").expect("put");
    store.delete("a/b/c").expect("delete");
    assert!(!directory.path().join("a/b").exists());
    assert!(directory.path().join("a/d").exists());
    store.put_if_absent("a/b/c", b"x").expect("put again");
}

#[test]
fn an_object_may_not_have_the_name_of_a_directory() {
    let (_directory, store) = store();
    store.put_if_absent("a", b"x").expect("put");
    assert_eq!(store.put_if_absent("a/b", b"x").expect_err("below").kind(), Kind::NotADirectory);
    assert_eq!(store.get("a/b", 1).expect_err("below").kind(), Kind::NotFound);
    store.delete("a/b").expect("an absent one");
    store.put_if_absent("c/d", b"x").expect("put");
    assert_eq!(store.put_if_absent("c", b"x").expect_err("above").kind(), Kind::Exists);
}

#[test]
fn sweep_removes_what_dead_writers_left() {
    let (directory, store) = store();
    let mut alive = store.create("a").expect("create");
    alive.write(&vec![1; 2 << 20]).expect("write");
    std::fs::write(directory.path().join("tmp/old"), b"left behind").expect("write");
    assert_eq!(unfinished(&directory), 2);
    assert_eq!(store.sweep_unfinished(1, false).expect("sweep"), 0);
    assert_eq!(store.sweep_unfinished(u64::MAX, true).expect("sweep"), 2);
    // Everything is older than the end of time, so even the live one is removed, and its writer
    // fails.
    assert_eq!(store.sweep_unfinished(u64::MAX, false).expect("sweep"), 2);
    let error = alive.finish().expect_err("swept");
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("swept"), "{error}");
    assert_eq!(store.list("").expect("list"), []);
}

#[test]
fn a_removed_tmp_is_made_again() {
    let (directory, store) = store();
    store.put_if_absent("a", b"x").expect("put");
    std::fs::remove_dir(directory.path().join("tmp")).expect("remove");
    store.put_if_absent("b", b"x").expect("put");
}

#[test]
fn two_stores_in_one_directory_agree() {
    let (directory, one) = store();
    let two = PosixStore::new(directory.path()).expect("open");
    for round in 0..20 {
        let name = format!("a/b/{round}");
        one.put_if_absent(&name, b"x").expect("put");
        assert_eq!(two.put_if_absent(&name, b"y").expect_err("taken").kind(), Kind::Exists);
        two.delete(&name).expect("delete, and with it the directory");
    }
}

#[test]
fn a_log_on_a_full_device_is_poisoned() {
    let (directory, store) = store();
    // The kernel's full device stands in for a full disk: opened by path, not created anew.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let log = PosixLog::over(&store.directories, "log", full.into(), None);
    let error = log.append(b"x").expect_err("full");
    assert_eq!(error.kind(), Kind::NoSpace);
    let place = directory.path().join("log").display().to_string();
    assert!(error.to_string().contains(&place) && error.to_string().contains("free some"));
    assert_eq!(log.append(b"x").expect_err("poisoned").kind(), Kind::Closed);
    assert_eq!(log.sync().expect_err("poisoned").kind(), Kind::Closed);
    assert_eq!(log.bytes(), 0);
}

/// A writer that continued after a failed write would publish an object with a hole in it.
#[test]
fn a_writer_on_a_full_device_never_finishes() {
    let (_directory, store) = store();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let aside = aside::AsideFile::over(&store.directories, full.into());
    let mut writer = Box::new(PosixWriter::new("a".into(), aside));
    writer.write(b"buffered").expect("nothing is written yet");
    assert_eq!(writer.write(&vec![0; 2 << 20]).expect_err("full").kind(), Kind::NoSpace);
    assert_eq!(writer.write(b"x").expect_err("failed before").kind(), Kind::Closed);
    assert_eq!(writer.finish().expect_err("failed before").kind(), Kind::Closed);
    assert_eq!(store.list("").expect("list"), []);
}

#[test]
fn a_sync_after_deletion_leaves_nothing_behind() {
    let (directory, store) = store();
    let log = store.append_log("a/log").expect("log");
    log.append(b"x").expect("append");
    store.delete("a/log").expect("delete");
    log.sync().expect("a sync of a file without a name");
    assert!(!directory.path().join("a").exists());
}

#[test]
fn what_the_mode_denies_is_denied() {
    let (directory, store) = store();
    store.put_if_absent("a/b", b"x").expect("put");
    let set = |mode| {
        let path = directory.path().join("a");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    set(0o500);
    let outcome = store.put_if_absent("a/c", b"x");
    let may_all = rustix::process::geteuid().is_root();
    set(0o700);
    if !may_all {
        let error = outcome.expect_err("read-only directory");
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.to_string().contains("a/c"), "{error}");
    }
}

/// Symptom: once too many files were open, a log that could not be made existed nevertheless, and
/// the error was that of a store that does not answer.
/// Cause: its file was made before the second descriptor that it needed.
/// Fix: the file is removed; the error has a kind of its own.
#[test]
fn a_log_for_which_there_is_no_descriptor_is_not_made() {
    const LIMITED: &str = "ESKER_TEST_OPEN_FILES";
    const NAME: &str = "store::posix::tests::a_log_for_which_there_is_no_descriptor_is_not_made";
    if std::env::var_os(LIMITED).is_none() {
        // The limit applies to a process.
        let mut command = std::process::Command::new(std::env::current_exe().expect("the tests"));
        let output = command.args(["--exact", NAME]).env(LIMITED, "1").output().expect("a process");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let (_directory, store) = store();
    store.put_if_absent("logs/read", b"bytes").expect("put");
    store.get_range("logs/read", 0..5).expect("read");
    let limit = Rlimit { current: Some(64), maximum: Some(64) };
    setrlimit(Resource::Nofile, limit).expect("a lower limit");
    let open_others = || (0..64).map_while(|_| std::fs::File::open("/dev/null").ok());
    let mut others: Vec<_> = open_others().collect();
    // A file that is kept open for reading is closed to make room.
    drop(store.append_log("logs/first").expect("one descriptor"));
    others.extend(open_others());
    let refused = |error: crate::Error| {
        assert_eq!(error.kind(), Kind::TooManyOpenFiles, "{error}");
        assert!(error.to_string().contains("ulimit -n"), "{error}");
    };
    refused(store.append_log("logs/second").map(drop).expect_err("no descriptor"));
    refused(store.get_range("logs/read", 0..5).expect_err("no descriptor"));
    refused(store.create_log("logs/third").map(drop).expect_err("no descriptor"));
    drop(others.pop());
    refused(store.create_log("logs/third").map(drop).expect_err("it needs two"));
    drop(others.pop());
    store.create_log("logs/third").expect("it is not there yet");
    store.append_log("logs/second").expect("it is not there yet");
}

/// Symptom: other users could not read what a user of a store wrote with umask 077.
/// Cause: umasks decided the modes of objects.
/// Fix: if the directory has the set-group-id bit, its own permission bits decide.
#[test]
fn a_shared_store_gives_everything_the_modes_of_its_directory() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("store");
    let url = path.to_str().expect("UTF-8");
    let store = url::init_shared(url, StoreSharing::World).expect("init");
    store.put_if_absent("a/b/object", b"x").expect("put");
    store.append_log("a/c/log").expect("log").append(b"x").expect("append");
    let mut writer = store.create("d/written").expect("create");
    writer.write(b"x").expect("write");
    writer.finish().expect("finish");
    let mode = |name: &str| {
        let metadata = std::fs::metadata(path.join(name)).expect("there");
        metadata.mode() & 0o7777
    };
    for name in ["", "tmp", "a", "a/b", "a/c", "d"] {
        assert_eq!(mode(name), 0o2775, "{name}");
    }
    for name in ["esker.json", "a/b/object", "a/c/log", "d/written"] {
        assert_eq!(mode(name), 0o664, "{name}");
    }
    assert_eq!(std::fs::read_dir(path.join("tmp")).expect("a directory").count(), 0);
    // Directories that a crash left aside are swept like files.
    std::fs::create_dir(path.join("tmp/left")).expect("make");
    assert_eq!(store.sweep_unfinished(u64::MAX, false).expect("sweep"), 1);
    let error = url::init_shared("memory:shared", StoreSharing::Group);
    assert_eq!(error.expect_err("no directory").kind(), Kind::Invalid);
}

/// The owner of a store that is not the superuser's.
const OWNER: u32 = 65_530;

/// Symptom: after a command of the superuser, the owner of a store could neither collect garbage nor
/// publish: directories in it belonged to the superuser.
/// Cause: everything that was made belonged to the user who made it.
/// Fix: what the superuser makes belongs to the owner of the store's directory.
#[test]
fn what_the_superuser_makes_belongs_to_the_owner_of_the_store() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("what_the_superuser_makes_belongs_to_the_owner_of_the_store: skipped, not root");
        return;
    }
    for sharing in [None, Some(StoreSharing::Group)] {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("store");
        std::fs::create_dir(&path).expect("mkdir");
        std::os::unix::fs::chown(&path, Some(OWNER), Some(OWNER)).expect("chown");
        let url = path.to_str().expect("UTF-8");
        let store = match sharing {
            None => url::init(url),
            Some(sharing) => url::init_shared(url, sharing),
        };
        let store = store.expect("init");
        store.put_if_absent("a/b/object", b"x").expect("put");
        store.append_log("a/c/log").expect("log").append(b"x").expect("append");
        store.local_files().expect("files").create_log("a/d/log").expect("log");
        let mut writer = store.create("e/written").expect("create");
        writer.write(b"x").expect("write");
        writer.finish().expect("finish");
        store.keep_reserve();
        let mut left = vec![path.clone()];
        let mut found = 0;
        while let Some(path) = left.pop() {
            let metadata = std::fs::symlink_metadata(&path).expect("stat");
            let name = path.display();
            assert_eq!((metadata.uid(), metadata.gid()), (OWNER, OWNER), "{name}");
            found += 1;
            if metadata.is_dir() {
                assert!(sharing.is_none() || metadata.mode() & 0o7777 == 0o2770, "{name}");
                let entries = std::fs::read_dir(&path).expect("list");
                left.extend(entries.map(|entry| entry.expect("an entry").path()));
            }
        }
        assert!(found > 12, "{found}");
        // The reserve is the owner's.
        assert!(path.join(format!("tmp/reserve-{OWNER}-0")).exists());
        assert!(store.release_reserve());
    }
}

/// The owner of a store may move what the superuser has just made in it.
#[test]
fn only_new_directories_are_given_away() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only_new_directories_are_given_away: skipped, not root");
        return;
    }
    let directory = tempfile::tempdir().expect("temporary directory");
    let [store, used, theirs] = ["store", "used", "theirs"].map(|name| directory.path().join(name));
    for path in [&store, &used, &theirs] {
        std::fs::create_dir(path).expect("mkdir");
    }
    std::fs::write(used.join("file"), b"x").expect("write");
    for path in [&store, &theirs] {
        std::os::unix::fs::chown(path, Some(OWNER), Some(OWNER)).expect("chown");
    }
    let open = |path| std::fs::File::open(path).expect("open");
    let owner = super::owner::StoreOwner::of_store(std::os::fd::AsFd::as_fd(&open(&store)));
    let owner = owner.expect("stat").expect("another user's");
    for path in [&used, &theirs] {
        assert_eq!(owner.give_directory(open(path)), Err(Errno::PERM), "{}", path.display());
    }
    assert_eq!(std::fs::metadata(&used).expect("stat").uid(), 0);
}

/// Two writers that make the same directories concurrently both find them whole.
#[test]
fn directories_of_a_shared_store_are_made_once_by_many() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let url = directory.path().join("store").to_str().expect("UTF-8").to_owned();
    url::init_shared(&url, StoreSharing::Group).expect("init");
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let url = &url;
            scope.spawn(move || {
                // A store instance of its own does not know what the others made.
                let store = PosixStore::new(url).expect("open");
                for round in 0..20 {
                    let name = format!("round/{round}/deep/{writer}");
                    store.put_if_absent(&name, b"x").expect("put");
                }
            });
        }
    });
    let store = PosixStore::new(&url).expect("open");
    assert_eq!(store.list_names("round/").expect("list").len(), 20);
    assert_eq!(store.list("round/").expect("list").len(), 160);
}

/// Symptom: only their user could read the files of a reserve, so that others could not copy a
/// shared store; and the files were identical, so that a deduplicating file system kept only one.
/// Cause: the files had a mode of their own, and one seed for all.
/// Fix: they have the modes of objects, and bytes derived from user and number.
#[test]
fn files_of_a_reserve_differ_and_can_be_copied() {
    for (sharing, mode) in [(None, 0o666), (Some(StoreSharing::Group), 0o660)] {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("store");
        std::fs::create_dir(&path).expect("mkdir");
        if let Some(sharing) = sharing {
            sharing.give_to(&path).expect("share");
        }
        let store = PosixStore::new(&path).expect("open");
        store.keep_reserve();
        let mut contents = std::collections::HashSet::new();
        let entries = std::fs::read_dir(path.join("tmp")).expect("a reserve");
        for entry in entries.map(|entry| entry.expect("an entry").path()) {
            let found = std::fs::metadata(&entry).expect("stat").permissions().mode() & 0o777;
            // If the store is not shared, the umask of the test suite clears some bits.
            assert_eq!((found | mode, found & 0o400), (mode, 0o400), "{}", entry.display());
            assert!(sharing.is_none() || found == mode);
            let is_new = contents.insert(std::fs::read(&entry).expect("readable"));
            assert!(is_new, "{} has the bytes of another", entry.display());
        }
        assert!(contents.len() > 1);
        // One file at a time.
        let released = std::iter::from_fn(|| store.release_reserve().then_some(())).count();
        assert_eq!(released, contents.len());
        assert_eq!(std::fs::read_dir(path.join("tmp")).expect("tmp").count(), 0);
    }
}
