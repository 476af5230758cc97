// SPDX-License-Identifier: Apache-2.0
//! Changing the content of ranges of open files without writing bytes: truncation, holes, copies
//! that share extents.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_base::{Error, Kind, Result};
use esker_extent::Segment;

use super::{FILE_BYTES_MAX, OpenFile, OpenFileState, RecordLocation, SessionFile};
use crate::data::{INLINE_BYTES_MAX, PIECE_BYTES};
use crate::inode::Inode;
use crate::ops::setattr::resize;
use crate::session::Session;

/// Ranges are copied in steps of this size, so that memory does not grow with the range.
const STEP_BYTES: u64 = 64 << 20;

impl SessionFile<'_> {
    /// Truncates the file to `size`, or extends it with zeros. Cost: no store request.
    ///
    /// # Errors
    /// `TooLarge` beyond [`FILE_BYTES_MAX`]; errors of the store.
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.change_content(size, |state| self.session.set_size(self.file, state, size))
    }

    /// Extends the file to the end of `range` unless `keeps_size`. Reserves nothing in the store,
    /// whose free space is shared, unless the file is written in place.
    pub fn allocate(&self, range: Range<u64>, keeps_size: bool) -> Result<()> {
        let Self { session, file } = *self;
        self.change_content(range.end, |state| {
            if let Some(direct) = state.change_in_place(session.tree())? {
                direct.allocate(&range, keeps_size)?;
            } else if !keeps_size && range.end > state.inode.size {
                session.set_size(file, state, range.end)?;
            }
            Ok(())
        })
    }

    /// Makes `range` of the file read as zeros and take no room; extends the file to its end unless
    /// `keeps_size`.
    pub fn punch(&self, range: Range<u64>, keeps_size: bool) -> Result<()> {
        let Self { session, file } = *self;
        self.change_content(range.end, |state| {
            if let Some(direct) = state.change_in_place(session.tree())? {
                return direct.punch(&range, keeps_size);
            }
            let end = if keeps_size { range.end.min(state.inode.size) } else { range.end };
            if range.start >= end {
                return Ok(());
            }
            let buffered = state.buffer.as_ref().map(Vec::len);
            if buffered.is_none_or(|length| end > (length + INLINE_BYTES_MAX) as u64) {
                // With the old size, which stays if the rest fails.
                session.map_content(file, state)?;
            }
            if end > state.inode.size {
                session.set_size(file, state, end)?;
            }
            if let Some(buffer) = &mut state.buffer {
                buffer[range.start as usize..end as usize].fill(0);
                return Ok(());
            }
            let hole = Segment::hole(file.id, range.start, end - range.start);
            session.extents().put_segments(&mut [hole])?;
            session.data().garbage().add_garbage(end - range.start);
            Ok(())
        })
    }

    /// Calls `change`, which may extend the file to `end`, with the file's state, which stays
    /// locked, and records the time of the change once it has succeeded.
    fn change_content(
        &self,
        end: u64,
        change: impl FnOnce(&mut OpenFileState) -> Result<()>,
    ) -> Result<()> {
        let Self { session, file } = *self;
        session.check_open()?;
        let _content = session.pin_data_logs();
        let mut state = file.state.write();
        check_end(Some(end))?;
        let former = session.former_content(file, &state)?;
        match change(&mut state) {
            Ok(()) => session.content_was_changed(file, &mut state),
            Err(error) => {
                session.restore_content(file, &mut state, former);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Copies `range` of the file to `offset` of `to` by sharing extents; returns how many bytes
    /// were copied, fewer only at its end. Ranges of one file must not overlap. Bytes are read and
    /// written only for small new files, which have no extents yet, and for files that are written
    /// in place.
    pub fn copy_range(&self, range: Range<u64>, to: &Arc<OpenFile>, offset: u64) -> Result<u64> {
        let mut copied = 0;
        self.copy_steps(range, (to, offset), &mut copied).map(|()| copied)
    }

    /// Like [`SessionFile::copy_range`], but if an error prevents the rest returns how many bytes
    /// were copied before, as a system call does.
    ///
    /// # Errors
    /// As [`SessionFile::copy_range`], if nothing was copied.
    pub fn copy_range_partly(
        &self,
        range: Range<u64>,
        to: &Arc<OpenFile>,
        offset: u64,
    ) -> Result<u64> {
        let mut copied = 0;
        match self.copy_steps(range, (to, offset), &mut copied) {
            Err(error) if copied == 0 => Err(error),
            _ => Ok(copied),
        }
    }

    fn copy_steps(
        &self,
        range: Range<u64>,
        (to, offset): (&Arc<OpenFile>, u64),
        copied: &mut u64,
    ) -> Result<()> {
        let Self { session, file: from } = *self;
        session.check_open()?;
        let _content = session.pin_data_logs();
        let length = range.end.saturating_sub(range.start);
        check_end(offset.checked_add(length))?;
        if Arc::ptr_eq(from, to)
            && range.start < offset + length
            && offset < range.end
            && length > 0
        {
            return Err(Error::new(Kind::Invalid, "a copy between overlapping ranges"));
        }
        // Bytes that the copy itself appends are not copied again.
        let length = range.end.min(from.state.read().size()?).saturating_sub(range.start);
        while *copied < length {
            let start = range.start + *copied;
            let step = start..(range.start + length).min(start + STEP_BYTES);
            let count = session.copy_step(from, step, to, offset + *copied)?;
            *copied += count;
            if count == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// The content of an open file, and its record, before a change of a range, which may fail.
pub(super) struct FormerContent {
    /// `None` if the file has no name any more.
    record: Option<Inode>,
    inode: Inode,
    buffer: Option<Vec<u8>>,
    leaves_segments: bool,
    covered_ends: u64,
}

impl Session {
    /// Returns the content of an open file now; `None` while it is written in place, since its
    /// bytes then go at once. Cost: a look-up of its record.
    pub(super) fn former_content(
        &self,
        file: &OpenFile,
        state: &OpenFileState,
    ) -> Result<Option<FormerContent>> {
        if state.in_place.is_some() {
            return Ok(None);
        }
        let OpenFileState { inode, buffer, leaves_segments, covered_ends, .. } = state;
        let (leaves_segments, covered_ends) = (*leaves_segments, *covered_ends);
        let (inode, buffer) = (inode.clone(), buffer.clone());
        let record = self.named_record(file, state)?;
        Ok(Some(FormerContent { record, inode, buffer, leaves_segments, covered_ends }))
    }

    /// Returns the record of `file`; `None` if it has no name any more.
    fn named_record(&self, file: &OpenFile, state: &OpenFileState) -> Result<Option<Inode>> {
        match file.location() {
            RecordLocation::Gone => Ok(None),
            _ => self.record(file, state).map(Some),
        }
    }

    /// Gives an open file its content before a change that failed, or only its size if its record
    /// says by now where the content is. A record with another size says what the content is, and
    /// bytes that are gone do not come back.
    pub(super) fn restore_content(
        &self,
        file: &Arc<OpenFile>,
        state: &mut OpenFileState,
        former: Option<FormerContent>,
    ) {
        let Some(former) = former else { return };
        let Ok(now) = self.named_record(file, state) else { return };
        if state.covered_ends != former.covered_ends {
            return;
        }
        if now != former.record {
            let sizes = [&now, &former.record].map(|record| record.as_ref().map(|now| now.size));
            if sizes[0] == sizes[1] && state.buffer.is_none() {
                state.inode.size = former.inode.size;
                self.mark_content_moved(file, state);
            }
            return;
        }
        let leaves_segments =
            former.leaves_segments || (state.inode.mapped && !former.inode.mapped);
        drop(self.take_buffer(state));
        if let Some(buffer) = former.buffer {
            self.namespace().files().buffered_bytes.fetch_add(buffer.len(), Ordering::Relaxed);
            state.buffer = Some(buffer);
        }
        (state.inode, state.leaves_segments) = (former.inode, leaves_segments);
        self.mark_content_moved(file, state);
    }

    /// Like [`SessionFile::truncate`], without changing times.
    pub(super) fn set_size(
        &self,
        file: &Arc<OpenFile>,
        state: &mut OpenFileState,
        size: u64,
    ) -> Result<()> {
        if size < state.size()? {
            state.cuts += 1;
        }
        if state.in_place.is_some() {
            return self.set_size_in_place(file, state, size);
        }
        if size == 0 {
            self.empty(state);
            return Ok(());
        }
        if let Some(buffer) = &mut state.buffer {
            let before = buffer.len();
            if size <= (before + INLINE_BYTES_MAX) as u64 {
                buffer.resize(usize::try_from(size).expect("about the size of a buffer"), 0);
                let (all, now) = (&self.namespace().files().buffered_bytes, buffer.len());
                all.fetch_add(now, Ordering::Relaxed);
                all.fetch_sub(before, Ordering::Relaxed);
                state.inode.size = size;
                return Ok(());
            }
            // Not worth keeping zeros in memory: store the bytes, and extend the size beyond them.
            self.store_buffer(state)?;
            drop(self.take_buffer(state));
        }
        if !state.inode.mapped {
            return resize(&mut state.inode, b"file", size);
        }
        self.copy_up(&mut state.inode)?;
        if size < state.inode.size {
            self.cut(file, state, size)?;
        } else {
            self.fill_gap(state, size)?;
        }
        state.inode.size = size;
        Ok(())
    }

    /// Cuts a file with segments to `size`, which is less than its own. A file that cannot be cut
    /// stays as it is, except at durability `Always`, where a change that fails may be visible.
    fn cut(&self, file: &Arc<OpenFile>, state: &mut OpenFileState, size: u64) -> Result<()> {
        let former_size = std::mem::replace(&mut state.inode.size, size);
        // The record first: it may be all that a crash leaves, or that a snapshot shows.
        self.mark_content_moved(file, state);
        self.write_state_attributes(file, state)?;
        // Up to the largest possible offset, to cover what a dead writer left beyond the end, too.
        let hole = Segment::hole(state.inode.id, size, u64::MAX - size);
        let covered = self.extents().put_segments(&mut [hole]);
        state.covered_ends += u64::from(covered.is_ok() || self.syncs_each_change());
        if let Err(error) = covered {
            if self.syncs_each_change() {
                return Err(error);
            }
            state.inode.size = former_size;
            self.mark_content_moved(file, state);
            // If this fails as well, the file is written back later, with its former size.
            let _ = self.write_state_attributes(file, state);
            return Err(error);
        }
        self.data().garbage().add_garbage(former_size - size);
        Ok(())
    }

    fn empty(&self, state: &mut OpenFileState) {
        self.add_garbage_of(&state.inode);
        // The segments go once a record says that the file is empty.
        state.leaves_segments |= state.inode.mapped;
        // New content begins a log of its own, so that it can be read as a file of the store.
        drop(self.data().take_idle(state.inode.id));
        drop(self.take_buffer(state));
        state.buffer = Some(Vec::new());
        (state.inode.size, state.inode.mapped, state.inode.extent) = (0, false, None);
        state.inode.branch = None;
        state.inode.content.clear();
    }

    fn copy_step(
        &self,
        from: &Arc<OpenFile>,
        range: Range<u64>,
        to: &Arc<OpenFile>,
        offset: u64,
    ) -> Result<u64> {
        let (end, pieces) = {
            let to_is_in_place = !Arc::ptr_eq(from, to) && to.state.read().in_place.is_some();
            let mut state = from.state.write();
            let end = range.end.min(state.size()?);
            if range.start >= end {
                return Ok(0);
            }
            let is_in_place = to_is_in_place || state.in_place.is_some();
            let has_content = !state.inode.mapped && !state.inode.content.is_empty();
            if is_in_place || state.buffer.is_some() || has_content {
                let count = (end - range.start).min(PIECE_BYTES) as usize;
                drop(state);
                let bytes = self.file(from).read(range.start, count)?;
                self.write_state(to, &mut to.state.write(), offset, &bytes)?;
                return Ok(bytes.len() as u64);
            }
            if !state.inode.mapped {
                self.map_content(from, &mut state)?;
            }
            let overlay = self.namespace().layers().segments(&state.inode, range.start..end)?;
            (end, overlay.pieces().to_vec())
        };
        let length = end - range.start;
        let mut state = to.state.write();
        self.map_content(to, &mut state)?;
        self.fill_gap(&state, offset)?;
        let mut segments = vec![Segment::hole(to.id, offset, length)];
        segments.extend(pieces.iter().filter(|piece| piece.place.is_some()).map(|piece| Segment {
            file: to.id,
            offset: piece.offset - range.start + offset,
            ..*piece
        }));
        self.extents().put_segments(&mut segments)?;
        let overwritten_end = state.inode.size.min(offset + length);
        self.data().garbage().add_garbage(overwritten_end.saturating_sub(offset));
        state.inode.size = state.inode.size.max(offset + length);
        self.content_was_changed(to, &mut state);
        Ok(length)
    }
}

pub(super) fn check_end(end: Option<u64>) -> Result<()> {
    match end {
        Some(end) if end <= FILE_BYTES_MAX => Ok(()),
        _ => Err(Error::new(Kind::TooLarge, "a range beyond the maximum file size")),
    }
}
