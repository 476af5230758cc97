// SPDX-License-Identifier: Apache-2.0
//! Concurrency: readers, batch readers and scans beside writers, flushes and compactions.
//!
//! Every test relies on this: an update raises a counter in a record by one, so no increment may be
//! lost, and no reader may see a counter decrease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Kind, Random, Result};
use esker_table::schema::record;
use esker_table::tree::{Compaction, Durability, Tree, TreeOptions};

use crate::records::{create, get, options, put, resume, scan};

const COUNTERS: u64 = 200;
const RAISES: u64 = 6_000;

fn store() -> SharedStore {
    Arc::new(MemoryStore::new())
}

/// Counter `number` of `group`: groups differ in the first byte, so in the shard too.
fn key(group: u8, number: u64) -> Vec<u8> {
    let mut key = vec![group.wrapping_mul(67)];
    key.extend_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    key
}

fn count_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("eight bytes"))
}

/// Raises a counter by one. Values vary in length and hold noise, so that runs do not shrink too
/// much and tables get written.
fn raise(tree: &Tree, key: &[u8], noise: &mut Random) -> Result<u64> {
    let mut tail = [0u8; 24];
    noise.fill(&mut tail);
    let tail = &tail[..noise.below(24) as usize];
    tree.update([record::key(key)], None, |[old], batch| {
        let before = old.map_or(0, |old| count_of(old.strings[record::VALUE]));
        let value = [&(before + 1).to_le_bytes()[..], tail].concat();
        batch.put(&mut [record::row(key, &value)]);
        Ok(before + 1)
    })
}

fn all_options() -> Vec<TreeOptions> {
    let mut all = Vec::new();
    for background in [false, true] {
        for durability in [Durability::None, Durability::Async] {
            for compaction in [Compaction::Deferred, Compaction::Tiered, Compaction::Full] {
                all.push(TreeOptions { compaction, ..options(durability, background) });
            }
        }
    }
    all
}

/// Raises counters of `group` at random until `RAISES` are done.
fn writer(tree: &Tree, group: u8, seed: u64) {
    let mut random = Random::from_seed(seed);
    for _ in 0..RAISES {
        let number = random.below(COUNTERS);
        raise(tree, &key(group, number), &mut random).expect("raise");
    }
}

/// Reads until `stop` is set; no counter may decrease.
fn point_reader(tree: &Tree, groups: &[u8], stop: &AtomicBool) {
    let mut seen = BTreeMap::new();
    let mut random = Random::from_seed(99);
    while !stop.load(Ordering::Relaxed) {
        let key = key(groups[random.below(groups.len() as u64) as usize], random.below(COUNTERS));
        let count = get(tree, &key).expect("get").map_or(0, |value| count_of(&value));
        record_count(&mut seen, key, count);
    }
}

fn record_count(seen: &mut BTreeMap<Vec<u8>, u64>, key: Vec<u8>, count: u64) {
    let before = seen.entry(key).or_default();
    assert!(*before <= count, "a counter sank from {before} to {count}");
    *before = count;
}

fn scanner(tree: &Tree, stop: &AtomicBool) {
    let mut seen = BTreeMap::new();
    let mut random = Random::from_seed(97);
    while !stop.load(Ordering::Relaxed) {
        let found = scan(tree, &[0], 1 + random.below(100) as usize).expect("scan");
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "keys ascend");
        let found: BTreeMap<_, _> = found.into_iter().collect();
        let lost = seen.keys().find(|key| !found.contains_key(*key));
        assert!(lost.is_none(), "a scan lost {lost:?}");
        for (key, value) in found {
            record_count(&mut seen, key, count_of(&value));
        }
    }
}

fn flusher(tree: &Tree, stop: &AtomicBool) {
    for turn in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if turn % 5 == 4 {
            tree.compact().expect("compact");
        } else {
            tree.flush().expect("flush");
        }
        if turn % 3 == 2 {
            tree.add_read_cost(1 << 20);
            tree.merge_paid_runs().expect("merge");
        }
        thread::yield_now();
    }
}

/// Runs two writers of `groups` with readers, and a flusher if `flushes`; checks the sums.
fn run(options: TreeOptions, groups: [u8; 2], flushes: bool) {
    let store = store();
    let tree = create(&store, options.clone()).expect("create");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (tree, stop) = (&tree, &stop);
        let mut others = vec![
            scope.spawn(move || point_reader(tree, &groups, stop)),
            scope.spawn(move || scanner(tree, stop)),
        ];
        if flushes {
            others.push(scope.spawn(move || flusher(tree, stop)));
        }
        let writers = [0, 1].map(|at| scope.spawn(move || writer(tree, groups[at], at as u64)));
        let outcomes = writers.map(thread::ScopedJoinHandle::join);
        stop.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.expect("a writer"));
        others.into_iter().for_each(|other| other.join().expect("a reader"));
    });
    let total = |tree: &Tree| -> u64 {
        scan(tree, &[0], 50).expect("scan").iter().map(|(_, value)| count_of(value)).sum()
    };
    assert_eq!(total(&tree), 2 * RAISES, "{options:?}");
    tree.sync().expect("sync");
    drop(tree);
    let again = resume(&store, options.clone()).expect("resume");
    assert_eq!(total(&again), 2 * RAISES, "{options:?}, after resuming");
}

