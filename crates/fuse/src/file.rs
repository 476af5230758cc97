// SPDX-License-Identifier: Apache-2.0
//! File: the content of files; opening, reading, writing, holes.
//!
//! A file that the kernel has open is opened once here, even if many programs share it; the last
//! release closes it. It continues to work after its names are gone.
//!
//! Passthrough: the kernel reads a large file of a snapshot directly from the store if it is a file
//! there too; such reads never come here. Likewise the kernel writes new files of a session
//! directly, and reads them while they are being written, if they are likely to get large: in
//! directories whose last new file did. The kernel accepts passthrough only at the first open of a
//! file, and small files are faster here. Existing files are written here: their new bytes go to
//! new ranges of logs, since snapshots may show the old ones.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{fmt, io};

use esker_base::Bytes;
use esker_fs::file::OpenFile;
use esker_fs::inode::{FileKind, Inode};
use esker_fuse_ring::AttrChanges;
use esker_live::wire::RangeChange;
use fuser::{Errno, FileAttr, WriteFlags};
use rustix::fs::OFlags;

use crate::attributes::ListedAttributes;
use crate::backing::Backing;
use crate::failed_change::ChangedName;
use crate::make::{Caller, CreateRequest};
use crate::mount_state::MountState;
use crate::node_location::NodeLocation;
use crate::nodes::KernelNode;

/// `fallocate`'s modes.
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 16;
/// `lseek`'s modes for holes.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Open flags that grant write access.
const WRITES: OFlags = OFlags::WRONLY.union(OFlags::RDWR);

/// Minimum size for passthrough: below it, registering the store's file takes as many requests as
/// serving the reads or writes.
const BACKED_BYTES_MIN: u64 = 4 << 20;

/// An open file, and the number of its opens.
pub(crate) struct OpenedFile {
    content: OpenedContent,
    count: u64,
    /// True if nothing had been written to it before it was opened for writing.
    is_new: bool,
    /// Registration of the store's file that the kernel reads and writes directly, shared by all
    /// opens of the file.
    backing: Option<Arc<Backing>>,
    /// True if the kernel may have pages that were written and that the mount has not got yet.
    may_be_dirty: bool,
}

impl OpenedFile {
    /// True if the kernel may have pages that were written and that the mount has not got yet.
    pub(crate) fn may_be_dirty(&self) -> bool {
        self.may_be_dirty
    }
}

/// True if a program that opens a file with `flags` can map it for writing.
fn can_map_writes(flags: OFlags) -> bool {
    flags.contains(OFlags::RDWR)
}

/// New files of a session that the kernel writes directly in the store, where possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InPlacePolicy {
    /// Those in directories whose last new file got large.
    #[default]
    Auto,
    /// All.
    Always,
    /// None.
    Never,
}

impl fmt::Debug for OpenedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opened = &mut f.debug_struct("Opened");
        opened.field("content", &self.content).field("count", &self.count).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
enum OpenedContent {
    /// From a snapshot: the inode is enough.
    Fixed(Arc<Inode>),
    Changing(Arc<OpenFile>),
    /// The values of a key of an indexed directory.
    Values(Bytes),
}

