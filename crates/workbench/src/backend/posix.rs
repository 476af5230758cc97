// SPDX-License-Identifier: Apache-2.0
//! POSIX: datasets are directories and objects are files of one directory tree.
//!
//! ```text
//! <target>/working-set.json                the marker
//! <target>/rank-<n>/set-<d>/object-<p>     an object
//! ```
//! Calls are those of an ordinary program: `open`, `write`, `read`, `close`, `stat`, `unlink` on
//! paths relative to the target. Nothing is synced. Removal follows no symbolic links and removes
//! only names of this form. Concurrency: connections share the target's descriptor and nothing
//! else.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, fstat, mkdirat, open, openat, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::{Errno, read, retry_on_intr, write};

use super::{Backend, BackendConnection, MARKER_BYTES_MAX, is_numbered, taken};
use crate::pattern::{DatasetId, ObjectId, WorkingSetSize};
use crate::working_set::WorkingSetMarker;

const MARKER: &str = "working-set.json";
const NEW_MARKER: &str = "working-set.json.new";
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// Bytes that a read asks for beyond the expected size, so that it sees the end of the file.
const READ_AHEAD_BYTES: usize = 4_096;

/// A directory of a file system.
#[derive(Debug)]
pub struct PosixBackend {
    path: PathBuf,
    parent: OwnedFd,
}

impl PosixBackend {
    /// The working set in the directory `path`, which is made when the run begins.
    ///
    /// # Errors
    /// `NotFound` if its parent directory is absent; `NotADirectory` if it is a file.
    pub fn new(path: &Path) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let made = match mkdirat(rustix::fs::CWD, path, DIRECTORY_MODE) {
            Ok(()) | Err(Errno::EXIST) => open(path, flags, Mode::empty()),
            Err(error) => Err(error),
        };
        let parent = made.map_err(|error| failed(error, path.display()))?;
        Ok(Self { path: path.to_owned(), parent })
    }

    fn names(&self, directory: BorrowedFd<'_>) -> Result<Vec<String>> {
        let failed = |error| failed(error, self.path.display());
        let mut names = Vec::new();
        for entry in Dir::read_from(directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// True if a crash has left a marker that was about to be put in place.
    fn has_new_marker(&self) -> Result<bool> {
        match read_file(self.parent.as_fd(), NEW_MARKER, MARKER_BYTES_MAX as usize) {
            Ok(bytes) => Ok(WorkingSetMarker::may_begin_with(&bytes)),
            Err(Errno::NOENT | Errno::LOOP | Errno::INVAL | Errno::FBIG) => Ok(false),
            Err(error) => Err(failed(error, self.path.join(NEW_MARKER).display())),
        }
    }

    fn write_new_marker(&self, marker: &[u8]) -> Result<()> {
        let root = self.parent.as_fd();
        // Never through a link that another user made.
        self.remove(root, NEW_MARKER, AtFlags::empty())?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        openat(root, NEW_MARKER, flags, FILE_MODE)
            .and_then(|file| write_all(&file, marker))
            .map_err(|error| failed(error, self.path.join(NEW_MARKER).display()))
    }

    fn has_others(&self) -> Error {
        let what = "has other files; name a new or an empty directory";
        Error::new(Kind::NotEmpty, format!("{} {what}", self.path.display()))
    }

    /// Opens a directory of the working set without following a symbolic link.
    fn open_below(&self, directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        openat(directory, name, flags, Mode::empty())
            .map_err(|error| failed(error, self.path.join(name).display()))
    }

    fn remove(&self, directory: BorrowedFd<'_>, name: &str, flags: AtFlags) -> Result<()> {
        match unlinkat(directory, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let what = "has files that are not of a working set, which stay; move them away \
                            and repeat the cleanup";
                let context = format!("{}/…/{name} {what}", self.path.display());
                Err(Error::new(Kind::NotEmpty, context))
            }
            Err(error) => Err(failed(error, self.path.join(name).display())),
        }
    }
}

