// SPDX-License-Identifier: Apache-2.0
//! Append log in numbered objects: appends gather in memory until a sync, or until they are worth a
//! request.
//!
//! Unlike with a file, appended bytes that were not flushed die with the process: only a sync, or
//! the next [`PIECE_BYTES`] of appends, passes them to the server.
//! Invariants: (1) pieces are put in order, each once; (2) `flushed <= bytes`; (3) a poisoned log
//! is never usable again. Concurrency: appends take `tail`, for a copy; flushes take `flush` and,
//! within it, `tail`. `flush` is held across a request because the next piece must not overtake
//! this one.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join;
use object_store::{Error as S3Error, ObjectStoreExt};
use parking_lot::Mutex;

use super::connection::S3Connection;
use super::pieces::{self, PIECES_MAX};
use crate::store::{AppendLog, poisoned, taken};
use crate::{Error, Kind, Result};

/// Appended bytes from which on they are flushed without a sync: a request worth making.
const PIECE_BYTES: usize = 4 << 20;

pub(super) struct S3Log {
    connection: Arc<S3Connection>,
    name: String,
    /// The bytes not flushed yet; held for a copy.
    tail: Mutex<LogTail>,
    /// The state of the pieces already put; held for a request.
    flush: Mutex<TailFlush>,
}

#[derive(Default)]
struct LogTail {
    bytes: u64,
    pending: Vec<u8>,
    poisoned: bool,
}

struct TailFlush {
    next_piece: u32,
    flushed: u64,
}

impl S3Log {
    pub(super) fn create(connection: Arc<S3Connection>, name: &str) -> Result<Self> {
        let (inner, owned) = (Arc::clone(&connection), name.to_owned());
        connection.wait(async move {
            let path = inner.path(&owned)?;
            let first = pieces::name(&owned, 0);
            let object = inner.attempts().request(0, || inner.client().head(&path));
            let (object, put) = join(object, inner.put_conditionally(&first, Bytes::new())).await;
            let error = match (object, &put) {
                (Err(S3Error::NotFound { .. }), _) => {
                    return put.map_err(|error| match error.kind() {
                        Kind::Exists => taken(&owned),
                        _ => error,
                    });
                }
                (Ok(_), _) => taken(&owned),
                (Err(error), _) => inner.failed("open", &owned, error),
            };
            if put.is_ok() {
                // The name may be an object's, so the log's first piece is removed if possible.
                drop(inner.delete(&owned, &[inner.path(&first)?]).await);
            }
            Err(error)
        })?;
        Ok(Self {
            connection,
            name: name.into(),
            tail: Mutex::default(),
            flush: Mutex::new(TailFlush { next_piece: 1, flushed: 0 }),
        })
    }

    /// Flushes at least the first `wanted` bytes.
    fn flush(&self, wanted: u64) -> Result<()> {
        let mut flush = self.flush.lock();
        let pending: Bytes = {
            let mut tail = self.tail.lock();
            if tail.poisoned {
                return Err(poisoned(&self.name));
            }
            if flush.flushed >= wanted {
                return Ok(());
            }
            std::mem::take(&mut tail.pending).into()
        };
        let bytes = pending.len() as u64;
        let outcome = if flush.next_piece < PIECES_MAX {
            self.connection.put(&pieces::name(&self.name, flush.next_piece), pending)
        } else {
            let what = format!("{}: over {PIECES_MAX} pieces: start another log", self.name);
            Err(Error::new(Kind::TooLarge, what))
        };
        if let Err(error) = outcome {
            self.tail.lock().poisoned = true;
            return Err(match error.kind() {
                Kind::Exists => {
                    let what = format!("{}: another process wrote to this log", self.name);
                    Error::new(Kind::Conflict, what).with_source(error)
                }
                _ => error,
            });
        }
        flush.next_piece += 1;
        flush.flushed += bytes;
        Ok(())
    }
}

impl AppendLog for S3Log {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        let (offset, full) = {
            let mut tail = self.tail.lock();
            if tail.poisoned {
                return Err(poisoned(&self.name));
            }
            let offset = tail.bytes;
            tail.pending.extend_from_slice(bytes);
            tail.bytes += bytes.len() as u64;
            let full = tail.pending.len() >= PIECE_BYTES;
            (offset, full)
        };
        if full {
            self.flush(offset + bytes.len() as u64)?;
        }
        Ok(offset)
    }

    fn sync(&self) -> Result<()> {
        let wanted = self.tail.lock().bytes;
        self.flush(wanted)
    }

    fn bytes(&self) -> u64 {
        self.tail.lock().bytes
    }
}
