// SPDX-License-Identifier: Apache-2.0
//! Spool: the files of the namespace that programs have open, and some that they had open, as real
//! files of one directory.
//!
//! The name of a real file is the identity of the file in the namespace. The kernel reports each
//! close by a writer (inotify), however it came about, and the file is then written back.

use std::collections::HashMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esker_base::{Error, Kind, Result};
use esker_fs::stack::namespace::Namespace;
use parking_lot::Mutex;
use rustix::fs::inotify;
use rustix::process::{Resource, getrlimit};
use tempfile::TempDir;

use crate::spooled_file::{FileSource, SpooledFile};

/// Maximum number of files that stay in the spool although nobody has them open (*idle* files).
/// They also take at most a share of the descriptors that this process may have.
const IDLE_FILES_MAX: usize = 512;
const IDLE_FILES_SHARE: usize = 4;
/// Bytes of all files, also as a share of the initial free space, beyond which idle files are
/// removed. They are also removed if less free space than that is left, since a program's write
/// cannot free any.
const IDLE_BYTES_MAX: u64 = 1 << 30;
const IDLE_BYTES_SHARE: u64 = 2;
/// Number of files, also as a share of the descriptors, beyond which an open first writes others
/// back: each file takes a descriptor.
const FILES_MAX: usize = 2048;
const FILES_SHARE: usize = 2;
/// Bytes of files put into the spool, or closed, between two checks of the limits; also as a share
/// of the free space. A check asks for the size of each file, so a count of files triggers one only
/// after half of the maximum number of idle files.
const BYTES_PER_TRIM: u64 = 64 << 20;
const BYTES_PER_TRIM_SHARE: u64 = 8;
/// Name of the folder in which files get their content; it is not watched.
const FILLING: &str = "filling";
/// Name of the file whose closing ends [`Spool::write_back_closed`].
const END: &str = "end";

/// Files of the namespace by identity, as files of one directory.
#[derive(Debug)]
pub(crate) struct Spool {
    directory: TempDir,
    path: PathBuf,
    files: Mutex<HashMap<u128, Arc<Slot>>>,
    limits: SpoolLimits,
    growth: Mutex<SpoolGrowth>,
    opens: AtomicU64,
    closes: rustix::fd::OwnedFd,
    /// The file [`END`], until it is closed: it is made when there is room.
    end: Mutex<Option<File>>,
    /// Set before the last file is closed.
    is_ending: AtomicBool,
    /// Number of files beyond which an open writes others back. The open that does so holds the
    /// lock.
    relieved_from: Mutex<usize>,
}

/// The limits of a spool.
#[derive(Clone, Copy, Debug)]
struct SpoolLimits {
    idle_files_max: usize,
    idle_bytes_max: u64,
    files_max: usize,
    bytes_per_trim: u64,
}

/// Files that were put into the spool, or closed there, since it was last compared with its limits.
#[derive(Debug, Default)]
struct SpoolGrowth {
    files: usize,
    bytes: u64,
}

/// A file that is in the spool, or is being put there.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Arc<SpooledFile>>>);

