// SPDX-License-Identifier: Apache-2.0
//! Writing open files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_base::{Error, Kind, Result};
use esker_extent::{LogPlace, Segment};

use super::{
    BUFFER_BYTES_MAX, BUFFERS_BYTES_MAX, FILE_BYTES_MAX, OpenFile, OpenFileState, SessionFile,
};
use crate::data::INLINE_BYTES_MAX;
use crate::session::Session;

impl SessionFile<'_> {
    /// Writes `bytes` at `offset` of the file. They survive as the session's durability promises
    /// once the file is flushed, and power loss after [`SessionFile::sync`]. Cost: none while a new
    /// file is small, otherwise an append to a data log.
    ///
    /// # Errors
    /// `TooLarge` beyond [`FILE_BYTES_MAX`]; `NoSpace` and other errors of the store.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let Self { session, file } = *self;
        session.check_open()?;
        session.bound_garbage();
        let _content = session.pin_data_logs();
        let mut state = file.state.write();
        session.write_state(file, &mut state, offset, bytes)
    }

    /// Writes pages that a kernel has collected, as [`SessionFile::write`], but leaves the times of
    /// the file: the kernel knows when programs wrote, and sends those times if they changed.
    ///
    /// # Errors
    /// As [`SessionFile::write`].
    pub fn write_collected_pages(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let Self { session, file } = *self;
        session.check_open()?;
        session.bound_garbage();
        let _content = session.pin_data_logs();
        let mut state = file.state.write();
        let times = (state.inode.mtime_ns, state.inode.ctime_ns);
        let written = session.write_state(file, &mut state, offset, bytes);
        (state.inode.mtime_ns, state.inode.ctime_ns) = times;
        written
    }

    /// Writes `bytes` at the end of the file; returns their offset.
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        let Self { session, file } = *self;
        session.check_open()?;
        session.bound_garbage();
        let _content = session.pin_data_logs();
        let mut state = file.state.write();
        let offset = state.size()?;
        session.write_state(file, &mut state, offset, bytes)?;
        Ok(offset)
    }
}

impl Session {
    pub(super) fn write_state(
        &self,
        file: &Arc<OpenFile>,
        state: &mut OpenFileState,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let end =
            end.ok_or_else(|| Error::new(Kind::TooLarge, "a write beyond the maximum file size"))?;
        if let Some(direct) = state.change_in_place(self.tree())? {
            direct.write(offset, bytes)?;
        } else if !self.write_buffer(state, offset, bytes) {
            self.map_content(file, state)?;
            self.fill_gap(state, offset)?;
            let place = self.append_data(state, bytes)?;
            let length = bytes.len() as u64;
            let checksum = Some(crc32c::crc32c(bytes));
            let (file, place) = (file.id, Some(place));
            let segment = Segment { file, offset, length, place, checksum, seq: 0 };
            self.extents().put_segments(&mut [segment])?;
            self.data().garbage().add_garbage(state.inode.size.min(end).saturating_sub(offset));
        }
        state.inode.size = state.inode.size.max(end);
        self.content_was_changed(file, state);
        Ok(())
    }

    /// Marks the content of a file as changed now.
    pub(super) fn content_was_changed(&self, file: &Arc<OpenFile>, state: &mut OpenFileState) {
        let now_ns = self.now_ns();
        (state.inode.mtime_ns, state.inode.ctime_ns) = (now_ns, now_ns);
        if !state.is_dirty {
            state.is_dirty = true;
            self.namespace().files().mark_dirty(file);
        }
    }

    /// Writes into the buffer of a file that has one and stays small; returns whether it did.
    fn write_buffer(&self, state: &mut OpenFileState, offset: u64, bytes: &[u8]) -> bool {
        let Some(buffer) = &mut state.buffer else {
            return false;
        };
        let end = offset.saturating_add(bytes.len() as u64);
        let Some(end) = usize::try_from(end).ok().filter(|end| *end <= BUFFER_BYTES_MAX) else {
            return false;
        };
        let grown = end.saturating_sub(buffer.len());
        if grown > 0 && self.data().lacks_room() {
            // Report the lack of room to the writer now; at close nobody might see the error.
            return false;
        }
        let all = &self.namespace().files().buffered_bytes;
        if grown > 0 && all.load(Ordering::Relaxed) + grown > BUFFERS_BYTES_MAX {
            return false;
        }
        let start = end - bytes.len();
        if buffer.len() < end {
            buffer.resize(end, 0);
        }
        buffer[start..end].copy_from_slice(bytes);
        all.fetch_add(grown, Ordering::Relaxed);
        true
    }

