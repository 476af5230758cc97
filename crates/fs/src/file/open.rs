// SPDX-License-Identifier: Apache-2.0
//! Opening, creating and closing files.

use std::sync::Arc;

use esker_base::{Error, Kind, Result};

use super::{OpenFile, RecordLocation, SessionFile};
use crate::inode::{DirId, FileKind, Inode, NameKind, key};
use crate::ops::NewInode;
use crate::ops::setattr::{AttributeChanges, check_file};
use crate::session::Session;
use crate::stack::dir::Dir;
use crate::stack::path::show;

impl Session {
    /// Opens the regular file `name` in `dir` for reading and writing. All openers of a file share
    /// one [`OpenFile`]. The caller checks permissions on the file
    /// ([`crate::stack::identity::Identity::check`]), since they depend on the open mode, and gives
    /// the file back with [`Session::close_file`]. Cost: at most one block read per layer.
    ///
    /// # Errors
    /// `NotFound`, `Denied`; `IsADirectory` or `Invalid` for anything but a regular file.
    pub fn open_file(&self, dir: &Dir, name: &[u8]) -> Result<Arc<OpenFile>> {
        dir.check_name(name)?;
        let _structure = self.read_structure();
        self.check_search(dir, name)?;
        loop {
            let version = self.namespace().files().record_version();
            let (inode, location) = self.locate(dir, name)?;
            check_file(&inode, name)?;
            if let Some(file) = self.namespace().files().get_or_open(inode, location, version) {
                return Ok(file);
            }
        }
    }

    /// Creates the regular file `name` in `dir` and opens it, as [`Session::create`] does.
    pub fn create_file(&self, dir: &Dir, name: &[u8], mode: u32) -> Result<Arc<OpenFile>> {
        let entry = NameKind::Is(FileKind::File);
        let mut new = NewInode::of(Inode::new(entry, mode & 0o7777, self.now_ns()));
        let key = key(dir.id(), name);
        self.tree().prefetch(&key);
        // Until the file is open, a rename that moves it cannot update its place.
        let _structure = self.read_structure();
        let version = Some(self.namespace().files().record_version());
        self.insert_locked(dir, (name, &key), &mut new)?;
        let location = RecordLocation::Name(dir.clone(), name.to_vec());
        self.namespace()
            .files()
            .open_new(new.inode, location, version)
            .or_else(|inode| self.open_relocated(dir, name, *inode))
    }

    /// Opens `inode`, which this session has put at `name` in `dir`, after another thread may have
    /// given it a name or removed one. The caller keeps directories where they are.
    #[cold]
    fn open_relocated(&self, dir: &Dir, name: &[u8], inode: Inode) -> Result<Arc<OpenFile>> {
        loop {
            let version = self.namespace().files().record_version();
            let named = self.namespace().entry(dir, name, true)?;
            let named = named.filter(|named| named.id == inode.id && named.entry != NameKind::Link);
            let (found, location) = match named {
                Some(named) => (named, RecordLocation::Name(dir.clone(), name.to_vec())),
                None => match self.namespace().entry_of_links(inode.id)? {
                    Some(linked) => (linked, RecordLocation::Links),
                    None => (Inode { nlink: 0, ..inode.clone() }, RecordLocation::Gone),
                },
            };
            if let Some(file) = self.namespace().files().get_or_open(found, location, version) {
                return Ok(file);
            }
        }
    }

    /// Opens `inode`, which this session has just put at `name` in `dir`. Nothing may change the
    /// name in between; a kernel guarantees that.
    pub fn open_created(&self, dir: &Dir, name: &[u8], inode: Inode) -> Arc<OpenFile> {
        let location = RecordLocation::Name(dir.clone(), name.to_vec());
        let opened = self.namespace().files().open_new(inode, location, None);
        opened.unwrap_or_else(|_| unreachable!("without a version, every file is opened"))
    }

    /// Returns `file`, which this session has opened, to be read and changed.
    #[inline]
    #[must_use]
    pub fn file<'a>(&'a self, file: &'a Arc<OpenFile>) -> SessionFile<'a> {
        SessionFile { session: self, file }
    }

