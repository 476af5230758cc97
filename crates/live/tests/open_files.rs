// SPDX-License-Identifier: Apache-2.0
//! Open files, and files named by their identity: what other clients do to their names, and servers
//! that take over.

use std::sync::atomic::{AtomicBool, Ordering};

use esker_base::{Kind, Result};
use esker_fs::inode::{DirId, FileKind};
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::ops::{NewFile, XattrSet};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_live::LiveTree;
use esker_live::client::{LiveDir, LiveFile, Request, SharedConnection};
use esker_live::wire::{
    AttributeRequest, LiveAttributes, SeatPath, TRANSFER_BYTES_MAX, WriteMode, take_attributes,
};

use crate::served::{LiveStore, NAME, client_options};

fn create(tree: &mut LiveTree, name: &[u8], content: &[u8]) -> Result<u128> {
    let root = LiveDir::root();
    tree.create(&root, name, 0o644)?;
    tree.write(&root, name, 0, content)?;
    Ok(tree.lookup(&root, name)?.id)
}

fn attributes(tree: &mut LiveTree, file: &LiveFile) -> Result<LiveAttributes> {
    tree.connection().call(Request::attributes(file))?.only(take_attributes)
}

fn read(tree: &mut LiveTree, file: &LiveFile) -> Result<Vec<u8>> {
    let answer = tree.connection().call(Request::read(file, 0, 100))?;
    answer.only(|input| Ok(input.bytes(TRANSFER_BYTES_MAX, "bytes")?.to_vec()))
}

/// The kind of error of a change that must fail.
fn failure(tree: &mut LiveTree, request: Request) -> Kind {
    tree.change(request).expect_err("it must fail").kind()
}

#[test]
fn an_open_file_stays_usable_while_others_move_and_remove_its_names() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let (mut tree, mut other) = (live.connect(), live.connect());
    let root = LiveDir::root();
    let id = create(&mut tree, b"f", b"first")?;
    let file = LiveFile { dir: &root, name: b"f", id };
    tree.change(Request::open(&file))?;
    other.rename((&root, b"f"), (&root, b"g"))?;
    tree.change(Request::write(&file, 5, b" second"))?;
    assert_eq!(other.read(&root, b"g")?, b"first second");
    other.change(Request::unlink(&root, &[b"g"]))?;
    create(&mut other, b"f", b"another")?;
    tree.change(Request::write(&file, 0, b"FIRST"))?;
    let size = AttributeRequest { size: Some(9), ..Default::default() };
    tree.change(Request::set_attributes(&file, &size))?;
    assert_eq!(read(&mut tree, &file)?, b"FIRST sec");
    let shown = attributes(&mut tree, &file)?;
    assert_eq!((shown.id, shown.nlink, shown.size), (id, 0, 9));
    assert_eq!(other.read(&root, b"f")?, b"another");
    // Closed, it is gone, and nothing reaches the file that has its name.
    tree.change(Request::close(&file))?;
    assert_eq!(attributes(&mut tree, &file).unwrap_err().kind(), Kind::Conflict);
    assert_eq!(failure(&mut tree, Request::write(&file, 0, b"lost")), Kind::Conflict);
    assert_eq!(other.read(&root, b"f")?, b"another");
    tree.close()?;
    other.close()?;
    server.end()?;
    let report = live.repository.verify(&VerifyOptions::default())?;
    assert!(report.is_sound());
    Ok(())
}

/// The names of extended attributes, each followed by a zero byte.
fn names_of(tree: &mut LiveTree, file: &LiveFile) -> Result<Vec<u8>> {
    let names = tree.connection().call(Request::xattr_names(file))?;
    names.only(|input| Ok(input.bytes(100, "names")?.to_vec()))
}

