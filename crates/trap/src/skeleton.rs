// SPDX-License-Identifier: Apache-2.0
//! Skeleton: real, empty directories that stand for directories of the namespace which a process
//! has open or works in.
//!
//! The kernel keeps working directories and resolves relative paths of its own with them. The
//! skeleton also has the symbolic links on the way to a working directory, and programs while they
//! are executed. When the supervisor moves or removes something in the namespace, it does the same
//! here.
//!
//! Programs can plant links here, and links that were made here may be stale for a moment. The
//! supervisor may have more rights than these programs, so it follows no link: it reaches every
//! name from the descriptor of the root, within its mount. Permissions are those of the namespace,
//! and are checked there: a directory here belongs to the supervisor, and anyone may search it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esker_fs::inode::{FileKind, Inode};
use esker_fs::stack::dir::Dir;
use esker_fs::stack::namespace::Namespace;
use parking_lot::{Mutex, RwLock};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::resolve::Way;

/// The real directories below the place at which a namespace is shown.
#[derive(Debug)]
pub(crate) struct Skeleton {
    root: PathBuf,
    /// The directory at `root`, which this supervisor holds locked.
    top: OwnedFd,
    /// True once the skeleton has anything but directories.
    has_files: AtomicBool,
    /// Inode numbers of the real files and links that were made here, and for the copy of a program
    /// the time of the original's last change.
    made: Mutex<HashMap<u64, (i64, i64)>>,
    /// For names of copies that are being written.
    copies: AtomicU64,
    /// Locked for writing while names change in the namespace and here.
    pub(crate) structure: RwLock<()>,
}

