// SPDX-License-Identifier: Apache-2.0
//! Seats: a live namespace whose directories are spread over several servers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Kind, Random, Result};
use esker_fs::inode::{DirId, FileKind};
use esker_fs::retention::gc::GcOptions;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_live::client::{
    BulkInsertion, LiveClientOptions, LiveDir, LiveFile, Request, WaitNotice,
};
use esker_live::proof::UserSecret;
use esker_live::wire::AttributeRequest;
use esker_live::{LiveServer, LiveServerOptions, LiveTree};
use esker_table::manifest::SetId;

use crate::seated_store::{SeatedStore, all_paths, all_paths_of};
use crate::served::{NAME, client_options, server_options, session_options, tcp_options};

/// Makes `count` directories in each other's and the root's, with a file in each; returns them.
fn grow(tree: &mut LiveTree, count: usize, seed: u64) -> Result<Vec<LiveDir>> {
    let mut random = Random::from_seed(seed);
    let mut dirs = vec![LiveDir::root()];
    for number in 0..count {
        let parent = dirs[random.below(dirs.len() as u64) as usize].clone();
        let dir = tree.make_directory(&parent, format!("d{number}").as_bytes(), 0o755)?;
        tree.create(&dir, b"file", 0o644)?;
        tree.write(&dir, b"file", 0, &dir.path)?;
        dirs.push(dir);
    }
    Ok(dirs)
}

/// Removes everything in `dir`.
fn remove_entries(tree: &mut LiveTree, dir: &LiveDir) -> Result<()> {
    for entry in tree.list(dir)? {
        match entry.attributes.kind {
            FileKind::Directory => tree.remove_tree(dir, &entry.name)?,
            _ => tree.change(Request::unlink(dir, &[&entry.name]))?,
        }
    }
    Ok(())
}

#[test]
fn directories_are_spread_and_paths_cross_their_seats() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = grow(&mut tree, 60, 1)?;
    let mut used = [0; 3];
    dirs.iter().for_each(|dir| used[usize::from(dir.place.seat)] += 1);
    assert!(used.iter().all(|used| *used >= 8), "{used:?}");
    let crossing = |dir: &&LiveDir| dir.path.iter().filter(|&&byte| byte == b'/').count() > 2;
    assert!(dirs.iter().filter(crossing).count() > 10);

    // Another client finds all of it, also by links and by `..`.
    let mut other = live.connect();
    for dir in &dirs[1..] {
        let found = other.dir(&dir.path)?;
        assert_eq!((found.id, &found.path, found.place.seat), (dir.id, &dir.path, dir.place.seat));
        assert_eq!(other.read(&found, b"file")?, &*dir.path);
        let (parent, name) = other.locate(&dir.path)?;
        let shown = other.lookup(&parent, name)?;
        assert_eq!(shown.id, dir.id.0);
        let up = [&dir.path, &b"/.."[..]].concat();
        assert_eq!(other.dir(&up)?.id, parent.id, "{}", String::from_utf8_lossy(&up));
        let around = [&dir.path, &b"/../"[..], name, b"/./file"].concat();
        assert_eq!(other.locate_file(&around)?.0.id, dir.id);
        other.change(Request::make_symlink(dir, &[&dir.path, &b"/file"[..]].concat(), b"abs"))?;
        other.change(Request::make_symlink(dir, &[b"../", name, b"/file"].concat(), b"rel"))?;
        for link in [&b"abs"[..], b"rel"] {
            let (at, name) = other.locate_file(&dir.join(link))?;
            assert_eq!((at.id, &name[..]), (dir.id, &b"file"[..]));
        }
    }
    let all = all_paths(&mut tree, &LiveDir::root())?;
    assert_eq!(all.len(), 60 * 4);

    // A loop of links over seats ends.
    let far = dirs.iter().find(|dir| dir.place.seat == 1).expect("one of sixty");
    other.change(Request::make_symlink(far, &far.join(b"round"), b"round"))?;
    assert_eq!(other.dir(&far.join(b"round")).unwrap_err().kind(), Kind::Loop);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