impl Spool {
    /// Makes a spool in a new directory of `parent`.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| {
            let what = format!(
                "make a spool in {}: --spool or TMPDIR names another directory",
                parent.display()
            );
            Error::io(error, what)
        };
        std::fs::read_dir(parent).map_err(failed)?;
        let private = std::fs::Permissions::from_mode(0o700);
        let directory =
            tempfile::Builder::new().prefix("esker-spool-").permissions(private).tempdir_in(parent);
        let directory = directory.map_err(failed)?;
        std::fs::create_dir(directory.path().join(FILLING)).map_err(failed)?;
        let path = directory.path().canonicalize().map_err(failed)?;
        let closes =
            inotify::init(inotify::CreateFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        inotify::add_watch(&closes, &path, inotify::WatchFlags::CLOSE_WRITE)
            .map_err(|error| failed(error.into()))?;
        let end = Mutex::new(Some(File::create(path.join(END)).map_err(failed)?));
        let limits = SpoolLimits::at(&path).map_err(failed)?;
        let (files, growth, opens) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        let (is_ending, relieved_from) = (AtomicBool::new(false), Mutex::new(limits.files_max));
        Ok(Self {
            directory,
            path,
            files,
            limits,
            growth,
            opens,
            closes,
            end,
            is_ending,
            relieved_from,
        })
    }

    /// The directory, without symbolic links.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// True if `path` is that of a file of the spool.
    pub(crate) fn is_within(&self, path: &[u8]) -> bool {
        let rest = path.strip_prefix(self.path.as_os_str().as_bytes());
        rest.is_some_and(|rest| rest.starts_with(b"/"))
    }

    /// The file at `path`, which a descriptor leads to; `None` if it is not a file of the spool.
    pub(crate) fn file_at(&self, path: &[u8]) -> Option<Arc<SpooledFile>> {
        let name = path.strip_prefix(self.path.as_os_str().as_bytes())?.strip_prefix(b"/")?;
        self.file(id_of(name)?)
    }

    /// The file `id`, if it is in the spool.
    pub(crate) fn file(&self, id: u128) -> Option<Arc<SpooledFile>> {
        let slot = self.files.lock().get(&id)?.clone();
        // Blocks while the content of the file is copied.
        let known = slot.0.lock();
        known.clone()
    }

    /// Calls `change` with the file `id`, or with `None` if it is not in the spool; then no thread
    /// puts it there before `change` returns.
    pub(crate) fn with_file<T>(
        &self,
        id: u128,
        change: impl FnOnce(Option<&SpooledFile>) -> T,
    ) -> T {
        let slot = self.files.lock().entry(id).or_default().clone();
        let known = slot.0.lock();
        if let Some(file) = known.clone() {
            // The file may be in the middle of a write-back; others need not wait for that.
            drop(known);
            return change(Some(&file));
        }
        let changed = change(None);
        drop(known);
        self.remove_vacant(id, &slot);
        changed
    }

    /// Puts the file `id` into the spool unless it is there; `source` opens it in the namespace,
    /// and it gets its content if `has_content`.
    pub(crate) fn put(
        &self,
        namespace: &Namespace,
        id: u128,
        has_content: bool,
        source: impl FnOnce() -> Result<FileSource>,
    ) -> Result<Arc<SpooledFile>> {
        self.relieve()?;
        let slot = self.files.lock().entry(id).or_default().clone();
        let mut known = slot.0.lock();
        let is_new = known.is_none();
        let file = match &*known {
            Some(file) => Ok(file.clone()),
            None => self.copy(namespace, id, has_content, source),
        };
        let filled = file.and_then(|file| {
            let file = known.insert(file);
            if has_content {
                self.with_room(|| file.fill(namespace), is_exhausted)?;
            }
            Ok(file.clone())
        });
        drop(known);
        let Ok(file) = filled else {
            self.remove_vacant(id, &slot);
            return filled;
        };
        file.last_use.store(self.opens.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if is_new && self.has_grown_by(&file) {
            self.trim()?;
        }
        Ok(file)
    }

    fn copy(
        &self,
        namespace: &Namespace,
        id: u128,
        has_content: bool,
        source: impl FnOnce() -> Result<FileSource>,
    ) -> Result<Arc<SpooledFile>> {
        let name = format!("{id:032x}");
        let (filled, path) = (self.path.join(FILLING).join(&name), self.path.join(&name));
        let source = source()?;
        let copy = || SpooledFile::copy(namespace, &source, (&filled, &path), has_content);
        match self.with_room(copy, is_exhausted) {
            Ok(copied) => Ok(Arc::new(SpooledFile::new(source, copied, path))),
            Err(error) => {
                // The first error matters more.
                drop(source.close());
                Err(error)
            }
        }
    }

    /// Opens a file of the spool with `flags` of open(2).
    pub(crate) fn open(&self, file: &SpooledFile, flags: i32) -> std::io::Result<File> {
        self.with_room(|| file.open(flags), |error| is_exhausted_kind(Kind::of_io(error)))
    }

    /// Fails if no file of the spool can have `size` bytes.
    ///
    /// # Errors
    /// `FileTooLarge`.
    pub(crate) fn check_size(&self, size: u64) -> Result<()> {
        let probe = tempfile::tempfile_in(self.path.join(FILLING));
        match probe.and_then(|file| file.set_len(size)) {
            Err(error) if Kind::of_io(&error) == Kind::FileTooLarge => {
                Err(Error::io(error, format!("a file of {size} bytes")))
            }
            // There may be enough free space by the time it is opened.
            _ => Ok(()),
        }
    }

    /// Attempts an operation that takes free space or descriptors. If these are `exhausted`,
    /// removes idle files, at first only those that need not be written back.
    pub(crate) fn with_room<T, E>(
        &self,
        attempt: impl Fn() -> std::result::Result<T, E>,
        is_exhausted: impl Fn(&E) -> bool,
    ) -> std::result::Result<T, E> {
        for writes_back in [false, true] {
            match attempt() {
                Err(error) if is_exhausted(&error) => {}
                done => return done,
            }
            if writes_back {
                self.write_back_known();
            }
            // The attempt fails again if this has no effect.
            drop(self.take_idle(0));
        }
        attempt()
    }

    /// Writes back the files whose slots are not locked: the calling thread itself may hold one, to
    /// put a file into the spool.
    fn write_back_known(&self) {
        let files: Vec<Arc<Slot>> = self.files.lock().values().cloned().collect();
        for slot in files {
            let file = slot.0.try_lock().and_then(|known| known.clone());
            if let Some(file) = file {
                drop(file.write_back());
            }
        }
    }

    /// Removes the slot `id` if it has no file and only the caller holds it.
    fn remove_vacant(&self, id: u128, slot: &Arc<Slot>) {
        let mut files = self.files.lock();
        let is_known = files.get(&id).is_some_and(|known| Arc::ptr_eq(known, slot));
        if is_known && Arc::strong_count(slot) == 2 && slot.0.lock().is_none() {
            files.remove(&id);
        }
    }

    /// Counts `file`, which was put into the spool or closed; true if it is time to check the
    /// limits.
    fn has_grown_by(&self, file: &SpooledFile) -> bool {
        let bytes = file.content().metadata().map_or(0, |known| known.len());
        let is_short_of_room = self.is_short_of_room();
        let mut growth = self.growth.lock();
        growth.files += 1;
        growth.bytes = growth.bytes.saturating_add(bytes);
        let is_due = growth.files >= self.limits.idle_files_max / 2
            || growth.bytes > self.limits.bytes_per_trim
            || is_short_of_room;
        if is_due {
            *growth = SpoolGrowth::default();
        }
        is_due
    }

    /// Removes idle files beyond the limits from the spool, least recently opened first.
    pub(crate) fn trim(&self) -> Result<()> {
        let files: Vec<Arc<Slot>> = self.files.lock().values().cloned().collect();
        let bytes = |slot: &Arc<Slot>| {
            let file = slot.0.try_lock()?.clone();
            file.and_then(|file| file.content().metadata().ok()).map(|known| known.len())
        };
        let is_large = files.iter().filter_map(bytes).sum::<u64>() > self.limits.idle_bytes_max
            || self.is_short_of_room();
        let count = files.len();
        drop(files);
        match (is_large, count > self.limits.idle_files_max) {
            (false, false) => Ok(()),
            (true, _) => self.take_idle(0),
            (false, true) => self.take_idle(self.limits.idle_files_max / 2),
        }
    }

    fn is_short_of_room(&self) -> bool {
        room_at(&self.path).is_ok_and(|room| room < self.limits.idle_bytes_max)
    }

    /// If there are very many files, waits until some are written back and removed from the spool.
    fn relieve(&self) -> Result<()> {
        let files_max = self.limits.files_max;
        if self.files.lock().len() <= files_max {
            return Ok(());
        }
        let mut relieved_from = self.relieved_from.lock();
        if self.files.lock().len() <= *relieved_from {
            return Ok(());
        }
        self.write_back_all()?;
        self.take_idle(files_max / 2)?;
        // Programs may have this many files open; another attempt would then not help before there
        // are twice as many.
        *relieved_from = files_max.max(self.files.lock().len() * 2);
        Ok(())
    }

    /// Removes the file `id` from the spool if it has no names and nobody has it open.
    pub(crate) fn discard_if_gone(&self, id: u128) -> Result<()> {
        let mut files = self.files.lock();
        let Some(slot) = files.get(&id) else { return Ok(()) };
        if Arc::strong_count(slot) > 1 {
            return Ok(());
        }
        let mut known = slot.0.lock();
        let is_gone = match &*known {
            Some(file) => Arc::strong_count(file) == 1 && file.is_gone()?,
            None => false,
        };
        if !is_gone {
            return Ok(());
        }
        let file = known.take();
        drop(known);
        file.iter().for_each(|file| file.remove());
        files.remove(&id);
        drop(files);
        file.and_then(Arc::into_inner).map_or(Ok(()), SpooledFile::close)
    }

    fn take_idle(&self, left: usize) -> Result<()> {
        let mut files = self.files.lock();
        let mut known: Vec<(u64, u128)> = files
            .iter()
            .filter_map(|(&id, slot)| {
                let slot = slot.0.try_lock()?;
                Some((slot.as_ref().map_or(0, |file| file.last_use.load(Ordering::Relaxed)), id))
            })
            .collect();
        known.sort_unstable();
        let excess = files.len().saturating_sub(left);
        let mut taken = Vec::new();
        for (_, id) in known.into_iter().take(excess) {
            let Some(slot) = files.get(&id) else { continue };
            // A thread that has the slot may be about to open the file.
            if Arc::strong_count(slot) > 1 {
                continue;
            }
            let mut file = slot.0.lock();
            let is_idle =
                file.as_ref().is_none_or(|file| Arc::strong_count(file) == 1 && file.is_idle());
            if is_idle {
                let idle = file.take();
                drop(file);
                idle.iter().for_each(|file| file.remove());
                taken.extend(idle);
                files.remove(&id);
            }
        }
        drop(files);
        let mut result = Ok(());
        for file in taken {
            let file = Arc::into_inner(file).expect("nobody else has it");
            result = result.and(file.close());
        }
        result
    }

    /// Writes all files back.
    pub(crate) fn write_back_all(&self) -> Result<()> {
        let files: Vec<Arc<Slot>> = self.files.lock().values().cloned().collect();
        let mut result = Ok(());
        for slot in files {
            let file = slot.0.lock().clone();
            result = result.and(file.map_or(Ok(()), |file| file.write_back()));
        }
        result
    }

    /// Writes back all files that nobody has open for writing.
    ///
    /// # Errors
    /// The first error of [`SpooledFile::write_back`]; the others are written back nevertheless.
    pub(crate) fn write_back_unopened(&self) -> Result<()> {
        // Not the files themselves, which could not leave the spool meanwhile.
        let ids: Vec<u128> = self.files.lock().keys().copied().collect();
        let write_back = |id| self.file(id).map_or(Ok(()), |file| file.write_back_unopened());
        ids.into_iter().map(write_back).fold(Ok(()), Result::and)
    }

    /// Writes back each file that a writer closes, until [`Spool::end`]; calls `report` for those
    /// that could not be written back.
    pub(crate) fn write_back_closed(&self, report: &dyn Fn(&Error)) {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut events = inotify::Reader::new(&self.closes, &mut buffer);
        loop {
            let written = match events.next() {
                Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => {
                    // The event of the end may be among the lost ones.
                    if self.is_ending.load(Ordering::SeqCst) {
                        return;
                    }
                    self.write_back_all().and_then(|()| self.trim())
                }
                Ok(event) => {
                    let name = event.file_name().map_or(&b""[..], |name| name.to_bytes());
                    if name == END.as_bytes() {
                        return;
                    }
                    id_of(name).map_or(Ok(()), |id| self.write_back_closed_file(id))
                }
                Err(rustix::io::Errno::INTR) => Ok(()),
                Err(error) => {
                    report(&Error::io(error.into(), "watch the spool"));
                    return;
                }
            };
            if let Err(error) = written {
                let kept = self.path.display();
                report(&error.within(format!("a file is only in {kept} yet")));
            }
        }
    }

    /// Writes back the file `id`, which a writer has closed, and removes it from the spool if it
    /// has no names.
    fn write_back_closed_file(&self, id: u128) -> Result<()> {
        let Some(file) = self.file(id) else { return Ok(()) };
        file.write_back_closed()?;
        let is_due = self.has_grown_by(&file);
        drop(file);
        self.discard_if_gone(id)?;
        if is_due { self.trim() } else { Ok(()) }
    }

    /// Ends [`Spool::write_back_closed`].
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        drop(self.end.lock().take());
    }

    /// Writes all files back, removes them from the spool, and removes the directory.
    pub(crate) fn close(self) -> Result<()> {
        let written = self.write_back_all();
        let mut result = written;
        for slot in self.files.into_inner().into_values() {
            let file = Arc::into_inner(slot).and_then(|slot| slot.0.into_inner());
            let file = file.and_then(Arc::into_inner);
            result = result.and(file.map_or(Ok(()), SpooledFile::close));
        }
        if result.is_err() {
            // Keep the directory: it has the only copy of files that could not be written back.
            let kept = self.directory.keep();
            return result.map_err(|error| {
                error.within(format!("files are only in {} yet", kept.display()))
            });
        }
        result
    }
}

