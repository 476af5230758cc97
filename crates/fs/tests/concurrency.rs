// SPDX-License-Identifier: Apache-2.0
//! Concurrency: threads create, list, rename and remove in one session while it flushes, compacts
//! and snapshots. No create is lost, races have one winner, a listing shows everything that existed
//! throughout exactly once, and a snapshot is a prefix of each thread's operations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use esker_base::Kind;
use esker_base::random::Random;
use esker_base::store::{FaultStore, MemoryStore};
use esker_fs::ops::{AttributeChanges, RenameFlags};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::list::DirCursor;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::tree::{Compaction, TreeOptions};

use crate::campaign;
use crate::model::check_sound;
use crate::subject;

const THREADS: usize = 4;

fn begin(repository: &Repository, background: bool) -> Session {
    let tree = TreeOptions {
        // Small, so that memtables are frozen and flushed all the time.
        memory_bytes: 256 << 10,
        compaction: Compaction::Tiered,
        background,
        ..TreeOptions::default()
    };
    let options = SessionOptions { identity: Identity::root(), tree, ..SessionOptions::default() };
    repository.begin(&[], options).expect("begin")
}

fn repository() -> Repository {
    Repository::with(
        Arc::new(MemoryStore::new()),
        1 << 20,
        Arc::new(esker_base::clock::SystemClock),
    )
}

/// Flushes, compacts and snapshots until `stop` is set; returns the snapshots' names.
fn disturb(session: &Session, stop: &AtomicBool) -> Vec<String> {
    let mut names = Vec::new();
    let mut random = Random::from_seed(1);
    while !stop.load(Ordering::Relaxed) {
        match random.below(4) {
            0 => session.flush().expect("flush"),
            1 => session.compact().expect("compact"),
            2 => session.sync().expect("sync"),
            _ => {
                let name = format!("snapshot-{}", names.len());
                session.snapshot(&name).expect("snapshot");
                names.push(name);
            }
        }
        thread::yield_now();
    }
    names
}

/// Lists `dir` until `stop` is set, in pages of various sizes: each of `stable` appears once.
fn watch(namespace: &Namespace, dir: &Dir, stable: &BTreeSet<Vec<u8>>, stop: &AtomicBool) -> usize {
    let mut listings = 0;
    while !stop.load(Ordering::Relaxed) {
        let limit = [1_000_000, 1, 7, 500][listings % 4];
        let names = subject::list(namespace, dir, limit).expect("list");
        let names: BTreeSet<Vec<u8>> = names.into_iter().collect();
        assert!(stable.is_subset(&names), "a listing misses an entry that was there throughout");
        for name in names.iter().take(10) {
            namespace.lookup(dir, name, false).expect("nothing is removed");
        }
        listings += 1;
    }
    listings
}

/// Stops the other threads even if the test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn creates(background: bool, count: usize) {
    let repository = repository();
    let session = begin(&repository, background);
    let root = session.root().clone();
    let shared = session.mkdir(&root, b"shared", 0o755).expect("mkdir");
    let stable: BTreeSet<Vec<u8>> =
        (0..300).map(|number| format!("stable-{number}").into_bytes()).collect();
    for name in &stable {
        session.create(&shared, name, 0o644).expect("create");
    }
    let stop = AtomicBool::new(false);
    let snapshots = thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let (session, shared, stable, stop) = (&session, &shared, &stable, &stop);
        let disturbing = scope.spawn(move || disturb(session, stop));
        let watching = scope.spawn(move || watch(session.namespace(), shared, stable, stop));
        let creating = (0..THREADS).map(|rank| {
            scope.spawn(move || {
                let own = session.mkdir(session.root(), format!("own-{rank}").as_bytes(), 0o755);
                let own = own.expect("mkdir");
                for number in 0..count {
                    let name = format!("{rank}-{number}");
                    session.create(shared, name.as_bytes(), 0o644).expect("create");
                    session.create(&own, name.as_bytes(), 0o600).expect("create");
                    session.namespace().lookup(&own, name.as_bytes(), false).expect("it was made");
                }
            })
        });
        for thread in creating.collect::<Vec<_>>() {
            thread.join().expect("no thread fails");
        }
        stop.store(true, Ordering::Relaxed);
        assert!(watching.join().expect("no thread fails") > 0);
        disturbing.join().expect("no thread fails")
    });
    let set = session.publish("all").expect("publish");
    let all = repository.open(&[set], Identity::root()).expect("open");
    let found = subject::list(&all, &all.dir("/shared").expect("dir"), 10_000).expect("list");
    assert_eq!(found.len(), stable.len() + THREADS * count);
    for name in &snapshots {
        check_prefix(&repository, name, count);
    }
    check_sound(&repository);
}

