// SPDX-License-Identifier: Apache-2.0
//! Open files of a session by identity, and which of them have unwritten changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::{OpenFile, RecordLocation};
use crate::inode::{Extent, Inode};
use crate::session::Session;
use crate::stack::dir::Dir;

/// The open files of one session.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    files: Mutex<HashMap<u128, OpenFileEntry>>,
    /// Length of `files`, to skip look-ups while it is empty.
    count: AtomicUsize,
    /// Files whose record lacks changes; they stay in `files` even when closed.
    dirty: Mutex<HashMap<u128, Arc<OpenFile>>>,
    /// True if a file whose record lacks changes may be closed.
    has_unwritten_closed: AtomicBool,
    /// Sequence counter, bumped when an open file is written back. A record read under an older
    /// count may be stale.
    flushes: AtomicU64,
    /// Sequence counter, bumped when the last name of a file goes or its record moves to the links
    /// directory. A record read under an older count may be elsewhere by now.
    relocations: AtomicU64,
    /// Total bytes of all buffers.
    pub(super) buffered_bytes: AtomicUsize,
    /// Number of snapshots being made from records.
    shows: AtomicUsize,
}

/// Counters of a session's open files, read before a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordVersion {
    flushes: u64,
    relocations: u64,
}

/// While this exists, records of files that are written in place refer to copies.
#[derive(Debug)]
pub(crate) struct SnapshotCopies<'a>(&'a OpenFiles);

