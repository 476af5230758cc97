// SPDX-License-Identifier: Apache-2.0
//! Squash and compaction: the same tree afterwards, without any bases.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Random, Result};
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::names::IfTaken;
use esker_fs::ops::{AttributeChanges, RenameFlags};
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::list::DirCursor;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::manifest::{Manifest, SetId};

use crate::gc::{eager, later, options, repository, write};

/// Returns everything that readers see of a tree: attributes and content by path.
pub fn tree(namespace: &Namespace) -> BTreeMap<Vec<u8>, String> {
    let mut seen = BTreeMap::new();
    let mut waiting: Vec<(Vec<u8>, Dir)> = vec![(Vec::new(), namespace.root().clone())];
    while let Some((path, dir)) = waiting.pop() {
        for entry in namespace.read_dir(&dir, &DirCursor::default(), usize::MAX).expect("list") {
            let mut path = path.clone();
            path.push(b'/');
            path.extend_from_slice(&entry.name);
            let inode = &entry.inode;
            let mut content = Vec::new();
            if inode.kind() == Some(esker_fs::inode::FileKind::File) {
                let take = &mut |bytes: &[u8]| {
                    content.extend_from_slice(bytes);
                    Ok(())
                };
                namespace.read_all(inode, take).expect("read");
            }
            let line = format!(
                "{:?} {:o} {} {} {} {} {} {} {} {:032x} {:?} {:08x}",
                inode.entry,
                inode.mode,
                inode.uid,
                inode.gid,
                inode.nlink,
                inode.size,
                inode.mtime_ns,
                inode.ctime_ns,
                inode.atime_ns,
                inode.id,
                inode.xattrs,
                crc32c::crc32c(&content),
            );
            if inode.is_directory() {
                waiting.push((path.clone(), namespace.dir(&path).expect("open")));
            }
            assert!(seen.insert(path, line).is_none(), "a name is listed once");
        }
    }
    seen
}

/// Runs one random operation; most failures are legitimate.
pub fn change(session: &Session, random: &mut Random) -> Result<()> {
    let dirs: Vec<Vec<u8>> = all_dirs(session);
    let pick = |random: &mut Random| dirs[random.below(dirs.len() as u64) as usize].clone();
    let dir = session.namespace().dir(pick(random))?;
    let other = session.namespace().dir(pick(random))?;
    let name = format!("n{}", random.below(6)).into_bytes();
    let other_name = format!("n{}", random.below(6)).into_bytes();
    match random.below(16) {
        0..=2 => session.create(&dir, &name, 0o640).map(drop),
        3..=5 => {
            let mut left = random.below(3_000) as usize;
            let byte = random.below(256) as u8;
            session
                .create_with(&dir, &name, 0o600, &mut |buffer| {
                    let count = left.min(buffer.len());
                    buffer[..count].fill(byte);
                    left -= count;
                    Ok(count)
                })
                .map(drop)
        }
        6 | 7 => session.mkdir(&dir, &name, 0o755).map(drop),
        8 => session.unlink(&dir, &name).map(drop),
        9 => session.rmdir(&dir, &name).map(drop),
        10 => session.remove_tree(&dir, &name),
        11 => session.rename((&dir, &name), (&other, &other_name), RenameFlags::Replace).map(drop),
        12 => session.link(&dir, &name, &other, &other_name).map(drop),
        13 => session.rename((&dir, &name), (&other, &other_name), RenameFlags::Exchange).map(drop),
        14 => {
            let changes = AttributeChanges { mode: Some(0o750), ..AttributeChanges::default() };
            session.setattr(&dir, &name, &changes).map(drop)
        }
        _ => {
            let changes = AttributeChanges {
                size: Some(random.below(2_000)),
                mode: Some(0o711),
                ..AttributeChanges::default()
            };
            session.setattr(&dir, &name, &changes).map(drop)
        }
    }
}

fn all_dirs(session: &Session) -> Vec<Vec<u8>> {
    let mut dirs = vec![b"/".to_vec()];
    let mut at = 0;
    while at < dirs.len() && dirs.len() < 40 {
        let path = dirs[at].clone();
        let dir = session.namespace().dir(&path).expect("dir");
        for entry in
            session.namespace().read_dir(&dir, &DirCursor::default(), usize::MAX).expect("list")
        {
            if entry.inode.is_directory() {
                dirs.push([&path[..], b"/", &entry.name].concat());
            }
        }
        at += 1;
    }
    dirs
}