/// In a snapshot, the files of each thread are the first ones that it made, in both directories.
fn check_prefix(repository: &Repository, name: &str, count: usize) {
    let set = repository.resolve(name).expect("a snapshot").set;
    let namespace = repository.open(&[set], Identity::root()).expect("open");
    let shared = namespace.dir("/shared").expect("dir");
    let names: BTreeSet<Vec<u8>> =
        subject::list(&namespace, &shared, 10_000).expect("list").into_iter().collect();
    for rank in 0..THREADS {
        let in_shared: Vec<bool> =
            (0..count).map(|n| names.contains(format!("{rank}-{n}").as_bytes())).collect();
        let made = in_shared.iter().take_while(|made| **made).count();
        assert!(in_shared[made..].iter().all(|made| !made), "{name}: not a prefix of {rank}");
        let own = match namespace.dir(format!("/own-{rank}")) {
            Ok(dir) => subject::list(&namespace, &dir, 10_000).expect("list").len(),
            Err(error) => {
                assert_eq!(error.kind(), Kind::NotFound);
                0
            }
        };
        assert!(own == made || own + 1 == made, "{name}: {own} after {made} of {rank}");
    }
}

/// Symptom: a link, a write to the same file and a rename, all at once, deadlocked.
/// Cause: the link waited for the file while holding the structure lock, and the write waited for
/// the structure lock while holding the file. A waiting rename in between blocks all later lockers.
#[test]
fn links_writes_and_renames_do_not_wait_for_each_other() {
    type Work = Box<dyn Fn(&Session, &Dir) + Send>;
    const ROUNDS: usize = 300;
    let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let repository = Repository::new(store.clone());
    let session = Arc::new(begin(&repository, false));
    // A file is locked for as long as its bytes are in flight.
    store.delay(Duration::from_micros(200));
    let root = session.root().clone();
    let file = session.create_file(&root, b"file", 0o644).expect("create");
    session.create(&root, b"moved", 0o644).expect("create");
    let has_written = Arc::new(AtomicBool::new(false));
    let (told, all_done) = std::sync::mpsc::channel();
    let run = |work: Work| {
        let (session, root, told) = (session.clone(), root.clone(), told.clone());
        let has_written = has_written.clone();
        // Not joined: after a deadlock they would never end.
        drop(thread::spawn(move || {
            while !has_written.load(Ordering::Relaxed) {
                work(&session, &root);
            }
            told.send(()).expect("the test waits");
        }));
    };
    let (begun, has_begun) = std::sync::mpsc::channel();
    let all_written = has_written.clone();
    run(Box::new(move |session, _| {
        for _ in 0..ROUNDS {
            session.file(&file).truncate(0).expect("truncate");
            session.file(&file).write(0, &[7; 10_000]).expect("write");
            session.file(&file).flush().expect("flush");
            let _ = begun.send(());
        }
        all_written.store(true, Ordering::Relaxed);
    }));
    // A waiter for exclusive access keeps out later lockers, so let the first round start.
    has_begun.recv().expect("the first round ends");
    run(Box::new(|session, root| {
        session.link(root, b"file", root, b"name").expect("link");
        session.unlink(root, b"name").expect("unlink");
    }));
    run(Box::new(|session, root| {
        for (from, to) in [(&b"moved"[..], &b"back"[..]), (b"back", b"moved")] {
            session.rename((root, from), (root, to), RenameFlags::Replace).expect("rename");
        }
    }));
    for _ in 0..3 {
        all_done.recv_timeout(Duration::from_secs(30)).expect("all three end");
    }
}

#[test]
fn creates_during_listings_flushes_and_snapshots_are_kept() {
    creates(true, 1_500);
}

