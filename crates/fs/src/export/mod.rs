//! Export: a tree of a namespace as real files, complete and faithful.
//!
//! Path of a file: the walk makes directories and hands files to threads, which write content and
//! `attributes`. Further names of a file are linked at the end, when the first is surely there;
//! directories get their mode and times at the very end, since entries need and change them.
//! The content of every file is checked against its checksum. What cannot be written is left out
//! and becomes a problem of the tally; a full disk or a store that fails ends all.

mod attributes;

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use esker_base::{Error, Kind, Result};
use hashbrown::HashMap;
use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode};

use self::attributes::{Owner, failure};
use crate::inode::{FileKind, Inode};
use crate::namespace::{Follow, Namespace};
use crate::tally::Tally;
use crate::walk::{Next, Order, Step, Visit};

/// Files that wait for a thread.
const JOBS_MAX: usize = 1024;
/// Aligned pieces of zeros of this size become holes: a few blocks of any file system.
const HOLE_BYTES: usize = 64 << 10;

/// How a tree is exported.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// Threads that write files.
    pub threads: usize,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self { threads: 4 }
    }
}

struct Job {
    path: PathBuf,
    inode: Inode,
}

struct Export<'a> {
    namespace: &'a Namespace,
    tally: &'a Tally,
    owners_dropped: AtomicBool,
    /// Guards the error that ends the export.
    failure: Mutex<Option<Error>>,
}

/// What the walk leaves for the end.
#[derive(Default)]
struct Later {
    first_names: HashMap<u128, PathBuf>,
    further_names: Vec<(u128, PathBuf)>,
    directories: Vec<(PathBuf, Inode)>,
}

impl Namespace {
    /// Writes what is at `start`, with all that is in it, to `target`, which does not exist or is
    /// an empty directory. What could not be exported is in `tally`.
    ///
    /// Owners are kept for the superuser only. Holes become holes. Nothing is synced.
    /// Cost: a listing of each directory, and the reads of every file that is not in its inode.
    ///
    /// # Errors
    /// As [`Namespace::find`] for `start`; `NotEmpty` or `Exists` for `target`; `NoSpace`,
    /// `ReadOnly`, `Unavailable` when either side fails for good.
    pub fn export(
        &self,
        start: &[u8],
        target: &Path,
        options: &ExportOptions,
        tally: &Tally,
    ) -> Result<()> {
        let found = self.find(start, Follow::Yes)?;
        check_target(target, found.inode.is_directory())?;
        let export = Export {
            namespace: self,
            tally,
            owners_dropped: AtomicBool::new(false),
            failure: Mutex::default(),
        };
        let (sender, receiver) = sync_channel(JOBS_MAX);
        let receiver = Mutex::new(receiver);
        let mut later = Later::default();
        let walked = std::thread::scope(|scope| {
            for _ in 0..options.threads.max(1) {
                scope.spawn(|| export.work(&receiver));
            }
            // The threads end when the sender is gone.
            let sender = sender;
            export.walk(start, target, &sender, &mut later)
        });
        if let Some(error) = export.failure.lock().take() {
            return Err(error);
        }
        walked?;
        export.finish(later)
    }
}

/// Fails unless `target` is free to become the export.
fn check_target(target: &Path, directory: bool) -> Result<()> {
    let shown = target.display();
    match std::fs::symlink_metadata(target) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(error, shown.to_string())),
        Ok(metadata) if metadata.is_dir() && directory => {}
        Ok(_) => return Err(Error::new(Kind::Exists, format!("{shown} exists; give a new name"))),
    }
    let mut entries =
        std::fs::read_dir(target).map_err(|error| Error::io(error, shown.to_string()))?;
    if entries.next().is_some() {
        let what = format!("{shown} is not empty; export to a new or empty directory");
        return Err(Error::new(Kind::NotEmpty, what));
    }
    Ok(())
}

