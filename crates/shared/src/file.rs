//! Shared files: every rank writes anywhere, and reads what any has synced.
//!
//! A write appends to a data log of this rank, and its segment stays here until it is sent: after so
//! many, or by [`SharedJob::sync`]. Bytes are synced before segments are sent, so what a segment says
//! is there survives as long as it. A read overlays the rank's unsent segments over what the owners
//! have, and that over the layers below the job, and takes the bytes from the logs.
//! Size and time of the last write are each rank's own knowledge until all reduce them, along the
//! log-ring, in [`SharedJob::stat`] and [`SharedJob::close`]; then rank 0 writes them to the name.
//! Source: MetaKV §II-A, §III-C; DESIGN §1.5.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use esker_base::{Bytes, Error, Kind, Result};
use esker_comm::collective::{Collectives, Reduction};
use esker_comm::{Rank, Transport};
use esker_fs::data::read_mapped;
use esker_fs::file::{FILE_BYTES_MAX, OpenFile};
use esker_fs::identity::{READ, WRITE};
use esker_table::segment::{Overlay, Segment, SegmentMap};
use esker_table::tree::runs_among;

use crate::gather;
use crate::job::{Reads, SharedJob};
use crate::message::{FETCH_BYTES_MAX, Reply, Request, SEGMENTS_MAX, ones};
use crate::service::no_answer;
use crate::settle::tree;
use crate::snapshot::Snapshot;

/// Segments of one file that wait to be sent.
const UNSENT_MAX: usize = 1 << 16;
/// Requests for bytes whose answers have not been put in their place: enough that their writers work
/// at the same time, and little memory beside that of what is read.
const FETCHES_MAX: usize = 16;
/// Writes after which others are answered.
const WRITES_PER_LOOK: u64 = 64;

/// A shared file that this rank has open. Its methods are those of [`SharedJob`] that take one.
#[derive(Debug)]
pub struct SharedFile {
    id: u128,
    /// As far as this rank knows.
    size: u64,
    mtime_ns: i64,
    /// Segments that no owner has yet.
    unsent: SegmentMap,
    writes: u64,
    /// All segments, once the file is laminated.
    sealed: Option<Snapshot>,
    /// Where rank 0 keeps its attributes.
    home: Option<Arc<OpenFile>>,
}

/// Attributes that all ranks agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Bytes up to the end of the last write.
    pub size: u64,
    /// When it was, as a timestamp.
    pub mtime_ns: i64,
}

impl SharedFile {
    /// Identity of the file.
    #[must_use]
    pub fn id(&self) -> u128 {
        self.id
    }
}

