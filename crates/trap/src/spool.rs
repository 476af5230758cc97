// SPDX-License-Identifier: Apache-2.0
//! Spool: the files of the namespace that programs have open, and some that they had open, as real files of
//! one directory.
//!
//! The name of a real file is the identity of the file in the namespace. The kernel reports
//! whenever a writer has closed one (inotify), whatever closed it, and it is written back then.

use std::collections::HashMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esker_base::{Error, Result};
use esker_fs::namespace::Namespace;
use parking_lot::Mutex;
use rustix::fs::inotify;
use tempfile::TempDir;

use crate::spooled_file::{FileSource, SpooledFile};

/// Files that stay in the spool although nobody has them open.
const IDLE_FILES_MAX: usize = 512;
/// Bytes of all files, beyond which those that nobody has open go.
const IDLE_BYTES_MAX: u64 = 1 << 30;
/// Files beyond which an open first writes others back: each takes a descriptor.
const FILES_MAX: usize = 2048;
/// Files closed, or opened, between two looks at the limits, and bytes of one after which to look at once.
const CLOSES_PER_TRIM: u32 = 64;
const OPENS_PER_TRIM: u64 = 64;
const LARGE_BYTES: u64 = 64 << 20;
/// Name of the folder in which files get their content: nobody watches it.
const FILLING: &str = "filling";
/// Name whose closing ends [`Spool::write_back_closed`].
const END: &str = "end";

/// Files of the namespace by identity, as files of one directory.
#[derive(Debug)]
pub(crate) struct Spool {
    directory: TempDir,
    path: PathBuf,
    files: Mutex<HashMap<u128, Arc<Slot>>>,
    opens: AtomicU64,
    closes: rustix::fd::OwnedFd,
    /// Set before the last file is closed.
    is_ending: AtomicBool,
    /// Number of files beyond which an open writes others back; held by the one that does.
    relieved_from: Mutex<usize>,
}

/// A file that is in the spool, or is being put there.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Arc<SpooledFile>>>);

