// SPDX-License-Identifier: Apache-2.0
//! File: an open regular file, read and written at any offset.
//!
//! A file of a snapshot is its record, which never changes; all handles of a file in a session
//! share one open file.

use std::io::{self, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use esker_base::{Bytes, Error, Kind, Result};
use esker_fs::file::OpenFile;
use esker_fs::inode::{FileKind, Inode};
use esker_fs::ops::AttributeChanges;
use esker_fs::session::Session as Writer;
use esker_fs::stack::identity::{READ, WRITE};
use esker_fs::stack::namespace::FollowLinks;

use crate::dir::{Dir, FILE_MODE, TRIES_MAX, bytes};
use crate::metadata::Metadata;
use crate::tree_handle::TreeHandle;

/// Options for opening a file, as [`std::fs::OpenOptions`]: nothing is allowed unless it is set.
///
/// # Examples
/// ```
/// use esker::{OpenOptions, Repository};
///
/// let session = Repository::create("memory:")?.session().begin()?;
/// let options = OpenOptions::new().write(true).create(true).mode(0o600);
/// session.open_with("/secret", &options)?.write_at(b"1234", 0)?;
/// assert_eq!(session.metadata("/secret")?.mode(), 0o600);
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    create: bool,
    create_new: bool,
    truncate: bool,
    mode: Option<u32>,
}

impl OpenOptions {
    /// Options that allow nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows reading.
    #[must_use]
    pub fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// Allows writing.
    #[must_use]
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Creates the file if it does not exist.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Creates the file, which must not exist.
    #[must_use]
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Empties the file if it exists.
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Permission bits of a new file; 0644 unless they are given.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Opens the file at `path` of `dir`.
    pub(crate) fn open_at(&self, dir: &Dir, path: &Path) -> Result<File> {
        let changes = self.create || self.create_new || self.truncate;
        if !self.write && (changes || !self.read) {
            let what = "a file is opened to read or write it, and created or truncated to write it";
            return Err(Error::new(Kind::Invalid, what));
        }
        if !self.write && matches!(dir.tree, TreeHandle::Snapshot(_)) {
            return self.open_of_snapshot(dir, path);
        }
        let writer = dir.tree.writer()?;
        for _ in 0..TRIES_MAX {
            if !self.create_new {
                match self.open_existing(dir, writer, path) {
                    Err(error) if error.kind() == Kind::NotFound && self.create => {}
                    opened => return opened,
                }
            }
            let mode = self.mode.unwrap_or(FILE_MODE);
            match dir.at(path, |node, name| writer.create_file(node, name, mode)) {
                // Another thread has just created it, or it is a link to a missing file.
                Err(error) if error.kind() == Kind::Exists && !self.create_new => {}
                made => return Ok(self.handle(&dir.tree, made?)),
            }
        }
        let what = format!("{}: a symbolic link to a file that does not exist", path.display());
        Err(Error::new(Kind::NotFound, what))
    }

    fn open_of_snapshot(&self, dir: &Dir, path: &Path) -> Result<File> {
        let inode = dir.find(path, FollowLinks::Yes)?.inode;
        check_regular(&inode, path)?;
        dir.tree.layers().identity().check(READ, &inode, bytes(path))?;
        Ok(File {
            tree: dir.tree.clone(),
            content: FileContent::Recorded(Box::new(inode)),
            may_read: true,
            may_write: false,
        })
    }

    fn open_existing(&self, dir: &Dir, writer: &Writer, path: &Path) -> Result<File> {
        let found = dir.find(path, FollowLinks::Yes)?;
        check_regular(&found.inode, path)?;
        let opened = writer.open_file(&found.dir, &found.name)?;
        let file = self.handle(&dir.tree, opened.clone());
        // The permissions of the file that was opened: the name may stand for another one by now.
        let wanted = if self.read { READ } else { 0 } | if self.write { WRITE } else { 0 };
        writer.namespace().identity().check(wanted, &writer.file(&opened).stat()?, bytes(path))?;
        if self.truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }

