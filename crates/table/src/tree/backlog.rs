//! Backlog: how far the thread is that writes tables, so that a writer who is ahead of it waits a
//! little at a time, and nobody for all of it at once.
//!
//! While a frozen memtable is written, the active one may fill to a half, and from there on as fast
//! as rows are written; it is full when they are. While tables are merged and a frozen memtable waits
//! for that, it may fill to a half as fast as rows are merged. A writer who is ahead waits for at most
//! [`DELAY_MAX`], after which the memtable may grow by a small step whatever the thread does: so a
//! thread that says nothing for seconds, because it sorts, stops nobody, and if it hangs writers get
//! slower until the memtable is full.
//! Concurrency: counters; `allowed_bytes` is what the last writer who looked found.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::Inner;

/// The longest that one operation waits for the thread, until the memtable is full.
const DELAY_MAX: Duration = Duration::from_millis(10);
/// How often it looks meanwhile.
const LOOK: Duration = Duration::from_millis(1);
/// The memtable in steps of the growth that is allowed at a time.
const STEPS: usize = 1024;

/// How far it is.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Whether tables are merged; else the oldest frozen memtable, if there is one, is written.
    merges: AtomicBool,
    rows: AtomicU64,
    written: AtomicU64,
    /// The size of the active memtable from which on writers look here.
    allowed_bytes: AtomicUsize,
}

impl Backlog {
    /// Notes that the oldest frozen memtable is being written, in about so many `rows`.
    pub(super) fn start_flush(&self, rows: u64) {
        self.start(false, rows);
    }

    /// Notes that tables are being merged, of so many `rows`.
    pub(super) fn start_merge(&self, rows: u64) {
        self.start(true, rows);
    }

    fn start(&self, merges: bool, rows: u64) {
        self.written.store(0, Ordering::Relaxed);
        self.rows.store(rows, Ordering::Relaxed);
        self.merges.store(merges, Ordering::Relaxed);
        self.look_again();
    }

    /// Rows that were written of it.
    pub(super) fn written(&self) -> &AtomicU64 {
        &self.written
    }

    /// Whoever writes next looks how far the thread is.
    pub(super) fn look_again(&self) {
        self.allowed_bytes.store(0, Ordering::Relaxed);
    }

    /// The size from which on the active memtable needs leave to grow.
    #[inline]
    pub(super) fn allowed_bytes(&self) -> usize {
        self.allowed_bytes.load(Ordering::Relaxed)
    }

    /// Lets the active memtable grow to `bytes` before a writer looks here again.
    pub(super) fn allow(&self, bytes: usize) {
        self.allowed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// What the active memtable may take now, of `bytes_max`; `has_frozen` says whether another waits
    /// or is written.
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

impl Inner {
    /// Waits a little if the active memtable grows faster than the thread makes room.
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
        let backlog = Backlog::default();
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
