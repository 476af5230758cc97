// SPDX-License-Identifier: Apache-2.0
//! Renames of files between directories at different seats.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use esker_base::store::{FaultEffect, FaultStore, SharedStore};
use esker_base::{Kind, Random, Result};
use esker_fs::inode::FileKind;
use esker_fs::ops::RenameFlags;
use esker_fs::repository::Repository;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_live::client::{LiveClientOptions, LiveDir, LiveFile, Request};
use esker_live::proof::UserSecret;
use esker_live::wire::{AttributeRequest, take_attributes};
use esker_live::{LiveServer, LiveTree};
use esker_table::manifest::SetId;

use crate::campaign;
use crate::seats::{SeatedStore, all_paths, all_paths_of};
use crate::served::{NAME, client_options, session_options, tcp_options};

/// Makes directories in the root until one is at each seat; returns these, by seat.
fn one_at_each_seat(tree: &mut LiveTree, seats: u16) -> Result<Vec<LiveDir>> {
    let mut found: Vec<Option<LiveDir>> = vec![None; usize::from(seats)];
    for number in 0.. {
        let name = format!("d{number}").into_bytes();
        let dir = tree.make_directory(&LiveDir::root(), &name, 0o755)?;
        let seat = usize::from(dir.place.seat);
        found[seat] = Some(dir);
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    Ok(found.into_iter().flatten().collect())
}

fn create(tree: &mut LiveTree, dir: &LiveDir, name: &[u8], content: &[u8]) -> Result<()> {
    tree.create(dir, name, 0o644)?;
    tree.write(dir, name, 0, content)
}

fn kind_of<T: std::fmt::Debug>(outcome: Result<T>) -> Kind {
    outcome.expect_err("it fails").kind()
}

/// Waits until nothing is left among the seat roots of files that lost their names.
fn wait_for_count(tree: &mut LiveTree, dir: &LiveDir, name: &[u8], names: u32) -> Result<()> {
    for _ in 0..500 {
        if tree.lookup(dir, name)?.nlink == names {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} names", tree.lookup(dir, name)?.nlink);
}

#[test]
fn a_file_moves_to_every_seat_and_back() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let (mut tree, mut other) = (live.connect(), live.connect());
    let dirs = one_at_each_seat(&mut tree, 3)?;
    let large = vec![7; 2 << 20];
    for (content, name) in [(&b"small"[..], &b"f"[..]), (&large, b"large"), (b"", b"empty")] {
        create(&mut tree, &dirs[0], name, content)?;
        let before = tree.lookup(&dirs[0], name)?;
        for (from, to) in [(0, 1), (1, 2), (2, 1), (1, 0)] {
            tree.rename((&dirs[from], name), (&dirs[to], name))?;
            assert_eq!(kind_of(tree.lookup(&dirs[from], name)), Kind::NotFound);
            let found = other.lookup(&dirs[to], name)?;
            assert_eq!((found.id, found.size, found.mode), (before.id, before.size, before.mode));
            assert_eq!((found.kind, found.mtime_ns), (FileKind::File, before.mtime_ns));
            let path = dirs[to].join(name);
            let (dir, at) = other.locate_file(&path)?;
            assert!(other.read(&dir, &at)? == content, "from {from} to {to}");
            assert!(tree.read(&dirs[to], name)? == content, "from {from} to {to}");
            let listed = tree.list(&dirs[to])?;
            assert_eq!(
                listed.iter().find(|entry| entry.name == name).map(|e| e.attributes.id),
                Some(before.id)
            );
            wait_for_count(&mut tree, &dirs[to], name, 1)?;
        }
        // At its own seat it is like any other.
        assert_eq!(tree.lookup(&dirs[0], name)?.seat, None);
    }
    // It changes at another seat as anywhere.
    tree.rename((&dirs[0], b"f"), (&dirs[2], b"g"))?;
    tree.write(&dirs[2], b"g", 5, b"er")?;
    let mode = AttributeRequest { mode: Some(0o600), ..AttributeRequest::default() };
    tree.set_attributes(&dirs[2], b"g", &mode)?;
    assert_eq!(other.read(&dirs[2], b"g")?, b"smaller");
    assert_eq!(other.lookup(&dirs[2], b"g")?.mode, 0o600);
    tree.rename((&dirs[2], b"g"), (&dirs[2], b"h"))?;
    assert_eq!(other.read(&dirs[2], b"h")?, b"smaller");
    let refused = tree.resolve(&[&dirs[2].join(b"h")[..], b"/below"].concat(), FollowLinks::Yes);
    assert_eq!(kind_of(refused), Kind::NotADirectory);
    tree.change(Request::unlink(&dirs[2], &[b"h"]))?;
    assert_eq!(kind_of(tree.lookup(&dirs[2], b"h")), Kind::NotFound);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

#[test]
fn what_was_at_the_new_name_is_replaced_once() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = one_at_each_seat(&mut tree, 3)?;
    // A plain file, one of several names, and files of two other seats.
    create(&mut tree, &dirs[0], b"kept", b"two names")?;
    let kept = LiveFile::at(&dirs[0], b"kept");
    for name in [&b"x"[..], b"y"] {
        tree.change(Request::link(&kept, &dirs[0], name))?;
    }
    create(&mut tree, &dirs[1], b"final", b"0")?;
    for round in 1..10u8 {
        let from = &dirs[usize::from(round % 3)];
        if from.place.seat != dirs[1].place.seat {
            create(&mut tree, from, b"tmp", &[b'0' + round])?;
            tree.rename((from, b"tmp"), (&dirs[1], b"final"))?;
            assert_eq!(tree.read(&dirs[1], b"final")?, [b'0' + round]);
        }
    }
    tree.rename((&dirs[0], b"x"), (&dirs[1], b"final"))?;
    assert_eq!(tree.read(&dirs[1], b"final")?, b"two names");
    wait_for_count(&mut tree, &dirs[0], b"kept", 3)?;
    // Both are names of one file: nothing happens.
    tree.rename((&dirs[0], b"y"), (&dirs[1], b"final"))?;
    assert_eq!(tree.read(&dirs[0], b"y")?, b"two names");
    wait_for_count(&mut tree, &dirs[0], b"kept", 3)?;
    create(&mut tree, &dirs[1], b"tmp", b"local")?;
    tree.rename((&dirs[1], b"tmp"), (&dirs[1], b"final"))?;
    assert_eq!(tree.read(&dirs[1], b"final")?, b"local");
    wait_for_count(&mut tree, &dirs[0], b"kept", 2)?;

    let inner = tree.make_directory(&dirs[1], b"inner", 0o755)?;
    assert_eq!(kind_of(tree.rename((&dirs[0], b"y"), (&dirs[1], b"inner"))), Kind::IsADirectory);
    assert_eq!(kind_of(tree.rename((&dirs[1], b"inner"), (&dirs[0], b"d"))), Kind::CrossDevice);
    tree.change(Request::make_symlink(&dirs[0], b"y", b"link"))?;
    assert_eq!(kind_of(tree.rename((&dirs[0], b"link"), (&dirs[1], b"l"))), Kind::CrossDevice);
    assert_eq!(kind_of(tree.rename((&dirs[0], b"none"), (&dirs[1], b"l"))), Kind::NotFound);
    assert_eq!(tree.list(&inner)?, []);
    let kept = Request::rename_across((&dirs[0], b"y"), (&dirs[1], b"final"), false);
    assert_eq!(kind_of(tree.change(kept)), Kind::Exists);
    assert_eq!(tree.read(&dirs[1], b"final")?, b"local");
    wait_for_count(&mut tree, &dirs[0], b"kept", 2)?;
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

#[test]
fn a_file_has_names_at_several_seats() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = one_at_each_seat(&mut tree, 3)?;
    create(&mut tree, &dirs[0], b"f", b"content")?;
    let old = LiveFile::at(&dirs[0], b"f");
    assert_eq!(tree.link(&old, &dirs[1], b"g")?.nlink, 2);
    assert_eq!(tree.link(&old, &dirs[2], b"h")?.nlink, 3);
    assert_eq!(kind_of(tree.link(&old, &dirs[2], b"h")), Kind::Exists);
    wait_for_count(&mut tree, &dirs[0], b"f", 3)?;
    // From a name at another seat, by the place at its own.
    let (roots, own_name) = tree.locate_file(&dirs[1].join(b"g"))?;
    let far = LiveFile { dir: &roots, name: &own_name, id: 0 };
    assert_eq!(tree.link(&far, &dirs[2], b"i")?.nlink, 4);
    assert_eq!(tree.link(&far, &dirs[0], b"j")?.nlink, 5);
    for (dir, name) in [(0, b"f"), (1, b"g"), (2, b"h"), (2, b"i"), (0, b"j")] {
        let found = tree.lookup(&dirs[dir], name)?;
        assert_eq!((found.nlink, found.size), (5, 7));
    }
    tree.change(Request::unlink(&dirs[0], &[b"f"]))?;
    tree.change(Request::unlink(&dirs[1], &[b"g"]))?;
    wait_for_count(&mut tree, &dirs[2], b"h", 3)?;
    let all = all_paths(&mut tree, &LiveDir::root())?;
    let set = tree.snapshot("links")?;
    for server in servers {
        server.end()?;
    }
    assert_eq!(all_paths_of(&live.repository, set)?, all);
    let session = live.repository.begin(&[set], session_options())?;
    let shown = session.namespace().stat(&dirs[2].join(b"i"), FollowLinks::No)?;
    assert_eq!(shown.nlink, 3);
    live.assert_sound()
}

#[test]
fn an_open_file_stays_usable_while_it_moves() -> Result<()> {
    let live = SeatedStore::new(2);
    let servers = live.serve_all();
    let (mut tree, mut other) = (live.connect(), live.connect());
    let dirs = one_at_each_seat(&mut tree, 2)?;
    create(&mut tree, &dirs[0], b"f", b"content")?;
    let id = tree.lookup(&dirs[0], b"f")?.id;
    let file = LiveFile { dir: &dirs[0], name: b"f", id };
    tree.change(Request::open(&file))?;
    other.rename((&dirs[0], b"f"), (&dirs[1], b"g"))?;
    tree.change(Request::write(&file, 7, b"s"))?;
    assert_eq!(other.read(&dirs[1], b"g")?, b"contents");
    other.change(Request::unlink(&dirs[1], &[b"g"]))?;
    for _ in 0..500 {
        let found = tree.call(Request::attributes(&file))?.only(take_attributes)?;
        if found.nlink == 0 {
            tree.change(Request::write(&file, 8, b"!"))?;
            tree.change(Request::close(&file))?;
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

#[test]
fn names_of_a_spread_directory_are_renamed_to_any_other() -> Result<()> {
    let live = SeatedStore::new(4);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dir = tree.make_spread_directory(&LiveDir::root(), b"big", 0o755)?;
    for number in 0..200 {
        let (tmp, name) = (format!(".tmp.{number}"), format!("file.{number}"));
        create(&mut tree, &dir, tmp.as_bytes(), name.as_bytes())?;
        tree.rename((&dir, tmp.as_bytes()), (&dir, name.as_bytes()))?;
    }
    let all = all_paths(&mut tree, &LiveDir::root())?;
    assert_eq!(all.len(), 201);
    for number in 0..200 {
        let name = format!("file.{number}");
        assert_eq!(all.get(&dir.join(name.as_bytes())[..]), Some(&name.into_bytes()));
    }
    let set = tree.snapshot("big")?;
    assert_eq!(all_paths_of(&live.repository, set)?, all);
    tree.remove_tree(&LiveDir::root(), b"big")?;
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

#[test]
fn a_snapshot_shows_moved_files_as_plain_ones() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = one_at_each_seat(&mut tree, 3)?;
    for number in 0..30usize {
        let name = format!("f{number}").into_bytes();
        create(&mut tree, &dirs[number % 3], &name, &name)?;
        tree.rename((&dirs[number % 3], &name), (&dirs[(number + 1) % 3], &name))?;
    }
    let all = all_paths(&mut tree, &LiveDir::root())?;
    let set = tree.snapshot("moved")?;
    for server in servers {
        server.end()?;
    }
    live.assert_sound()?;
    assert_eq!(all_paths_of(&live.repository, set)?, all);

    let session = live.repository.begin(&[set], session_options())?;
    let dir = |at: usize| session.namespace().dir(&dirs[at].path);
    // f0 is in the second directory, f1 in the third, and so on.
    let shown = session.namespace().lookup(&*dir(1)?, b"f0", false)?;
    assert_eq!((shown.kind(), shown.nlink, shown.seat()), (Some(FileKind::File), 1, None));
    session.unlink(&dir(1)?, b"f0")?;
    session.rename((&dir(2)?, b"f1"), (&dir(0)?, b"f2"), RenameFlags::Replace)?;
    session.link(&dir(1)?, b"f3", session.root(), b"linked")?;
    let file = session.open_file(&dir(2)?, b"f4")?;
    session.file(&file).write(2, b"!")?;
    session.close_file(file)?;
    let top = session.publish("top")?;
    let mut expected = all.clone();
    let at = |at: usize, name: &str| dirs[at].join(name.as_bytes());
    expected.remove(&at(1, "f0"));
    expected.remove(&at(2, "f1"));
    expected.insert(at(0, "f2"), b"f1".to_vec());
    expected.insert(b"/linked".to_vec(), b"f3".to_vec());
    expected.insert(at(2, "f4"), b"f4!".to_vec());
    assert_eq!(all_paths_of(&live.repository, top)?, expected);
    live.assert_sound()?;

    let (squashed, _) = live.repository.squash(&[set], &Default::default())?;
    assert_eq!(all_paths_of(&live.repository, squashed)?, all);
    let (whole, _) = live.repository.squash(&[top], &Default::default())?;
    assert_eq!(all_paths_of(&live.repository, whole)?, expected);
    live.assert_sound()?;

    // Another live namespace begins with it.
    live.repository.remove_live(NAME, &session_options())?;
    drop(live.repository.create_live(NAME, &[top], 3, session_options())?);
    let servers = live.serve_all();
    let mut tree = live.connect();
    assert_eq!(all_paths(&mut tree, &LiveDir::root())?, expected);
    let home = tree.dir(&dirs[1].path)?;
    let far = loop {
        let name = format!("far{}", tree.list(&LiveDir::root())?.len());
        let far = tree.make_directory(&LiveDir::root(), name.as_bytes(), 0o755)?;
        if far.place.seat != 0 {
            break far;
        }
    };
    tree.rename((&home, b"f3"), (&far, b"f3"))?;
    assert_eq!(tree.read(&far, b"f3")?, b"f3");
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

/// Clients rename files between directories at all seats. No snapshot has a file under two names, or
/// under none.
#[test]
fn every_snapshot_has_each_file_once() -> Result<()> {
    const CLIENTS: usize = 3;
    const FILES: usize = 8;
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = one_at_each_seat(&mut tree, 3)?;
    for client in 0..CLIENTS {
        for file in 0..FILES {
            let name = format!("c{client}.{file}").into_bytes();
            create(&mut tree, &dirs[0], &name, &name)?;
        }
    }
    let (is_done, moves) = (AtomicBool::new(false), AtomicU64::new(0));
    let sets = std::thread::scope(|scope| -> Result<Vec<SetId>> {
        for client in 0..CLIENTS {
            let (live, dirs, is_done, moves) = (&live, &dirs, &is_done, &moves);
            scope.spawn(move || {
                let mut tree = live.connect();
                let mut random = Random::from_seed(client as u64);
                let mut places = [0usize; FILES];
                while !is_done.load(Ordering::Relaxed) {
                    let file = random.below(FILES as u64) as usize;
                    let to = random.below(3) as usize;
                    let name = format!("c{client}.{file}").into_bytes();
                    let (old, new) = (&dirs[places[file]], &dirs[to]);
                    tree.rename((old, &name), (new, &name)).expect("it moves");
                    places[file] = to;
                    moves.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut sets = Vec::new();
        while sets.len() < 15 {
            std::thread::sleep(Duration::from_millis(20));
            let taken = tree.snapshot(&format!("s{}", sets.len()));
            if taken.is_err() {
                is_done.store(true, Ordering::Relaxed);
            }
            sets.push(taken?);
        }
        is_done.store(true, Ordering::Relaxed);
        Ok(sets)
    })?;
    assert!(moves.load(Ordering::Relaxed) > 100, "{moves:?} moves");
    for set in sets {
        let files = all_paths_of(&live.repository, set)?;
        let mut names: Vec<&[u8]> = files
            .iter()
            .filter(|(_, content)| !content.is_empty())
            .map(|(path, content)| {
                assert!(path.ends_with(content));
                &content[..]
            })
            .collect();
        names.sort_unstable();
        let expected = names.len();
        names.dedup();
        assert_eq!((names.len(), expected), (CLIENTS * FILES, CLIENTS * FILES));
    }
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

/// Several clients rename the same files to the same names at the same time, and remove them: each
/// file is at one name at the end, or at none, and each rename that succeeded was one of a file that
/// was there.
#[test]
fn clients_that_move_the_same_files_agree() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = one_at_each_seat(&mut tree, 3)?;
    const ROUNDS: usize = 40;
    for round in 0..ROUNDS {
        create(&mut tree, &dirs[round % 3], b"token", b"token")?;
        let wins: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4usize)
                .map(|client| {
                    let (live, dirs) = (&live, &dirs);
                    scope.spawn(move || {
                        let mut tree = live.connect();
                        let from = &dirs[round % 3];
                        let done = match client {
                            0 => tree.change(Request::unlink(from, &[b"token"])),
                            _ => {
                                let to = &dirs[(round + client) % 3];
                                let name = format!("to{client}");
                                tree.rename((from, b"token"), (to, name.as_bytes()))
                            }
                        };
                        match done {
                            Ok(()) => 1,
                            Err(error) if error.kind() == Kind::NotFound => 0,
                            Err(error) => panic!("client {client}: {error}"),
                        }
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
        });
        assert_eq!(wins, 1, "round {round}");
        let mut left = 0;
        for dir in &dirs {
            for entry in tree.list(dir)? {
                assert_eq!(tree.read(dir, &entry.name)?, b"token");
                tree.change(Request::unlink(dir, &[&entry.name]))?;
                left += 1;
            }
        }
        assert!(left <= 1, "round {round}: {left} names");
    }
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

#[test]
fn permissions_are_those_of_the_user_at_both_seats() -> Result<()> {
    if !Identity::of_process().is_root() {
        println!("skipped: needs the superuser");
        return Ok(());
    }
    let folder = tempfile::tempdir().expect("a folder");
    let secret = UserSecret::read_or_make(&folder.path().join("secret"))?;
    let live = SeatedStore::new(2);
    let mut servers = Vec::new();
    for seat in 0..2 {
        let server = LiveServer::start(&live.repository, (NAME, seat), tcp_options(&secret))?;
        // Over TCP clients act for the user whom they name.
        let mut address = server.address().clone();
        (address.unix, address.instance) = (None, seat.to_string().repeat(16));
        live.store.delete(&format!("live/{NAME}/server/{}", server.address().instance))?;
        address.put(&*live.store, (NAME, seat))?;
        servers.push(server);
    }
    let connect = |identity: Identity| {
        let secret = Some(secret.clone());
        LiveTree::connect(
            &live.store,
            NAME,
            LiveClientOptions { identity, secret, ..client_options() },
        )
    };
    let user = Identity { uid: 1000, gid: 1000, groups: Vec::new() };
    let (mut tree, mut user) = (connect(Identity::root())?, connect(user)?);
    let dirs = one_at_each_seat(&mut tree, 2)?;
    let mode = |mode| AttributeRequest { mode: Some(mode), ..AttributeRequest::default() };
    for dir in &dirs {
        tree.set_attributes(dir, b"", &mode(0o777))?;
    }
    create(&mut user, &dirs[0], b"f", b"user's")?;
    create(&mut tree, &dirs[1], b"root's", b"root's")?;
    // A sticky directory, and one that may not be written.
    tree.set_attributes(&dirs[1], b"", &mode(0o1777))?;
    let refused = user.rename((&dirs[0], b"f"), (&dirs[1], b"root's"));
    assert_eq!(kind_of(refused), Kind::NotPermitted);
    tree.set_attributes(&dirs[1], b"", &mode(0o755))?;
    assert_eq!(kind_of(user.rename((&dirs[0], b"f"), (&dirs[1], b"g"))), Kind::Denied);
    assert_eq!(kind_of(user.rename((&dirs[1], b"root's"), (&dirs[0], b"g"))), Kind::Denied);
    // A directory within one that the user may not search.
    let inner = loop {
        let name = format!("inner{}", tree.list(&dirs[1])?.len());
        let inner = tree.make_directory(&dirs[1], name.as_bytes(), 0o777)?;
        if inner.place.seat == dirs[1].place.seat {
            break inner;
        }
    };
    tree.set_attributes(&inner, b"", &mode(0o777))?;
    tree.set_attributes(&dirs[1], b"", &mode(0o700))?;
    let request = Request::rename_across((&dirs[0], b"f"), (&inner, b"g"), true);
    assert_eq!(kind_of(user.change(request)), Kind::Denied);
    assert_eq!(user.read(&dirs[0], b"f")?, b"user's");
    tree.set_attributes(&dirs[1], b"", &mode(0o777))?;
    user.rename((&dirs[0], b"f"), (&dirs[1], b"g"))?;
    let found = tree.lookup(&dirs[1], b"g")?;
    assert_eq!((found.uid, found.gid), (1000, 1000));
    drop(servers);
    Ok(())
}

/// The store stops at each request of both servers while files are moved: each is there afterwards, at
/// its old name or at its new one.
#[test]
fn a_stop_at_any_store_request_loses_no_file() -> Result<()> {
    const AT_ONCE: u64 = 24;
    let mut begin = 0;
    loop {
        let done: Vec<bool> = std::thread::scope(|scope| {
            let stops = begin..begin + AT_ONCE;
            let run = |stop| scope.spawn(move || is_done_before_stop(stop).expect("no failure"));
            let runs: Vec<_> = stops.map(run).collect();
            runs.into_iter().map(|run| run.join().expect("no panic")).collect()
        });
        if let Some(first) = done.iter().position(|is_done| *is_done) {
            assert!(begin + first as u64 > 10, "{first} store requests");
            return Ok(());
        }
        begin += AT_ONCE;
    }
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
    let mut moved = 0;
    for number in 0..MOVED {
        let name = format!("f{number}").into_bytes();
        // There and back, and over the other one.
        let steps = [(0, 1, b"far"), (1, 0, b"bak")].map(|(from, to, by)| (from, to, by));
        let mut at = (0, name.clone());
        for (from, to, by) in steps {
            assert_eq!(from, at.0);
            let new = [&name[..], by].concat();
            if tree.rename((&dirs[from], &at.1), (&dirs[to], &new)).is_err() {
                break;
            }
            at = (to, new);
        }
        if at.0 != 0 || at.1 == name || tree.rename((&dirs[0], &at.1), (&dirs[1], &name)).is_err() {
            break;
        }
        moved += 1;
    }
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
    let mut servers: Vec<Option<LiveServer>> = live.serve_all().into_iter().map(Some).collect();
    let dirs = one_at_each_seat(&mut live.connect(), 3)?;
    live.connect().sync()?;
    let is_done = AtomicBool::new(false);
    let (count, places) = std::thread::scope(|scope| -> Result<(u64, Vec<Vec<usize>>)> {
        let workers: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (live, dirs) = (&live, &dirs[..]);
                scope.spawn(move || move_files((live, dirs), client, (seed, rounds)))
            })
            .collect();
        let replaced = scope.spawn(|| {
            let (mut random, mut count) = (Random::from_seed(seed), 0);
            while !is_done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20 + random.below(80)));
                let seat = random.below(3) as u16;
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
        let places: Result<Vec<Vec<usize>>> =
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
        is_done.store(true, Ordering::Relaxed);
        let count = replaced.join().expect("no panic");
        Ok((count, places?))
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
    for server in servers.into_iter().flatten() {
        server.end()?;
    }
    live.assert_sound()?;
    Ok(count)
}

/// Clients make and remove directories at other seats, move files and take snapshots, all at once. No
/// snapshot fails because a move waits behind something that waits for the end of the snapshot.
#[test]
fn snapshots_moves_and_directories_do_not_wait_for_each_other() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = one_at_each_seat(&mut tree, 3)?;
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        for client in 0..6usize {
            let (live, dirs, is_done) = (&live, &dirs, &is_done);
            scope.spawn(move || {
                let mut tree = live.connect();
                let name = format!("c{client}").into_bytes();
                let mut at = client % 3;
                if client < 3 {
                    create(&mut tree, &dirs[at], &name, b"moves").expect("a file");
                }
                while !is_done.load(Ordering::Relaxed) {
                    let to = (at + 1) % 3;
                    if client < 3 {
                        tree.rename((&dirs[at], &name), (&dirs[to], &name)).expect("it moves");
                    } else {
                        tree.make_directory(&dirs[at], &name, 0o755).expect("it is made");
                        let remove = Request::remove_directory(&dirs[at], &[&name]);
                        tree.change(remove).expect("it is empty");
                    }
                    at = to;
                }
            });
        }
        let taken = (0..30).try_for_each(|number| {
            std::thread::sleep(Duration::from_millis(15));
            tree.snapshot(&format!("s{number}")).map(drop)
        });
        is_done.store(true, Ordering::Relaxed);
        taken
    })?;
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}
