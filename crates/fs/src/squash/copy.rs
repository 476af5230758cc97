//! Copying file data into the data logs of another change set, many small files at a time.
//!
//! Where bytes will be is known before they are read: a log is filled in the order in which records
//! ask for it. So records go on while their bytes wait to be read in the order of their old logs,
//! neighbours together. Checksums are verified on the way.

use esker_base::store::{AppendLog, SharedStore};
use esker_base::{Bytes, Error, Result};
use esker_table::manifest::SetId;

use crate::data::{LOG_BYTES, log_name};
use crate::inode::Extent;

/// Bytes that wait before they are copied.
const QUEUE_BYTES: u64 = 32 << 20;
/// Extents that wait before they are copied.
const QUEUE_EXTENTS: usize = 32 << 10;
/// Longer extents are copied at once, in pieces of this size.
const PIECE_BYTES: u64 = 4 << 20;

/// Copies file data to the logs of one worker.
pub(super) struct DataCopy<'a> {
    store: &'a SharedStore,
    set: SetId,
    /// Number of the next log.
    next: u64,
    log: Option<Box<dyn AppendLog>>,
    /// Bytes of the log once everything that waits is in it.
    planned_bytes: u64,
    queue: Vec<Extent>,
    queued_bytes: u64,
    /// Bytes copied so far.
    pub(super) copied_bytes: u64,
}

impl<'a> DataCopy<'a> {
    /// Copies to logs of `set`, numbered from `next` on.
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

    /// Where the bytes of `extent` will be once this has finished; those cut off stay behind.
    pub(super) fn place(&mut self, extent: Extent) -> Result<Extent> {
        if self.log.is_none() || self.planned_bytes >= LOG_BYTES {
            self.close()?;
            self.log = Some(self.store.append_log(&log_name(self.set, self.next))?);
            self.next += 1;
        }
        let mut placed = Extent {
            set: self.set,
            log: self.next - 1,
            offset: self.planned_bytes,
            written: extent.length,
            ..extent
        };
        self.planned_bytes += extent.length;
        if extent.length > PIECE_BYTES || extent.length < extent.written {
            self.flush()?;
            placed.checksum = self.copy_now(&extent)?;
            return Ok(placed);
        }
        self.queued_bytes += extent.length;
        self.queue.push(extent);
        if self.queued_bytes >= QUEUE_BYTES || self.queue.len() >= QUEUE_EXTENTS {
            self.flush()?;
        }
        Ok(placed)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let log = self.log.as_ref().expect("opened when a place in it was given");
        log.append(bytes)?;
        self.copied_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Copies one extent; returns the checksum of what is visible of it. All that was written is
    /// read, also what was cut off since: the old checksum covers it, and damage must not get a
    /// new one that makes it look whole.
    fn copy_now(&mut self, extent: &Extent) -> Result<u32> {
        let name = log_name(extent.set, extent.log);
        let (mut at, mut whole, mut visible) = (0, 0, 0);
        while at < extent.written {
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
        check(extent, whole)?;
        Ok(visible)
    }

    /// Copies what waits.
    fn flush(&mut self) -> Result<()> {
        let queue = std::mem::take(&mut self.queue);
        let mut order: Vec<usize> = (0..queue.len()).collect();
        order.sort_unstable_by_key(|&at| (queue[at].set, queue[at].log, queue[at].offset));
        let mut pieces: Vec<Bytes> = vec![Bytes::new(); queue.len()];
        for group in
            order.chunk_by(|&a, &b| (queue[a].set, queue[a].log) == (queue[b].set, queue[b].log))
        {
            let name = log_name(queue[group[0]].set, queue[group[0]].log);
            let range = |extent: &Extent| extent.offset..extent.offset + extent.length;
            let ranges: Vec<_> = group.iter().map(|&at| range(&queue[at])).collect();
            for (&at, bytes) in group.iter().zip(self.store.get_ranges(&name, &ranges)?) {
                check(&queue[at], crc32c::crc32c(&bytes))?;
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

    /// Copies what waits and makes the open log durable.
    fn close(&mut self) -> Result<()> {
        self.flush()?;
        if let Some(log) = self.log.take() {
            log.sync()?;
        }
        self.planned_bytes = 0;
        Ok(())
    }

    /// Copies what waits and makes everything durable; returns how many bytes were copied.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.close()?;
        Ok(self.copied_bytes)
    }
}

fn check(extent: &Extent, checksum: u32) -> Result<()> {
    if checksum == extent.checksum {
        return Ok(());
    }
    let what = format!(
        "{} bytes with checksum {checksum:08x}, expected {:08x}",
        extent.length, extent.checksum
    );
    Err(Error::corrupt(&log_name(extent.set, extent.log), extent.offset, what))
}