#[test]
fn a_request_never_reaches_another_file_that_has_the_name() -> Result<()> {
    let live = LiveStore::new();
    let _server = live.serve();
    let (mut tree, mut other) = (live.connect(), live.connect());
    let root = LiveDir::root();
    let id = create(&mut tree, b"f", b"first")?;
    let file = LiveFile { dir: &root, name: b"f", id };
    assert_eq!(attributes(&mut tree, &file)?.size, 5);
    other.change(Request::unlink(&root, &[b"f"]))?;
    create(&mut other, b"f", b"another")?;
    let mode = AttributeRequest { mode: Some(0), ..Default::default() };
    let requests = [
        Request::open(&file),
        Request::write(&file, 0, b"x"),
        Request::set_attributes(&file, &mode),
        Request::set_xattr(&file, (b"user.a", b"1"), XattrSet::Any),
        Request::remove_xattr(&file, b"user.a"),
        Request::link(&file, &root, b"linked"),
    ];
    for request in requests {
        assert_eq!(failure(&mut tree, request), Kind::Conflict);
    }
    let answer = tree.connection().call(Request::xattr(&file, b"user.a"))?;
    assert_eq!(answer.only(|_| Ok(())).unwrap_err().kind(), Kind::Conflict);
    assert_eq!(read(&mut tree, &file).unwrap_err().kind(), Kind::Conflict);
    assert_eq!(other.read(&root, b"f")?, b"another");
    assert_eq!(other.lookup(&root, b"f")?.mode, 0o644);
    Ok(())
}

/// Symptom: `setxattr` of a file that a program had open failed with `ENOENT` once another client had
/// removed its name.
/// Cause: the attribute was changed under a name of the file.
/// Fix: it is changed in the open file, like its other attributes.
#[test]
fn extended_attributes_of_an_open_file_outlast_its_name() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let (mut tree, mut other) = (live.connect(), live.connect());
    let root = LiveDir::root();
    let id = create(&mut tree, b"f", b"text")?;
    let file = LiveFile { dir: &root, name: b"f", id };
    let set = |name: &'static [u8]| Request::set_xattr(&file, (name, b"1"), XattrSet::Create);
    tree.change(Request::open(&file))?;
    tree.change(Request::write(&file, 4, b" more"))?;
    tree.change(set(b"user.named"))?;
    assert_eq!(names_of(&mut other, &LiveFile::at(&root, b"f"))?, b"user.named\0");
    other.change(Request::unlink(&root, &[b"f"]))?;
    create(&mut other, b"f", b"another")?;
    tree.change(set(b"user.a"))?;
    assert_eq!(failure(&mut tree, set(b"user.a")), Kind::Exists);
    tree.change(Request::remove_xattr(&file, b"user.named"))?;
    assert_eq!(names_of(&mut tree, &file)?, b"user.a\0");
    assert_eq!(read(&mut tree, &file)?, b"text more");
    assert_eq!(names_of(&mut other, &LiveFile::at(&root, b"f"))?, b"");
    tree.change(Request::close(&file))?;
    assert_eq!(failure(&mut tree, set(b"user.b")), Kind::Conflict);
    server.end()
}

/// Symptom: changes of attributes of a directory that a client had open reached the file which
/// another client had put in its place.
/// Cause: the server changed the directory by the last name that it had.
/// Fix: a directory that was removed is not changed any more.
#[test]
fn a_request_never_reaches_what_has_the_name_of_a_removed_directory() -> Result<()> {
    let live = LiveStore::new();
    let _server = live.serve();
    let (mut tree, mut other) = (live.connect(), live.connect());
    let root = LiveDir::root();
    let dir = tree.make_directory(&root, b"d", 0o755)?;
    let itself = LiveFile { dir: &dir, name: b"", id: dir.id.0 };
    assert_eq!(attributes(&mut tree, &itself)?.mode, 0o755);
    other.change(Request::remove_directory(&root, &[b"d"]))?;
    create(&mut other, b"d", b"another")?;
    let mode = AttributeRequest { mode: Some(0), ..Default::default() };
    for request in [
        Request::set_attributes(&itself, &mode),
        Request::set_xattr(&itself, (b"user.a", b"1"), XattrSet::Any),
        Request::remove_xattr(&itself, b"user.a"),
    ] {
        let kind = failure(&mut tree, request);
        assert!(matches!(kind, Kind::Conflict | Kind::Fenced), "{kind:?}");
    }
    assert_eq!(other.lookup(&root, b"d")?.mode, 0o644);
    Ok(())
}

