// SPDX-License-Identifier: Apache-2.0
//! Pointers: resolves pointers to values in the ranks' value logs.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use esker_base::store::{SharedStore, runs};
use esker_base::{Error, Kind, Result};
use hashbrown::HashMap;

use super::cache::PieceCache;
use super::counts::QueryCounts;
use super::lost;
use crate::checksum::{LogChecksum, LogKind};
use crate::names;
use crate::record_layout::VALUE_BYTES_MAX;
use crate::write::{PAGE_BYTES, PAGE_VALUE_BYTES, ValuePointer, pages_of};

/// The length of the value that `row` points to; `row` is a pointer that includes it.
pub(crate) fn value_bytes(row: &[u8]) -> Result<u64> {
    let pointer = ValuePointer::decode(row, None);
    let pointer = pointer.filter(|pointer| pointer.bytes as usize <= VALUE_BYTES_MAX);
    let what = "a row without a pointer to a value";
    pointer.map(|pointer| pointer.bytes.into()).ok_or_else(|| Error::new(Kind::Corrupt, what))
}

/// The value logs of all ranks.
pub(crate) struct ValueLogs<'r> {
    pub(crate) store: &'r SharedStore,
    pub(crate) prefix: &'r str,
    pub(crate) directory: u128,
    pub(crate) cache: &'r Arc<PieceCache>,
    pub(crate) ranks: u32,
    /// The length of all values if it is fixed.
    pub(crate) value_bytes: Option<u32>,
}

impl ValueLogs<'_> {
    /// Replaces the pointers `rows` with their values, reading neighbouring pages together.
    pub(crate) fn follow(&self, rows: Vec<&mut Bytes>, counts: &mut QueryCounts) -> Result<()> {
        let mut by_rank: HashMap<u32, Vec<(ValuePointer, &mut Bytes)>> = HashMap::new();
        for row in rows {
            let pointer = ValuePointer::decode(row, self.value_bytes)
                .filter(|pointer| pointer.rank < self.ranks)
                .filter(|pointer| pointer.bytes as usize <= VALUE_BYTES_MAX);
            let Some(pointer) = pointer else {
                return Err(Error::corrupt(self.prefix, 0, "a row without a pointer to a value"));
            };
            by_rank.entry(pointer.rank).or_default().push((pointer, row));
        }
        for (rank, mut rows) in by_rank {
            counts.partitions += 1;
            rows.sort_unstable_by_key(|row| row.0.offset);
            // A few at a time, so that their pages fit memory.
            for rows in rows.chunks_mut(256) {
                let done = self.follow_in(rank, rows, counts);
                done.map_err(|error| error.within(format!("partition {rank}")))?;
            }
        }
        Ok(())
    }

    fn follow_in(
        &self,
        rank: u32,
        rows: &mut [(ValuePointer, &mut Bytes)],
        counts: &mut QueryCounts,
    ) -> Result<()> {
        let name = names::values(self.prefix, rank);
        let mut starts: Vec<u64> = Vec::new();
        for (pointer, _) in &*rows {
            let pages = pages_of(pointer.offset, pointer.bytes);
            let what = "a value past the end of all logs";
            let pages = pages.ok_or_else(|| Error::corrupt(&name, pointer.offset, what))?;
            starts.extend(pages.step_by(PAGE_BYTES));
        }
        starts.sort_unstable();
        starts.dedup();
        let pages = self.pages(rank, &name, &starts, counts)?;
        for (pointer, row) in rows {
            let all = pages_of(pointer.offset, pointer.bytes).expect("checked above");
            let skip = (pointer.offset % PAGE_VALUE_BYTES as u64) as usize;
            let length = pointer.bytes as usize;
            if skip + length <= PAGE_VALUE_BYTES {
                **row = pages[&all.start].slice(skip..skip + length);
                continue;
            }
            let mut value = BytesMut::with_capacity(length);
            for start in all.step_by(PAGE_BYTES) {
                let from = if value.is_empty() { skip } else { 0 };
                let to = (from + length - value.len()).min(PAGE_VALUE_BYTES);
                value.extend_from_slice(&pages[&start][from..to]);
            }
            **row = value.freeze();
        }
        Ok(())
    }

    /// Verified pages, by offset.
    fn pages(
        &self,
        rank: u32,
        name: &str,
        starts: &[u64],
        counts: &mut QueryCounts,
    ) -> Result<HashMap<u64, Bytes>> {
        let mut pages = HashMap::new();
        let mut missing: Vec<Range<u64>> = Vec::new();
        for &start in starts {
            match self.cache.get(LogKind::Values, rank, start) {
                Some(page) => drop(pages.insert(start, page)),
                None => missing.push(start..start + PAGE_BYTES as u64),
            }
        }
        if missing.is_empty() {
            return Ok(pages);
        }
        counts.data_reads += runs(&missing).len() as u64;
        counts.data_bytes += (missing.len() * PAGE_BYTES) as u64;
        let checksum = LogChecksum::new(self.directory, rank, LogKind::Values);
        let read = self.store.get_ranges(name, &missing);
        let read = read.map_err(|error| lost(name, error))?;
        for (place, bytes) in missing.iter().zip(read) {
            let length = checksum.open(&bytes, place.start, name)?.len();
            let page = bytes.slice(..length);
            self.cache.put(LogKind::Values, rank, place.start, &page);
            pages.insert(place.start, page);
        }
        Ok(pages)
    }
}
