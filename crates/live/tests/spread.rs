// SPDX-License-Identifier: Apache-2.0
//! Spread directories: directories whose names are spread over all seats of a live namespace.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use std::time::Duration;

use esker_base::{Kind, Result};
use esker_fs::repository::Repository;
use esker_fs::stack::namespace::FollowLinks;
use esker_live::LiveTree;
use esker_live::client::{LiveDir, LiveFile, Request};
use esker_live::wire::{AttributeRequest, take_attributes};

use crate::gated_store::{GatedCalls, GatedStore};
use crate::seated_store::{SeatedStore, all_paths, all_paths_of};
use crate::served::{NAME, session_options};

const FILES: usize = 2000;

fn name_of(number: usize) -> Vec<u8> {
    format!("file.{number}").into_bytes()
}

/// Makes the spread directory `/big` with [`FILES`] empty files.
fn fill(tree: &mut LiveTree) -> Result<LiveDir> {
    let dir = tree.make_spread_directory(&LiveDir::root(), b"big", 0o755)?;
    let names: Vec<Vec<u8>> = (0..FILES).map(name_of).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    tree.create_all(&dir, &names, 0o644)?.into_iter().collect::<Result<()>>()?;
    Ok(dir)
}

/// Two names in `dir` that the same seat has, and one that another has.
fn neighbours(dir: &LiveDir) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let names: Vec<Vec<u8>> = (0..100).map(|number| format!("n{number}").into_bytes()).collect();
    let near = names[1..].iter().find(|name| dir.seat_of(name) == dir.seat_of(&names[0]));
    let far = names.iter().find(|name| dir.seat_of(name) != dir.seat_of(&names[0]));
    (names[0].clone(), near.expect("likely").clone(), far.expect("likely").clone())
}

#[test]
fn names_of_one_directory_are_at_all_seats() -> Result<()> {
    let live = SeatedStore::new(4);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dir = fill(&mut tree)?;
    assert!(dir.is_spread() && dir.parts().count() == 4);
    for part in dir.parts() {
        let listed = tree.call(Request::list(&part, b"", 8192))?;
        let (is_end, entries) = listed.only(esker_live::client::take_entries)?;
        assert!(is_end && (400..600).contains(&entries.len()), "{}", entries.len());
    }
    let listed: Vec<Vec<u8>> = tree.list(&dir)?.into_iter().map(|entry| entry.name).collect();
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), (0..FILES).map(name_of).collect());
    assert_eq!(listed.len(), FILES);
    // Another client finds everything by path.
    let mut other = live.connect();
    assert_eq!(other.dir(b"/big")?.id, dir.id);
    for number in (0..FILES).step_by(97) {
        let (found, name) = other.locate_file(&[b"/big/", &name_of(number)[..]].concat())?;
        other.write(&found, &name, 0, b"content")?;
        assert_eq!(tree.read(&dir, &name)?, b"content");
    }
    let names = [name_of(1), b"missing".to_vec(), name_of(2)];
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let found: Vec<bool> = tree.lookup_all(&dir, &names)?.iter().map(Result::is_ok).collect();
    assert_eq!(found, [true, false, true]);
    let refused = tree.create(&dir, &name_of(5), 0o644).expect_err("there");
    assert_eq!(refused.kind(), Kind::Exists);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

#[test]
fn a_spread_directory_is_one_directory_for_paths_links_and_attributes() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let (mut tree, root) = (live.connect(), LiveDir::root());
    let dir = tree.make_spread_directory(&root, b"big", 0o755)?;
    let (one, near, far) = neighbours(&dir);
    // A symbolic link leads to a name that another seat has, also from below and back.
    let below = tree.make_directory(&dir, &one, 0o755)?;
    tree.create(&dir, &far, 0o644)?;
    tree.write(&dir, &far, 0, b"far")?;
    tree.change(Request::make_symlink(&below, &[b"../", &far[..]].concat(), b"up"))?;
    tree.change(Request::make_symlink(&dir, &[b"./", &far[..]].concat(), &near))?;
    for path in [[b"/big/", &near[..]].concat(), [b"/big/", &one[..], b"/up"].concat()] {
        let found = tree.resolve(&path, FollowLinks::Yes)?;
        assert_eq!(found.attributes.size, 3, "{}", String::from_utf8_lossy(&path));
        assert_eq!(tree.read(&found.dir, &found.name)?, b"far");
    }
    assert_eq!(tree.resolve(b"/big/../big/.", FollowLinks::Yes)?.attributes.id, dir.id.0);
    let (from, _, to) = neighbours(&dir);
    let link = Request::link(&LiveFile::at(&dir, &from), &dir, &to);
    assert_eq!(tree.change(link).expect_err("two seats").kind(), Kind::CrossDevice);
    let directory = tree.link(&LiveFile::at(&dir, &from), &dir, &to);
    assert_eq!(directory.expect_err("a directory").kind(), Kind::CrossDevice);
    // A name is made only at the seat that has it.
    let wrong = dir.parts().find(|part| part.place.seat != dir.seat_of(b"new")).expect("three");
    let mut forged = wrong.clone();
    forged.place.top = esker_fs::inode::DirId::ROOT;
    tree.call(Request::list(&wrong, b"", 1))?;
    let refused = tree.create(&forged, b"new", 0o644).expect_err("another seat has it");
    assert_eq!(refused.kind(), Kind::CrossDevice);
    // Attributes are those of all parts.
    let changes = AttributeRequest { mode: Some(0o700), ..AttributeRequest::default() };
    tree.set_attributes(&dir, b"", &changes)?;
    for part in dir.parts() {
        let own = tree.call(Request::attributes(&LiveFile::at(&part, b"")))?;
        assert_eq!(own.only(take_attributes)?.mode, 0o700);
    }
    assert_eq!(tree.lookup(&root, b"big")?.mode, 0o700);
    drop(servers);
    Ok(())
}

