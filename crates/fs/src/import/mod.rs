//! Import: a tree of a real file system as changes of a session.
//!
//! Path of a file: `queue` hands directories to threads → `source` reads attributes → `adopt`
//! writes content and the one record. Names of a file after its first wait for the end, when the
//! first is surely there; directories get their times at the end, since entries change them.
//! What cannot be read is left out and becomes a problem of the tally; a store that fails ends all.

mod queue;
mod source;

use std::fs::Metadata;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};
use hashbrown::HashMap;
use parking_lot::Mutex;

use self::queue::{Job, Queue};
use crate::dir::Dir;
use crate::inode::{FileKind, Inode};
use crate::session::Session;
use crate::tally::Tally;

/// How a tree is imported.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Threads that read the source: more hide the latency of a network, not of a processor.
    pub threads: usize,
    /// Whether directories on which another file system is mounted stay empty.
    pub one_file_system: bool,
    /// Device and inode number of a directory to leave out: the store itself, if it is within.
    pub excluded: Option<(u64, u64)>,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self { threads: 4, one_file_system: false, excluded: None }
    }
}

/// Where a file was put: its directory and its name there.
type Place = (Dir, Vec<u8>);

/// A further name of a file that was met before.
struct FurtherName {
    /// Device and inode number.
    file: (u64, u64),
    place: Place,
    source: PathBuf,
}

struct Import<'a> {
    session: &'a Session,
    options: &'a ImportOptions,
    tally: &'a Tally,
    device: u64,
    queue: Queue,
    /// Guards the first place of every file with several names, by device and inode number.
    first_places: Mutex<HashMap<(u64, u64), Place>>,
    /// Guards further names of such files.
    further_names: Mutex<Vec<FurtherName>>,
    /// Guards directories that wait for their attributes.
    directories: Mutex<Vec<(Option<Place>, Inode, PathBuf)>>,
    /// Guards the error that ends the import.
    failure: Mutex<Option<Error>>,
}

