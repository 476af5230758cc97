// SPDX-License-Identifier: Apache-2.0
//! Spooled file: a file of the namespace while programs have it open, as a real file.
//!
//! Invariant: once nobody has it open for writing and `is_dirty` is false, the session has its bytes.
//! Whether anybody does is known by leases (fcntl(2), `F_SETLEASE`): the kernel grants a read lease if no
//! descriptor and no map can write, and a write lease if there is no other descriptor or map at all.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esker_base::{Error, Kind, Result};
use esker_fs::file::OpenFile;
use esker_fs::inode::Inode;
use esker_fs::namespace::Namespace;
use esker_fs::ops::AttributeChanges;
use esker_fs::session::Session;
use esker_fs::timestamp;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, SeekFrom, Timespec, Timestamps};

/// `F_SETSIG` of fcntl(2).
const SET_SIGNAL: i32 = 10;
/// Bytes that are copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// A file of the namespace that is in the spool.
#[derive(Debug)]
pub(crate) struct SpooledFile {
    path: PathBuf,
    /// Open for reading only: leases tell of others then.
    file: File,
    source: FileSource,
    /// True if it may have bytes that the session lacks.
    is_dirty: AtomicBool,
    /// True if set-id bits go with the next bytes that are written back: a user other than a superuser
    /// opened it for writing.
    drops_set_id: AtomicBool,
    /// When it was opened last, in opens of the spool.
    pub(crate) last_use: AtomicU64,
    /// Held while it is opened for writing, and while it is written back.
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

/// A kind of lease.
#[derive(Clone, Copy)]
enum Lease {
    /// Nobody writes.
    Read = libc::F_RDLCK as isize,
    /// Nobody else has it open.
    Write = libc::F_WRLCK as isize,
}

impl SpooledFile {
    /// Puts a file into the spool at `path`, with its content if `has_content`, which it gets at another path.
    ///
    /// # Errors
    /// Errors of the store; `NoSpace` and others of the spool.
    pub(crate) fn fill(
        namespace: &Namespace,
        source: FileSource,
        (filled, path): (PathBuf, PathBuf),
        has_content: bool,
    ) -> Result<Self> {
        let file = source.copy_out(namespace, &filled, has_content).and_then(|file| {
            let moved = std::fs::rename(&filled, &path).map(|()| file);
            moved.map_err(|error| Error::io(error, path.to_string_lossy()))
        });
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                drop(std::fs::remove_file(&filled));
                // The first error matters more.
                drop(source.close());
                return Err(error);
            }
        };
        // A lease that somebody breaks is told by a signal, by default one that ends the process.
        // SAFETY: the call takes numbers.
        unsafe { libc::fcntl(file.as_raw_fd(), SET_SIGNAL, libc::SIGURG) };
        Ok(Self {
            path,
            file,
            source,
            is_dirty: AtomicBool::new(!has_content),
            drops_set_id: AtomicBool::new(false),
            last_use: AtomicU64::new(0),
            writing: Mutex::default(),
        })
    }

    pub(crate) fn source(&self) -> &FileSource {
        &self.source
    }

    pub(crate) fn content(&self) -> &File {
        &self.file
    }

    /// Opens the real file with `flags` of open(2).
    pub(crate) fn open(&self, flags: i32, is_superuser: bool) -> io::Result<File> {
        let accesses = flags & libc::O_ACCMODE;
        let writes = accesses != libc::O_RDONLY;
        let _writing = writes.then(|| self.writing.lock());
        let opened = OpenOptions::new()
            .read(accesses != libc::O_WRONLY)
            .write(writes)
            .custom_flags(
                flags & !(libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW),
            )
            .open(&self.path)?;
        if writes {
            self.is_dirty.store(true, Ordering::Release);
            self.drops_set_id.fetch_or(!is_superuser, Ordering::AcqRel);
        }
        Ok(opened)
    }

    /// Changes the size.
    pub(crate) fn set_size(&self, size: u64, is_superuser: bool) -> io::Result<()> {
        self.open(libc::O_WRONLY, is_superuser)?.set_len(size)
    }

    /// Sets the time of the last change of content, which the session has recorded.
    pub(crate) fn set_modified(&self, mtime_ns: i64) -> io::Result<()> {
        // Not by a descriptor that can write: closing one would be taken for the end of a change.
        let (seconds, nanoseconds) = timestamp::parts(mtime_ns);
        let omitted = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let modified = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: omitted, last_modification: modified };
        Ok(rustix::fs::utimensat(rustix::fs::CWD, &self.path, &times, AtFlags::empty())?)
    }

    /// The attributes of the file, whose content may be newer than what the session has. Waits while it is
    /// written back, since attributes of the session are those of a half written file then.
    pub(crate) fn stat(&self) -> Result<Inode> {
        let FileSource::Session(session, open) = &self.source else {
            return self.source.inode();
        };
        let _writing = self.writing.lock();
        let mut inode = session.file(open).stat()?;
        if self.is_dirty() {
            let known = self.metadata()?;
            inode.size = known.len();
            inode.mtime_ns = modified_ns(&known);
            inode.ctime_ns = inode.ctime_ns.max(inode.mtime_ns);
        }
        Ok(inode)
    }

    /// Bytes of content without holes.
    pub(crate) fn stored_bytes(&self) -> Result<u64> {
        Ok(self.metadata()?.blocks() * 512)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    fn metadata(&self) -> Result<std::fs::Metadata> {
        self.file.metadata().map_err(|error| Error::io(error, self.path.to_string_lossy()))
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

    /// As [`SpooledFile::write_back`], after a writer has closed it: also one that no call has opened, but
    /// a path of `/proc`.
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
        if recorded.nlink > 0 {
            let known = self.metadata()?;
            self.copy_from_spool(session, open, recorded.size, known.len())?;
            // As programs have seen them since the file was written.
            let mtime_ns = modified_ns(&known);
            let mut changes = AttributeChanges {
                mtime_ns: Some(mtime_ns),
                ctime_ns: Some(recorded.ctime_ns.max(mtime_ns)),
                ..AttributeChanges::default()
            };
            if self.drops_set_id.load(Ordering::Acquire) && recorded.mode & 0o6000 != 0 {
                let dropped = if recorded.mode & 0o010 != 0 { 0o6000 } else { 0o4000 };
                changes.mode = Some(recorded.mode & !dropped);
            }
            file.setattr(&changes)?;
            file.flush()?;
        }
        if has_no_writers {
            self.is_dirty.store(false, Ordering::Release);
            self.drops_set_id.store(false, Ordering::Release);
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
        let failed = |error: io::Error| Error::io(error, self.path.to_string_lossy());
        let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(size).unwrap_or(PIECE_BYTES))];
        let mut at = 0;
        while at < size {
            let (data, end) = self.next_data(at, size).map_err(failed)?;
            // What was there before must not show in a hole.
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

    /// The next range of bytes from `at` that is no hole.
    fn next_data(&self, at: u64, size: u64) -> io::Result<(u64, u64)> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Ok(start) => {
                let end = rustix::fs::seek(&self.file, SeekFrom::Hole(start))?;
                Ok((start.min(size), end.min(size)))
            }
            // Only a hole is left.
            Err(rustix::io::Errno::NXIO) => Ok((size, size)),
            // This file system does not tell.
            Err(rustix::io::Errno::INVAL) => Ok((at, size)),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether nobody else has it open, and no name leads to it.
    pub(crate) fn is_gone(&self) -> Result<bool> {
        let _writing = self.writing.lock();
        Ok(self.lease(Lease::Write) && self.source.inode()?.nlink == 0)
    }

    /// Whether nobody else has it open, and the session has all of it.
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

    /// Removes the real file, of which there can be another one then.
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

impl FileSource {
    /// The file's record.
    fn inode(&self) -> Result<Inode> {
        match self {
            Self::Session(session, open) => session.file(open).stat(),
            Self::Snapshot(inode) => Ok((**inode).clone()),
        }
    }

    /// Copies the file to a new one at `path`; returns that, open for reading.
    fn copy_out(&self, namespace: &Namespace, path: &Path, has_content: bool) -> Result<File> {
        let failed = |error: io::Error| Error::io(error, path.to_string_lossy());
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(failed)?;
        let inode = self.inode()?;
        if has_content {
            file.set_len(inode.size).map_err(failed)?;
            self.copy_to(namespace, inode.size, &file)?;
        }
        file.set_modified(timestamp::system_time(inode.mtime_ns)).map_err(failed)?;
        File::open(path).map_err(failed)
    }

    /// Gives the file back to the session.
    fn close(self) -> Result<()> {
        match self {
            Self::Session(session, open) => session.close_file(open),
            Self::Snapshot(_) => Ok(()),
        }
    }

    fn copy_to(&self, namespace: &Namespace, size: u64, to: &File) -> Result<()> {
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
            to.write_all_at(&bytes, at).map_err(|error| Error::io(error, "spool"))?;
            at += bytes.len() as u64;
        }
        Ok(())
    }
}
