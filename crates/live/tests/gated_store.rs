// SPDX-License-Identifier: Apache-2.0
//! A store whose logs are not synced while the test holds a gate.

use std::ops::Range;
use std::sync::Arc;

use esker_base::store::{AppendLog, ObjectInfo, ObjectWriter, SharedStore, Store};
use esker_base::{Bytes, Result};
use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
pub struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

#[derive(Debug)]
pub struct GatedStore {
    inner: SharedStore,
    gate: Arc<Gate>,
}

struct GatedLog {
    inner: Box<dyn AppendLog>,
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

    fn pass(&self) {
        let mut is_closed = self.is_closed.lock();
        while *is_closed {
            self.opened.wait(&mut is_closed);
        }
    }
}

impl GatedStore {
    pub fn over(inner: SharedStore) -> (SharedStore, Arc<Gate>) {
        let gate = Arc::new(Gate::default());
        (Arc::new(Self { inner, gate: gate.clone() }), gate)
    }
}

impl AppendLog for GatedLog {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.inner.append(bytes)
    }
    fn sync(&self) -> Result<()> {
        self.gate.pass();
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
        Ok(Box::new(GatedLog { inner, gate: self.gate.clone() }))
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
