// SPDX-License-Identifier: Apache-2.0
//! Library: Esker's own file system, called in this process without a kernel.
//!
//! Concurrency: ranks share the session; each has open directories of its own.

use std::collections::HashMap;
use std::sync::Arc;

use esker_base::store::SharedStore;
use esker_base::{Clock, Kind, Result};
use esker_fs::ops::RenameFlags;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::dir::Dir;
use esker_fs::stack::list::{DirCursor, DirEntry};

use super::library_session::{LibrarySession, fill};
use super::{Backend, BackendConnection, is_numbered};
use crate::pattern::{DatasetId, ObjectId, WorkingSetSize};

/// Entries of one page of a listing.
const PAGE_ENTRIES: usize = 1_024;

/// A session of a store of Esker.
#[derive(Debug)]
pub struct LibraryBackend {
    working_set: LibrarySession,
}

impl LibraryBackend {
    /// Begins a session in `store` on the working set `name`, if there is one.
    ///
    /// # Errors
    /// As the store answers; `Invalid` for a bad name.
    pub fn open(
        store: SharedStore,
        name: &str,
        options: SessionOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let named = (format!("esker:{name}"), name);
        Ok(Self { working_set: LibrarySession::open(store, named, options, clock)? })
    }
}

impl Backend for LibraryBackend {
    fn target(&self) -> String {
        self.working_set.target().to_owned()
    }

    fn kind(&self) -> &'static str {
        "library"
    }

    fn connect(&self, _: u32, _: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        Ok(Box::new(LibraryConnection {
            session: self.working_set.session()?,
            datasets: HashMap::new(),
        }))
    }

    fn serves_processes(&self) -> bool {
        false
    }

    fn drop_caches(&self) -> Result<()> {
        self.working_set.drop_caches()
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        self.working_set.read_marker()
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        self.working_set.write_marker(marker)
    }

    fn clear(&self) -> Result<u64> {
        let session = self.working_set.to_clear()?;
        let mut objects = 0;
        let root = session.root().clone();
        for rank in numbered(&session, &root, "rank-")? {
            let sets = session.namespace().open_dir(&root, &rank.name, &rank.inode)?;
            for set in numbered(&session, &sets, "set-")? {
                let inside = session.namespace().open_dir(&sets, &set.name, &set.inode)?;
                for object in numbered(&session, &inside, "object-")? {
                    session.unlink(&inside, &object.name)?;
                    objects += 1;
                }
                session.rmdir(&sets, &set.name)?;
            }
            session.rmdir(&root, &rank.name)?;
        }
        self.working_set.remove_marker()?;
        Ok(objects)
    }

    fn finish(&self, keep: bool) -> Result<()> {
        self.working_set.finish(keep)
    }
}

/// The entries of `dir` that are named by `prefix` and a number.
fn numbered(session: &Session, dir: &Dir, prefix: &str) -> Result<Vec<DirEntry>> {
    let mut entries = session.namespace().read_dir(dir, &DirCursor::default(), usize::MAX)?;
    entries.retain(|entry| is_numbered(&entry.name, prefix));
    Ok(entries)
}

/// Number of entries of `dir`.
fn count(session: &Session, dir: &Dir) -> Result<u64> {
    let mut entries = 0;
    session.namespace().list(dir, &DirCursor::default(), &mut |_| {
        entries += 1;
        Ok(std::ops::ControlFlow::Continue(()))
    })?;
    Ok(entries)
}

struct LibraryConnection {
    session: Arc<Session>,
    /// Open directories, as a program that works in them would keep.
    datasets: HashMap<DatasetId, Dir>,
}

impl LibraryConnection {
    fn dataset(&mut self, dataset: DatasetId) -> Result<Dir> {
        if let Some(dir) = self.datasets.get(&dataset) {
            return Ok(dir.clone());
        }
        let dir = self.session.namespace().dir(format!("/{dataset}"))?;
        self.datasets.insert(dataset, dir.clone());
        Ok(dir)
    }
}

/// The name of an object within its dataset.
fn name_of(object: ObjectId) -> String {
    format!("object-{}", object.number)
}

impl BackendConnection for LibraryConnection {
    fn add_rank(&mut self, rank: u32) -> Result<()> {
        let root = self.session.root().clone();
        match self.session.mkdir(&root, format!("rank-{rank}").as_bytes(), 0o755) {
            Err(error) if error.kind() != Kind::Exists => Err(error),
            _ => Ok(()),
        }
    }

    fn remove_rank(&mut self, rank: u32) -> Result<()> {
        let root = self.session.root().clone();
        self.session.rmdir(&root, format!("rank-{rank}").as_bytes()).map(drop)
    }

    fn mkdir(&mut self, dataset: DatasetId) -> Result<()> {
        let rank = self.session.namespace().dir(format!("/rank-{}", dataset.rank))?;
        let name = format!("set-{}", dataset.number);
        let dir = self.session.mkdir(&rank, name.as_bytes(), 0o755)?;
        self.datasets.insert(dataset, dir);
        Ok(())
    }

    fn rmdir(&mut self, dataset: DatasetId) -> Result<()> {
        self.datasets.remove(&dataset);
        let rank = self.session.namespace().dir(format!("/rank-{}", dataset.rank))?;
        self.session.rmdir(&rank, format!("set-{}", dataset.number).as_bytes()).map(drop)
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        let (dir, name) = (self.dataset(object.dataset)?, name_of(object));
        self.session.create_with(&dir, name.as_bytes(), 0o644, &mut fill(content)).map(drop)
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        let (dir, name) = (self.dataset(object.dataset)?, name_of(object));
        self.session.namespace().lookup(&dir, name.as_bytes(), false).map(|inode| inode.size)
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        let (dir, name) = (self.dataset(object.dataset)?, name_of(object));
        let inode = self.session.namespace().lookup(&dir, name.as_bytes(), true)?;
        content.clear();
        self.session.namespace().read_all(&inode, &mut |piece| {
            content.extend_from_slice(piece);
            Ok(())
        })
    }

    fn delete(&mut self, object: ObjectId) -> Result<()> {
        let (dir, name) = (self.dataset(object.dataset)?, name_of(object));
        self.session.unlink(&dir, name.as_bytes()).map(drop)
    }

    fn list(&mut self, dataset: DatasetId, with_attributes: bool) -> Result<u64> {
        let dir = self.dataset(dataset)?;
        if !with_attributes {
            return count(&self.session, &dir);
        }
        let (mut entries, mut cursor) = (0, DirCursor::default());
        loop {
            let page = self.session.namespace().read_dir(&dir, &cursor, PAGE_ENTRIES)?;
            entries += page.len() as u64;
            match page.last() {
                Some(last) if page.len() == PAGE_ENTRIES => cursor = DirCursor::after(&last.name),
                _ => return Ok(entries),
            }
        }
    }

    fn rename(&mut self, old: ObjectId, new: ObjectId) -> Result<()> {
        let (from, to) = (self.dataset(old.dataset)?, self.dataset(new.dataset)?);
        let (old, new) = (name_of(old), name_of(new));
        let flags = RenameFlags::NoReplace;
        self.session.rename((&from, old.as_bytes()), (&to, new.as_bytes()), flags).map(drop)
    }
}
