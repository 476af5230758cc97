// SPDX-License-Identifier: Apache-2.0
//! Spooled file: a file of the namespace while programs have it open, as a real file.
//!
//! Invariant: once no program has it open for writing and `is_dirty` is false, the session has its
//! bytes. Leases (fcntl(2), `F_SETLEASE`) show whether it is open: the kernel grants a read lease
//! if no descriptor and no map can write, and a write lease if there is no other descriptor or map
//! at all. A set-user-id bit of the real file shows whether a user has written, since the kernel
//! clears it then.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esker_base::{Error, Kind, Result};
use esker_fs::file::OpenFile;
use esker_fs::inode::Inode;
use esker_fs::inode::timestamp;
use esker_fs::ops::AttributeChanges;
use esker_fs::session::Session;
use esker_fs::stack::namespace::Namespace;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, SeekFrom, Timespec, Timestamps};

/// `F_SETSIG` of fcntl(2).
const SET_SIGNAL: i32 = 10;
/// Bytes that are copied at once.
const PIECE_BYTES: usize = 1 << 20;
/// Set-id bits of a mode.
const SET_ID: u32 = 0o6000;
/// Mode of real files.
const MODE: u32 = 0o600;
/// Mode of the real files of files with set-id bits: they are never executed, and the kernel clears
/// the bit when a process without the privilege to keep it writes.
const MODE_UNTIL_WRITTEN: u32 = 0o4600;

/// A file of the namespace that is in the spool.
#[derive(Debug)]
pub(crate) struct SpooledFile {
    path: PathBuf,
    /// Open for reading only, so that a lease shows whether others have it open.
    file: File,
    source: FileSource,
    /// True if it may have bytes that the session lacks.
    is_dirty: AtomicBool,
    /// True if the real file is empty although the session's file has content: it was put here to
    /// be truncated.
    lacks_content: AtomicBool,
    /// Time of its last open, as a number of opens of the spool.
    pub(crate) last_use: AtomicU64,
    /// Held while the file is opened for writing, gets its content, changes its attributes, or is
    /// written back: a write-back sets attributes, and must not overwrite newer ones.
    writing: Mutex<()>,
}

/// The file in the namespace.
#[derive(Debug)]
pub(crate) enum FileSource {
    /// Open in the session.
    Session(Arc<Session>, Arc<OpenFile>),
    /// In a snapshot.
    Snapshot(Box<Inode>),
}

/// A copy of a file of the namespace.
#[derive(Debug)]
pub(crate) struct CopiedFile {
    /// Open for reading.
    file: File,
    lacks_content: bool,
}

/// A kind of lease.
#[derive(Clone, Copy)]
enum Lease {
    /// No descriptor or map can write.
    Read = libc::F_RDLCK as isize,
    /// There is no other descriptor or map.
    Write = libc::F_WRLCK as isize,
}

impl SpooledFile {
    /// Copies the file `source` to `filled`, with its content if `has_content`, and moves it to
    /// `path` then.
    ///
    /// # Errors
    /// Errors of the store; `NoSpace`, `TooManyOpenFiles` and others of the spool.
    pub(crate) fn copy(
        namespace: &Namespace,
        source: &FileSource,
        (filled, path): (&Path, &Path),
        has_content: bool,
    ) -> Result<CopiedFile> {
        let copied = source.copy_out(namespace, filled, has_content).and_then(|copied| {
            let moved = std::fs::rename(filled, path).map(|()| copied);
            moved.map_err(|error| Error::io(error, path.to_string_lossy()))
        });
        if copied.is_err() {
            drop(std::fs::remove_file(filled));
        }
        copied
    }

    /// The file `source`, which was copied to `path`.
    pub(crate) fn new(source: FileSource, copied: CopiedFile, path: PathBuf) -> Self {
        let CopiedFile { file, lacks_content } = copied;
        // The kernel reports a broken lease by a signal, by default one that ends the process.
        // SAFETY: the call takes numbers.
        unsafe { libc::fcntl(file.as_raw_fd(), SET_SIGNAL, libc::SIGURG) };
        Self {
            path,
            file,
            source,
            is_dirty: AtomicBool::new(false),
            lacks_content: AtomicBool::new(lacks_content),
            last_use: AtomicU64::new(0),
            writing: Mutex::default(),
        }
    }

