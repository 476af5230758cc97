// SPDX-License-Identifier: Apache-2.0
//! Stores without room: changes fail, and work once there is room again.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use esker_base::store::{FaultEffect, FaultStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::repository::Repository;
use esker_live::client::{LiveDir, Request};
use esker_live::{LiveServer, LiveTree};

use crate::file_moves::{create, kind_of, one_at_each_seat};
use crate::gated_store::{GatedCalls, GatedStore};
use crate::seated_store::SeatedStore;
use crate::served::{NAME, server_options};

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
    /// Begins with the server `far` of the other seat.
    fn new(live: SeatedStore, seats: u16) -> Result<Self> {
        let faults = Arc::new(FaultStore::new(live.store.clone(), 1));
        let store: SharedStore = faults.clone();
        let near = LiveServer::start(&Repository::new(store), (NAME, 0), server_options())?;
        let mut tree = live.connect();
        let dirs = one_at_each_seat(&mut tree, seats)?;
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
    let mut full = FullStore::new(SeatedStore::new(1), 1)?;
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

/// Symptom: after a rename to another seat had failed in a full store, its name could neither be removed
/// nor moved, and no snapshot taken, until the server began again. Cause: the move had begun when the
/// record of its client found no room, and nothing ended it. Fix: it begins last.
#[test]
fn a_move_without_room_holds_nothing_up() -> Result<()> {
    let live = SeatedStore::new(2);
    let far = live.serve(1);
    let mut full = FullStore::new(live, 2)?;
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
    let mut full = FullStore::new(live, 2)?;
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
