// SPDX-License-Identifier: Apache-2.0
//! Import: brings a tree of a real file system into a session.
//!
//! Path of a file: `queue` hands directories to threads → `source` reads attributes → `adopt`
//! writes the content and one record. Further names of a file are linked at the end, when the first
//! is sure to exist; directories get their times at the end, since entries change them. Entries
//! that cannot be read are left out and become problems in the tally; a failing store, or a target
//! that may not be written, ends the import.
//! Invariant: nothing outside the source is read, even if other users rename and plant files in it
//! meanwhile: `source` works with directory handles.

mod queue;
mod source;

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use hashbrown::HashMap;
use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};

use self::queue::{ImportJob, ImportQueue};
use crate::inode::{FileKind, Inode};
use crate::ops::RenameFlags;
use crate::session::Session;
use crate::stack::dir::Dir;
use crate::stack::identity::{EXECUTE, WRITE};
use crate::traversal::tally::TransferTally;

/// Options of an import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Threads that read the source. More of them hide network latency, but do not save CPU time.
    pub threads: usize,
    /// True to leave directories empty on which another file system is mounted.
    pub one_file_system: bool,
    /// Device and inode number of a directory to leave out: the store itself, if it is within the
    /// source.
    pub excluded: Option<(u64, u64)>,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self { threads: 4, one_file_system: false, excluded: None }
    }
}

/// Place of an imported file: its directory and its name there.
type ImportedName = (Dir, Vec<u8>);

/// A further name of a file that was seen before.
struct FurtherName {
    /// Device and inode number.
    file: (u64, u64),
    made: ImportedName,
    /// The source directory that contains it; it has the same name there.
    source: Arc<OwnedFd>,
    path: PathBuf,
}

/// A file of the source.
#[derive(Clone, Copy)]
struct SourceFile<'a> {
    dir: &'a Arc<OwnedFd>,
    name: &'a [u8],
    /// Path shown in errors.
    path: &'a Path,
}

struct ImportRun<'a> {
    session: &'a Session,
    options: &'a ImportOptions,
    tally: &'a TransferTally,
    device: u64,
    queue: ImportQueue,
    /// Guards the first name of every file with several, by device and inode number.
    first_names: Mutex<HashMap<(u64, u64), ImportedName>>,
    /// Guards further names of such files.
    further_names: Mutex<Vec<FurtherName>>,
    /// Guards directories that wait for their attributes.
    directories: Mutex<Vec<(Option<ImportedName>, Inode, PathBuf)>>,
    /// Guards the error that ends the import.
    failure: Mutex<Option<Error>>,
}

impl Session {
    /// Imports the entries of the real directory `source` into `target`, and gives `target` its
    /// attributes. Directories merge with existing ones; other entries are replaced, except that a
    /// file never replaces a directory. Entries that could not be imported are in `tally`.
    ///
    /// Survives a crash as the session's durability promises. Cost: one record per file, its bytes
    /// to data logs.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` for `source`; `Denied` where the session's identity may not
    /// write; errors that end a session: `Fenced`, `NoSpace`, `Unavailable`, `Closed`.
    pub fn import(
        &self,
        source: &Path,
        target: &Dir,
        options: &ImportOptions,
        tally: &TransferTally,
    ) -> Result<()> {
        let failed = |error: rustix::io::Errno| match error {
            rustix::io::Errno::NOTDIR => {
                let what = format!(
                    "{}: not a directory; for one file see `esker put --help`",
                    source.display()
                );
                Error::new(Kind::NotADirectory, what)
            }
            error => Error::io(error.into(), format!("open {}", source.display())),
        };
        // Follows a link only if the caller names it. Fails as a whole if nothing can be read at
        // all.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::openat(CWD, source, flags, Mode::empty()).map_err(failed)?;
        let stat = rustix::fs::fstat(&top).map_err(failed)?;
        let import = ImportRun {
            session: self,
            options,
            tally,
            device: stat.st_dev,
            queue: ImportQueue::default(),
            first_names: Mutex::default(),
            further_names: Mutex::default(),
            directories: Mutex::default(),
            failure: Mutex::default(),
        };
        import.queue.put(ImportJob {
            parent: Arc::new(top),
            name: b".".to_vec(),
            path: source.to_path_buf(),
            stat,
            target: target.clone(),
            made: target.location(),
        });
        tally.directory();
        std::thread::scope(|scope| {
            for _ in 1..options.threads.max(1) {
                scope.spawn(|| import.work());
            }
            import.work();
        });
        if let Some(error) = import.failure.lock().take() {
            return Err(error);
        }
        import.link_further_names()?;
        import.finish_directories()
    }
}

