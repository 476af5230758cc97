// SPDX-License-Identifier: Apache-2.0
//! Key-value store: keys of a database that a driver opens in this process.
//!
//! ```text
//! rank u32 | dataset u32 | number u64      an object; all numbers big endian, 16 bytes in all
//! esker-workbench-marker                   the marker, under a key that no object has
//!
//! <directory>/esker-workbench-database     an empty file, from before the database to after it
//! ```
//! A database without that file is never opened, since merely opening it may rewrite another
//! program's database.
//!
//! Datasets are prefixes of keys and cost nothing to make. Stores such as LevelDB and RocksDB have
//! get, put, remove and scan; every other operation consists of these, as a program would do it: a
//! create looks the key up and puts it, a stat is a get that copies nothing, a delete looks the key
//! up and removes it, and a rename is a get, a create and a remove, between which a crash leaves
//! both objects. Concurrency: one process at a time has the database open, so ranks are its threads
//! and share one handle. A lock for each key, of [`KEY_LOCKS`], makes creates exclusive within the
//! process.

mod connection;
mod driver;
mod driver_status;
mod target;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use parking_lot::{Mutex, MutexGuard};

use self::connection::KeyValueConnection;
use self::driver::{KeyValueDriver, OpenDatabase};
pub use self::target::{DRIVER_PREFIX, KeyValueDurability, KeyValueTarget};
use super::{Backend, BackendConnection, MARKER_BYTES_MAX, page_cache};
use crate::pattern::{DatasetId, ObjectId, WorkingSetSize};

const MARKER: &[u8] = b"esker-workbench-marker";
/// The file that marks a database as the workbench's.
const OWNER: &str = "esker-workbench-database";
const OBJECT_KEY_BYTES: usize = 16;
const DATASET_PREFIX_BYTES: usize = 8;

const _: () = assert!(MARKER.len() != OBJECT_KEY_BYTES && MARKER.len() <= driver::KEY_BYTES_MAX);

/// Locks of keys. Ranks rarely share one by chance: 64 ranks do so in a thousandth of their calls.
const KEY_LOCKS: usize = 1 << 16;

/// Keys that a cleanup collects before it removes them.
const CLEAR_KEYS: usize = 1 << 14;

/// A database of a key-value store.
#[derive(Debug)]
pub struct KeyValueBackend {
    target: KeyValueTarget,
    driver: KeyValueDriver,
    service: String,
    /// `None` while the database is closed. The lock covers opening and closing.
    database: Mutex<Option<Arc<OpenDatabase>>>,
    /// Each is held while one of its keys is looked up and changed.
    key_locks: Box<[Mutex<()>]>,
}

impl KeyValueBackend {
    /// The working set in the database at `target`; loads the driver. The directory is made when
    /// the run begins.
    ///
    /// # Errors
    /// `Invalid` for a library that is not a driver, or that does not have the target's options;
    /// `NotFound` for an absent library.
    pub fn new(target: KeyValueTarget) -> Result<Self> {
        let driver = KeyValueDriver::load(&target.library)?;
        let service = driver.describe(&target.options, target.durability)?;
        let key_locks = (0..KEY_LOCKS).map(|_| Mutex::new(())).collect();
        Ok(Self { target, driver, service, database: Mutex::new(None), key_locks })
    }

    fn open(&self, is_new: bool) -> Result<Arc<OpenDatabase>> {
        let KeyValueTarget { directory, options, durability, .. } = &self.target;
        self.driver.open(directory, options, *durability, is_new).map(Arc::new)
    }

    /// True if the workbench has made a database in the directory, or begun to.
    fn is_owned(&self) -> bool {
        let owner = self.target.directory.join(OWNER).symlink_metadata();
        owner.is_ok_and(|found| found.is_file())
    }

    /// The open database; `None` if there is none.
    fn existing(&self) -> Result<Option<Arc<OpenDatabase>>> {
        self.existing_in(&mut self.database.lock())
    }

    fn existing_in(
        &self,
        database: &mut Option<Arc<OpenDatabase>>,
    ) -> Result<Option<Arc<OpenDatabase>>> {
        if database.is_none() && self.is_owned() {
            *database = match self.open(false) {
                Ok(opened) => Some(opened),
                Err(error) if error.kind() == Kind::NotFound => None,
                Err(error) => return Err(error),
            };
        }
        Ok(database.clone())
    }