#[test]
fn creates_that_flush_themselves_are_kept() {
    creates(false, 800);
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_creates_during_listings_flushes_and_snapshots_are_kept() {
    campaign::soak(|seed| creates(seed.is_multiple_of(2), 20_000));
}

/// Runs `one` and `other` concurrently, `rounds` times, each on a result of `prepare`.
fn race<T: Sync, A: Send, B: Send>(
    rounds: usize,
    prepare: impl Fn(usize) -> T,
    one: impl Fn(&T) -> A + Sync,
    other: impl Fn(&T) -> B + Sync,
    check: impl Fn(usize, T, A, B),
) {
    for round in 0..rounds {
        let prepared = prepare(round);
        let barrier = std::sync::Barrier::new(2);
        let (first, second) = thread::scope(|scope| {
            let first = scope.spawn(|| {
                barrier.wait();
                one(&prepared)
            });
            barrier.wait();
            let second = other(&prepared);
            (first.join().expect("no thread fails"), second)
        });
        check(round, prepared, first, second);
    }
}

#[test]
fn of_two_creates_of_a_name_one_wins() {
    let repository = repository();
    let session = begin(&repository, true);
    let root = session.root();
    race(
        300,
        |round| format!("name-{round}"),
        |name| session.create(root, name.as_bytes(), 0o644),
        |name| session.mkdir(root, name.as_bytes(), 0o755),
        |round, name, file, directory| {
            assert!(file.is_ok() != directory.is_ok(), "round {round}");
            let loser = file.as_ref().err().or(directory.as_ref().err()).map(|error| error.kind());
            assert_eq!(loser, Some(Kind::Exists));
            let inode =
                session.namespace().lookup(root, name.as_bytes(), false).expect("one of them");
            assert_eq!(inode.is_directory(), directory.is_ok());
        },
    );
}

#[test]
fn a_directory_is_filled_or_removed_and_not_both() {
    let repository = repository();
    let session = begin(&repository, true);
    let root = session.root();
    race(
        300,
        |_| session.mkdir(root, b"dir", 0o755).expect("mkdir"),
        |dir| session.create(dir, b"file", 0o644),
        |_| session.rmdir(root, b"dir"),
        |round, dir, created, removed| {
            match (created, removed) {
                (Ok(_), Err(error)) => {
                    assert_eq!(error.kind(), Kind::NotEmpty, "round {round}");
                    session.unlink(&dir, b"file").expect("unlink");
                    session.rmdir(root, b"dir").expect("rmdir");
                }
                (Err(error), Ok(_)) => assert_eq!(error.kind(), Kind::NotFound, "round {round}"),
                (created, removed) => panic!("round {round}: {created:?}, {removed:?}"),
            }
            let gone = session.create(&dir, b"late", 0o644).expect_err("it was removed");
            assert_eq!(gone.kind(), Kind::NotFound);
        },
    );
}

#[test]
fn directories_that_move_into_each_other_form_no_cycle() {
    let repository = repository();
    let session = begin(&repository, true);
    let root = session.root();
    race(
        300,
        |round| {
            let make = |letter| {
                let name = format!("{letter}{round}");
                (session.mkdir(root, name.as_bytes(), 0o755).expect("mkdir"), name)
            };
            (make('a'), make('b'))
        },
        |((_, a), (b_dir, b))| {
            let into = (b_dir, a.as_bytes());
            (session.rename((root, a.as_bytes()), into, RenameFlags::Replace), b.clone())
        },
        |((a_dir, _), (_, b))| {
            session.rename((root, b.as_bytes()), (a_dir, b.as_bytes()), RenameFlags::Replace)
        },
        |round, ((_, a), (_, b)), (first, _), second| {
            assert!(first.is_ok() != second.is_ok(), "round {round}: {first:?} {second:?}");
            let path = if first.is_ok() { format!("/{b}/{a}") } else { format!("/{a}/{b}") };
            session.namespace().stat(&path, FollowLinks::No).expect("one is in the other");
            let loser = first.err().or(second.err()).map(|error| error.kind());
            assert_eq!(loser, Some(Kind::Invalid));
        },
    );
}

/// Files that threads rename at random between directories, over vacant names, are all there at the
/// end; a file with a second name always has link count 2.
#[test]
fn files_that_threads_throw_about_are_not_lost() {
    let repository = repository();
    let session = begin(&repository, true);
    let dirs: Vec<Dir> = (0..3)
        .map(|n| session.mkdir(session.root(), format!("d{n}").as_bytes(), 0o755).expect("mkdir"))
        .collect();
    let count = 40;
    for number in 0..count {
        session.create(&dirs[0], format!("f{number}").as_bytes(), 0o644).expect("create");
    }
    let moved = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let (session, dirs, moved, stop) = (&session, &dirs, &moved, &stop);
        scope.spawn(move || disturb(session, stop));
        let throwing = (0..THREADS).map(|rank| {
            scope.spawn(move || {
                let mut random = Random::from_seed(rank as u64);
                for _ in 0..3_000 {
                    let name = format!("f{}", random.below(count));
                    let (from, to) = (random.below(3) as usize, random.below(3) as usize);
                    let place = |dir: usize| (&dirs[dir], name.as_bytes());
                    match session.rename(place(from), place(to), RenameFlags::NoReplace) {
                        Ok(_) => drop(moved.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => {
                            assert!(matches!(error.kind(), Kind::NotFound | Kind::Exists));
                        }
                    }
                }
            })
        });
        for thread in throwing.collect::<Vec<_>>() {
            thread.join().expect("no thread fails");
        }
    });
    assert!(moved.load(Ordering::Relaxed) > 100);
    let mut places: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for dir in &dirs {
        for name in subject::list(session.namespace(), dir, 7).expect("list") {
            *places.entry(name).or_default() += 1;
        }
    }
    assert_eq!(places.len() as u64, count);
    assert!(places.values().all(|places| *places == 1));
    session.publish("thrown").expect("publish");
    check_sound(&repository);
}

