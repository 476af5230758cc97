// SPDX-License-Identifier: Apache-2.0
//! Recovery: the segments that a writer finds when it takes a change set over.

use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore};
use esker_extent::{LogPlace, Segment, SegmentRun, TreeExtents};
use esker_table::manifest::SetId;
use esker_table::tree::{Durability, Tree, TreeOptions};

use crate::records::{create, options, resume};

const FILE: u128 = 5;

/// Options with room for every operation of these tests in one memtable.
fn roomy() -> TreeOptions {
    TreeOptions { memory_bytes: 256 << 20, ..options(Durability::Async, false) }
}

fn segment(offset: u64, length: u64, log_offset: u64) -> Segment {
    let place = Some(LogPlace { set: SetId(9), log: 1, offset: log_offset });
    Segment { place, ..Segment::hole(FILE, offset, length) }
}

/// `count` segments of 4 bytes, every 16 bytes from `offset` on.
fn run(offset: u64, count: u64, log_offset: u64) -> SegmentRun {
    SegmentRun { first: segment(offset, 4, log_offset), count, stride: 16, log_stride: 4 }
}

/// Puts a single segment, then `runs`; takes the set over and returns the tree.
fn replayed(runs: &[SegmentRun]) -> esker_base::Result<Tree> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let tree = create(&store, roomy()).expect("create");
    TreeExtents::of(&tree).put_runs(FILE, &mut [SegmentRun::one(segment(0, 7, 0))]).expect("put");
    for run in runs {
        TreeExtents::of(&tree).put_runs(FILE, &mut [*run]).expect("put");
    }
    tree.sync().expect("sync");
    drop(tree);
    resume(&store, roomy())
}

fn table_rows(tree: &Tree) -> u64 {
    tree.manifest().tables.iter().map(|table| table.rows).sum()
}

/// Symptom: a log of 81 bytes took 120 MiB to replay, and became a table of a million rows.
/// Cause: a file whose first segment was put alone is a map of segments, and replay put runs of
/// such a file into it segment by segment.
/// Fix: a file in a memtable changes from a map to runs with the first run that is put.
#[test]
fn runs_that_are_replayed_stay_runs() {
    let tree = replayed(&[run(100, 1 << 20, 7)]).expect("resume");
    assert!(table_rows(&tree) < 10, "{} rows", table_rows(&tree));
    let pieces = TreeExtents::of(&tree).segments_within(FILE, 0..140).expect("segments");
    let offsets: Vec<u64> = pieces.iter().map(|piece| piece.offset).collect();
    assert_eq!(offsets, [0, 100, 116, 132]);
}
