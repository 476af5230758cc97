// SPDX-License-Identifier: Apache-2.0
//! Destination: the real directories of an export, reached by handles.
//!
//! Other users may be able to write to the target directory of an export: they can rename what it
//! has made and plant files and symbolic links in its place. So every call uses a directory handle
//! and one name in it, and never follows a symbolic link. Only the directory being filled stays
//! open. A directory that is opened again is reached from the top by its names, and must be the one
//! that was made.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::attributes::failure;
use super::earlier::{self, UnclaimedNames};
use crate::inode::Inode;

/// Opens the named file itself, even if another user planted a symbolic link.
pub(super) const NO_FOLLOW: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

/// Index of a directory in order of creation; `None` for the parent of the target.
pub(super) type MadeIndex = Option<usize>;

/// An open directory.
pub(super) type ExportDir = Arc<OwnedFd>;

/// A directory that the export has made.
pub(super) struct MadeDirectory {
    parent: MadeIndex,
    name: Vec<u8>,
    /// Device and inode number.
    file: (u64, u64),
    /// Source of its attributes.
    pub(super) inode: Inode,
}

pub(super) struct ExportDestination {
    /// The directory that contains the target.
    top: ExportDir,
    target: PathBuf,
    target_name: Vec<u8>,
    is_resumed: bool,
    made: Vec<MadeDirectory>,
    /// The directories on the walk's current path, outermost first, each with the names that a
    /// resumed export has found in it.
    entered: Vec<(usize, UnclaimedNames)>,
    /// The most recently used directory.
    current: (MadeIndex, ExportDir),
}

impl ExportDestination {
    /// Creates the destination of an export to `target`, which is first written as `name` in `top`.
    /// With `is_resumed` it continues with what is already there.
    pub(super) fn new(top: ExportDir, target: &Path, name: &[u8], is_resumed: bool) -> Self {
        Self {
            current: (None, top.clone()),
            top,
            target: target.to_owned(),
            target_name: name.to_vec(),
            is_resumed,
            made: Vec::new(),
            entered: Vec::new(),
        }
    }

    /// Returns the name under which an entry at `depth` below the target is written.
    pub(super) fn name_of<'a>(&'a self, depth: usize, name: &'a [u8]) -> &'a [u8] {
        if depth == 0 { &self.target_name } else { name }
    }

    /// Returns the current directory of the walk.
    pub(super) fn innermost(&self) -> MadeIndex {
        self.entered.last().map(|(index, _)| *index)
    }

    /// Returns the handle of a directory.
    pub(super) fn handle(&mut self, index: MadeIndex) -> Result<ExportDir> {
        if self.current.0 != index {
            self.current = (index, self.reopen(index)?);
        }
        Ok(self.current.1.clone())
    }

    /// Makes the directory `name` in the walk's current directory, and enters it. A resumed export
    /// takes an existing one. Returns a handle that holds the lock, if it is the outermost
    /// directory.
    pub(super) fn make(&mut self, name: &[u8], inode: &Inode) -> Result<Option<OwnedFd>> {
        let parent = self.innermost();
        let parent_handle = self.handle(parent)?;
        let is_outermost = self.made.is_empty();
        let opened = make_directory(&parent_handle, name, inode, (is_outermost, self.is_resumed))?;
        let stat = rustix::fs::fstat(&opened.handle).map_err(|error| failure(error, "stat"))?;
        if stat.st_mode & 0o077 != 0 {
            return Err(replaced());
        }
        let file = (stat.st_dev, stat.st_ino);
        self.made.push(MadeDirectory { parent, name: name.to_vec(), file, inode: inode.clone() });
        let index = self.made.len() - 1;
        self.entered.push((index, opened.names));
        self.current = (Some(index), Arc::new(opened.handle));
        Ok(opened.locked)
    }

    /// Returns the names that a resumed export has found in the walk's current directory and not
    /// yet reached in the snapshot.
    pub(super) fn unclaimed(&mut self) -> Option<&mut UnclaimedNames> {
        self.entered.last_mut().map(|(_, names)| names)
    }

    /// Leaves the walk's current directory after its last entry. Returns the path of an entry that
    /// is not in the snapshot, if there is one.
    pub(super) fn leave(&mut self) -> Option<PathBuf> {
        let (index, names) = self.entered.pop()?;
        names.first().map(|name| self.path_of(index).join(name))
    }

