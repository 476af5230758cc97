// SPDX-License-Identifier: Apache-2.0
//! Aside: an object's bytes while they are invisible, and the step that makes them visible.
//!
//! ```text
//! tmp/<32 hex digits>  write … fdatasync ─ link ─▶ <name> ─ fsync directory ─ unlink aside
//! ```
//! `link` decides races: it fails if the name is taken. A crash before it leaves only an aside
//! file, which [`sweep`] removes once it is old; a crash after it leaves two names of one whole
//! file.
//! Source: the create-link idiom of open(2) for NFS, with its check of the link count, since a
//! repeated request may report "exists" to the winner.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::fs::{fdatasync, fstat, fsync, linkat, openat, renameat_with, statat, unlinkat};
use rustix::io::{Errno, retry_on_intr, write};

use super::directories::{DirectoryCache, split};
use super::failure::failed;
use super::reserve;
use crate::store::name::UNFINISHED;
use crate::store::{modified_ns, taken};
use crate::{Error, Kind, Random, Result};

/// Creates aside files.
#[derive(Debug)]
pub(super) struct AsideFiles {
    directories: Arc<DirectoryCache>,
    /// Guards the generator of their names.
    random: Mutex<Random>,
}

impl AsideFiles {
    pub(super) fn new(directories: Arc<DirectoryCache>) -> Self {
        Self { directories, random: Mutex::new(Random::from_system()) }
    }

    /// Creates an empty aside file.
    pub(super) fn create(&self) -> Result<AsideFile> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        loop {
            let name = format!("{:032x}", self.random.lock().u128());
            let made = self
                .directories
                .with(UNFINISHED, |tmp| retry_on_intr(|| openat(tmp, name.as_str(), flags, mode)));
            match made {
                Ok(file) => {
                    let directories = Arc::clone(&self.directories);
                    let aside = AsideFile { directories, name, file, moved: false };
                    let given = self.directories.access().give_to_file(&aside.file);
                    given.map_err(|errno| failed("share", &aside.path(), errno))?;
                    return Ok(aside);
                }
                // A forked child shares its parent's random state.
                Err(Errno::EXIST) => *self.random.lock() = Random::from_system(),
                Err(errno) => {
                    let path = self.directories.path_of(UNFINISHED);
                    return Err(failed("make a file in", &path, errno));
                }
            }
        }
    }
}

/// A file without a name of its own yet. It is removed if dropped without one.
#[derive(Debug)]
pub(super) struct AsideFile {
    directories: Arc<DirectoryCache>,
    name: String,
    file: OwnedFd,
    moved: bool,
}

impl AsideFile {
    /// Treats `file` as an aside file, to test what happens when it fails.
    #[cfg(test)]
    pub(super) fn over(directories: &Arc<DirectoryCache>, file: OwnedFd) -> Self {
        Self { directories: Arc::clone(directories), name: "none".into(), file, moved: false }
    }

    /// Writes all of `bytes` at the end.
    pub(super) fn write(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match retry_on_intr(|| write(&self.file, bytes)) {
                Ok(written) => bytes = &bytes[written..],
                Err(errno) => return Err(failed("write", &self.path(), errno)),
            }
        }
        Ok(())
    }

    /// Makes the bytes durable and then visible as `name`; `Exists` if the name is taken.
    pub(super) fn publish(mut self, name: &str) -> Result<()> {
        retry_on_intr(|| fdatasync(&self.file))
            .map_err(|errno| failed("sync", &self.path(), errno))?;
        let (directory, leaf) = split(name);
        let directories = Arc::clone(&self.directories);
        let outcome = directories.with(directory, |fd| {
            self.link(fd.as_fd(), leaf)?;
            retry_on_intr(|| fsync(fd))
        });
        match outcome {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(taken(name)),
            Err(Errno::NOENT) if self.is_swept() => {
                let path = self.path();
                let what = "was swept away as abandoned before it was finished: write it again";
                Err(Error::new(Kind::Unavailable, format!("{} {what}", path.display())))
            }
            Err(errno) => Err(failed("put", &directories.path_of(name), errno)),
        }
    }

    fn link(&mut self, fd: BorrowedFd<'_>, leaf: &str) -> Result<(), Errno> {
        let from = format!("{UNFINISHED}/{}", self.name);
        let root = self.directories.root();
        match linkat(root, from.as_str(), fd, leaf, AtFlags::empty()) {
            Err(Errno::EXIST) if self.is_linked() => Ok(()),
            // File systems without hard links, or without links across directories.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV) => {
                renameat_with(root, from.as_str(), fd, leaf, RenameFlags::NOREPLACE)?;
                self.moved = true;
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn is_linked(&self) -> bool {
        fstat(&self.file).is_ok_and(|stat| stat.st_nlink > 1)
    }

    fn is_swept(&self) -> bool {
        fstat(&self.file).is_ok_and(|stat| stat.st_nlink == 0)
    }

    fn path(&self) -> PathBuf {
        self.directories.path_of(UNFINISHED).join(&self.name)
    }
}

impl Drop for AsideFile {
    fn drop(&mut self) {
        if !self.moved {
            let path = format!("{UNFINISHED}/{}", self.name);
            // A file that stays behind is swept later.
            let _swept_later = unlinkat(self.directories.root(), path, AtFlags::empty());
        }
    }
}

/// Removes aside files last changed before `before_ns`, or with `dry_run` only counts them; returns
/// their number.
pub(super) fn sweep(directories: &DirectoryCache, before_ns: u64, dry_run: bool) -> Result<u64> {
    let path = directories.path_of(UNFINISHED);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let tmp = match super::beneath::open(directories.root(), UNFINISHED, flags) {
        Ok(tmp) => tmp,
        Err(Errno::NOENT) => return Ok(0),
        Err(errno) => return Err(failed("sweep", &path, errno)),
    };
    let entries = Dir::read_from(&tmp).map_err(|errno| failed("sweep", &path, errno))?;
    let mut removed = 0;
    for entry in entries {
        let entry = entry.map_err(|errno| failed("sweep", &path, errno))?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(stat) = statat(tmp.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let flags = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if name.to_bytes().starts_with(reserve::PREFIX.as_bytes()) => {
                continue;
            }
            FileType::RegularFile => AtFlags::empty(),
            // A directory before it is moved.
            FileType::Directory => AtFlags::REMOVEDIR,
            _ => continue,
        };
        if modified_ns(&stat) >= before_ns {
            continue;
        }
        if dry_run {
            removed += 1;
        } else {
            match unlinkat(&tmp, name, flags) {
                Ok(()) => removed += 1,
                Err(Errno::NOENT | Errno::NOTEMPTY) => {}
                Err(errno) => return Err(failed("sweep", &path, errno)),
            }
        }
    }
    Ok(removed)
}
