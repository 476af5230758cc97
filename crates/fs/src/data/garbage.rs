// SPDX-License-Identifier: Apache-2.0
//! Garbage estimate: an upper bound of the bytes in a writer's data logs that nothing shows any
//! more.
//!
//! A write reads nothing, so only a scan of the tables finds out which bytes it overwrote. Writers
//! add the bytes that they may have overwritten, truncated or removed; a scan replaces the sum by
//! its result (`file/reclaim.rs`). The estimate is never too low, so a scan is never overdue.
//! Concurrency: counters; share freely.

use std::sync::atomic::{AtomicU64, Ordering};

use super::LOG_BYTES;

/// Garbage in excess of the shown bytes at which a background thread starts reclaiming.
pub(crate) const GARBAGE_BYTES_SOFT: u64 = 64 << 20;
/// Garbage in excess of the shown bytes at which writers reclaim before they write.
pub(crate) const GARBAGE_BYTES_HARD: u64 = 160 << 20;
/// Bytes moved before the logs that held them are deleted.
pub(crate) const MOVED_BYTES_MAX: u64 = 64 << 20;
/// Data logs take at most this much more than twice the shown bytes.
const STORE_BYTES_OVER: u64 = 256 << 20;
const _: () = assert!(GARBAGE_BYTES_SOFT < GARBAGE_BYTES_HARD);
const _: () = assert!(GARBAGE_BYTES_HARD + MOVED_BYTES_MAX < STORE_BYTES_OVER);
/// A log is reclaimed when less than one part in this many of its bytes is shown.
pub(crate) const LIVE_SHARE_MIN: u64 = 2;
// The sparsest log moves as a whole.
const _: () = assert!(LOG_BYTES / LIVE_SHARE_MIN <= MOVED_BYTES_MAX);

/// Size of a writer's data logs that no other set shows, and how much of it is garbage.
#[derive(Debug, Default)]
pub(crate) struct GarbageEstimate {
    stored_bytes: AtomicU64,
    garbage_bytes_max: AtomicU64,
    /// No scan is due below this much garbage: the last one could not free more.
    due_bytes_min: AtomicU64,
}

/// The estimate at the start of a scan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EstimateBefore {
    stored_bytes: u64,
    garbage_bytes_max: u64,
}

impl GarbageEstimate {
    /// Adds bytes that were stored.
    pub(crate) fn add_stored(&self, bytes: u64) {
        self.stored_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds bytes that may not be shown any more.
    pub(crate) fn add_garbage(&self, bytes: u64) {
        // A sparse file may be larger than everything that is stored.
        let bytes = bytes.min(self.stored_bytes.load(Ordering::Relaxed));
        self.garbage_bytes_max.fetch_add(bytes, Ordering::Relaxed);
    }

    /// True if garbage may exceed the shown bytes by more than `over`, and a scan may find some
    /// that the last one did not.
    pub(crate) fn exceeds(&self, over: u64) -> bool {
        let garbage = self.garbage_bytes_max.load(Ordering::Relaxed);
        let stored = self.stored_bytes.load(Ordering::Relaxed);
        let shown_min = stored.saturating_sub(garbage);
        garbage >= self.due_bytes_min.load(Ordering::Relaxed)
            && garbage.min(stored) > shown_min.saturating_add(over)
    }

    /// Returns the estimate before a scan, for [`GarbageEstimate::replace`].
    pub(crate) fn before_scan(&self) -> EstimateBefore {
        EstimateBefore {
            stored_bytes: self.stored_bytes.load(Ordering::Relaxed),
            garbage_bytes_max: self.garbage_bytes_max.load(Ordering::Relaxed),
        }
    }

    /// Replaces the estimate from `before` a scan by its result: all stored bytes and the known
    /// garbage, where logs with `unknown_bytes` were not scanned.
    pub(crate) fn replace(
        &self,
        before: EstimateBefore,
        stored_bytes: u64,
        garbage_bytes: u64,
        unknown_bytes: u64,
    ) {
        let unknown = unknown_bytes.min(before.garbage_bytes_max.saturating_sub(garbage_bytes));
        shift(&self.stored_bytes, before.stored_bytes, stored_bytes);
        shift(&self.garbage_bytes_max, before.garbage_bytes_max, garbage_bytes + unknown);
        self.due_bytes_min.store(0, Ordering::Relaxed);
    }

    /// Defers the next scan until there is more garbage, since the last one freed nothing.
    pub(crate) fn defer_scan(&self) {
        let garbage = self.garbage_bytes_max.load(Ordering::Relaxed);
        self.due_bytes_min.store(garbage + GARBAGE_BYTES_SOFT, Ordering::Relaxed);
    }
}

/// Changes `counter` from `before` to `after`, keeping concurrent additions.
fn shift(counter: &AtomicU64, before: u64, after: u64) {
    // Elsewhere counters only grow, and only one thread scans at a time.
    counter.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
}
