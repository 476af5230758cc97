//! Garbage estimate: how many bytes of a writer's data logs nothing shows any more, at most.
//!
//! A write reads nothing, so nobody knows what it overwrites without a scan of the tables. Writers
//! add what they may have overwritten, cut off or removed; a scan replaces the sum by what it found
//! (`file/reclaim.rs`). So the estimate is too high, if anything, and a scan is due in time.
//! Concurrency: counters; share freely.

use std::sync::atomic::{AtomicU64, Ordering};

use super::LOG_BYTES;

/// Garbage beyond as much as is shown, from which on a background thread gives it up.
pub(crate) const GARBAGE_BYTES_SOFT: u64 = 64 << 20;
/// Garbage beyond as much as is shown, from which on writers give it up themselves before they write.
pub(crate) const GARBAGE_BYTES_HARD: u64 = 160 << 20;
/// Bytes that move before the logs that they were in are deleted.
pub(crate) const MOVED_BYTES_MAX: u64 = 64 << 20;
/// Data logs take at most this more than twice what is shown.
const STORE_BYTES_OVER: u64 = 256 << 20;
const _: () = assert!(GARBAGE_BYTES_SOFT < GARBAGE_BYTES_HARD);
const _: () = assert!(GARBAGE_BYTES_HARD + MOVED_BYTES_MAX < STORE_BYTES_OVER);
/// A log is given up when less than one part in this many of its bytes is shown.
pub(crate) const LIVE_SHARE_MIN: u64 = 2;
// Of the sparsest log, which moves as a whole.
const _: () = assert!(LOG_BYTES / LIVE_SHARE_MIN <= MOVED_BYTES_MAX);

/// What the data logs of a writer take that no other set shows, and how much of it is garbage.
#[derive(Debug, Default)]
pub(crate) struct GarbageEstimate {
    stored_bytes: AtomicU64,
    garbage_bytes_max: AtomicU64,
    /// Below this much garbage no scan is due: the last one could not give up more.
    due_bytes_min: AtomicU64,
}

/// The estimate at the beginning of a scan.
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

    /// Adds bytes that nothing may show any more.
    pub(crate) fn add_garbage(&self, bytes: u64) {
        // A sparse file may be larger than everything that is stored.
        let bytes = bytes.min(self.stored_bytes.load(Ordering::Relaxed));
        self.garbage_bytes_max.fetch_add(bytes, Ordering::Relaxed);
    }

    /// True if there may be more garbage than `over` beyond as much as is shown, and a scan may find
    /// what the last one did not.
    pub(crate) fn exceeds(&self, over: u64) -> bool {
        let garbage = self.garbage_bytes_max.load(Ordering::Relaxed);
        let stored = self.stored_bytes.load(Ordering::Relaxed);
        let shown_min = stored.saturating_sub(garbage);
        garbage >= self.due_bytes_min.load(Ordering::Relaxed)
            && garbage.min(stored) > shown_min.saturating_add(over)
    }

    /// The estimate before a scan, to be given to [`GarbageEstimate::replace`].
    pub(crate) fn before_scan(&self) -> EstimateBefore {
        EstimateBefore {
            stored_bytes: self.stored_bytes.load(Ordering::Relaxed),
            garbage_bytes_max: self.garbage_bytes_max.load(Ordering::Relaxed),
        }
    }

    /// Replaces what was estimated `before` a scan by what the scan left: all that is stored, and the
    /// garbage that it knows of, with `unknown_bytes` of logs that it did not look into.
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

    /// Puts off the next scan until there is more garbage, since the last one freed nothing.
    pub(crate) fn defer_scan(&self) {
        let garbage = self.garbage_bytes_max.load(Ordering::Relaxed);
        self.due_bytes_min.store(garbage + GARBAGE_BYTES_SOFT, Ordering::Relaxed);
    }
}

/// Changes `counter`, which was `before`, to `after`; what was added meanwhile stays added.
fn shift(counter: &AtomicU64, before: u64, after: u64) {
    // Counters only grow but here, and one thread scans at a time.
    counter.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
}
