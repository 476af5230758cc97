// SPDX-License-Identifier: Apache-2.0
//! Partition reader: reads the rows of one partition by key.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use esker_base::store::{SharedStore, runs};
use esker_base::{Error, Result};

use super::cache::PieceCache;
use super::counts::QueryCounts;
use super::lost;
use super::open::IndexLog;
use crate::auxiliary;
use crate::block;
use crate::checksum::{LogChecksum, LogKind};
use crate::index::epoch::{BlockLocation, EpochIndex};
use crate::index::head::IndexLogHead;
use crate::names;

/// A partition that is open for reading.
#[derive(Debug)]
pub struct PartitionReader {
    store: SharedStore,
    cache: Arc<PieceCache>,
    pub(crate) partition: u32,
    pub(crate) log: IndexLog,
    epochs: Vec<OnceLock<Arc<EpochIndex>>>,
    data: String,
    data_checksum: LogChecksum,
}

impl PartitionReader {
    /// Opens partition `partition` below `prefix`; `directory` is its id, if known. Cost: two or
    /// three reads of the index log; one of them is for its size unless `index_bytes` gives it.
    ///
    /// # Errors
    /// `Corrupt` if the index log is missing or damaged.
    pub(crate) fn open(
        store: &SharedStore,
        prefix: &str,
        partition: u32,
        directory: Option<u128>,
        index_bytes: Option<u64>,
        cache: &Arc<PieceCache>,
        counts: &mut QueryCounts,
    ) -> Result<Self> {
        let name = names::index(prefix, partition);
        let log = IndexLog::open(store, name, (partition, directory), index_bytes, counts)
            .map_err(|error| error.within(format!("partition {partition}")))?;
        let epochs = log.epochs.iter().map(|_| OnceLock::new()).collect();
        let data = names::data(prefix, partition);
        let data_checksum = LogChecksum::new(log.head.directory, partition, LogKind::Data);
        let (store, cache) = (store.clone(), Arc::clone(cache));
        Ok(Self { store, cache, partition, log, epochs, data, data_checksum })
    }

    /// The head of the index log.
    #[must_use]
    pub fn head(&self) -> &IndexLogHead {
        &self.log.head
    }

    /// Number of complete epochs of this partition.
    #[must_use]
    pub fn epochs(&self) -> u32 {
        u32::try_from(self.epochs.len()).unwrap_or(u32::MAX)
    }