    /// Takes the buffer of a file, whose content goes elsewhere.
    pub(super) fn take_buffer(&self, state: &mut OpenFileState) -> Option<Vec<u8>> {
        let buffer = state.buffer.take()?;
        self.namespace().files().buffered_bytes.fetch_sub(buffer.len(), Ordering::Relaxed);
        Some(buffer)
    }

    /// Maps the content of `file` as [`Session::make_mapped`] does. Its record must say so even if
    /// the change that needs it fails, because readers of the open file see the mapped content.
    pub(super) fn map_content(
        &self,
        file: &Arc<OpenFile>,
        state: &mut OpenFileState,
    ) -> Result<()> {
        let is_mapped = state.inode.mapped && state.inode.branch.is_none();
        self.make_mapped(state)?;
        if !is_mapped {
            self.mark_content_moved(file, state);
        }
        Ok(())
    }

    /// Ensures that the content of a file is in an extent table: the session's own, or that of a
    /// layer on which the session's whole stack builds.
    pub(super) fn make_mapped(&self, state: &mut OpenFileState) -> Result<()> {
        if state.inode.mapped {
            return self.copy_up(&mut state.inode);
        }
        let file = state.inode.id;
        let mut segments = Vec::new();
        if state.may_have_segments {
            // A layer may have segments from an earlier time when the file was mapped.
            segments.push(Segment::hole(file, 0, u64::MAX));
        }
        let bytes = match (&state.buffer, &state.inode.extent) {
            (Some(buffer), _) => &buffer[..],
            (None, None) => &state.inode.content[..],
            (None, Some(extent)) => {
                let place = Some(extent.log_position());
                let (offset, length) = (0, extent.length);
                let checksum = (length == extent.written).then_some(extent.checksum);
                segments.push(Segment { file, offset, length, place, checksum, seq: 0 });
                &[]
            }
        };
        if !bytes.is_empty() {
            let bytes = bytes.to_vec();
            let place = Some(self.append_data(state, &bytes)?);
            let checksum = Some(crc32c::crc32c(&bytes));
            let (offset, length) = (0, bytes.len() as u64);
            segments.push(Segment { file, offset, length, place, checksum, seq: 0 });
        }
        if !segments.is_empty() {
            let mut put = || self.extents().put_segments(&mut segments).map(drop);
            if state.may_have_segments { self.put_anew(file, put)? } else { put()? }
        }
        drop(self.take_buffer(state));
        state.inode.content.clear();
        (state.inode.mapped, state.inode.extent, state.inode.branch) = (true, None, None);
        (state.may_have_segments, state.leaves_segments) = (true, false);
        Ok(())
    }

    /// Makes the range between the end of a mapped file and `offset` read as zeros, even if a dead
    /// writer left segments beyond the end.
    pub(super) fn fill_gap(&self, state: &OpenFileState, offset: u64) -> Result<()> {
        let size = state.inode.size;
        if offset > size {
            let hole = Segment::hole(state.inode.id, size, offset - size);
            self.extents().put_segments(&mut [hole])?;
        }
        Ok(())
    }

    /// Appends bytes of a file to its own log, or to a shared one while few are written.
    fn append_data(&self, state: &mut OpenFileState, bytes: &[u8]) -> Result<LogPlace> {
        let appended_bytes = state.appended_bytes + bytes.len() as u64;
        drop(state.log.take_if(|log| log.is_ended()));
        if state.log.is_none() && state.appended_bytes == 0 {
            state.log = self.data().take_idle(state.inode.id);
        }
        if state.log.is_none() && appended_bytes >= BUFFER_BYTES_MAX as u64 {
            state.log = self.data().file_log()?;
        }
        let place = match &state.log {
            Some(log) => self.data().append_to(log, bytes)?,
            None => self.data().append_part(bytes)?,
        };
        state.appended_bytes = appended_bytes;
        Ok(place)
    }

    /// Stores content that is only in memory: in the inode, or as one extent of a packed log.
    pub(super) fn store_buffer(&self, state: &mut OpenFileState) -> Result<()> {
        let Some(buffer) = &state.buffer else {
            return Ok(());
        };
        if buffer.len() <= INLINE_BYTES_MAX {
            // Small enough to stay a buffer: the next write need not map the file.
            state.inode.content.clone_from(buffer);
            return Ok(());
        }
        let extent = self.data().append(buffer)?;
        drop(self.take_buffer(state));
        state.inode.content.clear();
        state.inode.extent = Some(extent);
        Ok(())
    }
}