/// Builds a random stack of `depth` sets; returns the newest.
pub fn stack(repository: &Repository, random: &mut Random, depth: usize, steps: usize) -> SetId {
    let mut bases: Vec<SetId> = Vec::new();
    for layer in 0..depth {
        let session = repository.begin(&bases, options()).expect("begin");
        for step in 0..steps {
            let _ = change(&session, random);
            if step == steps / 2 {
                session.flush().expect("flush");
            }
        }
        bases = vec![session.publish(&format!("layer{layer}")).expect("publish")];
    }
    bases[0]
}

#[test]
fn a_squashed_stack_shows_the_same_tree() {
    for seed in 0..40 {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let repository = repository(&store);
        let mut random = Random::from_seed(seed);
        let top = stack(&repository, &mut random, 4, 60);
        let before = tree(&repository.open(&[top], Identity::root()).expect("open"));
        let threads = 1 + seed as usize % 3;
        let copy_data = seed % 4 == 0;
        let squash = SquashOptions { threads, copy_data, ..SquashOptions::default() };
        let (set, report) = repository.squash(&[top], &squash).expect("squash");
        repository.publish(set, "squashed").expect("publish");
        for layer in 0..4 {
            repository.delete(&format!("layer{layer}")).expect("delete");
        }
        let collected = repository.gc(&eager()).expect("gc");
        let data_only = collected.data_only_sets.len();
        assert_eq!(collected.sets.len() + data_only, 4, "seed {seed}");
        assert_eq!(data_only, report.referenced_sets, "seed {seed}");
        assert!(!copy_data || data_only == 0, "seed {seed}");
        let after = tree(&repository.open(&[set], Identity::root()).expect("open"));
        assert_eq!(before, after, "seed {seed}");
        assert_eq!(report.sets, 4);
        let counts = report.counts;
        assert_eq!(
            counts.read,
            counts.written + counts.shadowed + counts.tombstones + counts.unreachable
        );
        let manifest = Manifest::load(&*store, set).expect("manifest");
        assert!(manifest.bases.is_empty());
        // New directories on top never take the identity of an existing one.
        let session = repository.begin(&[set], options()).expect("begin");
        for _ in 0..100 {
            let _ = change(&session, &mut random);
        }
        let mut ids = std::collections::BTreeMap::new();
        for (path, line) in tree(session.namespace()) {
            if line.contains("Directory") {
                let id = line.split(' ').nth(9).expect("an id").to_owned();
                if let Some(other) = ids.insert(id, path.clone()) {
                    panic!("seed {seed}: {path:?} and {other:?} are one directory");
                }
            }
        }
    }
}

#[test]
fn workers_of_several_ranges_make_one_run() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let mut bases = Vec::new();
    for layer in 0..4 {
        let session = repository.begin(&bases, options()).expect("begin");
        let root = session.root().clone();
        for dir in 0..3 {
            let name = format!("d{dir}").into_bytes();
            let dir = match layer {
                0 => session.mkdir(&root, &name, 0o755).expect("mkdir"),
                _ => session.namespace().dir([b"/", &name[..]].concat()).expect("dir"),
            };
            for number in 0..8_000 {
                let name = format!("file.{layer}.{number}");
                session.create(&dir, name.as_bytes(), 0o644).expect("create");
            }
            for number in 0..200 * usize::from(layer > 0) {
                let name = format!("file.{}.{number}", layer - 1);
                session.unlink(&dir, name.as_bytes()).expect("unlink");
            }
            let path = format!("/d{}/data{layer}", layer % 3);
            let _ = write(&session, &path, &vec![b'x'; 6 << 20]);
        }
        bases = vec![session.publish(&format!("layer{layer}")).expect("publish")];
    }
    let before = tree(&repository.open(&bases, Identity::root()).expect("open"));
    let squash = SquashOptions { threads: 3, ..SquashOptions::default() };
    let (set, report) = repository.squash(&bases, &squash).expect("squash");
    let manifest = Manifest::load(&*store, set).expect("manifest");
    assert!(manifest.tables.len() > 1 && manifest.tables.iter().all(|table| table.run == 1));
    // The root has a record and no name.
    assert_eq!(report.counts.written as usize, before.len() + 1);
    assert_eq!(before, tree(&repository.open(&[set], Identity::root()).expect("open")));
    crate::verify::assert_sound(&repository);
}

