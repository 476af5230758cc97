// SPDX-License-Identifier: Apache-2.0
//! Tests of the state of a mount of a live namespace without the mount: what syncs report after
//! servers died.

use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::store::{MemoryStore, SharedStore};
use esker_fs::inode::FileKind;
use esker_fs::ops::{NewFile, RenameFlags};
use esker_fs::repository::Repository;
use esker_fs::session::SessionOptions;
use esker_fs::stack::identity::Identity;
use esker_fuse_ring::AttrChanges;
use esker_live::client::{LiveClientOptions, Request, SharedConnection};
use esker_live::{LiveConnection, LiveServer, LiveServerOptions};
use esker_table::tree::{Durability, TreeOptions};
use fuser::Errno;

use super::live_state::{LiveSetup, LiveState};
use super::seat_clients::SeatClients;
use crate::node_table::ROOT;

const NAME: &str = "run";

/// A served live namespace, and the state of a mount of it.
struct TestMount {
    repository: Repository,
    server: Option<LiveServer>,
    state: LiveState,
}

fn session_options() -> SessionOptions {
    let tree = TreeOptions { durability: Durability::Async, ..TreeOptions::default() };
    SessionOptions { identity: Identity::of_process(), tree, heartbeat: None, ..Default::default() }
}

fn serve(repository: &Repository, session: SessionOptions) -> LiveServer {
    let options = LiveServerOptions::local(session, Arc::new(SystemClock));
    LiveServer::start(repository, (NAME, 0), options).expect("a server")
}

fn client_options() -> LiveClientOptions {
    LiveClientOptions {
        identity: Identity::of_process(),
        secret: None,
        patience: Duration::from_secs(20),
        notice: None,
    }
}

fn connect(store: &SharedStore) -> SharedConnection {
    let connection = LiveConnection::connect(store, (NAME, 0), client_options());
    SharedConnection::new(connection.expect("served"))
}

fn new_file(kind: FileKind) -> NewFile<'static> {
    let own = Identity::of_process();
    NewFile { kind, mode: 0o755, uid: own.uid, gid: own.gid, rdev: 0, target: b"" }
}

impl TestMount {
    fn new(is_durable: bool) -> Self {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let repository = Repository::new(store.clone());
        drop(repository.create_live(NAME, &[], 1, session_options()).expect("a namespace"));
        let server = Some(serve(&repository, session_options()));
        let seats = SeatClients::connect(&store, NAME, &client_options()).expect("served");
        let state = LiveState::new(LiveSetup {
            seats,
            status: Vec::new(),
            ttl: Duration::ZERO,
            is_durable,
            counts_requests: false,
            store: None,
            clock: Arc::new(SystemClock),
            report: Box::new(|error| println!("reported: {error}")),
        });
        Self { repository, server, state }
    }

    /// A client beside the mount.
    fn connect(&self) -> SharedConnection {
        connect(self.repository.store())
    }

    /// The server dies with what it has in memory alone, and another one continues.
    fn replace_server(&mut self) {
        drop(self.server.take());
        self.server = Some(serve(&self.repository, session_options()));
    }

    /// Makes `name` in the root, durably; the kernel does not know it afterwards.
    fn make(&self, kind: FileKind, name: &[u8]) {
        let made = self.state.make(ROOT, name, &new_file(kind)).expect("make");
        self.state.sync_file(made.ino.0).expect("sync");
        self.state.forget(made.ino.0, 1);
    }

    /// Runs `act` on the file `name` while the kernel knows it.
    fn with<T>(&self, name: &[u8], act: impl FnOnce(&LiveState, u64) -> T) -> T {
        let number = self.state.lookup(ROOT, name).expect("it is there").0.ino.0;
        let done = act(&self.state, number);
        self.state.forget(number, 1);
        done
    }

    /// The outcome of a sync of `name`, which the kernel looks up for that.
    fn sync(&self, name: &[u8]) -> Result<(), i32> {
        self.with(name, |state, number| state.sync_file(number).map_err(i32::from))
    }
}

