// SPDX-License-Identifier: Apache-2.0
//! A store that runs an action of the test in the middle of a request, so that another thread or
//! process acts at exactly that point.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::store::{
    AppendLog, InPlaceLog, LocalFiles, ObjectInfo, ObjectWriter, SharedStore, Store,
};
use esker_base::{Bytes, Result};
use parking_lot::Mutex;

/// A request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Put,
    ListNames,
    GetRange,
    SyncLog,
}

/// Time of the action: before the store gets the request, or after it has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

type Action = Box<dyn FnOnce() -> Result<()> + Send>;

struct Hook {
    request: Request,
    part_of_name: String,
    when: When,
    action: Action,
}

/// Runs one action at the first matching request, and forwards all requests.
#[derive(Clone)]
pub struct HookedStore {
    inner: SharedStore,
    hook: Arc<Mutex<Option<Hook>>>,
    /// Bytes of the longest range that was read.
    longest_range: Arc<AtomicU64>,
}

impl HookedStore {
    pub fn new(inner: SharedStore) -> Self {
        Self { inner, hook: Arc::default(), longest_range: Arc::default() }
    }

    /// Runs `action` once, at the next `request` for an object whose name contains `part_of_name`.
    /// If the action fails, so does the request.
    pub fn at(
        &self,
        when: When,
        request: Request,
        part_of_name: &str,
        action: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        let (part_of_name, action) = (part_of_name.to_owned(), Box::new(action));
        *self.hook.lock() = Some(Hook { request, part_of_name, when, action });
    }

    /// True if the action has run.
    pub fn has_acted(&self) -> bool {
        self.hook.lock().is_none()
    }

    /// Returns the length of the longest range that was read alone so far.
    pub fn longest_range(&self) -> u64 {
        self.longest_range.load(Ordering::Relaxed)
    }

    fn run<T>(
        &self,
        request: Request,
        name: &str,
        perform: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let matching =
            |hook: &mut Hook| hook.request == request && name.contains(&hook.part_of_name);
        let hook = self.hook.lock().take_if(matching);
        let Some(Hook { when, action, .. }) = hook else { return perform() };
        if when == When::Before {
            action()?;
            return perform();
        }
        let performed = perform();
        action()?;
        performed
    }
}

impl fmt::Debug for HookedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookedStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

struct HookedLog {
    store: HookedStore,
    name: String,
    inner: Box<dyn AppendLog>,
}

impl AppendLog for HookedLog {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.inner.append(bytes)
    }
    fn sync(&self) -> Result<()> {
        self.store.run(Request::SyncLog, &self.name, || self.inner.sync())
    }
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

impl HookedStore {
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
        let (inner, file) = self.inner_files().create_log(name)?;
        let log = HookedLog { store: self.clone(), name: name.to_owned(), inner };
        Ok((Box::new(log), file))
    }
}

impl Store for HookedStore {
    fn url(&self) -> String {
        self.inner.url()
    }
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.run(Request::Put, name, || self.inner.put_if_absent(name, bytes))
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
        self.longest_range.fetch_max(range.end - range.start, Ordering::Relaxed);
        self.run(Request::GetRange, name, || self.inner.get_range(name, range))
    }
    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.run(Request::GetRange, name, || self.inner.get_ranges(name, ranges))
    }
    fn local_files(&self) -> Option<&dyn LocalFiles> {
        self.inner.local_files().map(|_| self as &dyn LocalFiles)
    }
    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        let inner = self.inner.append_log(name)?;
        Ok(Box::new(HookedLog { store: self.clone(), name: name.to_owned(), inner }))
    }
    fn open_logs_max(&self) -> usize {
        self.inner.open_logs_max()
    }
    fn sync_log(&self, name: &str) -> Result<()> {
        self.run(Request::SyncLog, name, || self.inner.sync_log(name))
    }
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.inner.list(prefix)
    }
    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        self.run(Request::ListNames, prefix, || self.inner.list_names(prefix))
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.inner.delete(name)
    }
}