    /// The open database, which is made if there is none.
    fn existing_or_new(&self) -> Result<Arc<OpenDatabase>> {
        let mut database = self.database.lock();
        if let Some(existing) = self.existing_in(&mut database)? {
            return Ok(existing);
        }
        let directory = &self.target.directory;
        if self.is_owned() {
            // A process died while it made the database, or while it removed it.
            self.driver.destroy(directory)?;
        } else {
            make_owned(directory)?;
        }
        let opened = self.open(true)?;
        *database = Some(opened.clone());
        Ok(opened)
    }

    /// Removes the closed database with its directory.
    fn destroy(&self) -> Result<()> {
        let directory = &self.target.directory;
        self.driver.destroy(directory)?;
        let owner = directory.join(OWNER);
        std::fs::remove_file(&owner)
            .map_err(|error| Error::io(error, owner.display().to_string()))?;
        // The directory stays if the user has put something else there, or owns only it.
        let _ = std::fs::remove_dir(directory);
        Ok(())
    }

    /// Closes the database, unless connections have it, and calls `then`.
    fn close(&self, then: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut database = self.database.lock();
        match database.take().map(Arc::try_unwrap) {
            None => Ok(()),
            Some(Ok(open)) => {
                let directory = self.target.directory.display();
                open.close().map_err(|error| error.within(directory))?;
                then()
            }
            Some(Err(shared)) => {
                *database = Some(shared);
                Ok(())
            }
        }
    }

    /// The marker of `database`.
    fn marker_in(&self, database: &OpenDatabase) -> Result<Option<Vec<u8>>> {
        let mut marker = vec![0; MARKER_BYTES_MAX as usize];
        let found = database.get(MARKER, &mut marker);
        let Some(bytes) = found.map_err(|error| error.within(&self.target))? else {
            return Ok(None);
        };
        if bytes > marker.len() {
            let what = format!("{}: the marker's key has something else", self.target);
            return Err(Error::new(Kind::TooLarge, what));
        }
        marker.truncate(bytes);
        Ok(Some(marker))
    }

