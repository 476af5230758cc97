// SPDX-License-Identifier: Apache-2.0
//! Export: writes a tree of a namespace as real files, complete and faithful.
//!
//! Path of a file: the walk makes directories (`destination`) and hands files to threads, which
//! write content and `attributes`. The export links further names of a file at the end, when the
//! first is sure to exist; directories get their mode and times at the very end, since entries need
//! and change them. It verifies the content of every file by its checksum. Files that cannot be
//! written are left out and become problems in the tally; a full disk or a failing store ends the
//! export.
//!
//! The export writes everything under a separate name beside the target (`partial`), which a final
//! rename makes the target. If it is interrupted, repeating it continues with the existing files
//! (`earlier`).
//! Invariant: nothing is written outside the target, for any content of the store, and even if
//! others can write to the target: listings reject names that no file can have, and `destination`
//! works with handles.

mod attributes;
mod destination;
mod earlier;
mod indexed;
mod partial;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use esker_base::{Error, Kind, Result};
use hashbrown::HashMap;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode};
use xxhash_rust::xxh3::Xxh3Default;

use self::attributes::{DroppedAttributes, FileHandle, failure};
use self::destination::{ExportDestination, ExportDir, MadeIndex};
pub use self::indexed::{IndexedContent, IndexedForm};
use self::partial::PartialExport;
use crate::inode::{FileKind, Inode};
use crate::stack::namespace::{FollowLinks, Namespace};
use crate::traversal::tally::TransferTally;
use crate::traversal::walk::{VisitedEntry, WalkNext, WalkOrder, WalkStep};

/// Maximum number of files waiting for a thread. Each may keep a directory open, and a process may
/// by default have 1024 files open.
const JOBS_MAX: usize = 256;
/// Aligned pieces of zeros of this size become holes: a few blocks of any file system.
const HOLE_BYTES: usize = 64 << 10;

/// Options of an export.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// Threads that write files.
    pub threads: usize,
    /// True to replace an existing target: a directory by a directory, anything else by anything
    /// else.
    pub overwrite: bool,
    /// True to continue with what an interrupted export wrote, if there was one. Files with the
    /// right size and attributes are not written again.
    pub resume: bool,
    /// Form of indexed directories; without it each is a problem.
    pub indexed: Option<IndexedForm>,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self { threads: 4, overwrite: false, resume: false, indexed: None }
    }
}

struct ExportJob {
    dir: ExportDir,
    name: Vec<u8>,
    /// Path shown in errors.
    path: PathBuf,
    inode: Inode,
}

struct ExportRun<'a> {
    namespace: &'a Namespace,
    tally: &'a TransferTally,
    form: Option<&'a IndexedForm>,
    /// True if a single entry other than a directory is exported, which thus has the target's name.
    is_single: bool,
    is_resumed: bool,
    /// Final path of the export; until it is complete, `partial` is its path.
    target: &'a Path,
    partial: PathBuf,
    /// Number of files and directories that could not be read from the store.
    unavailable: AtomicU64,
    /// Guards the handle of the file or directory with the partial name, once there is one. The
    /// handle holds its lock.
    outermost: Mutex<Option<OwnedFd>>,
    /// Guards the error that ends the export.
    failure: Mutex<Option<Error>>,
}

/// A name that the export has given to a file with several.
type ExportedName = (MadeIndex, Vec<u8>);

/// Names of files that have several, by the file's identity.
#[derive(Default)]
struct LinkedNames {
    first: HashMap<u128, ExportedName>,
    further: Vec<(u128, ExportedName)>,
}