impl Export<'_> {
    fn walk(
        &self,
        start: &[u8],
        target: &Path,
        sender: &SyncSender<Job>,
        later: &mut Later,
    ) -> Result<()> {
        let mut start_bytes = None;
        self.namespace.traverse(start, Follow::Yes, Order::Stored, &mut |step| {
            if self.failure.lock().is_some() {
                return Ok(Next::Stop);
            }
            let visit = match step {
                Step::Entry(visit) => visit,
                Step::Left(_) => return Ok(Next::Into),
                Step::Unreadable(visit, error) => {
                    self.tally.problem(visit.path, error);
                    return Ok(Next::Into);
                }
            };
            let start_bytes = *start_bytes.get_or_insert(visit.path.len());
            let below = visit.path[start_bytes..].strip_prefix(b"/");
            let below = below.unwrap_or(&visit.path[start_bytes..]);
            let path = match below {
                b"" => target.to_path_buf(),
                below => target.join(OsStr::from_bytes(below)),
            };
            self.entry(visit, path, sender, later)
        })
    }

    fn entry(
        &self,
        visit: &Visit,
        path: PathBuf,
        sender: &SyncSender<Job>,
        later: &mut Later,
    ) -> Result<Next> {
        let inode = visit.inode;
        if inode.is_directory() {
            return match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    self.settle(&path, Err(failure(error, "make directory")))?;
                    Ok(Next::Past)
                }
                _ => {
                    self.tally.directory();
                    later.directories.push((path, inode.clone()));
                    Ok(Next::Into)
                }
            };
        }
        if inode.nlink > 1 {
            if later.first_names.contains_key(&inode.id) {
                later.further_names.push((inode.id, path));
                return Ok(Next::Into);
            }
            later.first_names.insert(inode.id, path.clone());
        }
        let sent = sender.send(Job { path, inode: inode.clone() });
        // Without a receiver all threads have met the error that ends the export.
        Ok(if sent.is_ok() { Next::Into } else { Next::Stop })
    }

    fn work(&self, jobs: &Mutex<Receiver<Job>>) {
        loop {
            let job = jobs.lock().recv();
            let Ok(job) = job else { return };
            if self.failure.lock().is_some() {
                continue;
            }
            let done = self.file(&job.path, &job.inode);
            if let Err(error) = self.settle(&job.path, done) {
                self.failure.lock().get_or_insert(error);
            }
        }
    }

    /// Makes errors that concern one entry a problem, and passes on those that end the export.
    fn settle(&self, path: &Path, done: Result<()>) -> Result<()> {
        match done {
            Err(error) => match error.kind() {
                Kind::NoSpace | Kind::ReadOnly | Kind::Fenced | Kind::Closed => {
                    Err(error.within(path.display()))
                }
                _ => {
                    self.tally.problem(path.as_os_str().as_bytes(), error);
                    Ok(())
                }
            },
            Ok(()) => Ok(()),
        }
    }

    fn file(&self, path: &Path, inode: &Inode) -> Result<()> {
        let special = |kind, what| {
            rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), inode.rdev)
                .map_err(|error| failure(error, what))
        };
        match inode.kind().expect("a walk shows what names stand for") {
            FileKind::File => {
                self.content(path, inode).inspect_err(|_| {
                    // Part of a file is worse than none.
                    let _ = std::fs::remove_file(path);
                })?;
                self.tally.file();
            }
            FileKind::Symlink => {
                let target = OsStr::from_bytes(&inode.content);
                std::os::unix::fs::symlink(target, path)
                    .map_err(|error| failure(error, "make symbolic link"))?;
                self.tally.symlink();
            }
            FileKind::Fifo => special(FileType::Fifo, "make named pipe")?,
            FileKind::Socket => special(FileType::Socket, "make socket")?,
            FileKind::CharDevice => special(FileType::CharacterDevice, "make device")?,
            FileKind::BlockDevice => special(FileType::BlockDevice, "make device")?,
            FileKind::Indexed => {
                let what = "an indexed directory has no form as a file: read it with `esker imd`";
                return Err(Error::new(Kind::Invalid, format!("{}: {what}", path.display())));
            }
            FileKind::Directory => unreachable!("the walk makes directories"),
        }
        if !matches!(inode.kind(), Some(FileKind::File | FileKind::Symlink)) {
            self.tally.special();
        }
        self.give(path, inode)
    }

    fn content(&self, path: &Path, inode: &Inode) -> Result<()> {
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| failure(error, "create"))?;
        let mut offset = 0u64;
        let mut is_hole = false;
        self.namespace.read_all(inode, &mut |bytes| {
            self.tally.bytes(bytes.len());
            let mut rest = bytes;
            while !rest.is_empty() {
                let to_boundary = HOLE_BYTES - (offset % HOLE_BYTES as u64) as usize;
                let (piece, tail) = rest.split_at(rest.len().min(to_boundary));
                is_hole = piece.len() == HOLE_BYTES && piece.iter().all(|&byte| byte == 0);
                if !is_hole {
                    file.write_all_at(piece, offset).map_err(|error| failure(error, "write"))?;
                }
                offset += piece.len() as u64;
                rest = tail;
            }
            Ok(())
        })?;
        if is_hole {
            file.set_len(offset).map_err(|error| failure(error, "set its size"))?;
        }
        Ok(())
    }

    fn give(&self, path: &Path, inode: &Inode) -> Result<()> {
        let owner = attributes::give(path, inode, self.namespace.identity())?;
        if owner == Owner::Dropped && !self.owners_dropped.swap(true, Ordering::Relaxed) {
            let what = "this and maybe other files now belong to you and have lost set-id bits: \
                        only the superuser can keep owners";
            self.tally.problem(path.as_os_str().as_bytes(), Error::new(Kind::Denied, what));
        }
        Ok(())
    }

    fn finish(&self, later: Later) -> Result<()> {
        for (id, path) in later.further_names {
            let first = &later.first_names[&id];
            let linked = std::fs::hard_link(first, &path);
            if linked.is_ok() {
                self.tally.link();
            }
            self.settle(&path, linked.map_err(|error| failure(error, "link")))?;
        }
        for (path, inode) in later.directories.into_iter().rev() {
            let given = self.give(&path, &inode);
            self.settle(&path, given)?;
        }
        Ok(())
    }
}
