// SPDX-License-Identifier: Apache-2.0
//! Read-ahead: small files of a far store are fetched together with their neighbours.
//!
//! Files that were stored together are adjacent in a packed log. A read fetches and caches a window
//! of the log around it, so that the next files cost no request. The order in which a directory is
//! read does not matter: windows begin at multiples of their size and end where others begin.
//! Bounds: (1) cached windows take at most [`KEPT_BYTES_MAX`], evicted in LRU order; (2) at most
//! [`FETCHED_PER_TAKEN`] times the bytes that readers took, plus [`SPARE_BYTES`], are fetched from
//! each log, so that random reads of a large log soon cost little more than the files themselves.
//! Bytes of logs never change. Checksums are verified by readers, as without windows.
//! Concurrency: share freely. A window's lock is held while it is fetched: other readers of its
//! bytes wait for that request instead of making another.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use esker_base::store::Store;
use esker_base::{Bytes, Error, Kind, Result};
use esker_table::manifest::SetId;
use esker_table::object_name::ObjectName;
use parking_lot::Mutex;

/// Size of the first window of a log, and the factor by which each window is larger than the one
/// before: a far store sends the first in about the time of a round trip.
const WINDOW_BYTES_MIN: u64 = 64 << 10;
const WINDOW_GROWTH: u64 = 4;
/// The largest window; beyond it a request is mostly transfer.
const WINDOW_BYTES_MAX: u64 = 4 << 20;
/// Memory for windows.
const KEPT_BYTES_MAX: u64 = 32 << 20;
/// Bound on the bytes fetched from one log: this many times the bytes taken, plus `SPARE_BYTES`.
const FETCHED_PER_TAKEN: u64 = 8;
const SPARE_BYTES: u64 = 8 << 20;
/// Number of logs whose use is tracked, most recently read last.
const LOGS_MAX: usize = 64;
const _: () = assert!(WINDOW_BYTES_MAX * 2 <= KEPT_BYTES_MAX);

/// A data log: its set and number.
type DataLog = (SetId, u64);

/// Cached windows of packed logs.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    kept: Mutex<KeptWindows>,
}

#[derive(Debug, Default)]
struct KeptWindows {
    /// In order of use, most recent last.
    windows: VecDeque<Arc<ReadWindow>>,
    /// Total size of their ranges.
    bytes: u64,
    logs: VecDeque<LogReads>,
}

/// Result of a request for a window, which is shorter than its range if the log ends earlier.
type FetchedWindow = Result<Bytes, (Kind, String)>;

#[derive(Debug)]
struct ReadWindow {
    log: DataLog,
    range: Range<u64>,
    /// `None` only while no other thread can see it.
    fetched: Mutex<Option<FetchedWindow>>,
}

/// Read statistics of a log.
#[derive(Debug)]
struct LogReads {
    log: DataLog,
    window_bytes: u64,
    fetched_bytes: u64,
    taken_bytes: u64,
}

impl ReadAhead {
    /// Returns the bytes of `wanted`, which is not empty, of `log`. Cost: a request for each part
    /// that no window has, mostly none or one.
    pub(crate) fn read(
        &self,
        store: &dyn Store,
        log: DataLog,
        wanted: Range<u64>,
    ) -> Result<Bytes> {
        let name = ObjectName::Data(log.0, log.1).to_string();
        let mut found: Vec<Bytes> = Vec::new();
        let mut at = wanted.start;
        while at < wanted.end {
            let left = at..wanted.end;
            let bytes = match self.window(store, &name, log, &left)? {
                Some(bytes) => bytes,
                // Too sparse for a window, or beyond the end of the log, which the store then
                // reports.
                None => store.get_range(&name, left)?,
            };
            at += bytes.len() as u64;
            found.push(bytes);
        }
        match &found[..] {
            [whole] => Ok(whole.clone()),
            parts => Ok(parts.concat().into()),
        }
    }

    /// Returns the first bytes of `wanted`, as many as one window has; `None` if no window has any.
    fn window(
        &self,
        store: &dyn Store,
        name: &str,
        log: DataLog,
        wanted: &Range<u64>,
    ) -> Result<Option<Bytes>> {
        let mut kept = self.kept.lock();
        if let Some(window) = kept.find(log, wanted) {
            drop(kept);
            return window.slice(wanted);
        }
        let Some(range) = kept.plan(log, wanted) else { return Ok(None) };
        let window = Arc::new(ReadWindow { log, range, fetched: Mutex::default() });
        // Lock before other threads see it.
        let mut fetched = window.fetched.lock();
        kept.add(window.clone());
        drop(kept);
        match store.get_range_within(name, window.range.clone()) {
            Ok(bytes) => *fetched = Some(Ok(bytes)),
            Err(error) => {
                *fetched = Some(Err((error.kind(), error.context().to_owned())));
                self.kept.lock().remove(&window);
                return Err(error);
            }
        }
        drop(fetched);
        window.slice(wanted)
    }
}

