// SPDX-License-Identifier: Apache-2.0
//! Copying file data into the data logs of another change set, many small files at a time.
//!
//! The destination of bytes is known before they are read: a log is filled in the order in which
//! records request places. So records are written while their bytes wait to be read in the order of
//! their old logs, neighbours together. Checksums are verified during the copy.

use std::ops::Range;

use esker_base::store::{AppendLog, SharedStore};
use esker_base::{Bytes, Error, Result};
use esker_extent::LogPlace;
use esker_table::manifest::SetId;
use esker_table::object_name::ObjectName;

use crate::data::LOG_BYTES;
use crate::inode::Extent;

/// Maximum bytes queued before they are copied.
const QUEUE_BYTES: u64 = 32 << 20;
/// Maximum number of extents queued before they are copied.
const QUEUE_EXTENTS: usize = 32 << 10;
/// Longer extents are copied immediately, in pieces of this size.
const PIECE_BYTES: u64 = 4 << 20;

/// Copies file data to the logs of one worker.
pub(super) struct DataCopy<'a> {
    pub(super) store: &'a SharedStore,
    /// The set that owns these logs.
    pub(super) set: SetId,
    /// Number of the next log.
    next: u64,
    log: Option<Box<dyn AppendLog>>,
    /// Size of the log once everything in the queue is in it.
    planned_bytes: u64,
    queue: Vec<QueuedCopy>,
    queued_bytes: u64,
    /// Bytes copied so far.
    pub(super) copied_bytes: u64,
}

/// Bytes waiting to be copied.
struct QueuedCopy {
    place: LogPlace,
    length: u64,
    /// Their checksum, if a record has one.
    checksum: Option<u32>,
}

impl QueuedCopy {
    fn range(&self) -> Range<u64> {
        self.place.offset..self.place.offset + self.length
    }
}

impl<'a> DataCopy<'a> {
    /// Copies to logs of `set`, numbered from `next`.
    pub(super) fn new(store: &'a SharedStore, set: SetId, next: u64) -> Self {
        Self {
            store,
            set,
            next,
            log: None,
            planned_bytes: 0,
            queue: Vec::new(),
            queued_bytes: 0,
            copied_bytes: 0,
        }
    }

    /// Returns the place of the bytes of `extent` once the copy has finished; truncated bytes are
    /// not copied.
    pub(super) fn copy_extent(&mut self, extent: Extent) -> Result<Extent> {
        let to = self.plan(extent.length)?;
        let mut placed = Extent {
            set: self.set,
            log: to.log,
            offset: to.offset,
            written: extent.length,
            ..extent
        };
        if extent.length > PIECE_BYTES || extent.length != extent.written {
            self.flush()?;
            placed.checksum = self.copy_now(&extent)?;
            return Ok(placed);
        }
        let place = extent.log_position();
        let checksum = Some(extent.checksum);
        self.enqueue(QueuedCopy { place, length: extent.length, checksum })?;
        Ok(placed)
    }

    /// Returns the new place of the `length` bytes at `place` once the copy has finished.
    pub(super) fn copy_bytes(
        &mut self,
        place: LogPlace,
        length: u64,
        checksum: Option<u32>,
    ) -> Result<LogPlace> {
        let to = self.plan(length)?;
        // A checksum over several pieces stays with the record; single pieces have none.
        let checksum = checksum.filter(|_| length <= PIECE_BYTES);
        let (mut at, end) = (place.offset, place.offset + length);
        while at < end {
            let count = PIECE_BYTES.min(end - at);
            let place = LogPlace { offset: at, ..place };
            self.enqueue(QueuedCopy { place, length: count, checksum })?;
            at += count;
        }
        Ok(to)
    }

    /// Reserves a place for `length` bytes.
    fn plan(&mut self, length: u64) -> Result<LogPlace> {
        if self.log.is_none() || self.planned_bytes >= LOG_BYTES {
            self.close()?;
            self.log =
                Some(self.store.append_log(&ObjectName::Data(self.set, self.next).to_string())?);
            self.next += 1;
        }
        let offset = self.planned_bytes;
        self.planned_bytes += length;
        Ok(LogPlace { set: self.set, log: self.next - 1, offset })
    }

