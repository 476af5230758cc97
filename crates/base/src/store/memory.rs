// SPDX-License-Identifier: Apache-2.0
//! Memory store: a map from names to bytes that dies with its process.
//!
//! For tests, for simulations and for namespaces that need not outlive a job.
//! Invariants: (1) an object's bytes never change once it is in the map; (2) a log's bytes only
//! grow. Concurrency: one lock guards the map; each log has its own, taken after the map's.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::{AppendLog, ObjectInfo, ObjectWriter, Store, coalesce, name};
use crate::clock::{Clock, SystemClock};
use crate::{Error, Kind, Result};

/// A store in the memory of this process. "Durable" here means: as long as the process lives.
#[derive(Debug)]
pub struct MemoryStore {
    url: String,
    entries: Arc<ObjectMap>,
}

impl MemoryStore {
    /// Makes an empty store without a URL.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// Makes an empty store without a URL, whose objects are stamped by `clock`.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            url: "memory:(unnamed)".into(),
            entries: Arc::new(ObjectMap { map: RwLock::default(), clock }),
        }
    }

    /// Makes an empty store that reports `url` as its own; see [`super::url`] for the registry.
    pub(super) fn named(url: String) -> Self {
        Self { url, ..Self::new() }
    }

    /// Puts an object as if it had been put at `modified_ns`.
    pub(super) fn insert_stamped(&self, name: &str, bytes: Bytes, modified_ns: u64) -> Result<()> {
        self.entries.insert_at(name, ObjectContent::Object(bytes), modified_ns)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemoryStore {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        name::check(name)?;
        self.entries.insert(name, ObjectContent::Object(Bytes::copy_from_slice(bytes)))
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        name::check(name)?;
        let entries = Arc::clone(&self.entries);
        Ok(Box::new(MemoryWriter { entries, name: name.into(), bytes: Vec::new() }))
    }

    fn size(&self, name: &str) -> Result<u64> {
        self.entries.with(name, ObjectContent::bytes)
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        self.entries.with(name, |content| {
            let bytes = content.bytes();
            if bytes > bytes_max {
                return Err(super::over_limit(name, bytes, bytes_max));
            }
            content.slice(name, &(0..bytes))
        })?
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        coalesce::check_range(name, &range)?;
        self.entries.with(name, |content| content.slice(name, &range))?
    }

    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        name::check(name)?;
        coalesce::read(name, ranges, |runs| {
            runs.into_iter().map(|run| self.get_range(name, run)).collect()
        })
    }

    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        name::check(name)?;
        let grown = Arc::new(GrownLog {
            bytes: Mutex::default(),
            modified_ns: AtomicU64::new(self.entries.clock.now_ns()),
        });
        self.entries.insert(name, ObjectContent::Log(Arc::clone(&grown)))?;
        Ok(Box::new(MemoryLog { grown, clock: Arc::clone(&self.entries.clock) }))
    }

    fn sync_log(&self, name: &str) -> Result<()> {
        self.size(name).map(drop)
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        name::check_prefix(prefix)?;
        let map = self.entries.map.read();
        Ok(below(&map, prefix)
            .map(|(name, entry)| ObjectInfo {
                name: name.clone(),
                bytes: entry.content.bytes(),
                modified_ns: entry.content.modified_ns().unwrap_or(entry.put_ns),
            })
            .collect())
    }

    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        name::check_prefix(prefix)?;
        let map = self.entries.map.read();
        Ok(name::directly_below(prefix, below(&map, prefix).map(|(name, _)| name.as_str())))
    }

    fn delete(&self, name: &str) -> Result<()> {
        name::check(name)?;
        self.entries.map.write().remove(name);
        Ok(())
    }
}