    fn handle(&self, tree: &TreeHandle, file: Arc<OpenFile>) -> File {
        let content = FileContent::Open(Some(file));
        File { tree: tree.clone(), content, may_read: self.read, may_write: self.write }
    }
}

fn check_regular(inode: &Inode, path: &Path) -> Result<()> {
    let refused = |kind, what| Err(Error::new(kind, format!("{}: {what}", path.display())));
    match inode.kind() {
        Some(FileKind::File) => Ok(()),
        Some(FileKind::Directory) => refused(Kind::IsADirectory, "is a directory"),
        Some(FileKind::Indexed) => {
            refused(Kind::IsADirectory, "is an indexed directory: use `open_indexed`")
        }
        _ => refused(Kind::Invalid, "not a regular file"),
    }
}

/// Reads all of `inode` and verifies its checksum. Memory grows only with the bytes that arrive.
pub(crate) fn read_all(tree: &TreeHandle, inode: &Inode) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    tree.layers().read_all(inode, &mut |piece| {
        content.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(content)
}

/// The place of an open file's bytes.
#[derive(Debug)]
enum FileContent {
    /// In a snapshot, at the place that the record gives.
    Recorded(Box<Inode>),
    /// In a session; `None` once it is closed.
    Open(Option<Arc<OpenFile>>),
}

/// An open regular file of a snapshot or a session.
///
/// Reads and writes take an offset, so threads share a file without a position to fight over;
/// [`File::stream`] adds one for [`std::io`]. All handles of a file in a session see each other's
/// writes at once. The file keeps working after its names are removed.
///
/// Writes up to 1 MiB of a new file stay in memory until it is closed; others are appended to a
/// log, and nothing that was written before is copied. Closing a file makes its changes an
/// operation of the session, with the session's durability. [`File::close`] reports errors; a file
/// that is dropped is closed, too, and if that fails the session's next sync, flush or publish
/// tries again and reports.
///
/// # Examples
/// ```
/// use std::io::{BufRead, BufReader, Write};
/// use esker::Repository;
///
/// let session = Repository::create("memory:")?.session().begin()?;
/// let file = session.create("/log")?;
/// file.append(b"first line\n")?;
/// file.write_at(b"FIRST", 0)?;
/// write!(file.stream_at(file.len()?), "second line\n")?;
/// file.close()?;
///
/// let lines: Result<Vec<_>, _> = BufReader::new(session.open("/log")?.stream()).lines().collect();
/// assert_eq!(lines?, ["FIRST line", "second line"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct File {
    tree: TreeHandle,
    content: FileContent,
    may_read: bool,
    may_write: bool,
}

impl File {
    /// The file and its session, for a change.
    fn writable(&self) -> Result<(&Writer, &Arc<OpenFile>)> {
        match &self.content {
            FileContent::Open(Some(file)) if self.may_write => Ok((self.tree.writer()?, file)),
            _ => Err(Error::new(Kind::Denied, "the file was not opened for writing")),
        }
    }

    /// Returns up to `bytes_max` bytes from `offset`; fewer only at the end of the file. Cost: a
    /// store request for each log that has a part of them; none while the bytes are in memory.
    /// Large reads in order are read ahead. Checksums are verified by [`Dir::read`] alone, since
    /// they cover whole files.
    ///
    /// # Errors
    /// `Denied` if the file was not opened for reading; errors of the store.
    pub fn read_bytes_at(&self, offset: u64, bytes_max: usize) -> Result<Bytes> {
        if !self.may_read {
            return Err(Error::new(Kind::Denied, "the file was not opened for reading"));
        }
        match &self.content {
            FileContent::Recorded(inode) => self.tree.layers().read(inode, offset, bytes_max),
            FileContent::Open(Some(file)) => self.tree.writer()?.file(file).read(offset, bytes_max),
            FileContent::Open(None) => Ok(Bytes::new()),
        }
    }

