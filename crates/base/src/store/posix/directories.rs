// SPDX-License-Identifier: Apache-2.0
//! Directories of the store that this process writes to: created once, known to be durable, kept
//! open.
//!
//! A new object survives power loss only if every directory above it does. A directory is therefore
//! created, and its parent synced, before anything goes into it, and its descriptor is kept, so
//! that the next object there costs neither. Other processes may remove an empty directory: its
//! descriptor then answers ENOENT and never accepts an object, so stale entries are detected and
//! the directory is created anew.
//! Concurrency: any thread; the cache is the only state.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quick_cache::sync::Cache;
use rustix::fs::{AtFlags, Mode, OFlags, fsync, openat, unlinkat};
use rustix::io::{Errno, retry_on_intr};

use super::beneath;
use super::failure::failed;
use super::sharing::EntryAccess;
use crate::Result;

/// Maximum directories kept open: writers use few (one of each kind in a change set).
const OPEN_MAX: usize = 64;

/// Maximum concurrent removals of a directory before a writer gives up.
const ATTEMPTS_MAX: u32 = 100;

#[derive(Debug)]
pub(super) struct DirectoryCache {
    path: PathBuf,
    root: Arc<OwnedFd>,
    access: EntryAccess,
    /// Directories that exist and are durable, by path below the root.
    durable: Cache<String, Arc<OwnedFd>>,
}

impl DirectoryCache {
    /// Opens the directory at `path`, the root of a store.
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = retry_on_intr(|| rustix::fs::open(&path, flags, Mode::empty()))
            .map_err(|errno| failed("open", &path, errno))?;
        let access =
            EntryAccess::of_store(root.as_fd()).map_err(|errno| failed("open", &path, errno))?;
        Ok(Self { path, root: Arc::new(root), access, durable: Cache::new(OPEN_MAX) })
    }

    /// The root's descriptor.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The root's path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The modes and the owner of new files and directories.
    pub(super) fn access(&self) -> EntryAccess {
        self.access
    }

    /// The path of an object, for messages.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Calls `act` with the descriptor of `directory` (empty: the root). Makes the directory
    /// durable first if necessary, and creates it anew if it was removed meanwhile. `act` may keep
    /// the descriptor.
    pub(super) fn with<T>(
        &self,
        directory: &str,
        mut act: impl FnMut(&Arc<OwnedFd>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut attempt = 0;
        loop {
            let outcome = self.durable(directory).and_then(|found| act(&found));
            attempt += 1;
            match outcome {
                Err(Errno::NOENT) if !directory.is_empty() && attempt < ATTEMPTS_MAX => {
                    self.forget(directory);
                }
                outcome => return outcome,
            }
        }
    }

    /// Removes `directory` and its ancestors, as far as they are empty.
    pub(super) fn prune(&self, directory: &str) {
        let mut path = directory;
        while !path.is_empty() {
            let (above, leaf) = split(path);
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let Ok(above_fd) = beneath::open(self.root(), above, flags) else { return };
            if unlinkat(above_fd, leaf, AtFlags::REMOVEDIR).is_err() {
                return;
            }
            self.durable.remove(path);
            path = above;
        }
    }

    fn durable(&self, directory: &str) -> Result<Arc<OwnedFd>, Errno> {
        if directory.is_empty() {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(known) = self.durable.get(directory) {
            return Ok(known);
        }
        let (above, leaf) = split(directory);
        let above = self.durable(above)?;
        match self.access.make_directory(self.root(), above.as_fd(), leaf) {
            // The process that created it may not have synced it yet.
            Ok(()) | Err(Errno::EXIST) => retry_on_intr(|| fsync(&above))?,
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = Arc::new(retry_on_intr(|| openat(&above, leaf, flags, Mode::empty()))?);
        self.durable.insert(directory.into(), Arc::clone(&made));
        Ok(made)
    }

    /// Drops `directory` and its ancestors from the cache: any of them may have been removed.
    fn forget(&self, directory: &str) {
        let mut path = directory;
        while !path.is_empty() {
            self.durable.remove(path);
            path = split(path).0;
        }
    }
}

/// Splits a name into its directory and its last component.
pub(super) fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_directories_are_made_again() {
        let root = tempfile::tempdir().expect("temporary directory");
        let directories = DirectoryCache::open(root.path().into()).expect("open");
        let touch = |fd: &Arc<OwnedFd>| {
            let flags = OFlags::CREATE | OFlags::WRONLY;
            openat(fd, "file", flags, Mode::RUSR | Mode::WUSR).map(drop)
        };
        directories.with("a/b/c", touch).expect("made");
        std::fs::remove_dir_all(root.path().join("a")).expect("remove");
        directories.with("a/b/c", touch).expect("made again");
        assert!(root.path().join("a/b/c/file").exists());
    }

    #[test]
    fn prune_stops_at_what_is_in_use() {
        let root = tempfile::tempdir().expect("temporary directory");
        let directories = DirectoryCache::open(root.path().into()).expect("open");
        directories.with("a/b/c", |_| Ok(())).expect("made");
        std::fs::write(root.path().join("a/kept"), b"").expect("write");
        directories.prune("a/b/c");
        assert!(!root.path().join("a/b").exists());
        assert!(root.path().join("a/kept").exists());
    }
}