impl Drop for SnapshotCopies<'_> {
    fn drop(&mut self) {
        self.0.shows.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An open file, and its open count: 0 if the last close could not flush it.
#[derive(Debug)]
struct OpenFileEntry {
    file: Arc<OpenFile>,
    opens: u64,
}

impl OpenFiles {
    /// True if no file is open.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the open file `id`, if there is one.
    #[inline]
    pub(crate) fn get(&self, id: u128) -> Option<Arc<OpenFile>> {
        if self.is_empty() {
            return None;
        }
        self.files.lock().get(&id).map(|known| known.file.clone())
    }

    /// Returns the flush counter. Call this before reading a record, and pass the result to
    /// [`OpenFiles::overlay`].
    #[inline]
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    /// Returns the counters. Call this before reading a record, and pass the result to
    /// [`OpenFiles::get_or_open`].
    pub(super) fn record_version(&self) -> RecordVersion {
        let relocations = self.relocations.load(Ordering::SeqCst);
        RecordVersion { flushes: self.flushes(), relocations }
    }

    /// Returns the open file of `inode`, opening it if necessary; `None` if the record, read at
    /// `version`, may be older than writes through a file that has been closed since, or may have
    /// moved or lost its name.
    pub(super) fn get_or_open(
        &self,
        inode: Inode,
        location: RecordLocation,
        version: RecordVersion,
    ) -> Option<Arc<OpenFile>> {
        let mut files = self.files.lock();
        if let Some(known) = files.get_mut(&inode.id) {
            return Some(known.open());
        }
        let is_current = self.record_version() == version;
        is_current.then(|| self.open(&mut files, inode, location, false))
    }

    /// Returns the open file of `inode`, which was made after `version`; gives the inode back if
    /// its record may have moved or lost its name since.
    pub(super) fn open_new(
        &self,
        inode: Inode,
        location: RecordLocation,
        version: Option<RecordVersion>,
    ) -> Result<Arc<OpenFile>, Box<Inode>> {
        let mut files = self.files.lock();
        if let Some(known) = files.get_mut(&inode.id) {
            return Ok(known.open());
        }
        let relocations = self.relocations.load(Ordering::SeqCst);
        if version.is_some_and(|version| version.relocations != relocations) {
            return Err(Box::new(inode));
        }
        Ok(self.open(&mut files, inode, location, true))
    }

    fn open(
        &self,
        files: &mut HashMap<u128, OpenFileEntry>,
        inode: Inode,
        location: RecordLocation,
        is_new: bool,
    ) -> Arc<OpenFile> {
        let mut file = OpenFile::new(inode, location, is_new);
        let buffered = file.state.get_mut().buffer.as_ref().map_or(0, Vec::len);
        let file = Arc::new(file);
        self.buffered_bytes.fetch_add(buffered, Ordering::Relaxed);
        files.insert(file.id, OpenFileEntry { file: file.clone(), opens: 1 });
        self.count.store(files.len(), Ordering::Release);
        file
    }

    /// Drops `times` opens of the file `id`. If none is left and its record lacks nothing, forgets
    /// and returns the file.
    pub(super) fn close(&self, id: u128, times: u64) -> Option<Arc<OpenFile>> {
        let mut files = self.files.lock();
        let known = files.get_mut(&id)?;
        known.opens = known.opens.saturating_sub(times);
        if known.opens > 0 {
            return None;
        }
        if self.dirty.lock().contains_key(&id) {
            self.has_unwritten_closed.store(true, Ordering::Release);
            return None;
        }
        let known = files.remove(&id);
        self.count.store(files.len(), Ordering::Release);
        known.map(|known| known.file)
    }

    /// True if the file `id`, which the caller has open, is open more than once.
    pub(super) fn is_shared(&self, id: u128) -> bool {
        self.files.lock().get(&id).is_some_and(|known| known.opens > 1)
    }

    pub(super) fn mark_dirty(&self, file: &Arc<OpenFile>) {
        self.dirty.lock().insert(file.id, file.clone());
    }

    /// Marks a file as written back. Called before the file can be closed.
    pub(super) fn mark_clean(&self, id: u128) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.dirty.lock().remove(&id);
    }

    /// Like [`OpenFiles::get`], after the record of file `id` was changed without the open file:
    /// threads that read the record before, but have not opened the file yet, read it again.
    pub(super) fn get_outdated(&self, id: u128) -> Option<Arc<OpenFile>> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.files.lock().get(&id).map(|known| known.file.clone())
    }

    /// Returns the extents of open files, including those that are in no record.
    pub(super) fn extents(&self) -> Vec<Extent> {
        let files: Vec<_> = self.files.lock().values().map(|known| known.file.clone()).collect();
        files.iter().filter_map(|file| file.state.read().inode.extent).collect()
    }

    pub(super) fn dirty(&self) -> Vec<Arc<OpenFile>> {
        self.dirty.lock().values().cloned().collect()
    }

    /// Returns the closed files whose records lack changes, since their closes could not write them.
    pub(super) fn unwritten_closed(&self) -> Vec<Arc<OpenFile>> {
        if !self.has_unwritten_closed.load(Ordering::Acquire) {
            return Vec::new();
        }
        let files = self.files.lock();
        let dirty = self.dirty.lock();
        let is_closed = |id: &u128| files.get(id).is_some_and(|known| known.opens == 0);
        let closed = dirty.iter().filter(|(id, _)| is_closed(id)).map(|(_, file)| file.clone());
        let closed: Vec<_> = closed.collect();
        // Not before they are written: a sync beside the thread that writes them waits for it.
        self.has_unwritten_closed.store(!closed.is_empty(), Ordering::Release);
        closed
    }

    /// True if the record of a file lacks changes.
    pub(super) fn has_dirty(&self) -> bool {
        !self.is_empty() && !self.dirty.lock().is_empty()
    }

    /// Returns a guard to be held from before files are flushed until a snapshot has their records.
    pub(crate) fn show(&self) -> SnapshotCopies<'_> {
        self.shows.fetch_add(1, Ordering::SeqCst);
        SnapshotCopies(self)
    }

    /// True if a snapshot is being made from records.
    pub(super) fn is_being_shown(&self) -> bool {
        self.shows.load(Ordering::SeqCst) > 0
    }

    /// Puts unwritten changes of an open file into its `inode`. Returns false if the record, read
    /// when the counter was `flushes`, may be older than what the file has written back since; the
    /// caller then reads it again.
    #[inline]
    pub(crate) fn overlay(&self, inode: &mut Inode, flushes: u64) -> bool {
        let file = self.get(inode.id);
        file.is_some_and(|file| file.state.read().overlay(inode)) || self.flushes() == flushes
    }

    /// Updates an open file whose whole content was replaced: `inode` is its new record.
    pub(crate) fn rewritten(&self, session: &Session, inode: &Inode) {
        if let Some(file) = self.get(inode.id) {
            let mut state = file.state.write();
            drop(session.take_buffer(&mut state));
            state.in_place = None;
            state.cuts += 1;
            state.inode = inode.clone();
            (state.is_dirty, state.may_have_segments) = (false, true);
            self.mark_clean(inode.id);
            drop(state);
            drop(self.close(inode.id, 0));
        }
    }

    /// Updates an open file whose inode is now at `name` in `dir`.
    pub(crate) fn moved(&self, id: u128, dir: &Dir, name: &[u8]) {
        if let Some(file) = self.get(id) {
            let mut location = file.location.lock();
            if !matches!(*location, RecordLocation::Links) {
                *location = RecordLocation::Name(dir.clone(), name.to_vec());
            }
        }
    }

    /// Updates an open file whose inode is now in the links directory. Threads that read the record
    /// before, but have not opened the file yet, read it again.
    pub(crate) fn linked(&self, id: u128) {
        self.relocations.fetch_add(1, Ordering::SeqCst);
        if let Some(known) = self.files.lock().get(&id) {
            *known.file.location.lock() = RecordLocation::Links;
        }
    }

    /// Updates an open file whose last name is gone; returns whether it was open. If so, the caller
    /// must close it once; until then no other opener is the last to close it. Threads that read
    /// the record before, but have not opened the file yet, read it again. Call this without any
    /// lock of the session.
    pub(super) fn removed(&self, inode: &Inode) -> bool {
        self.relocations.fetch_add(1, Ordering::SeqCst);
        let file = self.files.lock().get_mut(&inode.id).map(OpenFileEntry::open);
        let Some(file) = file else {
            return false;
        };
        let mut state = file.state.write();
        state.overlay_onto(inode);
        *file.location.lock() = RecordLocation::Gone;
        true
    }
}

impl OpenFileEntry {
    fn open(&mut self) -> Arc<OpenFile> {
        self.opens += 1;
        self.file.clone()
    }
}