/// What `fallocate` with `mode` makes of a range.
pub(crate) fn range_change(mode: i32) -> Result<RangeChange, Errno> {
    let keeps_size = mode & KEEP_SIZE != 0;
    match mode & !KEEP_SIZE {
        0 => Ok(RangeChange { zeroes: false, keeps_size }),
        // The kernel requests holes only within the file's size.
        PUNCH_HOLE if keeps_size => Ok(RangeChange { zeroes: true, keeps_size }),
        ZERO_RANGE => Ok(RangeChange { zeroes: true, keeps_size }),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

impl MountState {
    /// Opens the file `number` with `flags`; a truncation removes set-id bits if `drops_set_id`.
    /// Returns the store's file that the kernel reads and writes directly, which `register` has given
    /// it; `None` if it uses its page cache.
    pub(crate) fn open(
        &self,
        number: u64,
        flags: OFlags,
        drops_set_id: bool,
        register: impl FnOnce(&File) -> io::Result<Backing>,
    ) -> Result<Option<Arc<Backing>>, Errno> {
        let node = self.node(number)?;
        let backing = {
            let mut file = node.file.lock();
            let opened = match &mut *file {
                Some(opened) => {
                    opened.count += 1;
                    opened
                }
                None => file.insert(self.open_first(&node, flags, register)?),
            };
            opened.may_be_dirty |= self.leaves_dirty_pages(flags);
            // The kernel takes nothing else while the file is open so.
            opened.backing.clone()
        };
        if flags.contains(OFlags::TRUNC) {
            let wanted = AttrChanges { size: Some(0), ..AttrChanges::default() };
            self.change(&node, &wanted, drops_set_id).inspect_err(|_| {
                // The first error is the one that counts.
                let _ = self.release(number);
            })?;
        }
        Ok(backing)
    }

    /// True if the kernel may keep what is written to a file that is opened with `flags`.
    fn leaves_dirty_pages(&self, flags: OFlags) -> bool {
        can_map_writes(flags) || self.writes_back && flags.intersects(WRITES)
    }

    /// Opens `node`, which is not open yet.
    fn open_first(
        &self,
        node: &KernelNode,
        flags: OFlags,
        register: impl FnOnce(&File) -> io::Result<Backing>,
    ) -> Result<OpenedFile, Errno> {
        let writes = flags.intersects(WRITES);
        if writes && matches!(&*node.location.lock(), NodeLocation::Key(_)) {
            return Err(Errno::EROFS);
        }
        let content = self.content(node)?;
        let (is_new, backing) = match &content {
            OpenedContent::Fixed(inode) => (false, self.pass_reads(inode, register)),
            OpenedContent::Changing(file) if writes && file.is_blank() => {
                (true, self.pass_writes(self.parent(node).as_deref(), (file, flags), register))
            }
            OpenedContent::Changing(_) | OpenedContent::Values(_) => (false, None),
        };
        Ok(OpenedFile { content, count: 1, is_new, backing, may_be_dirty: false })
    }

    /// Lets the kernel read the store's file in place of `inode`, if there is one. Otherwise the
    /// file is read through the mount.
    fn pass_reads(
        &self,
        inode: &Inode,
        register: impl FnOnce(&File) -> io::Result<Backing>,
    ) -> Option<Arc<Backing>> {
        if !self.passes_through.load(Ordering::Relaxed) || inode.size < BACKED_BYTES_MIN {
            return None;
        }
        let file = self.view.namespace().backing_file(inode).ok().flatten()?;
        register(&file).ok().map(Arc::new)
    }

    /// Lets the kernel write `file`, in `parent`, directly in the store, if it is new and likely to
    /// get large. Otherwise the file is written through the mount, and so is one that the opener may
    /// map for writing, by its `flags`: the mapping may outlive the last close, after which the file's
    /// bytes in the store must not change.
    fn pass_writes(
        &self,
        parent: Option<&KernelNode>,
        (file, flags): (&Arc<OpenFile>, OFlags),
        register: impl FnOnce(&File) -> io::Result<Backing>,
    ) -> Option<Arc<Backing>> {
        let is_wanted = match self.in_place {
            InPlacePolicy::Always => true,
            InPlacePolicy::Auto => parent?.grows_large.load(Ordering::Relaxed),
            InPlacePolicy::Never => false,
        };
        if !is_wanted || can_map_writes(flags) || !self.passes_through.load(Ordering::Relaxed) {
            return None;
        }
        let session = self.view.session()?;
        let direct = session.file(file).begin_in_place().ok().flatten()?;
        let registered = register(&direct);
        if registered.is_err() {
            // If that fails, this process writes the file in place.
            let _ = session.file(file).end_in_place();
        }
        registered.ok().map(Arc::new)
    }

    /// The directory of a file, if the file has one name and the kernel knows the directory.
    fn parent(&self, node: &KernelNode) -> Option<Arc<KernelNode>> {
        let dir = match &*node.location.lock() {
            NodeLocation::Name(dir, _) => dir.id(),
            _ => return None,
        };
        self.nodes.find(dir.0, FileKind::Directory)
    }

    fn content(&self, node: &KernelNode) -> Result<OpenedContent, Errno> {
        let location = node.location.lock().clone();
        let (dir, name) = match &location {
            NodeLocation::Name(dir, name) => (dir, name),
            NodeLocation::Key(file) => return self.read_key(file).map(OpenedContent::Values),
            // The kernel opens only files that have a name or are open already.
            NodeLocation::Dir(_) | NodeLocation::Gone(_) => return Err(Errno::ESTALE),
        };
        let opened = match self.view.session() {
            Some(session) => session.open_file(dir, name).map(OpenedContent::Changing),
            None => self
                .view
                .namespace()
                .lookup(dir, name, true)
                .map(|inode| OpenedContent::Fixed(Arc::new(inode))),
        };
        opened.map_err(|error| self.errno(&error))
    }

    /// Creates the regular file `name` in `parent` and opens it with `flags`. Returns its attributes
    /// for the kernel and, as [`MountState::open`], the store's file.
    pub(crate) fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        (asked, flags): (&CreateRequest, OFlags),
        register: impl FnOnce(&File) -> io::Result<Backing>,
    ) -> Result<(FileAttr, Option<Arc<Backing>>), Errno> {
        let session = self.session()?;
        let parent = self.node(parent)?;
        let dir = self.dir(&parent)?;
        let made = session.make(&dir, name, &asked.by(caller));
        self.record_change();
        let changed = ChangedName { parent: &parent, dir: &dir, name };
        let inode = made.map_err(|error| self.failed_change(&error, &[changed]))?;
        let node = self.intern_entry(&dir, name, &inode)?;
        node.is_known_without_xattrs.store(true, Ordering::Relaxed);
        let shown = ListedAttributes::from(&inode).file_attr(node.number);
        let file = session.open_created(&dir, name, inode);
        let backing = self.pass_writes(Some(&parent), (&file, flags), register);
        let content = OpenedContent::Changing(file);
        let may_be_dirty = self.leaves_dirty_pages(flags);
        let opened =
            OpenedFile { content, count: 1, is_new: true, backing: backing.clone(), may_be_dirty };
        *node.file.lock() = Some(opened);
        Ok((shown, backing))
    }

    /// True if the last release of the file `number` may take long: the kernel has written it
    /// directly in the store.
    pub(crate) fn is_backed(&self, number: u64) -> bool {
        self.is_open_file(number, |opened| opened.backing.is_some())
    }

    /// True if another thread is opening or changing the file `number`, which may wait for the
    /// store.
    pub(crate) fn is_busy(&self, number: u64) -> bool {
        self.is_open_file(number, |opened| match &opened.content {
            OpenedContent::Changing(file) => file.is_being_changed(),
            OpenedContent::Fixed(_) | OpenedContent::Values(_) => false,
        })
    }

    /// True if a file has changes that its record lacks.
    pub(crate) fn has_changed_files(&self) -> bool {
        self.view.session().is_some_and(|session| session.has_changed_files())
    }

    /// True if the file `number` is open and `is_so`, or being opened: the opener holds the lock
    /// while it reads the store.
    pub(crate) fn is_open_file(
        &self,
        number: u64,
        is_so: impl FnOnce(&OpenedFile) -> bool,
    ) -> bool {
        let Some(node) = self.nodes.get(number) else { return false };
        node.file.try_lock().is_none_or(|file| file.as_ref().is_some_and(is_so))
    }

    /// Closes one open of the file `number`.
    pub(crate) fn release(&self, number: u64) -> Result<(), Errno> {
        let node = self.node(number)?;
        let closed = {
            let mut file = node.file.lock();
            let Some(opened) = &mut *file else { return Err(Errno::EBADF) };
            opened.count -= 1;
            if opened.count > 0 {
                return Ok(());
            }
            file.take()
        };
        let Some(OpenedFile { content: OpenedContent::Changing(file), is_new, backing, .. }) =
            closed
        else {
            return Ok(());
        };
        let ended = match backing {
            Some(_) => self.end_in_place(number, &file),
            None => Ok(()),
        };
        if is_new || backing.is_some() {
            self.record_size_class(&node, &file, backing.is_some());
        }
        ended.and(self.close(file))
    }

    /// Ends in-place writing, once no program has the store's file open any more.
    fn end_in_place(&self, number: u64, file: &Arc<OpenFile>) -> Result<(), Errno> {
        let got_set_id =
            self.session()?.file(file).end_in_place().map_err(|error| self.errno(&error))?;
        if got_set_id {
            // Otherwise the kernel keeps the mode without those bits.
            self.invalidate_attributes(number);
        }
        Ok(())
    }

    /// Records for the next file in the directory whether this one got large.
    fn record_size_class(&self, node: &KernelNode, file: &OpenFile, was_in_place: bool) {
        let is_large = file.size().is_ok_and(|size| size >= BACKED_BYTES_MIN);
        if self.in_place == InPlacePolicy::Auto
            && is_large != was_in_place
            && let Some(parent) = self.parent(node)
        {
            parent.grows_large.store(is_large, Ordering::Relaxed);
        }
    }

    fn close(&self, file: Arc<OpenFile>) -> Result<(), Errno> {
        let closed = self.session()?.close_file(file);
        self.record_change();
        closed.map_err(|error| self.errno(&error))
    }

    /// Closes all open files when the kernel has detached. Programs that have the store's file open
    /// can still write to it, which changes nothing that is published.
    pub(crate) fn close_files(&self) -> Result<(), Errno> {
        let mut first = Ok(());
        for node in self.nodes.open() {
            if let Some(OpenedFile { content: OpenedContent::Changing(file), .. }) =
                node.file.lock().take()
            {
                first = first.and(self.close(file));
            }
        }
        first
    }

    /// The file behind `number`, which the kernel has open.
    fn changing(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
        self.open_for_change(&*self.node(number)?).ok_or(Errno::EBADF)
    }

    /// The open file behind `node`, if it is open and can change.
    pub(crate) fn open_for_change(&self, node: &KernelNode) -> Option<Arc<OpenFile>> {
        match &*node.file.lock() {
            Some(OpenedFile { content: OpenedContent::Changing(file), .. }) => Some(file.clone()),
            _ => None,
        }
    }

    /// The current inode of `node`, if it is open.
    pub(crate) fn open_inode(&self, node: &KernelNode) -> Result<Option<Inode>, Errno> {
        let Some(file) = self.open_for_change(node) else { return Ok(None) };
        let inode = self.session()?.file(&file).stat().map_err(|error| self.errno(&error))?;
        Ok(Some(inode))
    }

    /// Reads up to `bytes_max` bytes from `offset` on.
    pub(crate) fn read(&self, number: u64, offset: u64, bytes_max: usize) -> Result<Bytes, Errno> {
        let node = self.node(number)?;
        let content = match &*node.file.lock() {
            Some(opened) => opened.content.clone(),
            None => return Err(Errno::EBADF),
        };
        let read = match &content {
            OpenedContent::Fixed(inode) => self.view.namespace().read(inode, offset, bytes_max),
            OpenedContent::Changing(file) => self.session()?.file(file).read(offset, bytes_max),
            OpenedContent::Values(values) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(values.len());
                let end = start.saturating_add(bytes_max).min(values.len());
                Ok(values.slice(start..end))
            }
        };
        read.map_err(|error| self.errno(&error))
    }

    /// Writes `bytes` at `offset`; `flags` say whether the kernel collected them, and whether
    /// set-id bits go.
    pub(crate) fn write(
        &self,
        number: u64,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
    ) -> Result<(), Errno> {
        let node = self.node(number)?;
        let file = self.open_for_change(&node).ok_or(Errno::EBADF)?;
        let session = self.session()?;
        // Only a kernel that collects writes keeps times of its own.
        let written = if self.writes_back && flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            session.file(&file).write_collected_pages(offset, bytes)
        } else {
            session.file(&file).write(offset, bytes)
        };
        self.record_change();
        written.map_err(|error| self.errno(&error))?;
        let drops_set_id = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        if drops_set_id { self.drop_set_id(&node) } else { Ok(()) }
    }

    /// Commits writes to the file as an operation of the session when a program closes it; at
    /// durability `always` they then survive power loss.
    pub(crate) fn flush(&self, number: u64) -> Result<(), Errno> {
        let flushed = self.session()?.file(&self.changing(number)?).flush();
        self.record_change();
        flushed.map_err(|error| self.errno(&error))
    }

    /// Returns once the file survives power loss.
    pub(crate) fn fsync(&self, number: u64) -> Result<(), Errno> {
        let Some(session) = self.view.session() else { return Ok(()) };
        let node = self.node(number)?;
        if matches!(&*node.location.lock(), NodeLocation::Key(_)) {
            return Ok(());
        }
        let file = self.open_for_change(&node).ok_or(Errno::EBADF)?;
        let synced = session.file(&file).sync();
        synced.map_err(|error| self.errno(&error))
    }

    /// Reserves, punches or zeroes a range, depending on `mode`; removes set-id bits if
    /// `drops_set_id`.
    pub(crate) fn fallocate(
        &self,
        number: u64,
        offset: u64,
        length: u64,
        (mode, drops_set_id): (i32, bool),
    ) -> Result<(), Errno> {
        let session = self.session()?;
        let node = self.node(number)?;
        let file = self.open_for_change(&node).ok_or(Errno::EBADF)?;
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        let RangeChange { zeroes, keeps_size } = range_change(mode)?;
        let done = match zeroes {
            true => session.file(&file).punch(offset..end, keeps_size),
            false => session.file(&file).allocate(offset..end, keeps_size),
        };
        self.record_change();
        done.map_err(|error| self.errno(&error))?;
        if drops_set_id { self.drop_set_id(&node) } else { Ok(()) }
    }

    /// The start of data or of a hole at or after `offset`.
    pub(crate) fn seek(&self, number: u64, offset: i64, whence: i32) -> Result<i64, Errno> {
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let Some(session) = self.view.session() else {
            // The kernel then treats files of snapshots as all data.
            return Err(Errno::ENOSYS);
        };
        if self.writes_back {
            // What the kernel has not sent yet would look like a hole.
            return Err(Errno::ENOSYS);
        }
        let node = self.node(number)?;
        if let NodeLocation::Key(file) = &*node.location.lock() {
            // A key's file is all data.
            let size = i64::try_from(file.size()).map_err(|_| Errno::EOVERFLOW)?;
            let offset = i64::try_from(offset).unwrap_or(i64::MAX);
            return match whence {
                _ if offset >= size => Err(Errno::ENXIO),
                SEEK_DATA => Ok(offset),
                SEEK_HOLE => Ok(size),
                _ => Err(Errno::EINVAL),
            };
        }
        let file = self.open_for_change(&node).ok_or(Errno::EBADF)?;
        let size = session.file(&file).stat().map_err(|error| self.errno(&error))?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let found = match whence {
            SEEK_DATA => session.file(&file).seek_data(offset),
            SEEK_HOLE => session.file(&file).seek_hole(offset).map(Some),
            _ => return Err(Errno::EINVAL),
        };
        let at = found.map_err(|error| self.errno(&error))?.ok_or(Errno::ENXIO)?;
        i64::try_from(at).map_err(|_| Errno::EOVERFLOW)
    }

    /// Copies by sharing extents, and removes set-id bits if `drops_set_id`; returns the number of
    /// bytes.
    pub(crate) fn copy(
        &self,
        (from, offset): (u64, u64),
        (to, to_offset): (u64, u64),
        length: u64,
        drops_set_id: bool,
    ) -> Result<u64, Errno> {
        let session = self.session()?;
        let to_node = self.node(to)?;
        let to = self.open_for_change(&to_node).ok_or(Errno::EBADF)?;
        let from = self.changing(from)?;
        // A reply has 32 bits for the count; the caller asks again for the rest.
        let length = length.min(1 << 30);
        let end = offset.checked_add(length).ok_or(Errno::EOVERFLOW)?;
        let copied = session.file(&from).copy_range_partly(offset..end, &to, to_offset);
        self.record_change();
        let copied = copied.map_err(|error| self.errno(&error))?;
        if drops_set_id {
            self.drop_set_id(&to_node)?;
        }
        Ok(copied)
    }
}