    /// Copies the content here if that was skipped before.
    ///
    /// # Errors
    /// As [`SpooledFile::copy`].
    pub(crate) fn fill(&self, namespace: &Namespace) -> Result<()> {
        if !self.lacks_content() {
            return Ok(());
        }
        let _writing = self.writing.lock();
        self.fill_locked(namespace)
    }

    fn fill_locked(&self, namespace: &Namespace) -> Result<()> {
        if self.lacks_content() {
            let file = OpenOptions::new().write(true).open(&self.path);
            let file = file.map_err(|error| self.failed(error))?;
            let inode = self.source.inode()?;
            self.source.copy_content(namespace, &inode, &file)?;
            set_attributes(&file, &inode).map_err(|error| self.failed(error))?;
            self.lacks_content.store(false, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn source(&self) -> &FileSource {
        &self.source
    }

    pub(crate) fn content(&self) -> &File {
        &self.file
    }

    /// Opens the real file with `flags` of open(2).
    pub(crate) fn open(&self, flags: i32) -> io::Result<File> {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let _writing = writes.then(|| self.writing.lock());
        self.open_locked(flags)
    }

    fn open_locked(&self, flags: i32) -> io::Result<File> {
        let accesses = flags & libc::O_ACCMODE;
        let writes = accesses != libc::O_RDONLY;
        let opened = OpenOptions::new()
            .read(accesses != libc::O_WRONLY)
            .write(writes)
            .custom_flags(
                flags & !(libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW),
            )
            .open(&self.path)?;
        if writes {
            self.is_dirty.store(true, Ordering::Release);
        }
        Ok(opened)
    }

    /// Changes the size, for a user who may write it.
    ///
    /// # Errors
    /// `FileTooLarge`; as [`SpooledFile::copy`].
    pub(crate) fn set_size(&self, namespace: &Namespace, size: u64) -> Result<()> {
        let _writing = self.writing.lock();
        if size > 0 {
            self.fill_locked(namespace)?;
        }
        // By its path, which takes no descriptor.
        truncate(&self.path, size).map_err(|error| self.failed(error))?;
        self.is_dirty.store(true, Ordering::Release);
        self.lacks_content.store(false, Ordering::Release);
        if !namespace.identity().is_root() {
            self.set_mode(MODE).map_err(|error| self.failed(error))?;
        }
        // Closing this descriptor triggers the write-back; if none can be had, the file is written
        // back at the end.
        drop(self.open_locked(libc::O_WRONLY));
        Ok(())
    }

    /// Changes attributes in the session by `change`, and those that the real file has, too, by
    /// `changes`.
    ///
    /// # Errors
    /// Those of `change`; errors of the spool.
    pub(crate) fn change(
        &self,
        changes: &AttributeChanges,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _writing = self.writing.lock();
        change()?;
        if let Some(mtime_ns) = changes.mtime_ns {
            self.set_modified(mtime_ns).map_err(|error| self.failed(error))?;
        }
        if changes.mode.is_some_and(|mode| mode & SET_ID != 0) {
            self.set_mode(MODE_UNTIL_WRITTEN).map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    /// Sets the time of the last change of content.
    fn set_modified(&self, mtime_ns: i64) -> io::Result<()> {
        // Not by a descriptor that can write: closing it would count as the end of a change.
        let (seconds, nanoseconds) = timestamp::parts(mtime_ns);
        let omitted = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let modified = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: omitted, last_modification: modified };
        Ok(rustix::fs::utimensat(rustix::fs::CWD, &self.path, &times, AtFlags::empty())?)
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.file.set_permissions(std::fs::Permissions::from_mode(mode))
    }

    /// The attributes of the file, whose content may be newer than the session's. Blocks while it
    /// is written back, since the session then has the attributes of a half-written file.
    pub(crate) fn stat(&self) -> Result<Inode> {
        let FileSource::Session(session, open) = &self.source else {
            return self.source.inode();
        };
        let _writing = self.writing.lock();
        let mut inode = session.file(open).stat()?;
        if self.is_dirty() && !self.lacks_content() {
            let known = self.metadata()?;
            inode.mode = mode_after(inode.mode, &known);
            inode.size = known.len();
            inode.mtime_ns = modified_ns(&known);
            inode.ctime_ns = inode.ctime_ns.max(inode.mtime_ns);
        }
        Ok(inode)
    }

    /// Bytes of content without holes.
    pub(crate) fn stored_bytes(&self) -> Result<u64> {
        if self.lacks_content() {
            return Ok(self.source.inode()?.size);
        }
        Ok(self.metadata()?.blocks() * 512)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    fn lacks_content(&self) -> bool {
        self.lacks_content.load(Ordering::Acquire)
    }

    fn metadata(&self) -> Result<std::fs::Metadata> {
        self.file.metadata().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::io(error, self.path.to_string_lossy())
    }

    /// Writes the content back to the session if it may have changed.
    ///
    /// # Errors
    /// Errors of the store: the content stays here, and is written back by the next attempt.
    pub(crate) fn write_back(&self) -> Result<()> {
        let _writing = self.writing.lock();
        if !self.is_dirty() {
            return Ok(());
        }
        self.write_back_locked()
    }

    /// As [`SpooledFile::write_back`], unless somebody has it open for writing.
    pub(crate) fn write_back_unopened(&self) -> Result<()> {
        let _writing = self.writing.lock();
        if !self.is_dirty() || !self.lease(Lease::Read) {
            return Ok(());
        }
        self.write_back_locked()
    }

    /// As [`SpooledFile::write_back`], after a writer has closed it: also one that no call has
    /// opened, but a path of `/proc`.
    pub(crate) fn write_back_closed(&self) -> Result<()> {
        let _writing = self.writing.lock();
        let written = self.write_back_locked();
        if written.is_err() {
            self.is_dirty.store(true, Ordering::Release);
        }
        written
    }

    fn write_back_locked(&self) -> Result<()> {
        let FileSource::Session(session, open) = &self.source else { return Ok(()) };
        // Asked before the bytes are read: a writer that closes it in between has written more.
        let has_no_writers = self.lease(Lease::Read);
        let file = session.file(open);
        let recorded = file.stat()?;
        if recorded.nlink > 0 && !self.lacks_content() {
            self.copy_from_spool(session, open, recorded.size, self.metadata()?.len())?;
            // The attributes as programs have seen them since the write. Another writer may have
            // changed the file meanwhile.
            let known = self.metadata()?;
            let mtime_ns = modified_ns(&known);
            let mode = mode_after(recorded.mode, &known);
            file.setattr(&AttributeChanges {
                mode: (mode != recorded.mode).then_some(mode),
                mtime_ns: Some(mtime_ns),
                ctime_ns: Some(recorded.ctime_ns.max(mtime_ns)),
                ..AttributeChanges::default()
            })?;
            file.flush()?;
        }
        if has_no_writers {
            self.is_dirty.store(false, Ordering::Release);
        }
        Ok(())
    }

    fn copy_from_spool(
        &self,
        session: &Session,
        open: &Arc<OpenFile>,
        recorded_size: u64,
        size: u64,
    ) -> Result<()> {
        let to = session.file(open);
        let failed = |error: io::Error| self.failed(error);
        let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(size).unwrap_or(PIECE_BYTES))];
        let mut at = 0;
        while at < size {
            let (data, end) = self.next_data(at, size).map_err(failed)?;
            // Former content must not show in a hole.
            if data > at && recorded_size > at {
                to.punch(at..data.min(size), false)?;
            }
            at = data;
            while at < end {
                let wanted = piece.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                let read = self.file.read_at(&mut piece[..wanted], at).map_err(failed)?;
                if read == 0 {
                    break; // Somebody has just truncated it; that is written back later.
                }
                to.write(at, &piece[..read])?;
                at += read as u64;
            }
            at = at.max(end);
        }
        if to.stat()?.size == size { Ok(()) } else { to.truncate(size) }
    }

    /// The next range of bytes from `at` that is not a hole.
    fn next_data(&self, at: u64, size: u64) -> io::Result<(u64, u64)> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Ok(start) => {
                let end = rustix::fs::seek(&self.file, SeekFrom::Hole(start))?;
                Ok((start.min(size), end.min(size)))
            }
            // Only a hole is left.
            Err(rustix::io::Errno::NXIO) => Ok((size, size)),
            // This file system does not report holes.
            Err(rustix::io::Errno::INVAL) => Ok((at, size)),
            Err(error) => Err(error.into()),
        }
    }

    /// True if no name leads to the file and nobody else has it open.
    pub(crate) fn is_gone(&self) -> Result<bool> {
        let _writing = self.writing.lock();
        Ok(self.lease(Lease::Write) && self.source.inode()?.nlink == 0)
    }

    /// True if the session has all of the file's content and nobody else has it open.
    pub(crate) fn is_idle(&self) -> bool {
        let _writing = self.writing.lock();
        !self.is_dirty() && self.lease(Lease::Write)
    }

    /// Takes a lease and gives it back; true if the kernel grants it.
    fn lease(&self, kind: Lease) -> bool {
        let set = |kind: i32| {
            // SAFETY: the call takes numbers.
            unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, kind) == 0 }
        };
        let is_granted = set(kind as i32);
        if is_granted {
            set(libc::F_UNLCK);
        }
        is_granted
    }

    /// Removes the real file; another one can then take its place.
    pub(crate) fn remove(&self) {
        drop(std::fs::remove_file(&self.path));
    }

    /// Gives the file back to the session.
    pub(crate) fn close(self) -> Result<()> {
        self.source.close()
    }
}

