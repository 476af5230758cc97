// SPDX-License-Identifier: Apache-2.0
//! Replay: finds the operations of a writer's logs that form a prefix, and yields their rows.
//!
//! Two passes, so that memory does not grow with the number of rows: the first collects the
//! sequence numbers that are present; the second decodes again and yields the operations of the
//! prefix.

use std::any::Any;

use super::prefix_checksums::PrefixChecksums;
use super::{CHUNK_MAGIC, LOG_MAGIC, LogId, ReadChunk, ShardLog, read_portion, synced_below_at};

use esker_base::wire::{WireDamage, WireInput};

use crate::family::Family;
use crate::memtable::SHARDS;
use crate::schema::{Row, Schema};

/// An item of a log.
#[derive(Clone, Copy, Debug)]
pub enum LogContent<'a> {
    /// The number below which all operations had been synced when a chunk was written, in its log
    /// and in earlier ones. The chunk's operations follow, unless bytes before it are damaged.
    SyncedBelow(u64),
    /// A row, in stored form, and the number of its operation.
    Row(u64, &'a Row<'a>),
    /// The number of an operation of the hosted family, and its content, of a type that the family
    /// defines.
    Family(u64, &'a dyn Any),
    /// The end of an operation, after its content.
    Operation(u64),
}

/// Decodes the operations of log `id`, whose bytes are `log`, up to where it was cut short, and
/// passes their items to `visit`. Rows are of `schema`; other operations are of `family`. Returns
/// the number of bytes that were whole.
///
/// A power loss may cut a log anywhere after its last sync, and may leave later bytes in place. It
/// cannot take operations that a chunk of this log or of a later one records as synced; if the
/// caller does not find them in the whole parts of all logs, the logs are damaged. `visit`
/// therefore also gets these records of the chunks after the whole part. Bytes that pass their
/// checksum but cannot be decoded are damage in any case.
pub fn decode_log(
    schema: &Schema,
    family: &dyn Family,
    id: LogId,
    log: &[u8],
    visit: &mut dyn FnMut(LogContent),
) -> Result<usize, WireDamage> {
    let mut input = WireInput::new(log);
    let (name, version) = LOG_MAGIC.split_at(LOG_MAGIC.len() - 1);
    match log.strip_prefix(name).and_then(<[u8]>::first) {
        Some(found) if *found == version[0] => input.take(LOG_MAGIC.len())?,
        // A power loss may leave any byte there, but then no chunk follows it.
        Some(found)
            if found.is_ascii_digit() && log[LOG_MAGIC.len()..].starts_with(&CHUNK_MAGIC) =>
        {
            return Err(WireDamage { offset: 0, what: "a write-ahead log of format version 3" });
        }
        // A power loss may also leave part of the magic.
        _ => return visit_chunks_behind(id, log, 0, visit),
    };
    let mut shards: Vec<ShardLog> = Vec::new();
    shards.resize_with(SHARDS, ShardLog::default);
    let mut beside = family.memtable();
    loop {
        let at = input.at();
        let Some(mut chunk) = ReadChunk::read(id, &mut input) else {
            return visit_chunks_behind(id, log, at, visit);
        };
        visit(LogContent::SyncedBelow(chunk.synced_below));
        while chunk.portions.left() > 0 {
            let inside = |damage| WireDamage { offset: at, ..damage };
            let (number, mut operations) = read_portion(&mut chunk.portions).map_err(inside)?;
            while operations.left() > 0 {
                let seq = match shards.get_mut(number) {
                    Some(shard) => {
                        let row = &mut |seq, row: &Row| visit(LogContent::Row(seq, row));
                        shard.decode(schema, &mut operations, row)
                    }
                    None => beside.decode(&mut operations, &mut |seq, operation| {
                        visit(LogContent::Family(seq, operation));
                    }),
                };
                let seq = seq.map_err(inside)?;
                if seq < chunk.synced_below {
                    let what = "a chunk without operations that were synced before it was written";
                    return Err(WireDamage { offset: at, what });
                }
                visit(LogContent::Operation(seq));
            }
        }
    }
}

/// Passes to `visit` the numbers below which the chunks after `at`, where the log is not whole,
/// record operations as synced; returns `at`. Searches every offset: overlooking a chunk would lose
/// the proof that operations were synced.
fn visit_chunks_behind(
    id: LogId,
    log: &[u8],
    at: usize,
    visit: &mut dyn FnMut(LogContent),
) -> Result<usize, WireDamage> {
    let rest = log[at..].windows(CHUNK_MAGIC.len()).enumerate();
    let mut candidates = rest.filter(|(_, bytes)| *bytes == CHUNK_MAGIC).peekable();
    if candidates.peek().is_none() {
        return Ok(at);
    }
    let checksums = PrefixChecksums::new(log);
    for (offset, _) in candidates {
        if let Some(synced_below) = synced_below_at(id, log, at + offset, &checksums) {
            visit(LogContent::SyncedBelow(synced_below));
        }
    }
    Ok(at)
}

