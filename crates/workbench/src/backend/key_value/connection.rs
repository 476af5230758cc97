// SPDX-License-Identifier: Apache-2.0
//! Connection: one rank's operations on the keys of a key-value store.
//!
//! Exclusive creates, deletes and renames look a key up before they change it, and hold the lock of
//! that key meanwhile, across calls of the store: the store itself has no exclusive put.

use std::ops::ControlFlow;
use std::sync::Arc;

use esker_base::{Error, Kind, Result};

use super::driver::OpenDatabase;
use super::{KeyValueBackend, OBJECT_KEY_BYTES, dataset_prefix, object_key};
use crate::backend::BackendConnection;
use crate::pattern::{DatasetId, ObjectId};

pub struct KeyValueConnection<'a> {
    backend: &'a KeyValueBackend,
    /// `None` while there is no database.
    database: Option<Arc<OpenDatabase>>,
    /// Bytes that a read offers to the driver: the largest object so far.
    object_bytes: usize,
    /// The content of an object that is renamed; reused.
    renamed: Vec<u8>,
}

impl<'a> KeyValueConnection<'a> {
    /// A connection that expects objects of `object_bytes`.
    pub fn new(backend: &'a KeyValueBackend, object_bytes: usize) -> Result<Self> {
        let database = backend.existing()?;
        Ok(Self { backend, database, object_bytes, renamed: Vec::new() })
    }

    /// The database, which is opened now if it was not there yet.
    fn database(&mut self) -> Result<&OpenDatabase> {
        if self.database.is_none() {
            self.database = self.backend.existing()?;
        }
        self.database.as_deref().ok_or_else(|| {
            let what = format!("{}: there is no database", self.backend.target);
            Error::new(Kind::NotFound, what)
        })
    }
}

impl BackendConnection for KeyValueConnection<'_> {
    fn add_rank(&mut self, _: u32) -> Result<()> {
        self.database().map(drop)
    }

    fn mkdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn rmdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        let (backend, key) = (self.backend, object_key(object));
        let database = self.database()?;
        let _lock = backend.key_lock(object).lock();
        match database.get(&key, &mut []) {
            Ok(None) => database.put(&key, content).map_err(|error| backend.at(error, object)),
            Ok(Some(_)) => Err(backend.exists(object)),
            Err(error) => Err(backend.at(error, object)),
        }
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        let backend = self.backend;
        match self.database()?.get(&object_key(object), &mut []) {
            Ok(Some(bytes)) => Ok(bytes as u64),
            Ok(None) => Err(backend.absent(object)),
            Err(error) => Err(backend.at(error, object)),
        }
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        let (backend, expected) = (self.backend, self.object_bytes);
        match read_whole(self.database()?, object, content, expected) {
            Ok(true) => {
                self.object_bytes = expected.max(content.len());
                Ok(())
            }
            Ok(false) => Err(backend.absent(object)),
            Err(error) => Err(backend.at(error, object)),
        }
    }

    fn delete(&mut self, object: ObjectId) -> Result<()> {
        let (backend, key) = (self.backend, object_key(object));
        let database = self.database()?;
        let _lock = backend.key_lock(object).lock();
        match database.get(&key, &mut []) {
            Ok(Some(_)) => database.remove(&key).map_err(|error| backend.at(error, object)),
            Ok(None) => Err(backend.absent(object)),
            Err(error) => Err(backend.at(error, object)),
        }
    }

    /// The length of a value comes with its key, so attributes cost nothing more.
    fn list(&mut self, dataset: DatasetId, _with_attributes: bool) -> Result<u64> {
        let (backend, prefix) = (self.backend, dataset_prefix(dataset));
        let mut objects = 0;
        let counted = self.database()?.scan(&prefix, &[], &mut |key| {
            objects += u64::from(key.len() == OBJECT_KEY_BYTES && key.starts_with(&prefix));
            ControlFlow::Continue(())
        });
        let target = &backend.target;
        counted.map_err(|error| error.within(format_args!("{target}/{dataset}")))?;
        Ok(objects)
    }

    fn rename(&mut self, old: ObjectId, new: ObjectId) -> Result<()> {
        let (backend, expected) = (self.backend, self.object_bytes);
        let mut content = std::mem::take(&mut self.renamed);
        let database = self.database()?;
        let _locks = backend.two_key_locks(old, new);
        let found = read_whole(database, old, &mut content, expected);
        if !found.map_err(|error| backend.at(error, old))? {
            return Err(backend.absent(old));
        }
        let key = object_key(new);
        if database.get(&key, &mut []).map_err(|error| backend.at(error, new))?.is_some() {
            return Err(backend.exists(new));
        }
        database.put(&key, &content).map_err(|error| backend.at(error, new))?;
        let removed = database.remove(&object_key(old));
        removed.map_err(|error| backend.at(error, old))?;
        self.renamed = content;
        Ok(())
    }
}

/// Reads an object over `content`; false if it is absent. Offers `expected` bytes to the driver, so
/// that a value of that size takes one call.
fn read_whole(
    database: &OpenDatabase,
    object: ObjectId,
    content: &mut Vec<u8>,
    expected: usize,
) -> Result<bool> {
    let key = object_key(object);
    content.resize(expected, 0);
    let Some(bytes) = database.get(&key, content)? else { return Ok(false) };
    if bytes > content.len() {
        content.resize(bytes, 0);
        // Another rank may have replaced the object meanwhile, but all have one size.
        match database.get(&key, content)? {
            Some(again) if again == bytes => {}
            Some(again) => {
                let what = format!("had {bytes} bytes and then {again}");
                return Err(Error::new(Kind::Corrupt, what));
            }
            None => return Ok(false),
        }
    }
    content.truncate(bytes);
    Ok(true)
}
