// SPDX-License-Identifier: Apache-2.0
//! Takeover: a server dies or is fenced at any time, another continues, and every change of every
//! client is carried out exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_base::store::{FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Random, Result};
use esker_live::LiveTree;
use esker_live::client::{LiveDir, Request};
use hashbrown::HashMap;

use crate::campaign;
use crate::served::{LiveStore, NAME, client_options, server_options};

/// Moves a token between two names `rounds` times, and counts by creating and removing files. A
/// rename that is lost or done twice leaves the token under the wrong name, or loses it. All
/// requests are durable.
fn work(tree: &mut LiveTree, client: usize, rounds: usize, random: &mut Random) -> Result<()> {
    let root = LiveDir::root();
    let name = |what: &str| format!("{what}-{client}").into_bytes();
    let dir = tree.make_directory(&root, &name("dir"), 0o755)?;
    tree.change(Request::create(&dir, 0o644, &[b"here"]).durable())?;
    for round in 0..rounds {
        let (from, to): (&[u8], &[u8]) =
            if round.is_multiple_of(2) { (b"here", b"there") } else { (b"there", b"here") };
        let flags = esker_fs::ops::RenameFlags::NoReplace;
        let rename = Request::rename((&dir, from), (&dir, to), flags).durable();
        let new = format!("n{round}").into_bytes();
        let batch: Vec<Vec<u8>> =
            (0..random.below(40)).map(|n| format!("b{round}-{n}").into_bytes()).collect();
        let batch: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
        let connection = tree.connection();
        let under_way = [
            connection.submit(rename)?,
            connection.submit(Request::create(&dir, 0o600, &[&new]).durable())?,
            connection.submit(Request::create(&dir, 0o600, &batch).durable())?,
            connection.submit(Request::unlink(&dir, &[&new]).durable())?,
            connection.submit(Request::make_directory(&dir, 0o700, &[&new]).durable())?,
            connection.submit(Request::unlink(&dir, &batch).durable())?,
            connection.submit(Request::remove_directory(&dir, &[&new]).durable())?,
        ];
        for (step, number) in under_way.into_iter().enumerate() {
            for outcome in connection.wait(number)?.outcomes()? {
                outcome.map_err(|error| {
                    error.within(format!("client {client} round {round} step {step}"))
                })?;
            }
        }
    }
    Ok(())
}

/// The end of `rounds` of [`work`].
fn check(tree: &mut LiveTree, client: usize, rounds: usize) -> Result<()> {
    let dir = tree.dir(format!("/dir-{client}").as_bytes())?;
    let names: Vec<Vec<u8>> = tree.list(&dir)?.into_iter().map(|entry| entry.name).collect();
    let token: &[u8] = if rounds.is_multiple_of(2) { b"here" } else { b"there" };
    assert_eq!(names, [token], "client {client}");
    Ok(())
}

/// Number of clients that work at once.
const CLIENTS: usize = 3;

/// Symptom this guards against: a retried rename fails with `NotFound`, a retried removal too, a
/// retried create or mkdir with `Exists`, although the client's own first attempt did it.
#[test]
fn changes_are_carried_out_once_while_servers_come_and_go() {
    campaign::quick(9..10, |seed| {
        let (servers, reconnects) = servers_come_and_go(seed, 600).expect("all requests succeed");
        assert!(servers > 1 && reconnects > 0, "{servers} servers, {reconnects} reconnects");
    });
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_changes_are_carried_out_once_while_servers_come_and_go() {
    let (mut servers, mut reconnects) = (0, 0);
    campaign::soak(|seed| {
        let counts = servers_come_and_go(seed, 1000).expect("all requests succeed");
        (servers, reconnects) = (servers + counts.0, reconnects + counts.1);
    });
    println!("{servers} servers, {reconnects} reconnects");
}

/// Runs clients for `rounds` while servers end, die and take over. Returns the number of takeovers,
/// and of reconnections of clients.
fn servers_come_and_go(seed: u64, rounds: usize) -> Result<(u64, u64)> {
    let live = LiveStore::new();
    let mut server = Some(live.serve());
    let is_done = Arc::new(AtomicBool::new(false));
    let counts = std::thread::scope(|scope| {
        let live = &live;
        let workers: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || {
                    let mut tree = live.connect();
                    work(&mut tree, client, rounds, &mut Random::from_seed(seed + client as u64))?;
                    let reconnects = tree.connection().reconnects();
                    tree.close().map(|()| reconnects)
                })
            })
            .collect();
        let done = is_done.clone();
        let servers = scope.spawn(move || {
            let mut random = Random::from_seed(seed);
            let mut count = 0u64;
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(5 + random.below(40)));
                // Some end in order, some are dropped as by a crash, some are fenced.
                match random.below(3) {
                    0 => server.take().map_or(Ok(()), |server| server.end()).expect("an end"),
                    1 => drop(server.take()),
                    _ => {}
                }
                let next = live.serve();
                drop(server.replace(next));
                count += 1;
            }
            count
        });
        let mut reconnects = 0;
        for worker in workers {
            reconnects += worker
                .join()
                .expect("a worker")
                .inspect_err(|_| is_done.store(true, Ordering::Relaxed))?;
        }
        is_done.store(true, Ordering::Relaxed);
        Ok((servers.join().expect("servers"), reconnects))
    })?;
    let server = live.serve();
    let mut tree = live.connect();
    (0..CLIENTS).try_for_each(|client| check(&mut tree, client, rounds))?;
    tree.close()?;
    server.end().map(|()| counts)
}