/// Returns the last of the operations after `last_seq` that follow one another without a gap.
#[must_use]
pub fn prefix_end(mut seqs: Vec<u64>, last_seq: u64) -> u64 {
    seqs.sort_unstable();
    let mut end = last_seq;
    for seq in seqs {
        if seq > end + 1 {
            break;
        }
        end = end.max(seq);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::super::{CHUNK_HEADER_BYTES, ChunkOrigin, LogBlock};
    use super::*;
    use crate::family::NoFamily;
    use crate::manifest::SetId;
    use crate::schema::record::{self, RECORD};

    const LOG: LogId = LogId { set: SetId(3), number: 1 << 32 };

    fn logged(operations: &[(u64, usize, &[u8])]) -> Vec<u8> {
        let with_value = |&(seq, shard, key)| (seq, shard, key, &b"v"[..]);
        logged_with_values(&operations.iter().map(with_value).collect::<Vec<_>>())
    }

    fn logged_with_values(operations: &[(u64, usize, &[u8], &[u8])]) -> Vec<u8> {
        let mut shards: Vec<ShardLog> = Vec::new();
        shards.resize_with(SHARDS, ShardLog::default);
        let mut log = LOG_MAGIC.to_vec();
        for chunk_of in operations.chunks(3) {
            let mut chunk = LogBlock::default();
            for &(seq, shard, key, value) in chunk_of {
                let mut row = record::row(key, value);
                RECORD.store(&mut row.ints);
                shards[shard].start(seq, 1);
                shards[shard].row(&RECORD, &row, None);
            }
            for (shard, log) in shards.iter_mut().enumerate() {
                chunk.take(shard, log);
            }
            let offset = log.len() as u64;
            let first = chunk_of.iter().map(|(seq, ..)| *seq).min().expect("operations");
            log.extend_from_slice(chunk.seal(&ChunkOrigin { log: LOG, offset }, first));
        }
        log
    }

    fn decode(log: &[u8]) -> (Vec<(u64, Vec<u8>)>, usize) {
        let mut rows = Vec::new();
        let whole = decode_log(&RECORD, &NoFamily, LOG, log, &mut |logged| {
            if let LogContent::Row(seq, row) = logged {
                rows.push((seq, row.strings[record::KEY].to_vec()));
            }
        });
        (rows, whole.expect("our own log"))
    }

    #[test]
    fn operations_round_trip_and_a_cut_log_loses_only_its_end() {
        let operations: Vec<(u64, usize, &[u8])> = vec![
            (1, 3, b"one"),
            (2, 0, b"two, longer than eight bytes"),
            (3, 3, b"on"),
            (5, 1, b"five"),
            (4, 3, b"two, longer than eight"),
        ];
        let log = logged(&operations);
        let (mut rows, whole) = decode(&log);
        rows.sort();
        assert_eq!(whole, log.len());
        assert_eq!(rows.len(), 5);
        assert_eq!(rows[1], (2, b"two, longer than eight bytes".to_vec()));
        for cut in 0..log.len() {
            let (fewer, whole) = decode(&log[..cut]);
            assert!(whole <= cut && fewer.len() <= 5);
        }
        for at in 0..log.len() {
            let mut flipped = log.clone();
            flipped[at] ^= 0x40;
            let (mut seqs, mut synced_below) = (Vec::new(), 0);
            let decoded =
                decode_log(&RECORD, &NoFamily, LOG, &flipped, &mut |logged| match logged {
                    LogContent::Operation(seq) => seqs.push(seq),
                    LogContent::SyncedBelow(below) => synced_below = below.max(synced_below),
                    LogContent::Row(..) | LogContent::Family(..) => {}
                });
            let is_cut = seqs.len() < 5 && at > log.len() / 2;
            let is_damaged = prefix_end(seqs, 0) + 1 < synced_below;
            // Only the last chunk is not known to have been synced.
            assert!(decoded.is_err() || is_damaged || is_cut, "byte {at}");
        }
    }

    /// Symptom: after a power loss a set could not be resumed; the error asked for a newer release.
    /// Cause: a log of which only the first seven bytes had reached the disk was taken for one of a
    /// newer format. Fix: only a digit counts as a version, and only before a chunk, since a power
    /// loss may leave any byte.
    #[test]
    fn a_torn_magic_is_a_cut() {
        let log = logged(&[(1, 3, b"one")]);
        for torn in 0..LOG_MAGIC.len() {
            let mut log = log.clone();
            log[torn..].fill(0);
            assert_eq!(decode(&log), (vec![], 0), "torn at {torn}");
        }
        for garbled in [&b"ESKERWL1"[..], b"ESKERWL7\x93\x00\xfeECN", b"ESKERWL0"] {
            assert_eq!(decode(garbled), (vec![], 0));
        }
        for version in [b'1', b'2', b'4'] {
            let mut other = log.clone();
            other[LOG_MAGIC.len() - 1] = version;
            assert!(decode_log(&RECORD, &NoFamily, LOG, &other, &mut |_| {}).is_err());
        }
    }

    /// A chunk whose operations it records as synced before it was written is not ours.
    #[test]
    fn a_chunk_does_not_record_its_own_operations_as_synced() {
        let mut shard = ShardLog::default();
        for synced_below in [0, 4, 5, 6, u64::MAX] {
            let mut chunk = LogBlock::default();
            shard.start(5, 0);
            chunk.take(3, &mut shard);
            shard = ShardLog::default();
            let origin = ChunkOrigin { log: LOG, offset: LOG_MAGIC.len() as u64 };
            let log = [&LOG_MAGIC[..], chunk.seal(&origin, synced_below)].concat();
            let decoded = decode_log(&RECORD, &NoFamily, LOG, &log, &mut |_| {});
            assert_eq!(decoded.is_ok(), synced_below <= 5, "{synced_below}");
        }
    }

    /// Chunks of other logs, and our own at another offset, do not count: neither at the start, nor
    /// as proof that bytes were synced.
    #[test]
    fn a_chunk_counts_only_where_it_was_written() {
        let log = logged(&[(1, 3, b"one"), (2, 3, b"two"), (3, 3, b"three"), (4, 3, b"four")]);
        let read = |id, log: &[u8]| decode_log(&RECORD, &NoFamily, id, log, &mut |_| {});
        assert_eq!(read(LOG, &log), Ok(log.len()));
        for other in [LogId { number: LOG.number + 1, ..LOG }, LogId { set: SetId(4), ..LOG }] {
            assert_eq!(read(other, &log), Ok(LOG_MAGIC.len()));
        }
        let mut moved = log[..LOG_MAGIC.len()].to_vec();
        moved.extend_from_slice(&[0; 5]);
        moved.extend_from_slice(&log[LOG_MAGIC.len()..]);
        assert_eq!(read(LOG, &moved), Ok(LOG_MAGIC.len()));
    }

    /// Symptom: operations that had been synced were missing after a resume, without a word: 100
    /// bytes of a user's value stood between damaged bytes and the chunk that recorded the
    /// operations as synced.
    /// Cause: after damage, replay gave up once it had read 16 times the rest of the log at places
    /// that look like chunks, and values may have such places.
    /// Fix: the checksum of a place takes constant time, so all places are compared.
    #[test]
    fn no_value_hides_the_chunks_behind_it() {
        // Each place claims nearly all bytes that follow.
        let fakes = |count: usize, rest: usize| -> Vec<u8> {
            let fake = |at: usize| {
                let length = ((count - at) * 8 + rest - CHUNK_HEADER_BYTES - 40) as u32;
                [&CHUNK_MAGIC[..], &length.to_le_bytes()].concat()
            };
            (0..count).flat_map(fake).collect()
        };
        for count in [1, 12, 50, 7_000] {
            let long = [&fakes(count, 400)[..], &[b'v'; 400]].concat();
            let operations = [
                (1, 3, &b"one"[..], &b"v"[..]),
                (2, 3, b"two", &long),
                (3, 3, b"three", b"v"),
                (4, 3, b"four", b"v"),
            ];
            let mut log = logged_with_values(&operations);
            log[LOG_MAGIC.len() + CHUNK_HEADER_BYTES] ^= 1;
            let mut synced_below = 0;
            let whole = decode_log(&RECORD, &NoFamily, LOG, &log, &mut |logged| {
                if let LogContent::SyncedBelow(below) = logged {
                    synced_below = below.max(synced_below);
                }
            });
            assert_eq!((whole, synced_below), (Ok(LOG_MAGIC.len()), 4), "{count} places");
        }
    }

    #[test]
    fn the_prefix_ends_before_the_first_gap() {
        assert_eq!(prefix_end(vec![5, 7, 6, 3, 9], 4), 7);
        assert_eq!(prefix_end(vec![], 4), 4);
        assert_eq!(prefix_end(vec![6], 4), 4);
    }
}