impl Skeleton {
    /// The skeleton in the directory `root`.
    ///
    /// # Errors
    /// `WouldBlock` if another supervisor shows a namespace there.
    pub(crate) fn new(root: PathBuf) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = rustix::fs::open(&root, flags, Mode::empty())?;
        match rustix::fs::flock(&top, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            // Some network file systems lock no directories.
            Ok(()) | Err(Errno::BADF | Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(Self {
            root,
            top,
            has_files: AtomicBool::new(false),
            made: Mutex::default(),
            copies: AtomicU64::new(0),
            structure: RwLock::default(),
        })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The real directory at the root.
    pub(crate) fn top(&self) -> &OwnedFd {
        &self.top
    }

    /// Opens the directory that stands for `dir` to be read, after making it unless it is there.
    ///
    /// # Errors
    /// `NotFound` if `dir` was removed.
    pub(crate) fn open_directory(&self, dir: &Dir, flags: OFlags) -> io::Result<File> {
        let _shape = self.structure.read();
        let directory = self.directory(dir)?;
        Ok(open_below(&directory, b".", flags | OFlags::RDONLY)?.into())
    }

    /// Makes the directory that stands for `dir`.
    ///
    /// # Errors
    /// As [`Skeleton::open_directory`].
    pub(crate) fn make_directory(&self, dir: &Dir) -> io::Result<()> {
        let _shape = self.structure.read();
        self.directory(dir).map(drop)
    }

    /// Makes the directory that stands for `dir`, in which the kernel is about to make something
    /// for the user `uid`.
    pub(crate) fn make_writable_directory(&self, dir: &Dir, uid: u32) -> io::Result<()> {
        let _shape = self.structure.read();
        let directory = self.directory(dir)?;
        self.has_files.store(true, Ordering::Release);
        if rustix::process::geteuid().is_root() {
            let owner = rustix::fs::Uid::from_raw(uid);
            rustix::fs::chownat(&directory, "", Some(owner), None, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    /// The directory that stands for `dir`, if it is there.
    fn existing(&self, dir: &Dir) -> Option<OwnedFd> {
        self.open_names(&names_of(dir)).ok()
    }

    /// Opens the directory to which `names` lead from the root.
    fn open_names(&self, names: &[Vec<u8>]) -> Result<OwnedFd, Errno> {
        let root = || open_below(&self.top, b".", OFlags::PATH);
        if names.is_empty() {
            return root();
        }
        match open_below(&self.top, &names.join(&b'/'), OFlags::PATH) {
            // Too long for one call.
            Err(Errno::NAMETOOLONG) => {
                names.iter().try_fold(root()?, |at, name| open_below(&at, name, OFlags::PATH))
            }
            opened => opened,
        }
    }

    /// The directory that stands for `dir`, which is made unless it is there. The caller holds
    /// `structure`.
    fn directory(&self, dir: &Dir) -> io::Result<OwnedFd> {
        if dir.is_removed() {
            return Err(Errno::NOENT.into());
        }
        let names = names_of(dir);
        if let Ok(opened) = self.open_names(&names) {
            return Ok(opened);
        }
        let mut at = self.open_names(&[])?;
        for name in &names {
            at = self.enter(&at, name)?;
        }
        Ok(at)
    }

    fn enter(&self, parent: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
        match open_below(parent, name, OFlags::PATH) {
            Err(Errno::NOENT) => {}
            // It stood for something else before.
            Err(Errno::NOTDIR | Errno::LOOP) => self.remove_made(parent, name)?,
            opened => return Ok(opened?),
        }
        let mode = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
        match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(open_below(parent, name, OFlags::PATH)?),
            Err(errno) => return Err(errno.into()),
        }
        // Independent of the umask.
        let made = open_below(parent, name, OFlags::RDONLY)?;
        rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?;
        Ok(made)
    }

    /// Removes `name` if the supervisor made it and it is not a directory, or if it is a socket
    /// that was bound here.
    fn remove_made(&self, parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
        let found = stat(parent, name)?;
        if !is_socket(&found) && !self.made.lock().contains_key(&found.st_ino) {
            return Err(Errno::EXIST.into());
        }
        self.remove_file(parent, name)
    }

    /// Removes `name` after its counterpart in the namespace was replaced.
    fn remove_stale(&self, parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
        match stat(parent, name) {
            Ok(found) if is_directory(&found) => self.remove_directory(parent, name),
            Ok(_) => self.remove_made(parent, name),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a directory, with any remaining entries.
    fn remove_directory(&self, parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY) => {
                self.clear_directory(&open_below(parent, name, OFlags::RDONLY)?)?;
                Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
            }
            removed => Ok(removed?),
        }
    }

    fn remove_file(&self, parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
        // Another file may get its number.
        if let Ok(known) = stat(parent, name) {
            self.made.lock().remove(&known.st_ino);
        }
        Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?)
    }

    /// Makes the links and directories that the kernel needs to follow a path itself, as far as
    /// they still are in `namespace`.
    pub(crate) fn make_way(&self, namespace: &Namespace, way: &Way) -> io::Result<()> {
        for (dir, name, target) in &way.links {
            self.make_link(namespace, dir, (name, target))?;
        }
        way.left.iter().try_for_each(|dir| self.make_directory(dir))
    }

    /// Makes the symbolic link `name` in `dir`, which leads to `target`.
    fn make_link(
        &self,
        namespace: &Namespace,
        dir: &Dir,
        (name, target): (&[u8], &[u8]),
    ) -> io::Result<()> {
        let _shape = self.structure.read();
        let is_there = namespace
            .lookup(dir, name, true)
            .is_ok_and(|inode| inode.kind() == Some(FileKind::Symlink) && inode.content == target);
        if !is_there {
            // Names have changed since the path was followed.
            return Err(Errno::NOENT.into());
        }
        self.has_files.store(true, Ordering::Release);
        let parent = self.directory(dir)?;
        match rustix::fs::symlinkat(target, &parent, name) {
            Err(Errno::EXIST) => {
                let known = rustix::fs::readlinkat(&parent, name, Vec::new());
                if known.is_ok_and(|known| known.as_bytes() == target) {
                    return Ok(());
                }
                self.remove_stale(&parent, name)?;
                rustix::fs::symlinkat(target, &parent, name)?;
            }
            made => made?,
        }
        self.record(&parent, name, (0, 0))
    }

    /// Records that the file `name` was made here, of this version of its content.
    fn record(&self, parent: &OwnedFd, name: &[u8], version: (i64, i64)) -> io::Result<()> {
        let number = stat(parent, name)?.st_ino;
        self.made.lock().insert(number, version);
        Ok(())
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
        self.has_files.store(true, Ordering::Release);
        let parent = self.directory(dir)?;
        let wanted = content.metadata()?;
        // Every change of the content, and of its time, changes this one.
        let version = (wanted.ctime(), wanted.ctime_nsec());
        let is_root = rustix::process::geteuid().is_root();
        let is_same = |known: &Stat| {
            FileType::from_raw_mode(known.st_mode) == FileType::RegularFile
                && known.st_size.cast_unsigned() == wanted.len()
                && known.st_mode & 0o777 == inode.mode & 0o777
                && (!is_root || (known.st_uid, known.st_gid) == (inode.uid, inode.gid))
                && self.made.lock().get(&known.st_ino) == Some(&version)
        };
        if stat(&parent, name).is_ok_and(|known| is_same(&known)) {
            return Ok(());
        }
        // A program that runs cannot be written, so the copy is another file.
        let (temporary, copy) = self.create_copy(&parent)?;
        let placed = fill_copy(content, copy, inode).and_then(|()| {
            if stat(&parent, name).is_ok() {
                self.remove_stale(&parent, name)?;
            }
            Ok(rustix::fs::renameat(&parent, &temporary, &parent, name)?)
        });
        if placed.is_err() {
            let _ = rustix::fs::unlinkat(&parent, &temporary, AtFlags::empty());
        }
        placed?;
        self.record(&parent, name, version)
    }

    /// Makes a new file under a name that no program uses.
    fn create_copy(&self, parent: &OwnedFd) -> io::Result<(String, File)> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        loop {
            let number = self.copies.fetch_add(1, Ordering::Relaxed);
            let name = format!(".esker-{}-{number}", std::process::id());
            match rustix::fs::openat(parent, &name, flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => return Ok((name, file.into())),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Removes the counterpart of `name` in `dir`, which is gone from the namespace. The caller
    /// holds `structure` for writing.
    pub(crate) fn removed(&self, dir: &Dir, name: &[u8], is_directory: bool) {
        if !is_directory && !self.has_files.load(Ordering::Acquire) {
            return;
        }
        // Most names have nothing here.
        let Some(parent) = self.existing(dir) else { return };
        let removed = match is_directory {
            true => self.remove_directory(&parent, name),
            false => self.remove_file(&parent, name),
        };
        drop(removed);
    }

    /// Moves the counterpart of `old` to `new`, each a name in a directory, or exchanges the two.
    /// The caller holds `structure` for writing.
    pub(crate) fn moved(
        &self,
        old: (&Dir, &[u8]),
        new: (&Dir, &[u8]),
        is_exchange: bool,
    ) -> io::Result<()> {
        let has = |parent: &Option<OwnedFd>, name: &[u8]| {
            parent.as_ref().is_some_and(|parent| stat(parent, name).is_ok())
        };
        let has_old = has(&self.existing(old.0), old.1);
        let has_new = has(&self.existing(new.0), new.1);
        if !has_old && !has_new {
            return Ok(());
        }
        let (from, to) = (self.directory(old.0)?, self.directory(new.0)?);
        if is_exchange && has_old && has_new {
            return Ok(rustix::fs::renameat_with(&from, old.1, &to, new.1, RenameFlags::EXCHANGE)?);
        }
        if is_exchange && has_new {
            return Ok(rustix::fs::renameat(&to, new.1, &from, old.1)?);
        }
        if has_new && self.remove_file(&to, new.1).is_err() {
            drop(self.remove_directory(&to, new.1));
        }
        if has_old {
            rustix::fs::renameat(&from, old.1, &to, new.1)?;
        }
        Ok(())
    }

    /// Removes everything that the supervisor made below the place; returns the number of files
    /// that others made, which stay.
    pub(crate) fn clear(&self) -> io::Result<usize> {
        self.clear_directory(&open_below(&self.top, b".", OFlags::RDONLY)?)
    }

    fn clear_directory(&self, directory: &OwnedFd) -> io::Result<usize> {
        let mut left = 0;
        let entries: Vec<_> = rustix::fs::Dir::read_from(directory)?.collect::<Result<_, _>>()?;
        for entry in entries {
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let found = stat(directory, name)?;
            if is_directory(&found) {
                let below = match open_below(directory, name, OFlags::RDONLY) {
                    Ok(below) => self.clear_directory(&below)?,
                    // Something was mounted there.
                    Err(Errno::XDEV) => 1,
                    Err(errno) => return Err(errno.into()),
                };
                if below == 0 {
                    rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
                }
                left += below;
            } else if is_socket(&found) || self.made.lock().contains_key(&found.st_ino) {
                rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
            } else {
                left += 1;
            }
        }
        Ok(left)
    }
}

/// The names that lead from the root to `dir`.
fn names_of(dir: &Dir) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut at = dir.clone();
    while let Some((parent, name)) = at.location() {
        names.push(name);
        at = parent;
    }
    names.reverse();
    names
}

/// Opens the directory `name` in `parent`, without following a link or leaving the mount.
fn open_below(parent: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        match rustix::fs::openat2(&parent, OsStr::from_bytes(name), flags, Mode::empty(), within) {
            // Names outside changed meanwhile.
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
}

/// The attributes of `name` itself.
fn stat(parent: &OwnedFd, name: &[u8]) -> Result<Stat, Errno> {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn is_directory(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Directory
}

fn is_socket(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Socket
}

/// Makes `copy` the program `inode` with the bytes of `content`. The kernel executes no file that
/// is open for writing.
fn fill_copy(content: &File, mut copy: File, inode: &Inode) -> io::Result<()> {
    copy_content(content, &mut copy)?;
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::fchown(&copy, Some(inode.uid), Some(inode.gid))?;
    }
    copy.set_permissions(Permissions::from_mode(inode.mode & 0o777))
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
