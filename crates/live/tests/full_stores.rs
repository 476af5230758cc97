// SPDX-License-Identifier: Apache-2.0
//! Stores without room: changes fail, and work once there is room again.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use esker_base::store::{FaultEffect, FaultStore, SharedStore};
use esker_base::wire::{WireInput, put_bytes, put_varint};
use esker_base::{Kind, Result};
use esker_fs::inode::DirId;
use esker_fs::repository::Repository;
use esker_live::client::{LiveDir, Request};
use esker_live::wire::{FrameHeader, Verb, take_status};
use esker_live::{LiveServer, LiveTree};

use crate::file_moves::{create, kind_of, one_at_each_seat};
use crate::gated_store::{GatedCalls, GatedStore};
use crate::raw_client::{frame, greeted, receive};
use crate::seated_store::SeatedStore;
use crate::served::{LiveStore, NAME, server_options};

/// Attempts, some milliseconds after each other, in which a store becomes full or gets room.
const ATTEMPTS: usize = 200;

/// Seat 0 of a namespace in a store that can become full, and a name whose renames show whether it is.
struct FullStore {
    live: SeatedStore,
    faults: Arc<FaultStore>,
    near: LiveServer,
    tree: LiveTree,
    /// A directory at each seat.
    dirs: Vec<LiveDir>,
    renames: usize,
}

impl FullStore {
    /// Begins with a server of seat 0; those of other seats run.
    fn new(live: SeatedStore) -> Result<Self> {
        let faults = Arc::new(FaultStore::new(live.store.clone(), 1));
        let store: SharedStore = faults.clone();
        let near = LiveServer::start(&Repository::new(store), (NAME, 0), server_options())?;
        let mut tree = live.connect();
        let dirs = one_at_each_seat(&mut tree, live.seats)?;
        for name in [&b"a"[..], b"turn0"] {
            create(&mut tree, &dirs[0], name, b"content")?;
        }
        tree.sync()?;
        Ok(Self { live, faults, near, tree, dirs, renames: 0 })
    }

    fn rename(&mut self) -> Result<()> {
        let name = |number: usize| format!("turn{}", number % 2);
        let (old, new) = (name(self.renames), name(self.renames + 1));
        let dir = &self.dirs[0];
        self.tree.rename((dir, old.as_bytes()), (dir, new.as_bytes()))?;
        self.renames += 1;
        Ok(())
    }

