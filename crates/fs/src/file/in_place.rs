// SPDX-License-Identifier: Apache-2.0
//! Files that are written in place: their writer has the store's own file open, as the kernel does
//! for a mount (FUSE passthrough), so their bytes never pass through here.
//!
//! Such a file is new, and while it is written it has a whole data log to itself. After the last
//! writer is done, the file is sealed and becomes like any other: its log never changes again, and
//! every piece has a checksum. A small file moves to where small files are stored.
//! Invariants: (1) only the writer's own session refers to a log that may change; until the file is
//! sealed, snapshots show copies. (2) A record covers only bytes of the log that were synced
//! before, without checksums, since they may be overwritten; so a record that survives finds its
//! bytes. (3) Before the first such record is written, the manifest declares that there may be
//! some, so that a writer that takes over copies what the old one can still write (`unsealed.rs`).

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use esker_base::Result;
use esker_base::store::LocalFile;
use esker_extent::{LogPlace, Segment};
use esker_table::manifest::SetId;
use esker_table::object_name::ObjectName;
use esker_table::tree::Tree;
use parking_lot::RwLockWriteGuard;

use super::{BUFFER_BYTES_MAX, OpenFile, OpenFileState, RecordLocation, SessionFile};
use crate::data::{FileLog, PIECE_BYTES};
use crate::inode::timestamp;
use crate::inode::{Extent, Inode};
use crate::ops::AttributeChanges;
use crate::session::Session;

const SET_ID_BITS: u32 = 0o6000;
/// Maximum number of segments put into the tree at once when a file is sealed.
const SEGMENTS_AT_ONCE: usize = 1024;
/// Maximum attempts to read a file without its lock while sealing it. An attempt fails if the file
/// is changed through its session meanwhile; after the last one sealing reads under the lock, which
/// blocks such changes.
const SEAL_ATTEMPTS_MAX: u32 = 4;

/// The log of a file that is written in place.
#[derive(Debug)]
pub(super) struct InPlaceFile {
    log: FileLog,
    pub(super) file: Arc<LocalFile>,
    /// Synced bytes from the start: the most that the next record may cover.
    synced_bytes: u64,
    /// Upper bound of the log's bytes that any record covers; `None` if no record ever referred to
    /// it.
    recorded_bytes: Option<u64>,
    /// Number of changes of the file through its session.
    changes: u64,
    /// Set-id bits to apply once the file is sealed, if the last write is still of this time.
    set_id: Option<(u32, SystemTime)>,
}

impl InPlaceFile {
    /// Returns the extent of the first `length` bytes of the log of `set`. It has no checksum,
    /// since the bytes may be overwritten.
    fn extent(&self, set: SetId, length: u64) -> Extent {
        Extent { set, log: self.log.number(), offset: 0, length, checksum: 0, written: 0 }
    }

    /// Puts the size and times of the log's file into `inode`.
    pub(super) fn overlay(&self, inode: &mut Inode) {
        let Ok(status) = self.file.status() else { return };
        inode.size = status.bytes;
        inode.mtime_ns = timestamp::of_parts(status.written.0, status.written.1);
        inode.ctime_ns = inode.ctime_ns.max(inode.mtime_ns);
    }

    /// Returns the part of `changes` that goes into the record: all but set-id bits, since a
    /// concurrent write in place would clear those unnoticed.
    pub(super) fn recorded(changes: &AttributeChanges) -> AttributeChanges {
        AttributeChanges { mode: changes.mode.map(|mode| mode & !SET_ID_BITS), ..*changes }
    }

    /// Remembers the part of `changes` that does not go into the record.
    pub(super) fn defer_changes(&mut self, changes: &AttributeChanges) -> Result<()> {
        if let Some(mtime_ns) = changes.mtime_ns {
            let at = timestamp::system_time(mtime_ns);
            let bits = self.set_id();
            self.file.set_written_at(at)?;
            self.set_id = (bits != 0).then_some((bits, at));
        }
        if changes.uid.is_some() || changes.gid.is_some() || changes.mode.is_some() {
            self.set_id = None;
        }
        let bits = changes.mode.unwrap_or(0) & SET_ID_BITS;
        if bits != 0 {
            // A time that no write produces.
            let marked_at = self.file.status()?.written_at + Duration::from_nanos(1);
            self.file.set_written_at(marked_at)?;
            self.set_id = Some((bits, marked_at));
        }
        Ok(())
    }

    /// Returns the set-id bits that were set after the last write.
    fn set_id(&self) -> u32 {
        let written_at = self.file.status().ok().map(|status| status.written_at);
        self.set_id.filter(|(_, at)| Some(*at) == written_at).map_or(0, |(bits, _)| bits)
    }
}

