// SPDX-License-Identifier: Apache-2.0
//! Skeleton: real, empty directories that stand for directories of the namespace which a process has
//! open or works in.
//!
//! The kernel keeps working directories and resolves relative paths of its own with them. Symbolic links on
//! the way to a working directory, and programs while they are executed, are there as well. The supervisor
//! moves and removes what is here with what it stands for.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use esker_fs::dir::Dir;
use esker_fs::inode::Inode;
use parking_lot::{Mutex, RwLock};

use crate::resolve::Way;

/// The real directories below the place at which a namespace is shown.
#[derive(Debug)]
pub(crate) struct Skeleton {
    root: PathBuf,
    /// True once it has anything but directories.
    has_files: AtomicBool,
    /// Numbers of the real files and links that were made here, and the time of the last change of that of
    /// which a program is a copy.
    made: Mutex<HashMap<u64, (i64, i64)>>,
    /// Taken for writing while names change in the namespace and here.
    pub(crate) structure: RwLock<()>,
}

impl Skeleton {
    pub(crate) fn new(root: PathBuf) -> Self {
        let (has_files, made) = (AtomicBool::new(false), Mutex::default());
        Self { root, has_files, made, structure: RwLock::default() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The path that stands for `name` in `dir`; for the root, of an empty name.
    pub(crate) fn path(&self, dir: &Dir, name: &[u8]) -> PathBuf {
        let mut names = vec![name.to_vec()];
        let mut at = dir.clone();
        while let Some((parent, name)) = at.location() {
            names.push(name);
            at = parent;
        }
        let mut path = self.root.clone();
        path.extend(names.iter().rev().map(|name| std::ffi::OsStr::from_bytes(name)));
        path
    }

    /// Makes the directory that stands for `dir`, and returns its path.
    pub(crate) fn make_directory(&self, dir: &Dir) -> io::Result<PathBuf> {
        let _shape = self.structure.read();
        self.make_directory_locked(dir)
    }

    fn make_directory_locked(&self, dir: &Dir) -> io::Result<PathBuf> {
        // An empty name would append a slash.
        let path = match dir.location() {
            Some((parent, name)) => self.path(&parent, &name),
            None => self.root.clone(),
        };
        if !path.is_dir() {
            if let Some((parent, _)) = dir.location() {
                self.make_directory_locked(&parent)?;
            }
            self.make_as(dir, &path)?;
        }
        Ok(path)
    }

    /// Makes the directory at `path` for others than this process to be in: whoever may search `dir` may.
    fn make_as(&self, dir: &Dir, path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            made => made?,
        }
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = dir.owner();
            std::os::unix::fs::chown(path, Some(uid), Some(gid))?;
            std::fs::set_permissions(path, Permissions::from_mode(dir.mode() & 0o777))?;
        }
        Ok(())
    }

    /// Makes what the kernel needs to follow a path by itself.
    pub(crate) fn make_way(&self, way: &Way) -> io::Result<()> {
        for (dir, name, target) in &way.links {
            self.make_link(dir, name, target)?;
        }
        way.left.iter().try_for_each(|dir| self.make_directory(dir).map(drop))
    }

