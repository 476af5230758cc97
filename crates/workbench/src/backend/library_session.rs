// SPDX-License-Identifier: Apache-2.0
//! Library session: the session in which a run on Esker's library keeps its working set.
//!
//! A run writes one session. The working set exists for later runs once the session is published
//! under the working set's name; a run that is killed leaves its session to `esker gc`, and the
//! working set as it was.

use std::collections::HashSet;
use std::sync::Arc;

use esker_base::store::SharedStore;
use esker_base::{Clock, Error, Kind, Result};
use esker_fs::names::{IfTaken, PublishedName};
use esker_fs::repository::{CACHE_BYTES, Repository};
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::list::DirCursor;
use esker_table::manifest::Manifest;
use esker_table::object_name::ObjectFolder;
use parking_lot::RwLock;

use super::{MARKER_BYTES_MAX, page_cache};

const MARKER: &[u8] = b"working-set.json";

/// The session of a run.
#[derive(Debug)]
pub(super) struct LibrarySession {
    repository: Repository,
    options: SessionOptions,
    target: String,
    name: String,
    /// The working set's snapshot, if there was one when the run began.
    base: Option<PublishedName>,
    /// `None` once the run has ended.
    session: RwLock<Option<Arc<Session>>>,
}

impl LibrarySession {
    /// Begins a session in `store` on the working set `name`, if there is one. Messages call it
    /// `target`.
    pub(super) fn open(
        store: SharedStore,
        (target, name): (String, &str),
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
        Ok(Self { repository, options, target, name, base, session })
    }

    /// The target as the user names it.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// The repository in whose store the session is.
    pub(super) fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The session, until the run has ended.
    pub(super) fn session(&self) -> Result<Arc<Session>> {
        let closed = || Error::new(Kind::Closed, format!("{}: the run has ended", self.target));
        self.session.read().clone().ok_or_else(closed)
    }

    /// As [`super::Backend::drop_caches`].
    pub(super) fn drop_caches(&self) -> Result<()> {
        let store = &**self.repository.store();
        let (mut next, mut seen) = (vec![self.session()?.set()], HashSet::new());
        next.extend(self.base.iter().map(|base| base.set));
        while let Some(set) = next.pop() {
            if seen.insert(set) {
                page_cache::drop_objects(store, &ObjectFolder::All(set).to_string())?;
                let manifest = Manifest::load(store, set)?;
                next.extend(manifest.bases.iter().chain(&manifest.data_sets));
            }
        }
        Ok(())
    }

    /// As [`super::Backend::read_marker`].
    pub(super) fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        let session = self.session()?;
        match session.namespace().lookup(session.root(), MARKER, true) {
            Ok(inode) => {
                Ok(Some(session.namespace().read(&inode, 0, MARKER_BYTES_MAX as usize)?.to_vec()))
            }
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// As [`super::Backend::write_marker`].
    pub(super) fn write_marker(&self, marker: &[u8]) -> Result<()> {
        let session = self.session()?;
        let root = session.root().clone();
        if self.read_marker()?.is_some() {
            return session.rewrite(&root, MARKER, &mut fill(marker)).map(drop);
        }
        if self.base.is_some() {
            let what = "is a snapshot of something else; use another name";
            return Err(Error::new(Kind::NotEmpty, format!("{} {what}", self.name)));
        }
        session.create_with(&root, MARKER, 0o644, &mut fill(marker)).map(drop)
    }

    /// The session, if it has a working set to remove.
    ///
    /// # Errors
    /// `NotFound` otherwise.
    pub(super) fn to_clear(&self) -> Result<Arc<Session>> {
        let session = self.session()?;
        if self.read_marker()?.is_none() {
            let what = format!("{}: there is no working set of the workbench", self.target);
            return Err(Error::new(Kind::NotFound, what));
        }
        Ok(session)
    }

    /// Removes the marker and the name of a working set once nothing else is left of it.
    pub(super) fn remove_marker(&self) -> Result<()> {
        let session = self.session()?;
        let root = session.root().clone();
        session.unlink(&root, MARKER)?;
        // The name stays if the snapshot has more than a working set.
        if !session.namespace().read_dir(&root, &DirCursor::default(), 1)?.is_empty() {
            let what = "has files that are not of a working set, so the snapshot stays; delete it with \
                        `esker delete` if nobody needs them";
            return Err(Error::new(Kind::NotEmpty, format!("{} {what}", self.name)));
        }
        // A working set that another run has published meanwhile stays.
        let deleted = match &self.base {
            Some(base) => self.repository.delete_if_unchanged(&self.name, base.set),
            None => self.repository.resolve(&self.name).and_then(|published| {
                let what = format!("{} was published meanwhile, and stays", published.name);
                Err(Error::new(Kind::Conflict, what))
            }),
        };
        match deleted {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// As [`super::Backend::finish`].
    pub(super) fn finish(&self, keep: bool) -> Result<()> {
        let Some(session) = self.session.write().take() else { return Ok(()) };
        if keep {
            // A snapshot that others publish under the name during the run stays.
            let if_taken = match self.base {
                Some(_) => IfTaken::ReplaceUnlessMoved,
                None => IfTaken::Refuse,
            };
            let set = session.complete()?;
            return self.repository.publish_replacing(set, &self.name, if_taken).map(drop);
        }
        drop(session);
        self.repository.give_up_own(&self.options).map(drop)
    }
}

/// A source of `bytes` for whole files.
pub(super) fn fill(mut bytes: &[u8]) -> impl FnMut(&mut [u8]) -> Result<usize> {
    move |buffer| {
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        Ok(count)
    }
}
