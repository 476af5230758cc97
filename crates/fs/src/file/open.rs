//! Opening, creating and closing files.

use std::sync::Arc;

use esker_base::Result;

use super::{OpenFile, Place};
use crate::dir::Dir;
use crate::inode::{DirId, Entry, FileKind, Inode};
use crate::ops::setattr::{Changes, check_file};
use crate::session::Session;

impl Session {
    /// Opens the regular file `name` in `dir` for reading and writing; whoever opens a file that is
    /// open gets the same [`OpenFile`]. Permissions on the file are the caller's to check
    /// ([`crate::identity::Identity::check`]), since how it is opened decides them. Give it back
    /// with [`Session::close_file`]. At most one block read a layer.
    ///
    /// # Errors
    /// `NotFound`, `Denied`; `IsADirectory` or `Invalid` for what is no regular file.
    pub fn open_file(&self, dir: &Dir, name: &[u8]) -> Result<Arc<OpenFile>> {
        dir.check_name(name)?;
        let _shape = self.shape();
        self.check_search(dir, name)?;
        loop {
            let flushes = self.files().flushes();
            let (inode, place) = self.placed(dir, name)?;
            check_file(&inode, name)?;
            if let Some(file) = self.files().get_or_open(inode, place, flushes) {
                return Ok(file);
            }
        }
    }

    /// Creates the regular file `name` in `dir` and opens it: as [`Session::create`].
    ///
    /// # Errors
    /// As [`Session::create`].
    pub fn create_file(&self, dir: &Dir, name: &[u8], mode: u32) -> Result<Arc<OpenFile>> {
        let entry = Entry::Is(FileKind::File);
        let mut inode = Inode::new(entry, mode & 0o7777, self.now_ns());
        self.insert(dir, name, &mut inode)?;
        Ok(self.open_created(dir, name, inode))
    }

    /// Opens `inode`, which this session has just put at `name` in `dir`.
    pub fn open_created(&self, dir: &Dir, name: &[u8], inode: Inode) -> Arc<OpenFile> {
        let place = Place::Name(dir.clone(), name.to_vec());
        self.files().open_new(inode, place)
    }

    /// The file `name` in `dir`, to change it by `changes`, if that is more than a change of its
    /// record: it is open, or its content changes.
    pub(crate) fn open_to_change(
        &self,
        dir: &Dir,
        name: &[u8],
        changes: &Changes,
    ) -> Result<Option<Arc<OpenFile>>> {
        let _shape = self.shape();
        self.check_search(dir, name)?;
        loop {
            let flushes = self.files().flushes();
            let (inode, place) = self.placed(dir, name)?;
            if inode.kind() != Some(FileKind::File)
                || (changes.size.is_none() && self.files().get(inode.id).is_none())
            {
                return Ok(None);
            }
            let file = self.files().get_or_open(inode, place, flushes);
            if file.is_some() {
                return Ok(file);
            }
        }
    }

    /// Gives back a file: flushed, unless its last name is gone; then its bytes are, too.
    ///
    /// # Errors
    /// As [`Session::flush_file`].
    pub fn close_file(&self, file: Arc<OpenFile>) -> Result<()> {
        let flushed = self.flush_file(&file);
        let is_gone = matches!(file.place(), Place::Gone);
        let is_last = Arc::strong_count(&file) == 1;
        let released = if is_gone && is_last { self.release_content(&file) } else { Ok(()) };
        self.files().close(file);
        flushed.and(released)
    }

    /// The inode of what is at `name` in `dir`, with its strings, and where its record is.
    fn placed(&self, dir: &Dir, name: &[u8]) -> Result<(Inode, Place)> {
        let entry = self.entry(dir, name, true)?;
        let entry = entry.ok_or_else(|| crate::session::not_found(name))?;
        if entry.entry == Entry::Link {
            return Ok((self.linked(entry.id, true)?, Place::Links));
        }
        if dir.id() == DirId::LINKS {
            return Ok((entry, Place::Links));
        }
        Ok((entry, Place::Name(dir.clone(), name.to_vec())))
    }
}