fn modified_ns(metadata: &std::fs::Metadata) -> i64 {
    timestamp::of_parts(metadata.mtime(), metadata.mtime_nsec())
}

/// The mode of a file of mode `mode`, without set-id bits if a user has written to the real file.
fn mode_after(mode: u32, real: &std::fs::Metadata) -> u32 {
    match mode {
        _ if real.mode() & SET_ID != 0 => mode,
        // Without the group's execute bit, 02000 does not mean set-group-id.
        _ if mode & 0o010 == 0 => mode & !0o4000,
        _ => mode & !SET_ID,
    }
}

/// Gives a new real file the attributes that show later whether it has changed.
fn set_attributes(file: &File, inode: &Inode) -> io::Result<()> {
    file.set_modified(timestamp::system_time(inode.mtime_ns))?;
    let mode = if inode.mode & SET_ID != 0 { MODE_UNTIL_WRITTEN } else { MODE };
    file.set_permissions(std::fs::Permissions::from_mode(mode))
}

fn truncate(path: &Path, size: u64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let size = i64::try_from(size).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    // SAFETY: `path` ends with a zero byte, and lives until the call returns.
    match unsafe { libc::truncate(path.as_ptr(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl FileSource {
    /// The file's record.
    fn inode(&self) -> Result<Inode> {
        match self {
            Self::Session(session, open) => session.file(open).stat(),
            Self::Snapshot(inode) => Ok((**inode).clone()),
        }
    }

    /// Copies the file to a new one at `path`, with its content if `has_content`.
    fn copy_out(
        &self,
        namespace: &Namespace,
        path: &Path,
        has_content: bool,
    ) -> Result<CopiedFile> {
        let failed = |error: io::Error| Error::io(error, path.to_string_lossy());
        let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path);
        let file = file.map_err(failed)?;
        let inode = self.inode()?;
        if has_content {
            self.copy_content(namespace, &inode, &file)?;
        }
        set_attributes(&file, &inode).map_err(failed)?;
        let file = File::open(path).map_err(failed)?;
        Ok(CopiedFile { file, lacks_content: !has_content && inode.size > 0 })
    }

    /// Gives the file back to the session.
    pub(crate) fn close(self) -> Result<()> {
        match self {
            Self::Session(session, open) => session.close_file(open),
            Self::Snapshot(_) => Ok(()),
        }
    }

    fn copy_content(&self, namespace: &Namespace, inode: &Inode, to: &File) -> Result<()> {
        let failed = |error| Error::io(error, "spool");
        let size = inode.size;
        // Bytes that a failed attempt has left must not show in a hole.
        to.set_len(0).and_then(|()| to.set_len(size)).map_err(failed)?;
        let mut at = 0;
        while at < size {
            let bytes = match self {
                Self::Session(session, open) => {
                    let file = session.file(open);
                    match file.seek_data(at)? {
                        Some(data) => at = data,
                        None => return Ok(()),
                    }
                    let wanted = (file.seek_hole(at)? - at).min(PIECE_BYTES as u64);
                    file.read(at, wanted as usize)?
                }
                Self::Snapshot(inode) => namespace.read(inode, at, PIECE_BYTES)?,
            };
            if bytes.is_empty() {
                let what = format!("a file of {size} bytes ends at byte {at}");
                return Err(Error::new(Kind::Corrupt, what));
            }
            to.write_all_at(&bytes, at).map_err(failed)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }
}