#[test]
fn counters_of_one_group_are_never_lost() {
    all_options().into_iter().for_each(|options| run(options, [1, 1], false));
}

#[test]
fn counters_of_two_groups_are_never_lost() {
    all_options().into_iter().for_each(|options| run(options, [1, 2], false));
}

#[test]
fn counters_are_never_lost_while_another_thread_flushes_and_compacts() {
    all_options().into_iter().for_each(|options| run(options, [1, 1], true));
}

/// Symptom: `sync` failed with `Conflict`, "changed by somebody else", with only one writer.
/// Cause: it compared the store with a manifest that the flushing thread replaced meanwhile.
/// Fix: no commit may run while `sync` checks.
#[test]
fn a_sync_beside_flushes_of_the_same_tree_meets_no_conflict() {
    let store = store();
    let tree = create(&store, options(Durability::Async, true)).expect("create");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (tree, stop) = (&tree, &stop);
        let syncer = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                tree.sync().expect("sync");
            }
        });
        let flusher = scope.spawn(move || flusher(tree, stop));
        let written = scope.spawn(move || writer(tree, 1, 5)).join();
        stop.store(true, Ordering::Relaxed);
        written.expect("the writer");
        syncer.join().expect("the syncer");
        flusher.join().expect("the flusher");
    });
}

/// A put or sync acknowledged before a takeover survives it.
#[test]
fn nothing_acknowledged_is_lost_to_a_takeover_in_the_middle() {
    for durability in [Durability::Async, Durability::Always] {
        for seed in 0..20 {
            take_over_in_the_middle(durability, seed);
        }
    }
}

fn take_over_in_the_middle(durability: Durability, seed: u64) {
    let store = store();
    let first = create(&store, options(durability, seed.is_multiple_of(2))).expect("create");
    let acknowledged = AtomicU64::new(0);
    let wait = Random::from_seed(seed).below(400);
    thread::scope(|scope| {
        let (first, acknowledged, store) = (&first, &acknowledged, &store);
        scope.spawn(move || {
            for number in 1..=100_000u64 {
                let stopped = put(first, b"counter", &number.to_le_bytes())
                    .map(drop)
                    .and_then(|()| if number % 7 == 0 { first.sync() } else { Ok(()) });
                match stopped {
                    Ok(()) if number % 7 == 0 || durability == Durability::Always => {
                        acknowledged.store(number, Ordering::Release);
                    }
                    Ok(()) => {}
                    Err(error) => return assert_fenced(error.kind()),
                }
            }
            panic!("the first writer was never fenced");
        });
        while acknowledged.load(Ordering::Acquire) < wait {
            thread::yield_now();
        }
        let second = loop {
            match resume(store, options(durability, false)) {
                Ok(tree) => break tree,
                Err(error) => assert_eq!(error.kind(), Kind::Conflict, "{error}"),
            }
        };
        let found = get(&second, b"counter").expect("get").map_or(0, |value| count_of(&value));
        // Read after the takeover: changes acknowledged since then would be lost.
        thread::sleep(std::time::Duration::from_millis(2));
        let acknowledged = acknowledged.load(Ordering::Acquire);
        assert!(found >= acknowledged, "{acknowledged} were acknowledged, {found} found");
        second.sync().expect("the second writer owns the set");
    });
}

fn assert_fenced(kind: Kind) {
    assert!(matches!(kind, Kind::Fenced | Kind::Closed), "{kind:?}");
}

/// Makes `key` as a file is created; returns false if it exists.
fn make(tree: &Tree, key: &[u8], value: &[u8]) -> Result<bool> {
    let mut row = record::row(key, value);
    if tree.insert(&mut row, |_, _| {}, || {})?.is_some() {
        return Ok(true);
    }
    tree.update([record::key(key)], None, |[old], batch| {
        if old.is_none() {
            batch.put(&mut [record::row(key, value)]);
        }
        Ok(old.is_none())
    })
}

#[test]
fn of_two_that_make_one_key_one_does() {
    const KEYS: u64 = 4_000;
    for options in all_options() {
        let store = store();
        let tree = create(&store, options.clone()).expect("create");
        let made: u64 = thread::scope(|scope| {
            let (tree, mut noise) = (&tree, Random::from_seed(1));
            let makers = [1u64, 3].map(|step| {
                let mut value = [0u8; 60];
                noise.fill(&mut value);
                scope.spawn(move || {
                    // Two orders over the same keys.
                    let keys = (0..KEYS).map(|turn| key(1, turn * step % KEYS));
                    keys.map(|key| u64::from(make(tree, &key, &value).expect("make"))).sum::<u64>()
                })
            });
            makers.into_iter().map(|maker| maker.join().expect("a maker")).sum()
        });
        assert_eq!(made, KEYS, "{options:?}");
        assert_eq!(scan(&tree, &[0], 50).expect("scan").len() as u64, KEYS);
        tree.sync().expect("sync");
        drop(tree);
        let again = resume(&store, options).expect("resume");
        assert_eq!(scan(&again, &[0], 50).expect("scan").len() as u64, KEYS);
        assert!(!make(&again, &key(1, 7), b"").expect("make"), "it exists");
    }
}
