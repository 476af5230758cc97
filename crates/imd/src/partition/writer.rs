//! Writer: the caller's half of a partition.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use esker_base::store::SharedStore;
use esker_base::{Error, Result};

use super::buffer::{Buffer, Geometry};
use super::flusher::{Flusher, Job, Logs};
use super::pool::{Grant, Pool, Ready, closed};
use super::share::Share;
use super::{EpochEnd, Order, Setup};
use crate::hash::home;
use crate::names;

/// The first table of an epoch is so many times smaller than the others at least are.
const FIRST_TABLE_SHARE: u64 = 4;

/// Takes the records of one partition.
///
/// Dropping it unfinished leaves the epochs that were flushed, and a log without an end, which
/// readers take as it is.
#[derive(Debug)]
pub struct PartitionWriter {
    setup: Setup,
    geometry: Geometry,
    pool: Arc<Pool>,
    buffer: Buffer,
    share: Share,
    /// Whether a table was made in this epoch.
    has_table: bool,
    jobs: Option<Sender<Job>>,
    background: Option<JoinHandle<()>>,
    poisoned: bool,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
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
    /// The most memory that records, their sorting and the index took.
    pub memory_peak: u64,
    pub(super) index_memory_peak: u64,
}

impl PartitionWriter {
    /// Opens the logs of `setup.partition` below `prefix` (empty, or ending in `/`) of `store`.
    /// `head` and `schema` are the payloads of the index log's first frames.
    ///
    /// # Errors
    /// `Exists` if somebody opened them before, `Invalid` for an impossible setup, and what the
    /// store answers.
    pub fn create(
        store: &SharedStore,
        prefix: &str,
        setup: Setup,
        (head, schema): (&[u8], &[u8]),
    ) -> Result<Self> {
        setup.shape.check()?;
        let share = Share::of(&setup)?;
        let mut geometry = Geometry::of(setup.shape, share.record_bytes);
        if setup.order == Order::Key {
            geometry.bucket_bits = 0;
        }
        let index = store.append_log(&names::index(prefix, setup.partition))?;
        let data = store.append_log(&names::data(prefix, setup.partition))?;
        let pool = Arc::new(Pool::new(geometry.chunk_bytes, share.record_bytes));
        let auxiliary = setup.has_auxiliary.then(|| names::auxiliary(prefix, setup.partition));
        let auxiliary = auxiliary.map(|name| store.append_log(&name)).transpose()?;
        let logs = Logs { data, index, auxiliary };
        let mut flusher = Flusher::new(setup, geometry, share, Arc::clone(&pool), logs)?;
        flusher.begin(head, schema)?;
        let (jobs, inbox) = channel();
        let background = std::thread::Builder::new()
            .name(format!("imd-{}", setup.partition))
            .spawn(move || flusher.run(&inbox))
            .map_err(|error| Error::io(error, "start a partition's thread"))?;
        let (jobs, background) = (Some(jobs), Some(background));
        let buffer = Buffer::new(geometry);
        let (has_table, poisoned) = (false, false);
        Ok(Self { setup, geometry, pool, buffer, share, has_table, jobs, background, poisoned })
    }

    /// Adds a record. `hash` is that of its key ([`crate::hash::key_hash`]).
    ///
    /// Copies the record; waits only while all memory is taken by what is being written.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge` for a record that does not fit the shape; what writing failed with,
    /// and `Closed` afterwards.
    #[inline]
    pub fn append(&mut self, hash: u64, key: &[u8], value: &[u8]) -> Result<()> {
        self.setup.shape.check_record(key, value)?;
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
                Ok(Grant::Chunk(chunk)) => {
                    self.buffer.add_chunk(place, chunk);
                    let pushed = self.buffer.push(place, key, value);
                    assert!(pushed, "a new chunk has room for a record");
                    return Ok(());
                }
                Ok(Grant::HandOver) => self.hand_over(true),
                Err(error) => {
                    self.poisoned = true;
                    return Err(error);
                }
            }
        }
    }

    /// What the buffer has. It makes a table, if nothing is written meanwhile, once half of the
    /// memory is filled; the first of an epoch is small, so that the store has something to do soon.
    fn ready(&self) -> Ready {
        if self.buffer.held == 0 {
            return Ready::Nothing;
        }
        let part = if self.has_table { 2 } else { 2 * FIRST_TABLE_SHARE };
        // Chunks that are hardly filled make no table: the next would have very many more rows.
        if self.buffer.filled() >= self.share.record_bytes / part {
            Ready::Table
        } else {
            Ready::Some
        }
    }

    /// Hands the buffer to the background thread and begins another.
    fn hand_over(&mut self, more_come: bool) {
        let full = std::mem::replace(&mut self.buffer, Buffer::new(self.geometry));
        self.pool.begin_writing();
        let scale = if more_come && !self.has_table { FIRST_TABLE_SHARE } else { 1 };
        self.has_table = more_come;
        self.send(Job::Table(full, scale));
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The background thread ends only with `Finish`; a panic there shows when it answers.
            let _ = jobs.send(job);
        }
    }

    fn ask<T>(&mut self, job: impl FnOnce(SyncSender<Result<T>>) -> Job) -> Result<T> {
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
        // What the background thread failed with first says more than that it is closed.
        let done = self.pool.check().and(done);
        self.poisoned = done.is_err();
        done
    }

    /// Keeps an encoded auxiliary table of the running epoch.
    pub fn add_auxiliary(&mut self, table: Vec<u8>) {
        self.send(Job::Auxiliary(table));
    }

    /// Ends the epoch: all records appended so far survive power loss once it returns, if the values
    /// that this rank has kept do. Waits for their writing and two syncs.
    ///
    /// # Errors
    /// What writing failed with, and `Closed` afterwards; the epoch is then incomplete.
    pub fn epoch_flush(&mut self, end: EpochEnd) -> Result<()> {
        self.ask(|answer| Job::Epoch(end, answer))
    }

    /// Ends the logs. Records since the last [`PartitionWriter::epoch_flush`] are an error of the
    /// caller's: flush first.
    ///
    /// # Errors
    /// What writing failed with.
    pub fn finish(mut self) -> Result<Written> {
        assert!(self.buffer.held == 0, "records are flushed before the logs end");
        self.ask(Job::Finish)
    }

    /// Bytes that key and value of a record may have: longer ones do not fit the memory.
    #[must_use]
    pub fn record_bytes_max(&self) -> u64 {
        self.share.record_bytes_max()
    }

    /// How many bytes of records wait in the buffer, as chunks.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.buffer.held
    }
}

impl Drop for PartitionWriter {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(background) = self.background.take() {
            // A panic there was reported by whoever waited for its answer.
            let _ = background.join();
        }
    }
}
