//! Signal store: another store that sends its process a signal at one request; for tests, which end
//! a command at each of its requests in turn.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::store::{AppendLog, LogInPlace, ObjectInfo, ObjectWriter, SharedStore, Store};
use esker_base::{Bytes, Result};
use rustix::process::{Signal, getpid, kill_process};

/// `SIGNAL:N`, by the signal's number: it is sent in place of request N, counted from 1.
const VARIABLE: &str = "ESKER_TEST_SIGNAL";

/// What sends the signal.
#[derive(Debug)]
struct Trigger {
    signal: Signal,
    /// Requests until then.
    left: AtomicU64,
}

impl Trigger {
    fn of_environment() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let (signal, request) = text.split_once(':')?;
        let signal = Signal::from_named_raw(signal.parse().ok()?)?;
        Some(Self { signal, left: AtomicU64::new(request.parse().ok()?) })
    }

    /// At the request in question, sends the signal and never returns, as a request that hangs.
    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            kill_process(getpid(), self.signal).expect("a process may end itself");
            loop {
                std::thread::park();
            }
        }
    }
}

#[derive(Debug)]
struct SignalStore {
    inner: SharedStore,
    trigger: Arc<Trigger>,
}

struct SignalLog {
    inner: Box<dyn AppendLog>,
    trigger: Arc<Trigger>,
}

struct SignalWriter {
    inner: Box<dyn ObjectWriter>,
    trigger: Arc<Trigger>,
}

/// `store`, with the signal that the environment asks for, if it does.
pub fn wrap(store: SharedStore) -> SharedStore {
    match Trigger::of_environment() {
        Some(trigger) => Arc::new(SignalStore { inner: store, trigger: Arc::new(trigger) }),
        None => store,
    }
}

impl SignalStore {
    fn counted(&self) -> &SharedStore {
        self.trigger.count();
        &self.inner
    }
}

impl Store for SignalStore {
    fn url(&self) -> String {
        self.inner.url()
    }
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.counted().put_if_absent(name, bytes)
    }
    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        let inner = self.inner.create(name)?;
        Ok(Box::new(SignalWriter { inner, trigger: self.trigger.clone() }))
    }
    fn size(&self, name: &str) -> Result<u64> {
        self.counted().size(name)
    }
    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        self.counted().get(name, bytes_max)
    }
    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.counted().get_range(name, range)
    }
    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.counted().get_ranges(name, ranges)
    }
    fn file(&self, name: &str) -> Result<Option<File>> {
        self.inner.file(name)
    }
    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        let inner = self.counted().append_log(name)?;
        Ok(Box::new(SignalLog { inner, trigger: self.trigger.clone() }))
    }
    fn log_in_place(&self, name: &str) -> Result<Option<LogInPlace>> {
        self.counted().log_in_place(name)
    }
    fn open_logs_max(&self) -> usize {
        self.inner.open_logs_max()
    }
    fn sync_log(&self, name: &str) -> Result<()> {
        self.counted().sync_log(name)
    }
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.counted().list(prefix)
    }
    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        self.counted().list_names(prefix)
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.counted().delete(name)
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
        self.counted().sweep_unfinished(before_ns, dry_run)
    }
}

impl AppendLog for SignalLog {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.trigger.count();
        self.inner.append(bytes)
    }
    fn sync(&self) -> Result<()> {
        self.trigger.count();
        self.inner.sync()
    }
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

impl ObjectWriter for SignalWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.write(bytes)
    }
    fn finish(self: Box<Self>) -> Result<()> {
        self.trigger.count();
        self.inner.finish()
    }
}
