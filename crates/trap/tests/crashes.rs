// SPDX-License-Identifier: Apache-2.0
//! Content that a program has synced survives, and content that could not be written to the store
//! is not lost silently.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use esker_base::store::{FaultStore, MemoryStore};
use esker_base::{Kind, Result};
use esker_fs::session::Session;
use esker_trap::TrapOptions;
use tempfile::TempDir;

use crate::shown::{can_show, content, of, options, repository};

/// Shows `session` to `work`, with the spool in `spool`.
fn show_with_spool(
    session: &Arc<Session>,
    spool: &TempDir,
    work: impl FnOnce(&Path) + Send,
) -> Result<()> {
    let place = spool.path().join("place");
    let options = TrapOptions {
        view: of(session),
        place: place.clone(),
        spool: spool.path().to_owned(),
        threads: 3,
        preload: false,
        report: Box::new(|_| {}),
    };
    esker_trap::run(options, |_| work(&place))
}

/// The files that were left in a spool below `spool`.
fn left(spool: &TempDir) -> Vec<Vec<u8>> {
    let entries = |path: &Path| {
        fs::read_dir(path).expect("list").map(|entry| entry.expect("an entry").path())
    };
    let spools = entries(spool.path()).filter(|path| !path.ends_with("place"));
    let mut left: Vec<Vec<u8>> = spools
        .flat_map(|spool| entries(&spool).collect::<Vec<_>>())
        .filter(|path| !path.ends_with("end") && path.is_file())
        .map(|path| fs::read(path).expect("read"))
        .collect();
    left.sort();
    left
}

#[test]
fn what_was_synced_is_there_after_a_takeover() {
    if !can_show() {
        return;
    }
    let store = Arc::new(MemoryStore::new());
    let session = Arc::new(repository(store.clone()).begin(&[], options()).expect("begin"));
    let (set, spool) = (session.set(), tempfile::tempdir().expect("a directory"));
    let ended = show_with_spool(&session, &spool, |place| {
        let mut file = File::create(place.join("file")).expect("create");
        file.write_all(&[7; 100_000]).expect("write");
        file.sync_all().expect("fsync");
        // Another process resumes the session with everything that is durable.
        let resumed = repository(store.clone()).resume(set, options()).expect("resume");
        assert_eq!(content(&resumed, "/file"), [7; 100_000]);
        file.write_all(b"more").expect("the spool has room");
        let refused = file.sync_all().expect_err("cannot be durable");
        assert_eq!(refused.raw_os_error(), Some(libc::ESTALE));
    });
    let error = ended.expect_err("more was not written back");
    assert!(matches!(error.kind(), Kind::Fenced | Kind::Closed), "{error}");
    assert_eq!(left(&spool), [[&[7; 100_000][..], b"more"].concat()]);
}

#[test]
fn a_full_store_fails_the_sync_and_keeps_the_content() {
    if !can_show() {
        return;
    }
    let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let session = Arc::new(repository(store.clone()).begin(&[], options()).expect("begin"));
    let spool = tempfile::tempdir().expect("a directory");
    let ended = show_with_spool(&session, &spool, |place| {
        let path = place.join("file");
        let mut file = File::create(&path).expect("create");
        file.write_all(&[7; 2_000_000]).expect("write");
        store.fail_one_in(1, Kind::NoSpace);
        let refused = file.sync_all().expect_err("there is no room");
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(fs::read(&path).expect("read"), [7; 2_000_000]);
        store.fail_one_in(0, Kind::NoSpace);
        file.sync_all().expect("there is room again");
        file.write_all(b"end").expect("write");
    });
    ended.expect("all is written back");
    assert_eq!(content(&session, "/file").len(), 2_000_003);
    assert_eq!(left(&spool), [[0; 0]; 0]);
}

/// Symptom: after a crash a name was empty that a file had got by an exchange, by `link` or with its
/// directory, although the file had been closed before.
/// Cause: only the first file of a rename was written back before the names changed.
/// Fix: whatever gets a name is written back first.
#[test]
fn what_gets_a_name_has_its_content_after_a_crash() {
    if !can_show() {
        return;
    }
    let store = Arc::new(MemoryStore::new());
    let session = Arc::new(repository(store.clone()).begin(&[], options()).expect("begin"));
    let (set, spool) = (session.set(), tempfile::tempdir().expect("a directory"));
    let write = |path: &Path, byte: u8| {
        let mut file = File::create(path).expect("create");
        file.write_all(&[byte; 100_000]).expect("write");
        file
    };
    let ended = show_with_spool(&session, &spool, |place| {
        let path = |name: &str| place.join(name);
        // Files that are still open are certainly not written back yet.
        let _open = [("a", 1), ("b", 2), ("c", 3)].map(|(name, byte)| write(&path(name), byte));
        fs::create_dir(path("dir")).expect("mkdir");
        drop(write(&path("dir/file"), 4));
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        let cwd = rustix::fs::CWD;
        rustix::fs::renameat_with(cwd, path("a"), cwd, path("b"), flags).expect("exchange");
        fs::hard_link(path("c"), path("d")).expect("link");
        fs::rename(path("dir"), path("moved")).expect("rename");
        session.sync().expect("sync");
        let resumed = repository(store.clone()).resume(set, options()).expect("resume");
        for (name, byte) in [("/a", 2), ("/b", 1), ("/d", 3), ("/moved/file", 4)] {
            assert_eq!(content(&resumed, name), [byte; 100_000], "{name}");
        }
    });
    drop(ended);
}
