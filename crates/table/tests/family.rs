// SPDX-License-Identifier: Apache-2.0
//! A tree that hosts a family beside its rows: totals, to which operations add. Unlike with rows,
//! newer sources do not replace older ones. The test compares rows and totals with a model over
//! flushes, compactions, power loss and takeovers, after which both must be of the same moment.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::store::{FaultStore, MemoryStore, SharedStore};
use esker_base::wire::{WireDamage, WireInput, put_varint};
use esker_base::{Kind, Random, Result};
use esker_table::family::{Family, FamilyMemtable, FamilyTables, OperationVisitor};
use esker_table::manifest::{Manifest, TableRef};
use esker_table::schema::{IntColumn, Key, Row, Schema};
use esker_table::tables::{SortedRun, TableRuns, TableSource};
use esker_table::tree::{Durability, FamilyWriter, Tree, TreeSetup};

use crate::records::{SET, get, options, put, resume, setup};

static TOTAL: Schema = Schema {
    id: 900,
    name: "total",
    ints: &[IntColumn::plain("key"), IntColumn::plain("seq"), IntColumn::plain("total")],
    strings: &["unused"],
    key_ints: 1,
    group_ints: 0,
    hash_of: None,
    has_filters: false,
};

/// The sum that operations have added to each key.
type Sums = BTreeMap<u64, u64>;

#[derive(Debug)]
struct TotalFamily;

#[derive(Debug, Default)]
struct TotalMemtable {
    sums: Sums,
    pending: Vec<u8>,
}

#[derive(Debug, Default)]
struct TotalTables(Vec<SortedRun>);

impl Family for TotalFamily {
    fn memtable(&self) -> Box<dyn FamilyMemtable> {
        Box::new(TotalMemtable::default())
    }

    fn tables(&self) -> Arc<dyn FamilyTables> {
        Arc::new(TotalTables::default())
    }
}

impl FamilyMemtable for TotalMemtable {
    fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    fn bytes(&self) -> usize {
        self.sums.len() * 64
    }

    fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    fn decode(
        &mut self,
        input: &mut WireInput,
        visit: &mut OperationVisitor,
    ) -> Result<u64, WireDamage> {
        let (seq, key, amount) = (input.varint()?, input.varint()?, input.varint()?);
        visit(seq, &(key, amount));
        Ok(seq)
    }

    fn replay(&mut self, operation: &dyn Any) {
        let (key, amount) = operation.downcast_ref::<(u64, u64)>().expect("a total");
        *self.sums.entry(*key).or_default() += amount;
    }

    fn flush(&self, writer: &mut FamilyWriter) -> Result<Vec<TableRef>> {
        write_sums(&self.sums, writer)
    }
}

impl FamilyTables for TotalTables {
    fn with_newer(&self, newer: &[TableRef], source: &TableSource) -> Arc<dyn FamilyTables> {
        let mut all = TableRuns::new(newer, &TOTAL, source).runs;
        all.extend(self.0.iter().cloned());
        Arc::new(Self(all))
    }

    fn runs(&self) -> Vec<(u16, u64)> {
        self.0.iter().map(|run| (TOTAL.id, run.number)).collect()
    }

    fn merge(&self, writer: &mut FamilyWriter) -> Result<Option<Vec<TableRef>>> {
        let mut sums = Sums::new();
        self.add_to(&mut sums)?;
        if self.0.len() < 2 { Ok(None) } else { write_sums(&sums, writer).map(Some) }
    }
}

impl TotalTables {
    fn add_to(&self, sums: &mut Sums) -> Result<()> {
        for run in &self.0 {
            let mut rows = run.merge(&TOTAL, &Key::FIRST, &Key::LAST)?;
            while rows.advance()? {
                let [key, _, total, ..] = rows.row().ints;
                *sums.entry(key).or_default() += total;
            }
        }
        Ok(())
    }
}