    /// Returns the number of directories made.
    pub(super) fn count(&self) -> usize {
        self.made.len()
    }

    pub(super) fn made(&self, index: usize) -> &MadeDirectory {
        &self.made[index]
    }

    /// Returns the path of `name` in a directory, as shown in errors.
    pub(super) fn path(&self, index: MadeIndex, name: &[u8]) -> PathBuf {
        match index {
            None => self.target.clone(),
            Some(index) => self.path_of(index).join(OsStr::from_bytes(name)),
        }
    }

    /// Returns the path of a directory, as shown in errors.
    pub(super) fn path_of(&self, index: usize) -> PathBuf {
        let below = self.names_to(Some(index)).skip(1);
        self.target.join(below.map(OsStr::from_bytes).collect::<PathBuf>())
    }

    /// Returns the names that lead to a directory, the target's first.
    fn names_to(&self, mut index: MadeIndex) -> impl Iterator<Item = &[u8]> {
        let mut names = Vec::new();
        while let Some(at) = index {
            let made = &self.made[at];
            names.push(&*made.name);
            index = made.parent;
        }
        names.into_iter().rev()
    }

    fn reopen(&self, index: MadeIndex) -> Result<ExportDir> {
        let mut handle = self.top.clone();
        for name in self.names_to(index) {
            handle = Arc::new(open_directory(&handle, name)?);
        }
        if let Some(index) = index {
            let stat = rustix::fs::fstat(&handle).map_err(|error| failure(error, "stat"))?;
            if (stat.st_dev, stat.st_ino) != self.made[index].file {
                return Err(replaced());
            }
        }
        Ok(handle)
    }
}

pub(super) fn open_directory(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | NO_FOLLOW;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT) => Err(replaced()),
        opened => opened.map_err(|error| failure(error, "open")),
    }
}

/// A directory opened to export entries to it.
pub(super) struct OpenedDirectory {
    pub(super) handle: OwnedFd,
    /// Names that a resumed export has found in it.
    pub(super) names: UnclaimedNames,
    /// For the outermost directory, a handle that holds its lock.
    pub(super) locked: Option<OwnedFd>,
}

/// Makes the directory `name` in `parent` for `inode`, or takes an existing one if `is_resumed`.
/// Locks the outermost one before changing anything in it.
pub(super) fn make_directory(
    parent: &OwnedFd,
    name: &[u8],
    inode: &Inode,
    (is_outermost, is_resumed): (bool, bool),
) -> Result<OpenedDirectory> {
    let earlier = match is_outermost && is_resumed {
        true => earlier::lock_what_is_there(parent, name)?,
        false => None,
    };
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Err(Errno::EXIST) if is_resumed && is_outermost == earlier.is_some() => {
            let (handle, names) = earlier::retake_directory(parent, name, inode)?;
            Ok(OpenedDirectory { handle, names, locked: earlier })
        }
        made => {
            made.map_err(|error| failure(error, "make directory"))?;
            let handle = open_directory(parent, name)?;
            let mut locked = None;
            if is_outermost {
                earlier::lock(&handle, parent, name)?;
                let copied = handle.try_clone();
                locked = Some(copied.map_err(|error| failure(error, "copy its handle"))?);
            }
            Ok(OpenedDirectory { handle, names: UnclaimedNames::default(), locked })
        }
    }
}

/// Makes the regular file `name` in `dir`, open for writing.
pub(super) fn create(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | NO_FOLLOW;
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::openat(dir, name, flags, mode).map_err(|error| failure(error, "create"))
}

/// Returns a handle (`O_PATH`) of the file `name` in `dir`, which the caller has just made with
/// `kind`.
pub(super) fn handle_of(dir: &OwnedFd, name: &[u8], kind: FileType) -> Result<OwnedFd> {
    let handle = rustix::fs::openat(dir, name, OFlags::PATH | NO_FOLLOW, Mode::empty())
        .map_err(|error| failure(error, "open"))?;
    let stat = rustix::fs::fstat(&handle).map_err(|error| failure(error, "stat"))?;
    // Another name would belong to an older file.
    if type_of(&stat) != kind || stat.st_nlink != 1 {
        return Err(replaced());
    }
    Ok(handle)
}

pub(super) fn type_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Returns the error for a file that another user has replaced.
fn replaced() -> Error {
    let what = "another user replaced it during the export: export to a directory that only you \
                can write to";
    Error::new(Kind::Conflict, what)
}
