// SPDX-License-Identifier: Apache-2.0
//! Cache: verified pieces of logs, shared by the readers of one directory.
//!
//! Concurrency: sharded internally; two readers that miss the same piece both read it.

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::checksum::LogKind;

/// Location of a piece: log, partition and offset.
type LogPiece = (LogKind, u32, u64);

/// Cached pieces.
#[derive(Debug)]
pub(crate) struct PieceCache {
    cache: Option<Cache<LogPiece, Bytes, ByBytes>>,
}

#[derive(Clone, Debug)]
struct ByBytes;

/// Memory of a piece besides its bytes.
const PIECE_OVERHEAD_BYTES: u64 = 96;

impl Weighter<LogPiece, Bytes> for ByBytes {
    fn weight(&self, _: &LogPiece, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + PIECE_OVERHEAD_BYTES
    }
}

impl PieceCache {
    /// Creates a cache of at most `bytes_max`; 0 disables it.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let pieces = usize::try_from(bytes_max / 8192).unwrap_or(usize::MAX).max(64);
        let cache = (bytes_max > 0).then(|| Cache::with_weighter(pieces, bytes_max, ByBytes));
        Self { cache }
    }

    pub(crate) fn get(&self, log: LogKind, partition: u32, offset: u64) -> Option<Bytes> {
        self.cache.as_ref()?.get(&(log, partition, offset))
    }

    /// Caches a copy, since `bytes` may be a slice of something larger.
    pub(crate) fn put(&self, log: LogKind, partition: u32, offset: u64, bytes: &Bytes) {
        if let Some(cache) = &self.cache {
            cache.insert((log, partition, offset), Bytes::copy_from_slice(bytes));
        }
    }
}
