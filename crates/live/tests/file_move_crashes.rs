// SPDX-License-Identifier: Apache-2.0
//! Renames of files between seats while servers die, are fenced and are away, and while the store stops.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use esker_base::store::{FaultEffect, FaultStore, SharedStore};
use esker_base::wire::put_bytes;
use esker_base::{Kind, Random, Result};
use esker_fs::ops::RenameFlags;
use esker_fs::repository::Repository;
use esker_live::client::{LiveClientOptions, LiveDir, Request};
use esker_live::wire::{FrameHeader, MoveTarget, Verb};
use esker_live::{LiveServer, LiveTree};

use crate::campaign;
use crate::file_moves::{create, kind_of, one_at_each_seat, wait_for_count};
use crate::gated_store::{GatedCalls, GatedStore};
use crate::raw_client::{frame, greeted, receive};
use crate::seated_store::{
    SeatedStore, all_paths, all_paths_of, stop_at_each_request, while_servers_come_and_go,
};
use crate::served::{LiveStore, NAME, client_options, server_options};

/// The store stops at each request of both servers while files are moved: each is there afterwards, at
/// its old name or at its new one.
#[test]
fn a_stop_at_any_store_request_loses_no_file() {
    stop_at_each_request(is_done_before_stop);
}

const MOVED: usize = 4;

/// Stops the store at request `stop` from when files are moved; true if they were before.
fn is_done_before_stop(stop: u64) -> Result<bool> {
    let live = SeatedStore::new(2);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = one_at_each_seat(&mut tree, 2)?;
    for number in 0..MOVED {
        create(
            &mut tree,
            &dirs[0],
            format!("f{number}").as_bytes(),
            format!("{number}").as_bytes(),
        )?;
        create(&mut tree, &dirs[1], format!("f{number}").as_bytes(), b"replaced")?;
    }
    tree.sync()?;
    drop((servers, tree));
    let faults = Arc::new(FaultStore::new(live.store.clone(), stop));
    let store: SharedStore = faults.clone();
    let faulty = SeatedStore { repository: Repository::new(store.clone()), store, seats: 2 };
    let servers = faulty.serve_all();
    let options = LiveClientOptions { patience: Duration::from_millis(300), ..client_options() };
    let mut tree = LiveTree::connect(&live.store, NAME, options)?;
    let dirs = [tree.dir(&dirs[0].path)?, tree.dir(&dirs[1].path)?];
    faults.stop_at(faults.operations() + stop, FaultEffect::None);
    let moved = (0..MOVED).take_while(|number| move_around(&mut tree, &dirs, *number)).count();
    drop((servers, tree));

    let store = faults.after_process_death()?;
    let live = SeatedStore { repository: Repository::new(store.clone()), store, seats: 2 };
    let servers = live.serve_all();
    let mut tree = live.connect();
    let all = all_paths(&mut tree, &LiveDir::root())?;
    for number in 0..MOVED {
        let content = number.to_string().into_bytes();
        let names = all.iter().filter(|(_, found)| **found == content).count();
        assert!((1..3).contains(&names), "stop {stop}, file {number}: {names} names, {all:?}");
        if number < moved {
            let path = dirs[1].join(format!("f{number}").as_bytes());
            assert_eq!((names, all.get(&path)), (1, Some(&content)), "stop {stop}");
        }
    }
    let set = tree.snapshot("end")?;
    assert_eq!(all_paths_of(&live.repository, set)?, all, "stop {stop}");
    // Every name can be removed, and nothing dangles.
    for dir in &dirs {
        for entry in tree.list(dir)? {
            tree.change(Request::unlink(dir, &[&entry.name]))?;
        }
    }
    drop(tree);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()?;
    Ok(moved == MOVED)
}

