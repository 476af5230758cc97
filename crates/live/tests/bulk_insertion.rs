// SPDX-License-Identifier: Apache-2.0
//! Bulk insertion: directories that clients fill by themselves, while others work, and servers die.

use std::sync::atomic::{AtomicBool, Ordering};

use esker_base::{Kind, Random, Result};
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::retention::gc::GcOptions;
use esker_live::LiveTree;
use esker_live::client::{BulkInsertion, LiveDir, Request};

use crate::campaign;
use crate::served::{LiveStore, session_options};

/// A directory with `files` files, the first of which have content, and one directory.
fn filled(live: &LiveStore, files: usize) -> Result<BulkInsertion> {
    let insertion = BulkInsertion::begin(&live.repository, 0o755, session_options())?;
    let (session, dir) = (insertion.session(), insertion.dir());
    for number in 0..files {
        let name = number.to_string();
        session.create(dir, name.as_bytes(), 0o644)?;
        if number < 3 {
            let file = session.open_file(dir, name.as_bytes())?;
            session.file(&file).write(0, name.repeat(1_000).as_bytes())?;
            session.close_file(file)?;
        }
    }
    session.mkdir(dir, b"below", 0o700)?;
    Ok(insertion)
}

/// Fails unless all of a directory from [`filled`] is there.
fn assert_whole(tree: &mut LiveTree, path: &str, files: usize) -> Result<()> {
    let dir = tree.dir(path.as_bytes())?;
    assert_eq!(tree.list(&dir)?.len(), files + 1, "{path}");
    for number in 0..3 {
        let name = number.to_string();
        assert_eq!(tree.read(&dir, name.as_bytes())?, name.repeat(1_000).as_bytes(), "{path}");
    }
    Ok(())
}

#[test]
fn a_directory_appears_whole_and_changes_like_any_other() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let (mut tree, mut other) = (live.connect(), live.connect());
    let root = LiveDir::root();
    let parent = tree.make_directory(&root, b"results", 0o755)?;
    let insertion = filled(&live, 5_000)?;
    assert_eq!(other.list(&parent)?, []);
    let before = server.counters().changes;
    insertion.insert(&mut tree, &parent, b"run7")?;
    assert_eq!(server.counters().changes - before, 1, "one change, whatever the number of files");
    drop(insertion);
    assert_whole(&mut other, "/results/run7", 5_000)?;

    let run = other.dir(b"/results/run7")?;
    assert_eq!(other.create(&run, b"4999", 0o644).unwrap_err().kind(), Kind::Exists);
    other.create(&run, b"new", 0o644)?;
    other.write(&run, b"1", 3, b"changed")?;
    other.change(Request::unlink(&run, &[b"2"]))?;
    other.rename((&run, b"below"), (&root, b"below"))?;
    let content = other.read(&run, b"1")?;
    live.repository.gc(&GcOptions { grace: std::time::Duration::ZERO, ..Default::default() })?;

    let set = tree.snapshot("snapshot")?;
    server.end()?;
    drop((tree, other));
    let server = live.serve();
    let mut tree = live.connect();
    let run = tree.dir(b"/results/run7")?;
    assert_eq!(tree.list(&run)?.len(), 5_000);
    assert_eq!(tree.read(&run, b"1")?, content);
    assert_eq!(tree.create(&run, b"4999", 0o644).unwrap_err().kind(), Kind::Exists);
    tree.close()?;
    server.end()?;
    let view = live.repository.open(&[set], esker_fs::stack::identity::Identity::root())?;
    assert!(view.find(b"/results/run7/4998", esker_fs::stack::namespace::FollowLinks::No).is_ok());
    let report = live.repository.verify(&VerifyOptions::default())?;
    assert!(report.is_sound(), "{:#?}", report.findings);
    Ok(())
}

