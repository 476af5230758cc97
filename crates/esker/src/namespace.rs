// SPDX-License-Identifier: Apache-2.0
//! Namespace: a stack of snapshots as one tree of files, for reading.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_base::{Error, Result};
use esker_fs::traversal::export::ExportOptions;
use esker_fs::traversal::tally::{TransferCounts, TransferTally};

use crate::dir::{Dir, bytes};
use crate::entries::DirEntries;
use crate::file::File;
use crate::indexed::IndexedDir;
use crate::metadata::Metadata;
use crate::tree_handle::{SnapshotTree, TreeHandle};

/// A snapshot, or a stack of several, as a tree of files. It never changes.
///
/// Paths may begin with a slash or not. [`Namespace::root`] gives the directory, which has all
/// operations; those here are shortcuts. Clones are cheap and may be used by several threads.
///
/// # Examples
/// ```
/// use esker::Repository;
///
/// let repository = Repository::create("memory:")?;
/// for (name, path) in [("code", "/bin/solver"), ("data", "/input/mesh")] {
///     let session = repository.session().begin()?;
///     session.create_dir_all(path)?;
///     session.publish(name)?;
/// }
/// let both = repository.stack(["code", "data"])?;
/// let mut names: Vec<_> = both.entries("/")?.map(|entry| entry.map(|e| e.name().to_owned()))
///     .collect::<esker::Result<_>>()?;
/// names.sort();
/// assert_eq!(names, ["bin", "input"]);
/// assert_eq!(both.root().create("new").unwrap_err().kind(), esker::Kind::ReadOnly);
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Namespace {
    tree: Arc<SnapshotTree>,
    root: Dir,
}

impl Namespace {
    pub(crate) fn new(tree: Arc<SnapshotTree>) -> Self {
        let root = Dir::root_of(TreeHandle::Snapshot(tree.clone()));
        Self { tree, root }
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> &Dir {
        &self.root
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`Dir::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.root.open(path)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// As [`Dir::open_dir`].
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        self.root.open_dir(path)
    }

    /// Opens an indexed directory for look-ups of keys.
    ///
    /// # Errors
    /// As [`Dir::open_indexed`].
    pub fn open_indexed(&self, path: impl AsRef<Path>, cache_bytes: u64) -> Result<IndexedDir> {
        self.root.open_indexed(path, cache_bytes)
    }

    /// Reads a whole file and verifies its checksum.
    ///
    /// # Errors
    /// As [`Dir::read`].
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.root.read(path)
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// As [`Dir::metadata`].
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.root.metadata(path)
    }

    /// True if `path` leads to a file of any kind.
    ///
    /// # Errors
    /// As [`Dir::exists`].
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        self.root.exists(path)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// As [`Dir::read_link`].
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.root.read_link(path)
    }

    /// Lists a directory.
    ///
    /// # Errors
    /// As [`Dir::open_dir`] and [`Dir::entries`].
    pub fn entries(&self, path: impl AsRef<Path>) -> Result<DirEntries> {
        self.root.open_dir(path)?.entries()
    }

    /// Writes the file or directory at `path`, with everything in it, to `target` in the machine's
    /// own file system. `target` appears once it is complete. Returns counts of the entries
    /// written; entries that could not be read or written count as problems.
    ///
    /// # Errors
    /// As [`Dir::open_dir`] for `path`; `NotEmpty` or `Exists` for `target`; `NoSpace`,
    /// `Unavailable` if either side fails for good.
    pub fn export(
        &self,
        path: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<TransferCounts> {
        let (tally, options) = (TransferTally::default(), ExportOptions::default());
        self.tree.layers.export(bytes(path.as_ref()), target.as_ref(), &options, &tally)?;
        Ok(tally.counts())
    }

    /// Fails if the tree may have been collected while it was open.
    ///
    /// After half a minute a thread puts a marker into the store, which keeps collections from
    /// deleting the tree, and renews it. This method returns the failure of the last renewal. A
    /// reader that may not write to the store has only the collections' grace period, an hour after
    /// the name was deleted.
    ///
    /// # Errors
    /// The store's error; `NotFound` if the tree is gone.
    pub fn check_lease(&self) -> Result<()> {
        match &*self.tree.lease_failure.lock() {
            None => Ok(()),
            Some(failure) => Err(Error::new(failure.kind(), failure.to_string())),
        }
    }
}