    /// Fails with `NotEmpty` for a key that is not of a working set.
    fn check_keys(&self, database: &OpenDatabase) -> Result<()> {
        let mut is_foreign = false;
        let scanned = database.scan(&[], &[], &mut |key| {
            is_foreign = key.len() != OBJECT_KEY_BYTES && key != MARKER;
            if is_foreign { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        scanned.map_err(|error| error.within(&self.target))?;
        if is_foreign {
            let what = "the database has keys that are not of a working set, so nothing is removed; \
                        remove them, or use another database";
            return Err(Error::new(Kind::NotEmpty, format!("{}: {what}", self.target)));
        }
        Ok(())
    }

    /// Collects the next keys of objects from `first` on.
    fn object_keys(&self, database: &OpenDatabase, first: u128) -> Result<Vec<u128>> {
        let mut keys: Vec<u128> = Vec::with_capacity(CLEAR_KEYS);
        let scanned = database.scan(&[], &first.to_be_bytes(), &mut |key| {
            if let Ok(key) = key.try_into().map(u128::from_be_bytes) {
                // A driver that goes backwards would let a cleanup run for ever.
                if key >= keys.last().map_or(first, |last| last.saturating_add(1)) {
                    keys.push(key);
                }
            }
            if keys.len() < CLEAR_KEYS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        scanned.map_err(|error| error.within(&self.target))?;
        Ok(keys)
    }

    /// Adds the place to an error of the database.
    fn at(&self, error: Error, object: ObjectId) -> Error {
        error.within(format_args!("{}/{object}", self.target))
    }

    fn absent(&self, object: ObjectId) -> Error {
        Error::new(Kind::NotFound, format!("{}/{object}: no such key", self.target))
    }

    fn exists(&self, object: ObjectId) -> Error {
        Error::new(Kind::Exists, format!("{}/{object}: the key exists", self.target))
    }

    fn key_lock(&self, object: ObjectId) -> &Mutex<()> {
        &self.key_locks[lock_index(object)]
    }

    /// The locks of two keys, in the order that all ranks take them in.
    fn two_key_locks(
        &self,
        a: ObjectId,
        b: ObjectId,
    ) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let (a, b) = (lock_index(a), lock_index(b));
        let first = self.key_locks[a.min(b)].lock();
        (first, (a != b).then(|| self.key_locks[a.max(b)].lock()))
    }
}

/// Makes `directory` unless it is there and empty, and marks it as the workbench's.
fn make_owned(directory: &Path) -> Result<()> {
    let failed = |error| Error::io(error, directory.display().to_string());
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => made.map_err(failed)?,
    }
    if std::fs::read_dir(directory).map_err(failed)?.next().is_some() {
        let what = "has other files; name a new or an empty directory";
        return Err(Error::new(Kind::NotEmpty, format!("{} {what}", directory.display())));
    }
    std::fs::File::create_new(directory.join(OWNER)).map(drop).map_err(failed)
}

fn object_key(object: ObjectId) -> [u8; OBJECT_KEY_BYTES] {
    let mut key = [0; OBJECT_KEY_BYTES];
    key[..DATASET_PREFIX_BYTES].copy_from_slice(&dataset_prefix(object.dataset));
    key[DATASET_PREFIX_BYTES..].copy_from_slice(&object.number.to_be_bytes());
    key
}

fn dataset_prefix(dataset: DatasetId) -> [u8; DATASET_PREFIX_BYTES] {
    let (rank, number) = (u64::from(dataset.rank), u64::from(dataset.number));
    (rank << 32 | number).to_be_bytes()
}

/// Spreads neighbouring objects over all locks.
fn lock_index(object: ObjectId) -> usize {
    let DatasetId { rank, number } = object.dataset;
    let dataset = (u64::from(rank) << 32 | u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (dataset ^ object.number).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> (u64::BITS - KEY_LOCKS.ilog2())) as usize
}

impl Backend for KeyValueBackend {
    fn target(&self) -> String {
        self.target.to_string()
    }

    fn kind(&self) -> &'static str {
        "key-value"
    }

    fn connect(&self, _: u32, size: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        Ok(Box::new(KeyValueConnection::new(self, size.object_bytes as usize)?))
    }

    fn serves_processes(&self) -> bool {
        false
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        match self.existing()? {
            Some(database) => self.marker_in(&database),
            None => Ok(None),
        }
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        let database = self.existing_or_new()?;
        if self.marker_in(&database)?.is_none() {
            let mut is_empty = true;
            let scanned = database.scan(&[], &[], &mut |_| {
                is_empty = false;
                ControlFlow::Break(())
            });
            scanned.map_err(|error| error.within(&self.target))?;
            if !is_empty {
                let what = "the database has other keys; name a new or an empty directory";
                return Err(Error::new(Kind::NotEmpty, format!("{}: {what}", self.target)));
            }
        }
        database.put(MARKER, marker).map_err(|error| error.within(&self.target))
    }

    fn clear(&self) -> Result<u64> {
        let Some(database) = self.existing()? else {
            if self.is_owned() {
                return self.destroy().map(|()| 0);
            }
            let what = "there is no working set of the workbench";
            return Err(Error::new(Kind::NotFound, format!("{}: {what}", self.target)));
        };
        self.check_keys(&database)?;
        let failed = |error: Error| error.within(&self.target);
        let mut objects = 0;
        let mut first = Some(0);
        while let Some(from) = first {
            let keys = self.object_keys(&database, from)?;
            for key in &keys {
                database.remove(&key.to_be_bytes()).map_err(failed)?;
                objects += 1;
            }
            first = keys.last().and_then(|last| last.checked_add(1));
        }
        database.remove(MARKER).map_err(failed)?;
        drop(database);
        self.close(|| self.destroy())?;
        Ok(objects)
    }

    fn finish(&self, _keep: bool) -> Result<()> {
        self.close(|| Ok(()))
    }

    /// Also out of the memory of the database, which is closed.
    fn drop_caches(&self) -> Result<()> {
        self.close(|| Ok(()))?;
        if self.database.lock().is_some() {
            let what = "connections use the database, so it cannot be closed";
            return Err(Error::new(Kind::Conflict, format!("{}: {what}", self.target)));
        }
        // A log may become a table when the database is opened again.
        drop(self.existing()?);
        self.close(|| page_cache::drop_directory(&self.target.directory))
    }

    fn directory(&self) -> Option<&Path> {
        let directory = &self.target.directory;
        if directory.is_dir() {
            return Some(directory);
        }
        // It will be made there.
        let parent = directory.parent()?;
        Some(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
    }

    fn service(&self) -> Result<String> {
        Ok(self.service.clone())
    }
}
