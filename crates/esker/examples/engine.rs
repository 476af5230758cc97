// SPDX-License-Identifier: Apache-2.0
//! The engine alone: sorted records in a store, without files. A tree takes changes at memory
//! speed, keeps a log, and writes sorted tables; after a crash it is resumed.

use std::sync::Arc;

use esker::backend::{MemoryStore, SharedStore, SystemClock};
use esker::{Durability, SetId};
use esker_table::family::NoFamily;
use esker_table::manifest::Manifest;
use esker_table::merge::RecordMerge;
use esker_table::schema::RowBuffer;
use esker_table::schema::record::{self, RECORD};
use esker_table::tables::TableSource;
use esker_table::tree::{Tree, TreeOptions, TreeSetup};

const SET: SetId = SetId(1);

fn setup(store: &SharedStore) -> TreeSetup {
    TreeSetup {
        schema: &RECORD,
        family: &NoFamily,
        source: TableSource::new(store.clone(), 16 << 20),
        clock: Arc::new(SystemClock),
        options: TreeOptions { durability: Durability::Always, ..TreeOptions::default() },
        // Records that refer to data elsewhere sync that first; these do not.
        sync_dependencies: Arc::new(|| Ok(())),
        log_companion: None,
        heartbeat: None,
    }
}

/// Adds `amount` to the counter `name`, in one step.
fn add(tree: &Tree, name: &[u8], amount: u64) -> esker::Result<u64> {
    tree.update([record::key(name)], None, |[old], batch| {
        let old = old.map_or(0, |row| number(row.strings[record::VALUE]));
        batch.put(&mut [record::row(name, &(old + amount).to_le_bytes())]);
        Ok(old + amount)
    })
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn get(tree: &Tree, name: &[u8]) -> esker::Result<Option<u64>> {
    let mut row = RowBuffer::default();
    let found = tree.get(&record::key(name), true, &mut row)?;
    Ok(found.then(|| number(&row.strings[record::VALUE])))
}

pub(crate) fn main() -> esker::Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let tree = Tree::create(setup(&store), SET, Manifest::new(vec![], 0))?;
    for step in 0..1000 {
        add(&tree, format!("counter-{}", step % 10).as_bytes(), step)?;
    }
    tree.flush()?;
    add(&tree, b"after the flush", 1)?;
    // A drop is like a crash. At durability `Always` everything acknowledged is in the log.
    drop(tree);

    let tree = Tree::resume(setup(&store), SET, None, &mut |_| Ok(true))?;
    assert_eq!(get(&tree, b"after the flush")?, Some(1));
    assert_eq!(get(&tree, b"absent")?, None);

    // Cursors over all sources of the tree, merged in the order of the keys.
    let from = record::key(b"counter-");
    let sources = tree.group_cursors(&from, 100);
    let mut merge = RecordMerge::new(sources.cursors, &from)?;
    let (mut count, mut sum) = (0, 0);
    while merge.advance()? {
        let row = merge.row();
        let value = number(row.strings[record::VALUE]);
        println!("{} = {value}", String::from_utf8_lossy(row.strings[record::KEY]));
        (count, sum) = (count + 1, sum + value);
    }
    assert_eq!((count, sum), (10, 999 * 1000 / 2));
    let objects = store.list("")?;
    println!("{} objects, {} bytes", objects.len(), objects.iter().map(|o| o.bytes).sum::<u64>());
    Ok(())
}