    /// Lets nothing more into the store; returns once changes fail for that.
    fn fill(&mut self) {
        self.faults.fill_at(self.faults.operations() + 1, FaultEffect::None);
        for _ in 0..ATTEMPTS {
            match self.rename() {
                Err(error) if error.kind() == Kind::NoSpace => return,
                done => done.expect("it waits in memory"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the store is never full");
    }

    /// Makes room; returns once changes work.
    fn make_room(&mut self) {
        self.faults.make_room();
        for _ in 0..ATTEMPTS {
            if self.rename().is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("there is room, and changes fail");
    }
}

/// The outcome of `call`, which must end soon.
fn soon<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || drop(sender.send(call())));
    receiver.recv_timeout(Duration::from_secs(15)).expect("the call ends")
}

/// Symptom: the first change of a client, and creates, did not return while the store was full: the client
/// connected again and repeated it, over and over. Cause: the record of its requests found no room, which
/// ended the connection. Fix: the change fails, or the record is put before the next change of anybody.
#[test]
fn changes_of_new_clients_fail_while_the_store_is_full() -> Result<()> {
    let mut full = FullStore::new(SeatedStore::new(1))?;
    let (new, mut known) = (full.live.connect(), full.live.connect());
    let dir = full.dirs[0].clone();
    known.create(&dir, b"before", 0o644)?;
    full.fill();
    let fails = |mut tree: LiveTree| {
        let dir = dir.clone();
        let (tree, failed) = soon(move || {
            let failed = tree.create(&dir, b"f", 0o644);
            (tree, failed)
        });
        assert_eq!(kind_of(failed), Kind::NoSpace);
        tree
    };
    let (mut new, mut known) = (fails(new), fails(known));
    assert_eq!(new.read(&dir, b"a")?, b"content");
    full.make_room();
    for tree in [&mut new, &mut known] {
        tree.create(&dir, b"later", 0o644)?;
        tree.sync()?;
        tree.change(Request::unlink(&dir, &[b"later"]))?;
    }
    full.near.end()?;
    full.live.assert_sound()
}

/// A connection of the client `number`, which sends and repeats requests as it likes.
struct RawClient(UnixStream);

impl RawClient {
    fn connect(live: &SeatedStore, server: &LiveServer, number: u64) -> Self {
        let live = LiveStore { store: live.store.clone(), repository: live.repository.clone() };
        Self(greeted(&live, server, number))
    }

    /// Sends a request and returns the outcome of each item.
    fn call(&mut self, header: &FrameHeader, payload: &[u8]) -> Vec<Result<(), Kind>> {
        self.0.write_all(&frame(header, payload)).expect("sent");
        let (answer, payload) = receive(&mut self.0).expect("an answer");
        let mut input = WireInput::new(&payload);
        let mut outcome = || take_status(&mut input).expect("a status").map_err(|why| why.kind());
        (0..answer.items).map(|_| outcome()).collect()
    }

    /// Creates files in the root by request `number`.
    fn create(&mut self, names: &[Vec<u8>], number: u64, window: u32) -> Vec<Result<(), Kind>> {
        let mut payload = DirId::ROOT.0.to_le_bytes().to_vec();
        for name in names {
            put_varint(&mut payload, 0o644);
            put_bytes(&mut payload, name);
        }
        let items = u16::try_from(names.len()).expect("few");
        let header = FrameHeader { window, items, ..FrameHeader::new(Verb::Create, number) };
        self.call(&header, &payload)
    }

    /// Fills the store, and creates files in the root until one request is done in part; returns that and
    /// its names.
    fn create_until_full(&mut self, faults: &FaultStore) -> (u64, Vec<Vec<u8>>) {
        let mut number = 1;
        for _ in 0..ATTEMPTS {
            faults.fill_at(faults.operations() + 1, FaultEffect::None);
            loop {
                number += 1;
                let name = |item| format!("{number}.{item}.{}", "x".repeat(150)).into_bytes();
                let names: Vec<Vec<u8>> = (0..100).map(name).collect();
                let outcomes = self.create(&names, number, 1);
                if outcomes.iter().all(Result::is_ok) {
                    continue;
                }
                if outcomes[0].is_ok() {
                    return (number, names);
                }
                break;
            }
            // A sync found no room between two requests.
            faults.make_room();
            std::thread::sleep(Duration::from_secs(1));
        }
        panic!("no request is done in part");
    }
}

/// Symptom: a change that was refused for lack of room was reported as done when it was repeated, without
/// being done. Cause: only later requests counted it among those that have to be carried out. Fix: each
/// item that is refused counts as failed.
#[test]
fn a_change_without_room_is_carried_out_when_it_is_repeated() -> Result<()> {
    let mut full = FullStore::new(SeatedStore::new(1))?;
    full.fill();
    let mut client = RawClient::connect(&full.live, &full.near, 99);
    let one = [b"one".to_vec()];
    assert_eq!(client.create(&one, 1, 1), [Err(Kind::NoSpace)]);
    full.make_room();
    assert_eq!(client.create(&[b"two".to_vec()], 2, 2), [Ok(())]);
    // The connection broke before the first answer arrived: the server still has that.
    let mut again = RawClient::connect(&full.live, &full.near, 99);
    assert_eq!(again.create(&one, 1, 1), [Err(Kind::NoSpace)]);
    full.tree.sync()?;
    drop(full.near);
    let next = full.live.serve(0);
    let mut again = RawClient::connect(&full.live, &next, 99);
    assert_eq!(again.create(&one, 1, 1), [Ok(())]);
    full.tree.lookup(&LiveDir::root(), b"one")?;
    next.end()
}

/// Symptom: a durable change that found no room had no answer until there was room. Cause: it waited for a
/// sync. Fix: a change that did nothing for lack of room does not.
#[test]
fn a_durable_change_without_room_fails_at_once() -> Result<()> {
    let mut full = FullStore::new(SeatedStore::new(1))?;
    let (mut new, mut known) = (full.live.connect(), full.live.connect());
    let dir = full.dirs[0].clone();
    known.create(&dir, b"before", 0o644)?;
    full.fill();
    let create = |dir: &LiveDir| Request::create(dir, 0o644, &[b"f"]).durable();
    let (at, failed) = (dir.clone(), soon(move || new.change(create(&dir))));
    assert_eq!(kind_of(failed), Kind::NoSpace);
    assert_eq!(kind_of(soon(move || known.change(create(&at)))), Kind::NoSpace);
    full.make_room();
    full.near.end()
}

/// Symptom: files were created twice, the second time after another client had removed them. Cause: the
/// record of their request, for which there had been no room, was forgotten when the server ended. Fix: it
/// comes before the next sync.
#[test]
fn records_that_found_no_room_are_put_before_the_next_sync() -> Result<()> {
    let full = FullStore::new(SeatedStore::new(1))?;
    let mut client = RawClient::connect(&full.live, &full.near, 99);
    assert_eq!(client.create(&[b"first".to_vec()], 1, 1), [Ok(())]);
    std::thread::sleep(Duration::from_secs(1));
    let (number, names) = client.create_until_full(&full.faults);
    full.faults.make_room();
    drop(client);
    std::thread::sleep(Duration::from_secs(1));
    full.near.end()?;
    let next = full.live.serve(0);
    let mut tree = full.live.connect();
    tree.change(Request::unlink(&LiveDir::root(), &[&names[0]]).durable())?;
    let mut client = RawClient::connect(&full.live, &next, 99);
    assert_eq!(client.create(&names, number, 1)[0], Ok(()), "it was done");
    assert_eq!(kind_of(tree.lookup(&LiveDir::root(), &names[0])), Kind::NotFound);
    next.end()
}

/// Symptom: a change that was done before a crash failed when it was repeated. Cause: there was no room for
/// the record of another client. Fix: only what is left to do needs that.
#[test]
fn a_change_that_was_done_needs_no_room_when_it_is_repeated() -> Result<()> {
    let live = SeatedStore::new(1);
    let first = live.serve(0);
    let mut client = RawClient::connect(&live, &first, 99);
    assert_eq!(client.create(&[b"f".to_vec()], 1, 1), [Ok(())]);
    let mut payload = DirId::ROOT.0.to_le_bytes().to_vec();
    put_bytes(&mut payload, b"f");
    let mut unlink = FrameHeader::new(Verb::Unlink, 2);
    unlink.flags.is_durable = true;
    assert_eq!(client.call(&unlink, &payload), [Ok(())]);
    drop(first);
    let full = FullStore::new(live)?;
    let mut other = RawClient::connect(&full.live, &full.near, 98);
    assert_eq!(other.create(&[b"first".to_vec()], 1, 1), [Ok(())]);
    std::thread::sleep(Duration::from_secs(1));
    other.create_until_full(&full.faults);
    let mut client = RawClient::connect(&full.live, &full.near, 99);
    (unlink.flags.is_durable, unlink.flags.is_repeated) = (false, true);
    assert_eq!(client.call(&unlink, &payload), [Ok(())]);
    full.faults.make_room();
    full.near.end()
}

/// Symptom: after a rename to another seat had failed in a full store, its name could neither be removed
/// nor moved, and no snapshot taken, until the server began again. Cause: the move had begun when the
/// record of its client found no room, and nothing ended it. Fix: it begins last.
#[test]
fn a_move_without_room_holds_nothing_up() -> Result<()> {
    let live = SeatedStore::new(2);
    let far = live.serve(1);
    let mut full = FullStore::new(live)?;
    let (mut new, dirs) = (full.live.connect(), full.dirs.clone());
    full.fill();
    let failed = soon(move || new.rename((&dirs[0], b"a"), (&dirs[1], b"b")));
    assert_eq!(kind_of(failed), Kind::NoSpace);
    full.make_room();
    full.tree.snapshot("later")?;
    let (mut tree, dir) = (full.live.connect(), full.dirs[0].clone());
    soon(move || tree.change(Request::unlink(&dir, &[b"a"])))?;
    full.near.end()?;
    far.end()?;
    full.live.assert_sound()
}

/// Symptom: a rename to another seat whose last step found no room left both names, also when it was
/// called again. Cause: it then looked like a rename to another name of the same file. Fix: the server
/// knows of moves that it has not finished, for whatever reason.
#[test]
fn a_move_whose_last_step_had_no_room_is_ended_by_the_next() -> Result<()> {
    let live = SeatedStore::new(2);
    let syncs = GatedCalls { append_bytes_min: usize::MAX, syncs: true };
    let (store, gate) = GatedStore::over(live.store.clone(), syncs);
    let far = LiveServer::start(&Repository::new(store), (NAME, 1), server_options())?;
    let mut full = FullStore::new(live)?;
    let (mut mover, dirs) = (full.live.connect(), full.dirs.clone());
    gate.close();
    let moving = std::thread::spawn(move || {
        let moved = mover.rename((&dirs[0], b"a"), (&dirs[1], b"b"));
        (mover, moved)
    });
    // The new name waits for a sync meanwhile.
    std::thread::sleep(Duration::from_secs(1));
    full.fill();
    gate.open();
    // The answer waits until the record of its request survives power loss, and that for room.
    std::thread::sleep(Duration::from_secs(1));
    full.make_room();
    let (mut mover, moved) = moving.join().expect("no panic");
    assert_eq!(kind_of(moved), Kind::NoSpace);
    mover.rename((&full.dirs[0], b"a"), (&full.dirs[1], b"b"))?;
    assert_eq!(kind_of(full.tree.lookup(&full.dirs[0], b"a")), Kind::NotFound);
    assert_eq!(full.tree.read(&full.dirs[1], b"b")?, b"content");
    full.near.end()?;
    far.end()?;
    full.live.assert_sound()
}
