// SPDX-License-Identifier: Apache-2.0
//! Pool: the memory chunks of a partition's records, shared by the caller and the background
//! thread.
//!
//! The caller refills chunks that the background thread has emptied, so one table can be nearly as
//! large as the whole memory.
//! Concurrency: one lock, never held across store I/O; `freed` wakes the caller.

use esker_base::{Error, Kind, Result};
use parking_lot::{Condvar, Mutex};

use super::buffer::RecordChunk;
use super::share::LONG_COPIES;

/// Memory that one partition may allocate for records.
#[derive(Debug)]
pub(super) struct RecordPool {
    chunk_bytes: usize,
    bytes_max: u64,
    /// Guards the fields of [`RecordPoolState`].
    state: Mutex<RecordPoolState>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct RecordPoolState {
    free: Vec<RecordChunk>,
    /// Bytes of all chunks, free ones included.
    bytes: u64,
    /// Tables that are being written or are queued.
    writing: usize,
    failure: Option<Error>,
    failed: bool,
    bytes_peak: u64,
    /// Bytes of the longest record, if any exceeded a chunk.
    long_bytes: u64,
}

/// Fill state of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferReadiness {
    /// No record.
    Nothing,
    /// Some records.
    Some,
    /// Enough for a table.
    Table,
}

/// Answer to a request for memory.
pub(super) enum MemoryGrant {
    /// A chunk to fill.
    Chunk(RecordChunk),
    /// No chunk until the caller hands over its buffer.
    HandOver,
}

impl RecordPool {
    pub(super) fn new(chunk_bytes: usize, bytes_max: u64) -> Self {
        Self { chunk_bytes, bytes_max, state: Mutex::default(), freed: Condvar::new() }
    }

    /// Returns a chunk of at least `bytes`. Asks for the buffer instead if nothing is being written
    /// and the buffer is `ready` to become a table, or has records and memory is full. Blocks while
    /// all memory is taken and a table is being written.
    ///
    /// # Errors
    /// The error of the background thread.
    pub(super) fn take(&self, bytes: usize, ready: BufferReadiness) -> Result<MemoryGrant> {
        let bytes = bytes.max(self.chunk_bytes);
        let mut state = self.state.lock();
        if bytes > self.chunk_bytes {
            state.long_bytes = state.long_bytes.max(bytes as u64);
        }
        loop {
            state.check()?;
            if state.writing == 0 && ready == BufferReadiness::Table {
                return Ok(MemoryGrant::HandOver);
            }
            if bytes == self.chunk_bytes
                && let Some(chunk) = state.free.pop()
            {
                return Ok(MemoryGrant::Chunk(chunk));
            }
            let bytes_max = self.bytes_max.saturating_sub(LONG_COPIES * state.long_bytes);
            let nothing_else = ready == BufferReadiness::Nothing && state.writing == 0;
            if state.make_room(bytes as u64, bytes_max) || nothing_else {
                // The caller must get one chunk, however little memory there is.
                state.bytes += bytes as u64;
                state.bytes_peak = state.bytes_peak.max(state.bytes);
                return Ok(MemoryGrant::Chunk(Vec::with_capacity(bytes)));
            }
            if state.writing == 0 {
                return Ok(MemoryGrant::HandOver);
            }
            self.freed.wait(&mut state);
        }
    }

    /// Returns chunks to the pool.
    pub(super) fn give(&self, chunks: impl Iterator<Item = RecordChunk>) {
        let mut state = self.state.lock();
        for mut chunk in chunks {
            if chunk.capacity() == self.chunk_bytes {
                chunk.clear();
                state.free.push(chunk);
            } else {
                state.bytes -= chunk.capacity() as u64;
            }
        }
        drop(state);
        self.freed.notify_one();
    }

    /// Registers a table that is about to be written.
    pub(super) fn begin_writing(&self) {
        self.state.lock().writing += 1;
    }

    /// Registers that a table is written, or never will be.
    pub(super) fn end_writing(&self) {
        self.state.lock().writing -= 1;
        self.freed.notify_one();
    }

    /// Makes every later call fail, the first one with `error`.
    pub(super) fn fail(&self, error: Error) {
        let mut state = self.state.lock();
        if !state.failed {
            state.failure = Some(error);
        }
        state.failed = true;
        drop(state);
        self.freed.notify_one();
    }

    /// Fails if the background thread has failed.
    ///
    /// # Errors
    /// The error of the background thread.
    pub(super) fn check(&self) -> Result<()> {
        self.state.lock().check()
    }

    /// Peak bytes of chunks and of copies of long records.
    pub(super) fn bytes_peak(&self) -> u64 {
        let state = self.state.lock();
        state.bytes_peak + LONG_COPIES * state.long_bytes
    }
}

impl RecordPoolState {
    fn check(&mut self) -> Result<()> {
        match self.failure.take() {
            Some(error) => Err(error),
            None if self.failed => Err(closed()),
            None => Ok(()),
        }
    }

    /// Makes room for `bytes` more, dropping free chunks if necessary; returns false if they do not
    /// fit.
    fn make_room(&mut self, bytes: u64, bytes_max: u64) -> bool {
        while self.bytes + bytes > bytes_max
            && let Some(chunk) = self.free.pop()
        {
            self.bytes -= chunk.capacity() as u64;
        }
        self.bytes + bytes <= bytes_max
    }
}

/// The `Closed` error after a failed write.
pub(super) fn closed() -> Error {
    Error::new(Kind::Closed, "an earlier write of this rank failed; what it holds is uncertain")
}
