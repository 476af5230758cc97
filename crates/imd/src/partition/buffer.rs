// SPDX-License-Identifier: Apache-2.0
//! Buffer: records that wait to become a table, in buckets by the high bits of their place.
//!
//! A bucket is a list of chunks. Records of fixed layout follow one another in a chunk, a power of
//! two of them in each; variable records have their lengths in front:
//! ```text
//! key length (1 byte) | value length (4 bytes) | key | value
//! ```
//! Invariants: (1) a record is within one chunk; (2) records of a bucket are in order of arrival.

use super::share::MemoryShare;
use crate::hash::PLACE_BITS;
use crate::record_layout::RecordLayout;

/// Memory for records of one bucket.
pub(super) type RecordChunk = Vec<u8>;

/// Bits of a row's number within its bucket, next to the bits of a place.
pub(super) const ROW_BITS: u32 = 64 - PLACE_BITS;

/// Bytes in front of a variable record.
pub(super) const LENGTHS_BYTES: usize = 5;

/// Division of a partition's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferGeometry {
    pub(super) layout: RecordLayout,
    /// Bytes of a record of fixed layout, or 0.
    pub(super) stride: usize,
    /// Rows of each full chunk of fixed layout, as a shift.
    pub(super) chunk_shift: u32,
    pub(super) chunk_bytes: usize,
    pub(super) bucket_bits: u32,
}

impl BufferGeometry {
    /// Divides `memory_bytes` for records.
    ///
    /// A bucket of 512 KiB is sorted within a processor's L2 cache, and the ends of more than 512
    /// open buckets no longer fit L1. A chunk is a small part of a bucket, since each bucket wastes
    /// half a chunk on average.
    pub(super) fn of(layout: RecordLayout, memory_bytes: u64) -> Self {
        let bucket_bits = (memory_bytes / (512 << 10)).clamp(16, 512).ilog2();
        let chunk = (memory_bytes / (16 << bucket_bits)).clamp(2 << 10, 64 << 10) as usize;
        let RecordLayout::Fixed { key_bytes, value_bytes } = layout else {
            return Self { layout, stride: 0, chunk_shift: 0, chunk_bytes: chunk, bucket_bits };
        };
        let stride = key_bytes as usize + value_bytes as usize;
        let chunk_shift = (chunk / stride).max(1).ilog2();
        Self { layout, stride, chunk_shift, chunk_bytes: stride << chunk_shift, bucket_bits }
    }

    /// Chunk bytes that a record takes.
    #[inline]
    pub(super) fn bytes_of(&self, key: &[u8], value: &[u8]) -> usize {
        if self.stride > 0 { self.stride } else { LENGTHS_BYTES + key.len() + value.len() }
    }
}

/// Waiting records.
#[derive(Debug)]
pub(super) struct RecordBuffer {
    geometry: BufferGeometry,
    pub(super) buckets: Vec<RecordBucket>,
    /// Bytes of all chunks.
    pub(super) held: u64,
    /// Bytes of records in chunks that are full.
    filled: u64,
}

/// Records whose places agree in the high bits.
#[derive(Debug, Default)]
pub(super) struct RecordBucket {
    /// Chunks in order. The last one is open; the others are full.
    chunks: Vec<RecordChunk>,
    /// The open chunk.
    tail: RecordChunk,
    rows: u32,
}

impl RecordBuffer {
    pub(super) fn new(geometry: BufferGeometry) -> Self {
        let buckets = (0..1 << geometry.bucket_bits).map(|_| RecordBucket::default()).collect();
        Self { geometry, buckets, held: 0, filled: 0 }
    }

    /// Adds a record that fits the layout; returns false if its bucket needs a chunk first.
    #[inline]
    pub(super) fn push(&mut self, place: u64, key: &[u8], value: &[u8]) -> bool {
        let geometry = &self.geometry;
        let bucket = &mut self.buckets[(place >> (PLACE_BITS - geometry.bucket_bits)) as usize];
        let tail = &mut bucket.tail;
        if tail.capacity() - tail.len() < geometry.bytes_of(key, value) {
            return false;
        }
        if geometry.stride == 0 {
            tail.push(key.len() as u8);
            tail.extend_from_slice(&(value.len() as u32).to_le_bytes());
        }
        if let Some(key) = key.as_array::<8>() {
            tail.extend_from_slice(key);
        } else {
            tail.extend_from_slice(key);
        }
        tail.extend_from_slice(value);
        bucket.rows += 1;
        true
    }

