// SPDX-License-Identifier: Apache-2.0
//! Object store: objects of a bucket on S3, or of a directory or memory behind the same interface.
//!
//! ```text
//! workbench/marker/<n>                          the marker; the highest number counts
//! workbench/rank-<n>/set-<d>/object-<p>         an object
//! ```
//! Datasets are prefixes and cost nothing to make. An object is put only if it is absent. There is
//! no rename: it is a get, a put and a delete, as a program would do it.
//! Concurrency: connections share the store.

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};

use super::{Backend, BackendConnection, MARKER_BYTES_MAX, is_numbered, page_cache};
use crate::pattern::{DatasetId, OBJECT_BYTES_MAX, ObjectId, WorkingSetSize};

const PREFIX: &str = "workbench/";
const MARKERS: &str = "workbench/marker/";
/// Greatest number of a marker; no working set has had as many.
const MARKER_NUMBER_MAX: u64 = 1 << 60;

/// Objects of a store.
#[derive(Debug)]
pub struct ObjectStoreBackend {
    store: SharedStore,
}

impl ObjectStoreBackend {
    /// The working set in `store`.
    #[must_use]
    pub fn new(store: SharedStore) -> Self {
        Self { store }
    }

    /// The numbers of all markers, ascending.
    fn markers(&self) -> Result<Vec<u64>> {
        let names = self.store.list_names(MARKERS)?;
        let number = |name: &String| {
            let number: u64 = name.parse().ok()?;
            (number <= MARKER_NUMBER_MAX && number.to_string() == *name).then_some(number)
        };
        let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

fn marker_name(number: u64) -> String {
    format!("{MARKERS}{number}")
}

impl Backend for ObjectStoreBackend {
    fn target(&self) -> String {
        format!("store:{}", self.store.url())
    }

    fn kind(&self) -> &'static str {
        "store"
    }

    fn connect(&self, _: u32, _: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        Ok(Box::new(ObjectStoreConnection { store: &self.store }))
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        let Some(number) = self.markers()?.last().copied() else { return Ok(None) };
        self.store.get(&marker_name(number), MARKER_BYTES_MAX).map(|bytes| Some(bytes.to_vec()))
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        let old = self.markers()?;
        if old.is_empty() && !self.store.list_names(PREFIX)?.is_empty() {
            let what = format!("{PREFIX} is taken by other objects; use another bucket or prefix");
            return Err(Error::new(Kind::NotEmpty, format!("{}: {what}", self.target())));
        }
        let next = old.last().map_or(0, |last| last + 1);
        self.store.put_if_absent(&marker_name(next), marker)?;
        old.into_iter().try_for_each(|number| self.store.delete(&marker_name(number)))
    }

    fn drop_caches(&self) -> Result<()> {
        page_cache::drop_objects(&*self.store, PREFIX)
    }

    fn clear(&self) -> Result<u64> {
        let markers = self.markers()?;
        if markers.is_empty() {
            let what = format!("{}: there is no working set of the workbench", self.target());
            return Err(Error::new(Kind::NotFound, what));
        }
        let mut objects = 0;
        let names = self.store.list_names(PREFIX)?;
        for rank in names.iter().filter(|name| is_numbered(name.as_bytes(), "rank-")) {
            for object in self.store.list(&format!("{PREFIX}{rank}/"))? {
                if is_object(&object.name) {
                    self.store.delete(&object.name)?;
                    objects += 1;
                }
            }
        }
        markers.into_iter().try_for_each(|number| self.store.delete(&marker_name(number)))?;
        Ok(objects)
    }
}

struct ObjectStoreConnection<'a> {
    store: &'a SharedStore,
}

/// True for the name of an object of a working set.
fn is_object(name: &str) -> bool {
    let parts: Vec<&str> = name.strip_prefix(PREFIX).unwrap_or_default().split('/').collect();
    let prefixes = ["rank-", "set-", "object-"];
    let mut pairs = parts.iter().zip(prefixes);
    parts.len() == prefixes.len()
        && pairs.all(|(part, prefix)| is_numbered(part.as_bytes(), prefix))
}

fn name_of(object: ObjectId) -> String {
    format!("{PREFIX}{object}")
}

impl BackendConnection for ObjectStoreConnection<'_> {
    fn mkdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn rmdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        self.store.put_if_absent(&name_of(object), content)
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        self.store.size(&name_of(object))
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        let bytes = self.store.get(&name_of(object), OBJECT_BYTES_MAX)?;
        content.clear();
        content.extend_from_slice(&bytes);
        Ok(())
    }

    fn delete(&mut self, object: ObjectId) -> Result<()> {
        self.store.delete(&name_of(object))
    }

    fn list(&mut self, dataset: DatasetId, with_attributes: bool) -> Result<u64> {
        let prefix = format!("{PREFIX}{dataset}/");
        let count = match with_attributes {
            true => self.store.list(&prefix)?.len(),
            false => self.store.list_names(&prefix)?.len(),
        };
        Ok(count as u64)
    }

    fn rename(&mut self, old: ObjectId, new: ObjectId) -> Result<()> {
        let bytes = self.store.get(&name_of(old), OBJECT_BYTES_MAX)?;
        self.store.put_if_absent(&name_of(new), &bytes)?;
        self.store.delete(&name_of(old))
    }
}
