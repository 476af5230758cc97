// SPDX-License-Identifier: Apache-2.0
//! Merges that meet a damaged table.
//!
//! Symptom: a live namespace stopped, with everything in it, when a merge reached a table of an
//! inserted directory that was damaged in the store.
//! Cause: a flush that could not merge failed, and a failed flush stops the writer.
//! Fix: the run stays as it is, and others are merged. Reads of the damaged part report it.

use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_table::manifest::TableRef;
use esker_table::tree::{Compaction, Durability, Tree, TreeOptions};

use crate::records::{create, get, options, put, resume};

/// Keys of a run.
const KEYS: u8 = 100;

fn with_compaction(compaction: Compaction) -> TreeOptions {
    let options = options(Durability::Async, false);
    TreeOptions { memory_bytes: 1 << 24, log_interval: None, compaction, ..options }
}

/// Writes a run of keys that no other run has.
fn write_run(tree: &Tree, run: u8) -> Result<()> {
    (0..KEYS).try_for_each(|key| put(tree, &[run, key], &[run; 50]).map(drop))?;
    tree.flush()
}

/// Changes a byte of the records of `table`.
fn damage(store: &SharedStore, table: &TableRef) -> Result<()> {
    let mut bytes = store.get(&table.name(), 1 << 20)?.to_vec();
    let at = (bytes.len() - usize::try_from(table.tail_bytes).expect("small")) / 2;
    bytes[at] ^= 0x20;
    store.delete(&table.name())?;
    store.put_if_absent(&table.name(), &bytes)
}

fn assert_has(tree: &Tree, runs: impl IntoIterator<Item = u8>) {
    for run in runs {
        for key in [0, KEYS - 1] {
            let value = get(tree, &[run, key]).unwrap_or_else(|error| panic!("{run}: {error}"));
            assert_eq!(value, Some(vec![run; 50]), "{run}");
        }
    }
}

type Harm = fn(&SharedStore, &TableRef) -> Result<()>;

#[test]
fn a_damaged_run_stays_and_others_are_merged() -> Result<()> {
    let harms: [(Harm, Kind); 2] =
        [(damage, Kind::Corrupt), (|store, table| store.delete(&table.name()), Kind::NotFound)];
    for (harm, kind) in harms {
        for compaction in [Compaction::Tiered, Compaction::Full] {
            let store: SharedStore = Arc::new(MemoryStore::new());
            let tree = create(&store, with_compaction(Compaction::Deferred))?;
            (0..5).try_for_each(|run| write_run(&tree, run))?;
            let damaged = tree.manifest().tables[2].clone();
            drop(tree);
            harm(&store, &damaged)?;
            let tree = resume(&store, with_compaction(compaction))?;
            for run in 5..30 {
                write_run(&tree, run)?;
                let runs = tree.statistics().runs;
                assert!(runs <= 14, "{runs} runs with {compaction:?}");
            }
            assert_has(&tree, [0, 1].into_iter().chain(3..30));
            assert_eq!(get(&tree, &[2, 50]).unwrap_err().kind(), kind);
            // A merge that was asked for reports it, and stops nothing.
            assert_eq!(tree.compact().unwrap_err().kind(), kind);
            write_run(&tree, 30)?;
            drop(tree);
            // The next writer finds it again.
            let tree = resume(&store, with_compaction(compaction))?;
            (31..40).try_for_each(|run| write_run(&tree, run))?;
            assert_has(&tree, [0, 1].into_iter().chain(3..40));
            assert!(tree.manifest().tables.contains(&damaged), "{compaction:?}");
        }
    }
    Ok(())
}

#[test]
fn a_merge_for_reads_leaves_a_damaged_run() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let tree = create(&store, with_compaction(Compaction::Tiered))?;
    (0..5).try_for_each(|run| write_run(&tree, run))?;
    let damaged = tree.manifest().tables[2].clone();
    drop(tree);
    damage(&store, &damaged)?;
    let tree = resume(&store, with_compaction(Compaction::Tiered))?;
    tree.add_read_cost(1 << 40);
    assert_eq!(tree.merge_paid_runs().unwrap_err().kind(), Kind::Corrupt);
    for _ in 0..3 {
        tree.add_read_cost(1 << 40);
        tree.merge_paid_runs()?;
    }
    (5..8).try_for_each(|run| write_run(&tree, run))?;
    assert_has(&tree, [0, 1].into_iter().chain(3..8));
    assert!(tree.manifest().tables.contains(&damaged));
    Ok(())
}