impl Namespace {
    /// Exports `start`, with everything in it: writes beside `target`, at
    /// [`Namespace::export_partial_path`], and renames that to `target` once it is complete except
    /// for the problems in `tally`. Unless `options` say otherwise, `target` must not exist or must
    /// be an empty directory. A failed export keeps what it has written.
    ///
    /// Owners are kept only for the superuser, and set-id bits only with their owner; `tally`
    /// counts the affected files. Holes stay holes. Nothing is synced. Cost: a listing of each
    /// directory, and the reads of every file whose content is not in its inode.
    ///
    /// # Errors
    /// As [`Namespace::find`] for `start`; `NotEmpty`, `Exists` or `Invalid` for `target`; `Exists`
    /// if an earlier export was interrupted and `options` do not allow resuming it; `Conflict` if
    /// another process exports the same to `target`; `NoSpace`, `ReadOnly`, `Unavailable` if either
    /// side fails permanently.
    pub fn export(
        &self,
        start: &[u8],
        target: &Path,
        options: &ExportOptions,
        tally: &TransferTally,
    ) -> Result<()> {
        let found = self.find(start, FollowLinks::Yes)?;
        let &ExportOptions { overwrite, resume, .. } = options;
        let form = options.indexed.as_ref();
        let digest = self.export_digest(start, form);
        let is_single = !found.inode.is_directory();
        let is_directory = !is_single || indexed::becomes_directory(&found.inode, form);
        let partial = PartialExport::new(target, digest, is_directory, overwrite, resume)?;
        let mut destination =
            ExportDestination::new(partial.top.clone(), target, partial.partial_name(), resume);
        let export = ExportRun {
            namespace: self,
            tally,
            form,
            is_single,
            is_resumed: resume,
            target,
            partial: partial::path(target, digest),
            unavailable: AtomicU64::new(0),
            outermost: Mutex::default(),
            failure: Mutex::default(),
        };
        export.write_all(start, &mut destination, options.threads)?;
        // Without a handle nothing was exported, and a problem gives the reason; the target stays
        // as it is.
        if let Some(written) = export.outermost.lock().as_ref()
            && let Err(error) = partial.install(written)?
        {
            tally.problem(target.as_os_str().as_bytes(), error);
        }
        Ok(())
    }

    /// Returns the path at which an export of `start` to `target`, with indexed directories in the
    /// form `indexed`, is written until it is complete.
    #[must_use]
    pub fn export_partial_path(
        &self,
        start: &[u8],
        target: &Path,
        indexed: Option<&IndexedForm>,
    ) -> PathBuf {
        partial::path(target, self.export_digest(start, indexed))
    }

    /// Distinguishes exports of different snapshots, paths and forms. Unflushed changes of a writer
    /// do not count.
    fn export_digest(&self, start: &[u8], indexed: Option<&IndexedForm>) -> u32 {
        let mut hasher = Xxh3Default::new();
        if let Some(writer) = self.layers().writer() {
            hasher.update(&writer.set().0.to_le_bytes());
        }
        for base in self.layers().bases() {
            hasher.update(&base.set.0.to_le_bytes());
            // An open set shows more after each flush.
            hasher.update(&base.manifest.last_seq.to_le_bytes());
        }
        for component in start.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            hasher.update(b"/");
            hasher.update(component);
        }
        if let Some(form) = indexed {
            form.digest(&mut hasher);
        }
        hasher.digest() as u32
    }
}

