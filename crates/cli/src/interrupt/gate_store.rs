// SPDX-License-Identifier: Apache-2.0
//! Gate store: a store whose puts stop when a signal ends the process.
//!
//! Sets begin and names change by a put. The thread that abandons the command's sessions closes the
//! gate first: a set not begun by then never begins, and a set begun by then can be listed. Other
//! requests continue.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_base::store::{AppendLog, LocalFiles, ObjectInfo, ObjectWriter, SharedStore, Store};
use esker_base::{Bytes, Result};
use parking_lot::RwLock;

/// How long the gate waits for puts in flight: a store may never answer one, and a busy disk takes
/// seconds.
const PUT_WAIT: Duration = Duration::from_secs(20);

/// Shared by each put in flight, exclusive from the signal on.
static GATE: RwLock<()> = RwLock::new(());
/// True from the signal on, also if a put in flight kept the gate open.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
struct GateStore {
    inner: SharedStore,
}

/// Wraps `inner` with the gate of this process.
pub fn wrap(inner: SharedStore) -> SharedStore {
    Arc::new(GateStore { inner })
}

/// Waits for puts in flight, and lets no other begin.
pub fn close() {
    IS_CLOSED.store(true, Ordering::SeqCst);
    // The gate stays closed: the process ends.
    std::mem::forget(GATE.try_write_for(PUT_WAIT));
}

/// Waits for the end of the process.
fn wait_for_end() -> ! {
    loop {
        std::thread::park();
    }
}

impl Store for GateStore {
    fn url(&self) -> String {
        self.inner.url()
    }
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let open = GATE.read();
        if IS_CLOSED.load(Ordering::SeqCst) {
            drop(open);
            wait_for_end();
        }
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
    fn get_range_within(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.inner.get_range_within(name, range)
    }
    fn requests_at_once(&self) -> usize {
        self.inner.requests_at_once()
    }
    fn local_files(&self) -> Option<&dyn LocalFiles> {
        self.inner.local_files()
    }
    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        self.inner.append_log(name)
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
        self.inner.sweep_unfinished(before_ns, dry_run)
    }
}
