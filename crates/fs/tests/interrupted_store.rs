// SPDX-License-Identifier: Apache-2.0
//! Interrupted store: another process acts between two requests of the one that uses the store.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::store::{AppendLog, ObjectInfo, ObjectWriter, SharedStore, Store};
use esker_base::{Bytes, Result};
use parking_lot::Mutex;

/// The action between two requests.
pub type Action = Box<dyn FnOnce() + Send>;
/// Returns whether to count a request for this object or prefix.
type Counts = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// A store whose `at`-th counted request runs an action first.
pub struct Interrupted {
    inner: SharedStore,
    requests: AtomicU64,
    at: u64,
    counts: Mutex<Counts>,
    action: Mutex<Option<Action>>,
}

impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupted").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Interrupted {
    pub fn new(inner: SharedStore, at: u64, action: Action) -> Arc<Self> {
        let interrupted = Self::idle(inner, at);
        interrupted.begin(Box::new(|_| true), action);
        interrupted
    }

    /// Like [`Interrupted::new`], but counts nothing yet.
    pub fn idle(inner: SharedStore, at: u64) -> Arc<Self> {
        let (requests, action) = (AtomicU64::new(0), Mutex::new(None));
        Arc::new(Self { inner, requests, at, counts: Mutex::new(Box::new(|_| false)), action })
    }

    /// Starts counting.
    pub fn begin(&self, counts: Counts, action: Action) {
        *self.counts.lock() = counts;
        *self.action.lock() = Some(action);
    }

    fn inner(&self, name: &str) -> &SharedStore {
        if (self.counts.lock())(name) && self.requests.fetch_add(1, Ordering::SeqCst) == self.at {
            let action = self.action.lock().take();
            action.expect("requests are counted once")();
        }
        &self.inner
    }

    pub fn has_happened(&self) -> bool {
        self.action.lock().is_none()
    }
}

impl Store for Interrupted {
    fn url(&self) -> String {
        self.inner.url()
    }
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.inner(name).put_if_absent(name, bytes)
    }
    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        self.inner(name).create(name)
    }
    fn size(&self, name: &str) -> Result<u64> {
        self.inner(name).size(name)
    }
    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        self.inner(name).get(name, bytes_max)
    }
    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.inner(name).get_range(name, range)
    }
    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner(name).get_ranges(name, ranges)
    }
    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        self.inner(name).append_log(name)
    }
    fn sync_log(&self, name: &str) -> Result<()> {
        self.inner(name).sync_log(name)
    }
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.inner(prefix).list(prefix)
    }
    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner(prefix).list_names(prefix)
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.inner(name).delete(name)
    }
}