    /// Makes the symbolic link `name` in `dir`.
    fn make_link(&self, dir: &Dir, name: &[u8], target: &[u8]) -> io::Result<()> {
        let _shape = self.structure.read();
        self.expect_files();
        let path = self.make_directory_locked(dir)?.join(std::ffi::OsStr::from_bytes(name));
        let target = std::ffi::OsStr::from_bytes(target);
        let made = match std::os::unix::fs::symlink(target, &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if std::fs::read_link(&path).is_ok_and(|known| known == target) {
                    return Ok(());
                }
                self.remove_file(&path)?;
                std::os::unix::fs::symlink(target, &path)
            }
            made => made,
        };
        made.and_then(|()| self.record(&path, (0, 0)))
    }

    /// Records that the file at `path` was made here, of this version of its content.
    fn record(&self, path: &Path, version: (i64, i64)) -> io::Result<()> {
        let number = std::fs::symlink_metadata(path)?.ino();
        self.made.lock().insert(number, version);
        Ok(())
    }

    /// Forgets the file at `path`, which is about to go: another one may get its number.
    fn forget(&self, path: &Path) {
        if let Ok(known) = std::fs::symlink_metadata(path) {
            self.made.lock().remove(&known.ino());
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.forget(path);
        std::fs::remove_file(path)
    }

    /// Makes the program `inode`, `name` in `dir`, with the bytes of `content`.
    pub(crate) fn make_program(
        &self,
        dir: &Dir,
        name: &[u8],
        inode: &Inode,
        content: &File,
    ) -> io::Result<()> {
        let _shape = self.structure.read();
        self.expect_files();
        let parent = self.make_directory_locked(dir)?;
        let path = parent.join(std::ffi::OsStr::from_bytes(name));
        let wanted = content.metadata()?;
        // Every change of the content, and of its time, changes this one.
        let version = (wanted.ctime(), wanted.ctime_nsec());
        let is_same = |known: &std::fs::Metadata| {
            known.len() == wanted.len() && self.made.lock().get(&known.ino()) == Some(&version)
        };
        if std::fs::symlink_metadata(&path).is_ok_and(|known| known.is_file() && is_same(&known)) {
            return Ok(());
        }
        // A program that runs cannot be written.
        let mut copy = tempfile::Builder::new().prefix(".esker-").tempfile_in(&parent)?;
        copy_content(content, copy.as_file_mut())?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::fchown(copy.as_file(), Some(inode.uid), Some(inode.gid))?;
        }
        copy.as_file().set_permissions(Permissions::from_mode(inode.mode & 0o777))?;
        self.forget(&path);
        // The kernel executes no file that is open for writing.
        copy.into_temp_path().persist(&path).map_err(|error| error.error)?;
        self.record(&path, version)
    }

    /// Says that the kernel is about to make something but a directory here.
    pub(crate) fn expect_files(&self) {
        self.has_files.store(true, Ordering::Release);
    }

    /// Removes what stands for `name` in `dir`, which is gone. The caller holds `structure`.
    pub(crate) fn removed(&self, dir: &Dir, name: &[u8], is_directory: bool) {
        let removed = match is_directory {
            true => std::fs::remove_dir(self.path(dir, name)),
            false if self.has_files.load(Ordering::Acquire) => {
                self.remove_file(&self.path(dir, name))
            }
            false => return,
        };
        // Most names have nothing here.
        drop(removed);
    }

    /// Moves what was at `before` to `name` in `dir`, or exchanges the two. The caller holds `structure`.
    pub(crate) fn moved(
        &self,
        before: &Path,
        dir: &Dir,
        name: &[u8],
        is_exchange: bool,
    ) -> io::Result<()> {
        let after = self.path(dir, name);
        let has = |path: &Path| std::fs::symlink_metadata(path).is_ok();
        let (has_before, has_after) = (has(before), has(&after));
        if !has_before && !has_after {
            return Ok(());
        }
        self.make_directory_locked(dir)?;
        if is_exchange && has_before && has_after {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            let cwd = rustix::fs::CWD;
            return Ok(rustix::fs::renameat_with(cwd, before, cwd, &after, flags)?);
        }
        if is_exchange && has_after {
            if let Some(parent) = before.parent() {
                DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            }
            return std::fs::rename(&after, before);
        }
        if has_after && self.remove_file(&after).is_err() {
            drop(std::fs::remove_dir(&after));
        }
        if has_before { std::fs::rename(before, &after) } else { Ok(()) }
    }

    /// Removes what was made here below the place; returns how many files stay, which others have made.
    pub(crate) fn clear(&self) -> io::Result<usize> {
        self.clear_directory(&self.root)
    }

    fn clear_directory(&self, directory: &Path) -> io::Result<usize> {
        let mut left = 0;
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                let below = self.clear_directory(&entry.path())?;
                if below == 0 {
                    std::fs::remove_dir(entry.path())?;
                }
                left += below;
            } else if kind.is_socket() || self.made.lock().contains_key(&entry.metadata()?.ino()) {
                std::fs::remove_file(entry.path())?;
            } else {
                left += 1;
            }
        }
        Ok(left)
    }
}

/// Copies all bytes of `from`, wherever its offset is, to the empty file `to`.
fn copy_content(from: &File, to: &mut File) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    let (mut at, mut piece) = (0, vec![0; 1 << 18]);
    loop {
        match from.read_at(&mut piece, at)? {
            0 => return Ok(()),
            read => {
                to.write_all(&piece[..read])?;
                at += read as u64;
            }
        }
    }
}
