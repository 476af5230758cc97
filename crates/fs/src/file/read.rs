// SPDX-License-Identifier: Apache-2.0
//! Reading open files, and finding where they have data.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use esker_base::store::LocalFile;
use esker_base::{Bytes, Error, Kind, Result};
use esker_table::manifest::SetId;
use esker_table::object_name::ObjectName;
use esker_table::tree::Tree;

use super::{OpenFile, OpenFileState, SessionFile};
use crate::data::{self, LARGE_FILE_BYTES, PIECE_BYTES};
use crate::inode::{Extent, Inode};
use crate::session::Session;
use crate::stack::namespace::Namespace;

/// Segments are looked up in ranges of this size, so that memory does not grow with the file.
const WINDOW_BYTES: u64 = 64 << 20;
/// Holes begin and end at multiples of this, the block size of other file systems.
const HOLE_BYTES: u64 = 4 << 10;
/// Maximum number of segments counted to compute a file's stored size. The rest of a file with more
/// is assumed to be stored, so that reading its attributes stays cheap.
const COUNTED_SEGMENTS_MAX: usize = 1 << 12;
const _: () = assert!(WINDOW_BYTES.is_multiple_of(HOLE_BYTES));

impl SessionFile<'_> {
    /// Returns up to `bytes_max` bytes of the file from `offset`; fewer only at its end. Writers
    /// are not blocked while the store reads. Cost: a store request for each log involved; none
    /// while the bytes are in memory.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn read(&self, offset: u64, bytes_max: usize) -> Result<Bytes> {
        let Self { session, file } = *self;
        session.namespace().read_unlocked(file, offset, bytes_max)
    }

    /// Returns the first offset at or after `offset` where the file has written bytes; `None` if
    /// there is none before its end (`lseek` with `SEEK_DATA`).
    ///
    /// # Errors
    /// `Invalid` if `offset` is at or beyond the end; errors of the store.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        let Self { session, file } = *self;
        session.seek(file, offset, true).map(|(at, size)| (at < size).then_some(at))
    }

    /// Returns the first offset at or after `offset` that is in a hole of the file; the end of the
    /// file counts as a hole (`SEEK_HOLE`).
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        let Self { session, file } = *self;
        session.seek(file, offset, false).map(|(at, _)| at)
    }
}

impl Session {
    /// Returns where data, or a hole, begins at or after `offset`, and the file's size. A block of
    /// [`HOLE_BYTES`] with any data is all data, as in other file systems.
    fn seek(&self, file: &OpenFile, offset: u64, wants_data: bool) -> Result<(u64, u64)> {
        let state = file.state.read();
        let size = state.size()?;
        if offset >= size {
            return Err(Error::new(Kind::Invalid, "a seek at or beyond the end of the file"));
        }
        if let Some(in_place) = &state.in_place {
            return Ok((in_place.file.seek(offset, wants_data)?, size));
        }
        if !state.inode.mapped {
            let inode = &state.inode;
            let buffered = state.buffer.as_ref().map(|buffer| buffer.len() as u64);
            let stored = inode.extent.map_or(inode.content.len() as u64, |extent| extent.length);
            let stored = block_end(buffered.unwrap_or(stored), size);
            let found = match wants_data {
                true if offset < stored => offset,
                true => size,
                false => offset.max(stored),
            };
            return Ok((found, size));
        }
        let inode = state.inode.clone();
        drop(state);
        let mut window_bytes = WINDOW_BYTES;
        let mut at = offset - offset % HOLE_BYTES;
        while at < size {
            let window = at..size.min(at.saturating_add(window_bytes));
            if let Some(found) = self.seek_window(&inode, &window, wants_data)? {
                return Ok((found.max(offset), size));
            }
            at = window.end;
            // A hole of any size is crossed in a few steps.
            window_bytes = if wants_data { window_bytes.saturating_mul(2) } else { WINDOW_BYTES };
        }
        Ok((size, size))
    }