    /// Opens the file `name` in `dir` for `changes` that affect more than its record: the file is
    /// open, or its size changes. Otherwise returns `None`.
    pub(crate) fn open_to_change(
        &self,
        dir: &Dir,
        name: &[u8],
        changes: &AttributeChanges,
    ) -> Result<Option<Arc<OpenFile>>> {
        let _structure = self.read_structure();
        self.check_search(dir, name)?;
        loop {
            let version = self.namespace().files().record_version();
            let (inode, location) = self.locate(dir, name)?;
            if inode.kind() != Some(FileKind::File)
                || (changes.size.is_none() && self.namespace().files().get(inode.id).is_none())
            {
                return Ok(None);
            }
            let file = self.namespace().files().get_or_open(inode, location, version);
            if file.is_some() {
                return Ok(file);
            }
        }
    }

    /// Gives back a file, once per open. It is flushed, unless its last name is gone; then its
    /// bytes are freed.
    ///
    /// # Errors
    /// As [`SessionFile::flush`]; the file is given back even then, and the next flush of the
    /// session tries to flush it again.
    pub fn close_file(&self, file: Arc<OpenFile>) -> Result<()> {
        let flushed = self.file(&file).flush();
        flushed.and(self.give_back(file.id, 1))
    }

    /// Flushes all files with changes, gives back those that could not be flushed when they were
    /// closed, and releases content that could not be released when its file lost its last name.
    pub(crate) fn flush_files(&self) -> Result<()> {
        self.namespace().files().dirty().iter().try_for_each(|file| {
            self.sync_in_place(file)?;
            self.file(file).flush()?;
            self.give_back(file.id, 0)
        })?;
        let mut unreleased = std::mem::take(&mut *self.unreleased().lock());
        while let Some(file) = unreleased.pop() {
            let _content = self.pin_data_logs();
            if let Err(error) = self.release_file(file) {
                unreleased.push(file);
                self.unreleased().lock().append(&mut unreleased);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Flushes closed files that their closes could not flush, so that no later operation is synced
    /// without them. Cost: none if there are no such files.
    ///
    /// # Errors
    /// The first error of [`SessionFile::flush`]. Other files are flushed nevertheless, unless there
    /// is no room.
    pub fn flush_closed_files(&self) -> Result<()> {
        self.flush_each(self.namespace().files().unwritten_closed())
    }

    /// True if a file has changes that its record lacks.
    #[must_use]
    pub fn has_changed_files(&self) -> bool {
        self.namespace().files().has_dirty()
    }

    /// Flushes all files with changes, also those that are open, so that a writer that dies does not
    /// take with it what was written long before. Leaves out files that are written in place, whose
    /// records refer to synced bytes only.
    ///
    /// # Errors
    /// As [`Session::flush_closed_files`].
    pub fn flush_changed_files(&self) -> Result<()> {
        self.flush_each(self.namespace().files().dirty())
    }

    fn flush_each(&self, files: Vec<Arc<OpenFile>>) -> Result<()> {
        let mut result = Ok(());
        for file in files.into_iter().filter(|file| file.state.read().in_place.is_none()) {
            let flushed = self.flush_and_forget(&file);
            let is_full = flushed.as_ref().is_err_and(|error| error.kind() == Kind::NoSpace);
            result = result.and(flushed);
            if is_full {
                break;
            }
        }
        result
    }

    /// Flushes a file, and forgets it if it is closed.
    fn flush_and_forget(&self, file: &Arc<OpenFile>) -> Result<()> {
        let flushed = self.file(file).flush();
        flushed.and(self.give_back(file.id, 0))
    }

    /// Flushes the file `name` in `dir` if it is open: its new name must not survive a crash without
    /// its content, least of all in place of another file. A file that is written in place stays
    /// as it is.
    pub(crate) fn flush_before_naming(&self, dir: &Dir, name: &[u8]) -> Result<()> {
        if !self.has_changed_files() {
            return Ok(());
        }
        // The caller reports a name that is not there.
        let Ok(Some(inode)) = self.namespace().entry(dir, name, false) else { return Ok(()) };
        let file = self.namespace().files().get(inode.id);
        let file = file.filter(|file| file.state.read().in_place.is_none());
        file.map_or(Ok(()), |file| self.flush_and_forget(&file))
    }

    /// Frees the content of the file `inode`, whose last name is gone, now or once it is closed.
    pub(crate) fn remove_file(&self, inode: &Inode) -> Result<()> {
        if self.namespace().files().removed(inode) {
            return self.give_back(inode.id, 1);
        }
        self.add_garbage_of(inode);
        if inode.mapped { self.release_content(inode.id) } else { Ok(()) }
    }

    /// Drops `times` opens of a file. If none is left, frees its memory, and its content if it has
    /// no names.
    fn give_back(&self, id: u128, times: u64) -> Result<()> {
        let Some(file) = self.namespace().files().close(id, times) else { return Ok(()) };
        let mut state = file.state.write();
        drop(self.take_buffer(&mut state));
        let log = state.log.take();
        let is_mapped = state.inode.mapped || state.leaves_segments;
        let is_shown = !matches!(file.location(), RecordLocation::Gone);
        if !is_shown {
            self.add_garbage_of(&state.inode);
        }
        drop(state);
        if let Some(log) = log.filter(|_| is_shown) {
            self.data().keep_idle(id, log);
        }
        if is_shown || !is_mapped { Ok(()) } else { self.release_content(id) }
    }

    /// Releases the segments of a file that is gone, or lets the next flush of files do so if there
    /// is no room now: the removal has taken effect. Waits for a thread that moves bytes between
    /// data logs, which would put segments of the file again.
    fn release_content(&self, id: u128) -> Result<()> {
        let _content = self.pin_data_logs();
        match self.release_file(id) {
            Err(error) if error.kind() == Kind::NoSpace => {
                self.unreleased().lock().push(id);
                Ok(())
            }
            released => released,
        }
    }

    /// Returns the inode at `name` in `dir`, with its strings, and the place of its record.
    fn locate(&self, dir: &Dir, name: &[u8]) -> Result<(Inode, RecordLocation)> {
        let entry = self.namespace().entry(dir, name, true)?;
        let entry = entry.ok_or_else(|| crate::session::not_found(name))?;
        if entry.seat().is_some() {
            let what = format!("{}: it is at another seat", show(name));
            return Err(Error::new(Kind::CrossDevice, what));
        }
        if entry.entry == NameKind::Link {
            return Ok((self.namespace().linked(entry.id, true)?, RecordLocation::Links));
        }
        if dir.id() == DirId::LINKS {
            return Ok((entry, RecordLocation::Links));
        }
        Ok((entry, RecordLocation::Name(dir.clone(), name.to_vec())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use esker_base::store::{FaultStore, MemoryStore};
    use esker_table::tree::{Durability, TreeOptions};

    use super::*;
    use crate::repository::Repository;
    use crate::session::SessionOptions;

    #[test]
    fn nothing_is_open_once_what_could_not_be_closed_is_flushed() {
        let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let repository = Repository::new(store.clone());
        // Without a log only this thread writes to the store.
        let tree = TreeOptions { durability: Durability::None, ..TreeOptions::default() };
        let options = SessionOptions { tree, ..SessionOptions::default() };
        let session = repository.begin(&[], options).expect("begin");
        let write = |name: &[u8], bytes: &[u8]| {
            let file = session.create_file(session.root(), name, 0o600).expect("create");
            session.file(&file).write(0, bytes).expect("write");
            file
        };
        let (small, large) = (write(b"small", &[1; 9]), write(b"large", &[2; 90_000]));
        let twice = session.open_file(session.root(), b"small").expect("open");
        store.fail_one_in(1, Kind::NoSpace);
        session.close_file(small).expect("somebody has it open, and its record has room for it");
        session.close_file(large).expect_err("no room");
        store.fail_one_in(0, Kind::NoSpace);
        session.flush().expect("flush");
        let buffered = || session.namespace().files().buffered_bytes.load(Ordering::Relaxed);
        assert!(!session.namespace().files().is_empty(), "the small one is open once more");
        assert_eq!(buffered(), 9);
        session.close_file(twice).expect("close");
        assert!(session.namespace().files().is_empty());
        assert_eq!(buffered(), 0);
        let large = session
            .namespace()
            .find("/large", crate::stack::namespace::FollowLinks::No)
            .expect("find")
            .inode;
        assert_eq!(session.namespace().read(&large, 0, 90_001).expect("read"), &[2; 90_000][..]);
    }
}