impl OpenFileState {
    /// True if nothing but zeros was ever written and the file is not being written in place.
    pub(super) fn is_blank(&self) -> bool {
        let inode = &self.inode;
        let is_placed = inode.mapped || inode.extent.is_some() || self.in_place.is_some();
        !is_placed && inode.content.is_empty() && self.buffer.as_ref().is_none_or(Vec::is_empty)
    }

    /// Returns the current size of the file.
    pub(super) fn size(&self) -> Result<u64> {
        self.in_place.as_ref().map_or(Ok(self.inode.size), |in_place| in_place.file.bytes())
    }

    /// Returns the store's file, for a change, if it holds the file's bytes.
    ///
    /// # Errors
    /// The failure or takeover that ended `writer`, after which the bytes may belong to another
    /// writer.
    pub(super) fn change_in_place(&mut self, writer: &Tree) -> Result<Option<&LocalFile>> {
        let Some(in_place) = &mut self.in_place else { return Ok(None) };
        writer.check_open()?;
        in_place.changes += 1;
        Ok(Some(&in_place.file))
    }
}

impl SessionFile<'_> {
    /// Lets the caller write the file in place: returns the store's file that holds its bytes from
    /// now on, open for reading and writing. Returns `None` where that is impossible: the file was
    /// already written to, the store has no files, every change must be durable at once, or too
    /// many files are being written in place.
    ///
    /// Reads and attributes through this session work as usual, but set-id bits are applied only at
    /// the end. Written data survives power loss after [`SessionFile::sync`]; bytes overwritten
    /// since then survive with either content. Snapshots show copies of it. The caller calls
    /// [`SessionFile::end_in_place`] once nothing has the store's file open; otherwise the file is
    /// published as a copy. Cost: creating a file.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn begin_in_place(&self) -> Result<Option<File>> {
        let Self { session, file } = *self;
        session.check_open()?;
        let _content = session.pin_data_logs();
        let mut state = file.state.write();
        let is_possible = state.is_blank() && state.inode.mode & SET_ID_BITS == 0;
        if !is_possible || session.syncs_each_change() {
            return Ok(None);
        }
        let Some((log, own)) = session.data().log_in_place()? else { return Ok(None) };
        let theirs = own.try_clone()?;
        let (size, mtime_ns) = (state.inode.size, state.inode.mtime_ns);
        let in_place = InPlaceFile {
            log,
            file: Arc::new(own),
            synced_bytes: size,
            recorded_bytes: None,
            changes: 0,
            set_id: None,
        };
        if size > 0 {
            // The record already covers these bytes.
            session.declare_unsealed()?;
            in_place.file.set_bytes(size)?;
            session.data().sync_in_place(&in_place.log)?;
        }
        in_place.file.set_written_at(timestamp::system_time(mtime_ns))?;
        drop(session.take_buffer(&mut state));
        state.in_place = Some(in_place);
        session.mark_content_moved(file, &mut state);
        Ok(Some(theirs))
    }

    /// Seals a file opened with [`SessionFile::begin_in_place`]; the caller guarantees that nothing
    /// still writes to it. Returns true if deferred set-id bits were applied. Cost: rereads the
    /// whole file to checksum it, most likely from memory; the file can be read and written through
    /// this session meanwhile.
    ///
    /// # Errors
    /// Errors of the store; bytes that could not be read then have no checksum.
    pub fn end_in_place(&self) -> Result<bool> {
        let Self { session, file } = *self;
        let content = session.pin_data_logs();
        let Some((mut state, sealed)) = session.seal(file) else { return Ok(false) };
        let Some(in_place) = state.in_place.take() else { return Ok(false) };
        in_place.overlay(&mut state.inode);
        let kept = sealed.and_then(|sealed| session.keep(&mut state, &in_place, sealed));
        let has_log = state.inode.mapped || state.inode.extent.is_some();
        if let Err(error) = kept {
            if session.keep_unchecked(&mut state, &in_place).is_err() {
                state.in_place = Some(in_place);
            }
            return Err(error);
        }
        match in_place.recorded_bytes {
            _ if has_log => {}
            // Nothing refers to the log or ever did. A leftover is garbage collected.
            None => {
                let name = ObjectName::Data(session.set(), in_place.log.number()).to_string();
                let _ = session.namespace().layers().source().store.delete(&name);
            }
            Some(bytes) => {
                session.data().garbage().add_stored(bytes);
                session.data().garbage().add_garbage(bytes);
            }
        }
        let bits = in_place.set_id();
        if bits != 0 && !matches!(file.location(), RecordLocation::Gone) {
            let mode = Some(session.record(file, &state)?.mode | bits);
            // `setattr` takes both locks again, so holding them here could deadlock with a
            // thread that waits for exclusive access.
            drop((state, content));
            self.setattr(&AttributeChanges { mode, ..AttributeChanges::default() })?;
        }
        Ok(bits != 0)
    }
}