    /// Reads into `buffer` from `offset`, and returns the number of bytes; fewer than `buffer`
    /// takes only at the end of the file. Cost: as [`File::read_bytes_at`].
    ///
    /// # Errors
    /// As [`File::read_bytes_at`].
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let bytes = self.read_bytes_at(offset, buffer.len())?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    /// Writes `bytes` at `offset`; a gap after the end reads as zeros.
    ///
    /// # Errors
    /// `Denied` if the file was not opened for writing; `FileTooLarge`; `NoSpace`, and errors of
    /// the store; `Fenced` or `Closed` if the session takes no more changes.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let (writer, file) = self.writable()?;
        writer.file(file).write(offset, bytes)
    }

    /// Writes `bytes` at the end, and returns the offset at which they are. Appends of several
    /// threads do not overlap.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        let (writer, file) = self.writable()?;
        writer.file(file).append(bytes)
    }

    /// Cuts the file to `bytes`, or extends it with zeros, which take no space.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        let (writer, file) = self.writable()?;
        writer.file(file).truncate(bytes)
    }

    /// Changes mode, owner, size or times.
    ///
    /// # Errors
    /// As [`Dir::set_attributes`].
    pub fn set_attributes(&self, changes: &AttributeChanges) -> Result<()> {
        let (writer, file) = self.writable()?;
        writer.file(file).setattr(changes).map(drop)
    }

    /// Returns the attributes, with the size as of the last write.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn metadata(&self) -> Result<Metadata> {
        match &self.content {
            FileContent::Recorded(inode) => Ok(Metadata::new((**inode).clone())),
            FileContent::Open(Some(file)) => {
                self.tree.writer()?.file(file).stat().map(Metadata::new)
            }
            FileContent::Open(None) => Err(Error::new(Kind::Closed, "the file is closed")),
        }
    }

    /// Returns the size in bytes.
    ///
    /// # Errors
    /// Errors of the store.
    #[expect(clippy::len_without_is_empty, reason = "as in std::fs::Metadata")]
    pub fn len(&self) -> Result<u64> {
        match &self.content {
            FileContent::Recorded(inode) => Ok(inode.size),
            FileContent::Open(file) => file.as_ref().map_or(Ok(0), |file| file.size()),
        }
    }

    /// Returns once the file, and everything that the session did before, survives power loss. No
    /// process can resume a private session, so in one this only frees memory.
    ///
    /// # Errors
    /// As [`Session::sync`](crate::Session::sync).
    pub fn sync(&self) -> Result<()> {
        let (writer, file) = self.writable()?;
        writer.file(file).sync()
    }

    /// Closes the file: from now on its changes are as durable as other operations of the session.
    ///
    /// # Errors
    /// Errors of the store; the session's next sync, flush or publish tries again.
    pub fn close(mut self) -> Result<()> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        match &mut self.content {
            FileContent::Open(file) => match (file.take(), self.tree.writer()) {
                (Some(file), Ok(writer)) => writer.close_file(file),
                _ => Ok(()),
            },
            FileContent::Recorded(_) => Ok(()),
        }
    }

    /// A position at the start of the file, for [`std::io`]. Nothing is buffered.
    #[must_use]
    pub fn stream(&self) -> FileStream<'_> {
        self.stream_at(0)
    }

    /// A position in the file, for [`std::io`].
    #[must_use]
    pub fn stream_at(&self, offset: u64) -> FileStream<'_> {
        FileStream { file: self, offset }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // The session keeps bytes that could not be written, and reports the error.
        drop(self.give_back());
    }
}

/// A position in a file, for [`std::io::Read`], [`std::io::Write`] and [`std::io::Seek`].
#[derive(Clone, Copy, Debug)]
pub struct FileStream<'a> {
    file: &'a File,
    offset: u64,
}

impl io::Read for FileStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

impl io::Write for FileStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(bytes, self.offset)?;
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for FileStream<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.offset.checked_add_signed(by),
            SeekFrom::End(by) => self.file.len()?.checked_add_signed(by),
        };
        let at = at.ok_or_else(|| Error::new(Kind::Invalid, "a position before the file"))?;
        self.offset = at;
        Ok(at)
    }
}
