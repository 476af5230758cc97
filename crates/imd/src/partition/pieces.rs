// SPDX-License-Identifier: Apache-2.0
//! Pieces: blocks on their way to a log, written by a separate thread.
//!
//! Sorting and encoding continue while the store accepts earlier pieces, so they add no time where
//! the store is the bottleneck. One piece is written, one waits, one is filled.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use esker_base::store::AppendLog;
use esker_base::{Error, Result};

use super::pool::closed;

/// Maximum number of pieces that are not written yet.
pub(super) const PIECES_MAX: usize = 2;

/// A piece and its number of valid bytes.
type FilledPiece = (Vec<u8>, usize);

/// Writes pieces to a log in order.
#[derive(Debug)]
pub(super) struct PieceWriter {
    pieces: Option<SyncSender<FilledPiece>>,
    written: Receiver<Result<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
    waiting: usize,
    spares: Vec<Vec<u8>>,
}

impl PieceWriter {
    /// Starts a writer to `log`; its thread is named after `partition`.
    pub(super) fn start(log: Arc<dyn AppendLog>, partition: u32) -> Result<Self> {
        let (pieces, inbox) = sync_channel(PIECES_MAX - 1);
        let (outbox, written) = channel();
        let thread = std::thread::Builder::new()
            .name(format!("imd-{partition}-io"))
            .spawn(move || run(&*log, &inbox, &outbox))
            .map_err(|error| Error::io(error, "start a partition's writing thread"))?;
        let (pieces, thread) = (Some(pieces), Some(thread));
        Ok(Self { pieces, written, thread, waiting: 0, spares: Vec::new() })
    }

    /// Queues the first `count` bytes of `piece` for writing; returns another piece to fill, empty
    /// or with old bytes. Blocks while [`PIECES_MAX`] are queued.
    ///
    /// # Errors
    /// The error of an earlier write.
    pub(super) fn submit(&mut self, piece: Vec<u8>, count: usize) -> Result<Vec<u8>> {
        while self.waiting >= PIECES_MAX {
            self.take_back()?;
        }
        let pieces = self.pieces.as_ref().expect("pieces come before the writer goes");
        pieces.send((piece, count)).map_err(|_| closed())?;
        self.waiting += 1;
        Ok(self.spares.pop().unwrap_or_default())
    }

    /// Blocks until all pieces are written to the log.
    ///
    /// # Errors
    /// The error of an earlier write.
    pub(super) fn drain(&mut self) -> Result<()> {
        while self.waiting > 0 {
            self.take_back()?;
        }
        Ok(())
    }

    fn take_back(&mut self) -> Result<()> {
        let piece = self.written.recv().map_err(|_| closed())?;
        self.waiting -= 1;
        self.spares.push(piece?);
        Ok(())
    }
}

fn run(log: &dyn AppendLog, inbox: &Receiver<FilledPiece>, outbox: &Sender<Result<Vec<u8>>>) {
    for (piece, count) in inbox {
        let done = log.append(&piece[..count]).map(|_| piece);
        // Nobody listens if the flusher has failed otherwise.
        let _ = outbox.send(done);
    }
}

impl Drop for PieceWriter {
    fn drop(&mut self) {
        self.pieces = None;
        if let Some(thread) = self.thread.take() {
            // Any write error was already reported.
            let _ = thread.join();
        }
    }
}
