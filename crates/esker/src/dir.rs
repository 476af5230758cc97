// SPDX-License-Identifier: Apache-2.0
//! Dir: an open directory of a snapshot or a session. All operations on paths are here.
//!
//! A path that is one name costs no walk: programs that make many files in one directory open it
//! once.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};
use esker_fs::inode::FileKind;
use esker_fs::ops::{AttributeChanges, RenameFlags, XattrSet};
use esker_fs::stack::dir::Dir as DirNode;
use esker_fs::stack::list::{DirCursor, DirEntry as ListedEntry};
use esker_fs::stack::namespace::{FollowLinks, PathTarget};
use esker_fs::stack::path::split_last;
use esker_fs::traversal::walk::{WalkNext, WalkOrder, WalkStep};

use crate::entries::DirEntries;
use crate::file::{File, OpenOptions, read_all};
use crate::indexed::IndexedDir;
use crate::metadata::Metadata;
use crate::tree_handle::TreeHandle;

/// Permission bits of new directories.
const DIR_MODE: u32 = 0o755;
/// Permission bits of new files.
pub(crate) const FILE_MODE: u32 = 0o644;
/// Attempts to change a name that other threads change at the same time.
pub(crate) const TRIES_MAX: usize = 4;

/// An open directory of a snapshot or a session.
///
/// A path that begins with a slash starts at the root of the tree, any other at this directory.
/// Symbolic links are followed, except by operations on names themselves: removing, renaming,
/// linking. Changes of a snapshot's tree fail with `ReadOnly`. The handle follows its directory
/// through renames, and keeps the snapshot or session open; clones are cheap and may be used by
/// several threads.
///
/// # Examples
/// ```
/// use esker::Repository;
///
/// let session = Repository::create("memory:")?.session().begin()?;
/// let steps = session.create_dir_all("/run/steps")?;
/// for step in 0..3 {
///     steps.write(format!("{step}"), format!("state {step}"))?;
/// }
/// session.rename("/run", "/done")?;
/// assert_eq!(steps.read("2")?, b"state 2");
/// assert_eq!(steps.entries()?.count(), 3);
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dir {
    pub(crate) tree: TreeHandle,
    pub(crate) node: DirNode,
}

/// The bytes of a path.
pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

impl Dir {
    /// The root directory of `tree`.
    pub(crate) fn root_of(tree: TreeHandle) -> Self {
        let node = tree.layers().root().clone();
        Self { tree, node }
    }

    pub(crate) fn find(&self, path: &Path, follow: FollowLinks) -> Result<PathTarget> {
        self.tree.layers().find_at(&self.node, bytes(path), follow)
    }

    /// Runs `act` with the directory that contains `path`, and the name there.
    pub(crate) fn at<T>(
        &self,
        path: &Path,
        act: impl FnOnce(&DirNode, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let path = bytes(path);
        if !path.contains(&b'/') {
            return act(&self.node, path);
        }
        let (parent, name) = split_last(path)?;
        act(&self.tree.layers().dir_at(&self.node, parent)?, name)
    }

    pub(crate) fn read_page(&self, cursor: &DirCursor, limit: usize) -> Result<Vec<ListedEntry>> {
        self.tree.layers().read_dir(&self.node, cursor, limit)
    }

    // --- Reading -----------------------------------------------------------------------------

    /// Opens a directory. Cost: a look-up of each name in the path, at most one block read for each
    /// layer of the stack; none while the blocks are cached.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Denied`; `Loop` for a loop of symbolic links.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Self> {
        let node = self.tree.layers().dir_at(&self.node, bytes(path.as_ref()))?;
        Ok(Self { tree: self.tree.clone(), node })
    }

