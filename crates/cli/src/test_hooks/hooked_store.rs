// SPDX-License-Identifier: Apache-2.0
//! Hooked store: wraps a store and sends its process a signal at one request, for tests that end a
//! command at each of its requests in turn, or logs its round trips.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use esker_base::store::concurrent::count_round;
use esker_base::store::{
    AppendLog, InPlaceLog, LocalFiles, ObjectInfo, ObjectWriter, SharedStore, Store, identity,
};
use esker_base::{Bytes, Result};
use rustix::process::{Signal, getpid, kill_process};

const SIGNAL: &str = "ESKER_TEST_SIGNAL";
const RUN: &str = "ESKER_TEST_RUN";
const ROUNDS: &str = "ESKER_TEST_ROUNDS";

/// Concurrency of S3.
const REQUESTS_AT_ONCE: usize = 64;

/// How long a request hangs after the signal.
const HANG: Duration = Duration::from_secs(120);

/// Sends the signal.
#[derive(Debug)]
struct SignalTrigger {
    signal: Signal,
    times: u32,
    /// Requests until the signal.
    left: AtomicU64,
}

impl SignalTrigger {
    fn of_environment() -> Option<Self> {
        let text = std::env::var(SIGNAL).ok()?;
        let (signal, request) = text.split_once(':')?;
        let (request, times) = request.split_once(':').unwrap_or((request, "1"));
        let times = times.parse().ok()?;
        let signal = Signal::from_named_raw(signal.parse().ok()?)?;
        Some(Self { signal, times, left: AtomicU64::new(request.parse().ok()?) })
    }

    /// At the chosen request, sends the signal and never returns, like a request that hangs.
    ///
    /// # Panics
    /// If the signal has not ended the process after [`HANG`], as where the parent had it ignored.
    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            for _ in 0..self.times {
                kill_process(getpid(), self.signal).expect("a process may end itself");
            }
            std::thread::sleep(HANG);
            panic!("signal {:?} does not end this process: is it ignored?", self.signal);
        }
    }
}

/// Runs a command in the middle of another.
#[derive(Debug)]
struct Meanwhile {
    /// The name of the object contains this.
    text: String,
    /// Runs before the first request for such an object.
    command: Mutex<Option<String>>,
}

impl Meanwhile {
    fn of_environment() -> Option<Self> {
        let words = std::env::var(RUN).ok()?;
        let (text, command) = words.split_once(':')?;
        Some(Self { text: text.to_owned(), command: Mutex::new(Some(command.to_owned())) })
    }

    fn meet(&self, name: &str) {
        if !name.contains(&self.text) {
            return;
        }
        let command = self.command.lock().expect("no test panics here").take();
        let Some(command) = command else { return };
        let run = Command::new("sh").args(["-c", &command]).env_remove(RUN).status();
        assert!(run.is_ok_and(|status| status.success()), "{command}");
    }
}

#[derive(Debug)]
struct StoreHooks {
    trigger: Option<SignalTrigger>,
    meanwhile: Option<Meanwhile>,
    rounds: Option<File>,
}

impl StoreHooks {
    fn count(&self, request: &str, name: &str) {
        if let Some(meanwhile) = &self.meanwhile {
            meanwhile.meet(name);
        }
        // The check of the store's identity is not a request of the command.
        if let Some(trigger) = self.trigger.as_ref().filter(|_| name != identity::NAME) {
            trigger.count();
        }
        if let Some(mut rounds) = self.rounds.as_ref() {
            let line = format!("{} {request} {name}\n", count_round());
            rounds.write_all(line.as_bytes()).expect("a file of the test");
        }
    }
}

#[derive(Debug)]
struct HookedStore {
    inner: SharedStore,
    hooks: Arc<StoreHooks>,
}

struct HookedLog {
    inner: Box<dyn AppendLog>,
    hooks: Arc<StoreHooks>,
    name: String,
}

struct HookedWriter {
    inner: Box<dyn ObjectWriter>,
    hooks: Arc<StoreHooks>,
    name: String,
}

/// Wraps `store` with the hooks that the environment requests, if any.
pub fn wrap(store: SharedStore) -> SharedStore {
    let rounds = std::env::var_os(ROUNDS).map(|path| {
        OpenOptions::new().create(true).append(true).open(path).expect("a file of the test")
    });
    let trigger = SignalTrigger::of_environment();
    let meanwhile = Meanwhile::of_environment();
    if trigger.is_none() && rounds.is_none() && meanwhile.is_none() {
        return store;
    }
    let hooks = StoreHooks { trigger, meanwhile, rounds };
    Arc::new(HookedStore { inner: store, hooks: Arc::new(hooks) })
}

impl HookedStore {
    fn counted(&self, request: &str, name: &str) -> &SharedStore {
        self.hooks.count(request, name);
        &self.inner
    }

    /// The files of the inner store, which has some: `local_files` returns none otherwise.
    fn inner_files(&self) -> &dyn LocalFiles {
        self.inner.local_files().expect("only a store with files is asked for them")
    }
}

impl LocalFiles for HookedStore {
    fn open(&self, name: &str) -> Result<File> {
        self.inner_files().open(name)
    }
    fn create_log(&self, name: &str) -> Result<InPlaceLog> {
        self.hooks.count("log_in_place", name);
        self.inner_files().create_log(name)
    }
}

impl Store for HookedStore {
    fn url(&self) -> String {
        self.inner.url()
    }
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.counted("put_if_absent", name).put_if_absent(name, bytes)
    }
    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        let inner = self.inner.create(name)?;
        Ok(Box::new(HookedWriter { inner, hooks: self.hooks.clone(), name: name.into() }))
    }
    fn size(&self, name: &str) -> Result<u64> {
        self.counted("size", name).size(name)
    }
    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        self.counted("get", name).get(name, bytes_max)
    }
    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.counted("get_range", name).get_range(name, range)
    }
    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.counted("get_ranges", name).get_ranges(name, ranges)
    }
    fn local_files(&self) -> Option<&dyn LocalFiles> {
        self.inner.local_files().map(|_| self as &dyn LocalFiles)
    }
    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        let inner = self.counted("append_log", name).append_log(name)?;
        Ok(Box::new(HookedLog { inner, hooks: self.hooks.clone(), name: name.into() }))
    }
    fn get_range_within(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.counted("get_range_within", name).get_range_within(name, range)
    }
    fn requests_at_once(&self) -> usize {
        match self.hooks.rounds {
            Some(_) => REQUESTS_AT_ONCE,
            None => self.inner.requests_at_once(),
        }
    }
    fn open_logs_max(&self) -> usize {
        self.inner.open_logs_max()
    }
    fn sync_log(&self, name: &str) -> Result<()> {
        self.counted("sync_log", name).sync_log(name)
    }
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.counted("list", prefix).list(prefix)
    }
    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        self.counted("list_names", prefix).list_names(prefix)
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.counted("delete", name).delete(name)
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
        self.counted("sweep_unfinished", "").sweep_unfinished(before_ns, dry_run)
    }
}

impl AppendLog for HookedLog {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        // On a far store, appends only fill a buffer.
        if self.hooks.rounds.is_none() {
            self.hooks.count("append", &self.name);
        }
        self.inner.append(bytes)
    }
    fn sync(&self) -> Result<()> {
        self.hooks.count("sync", &self.name);
        self.inner.sync()
    }
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

impl ObjectWriter for HookedWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.write(bytes)
    }
    fn finish(self: Box<Self>) -> Result<()> {
        self.hooks.count("finish", &self.name);
        self.inner.finish()
    }
}