impl Session {
    /// Reads the content of `file` without its lock, and then locks it; `None` if it is not being
    /// written in place.
    fn seal<'a>(
        &self,
        file: &'a OpenFile,
    ) -> Option<(RwLockWriteGuard<'a, OpenFileState>, Result<SealedContent>)> {
        for _ in 0..SEAL_ATTEMPTS_MAX {
            let (direct, log, changes) = {
                let state = file.state.read();
                let in_place = state.in_place.as_ref()?;
                (in_place.file.clone(), in_place.log.number(), in_place.changes)
            };
            let sealed = self.read_sealed(file, log, &direct);
            let state = file.state.write();
            let in_place = state.in_place.as_ref()?;
            if (in_place.log.number(), in_place.changes) == (log, changes) {
                return Some((state, sealed));
            }
        }
        let state = file.state.write();
        let in_place = state.in_place.as_ref()?;
        let sealed = self.read_sealed(file, in_place.log.number(), &in_place.file);
        Some((state, sealed))
    }

    /// Returns the sealed content of `file`, whose bytes are in the file `direct` of `log`.
    fn read_sealed(&self, file: &OpenFile, log: u64, direct: &LocalFile) -> Result<SealedContent> {
        if matches!(file.location(), RecordLocation::Gone) {
            return Ok(SealedContent::Gone);
        }
        let size = direct.bytes()?;
        if size <= BUFFER_BYTES_MAX as u64 {
            return direct.read(0, BUFFER_BYTES_MAX).map(SealedContent::Small);
        }
        let (set, mut segments) = (self.set(), Vec::new());
        let place = |offset, _: &[u8]| Ok(LogPlace { set, log, offset });
        for_pieces((file.id, size), direct, place, |segment| {
            segments.push(segment);
            Ok(())
        })?;
        Ok(SealedContent::Log(segments))
    }

    /// Makes the sealed content the content of the file.
    fn keep(
        &self,
        state: &mut OpenFileState,
        in_place: &InPlaceFile,
        sealed: SealedContent,
    ) -> Result<()> {
        match sealed {
            SealedContent::Gone => {
                detach_content(state);
                if self.namespace().files().is_shared(state.inode.id) {
                    // Other handles may still read it; the log is reclaimed once they are closed.
                    state.inode.extent = Some(in_place.extent(self.set(), state.inode.size));
                }
                Ok(())
            }
            SealedContent::Small(bytes) => {
                detach_content(state);
                state.inode.size = bytes.len() as u64;
                self.namespace().files().buffered_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
                state.buffer = Some(bytes);
                Ok(())
            }
            SealedContent::Log(mut segments) => {
                state.inode.extent = None;
                self.make_mapped(state)?;
                self.data().record_written(&in_place.log, state.inode.size);
                let mut pieces = segments.chunks_mut(SEGMENTS_AT_ONCE);
                pieces.try_for_each(|some| self.extents().put_segments(some).map(drop))
            }
        }
    }

    /// Keeps the log without checksums, if it cannot be read or there is no room for its checksums.
    fn keep_unchecked(&self, state: &mut OpenFileState, in_place: &InPlaceFile) -> Result<()> {
        self.data().sync_in_place(&in_place.log)?;
        detach_content(state);
        state.inode.extent = Some(in_place.extent(self.set(), state.inode.size));
        Ok(())
    }

    /// Returns once everything written in place so far survives power loss; the next record covers
    /// it. While a snapshot is made, that record refers to a copy, and the one after it to the log
    /// again. Cost: a sync of the file's log, without blocking other threads, and one more per
    /// concurrent truncation. The session's first such sync also commits a manifest.
    pub(super) fn sync_in_place(&self, file: &OpenFile) -> Result<()> {
        loop {
            let (log, bytes, cuts) = {
                let state = file.state.read();
                let Some(in_place) = &state.in_place else { return Ok(()) };
                (in_place.log.clone(), in_place.file.bytes()?, state.cuts)
            };
            self.declare_unsealed()?;
            self.data().sync_in_place(&log)?;
            // If the file was sealed meanwhile, syncing the session's data logs covers it.
            let mut state = file.state.write();
            let is_uncut = state.cuts == cuts;
            let Some(in_place) = &mut state.in_place else { return Ok(()) };
            if is_uncut {
                // Another sync may have begun later and ended earlier.
                in_place.synced_bytes = in_place.synced_bytes.max(bytes);
                return Ok(());
            }
        }
    }

    /// Puts into `state` the part of a file written in place that a record may cover: the synced
    /// bytes, or everything that a snapshot is to show.
    pub(super) fn describe_in_place(&self, state: &mut OpenFileState) -> Result<()> {
        let Some(mut in_place) = state.in_place.take() else { return Ok(()) };
        let placed = self.describe_taken(state, &mut in_place);
        state.in_place = Some(in_place);
        placed
    }

    fn describe_taken(&self, state: &mut OpenFileState, in_place: &mut InPlaceFile) -> Result<()> {
        in_place.overlay(&mut state.inode);
        if self.namespace().files().is_being_shown() {
            state.inode.extent = None;
            self.make_mapped(state)?;
            let log = self.data().file_log()?;
            let copy = |_, bytes: &[u8]| match &log {
                Some(log) => self.data().append_to(log, bytes),
                None => self.data().append_part(bytes),
            };
            let file = (state.inode.id, state.inode.size);
            return for_pieces(file, &in_place.file, copy, |segment| {
                self.extents().put_segments(&mut [segment]).map(drop)
            });
        }
        detach_content(state);
        let synced_bytes = in_place.synced_bytes;
        state.inode.size = synced_bytes;
        if synced_bytes > 0 {
            state.inode.extent = Some(in_place.extent(self.set(), synced_bytes));
            in_place.recorded_bytes = in_place.recorded_bytes.max(Some(synced_bytes));
        }
        Ok(())
    }

    /// Truncates or extends a file that is written in place.
    pub(super) fn set_size_in_place(
        &self,
        file: &Arc<OpenFile>,
        state: &mut OpenFileState,
        size: u64,
    ) -> Result<()> {
        let Some(in_place) = &mut state.in_place else { return Ok(()) };
        self.tree().check_open()?;
        in_place.changes += 1;
        let file_of_log = in_place.file.clone();
        if size < file_of_log.bytes()? {
            in_place.synced_bytes = in_place.synced_bytes.min(size);
            if in_place.recorded_bytes.is_some_and(|recorded| size < recorded) {
                in_place.recorded_bytes = Some(size);
                // No surviving record may cover bytes that the log no longer has.
                self.write_state_attributes(file, state)?;
                self.tree().sync()?;
            }
        }
        file_of_log.set_bytes(size)
    }
}

