// SPDX-License-Identifier: Apache-2.0
//! Writer: the caller's half of a partition.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use esker_base::store::SharedStore;
use esker_base::{Error, Result};

use super::buffer::{BufferGeometry, RecordBuffer};
use super::flusher::{FlushJob, PartitionFlusher, PartitionLogs};
use super::pool::{BufferReadiness, MemoryGrant, RecordPool, closed};
use super::share::MemoryShare;
use super::{EpochEnd, PartitionSetup, RowOrder};
use crate::hash::home;
use crate::names;

/// Minimum ratio of later tables' size to that of the first table of an epoch.
const FIRST_TABLE_SHARE: u64 = 4;

/// Writes the records of one partition.
///
/// If it is dropped unfinished, the flushed epochs remain, in logs without a footer, which readers
/// accept.
#[derive(Debug)]
pub struct PartitionWriter {
    setup: PartitionSetup,
    geometry: BufferGeometry,
    pool: Arc<RecordPool>,
    buffer: RecordBuffer,
    share: MemoryShare,
    /// True if this epoch has a table.
    has_table: bool,
    jobs: Option<Sender<FlushJob>>,
    background: Option<JoinHandle<()>>,
    poisoned: bool,
}

/// Totals of a partition's writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionSummary {
    /// Records.
    pub rows: u64,
    /// Epochs.
    pub epochs: u64,
    /// Tables.
    pub tables: u64,
    /// Bytes of the data log.
    pub data_bytes: u64,
    /// Bytes of the index log.
    pub index_bytes: u64,
    /// Bytes of auxiliary tables.
    pub auxiliary_bytes: u64,
    /// Peak memory of records, their sorting and the index.
    pub memory_peak: u64,
    pub(super) index_memory_peak: u64,
}

impl PartitionWriter {
    /// Creates the logs of `setup.partition` below `prefix` (empty, or ending in `/`) of `store`.
    /// `head` and `schema` are the payloads of the index log's first frames.
    ///
    /// # Errors
    /// `Exists` if the logs exist already, `Invalid` for an impossible setup, and those of the
    /// store.
    pub fn create(
        store: &SharedStore,
        prefix: &str,
        setup: PartitionSetup,
        (head, schema): (&[u8], &[u8]),
    ) -> Result<Self> {
        setup.layout.check()?;
        let share = MemoryShare::of(&setup)?;
        let mut geometry = BufferGeometry::of(setup.layout, share.record_bytes);
        if setup.row_order == RowOrder::Key {
            geometry.bucket_bits = 0;
        }
        let index = store.append_log(&names::index(prefix, setup.partition))?;
        let data = store.append_log(&names::data(prefix, setup.partition))?;
        let pool = Arc::new(RecordPool::new(geometry.chunk_bytes, share.record_bytes));
        let auxiliary = setup.has_auxiliary.then(|| names::auxiliary(prefix, setup.partition));
        let auxiliary = auxiliary.map(|name| store.append_log(&name)).transpose()?;
        let logs = PartitionLogs { data, index, auxiliary };
        let mut flusher = PartitionFlusher::new(setup, geometry, share, Arc::clone(&pool), logs)?;
        flusher.begin(head, schema)?;
        let (jobs, inbox) = channel();
        let background = std::thread::Builder::new()
            .name(format!("imd-{}", setup.partition))
            .spawn(move || flusher.run(&inbox))
            .map_err(|error| Error::io(error, "start a partition's thread"))?;
        let (jobs, background) = (Some(jobs), Some(background));
        let buffer = RecordBuffer::new(geometry);
        let (has_table, poisoned) = (false, false);
        Ok(Self { setup, geometry, pool, buffer, share, has_table, jobs, background, poisoned })
    }

    /// Adds a record. `hash` is the hash of its key ([`crate::hash::key_hash`]).
    ///
    /// Copies the record; blocks only while pending writes occupy all memory.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge` for a record that does not fit the layout; the error of a failed
    /// write, and `Closed` afterwards.
    #[inline]
    pub fn append(&mut self, hash: u64, key: &[u8], value: &[u8]) -> Result<()> {
        self.setup.layout.check_record(key, value)?;
        let place = home(hash, self.setup.partitions).1;
        if self.buffer.push(place, key, value) {
            return Ok(());
        }
        self.append_slowly(place, key, value)
    }

