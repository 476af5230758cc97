// SPDX-License-Identifier: Apache-2.0
//! Backlog: the progress of the thread that writes tables, so that a writer that outruns it waits a
//! little at each operation instead of once for the whole flush.
//!
//! While a frozen memtable is written, the active one may fill to a half at once, and from there on
//! in proportion to the rows written; when all are written it may be full. While tables are merged
//! and a frozen memtable waits for that, it may fill to a half in proportion to the rows merged. A
//! writer that is ahead waits for at most [`DELAY_MAX`]; then the memtable may grow by a small step
//! regardless of the thread. A thread that reports no progress for seconds, because it sorts,
//! therefore blocks no writer; if it hangs, writers slow down until the memtable is full.
//! Concurrency: counters; `allowed_bytes` is the limit that the last writer to check computed.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::TreeShared;

/// Maximum time that one operation waits for the thread while the memtable is not full.
const DELAY_MAX: Duration = Duration::from_millis(10);
/// Interval at which a waiting writer checks.
const LOOK: Duration = Duration::from_millis(1);
/// The memtable's size divided by the growth that is allowed at a time.
const STEPS: usize = 1024;

/// The progress of the thread.
#[derive(Debug, Default)]
pub(super) struct FlushBacklog {
    /// True while tables are merged; otherwise the oldest frozen memtable, if any, is being
    /// written.
    merges: AtomicBool,
    rows: AtomicU64,
    written: AtomicU64,
    /// Size of the active memtable from which on writers check here.
    allowed_bytes: AtomicUsize,
}

impl FlushBacklog {
    /// Records that the oldest frozen memtable, of about `rows` rows, is being written.
    pub(super) fn start_flush(&self, rows: u64) {
        self.start(false, rows);
    }

    /// Records that tables of `rows` rows are being merged.
    pub(super) fn start_merge(&self, rows: u64) {
        self.start(true, rows);
    }

    fn start(&self, merges: bool, rows: u64) {
        self.written.store(0, Ordering::Relaxed);
        self.rows.store(rows, Ordering::Relaxed);
        self.merges.store(merges, Ordering::Relaxed);
        self.refresh();
    }

    /// The counter of rows written of the current work.
    pub(super) fn written(&self) -> &AtomicU64 {
        &self.written
    }

    /// Makes the next writer check the progress.
    pub(super) fn refresh(&self) {
        self.allowed_bytes.store(0, Ordering::Relaxed);
    }

    /// The size from which on the active memtable needs permission to grow.
    #[inline]
    pub(super) fn allowed_bytes(&self) -> usize {
        self.allowed_bytes.load(Ordering::Relaxed)
    }

    /// Lets the active memtable grow to `bytes` before a writer checks here again.
    pub(super) fn allow(&self, bytes: usize) {
        self.allowed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns the size up to which the active memtable may grow now, at most `bytes_max`;
    /// `has_frozen` if a frozen one waits or is being written.
    fn room(&self, bytes_max: usize, has_frozen: bool) -> usize {
        if !has_frozen {
            return bytes_max;
        }
        let rows = self.rows.load(Ordering::Relaxed).max(1);
        let written = self.written.load(Ordering::Relaxed).min(rows);
        let half = bytes_max / 2;
        let part = (half as u128 * u128::from(written) / u128::from(rows)) as usize;
        if self.merges.load(Ordering::Relaxed) { part } else { half + part }
    }
}

impl TreeShared {
    /// Waits briefly if the active memtable grows faster than the thread makes room.
    pub(super) fn keep_pace(&self, bytes_max: usize) {
        let step = (bytes_max / STEPS).max(1);
        let mut looks = DELAY_MAX.as_nanos() / LOOK.as_nanos();
        let mut pending = self.pending.lock();
        loop {
            let has_frozen = self.options.background && !pending.frozen.is_empty();
            let room = self.backlog.room(bytes_max, has_frozen);
            let active = self.active_bytes.load(Ordering::Relaxed);
            if active < room || looks == 0 || self.failure.get().is_some() {
                let allowed = room.max(active + step).min(bytes_max);
                return self.backlog.allow(allowed);
            }
            looks -= 1;
            self.done.wait_for(&mut pending, LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_grows_with_what_is_written() {
        let backlog = FlushBacklog::default();
        assert_eq!(backlog.room(1_000, true), 500);
        backlog.start_flush(100);
        assert_eq!((backlog.room(1_000, false), backlog.room(1_000, true)), (1_000, 500));
        backlog.written().store(50, Ordering::Relaxed);
        assert_eq!(backlog.room(1_000, true), 750);
        backlog.written().store(200, Ordering::Relaxed);
        assert_eq!(backlog.room(1_000, true), 1_000);
        backlog.start_merge(10);
        assert_eq!((backlog.room(1_000, false), backlog.room(1_000, true)), (1_000, 0));
        backlog.written().store(10, Ordering::Relaxed);
        assert_eq!(backlog.room(1_000, true), 500);
    }
}