fn eio() -> Result<(), i32> {
    Err(i32::from(Errno::EIO))
}

/// A change of the file or directory with a number.
type Change = fn(&LiveState, u64) -> Result<(), Errno>;

/// Every change of a file, and of a directory.
fn changes() -> Vec<(&'static str, FileKind, Change)> {
    vec![
        ("write", FileKind::File, |state, file| state.write(file, 0, (b"text", false))),
        ("append", FileKind::File, |state, file| state.append(file, (b"text", false))),
        ("allocate", FileKind::File, |state, file| state.allocate(file, (0, 10), (0, false))),
        ("chmod", FileKind::File, |state, file| {
            let mode = AttrChanges { mode: Some(0o700), ..AttrChanges::default() };
            state.set_attributes(file, &mode, false).map(drop)
        }),
        ("set xattr", FileKind::File, |state, file| state.set_xattr(file, (b"user.a", b"1"), 0)),
        ("link", FileKind::File, |state, file| {
            let linked = state.link(file, ROOT, b"linked").map(drop);
            state.forget(file, 1);
            linked
        }),
        ("rename", FileKind::File, |state, _| {
            state.rename((ROOT, b"it"), (ROOT, b"moved"), RenameFlags::Replace)?;
            state.rename((ROOT, b"moved"), (ROOT, b"it"), RenameFlags::Replace)
        }),
        ("make", FileKind::Directory, |state, dir| {
            let made = state.make(dir, b"new", &new_file(FileKind::Fifo))?;
            state.forget(made.ino.0, 1);
            Ok(())
        }),
        ("create", FileKind::Directory, |state, dir| {
            let made = state.create(dir, b"new", (&new_file(FileKind::File), true))?;
            state.release(made.ino.0)?;
            state.forget(made.ino.0, 1);
            Ok(())
        }),
        ("unlink", FileKind::Directory, |state, dir| state.unlink(dir, b"old")),
        ("rmdir", FileKind::Directory, |state, dir| state.rmdir(dir, b"old-dir")),
        ("rename away", FileKind::Directory, |state, dir| {
            state.rename((dir, b"old"), (ROOT, b"away"), RenameFlags::Replace)
        }),
    ]
}

/// The names that changes of a directory remove.
fn fill(mount: &TestMount, kind: FileKind) {
    if kind == FileKind::Directory {
        mount.with(b"it", |state, dir| {
            for (kind, name) in [(FileKind::Fifo, &b"old"[..]), (FileKind::Directory, b"old-dir")] {
                let made = state.make(dir, name, &new_file(kind)).expect("make");
                state.forget(made.ino.0, 1);
            }
            state.sync_file(dir).expect("sync");
        });
    }
}

/// Symptom: a program that closed a file, opened it again after its server had died, and synced it,
/// was not told that its changes were perhaps lost. Cause: the losses up to which syncs had failed
/// were known of the nodes that the kernel remembered, and a node that it learned anew began with all
/// of them. Fix: the mount remembers the files that it has changed since its last sync.
#[test]
fn a_forgotten_file_reports_once_that_its_changes_may_be_lost() {
    for (what, kind, change) in changes() {
        let mut mount = TestMount::new(false);
        mount.make(kind, b"it");
        mount.make(FileKind::File, b"untouched");
        fill(&mount, kind);
        mount.with(b"it", |state, number| change(state, number).expect(what));
        mount.replace_server();
        assert_eq!(mount.sync(b"it"), eio(), "{what}");
        for _ in 0..3 {
            assert_eq!(mount.sync(b"it"), Ok(()), "{what}");
            assert_eq!(mount.sync(b"untouched"), Ok(()), "{what}");
        }
    }
}