fn write_sums(sums: &Sums, writer: &mut FamilyWriter) -> Result<Vec<TableRef>> {
    writer.start(sums.len() as u64);
    writer.write_run(&TOTAL, |run| {
        sums.iter().try_for_each(|(key, total)| {
            let mut row = Row::default();
            row.ints[..3].copy_from_slice(&[*key, 1, *total]);
            run.push(&row)
        })
    })
}

fn add(tree: &Tree, key: u64, amount: u64) -> Result<u64> {
    tree.put_in_family(|memtable: &mut TotalMemtable, seq, _| {
        *memtable.sums.entry(key).or_default() += amount;
        for number in [seq, key, amount] {
            put_varint(&mut memtable.pending, number);
        }
    })
}

fn sums_of(tree: &Tree) -> Sums {
    let (mut sums, older) = tree.read_family(|memtable: &TotalMemtable| memtable.sums.clone());
    for memtable in older.memtables::<TotalMemtable>() {
        memtable.sums.iter().for_each(|(key, sum)| *sums.entry(*key).or_default() += sum);
    }
    older.tables::<TotalTables>().add_to(&mut sums).expect("tables");
    sums
}

fn hosting(store: &SharedStore) -> TreeSetup {
    TreeSetup { family: &TotalFamily, ..setup(store, options(Durability::Async, false)) }
}

/// Step `number`: alternately adds to a total and puts a row that says so.
fn step(tree: &Tree, random: &mut Random, model: &mut Vec<Sums>) {
    let (key, amount) = (random.below(50), 1 + random.below(1_000));
    add(tree, key, amount).expect("add");
    let mut sums = model.last().cloned().unwrap_or_default();
    *sums.entry(key).or_default() += amount;
    model.push(sums);
    put(tree, b"added", &model.len().to_le_bytes()).expect("put");
    match random.below(40) {
        0 => tree.flush().expect("flush"),
        1 => tree.compact().expect("compact"),
        2 => tree.compact_family().expect("compact"),
        3 => tree.sync().expect("sync"),
        _ => {}
    }
}

#[test]
fn rows_and_family_recover_to_one_moment() {
    for seed in 0..20 {
        let mut random = Random::from_seed(seed);
        let mut fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), seed));
        let store: SharedStore = fault.clone();
        let mut tree =
            Tree::create(hosting(&store), SET, Manifest::new(vec![], 0)).expect("create");
        let mut model: Vec<Sums> = Vec::new();
        for _ in 0..4 {
            for _ in 0..random.below(400) {
                step(&tree, &mut random, &mut model);
            }
            assert_eq!(sums_of(&tree), model.last().cloned().unwrap_or_default(), "seed {seed}");
            drop(tree);
            fault = Arc::new(FaultStore::new(fault.after_power_loss().expect("image"), seed));
            let store: SharedStore = fault.clone();
            tree = Tree::resume(hosting(&store), SET, None, &mut |_| Ok(true)).expect("resume");
            let rows = get(&tree, b"added").expect("get").map_or(0, |value| {
                usize::from_le_bytes(value[..].try_into().expect("eight bytes"))
            });
            // A total is added before the row that counts it.
            let found = sums_of(&tree);
            let at =
                |count: usize| count.checked_sub(1).map_or(Sums::new(), |at| model[at].clone());
            let counts = [rows, (rows + 1).min(model.len())];
            let count = counts.into_iter().find(|count| at(*count) == found);
            model.truncate(count.unwrap_or_else(|| panic!("seed {seed}: {rows} of the rows")));
            put(&tree, b"added", &model.len().to_le_bytes()).expect("put");
        }
    }
}

#[test]
fn a_log_of_a_family_needs_that_family() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let tree = Tree::create(hosting(&store), SET, Manifest::new(vec![], 0)).expect("create");
    add(&tree, 1, 2).expect("add");
    tree.sync().expect("sync");
    drop(tree);
    let refused = resume(&store, options(Durability::Async, false)).expect_err("rows alone");
    assert_eq!(refused.kind(), Kind::Corrupt, "{refused}");
    let tree = Tree::resume(hosting(&store), SET, None, &mut |_| Ok(true)).expect("resume");
    assert_eq!(sums_of(&tree), Sums::from([(1, 2)]));
}
