// SPDX-License-Identifier: Apache-2.0
//! Attributes of open files, and writing them back to their records.

use std::sync::Arc;

use esker_base::Result;
use esker_extent::Segment;

use super::{InPlaceFile, OpenFile, OpenFileState, RecordLocation, SessionFile};
use crate::file::space::check_end;
use crate::inode::xattr::Xattrs;
use crate::inode::{DirId, FileId, Inode};
use crate::ops::XattrSet;
use crate::ops::setattr::{AttributeChanges, content_changed, insert_xattr, take_xattr};
use crate::session::Session;
use crate::stack::dir::Dir;
use crate::stack::identity::WRITE;

impl OpenFileState {
    /// Takes over `inode` from the record, which is about to go; unwritten changes stay on top of
    /// it.
    pub(super) fn overlay_onto(&mut self, inode: &Inode) {
        let mut inode = inode.clone();
        self.overlay(&mut inode);
        if !self.is_dirty {
            (inode.size, inode.mapped, inode.extent) =
                (self.inode.size, self.inode.mapped, self.inode.extent);
            inode.branch.clone_from(&self.inode.branch);
            inode.content.clone_from(&self.inode.content);
        }
        inode.nlink = 0;
        self.inode = inode;
    }
}

impl SessionFile<'_> {
    /// Returns a directory and a name under which operations reach the file; `None` once its last
    /// name is gone. For a file with several names, this is its place in
    /// [`crate::stack::namespace::Namespace::links`], which only a superuser may use.
    #[must_use]
    pub fn record_location(&self) -> Option<(Dir, Vec<u8>)> {
        match self.file.location() {
            RecordLocation::Gone => None,
            RecordLocation::Links => {
                Some((self.session.namespace().links().clone(), self.file.id.to_be_bytes().into()))
            }
            RecordLocation::Name(dir, name) => Some((dir, name)),
        }
    }

    /// Returns the attributes of the file, with content and extended attributes. Also works after
    /// the last name is gone; the link count is then 0.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn stat(&self) -> Result<Inode> {
        let Self { session, file } = *self;
        let state = file.state.read();
        let mut inode = session.record(file, &state)?;
        state.overlay(&mut inode);
        Ok(inode)
    }

    /// Changes attributes of the file, as [`Session::setattr`] does for a name.
    pub fn setattr(&self, changes: &AttributeChanges) -> Result<Inode> {
        let Self { session, file } = *self;
        session.check_open()?;
        let _content = session.pin_data_logs();
        let mut state = file.state.write();
        let Some(size) = changes.size else { return self.change_attributes(&mut state, changes) };
        let record = session.record(file, &state)?;
        session.namespace().identity().check(WRITE, &record, b"file")?;
        check_end(Some(size))?;
        // A change that is not permitted fails before anything is cut.
        let others = AttributeChanges { size: None, ..*changes };
        session.apply(&mut record.clone(), b"file", &others)?;
        let former = session.former_content(file, &state)?;
        let changed = self.change_attributes(&mut state, changes);
        if changed.is_err() {
            session.restore_content(file, &mut state, former);
        }
        changed
    }

    fn change_attributes(
        &self,
        state: &mut OpenFileState,
        changes: &AttributeChanges,
    ) -> Result<Inode> {
        let Self { session, file } = *self;
        if let Some(size) = changes.size {
            session.set_size(file, state, size)?;
            session.content_was_changed(file, state);
        }
        let mut others = AttributeChanges { size: None, ..*changes };
        if state.in_place.is_some() {
            others = InPlaceFile::recorded(&others);
        } else {
            // Times set here must not be overlaid by those of earlier writes.
            session.write_state_attributes(file, state)?;
        }
        let now_ns = session.now_ns();
        let change = |inode: &mut Inode| {
            if changes.size.is_some() {
                content_changed(inode, session.namespace().identity(), now_ns);
            }
            session.apply(inode, b"file", &others)
        };
        match session.update_file_inode(file, change)? {
            Some(inode) => state.inode = inode,
            None => change(&mut state.inode)?,
        }
        if let Some(in_place) = &mut state.in_place {
            in_place.defer_changes(changes)?;
        }
        let mut inode = state.inode.clone();
        state.overlay(&mut inode);
        Ok(inode)
    }

    /// Sets an extended attribute of the file, as [`Session::set_xattr`] does for a name. Also works
    /// after the last name is gone.
    ///
    /// # Errors
    /// As [`Session::set_xattr`].
    pub fn set_xattr(&self, (attribute, value): (&[u8], &[u8]), how: XattrSet) -> Result<()> {
        self.change_xattrs(attribute, |xattrs| insert_xattr(xattrs, (attribute, value), how))
    }

    /// Removes an extended attribute of the file, as [`Session::remove_xattr`] does for a name. Also
    /// works after the last name is gone.
    ///
    /// # Errors
    /// As [`Session::remove_xattr`].
    pub fn remove_xattr(&self, attribute: &[u8]) -> Result<()> {
        self.change_xattrs(attribute, |xattrs| take_xattr(xattrs, attribute))
    }

    fn change_xattrs(
        &self,
        attribute: &[u8],
        mut change: impl FnMut(&mut Xattrs) -> Result<()>,
    ) -> Result<()> {
        let Self { session, file } = *self;
        session.check_open()?;
        let mut state = file.state.write();
        let mut change =
            |inode: &mut Inode| session.change_xattrs(inode, b"file", attribute, &mut change);
        match session.update_file_inode(file, &mut change)? {
            // The state may have content that the record lacks.
            Some(record) => state.inode.xattrs = record.xattrs,
            None => change(&mut state.inode)?,
        }
        Ok(())
    }

    /// Stores the content that the file has in memory and writes its record, which then survives as
    /// the session's durability promises. Cost: an append to a data log if content is buffered.
    ///
    /// # Errors
    /// Errors of the store; the file is then unchanged and may be flushed again.
    pub fn flush(&self) -> Result<()> {
        let Self { session, file } = *self;
        let _content = session.pin_data_logs();
        let mut state = file.state.write();
        session.write_state_attributes(file, &mut state)
    }

    /// Returns once the file and everything the session did before survive power loss.
    ///
    /// # Errors
    /// Errors of the store, also those that keep other files that were closed from being flushed:
    /// this file is synced nevertheless.
    pub fn sync(&self) -> Result<()> {
        let Self { session, file } = *self;
        let others = session.flush_closed_files();
        session.sync_in_place(file)?;
        self.flush()?;
        session.data().sync()?;
        session.tree().sync()?;
        others
    }
}

