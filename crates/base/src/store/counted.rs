// SPDX-License-Identifier: Apache-2.0
//! Counted store: wraps a store and counts its requests and bytes.
//!
//! Counts the requests that reach the store: neighbouring ranges that become one request count as
//! one, and failed requests count too. Round trips are counted along the work that waits for them
//! (`concurrent.rs`).
//! Concurrency: counters are atomics; a snapshot taken while other threads work is not of one
//! instant.

use std::fs::File;
use std::ops::{Range, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::{
    AppendLog, InPlaceLog, LocalFiles, ObjectInfo, ObjectWriter, SharedStore, Store, coalesce,
    concurrent,
};
use crate::Result;

/// A store that counts.
#[derive(Debug)]
pub struct CountedStore {
    inner: SharedStore,
    counters: Arc<RequestCounters>,
    requests_at_once: usize,
}

/// The counts up to one moment or, as a difference, between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Read requests: whole objects and runs of ranges.
    pub reads: u64,
    /// Bytes that those reads returned.
    pub read_bytes: u64,
    /// Requests for the size of an object.
    pub sizes: u64,
    /// Objects put, either at once or finished after pieces.
    pub writes: u64,
    /// Bytes of objects, counted as they are passed to the store.
    pub written_bytes: u64,
    /// Appends to logs.
    pub appends: u64,
    /// Bytes appended.
    pub log_bytes: u64,
    /// Syncs of logs.
    pub syncs: u64,
    /// Listings.
    pub lists: u64,
    /// Deletions.
    pub deletes: u64,
    /// Requests that had to follow one another; concurrent requests count once.
    pub rounds: u64,
}

impl Sub for RequestCounts {
    type Output = Self;

    /// The counts between `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            sizes: self.sizes - earlier.sizes,
            writes: self.writes - earlier.writes,
            written_bytes: self.written_bytes - earlier.written_bytes,
            appends: self.appends - earlier.appends,
            log_bytes: self.log_bytes - earlier.log_bytes,
            syncs: self.syncs - earlier.syncs,
            lists: self.lists - earlier.lists,
            deletes: self.deletes - earlier.deletes,
            rounds: self.rounds - earlier.rounds,
        }
    }
}

impl CountedStore {
    /// Wraps `inner` and counts its requests from now on.
    #[must_use]
    pub fn new(inner: SharedStore) -> Self {
        let requests_at_once = inner.requests_at_once();
        Self { inner, counters: Arc::default(), requests_at_once }
    }

    /// Makes the store report `requests_at_once`, to measure the cost of work on a far store.
    #[must_use]
    pub fn far(self, requests_at_once: usize) -> Self {
        Self { requests_at_once, ..self }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> RequestCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        RequestCounts {
            reads: read(&counters.reads),
            read_bytes: read(&counters.read_bytes),
            sizes: read(&counters.sizes),
            writes: read(&counters.writes),
            written_bytes: read(&counters.written_bytes),
            appends: read(&counters.appends),
            log_bytes: read(&counters.log_bytes),
            syncs: read(&counters.syncs),
            lists: read(&counters.lists),
            deletes: read(&counters.deletes),
            rounds: read(&counters.rounds),
        }
    }

    /// The files of the inner store, which has some: `local_files` returns none otherwise.
    fn inner_files(&self) -> &dyn LocalFiles {
        self.inner.local_files().expect("only a store with files is asked for them")
    }

    fn count_log(&self, inner: Box<dyn AppendLog>) -> Box<dyn AppendLog> {
        Box::new(CountedLog { inner, counters: Arc::clone(&self.counters) })
    }

    fn count_read(&self, requests: u64, outcome: &[Bytes]) {
        self.counters.add(&self.counters.reads, requests);
        add_bytes(&self.counters.read_bytes, outcome.iter().map(|bytes| bytes.len() as u64).sum());
    }
}

impl Store for CountedStore {
    fn url(&self) -> String {
        self.inner.url()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.counters.add(&self.counters.writes, 1);
        add_bytes(&self.counters.written_bytes, bytes.len() as u64);
        self.inner.put_if_absent(name, bytes)
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        let inner = self.inner.create(name)?;
        Ok(Box::new(CountedWriter { inner, counters: Arc::clone(&self.counters) }))
    }