    /// Like [`Session::seek`], within `window`, which starts at a block boundary.
    fn seek_window(
        &self,
        inode: &Inode,
        window: &Range<u64>,
        wants_data: bool,
    ) -> Result<Option<u64>> {
        let overlay = self.namespace().layers().segments(inode, window.clone())?;
        let mut at = window.start;
        for piece in overlay.pieces().iter().filter(|piece| piece.place.is_some()) {
            let start = piece.offset - piece.offset % HOLE_BYTES;
            if wants_data {
                return Ok(Some(start));
            }
            if start > at {
                return Ok(Some(at));
            }
            at = at.max(block_end(piece.end(), inode.size));
        }
        Ok((!wants_data && at < window.end).then_some(at))
    }
}

/// Returns the end of the block that contains the byte before `end`, in a file of `size` bytes.
fn block_end(end: u64, size: u64) -> u64 {
    end.checked_next_multiple_of(HOLE_BYTES).unwrap_or(size).min(size)
}

impl Namespace {
    /// Returns the store's file that holds exactly the bytes of `inode`, if there is one. That
    /// needs a POSIX store and a data log of the file's own, written in place without holes, or
    /// sequentially from start to end. Cost: an open.
    ///
    /// # Errors
    /// `NotFound` if the log is gone; other errors of the store.
    pub fn backing_file(&self, inode: &Inode) -> Result<Option<File>> {
        let Some((set, log)) = self.log_from_beginning(inode)? else { return Ok(None) };
        let name = ObjectName::Data(set, log).to_string();
        let Some(files) = self.layers().source().store.local_files() else { return Ok(None) };
        let file = files.open(&name)?;
        let metadata = file.metadata().map_err(|error| Error::io(error, &name))?;
        let is_whole = metadata.len() == inode.size && self.is_in_order(inode, (set, log))?;
        Ok(is_whole.then_some(file))
    }

    /// Returns the log that begins with the first bytes of `inode`.
    fn log_from_beginning(&self, inode: &Inode) -> Result<Option<(SetId, u64)>> {
        if !inode.mapped {
            let whole =
                inode.extent.filter(|extent| (extent.offset, extent.length) == (0, inode.size));
            return Ok(whole.map(|extent| (extent.set, extent.log)));
        }
        let overlay = self.layers().segments(inode, 0..inode.size.min(1))?;
        let place = overlay.pieces().first().and_then(|first| first.place);
        Ok(place.filter(|place| place.offset == 0).map(|place| (place.set, place.log)))
    }

