// SPDX-License-Identifier: Apache-2.0
//! Write-ahead log: the operations that no table holds yet, in order of their sequence numbers.
//!
//! Layout: docs/format/wal.md. Each shard of the memtable encodes its own operations, each against
//! the one before (`encoder`). A chunk gathers the pending operations of all shards, so that
//! writers contend only once every few thousand operations. Replay (`replay`) merges operations
//! back into one sequence by their sequence numbers and stops at the first that is missing, so it
//! yields a prefix.

mod encoder;
mod log_id;
mod prefix_checksums;
mod replay;

pub use encoder::ShardLog;
use esker_base::wire::{WireDamage, WireInput, put_varint};
pub use log_id::LogId;
pub use replay::{LogContent, decode_log, prefix_end};

use self::prefix_checksums::PrefixChecksums;
use crate::memtable::SHARDS;
use crate::schema::ROW_TEXT_BYTES_MAX;

/// A log starts with these bytes.
pub const LOG_MAGIC: [u8; 8] = *b"ESKERWL3";
/// Maximum bytes of a chunk; a larger one is not ours. The pending operations of a thousand writers
/// of the largest records stay below it.
pub const CHUNK_BYTES_MAX: usize = 1 << 30;
const _: () = assert!(CHUNK_BYTES_MAX > 1_000 * ROW_TEXT_BYTES_MAX);
/// The portion of the hosted family. Portions of a chunk are numbered by the shard whose operations
/// they hold; this is the last.
pub(crate) const FAMILY_PORTION: usize = SHARDS;
/// A chunk starts with these bytes, by which replay finds the next one after damaged bytes.
const CHUNK_MAGIC: [u8; 4] = *b"ECNK";
/// Bytes of a chunk before its portions: magic, their length, a CRC-32C of the chunk's origin and
/// of the bytes that follow, and the number below which the writer had synced every operation when
/// it wrote the chunk.
const CHUNK_HEADER_BYTES: usize = 20;

/// The origin of a chunk: its log and its offset there. The checksum covers both, so the same bytes
/// anywhere else, such as in a value that a user wrote, are not a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkOrigin {
    /// The log.
    pub log: LogId,
    /// Offset of the chunk's first byte.
    pub offset: u64,
}

impl ChunkOrigin {
    /// The checksum of a chunk at this origin; `checked` is the bytes after the checksum.
    fn checksum(&self, checked: &[u8]) -> u32 {
        crc32c::crc32c_append(self.own_checksum(), checked)
    }

    /// The checksum of the origin itself, without the bytes that follow.
    fn own_checksum(&self) -> u32 {
        let set = crc32c::crc32c(&self.log.set.0.to_le_bytes());
        let number = crc32c::crc32c_append(set, &self.log.number.to_le_bytes());
        crc32c::crc32c_append(number, &self.offset.to_le_bytes())
    }
}

/// The pending operations of all shards: a unit that is either written whole or counts as absent.
#[derive(Debug)]
pub struct LogBlock {
    bytes: Vec<u8>,
}

impl Default for LogBlock {
    fn default() -> Self {
        Self { bytes: vec![0; CHUNK_HEADER_BYTES] }
    }
}

