// SPDX-License-Identifier: Apache-2.0
//! Random operations on a tree, compared with a `BTreeMap`, with flushes, compactions and crashes.
//!
//! A failure prints its seed; `ESKER_SEED=n` replays it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Random, Result};
use esker_table::family::NoFamily;
use esker_table::manifest::{Manifest, SetId};
use esker_table::merge::RecordMerge;
use esker_table::schema::record::{self, RECORD};
use esker_table::schema::{Key, Row, RowBuffer};
use esker_table::tables::TableSource;
use esker_table::tree::{Compaction, Durability, Tree, TreeOptions, TreeSetup};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn setup(store: &SharedStore, options: TreeOptions) -> TreeSetup {
    TreeSetup {
        schema: &RECORD,
        family: &NoFamily,
        source: TableSource::new(store.clone(), 1 << 20),
        clock: Arc::new(SystemClock),
        options,
        sync_dependencies: Arc::new(|| Ok(())),
        log_companion: None,
        heartbeat: None,
    }
}

fn put(tree: &Tree, key: &[u8], value: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
    tree.update([record::key(key)], None, |[old], batch| {
        let mut row = record::row(key, value.unwrap_or_default());
        row.ints[record::TOMBSTONE] = u64::from(value.is_none());
        batch.put(&mut [row]);
        let live = old.filter(|old| old.ints[record::TOMBSTONE] == 0);
        Ok(live.map(|old| old.strings[record::VALUE].to_vec()))
    })
}

fn get(tree: &Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut row = RowBuffer::default();
    let found = tree.get(&record::key(key), true, &mut row)?;
    let live = found && row.ints[record::TOMBSTONE] == 0;
    Ok(live.then(|| std::mem::take(&mut row.strings[record::VALUE])))
}

fn name_of(row: &Row) -> Vec<u8> {
    let key = row.strings[record::KEY];
    if key.is_empty() { row.ints[record::HEAD].to_be_bytes().to_vec() } else { key.to_vec() }
}

fn scan(tree: &Tree, from: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut out = Vec::new();
    let mut from = esker_table::schema::KeyBuffer::from(record::key(from));
    loop {
        let sources = tree.group_cursors(&from.key(), limit);
        let mut merge = RecordMerge::new(sources.cursors, &from.key())?;
        while merge.advance()? {
            let row = merge.row();
            if sources.end.is_some_and(|end| row.ints[record::HEAD] >= end) {
                break;
            }
            if row.ints[record::TOMBSTONE] == 0 {
                out.push((name_of(&row), row.strings[record::VALUE].to_vec()));
            }
        }
        match sources.end {
            Some(end) => from = Key { ints: [end, 0, 0], string: &[] }.into(),
            None => return Ok(out),
        }
    }
}

fn random_key(random: &mut Random) -> Vec<u8> {
    let spread = random.below(300).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let bytes = spread.to_be_bytes();
    let length = 1 + random.below(8) as usize;
    let mut key = bytes[..length].to_vec();
    if random.below(4) == 0 {
        key.extend_from_slice(&[0; 3][..random.below(4) as usize]);
    }
    key
}

fn options(random: &mut Random) -> TreeOptions {
    TreeOptions {
        durability: [Durability::None, Durability::Async, Durability::Always]
            [random.below(3) as usize],
        compaction: [Compaction::Deferred, Compaction::Tiered, Compaction::Full]
            [random.below(3) as usize],
        memory_bytes: 1 << (16 + random.below(6)),
        background: random.below(2) == 0,
        flush_threads: 1 + random.below(3) as usize,
        ..TreeOptions::default()
    }
}