/// Moves a file there and back, and over another one; false if that fails.
fn move_around(tree: &mut LiveTree, dirs: &[LiveDir], number: usize) -> bool {
    let name = format!("f{number}").into_bytes();
    let names = [name.clone(), [&name[..], b"far"].concat(), [&name[..], b"back"].concat(), name];
    [(0, 1), (1, 0), (0, 1)].iter().zip(names.windows(2)).all(|((from, to), names)| {
        tree.rename((&dirs[*from], &names[0]), (&dirs[*to], &names[1])).is_ok()
    })
}

/// Servers die, end and are fenced while clients move files between all seats, durably: every file is
/// at its last name, with its content.
#[test]
fn each_file_is_moved_once_while_servers_come_and_go() {
    campaign::quick(3..4, |seed| {
        let servers = servers_come_and_go(seed, 1500).expect("all requests succeed");
        assert!(servers > 5, "{servers} servers");
    });
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_each_file_is_moved_once_while_servers_come_and_go() {
    campaign::soak(|seed| {
        servers_come_and_go(seed, 4000).expect("all requests succeed");
    });
}

/// One client's moves; returns where its files are at the end. A rename that is repeated after both of
/// its steps were done may find nothing any more.
fn move_files(
    (live, dirs): (&SeatedStore, &[LiveDir]),
    client: usize,
    (seed, rounds): (u64, usize),
) -> Result<Vec<usize>> {
    const FILES: usize = 5;
    let mut tree = live.connect();
    let mut random = Random::from_seed(seed ^ client as u64);
    let name_of = |file: usize| format!("c{client}.{file}").into_bytes();
    for file in 0..FILES {
        tree.change(Request::create(&dirs[0], 0o644, &[&name_of(file)]).durable())?;
        tree.write(&dirs[0], &name_of(file), 0, &name_of(file))?;
    }
    tree.sync().or_else(|error| match error.kind() {
        // A takeover before lost the content of files that were not synced.
        Kind::DeviceFailed => {
            (0..FILES).try_for_each(|file| tree.write(&dirs[0], &name_of(file), 0, &name_of(file)))
        }
        _ => Err(error),
    })?;
    let mut places = vec![0; FILES];
    for round in 0..rounds {
        let file = random.below(FILES as u64) as usize;
        let to = (places[file] + 1 + random.below(2) as usize) % dirs.len();
        let name = name_of(file);
        tree.rename((&dirs[places[file]], &name), (&dirs[to], &name))
            .map_err(|error| error.within(format!("round {round} of client {client}")))?;
        places[file] = to;
    }
    tree.close()?;
    Ok(places)
}

fn servers_come_and_go(seed: u64, rounds: usize) -> Result<u64> {
    const CLIENTS: usize = 2;
    let live = SeatedStore::new(3);
    let first = live.serve_all();
    let dirs = one_at_each_seat(&mut live.connect(), 3)?;
    first.into_iter().try_for_each(LiveServer::end)?;
    let (places, count, servers) = while_servers_come_and_go(&live, (seed, 20..100), || {
        std::thread::scope(|scope| -> Result<Vec<Vec<usize>>> {
            let begin = |client| {
                scope.spawn({
                    let (live, dirs) = (&live, &dirs[..]);
                    move || move_files((live, dirs), client, (seed, rounds))
                })
            };
            let workers: Vec<_> = (0..CLIENTS).map(begin).collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        })
    })?;
    let mut tree = live.connect();
    let all = all_paths(&mut tree, &LiveDir::root())?;
    let mut expected = 0;
    for (client, places) in places.iter().enumerate() {
        for (file, place) in places.iter().enumerate() {
            let name = format!("c{client}.{file}").into_bytes();
            assert_eq!(all.get(&dirs[*place].join(&name)), Some(&name), "seed {seed}");
            expected += 1;
        }
    }
    let files = all.values().filter(|content| !content.is_empty()).count();
    assert_eq!(files, expected, "seed {seed}: {all:?}");
    let set = tree.snapshot("end")?;
    assert_eq!(all_paths_of(&live.repository, set)?, all);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()?;
    Ok(count)
}

/// The change that another client makes to the new name before the rename is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Removed,
    Renamed,
}