    /// Opens a file for reading. Cost: as [`Dir::open_dir`].
    ///
    /// # Errors
    /// As [`Dir::open_dir`]; `IsADirectory` or `Invalid` for anything but a regular file.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open_at(self, path.as_ref())
    }

    /// Opens a file as `options` say.
    ///
    /// # Errors
    /// As [`Dir::open`]; `Exists` with [`OpenOptions::create_new`].
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        options.open_at(self, path.as_ref())
    }

    /// Opens an indexed directory for look-ups of keys, with a cache of up to `cache_bytes` for the
    /// blocks that they read. Cost: as [`Dir::open_dir`], and a read for each of its parts.
    ///
    /// # Errors
    /// As [`Dir::open_dir`]; `NotADirectory` for anything but an indexed directory.
    pub fn open_indexed(&self, path: impl AsRef<Path>, cache_bytes: u64) -> Result<IndexedDir> {
        IndexedDir::open(self, path.as_ref(), cache_bytes)
    }

    /// Reads a whole file and verifies its checksum. Cost: as [`Dir::open`], and one store request
    /// for each log that has a part of it; none for up to 256 bytes, which are in the file's
    /// record.
    ///
    /// # Errors
    /// As [`Dir::open`]; `Corrupt` if the bytes are not those that were written.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let found = self.find(path.as_ref(), FollowLinks::Yes)?;
        read_all(&self.tree, &found.inode)
    }

    /// Returns the attributes of this directory.
    ///
    /// # Errors
    /// `NotFound` if it was removed.
    pub fn dir_metadata(&self) -> Result<Metadata> {
        self.tree.layers().stat_dir(&self.node).map(Metadata::new)
    }

    /// Returns the attributes of a file. Cost: as [`Dir::open_dir`].
    ///
    /// # Errors
    /// As [`Dir::open_dir`].
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.find(path.as_ref(), FollowLinks::Yes).map(|found| Metadata::new(found.inode))
    }

    /// Returns the attributes of a file, or of the symbolic link at the end of `path`.
    ///
    /// # Errors
    /// As [`Dir::open_dir`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.find(path.as_ref(), FollowLinks::No).map(|found| Metadata::new(found.inode))
    }

    /// True if `path` leads to a file of any kind.
    ///
    /// # Errors
    /// As [`Dir::open_dir`], without `NotFound` and `NotADirectory`.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::NotADirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// As [`Dir::open_dir`]; `Invalid` if it is not a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let inode = self.find(path.as_ref(), FollowLinks::No)?.inode;
        if inode.kind() != Some(FileKind::Symlink) {
            let what = format!("{}: not a symbolic link", path.as_ref().display());
            return Err(Error::new(Kind::Invalid, what));
        }
        Ok(PathBuf::from(OsStr::from_bytes(&inode.content)))
    }

    /// Lists this directory. Cost: the blocks that have its entries, read ahead.
    ///
    /// # Errors
    /// `Denied` without permission to read it; the entries report later errors.
    pub fn entries(&self) -> Result<DirEntries> {
        DirEntries::of(self.clone())
    }

    /// Lists this directory from after the entry `name`, which need not exist any more: the last
    /// entry that an earlier listing saw, perhaps in another process.
    #[must_use]
    pub fn entries_after(&self, name: impl AsRef<OsStr>) -> DirEntries {
        DirEntries::after(self.clone(), name.as_ref())
    }

    /// Visits this directory and everything in it, each directory before its entries, with paths
    /// from the root of the tree. Symbolic links are not followed. Cost: a listing of each
    /// directory.
    ///
    /// # Errors
    /// The first directory that cannot be read; errors of `visit`.
    pub fn walk(&self, mut visit: impl FnMut(&Path, &Metadata) -> Result<WalkNext>) -> Result<()> {
        let start = self.path()?;
        let (layers, order) = (self.tree.layers(), WalkOrder::Stored);
        layers.traverse(bytes(&start), FollowLinks::No, order, &mut |step| match step {
            WalkStep::Entry(entry) => {
                let path = Path::new(OsStr::from_bytes(entry.path));
                visit(path, &Metadata::new(entry.inode.clone()))
            }
            WalkStep::Left(_) => Ok(WalkNext::Into),
            WalkStep::Unreadable(entry, error) => {
                Err(error.within(String::from_utf8_lossy(entry.path)))
            }
        })
    }

    /// Returns the path of this directory from the root of the tree.
    ///
    /// # Errors
    /// `NotFound` if it was removed.
    pub fn path(&self) -> Result<PathBuf> {
        self.dir_metadata()?;
        let (mut names, mut node) = (Vec::new(), self.node.clone());
        while let Some((parent, name)) = node.location() {
            names.push(name);
            node = parent;
        }
        let mut path = PathBuf::from("/");
        path.extend(names.iter().rev().map(|name| OsStr::from_bytes(name)));
        Ok(path)
    }

    // --- Changes -----------------------------------------------------------------------------

    /// Creates a file and opens it for reading and writing. Cost: no store request, unless a
    /// snapshot below may have the name.
    /// [`SessionBuilder::resumable`](crate::SessionBuilder::resumable) says how much a crash leaves
    /// of a change that has returned.
    ///
    /// # Errors
    /// `Exists`, `Denied`; `NotFound` or `NotADirectory` for the directory; `Invalid` or `TooLarge`
    /// for a name that no file can have; `ReadOnly` in a snapshot.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).open_at(self, path.as_ref())
    }

    /// Creates an empty file without opening it: the fastest way to make many names.
    ///
    /// # Errors
    /// As [`Dir::create`].
    pub fn create_empty(&self, path: impl AsRef<Path>) -> Result<()> {
        let writer = self.tree.writer()?;
        self.at(path.as_ref(), |dir, name| writer.create(dir, name, FILE_MODE).map(drop))
    }

    /// Writes a whole file: creates it, or replaces its content in one step, so that readers see
    /// either all old bytes or all new ones. Cost: an append to a data log that many files share;
    /// none for up to 256 bytes.
    ///
    /// # Errors
    /// As [`Dir::create`], without `Exists`; `IsADirectory`; `NoSpace`.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        for _ in 1..TRIES_MAX {
            match self.write_from(path.as_ref(), &mut content.as_ref()) {
                // Another thread created or removed the name after the look-up.
                Err(error) if matches!(error.kind(), Kind::Exists | Kind::NotFound) => {}
                written => return written,
            }
        }
        self.write_from(path, &mut content.as_ref())
    }

    /// Like [`Dir::write`], with the bytes that `reader` yields. The name appears, or changes, once
    /// all of them are stored.
    ///
    /// # Errors
    /// As [`Dir::write`]; `Exists` if another thread creates the file meanwhile; errors of
    /// `reader`.
    pub fn write_from(&self, path: impl AsRef<Path>, reader: &mut impl Read) -> Result<()> {
        let (writer, path) = (self.tree.writer()?, path.as_ref());
        let mut fill = |buffer: &mut [u8]| loop {
            match reader.read(buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => return read.map_err(|error| of_io(error, "read the new content")),
            }
        };
        match self.find(path, FollowLinks::Yes) {
            Ok(found) => {
                if found.inode.is_directory() {
                    let what = format!("{}: is a directory", path.display());
                    return Err(Error::new(Kind::IsADirectory, what));
                }
                writer.rewrite(&found.dir, &found.name, &mut fill).map(drop)
            }
            Err(error) if error.kind() == Kind::NotFound => self.at(path, |dir, name| {
                writer.create_with(dir, name, FILE_MODE, &mut fill).map(drop)
            }),
            Err(error) => Err(error),
        }
    }

    /// Creates a directory and opens it.
    ///
    /// # Errors
    /// As [`Dir::create`].
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<Self> {
        let writer = self.tree.writer()?;
        let node = self.at(path.as_ref(), |dir, name| writer.mkdir(dir, name, DIR_MODE))?;
        Ok(Self { tree: self.tree.clone(), node })
    }

    /// Opens a directory; creates it, and those above it, as far as they are missing.
    ///
    /// # Errors
    /// As [`Dir::create_dir`], without `Exists`; `NotADirectory` if there is another file.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        match self.open_dir(path) {
            Err(error) if error.kind() == Kind::NotFound => {}
            opened => return opened,
        }
        let Some(parent) = path.parent() else { return self.open_dir(path) };
        let dir = self.create_dir_all(parent)?;
        // `..` exists once the directory before it does.
        let Some(name) = path.file_name() else { return self.open_dir(path) };
        match dir.create_dir(name) {
            // Another thread has just created it.
            Err(error) if error.kind() == Kind::Exists => dir.open_dir(name),
            made => made,
        }
    }

    /// Removes a name of a file; its content goes with its last name, and once it is closed.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `IsADirectory`, `ReadOnly`; `NotPermitted` because of a sticky bit.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let writer = self.tree.writer()?;
        self.at(path.as_ref(), |dir, name| writer.unlink(dir, name).map(drop))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Dir::remove_file`]; `NotADirectory`, `NotEmpty`.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let writer = self.tree.writer()?;
        self.at(path.as_ref(), |dir, name| writer.rmdir(dir, name).map(drop))
    }

    /// Removes a directory of any size with everything in it, in one step. Permissions within it
    /// are not checked; files in it that have names elsewhere keep those.
    ///
    /// # Errors
    /// As [`Dir::remove_file`]; `NotADirectory`; `NotPermitted` unless the directory is the user's
    /// own.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let writer = self.tree.writer()?;
        self.at(path.as_ref(), |dir, name| writer.remove_tree(dir, name))
    }

    /// Renames a file or directory, and replaces a file, or an empty directory, that has the new
    /// name. Other threads see it under exactly one of the two.
    ///
    /// # Errors
    /// As [`Dir::remove_file`]; `NotEmpty`, `IsADirectory` or `NotADirectory` if the target cannot
    /// be replaced; `Invalid` if a directory would move into itself.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameFlags::Replace)
    }

    /// Renames a file or directory; `flags` decide about a file or directory that has the new name.
    ///
    /// # Errors
    /// As [`Dir::rename`]; `Exists` with [`RenameFlags::NoReplace`].
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        let writer = self.tree.writer()?;
        self.at(from.as_ref(), |old_dir, old_name| {
            self.at(to.as_ref(), |dir, name| {
                writer.rename((old_dir, old_name), (dir, name), flags).map(drop)
            })
        })
    }

    /// Gives a file another name, `link`.
    ///
    /// # Errors
    /// As [`Dir::create`]; `NotPermitted` for a directory; `TooManyLinks`.
    pub fn hard_link(&self, file: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let writer = self.tree.writer()?;
        self.at(file.as_ref(), |old_dir, old_name| {
            self.at(link.as_ref(), |dir, name| writer.link(old_dir, old_name, dir, name).map(drop))
        })
    }

    /// Creates the symbolic link `link` to `target`, which need not exist.
    ///
    /// # Errors
    /// As [`Dir::create`].
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (writer, target) = (self.tree.writer()?, bytes(target.as_ref()));
        self.at(link.as_ref(), |dir, name| writer.symlink(dir, name, target).map(drop))
    }

    /// Changes mode, owner, size or times of a file.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `ReadOnly`; `NotPermitted` for attributes that only the owner or the
    /// superuser may change; `IsADirectory` or `Invalid` for the size of anything but a regular
    /// file.
    pub fn set_attributes(&self, path: impl AsRef<Path>, changes: &AttributeChanges) -> Result<()> {
        let writer = self.tree.writer()?;
        let found = self.find(path.as_ref(), FollowLinks::Yes)?;
        match found.name.is_empty() {
            true => writer.setattr_root(changes),
            false => writer.setattr(&found.dir, &found.name, changes).map(drop),
        }
    }

    /// Sets an extended attribute; `how` says whether it may, or must, exist.
    ///
    /// # Errors
    /// As [`Dir::set_attributes`]; `TooLarge`; `Exists` or `NoAttribute` as `how` requires.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        attribute: &str,
        value: impl AsRef<[u8]>,
        how: XattrSet,
    ) -> Result<()> {
        let writer = self.tree.writer()?;
        let found = self.find(path.as_ref(), FollowLinks::Yes)?;
        let pair = (attribute.as_bytes(), value.as_ref());
        match found.name.is_empty() {
            true => writer.set_xattr_root(pair, how),
            false => writer.set_xattr(&found.dir, &found.name, pair, how),
        }
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`Dir::set_attributes`]; `NoAttribute`.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, attribute: &str) -> Result<()> {
        let (writer, attribute) = (self.tree.writer()?, attribute.as_bytes());
        let found = self.find(path.as_ref(), FollowLinks::Yes)?;
        match found.name.is_empty() {
            true => writer.remove_xattr_root(attribute),
            false => writer.remove_xattr(&found.dir, &found.name, attribute),
        }
    }
}

/// Returns the error of a reader or writer: that of Esker if it passes one on.
pub(crate) fn of_io(error: std::io::Error, context: &str) -> Error {
    error.downcast::<Error>().unwrap_or_else(|error| Error::io(error, context))
}