#[test]
fn a_spread_directory_is_removed_when_all_its_parts_are_empty() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let (mut tree, root) = (live.connect(), LiveDir::root());
    for name in [&b"a"[..], b"b", b"c", b"d", b"e"] {
        let dir = tree.make_spread_directory(&root, b"big", 0o755)?;
        tree.create(&dir, name, 0o644)?;
        let remove = || Request::remove_directory(&root, &[b"big"]);
        assert_eq!(tree.change(remove()).expect_err("in use").kind(), Kind::NotEmpty);
        // Every part takes names again.
        for number in 0..30 {
            tree.create(&dir, &name_of(number), 0o644)?;
        }
        for number in 0..30 {
            tree.change(Request::unlink(&dir, &[&name_of(number)]))?;
        }
        tree.change(Request::unlink(&dir, &[name]))?;
        tree.change(remove())?;
        assert_eq!(tree.create(&dir, name, 0o644).expect_err("gone").kind(), Kind::NotFound);
        assert_eq!(tree.lookup(&root, b"big").expect_err("gone").kind(), Kind::NotFound);
    }
    let dir = fill(&mut tree)?;
    for number in 0..20 {
        let inner = tree.make_directory(&dir, format!("d{number}").as_bytes(), 0o755)?;
        tree.create(&inner, b"f", 0o644)?;
    }
    let inner = tree.make_spread_directory(&dir, b"inner", 0o755)?;
    tree.create(&inner, b"f", 0o644)?;
    tree.remove_tree(&root, b"big")?;
    assert_eq!(tree.list(&root)?, []);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

/// Clients make files in a directory that another one removes again and again: each file is made in
/// a directory that is there, and no removal loses one.
#[test]
fn a_removal_never_takes_a_name_that_was_made() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let is_done = AtomicBool::new(false);
    let (made, removed) = std::thread::scope(|scope| {
        let maker = scope.spawn(|| -> Result<usize> {
            let (mut tree, mut made) = (live.connect(), 0);
            while !is_done.load(Ordering::Relaxed) {
                let Ok(dir) = tree.dir(b"/big") else { continue };
                for number in 0..6 {
                    let name = name_of(number);
                    match tree.create(&dir, &name, 0o644) {
                        Ok(()) => {
                            // It is there until this client removes it.
                            tree.lookup(&dir, &name)?;
                            tree.change(Request::unlink(&dir, &[&name]))?;
                            made += 1;
                        }
                        Err(error) => assert!(
                            [Kind::NotFound, Kind::Conflict, Kind::Fenced].contains(&error.kind()),
                            "{error}"
                        ),
                    }
                }
            }
            Ok(made)
        });
        let remover = scope.spawn(|| -> Result<usize> {
            let (mut tree, root, mut removed) = (live.connect(), LiveDir::root(), 0);
            for round in 0..150 {
                match tree.make_spread_directory(&root, b"big", 0o755) {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), Kind::Exists, "round {round}: {error}"),
                }
                // As it is for `mkdir` once more.
                let again = tree.make_spread_directory(&root, b"big", 0o755).expect_err("there");
                assert_eq!(again.kind(), Kind::Exists, "round {round}: {again}");
                match tree.change(Request::remove_directory(&root, &[b"big"])) {
                    Ok(()) => removed += 1,
                    Err(error) => assert_eq!(error.kind(), Kind::NotEmpty, "round {round}"),
                }
            }
            Ok(removed)
        });
        let removed = remover.join();
        is_done.store(true, Ordering::Relaxed);
        (maker.join().expect("no panic"), removed.expect("no panic"))
    });
    let (made, removed) = (made?, removed?);
    assert!(removed > 10, "{made} made, {removed} removed");
    drop(servers);
    Ok(())
}

