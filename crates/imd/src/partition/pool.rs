//! Pool: the chunks of memory that a partition's records may take, shared by caller and background.
//!
//! Chunks that the background thread has emptied are filled again by the caller, so that one table
//! may be nearly as large as the whole memory.
//! Concurrency: one lock, never held across store I/O; `freed` wakes the caller.

use esker_base::{Error, Kind, Result};
use parking_lot::{Condvar, Mutex};

use super::buffer::Chunk;
use super::share::LONG_COPIES;

/// What one partition may allocate for records.
#[derive(Debug)]
pub(super) struct Pool {
    chunk_bytes: usize,
    bytes_max: u64,
    /// Guards what is below.
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Chunk>,
    /// Bytes of all chunks, the free ones included.
    bytes: u64,
    /// Tables that are being written or are about to be.
    writing: usize,
    failure: Option<Error>,
    failed: bool,
    bytes_peak: u64,
    /// Bytes of the longest record, if any was longer than a chunk.
    long_bytes: u64,
}

/// What a buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// No record.
    Nothing,
    /// Some records.
    Some,
    /// Enough for a table.
    Table,
}

/// What the caller gets when it asks for memory.
pub(super) enum Grant {
    /// A chunk to fill.
    Chunk(Chunk),
    /// Nothing until the buffer that it fills is handed over.
    HandOver,
}

impl Pool {
    pub(super) fn new(chunk_bytes: usize, bytes_max: u64) -> Self {
        Self { chunk_bytes, bytes_max, state: Mutex::default(), freed: Condvar::new() }
    }

    /// A chunk of at least `bytes`, for a buffer that is `ready` to become a table, as soon as nothing
    /// is written, or at least has something. Waits while all memory is taken and a table is being
    /// written.
    ///
    /// # Errors
    /// What the background thread failed with.
    pub(super) fn take(&self, bytes: usize, ready: Ready) -> Result<Grant> {
        let bytes = bytes.max(self.chunk_bytes);
        let mut state = self.state.lock();
        if bytes > self.chunk_bytes {
            state.long_bytes = state.long_bytes.max(bytes as u64);
        }
        loop {
            state.check()?;
            if state.writing == 0 && ready == Ready::Table {
                return Ok(Grant::HandOver);
            }
            if bytes == self.chunk_bytes
                && let Some(chunk) = state.free.pop()
            {
                return Ok(Grant::Chunk(chunk));
            }
            let bytes_max = self.bytes_max.saturating_sub(LONG_COPIES * state.long_bytes);
            let nothing_else = ready == Ready::Nothing && state.writing == 0;
            if state.make_room(bytes as u64, bytes_max) || nothing_else {
                // One chunk must be had, however little memory there is.
                state.bytes += bytes as u64;
                state.bytes_peak = state.bytes_peak.max(state.bytes);
                return Ok(Grant::Chunk(Vec::with_capacity(bytes)));
            }
            if state.writing == 0 {
                return Ok(Grant::HandOver);
            }
            self.freed.wait(&mut state);
        }
    }

    /// Takes chunks back.
    pub(super) fn give(&self, chunks: impl Iterator<Item = Chunk>) {
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

    /// A table is about to be written.
    pub(super) fn begin_writing(&self) {
        self.state.lock().writing += 1;
    }

    /// A table is written, or never will be.
    pub(super) fn end_writing(&self) {
        self.state.lock().writing -= 1;
        self.freed.notify_one();
    }

    /// Lets every later call fail: the first with `error`.
    pub(super) fn fail(&self, error: Error) {
        let mut state = self.state.lock();
        if !state.failed {
            state.failure = Some(error);
        }
        state.failed = true;
        drop(state);
        self.freed.notify_one();
    }

    /// # Errors
    /// What the background thread failed with.
    pub(super) fn check(&self) -> Result<()> {
        self.state.lock().check()
    }

    /// The most that chunks, and copies of long records, took at any moment.
    pub(super) fn bytes_peak(&self) -> u64 {
        let state = self.state.lock();
        state.bytes_peak + LONG_COPIES * state.long_bytes
    }
}

impl State {
    fn check(&mut self) -> Result<()> {
        match self.failure.take() {
            Some(error) => Err(error),
            None if self.failed => Err(closed()),
            None => Ok(()),
        }
    }

    /// Whether `bytes` more fit, if need be in place of free chunks, which then go.
    fn make_room(&mut self, bytes: u64, bytes_max: u64) -> bool {
        while self.bytes + bytes > bytes_max
            && let Some(chunk) = self.free.pop()
        {
            self.bytes -= chunk.capacity() as u64;
        }
        self.bytes + bytes <= bytes_max
    }
}

/// `Closed`: an earlier write failed.
pub(super) fn closed() -> Error {
    Error::new(Kind::Closed, "an earlier write of this rank failed; what it holds is uncertain")
}
