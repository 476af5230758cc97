//! Files that are written in place: by somebody who has the store's own file, as the kernel does for
//! a mount (FUSE passthrough), so that their bytes never come here.
//!
//! Such a file is new, and is all of a data log of its own while it is written. Once nobody writes it
//! any more it becomes like any other: its log never changes again, and each piece of it has a
//! checksum; a small one moves to where small files are.
//! Invariants: (1) nothing but the writer's own session refers to a log that may change: snapshots
//! show copies of what is being written, until it is not. (2) A record says of the log only what was
//! synced before, without checksums, since it may be written over; so a record that survives finds
//! its bytes. (3) Before the first such record the manifest says that there may be some, so that a
//! writer that takes the set over copies what the old one can still write (`unsealed.rs`).

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use esker_base::{Error, Result};
use esker_table::manifest::SetId;
use esker_table::segment::{LogPlace, Segment};
use esker_table::tree::{Durability, Tree};
use parking_lot::RwLockWriteGuard;

use super::direct_file::DirectFile;
use super::{BUFFER_BYTES_MAX, OpenFile, Place, State};
use crate::data::{FileLog, PIECE_BYTES, log_name};
use crate::inode::Extent;
use crate::ops::Changes;
use crate::session::Session;
use crate::timestamp;

const SET_ID_BITS: u32 = 0o6000;
/// Segments of a file that ends being written in place go to the tree so many at a time.
const SEGMENTS_AT_ONCE: usize = 1024;
/// How often a file is read to be sealed without its lock, each time because it was changed meanwhile
/// through its session, before that waits.
const SEAL_ATTEMPTS_MAX: u32 = 4;

/// The log of a file that is written in place.
#[derive(Debug)]
pub(super) struct InPlace {
    log: FileLog,
    pub(super) file: Arc<DirectFile>,
    /// Bytes from the beginning that were synced: what the next record may say.
    synced_bytes: u64,
    /// The most bytes of the log that records may say it has; none if none ever said of it.
    recorded_bytes: Option<u64>,
    /// How often the file was changed through its session.
    changes: u64,
    /// Set-id bits that it gets once nobody writes it, if this is still the time of the last write.
    set_id: Option<(u32, SystemTime)>,
}

impl InPlace {
    /// The first `length` bytes of the log of `set`, which may be written over: without a checksum.
    fn extent(&self, set: SetId, length: u64) -> Extent {
        Extent { set, log: self.log.number(), offset: 0, length, checksum: 0, written: 0 }
    }

    /// What of `changes` goes into its record: no set-id bits, since somebody may be writing who
    /// takes them away by that, and nobody tells.
    pub(super) fn recorded(changes: &Changes) -> Changes {
        Changes { mode: changes.mode.map(|mode| mode & !SET_ID_BITS), ..*changes }
    }

    /// Notes what of `changes` does not go into its record.
    pub(super) fn note(&mut self, changes: &Changes) -> Result<()> {
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
            // A time that no write gives it.
            let marked_at = self.file.written_at()? + Duration::from_nanos(1);
            self.file.set_written_at(marked_at)?;
            self.set_id = Some((bits, marked_at));
        }
        Ok(())
    }

    /// Set-id bits that were given after the last write.
    fn set_id(&self) -> u32 {
        let written_at = self.file.written_at().ok();
        self.set_id.filter(|(_, at)| Some(*at) == written_at).map_or(0, |(bits, _)| bits)
    }
}

impl State {
    /// Whether nothing but zeros was ever written, and nobody writes it in place.
    pub(super) fn is_blank(&self) -> bool {
        let inode = &self.inode;
        let is_placed = inode.mapped || inode.extent.is_some() || self.in_place.is_some();
        !is_placed && inode.content.is_empty() && self.buffer.as_ref().is_none_or(Vec::is_empty)
    }

    /// The file's size now.
    pub(super) fn size(&self) -> Result<u64> {
        self.in_place.as_ref().map_or(Ok(self.inode.size), |in_place| in_place.file.bytes())
    }

    /// The store's file, to be changed, if it has the file's bytes.
    ///
    /// # Errors
    /// The failure or takeover that ended `writer`: its bytes may be somebody else's by now.
    pub(super) fn change_in_place(&mut self, writer: &Tree) -> Result<Option<&DirectFile>> {
        let Some(in_place) = &mut self.in_place else { return Ok(None) };
        writer.check_open()?;
        in_place.changes += 1;
        Ok(Some(&in_place.file))
    }
}

