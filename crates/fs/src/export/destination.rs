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
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::attributes::failure;
use crate::inode::Inode;

/// Opens what has a name itself, whoever has put it there.
const NO_FOLLOW: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

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
    made: Vec<MadeDirectory>,
    /// The directories that the walk is in, outermost first.
    entered: Vec<usize>,
    /// The directory that was used last.
    current: (MadeIndex, DirHandle),
}

impl Destination {
    /// The destination of an export to `target`, whose parent exists.
    pub(super) fn new(target: &Path) -> Result<Self> {
        // What has no name, such as `.`, is an existing directory.
        let (parent, name) = match target.file_name() {
            Some(name) => (target.parent().unwrap_or(Path::new("")), name),
            None => (target, OsStr::new(".")),
        };
        let parent = if parent == Path::new("") { Path::new(".") } else { parent };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(parent, flags, Mode::empty())
            .map_err(|error| Error::io(error.into(), format!("open {}", parent.display())))?;
        let top = Arc::new(top);
        Ok(Self {
            current: (None, top.clone()),
            top,
            target: target.to_owned(),
            target_name: name.as_bytes().to_vec(),
            made: Vec::new(),
            entered: Vec::new(),
        })
    }

    /// Fails unless the target is free to become the export of a directory, or of a file.
    pub(super) fn check_free(&self, is_directory: bool) -> Result<()> {
        let shown = self.target.display();
        let stat = rustix::fs::statat(&self.top, &*self.target_name, AtFlags::SYMLINK_NOFOLLOW);
        match stat {
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(Error::io(error.into(), shown.to_string())),
            Ok(stat) if type_of(&stat) == FileType::Directory && is_directory => Ok(()),
            Ok(_) => Err(Error::new(Kind::Exists, format!("{shown} exists; give a new name"))),
        }
    }

    /// The name of an entry at `depth` below the target; that of the target itself was given.
    pub(super) fn name_of<'a>(&'a self, depth: usize, name: &'a [u8]) -> &'a [u8] {
        if depth == 0 { &self.target_name } else { name }
    }

    /// The directory that the walk is in.
    pub(super) fn innermost(&self) -> MadeIndex {
        self.entered.last().copied()
    }

    /// The handle of a directory.
    pub(super) fn handle(&mut self, index: MadeIndex) -> Result<DirHandle> {
        if self.current.0 != index {
            self.current = (index, self.reopen(index)?);
        }
        Ok(self.current.1.clone())
    }

    /// Makes the directory `name` in that which the walk is in, and enters it. The target may be
    /// there already, if it is empty.
    pub(super) fn make(&mut self, name: &[u8], inode: &Inode) -> Result<()> {
        let parent = self.innermost();
        let parent_handle = self.handle(parent)?;
        let made = rustix::fs::mkdirat(&parent_handle, name, Mode::RWXU);
        let is_target = self.made.is_empty();
        if made != Err(Errno::EXIST) || !is_target {
            made.map_err(|error| failure(error, "make directory"))?;
        }
        let handle = open_directory(&parent_handle, name)?;
        let stat = rustix::fs::fstat(&handle).map_err(|error| failure(error, "stat"))?;
        if made.is_err() {
            check_empty(&handle)?;
        } else if stat.st_mode & 0o077 != 0 {
            return Err(replaced());
        }
        let file = (stat.st_dev, stat.st_ino);
        self.made.push(MadeDirectory { parent, name: name.to_vec(), file, inode: inode.clone() });
        let index = self.made.len() - 1;
        self.entered.push(index);
        self.current = (Some(index), Arc::new(handle));
        Ok(())
    }

    /// Leaves the directory that the walk is in.
    pub(super) fn leave(&mut self) {
        self.entered.pop();
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

fn check_empty(handle: &OwnedFd) -> Result<()> {
    let failed = |error| failure(error, "list");
    for entry in Dir::read_from(handle).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            let what = "not empty; export to a new or empty directory";
            return Err(Error::new(Kind::NotEmpty, what));
        }
    }
    Ok(())
}

fn open_directory(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | NO_FOLLOW;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT) => Err(replaced()),
        opened => opened.map_err(|error| failure(error, "open")),
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

fn type_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The error that somebody else has put another file in the place of one that was made.
fn replaced() -> Error {
    let what = "another user replaced it during the export: export to a directory that only you \
                can write to";
    Error::new(Kind::Conflict, what)
}