fn run(seed: u64, steps: usize) {
    println!("seed {seed}");
    let mut random = Random::from_seed(seed);
    let store: SharedStore = Arc::new(MemoryStore::new());
    let set = SetId(u128::from(seed) + 1);
    let mut settings = options(&mut random);
    let mut tree = Tree::create(setup(&store, settings.clone()), set, Manifest::new(vec![], 0))
        .expect("a fresh set");
    let mut model = Model::new();
    for _ in 0..steps {
        let key = random_key(&mut random);
        match random.below(100) {
            0..55 => {
                let value = vec![random.next_u64() as u8; random.below(40) as usize];
                let old = put(&tree, &key, Some(&value)).expect("put");
                assert_eq!(old, model.insert(key, value));
            }
            55..70 => assert_eq!(put(&tree, &key, None).expect("remove"), model.remove(&key)),
            70..90 => assert_eq!(get(&tree, &key).expect("get"), model.get(&key).cloned()),
            90..92 => {
                let scanned = scan(&tree, &key, 1 + random.below(50) as usize).expect("scan");
                let bounds = (Bound::Included(key), Bound::Unbounded);
                let expected: Vec<_> =
                    model.range(bounds).map(|(k, v)| (k.clone(), v.clone())).collect();
                assert_eq!(scanned, expected);
            }
            92..95 => tree.flush().expect("flush"),
            95 if random.one_in(2) => tree.compact().expect("compact"),
            95 => {
                tree.add_read_cost(random.below(1 << 20));
                tree.merge_paid_runs().expect("merge");
            }
            96..98 => tree.sync().expect("sync"),
            _ => {
                // A writer that dies loses what was not logged; this sync logs everything.
                tree.sync().expect("sync");
                drop(tree);
                settings = options(&mut random);
                tree = Tree::resume(setup(&store, settings.clone()), set, None, &mut |_| Ok(true))
                    .expect("resume");
            }
        }
    }
    assert_eq!(scan(&tree, &[0], 10).expect("scan").len(), model.len());
}

#[test]
fn random_operations_match_a_map() {
    match std::env::var("ESKER_SEED") {
        Ok(seed) => run(seed.parse().expect("a number"), 3_000),
        Err(_) => (0..60).for_each(|seed| run(seed, 1_500)),
    }
}

/// Stops the world at every operation of a recorded workload: the recovered state is a prefix that
/// includes everything synced, and recovering twice changes nothing.
#[test]
fn a_crash_at_every_store_operation_leaves_a_prefix() {
    for durability in [Durability::None, Durability::Async, Durability::Always] {
        let options = TreeOptions {
            durability,
            compaction: Compaction::Tiered,
            memory_bytes: 1 << 17,
            background: false,
            ..Default::default()
        };
        let (total, (durable, _)) = workload(&options, None);
        assert!(durable >= 360 && total > 30, "the workload runs to its end: {total}, {durable}");
        for stop in 0..=total {
            for effect in [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full] {
                crash_at(&options, stop, effect);
            }
        }
    }
}

/// Runs 400 puts of ascending values with occasional syncs; returns the number of store operations
/// and the number of puts acknowledged as durable.
fn workload(
    options: &TreeOptions,
    stop: Option<(u64, FaultEffect)>,
) -> (u64, (usize, Arc<FaultStore>)) {
    let fault =
        Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), stop.map_or(0, |stop| stop.0)));
    if let Some((stop, effect)) = stop {
        fault.stop_at(stop, effect);
    }
    let store: SharedStore = fault.clone();
    let mut durable = 0;
    let created = Tree::create(setup(&store, options.clone()), SetId(7), Manifest::new(vec![], 0));
    if let Ok(tree) = created {
        for step in 0..400usize {
            let key = (step % 37).to_string();
            let value = vec![b'v'; 50 + step];
            if put(&tree, key.as_bytes(), Some(&value)).is_err() {
                break;
            }
            if options.durability == Durability::Always {
                durable = step + 1;
            }
            if step % 90 == 89 {
                if tree.sync().is_err() {
                    break;
                }
                durable = step + 1;
            }
        }
    }
    (fault.operations(), (durable, fault))
}

fn crash_at(options: &TreeOptions, stop: u64, effect: FaultEffect) {
    let (_, (durable, fault)) = workload(options, Some((stop, effect)));
    let store = fault.after_power_loss().expect("an image");
    let resume = || Tree::resume(setup(&store, options.clone()), SetId(7), None, &mut |_| Ok(true));
    let tree = match resume() {
        Ok(tree) => tree,
        Err(error) => {
            assert_eq!(durable, 0, "stop {stop}: {error}");
            return;
        }
    };
    let found = scan(&tree, &[0], 10).expect("scan");
    // Step k wrote key k % 37 with 50 + k bytes: the found state must be the state after some step
    // n.
    let longest = found.iter().map(|(_, value)| value.len() - 49).max().unwrap_or(0);
    assert!(longest >= durable, "stop {stop}: {longest} steps left of {durable} durable");
    let mut expected = Model::new();
    for step in 0..longest {
        expected.insert((step % 37).to_string().into_bytes(), vec![b'v'; 50 + step]);
    }
    let found: Model = found.into_iter().collect();
    assert_eq!(found, expected, "stop {stop}: not a prefix");
    drop(tree);
    let again = resume().expect("a second recovery");
    let again: Model = scan(&again, &[0], 10).expect("scan").into_iter().collect();
    assert_eq!(again, expected, "stop {stop}: a second recovery changed something");
}