#[test]
fn a_snapshot_shows_a_spread_directory_as_a_plain_one() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dir = fill(&mut tree)?;
    let inner = tree.make_directory(&dir, b"inner", 0o755)?;
    tree.create(&inner, b"f", 0o644)?;
    tree.write(&inner, b"f", 0, b"deep")?;
    let set = tree.snapshot("big")?;
    let all = all_paths(&mut tree, &LiveDir::root())?;
    assert_eq!(all.len(), FILES + 3);
    assert_eq!(all_paths_of(&live.repository, set)?, all);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()?;
    // A session on top of it, and a live namespace, have one directory like any other.
    let session = live.repository.begin(&[set], session_options())?;
    let big = session.namespace().dir(b"/big")?;
    session.rename((&big, &name_of(0)), (&big, b"renamed"), Default::default())?;
    session.create(&big, b"new", 0o644)?;
    let top = session.publish("top")?;
    let next =
        SeatedStore { store: live.store.clone(), repository: live.repository.clone(), seats: 2 };
    next.repository.remove_live(NAME, &session_options())?;
    drop(next.repository.create_live(NAME, &[top], 2, session_options())?);
    let servers = next.serve_all();
    let mut tree = next.connect();
    let dir = tree.dir(b"/big")?;
    assert!(!dir.is_spread());
    assert_eq!(tree.list(&dir)?.len(), FILES + 2);
    for number in 1..20 {
        tree.rename((&dir, &name_of(number)), (&dir, format!("moved.{number}").as_bytes()))?;
        tree.create(&dir, &name_of(number), 0o644)?;
    }
    drop(servers);
    Ok(())
}

/// Symptom: a server ended after a spread directory had been renamed. Cause: where it had both the name
/// and a part, the rename gave the part the place of the name, whose record it then changed. Fix: a part
/// keeps its place.
#[test]
fn a_spread_directory_is_renamed_while_files_are_made_in_it() -> Result<()> {
    let live = SeatedStore::new(2);
    let servers = live.serve_all();
    let (mut tree, root) = (live.connect(), LiveDir::root());
    let mut dir = tree.make_spread_directory(&root, b"step.tmp", 0o755)?;
    for round in 0..3 {
        for number in 0..20 {
            tree.create(&dir, format!("{round}.{number}").as_bytes(), 0o644)?;
        }
        let name = format!("step.{round}").into_bytes();
        tree.rename((&root, dir.path.strip_prefix(b"/").expect("in the root")), (&root, &name))?;
        tree.sync()?;
        dir = tree.dir(&root.join(&name))?;
        assert_eq!(tree.list(&dir)?.len(), (round + 1) * 20);
    }
    let set = tree.snapshot("steps")?;
    let all = all_paths(&mut tree, &root)?;
    assert_eq!(all_paths_of(&live.repository, set)?, all);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

/// Symptom: files that were durable at another seat had no path after a crash. Cause: clients saw the
/// name of a directory at another seat before it was synced. Fix: answers that show it wait.
#[test]
fn the_name_of_a_directory_at_another_seat_is_seen_once_it_is_durable() -> Result<()> {
    let live = SeatedStore::new(2);
    let syncs = GatedCalls { append_bytes_min: usize::MAX, syncs: true };
    let (store, gate) = GatedStore::over(live.store.clone(), syncs);
    let gated = SeatedStore { repository: Repository::new(store.clone()), store, seats: 2 };
    let servers = [gated.serve(0), live.serve(1)];
    let (is_open, root) = (AtomicBool::new(false), LiveDir::root());
    live.connect().create(&root, b"before", 0o644)?;
    gate.close();
    std::thread::scope(|scope| {
        let see = |look: fn(&mut LiveTree) -> bool| {
            let (live, is_open) = (&live, &is_open);
            scope.spawn(move || {
                let mut tree = live.connect();
                while !look(&mut tree) {}
                assert!(is_open.load(Ordering::SeqCst), "seen before it is durable");
            })
        };
        see(|tree| tree.lookup(&LiveDir::root(), b"big").is_ok());
        see(|tree| tree.dir(b"/big").is_ok());
        see(|tree| tree.list(&LiveDir::root()).is_ok_and(|entries| entries.len() == 2));
        see(|tree| tree.make_spread_directory(&LiveDir::root(), b"big", 0o755).is_ok());
        std::thread::sleep(Duration::from_millis(600));
        let waiting = gate.waiting();
        is_open.store(true, Ordering::SeqCst);
        gate.open();
        assert!(waiting > 0, "a sync waits");
    });
    drop(servers);
    Ok(())
}

#[test]
fn a_spread_directory_needs_all_servers() -> Result<()> {
    let live = SeatedStore::new(2);
    let mut servers = live.serve_all();
    let (mut tree, root) = (live.connect(), LiveDir::root());
    servers.pop().expect("two").end()?;
    let refused =
        tree.make_spread_directory(&root, b"big", 0o755).expect_err("one seat is missing");
    assert_eq!(refused.kind(), Kind::Unavailable, "{refused}");
    assert_eq!(tree.lookup(&root, b"big").expect_err("not made").kind(), Kind::NotFound);
    servers.push(live.serve(1));
    let mut tree = live.connect();
    let dir = tree.make_spread_directory(&root, b"big", 0o755)?;
    tree.create(&dir, b"f", 0o644)?;
    // One seat alone makes a plain directory.
    let alone = SeatedStore::new(1);
    let _server = alone.serve_all();
    let mut tree = alone.connect();
    let dir = tree.make_spread_directory(&root, b"big", 0o755)?;
    assert!(!dir.is_spread());
    tree.create(&dir, b"f", 0o644)
}