    fn enqueue(&mut self, queued: QueuedCopy) -> Result<()> {
        self.queued_bytes += queued.length;
        self.queue.push(queued);
        if self.queued_bytes >= QUEUE_BYTES || self.queue.len() >= QUEUE_EXTENTS {
            self.flush()?;
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let log = self.log.as_ref().expect("opened when a place in it was given");
        log.append(bytes)?;
        self.copied_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Copies one extent; returns the checksum of its visible bytes. Reads everything that was
    /// written, even truncated bytes: the old checksum covers them, and damaged bytes must not get
    /// a new, valid checksum. Unchecked bytes are copied as they are.
    fn copy_now(&mut self, extent: &Extent) -> Result<u32> {
        let name = ObjectName::Data(extent.set, extent.log).to_string();
        let (mut at, mut whole, mut visible) = (0, 0, 0);
        while at < extent.length.max(extent.written) {
            let end = if at < extent.length { extent.length } else { extent.written };
            let count = PIECE_BYTES.min(end - at);
            let start = extent.offset + at;
            let bytes = self.store.get_range(&name, start..start + count)?;
            whole = crc32c::crc32c_append(whole, &bytes);
            if at < extent.length {
                visible = crc32c::crc32c_append(visible, &bytes);
                self.append(&bytes)?;
            }
            at += count;
        }
        let place = extent.log_position();
        if extent.is_checked() {
            check(place, extent.length, extent.checksum, whole)?;
        }
        Ok(visible)
    }

    /// Copies the queue.
    fn flush(&mut self) -> Result<()> {
        let queue = std::mem::take(&mut self.queue);
        let mut order: Vec<usize> = (0..queue.len()).collect();
        let log = |at: usize| (queue[at].place.set, queue[at].place.log);
        order.sort_unstable_by_key(|&at| (log(at), queue[at].place.offset));
        let mut pieces: Vec<Bytes> = vec![Bytes::new(); queue.len()];
        for group in order.chunk_by(|&a, &b| log(a) == log(b)) {
            let (set, number) = log(group[0]);
            let name = ObjectName::Data(set, number).to_string();
            let ranges: Vec<_> = group.iter().map(|&at| queue[at].range()).collect();
            for (&at, bytes) in group.iter().zip(self.store.get_ranges(&name, &ranges)?) {
                if let Some(checksum) = queue[at].checksum {
                    check(queue[at].place, queue[at].length, checksum, crc32c::crc32c(&bytes))?;
                }
                pieces[at] = bytes;
            }
        }
        let mut gathered = Vec::with_capacity(PIECE_BYTES as usize);
        for bytes in &pieces {
            if gathered.len() + bytes.len() > PIECE_BYTES as usize {
                self.append(&gathered)?;
                gathered.clear();
            }
            gathered.extend_from_slice(bytes);
        }
        if !gathered.is_empty() {
            self.append(&gathered)?;
        }
        self.queued_bytes = 0;
        self.queue = queue;
        self.queue.clear();
        Ok(())
    }

    /// Copies the queue and makes the open log durable.
    fn close(&mut self) -> Result<()> {
        self.flush()?;
        if let Some(log) = self.log.take() {
            log.sync()?;
        }
        self.planned_bytes = 0;
        Ok(())
    }

    /// Copies the queue and makes everything durable; returns how many bytes were copied.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.close()?;
        Ok(self.copied_bytes)
    }
}

fn check(place: LogPlace, length: u64, expected: u32, checksum: u32) -> Result<()> {
    if checksum == expected {
        return Ok(());
    }
    let what = format!("{length} bytes with checksum {checksum:08x}, expected {expected:08x}");
    Err(Error::corrupt(&ObjectName::Data(place.set, place.log).to_string(), place.offset, what))
}
