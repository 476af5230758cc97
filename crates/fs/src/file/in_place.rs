//! Files that are written in place: by somebody who has the store's own file, as the kernel does for
//! a mount (FUSE passthrough), so that their bytes never come here.
//!
//! Such a file is new, and is all of a data log of its own while it is written. Once nobody writes it
//! any more it becomes like any other: its log never changes again, and each piece of it has a
//! checksum; a small one moves to where small files are.
//! Invariants: (1) nothing but the writer's own session refers to a log that may change: snapshots
//! show copies of what is being written, until it is not. (2) A record says of the log only what was
//! synced before, without checksums, since it may be written over; so a record that survives finds
//! its bytes.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use esker_base::{Error, Result};
use esker_table::manifest::SetId;
use esker_table::segment::{LogPlace, Segment};
use esker_table::tree::Durability;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::{BUFFER_BYTES_MAX, OpenFile, Place, State};
use crate::data::{FileLog, PIECE_BYTES, log_name};
use crate::inode::{Extent, Inode};
use crate::ops::Changes;
use crate::session::Session;

const SET_ID_BITS: u32 = 0o6000;
/// Segments of a file that ends being written in place go to the tree so many at a time.
const SEGMENTS_AT_ONCE: usize = 1024;

/// The log of a file that is written in place.
#[derive(Debug)]
pub(super) struct InPlace {
    log: FileLog,
    file: File,
    /// Bytes from the beginning that were synced: what the next record may say.
    synced_bytes: u64,
    /// The most bytes of the log that records may say it has; none if none ever said of it.
    recorded_bytes: Option<u64>,
    /// How often the file was made shorter.
    cuts: u64,
    /// Set-id bits that it gets once nobody writes it, if this is still the time of the last write.
    set_id: Option<(u32, SystemTime)>,
}

impl InPlace {
    fn metadata(&self) -> Result<Metadata> {
        self.file.metadata().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: impl Into<io::Error>) -> Error {
        Error::io(error.into(), format!("data log {:x}, written in place", self.log.number()))
    }

    /// How many bytes there are now.
    pub(super) fn bytes(&self) -> Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    /// The first `length` bytes of the log of `set`, which may be written over: without a checksum.
    fn extent(&self, set: SetId, length: u64) -> Extent {
        Extent { set, log: self.log.number(), offset: 0, length, checksum: 0, written: 0 }
    }

    /// Puts its size and times into `inode`.
    pub(super) fn overlay(&self, inode: &mut Inode) {
        let Ok(metadata) = self.metadata() else { return };
        let seconds = u64::try_from(metadata.mtime()).unwrap_or(0);
        let part_ns = u64::try_from(metadata.mtime_nsec()).unwrap_or(0);
        inode.size = metadata.len();
        inode.mtime_ns = seconds.saturating_mul(1_000_000_000).saturating_add(part_ns);
        inode.ctime_ns = inode.ctime_ns.max(inode.mtime_ns);
    }

