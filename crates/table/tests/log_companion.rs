// SPDX-License-Identifier: Apache-2.0
//! The companion of the log: after a crash anywhere it covers exactly the operations that survived.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_table::manifest::Manifest;
use esker_table::schema::record;
use esker_table::tree::{Durability, Tree, TreeSetup};

use crate::records::{SET, get, options, resume, scan, setup};

/// Keys that are not the companion's.
const KEYS: u64 = 2_500;
const COMPANION: &[u8] = b"\xff companion";

/// A tree whose companion says how many keys were inserted.
fn counted(store: &SharedStore, background: bool) -> (Tree, Arc<AtomicU64>) {
    let inserted = Arc::new(AtomicU64::new(0));
    let counter = inserted.clone();
    let setup = TreeSetup {
        log_companion: Some(Arc::new(move |put| {
            let count = counter.load(Ordering::SeqCst).to_be_bytes();
            put(&record::row(COMPANION, &count));
        })),
        ..setup(store, options(Durability::Async, background))
    };
    let tree = Tree::create(setup, SET, Manifest::new(vec![], 0)).expect("create");
    (tree, inserted)
}

/// Inserts keys while another thread syncs, until the store stops or all are there.
fn insert_all(tree: &Tree, inserted: &AtomicU64, syncs: bool) {
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| while syncs && tree.sync().is_ok() {});
        for number in 0..KEYS {
            let key = number.to_be_bytes();
            let mut row = record::row(&key, &[7; 60]);
            let count = || {
                inserted.fetch_add(1, Ordering::SeqCst);
            };
            if tree.insert(&mut row, |_, _| {}, count).is_err() {
                break;
            }
        }
        tree.stopper()("done");
        syncing.join().expect("no panic");
    });
}

/// Symptom: a server's creates survived a crash, and the record that it had carried them out did not,
/// so that they were carried out again, over what others had done since.
/// Cause: the record followed the creates, and the log was written in between.
/// Fix: whatever is written of the log has a record of exactly what is in it.
#[test]
fn a_companion_covers_what_survives_a_crash_at_any_request() {
    let (mut crashes, mut partial) = (0, 0);
    for (background, syncs) in [(false, false), (true, false), (true, true)] {
        let operations = {
            let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
            let (tree, inserted) = counted(&(fault.clone() as SharedStore), background);
            insert_all(&tree, &inserted, false);
            fault.operations()
        };
        for stop in (3..operations + 2).step_by((operations as usize / 12).max(1)) {
            for effect in [FaultEffect::None, FaultEffect::Full] {
                let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), stop));
                let (tree, inserted) = counted(&(fault.clone() as SharedStore), background);
                fault.stop_at(stop, effect);
                insert_all(&tree, &inserted, syncs);
                drop(tree);
                for store in [fault.after_process_death(), fault.after_power_loss()] {
                    let tree = resume(&store.expect("a store"), options(Durability::Async, false));
                    let tree = tree.expect("resume");
                    let all = scan(&tree, &[0], 10_000).expect("scan");
                    let survived = all.iter().filter(|(key, _)| key != COMPANION).count() as u64;
                    let covered = get(&tree, COMPANION).expect("get").map_or(0, |count| {
                        u64::from_be_bytes(count.try_into().expect("eight bytes"))
                    });
                    assert_eq!(covered, survived, "stopped at {stop}, {effect:?}");
                    crashes += 1;
                    partial += u64::from(survived > 0 && survived < KEYS);
                }
            }
        }
    }
    assert!(crashes > 50 && partial > 10, "{crashes} crashes, {partial} in the middle");
}