impl ImportRun<'_> {
    fn work(&self) {
        while let Some(job) = self.queue.take() {
            if let Err(error) = self.directory(&job) {
                self.failure.lock().get_or_insert(error);
                self.queue.stop();
            }
            self.queue.done();
        }
    }

    fn directory(&self, job: &ImportJob) -> Result<()> {
        let opened = source::open_directory(&job.parent, &job.name)
            .and_then(|dir| source::stat_open(&dir).map(|stat| (Arc::new(dir), stat)));
        let (dir, stat) = match opened {
            Ok((dir, stat)) => (Some(dir), stat),
            Err(error) => {
                self.problem(&job.path, error);
                (None, job.stat)
            }
        };
        let mut inode =
            source::inode_of(&stat, self.session.namespace().identity(), self.session.now_ns());
        if let Some(dir) = &dir {
            inode.xattrs = self.xattrs_of(dir, &job.path);
        }
        self.directories.lock().push((job.made.clone(), inode, job.path.clone()));
        let Some(dir) = dir else { return Ok(()) };
        if self.is_excluded(&stat) {
            self.problem(&job.path, source::became_another());
        } else if !self.options.one_file_system || stat.st_dev == self.device {
            self.entries(job, &dir)?;
        }
        Ok(())
    }

    fn entries(&self, job: &ImportJob, dir: &Arc<OwnedFd>) -> Result<()> {
        let failed = |error| self.problem(&job.path, source::failure(error, "list"));
        let entries = match rustix::fs::Dir::read_from(dir) {
            Ok(entries) => entries,
            Err(error) => {
                failed(error);
                return Ok(());
            }
        };
        for entry in entries {
            match entry {
                Ok(entry) => {
                    let name = entry.file_name().to_bytes();
                    if name != b"." && name != b".." {
                        let path = job.path.join(OsStr::from_bytes(name));
                        let file = SourceFile { dir, name, path: &path };
                        self.report(&path, self.entry(&job.target, file))?;
                    }
                }
                Err(error) => {
                    failed(error);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn is_excluded(&self, stat: &Stat) -> bool {
        self.options.excluded == Some(source::number_of(stat))
    }

    /// Turns an error about one entry into a problem, and returns one that ends the session.
    fn report(&self, path: &Path, done: Result<(), ImportFailure>) -> Result<()> {
        match done {
            Ok(()) => Ok(()),
            Err(ImportFailure::Entry(error)) => {
                self.problem(path, error);
                Ok(())
            }
            Err(ImportFailure::Session(error)) => {
                Err(error.within(format!("put {} into the target", path.display())))
            }
        }
    }

    fn problem(&self, path: &Path, error: Error) {
        self.tally.problem(path.as_os_str().as_bytes(), error);
    }

    /// Returns the extended attributes; none if they cannot be read or exceed the limits.
    fn xattrs_of(&self, file: impl AsFd, path: &Path) -> Vec<u8> {
        self.xattrs_or_none(source::xattrs_of(file, self.session.namespace().identity()), path)
    }

    fn xattrs_or_none(&self, read: Result<Vec<u8>>, path: &Path) -> Vec<u8> {
        read.unwrap_or_else(|error| {
            self.problem(path, error.within("without its extended attributes"));
            Vec::new()
        })
    }

    fn entry(&self, target: &Dir, source: SourceFile) -> Result<(), ImportFailure> {
        let stat = source::stat(source.dir, source.name).map_err(ImportFailure::Entry)?;
        if source::type_of(&stat) == FileType::Directory {
            return self.subdirectory(target, source, stat);
        }
        if stat.st_nlink <= 1 {
            return self.file(target, source, &stat);
        }
        let file = source::number_of(&stat);
        let made = (target.clone(), source.name.to_vec());
        let mut first_names = self.first_names.lock();
        if first_names.contains_key(&file) {
            drop(first_names);
            let (dir, path) = (source.dir.clone(), source.path.to_path_buf());
            self.further_names.lock().push(FurtherName { file, made, source: dir, path });
            return Ok(());
        }
        first_names.insert(file, made);
        drop(first_names);
        let done = self.file(target, source, &stat);
        if done.is_err() {
            // Another name may be readable, or allowed in the target.
            self.first_names.lock().remove(&file);
        }
        done
    }

    fn subdirectory(&self, dir: &Dir, source: SourceFile, stat: Stat) -> Result<(), ImportFailure> {
        if self.is_excluded(&stat) {
            let what = "left out: it is the store itself";
            return Err(ImportFailure::Entry(Error::new(Kind::Invalid, what)));
        }
        let (session, name) = (self.session, source.name);
        let existing = self.make_room(dir, name, true)?;
        let target = match existing {
            Some(existing) => {
                session.namespace().open_dir(dir, name, &existing).map_err(ImportFailure::of)?
            }
            // Its own mode may not let its owner fill it; it is set at the end.
            None => session.mkdir(dir, name, 0o700).map_err(ImportFailure::of)?,
        };
        self.tally.directory();
        self.queue.put(ImportJob {
            parent: source.dir.clone(),
            name: name.to_vec(),
            path: source.path.to_path_buf(),
            stat,
            target,
            made: Some((dir.clone(), name.to_vec())),
        });
        Ok(())
    }

    /// Imports a file other than a directory, which was `stat` when it was listed.
    fn file(&self, dir: &Dir, source: SourceFile, stat: &Stat) -> Result<(), ImportFailure> {
        let (session, name) = (self.session, source.name);
        let identity = session.namespace().identity();
        let mut inode = source::inode_of(stat, identity, session.now_ns());
        match inode.kind() {
            Some(FileKind::File) => return self.regular(dir, source, stat),
            Some(FileKind::Symlink) => {
                let target = rustix::fs::readlinkat(&**source.dir, name, Vec::new())
                    .map_err(|error| ImportFailure::Entry(source::failure(error, "read link")))?;
                inode.content = target.into_bytes();
                inode.size = inode.content.len() as u64;
            }
            Some(FileKind::CharDevice | FileKind::BlockDevice) if !identity.is_root() => {
                return Err(ImportFailure::Entry(crate::stack::identity::not_permitted(name)));
            }
            _ => {}
        }
        let xattrs = source::xattrs_at(source.dir, name, identity);
        inode.xattrs = self.xattrs_or_none(xattrs, source.path);
        self.make_room(dir, name, false)?;
        let is_symlink = inode.kind() == Some(FileKind::Symlink);
        session.adopt(dir, name, inode, None).map_err(ImportFailure::of)?;
        if is_symlink {
            self.tally.symlink()
        } else {
            self.tally.special()
        }
        Ok(())
    }

    fn regular(&self, dir: &Dir, source: SourceFile, listed: &Stat) -> Result<(), ImportFailure> {
        let (mut file, stat) =
            source::open(source.dir, source.name).map_err(ImportFailure::Entry)?;
        // Attributes are those of the file that is read; further names would belong to the other
        // one.
        let has_several = listed.st_nlink > 1 || stat.st_nlink > 1;
        if has_several && source::number_of(listed) != source::number_of(&stat) {
            return Err(ImportFailure::Entry(source::became_another()));
        }
        let session = self.session;
        let mut inode = source::inode_of(&stat, session.namespace().identity(), session.now_ns());
        inode.xattrs = self.xattrs_of(&file, source.path);
        let data_end = source::data_end(&file, &stat);
        if data_end.is_none() {
            // Its size is the number of bytes that can be read.
            inode.size = 0;
        }
        let mut left = data_end.unwrap_or(u64::MAX);
        let mut read_failed = false;
        let mut fill = |buffer: &mut [u8]| -> Result<usize> {
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let count = loop {
                match file.read(&mut buffer[..count]) {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    read => break read,
                }
            };
            let count = count.map_err(|error| {
                read_failed = true;
                source::failure(error, "read")
            })?;
            left -= count as u64;
            self.tally.bytes(count);
            Ok(count)
        };
        // A file that is there stays until the new one has all of its content.
        let spare_name = self.existing(dir, source.name)?;
        let spare_name =
            spare_name.map(|_| format!(".esker-import-{:x}-{:x}", stat.st_dev, stat.st_ino));
        let name = spare_name.as_ref().map_or(source.name, String::as_bytes);
        if spare_name.is_some() {
            let identity = session.namespace().identity();
            dir.check(identity, WRITE | EXECUTE, source.name).map_err(ImportFailure::of)?;
            // An import that died may have left it.
            let _ = session.unlink(dir, name);
        }
        match session.adopt(dir, name, inode, Some(&mut fill)) {
            Ok(_) => {}
            Err(error) if read_failed => return Err(ImportFailure::Entry(error)),
            Err(error) => return Err(ImportFailure::of(error)),
        }
        if spare_name.is_some() {
            let replaced = session.rename((dir, name), (dir, source.name), RenameFlags::Replace);
            replaced.map_err(|error| {
                let _ = session.unlink(dir, name);
                ImportFailure::of(error)
            })?;
        }
        self.tally.file();
        Ok(())
    }

    /// Returns the entry at `name`, and fails where it is a directory.
    fn existing(&self, dir: &Dir, name: &[u8]) -> Result<Option<Inode>, ImportFailure> {
        match self.session.namespace().lookup(dir, name, false) {
            Ok(existing) if existing.is_directory() => {
                let what =
                    "a directory exists there; remove it first with rm -r (`esker rm --help`)";
                Err(ImportFailure::Entry(Error::new(Kind::IsADirectory, what)))
            }
            Ok(existing) => Ok(Some(existing)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(ImportFailure::of(error)),
        }
    }

    /// Makes `name` available: returns an existing directory if a directory is to be imported, and
    /// removes anything else but a directory.
    fn make_room(
        &self,
        dir: &Dir,
        name: &[u8],
        directory: bool,
    ) -> Result<Option<Inode>, ImportFailure> {
        if directory {
            let found = self.session.namespace().lookup(dir, name, false);
            if found.as_ref().is_ok_and(Inode::is_directory) {
                return found.map(Some).map_err(ImportFailure::of);
            }
        }
        if self.existing(dir, name)?.is_some() {
            self.session.unlink(dir, name).map_err(ImportFailure::of)?;
        }
        Ok(None)
    }

    fn link_further_names(&self) -> Result<()> {
        let first_names = self.first_names.lock();
        for further in std::mem::take(&mut *self.further_names.lock()) {
            let ((dir, name), path) = (further.made, further.path);
            let done = match first_names.get(&further.file) {
                Some((first_dir, first_name)) => {
                    self.make_room(&dir, &name, false).and_then(|_| {
                        self.session
                            .link(first_dir, first_name, &dir, &name)
                            .map_err(ImportFailure::of)?;
                        self.tally.link();
                        Ok(())
                    })
                }
                // Its first name could not be read; this one may be readable.
                None => {
                    let source = SourceFile { dir: &further.source, name: &name, path: &path };
                    source::stat(source.dir, source.name)
                        .map_err(ImportFailure::Entry)
                        .and_then(|stat| self.file(&dir, source, &stat))
                }
            };
            self.report(&path, done)?;
        }
        Ok(())
    }

    /// Gives directories their attributes, inner before outer ones.
    fn finish_directories(&self) -> Result<()> {
        for (made, inode, path) in self.directories.lock().drain(..).rev() {
            let made = made.as_ref().map(|(dir, name)| (dir, name.as_slice()));
            let done = self.session.adopt_attributes(made, &inode).map_err(ImportFailure::of);
            self.report(&path, done)?;
        }
        Ok(())
    }
}

/// Scope of an error.
enum ImportFailure {
    /// Skips one entry.
    Entry(Error),
    /// Ends the session.
    Session(Error),
}

impl ImportFailure {
    /// Classifies an error of the session by its kind.
    fn of(error: Error) -> Self {
        match error.kind() {
            Kind::Invalid
            | Kind::TooLarge
            | Kind::Exists
            | Kind::NotFound
            | Kind::NotPermitted
            | Kind::Loop
            | Kind::FileTooLarge
            | Kind::TooManyLinks
            | Kind::IsADirectory
            | Kind::NotADirectory => Self::Entry(error),
            _ => Self::Session(error),
        }
    }
}