/// Removes from `state` the location of content that is about to move. Its segments are released
/// once a record says so: until then a crash falls back to them.
fn detach_content(state: &mut OpenFileState) {
    state.leaves_segments |= state.inode.mapped;
    (state.inode.mapped, state.inode.extent) = (false, None);
}

/// Content of a file that was written in place and is now sealed.
enum SealedContent {
    /// None: the file has no name.
    Gone,
    /// Few enough bytes to keep in memory.
    Small(Vec<u8>),
    /// The log as it is, with the segments that show it.
    Log(Vec<Segment>),
}

/// Passes segments that cover a whole file, given its identity and size, to `take`. Data is at the
/// place that `place` returns and gets checksums of the bytes in `direct`; the rest is holes.
fn for_pieces(
    (file, size): (u128, u64),
    direct: &LocalFile,
    mut place: impl FnMut(u64, &[u8]) -> Result<LogPlace>,
    mut take: impl FnMut(Segment) -> Result<()>,
) -> Result<()> {
    let mut buffer = vec![0; PIECE_BYTES as usize];
    let mut at = 0;
    while at < size {
        let data = direct.seek(at, true)?.clamp(at, size);
        if data > at {
            take(Segment::hole(file, at, data - at))?;
        }
        at = data;
        let end = if at < size { direct.seek(at, false)?.clamp(at, size) } else { at };
        if end == at && at < size {
            // Truncated concurrently: zeros, as beyond any end.
            take(Segment::hole(file, at, size - at))?;
            break;
        }
        while at < end {
            let wanted = usize::try_from(PIECE_BYTES.min(end - at)).expect("a piece");
            let bytes = &mut buffer[..wanted];
            let count = direct.read_into(at, bytes)?;
            // Likewise, in the middle of a piece.
            bytes[count..].fill(0);
            let place = Some(place(at, bytes)?);
            let checksum = Some(crc32c::crc32c(bytes));
            let length = wanted as u64;
            take(Segment { file, offset: at, length, place, checksum, seq: 0 })?;
            at += length;
        }
    }
    Ok(())
}