/// Symptom: opening a file that another client had replaced failed with `Invalid`. Cause: the
/// file was looked up among those with several names by its identity, which may have a zero byte or
/// a slash, as no other name has.
#[test]
fn an_identity_of_any_bytes_is_looked_up() -> Result<()> {
    let live = LiveStore::new();
    let _server = live.serve();
    let mut tree = live.connect();
    let root = LiveDir::root();
    create(&mut tree, b"f", b"text")?;
    for id in [u128::from(b'/'), u128::MAX, 1, u128::from_be_bytes(*b"0123456789abcde/")] {
        let file = LiveFile { dir: &root, name: b"f", id };
        assert_eq!(attributes(&mut tree, &file).unwrap_err().kind(), Kind::Conflict);
    }
    Ok(())
}

#[test]
fn a_file_with_several_names_is_reached_after_the_known_one_is_gone() -> Result<()> {
    let live = LiveStore::new();
    let _server = live.serve();
    let (mut tree, mut other) = (live.connect(), live.connect());
    let root = LiveDir::root();
    let id = create(&mut tree, b"f", b"text")?;
    let file = LiveFile { dir: &root, name: b"f", id };
    tree.change(Request::link(&file, &root, b"g"))?;
    other.change(Request::unlink(&root, &[b"f"]))?;
    tree.change(Request::write(&file, 4, b" more"))?;
    tree.change(Request::set_xattr(&file, (b"user.a", b"1"), XattrSet::Create))?;
    let again = Request::set_xattr(&file, (b"user.a", b"1"), XattrSet::Create);
    assert_eq!(failure(&mut tree, again), Kind::Exists);
    tree.change(Request::link(&file, &root, b"h"))?;
    let changes = AttributeRequest { mode: Some(0o600), ..Default::default() };
    tree.change(Request::set_attributes(&file, &changes))?;
    assert_eq!(other.read(&root, b"g")?, b"text more");
    let shown = other.lookup(&root, b"h")?;
    assert_eq!((shown.id, shown.nlink, shown.mode), (id, 2, 0o600));
    assert_eq!(names_of(&mut tree, &file)?, b"user.a\0");
    Ok(())
}

/// Symptom: a user reached files with several names in directories of others by trying identities.
/// Fix: such a file is reached by its identity only by a client that has seen one of its names.
#[test]
fn an_identity_that_was_never_seen_at_a_name_reaches_nothing() -> Result<()> {
    let live = LiveStore::new();
    let _server = live.serve();
    let (mut tree, mut other) = (live.connect(), live.connect());
    let root = LiveDir::root();
    let id = create(&mut tree, b"f", b"text")?;
    tree.change(Request::link(&LiveFile::at(&root, b"f"), &root, b"g"))?;
    let guessed = LiveFile { dir: &root, name: b"absent", id };
    assert_eq!(attributes(&mut other, &guessed).unwrap_err().kind(), Kind::Conflict);
    for request in [Request::open(&guessed), Request::link(&guessed, &root, b"h")] {
        assert_eq!(failure(&mut other, request), Kind::Conflict);
    }
    // A look-up shows the name, and with it the file.
    other.lookup(&root, b"g")?;
    assert_eq!(attributes(&mut other, &guessed)?.nlink, 2);
    Ok(())
}