/// Symptom: a rename was carried out twice: the file had its new name again after another client had
/// removed it, or both that and the one to which the other client had moved it. Cause: the server of the
/// old name had died before its last step, and the next one, to which the client repeated the request, did
/// not know that the first two were done. Fix: the server of the new name records the requests for which
/// it has named files.
#[test]
fn a_rename_that_is_repeated_after_a_takeover_is_carried_out_once() -> Result<()> {
    for meanwhile in [Meanwhile::Removed, Meanwhile::Renamed] {
        let live = SeatedStore::new(2);
        let all_appends = GatedCalls { append_bytes_min: 1, syncs: true };
        let syncs = GatedCalls { append_bytes_min: usize::MAX, syncs: true };
        let (old_store, old_gate) = GatedStore::over(live.store.clone(), all_appends);
        let (new_store, new_gate) = GatedStore::over(live.store.clone(), syncs);
        let serve = |store: SharedStore, seat| {
            LiveServer::start(&Repository::new(store), (NAME, seat), server_options())
        };
        let (first, _second) = (serve(old_store, 0)?, serve(new_store, 1)?);
        let (mut tree, mut other) = (live.connect(), live.connect());
        let dirs = one_at_each_seat(&mut tree, 2)?;
        create(&mut tree, &dirs[0], b"a", b"content")?;
        tree.sync()?;
        other.dir(&dirs[1].path)?;
        new_gate.close();
        std::thread::scope(|scope| -> Result<()> {
            let renamer = scope.spawn(|| {
                let mut tree = live.connect();
                tree.rename((&dirs[0], b"a"), (&dirs[1], b"b"))
            });
            while other.lookup(&dirs[1], b"b").is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The new name is durable, and the removal of the old one is not.
            old_gate.close();
            new_gate.open();
            std::thread::sleep(Duration::from_millis(300));
            let (b, c) = ((&dirs[1], &b"b"[..]), (&dirs[1], &b"c"[..]));
            other.change(match meanwhile {
                Meanwhile::Removed => Request::unlink(&dirs[1], &[b"b"]).durable(),
                Meanwhile::Renamed => Request::rename(b, c, RenameFlags::Replace).durable(),
            })?;
            let next = live.serve(0);
            renamer.join().expect("no panic")?;
            let all = all_paths(&mut other, &LiveDir::root())?;
            let files: Vec<_> =
                all.into_iter().filter(|(_, content)| !content.is_empty()).collect();
            let expected = match meanwhile {
                Meanwhile::Removed => Vec::new(),
                Meanwhile::Renamed => vec![(dirs[1].join(b"c"), b"content".to_vec())],
            };
            assert_eq!(files, expected, "{meanwhile:?}");
            old_gate.open();
            next.end()
        })?;
        drop(first);
    }
    Ok(())
}