/// Symptom: a directory deep below others at other seats was not found, as if its path had a loop.
/// Cause: every crossing counted as one that may be part of a loop. Fix: only those that leave not less
/// of the path count.
#[test]
fn a_path_crosses_as_many_seats_as_it_has_names() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let (mut dir, mut crossings) = (LiveDir::root(), 0);
    for _ in 0..600 {
        let inner = tree.make_directory(&dir, b"d", 0o755)?;
        crossings += usize::from(inner.place.seat != dir.place.seat);
        dir = inner;
    }
    assert!(crossings > 300, "{crossings}");
    assert_eq!(tree.dir(&dir.path)?, dir);
    let up = [&dir.path[..], b"/../d"].concat();
    assert_eq!(tree.dir(&up)?, dir);
    tree.remove_tree(&LiveDir::root(), b"d")?;
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

#[test]
fn a_directory_at_another_seat_changes_like_any_other() -> Result<()> {
    let live = SeatedStore::new(2);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let root = LiveDir::root();
    let mut made = Vec::new();
    for number in 0.. {
        let name = format!("d{number}").into_bytes();
        let dir = tree.make_directory(&root, &name, 0o750)?;
        made.push((name, dir));
        if [0, 1].iter().all(|seat| made.iter().any(|(_, dir)| dir.place.seat == *seat)) {
            break;
        }
    }
    let of_seat = |seat| made.iter().find(|(_, dir)| dir.place.seat == seat).expect("made");
    let ((near_name, near), (name, far)) = (of_seat(0), of_seat(1));
    let shown = tree.lookup(&root, name)?;
    assert_eq!((shown.mode, shown.kind), (0o750, FileKind::Directory));
    let mode = AttributeRequest { mode: Some(0o711), ..AttributeRequest::default() };
    tree.change(Request::set_attributes(&LiveFile::at(far, b""), &mode))?;
    assert_eq!(tree.lookup(&root, name)?.mode, 0o711);
    // By its name it cannot be changed: that is at the other seat.
    let refused = tree.set_attributes(&root, name, &mode).unwrap_err();
    assert_eq!(refused.kind(), Kind::CrossDevice);

    tree.create(far, b"file", 0o644)?;
    tree.create(near, b"near", 0o644)?;
    let remove = || Request::remove_directory(&root, &[name]);
    assert_eq!(tree.change(remove()).unwrap_err().kind(), Kind::NotEmpty);
    let link = Request::link(&LiveFile::at(far, b"file"), near, b"link");
    assert_eq!(tree.change(link).unwrap_err().kind(), Kind::CrossDevice);
    // Within its own seat it moves, with all that is in it.
    tree.rename((&root, name), (&root, b"moved"))?;
    assert_eq!(tree.dir(b"/moved")?.id, far.id);
    let over = tree.rename((&root, near_name), (&root, b"moved")).unwrap_err();
    assert_eq!(over.kind(), Kind::CrossDevice);
    // A directory is not moved below one that it may contain.
    let below = loop {
        let name = format!("below{}", tree.list(far)?.len());
        let below = tree.make_directory(far, name.as_bytes(), 0o755)?;
        if below.place.seat == 0 {
            break below;
        }
    };
    let looped = tree.rename((&root, near_name), (&below, b"inside")).unwrap_err();
    assert_eq!(looped.kind(), Kind::CrossDevice);
    tree.create(&below, b"file", 0o644)?;
    tree.rename((&below, b"file"), (&root, b"file"))?;

    remove_entries(&mut tree, far)?;
    let twice = Request::remove_directory(&root, &[b"moved", b"moved"]).durable();
    let [first, second] = tree.call(twice)?.outcomes()?.try_into().expect("two items");
    first?;
    assert_eq!(second.expect_err("it is gone").kind(), Kind::NotFound);
    assert_eq!(tree.dir(b"/moved").unwrap_err().kind(), Kind::NotFound);
    assert_eq!(tree.create(far, b"late", 0o644).unwrap_err().kind(), Kind::NotFound);
    let again = tree.make_directory(&root, b"moved", 0o755)?;
    assert_ne!(again.id, far.id);
    assert_eq!(tree.list(&again)?, []);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

#[test]
fn a_snapshot_shows_all_seats_and_takes_changes_on_top() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = grow(&mut tree, 40, 2)?;
    let far = dirs.iter().find(|dir| dir.place.seat == 2).expect("one of forty");
    let mode = AttributeRequest { mode: Some(0o701), ..AttributeRequest::default() };
    tree.change(Request::set_attributes(&LiveFile::at(far, b""), &mode))?;
    let all = all_paths(&mut tree, &LiveDir::root())?;
    let set = tree.snapshot("snapshot")?;
    tree.create(far, b"later", 0o644)?;
    assert_eq!(tree.snapshot("snapshot").unwrap_err().kind(), Kind::Exists);
    for server in servers {
        server.end()?;
    }
    live.repository.gc(&GcOptions { grace: Duration::ZERO, ..Default::default() })?;
    assert_eq!(all_paths_of(&live.repository, set)?, all);
    let view = live.repository.open(&[set], Identity::root())?;
    let shown = view.stat(&far.path, FollowLinks::No)?;
    assert_eq!((shown.mode, shown.seat()), (0o701, None));

    // A session on top has one directory like any other.
    let session = live.repository.begin(&[set], session_options())?;
    let (parent, name) = session.namespace().locate(&far.path)?;
    let changes = esker_fs::ops::AttributeChanges { mode: Some(0o755), ..Default::default() };
    session.setattr(&parent, name, &changes)?;
    assert_eq!(session.namespace().stat(&far.path, FollowLinks::No)?.mode, 0o755);
    let dir = session.namespace().dir(&far.path)?;
    session.create(&dir, b"new", 0o644)?;
    session.rename(
        (&parent, name),
        (session.root(), b"moved"),
        esker_fs::ops::RenameFlags::Replace,
    )?;
    assert_eq!(session.namespace().stat(b"/moved", FollowLinks::No)?.mode, 0o755);
    assert_eq!(session.rmdir(session.root(), b"moved").unwrap_err().kind(), Kind::NotEmpty);
    session.remove_tree(session.root(), b"moved")?;
    let top = session.publish("top")?;
    let prefix = [&far.path, &b"/"[..]].concat();
    let is_left = |path: &Vec<u8>| path[..] != *far.path && !path.starts_with(&prefix);
    let left = all.iter().filter(|(path, _)| is_left(path)).map(|(path, _)| path.clone());
    let shown: Vec<_> = all_paths_of(&live.repository, top)?.into_keys().collect();
    assert_eq!(shown, left.collect::<Vec<_>>());
    live.assert_sound()?;

    // So has a squash.
    let (squashed, _) = live.repository.squash(&[set], &Default::default())?;
    live.repository.delete("snapshot")?;
    live.repository.delete("top")?;
    live.repository.remove_live(NAME, &session_options())?;
    live.repository.gc(&GcOptions { grace: Duration::ZERO, ..Default::default() })?;
    assert_eq!(all_paths_of(&live.repository, squashed)?, all);
    live.assert_sound()
}