/// A file that the kernel forgets after the server died, before a program syncs it.
#[test]
fn a_loss_is_reported_although_the_kernel_forgets_the_file_after_it() {
    let mut mount = TestMount::new(false);
    mount.make(FileKind::File, b"it");
    mount.make(FileKind::File, b"other");
    mount.with(b"it", |state, file| state.write(file, 0, (b"text", false)).expect("write"));
    mount.replace_server();
    // Another file's sync finds the loss, and does not hide it.
    assert_eq!(mount.sync(b"other"), Ok(()));
    mount.with(b"it", |state, file| state.write(file, 0, (b"more", false)).expect("write"));
    assert_eq!(mount.sync(b"other"), Ok(()));
    assert_eq!(mount.sync(b"it"), eio());
    assert_eq!(mount.sync(b"it"), Ok(()));
}

#[test]
fn changes_that_survive_are_not_reported() {
    let mut mount = TestMount::new(false);
    mount.make(FileKind::File, b"it");
    mount.with(b"it", |state, file| state.write(file, 0, (b"text", false)).expect("write"));
    assert_eq!(mount.sync(b"it"), Ok(()));
    mount.replace_server();
    assert_eq!(mount.sync(b"it"), Ok(()));
    mount.with(b"it", |state, file| state.write(file, 0, (b"text", false)).expect("write"));
    // A server that ends in order loses nothing; its writer is on record.
    let on_record = || {
        let heartbeat = SessionOptions::default().heartbeat;
        serve(&mount.repository, SessionOptions { heartbeat, ..session_options() })
    };
    drop(mount.server.take());
    let server = on_record();
    assert_eq!(mount.sync(b"it"), eio(), "the server before died");
    mount.with(b"it", |state, file| state.write(file, 0, (b"text", false)).expect("write"));
    server.end().expect("in order");
    let server = on_record();
    assert_eq!(mount.sync(b"it"), Ok(()));
    server.end().expect("in order");
    let mut durable = TestMount::new(true);
    durable.make(FileKind::File, b"it");
    durable.with(b"it", |state, file| state.write(file, 0, (b"text", false)).expect("write"));
    durable.replace_server();
    assert_eq!(durable.sync(b"it"), Ok(()));
}

/// Files that the kernel knows when the server dies report it, whoever changed what.
#[test]
fn a_known_file_reports_a_loss_of_any_change() {
    let mut mount = TestMount::new(false);
    mount.make(FileKind::File, b"it");
    mount.make(FileKind::File, b"known");
    let known = mount.state.lookup(ROOT, b"known").expect("it is there").0.ino.0;
    mount.with(b"it", |state, file| state.write(file, 0, (b"text", false)).expect("write"));
    mount.replace_server();
    assert_eq!(mount.state.sync_file(known).map_err(i32::from), eio());
    mount.state.sync_file(known).expect("it was reported");
    assert_eq!(mount.sync(b"it"), eio());
}

/// Symptom: the sync of a file failed although an earlier one had covered all its changes, if the
/// server died just after it had answered that.
/// Cause: the losses that the sync recorded were those at its end.
/// Fix: they are those at its begin, and the sync counts if the same server answered it.
#[test]
fn a_loss_after_a_sync_is_none_of_what_it_covers() {
    let mut mount = TestMount::new(false);
    mount.make(FileKind::File, b"it");
    mount.make(FileKind::File, b"later");
    mount.with(b"it", |state, file| state.write(file, 0, (b"text", false)).expect("write"));
    let (number, points) = mount.state.begin_sync();
    mount.connect().call(Request::sync()).and_then(|answer| answer.outcome()).expect("a sync");
    mount.with(b"later", |state, file| state.write(file, 0, (b"text", false)).expect("write"));
    mount.replace_server();
    mount.state.attributes(ROOT).expect("the other server is found");
    assert_eq!(mount.state.end_sync(number, &points), 0);
    assert_eq!(mount.sync(b"it"), Ok(()));
    assert_eq!(mount.sync(b"later"), eio());
    assert_eq!(mount.sync(b"it"), Ok(()));
}