impl ReadWindow {
    /// Maximum size in memory.
    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Waits for the fetch and returns the bytes of `wanted`, whose start is within the range, up
    /// to the end of the window; `None` if the log ends earlier.
    fn slice(&self, wanted: &Range<u64>) -> Result<Option<Bytes>> {
        let bytes = match &*self.fetched.lock() {
            None => return Ok(None),
            Some(Err((kind, context))) => return Err(Error::new(*kind, context.clone())),
            Some(Ok(bytes)) => bytes.clone(),
        };
        let index = |at: u64| usize::try_from(at - self.range.start).expect("a window is small");
        let (start, end) = (index(wanted.start), index(wanted.end.min(self.range.end)));
        Ok((start < end.min(bytes.len())).then(|| bytes.slice(start..end.min(bytes.len()))))
    }
}

impl KeptWindows {
    /// Returns the window that contains the start of `wanted`.
    fn find(&mut self, log: DataLog, wanted: &Range<u64>) -> Option<Arc<ReadWindow>> {
        let has =
            |window: &Arc<ReadWindow>| window.log == log && window.range.contains(&wanted.start);
        let window = self.windows.remove(self.windows.iter().rposition(has)?)?;
        let taken_bytes = wanted.end.min(window.range.end) - wanted.start;
        self.reads_of(log).taken_bytes += taken_bytes;
        self.windows.push_back(window.clone());
        Some(window)
    }

    /// Plans a window around the start of `wanted`, which no window has; `None` if fetching more
    /// than `wanted` is not worthwhile. Windows do not overlap.
    fn plan(&mut self, log: DataLog, wanted: &Range<u64>) -> Option<Range<u64>> {
        let wanted_bytes = wanted.end - wanted.start;
        let reads = self.reads_of(log);
        let taken_bytes = reads.taken_bytes + wanted_bytes;
        let allowed_bytes = taken_bytes.saturating_mul(FETCHED_PER_TAKEN) + SPARE_BYTES;
        let left_bytes = allowed_bytes.saturating_sub(reads.fetched_bytes).max(1);
        let large_bytes = wanted_bytes.saturating_mul(WINDOW_GROWTH).checked_next_power_of_two();
        let bytes = reads.window_bytes.max(large_bytes.unwrap_or(u64::MAX)).min(WINDOW_BYTES_MAX);
        let bytes = bytes.min(1 << left_bytes.ilog2());
        if bytes <= wanted_bytes {
            reads.taken_bytes = taken_bytes;
            reads.fetched_bytes += wanted_bytes;
            return None;
        }
        reads.window_bytes = (bytes * WINDOW_GROWTH).min(WINDOW_BYTES_MAX);
        let start = wanted.start - wanted.start % bytes;
        let mut range = start..wanted.end.max(start.saturating_add(bytes));
        for other in self.windows.iter().filter(|other| other.log == log) {
            if other.range.end <= wanted.start {
                range.start = range.start.max(other.range.end);
            } else {
                range.end = range.end.min(other.range.start);
            }
        }
        let reads = self.reads_of(log);
        reads.taken_bytes += wanted.end.min(range.end) - wanted.start;
        reads.fetched_bytes += range.end - range.start;
        Some(range)
    }

    fn reads_of(&mut self, log: DataLog) -> &mut LogReads {
        let known = self.logs.iter().rposition(|reads| reads.log == log);
        let reads = known.and_then(|index| self.logs.remove(index)).unwrap_or(LogReads {
            log,
            window_bytes: WINDOW_BYTES_MIN,
            fetched_bytes: 0,
            taken_bytes: 0,
        });
        if self.logs.len() == LOGS_MAX {
            self.logs.pop_front();
        }
        self.logs.push_back(reads);
        self.logs.back_mut().expect("pushed just now")
    }

    fn add(&mut self, window: Arc<ReadWindow>) {
        self.bytes += window.bytes();
        self.windows.push_back(window);
        while self.bytes > KEPT_BYTES_MAX
            && let Some(oldest) = self.windows.pop_front()
        {
            self.bytes -= oldest.bytes();
        }
    }

    fn remove(&mut self, window: &Arc<ReadWindow>) {
        if let Some(index) = self.windows.iter().position(|kept| Arc::ptr_eq(kept, window)) {
            self.bytes -= window.bytes();
            self.windows.remove(index);
        }
    }
}

#[cfg(test)]
mod tests;