/// A directory that nobody may search shows no identity by which one could reach those in it, least
/// of all that of the root.
#[test]
fn a_directory_without_search_permission_leads_nowhere() -> Result<()> {
    let live = SeatedStore::new(2);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let outer = tree.make_directory(&LiveDir::root(), b"outer", 0o755)?;
    let mut made = (0..).map(|number| format!("inner{number}").into_bytes());
    let (name, inner) = loop {
        let name = made.next().expect("there is no end");
        let inner = tree.make_directory(&outer, &name, 0o755)?;
        if inner.place.seat != outer.place.seat {
            break (name, inner);
        }
    };
    let mode = AttributeRequest { mode: Some(0o644), ..AttributeRequest::default() };
    tree.change(Request::set_attributes(&LiveFile::at(&outer, b""), &mode))?;
    // The superuser may search every directory.
    if !Identity::of_process().is_root() {
        let entries = tree.list(&outer)?;
        let shown = entries.iter().find(|entry| entry.name == name).expect("listed");
        assert!(![0, inner.id.0].contains(&shown.attributes.id), "{shown:?}");
        let (root, root_name) = tree.locate(&outer.path)?;
        assert!(tree.remove_tree(&root, root_name).is_err());
    }
    tree.create(&LiveDir::root(), b"still-there", 0o644)?;
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

/// A set is inserted at one seat only: shown by two, its directory would have two names.
#[test]
fn a_set_is_inserted_at_one_seat() -> Result<()> {
    let live = SeatedStore::new(2);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = grow(&mut tree, 20, 5)?;
    let at = |seat| dirs.iter().find(|dir| dir.place.seat == seat).expect("one of twenty");
    let insertion = BulkInsertion::begin(&live.repository, 0o755, session_options())?;
    insertion.session().create(insertion.dir(), b"f", 0o644)?;
    insertion.insert(&mut tree, at(1), b"bulk")?;
    let again = insertion.insert(&mut tree, at(0), b"bulk").expect_err("it has a name");
    assert_eq!(again.kind(), Kind::Conflict);
    let all = all_paths(&mut tree, &LiveDir::root())?;
    assert!(all.contains_key(&at(1).join(b"bulk/f")));
    let set = tree.snapshot("all")?;
    assert_eq!(all_paths_of(&live.repository, set)?, all);
    // Only the server of the root takes snapshots.
    let elsewhere = tree.call(Request::snapshot("part").for_seat(1))?.only(|input| input.u128());
    assert_eq!(elsewhere.expect_err("a part").kind(), Kind::Invalid);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()?;
    live.repository.remove_live(NAME, &session_options())?;
    assert_eq!(live.store.list("live/")?.len(), 0);
    Ok(())
}

/// Symptom: a snapshot lost files, and mixed their bytes. Cause: a set that was in the bases, at seat 0,
/// was inserted at another seat, too, which did not know of it. Fix: what bases show is claimed for
/// seat 0.
#[test]
fn a_set_of_the_bases_is_not_inserted_at_another_seat() -> Result<()> {
    let live = SeatedStore::new(1);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let insertion = BulkInsertion::begin(&live.repository, 0o755, session_options())?;
    insertion.session().create(insertion.dir(), b"f", 0o644)?;
    insertion.insert(&mut tree, &LiveDir::root(), b"bulk")?;
    let inserted = insertion.session().set();
    let base = tree.snapshot("base")?;
    drop(servers);
    live.repository.remove_live(NAME, &session_options())?;
    drop(live.repository.create_live(NAME, &[base], 3, session_options())?);
    let live = SeatedStore { seats: 3, ..live };
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = grow(&mut tree, 20, 6)?;
    for seat in 0..3 {
        let dir = dirs.iter().find(|dir| dir.place.seat == seat).expect("one of twenty");
        let refused = tree.insert_set((inserted, b"content"), dir, b"again").expect_err("shown");
        assert!([Kind::Conflict, Kind::Exists].contains(&refused.kind()), "{seat}: {refused}");
    }
    // A set that was refused for another reason can still be inserted at any seat.
    let other = BulkInsertion::begin(&live.repository, 0o755, session_options())?;
    other.session().create(other.dir(), b"g", 0o644)?;
    let set = other.session().complete()?;
    let at = |seat| dirs.iter().find(|dir| dir.place.seat == seat).expect("one of twenty");
    let missing = tree.insert_set((set, b"missing"), at(1), b"other").expect_err("no such name");
    assert_eq!(missing.kind(), Kind::NotFound);
    tree.insert_set((set, b"content"), at(2), b"other")?;
    drop(servers);
    Ok(())
}

/// The name of a directory whose removal did not finish is, in a snapshot, an empty directory like any
/// other, also at the base of another live namespace.
#[test]
fn a_directory_that_is_gone_at_its_seat_is_empty_in_a_snapshot() -> Result<()> {
    let live = SeatedStore::new(2);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let root = LiveDir::root();
    let dirs = grow(&mut tree, 20, 6)?;
    let far = dirs.iter().find(|dir| dir.place.seat == 1 && dir.path.len() < 5);
    let far = far.expect("one in the root");
    let name = &far.path[1..];
    remove_entries(&mut tree, far)?;
    // What another seat's server does first.
    let mut seat_roots = LiveDir::seat_root(1, DirId::SEAT_ROOTS, b"");
    seat_roots.place.top = DirId::ROOT;
    let root_name = far.id.seat_root_name();
    tree.change(Request::remove_directory(&seat_roots, &[root_name.as_bytes()]))?;
    assert!(tree.list(&root)?.iter().any(|entry| entry.name == name));
    let set = tree.snapshot("half")?;
    tree.change(Request::remove_directory(&root, &[name]))?;
    for server in servers {
        server.end()?;
    }
    let session = live.repository.begin(&[set], session_options())?;
    let dir = session.namespace().dir(&far.path)?;
    session.create(&dir, b"new", 0o644)?;
    session.publish("on-top")?;

    let live = SeatedStore { seats: 1, ..live };
    live.repository.remove_live(NAME, &session_options())?;
    drop(live.repository.create_live(NAME, &[set], 1, session_options())?);
    let server = live.serve(0);
    let mut tree = live.connect();
    let shown = all_paths(&mut tree, &root)?;
    assert_eq!(shown, all_paths_of(&live.repository, set)?);
    let dir = tree.dir(&far.path)?;
    tree.create(&dir, b"new", 0o644)?;
    tree.remove_tree(&root, name)?;
    tree.close()?;
    server.end()?;
    live.assert_sound()
}

/// The server of a seat stops: directories are made at other seats, those at that seat wait, and
/// snapshots fail, all within seconds.
#[test]
fn a_seat_without_a_server_holds_up_only_its_own_directories() -> Result<()> {
    let live = SeatedStore::new(2);
    let mut servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = grow(&mut tree, 20, 7)?;
    drop(servers.pop());
    let began_ns = SystemClock.monotonic_ns();
    let root = LiveDir::root();
    for number in 0..20 {
        let dir = tree.make_directory(&root, format!("new{number}").as_bytes(), 0o755)?;
        assert_eq!(dir.place.seat, 0);
        tree.create(&dir, b"file", 0o644)?;
    }
    let lasted_ns = SystemClock.monotonic_ns() - began_ns;
    assert!(lasted_ns < 15_000_000_000, "{lasted_ns}");
    let refused = tree.snapshot("all").expect_err("a part is missing");
    assert_eq!(refused.kind(), Kind::Unavailable);
    let far = dirs.iter().find(|dir| dir.place.seat == 1 && dir.path.len() < 5);
    let name = &far.expect("one in the root").path[1..];
    let removal = tree.change(Request::remove_directory(&root, &[name]));
    assert_eq!(removal.expect_err("its server is gone").kind(), Kind::Unavailable);
    servers.push(live.serve(1));
    tree.remove_tree(&root, name)?;
    tree.snapshot("all")?;
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}

/// Symptom: a server that accepted no TCP connections could not ask the servers of other seats on other
/// machines, so it took no snapshots and made no directories there. Cause: it had no secret. Fix: it
/// reads that of its user.
#[test]
fn a_server_that_does_not_listen_reaches_seats_on_other_machines() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    let live = SeatedStore::new(2);
    let secret_file = Some(file.clone());
    let options = LiveServerOptions { secret_file, ..server_options() };
    let _near = LiveServer::start(&live.repository, (NAME, 0), options)?;
    // The first server that listens makes the secret.
    let secret = UserSecret::read_or_make(&file)?;
    let far = LiveServer::start(&live.repository, (NAME, 1), tcp_options(&secret))?;
    // Of another machine only TCP is reached.
    let mut address = far.address().clone();
    address.remove(&*live.store, (NAME, 1))?;
    (address.unix, address.instance) = (None, "0".repeat(16));
    address.put(&*live.store, (NAME, 1))?;
    let options = LiveClientOptions { secret: Some(secret), ..client_options() };
    let mut tree = LiveTree::connect(&live.store, NAME, options)?;
    let dirs = grow(&mut tree, 20, 3)?;
    assert!(dirs.iter().any(|dir| dir.place.seat == 1));
    tree.snapshot("all")?;
    Ok(())
}