#[test]
fn a_directory_that_was_not_inserted_leaves_nothing() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let root = LiveDir::root();
    tree.create(&root, b"taken", 0o644)?;
    let insertion = filled(&live, 10)?;
    let set = insertion.session().set();
    tree.check_may_insert()?;
    let refused = insertion.insert(&mut tree, &root, b"taken").unwrap_err();
    assert_eq!(refused.kind(), Kind::Exists);
    let markers = live.store.list(&format!("ref/{set}/"))?;
    let holds = |name: &str| name.contains("/set-");
    assert!(!markers.iter().any(|marker| holds(&marker.name)), "it holds what it refused");
    // It can have another name, and only one.
    insertion.insert(&mut tree, &root, b"other")?;
    assert_whole(&mut tree, "/other", 10)?;
    assert!(insertion.insert(&mut tree, &root, b"third").is_err());
    assert_eq!(tree.lookup(&root, b"third").unwrap_err().kind(), Kind::NotFound);
    drop(insertion);

    let dropped = filled(&live, 10)?;
    let dropped_set = dropped.session().set();
    drop(dropped);
    live.repository.gc(&GcOptions { grace: std::time::Duration::ZERO, ..Default::default() })?;
    let objects = |set: esker_table::manifest::SetId| {
        live.store.list(&format!("set/{set}/table/")).map(|objects| objects.len())
    };
    assert_eq!(objects(dropped_set)?, 0);
    assert!(objects(set)? > 0);
    assert_whole(&mut tree, "/other", 10)?;
    tree.close()?;
    server.end()
}

/// Servers end, die and are fenced while clients insert directories: each is there once, whole.
#[test]
fn each_directory_is_inserted_once_while_servers_come_and_go() {
    campaign::quick(3..4, |seed| {
        let servers = servers_come_and_go(seed, 200).expect("all requests succeed");
        assert!(servers > 5, "{servers} servers");
    });
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_each_directory_is_inserted_once_while_servers_come_and_go() {
    campaign::soak(|seed| {
        servers_come_and_go(seed, 200).expect("all requests succeed");
    });
}

const CLIENTS: usize = 2;

/// Inserts `rounds` directories a client; returns the number of takeovers.
fn servers_come_and_go(seed: u64, rounds: usize) -> Result<u64> {
    let live = LiveStore::new();
    let mut server = Some(live.serve());
    let is_done = AtomicBool::new(false);
    let servers = std::thread::scope(|scope| -> Result<u64> {
        let workers: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let live = &live;
                scope.spawn(move || -> Result<()> {
                    let mut tree = live.connect();
                    let dir = format!("client-{client}").into_bytes();
                    let dir = tree.make_directory(&LiveDir::root(), &dir, 0o755)?;
                    tree.sync()?;
                    for round in 0..rounds {
                        let name = format!("run-{round}");
                        filled(live, 20)?.insert(&mut tree, &dir, name.as_bytes())?;
                        assert_whole(&mut tree, &format!("/client-{client}/{name}"), 20)?;
                    }
                    tree.close()
                })
            })
            .collect();
        let servers = scope.spawn(|| {
            let (mut random, mut count) = (Random::from_seed(seed), 0);
            while !is_done.load(Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(5 + random.below(60)));
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
        let worked: Result<Vec<()>> =
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
        is_done.store(true, Ordering::Relaxed);
        let servers = servers.join().expect("no panic");
        worked.map(|_| servers)
    })?;
    let mut tree = live.connect();
    for client in 0..CLIENTS {
        let dir = tree.dir(format!("/client-{client}").as_bytes())?;
        assert_eq!(tree.list(&dir)?.len(), rounds);
        for round in 0..rounds {
            assert_whole(&mut tree, &format!("/client-{client}/run-{round}"), 20)?;
        }
    }
    tree.close()?;
    server.expect("one serves").end()?;
    let report = live.repository.verify(&VerifyOptions::default())?;
    assert!(report.is_sound(), "seed {seed}: {:#?}", report.findings);
    Ok(servers)
}
