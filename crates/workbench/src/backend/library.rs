// SPDX-License-Identifier: Apache-2.0
//! Library: Esker's own file system, called in this process without a kernel.
//!
//! A run writes one session. The working set exists for later runs once the session is published
//! under the working set's name; a run that is killed leaves its session to `esker gc`, and the
//! working set as it was.
//! Concurrency: ranks share the session; each has open directories of its own.

use std::collections::HashMap;
use std::sync::Arc;

use esker_base::store::SharedStore;
use esker_base::{Clock, Error, Kind, Result};
use esker_fs::dir::Dir;
use esker_fs::list::{DirCursor, DirEntry};
use esker_fs::names::{IfTaken, PublishedName};
use esker_fs::ops::RenameFlags;
use esker_fs::repository::{CACHE_BYTES, Repository};
use esker_fs::session::{Session, SessionOptions};
use parking_lot::RwLock;

use super::{Backend, BackendConnection, MARKER_BYTES_MAX, is_numbered};
use crate::pattern::{DatasetId, ObjectId, WorkingSetSize};

const MARKER: &[u8] = b"working-set.json";

/// Entries of one page of a listing.
const PAGE_ENTRIES: usize = 1_024;

/// A session of a store of Esker.
#[derive(Debug)]
pub struct LibraryBackend {
    repository: Repository,
    options: SessionOptions,
    name: String,
    /// The working set's snapshot, if there was one when the run began.
    base: Option<PublishedName>,
    /// `None` once the run has ended.
    session: RwLock<Option<Arc<Session>>>,
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
        let repository = Repository::with(store, CACHE_BYTES, clock);
        let options = options.private();
        let base = match repository.resolve(name) {
            Ok(published) => Some(published),
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(error),
        };
        let bases: Vec<_> = base.iter().map(|published| published.set).collect();
        let session = Some(Arc::new(repository.begin(&bases, options.clone())?));
        let (name, session) = (name.to_owned(), RwLock::new(session));
        Ok(Self { repository, options, name, base, session })
    }

    fn session(&self) -> Result<Arc<Session>> {
        let closed = || Error::new(Kind::Closed, format!("{}: the run has ended", self.target()));
        self.session.read().clone().ok_or_else(closed)
    }
}

impl Backend for LibraryBackend {
    fn target(&self) -> String {
        format!("esker:{}", self.name)
    }

    fn kind(&self) -> &'static str {
        "library"
    }

    fn connect(&self, _: u32, _: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        Ok(Box::new(LibraryConnection { session: self.session()?, datasets: HashMap::new() }))
    }

    fn serves_processes(&self) -> bool {
        false
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        let session = self.session()?;
        match session.lookup(session.root(), MARKER, true) {
            Ok(inode) => Ok(Some(session.read(&inode, 0, MARKER_BYTES_MAX as usize)?.to_vec())),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        let session = self.session()?;
        let root = session.root().clone();
        if self.read_marker()?.is_some() {
            return session.rewrite(&root, MARKER, &mut fill(marker)).map(drop);
        }
        if !session.read_dir(&root, &DirCursor::default(), 1)?.is_empty() {
            let what = "is a snapshot of something else; use another name";
            return Err(Error::new(Kind::NotEmpty, format!("{} {what}", self.name)));
        }
        session.create_with(&root, MARKER, 0o644, &mut fill(marker)).map(drop)
    }

    fn clear(&self) -> Result<u64> {
        let session = self.session()?;
        if self.read_marker()?.is_none() {
            let what = format!("{}: there is no working set of the workbench", self.target());
            return Err(Error::new(Kind::NotFound, what));
        }
        let mut objects = 0;
        let root = session.root().clone();
        for rank in numbered(&session, &root, "rank-")? {
            let sets = session.open_dir(&root, &rank.name, &rank.inode)?;
            for set in numbered(&session, &sets, "set-")? {
                let inside = session.open_dir(&sets, &set.name, &set.inode)?;
                for object in numbered(&session, &inside, "object-")? {
                    session.unlink(&inside, &object.name)?;
                    objects += 1;
                }
                session.rmdir(&sets, &set.name)?;
            }
            session.rmdir(&root, &rank.name)?;
        }
        session.unlink(&root, MARKER)?;
        // The name stays if the snapshot has more than a working set.
        if !session.read_dir(&root, &DirCursor::default(), 1)?.is_empty() {
            let what = "has files that are not of a working set, so the snapshot stays; delete it with \
                        `esker delete` if nobody needs them";
            return Err(Error::new(Kind::NotEmpty, format!("{} {what}", self.name)));
        }
        // A working set that was published anew meanwhile stays.
        let deleted = match &self.base {
            Some(base) => self.repository.delete_if_unchanged(&self.name, base.set),
            None => self.repository.resolve(&self.name).and_then(|published| {
                let what = format!("{} was published meanwhile, and stays", published.name);
                Err(Error::new(Kind::Conflict, what))
            }),
        };
        match deleted {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(objects),
        }
    }

    fn finish(&self, keep: bool) -> Result<()> {
        let Some(session) = self.session.write().take() else { return Ok(()) };
        if keep {
            let set = session.complete()?;
            return self
                .repository
                .publish_replacing(set, &self.name, IfTaken::ReplaceUnlessMoved)
                .map(drop);
        }
        drop(session);
        self.repository.give_up_own(&self.options).map(drop)
    }
}

/// A source of `bytes` for whole files.
fn fill(mut bytes: &[u8]) -> impl FnMut(&mut [u8]) -> Result<usize> {
    move |buffer| {
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        Ok(count)
    }
}

/// The entries of `dir` that are named by `prefix` and a number.
fn numbered(session: &Session, dir: &Dir, prefix: &str) -> Result<Vec<DirEntry>> {
    let mut entries = session.read_dir(dir, &DirCursor::default(), usize::MAX)?;
    entries.retain(|entry| is_numbered(&entry.name, prefix));
    Ok(entries)
}

/// Number of entries of `dir`.
fn count(session: &Session, dir: &Dir) -> Result<u64> {
    let mut entries = 0;
    session.list(dir, &DirCursor::default(), &mut |_| {
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
        let dir = self.session.dir(format!("/{dataset}"))?;
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
        let rank = self.session.dir(format!("/rank-{}", dataset.rank))?;
        let name = format!("set-{}", dataset.number);
        let dir = self.session.mkdir(&rank, name.as_bytes(), 0o755)?;
        self.datasets.insert(dataset, dir);
        Ok(())
    }

    fn rmdir(&mut self, dataset: DatasetId) -> Result<()> {
        self.datasets.remove(&dataset);
        let rank = self.session.dir(format!("/rank-{}", dataset.rank))?;
        self.session.rmdir(&rank, format!("set-{}", dataset.number).as_bytes()).map(drop)
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        let (dir, name) = (self.dataset(object.dataset)?, name_of(object));
        self.session.create_with(&dir, name.as_bytes(), 0o644, &mut fill(content)).map(drop)
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        let (dir, name) = (self.dataset(object.dataset)?, name_of(object));
        self.session.lookup(&dir, name.as_bytes(), false).map(|inode| inode.size)
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        let (dir, name) = (self.dataset(object.dataset)?, name_of(object));
        let inode = self.session.lookup(&dir, name.as_bytes(), true)?;
        content.clear();
        self.session.read_all(&inode, &mut |piece| {
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
            let page = self.session.read_dir(&dir, &cursor, PAGE_ENTRIES)?;
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
