// SPDX-License-Identifier: Apache-2.0
//! Merges of runs that point reads have paid for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_table::manifest::Manifest;
use esker_table::tree::{Compaction, Durability, Tree, TreeOptions};

use crate::records::{SET, create, get, options, put, resume, scan};

/// More searches than any merge of these tests costs.
const ENOUGH: u64 = 1 << 40;
/// Pause between two checks for a merge, and the number of checks after which the test gives up.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSES_MAX: u32 = 24_000;
/// Number of keys; every run has another half of them.
const KEYS: u64 = 300;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn store() -> SharedStore {
    Arc::new(MemoryStore::new())
}

fn key(number: u64) -> Vec<u8> {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec()
}

/// Room for all records of a test, so that only what it flushes is flushed.
fn roomy(background: bool) -> TreeOptions {
    let options = options(Durability::Async, background);
    // Nothing beside the test makes requests, which it counts.
    TreeOptions { memory_bytes: 1 << 24, log_interval: None, ..options }
}

/// Writes `runs` runs that overlap, and that each overwrite half of the keys.
fn write_runs(tree: &Tree, runs: u64, model: &mut Model) -> Result<()> {
    for run in 0..runs {
        for number in (0..KEYS).filter(|number| (number + run) % 2 == 0) {
            let value = [&[b'v'; 20][..], &(run << 32 | number).to_be_bytes()].concat();
            put(tree, &key(number), &value)?;
            model.insert(key(number), value);
        }
        put(tree, &key(KEYS + run), b"once")?;
        model.insert(key(KEYS + run), b"once".to_vec());
        tree.flush()?;
    }
    Ok(())
}

fn runs(tree: &Tree) -> usize {
    tree.statistics().runs
}

fn assert_shows(tree: &Tree, model: &Model) {
    for (key, value) in model {
        assert_eq!(get(tree, key).expect("get").as_ref(), Some(value));
    }
    for absent in 0..100u64 {
        assert_eq!(get(tree, &key(absent + (1 << 40))).expect("get"), None);
    }
    let found: Model = scan(tree, &[0], 100).expect("scan").into_iter().collect();
    assert_eq!(found, *model);
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut pauses = 0;
    while !is_so() {
        assert!(pauses < PAUSES_MAX, "not {what} after {PAUSES_MAX} pauses of {PAUSE:?}");
        pauses += 1;
        std::thread::sleep(PAUSE);
    }
}

#[test]
fn reads_have_the_thread_merge_once() {
    let tree = create(&store(), roomy(true)).expect("create");
    let mut model = Model::new();
    write_runs(&tree, 6, &mut model).expect("write");
    assert_eq!(runs(&tree), 6);
    wait_until("merged", || {
        assert_shows(&tree, &model);
        runs(&tree) == 1
    });
    assert_shows(&tree, &model);
    // Reads of one run pay nothing.
    let table = tree.manifest().tables[0].number;
    std::thread::sleep(Duration::from_millis(1_500));
    assert_shows(&tree, &model);
    assert_eq!(tree.manifest().tables[0].number, table);
}

#[test]
fn nothing_is_merged_before_reads_have_paid() {
    let tree = create(&store(), roomy(false)).expect("create");
    let mut model = Model::new();
    write_runs(&tree, 5, &mut model).expect("write");
    // Half of the price, twice.
    let price = (1 << 14) + 5 * (KEYS / 2 + 1);
    for paid in [price * 190 / 120 / 2 + 1, price * 190 / 120 / 2 + 1] {
        tree.merge_paid_runs().expect("nothing to do");
        assert_eq!(runs(&tree), 5);
        tree.add_read_cost(paid);
    }
    tree.merge_paid_runs().expect("merge");
    assert_eq!(runs(&tree), 1);
    assert_shows(&tree, &model);
    write_runs(&tree, 2, &mut model).expect("write");
    tree.merge_paid_runs().expect("nothing to do");
    assert_eq!(runs(&tree), 3, "what was paid before is spent");
    assert_shows(&tree, &model);
}