/// Symptom: a file was lost that another client had put at the old name of one that was moved. Cause: the
/// client that moved it repeated its request to the next server, which removed the old name without a look
/// at what was there. Fix: the server of the new name says which file it was.
#[test]
fn a_repeated_rename_leaves_another_file_at_the_old_name() -> Result<()> {
    let live = SeatedStore::new(2);
    let (old_store, old_gate) =
        GatedStore::over(live.store.clone(), GatedCalls { append_bytes_min: 1, syncs: true });
    let (new_store, new_gate) = GatedStore::over(
        live.store.clone(),
        GatedCalls { append_bytes_min: usize::MAX, syncs: true },
    );
    let serve = |store: SharedStore, seat| {
        LiveServer::start(&Repository::new(store), (NAME, seat), server_options())
    };
    let (first, _second) = (serve(old_store, 0)?, serve(new_store, 1)?);
    let (mut tree, root) = (live.connect(), LiveDir::root());
    let dirs = one_at_each_seat(&mut tree, 2)?;
    create(&mut tree, &root, b"a", b"content")?;
    tree.sync()?;
    let plain = LiveStore { store: live.store.clone(), repository: live.repository.clone() };
    let mut payload = root.id.0.to_le_bytes().to_vec();
    put_bytes(&mut payload, b"a");
    let (place, name) = (dirs[1].place.clone(), b"b".to_vec());
    let (path, replaces) = (place.path.to_vec(), true);
    MoveTarget { seat: 1, dir: dirs[1].id, top: place.top, path, name, replaces }.put(&mut payload);
    let mut header = FrameHeader::new(Verb::RenameAcross, 1);
    (header.items, header.window) = (1, 1);
    let send = |server: &LiveServer, header: &FrameHeader| {
        let mut stream = greeted(&plain, server, 77);
        stream.write_all(&frame(header, &payload)).expect("sent");
        stream
    };
    new_gate.close();
    let stream = send(&first, &header);
    while tree.lookup(&dirs[1], b"b").is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    old_gate.close();
    new_gate.open();
    std::thread::sleep(Duration::from_millis(300));
    let next = live.serve(0);
    let mut other = live.connect();
    create(&mut other, &root, b"tmp", b"another")?;
    let over = Request::rename((&root, b"tmp"), (&root, b"a"), RenameFlags::Replace);
    other.change(over.durable())?;
    header.flags.is_repeated = true;
    let (_, answer) = receive(&mut send(&next, &header)).expect("an answer");
    assert_eq!(answer, [0]);
    assert_eq!(other.read(&root, b"a")?, b"another");
    assert_eq!(other.read(&dirs[1], b"b")?, b"content");
    old_gate.open();
    drop((first, stream));
    next.end()
}

/// Symptom: each rename that failed because the server of the new name was away left one name more that
/// was counted for the file, so that its content was never given up. Cause: it kept the name among the
/// seat roots also if nothing had been sent. Fix: that is removed.
#[test]
fn a_rename_to_a_seat_without_a_server_leaves_nothing() -> Result<()> {
    let live = SeatedStore::new(2);
    let mut servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = one_at_each_seat(&mut tree, 2)?;
    create(&mut tree, &dirs[0], b"f", b"content")?;
    tree.sync()?;
    servers.pop().expect("two").end()?;
    let request = || Request::rename_across((&dirs[0], b"f"), (&dirs[1], b"g"), true);
    assert_eq!(kind_of(tree.change(request())), Kind::Unavailable);
    wait_for_count(&mut tree, &dirs[0], b"f", 1)?;
    servers.push(live.serve(1));
    tree.change(request())?;
    wait_for_count(&mut tree, &dirs[1], b"g", 1)?;
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

/// Symptom: a rename that had failed for lack of an answer, and was carried out late, succeeded when it
/// was called again and left both names. Cause: it looked like a rename to another name of the same file.
/// Fix: the server knows which of its moves had no answer, and ends them.
#[test]
fn a_rename_is_called_again_after_it_got_no_answer() -> Result<()> {
    let live = SeatedStore::new(2);
    let syncs = GatedCalls { append_bytes_min: usize::MAX, syncs: true };
    let (store, gate) = GatedStore::over(live.store.clone(), syncs);
    let far = LiveServer::start(&Repository::new(store), (NAME, 1), server_options())?;
    let near = live.serve(0);
    let mut tree = live.connect();
    let dirs = one_at_each_seat(&mut tree, 2)?;
    create(&mut tree, &dirs[0], b"a", b"content")?;
    tree.sync()?;
    gate.close();
    let failed = tree.rename((&dirs[0], b"a"), (&dirs[1], b"b"));
    assert_eq!(kind_of(failed), Kind::Unavailable);
    gate.open();
    while tree.lookup(&dirs[1], b"b").is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    tree.rename((&dirs[0], b"a"), (&dirs[1], b"b"))?;
    assert_eq!(kind_of(tree.lookup(&dirs[0], b"a")), Kind::NotFound);
    assert_eq!(tree.read(&dirs[1], b"b")?, b"content");
    wait_for_count(&mut tree, &dirs[1], b"b", 1)?;
    near.end()?;
    far.end()?;
    live.assert_sound()
}