#[test]
fn a_directory_is_named_by_its_identity_alone() -> Result<()> {
    let live = LiveStore::new();
    let _server = live.serve();
    let (mut tree, mut other) = (live.connect(), live.connect());
    let root = LiveDir::root();
    let dir = tree.make_directory(&root, b"d", 0o755)?;
    other.rename((&root, b"d"), (&root, b"e"))?;
    let itself = LiveFile { dir: &dir, name: b"", id: dir.id.0 };
    let changes = AttributeRequest { mode: Some(0o700), ..Default::default() };
    tree.change(Request::set_attributes(&itself, &changes))?;
    tree.change(Request::set_xattr(&itself, (b"user.a", b"1"), XattrSet::Any))?;
    assert_eq!(attributes(&mut tree, &itself)?.mode, 0o700);
    assert_eq!(other.lookup(&root, b"e")?.mode, 0o700);
    let top = LiveFile::at(&root, b"");
    assert_eq!(attributes(&mut tree, &top)?.kind, FileKind::Directory);
    tree.change(Request::set_xattr(&top, (b"user.a", b"1"), XattrSet::Any))?;
    tree.change(Request::remove_xattr(&top, b"user.a"))?;
    assert_eq!(failure(&mut tree, Request::open(&itself)), Kind::IsADirectory);
    Ok(())
}

#[test]
fn files_of_every_kind_are_made() -> Result<()> {
    let live = LiveStore::new();
    let _server = live.serve();
    let mut tree = live.connect();
    let root = LiveDir::root();
    let own = Identity::of_process();
    let mut new = NewFile {
        kind: FileKind::File,
        mode: 0o640,
        uid: own.uid,
        gid: own.gid,
        rdev: 0,
        target: &[],
    };
    for (kind, name) in [
        (FileKind::File, b"file"),
        (FileKind::Directory, b"dirs"),
        (FileKind::Fifo, b"fifo"),
        (FileKind::Socket, b"sock"),
    ] {
        new.kind = kind;
        tree.change(Request::make_node(&root, name, (&new, false)))?;
        let shown = tree.lookup(&root, name)?;
        assert_eq!((shown.kind, shown.mode, shown.uid), (kind, 0o640, own.uid));
    }
    new = NewFile { kind: FileKind::Symlink, target: b"file", ..new };
    tree.change(Request::make_node(&root, b"link", (&new, false)))?;
    assert_eq!(tree.read_symlink(&root, b"link")?, b"file");
    assert_eq!(failure(&mut tree, Request::make_node(&root, b"link", (&new, false))), Kind::Exists);
    Ok(())
}

/// Eight threads share a client while servers come and go; each keeps a file open, writes records
/// into it, and finds all of them.
#[test]
fn threads_share_a_client_while_servers_come_and_go() {
    const THREADS: usize = 8;
    const RECORDS: u64 = 4000;
    let live = LiveStore::new();
    let mut server = live.serve();
    let connection = esker_live::LiveConnection::connect(&live.store, (NAME, 0), client_options());
    let shared = SharedConnection::new(connection.expect("a connection"));
    let root = LiveDir::root();
    let is_done = AtomicBool::new(false);
    let mut servers = 0;
    std::thread::scope(|scope| {
        let (shared, root) = (&shared, &root);
        let work = move |thread: usize| -> Result<()> {
            let name = format!("f{thread}").into_bytes();
            let change = |request| shared.call(request)?.only(|_| Ok(()));
            change(Request::create(root, 0o600, &[&name]).durable())?;
            let found = shared.call(Request::lookup(root, &[&name]))?.only(take_attributes)?;
            let file = LiveFile { dir: root, name: &name, id: found.id };
            for record in 0..RECORDS {
                let write = Request::write(&file, record * 8, &record.to_le_bytes()).durable();
                let [opened, written] = shared.call_all([Request::open(&file), write])?;
                opened?.only(|_| Ok(()))?;
                written?.only(|_| Ok(()))?;
            }
            shared.submit_unanswered(Request::close(&file))?;
            shared.finish_unanswered()
        };
        let workers: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        let watcher = scope.spawn(|| {
            let outcomes: Vec<_> =
                workers.into_iter().map(|worker| worker.join().expect("a worker")).collect();
            is_done.store(true, Ordering::Relaxed);
            outcomes.into_iter().collect::<Result<Vec<()>>>().expect("all requests succeed");
        });
        while !is_done.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(10));
            // The old one is dropped as by a crash: what it had in memory alone is lost.
            server = live.serve();
            servers += 1;
        }
        watcher.join().expect("a watcher");
    });
    drop(server);
    let _server = live.serve();
    assert!(servers > 1, "{servers} servers");
    let mut tree = live.connect();
    let expected: Vec<u8> = (0..RECORDS).flat_map(u64::to_le_bytes).collect();
    for thread in 0..THREADS {
        let name = format!("f{thread}").into_bytes();
        assert!(tree.read(&root, &name).expect("it is there") == expected, "file {thread}");
    }
}

