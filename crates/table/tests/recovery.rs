//! Recovery: what a writer finds that takes a change set over, and what it acknowledges then.

use std::sync::Arc;

use esker_base::store::{FaultStore, MemoryStore, SharedStore};
use esker_table::schema::record;
use esker_table::tree::{Durability, Tree};

use crate::records::{create, get, options, put, resume};

fn store() -> SharedStore {
    Arc::new(MemoryStore::new())
}

/// Inserts a key that has a record: the operation takes a number, and is given up.
fn give_up_an_insert(tree: &Tree, key: &[u8]) {
    let inserted = tree.insert(&mut record::row(key, b"again"), |_, _| {}).expect("insert");
    assert_eq!(inserted, None);
}

/// Symptom: what a writer synced after it had taken a set over was gone after the next takeover.
/// Cause: the logs held only operations that had been given up, so the takeover committed the new
/// floor of the logs without the last number; the next replay stopped at that gap.
/// Fix: the takeover commits both.
#[test]
fn a_sync_after_a_takeover_of_operations_that_were_given_up_survives_the_next_one() {
    for durability in [Durability::Async, Durability::Always] {
        let store = store();
        let tree = create(&store, options(durability, false)).expect("create");
        let inserted = tree.insert(&mut record::row(b"a", b"1"), |_, _| {}).expect("insert");
        assert!(inserted.is_some());
        tree.flush().expect("flush");
        give_up_an_insert(&tree, b"a");
        tree.sync().expect("sync");
        drop(tree);

        for number in 0..3u8 {
            let tree = resume(&store, options(durability, false)).expect("resume");
            put(&tree, &[number], b"1").expect("put");
            tree.sync().expect("sync");
        }
        let tree = resume(&store, options(durability, false)).expect("resume");
        for key in [&b"a"[..], &[0], &[1], &[2]] {
            let value = get(&tree, key).expect("get");
            assert_eq!(value.as_deref(), Some(&b"1"[..]), "{durability:?}: {key:?}");
        }
    }
}

/// A value that holds a chunk of a log with a right checksum, which says that everything before it
/// was synced.
fn value_with_a_chunk() -> Vec<u8> {
    let checked = [&u64::MAX.to_le_bytes()[..], b"x"].concat();
    let mut value = b"ECNK\x01\0\0\0".to_vec();
    value.extend_from_slice(&crc32c::crc32c(&checked).to_le_bytes());
    value.extend_from_slice(&checked);
    value.extend((0..3_000u32).map(|at| (at * 7 + at / 251) as u8));
    value
}

/// Symptom: a set could not be resumed after power loss.
/// Cause: bytes of a value passed for a chunk of the log, and said that what was torn before them
/// had been synced.
/// Fix: the checksum of a chunk covers the set, the log and the offset at which it was written.
#[test]
fn a_value_that_looks_like_a_chunk_is_none() {
    let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 7));
    let store: SharedStore = fault.clone();
    let tree = create(&store, options(Durability::Async, false)).expect("create");
    put(&tree, b"synced", b"1").expect("put");
    tree.sync().expect("sync");
    put(&tree, b"unsynced", &value_with_a_chunk()).expect("put");
    // A shard that has this much pending writes the log.
    put(&tree, b"large", &[7; 1 << 14]).expect("put");
    for _ in 0..100 {
        let image = fault.after_power_loss().expect("image");
        let tree = resume(&image, options(Durability::Async, false)).expect("resume");
        assert!(get(&tree, b"synced").expect("get").is_some());
    }
}