    /// Adds a record to a bucket that needs a chunk first.
    #[cold]
    #[inline(never)]
    fn append_slowly(&mut self, place: u64, key: &[u8], value: &[u8]) -> Result<()> {
        if self.poisoned {
            return Err(closed());
        }
        loop {
            if self.buffer.is_full(place, &self.share) {
                self.hand_over(true);
            }
            let bytes = self.geometry.bytes_of(key, value);
            match self.pool.take(bytes, self.ready()) {
                Ok(MemoryGrant::Chunk(chunk)) => {
                    self.buffer.add_chunk(place, chunk);
                    let pushed = self.buffer.push(place, key, value);
                    assert!(pushed, "a new chunk has room for a record");
                    return Ok(());
                }
                Ok(MemoryGrant::HandOver) => self.hand_over(true),
                Err(error) => {
                    self.poisoned = true;
                    return Err(error);
                }
            }
        }
    }

    /// The fill state of the buffer. It becomes a table, if nothing else is being written, once it
    /// fills half of the memory. The first table of an epoch is smaller, so that the store gets
    /// work early.
    fn ready(&self) -> BufferReadiness {
        if self.buffer.held == 0 {
            return BufferReadiness::Nothing;
        }
        let part = if self.has_table { 2 } else { 2 * FIRST_TABLE_SHARE };
        // Nearly empty chunks make no table: the next would have far more rows.
        if self.buffer.filled() >= self.share.record_bytes / part {
            BufferReadiness::Table
        } else {
            BufferReadiness::Some
        }
    }

    /// Hands the buffer to the background thread and begins another.
    fn hand_over(&mut self, more_come: bool) {
        let full = std::mem::replace(&mut self.buffer, RecordBuffer::new(self.geometry));
        self.pool.begin_writing();
        let scale = if more_come && !self.has_table { FIRST_TABLE_SHARE } else { 1 };
        self.has_table = more_come;
        self.send(FlushJob::Table(full, scale));
    }

    fn send(&self, job: FlushJob) {
        if let Some(jobs) = &self.jobs {
            // The background thread ends only with `Finish`; a panic there shows when it answers.
            let _ = jobs.send(job);
        }
    }

    fn ask<T>(&mut self, job: impl FnOnce(SyncSender<Result<T>>) -> FlushJob) -> Result<T> {
        if self.poisoned {
            return Err(closed());
        }
        let (answer, answered): (_, Receiver<Result<T>>) = sync_channel(1);
        if self.buffer.held > 0 {
            self.hand_over(false);
        }
        self.has_table = false;
        self.send(job(answer));
        let done = answered.recv().unwrap_or_else(|_| Err(closed()));
        // The background thread's first error is more specific than `Closed`.
        let done = self.pool.check().and(done);
        self.poisoned = done.is_err();
        done
    }

    /// Adds an encoded auxiliary table to the current epoch.
    pub fn add_auxiliary(&mut self, table: Vec<u8>) {
        self.send(FlushJob::Auxiliary(table));
    }

    /// Ends the epoch. Once it returns, all records appended so far survive power loss, if the
    /// values that this rank has kept do. Blocks for their writing and two syncs.
    ///
    /// # Errors
    /// The error of a failed write, and `Closed` afterwards; the epoch is then incomplete.
    pub fn epoch_flush(&mut self, end: EpochEnd) -> Result<()> {
        self.ask(|answer| FlushJob::Epoch(end, answer))
    }

    /// Finishes the logs. The caller must have called [`PartitionWriter::epoch_flush`] after the
    /// last record.
    ///
    /// # Errors
    /// The error of a failed write.
    pub fn finish(mut self) -> Result<PartitionSummary> {
        assert!(self.buffer.held == 0, "records are flushed before the logs end");
        self.ask(FlushJob::Finish)
    }

    /// Maximum bytes of key and value of a record; longer ones do not fit the memory.
    #[must_use]
    pub fn record_bytes_max(&self) -> u64 {
        self.share.record_bytes_max()
    }

    /// Bytes of the buffer's chunks, which hold waiting records.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.buffer.held
    }
}

impl Drop for PartitionWriter {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(background) = self.background.take() {
            // A panic there was reported to the caller that waited for its answer.
            let _ = background.join();
        }
    }
}