impl Session {
    /// Lets the caller write `file` in place: returns the store's file that has its bytes from now
    /// on, open for reading and writing. None where that cannot be: something was written to `file`
    /// already, the store has no files, every change is to be durable at once, or many files are
    /// written so.
    ///
    /// It is read and looked at through this session as ever, but gets set-id bits only at the end.
    /// What is written survives power loss after [`Session::sync_file`], as far as it was written
    /// over since with either content; what snapshots show of it is copied. The caller calls
    /// [`Session::end_in_place`] when nobody has the store's file any more; without that it is
    /// published as a copy. Cost: the making of a file.
    ///
    /// # Errors
    /// What the store reports.
    pub fn begin_in_place(&self, file: &Arc<OpenFile>) -> Result<Option<File>> {
        self.check_open()?;
        let _content = self.content();
        let mut state = file.state.write();
        let is_possible = state.is_blank() && state.inode.mode & SET_ID_BITS == 0;
        if !is_possible || self.tree().durability() == Durability::Always {
            return Ok(None);
        }
        let Some((log, own)) = self.data().log_in_place()? else { return Ok(None) };
        let theirs = own.try_clone().map_err(|error| Error::io(error, "file data"))?;
        let (size, mtime_ns) = (state.inode.size, state.inode.mtime_ns);
        let file_of_log = Arc::new(DirectFile::new(log.number(), own));
        let in_place = InPlace {
            log,
            file: file_of_log,
            synced_bytes: size,
            recorded_bytes: None,
            changes: 0,
            set_id: None,
        };
        if size > 0 {
            // Its record says so much already.
            self.declare_unsealed()?;
            in_place.file.set_bytes(size)?;
            self.data().sync_in_place(&in_place.log)?;
        }
        in_place.file.set_written_at(timestamp::system_time(mtime_ns))?;
        drop(self.take_buffer(&mut state));
        state.in_place = Some(in_place);
        self.content_was_placed(file, &mut state);
        Ok(Some(theirs))
    }

    /// Ends what [`Session::begin_in_place`] began: nobody writes the file's bytes by themselves any
    /// more. Whether it got set-id bits by that. Cost: all its bytes are read for their checksums,
    /// most likely from memory; the file can be read and written through this session meanwhile.
    ///
    /// # Errors
    /// What the store reports; then bytes that could not be read have no checksum.
    pub fn end_in_place(&self, file: &Arc<OpenFile>) -> Result<bool> {
        let content = self.content();
        let Some((mut state, sealed)) = self.seal(file) else { return Ok(false) };
        let Some(in_place) = state.in_place.take() else { return Ok(false) };
        in_place.file.overlay(&mut state.inode);
        let kept = sealed.and_then(|sealed| self.keep(&mut state, &in_place, sealed));
        let has_log = state.inode.mapped || state.inode.extent.is_some();
        if let Err(error) = kept {
            if self.keep_unchecked(&mut state, &in_place).is_err() {
                state.in_place = Some(in_place);
            }
            return Err(error);
        }
        match in_place.recorded_bytes {
            _ if has_log => {}
            // Nothing refers to the log or ever did. What stays behind is collected.
            None => {
                let name = log_name(self.set(), in_place.log.number());
                let _ = self.layers().source().store.delete(&name);
            }
            Some(bytes) => {
                self.data().garbage().add_stored(bytes);
                self.data().garbage().add_garbage(bytes);
            }
        }
        let bits = in_place.set_id();
        if bits != 0 && !matches!(file.place(), Place::Gone) {
            let mode = Some(self.record(file, &state)?.mode | bits);
            // What follows takes both again: who waits to hold them alone would keep it from that.
            drop((state, content));
            self.setattr_file(file, &Changes { mode, ..Changes::default() })?;
        }
        Ok(bits != 0)
    }

