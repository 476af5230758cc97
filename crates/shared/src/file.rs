// SPDX-License-Identifier: Apache-2.0
//! Shared files: every rank writes anywhere, and reads the bytes that any rank has synced.
//!
//! A write appends to a data log of this rank. Its segment stays here until it is sent: once
//! [`UNSENT_MAX`] have gathered, or by [`SharedJob::sync`]. Bytes are synced before their segments
//! are sent, so they survive as long as the segments do. A read overlays the rank's unsent segments
//! over those of the owners, and these over the layers below the job, and reads the bytes from the
//! logs.
//!
//! After [`SharedJob::exchange`] every rank holds the index of the file itself (`held_index`):
//! until the next exchange, reads and writes send no messages. This serves callers whose ranks wait
//! for each other in calls that answer no requests, as MPI calls do.
//!
//! Each rank knows the size and the time of the last write from its own calls, until all ranks
//! reduce them along the log-ring in [`SharedJob::stat`] and [`SharedJob::close`]; rank 0 then
//! writes them to the file's record.
//! Source: MetaKV §II-A, §III-C.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use esker_base::{Bytes, Error, Kind, Result};
use esker_comm::collective::{Collectives, Reduction};
use esker_comm::{Rank, Transport};
use esker_extent::{Segment, SegmentLog, SegmentMap, SegmentOverlay, runs_among};
use esker_fs::data::read_mapped;
use esker_fs::file::{FILE_BYTES_MAX, OpenFile};
use esker_fs::stack::identity::{READ, WRITE};

use crate::fetch_batches::FetchBatches;
use crate::gather;
use crate::held_index::HeldIndex;
use crate::job::{RemoteReads, SharedJob};
use crate::message::{RankReply, RankRequest, ones};
use crate::migrate::extents;
use crate::service::no_answer;
use crate::snapshot::SegmentSnapshot;

/// Most unsent segments of one file.
const UNSENT_MAX: usize = 1 << 16;
/// Most unanswered requests for bytes: enough that the writers of the logs work in parallel, and
/// little memory compared with the read itself.
const FETCHES_MAX: usize = 16;
/// Writes between two polls for requests of other ranks.
const WRITES_PER_LOOK: u64 = 64;

/// A shared file that this rank has open. The methods of [`SharedJob`] that take one operate on it.
#[derive(Debug)]
pub struct SharedFile {
    id: u128,
    /// Size as far as this rank knows.
    size: u64,
    mtime_ns: i64,
    /// Segments that have been neither sent to their owners nor exchanged.
    unsent: SegmentMap,
    writes: u64,
    index: FileIndex,
    /// The file as rank 0 has it open, to store the attributes; `None` on other ranks.
    home: Option<Arc<OpenFile>>,
    /// Marks the file as open in the job.
    _open: Arc<()>,
}

/// The index in which a rank looks up segments that it has sent, and those of others.
#[derive(Debug)]
enum FileIndex {
    AtOwners,
    /// All segments as of the last exchange.
    Held(HeldIndex),
    /// All segments; the file is laminated.
    Sealed(SegmentSnapshot),
}

/// Attributes on which all ranks agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgreedAttributes {
    /// Bytes up to the end of the last write.
    pub size: u64,
    /// Time of the last write, as a timestamp.
    pub mtime_ns: i64,
}

impl SharedFile {
    /// Identity of the file.
    #[must_use]
    pub fn id(&self) -> u128 {
        self.id
    }

    /// Bytes up to the end of the last write that this rank knows of: its own writes, and those of
    /// all ranks as of the last call that agreed on the size or read up to the end.
    #[must_use]
    pub fn known_size(&self) -> u64 {
        self.size
    }
}