/// Symptom: `fsync` in a mount returned 0 for changes that were lost with the server before. Cause:
/// a sync asked whichever server there was, and nobody remembered that another had answered them.
#[test]
fn a_sync_fails_once_after_changes_were_lost() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let root = LiveDir::root();
    tree.create(&root, b"kept", 0o600)?;
    tree.sync()?;
    // Nothing is lost if nothing was left to sync.
    drop(server);
    let server = live.serve();
    tree.sync()?;
    tree.create(&root, b"lost", 0o600)?;
    drop(server);
    let server = live.serve();
    assert_eq!(tree.lookup(&root, b"kept")?.size, 0);
    assert_eq!(tree.sync().expect_err("changes were lost").kind(), Kind::DeviceFailed);
    tree.sync()?;
    // Durable changes are not lost.
    tree.change(Request::create(&root, 0o600, &[b"durable"]).durable())?;
    drop(server);
    let _server = live.serve();
    tree.sync()?;
    tree.lookup(&root, b"durable").map(drop)
}

/// Symptom: a name that a client made failed with `Exists`, or was looked up as absent. Cause: a
/// change whose directory the server did not have open was carried out after the requests behind it
/// that change nothing.
#[test]
fn reads_stay_behind_changes_that_wait_for_their_directory() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let dir = tree.make_directory(&LiveDir::root(), b"d", 0o755)?;
    tree.sync()?;
    server.end()?;
    let _server = live.serve();
    let connection = tree.connection();
    let made = connection.submit(Request::create(&dir, 0o600, &[b"f"]))?;
    // The root is open, the directory is not.
    let found = connection.submit(Request::resolve(
        &LiveDir::below_root(DirId::ROOT, b"/d/f").place,
        FollowLinks::No,
    ))?;
    let listed = connection.submit(Request::lookup(&dir, &[b"f"]))?;
    connection.wait(made)?.outcome()?;
    let found = connection.wait(found)?.only(SeatPath::take)?;
    assert!(matches!(found, SeatPath::Found { name, .. } if name == b"f"));
    connection.wait(listed)?.only(take_attributes).map(drop)
}

/// Symptom: of two clients that appended the same bytes, one overwrote those of the other. Cause: an
/// append that found its bytes at the offset counted as one that was done before. Fix: only requests
/// that are sent again do.
#[test]
fn appends_of_clients_do_not_overwrite_each_other() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let (mut tree, mut other) = (live.connect(), live.connect());
    let root = LiveDir::root();
    let id = create(&mut tree, b"f", b"one\n")?;
    let file = LiveFile { dir: &root, name: b"f", id };
    let how = WriteMode { appends: true, ..WriteMode::default() };
    let append = |end: u64, line: &[u8]| Request::write_as(&file, (end, line), how).durable();
    tree.change(append(4, b"two\n"))?;
    for line in [b"2nd\n", b"two\n"] {
        assert_eq!(failure(&mut other, append(4, line)), Kind::Conflict);
    }
    // Answered by nobody, and sent again to the next server.
    let number = other.connection().submit(append(8, b"three\n"))?;
    tree.change(append(8, b"three\n"))?;
    drop(server);
    let _server = live.serve();
    other.connection().wait(number)?.outcome()?;
    assert_eq!(tree.read(&root, b"f")?, b"one\ntwo\nthree\n");
    Ok(())
}
