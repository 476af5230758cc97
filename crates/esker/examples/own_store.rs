// SPDX-License-Identifier: Apache-2.0
//! A store of one's own: a repository needs put-if-absent, logs that grow, and listings.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use esker::backend::{
    AppendLog, ObjectInfo, ObjectStore, ObjectWriter, SystemClock, conformance, name,
};
use esker::{Bytes, Clock, Error, Kind, Repository, Result, Store};

/// Objects and logs by name, with their bytes and the time of the last change.
type Shelf = Arc<Mutex<BTreeMap<String, (Vec<u8>, u64)>>>;

#[derive(Clone, Debug, Default)]
struct MapStore(Shelf);

/// An object or a log that is being written.
struct MapWriter(MapStore, String, Vec<u8>);

impl MapStore {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (Vec<u8>, u64)>> {
        self.0.lock().expect("no call panics while it holds the lock")
    }

    fn with<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        name::check(name)?;
        let absent = || Error::new(Kind::NotFound, format!("{name}: no such object"));
        self.lock().get(name).ok_or_else(absent).and_then(|(bytes, _)| read(bytes))
    }
}

impl ObjectStore for MapStore {
    fn url(&self) -> String {
        "map:".into()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        name::check(name)?;
        let mut objects = self.lock();
        if objects.contains_key(name) {
            return Err(Error::new(Kind::Exists, format!("{name}: the name is taken")));
        }
        objects.insert(name.into(), (bytes.to_vec(), SystemClock.now_ns()));
        Ok(())
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        name::check(name)?;
        Ok(Box::new(MapWriter(self.clone(), name.into(), Vec::new())))
    }

    fn size(&self, name: &str) -> Result<u64> {
        self.with(name, |bytes| Ok(bytes.len() as u64))
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        self.with(name, |bytes| match bytes.len() as u64 > bytes_max {
            true => Err(Error::new(Kind::TooLarge, format!("{name}: over {bytes_max} bytes"))),
            false => Ok(Bytes::copy_from_slice(bytes)),
        })
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        if range.start > range.end {
            return Err(Error::new(Kind::Invalid, format!("{name}: a range that ends too early")));
        }
        self.with(name, |bytes| match bytes.get(range.start as usize..range.end as usize) {
            Some(bytes) => Ok(Bytes::copy_from_slice(bytes)),
            None => Err(Error::corrupt(name, range.start, "it ends before the range does")),
        })
    }

    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        name::check(name)?;
        ranges.iter().map(|range| self.get_range(name, range.clone())).collect()
    }

    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        self.put_if_absent(name, &[])?;
        Ok(Box::new(MapWriter(self.clone(), name.into(), Vec::new())))
    }

    fn sync_log(&self, name: &str) -> Result<()> {
        self.size(name).map(drop)
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        name::check_prefix(prefix)?;
        let (objects, mut listed) = (self.lock(), Vec::new());
        for (name, (bytes, modified_ns)) in objects.iter().filter(|(n, _)| n.starts_with(prefix)) {
            let (name, bytes) = (name.clone(), bytes.len() as u64);
            listed.push(ObjectInfo { name, bytes, modified_ns: *modified_ns });
        }
        Ok(listed)
    }

    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        let first =
            |info: ObjectInfo| info.name[prefix.len()..].split('/').next().map(str::to_owned);
        let mut names: Vec<String> = self.list(prefix)?.into_iter().filter_map(first).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn delete(&self, name: &str) -> Result<()> {
        name::check(name)?;
        self.lock().remove(name);
        Ok(())
    }
}

impl ObjectWriter for MapWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.2.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.0.put_if_absent(&self.1, &self.2)
    }
}

impl AppendLog for MapWriter {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        let deleted = || Error::new(Kind::Closed, format!("{}: the log was deleted", self.1));
        let mut objects = self.0.lock();
        let (log, modified_ns) = objects.get_mut(&self.1).ok_or_else(deleted)?;
        let start = log.len() as u64;
        log.extend_from_slice(bytes);
        *modified_ns = SystemClock.now_ns();
        Ok(start)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.0.size(&self.1).unwrap_or(0)
    }
}

pub(crate) fn main() -> Result<()> {
    let store = Store::of_backend(MapStore::default());
    conformance::all(store.objects());
    println!("the store passes the conformance suite");

    let repository = Repository::open_in(store);
    let session = repository.session().begin()?;
    session.write("/greeting", "kept in a map")?;
    session.publish("first")?;
    for object in repository.store().objects().list("set/")? {
        println!("{:>6} bytes  {}", object.bytes, object.name);
    }
    assert_eq!(repository.snapshot("first")?.read("/greeting")?, b"kept in a map");
    Ok(())
}