impl<T: Transport> SharedJob<T> {
    /// Opens the file at `path` for all ranks; if it does not exist and a mode is given, creates it
    /// with `mode`. Rank 0 opens it and broadcasts the result. Collective. Once it returns, the
    /// name survives power loss, at durability `async` or `always`. Costs as
    /// [`esker_fs::session::Session::open_file`] on one rank, a sync of its log, and a broadcast.
    ///
    /// # Errors
    /// As [`esker_fs::session::Session::open_file`], at all ranks; `Denied` unless the caller may
    /// read and write the file; `Invalid` if it is open already.
    pub fn open(&mut self, path: impl AsRef<[u8]>, mode: Option<u32>) -> Result<SharedFile> {
        let mut home = None;
        let mut told = Ok(Vec::new());
        if self.segments.rank() == Rank(0) {
            told = self.open_home(path.as_ref(), mode).map(|(file, attributes)| {
                let id = file.id().to_le_bytes();
                home = Some(file);
                [&id[..], &attributes.encode()].concat()
            });
        }
        let told = self.segments.collectives().broadcast_result(Rank(0), told)?;
        let (id, attributes) = told.split_first_chunk::<16>().ok_or_else(no_answer)?;
        let AgreedAttributes { size, mtime_ns } = AgreedAttributes::decode(attributes)?;
        let (id, open) = (u128::from_le_bytes(*id), Arc::new(()));
        self.open_files.retain(|_, open| open.strong_count() > 0);
        self.open_files.insert(id, Arc::downgrade(&open));
        Ok(SharedFile {
            id,
            size,
            mtime_ns,
            unsent: SegmentMap::default(),
            writes: 0,
            index: FileIndex::AtOwners,
            home,
            _open: open,
        })
    }

    /// Opens the file on rank 0, which has its name, and hands its content to the owners.
    fn open_home(
        &mut self,
        path: &[u8],
        mode: Option<u32>,
    ) -> Result<(Arc<OpenFile>, AgreedAttributes)> {
        let session = self.session.clone();
        let (dir, name) = session.namespace().locate(&path)?;
        let file = match (session.open_file(&dir, name), mode) {
            (Err(error), Some(mode)) if error.kind() == Kind::NotFound => {
                session.create_file(&dir, name, mode)?
            }
            (opened, _) => {
                let file = opened?;
                let inode = session.file(&file).stat()?;
                if let Err(error) = session.namespace().identity().check(READ | WRITE, &inode, name)
                {
                    // The first error is the one to report.
                    let _ = session.close_file(file);
                    return Err(error);
                }
                file
            }
        };
        // Two open files of one name would each know a part of a rank's writes.
        if self.open_files.get(&file.id()).is_some_and(|open| open.strong_count() > 0) {
            drop(session.close_file(file));
            let what = format!("{}: it is open already", String::from_utf8_lossy(path));
            return Err(Error::new(Kind::Invalid, what));
        }
        let handed = session.shared_content().hand_over(&file)?;
        if handed.hides_older {
            self.segments.remove(file.id())?;
        }
        let id = file.id();
        // Segments that this rank wrote before the file was shared.
        let (holes, placed): (Vec<_>, Vec<_>) = extents(&session)
            .segments_within(id, 0..u64::MAX)?
            .into_iter()
            .partition(|piece| piece.place.is_none());
        for hole in &holes {
            self.segments.punch(id, hole.offset..hole.end())?;
        }
        if !handed.segments.is_empty() || !placed.is_empty() || !holes.is_empty() {
            session.shared_content().sync()?;
            let all = [&handed.segments[..], &placed].concat();
            let ticket = self.segments.put_segments(&all)?;
            self.segments.wait(ticket)?;
            self.segments.sync()?;
            session.file(&file).flush()?;
            extents(&session).retain_segments(&mut |run, kept| {
                kept.extend((run.first.file != id).then_some(*run));
            })?;
        }
        // Without the name, later syncs of ranks would be of no use.
        session.file(&file).flush()?;
        if self.is_durable {
            session.sync()?;
        }
        let size = handed.size.max(self.segments.end(id)?);
        // A writer that died may have left segments beyond the end.
        self.segments.truncate(id, size)?;
        Ok((file, AgreedAttributes { size, mtime_ns: handed.mtime_ns }))
    }

