// SPDX-License-Identifier: Apache-2.0
//! Write-ahead logs: arbitrary bytes, chunks of arbitrary bytes under a valid checksum, and valid
//! logs with changes.

use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore};
use esker_extent::ExtentFamily;
use esker_table::internals::{ChunkOrigin, LogBlock, SHARDS, ShardLog, prefix_end};
use esker_table::manifest::Manifest;
use esker_table::object_name::ObjectName;
use esker_table::schema::Schema;
use esker_table::schema::record::RECORD;
use esker_table::{LOG_MAGIC, LogContent, LogId, decode_log};

use crate::choices::Choices;
use crate::{manifest, records};

/// Bytes of a chunk's header, which includes its length and checksum.
const HEADER_BYTES: usize = 20;
/// The log that is fuzzed.
const LOG: LogId = LogId { set: manifest::SET, number: 1 << 32 };

type Found = Vec<(u64, Vec<u8>)>;

pub fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let schema = records::schema(&mut choices);
    let kind = choices.u8() % 4;
    if kind == 0 {
        let mut log = LOG_MAGIC.to_vec();
        let mut chunk = vec![0; HEADER_BYTES];
        chunk.extend_from_slice(choices.rest());
        repair(&mut chunk, log.len());
        log.extend_from_slice(&chunk);
        exercise(schema, &log);
        return;
    }
    let (chunks, written) = write(schema, &mut choices);
    let mut log = LOG_MAGIC.to_vec();
    let mut changed = false;
    for mut chunk in chunks {
        if kind == 1 {
            changed |= choices.mutate(&mut chunk);
            repair(&mut chunk, log.len());
        }
        log.extend_from_slice(&chunk);
    }
    // Without recomputing the checksum: damage as by a disk.
    let damaged = kind == 2 && choices.mutate(&mut log);
    let found = exercise(schema, &log);
    if damaged {
        let found = found.unwrap_or_default();
        assert!(found.len() <= written.len() && found[..] == written[..found.len()]);
    } else if !changed {
        assert_eq!(found.expect("a log of ours"), written);
    }
}

/// Recomputes the length and checksum of the chunk at `offset`.
fn repair(chunk: &mut [u8], offset: usize) {
    if chunk.len() <= HEADER_BYTES {
        return;
    }
    let length = u32::try_from(chunk.len() - HEADER_BYTES).expect("small");
    chunk[..4].copy_from_slice(b"ECNK");
    chunk[4..8].copy_from_slice(&length.to_le_bytes());
    let origin = [
        &LOG.set.0.to_le_bytes()[..],
        &LOG.number.to_le_bytes(),
        &(offset as u64).to_le_bytes(),
        &chunk[12..],
    ];
    let checksum = crc32c::crc32c(&origin.concat());
    chunk[8..12].copy_from_slice(&checksum.to_le_bytes());
}

/// Chunks of operations of one row each, and their contents in order.
fn write(schema: &'static Schema, choices: &mut Choices) -> (Vec<Vec<u8>>, Found) {
    let mut shards: Vec<ShardLog> = Vec::new();
    shards.resize_with(SHARDS, ShardLog::default);
    let (mut chunks, mut written) = (Vec::new(), Vec::new());
    let (mut at, mut seq) = (LOG_MAGIC.len() as u64, 1);
    for _ in 0..1 + choices.u8() % 4 {
        let mut chunk = LogBlock::default();
        let mut in_chunk: Vec<(usize, u64, Vec<u8>)> = Vec::new();
        let first = seq;
        for mut row in records::sorted(schema, choices, 30) {
            row.ints[schema.key_ints] = seq;
            let shard = choices.below(SHARDS);
            shards[shard].start(seq, 1);
            let mut number = 0;
            let group = choices.u8().is_multiple_of(2).then_some(&mut number);
            shards[shard].row(schema, &row.row(), group);
            in_chunk.push((shard, seq, row.strings[0].clone()));
            seq += 1;
        }
        for (number, shard) in shards.iter_mut().enumerate() {
            chunk.take(number, shard);
        }
        if chunk.is_empty() {
            continue;
        }
        in_chunk.sort_by_key(|(shard, seq, _)| (*shard, *seq));
        written.extend(in_chunk.into_iter().map(|(_, seq, key)| (seq, key)));
        let synced_below = if choices.u8().is_multiple_of(2) { first } else { 0 };
        let sealed = chunk.seal(&ChunkOrigin { log: LOG, offset: at }, synced_below).to_vec();
        at += sealed.len() as u64;
        chunks.push(sealed);
    }
    (chunks, written)
}

/// Decodes a log; then takes over a set that has it.
fn exercise(schema: &'static Schema, log: &[u8]) -> Option<Found> {
    let (mut found, mut seqs) = (Vec::new(), Vec::new());
    let whole = decode_log(schema, &ExtentFamily, LOG, log, &mut |logged| match logged {
        LogContent::Row(seq, row) => found.push((seq, row.strings[0].to_vec())),
        LogContent::Family(..) | LogContent::SyncedBelow(_) => {}
        LogContent::Operation(seq) => seqs.push(seq),
    });
    if whole.as_ref().is_ok_and(|whole| *whole > log.len()) {
        panic!("more bytes are whole than there are");
    }
    let count = seqs.len() as u64;
    assert!(prefix_end(seqs, 0) <= count, "a prefix has no more operations than there are");
    if schema.id == RECORD.id && log.len() > LOG_MAGIC.len() {
        take_over(log);
    }
    whole.ok().map(|_| found)
}

fn take_over(log: &[u8]) {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let mut first = Manifest::new(Vec::new(), 0);
    first.claim(&*store, manifest::SET, 0).expect("claim");
    store.put_if_absent(&ObjectName::Log(LOG.set, LOG.number).to_string(), log).expect("put");
    if let Ok(tree) = manifest::resume(&store) {
        manifest::use_tree(&tree);
        drop(tree);
        manifest::resume(&store).expect("what was taken over once");
    }
}