    /// True if its writer finished it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.log.is_finished
    }

    /// Bytes of the index log.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.log.bytes
    }

    /// The contents of a complete epoch.
    ///
    /// # Errors
    /// `Corrupt` if the index log is damaged.
    ///
    /// # Panics
    /// If there is no such epoch.
    pub fn epoch(&self, epoch: u32, counts: &mut QueryCounts) -> Result<&Arc<EpochIndex>> {
        let kept = &self.epochs[epoch as usize];
        if let Some(epoch) = kept.get() {
            return Ok(epoch);
        }
        let read = self.log.epoch(epoch as usize, counts).map_err(|error| self.named(error))?;
        Ok(kept.get_or_init(|| Arc::new(read)))
    }

    pub(crate) fn named(&self, error: Error) -> Error {
        error.within(format!("partition {}", self.partition))
    }

    /// Verified slots of the index log at `places`, in order.
    pub(crate) fn slots(
        &self,
        places: &[Range<u64>],
        counts: &mut QueryCounts,
    ) -> Result<Vec<Bytes>> {
        self.pieces(LogKind::Index, places, counts).map_err(|error| self.named(error))
    }

    /// Verified blocks of the data log at `places`, in order.
    pub(crate) fn blocks(
        &self,
        places: &[Range<u64>],
        counts: &mut QueryCounts,
    ) -> Result<Vec<Bytes>> {
        self.pieces(LogKind::Data, places, counts).map_err(|error| self.named(error))
    }

    fn pieces(
        &self,
        kind: LogKind,
        places: &[Range<u64>],
        counts: &mut QueryCounts,
    ) -> Result<Vec<Bytes>> {
        let name = if kind == LogKind::Index { &self.log.name } else { &self.data };
        let mut pieces: Vec<Option<Bytes>> =
            places.iter().map(|at| self.cache.get(kind, self.partition, at.start)).collect();
        let missing = |pieces: &[Option<Bytes>]| -> Vec<usize> {
            (0..pieces.len()).filter(|&at| pieces[at].is_none()).collect()
        };
        if kind == LogKind::Index {
            for at in missing(&pieces) {
                if let Some(bytes) = self.log.in_memory(&places[at]) {
                    pieces[at] = Some(self.verified(kind, name, &places[at], &bytes)?);
                }
            }
        }
        let absent = missing(&pieces);
        if !absent.is_empty() {
            let ranges: Vec<Range<u64>> = absent.iter().map(|&at| places[at].clone()).collect();
            let requests = runs(&ranges).len() as u64;
            let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            if kind == LogKind::Index {
                (counts.index_reads, counts.index_bytes) =
                    (counts.index_reads + requests, counts.index_bytes + bytes);
            } else {
                (counts.data_reads, counts.data_bytes) =
                    (counts.data_reads + requests, counts.data_bytes + bytes);
            }
            let read = self.store.get_ranges(name, &ranges);
            let read = read.map_err(|error| lost(name, error))?;
            for (&at, bytes) in absent.iter().zip(&read) {
                pieces[at] = Some(self.verified(kind, name, &places[at], bytes)?);
            }
        }
        Ok(pieces.into_iter().map(|piece| piece.expect("every piece was read")).collect())
    }

    fn verified(
        &self,
        kind: LogKind,
        name: &str,
        place: &Range<u64>,
        bytes: &Bytes,
    ) -> Result<Bytes> {
        let checksum = if kind == LogKind::Index { self.log.checksum } else { self.data_checksum };
        let body = checksum.open(bytes, place.start, name)?.len();
        let body = bytes.slice(..body);
        self.cache.put(kind, self.partition, place.start, &body);
        Ok(body)
    }

    /// A contiguous range of the data log, neither verified nor cached.
    pub(crate) fn read_data(&self, range: Range<u64>, counts: &mut QueryCounts) -> Result<Bytes> {
        counts.data_reads += 1;
        counts.data_bytes += range.end - range.start;
        let read = self.store.get_range(&self.data, range);
        read.map_err(|error| self.named(lost(&self.data, error)))
    }

    /// Verifies the data log block in `bytes`, read from `offset`, and returns its rows' bytes.
    pub(crate) fn open_block<'b>(&self, bytes: &'b [u8], offset: u64) -> Result<&'b [u8]> {
        let opened = self.data_checksum.open(bytes, offset, &self.data);
        opened.map_err(|error| self.named(error))
    }

    /// Verifies the auxiliary table in `bytes`, read from `offset` of the log `name`.
    pub(crate) fn parse_auxiliary(
        &self,
        bytes: &Bytes,
        offset: u64,
        name: &str,
    ) -> Result<auxiliary::AuxiliaryTable> {
        let checksum = LogChecksum::new(self.head().directory, self.partition, LogKind::Auxiliary);
        let body = checksum.open(bytes, offset, name).map_err(|error| self.named(error))?.len();
        auxiliary::AuxiliaryTable::parse(bytes.slice(..body))
            .map_err(|damage| self.named(damage.of(name, offset)))
    }

    /// The rows of a verified block.
    pub(crate) fn rows<'b>(
        &self,
        body: &'b [u8],
        place: &BlockLocation,
    ) -> Result<block::BlockRows<'b>> {
        let rows = place.rows.end - place.rows.start;
        block::BlockRows::parse(body, rows, self.log.head.row_layout())
            .map_err(|damage| self.named(damage.of(&self.data, place.bytes.start)))
    }
}