    /// Writes `bytes` at `offset`. This rank can read them from now on, others after
    /// [`SharedJob::sync`]. Costs an append to a data log, and from time to time the sending of the
    /// gathered segments.
    ///
    /// # Errors
    /// `Denied` if the file is laminated; `FileTooLarge`; errors of the store; `Unavailable` names
    /// a rank that is lost or took nothing before the deadline. This rank then keeps the segments,
    /// and the next write or sync sends them.
    pub fn write(&mut self, file: &mut SharedFile, offset: u64, bytes: &[u8]) -> Result<()> {
        if matches!(file.index, FileIndex::Sealed(_)) {
            return Err(Error::new(Kind::Denied, "a laminated file cannot be written"));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let end =
            end.ok_or_else(|| Error::new(Kind::FileTooLarge, "a write beyond the size limit"))?;
        let (place, _) = self.session.shared_content().append(bytes)?;
        // No checksum: segments with checksums cannot form runs.
        let (length, place) = (bytes.len() as u64, Some(place));
        let segment = Segment { file: file.id, offset, length, place, checksum: None, seq: 0 };
        file.unsent.insert(segment);
        file.size = file.size.max(end);
        file.mtime_ns = file.mtime_ns.max(self.session.now_ns());
        file.writes += 1;
        if matches!(file.index, FileIndex::Held(_)) {
            return Ok(());
        }
        if file.unsent.len() >= UNSENT_MAX {
            self.send(file)?;
        }
        if file.writes.is_multiple_of(WRITES_PER_LOOK) {
            self.segments.serve(Duration::ZERO)?;
        }
        Ok(())
    }

    /// Sends the unsent segments to their owners.
    fn send(&mut self, file: &mut SharedFile) -> Result<()> {
        let unsent = match &file.index {
            FileIndex::Held(index) => index.unsent(),
            FileIndex::AtOwners | FileIndex::Sealed(_) => &file.unsent,
        };
        if unsent.is_empty() {
            return Ok(());
        }
        if self.is_durable {
            self.session.shared_content().sync()?;
        }
        let unsent: Vec<Segment> = unsent.iter().collect();
        // The next sync reports whether the owners put them; before that nothing is promised. If
        // this fails, some owners may have them: the next try puts all of them again, which changes
        // nothing.
        let _ = self.segments.put_runs(&runs_among(&unsent))?;
        match &mut file.index {
            FileIndex::Held(index) => index.set_sent(),
            FileIndex::AtOwners | FileIndex::Sealed(_) => file.unsent = SegmentMap::default(),
        }
        Ok(())
    }

    /// Returns once other ranks can read this rank's writes, and these survive; at durability
    /// `async` or `always`, they survive power loss. Costs a sync of the data log, a message to
    /// each owner, and a sync of its log. After an [`SharedJob::exchange`] it is collective, and
    /// begins with another one.
    ///
    /// # Errors
    /// As [`SharedJob::write`]; collective, a failure on one rank fails all.
    pub fn sync(&mut self, file: &mut SharedFile) -> Result<()> {
        if !matches!(file.index, FileIndex::Held(_)) {
            return self.sync_own(file);
        }
        self.exchange(file)?;
        let synced = self.sync_own(file);
        self.segments.agree(synced)
    }

    fn sync_own(&mut self, file: &mut SharedFile) -> Result<()> {
        self.send(file)?;
        if self.is_durable { self.segments.sync() } else { self.segments.drain() }
    }

    /// Reads up to `bytes_max` bytes from `offset`; fewer only at the end of the file, as far as
    /// this rank or the read itself knows it. Costs a message to each owner of a part of the range,
    /// or none for a laminated file; then a store request for each log, or a message to its writer
    /// ([`RemoteReads`]).
    ///
    /// # Errors
    /// `Corrupt`; errors of stores and owners; `Unavailable` names a lost rank.
    pub fn read(&mut self, file: &mut SharedFile, offset: u64, bytes_max: usize) -> Result<Bytes> {
        let end = offset.saturating_add(bytes_max as u64).min(FILE_BYTES_MAX);
        if offset >= end {
            return Ok(Bytes::new());
        }
        let mut overlay = SegmentOverlay::new(file.id, offset..end);
        overlay.add(file.unsent.overlapping(file.id, offset, end));
        match &file.index {
            FileIndex::Held(index) => index.fill(&mut overlay)?,
            FileIndex::Sealed(index) => index.fill(&mut overlay)?,
            FileIndex::AtOwners => self.segments.fill(&mut overlay)?,
        }
        self.session.shared_content().add_below(&mut overlay)?;
        let placed = overlay.pieces().iter().filter(|piece| piece.place.is_some());
        file.size = file.size.max(placed.map(Segment::end).max().unwrap_or(0));
        if file.size < end && matches!(file.index, FileIndex::AtOwners) {
            file.size = file.size.max(self.segments.end(file.id)?);
        }
        let end = end.min(file.size);
        if offset >= end {
            return Ok(Bytes::new());
        }
        let within = overlay.pieces().iter().filter(|piece| piece.offset < end);
        let pieces: Vec<Segment> =
            within.map(|piece| piece.part(piece.offset, piece.end().min(end))).collect();
        self.read_pieces(offset..end, pieces)
    }

    fn read_pieces(&mut self, range: Range<u64>, pieces: Vec<Segment>) -> Result<Bytes> {
        let store = self.session.namespace().layers().source().store.clone();
        if self.reads == RemoteReads::Store {
            return read_mapped(&*store, range, &pieces);
        }
        let me = self.segments.rank();
        let mut own = Vec::new();
        let mut batches = FetchBatches::default();
        for piece in pieces {
            let reader = piece.place.and_then(|place| self.readers.get(&place.set));
            match reader.filter(|reader| **reader != me) {
                Some(reader) => batches.add(*reader, &piece),
                None => own.push(piece),
            }
        }
        let mut bytes = Vec::from(read_mapped(&*store, range.clone(), &own)?);
        let first = self.segments.exchange().next_id();
        let fetched = self.fetch(batches, range.start, &mut bytes);
        fetched.inspect_err(|_| self.segments.forget_since(first))?;
        Ok(bytes.into())
    }

    /// Reads the bytes of `batches` through their writers into `bytes`, which begins at offset
    /// `start`.
    fn fetch(&mut self, batches: FetchBatches, start: u64, bytes: &mut [u8]) -> Result<()> {
        let mut asked = VecDeque::new();
        for (from, parts) in batches.all() {
            let id = self.segments.exchange().ask(from, RankRequest::Fetch(ones(&parts)))?;
            asked.push_back((id, parts));
            if asked.len() == FETCHES_MAX
                && let Some((id, parts)) = asked.pop_front()
            {
                self.take_fetched(id, &parts, start, bytes)?;
            }
        }
        asked.into_iter().try_for_each(|(id, parts)| self.take_fetched(id, &parts, start, bytes))
    }

    /// Copies the answer to fetch `id`, of `parts`, into `bytes`, which begins at offset `start`.
    fn take_fetched(
        &mut self,
        id: u64,
        parts: &[Segment],
        start: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let RankReply::Bytes(read) = self.segments.exchange().answer(id)? else {
            return Err(no_answer());
        };
        let index = |at: u64| usize::try_from(at - start).expect("a range that was asked for");
        let mut rest = &read[..];
        for part in parts {
            let length = usize::try_from(part.length).unwrap_or(usize::MAX);
            let (own, behind) = rest.split_at_checked(length).ok_or_else(no_answer)?;
            bytes[index(part.offset)..index(part.end())].copy_from_slice(own);
            rest = behind;
        }
        if rest.is_empty() { Ok(()) } else { Err(no_answer()) }
    }

    /// Returns size and time of the last write over all ranks, including unsynced writes.
    /// Collective. Costs a message up and one down the log-ring per rank, at most ⌈log2 n⌉ at any
    /// rank.
    ///
    /// # Errors
    /// `Unavailable` names a lost rank.
    pub fn stat(&mut self, file: &mut SharedFile) -> Result<AgreedAttributes> {
        let own = AgreedAttributes { size: file.size, mtime_ns: file.mtime_ns };
        let all = own.of_all(self.segments.collectives())?;
        (file.size, file.mtime_ns) = (all.size, all.mtime_ns);
        if let Some(home) = &file.home {
            self.session.shared_content().set_size(home, all.size, all.mtime_ns);
        }
        Ok(all)
    }

    /// Cuts or extends the file to `size`; returns the bytes of logs that this frees. Collective:
    /// it also cuts everything that ranks wrote before. Costs a [`crate::SegmentService::truncate`]
    /// by rank 0, a reduction and a broadcast.
    ///
    /// # Errors
    /// As [`SharedJob::sync`] and [`crate::SegmentService::truncate`]; a failure on one rank fails
    /// all ranks.
    pub fn truncate(&mut self, file: &mut SharedFile, size: u64) -> Result<u64> {
        if matches!(file.index, FileIndex::Sealed(_)) {
            return Err(Error::new(Kind::Denied, "a laminated file cannot be truncated"));
        }
        if size > FILE_BYTES_MAX {
            return Err(Error::new(Kind::FileTooLarge, "a size beyond the limit"));
        }
        if matches!(file.index, FileIndex::Held(_)) {
            self.exchange(file)?;
        }
        let drained = self.send(file).and_then(|()| self.segments.drain());
        self.segments.agree(drained)?;
        let freed_bytes = self.truncate_home(file, size);
        let told = freed_bytes.map(|bytes| bytes.to_le_bytes().to_vec());
        let told = self.segments.collectives().broadcast_result(Rank(0), told)?;
        file.size = size;
        if matches!(file.index, FileIndex::Held(_)) {
            file.index = FileIndex::Held(HeldIndex::new(self.segments.laminate(file.id)?));
        }
        told.try_into().map(u64::from_le_bytes).map_err(|_| no_answer())
    }

    /// Rank 0's part of a truncation; does nothing on other ranks.
    fn truncate_home(&mut self, file: &mut SharedFile, size: u64) -> Result<u64> {
        let Some(home) = &file.home else { return Ok(0) };
        let freed = self.segments.truncate(file.id, size)?;
        file.mtime_ns = file.mtime_ns.max(self.session.now_ns());
        self.session.shared_content().set_size(home, size, file.mtime_ns);
        self.session.file(home).flush()?;
        Ok(freed.iter().map(|segment| segment.length).sum())
    }

    /// Seals the file: no rank may write it for the rest of the job, and every rank gets its whole
    /// index, so that reads need no look-ups at owners. Collective. Costs as
    /// [`crate::SegmentService::laminate`].
    ///
    /// # Errors
    /// As [`SharedJob::sync`]; a failure on one rank fails all ranks.
    pub fn laminate(&mut self, file: &mut SharedFile) -> Result<()> {
        file.index = FileIndex::Sealed(self.sync_and_gather(file)?);
        Ok(())
    }

    fn sync_and_gather(&mut self, file: &mut SharedFile) -> Result<SegmentSnapshot> {
        let synced = self.sync(file);
        self.segments.agree(synced)?;
        let index = self.segments.laminate(file.id)?;
        self.stat(file)?;
        Ok(index)
    }

    /// Shows each rank everything that all ranks have written before, and gives each rank the index
    /// of the file. Until the next exchange, or another collective call with the file, a rank reads
    /// that content and its own later writes. Its reads and writes send no messages and wait for no
    /// other rank, except for bytes that [`RemoteReads::Ranks`] fetches. If two writes cover the
    /// same bytes, one after an exchange wins over one before it. Syncs only writes before the first
    /// exchange. Does nothing to a laminated file. Collective.
    ///
    /// Costs a reduction, and a broadcast of the new segments by each rank that has some; the first
    /// exchange also as [`SharedJob::laminate`]. A write afterwards takes some 100 bytes of memory
    /// until the next sync, unless it continues another one.
    ///
    /// # Errors
    /// As [`SharedJob::sync`]; `Unavailable` names a lost rank.
    pub fn exchange(&mut self, file: &mut SharedFile) -> Result<()> {
        let index = match &mut file.index {
            FileIndex::Held(index) => index,
            FileIndex::AtOwners => {
                file.index = FileIndex::Held(HeldIndex::new(self.sync_and_gather(file)?));
                return Ok(());
            }
            FileIndex::Sealed(_) => return Ok(()),
        };
        let unsent: Vec<Segment> = file.unsent.iter().collect();
        let own = match &unsent[..] {
            [] => Vec::new(),
            unsent => SegmentLog::encode_batch(&runs_among(unsent)),
        };
        let written = gather::all_gather_bytes(self.segments.collectives(), &own)?;
        index.add(file.id, &written, (self.segments.rank(), &file.unsent))?;
        file.size = file.size.max(index.end());
        file.unsent = SegmentMap::default();
        Ok(())
    }

    /// Removes the file at `path`, which no rank has open. Collective. Once it returns, the removal
    /// survives power loss, at durability `async` or `always`. Costs a sync of rank 0's log, a
    /// broadcast, and as [`crate::SegmentService::remove`].
    ///
    /// # Errors
    /// As [`esker_fs::session::Session::unlink`], at all ranks.
    pub fn unlink(&mut self, path: impl AsRef<[u8]>) -> Result<()> {
        let mut removed = Ok(Vec::new());
        if self.segments.rank() == Rank(0) {
            removed = self.unlink_home(path.as_ref()).map(|()| Vec::new());
        }
        self.segments.collectives().broadcast_result(Rank(0), removed).map(drop)
    }

    fn unlink_home(&mut self, path: &[u8]) -> Result<()> {
        let (dir, name) = self.session.namespace().locate(&path)?;
        let removed = self.session.unlink(&dir, name)?;
        if self.is_durable {
            self.session.sync()?;
        }
        // After the name: a crash between them leaves bytes that nothing shows.
        if removed.nlink == 0 {
            self.segments.remove(removed.id)?;
            if self.is_durable {
                self.segments.sync()?;
            }
        }
        Ok(())
    }

    /// Syncs the file, agrees on its size and time, and closes it. Collective; returns the
    /// attributes.
    ///
    /// # Errors
    /// As [`SharedJob::sync`], and as [`esker_fs::session::Session::close_file`] on rank 0; a
    /// failure on one rank fails all ranks.
    pub fn close(&mut self, mut file: SharedFile) -> Result<AgreedAttributes> {
        let synced = self.sync(&mut file);
        self.segments.agree(synced)?;
        let attributes = self.stat(&mut file)?;
        let home = file.home.take();
        let closed = home.map_or(Ok(()), |home| self.session.close_file(home).map(drop));
        self.segments.agree(closed)?;
        Ok(attributes)
    }
}

impl AgreedAttributes {
    /// Reduces attributes to their maxima over all ranks, along the log-ring.
    fn of_all<T: Transport>(self, collectives: &mut Collectives<T>) -> Result<Self> {
        // Flips the sign bit so that times before 1970 sort before later ones.
        let own = [self.size, (self.mtime_ns ^ i64::MIN).cast_unsigned()];
        let all = gather::reduce_numbers(collectives, &own, |_| Reduction::Max)?;
        Ok(Self { size: all[0], mtime_ns: all[1].cast_signed() ^ i64::MIN })
    }

    fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..].copy_from_slice(&self.mtime_ns.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let (size, mtime_ns) = bytes.split_first_chunk::<8>().ok_or_else(no_answer)?;
        let mtime_ns = mtime_ns.try_into().map_err(|_| no_answer())?;
        Ok(Self { size: u64::from_le_bytes(*size), mtime_ns: i64::from_le_bytes(mtime_ns) })
    }
}

#[cfg(test)]
mod tests {
    use esker_base::store::MemoryStore;
    use esker_comm::{TransportCounters, threads};

    use super::*;
    use crate::service::SegmentService;
    use crate::slices::SliceMap;

    /// Checks by the transport's counters what `open`, `stat` and `close` send, in the message loop
    /// in which ranks answer each other.
    #[test]
    fn no_rank_sends_or_receives_more_than_log_n_for_an_attribute() {
        for ranks in 1..=300_u32 {
            let bound = u64::from(u32::BITS - (ranks - 1).leading_zeros());
            let done = threads::run(ranks, 1, |transport| {
                let map = SliceMap::new(transport.nodes(), 1, 1 << 20)?;
                let mut segments =
                    SegmentService::new(transport, map, None, Arc::new(MemoryStore::new()));
                let me = segments.rank();
                segments.barrier()?;
                let before = segments.counters();
                let own =
                    AgreedAttributes { size: u64::from(me.0), mtime_ns: 500 - i64::from(me.0) };
                let all = own.of_all(segments.collectives())?;
                assert_eq!((all.size, all.mtime_ns), (u64::from(ranks) - 1, 500));
                check(&before, &segments.counters(), bound, me);
                segments.barrier()?;
                let before = segments.counters();
                let own = if me == Rank(0) { vec![7; 40] } else { Vec::new() };
                let told = segments.collectives().broadcast_result(Rank(0), Ok(own))?;
                assert_eq!(told, [7; 40]);
                // One broadcast for the length, and one for the bytes.
                check(&before, &segments.counters(), 2 * bound, me);
                segments.barrier()
            });
            done.unwrap_or_else(|error| panic!("{ranks} ranks: {error:?}"));
        }
    }

    fn check(before: &TransportCounters, after: &TransportCounters, bound: u64, me: Rank) {
        let sent = after.sent_messages - before.sent_messages;
        let received = after.received_messages - before.received_messages;
        assert!(sent <= bound && received <= bound, "{me}: {sent} and {received} of {bound}");
    }
}