impl Backend for PosixBackend {
    fn target(&self) -> String {
        self.path.display().to_string()
    }

    fn kind(&self) -> &'static str {
        "posix"
    }

    fn connect(&self, _: u32, _: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        let path = String::new();
        Ok(Box::new(PosixConnection { root: self.parent.as_fd(), target: &self.path, path }))
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        let root = self.parent.as_fd();
        match read_file(root, MARKER, MARKER_BYTES_MAX as usize) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed(error, self.path.join(MARKER).display())),
        }
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        let root = self.parent.as_fd();
        let is_known = self.read_marker()?.is_some();
        let has_new = self.has_new_marker()?;
        let is_other = |name: &String| name != MARKER && !(has_new && name == NEW_MARKER);
        if !is_known && self.names(root)?.iter().any(is_other) {
            return Err(self.has_others());
        }
        self.write_new_marker(marker)?;
        renameat(root, NEW_MARKER, root, MARKER)
            .map_err(|error| failed(error, self.path.join(MARKER).display()))
    }

    fn create_marker(&self, marker: &[u8]) -> Result<()> {
        let root = self.parent.as_fd();
        let has_new = self.has_new_marker()?;
        if self.read_marker()?.is_some() {
            return Err(taken(&self.target()));
        }
        if self.names(root)?.iter().any(|name| !(has_new && name == NEW_MARKER)) {
            return Err(self.has_others());
        }
        self.write_new_marker(marker)?;
        match renameat_with(root, NEW_MARKER, root, MARKER, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => Err(taken(&self.target())),
            renamed => renamed.map_err(|error| failed(error, self.path.join(MARKER).display())),
        }
    }

    fn clear(&self) -> Result<u64> {
        let root = self.parent.as_fd();
        if self.read_marker()?.is_none() {
            if self.has_new_marker()? {
                self.remove(root, NEW_MARKER, AtFlags::empty())?;
                let _ = std::fs::remove_dir(&self.path);
                return Ok(0);
            }
            let what = "there is no working set of the workbench";
            return Err(Error::new(Kind::NotFound, format!("{}: {what}", self.path.display())));
        }
        let mut objects = 0;
        for rank in self.names(root)?.iter().filter(|name| is_numbered(name.as_bytes(), "rank-")) {
            let sets = self.open_below(root, rank)?;
            for set in
                self.names(sets.as_fd())?.iter().filter(|name| is_numbered(name.as_bytes(), "set-"))
            {
                let inside = self.open_below(sets.as_fd(), set)?;
                for object in self.names(inside.as_fd())? {
                    if is_numbered(object.as_bytes(), "object-") {
                        self.remove(inside.as_fd(), &object, AtFlags::empty())?;
                        objects += 1;
                    }
                }
                self.remove(sets.as_fd(), set, AtFlags::REMOVEDIR)?;
            }
            self.remove(root, rank, AtFlags::REMOVEDIR)?;
        }
        self.remove(root, NEW_MARKER, AtFlags::empty())?;
        self.remove(root, MARKER, AtFlags::empty())?;
        // The directory stays if the user has put something else there meanwhile, or owns only it.
        let _ = std::fs::remove_dir(&self.path);
        Ok(objects)
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.path)
    }
}

fn failed(error: Errno, what: impl std::fmt::Display) -> Error {
    Error::io(error.into(), what.to_string())
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        let count = retry_on_intr(|| write(file, bytes))?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Reads a regular file of at most `bytes_max`; fails with `LOOP` for a link and `INVAL` for other
/// kinds.
fn read_file(root: BorrowedFd<'_>, path: &str, bytes_max: usize) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // A pipe must not keep the open waiting.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = openat(root, path, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    read_all(&file, &mut bytes, bytes_max)?;
    Ok(bytes)
}

/// Reads `file` to its end over `bytes`; fails with `FBIG` over `bytes_max`.
fn read_all(file: &OwnedFd, bytes: &mut Vec<u8>, bytes_max: usize) -> rustix::io::Result<()> {
    let mut filled = 0;
    bytes.resize(bytes.capacity().clamp(READ_AHEAD_BYTES, bytes_max + READ_AHEAD_BYTES), 0);
    loop {
        let count = retry_on_intr(|| read(file, &mut bytes[filled..]))?;
        filled += count;
        if count == 0 {
            bytes.truncate(filled);
            return Ok(());
        }
        if filled > bytes_max {
            return Err(Errno::FBIG);
        }
        if filled == bytes.len() {
            bytes.resize(filled * 2, 0);
        }
    }
}

struct PosixConnection<'a> {
    root: BorrowedFd<'a>,
    target: &'a Path,
    /// The path of the current call; reused.
    path: String,
}