#[test]
fn links_made_and_removed_at_once_are_counted() {
    let repository = repository();
    let session = begin(&repository, true);
    let root = session.root();
    session.create(root, b"file", 0o644).expect("create");
    thread::scope(|scope| {
        for rank in 0..THREADS {
            let session = &session;
            scope.spawn(move || {
                let root = session.root();
                for number in 0..200 {
                    let name = format!("{rank}-{number}");
                    session.link(root, b"file", root, name.as_bytes()).expect("link");
                    let mode = AttributeChanges {
                        mode: Some(0o600 + rank as u32),
                        ..AttributeChanges::default()
                    };
                    session.setattr(root, name.as_bytes(), &mode).expect("chmod");
                    if number % 2 == 0 {
                        session.unlink(root, name.as_bytes()).expect("unlink");
                    }
                }
            });
        }
    });
    let inode = session.namespace().stat("/file", FollowLinks::No).expect("stat");
    assert_eq!(inode.nlink as usize, 1 + THREADS * 100);
    session.publish("links").expect("publish");
    check_sound(&repository);
}

/// A cursor remains valid after its entry is gone, after a flush, and in another session.
#[test]
fn a_cursor_outlives_its_entry_and_its_session() {
    let repository = repository();
    let session = begin(&repository, true);
    let dir = session.mkdir(session.root(), b"dir", 0o755).expect("mkdir");
    for number in 0..500 {
        session.create(&dir, format!("{number}").as_bytes(), 0o644).expect("create");
    }
    let whole = session.namespace().read_dir(&dir, &DirCursor::default(), 1_000).expect("list");
    let names: Vec<Vec<u8>> = whole.into_iter().map(|entry| entry.name).collect();
    let after = DirCursor::after(&names[199]);
    session.unlink(&dir, &names[199]).expect("unlink");
    session.unlink(&dir, &names[100]).expect("unlink");
    session.flush().expect("flush");
    let rest = |namespace: &Namespace, dir: &Dir| -> Vec<Vec<u8>> {
        let rest = namespace.read_dir(dir, &after, 1_000).expect("list");
        rest.into_iter().map(|entry| entry.name).collect()
    };
    assert_eq!(rest(session.namespace(), &dir), names[200..]);
    let set = session.publish("cursor").expect("publish");
    let published = repository.open(&[set], Identity::root()).expect("open");
    assert_eq!(rest(&published, &published.dir("/dir").expect("dir")), names[200..]);
}