    /// Reads what `file` has, without its lock, and then locks it; none if nobody writes it in place.
    fn seal<'a>(
        &self,
        file: &'a OpenFile,
    ) -> Option<(RwLockWriteGuard<'a, State>, Result<SealedContent>)> {
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

    /// What becomes of the bytes of `file`, which are in the file `direct` of `log`.
    fn read_sealed(&self, file: &OpenFile, log: u64, direct: &DirectFile) -> Result<SealedContent> {
        if matches!(file.place(), Place::Gone) {
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

    /// Makes what was sealed the content of a file.
    fn keep(&self, state: &mut State, in_place: &InPlace, sealed: SealedContent) -> Result<()> {
        match sealed {
            SealedContent::Gone => {
                give_up_place(state);
                if self.files().is_shared(state.inode.id) {
                    // Others may read it; the log is reclaimed once they do not.
                    state.inode.extent = Some(in_place.extent(self.set(), state.inode.size));
                }
                Ok(())
            }
            SealedContent::Small(bytes) => {
                give_up_place(state);
                state.inode.size = bytes.len() as u64;
                self.files().buffered_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
                state.buffer = Some(bytes);
                Ok(())
            }
            SealedContent::Log(mut segments) => {
                state.inode.extent = None;
                self.make_mapped(state)?;
                self.data().note_written(&in_place.log, state.inode.size);
                let mut pieces = segments.chunks_mut(SEGMENTS_AT_ONCE);
                pieces.try_for_each(|some| self.tree().put_segments(some).map(drop))
            }
        }
    }

    /// The log as it is, if that cannot be read or has no room for its checksums.
    fn keep_unchecked(&self, state: &mut State, in_place: &InPlace) -> Result<()> {
        self.data().sync_in_place(&in_place.log)?;
        give_up_place(state);
        state.inode.extent = Some(in_place.extent(self.set(), state.inode.size));
        Ok(())
    }

    /// Returns once what has been written in place so far survives power loss; the next record says
    /// so, also while a snapshot is made: that record refers to a copy, the one after it to the log
    /// again. A sync of the file's log, while others go on; one more for each truncation meanwhile. The
    /// session's first such sync commits a manifest, too.
    pub(super) fn sync_in_place(&self, file: &OpenFile) -> Result<()> {
        loop {
            let (log, bytes, cuts) = {
                let state = file.state.read();
                let Some(in_place) = &state.in_place else { return Ok(()) };
                (in_place.log.clone(), in_place.file.bytes()?, state.cuts)
            };
            self.declare_unsealed()?;
            self.data().sync_in_place(&log)?;
            // Once nobody writes it in place any more, the session's data logs have it.
            let mut state = file.state.write();
            let is_uncut = state.cuts == cuts;
            let Some(in_place) = &mut state.in_place else { return Ok(()) };
            if is_uncut {
                // Another sync may have begun later and ended before.
                in_place.synced_bytes = in_place.synced_bytes.max(bytes);
                return Ok(());
            }
        }
    }

    /// Puts into `state` what a record may say of a file that is written in place: what was synced,
    /// or all that a snapshot is to show.
    pub(super) fn place_in_place(&self, state: &mut State) -> Result<()> {
        let Some(mut in_place) = state.in_place.take() else { return Ok(()) };
        let placed = self.place_taken(state, &mut in_place);
        state.in_place = Some(in_place);
        placed
    }

    fn place_taken(&self, state: &mut State, in_place: &mut InPlace) -> Result<()> {
        in_place.file.overlay(&mut state.inode);
        if self.files().is_being_shown() {
            state.inode.extent = None;
            self.make_mapped(state)?;
            let log = self.data().file_log()?;
            let copy = |_, bytes: &[u8]| match &log {
                Some(log) => self.data().append_to(log, bytes),
                None => self.data().append_part(bytes),
            };
            let file = (state.inode.id, state.inode.size);
            return for_pieces(file, &in_place.file, copy, |segment| {
                self.tree().put_segments(&mut [segment]).map(drop)
            });
        }
        give_up_place(state);
        let synced_bytes = in_place.synced_bytes;
        state.inode.size = synced_bytes;
        if synced_bytes > 0 {
            state.inode.extent = Some(in_place.extent(self.set(), synced_bytes));
            in_place.recorded_bytes = in_place.recorded_bytes.max(Some(synced_bytes));
        }
        Ok(())
    }

    /// Makes a file that is written in place shorter or longer.
    pub(super) fn set_size_in_place(
        &self,
        file: &Arc<OpenFile>,
        state: &mut State,
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
                // No record that survives may say of the log what it has no more.
                self.write_state_attributes(file, state)?;
                self.tree().sync()?;
            }
        }
        file_of_log.set_bytes(size)
    }
}

/// Takes out of `state` where the content is, which is to be elsewhere. Its segments go once a record
/// says so: until then they are what a crash leaves.
fn give_up_place(state: &mut State) {
    state.leaves_segments |= state.inode.mapped;
    (state.inode.mapped, state.inode.extent) = (false, None);
}

/// What a file has once nobody writes it in place any more.
enum SealedContent {
    /// Nothing: it has no name.
    Gone,
    /// So few bytes that they are kept in memory.
    Small(Vec<u8>),
    /// The log as it is, of which these segments are shown.
    Log(Vec<Segment>),
}

/// Passes segments over all of a file, given its identity and size, to `take`, with checksums of what
/// `direct` has: what has bytes is where `place` says, the rest is holes.
fn for_pieces(
    (file, size): (u128, u64),
    direct: &DirectFile,
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
            // Cut off by somebody meanwhile: zeros, as behind any end.
            take(Segment::hole(file, at, size - at))?;
            break;
        }
        while at < end {
            let wanted = usize::try_from(PIECE_BYTES.min(end - at)).expect("a piece");
            let bytes = &mut buffer[..wanted];
            let count = direct.read_into(at, bytes)?;
            // As above, in the middle of a piece.
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