#[test]
fn a_client_says_for_which_seat_it_waits() -> Result<()> {
    let live = SeatedStore::new(2);
    let mut servers = live.serve_all();
    let said = Arc::new(Mutex::new(Vec::new()));
    let told = said.clone();
    let options = LiveClientOptions {
        patience: Duration::from_secs(4),
        notice: Some(WaitNotice::new(move |what| told.lock().expect("no panic").push(what))),
        ..client_options()
    };
    let mut tree = LiveTree::connect(&live.store, NAME, options)?;
    tree.status_of(1)?;
    servers.pop().expect("two").end()?;
    assert_eq!(tree.status_of(1).expect_err("no server").kind(), Kind::Unavailable);
    let expected = "waiting up to 4 s for a server of seat 1 of run: `esker live serve run --seats 1` \
                    runs one";
    assert_eq!(*said.lock().expect("no panic"), [expected]);
    Ok(())
}

/// Clients make a file at one seat, and then one at another; no snapshot has the second without the
/// first. Snapshots go on while servers come and go.
#[test]
fn a_snapshot_has_no_change_without_those_before_it() -> Result<()> {
    let live = SeatedStore::new(3);
    let servers = live.serve_all();
    let mut tree = live.connect();
    let dirs = grow(&mut tree, 30, 3)?;
    let at = |seat| dirs.iter().find(|dir| dir.place.seat == seat).expect("one of thirty");
    let places: Vec<LiveDir> = (0..3).map(|seat| at(seat).clone()).collect();
    let (is_done, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let sets = std::thread::scope(|scope| -> Result<Vec<SetId>> {
        for client in 0..2 {
            let (live, places, is_done, made) = (&live, &places, &is_done, &made);
            scope.spawn(move || -> Result<()> {
                let mut tree = live.connect();
                let mut number = 0u32;
                while !is_done.load(Ordering::Relaxed) {
                    let dir = &places[(number as usize + client) % 3];
                    let name = format!("c{client}-{number:08}");
                    tree.create(dir, name.as_bytes(), 0o644)?;
                    number += 1;
                    made.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
        }
        let mut sets = Vec::new();
        while sets.len() < 12 {
            std::thread::sleep(Duration::from_millis(10));
            sets.push(tree.snapshot(&format!("s{}", sets.len()))?);
        }
        is_done.store(true, Ordering::Relaxed);
        Ok(sets)
    })?;
    let mut last = 0;
    for set in sets {
        let paths = all_paths_of(&live.repository, set)?;
        let mut counted = 0;
        for client in 0..2 {
            let prefix = format!("c{client}-");
            let mut numbers: Vec<u32> = paths
                .keys()
                .filter_map(|path| {
                    let name = path.rsplit(|&byte| byte == b'/').next()?;
                    std::str::from_utf8(name).ok()?.strip_prefix(&prefix)?.parse().ok()
                })
                .collect();
            numbers.sort_unstable();
            let expected: Vec<u32> = (0..numbers.len() as u32).collect();
            assert_eq!(numbers, expected, "client {client}: a gap");
            counted += numbers.len();
        }
        assert!(counted >= last, "snapshots go forward");
        last = counted;
    }
    assert!(last > 100, "{last} files of {} in the last snapshot", made.load(Ordering::Relaxed));
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}