    /// True if every byte of `inode` is in `log`, at its offset in the file.
    fn is_in_order(&self, inode: &Inode, log: (SetId, u64)) -> Result<bool> {
        let mut at = 0;
        while inode.mapped && at < inode.size {
            let window = at..inode.size.min(at.saturating_add(WINDOW_BYTES));
            for piece in self.layers().segments(inode, window.clone())?.pieces() {
                let Some(place) = piece.place else { return Ok(false) };
                if (place.set, place.log) != log || place.offset != at || piece.offset != at {
                    return Ok(false);
                }
                at = piece.end();
            }
            if at < window.end {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns how many bytes of the file `inode` are stored, not counting holes. Cost: none unless
    /// the file may have holes; then a look-up of its segments.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn stored_bytes(&self, inode: &Inode) -> Result<u64> {
        let recorded = inode.extent.map_or(inode.content.len() as u64, |extent| extent.length);
        if !inode.mapped && recorded >= inode.size {
            return Ok(inode.size);
        }
        if let Some(file) = self.files().get(inode.id) {
            let state = file.state.read();
            if let Some(in_place) = &state.in_place {
                return Ok(in_place.file.status()?.stored_bytes);
            }
            if let Some(buffer) = &state.buffer {
                return Ok(inode.size.min(buffer.len() as u64));
            }
        }
        if inode.mapped { self.mapped_bytes(inode) } else { Ok(recorded) }
    }

    /// Like [`Namespace::stored_bytes`], for a file whose content is in the extent table.
    fn mapped_bytes(&self, inode: &Inode) -> Result<u64> {
        let (mut at, mut window_bytes) = (0, WINDOW_BYTES);
        let (mut bytes, mut segments) = (0, 0);
        while at < inode.size {
            let window = at..inode.size.min(at.saturating_add(window_bytes));
            let overlay = self.layers().segments(inode, window.clone())?;
            let placed = || overlay.pieces().iter().filter(|piece| piece.place.is_some());
            bytes += placed().map(|piece| piece.length).sum::<u64>();
            segments += placed().count();
            at = window.end;
            if segments > COUNTED_SEGMENTS_MAX {
                return Ok(bytes + (inode.size - at));
            }
            window_bytes = window_bytes.saturating_mul(2);
        }
        Ok(bytes)
    }

    /// Returns bytes of a file's content, wherever they are stored.
    pub(super) fn read_content(
        &self,
        inode: &Inode,
        offset: u64,
        bytes_max: usize,
    ) -> Result<Bytes> {
        if !inode.mapped {
            let fetch = |extent: &Extent, range| self.fetch(extent, range);
            return match data::read_with(&fetch, inode, offset, bytes_max) {
                Err(error) if error.kind() == Kind::NotFound => {
                    self.read_content(&self.find_moved(inode, error)?, offset, bytes_max)
                }
                read => read,
            };
        }
        let store = &*self.layers().source().store;
        let end = inode.size.min(offset.saturating_add(bytes_max as u64));
        if offset >= end {
            return Ok(Bytes::new());
        }
        let mut missing = None;
        loop {
            let overlay = self.layers().segments(inode, offset..end)?;
            match data::read_mapped(store, offset..end, overlay.pieces()) {
                // The log was reclaimed meanwhile, and its bytes are elsewhere (`reclaim.rs`).
                Err(error) if error.kind() == Kind::NotFound => {
                    if missing.as_deref() == Some(overlay.pieces()) {
                        return Err(self.explain_missing(error));
                    }
                    missing = Some(overlay.pieces().to_vec());
                }
                read => return read,
            }
        }
    }

    /// Returns the bytes of `range` of the log of `extent`. A small file of a base on a far store
    /// is read together with its neighbours.
    pub(crate) fn fetch(&self, extent: &Extent, range: Range<u64>) -> Result<Bytes> {
        let store = &*self.layers().source().store;
        let writer = self.layers().writer().map(Tree::set);
        if store.requests_at_once() <= 1
            || extent.written >= LARGE_FILE_BYTES
            || writer == Some(extent.set)
            || range.is_empty()
        {
            return store.get_range(&ObjectName::Data(extent.set, extent.log).to_string(), range);
        }
        self.read_ahead().read(store, (extent.set, extent.log), range)
    }

    /// Like [`Namespace::read_content`], for a file that may be open.
    pub(crate) fn read_open(&self, inode: &Inode, offset: u64, bytes_max: usize) -> Result<Bytes> {
        match self.files().get(inode.id) {
            Some(file) => self.read_unlocked(&file, offset, bytes_max),
            None => self.read_content(inode, offset, bytes_max),
        }
    }

    /// Passes all bytes of a file to `take`, in pieces.
    pub(crate) fn read_pieces(
        &self,
        inode: &Inode,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut offset = 0;
        while offset < inode.size {
            let bytes = self.read_open(inode, offset, PIECE_BYTES as usize)?;
            if bytes.is_empty() {
                break;
            }
            take(&bytes)?;
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// Passes the stored bytes of the file `inode` to `take`, in pieces with ascending offsets, and
    /// checks their checksums. Anything not passed is zeros. Cost: as [`Namespace::read_all`],
    /// except that large holes cost nothing.
    pub(crate) fn read_stored(
        &self,
        inode: &Inode,
        take: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        // Checks permission, and that it is a file.
        self.read(inode, 0, 0)?;
        let mut at = 0;
        let mut take_next = |bytes: &[u8]| {
            at += bytes.len() as u64;
            take(at - bytes.len() as u64, bytes)
        };
        if self.files().get(inode.id).is_some() {
            return self.read_pieces(inode, &mut take_next);
        }
        if !inode.mapped {
            let stored = inode.extent.map_or(inode.content.len() as u64, |extent| extent.length);
            let inode = Inode { size: inode.size.min(stored), ..inode.clone() };
            return self.read_recorded(&inode, &mut take_next);
        }
        self.read_segments(inode, take)
    }

    /// Passes all bytes of a file whose place is in its record to `take`, and verifies their
    /// checksum. If the log is reclaimed meanwhile (`reclaim.rs`), continues at the new place.
    pub(crate) fn read_recorded(
        &self,
        inode: &Inode,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        let fetch = |extent: &Extent, range| self.fetch(extent, range);
        let read = data::read_all_with(&fetch, inode, &mut |bytes| {
            at += bytes.len() as u64;
            take(bytes)
        });
        let error = match read {
            Err(error) if error.kind() == Kind::NotFound => error,
            read => return read,
        };
        let missing = error.context().to_owned();
        let moved = self.find_moved(inode, error)?;
        if at == 0 && !moved.mapped {
            return self.read_recorded(&moved, take);
        }
        let content = |inode: &Inode| inode.extent.map(|extent| (extent.length, extent.checksum));
        if at > 0 && content(inode) != content(&moved) {
            // The content was replaced: the caller must not get the rest of a different file.
            return Err(Error::new(Kind::NotFound, missing));
        }
        while at < moved.size {
            let bytes = self.read_content(&moved, at, PIECE_BYTES as usize)?;
            at += bytes.len() as u64;
            take(&bytes)?;
        }
        Ok(())
    }

    /// Reads an open file, holding its lock only to find its bytes.
    fn read_unlocked(&self, file: &OpenFile, offset: u64, bytes_max: usize) -> Result<Bytes> {
        let mut missing = None;
        loop {
            let (stored, cuts) = {
                let state = file.state.read();
                if let Some(buffer) = &state.buffer {
                    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(buffer.len());
                    let end = start.saturating_add(bytes_max).min(buffer.len());
                    return Ok(Bytes::copy_from_slice(&buffer[start..end]));
                }
                (StoredContent::of(&state), state.cuts)
            };
            let extent = stored.extent();
            let read = match &stored {
                StoredContent::InPlace(direct) => direct.read(offset, bytes_max).map(Bytes::from),
                StoredContent::Inode(inode) => self.read_content(inode, offset, bytes_max),
            };
            match read {
                // The log was reclaimed meanwhile, and its bytes are elsewhere (`reclaim.rs`).
                Err(error) if error.kind() == Kind::NotFound && extent != missing => {
                    missing = extent;
                }
                read if file.state.read().cuts == cuts => return read,
                // Truncated meanwhile: the result may be neither the old content nor the new.
                _ => {}
            }
        }
    }
}

/// Place of an open file's bytes that are not in memory.
#[expect(clippy::large_enum_variant, reason = "it is made for one read and not kept")]
enum StoredContent {
    InPlace(Arc<LocalFile>),
    Inode(Inode),
}

impl StoredContent {
    fn of(state: &OpenFileState) -> Self {
        match &state.in_place {
            Some(in_place) => Self::InPlace(in_place.file.clone()),
            None => Self::Inode(state.inode.clone()),
        }
    }

    fn extent(&self) -> Option<Extent> {
        match self {
            Self::InPlace(_) => None,
            Self::Inode(inode) => inode.extent,
        }
    }
}