impl Session {
    /// Imports the entries of the real directory `source` into `target`, and gives `target` its
    /// attributes. Directories merge with those that are there; other entries are replaced, except
    /// that a file never replaces a directory. What could not be imported is in `tally`.
    ///
    /// Cost: a record a file, its bytes to data logs. Survives a crash as the session's durability
    /// says.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` for `source`, and what ends a session: `Fenced`, `NoSpace`,
    /// `Unavailable`, `Closed`.
    pub fn import(
        &self,
        source: &Path,
        target: &Dir,
        options: &ImportOptions,
        tally: &Tally,
    ) -> Result<()> {
        let context = || source.display().to_string();
        let metadata = std::fs::metadata(source).map_err(|error| Error::io(error, context()))?;
        if !metadata.is_dir() {
            let what = format!("{}: not a directory; use `esker put` for one file", context());
            return Err(Error::new(Kind::NotADirectory, what));
        }
        // Fails as a whole if nothing can be read at all.
        std::fs::read_dir(source).map_err(|error| Error::io(error, context()))?;
        let import = Import {
            session: self,
            options,
            tally,
            device: metadata.dev(),
            queue: Queue::default(),
            first_places: Mutex::default(),
            further_names: Mutex::default(),
            directories: Mutex::default(),
            failure: Mutex::default(),
        };
        let mut root = source::inode_of(&metadata, self.identity(), self.now_ns());
        root.xattrs = import.xattrs_of(source);
        import.directories.lock().push((target.place(), root, source.to_path_buf()));
        import.queue.put(Job { source: source.to_path_buf(), target: target.clone() });
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

impl Import<'_> {
    fn work(&self) {
        while let Some(job) = self.queue.take() {
            if let Err(error) = self.directory(&job) {
                self.failure.lock().get_or_insert(error);
                self.queue.stop();
            }
            self.queue.done();
        }
    }

    fn directory(&self, job: &Job) -> Result<()> {
        let entries = match std::fs::read_dir(&job.source) {
            Ok(entries) => entries,
            Err(error) => {
                self.problem(&job.source, source::failure(error, "list"));
                return Ok(());
            }
        };
        for entry in entries {
            match entry {
                Ok(entry) => {
                    let path = entry.path();
                    let name = entry.file_name();
                    self.settle(&path, self.entry(&job.target, name.as_bytes(), &path))?;
                }
                Err(error) => {
                    self.problem(&job.source, source::failure(error, "list"));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Makes errors that concern one entry a problem, and passes on those that end the session.
    fn settle(&self, path: &Path, done: Result<(), Failure>) -> Result<()> {
        match done {
            Ok(()) => Ok(()),
            Err(Failure::Entry(error)) => {
                self.problem(path, error);
                Ok(())
            }
            Err(Failure::Session(error)) => Err(error),
        }
    }

    fn problem(&self, path: &Path, error: Error) {
        self.tally.problem(path.as_os_str().as_bytes(), error);
    }

    /// Extended attributes; without any if they cannot be read or are over the limits.
    fn xattrs_of(&self, path: &Path) -> Vec<u8> {
        source::xattrs_of(path, self.session.identity()).unwrap_or_else(|error| {
            self.problem(path, error.within("without its extended attributes"));
            Vec::new()
        })
    }

    fn entry(&self, dir: &Dir, name: &[u8], path: &Path) -> Result<(), Failure> {
        let metadata = std::fs::symlink_metadata(path)
            .map_err(|error| Failure::Entry(source::failure(error, "stat")))?;
        let file = (metadata.dev(), metadata.ino());
        if metadata.is_dir() {
            return self.subdirectory(dir, name, path, &metadata);
        }
        if metadata.nlink() > 1 {
            let mut first_places = self.first_places.lock();
            if first_places.contains_key(&file) {
                drop(first_places);
                let place = (dir.clone(), name.to_vec());
                let source = path.to_path_buf();
                self.further_names.lock().push(FurtherName { file, place, source });
                return Ok(());
            }
            first_places.insert(file, (dir.clone(), name.to_vec()));
        }
        let made = self.file(dir, name, path, &metadata);
        if made.is_err() && metadata.nlink() > 1 {
            // Another name may be readable, or come to a better place.
            self.first_places.lock().remove(&file);
        }
        made
    }

    fn subdirectory(
        &self,
        dir: &Dir,
        name: &[u8],
        path: &Path,
        metadata: &Metadata,
    ) -> Result<(), Failure> {
        if self.options.excluded == Some((metadata.dev(), metadata.ino())) {
            let what = "left out: it is the store itself";
            return Err(Failure::Entry(Error::new(Kind::Invalid, what)));
        }
        let session = self.session;
        let mut inode = source::inode_of(metadata, session.identity(), session.now_ns());
        inode.xattrs = self.xattrs_of(path);
        let existing = self.make_room(dir, name, true)?;
        let target = match existing {
            Some(existing) => session.open_dir(dir, name, &existing).map_err(Failure::of)?,
            None => {
                // Its own mode may not let its owner fill it; that comes at the end.
                let mode = inode.mode | 0o700;
                session.mkdir(dir, name, mode).map_err(Failure::of)?
            }
        };
        let place = Some((dir.clone(), name.to_vec()));
        self.directories.lock().push((place, inode, path.to_path_buf()));
        self.tally.directory();
        if !self.options.one_file_system || metadata.dev() == self.device {
            self.queue.put(Job { source: path.to_path_buf(), target });
        }
        Ok(())
    }

    fn file(
        &self,
        dir: &Dir,
        name: &[u8],
        path: &Path,
        metadata: &Metadata,
    ) -> Result<(), Failure> {
        let session = self.session;
        let identity = session.identity();
        let mut inode = source::inode_of(metadata, identity, session.now_ns());
        inode.xattrs = self.xattrs_of(path);
        match inode.kind() {
            Some(FileKind::File) => return self.regular(dir, name, path, inode),
            Some(FileKind::Symlink) => {
                let target = std::fs::read_link(path)
                    .map_err(|error| Failure::Entry(source::failure(error, "read link")))?;
                inode.content = target.as_os_str().as_bytes().to_vec();
                inode.size = inode.content.len() as u64;
            }
            Some(FileKind::CharDevice | FileKind::BlockDevice) if !identity.is_root() => {
                return Err(Failure::Entry(crate::identity::not_permitted(name)));
            }
            _ => {}
        }
        self.make_room(dir, name, false)?;
        let is_symlink = inode.kind() == Some(FileKind::Symlink);
        session.adopt(dir, name, inode, None).map_err(Failure::of)?;
        if is_symlink {
            self.tally.symlink()
        } else {
            self.tally.special()
        }
        Ok(())
    }

    fn regular(
        &self,
        dir: &Dir,
        name: &[u8],
        path: &Path,
        mut inode: Inode,
    ) -> Result<(), Failure> {
        let mut file = source::open(path).map_err(Failure::Entry)?;
        let metadata =
            file.metadata().map_err(|error| Failure::Entry(source::failure(error, "stat")))?;
        let data_end = source::data_end(&file, &metadata);
        inode.size = if data_end.is_some() { metadata.size() } else { 0 };
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
        self.make_room(dir, name, false)?;
        let adopted = self.session.adopt(dir, name, inode, Some(&mut fill));
        match adopted {
            Ok(_) => {
                self.tally.file();
                Ok(())
            }
            Err(error) if read_failed => Err(Failure::Entry(error)),
            Err(error) => Err(Failure::of(error)),
        }
    }

    /// Makes sure that `name` is free: of what a base has there, a directory is returned if one is
    /// to come, and anything else is removed.
    fn make_room(&self, dir: &Dir, name: &[u8], directory: bool) -> Result<Option<Inode>, Failure> {
        let existing = match self.session.lookup(dir, name, false) {
            Ok(existing) => existing,
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::of(error)),
        };
        match (existing.is_directory(), directory) {
            (true, true) => Ok(Some(existing)),
            (true, false) => {
                let what = "a directory is there already; remove it first: `esker rm -r`";
                Err(Failure::Entry(Error::new(Kind::IsADirectory, what)))
            }
            (false, _) => {
                self.session.unlink(dir, name).map_err(Failure::of)?;
                Ok(None)
            }
        }
    }

    fn link_further_names(&self) -> Result<()> {
        let first_places = self.first_places.lock();
        for further in std::mem::take(&mut *self.further_names.lock()) {
            let ((dir, name), path) = (further.place, further.source);
            let done = match first_places.get(&further.file) {
                Some((first_dir, first_name)) => {
                    self.make_room(&dir, &name, false).and_then(|_| {
                        self.session
                            .link(first_dir, first_name, &dir, &name)
                            .map_err(Failure::of)?;
                        self.tally.link();
                        Ok(())
                    })
                }
                // Its first name could not be read: this one may be.
                None => std::fs::symlink_metadata(&path)
                    .map_err(|error| Failure::Entry(source::failure(error, "stat")))
                    .and_then(|metadata| self.file(&dir, &name, &path, &metadata)),
            };
            self.settle(&path, done)?;
        }
        Ok(())
    }

    /// Directories get their attributes, those within before those around.
    fn finish_directories(&self) -> Result<()> {
        for (place, inode, path) in self.directories.lock().drain(..).rev() {
            let place = place.as_ref().map(|(dir, name)| (dir, name.as_slice()));
            let done = self.session.adopt_attributes(place, &inode).map_err(Failure::of);
            self.settle(&path, done)?;
        }
        Ok(())
    }
}

/// What an error ends.
enum Failure {
    /// One entry.
    Entry(Error),
    /// The session.
    Session(Error),
}

impl Failure {
    /// What an error of the session ends, by its kind.
    fn of(error: Error) -> Self {
        match error.kind() {
            Kind::Invalid
            | Kind::TooLarge
            | Kind::Exists
            | Kind::NotFound
            | Kind::Denied
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
