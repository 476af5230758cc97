// SPDX-License-Identifier: Apache-2.0
//! A store whose large appends, or syncs of logs, wait while the test holds a gate.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use esker_base::store::{AppendLog, ObjectInfo, ObjectWriter, SharedStore, Store};
use esker_base::{Bytes, Result};
use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
pub struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
}

/// The calls that wait.
#[derive(Clone, Copy, Debug)]
pub struct GatedCalls {
    /// Appends of at least this many bytes.
    pub append_bytes_min: usize,
    /// Syncs of logs.
    pub syncs: bool,
}

#[derive(Debug)]
pub struct GatedStore {
    inner: SharedStore,
    calls: GatedCalls,
    gate: Arc<Gate>,
}

struct GatedLog {
    inner: Box<dyn AppendLog>,
    calls: GatedCalls,
    gate: Arc<Gate>,
}

impl Gate {
    pub fn close(&self) {
        *self.is_closed.lock() = true;
    }

    pub fn open(&self) {
        *self.is_closed.lock() = false;
        self.opened.notify_all();
    }

    /// Number of appends that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    fn pass(&self) {
        let mut is_closed = self.is_closed.lock();
        self.waiting.fetch_add(1, Ordering::AcqRel);
        while *is_closed {
            self.opened.wait(&mut is_closed);
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl GatedStore {
    pub fn over(inner: SharedStore, calls: GatedCalls) -> (SharedStore, Arc<Gate>) {
        let gate = Arc::new(Gate::default());
        (Arc::new(Self { inner, calls, gate: gate.clone() }), gate)
    }
}

impl AppendLog for GatedLog {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        if bytes.len() >= self.calls.append_bytes_min {
            self.gate.pass();
        }
        self.inner.append(bytes)
    }
    fn sync(&self) -> Result<()> {
        if self.calls.syncs {
            self.gate.pass();
        }
        self.inner.sync()
    }
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

impl Store for GatedStore {
    fn url(&self) -> String {
        self.inner.url()
    }
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.inner.put_if_absent(name, bytes)
    }
    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        self.inner.create(name)
    }
    fn size(&self, name: &str) -> Result<u64> {
        self.inner.size(name)
    }
    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        self.inner.get(name, bytes_max)
    }
    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.inner.get_range(name, range)
    }
    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(name, ranges)
    }
    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        let inner = self.inner.append_log(name)?;
        Ok(Box::new(GatedLog { inner, calls: self.calls, gate: self.gate.clone() }))
    }
    fn open_logs_max(&self) -> usize {
        self.inner.open_logs_max()
    }
    fn sync_log(&self, name: &str) -> Result<()> {
        self.inner.sync_log(name)
    }
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.inner.list(prefix)
    }
    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner.list_names(prefix)
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.inner.delete(name)
    }
}
