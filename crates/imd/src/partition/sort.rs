// SPDX-License-Identifier: Apache-2.0
//! Sort: orders the rows of one bucket by place, then arrival.
//!
//! A row is one word: its place above its number. One counting pass over the bits that the bucket
//! leaves free puts rows into groups of about two; insertion sort orders the groups. A bucket is
//! small, so all of this stays within the processor's caches.

use super::buffer::{BucketRecords, BufferGeometry, ROW_BITS, RecordBucket};
use crate::hash::{PLACE_BITS, home, key_hash};

/// The counting pass has at most 2^`COUNT_BITS_MAX` counters: 16 KiB.
const COUNT_BITS_MAX: u32 = 12;

/// Larger groups, which only repeated or adversarial keys produce, use the library's sort.
const INSERTION_MAX: usize = 32;

/// Maximum memory for sorting a row: by key, of any layout.
pub(super) const ROW_SORT_BYTES: u64 = 32;

/// Sorts one bucket after another and reuses its memory.
#[derive(Debug, Default)]
pub(super) struct BucketSorter {
    rows: Vec<u64>,
    sorted: Vec<u64>,
    counts: Vec<u32>,
}

/// The place of a sorted row.
#[inline]
pub(super) fn position_of(row: u64) -> u64 {
    row >> ROW_BITS
}

/// The number of a sorted row in its bucket.
#[inline]
pub(super) fn number_of(row: u64) -> u32 {
    (row & ((1 << ROW_BITS) - 1)) as u32
}

impl BucketSorter {
    /// The rows of the closed `bucket` in order of place and arrival.
    pub(super) fn by_place(
        &mut self,
        bucket: &RecordBucket,
        records: &BucketRecords<'_>,
        geometry: BufferGeometry,
        partitions: u32,
    ) -> &[u64] {
        let rows = bucket.rows() as usize;
        for kept in [&mut self.rows, &mut self.sorted] {
            kept.clear();
            if kept.capacity() < rows {
                // Copy nothing old, and allocate nothing spare.
                *kept = Vec::new();
                kept.reserve_exact(rows);
            }
        }
        let place = |key: &[u8]| home(key_hash(key), partitions).1;
        if geometry.stride > 0 {
            let key_bytes = records.key_bytes();
            let mut number = 0;
            for chunk in bucket.chunks() {
                self.rows.extend(chunk.chunks_exact(geometry.stride).map(|record| {
                    // Hash 8-byte keys separately: the length is a constant here.
                    let place = match record.first_chunk::<8>() {
                        Some(key) if key_bytes == 8 => place(key),
                        _ => place(&record[..key_bytes]),
                    };
                    let row = place << ROW_BITS | number;
                    number += 1;
                    row
                }));
            }
        } else {
            let rows = (0..bucket.rows())
                .map(|row| place(records.get(row).0) << ROW_BITS | u64::from(row));
            self.rows.extend(rows);
        }
        self.sort(geometry.bucket_bits);
        &self.sorted
    }

    fn sort(&mut self, bucket_bits: u32) {
        let count_bits = self.rows.len().max(2).ilog2().clamp(1, COUNT_BITS_MAX);
        let shift = ROW_BITS + PLACE_BITS - bucket_bits - count_bits;
        let mask = (1 << count_bits) - 1;
        let group = |row: u64| (row >> shift & mask) as usize;
        self.counts.clear();
        self.counts.resize(1 << count_bits, 0);
        for &row in &self.rows {
            self.counts[group(row)] += 1;
        }
        let mut end = 0;
        for count in &mut self.counts {
            let start = end;
            end += *count;
            *count = start;
        }
        self.sorted.resize(self.rows.len(), 0);
        for &row in &self.rows {
            let at = &mut self.counts[group(row)];
            self.sorted[*at as usize] = row;
            *at += 1;
        }
        // Each counter is now the end of its group.
        let mut start = 0;
        for &end in &self.counts {
            let end = end as usize;
            put_right(&mut self.sorted[start..end]);
            start = end;
        }
    }

    /// The row numbers of a bucket in order of key and arrival.
    pub(super) fn by_key(&mut self, rows: u32, records: &BucketRecords<'_>) -> &[u64] {
        let mut keyed: Vec<(u64, u32)> =
            (0..rows).map(|row| (prefix(records.get(row).0), row)).collect();
        keyed.sort_unstable_by(|a, b| {
            let full = || records.get(a.1).0.cmp(records.get(b.1).0);
            a.0.cmp(&b.0).then_with(full).then(a.1.cmp(&b.1))
        });
        self.sorted.clear();
        self.sorted.extend(keyed.iter().map(|row| u64::from(row.1)));
        &self.sorted
    }

    /// Bytes of memory kept for reuse.
    pub(super) fn memory_bytes(&self) -> u64 {
        ((self.rows.capacity() + self.sorted.capacity()) * 8 + self.counts.capacity() * 4) as u64
    }
}

/// The first eight bytes of a key as a number in the same order; shorter keys are padded with
/// zeros.
#[inline]
pub(crate) fn prefix(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut bytes = [0; 8];
    bytes[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(bytes)
}

#[inline]
fn put_right(group: &mut [u64]) {
    if group.len() > INSERTION_MAX {
        group.sort_unstable();
        return;
    }
    for at in 1..group.len() {
        let row = group[at];
        let mut to = at;
        while to > 0 && group[to - 1] > row {
            group[to] = group[to - 1];
            to -= 1;
        }
        group[to] = row;
    }
}