#[test]
fn compaction_of_a_published_set_changes_nothing_that_it_shows() {
    for seed in 0..20 {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let repository = repository(&store);
        let mut random = Random::from_seed(seed);
        let top = stack(&repository, &mut random, 3, 60);
        let reader = repository.open(&[top], Identity::root()).expect("open");
        let before = tree(&reader);
        for layer in 0..3 {
            repository.compact(&format!("layer{layer}")).expect("compact");
            repository.compact(&format!("layer{layer}")).expect("compact again");
        }
        assert_eq!(before, tree(&repository.open(&[top], Identity::root()).expect("open")));
        assert_eq!(before, tree(&reader), "old tables stay for readers");
        assert!(Manifest::load(&*store, top).expect("manifest").tables.len() <= 1);
        repository.gc(&eager()).expect("gc");
        assert_eq!(before, tree(&repository.open(&[top], Identity::root()).expect("open")));
    }
}

/// Symptom: compacting a set changed the stacks that have it above other sets: names that it
/// removed came back from below.
/// Cause: a merge dropped tombstones of a set without bases, though such a set may be stacked on
/// others.
/// Fix: only a squash, which makes a set of its own, drops tombstones.
#[test]
fn compaction_changes_no_stack_that_a_set_without_bases_is_in() {
    let small = |store: &SharedStore, compacts: bool| {
        let repository = repository(store);
        let mut sets = Vec::new();
        for (set, name) in ["a", "b"].into_iter().enumerate() {
            let session = repository.begin(&[], options()).expect("begin");
            let root = session.root().clone();
            for path in ["/x", "/y"] {
                write(&session, path, name.as_bytes()).expect("write");
            }
            session.mkdir(&root, b"d", 0o755).expect("mkdir");
            write(&session, "/d/f", name.as_bytes()).expect("write");
            session.link(&root, b"y", &root, b"z").expect("link");
            session.flush().expect("flush");
            if set == 0 {
                for name in [b"x", b"y", b"z"] {
                    session.unlink(&root, name).expect("unlink");
                }
                session.remove_tree(&root, b"d").expect("remove");
                session.mkdir(&root, b"d", 0o755).expect("mkdir");
                if compacts {
                    session.compact().expect("compact");
                }
            }
            sets.push(session.publish(name).expect("publish"));
        }
        let session = repository.begin(&sets, options()).expect("begin");
        write(&session, "/c", b"c").expect("write");
        session.publish("c").expect("publish");
        repository
    };
    let paths = |repository: &Repository| {
        let set = repository.resolve("c").expect("name").set;
        let namespace = repository.open(&[set], Identity::root()).expect("open");
        ["/x", "/y", "/z", "/d/f", "/c"].map(|path| namespace.stat(path, FollowLinks::No).is_ok())
    };
    // Names removed in the upper set are hidden, whether or not its session merged its tables.
    for compacts in [false, true] {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let plain = small(&store, compacts);
        assert_eq!(paths(&plain), [false, false, false, false, true], "compacted: {compacts}");
        for name in ["a", "b"] {
            plain.compact(name).expect("compact");
            plain.gc(&eager()).expect("gc");
            let now = paths(&repository(&store));
            assert_eq!(now, [false, false, false, false, true], "{name}, compacted: {compacts}");
        }
    }
}

#[test]
fn a_compacted_snapshot_keeps_the_session_whose_data_it_shows() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let session = repository.begin(&[], options()).expect("begin");
    write(&session, "/f", &[b'x'; 5_000]).expect("write");
    session.flush().expect("flush");
    write(&session, "/g", &[b'y'; 5_000]).expect("write");
    let snapshot = session.snapshot("snapshot").expect("snapshot");
    repository.abandon(session.set()).expect("abandon");
    drop(session);
    repository.compact("snapshot").expect("compact");
    repository.gc(&eager()).expect("gc");
    repository.gc(&eager()).expect("gc");
    let namespace = repository.open(&[snapshot], Identity::root()).expect("open");
    let inode = namespace.stat("/g", FollowLinks::No).expect("stat");
    namespace.read_all(&inode, &mut |_| Ok(())).expect("read");
}