#[derive(Debug)]
struct ObjectMap {
    /// Guards the set of names; log bytes have their own lock.
    map: RwLock<BTreeMap<String, MemoryObject>>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct MemoryObject {
    content: ObjectContent,
    put_ns: u64,
}

#[derive(Debug)]
enum ObjectContent {
    Object(Bytes),
    Log(Arc<GrownLog>),
}

#[derive(Debug)]
struct GrownLog {
    bytes: Mutex<Vec<u8>>,
    modified_ns: AtomicU64,
}

/// Returns the entries whose names start with `prefix`, in order.
fn below<'a>(
    map: &'a BTreeMap<String, MemoryObject>,
    prefix: &str,
) -> impl Iterator<Item = (&'a String, &'a MemoryObject)> {
    map.range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
        .take_while(move |(name, _)| name.starts_with(prefix))
}

impl ObjectMap {
    fn insert(&self, name: &str, content: ObjectContent) -> Result<()> {
        self.insert_at(name, content, self.clock.now_ns())
    }

    fn insert_at(&self, name: &str, content: ObjectContent, put_ns: u64) -> Result<()> {
        let mut map = self.map.write();
        if map.contains_key(name) {
            return Err(super::taken(name));
        }
        map.insert(name.into(), MemoryObject { content, put_ns });
        Ok(())
    }

    fn with<T>(&self, name: &str, read: impl FnOnce(&ObjectContent) -> T) -> Result<T> {
        name::check(name)?;
        self.map.read().get(name).map(|entry| read(&entry.content)).ok_or_else(|| {
            Error::new(Kind::NotFound, format!("{name}: no such object in this store"))
        })
    }
}

impl ObjectContent {
    fn bytes(&self) -> u64 {
        match self {
            Self::Object(bytes) => bytes.len() as u64,
            Self::Log(grown) => grown.bytes.lock().len() as u64,
        }
    }

    fn modified_ns(&self) -> Option<u64> {
        match self {
            Self::Object(_) => None,
            Self::Log(grown) => Some(grown.modified_ns.load(Ordering::Relaxed)),
        }
    }

    fn slice(&self, name: &str, range: &Range<u64>) -> Result<Bytes> {
        let place = |bytes: usize| match (usize::try_from(range.start), usize::try_from(range.end))
        {
            (Ok(start), Ok(end)) if end <= bytes => Ok(start..end),
            _ => Err(coalesce::too_short(name, range, bytes as u64)),
        };
        match self {
            Self::Object(bytes) => Ok(bytes.slice(place(bytes.len())?)),
            Self::Log(grown) => {
                let bytes = grown.bytes.lock();
                Ok(Bytes::copy_from_slice(&bytes[place(bytes.len())?]))
            }
        }
    }
}

struct MemoryWriter {
    entries: Arc<ObjectMap>,
    name: String,
    bytes: Vec<u8>,
}

impl ObjectWriter for MemoryWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { entries, name, bytes } = *self;
        entries.insert(&name, ObjectContent::Object(bytes.into()))
    }
}

struct MemoryLog {
    grown: Arc<GrownLog>,
    clock: Arc<dyn Clock>,
}

impl AppendLog for MemoryLog {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        let mut grown = self.grown.bytes.lock();
        let offset = grown.len() as u64;
        grown.extend_from_slice(bytes);
        self.grown.modified_ns.store(self.clock.now_ns(), Ordering::Relaxed);
        Ok(offset)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.grown.bytes.lock().len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn objects_are_stamped_by_the_clock() {
        let clock = Arc::new(ManualClock::new(10));
        let store = MemoryStore::with_clock(clock.clone());
        store.put_if_absent("a", b"x").expect("put");
        let log = store.append_log("b").expect("log");
        clock.set_now_ns(20);
        log.append(b"y").expect("append");
        let stamps: Vec<u64> =
            store.list("").expect("list").iter().map(|info| info.modified_ns).collect();
        assert_eq!(stamps, [10, 20]);
    }

    #[test]
    fn objects_are_handed_out_without_a_copy() {
        let store = MemoryStore::new();
        store.put_if_absent("a", b"0123").expect("put");
        let whole = store.get("a", 4).expect("get");
        let part = store.get_range("a", 1..3).expect("get");
        assert_eq!(whole[1..].as_ptr(), part.as_ptr());
    }
}