impl Spool {
    /// Makes a spool in a new directory of `parent`.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| Error::io(error, parent.to_string_lossy());
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
        let (files, opens) = (Mutex::default(), AtomicU64::new(0));
        let (is_ending, relieved_from) = (AtomicBool::new(false), Mutex::new(FILES_MAX));
        Ok(Self { directory, path, files, opens, closes, is_ending, relieved_from })
    }

    /// True if `path` is that of a file of the spool.
    pub(crate) fn is_within(&self, path: &[u8]) -> bool {
        let rest = path.strip_prefix(self.path.as_os_str().as_bytes());
        rest.is_some_and(|rest| rest.starts_with(b"/"))
    }

    /// The file at `path`, which a descriptor leads to; `None` if it is no file of the spool.
    pub(crate) fn file_at(&self, path: &[u8]) -> Option<Arc<SpooledFile>> {
        let name = path.strip_prefix(self.path.as_os_str().as_bytes())?.strip_prefix(b"/")?;
        self.file(id_of(name)?)
    }

    /// The file `id`, if it is in the spool.
    pub(crate) fn file(&self, id: u128) -> Option<Arc<SpooledFile>> {
        let slot = self.files.lock().get(&id)?.clone();
        // Waits while its content is copied.
        let known = slot.0.lock();
        known.clone()
    }

    /// Puts the file `id` into the spool unless it is there; `source` opens it in the namespace, and it
    /// gets its content if `has_content`.
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
            Some(file) => file.clone(),
            None => {
                let name = format!("{id:032x}");
                let (filled, path) = (self.path.join(FILLING).join(&name), self.path.join(&name));
                let file = SpooledFile::fill(namespace, source()?, (filled, path), has_content)?;
                known.insert(Arc::new(file)).clone()
            }
        };
        let opens = self.opens.fetch_add(1, Ordering::Relaxed);
        file.last_use.store(opens, Ordering::Relaxed);
        drop(known);
        let is_large = || file.content().metadata().is_ok_and(|known| known.len() > LARGE_BYTES);
        if is_new && (opens.is_multiple_of(OPENS_PER_TRIM) || is_large()) {
            self.trim()?;
        }
        Ok(file)
    }

    /// Takes files out of the spool that nobody has open, those first that were opened longest ago, if there
    /// are more than need be.
    pub(crate) fn trim(&self) -> Result<()> {
        let files: Vec<Arc<Slot>> = self.files.lock().values().cloned().collect();
        let bytes = |slot: &Arc<Slot>| {
            let file = slot.0.try_lock()?.clone();
            file.and_then(|file| file.content().metadata().ok()).map(|known| known.len())
        };
        let is_large = files.iter().filter_map(bytes).sum::<u64>() > IDLE_BYTES_MAX;
        let count = files.len();
        drop(files);
        match (is_large, count > IDLE_FILES_MAX) {
            (false, false) => Ok(()),
            (true, _) => self.take_idle(0),
            (false, true) => self.take_idle(IDLE_FILES_MAX / 2),
        }
    }

    /// Waits, if there are very many files, until some are written back and out of the spool.
    fn relieve(&self) -> Result<()> {
        if self.files.lock().len() <= FILES_MAX {
            return Ok(());
        }
        let mut relieved_from = self.relieved_from.lock();
        if self.files.lock().len() <= *relieved_from {
            return Ok(());
        }
        self.write_back_all()?;
        self.take_idle(FILES_MAX / 2)?;
        // Programs may have as many open as this: looking again would not help.
        *relieved_from = FILES_MAX.max(self.files.lock().len() * 2);
        Ok(())
    }

    /// Takes the file `id` out of the spool if it has no names and nobody has it open.
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

    /// Writes back each file that a writer closes, until [`Spool::end`]; `report` hears of those that
    /// could not be.
    pub(crate) fn write_back_closed(&self, report: &dyn Fn(&Error)) {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut events = inotify::Reader::new(&self.closes, &mut buffer);
        let mut closes = 0_u32;
        loop {
            let written = match events.next() {
                Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => {
                    // The last event may be among those that were lost.
                    if self.is_ending.load(Ordering::SeqCst) {
                        return;
                    }
                    self.write_back_all()
                }
                Ok(event) => {
                    let name = event.file_name().map_or(&b""[..], |name| name.to_bytes());
                    if name == END.as_bytes() {
                        return;
                    }
                    let path = [self.path.as_os_str().as_bytes(), b"/", name].concat();
                    let closed = self.file_at(&path);
                    let written = closed.map_or(Ok(()), |file| file.write_back_closed());
                    let id = id_of(name);
                    written.and_then(|()| id.map_or(Ok(()), |id| self.discard_if_gone(id)))
                }
                Err(rustix::io::Errno::INTR) => Ok(()),
                Err(error) => {
                    report(&Error::io(error.into(), "watch the spool"));
                    return;
                }
            };
            closes = closes.wrapping_add(1);
            let trim = || if closes.is_multiple_of(CLOSES_PER_TRIM) { self.trim() } else { Ok(()) };
            if let Err(error) = written.and_then(|()| trim()) {
                let kept = self.path.display();
                report(&error.within(format!("a file is only in {kept} yet")));
            }
        }
    }

    /// Ends [`Spool::write_back_closed`].
    pub(crate) fn end(&self) -> Result<()> {
        self.is_ending.store(true, Ordering::SeqCst);
        let path = self.path.join(END);
        File::create(&path).map(drop).map_err(|error| Error::io(error, path.to_string_lossy()))
    }

    /// Writes everything back, takes it out, and removes the directory.
    pub(crate) fn close(self) -> Result<()> {
        let written = self.write_back_all();
        let mut result = written;
        for slot in self.files.into_inner().into_values() {
            let file = Arc::into_inner(slot).and_then(|slot| slot.0.into_inner());
            let file = file.and_then(Arc::into_inner);
            result = result.and(file.map_or(Ok(()), SpooledFile::close));
        }
        if result.is_err() {
            // What could not be written back is only here.
            let kept = self.directory.keep();
            return result.map_err(|error| {
                error.within(format!("files are only in {} yet", kept.display()))
            });
        }
        result
    }
}

/// The identity that a file's name begins with.
fn id_of(name: &[u8]) -> Option<u128> {
    u128::from_str_radix(std::str::from_utf8(name.get(..32)?).ok()?, 16).ok()
}