    /// Up to `bytes_max` bytes from `offset` on.
    pub(super) fn read(&self, offset: u64, bytes_max: usize) -> Result<Vec<u8>> {
        let there = self.bytes()?.saturating_sub(offset);
        let mut bytes = vec![0; usize::try_from(there).unwrap_or(bytes_max).min(bytes_max)];
        let count = self.read_into(offset, &mut bytes)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Fills `bytes` from `offset` on, as far as the file reaches; returns how many that were.
    fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(filled)
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|error| self.failed(error))
    }

    /// Reserves room for `range`; the file reaches to its end then, unless `keeps_size`.
    pub(super) fn allocate(&self, range: &Range<u64>, keeps_size: bool) -> Result<()> {
        let flags = if keeps_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        match fallocate(&self.file, flags, range.start, range.end - range.start) {
            // Nothing is reserved, as elsewhere.
            Err(Errno::OPNOTSUPP) if keeps_size || range.end <= self.bytes()? => Ok(()),
            Err(Errno::OPNOTSUPP) => {
                self.file.set_len(range.end).map_err(|error| self.failed(error))
            }
            done => done.map_err(|errno| self.failed(errno)),
        }
    }

    /// Makes `range` read as zeros; the file reaches to its end then, unless `keeps_size`.
    pub(super) fn punch(&self, range: &Range<u64>, keeps_size: bool) -> Result<()> {
        if !keeps_size && range.end > self.bytes()? {
            self.file.set_len(range.end).map_err(|error| self.failed(error))?;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, range.start, range.end - range.start)
            .map_err(|errno| self.failed(errno))
    }

    /// Where data, or a hole, begins at or after `offset`; the file's end if there is no data.
    pub(super) fn seek(&self, offset: u64, wants_data: bool) -> Result<u64> {
        let from = if wants_data { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) };
        match seek(&self.file, from) {
            Err(Errno::NXIO) => self.bytes(),
            found => found.map_err(|errno| self.failed(errno)),
        }
    }

    /// What of `changes` goes into its record: no set-id bits, since somebody may be writing who
    /// takes them away by that, and nobody tells.
    pub(super) fn recorded(changes: &Changes) -> Changes {
        Changes { mode: changes.mode.map(|mode| mode & !SET_ID_BITS), ..*changes }
    }

    /// Notes what of `changes` does not go into its record.
    pub(super) fn note(&mut self, changes: &Changes) -> Result<()> {
        if let Some(mtime_ns) = changes.mtime_ns {
            let at = UNIX_EPOCH + Duration::from_nanos(mtime_ns);
            let bits = self.set_id();
            self.set_written_at(at)?;
            self.set_id = (bits != 0).then_some((bits, at));
        }
        if changes.uid.is_some() || changes.gid.is_some() || changes.mode.is_some() {
            self.set_id = None;
        }
        let bits = changes.mode.unwrap_or(0) & SET_ID_BITS;
        if bits != 0 {
            // A time that no write gives it.
            let written_at = self.metadata()?.modified().map_err(|error| self.failed(error))?;
            let marked_at = written_at + Duration::from_nanos(1);
            self.set_written_at(marked_at)?;
            self.set_id = Some((bits, marked_at));
        }
        Ok(())
    }

    fn set_written_at(&self, at: SystemTime) -> Result<()> {
        self.file.set_modified(at).map_err(|error| self.failed(error))
    }

    /// Set-id bits that were given after the last write.
    fn set_id(&self) -> u32 {
        let written_at = self.file.metadata().and_then(|metadata| metadata.modified()).ok();
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
        self.in_place.as_ref().map_or(Ok(self.inode.size), InPlace::bytes)
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
        let _content = self.content();
        let mut state = file.state.write();
        let is_possible = state.is_blank() && state.inode.mode & SET_ID_BITS == 0;
        if !is_possible || self.tree().durability() == Durability::Always {
            return Ok(None);
        }
        let Some((log, own)) = self.data().log_in_place()? else { return Ok(None) };
        let theirs = own.try_clone().map_err(|error| Error::io(error, "file data"))?;
        let (size, mtime_ns) = (state.inode.size, state.inode.mtime_ns);
        let (recorded_bytes, cuts, set_id) = (None, 0, None);
        let in_place = InPlace { log, file: own, synced_bytes: size, recorded_bytes, cuts, set_id };
        if size > 0 {
            // Its record says so much already.
            in_place.file.set_len(size).map_err(|error| in_place.failed(error))?;
            self.data().sync_in_place(&in_place.log)?;
        }
        in_place.set_written_at(UNIX_EPOCH + Duration::from_nanos(mtime_ns))?;
        drop(self.take_buffer(&mut state));
        state.in_place = Some(in_place);
        self.content_was_placed(file, &mut state);
        Ok(Some(theirs))
    }

    /// Ends what [`Session::begin_in_place`] began: nobody writes the file's bytes by themselves any
    /// more. Whether it got set-id bits by that. Cost: all its bytes are read for their checksums,
    /// most likely from memory; who looks at the file meanwhile waits.
    ///
    /// # Errors
    /// What the store reports; then bytes that could not be read have no checksum.
    pub fn end_in_place(&self, file: &Arc<OpenFile>) -> Result<bool> {
        let _content = self.content();
        let mut state = file.state.write();
        let Some(in_place) = state.in_place.take() else { return Ok(false) };
        in_place.overlay(&mut state.inode);
        let is_gone = matches!(file.place(), Place::Gone);
        let is_large = state.inode.size > BUFFER_BYTES_MAX as u64;
        let kept = match () {
            () if is_gone => Ok(()),
            () if is_large => self.keep_log(&mut state, &in_place),
            () => self.keep_bytes(&mut state, &in_place),
        };
        if let Err(error) = kept {
            if self.keep_unchecked(&mut state, &in_place).is_err() {
                state.in_place = Some(in_place);
            }
            return Err(error);
        }
        if in_place.recorded_bytes.is_none() && (is_gone || !is_large) {
            // Nothing refers to the log or ever did. What stays behind is collected.
            let name = log_name(self.set(), in_place.log.number());
            let _ = self.layers().source().store.delete(&name);
        }
        let bits = in_place.set_id();
        if bits != 0 && !is_gone {
            let mode = Some(self.record(file, &state)?.mode | bits);
            drop(state);
            self.setattr_file(file, &Changes { mode, ..Changes::default() })?;
        }
        Ok(bits != 0)
    }

    /// The bytes of a small file, in memory.
    fn keep_bytes(&self, state: &mut State, in_place: &InPlace) -> Result<()> {
        let bytes = in_place.read(0, BUFFER_BYTES_MAX)?;
        self.give_up_place(state)?;
        state.inode.size = bytes.len() as u64;
        self.files().buffered_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        state.buffer = Some(bytes);
        Ok(())
    }

    /// The log, which is what it will be for ever.
    fn keep_log(&self, state: &mut State, in_place: &InPlace) -> Result<()> {
        state.inode.extent = None;
        self.make_mapped(state)?;
        self.data().note_written(&in_place.log);
        let (set, log) = (self.set(), in_place.log.number());
        self.put_pieces(state, in_place, |offset, _| Ok(LogPlace { set, log, offset }))
    }

    /// The log as it is, if that cannot be read or has no room for its checksums.
    fn keep_unchecked(&self, state: &mut State, in_place: &InPlace) -> Result<()> {
        self.data().sync_in_place(&in_place.log)?;
        self.give_up_place(state)?;
        state.inode.extent = Some(in_place.extent(self.set(), state.inode.size));
        Ok(())
    }

    /// Takes out of `state` where the content is, which is to be elsewhere.
    fn give_up_place(&self, state: &mut State) -> Result<()> {
        if state.inode.mapped {
            self.release_segments(state.inode.id)?;
            state.inode.mapped = false;
        }
        state.inode.extent = None;
        Ok(())
    }

    /// Puts segments over all of the file, with checksums of what is there: what has bytes is where
    /// `place` says, the rest is holes.
    fn put_pieces(
        &self,
        state: &State,
        in_place: &InPlace,
        mut place: impl FnMut(u64, &[u8]) -> Result<LogPlace>,
    ) -> Result<()> {
        let (file, size) = (state.inode.id, state.inode.size);
        let mut buffer = vec![0; PIECE_BYTES as usize];
        let mut segments = Vec::new();
        let mut at = 0;
        while at < size {
            let data = in_place.seek(at, true)?.clamp(at, size);
            if data > at {
                segments.push(Segment::hole(file, at, data - at));
            }
            at = data;
            let end = if at < size { in_place.seek(at, false)?.clamp(at, size) } else { at };
            while at < end {
                let wanted = usize::try_from(PIECE_BYTES.min(end - at)).expect("a piece");
                let bytes = &mut buffer[..wanted];
                let count = in_place.read_into(at, bytes)?;
                // Cut off by somebody who writes while it is copied: zeros, as behind any end.
                bytes[count..].fill(0);
                let place = Some(place(at, bytes)?);
                let checksum = Some(crc32c::crc32c(bytes));
                let length = wanted as u64;
                segments.push(Segment { file, offset: at, length, place, checksum, seq: 0 });
                at += length;
                if segments.len() >= SEGMENTS_AT_ONCE {
                    self.tree().put_segments(&mut segments)?;
                    segments.clear();
                }
            }
        }
        if segments.is_empty() { Ok(()) } else { self.tree().put_segments(&mut segments).map(drop) }
    }

    /// Returns once what has been written in place so far survives power loss; the next record says
    /// so, also while a snapshot is made: that record refers to a copy, the one after it to the log
    /// again. A sync of the file's log, while others go on; one more for each truncation meanwhile.
    pub(super) fn sync_in_place(&self, file: &OpenFile) -> Result<()> {
        loop {
            let (log, bytes, cuts) = match &file.state.read().in_place {
                Some(in_place) => (in_place.log.clone(), in_place.bytes()?, in_place.cuts),
                None => return Ok(()),
            };
            self.data().sync_in_place(&log)?;
            // Once nobody writes it in place any more, the session's data logs have it.
            let mut state = file.state.write();
            let Some(in_place) = &mut state.in_place else { return Ok(()) };
            if in_place.cuts == cuts {
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
        in_place.overlay(&mut state.inode);
        if self.files().is_being_shown() {
            state.inode.extent = None;
            self.make_mapped(state)?;
            let log = self.data().file_log()?;
            return self.put_pieces(state, in_place, |_, bytes| match &log {
                Some(log) => self.data().append_to(log, bytes),
                None => Ok(self.data().append(bytes)?.place()),
            });
        }
        self.give_up_place(state)?;
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
        if size < in_place.bytes()? {
            in_place.cuts += 1;
            in_place.synced_bytes = in_place.synced_bytes.min(size);
            if in_place.recorded_bytes.is_some_and(|recorded| size < recorded) {
                in_place.recorded_bytes = Some(size);
                // No record that survives may say of the log what it has no more.
                self.write_state_attributes(file, state)?;
                self.tree().sync()?;
            }
        }
        let in_place = state.in_place.as_ref().expect("as above");
        in_place.file.set_len(size).map_err(|error| in_place.failed(error))
    }
}
