// SPDX-License-Identifier: Apache-2.0
//! Recovery: the state that a writer finds when it takes a change set over, and the changes that it
//! acknowledges then.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_table::internals::{ChunkOrigin, LogBlock, ShardLog};
use esker_table::manifest::Manifest;
use esker_table::object_name::ObjectName;
use esker_table::schema::record::{self, RECORD};
use esker_table::tree::{Durability, Tree};
use esker_table::{LOG_MAGIC, LogId};

use crate::records::{SET, create, get, options, put, resume, scan};

fn store() -> SharedStore {
    Arc::new(MemoryStore::new())
}

/// Inserts a key that has a record: the operation takes a number, and is abandoned.
fn give_up_an_insert(tree: &Tree, key: &[u8]) {
    let inserted = tree.insert(&mut record::row(key, b"again"), |_, _| {}, || {}).expect("insert");
    assert_eq!(inserted, None);
}

/// Symptom: changes that a writer synced after a takeover were gone after the next takeover.
/// Cause: the logs held only abandoned operations, so the takeover committed the new floor of the
/// logs without the last number; the next replay stopped at that gap.
/// Fix: the takeover commits both.
#[test]
fn a_sync_after_a_takeover_of_operations_that_were_given_up_survives_the_next_one() {
    for durability in [Durability::Async, Durability::Always] {
        let store = store();
        let tree = create(&store, options(durability, false)).expect("create");
        let inserted = tree.insert(&mut record::row(b"a", b"1"), |_, _| {}, || {}).expect("insert");
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

/// A value that contains a chunk of a log with a correct checksum, which claims that everything
/// before it was synced.
fn value_with_a_chunk() -> Vec<u8> {
    let checked = [&u64::MAX.to_le_bytes()[..], b"x"].concat();
    let mut value = b"ECNK\x01\0\0\0".to_vec();
    value.extend_from_slice(&crc32c::crc32c(&checked).to_le_bytes());
    value.extend_from_slice(&checked);
    value.extend((0..3_000u32).map(|at| (at * 7 + at / 251) as u8));
    value
}

/// Symptom: a set could not be resumed after a power loss.
/// Cause: bytes of a value passed for a chunk of the log, which claimed that the torn bytes before
/// them had been synced.
/// Fix: the checksum of a chunk covers the set, the log and the offset at which it was written.
#[test]
fn a_value_that_looks_like_a_chunk_is_none() {
    let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 7));
    let store: SharedStore = fault.clone();
    let tree = create(&store, options(Durability::Async, false)).expect("create");
    put(&tree, b"synced", b"1").expect("put");
    tree.sync().expect("sync");
    put(&tree, b"unsynced", &value_with_a_chunk()).expect("put");
    // A shard with this much pending writes the log.
    put(&tree, b"large", &[7; 1 << 14]).expect("put");
    for _ in 0..100 {
        let image = fault.after_power_loss().expect("image");
        let tree = resume(&image, options(Durability::Async, false)).expect("resume");
        assert!(get(&tree, b"synced").expect("get").is_some());
    }
}

/// Symptom: damage of a log silently took synced operations that later logs held.
/// Cause: each log was judged alone, and the last chunk of one has no chunk after it that could say
/// that it was synced; the later logs were cut at the gap that it left.
/// Fix: a chunk records which operations were synced, in any log.
#[test]
fn damage_of_a_log_before_synced_ones_is_no_cut() {
    let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 7));
    let store: SharedStore = fault.clone();
    let tree = create(&store, options(Durability::Async, false)).expect("create");
    put(&tree, b"first", b"1").expect("put");
    tree.sync().expect("sync");
    // There is room for the next log, and none for tables, so both logs are needed.
    fault.fill_at(fault.operations() + 3, FaultEffect::None);
    assert_eq!(tree.flush().expect_err("full").kind(), Kind::NoSpace);
    fault.make_room();
    for key in [&b"second"[..], b"third"] {
        put(&tree, key, b"1").expect("put");
        tree.sync().expect("sync");
    }
    let log = ObjectName::Log(SET, 1 << 32).to_string();
    let bytes = store.get(&log, u64::MAX).expect("get");
    let resume_with = |bytes: &[u8]| {
        let image = fault.after_process_death().expect("image");
        image.delete(&log).expect("delete");
        image.put_if_absent(&log, bytes).expect("put");
        resume(&image, options(Durability::Async, false))
    };
    let whole = scan(&resume_with(&bytes).expect("resume"), &[0], 10).expect("scan");
    assert_eq!(whole.len(), 3);
    for at in 0..bytes.len() {
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 1;
        for damaged in [&flipped, &bytes[..at]] {
            let error = resume_with(damaged).expect_err("damage");
            assert_eq!(error.kind(), Kind::Corrupt, "byte {at}: {error}");
        }
    }
}

/// Writes log `count` of the first writer: 20 rows, each of which overwrites one of the previous
/// log.
fn put_log(store: &SharedStore, count: u64) {
    let id = LogId { set: SET, number: 1 << 32 | count };
    let (mut shard, mut chunk) = (ShardLog::default(), LogBlock::default());
    for number in 0..20 {
        let (key, value) = ([b'k', (count * 10 + number) as u8], [count as u8; 2_000]);
        let mut row = record::row(&key, &value);
        RECORD.store(&mut row.ints);
        shard.start(count * 20 + number + 1, 1);
        shard.row(&RECORD, &row, None);
    }
    chunk.take(0, &mut shard);
    let origin = ChunkOrigin { log: id, offset: LOG_MAGIC.len() as u64 };
    let log = [&LOG_MAGIC[..], chunk.seal(&origin, 0)].concat();
    store.put_if_absent(&ObjectName::Log(id.set, id.number).to_string(), &log).expect("put");
}

/// A takeover that replays several logs flushes after each. Stopped at any store operation, it
/// leaves the next takeover everything that it has not put into tables.
#[test]
fn a_takeover_of_several_logs_may_be_stopped_anywhere() {
    const LOGS: u64 = 4;
    for durability in [Durability::None, Durability::Async] {
        for stop in 1.. {
            let memory: SharedStore = Arc::new(MemoryStore::new());
            let mut first = Manifest::new(vec![], 0);
            first.claim(&*memory, SET, 0).expect("claim");
            (0..LOGS).for_each(|count| put_log(&memory, count));
            let fault = Arc::new(FaultStore::new(memory.clone(), stop));
            let store: SharedStore = fault.clone();
            fault.stop_at(stop, FaultEffect::Partial);
            let stopped = resume(&store, options(durability, false));
            let is_whole = !fault.is_stopped();
            drop(stopped);
            let tree = resume(&memory, options(durability, false)).expect("resume");
            let found = scan(&tree, &[0], 10).expect("scan");
            assert_eq!(found.len() as u64, 10 * (LOGS + 1), "stopped at {stop}");
            for (key, value) in found {
                let newest = (u64::from(key[1]) / 10).min(LOGS - 1);
                assert_eq!(u64::from(value[0]), newest, "{key:?}, stopped at {stop}");
            }
            if is_whole {
                break;
            }
        }
    }
}