    /// True if the bucket of `place` must not get another chunk: its rows could not be numbered, or
    /// sorting or indexing them would exceed its share of memory.
    pub(super) fn is_full(&self, place: u64, share: &MemoryShare) -> bool {
        let bucket = &self.buckets[(place >> (PLACE_BITS - self.geometry.bucket_bits)) as usize];
        let chunk_rows = (self.geometry.chunk_bytes / self.geometry.stride.max(1)) as u64;
        let rows = u64::from(bucket.rows);
        // A bucket without rows gets a chunk, however little memory there is.
        rows > 0 && rows + chunk_rows > share.bucket_rows_max.min(1 << ROW_BITS)
            || self.rows() >= share.table_rows_max
    }

    /// Gives the bucket of `place` a chunk to fill.
    pub(super) fn add_chunk(&mut self, place: u64, chunk: RecordChunk) {
        let index = (place >> (PLACE_BITS - self.geometry.bucket_bits)) as usize;
        let bucket = &mut self.buckets[index];
        self.held += chunk.capacity() as u64;
        let full = std::mem::replace(&mut bucket.tail, chunk);
        self.filled += full.len() as u64;
        if full.capacity() > 0 {
            bucket.chunks.push(full);
        }
    }

    /// Bytes of all records.
    pub(super) fn filled(&self) -> u64 {
        self.filled + self.buckets.iter().map(|bucket| bucket.tail.len() as u64).sum::<u64>()
    }

    /// Number of records.
    pub(super) fn rows(&self) -> u64 {
        self.buckets.iter().map(|bucket| u64::from(bucket.rows)).sum()
    }
}

impl RecordBucket {
    /// Number of records.
    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// Ends the bucket; no more records follow.
    pub(super) fn close(&mut self) {
        if self.tail.capacity() > 0 {
            self.chunks.push(std::mem::take(&mut self.tail));
        }
    }

    /// The records of a closed bucket.
    pub(super) fn records(&self, geometry: BufferGeometry) -> BucketRecords<'_> {
        let mut starts = Vec::new();
        if geometry.stride == 0 {
            starts.reserve_exact(self.rows as usize);
            for (index, chunk) in self.chunks.iter().enumerate() {
                let mut at = 0;
                while at < chunk.len() {
                    starts.push((index as u32, at as u32));
                    let (key, value) = lengths(&chunk[at..]);
                    at += LENGTHS_BYTES + key + value;
                }
            }
        }
        BucketRecords { geometry, chunks: &self.chunks, starts }
    }

    /// The chunks, for reuse.
    pub(super) fn into_chunks(self) -> impl Iterator<Item = RecordChunk> {
        self.chunks.into_iter()
    }

    /// All records of fixed layout, chunk by chunk.
    pub(super) fn chunks(&self) -> &[RecordChunk] {
        &self.chunks
    }
}

/// The records of one bucket, by number.
#[derive(Debug)]
pub(super) struct BucketRecords<'a> {
    geometry: BufferGeometry,
    chunks: &'a [RecordChunk],
    /// Chunk and offset of each variable record.
    starts: Vec<(u32, u32)>,
}

impl<'a> BucketRecords<'a> {
    /// Record `row`, of fixed layout.
    #[inline]
    pub(super) fn fixed(&self, row: u32) -> &'a [u8] {
        let BufferGeometry { stride, chunk_shift, .. } = self.geometry;
        let at = (row as usize & ((1 << chunk_shift) - 1)) * stride;
        &self.chunks[(row >> chunk_shift) as usize][at..at + stride]
    }

    /// Bytes of every key if the layout is fixed; otherwise 0.
    pub(super) fn key_bytes(&self) -> usize {
        match self.geometry.layout {
            RecordLayout::Fixed { key_bytes, .. } => usize::from(key_bytes),
            RecordLayout::Variable => 0,
        }
    }

    /// Key and value of record `row`.
    #[inline]
    pub(super) fn get(&self, row: u32) -> (&'a [u8], &'a [u8]) {
        if let RecordLayout::Fixed { key_bytes, .. } = self.geometry.layout {
            return self.fixed(row).split_at(usize::from(key_bytes));
        }
        let (chunk, at) = self.starts[row as usize];
        let record = &self.chunks[chunk as usize][at as usize..];
        let (key, value) = lengths(record);
        let (key, rest) = record[LENGTHS_BYTES..].split_at(key);
        (key, &rest[..value])
    }
}

/// The lengths in front of a variable record.
#[inline]
fn lengths(record: &[u8]) -> (usize, usize) {
    let value = u32::from_le_bytes([record[1], record[2], record[3], record[4]]);
    (usize::from(record[0]), value as usize)
}
