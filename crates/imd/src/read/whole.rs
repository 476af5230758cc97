// SPDX-License-Identifier: Apache-2.0
//! Whole: records of an epoch in order, by key range or as a random sample.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use esker_base::{Error, Kind, Random, Result};

use super::counts::QueryCounts;
use super::pointers;
use super::scan::{TableCursor, merge};
use super::share::share;
use crate::block::BlockRows;
use crate::hash::{PLACE_BITS, key_hash};
use crate::partition::key_prefix;
use crate::reader::DirectoryReader;
use crate::record_layout::{RecordLayout, ValueFormat};

/// Low bits of a hash that do not affect its order; hashes equal in the other bits may be in any
/// order. Partitions of one directory refine their hashes by at most 32 bits beyond [`PLACE_BITS`].
const PLACES_SHIFT: u32 = 64 - PLACE_BITS;

/// Blocks that a thread scans before it takes more.
const SCAN_BLOCKS: usize = 2048;

impl DirectoryReader {
    /// Passes key and value of each record of `epoch` to `visit`, in order of the key's hash (the
    /// key itself if ordered) and then of arrival, until `visit` returns false.
    ///
    /// Reads each table once, in large pieces.
    ///
    /// # Errors
    /// Those of any partition and of `visit`.
    pub fn scan(
        &self,
        epoch: u32,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<QueryCounts> {
        let mut counts = QueryCounts::default();
        let mut batch = ScanBatch { reader: self, rows: Vec::new(), visit: &mut visit };
        let epochs = epoch..epoch.saturating_add(1);
        let whole =
            self.walk(epochs, &mut counts, |key, value, counts| batch.push(key, value, counts))?;
        if whole {
            batch.end(&mut counts)?;
        }
        Ok(counts)
    }

    /// Passes the rows of all blocks of all epochs, in any order, to `visit` from `threads`
    /// threads, like a query without an index. In format pointer, rows have pointers in place of
    /// values.
    ///
    /// # Errors
    /// As [`DirectoryReader::scan`].
    pub fn scan_all(
        &self,
        threads: usize,
        visit: impl Fn(&BlockRows<'_>) + Sync,
    ) -> Result<QueryCounts> {
        let mut counts = QueryCounts::default();
        let mut units = Vec::new();
        for partition in 0..self.partitions() {
            let reader = self.partition(partition, &mut counts)?;
            let layout = reader.head().row_layout();
            for epoch in 0..self.epochs_complete()? {
                let parts = Arc::clone(reader.epoch(epoch, &mut counts)?);
                for table in parts.groups.iter().flat_map(|group| &group.tables) {
                    let blocks = table.blocks(layout);
                    for start in (0..blocks).step_by(SCAN_BLOCKS) {
                        let end = blocks.min(start + SCAN_BLOCKS as u32);
                        units.push((Arc::clone(&reader), table.clone(), start..end));
                    }
                }
            }
        }
        let parts = share(&units, threads, |(reader, table, blocks), counts: &mut QueryCounts| {
            reader.each_block(table, blocks.clone(), counts, &visit)
        })?;
        parts.into_iter().for_each(|part| counts += part);
        Ok(counts)
    }

    /// Passes each key that has values in `epochs` to `visit` once, in the order of
    /// [`DirectoryReader::scan`], until `visit` returns false.
    ///
    /// Reads all records of those epochs.
    ///
    /// # Errors
    /// As [`DirectoryReader::scan`].
    pub fn keys(
        &self,
        epochs: Range<u32>,
        mut visit: impl FnMut(&[u8]) -> Result<bool>,
    ) -> Result<QueryCounts> {
        let mut counts = QueryCounts::default();
        // Different keys whose hashes begin alike may be interleaved.
        let mut seen: Vec<Bytes> = Vec::new();
        let mut last = None;
        let ordered = self.head.format == ValueFormat::Ordered;
        self.walk(epochs, &mut counts, |key, _, _| {
            let place = if ordered { 0 } else { key_hash(key) >> PLACES_SHIFT };
            if last != Some(place) || ordered && seen.last() != Some(key) {
                seen.clear();
                last = Some(place);
            }
            if seen.contains(key) {
                return Ok(true);
            }
            seen.push(key.clone());
            visit(key)
        })?;
        Ok(counts)
    }

    /// Passes the key of each record of `epochs` and the size of its value to `visit`, in the order
    /// of [`DirectoryReader::scan`] over all of them, until `visit` returns false.
    ///
    /// Reads all records of those epochs, but no values that stayed with their writers.
    ///
    /// # Errors
    /// As [`DirectoryReader::scan`].
    pub fn value_sizes(
        &self,
        epochs: Range<u32>,
        mut visit: impl FnMut(&Bytes, u64) -> Result<bool>,
    ) -> Result<QueryCounts> {
        let mut counts = QueryCounts::default();
        let fixed = match self.head.layout {
            RecordLayout::Fixed { value_bytes, .. } => Some(u64::from(value_bytes)),
            RecordLayout::Variable => None,
        };
        let is_pointer = self.head.format == ValueFormat::Pointer;
        self.walk(epochs, &mut counts, |key, value, _| {
            let bytes = match fixed {
                Some(bytes) => bytes,
                None if is_pointer => pointers::value_bytes(value)?,
                None => value.len() as u64,
            };
            visit(key, bytes)
        })?;
        Ok(counts)
    }

    /// Passes the rows of `epochs` to `visit` in order; returns false if `visit` stopped.
    fn walk(
        &self,
        epochs: Range<u32>,
        counts: &mut QueryCounts,
        mut visit: impl FnMut(&Bytes, &Bytes, &mut QueryCounts) -> Result<bool>,
    ) -> Result<bool> {
        let epochs = self.within_complete(epochs)?;
        let mut readers = Vec::new();
        for partition in 0..self.partitions() {
            readers.push(self.partition(partition, counts)?);
        }
        counts.partitions += u64::from(self.partitions());
        let by_rank = matches!(self.head.format, ValueFormat::Lossy | ValueFormat::Static);
        // In the lossy formats records are spread over all ranks, ordered within each.
        let groups = if by_rank { vec![&readers[..]] } else { readers.chunks(1).collect() };
        let mut goes_on = true;
        for group in groups {
            let mut parts = Vec::new();
            for reader in group {
                for epoch in epochs.clone() {
                    parts.push((reader, reader.epoch(epoch, counts)?));
                }
            }
            let all = parts.iter().map(|part| part.1.tables()).sum();
            let mut cursors = Vec::new();
            for (reader, epoch) in parts {
                let layout = reader.head().row_layout();
                for table in epoch.groups.iter().flat_map(|group| &group.tables) {
                    let (number, blocks) = (cursors.len(), 0..table.blocks(layout));
                    cursors.extend(TableCursor::new(reader, table, number, all, blocks, counts)?);
                }
            }
            merge(cursors, counts, |key, value, counts| {
                goes_on = visit(key, value, counts)?;
                Ok(goes_on)
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(goes_on)
    }

    /// Keys of up to `count` records, sampled uniformly with `random`. Cost: a few reads for each.
    ///
    /// # Errors
    /// Those of any partition.
    pub fn sample(&self, count: usize, random: &mut Random) -> Result<Vec<Bytes>> {
        let mut counts = QueryCounts::default();
        // Cumulative number of rows, by table.
        let mut tables = Vec::new();
        let mut rows = 0;
        for partition in 0..self.partitions() {
            let reader = self.partition(partition, &mut counts)?;
            for epoch in 0..self.epochs_complete()? {
                let parts = Arc::clone(reader.epoch(epoch, &mut counts)?);
                for table in parts.groups.iter().flat_map(|group| &group.tables) {
                    rows += u64::from(table.rows);
                    tables.push((rows, Arc::clone(&reader), table.clone()));
                }
            }
        }
        let mut keys = Vec::new();
        for _ in 0..if rows > 0 { count } else { 0 } {
            let row = random.below(rows);
            let (end, reader, table) = &tables[tables.partition_point(|table| table.0 <= row)];
            let row = table.rows - u32::try_from(end - row).expect("rows of one table");
            let layout = reader.head().row_layout();
            let place = table.block_location(table.block_of(row, layout), layout);
            let bodies = reader.blocks(std::slice::from_ref(&place.bytes), &mut counts)?;
            let rows = reader.rows(&bodies[0], &place)?;
            keys.push(bodies[0].slice_ref(rows.key(row - place.rows.start)));
        }
        Ok(keys)
    }

    /// Passes key and value of each record of `epoch` with a key from `low` to `high`, inclusive,
    /// to `visit`, in order of key and then of arrival, until `visit` returns false.
    ///
    /// Reads the blocks of the range and, at each end, up to one more block of each table.
    ///
    /// # Errors
    /// `Invalid` unless the directory is ordered; those of partitions in the range and of `visit`.
    pub fn range(
        &self,
        low: &[u8],
        high: &[u8],
        epoch: u32,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<QueryCounts> {
        if self.head.format != ValueFormat::Ordered {
            let what = format!(
                "a range of keys needs format ordered, and this directory is {}",
                self.head.format.name()
            );
            return Err(Error::new(Kind::Invalid, what));
        }
        let mut counts = QueryCounts::default();
        if low > high || epoch >= self.epochs_complete()? {
            return Ok(counts);
        }
        let bounds = self.directory.as_ref().and_then(|all| all.bounds.get(epoch as usize));
        let partitions = match bounds {
            Some(bounds) => bounds.partitions(key_prefix(low), key_prefix(high)),
            None => 0..self.partitions(),
        };
        let mut goes_on = true;
        for partition in partitions {
            let reader = self.partition(partition, &mut counts)?;
            counts.partitions += 1;
            reader.range(low, high, epoch, &mut counts, |key, value, _| {
                goes_on = visit(key, value)?;
                Ok(goes_on)
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(counts)
    }
}

/// Rows of a scan that are passed on together, so that their values are fetched together.
struct ScanBatch<'r, V> {
    reader: &'r DirectoryReader,
    rows: Vec<(Bytes, Bytes)>,
    visit: &'r mut V,
}

impl<V: FnMut(&[u8], &[u8]) -> Result<bool>> ScanBatch<'_, V> {
    const ROWS: usize = 4096;

    fn push(&mut self, key: &Bytes, value: &Bytes, counts: &mut QueryCounts) -> Result<bool> {
        if self.reader.head.format != ValueFormat::Pointer {
            return (self.visit)(key, value);
        }
        self.rows.push((key.clone(), value.clone()));
        if self.rows.len() < Self::ROWS { Ok(true) } else { self.end(counts) }
    }

    fn end(&mut self, counts: &mut QueryCounts) -> Result<bool> {
        let mut rows = std::mem::take(&mut self.rows);
        self.reader.follow(rows.iter_mut().map(|row| &mut row.1).collect(), counts)?;
        for (key, value) in &rows {
            if !(self.visit)(key, value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
