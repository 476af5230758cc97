//! Pool: the chunks of memory that a partition's records may take, shared by caller and background.
//!
//! Chunks that the background thread has emptied are filled again by the caller, so that one table
//! may be nearly as large as the whole memory.
//! Concurrency: one lock, never held across store I/O; `freed` wakes the caller.

use esker_base::{Error, Kind, Result};
use parking_lot::{Condvar, Mutex};

use super::buffer::Chunk;

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
    /// Whether a table is being written.
    writing: bool,
    failure: Option<Error>,
    failed: bool,
    bytes_peak: u64,
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

    /// A chunk of at least `bytes`, for a buffer that holds `held` bytes of chunks and makes a table
    /// of `table_bytes` as soon as nothing is written. Waits while all memory is taken and a table
    /// is being written.
    ///
    /// # Errors
    /// What the background thread failed with.
    pub(super) fn take(&self, bytes: usize, held: u64, table_bytes: u64) -> Result<Grant> {
        let bytes = bytes.max(self.chunk_bytes);
        let mut state = self.state.lock();
        loop {
            state.check()?;
            if !state.writing && held >= table_bytes {
                return Ok(Grant::HandOver);
            }
            if bytes == self.chunk_bytes
                && let Some(chunk) = state.free.pop()
            {
                return Ok(Grant::Chunk(chunk));
            }
            if state.make_room(bytes as u64, self.bytes_max) || (held == 0 && !state.writing) {
                // One chunk must be had, however little memory there is.
                state.bytes += bytes as u64;
                state.bytes_peak = state.bytes_peak.max(state.bytes);
                return Ok(Grant::Chunk(Vec::with_capacity(bytes)));
            }
            if !state.writing {
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

    /// Says whether a table is being written.
    pub(super) fn set_writing(&self, writing: bool) {
        self.state.lock().writing = writing;
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

    /// The most that chunks took at any moment.
    pub(super) fn bytes_peak(&self) -> u64 {
        self.state.lock().bytes_peak
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
