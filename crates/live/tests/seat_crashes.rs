// SPDX-License-Identifier: Apache-2.0
//! Seats and crashes: servers of several seats die, end and are fenced, and the store stops, while
//! directories are made and removed.

use std::sync::Arc;
use std::time::Duration;

use esker_base::store::{FaultEffect, FaultStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::repository::Repository;
use esker_live::LiveTree;
use esker_live::client::{LiveClientOptions, LiveDir, Request};

use crate::campaign;
use crate::seated_store::{
    SeatedStore, all_paths, all_paths_of, stop_at_each_request, while_servers_come_and_go,
};
use crate::served::{NAME, client_options};

/// Every server dies, ends or is fenced at any time, while clients make and remove directories at all
/// seats; every change is carried out once.
#[test]
fn each_directory_is_made_and_removed_once_while_servers_come_and_go() {
    campaign::quick(5..6, |seed| {
        let servers = servers_come_and_go(seed, 60).expect("all requests succeed");
        assert!(servers > 5, "{servers} servers");
    });
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_each_directory_is_made_and_removed_once_while_servers_come_and_go() {
    campaign::soak(|seed| {
        servers_come_and_go(seed, 200).expect("all requests succeed");
    });
}

/// One client's rounds. All requests are durable, so none is lost.
fn work(live: &SeatedStore, client: usize, rounds: usize) -> Result<()> {
    let mut tree = live.connect();
    let own = format!("client-{client}").into_bytes();
    let mkdir = |dir: &LiveDir, name: &[u8]| Request::make_directory(dir, 0o755, &[name]).durable();
    let root = LiveDir::root();
    tree.change(mkdir(&root, &own))?;
    let base = tree.dir(&root.join(&own))?;
    for round in 0..rounds {
        let name = format!("r{round}").into_bytes();
        match round % 4 {
            0 => drop(tree.make_spread_directory(&base, &name, 0o755)?),
            _ => tree.change(mkdir(&base, &name))?,
        }
        let dir = tree.dir(&base.join(&name))?;
        tree.change(mkdir(&dir, b"below"))?;
        let below = tree.dir(&dir.join(b"below"))?;
        tree.change(Request::create(&below, 0o644, &[b"f"]).durable())?;
        let refused = tree.change(Request::remove_directory(&dir, &[b"below"]).durable());
        assert_eq!(refused.expect_err("not empty").kind(), Kind::NotEmpty);
        if round % 3 != 0 {
            tree.change(Request::unlink(&below, &[b"f"]).durable())?;
            tree.change(Request::remove_directory(&dir, &[b"below"]).durable())?;
            assert_eq!(tree.list(&dir)?, []);
            if round % 3 == 1 {
                tree.change(Request::remove_directory(&base, &[&name]).durable())?;
            }
        }
    }
    tree.close()
}

fn servers_come_and_go(seed: u64, rounds: usize) -> Result<u64> {
    const CLIENTS: usize = 2;
    let live = SeatedStore::new(3);
    let (_, count, servers) = while_servers_come_and_go(&live, (seed, 5..65), || {
        std::thread::scope(|scope| -> Result<Vec<()>> {
            let begin = |client| {
                scope.spawn({
                    let live = &live;
                    move || work(live, client, rounds)
                })
            };
            let workers: Vec<_> = (0..CLIENTS).map(begin).collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        })
    })?;
    let mut tree = live.connect();
    for client in 0..CLIENTS {
        let base = tree.dir(format!("/client-{client}").as_bytes())?;
        let names = tree.list(&base)?.len();
        assert_eq!(names, (0..rounds).filter(|round| round % 3 != 1).count(), "client {client}");
        for round in (0..rounds).filter(|round| round % 3 != 1) {
            let dir = tree.dir(&base.join(format!("r{round}").as_bytes()))?;
            let expected = usize::from(round % 3 == 0);
            assert_eq!(tree.list(&dir)?.len(), expected, "client {client} round {round}");
            if expected == 1 {
                let below = tree.dir(&dir.join(b"below"))?;
                assert_eq!(tree.list(&below)?.len(), 1);
            }
        }
    }
    let all = all_paths(&mut tree, &LiveDir::root())?;
    let set = tree.snapshot("end")?;
    assert_eq!(all_paths_of(&live.repository, set)?, all);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()?;
    Ok(count)
}

/// The store stops at each request of both servers while directories at both seats are made and
/// removed: afterwards each is there whole, or not at all, or empty and to be removed.
#[test]
fn a_stop_at_any_store_request_leaves_no_directory_half_made() {
    stop_at_each_request(|stop| is_done_before_stop(stop, false));
}

/// The same with directories whose names are at both seats.
#[test]
fn a_stop_at_any_store_request_leaves_no_spread_directory_half_made() {
    stop_at_each_request(|stop| is_done_before_stop(stop, true));
}

/// Stops the store at request `stop` from when clients begin; true if they were done before.
fn is_done_before_stop(stop: u64, spread: bool) -> Result<bool> {
    let live = SeatedStore::new(2);
    let faults = Arc::new(FaultStore::new(live.store.clone(), stop));
    let store: SharedStore = faults.clone();
    let faulty = SeatedStore { repository: Repository::new(store.clone()), store, seats: 2 };
    let servers = faulty.serve_all();
    let options = LiveClientOptions { patience: Duration::from_millis(300), ..client_options() };
    let mut tree = LiveTree::connect(&live.store, NAME, options)?;
    faults.stop_at(faults.operations() + stop, FaultEffect::None);
    let removed = make_and_remove(&mut tree, spread);
    let is_done = removed.len() == DIRECTORIES;
    drop((servers, tree));

    let store = faults.after_process_death()?;
    let live = SeatedStore { repository: Repository::new(store.clone()), store, seats: 2 };
    let servers = live.serve_all();
    let (mut tree, root) = (live.connect(), LiveDir::root());
    for name in removed {
        assert_eq!(
            tree.lookup(&root, &name).expect_err("removed").kind(),
            Kind::NotFound,
            "stop {stop}"
        );
    }
    for entry in tree.list(&root)? {
        let dir = tree.dir(&root.join(&entry.name));
        match dir.and_then(|dir| tree.list(&dir).map(|entries| (dir, entries))) {
            Ok((dir, entries)) => {
                for file in entries {
                    tree.change(Request::unlink(&dir, &[&file.name]))?;
                }
            }
            // Its removal had begun.
            Err(error) => {
                assert!(
                    [Kind::NotFound, Kind::Fenced].contains(&error.kind()),
                    "stop {stop}: {error}"
                );
            }
        }
        tree.change(Request::remove_directory(&root, &[&entry.name]))?;
    }
    drop(tree);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()?;
    Ok(is_done)
}

const DIRECTORIES: usize = 4;

/// Makes and removes directories, durably, until a request fails; returns those that were removed.
fn make_and_remove(tree: &mut LiveTree, spread: bool) -> Vec<Vec<u8>> {
    let root = LiveDir::root();
    let mut step = |name: &[u8]| -> Result<()> {
        match spread {
            true => drop(tree.make_spread_directory(&root, name, 0o755)?),
            false => tree.change(Request::make_directory(&root, 0o755, &[name]).durable())?,
        }
        let dir = tree.dir(&root.join(name))?;
        tree.change(Request::create(&dir, 0o644, &[b"file"]).durable())?;
        tree.change(Request::unlink(&dir, &[b"file"]).durable())?;
        tree.change(Request::remove_directory(&root, &[name]).durable())
    };
    let names = (0..DIRECTORIES).map(|number| format!("d{number}").into_bytes());
    names.take_while(|name| step(name).is_ok()).collect()
}
