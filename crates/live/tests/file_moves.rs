// SPDX-License-Identifier: Apache-2.0
//! Renames of files between directories at different seats.

use std::time::Duration;

use esker_base::{Kind, Result};
use esker_fs::inode::FileKind;
use esker_fs::names::live_namespace::LiveNamespace;
use esker_fs::ops::RenameFlags;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_live::client::{LiveClientOptions, LiveDir, LiveFile, Request};
use esker_live::proof::UserSecret;
use esker_live::wire::{AttributeRequest, take_attributes};
use esker_live::{LiveServer, LiveTree};

use crate::seated_store::{SeatedStore, all_paths, all_paths_of};
use crate::served::{NAME, client_options, session_options, tcp_options};

/// Makes directories in the root until one is at each seat; returns these, by seat.
pub fn one_at_each_seat(tree: &mut LiveTree, seats: u16) -> Result<Vec<LiveDir>> {
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

pub fn create(tree: &mut LiveTree, dir: &LiveDir, name: &[u8], content: &[u8]) -> Result<()> {
    tree.create(dir, name, 0o644)?;
    tree.write(dir, name, 0, content)
}

pub fn kind_of<T: std::fmt::Debug>(outcome: Result<T>) -> Kind {
    outcome.expect_err("it fails").kind()
}

/// Waits until nothing is left among the seat roots of files that lost their names.
pub fn wait_for_count(tree: &mut LiveTree, dir: &LiveDir, name: &[u8], names: u32) -> Result<()> {
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
    let shown = session.namespace().stat(dirs[2].join(b"i"), FollowLinks::No)?;
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
    let names = |tree: &mut LiveTree| -> Result<u32> {
        Ok(tree.call(Request::attributes(&file))?.only(take_attributes)?.nlink)
    };
    let mut waits = 0;
    while names(&mut tree)? > 0 {
        assert!(waits < 500, "it has lost its last name");
        std::thread::sleep(Duration::from_millis(10));
        waits += 1;
    }
    tree.change(Request::write(&file, 8, b"!"))?;
    let read = tree.call(Request::read(&file, 0, 100))?;
    assert_eq!(read.only(|input| Ok(input.bytes(100, "content")?.to_vec()))?, b"contents!");
    tree.change(Request::close(&file))?;
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
        let folder = LiveNamespace::server_folder(NAME, seat);
        live.store.delete(&format!("{folder}{}", server.address().instance))?;
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
        assert_eq!(kind_of(user.create(dir, b"refused", 0o644)), Kind::Denied);
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