impl PosixConnection<'_> {
    fn set_path(&mut self, path: impl std::fmt::Display) {
        self.path.clear();
        write!(self.path, "{path}").expect("strings grow");
    }

    fn failed(&self, error: Errno) -> Error {
        failed(error, self.target.join(&self.path).display())
    }
}

impl BackendConnection for PosixConnection<'_> {
    fn add_rank(&mut self, rank: u32) -> Result<()> {
        self.set_path(format_args!("rank-{rank}"));
        match mkdirat(self.root, &*self.path, DIRECTORY_MODE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => {
                // A link would lead all calls of the rank elsewhere.
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened = openat(self.root, &*self.path, flags, Mode::empty());
                opened.map(drop).map_err(|error| self.failed(error))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn remove_rank(&mut self, rank: u32) -> Result<()> {
        self.set_path(format_args!("rank-{rank}"));
        unlinkat(self.root, &*self.path, AtFlags::REMOVEDIR).map_err(|error| self.failed(error))
    }

    fn mkdir(&mut self, dataset: DatasetId) -> Result<()> {
        self.set_path(dataset);
        mkdirat(self.root, &*self.path, DIRECTORY_MODE).map_err(|error| self.failed(error))
    }

    fn rmdir(&mut self, dataset: DatasetId) -> Result<()> {
        self.set_path(dataset);
        unlinkat(self.root, &*self.path, AtFlags::REMOVEDIR).map_err(|error| self.failed(error))
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        self.set_path(object);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        openat(self.root, &*self.path, flags, FILE_MODE)
            .and_then(|file| write_all(&file, content))
            .map_err(|error| self.failed(error))
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        self.set_path(object);
        let found = statat(self.root, &*self.path, AtFlags::SYMLINK_NOFOLLOW);
        found.map(|stat| stat.st_size.cast_unsigned()).map_err(|error| self.failed(error))
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        self.set_path(object);
        openat(self.root, &*self.path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| read_all(&file, content, crate::pattern::OBJECT_BYTES_MAX as usize))
            .map_err(|error| self.failed(error))
    }

    fn delete(&mut self, object: ObjectId) -> Result<()> {
        self.set_path(object);
        unlinkat(self.root, &*self.path, AtFlags::empty()).map_err(|error| self.failed(error))
    }

    fn list(&mut self, dataset: DatasetId, with_attributes: bool) -> Result<u64> {
        self.set_path(dataset);
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let list = || {
            let directory = openat(self.root, &*self.path, flags, Mode::empty())?;
            let mut objects = 0;
            for entry in Dir::read_from(&directory)? {
                let entry = entry?;
                if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                    continue;
                }
                if with_attributes {
                    match statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                        // Another rank may delete it between the two calls.
                        Ok(_) | Err(Errno::NOENT) => {}
                        Err(error) => return Err(error),
                    }
                }
                objects += 1;
            }
            Ok(objects)
        };
        list().map_err(|error| self.failed(error))
    }

    fn rename(&mut self, old: ObjectId, new: ObjectId) -> Result<()> {
        self.set_path(old);
        let new = new.to_string();
        let flags = RenameFlags::NOREPLACE;
        renameat_with(self.root, &*self.path, self.root, &*new, flags)
            .map_err(|error| self.failed(error))
    }
}
