//! Write-ahead log: the operations that no table holds yet, in the order of their numbers.
//!
//! Layout: docs/format/wal.md. Each shard of the memtable encodes its own operations against the
//! one before (`encoder`); chunks gather what all shards have pending, so that writers meet only
//! once every some thousand operations. Replay (`replay`) puts operations back into one sequence by
//! their sequence numbers and stops at the first that is missing: what it yields is a prefix.

mod encoder;
mod replay;

pub use encoder::ShardLog;
pub use replay::{decode_log, prefix_end};

use crate::wire::{Damage, Input, put_varint};

/// A log starts with these bytes.
pub const LOG_MAGIC: [u8; 8] = *b"ESKERWL1";
/// A chunk larger than this is not one of ours.
pub const CHUNK_BYTES_MAX: usize = 64 << 20;
/// Bytes of a chunk before its segments: their length and CRC-32C.
const CHUNK_HEADER_BYTES: usize = 8;

/// What the shards have pending, as one unit that is written whole or counts as absent.
#[derive(Debug)]
pub struct Chunk {
    bytes: Vec<u8>,
}

impl Default for Chunk {
    fn default() -> Self {
        Self { bytes: vec![0; CHUNK_HEADER_BYTES] }
    }
}

impl Chunk {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == CHUNK_HEADER_BYTES
    }

    /// Adds what `log`, that of shard `shard`, has pending.
    pub fn take(&mut self, shard: usize, log: &mut ShardLog) {
        let pending = log.pending();
        if !pending.is_empty() {
            put_varint(&mut self.bytes, shard as u64);
            put_varint(&mut self.bytes, pending.len() as u64);
            self.bytes.extend_from_slice(pending);
            log.clear_pending();
        }
    }

    /// The chunk as it is written.
    #[must_use]
    pub fn seal(&mut self) -> &[u8] {
        let body = self.bytes.len() - CHUNK_HEADER_BYTES;
        let length = u32::try_from(body).expect("shards write through long before that");
        let checksum = crc32c::crc32c(&self.bytes[CHUNK_HEADER_BYTES..]);
        self.bytes[..4].copy_from_slice(&length.to_le_bytes());
        self.bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        &self.bytes
    }

    /// Empties the chunk, keeping the memory.
    pub fn clear(&mut self) {
        self.bytes.truncate(CHUNK_HEADER_BYTES);
    }

    /// The segments of the chunk at the front of `input`; `None` if what is there is not a whole
    /// chunk: the log was cut short here.
    pub(crate) fn read<'a>(input: &mut Input<'a>) -> Option<Input<'a>> {
        let mut ahead = input.clone();
        let length = ahead.u32().ok()? as usize;
        let checksum = ahead.u32().ok()?;
        let body = ahead.take(length).ok()?;
        if length == 0 || length > CHUNK_BYTES_MAX || crc32c::crc32c(body) != checksum {
            return None;
        }
        *input = ahead;
        Some(Input::new(body))
    }
}

/// The shard and the operations of the next segment of a chunk.
pub(crate) fn read_segment<'a>(
    segments: &mut Input<'a>,
    shards: usize,
) -> Result<(usize, Input<'a>), Damage> {
    let shard = segments.varint_max(shards - 1, "a shard's number")?;
    let operations = segments.bytes(CHUNK_BYTES_MAX, "a segment within its chunk")?;
    Ok((shard, Input::new(operations)))
}