impl Session {
    /// Returns the record of `file`, or its last known state if the record is gone.
    pub(super) fn record(&self, file: &OpenFile, state: &OpenFileState) -> Result<Inode> {
        let _structure = self.read_structure();
        match file.location() {
            RecordLocation::Gone => Ok(state.inode.clone()),
            RecordLocation::Links => self.namespace().linked(file.id, true),
            RecordLocation::Name(dir, name) => match self.namespace().entry(&dir, &name, true)? {
                Some(inode) if inode.id == file.id => Ok(inode),
                // The name was just removed or became a link; the cached inode is as good.
                _ => Ok(state.inode.clone()),
            },
        }
    }

    pub(super) fn write_state_attributes(
        &self,
        file: &Arc<OpenFile>,
        state: &mut OpenFileState,
    ) -> Result<()> {
        if !state.is_dirty {
            return Ok(());
        }
        if !matches!(file.location(), RecordLocation::Gone) {
            self.store_buffer(state)?;
            self.describe_in_place(state)?;
            self.update_file_inode(file, |inode| {
                state.overlay_own(inode);
                Ok(())
            })?;
            self.release_left(state)?;
        }
        if state.in_place.is_none() {
            state.is_dirty = false;
            self.namespace().files().mark_clean(file.id);
        }
        Ok(())
    }

    /// Releases the segments of content that has moved elsewhere.
    pub(super) fn release_left(&self, state: &mut OpenFileState) -> Result<()> {
        if state.leaves_segments {
            self.release_segments(state.inode.id)?;
            state.leaves_segments = false;
        }
        Ok(())
    }

    /// Marks the file dirty, as after a write, when only the location of its content changed.
    pub(super) fn mark_content_moved(&self, file: &Arc<OpenFile>, state: &mut OpenFileState) {
        if !state.is_dirty {
            state.is_dirty = true;
            self.namespace().files().mark_dirty(file);
        }
    }

    /// Applies `change` to the record of `file`, wherever it is, and returns it; `None` if it has
    /// no record.
    fn update_file_inode(
        &self,
        file: &OpenFile,
        mut change: impl FnMut(&mut Inode) -> Result<()>,
    ) -> Result<Option<Inode>> {
        let _structure = self.read_structure();
        let mut is_other = false;
        let mut change = |inode: &mut Inode| {
            is_other = inode.id != file.id;
            if is_other {
                return Err(crate::session::not_found(b"file"));
            }
            change(inode)
        };
        let amended = match file.location() {
            RecordLocation::Gone => return Ok(None),
            RecordLocation::Name(dir, name) => {
                self.update_inode_if_present(&dir, &name, &mut change)
            }
            RecordLocation::Links => {
                self.update_record(DirId::LINKS, false, &file.id.to_be_bytes(), &mut change)
            }
        };
        match amended {
            // The name was given to another file a moment ago.
            Err(_) if is_other => Ok(None),
            amended => amended,
        }
    }

    /// Lets compaction drop the segments of `file`, whose last name known to this session is gone,
    /// if the session made the file. A file of a base may have another name in a set stacked or
    /// joined with this one; squash checks that.
    pub(super) fn release_file(&self, file: u128) -> Result<()> {
        if FileId(file).is_of(self.set()) { self.release_segments(file) } else { Ok(()) }
    }

    /// Lets compaction drop the segments of `file`, which nothing refers to.
    pub(crate) fn release_segments(&self, file: u128) -> Result<()> {
        self.extents().put_segments(&mut [Segment::hole(file, 0, u64::MAX)]).map(drop)
    }
}