impl LogBlock {
    /// Returns whether the chunk is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == CHUNK_HEADER_BYTES
    }

    /// Adds the pending bytes of `log`, the log of shard `shard`.
    pub fn take(&mut self, shard: usize, log: &mut ShardLog) {
        if self.add(shard, log.pending()) {
            log.clear_pending();
        }
    }

    /// Adds `pending`, operations of the hosted family, and clears it.
    pub fn take_family(&mut self, pending: &mut Vec<u8>) {
        if self.add(FAMILY_PORTION, pending) {
            pending.clear();
        }
    }

    fn add(&mut self, portion: usize, pending: &[u8]) -> bool {
        if pending.is_empty() {
            return false;
        }
        put_varint(&mut self.bytes, portion as u64);
        put_varint(&mut self.bytes, pending.len() as u64);
        self.bytes.extend_from_slice(pending);
        true
    }

    /// Returns the chunk as written at `origin` by a writer that has synced all operations below
    /// `synced_below`, in this log and in earlier ones; the chunk's own have higher numbers.
    #[must_use]
    pub fn seal(&mut self, origin: &ChunkOrigin, synced_below: u64) -> &[u8] {
        let body = self.bytes.len() - CHUNK_HEADER_BYTES;
        assert!(body <= CHUNK_BYTES_MAX, "shards write through long before that");
        let length = u32::try_from(body).expect("CHUNK_BYTES_MAX fits 32 bits");
        self.bytes[..4].copy_from_slice(&CHUNK_MAGIC);
        self.bytes[4..8].copy_from_slice(&length.to_le_bytes());
        self.bytes[12..20].copy_from_slice(&synced_below.to_le_bytes());
        let checksum = origin.checksum(&self.bytes[12..]);
        self.bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        &self.bytes
    }

    /// Empties the chunk but keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.truncate(CHUNK_HEADER_BYTES);
    }
}

/// A chunk being read.
#[derive(Debug)]
pub(crate) struct ReadChunk<'a> {
    /// Its portions.
    pub(crate) portions: WireInput<'a>,
    /// All operations below this number had been synced when the chunk was written, before anyone
    /// took the set over.
    pub(crate) synced_below: u64,
}

impl<'a> ReadChunk<'a> {
    /// Returns the size of the chunk at the front of `input`, if all its bytes are there.
    pub(crate) fn bytes(input: &WireInput<'a>) -> Option<usize> {
        let mut ahead = input.clone();
        if ahead.take(4).ok()? != CHUNK_MAGIC {
            return None;
        }
        let length = ahead.u32().ok()? as usize;
        let bytes = CHUNK_HEADER_BYTES + length;
        (length > 0 && length <= CHUNK_BYTES_MAX && bytes <= input.left()).then_some(bytes)
    }

    /// Reads the chunk at the front of `input`, which reads the whole of `log`. Returns `None` if
    /// the bytes there are not a whole chunk that was written at that offset.
    pub(crate) fn read(log: LogId, input: &mut WireInput<'a>) -> Option<Self> {
        let bytes = Self::bytes(input)?;
        let mut ahead = input.clone();
        ahead.take(8).ok()?;
        let checksum = ahead.u32().ok()?;
        let checked = ahead.take(bytes - 12).ok()?;
        let origin = ChunkOrigin { log, offset: input.at() as u64 };
        if origin.checksum(checked) != checksum {
            return None;
        }
        *input = ahead;
        let (synced, body) = checked.split_first_chunk().expect("at least eight bytes");
        Some(Self { portions: WireInput::new(body), synced_below: u64::from_le_bytes(*synced) })
    }
}

/// Returns the number that the chunk at `at` of `log`, whose bytes `checksums` covers, records:
/// operations below it were synced. Returns `None` where [`ReadChunk::read`] does, but takes
/// constant time.
fn synced_below_at(id: LogId, log: &[u8], at: usize, checksums: &PrefixChecksums) -> Option<u64> {
    let bytes = ReadChunk::bytes(&WireInput::new(&log[at..]))?;
    let mut header = WireInput::new(&log[at + 8..]);
    let (checksum, synced_below) = (header.u32().ok()?, header.u64().ok()?);
    let origin = ChunkOrigin { log: id, offset: at as u64 };
    let found = checksums.append(origin.own_checksum(), at + 12..at + bytes);
    (found == checksum).then_some(synced_below)
}

/// Reads the number and the operations of the next portion of a chunk.
pub(crate) fn read_portion<'a>(
    portions: &mut WireInput<'a>,
) -> Result<(usize, WireInput<'a>), WireDamage> {
    let number = portions.varint_max(FAMILY_PORTION, "a shard's number")?;
    let operations = portions.bytes(CHUNK_BYTES_MAX, "a portion within its chunk")?;
    Ok((number, WireInput::new(operations)))
}