/// Stops the world at a request of the store; another server then serves the image of the store.
#[test]
fn a_crash_at_every_store_request_loses_no_durable_answer() -> Result<()> {
    for stop in 1.. {
        let inner: SharedStore = Arc::new(MemoryStore::new());
        LiveStore::in_store(inner.clone());
        let fault = Arc::new(FaultStore::new(inner, stop));
        let live = LiveStore::in_store(fault.clone());
        fault.stop_at(fault.operations() + stop, esker_base::store::FaultEffect::Partial);
        let mut answered: HashMap<Vec<u8>, bool> = HashMap::new();
        let server = live.serve_with(server_options());
        if let Ok(server) = server {
            let options = esker_live::client::LiveClientOptions {
                patience: std::time::Duration::ZERO,
                ..client_options()
            };
            if let Ok(mut tree) = LiveTree::connect(&live.store, NAME, options) {
                for round in 0..6 {
                    let name = format!("f{round}").into_bytes();
                    let create = Request::create(&LiveDir::root(), 0o644, &[&name]).durable();
                    match tree.change(create) {
                        Ok(()) => answered.insert(name, true),
                        Err(_) => break,
                    };
                }
            }
            drop(server);
        }
        let is_whole = !fault.is_stopped();
        for image in [fault.after_power_loss()?, fault.after_process_death()?] {
            let live = LiveStore::in_store(image);
            let server = live.serve();
            let mut tree = live.connect();
            for name in answered.keys() {
                tree.lookup(&LiveDir::root(), name)
                    .map_err(|error| error.within(format!("stop {stop}")))?;
            }
            tree.close()?;
            server.end()?;
        }
        if is_whole {
            println!("{stop} requests");
            assert!(answered.len() == 6 && stop > 6);
            return Ok(());
        }
    }
    unreachable!("the loop returns");
}

#[test]
fn a_fenced_server_answers_nothing_and_says_so() -> Result<()> {
    let live = LiveStore::new();
    let first = live.serve();
    let mut tree = live.connect();
    tree.change(Request::create(&LiveDir::root(), 0o644, &[b"f"]).durable())?;
    let second = live.serve();
    tree.change(Request::create(&LiveDir::root(), 0o644, &[b"g"]).durable())?;
    assert_eq!(tree.connection().reconnects(), 1);
    assert_eq!(first.end().unwrap_err().kind(), Kind::Fenced);
    assert!(second.failure().is_none());
    assert_eq!(tree.list(&LiveDir::root())?.len(), 2);
    tree.close()?;
    second.end()
}

/// Symptom: the error of a client without a server named a socket, and gave the system's error twice.
/// Cause: the socket's name stood for the server, and the error's text and source were the same.
/// Fix: the error names the namespace, the host and process of its last server, and the next step.
#[test]
fn an_error_without_a_server_names_the_last_one_and_the_next_step() -> Result<()> {
    let live = LiveStore::new();
    let patience = std::time::Duration::ZERO;
    let connect = || {
        let options = esker_live::client::LiveClientOptions { patience, ..client_options() };
        LiveTree::connect(&live.store, NAME, options).unwrap_err().to_string()
    };
    assert_eq!(connect(), "run has no server: `esker live serve run` runs one");
    let dead = esker_live::server_address::ServerAddress {
        instance: "dead".into(),
        epoch: 1,
        host: "node7".into(),
        boot: esker_base::process::ProcessIdentity::current().boot,
        pid: 12,
        uid: 1000,
        began_ns: 1,
        tcp: None,
        unix: Some(format!("esker-live-test-{}", std::process::id())),
    };
    dead.put(&*live.store, (NAME, 0))?;
    let error = connect();
    for part in ["server of run ", "the server on node7 (process 12)", "`esker live serve run`"] {
        assert_eq!(error.matches(part).count(), 1, "{part}: {error}");
    }
    assert_eq!(error.matches("efused").count(), 1, "{error}");
    assert!(!error.contains('@'), "{error}");
    Ok(())
}

/// Symptom: `submit` failed although the request stayed under way, so that a caller who submitted
/// it again had it carried out twice. Cause: sending the gathered requests failed after the request
/// had got its number. Fix: once a request has a number, only `wait` reports its failure.
#[test]
fn a_request_under_way_fails_when_it_is_waited_for() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let options = esker_live::client::LiveClientOptions {
        patience: std::time::Duration::ZERO,
        ..client_options()
    };
    let mut tree = LiveTree::connect(&live.store, NAME, options)?;
    server.end()?;
    let connection = tree.connection();
    let names: Vec<Vec<u8>> = (0..40).map(|name| format!("f{name}").into_bytes()).collect();
    let create = |name: &Vec<u8>| Request::create(&LiveDir::root(), 0o644, &[name]);
    let submitted: Vec<u64> =
        names.iter().map(|name| connection.submit(create(name))).collect::<Result<_>>()?;
    for number in submitted {
        assert_eq!(connection.wait(number).unwrap_err().kind(), Kind::Unavailable);
    }
    // A later server does not carry out those that failed.
    let server = live.serve();
    tree.change(create(&b"later".to_vec()))?;
    let entries = tree.list(&LiveDir::root())?;
    assert_eq!(entries.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), [b"later"]);
    tree.close()?;
    server.end()
}

/// Symptom: a server that was to take over and could not listen at its port ended the one before.
/// Cause: it took the namespace over first.
#[test]
fn a_server_that_cannot_listen_leaves_the_one_before_alone() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let metrics = Some(taken.local_addr().expect("an address"));
    let refused = live.serve_with(esker_live::LiveServerOptions { metrics, ..server_options() });
    assert!(refused.is_err());
    let mut tree = live.connect();
    tree.change(Request::create(&LiveDir::root(), 0o644, &[b"f"]).durable())?;
    tree.close()?;
    server.end()
}
