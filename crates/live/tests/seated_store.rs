// SPDX-License-Identifier: Apache-2.0
//! Seated store: a live namespace of several seats for tests, its content, and servers that come and go.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Random, Result};
use esker_fs::inode::FileKind;
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::repository::Repository;
use esker_fs::stack::identity::Identity;
use esker_live::client::LiveDir;
use esker_live::{LiveServer, LiveTree};
use esker_table::manifest::SetId;

use crate::served::{NAME, client_options, server_options, session_options};

/// A store with a live namespace of several seats.
pub struct SeatedStore {
    pub store: SharedStore,
    pub repository: Repository,
    pub seats: u16,
}

impl SeatedStore {
    pub fn new(seats: u16) -> Self {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let repository = Repository::new(store.clone());
        let made = repository.create_live(NAME, &[], seats.into(), session_options());
        drop(made.expect("a live namespace"));
        Self { store, repository, seats }
    }

    /// The server of `seat`, which takes over from any other.
    pub fn serve(&self, seat: u16) -> LiveServer {
        LiveServer::start(&self.repository, (NAME, seat), server_options()).expect("a server")
    }

    pub fn serve_all(&self) -> Vec<LiveServer> {
        (0..self.seats).map(|seat| self.serve(seat)).collect()
    }

    pub fn connect(&self) -> LiveTree {
        LiveTree::connect(&self.store, NAME, client_options()).expect("a connection")
    }

    pub fn assert_sound(&self) -> Result<()> {
        let report = self.repository.verify(&VerifyOptions::default())?;
        assert!(report.is_sound(), "{:#?}", report.findings);
        Ok(())
    }
}

/// All paths below `dir`, with the content of files.
pub fn all_paths(tree: &mut LiveTree, dir: &LiveDir) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![dir.clone()];
    while let Some(dir) = waiting.pop() {
        for entry in tree.list(&dir)? {
            let path = dir.join(&entry.name);
            let mut content = Vec::new();
            match entry.attributes.kind {
                FileKind::Directory => waiting.push(dir.child(&entry.name, &entry.attributes)),
                FileKind::File => content = tree.read(&dir, &entry.name)?,
                _ => {}
            }
            found.insert(path, content);
        }
    }
    Ok(found)
}

/// The same of a snapshot.
pub fn all_paths_of(repository: &Repository, set: SetId) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let view = repository.open(&[set], Identity::root())?;
    let mut found = BTreeMap::new();
    let mut waiting = vec![(view.root().clone(), Vec::new())];
    while let Some((dir, path)) = waiting.pop() {
        let mut names = Vec::new();
        view.list(&dir, &Default::default(), &mut |entry| {
            names.push((entry.name().to_vec(), entry.inode()?));
            Ok(std::ops::ControlFlow::Continue(()))
        })?;
        for (name, inode) in names {
            let path = [&path[..], b"/", &name].concat();
            let mut content = Vec::new();
            if inode.is_directory() {
                waiting.push((view.open_dir(&dir, &name, &inode)?, path.clone()));
            } else {
                content = view.read(&inode, 0, 1 << 20)?.to_vec();
            }
            found.insert(path, content);
        }
    }
    Ok(found)
}

/// Runs `work` while servers of three seats die, end and are fenced, some milliseconds after one another.
/// Returns its outcome, how many servers there were, and the last ones.
pub fn while_servers_come_and_go<T>(
    live: &SeatedStore,
    (seed, pauses_ms): (u64, Range<u64>),
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, u64, Vec<LiveServer>)> {
    let mut servers: Vec<Option<LiveServer>> = live.serve_all().into_iter().map(Some).collect();
    let is_done = AtomicBool::new(false);
    let (worked, count) = std::thread::scope(|scope| {
        let replaced = scope.spawn(|| {
            let (mut random, mut count) = (Random::from_seed(seed), 0);
            while !is_done.load(Ordering::Relaxed) {
                let pause_ms = pauses_ms.start + random.below(pauses_ms.end - pauses_ms.start);
                std::thread::sleep(Duration::from_millis(pause_ms));
                let seat = random.below(live.seats.into()) as u16;
                let server = &mut servers[usize::from(seat)];
                match random.below(3) {
                    0 => server.take().map_or(Ok(()), |server| server.end()).expect("an end"),
                    1 => drop(server.take()),
                    _ => {}
                }
                drop(server.replace(live.serve(seat)));
                count += 1;
            }
            count
        });
        let worked = work();
        is_done.store(true, Ordering::Relaxed);
        (worked, replaced.join().expect("no panic"))
    });
    Ok((worked?, count, servers.into_iter().flatten().collect()))
}

/// Calls `is_done_before` with ascending numbers of store requests at which a store stops, until that is
/// true: then the work of the test needs fewer.
pub fn stop_at_each_request(is_done_before: impl Fn(u64) -> Result<bool> + Sync) {
    // Most of the time goes into waiting for servers that are gone.
    const AT_ONCE: u64 = 24;
    for begin in (0..).step_by(AT_ONCE as usize) {
        let done: Vec<bool> = std::thread::scope(|scope| {
            let is_done_before = &is_done_before;
            let run = |stop| scope.spawn(move || is_done_before(stop).expect("no failure"));
            let runs: Vec<_> = (begin..begin + AT_ONCE).map(run).collect();
            runs.into_iter().map(|run| run.join().expect("no panic")).collect()
        });
        if let Some(first) = done.iter().position(|is_done| *is_done) {
            assert!(begin + first as u64 > 10, "{first} store requests");
            return;
        }
    }
}