impl ExportRun<'_> {
    fn write_all(
        &self,
        start: &[u8],
        destination: &mut ExportDestination,
        threads: usize,
    ) -> Result<()> {
        let (sender, receiver) = sync_channel(JOBS_MAX);
        let receiver = Mutex::new(receiver);
        let mut linked = LinkedNames::default();
        let walked = std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| self.work(&receiver));
            }
            // The threads end when the sender is dropped.
            let sender = sender;
            self.walk(start, destination, &sender, &mut linked)
        });
        if let Some(error) = self.failure.lock().take() {
            return Err(error);
        }
        walked?;
        self.link(destination, linked)?;
        // An export that has to be resumed stays private until then.
        self.check_available()?;
        self.finish_directories(destination)
    }

    /// Fails if there were files that a retry may export.
    fn check_available(&self) -> Result<()> {
        match self.unavailable.load(Ordering::Relaxed) {
            0 => Ok(()),
            count => {
                let what = format!(
                    "{count} files or directories of the tree could not be read from the store"
                );
                Err(Error::new(Kind::Unavailable, what))
            }
        }
    }

    fn count_unavailable(&self, error: &Error) {
        if error.kind() == Kind::Unavailable {
            self.unavailable.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn walk(
        &self,
        start: &[u8],
        destination: &mut ExportDestination,
        sender: &SyncSender<ExportJob>,
        linked: &mut LinkedNames,
    ) -> Result<()> {
        self.namespace.traverse(start, FollowLinks::Yes, WalkOrder::Stored, &mut |step| {
            if self.failure.lock().is_some() {
                return Ok(WalkNext::Stop);
            }
            match step {
                WalkStep::Entry(visit) if visit.inode.is_directory() => {
                    self.directory(visit, destination)
                }
                WalkStep::Entry(visit) => self.send(visit, destination, sender, linked),
                WalkStep::Left(_) => match destination.leave() {
                    None => Ok(WalkNext::Into),
                    Some(path) => {
                        Err(earlier::foreign().within(self.partial_path(&path).display()))
                    }
                },
                WalkStep::Unreadable(visit, error) => {
                    if let Some(names) = destination.unclaimed() {
                        names.claim_all();
                    }
                    self.count_unavailable(&error);
                    self.tally.problem(visit.path, error);
                    Ok(WalkNext::Into)
                }
            }
        })
    }

    fn directory(
        &self,
        visit: &VisitedEntry,
        destination: &mut ExportDestination,
    ) -> Result<WalkNext> {
        let name = destination.name_of(visit.depth, visit.name()).to_vec();
        if let Some(names) = destination.unclaimed() {
            names.claim(&name);
        }
        match destination.make(&name, visit.inode) {
            Ok(locked) => {
                self.keep_outermost(locked);
                self.tally.directory();
                Ok(WalkNext::Into)
            }
            // Without the target there is nothing to export to.
            Err(error) if visit.depth == 0 => match error.kind() {
                Kind::Conflict => Err(error.within(self.partial.display())),
                _ => Err(error.within(self.target.display())),
            },
            Err(error) => {
                let path = destination.path(destination.innermost(), &name);
                self.report(&path, Err(error))?;
                Ok(WalkNext::Past)
            }
        }
    }

    /// Hands a file to the threads, unless it is a further name of one that they have.
    fn send(
        &self,
        visit: &VisitedEntry,
        destination: &mut ExportDestination,
        sender: &SyncSender<ExportJob>,
        linked: &mut LinkedNames,
    ) -> Result<WalkNext> {
        let inode = visit.inode;
        let mut name = destination.name_of(visit.depth, visit.name()).to_vec();
        let parent = destination.innermost();
        if let Some(form) = self.form
            && inode.kind() == Some(FileKind::Indexed)
            && visit.depth > 0
        {
            name.extend_from_slice(form.suffix().as_bytes());
            if let Err(error) = self.check_suffix(visit, form.suffix()) {
                self.report(&destination.path(parent, &name), Err(error))?;
                return Ok(WalkNext::Into);
            }
        }
        if let Some(names) = destination.unclaimed() {
            names.claim(&name);
        }
        if visit.may_have_other_names {
            if linked.first.contains_key(&inode.id) {
                linked.further.push((inode.id, (parent, name)));
                return Ok(WalkNext::Into);
            }
            linked.first.insert(inode.id, (parent, name.clone()));
        }
        let path = destination.path(parent, &name);
        let dir = match destination.handle(parent) {
            Ok(dir) => dir,
            Err(error) => {
                self.report(&path, Err(error))?;
                return Ok(WalkNext::Into);
            }
        };
        let sent = sender.send(ExportJob { dir, name, path, inode: inode.clone() });
        // Without a receiver all threads have seen the error that ends the export.
        Ok(if sent.is_ok() { WalkNext::Into } else { WalkNext::Stop })
    }

    fn work(&self, jobs: &Mutex<Receiver<ExportJob>>) {
        loop {
            let job = jobs.lock().recv();
            let Ok(job) = job else { return };
            if self.failure.lock().is_some() {
                continue;
            }
            let done = self.file(&job);
            if let Err(error) = self.report(&job.path, done) {
                self.failure.lock().get_or_insert(error);
            }
        }
    }

    /// Turns an error about one entry into a problem, and returns one that ends the export.
    fn report(&self, path: &Path, done: Result<()>) -> Result<()> {
        match done {
            Err(error) => match error.kind() {
                Kind::NoSpace | Kind::ReadOnly | Kind::Fenced | Kind::Closed => {
                    Err(error.within(path.display()))
                }
                // A file that another user has put there would become part of the destination.
                Kind::Conflict if self.is_resumed || self.is_single => {
                    Err(error.within(self.partial_path(path).display()))
                }
                _ => {
                    self.tally.problem(path.as_os_str().as_bytes(), error);
                    Ok(())
                }
            },
            Ok(()) => Ok(()),
        }
    }

    fn file(&self, job: &ExportJob) -> Result<()> {
        let kind = match job.inode.kind().expect("a walk shows what names stand for") {
            FileKind::File => return self.regular_file(job),
            FileKind::Symlink => FileType::Symlink,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::Indexed => return self.indexed(job),
            FileKind::Directory => unreachable!("the walk makes directories"),
        };
        let (dir, name) = (&*job.dir, &*job.name);
        let earlier = self.lock_earlier(job)?;
        if self.is_resumed {
            earlier::remove(dir, name)?;
        }
        if kind == FileType::Symlink {
            rustix::fs::symlinkat(&*job.inode.content, dir, name)
                .map_err(|error| failure(error, "make symbolic link"))?;
        } else {
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(dir, name, kind, mode, job.inode.rdev)
                .map_err(|error| failure(error, "make named pipe, socket or device"))?;
        }
        let handle = destination::handle_of(dir, name, kind)?;
        drop(earlier);
        match kind {
            FileType::Symlink => self.tally.symlink(),
            _ => self.tally.special(),
        }
        let given = self.give(FileHandle::Path(handle.as_fd()), &job.inode);
        // A file that lacks an attribute is exported nevertheless, and reported as a problem.
        self.keep_outermost(self.is_single.then_some(handle));
        given
    }

    /// Returns where the file with the final path `path` is until the export is complete.
    fn partial_path(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(self.target) {
            Ok(below) if below.as_os_str().is_empty() => self.partial.clone(),
            Ok(below) => self.partial.join(below),
            Err(_) => path.to_owned(),
        }
    }

    fn regular_file(&self, job: &ExportJob) -> Result<()> {
        let earlier = self.lock_earlier(job)?;
        if self.is_resumed && self.take_up(&job.dir, &job.name, &job.inode)? {
            self.keep_outermost(earlier);
            return Ok(());
        }
        let file = File::from(destination::create(&job.dir, &job.name)?);
        self.lock_new(file.as_fd(), job)?;
        drop(earlier);
        self.write(&file, &job.inode).inspect_err(|_| self.remove_part(job))?;
        self.tally.file();
        self.give(FileHandle::Open(file.as_fd()), &job.inode)
    }

    /// Removes the file of `job`, which could not be written: part of a file is worse than none.
    fn remove_part(&self, job: &ExportJob) {
        let _ = rustix::fs::unlinkat(&*job.dir, &*job.name, AtFlags::empty());
        if self.is_single {
            // Nothing is left to be installed.
            *self.outermost.lock() = None;
        }
    }

    /// Returns whether `name` in `dir` is a file that the interrupted export completed. If not, the
    /// name is free.
    fn take_up(&self, dir: &OwnedFd, name: &[u8], inode: &Inode) -> Result<bool> {
        let identity = self.namespace.identity();
        let Some(dropped) = earlier::complete_file(dir, name, inode, identity)? else {
            return Ok(false);
        };
        self.tally.file();
        self.count_dropped(dropped);
        Ok(true)
    }

    /// Locks the file left by an interrupted export of a single entry, until the handle is dropped.
    fn lock_earlier(&self, job: &ExportJob) -> Result<Option<OwnedFd>> {
        if !self.is_single || !self.is_resumed {
            return Ok(None);
        }
        earlier::lock_what_is_there(&job.dir, &job.name)
    }

    /// Locks the file made for `job` if it is the only entry exported.
    fn lock_new(&self, file: BorrowedFd, job: &ExportJob) -> Result<()> {
        if !self.is_single {
            return Ok(());
        }
        let handle = file.try_clone_to_owned();
        let handle = handle.map_err(|error| failure(error, "copy its handle"))?;
        earlier::lock(&handle, &job.dir, &job.name)?;
        self.keep_outermost(Some(handle));
        Ok(())
    }

    /// Keeps the handle of the file or directory with the partial name, and so its lock, until the
    /// export ends.
    fn keep_outermost(&self, handle: Option<OwnedFd>) {
        if let Some(handle) = handle {
            *self.outermost.lock() = Some(handle);
        }
    }

    /// Fails if another entry has the name that the indexed directory of `visit` gets with
    /// `suffix`.
    fn check_suffix(&self, visit: &VisitedEntry, suffix: &str) -> Result<()> {
        if suffix.is_empty() {
            return Ok(());
        }
        let other = [visit.path, suffix.as_bytes()].concat();
        match self.namespace.find(&other, FollowLinks::No) {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(_) => {
                let what = "this is the name of an exported indexed directory and of another entry: export \
                            the directory alone, or as a directory with --indexed files";
                Err(Error::new(Kind::Exists, what))
            }
        }
    }

    fn write(&self, file: &File, inode: &Inode) -> Result<()> {
        let (mut written_end, mut is_local) = (0, false);
        let read = self.namespace.read_stored(inode, &mut |offset, bytes| {
            self.tally.bytes(bytes.len());
            let (mut at, mut rest) = (offset, bytes);
            while !rest.is_empty() {
                let to_boundary = HOLE_BYTES - (at % HOLE_BYTES as u64) as usize;
                let (piece, tail) = rest.split_at(rest.len().min(to_boundary));
                let is_hole = piece.len() == HOLE_BYTES && piece.iter().all(|&byte| byte == 0);
                if !is_hole {
                    file.write_all_at(piece, at).map_err(|error| {
                        is_local = true;
                        failure(error, "write")
                    })?;
                    written_end = at + piece.len() as u64;
                }
                at += piece.len() as u64;
                rest = tail;
            }
            Ok(())
        });
        if let Err(error) = read {
            if !is_local {
                self.count_unavailable(&error);
            }
            return Err(error);
        }
        if written_end < inode.size {
            file.set_len(inode.size).map_err(|error| failure(error, "set its size"))?;
        }
        Ok(())
    }

    fn give(&self, handle: FileHandle, inode: &Inode) -> Result<()> {
        self.count_dropped(attributes::give(handle, inode, self.namespace.identity())?);
        Ok(())
    }

    fn count_dropped(&self, dropped: DroppedAttributes) {
        if dropped.owner {
            self.tally.owner_dropped();
        }
        self.tally.attributes_dropped(dropped.attributes);
    }

    /// Gives files their further names.
    fn link(&self, destination: &mut ExportDestination, linked: LinkedNames) -> Result<()> {
        for (id, (parent, name)) in linked.further {
            let (first_parent, first_name) = &linked.first[&id];
            let mut link = || -> Result<()> {
                let first = destination.handle(*first_parent)?;
                let dir = destination.handle(parent)?;
                if self.is_resumed {
                    let _ = rustix::fs::unlinkat(&dir, &*name, AtFlags::empty());
                }
                // Without `SYMLINK_FOLLOW` a symbolic link itself is linked.
                rustix::fs::linkat(&first, &**first_name, &dir, &*name, AtFlags::empty())
                    .map_err(|error| failure(error, "link"))
            };
            let done = link().map(|()| self.tally.link());
            self.report(&destination.path(parent, &name), done)?;
        }
        Ok(())
    }

    /// Gives directories their attributes, inner before outer ones.
    fn finish_directories(&self, destination: &mut ExportDestination) -> Result<()> {
        for index in (0..destination.count()).rev() {
            let path = destination.path_of(index);
            let given = destination.handle(Some(index)).and_then(|handle| {
                let inode = &destination.made(index).inode;
                self.give(FileHandle::Open(handle.as_fd()), inode)
            });
            self.report(&path, given)?;
        }
        Ok(())
    }
}
