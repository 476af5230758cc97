//! Destination: the real directories of an export, reached by handles.
//!
//! Other users may be able to write to the directory that an export goes to: they can rename what
//! it has made and plant files and symbolic links in its place. So every call names the handle of
//! a directory and one name in it, and never follows a symbolic link. Only the directory that is
//! being filled stays open. A directory that is opened again is found from the top by its names,
//! and must be the one that was made.

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

/// Opens what has a name itself, whoever has put it there.
pub(super) const NO_FOLLOW: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

/// Number of a directory in the order of their making; `None` for that which the target is in.
pub(super) type MadeIndex = Option<usize>;

/// An open directory.
pub(super) type DirHandle = Arc<OwnedFd>;

/// A directory that the export has made.
pub(super) struct MadeDirectory {
    parent: MadeIndex,
    name: Vec<u8>,
    /// Device and inode number.
    file: (u64, u64),
    /// What it gets its attributes from.
    pub(super) inode: Inode,
}

pub(super) struct Destination {
    /// The directory that the target is in.
    top: DirHandle,
    target: PathBuf,
    target_name: Vec<u8>,
    is_resumed: bool,
    made: Vec<MadeDirectory>,
    /// The directories that the walk is in, outermost first, and the names that an export that goes on
    /// has found in each.
    entered: Vec<(usize, UnclaimedNames)>,
    /// The directory that was used last.
    current: (MadeIndex, DirHandle),
}

impl Destination {
    /// The destination of an export to `target`, which is written as `name` in `top` first. With
    /// `is_resumed` what is there already is gone on with.
    pub(super) fn new(top: DirHandle, target: &Path, name: &[u8], is_resumed: bool) -> Self {
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

    /// The name of an entry at `depth` below the target, as it is written.
    pub(super) fn name_of<'a>(&'a self, depth: usize, name: &'a [u8]) -> &'a [u8] {
        if depth == 0 { &self.target_name } else { name }
    }

    /// The directory that the walk is in.
    pub(super) fn innermost(&self) -> MadeIndex {
        self.entered.last().map(|(index, _)| *index)
    }

    /// The handle of a directory.
    pub(super) fn handle(&mut self, index: MadeIndex) -> Result<DirHandle> {
        if self.current.0 != index {
            self.current = (index, self.reopen(index)?);
        }
        Ok(self.current.1.clone())
    }

    /// Makes the directory `name` in that which the walk is in, and enters it. A resumed export takes
    /// the one that is there. Returns a handle that holds the lock of the outermost directory, if it
    /// is that.
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

    /// The names that were found in the directory that the walk is in, but for those of the snapshot.
    pub(super) fn unclaimed(&mut self) -> Option<&mut UnclaimedNames> {
        self.entered.last_mut().map(|(_, names)| names)
    }

    /// Leaves the directory that the walk is in, of which all entries were exported. Returns the path
    /// of another entry, if it has one.
    pub(super) fn leave(&mut self) -> Option<PathBuf> {
        let (index, names) = self.entered.pop()?;
        names.first().map(|name| self.path_of(index).join(name))
    }

    /// How many directories were made.
    pub(super) fn count(&self) -> usize {
        self.made.len()
    }

    pub(super) fn made(&self, index: usize) -> &MadeDirectory {
        &self.made[index]
    }

    /// The path of `name` in a directory, as errors show it.
    pub(super) fn path(&self, index: MadeIndex, name: &[u8]) -> PathBuf {
        match index {
            None => self.target.clone(),
            Some(index) => self.path_of(index).join(OsStr::from_bytes(name)),
        }
    }

    /// The path of a directory, as errors show it.
    pub(super) fn path_of(&self, index: usize) -> PathBuf {
        let below = self.names_to(Some(index)).skip(1);
        self.target.join(below.map(OsStr::from_bytes).collect::<PathBuf>())
    }

    /// The names that lead to a directory, the target's first.
    fn names_to(&self, mut index: MadeIndex) -> impl Iterator<Item = &[u8]> {
        let mut names = Vec::new();
        while let Some(at) = index {
            let made = &self.made[at];
            names.push(&*made.name);
            index = made.parent;
        }
        names.into_iter().rev()
    }

    fn reopen(&self, index: MadeIndex) -> Result<DirHandle> {
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

/// A directory that an export fills.
pub(super) struct OpenedDirectory {
    pub(super) handle: OwnedFd,
    /// What an export that goes on has found in it.
    pub(super) names: UnclaimedNames,
    /// Of the outermost directory: a handle that holds its lock.
    pub(super) locked: Option<OwnedFd>,
}

/// Makes the directory `name` in `parent` for `inode`, or, if `is_resumed`, takes the one that is there.
/// The outermost one is locked before anything of it is changed.
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

/// A handle (`O_PATH`) of the file `name` in `dir`, which the caller has just made as one of
/// `kind`.
pub(super) fn handle_of(dir: &OwnedFd, name: &[u8], kind: FileType) -> Result<OwnedFd> {
    let handle = rustix::fs::openat(dir, name, OFlags::PATH | NO_FOLLOW, Mode::empty())
        .map_err(|error| failure(error, "open"))?;
    let stat = rustix::fs::fstat(&handle).map_err(|error| failure(error, "stat"))?;
    // A further name would be of a file that was there before.
    if type_of(&stat) != kind || stat.st_nlink != 1 {
        return Err(replaced());
    }
    Ok(handle)
}

pub(super) fn type_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The error that somebody else has put another file in the place of one that was made.
fn replaced() -> Error {
    let what = "another user replaced it during the export: export to a directory that only you \
                can write to";
    Error::new(Kind::Conflict, what)
}