    fn size(&self, name: &str) -> Result<u64> {
        self.counters.add(&self.counters.sizes, 1);
        self.inner.size(name)
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        let outcome = self.inner.get(name, bytes_max);
        self.count_read(1, outcome.as_ref().map(std::slice::from_ref).unwrap_or_default());
        outcome
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        let outcome = self.inner.get_range(name, range);
        self.count_read(1, outcome.as_ref().map(std::slice::from_ref).unwrap_or_default());
        outcome
    }

    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let outcome = self.inner.get_ranges(name, ranges);
        let requests = coalesce::runs(ranges).len() as u64;
        self.count_read(requests, outcome.as_deref().unwrap_or_default());
        outcome
    }

    fn local_files(&self) -> Option<&dyn LocalFiles> {
        self.inner.local_files().map(|_| self as &dyn LocalFiles)
    }

    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        self.counters.count_round();
        self.inner.append_log(name).map(|inner| self.count_log(inner))
    }

    fn get_range_within(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        let outcome = self.inner.get_range_within(name, range);
        self.count_read(1, outcome.as_ref().map(std::slice::from_ref).unwrap_or_default());
        outcome
    }

    fn requests_at_once(&self) -> usize {
        self.requests_at_once
    }

    fn open_logs_max(&self) -> usize {
        self.inner.open_logs_max()
    }

    fn sync_log(&self, name: &str) -> Result<()> {
        self.counters.add(&self.counters.syncs, 1);
        self.inner.sync_log(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.counters.add(&self.counters.lists, 1);
        self.inner.list(prefix)
    }

    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        self.counters.add(&self.counters.lists, 1);
        self.inner.list_names(prefix)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.counters.add(&self.counters.deletes, 1);
        self.inner.delete(name)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }

    fn keep_reserve(&self) {
        self.inner.keep_reserve();
    }

    fn release_reserve(&self) -> bool {
        self.inner.release_reserve()
    }

    fn sweep_unfinished(&self, before_ns: u64, dry_run: bool) -> Result<u64> {
        self.counters.add(&self.counters.lists, 1);
        self.inner.sweep_unfinished(before_ns, dry_run)
    }
}

impl LocalFiles for CountedStore {
    fn open(&self, name: &str) -> Result<File> {
        self.inner_files().open(name)
    }

    fn create_log(&self, name: &str) -> Result<InPlaceLog> {
        self.counters.count_round();
        let (inner, file) = self.inner_files().create_log(name)?;
        Ok((self.count_log(inner), file))
    }
}

#[derive(Debug, Default)]
struct RequestCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    sizes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    appends: AtomicU64,
    log_bytes: AtomicU64,
    syncs: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    rounds: AtomicU64,
}

impl RequestCounters {
    /// Counts concurrent requests, each in `counter`.
    fn add(&self, counter: &AtomicU64, requests: u64) {
        counter.fetch_add(requests, Ordering::Relaxed);
        if requests > 0 {
            self.count_round();
        }
    }

    fn count_round(&self) {
        self.rounds.fetch_max(concurrent::count_round(), Ordering::Relaxed);
    }
}

fn add_bytes(counter: &AtomicU64, bytes: u64) {
    counter.fetch_add(bytes, Ordering::Relaxed);
}

struct CountedWriter {
    inner: Box<dyn ObjectWriter>,
    counters: Arc<RequestCounters>,
}

impl ObjectWriter for CountedWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        add_bytes(&self.counters.written_bytes, bytes.len() as u64);
        self.inner.write(bytes)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.counters.add(&self.counters.writes, 1);
        self.inner.finish()
    }
}

struct CountedLog {
    inner: Box<dyn AppendLog>,
    counters: Arc<RequestCounters>,
}

impl AppendLog for CountedLog {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        // Not a round: a far store's log gathers appends in memory.
        self.counters.appends.fetch_add(1, Ordering::Relaxed);
        add_bytes(&self.counters.log_bytes, bytes.len() as u64);
        self.inner.append(bytes)
    }

    fn sync(&self) -> Result<()> {
        self.counters.add(&self.counters.syncs, 1);
        self.inner.sync()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn counts_requests_and_bytes() {
        let store = CountedStore::new(Arc::new(MemoryStore::new()));
        store.put_if_absent("a", b"0123456789").expect("put");
        let mut writer = store.create("b").expect("create");
        writer.write(b"xy").expect("write");
        writer.finish().expect("finish");
        let log = store.append_log("c").expect("log");
        log.append(b"abc").expect("append");
        log.sync().expect("sync");
        let before = store.counts();
        assert_eq!((before.writes, before.written_bytes), (2, 12));
        assert_eq!((before.appends, before.log_bytes, before.syncs), (1, 3, 1));

        store.get_ranges("a", &[0..2, 4..6]).expect("get");
        store.get_range("a", 0..5).expect("get");
        store.get("absent", 9).expect_err("absent");
        store.size("a").expect("size");
        store.list("").expect("list");
        store.delete("a").expect("delete");
        let counts = store.counts() - before;
        let expected = RequestCounts {
            reads: 3,
            read_bytes: 9,
            sizes: 1,
            lists: 1,
            deletes: 1,
            rounds: 6,
            ..RequestCounts::default()
        };
        assert_eq!(counts, expected);
    }
}