#[test]
fn a_squash_that_stops_anywhere_leaves_its_bases_as_they_are() {
    let build = || {
        let inner: SharedStore = Arc::new(MemoryStore::new());
        let plain = repository(&inner);
        let top = stack(&plain, &mut Random::from_seed(3), 3, 60);
        let before = tree(&plain.open(&[top], Identity::root()).expect("open"));
        (inner, top, before)
    };
    let single = SquashOptions { threads: 1, ..SquashOptions::default() };
    let run = |store: SharedStore, top: SetId| {
        let repository = repository(&store);
        let (set, _) = repository.squash(&[top], &single)?;
        repository.publish(set, "squashed")
    };
    let (inner, top, _) = build();
    let counter = Arc::new(FaultStore::new(inner, 1));
    run(counter.clone(), top).expect("squash");
    for stop in 1..=counter.operations() {
        let (inner, top, before) = build();
        let fault = Arc::new(FaultStore::new(inner, stop));
        let effect = if stop % 2 == 0 { FaultEffect::None } else { FaultEffect::Full };
        fault.stop_at(stop, effect);
        assert!(run(fault.clone(), top).is_err());
        let image = fault.after_power_loss().expect("image");
        let plain = repository(&image);
        for set in plain.sets().expect("sets") {
            plain.abandon(set).expect("abandon");
        }
        plain.gc(&eager()).expect("gc");
        later(&image).gc(&eager()).expect("gc");
        assert_eq!(before, tree(&plain.open(&[top], Identity::root()).expect("open")), "{stop}");
        if let Ok(named) = plain.resolve("squashed") {
            let squashed = plain.open(&[named.set], Identity::root()).expect("open");
            assert_eq!(before, tree(&squashed), "operation {stop}");
        }
        let sets = plain.sets().expect("sets").len();
        assert_eq!(sets, plain.names().expect("names").len(), "operation {stop}");
    }
}

/// Symptom: a squash that replaced the name of what it had merged hid what somebody had published
/// under the name since, without a word.
/// Cause: a squash builds on nothing, so it counted as unrelated to all other sets.
/// Fix: it lists the sets that were merged into it.
#[test]
fn a_squash_replaces_only_what_was_merged_into_it() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let replace = |set| repository.publish_replacing(set, "n", IfTaken::ReplaceUnlessMoved);
    let on = |bases: &[SetId], name: &str| {
        let session = repository.begin(bases, options()).expect("begin");
        write(&session, &format!("/{name}"), name.as_bytes()).expect("write");
        session.complete().expect("complete");
        session.set()
    };
    let squash = |set| repository.squash(&[set], &SquashOptions::default()).expect("squash").0;
    let first = on(&[], "a");
    repository.publish(first, "n").expect("publish");
    let early = repository.begin(&[first], options()).expect("begin");
    let (squashed, newer) = (squash(first), on(&[first], "b"));
    replace(newer).expect("newer replaces what it builds on");
    assert_eq!(replace(squashed).expect_err("hides b").kind(), Kind::Conflict);

    // Squashes of squashes have all that was merged.
    let twice = squash(squash(newer));
    replace(twice).expect("a squash replaces what was merged into it");
    assert_eq!(replace(squashed).expect_err("hides b").kind(), Kind::Conflict);
    early.complete().expect("complete");
    assert_eq!(replace(early.set()).expect_err("hides b").kind(), Kind::Conflict);

    // Nothing is hidden of a squash of what the new set builds on, or has merged itself.
    replace(on(&[newer], "c")).expect("a session on what was merged");
    let unrelated = on(&[], "d");
    replace(unrelated).expect("replaces what it shares nothing with");
    replace(squash(unrelated)).expect("a squash");
    replace(on(&[unrelated], "e")).expect("a session on what was merged");
}