#[test]
fn one_run_is_not_merged_and_deferred_trees_merge_nothing() {
    let mut model = Model::new();
    let one = create(&store(), roomy(false)).expect("create");
    write_runs(&one, 1, &mut model).expect("write");
    let before = one.manifest();
    one.add_read_cost(ENOUGH);
    one.merge_paid_runs().expect("nothing to do");
    assert_eq!(one.manifest(), before);

    let deferred = TreeOptions { compaction: Compaction::Deferred, ..roomy(false) };
    let deferred = create(&store(), deferred).expect("create");
    write_runs(&deferred, 4, &mut model).expect("write");
    deferred.add_read_cost(ENOUGH);
    deferred.merge_paid_runs().expect("nothing to do");
    assert_eq!(runs(&deferred), 4);
}

#[test]
fn a_merge_without_room_leaves_every_record() {
    let memory: SharedStore = Arc::new(MemoryStore::new());
    let fault = Arc::new(FaultStore::new(memory, 1));
    let store: SharedStore = fault.clone();
    let tree = create(&store, roomy(false)).expect("create");
    let mut model = Model::new();
    write_runs(&tree, 4, &mut model).expect("write");
    let tables =
        || store.list("set/").expect("list").iter().filter(|o| o.name.contains("/table/")).count();
    let before = tables();
    for request in 1.. {
        tree.add_read_cost(ENOUGH);
        let at = fault.operations() + request;
        fault.fill_at(at, FaultEffect::Partial);
        let merged = tree.merge_paid_runs();
        fault.make_room();
        if fault.operations() < at {
            merged.expect("no request failed");
            break;
        }
        match merged {
            Ok(()) => assert_eq!(runs(&tree), 1),
            Err(error) => assert_eq!(error.kind(), Kind::NoSpace, "{request} {error}"),
        }
        assert_shows(&tree, &model);
        if runs(&tree) == 1 {
            return;
        }
        assert_eq!((runs(&tree), tables()), (4, before), "request {request}");
        put(&tree, b"after", b"that").expect("the tree takes changes");
        model.insert(b"after".to_vec(), b"that".to_vec());
    }
    assert_eq!(runs(&tree), 1);
}

/// Stops the world at every request of a merge: every committed state is whole.
#[test]
fn a_crash_at_every_request_of_a_merge_leaves_all_records() {
    let count = merge_until(u64::MAX, FaultEffect::None).0;
    assert!(count >= 3, "{count} requests");
    for stop in 1..=count {
        for effect in [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full] {
            let (_, fault, model) = merge_until(stop, effect);
            let image = fault.after_power_loss().expect("an image");
            for _ in 0..2 {
                let tree = resume(&image, roomy(false)).expect("resume");
                assert_shows(&tree, &model);
                tree.add_read_cost(ENOUGH);
                tree.merge_paid_runs().expect("merge");
                assert_eq!(runs(&tree), 1, "stop {stop} {effect:?}");
                assert_shows(&tree, &model);
                put(&tree, &key(3), &model[&key(3)]).expect("put");
                tree.flush().expect("flush");
            }
        }
    }
}

/// Merges six runs and stops the world at request `stop` of the merge; returns the number of
/// requests.
fn merge_until(stop: u64, effect: FaultEffect) -> (u64, Arc<FaultStore>, Model) {
    let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), stop));
    let store: SharedStore = fault.clone();
    let tree =
        Tree::create(crate::records::setup(&store, roomy(false)), SET, Manifest::new(vec![], 0))
            .expect("create");
    let mut model = Model::new();
    write_runs(&tree, 6, &mut model).expect("write");
    let before = fault.operations();
    if let Some(at) = before.checked_add(stop) {
        fault.stop_at(at, effect);
    }
    tree.add_read_cost(ENOUGH);
    let merged = tree.merge_paid_runs();
    assert!(merged.is_ok() || stop < u64::MAX, "{merged:?}");
    (fault.operations() - before, fault, model)
}
