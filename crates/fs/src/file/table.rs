//! Open files of a session by identity, and which of them have unwritten changes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::{OpenFile, Place};
use crate::dir::Dir;
use crate::inode::Inode;
use crate::session::Session;

/// The open files of one session.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    files: Mutex<HashMap<u128, Weak<OpenFile>>>,
    /// How many entries `files` has, to spare look-ups while there are none.
    count: AtomicUsize,
    /// Files whose record lacks something; kept, whoever else lets go of them.
    dirty: Mutex<HashMap<u128, Arc<OpenFile>>>,
    /// How often what was open was written to its record: a record read before the last time may
    /// be older than the file was.
    flushes: AtomicU64,
    /// Bytes of all buffers.
    pub(super) buffered_bytes: AtomicUsize,
}

impl OpenFiles {
    /// Whether no file is open.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The open file `id`, if somebody has it.
    #[inline]
    pub(crate) fn get(&self, id: u128) -> Option<Arc<OpenFile>> {
        if self.is_empty() {
            return None;
        }
        self.files.lock().get(&id).and_then(Weak::upgrade)
    }

    /// To be given to [`OpenFiles::get_or_open`] after a record was read.
    pub(super) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    /// The open file of `inode`, made if nobody has it; `None` if the record, which was read when
    /// `flushes` was said, may be older than what was written through a file that is closed by now.
    pub(super) fn get_or_open(
        &self,
        inode: Inode,
        place: Place,
        flushes: u64,
    ) -> Option<Arc<OpenFile>> {
        let mut files = self.files.lock();
        if let Some(file) = files.get(&inode.id).and_then(Weak::upgrade) {
            return Some(file);
        }
        (self.flushes() == flushes).then(|| self.open(&mut files, inode, place, false))
    }

    /// The open file of `inode`, which was just made.
    pub(super) fn open_new(&self, inode: Inode, place: Place) -> Arc<OpenFile> {
        let mut files = self.files.lock();
        let open = files.get(&inode.id).and_then(Weak::upgrade);
        open.unwrap_or_else(|| self.open(&mut files, inode, place, true))
    }

    fn open(
        &self,
        files: &mut HashMap<u128, Weak<OpenFile>>,
        inode: Inode,
        place: Place,
        is_new: bool,
    ) -> Arc<OpenFile> {
        let file = Arc::new(OpenFile::new(inode, place, is_new));
        let buffered = file.state.read().buffer.as_ref().map_or(0, Vec::len);
        self.buffered_bytes.fetch_add(buffered, Ordering::Relaxed);
        if files.len() == files.capacity() {
            files.retain(|_, file| file.strong_count() > 0);
        }
        files.insert(file.id, Arc::downgrade(&file));
        self.count.store(files.len(), Ordering::Release);
        file
    }

    /// Forgets `file` if nobody else has it.
    pub(super) fn close(&self, file: Arc<OpenFile>) {
        let mut files = self.files.lock();
        let id = file.id;
        if Arc::strong_count(&file) == 1 {
            let buffered = file.state.read().buffer.as_ref().map_or(0, Vec::len);
            self.buffered_bytes.fetch_sub(buffered, Ordering::Relaxed);
        }
        drop(file);
        if files.get(&id).is_some_and(|file| file.strong_count() == 0) {
            files.remove(&id);
            self.count.store(files.len(), Ordering::Release);
        }
    }

    pub(super) fn note_dirty(&self, file: &Arc<OpenFile>) {
        self.dirty.lock().insert(file.id, file.clone());
    }

    /// The record of a file has all that was written. Before the file can be closed.
    pub(super) fn note_clean(&self, id: u128) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.dirty.lock().remove(&id);
    }

    pub(super) fn dirty(&self) -> Vec<Arc<OpenFile>> {
        self.dirty.lock().values().cloned().collect()
    }

    /// Puts what records lack of an open file into its `inode`.
    #[inline]
    pub(crate) fn overlay(&self, inode: &mut Inode) {
        if let Some(file) = self.get(inode.id) {
            file.state.read().overlay(inode);
        }
    }

    /// The content of a file was replaced as a whole: `inode` is its record.
    pub(crate) fn rewritten(&self, session: &Session, inode: &Inode) {
        if let Some(file) = self.get(inode.id) {
            let mut state = file.state.write();
            drop(session.take_buffer(&mut state));
            state.inode = inode.clone();
            (state.is_dirty, state.may_have_segments) = (false, true);
            self.note_clean(inode.id);
        }
    }

    /// The inode of file `id` is at `name` in `dir` now.
    pub(crate) fn moved(&self, id: u128, dir: &Dir, name: &[u8]) {
        if let Some(file) = self.get(id) {
            let mut place = file.place.lock();
            if !matches!(*place, Place::Links) {
                *place = Place::Name(dir.clone(), name.to_vec());
            }
        }
    }

    /// The inode of file `id` is in the links directory now.
    pub(crate) fn linked(&self, id: u128) {
        if let Some(file) = self.get(id) {
            *file.place.lock() = Place::Links;
        }
    }

    /// The last name of the file `inode` is gone; whether somebody has it open. No lock of the
    /// session is held.
    pub(crate) fn removed(&self, inode: &Inode) -> bool {
        let Some(file) = self.get(inode.id) else {
            return false;
        };
        let mut state = file.state.write();
        state.overlay_onto(inode);
        *file.place.lock() = Place::Gone;
        true
    }
}