impl SpoolLimits {
    /// The limits of a spool at `path`.
    fn at(path: &Path) -> std::io::Result<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        let room = room_at(path)?;
        Ok(Self {
            idle_files_max: IDLE_FILES_MAX.min(descriptors / IDLE_FILES_SHARE),
            idle_bytes_max: IDLE_BYTES_MAX.min(room / IDLE_BYTES_SHARE),
            files_max: FILES_MAX.min(descriptors / FILES_SHARE),
            bytes_per_trim: BYTES_PER_TRIM.min(room / BYTES_PER_TRIM_SHARE),
        })
    }
}

/// Bytes for which the file system of `path` has room.
fn room_at(path: &Path) -> std::io::Result<u64> {
    let known = rustix::fs::statvfs(path)?;
    Ok(known.f_bavail.saturating_mul(known.f_frsize))
}

fn is_exhausted(error: &Error) -> bool {
    is_exhausted_kind(error.kind())
}

/// True if an attempt may succeed once files are removed from the spool.
fn is_exhausted_kind(kind: Kind) -> bool {
    matches!(kind, Kind::NoSpace | Kind::TooManyOpenFiles)
}

/// The identity that a file's name begins with.
fn id_of(name: &[u8]) -> Option<u128> {
    u128::from_str_radix(std::str::from_utf8(name.get(..32)?).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use esker_base::clock::SystemClock;
    use esker_base::store::MemoryStore;
    use esker_fs::ops::AttributeChanges;
    use esker_fs::repository::Repository;
    use esker_fs::session::SessionOptions;

    use super::*;

    /// Symptom: a file that was truncated by its name while another thread opened it had its former
    /// content. Cause: the open copied the content to the spool after the truncation had not found
    /// the file there. Fix: no thread puts a file into the spool while it is truncated in the
    /// session.
    #[test]
    fn a_file_is_put_there_before_or_after_it_is_changed_elsewhere() {
        let repository =
            Repository::with(Arc::new(MemoryStore::new()), 1 << 20, Arc::new(SystemClock));
        let session = Arc::new(repository.begin(&[], SessionOptions::default()).expect("begin"));
        let root = session.root();
        let made = session.create_file(root, b"file", 0o600).expect("create");
        session.file(&made).write(0, &[7; 99]).expect("write");
        let parent = tempfile::tempdir().expect("a directory");
        let spool = Spool::new(parent.path()).expect("a spool");
        let (id, is_changed) = (made.id(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let put = spool.with_file(id, |file| {
                assert!(file.is_none());
                let put = scope.spawn(|| {
                    spool.put(session.namespace(), id, true, || {
                        assert!(is_changed.load(Ordering::SeqCst), "the change comes first");
                        let open = session.open_file(root, b"file")?;
                        Ok(FileSource::Session(session.clone(), open))
                    })
                });
                std::thread::sleep(std::time::Duration::from_millis(50));
                let changes = AttributeChanges { size: Some(10), ..AttributeChanges::default() };
                session.setattr(root, b"file", &changes).expect("truncate");
                is_changed.store(true, Ordering::SeqCst);
                put
            });
            let file = put.join().expect("no panic").expect("put");
            assert_eq!(file.content().metadata().expect("stat").len(), 10);
        });
        spool.with_file(id, |file| assert!(file.is_some()));
        session.close_file(made).expect("close");
        spool.close().expect("close");
    }
}