impl<T: Transport> SharedJob<T> {
    /// Opens the file at `path`, or creates it with `mode` if there is none and a mode is given, for
    /// all ranks; rank 0 does it and tells the others. Collective. Once it returns the name survives power loss, at durability
    /// `async` or `always`. Cost: as [`esker_fs::session::Session::open_file`] on one rank, a sync of
    /// its log, and a broadcast.
    ///
    /// # Errors
    /// As [`esker_fs::session::Session::open_file`], for all ranks; `Denied` unless it may be read
    /// and written.
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
        let told = gather::broadcast_result(self.segments.collectives(), Rank(0), told)?;
        let (id, attributes) = told.split_first_chunk::<16>().ok_or_else(no_answer)?;
        let Attributes { size, mtime_ns } = Attributes::decode(attributes)?;
        Ok(SharedFile {
            id: u128::from_le_bytes(*id),
            size,
            mtime_ns,
            unsent: SegmentMap::default(),
            writes: 0,
            sealed: None,
            home,
        })
    }

    /// Opens the file on the rank that has its name, whose content goes to the owners.
    fn open_home(&mut self, path: &[u8], mode: Option<u32>) -> Result<(Arc<OpenFile>, Attributes)> {
        let session = self.session.clone();
        let (dir, name) = session.locate(&path)?;
        let file = match (session.open_file(&dir, name), mode) {
            (Err(error), Some(mode)) if error.kind() == Kind::NotFound => {
                session.create_file(&dir, name, mode)?
            }
            (opened, _) => {
                let file = opened?;
                let inode = session.stat_file(&file)?;
                if let Err(error) = session.identity().check(READ | WRITE, &inode, name) {
                    // What went wrong first is what counts.
                    let _ = session.close_file(file);
                    return Err(error);
                }
                file
            }
        };
        let handed = session.hand_over_content(&file)?;
        if handed.hides_older {
            self.segments.remove(file.id())?;
        }
        let id = file.id();
        // What this rank wrote of it before it was shared.
        let (holes, placed): (Vec<_>, Vec<_>) = tree(&session)
            .segments_within(id, 0..u64::MAX)?
            .into_iter()
            .partition(|piece| piece.place.is_none());
        for hole in &holes {
            self.segments.punch(id, hole.offset..hole.end())?;
        }
        if !handed.segments.is_empty() || !placed.is_empty() || !holes.is_empty() {
            session.sync_content()?;
            let all = [&handed.segments[..], &placed].concat();
            let ticket = self.segments.put_segments(&all)?;
            self.segments.wait(ticket)?;
            self.segments.sync()?;
            session.flush_file(&file)?;
            tree(&session).retain_segments(&mut |run, kept| {
                kept.extend((run.first.file != id).then_some(*run));
            })?;
        }
        // What a rank syncs later is of no use without a name.
        session.flush_file(&file)?;
        if self.is_durable {
            session.sync()?;
        }
        let size = handed.size.max(self.segments.end(id)?);
        // A writer that died may have left segments behind the end.
        self.segments.truncate(id, size)?;
        Ok((file, Attributes { size, mtime_ns: handed.mtime_ns }))
    }

    /// Writes `bytes` at `offset`. This rank reads them from now on, others after
    /// [`SharedJob::sync`]. Cost: an append to a data log; now and then the sending of what has
    /// gathered.
    ///
    /// # Errors
    /// `Denied` if the file is laminated; `FileTooLarge`; what the store reports; `Unavailable`
    /// names a rank that is lost, or one that took nothing before the deadline: then this rank keeps
    /// the bytes, and the next write or sync sends them.
    pub fn write(&mut self, file: &mut SharedFile, offset: u64, bytes: &[u8]) -> Result<()> {
        if file.sealed.is_some() {
            return Err(Error::new(Kind::Denied, "a laminated file is not written"));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let end =
            end.ok_or_else(|| Error::new(Kind::FileTooLarge, "a write beyond any file's end"))?;
        let (place, _) = self.session.append_content(bytes)?;
        // Not the checksum: with one, segments are no runs.
        let (length, place) = (bytes.len() as u64, Some(place));
        let segment = Segment { file: file.id, offset, length, place, checksum: None, seq: 0 };
        file.unsent.insert(segment);
        file.size = file.size.max(end);
        file.mtime_ns = file.mtime_ns.max(self.session.now_ns());
        file.writes += 1;
        if file.unsent.len() >= UNSENT_MAX {
            self.send(file)?;
        }
        if file.writes.is_multiple_of(WRITES_PER_LOOK) {
            self.segments.serve(Duration::ZERO)?;
        }
        Ok(())
    }

    /// Sends the segments that no owner has.
    fn send(&mut self, file: &mut SharedFile) -> Result<()> {
        if file.unsent.is_empty() {
            return Ok(());
        }
        if self.is_durable {
            self.session.sync_content()?;
        }
        let unsent: Vec<Segment> = file.unsent.iter().collect();
        // The next sync reports whether the owners put them; before it nothing is promised. If this
        // fails some may have them: the next try puts all again, which changes nothing.
        let _ = self.segments.put_runs(&runs_among(&unsent))?;
        file.unsent = SegmentMap::default();
        Ok(())
    }

    /// Returns once others read what this rank wrote, and it survives: power loss, at durability
    /// `async` or `always`. Cost: a sync of the data log, a message to each owner, a sync of its log.
    ///
    /// # Errors
    /// As [`SharedJob::write`].
    pub fn sync(&mut self, file: &mut SharedFile) -> Result<()> {
        self.send(file)?;
        if self.is_durable { self.segments.sync() } else { self.segments.drain() }
    }

    /// Up to `bytes_max` bytes from `offset` on; fewer only at the end of the file as this rank,
    /// or what it reads, knows it. Cost: a message to each owner of some of the range, none of a
    /// laminated file; a store request for each log, or a message to its writer ([`Reads`]).
    ///
    /// # Errors
    /// `Corrupt`; what stores and owners report; `Unavailable` names a rank that is lost.
    pub fn read(&mut self, file: &mut SharedFile, offset: u64, bytes_max: usize) -> Result<Bytes> {
        let end = offset.saturating_add(bytes_max as u64).min(FILE_BYTES_MAX);
        if offset >= end {
            return Ok(Bytes::new());
        }
        let mut overlay = Overlay::new(file.id, offset..end);
        overlay.add(file.unsent.overlapping(file.id, offset, end));
        match &file.sealed {
            Some(index) => index.fill(&mut overlay)?,
            None => self.segments.fill(&mut overlay)?,
        }
        self.session.add_below(&mut overlay)?;
        let placed = overlay.pieces().iter().filter(|piece| piece.place.is_some());
        file.size = file.size.max(placed.map(Segment::end).max().unwrap_or(0));
        if file.size < end && file.sealed.is_none() {
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
        let store = self.session.layers().source().store.clone();
        if self.reads == Reads::Store {
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

    /// Puts the bytes of `batches` in their place in `bytes`, which begin at `start`.
    fn fetch(&mut self, batches: FetchBatches, start: u64, bytes: &mut [u8]) -> Result<()> {
        let mut asked = VecDeque::new();
        for (from, parts) in batches.all() {
            let id = self.segments.exchange().ask(from, Request::Fetch(ones(&parts)))?;
            asked.push_back((id, parts));
            if asked.len() == FETCHES_MAX
                && let Some((id, parts)) = asked.pop_front()
            {
                self.take_fetched(id, &parts, start, bytes)?;
            }
        }
        asked.into_iter().try_for_each(|(id, parts)| self.take_fetched(id, &parts, start, bytes))
    }

    /// Puts what answers fetch `id`, of `parts`, in its place in `bytes`, which begin at `start`.
    fn take_fetched(
        &mut self,
        id: u64,
        parts: &[Segment],
        start: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let Reply::Bytes(read) = self.segments.exchange().answer(id)? else {
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

    /// Size and time of the last write, of all ranks; what they wrote need not be synced.
    /// Collective. Cost: a message up and down the log-ring a rank, at most ⌈log2 n⌉ at any.
    ///
    /// # Errors
    /// `Unavailable` names a rank that is lost.
    pub fn stat(&mut self, file: &mut SharedFile) -> Result<Attributes> {
        let own = Attributes { size: file.size, mtime_ns: file.mtime_ns };
        let all = own.of_all(self.segments.collectives())?;
        (file.size, file.mtime_ns) = (all.size, all.mtime_ns);
        if let Some(home) = &file.home {
            self.session.note_shared(home, all.size, all.mtime_ns);
        }
        Ok(all)
    }

    /// Cuts the file to `size`, or lets it end there; returns the bytes of logs that are free with
    /// that. Collective: what ranks wrote before is cut. Cost: as
    /// [`crate::Segments::truncate`], by rank 0, a reduction and a broadcast.
    ///
    /// # Errors
    /// As [`SharedJob::sync`] and [`crate::Segments::truncate`], for all ranks if for one.
    pub fn truncate(&mut self, file: &mut SharedFile, size: u64) -> Result<u64> {
        if file.sealed.is_some() {
            return Err(Error::new(Kind::Denied, "a laminated file is not cut"));
        }
        if size > FILE_BYTES_MAX {
            return Err(Error::new(Kind::FileTooLarge, "a size beyond any file's"));
        }
        let drained = self.send(file).and_then(|()| self.segments.drain());
        self.segments.agree(drained)?;
        let freed_bytes = self.truncate_home(file, size);
        let told = freed_bytes.map(|bytes| bytes.to_le_bytes().to_vec());
        let told = gather::broadcast_result(self.segments.collectives(), Rank(0), told)?;
        file.size = size;
        told.try_into().map(u64::from_le_bytes).map_err(|_| no_answer())
    }

    /// The part of rank 0 in a truncation; nothing on others.
    fn truncate_home(&mut self, file: &mut SharedFile, size: u64) -> Result<u64> {
        let Some(home) = &file.home else { return Ok(0) };
        let freed = self.segments.truncate(file.id, size)?;
        file.mtime_ns = file.mtime_ns.max(self.session.now_ns());
        self.session.note_shared(home, size, file.mtime_ns);
        self.session.flush_file(home)?;
        Ok(freed.iter().map(|segment| segment.length).sum())
    }

    /// Seals the file: nobody writes it any more while the job lasts, and every rank has its index,
    /// so that reads ask nobody. Collective. Cost: as [`crate::Segments::laminate`].
    ///
    /// # Errors
    /// As [`SharedJob::sync`], for all ranks if for one.
    pub fn laminate(&mut self, file: &mut SharedFile) -> Result<()> {
        let synced = self.sync(file);
        self.segments.agree(synced)?;
        let index = self.segments.laminate(file.id)?;
        self.stat(file)?;
        file.sealed = Some(index);
        Ok(())
    }

    /// Syncs the file, settles its size and time, and gives it back. Collective; returns what all
    /// agree on.
    ///
    /// # Errors
    /// As [`SharedJob::sync`], and as [`esker_fs::session::Session::close_file`] on rank 0; for all
    /// ranks if for one.
    pub fn close(&mut self, mut file: SharedFile) -> Result<Attributes> {
        let synced = self.sync(&mut file);
        self.segments.agree(synced)?;
        let attributes = self.stat(&mut file)?;
        let home = file.home.take();
        let closed = home.map_or(Ok(()), |home| self.session.close_file(home).map(drop));
        self.segments.agree(closed)?;
        Ok(attributes)
    }
}

impl Attributes {
    /// The greatest of all ranks, along the log-ring.
    fn of_all<T: Transport>(self, collectives: &mut Collectives<T>) -> Result<Self> {
        // The sign is turned so that times before 1970 are less than others.
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

/// Segments whose bytes other ranks are asked for, in requests within their bounds.
#[derive(Debug, Default)]
struct FetchBatches {
    full: Vec<(Rank, Vec<Segment>)>,
    /// By rank: segments, and their bytes.
    open: BTreeMap<Rank, (Vec<Segment>, u64)>,
}

impl FetchBatches {
    /// Adds `piece`, whose bytes `from` is asked for.
    fn add(&mut self, from: Rank, piece: &Segment) {
        let (segments, bytes) = self.open.entry(from).or_default();
        let mut at = piece.offset;
        while at < piece.end() {
            if *bytes == FETCH_BYTES_MAX || segments.len() == SEGMENTS_MAX {
                self.full.push((from, std::mem::take(segments)));
                *bytes = 0;
            }
            let part = piece.part(at, piece.end().min(at + (FETCH_BYTES_MAX - *bytes)));
            at = part.end();
            *bytes += part.length;
            segments.push(part);
        }
    }

    /// All of them.
    fn all(self) -> impl Iterator<Item = (Rank, Vec<Segment>)> {
        let open = self.open.into_iter().map(|(from, (segments, _))| (from, segments));
        self.full.into_iter().chain(open)
    }
}

#[cfg(test)]
mod tests {
    use esker_base::store::MemoryStore;
    use esker_comm::{Counters, threads};
    use esker_table::manifest::SetId;
    use esker_table::segment::LogPlace;

    use super::*;
    use crate::message::OFFSETS_MAX;
    use crate::service::Segments;
    use crate::slices::SliceMap;

    /// What `open`, `stat` and `close` send, in the loop in which ranks answer each other, as the
    /// transport counts it.
    #[test]
    fn no_rank_sends_or_receives_more_than_log_n_for_an_attribute() {
        for ranks in 1..=300_u32 {
            let bound = u64::from(u32::BITS - (ranks - 1).leading_zeros());
            let done = threads::run(ranks, 1, |transport| {
                let map = SliceMap::new(transport.nodes(), 1, 1 << 20)?;
                let mut segments =
                    Segments::new(transport, map, None, Arc::new(MemoryStore::new()));
                let me = segments.rank();
                segments.barrier()?;
                let before = segments.counters();
                let own = Attributes { size: u64::from(me.0), mtime_ns: 500 - i64::from(me.0) };
                let all = own.of_all(segments.collectives())?;
                assert_eq!((all.size, all.mtime_ns), (u64::from(ranks) - 1, 500));
                check(&before, &segments.counters(), bound, me);
                segments.barrier()?;
                let before = segments.counters();
                let own = if me == Rank(0) { vec![7; 40] } else { Vec::new() };
                let told = gather::broadcast_result(segments.collectives(), Rank(0), Ok(own))?;
                assert_eq!(told, [7; 40]);
                // The length, and then what is so long.
                check(&before, &segments.counters(), 2 * bound, me);
                segments.barrier()
            });
            done.unwrap_or_else(|error| panic!("{ranks} ranks: {error:?}"));
        }
    }

    fn check(before: &Counters, after: &Counters, bound: u64, me: Rank) {
        let sent = after.sent_messages - before.sent_messages;
        let received = after.received_messages - before.received_messages;
        assert!(sent <= bound && received <= bound, "{me}: {sent} and {received} of {bound}");
    }

    #[test]
    fn fetches_are_bounded_and_have_every_byte_once() {
        let piece = |offset: u64, length: u64| {
            let place = Some(LogPlace { set: SetId(1), log: 2, offset: offset * 3 });
            Segment { file: 9, offset, length, place, checksum: None, seq: 0 }
        };
        let long = piece(1 << 40, 3 * FETCH_BYTES_MAX + 5);
        let many = (0..3 * OFFSETS_MAX as u64 + 7).map(|at| piece(at * 10, 1 + at % 3));
        let mut batches = FetchBatches::default();
        let (mut wanted, mut got) = ([0; 2], [0; 2]);
        for (index, piece) in many.chain([long]).enumerate() {
            wanted[index % 2] += piece.length;
            batches.add(Rank((index % 2) as u32), &piece);
        }
        for (from, parts) in batches.all() {
            let bytes: u64 = parts.iter().map(|part| part.length).sum();
            assert!(bytes <= FETCH_BYTES_MAX && parts.len() <= SEGMENTS_MAX && bytes > 0);
            assert!(Request::decode(from, &Request::Fetch(ones(&parts)).encode(1)).is_ok());
            assert!(parts.windows(2).all(|pair| pair[0].end() <= pair[1].offset));
            got[from.index()] += bytes;
        }
        assert_eq!(got, wanted);
    }
}
