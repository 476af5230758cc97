// SPDX-License-Identifier: Apache-2.0
//! Bounds: a writer refuses segments that its readers would refuse, and continues.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{MemoryStore, SharedStore};
use esker_extent::{LogPlace, Segment, TreeExtents};
use esker_table::manifest::SetId;
use esker_table::tree::Durability;

use crate::records::{SET, create, get, options, put, resume};

/// Symptom: an empty segment, or one whose end overflows, panicked after its number was taken, and
/// one of set 0 made a log that could not be read.
/// Cause: runs were checked when they were put, single segments were not.
/// Fix: single segments are checked too.
#[test]
fn impossible_segments_are_refused_and_the_writer_goes_on() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let tree = create(&store, options(Durability::Async, false)).expect("create");
    let log_place = |set, offset| Some(LogPlace { set, log: 1, offset });
    let hole = |offset, length| Segment::hole(5, offset, length);
    let impossible = [
        hole(0, 0),
        hole(u64::MAX, 1),
        Segment { place: log_place(SET, u64::MAX), ..hole(0, 1) },
        Segment { place: log_place(SetId::default(), 0), ..hole(0, 1) },
    ];
    for segment in impossible {
        let possible = Segment { place: log_place(SET, 0), ..hole(0, 10) };
        let refused =
            TreeExtents::of(&tree).put_segments(&mut [possible, segment]).expect_err("impossible");
        assert_eq!(refused.kind(), Kind::Invalid, "{segment:?}");
    }
    put(&tree, b"key", b"value").expect("put");
    tree.sync().expect("sync");
    drop(tree);
    let tree = resume(&store, options(Durability::Async, false)).expect("resume");
    assert!(get(&tree, b"key").expect("get").is_some());
    assert!(TreeExtents::of(&tree).segments_within(5, 0..10).expect("read").is_empty());
}
