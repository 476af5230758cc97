//! The segment service: every rank puts and finds segments of any file, and has those of its slices.
//!
//! Calls gather what they ask by owner, ask all owners, and then wait; puts need not be waited for.
//! A rank answers others whenever it waits in a call, and in [`Segments::serve`]: one that computes
//! for long keeps others waiting.
//!
//! Order of writes: an owner puts segments in the order in which they arrive, and what one rank sends
//! arrives in order. So of two writes of a byte the later wins if they are of one rank, or if the
//! first was waited for ([`Segments::wait`]) before the second began, by a message or a barrier. Of
//! others either wins, the same for all readers; of two that overlap in several slices, each in
//! some of them.
//! Durability: that of the trees of the parts. Put segments survive what that promises once they
//! were waited for, and power loss after [`Segments::sync`].
//! Source: MetaKV §II (put, get, cursors), §III-C (collectives).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_comm::collective::{CollectiveOptions, Collectives};
use esker_comm::{Counters, Rank, Transport};
use esker_fs::session::Session;
use esker_table::manifest::SetId;
use esker_table::segment::{Overlay, Segment, SegmentLog, SegmentRun, Strides};

use crate::exchange::Exchange;
use crate::gather;
use crate::message::{OFFSETS_MAX, Reply, Request, SEGMENTS_MAX};
use crate::server::Server;
use crate::slices::{SLOTS, SliceMap};
use crate::snapshot::Snapshot;

/// Runs that one request puts.
const BATCH_RUNS: usize = 1 << 13;

/// A put that is on its way.
#[derive(Clone, Debug)]
#[must_use = "a put that nobody waits for may fail unseen until the next sync"]
pub struct Ticket {
    requests: Range<u64>,
}

/// Look-ups that are on their way.
#[derive(Debug)]
#[must_use = "look-ups are for their answers"]
pub struct Lookup {
    /// Requests, and whose answers they bring, as indices.
    asked: Vec<(u64, Vec<usize>)>,
    count: usize,
}

/// A rank's access to the segments of all files, and its service of its share of them.
#[derive(Debug)]
pub struct Segments<T> {
    collectives: Collectives<Exchange<T>>,
    map: Arc<SliceMap>,
    /// Owners with segments of this rank that may not survive power loss.
    unsynced: BTreeSet<Rank>,
    /// The first put that nobody has waited for.
    first_put: u64,
    /// Why a put failed that nobody can put again.
    failed: Option<(Kind, String)>,
}

impl<T: Transport> Segments<T> {
    /// The service over `transport`. A rank that is a server by `map` gives a session whose tree takes
    /// its segments and nothing else. Every rank makes one, with the same map. Nothing is sent yet.
    pub fn new(
        transport: T,
        map: SliceMap,
        index: Option<Arc<Session>>,
        store: SharedStore,
    ) -> Self {
        let map = Arc::new(map);
        let server = Server::new(transport.rank(), index, store, map.clone());
        let exchange = Exchange::new(transport, server);
        let collectives = Collectives::new(exchange, CollectiveOptions::default());
        Self { collectives, map, unsynced: BTreeSet::new(), first_put: 0, failed: None }
    }

    /// Which rank this is.
    #[must_use]
    pub fn rank(&mut self) -> Rank {
        self.exchange().rank()
    }

    /// What went through the transport so far.
    pub fn counters(&mut self) -> Counters {
        self.exchange().counters()
    }

    /// Who has which slices.
    #[must_use]
    pub fn map(&self) -> &SliceMap {
        &self.map
    }

    pub(crate) fn exchange(&mut self) -> &mut Exchange<T> {
        self.collectives.transport()
    }

    /// Collectives during which ranks answer each other.
    pub(crate) fn collectives(&mut self) -> &mut Collectives<Exchange<T>> {
        &mut self.collectives
    }

    /// Answers others for `wait`.
    ///
    /// # Errors
    /// `Unavailable` names a rank that is lost.
    pub fn serve(&mut self, wait: Duration) -> Result<()> {
        self.exchange().serve(wait)
    }

    /// Returns once every rank has called it; answers others meanwhile. Slices stay where they are.
    ///
    /// # Errors
    /// As [`Transport::barrier`].
    pub fn barrier(&mut self) -> Result<()> {
        self.exchange().barrier()
    }

    /// Puts `segments`, of any files, in this order over what is there; holes too. Waits, answering
    /// others, only while too much is on its way. Cost: a message for each owner and file.
    ///
    /// # Errors
    /// `Invalid` for an empty segment; `Unavailable` names a rank that is lost.
    pub fn put_segments(&mut self, segments: &[Segment]) -> Result<Ticket> {
        let runs: Vec<SegmentRun> = segments.iter().map(|one| SegmentRun::one(*one)).collect();
        self.put_runs(&runs)
    }

    /// As [`Segments::put_segments`], of runs: what a rank writes in a stride is one of them.
    ///
    /// # Errors
    /// As [`Segments::put_segments`]; `Invalid` for runs whose numbers make no sense.
    pub fn put_runs(&mut self, runs: &[SegmentRun]) -> Result<Ticket> {
        let first = self.exchange().next_id();
        let mut batches: BTreeMap<(Rank, u128), Vec<SegmentRun>> = BTreeMap::new();
        let map = self.map.clone();
        if !runs.iter().all(SegmentRun::is_possible) {
            return Err(Error::new(Kind::Invalid, "a run of segments that is none"));
        }
        for run in runs {
            let mut full = Vec::new();
            map.split(run, &mut |owner, part| {
                let batch = batches.entry((owner, part.first.file)).or_default();
                batch.push(part);
                if batch.len() == BATCH_RUNS {
                    full.push((owner, std::mem::take(batch)));
                }
            });
            full.into_iter().try_for_each(|(owner, batch)| self.put_batch(owner, batch))?;
        }
        batches.into_iter().try_for_each(|((owner, _), batch)| self.put_batch(owner, batch))?;
        Ok(Ticket { requests: first..self.exchange().next_id() })
    }

    /// As [`Segments::put_runs`], of segments at regular distances in several dimensions, as one
    /// descriptor. It travels as its runs, of the innermost dimension.
    ///
    /// # Errors
    /// As [`Segments::put_runs`]; `Invalid` for strides of over
    /// [`esker_table::segment::OPERATION_SEGMENTS_MAX`] runs.
    pub fn put_strides(&mut self, strides: &Strides) -> Result<Ticket> {
        if !strides.is_possible() {
            return Err(Error::new(Kind::Invalid, "strides that end nowhere, or of too many runs"));
        }
        self.put_runs(&strides.runs())
    }

    fn put_batch(&mut self, owner: Rank, batch: Vec<SegmentRun>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.unsynced.insert(owner);
        self.exchange().ask(owner, Request::Put(batch)).map(drop)
    }

    /// Returns once what was put is there for all: then, too, it survives what the durability of the
    /// owners' trees promises.
    ///
    /// # Errors
    /// What an owner reports, naming it; `Unavailable` names a rank that is lost.
    pub fn wait(&mut self, ticket: Ticket) -> Result<()> {
        self.exchange().settle_puts(ticket.requests.start, ticket.requests.end)
    }

    /// Waits for all puts. Once an owner has failed one of which no caller was told, this and
    /// [`Segments::sync`] fail ever after: what it put is lost, and a second try must not report it
    /// as durable. A call that gave up waiting for answers may be made again: they may still come.
    ///
    /// # Errors
    /// As [`Segments::wait`], the first of them that no caller was told.
    pub fn drain(&mut self) -> Result<()> {
        if let Some((kind, what)) = &self.failed {
            return Err(Error::new(*kind, format!("segments were lost before: {what}")));
        }
        let (first, next) = (self.first_put, self.exchange().next_id());
        self.exchange().settle(first, next)?;
        self.first_put = next;
        let settled = self.exchange().settle_puts(first, next);
        settled.inspect_err(|error| self.give_up(error))
    }

    /// Returns `own` if all ranks give a success. Else all fail: ranks that have an error with that,
    /// the others with the one of the lowest rank that has. Collective, and a barrier.
    pub(crate) fn agree<R>(&mut self, own: Result<R>) -> Result<R> {
        gather::agree(&mut self.collectives, own)
    }

    /// Nothing that was put is taken for durable any more.
    pub(crate) fn give_up(&mut self, error: &Error) {
        self.failed = Some((error.kind(), error.to_string()));
    }

    /// Returns once all segments that this rank put survive power loss; those of their bytes that
    /// are in this rank's logs are to be synced before. One that failed because an owner could not
    /// sync may be tried again. Cost: a message and a sync for each owner.
    ///
    /// # Errors
    /// As [`Segments::drain`].
    pub fn sync(&mut self) -> Result<()> {
        self.drain()?;
        // Asked again if one fails.
        self.ask_all(self.unsynced.clone(), &Request::Sync)?;
        self.unsynced.clear();
        Ok(())
    }

    /// Asks every one of `ranks` the same; their answers, in their order.
    fn ask_all(
        &mut self,
        ranks: impl IntoIterator<Item = Rank>,
        request: &Request,
    ) -> Result<Vec<Reply>> {
        let requests = ranks.into_iter().map(|rank| (rank, request.clone()));
        self.exchange().ask_each(requests)
    }

    /// Asks each of `parts` what `request` makes of its range, again behind the last segment of an
    /// answer that says that there may be more; all segments of the answers.
    fn ask_in_turns(
        &mut self,
        mut parts: Vec<(Rank, Range<u64>)>,
        request: impl Fn(Range<u64>) -> Request,
    ) -> Result<Vec<Segment>> {
        let mut segments: Vec<Segment> = Vec::new();
        while !parts.is_empty() {
            let asked = std::mem::take(&mut parts);
            let requests = asked.iter().map(|(owner, part)| (*owner, request(part.clone())));
            let replies = self.exchange().ask_each(requests)?;
            for ((owner, part), reply) in asked.into_iter().zip(replies) {
                let mut found = ones_in(reply)?;
                parts.extend(rest_of(&part, &found)?.map(|rest| (owner, rest)));
                segments.append(&mut found);
            }
        }
        Ok(segments)
    }

    /// Begins to look for the segments of `file` that have the bytes at `offsets`: a message for
    /// each owner and [`OFFSETS_MAX`] of them.
    ///
    /// # Errors
    /// `Invalid` for an offset where no byte can be; `Unavailable` names a rank that is lost.
    pub fn start_get(&mut self, file: u128, offsets: &[u64]) -> Result<Lookup> {
        let mut of_owners: BTreeMap<Rank, Vec<usize>> = BTreeMap::new();
        for (index, offset) in offsets.iter().enumerate() {
            of_owners.entry(self.map.owner(file, *offset)).or_default().push(index);
        }
        let first = self.exchange().next_id();
        let mut asked = Vec::new();
        for (owner, indices) in of_owners {
            for indices in indices.chunks(OFFSETS_MAX) {
                let wanted = indices.iter().map(|index| offsets[*index]).collect();
                let sent = self.exchange().ask(owner, Request::Locate(file, wanted));
                let id = sent.inspect_err(|_| self.forget_since(first))?;
                asked.push((id, indices.to_vec()));
            }
        }
        Ok(Lookup { asked, count: offsets.len() })
    }

    /// Drops the answers to request `first` and all later ones.
    pub(crate) fn forget_since(&mut self, first: u64) {
        let next = self.exchange().next_id();
        self.exchange().forget(first, next);
    }

    /// What was looked for, in its order: whole segments, as far as they are in one slice; `None`
    /// where there is none, or a hole.
    ///
    /// # Errors
    /// What an owner reports, naming it; `Corrupt` for an answer that is none.
    pub fn finish_get(&mut self, lookup: Lookup) -> Result<Vec<Option<Segment>>> {
        let requests = lookup.asked.first().zip(lookup.asked.last());
        let requests = requests.map_or(0..0, |(first, last)| first.0..last.0 + 1);
        let found = self.take_found(lookup);
        if found.is_err() {
            self.exchange().forget(requests.start, requests.end);
        }
        found
    }

    fn take_found(&mut self, lookup: Lookup) -> Result<Vec<Option<Segment>>> {
        let mut found = vec![None; lookup.count];
        for (id, indices) in lookup.asked {
            let segments = ones_in(self.exchange().answer(id)?)?;
            if segments.len() != indices.len() {
                let what = "an owner answered another number of look-ups than it was asked";
                return Err(Error::new(Kind::Corrupt, what));
            }
            for (index, segment) in indices.into_iter().zip(segments) {
                found[index] = Some(segment).filter(|segment| segment.place.is_some());
            }
        }
        Ok(found)
    }

    /// [`Segments::start_get`] and [`Segments::finish_get`].
    ///
    /// # Errors
    /// Theirs.
    pub fn get_segments(&mut self, file: u128, offsets: &[u64]) -> Result<Vec<Option<Segment>>> {
        let lookup = self.start_get(file, offsets)?;
        self.finish_get(lookup)
    }

    /// The segment that has the byte at `offset` of `file`, if one has.
    ///
    /// # Errors
    /// As [`Segments::get_segments`].
    pub fn locate(&mut self, file: u128, offset: u64) -> Result<Option<Segment>> {
        Ok(self.get_segments(file, &[offset])?.pop().flatten())
    }

    /// What `range` of `file` is, in order and without gaps: segments cut to the range, and holes.
    /// Cost: a message for each owner of some of it, and for each 65,536 segments.
    ///
    /// # Errors
    /// As [`Segments::get_segments`].
    pub fn get_range(&mut self, file: u128, range: Range<u64>) -> Result<Vec<Segment>> {
        let mut overlay = Overlay::new(file, range.clone());
        self.fill(&mut overlay)?;
        let gap = Segment::hole(file, range.start, range.end.saturating_sub(range.start));
        overlay.add(Some(gap).filter(|gap| gap.length > 0).into_iter());
        Ok(overlay.pieces().to_vec())
    }

    /// Fills the gaps of `overlay` with what the owners have.
    pub(crate) fn fill(&mut self, overlay: &mut Overlay) -> Result<()> {
        let (file, range) = (overlay.file(), overlay.range());
        // Of each owner the part of the range from the first to the last of its slices; after so
        // many pieces any server may have some.
        let pieces: Vec<(Rank, Range<u64>)> =
            self.map.pieces(file, range.clone()).take(2 * SLOTS + 1).collect();
        let mut parts: BTreeMap<Rank, Range<u64>> = BTreeMap::new();
        if pieces.len() > 2 * SLOTS {
            let servers = self.map.servers().iter();
            parts = servers.map(|server| (*server, range.clone())).collect();
        } else {
            for (owner, part) in pieces {
                parts.entry(owner).or_insert(part.start..part.start).end = part.end;
            }
        }
        let parts = parts.into_iter().collect();
        let mut pieces = self.ask_in_turns(parts, |part| Request::Range(file, part))?;
        pieces.sort_unstable_by_key(|piece| piece.offset);
        let is_apart = pieces.windows(2).all(|pair| pair[0].end() <= pair[1].offset);
        if !is_apart || pieces.iter().any(|piece| piece.file != file) {
            let what = format!("owners of file {file:032x} answered with overlapping segments");
            return Err(Error::new(Kind::Corrupt, what));
        }
        overlay.add(pieces.into_iter());
        Ok(())
    }

    /// All segments of `file` as they are now, to be listed or searched here. Cost: a message to
    /// each server, and the index of the file: a few bytes a segment, less in runs.
    ///
    /// # Errors
    /// As [`Segments::get_segments`].
    pub fn snapshot(&mut self, file: u128) -> Result<Snapshot> {
        let servers = self.map.servers().to_vec();
        let mut runs = Vec::new();
        for reply in self.ask_all(servers, &Request::Index(file))? {
            runs.append(&mut runs_in(reply)?);
        }
        Snapshot::of(file, runs)
    }

    /// Where the last segment of `file` ends.
    ///
    /// # Errors
    /// As [`Segments::get_segments`].
    pub fn end(&mut self, file: u128) -> Result<u64> {
        let servers = self.map.servers().to_vec();
        let replies = self.ask_all(servers, &Request::End(file))?;
        replies.into_iter().try_fold(0_u64, |end, reply| match reply {
            Reply::Number(number) => Ok(end.max(number)),
            _ => Err(no_answer()),
        })
    }

    /// Makes `range` of `file` a hole, also over what layers below the job have there; returns the
    /// segments whose bytes are free with that. Cost: a message to each server, and for each 65,536
    /// segments that it has of the range.
    ///
    /// # Errors
    /// As [`Segments::get_segments`].
    pub fn punch(&mut self, file: u128, range: Range<u64>) -> Result<Vec<Segment>> {
        self.unsynced.extend(self.map.servers());
        let parts = self.map.servers().iter().map(|server| (*server, range.clone())).collect();
        self.ask_in_turns(parts, |part| Request::Punch(file, part))
    }

    /// Makes what is from `size` on a hole: as [`Segments::punch`].
    ///
    /// # Errors
    /// As [`Segments::punch`].
    pub fn truncate(&mut self, file: u128, size: u64) -> Result<Vec<Segment>> {
        self.punch(file, size..u64::MAX)
    }

    /// Removes all of `file`: as [`Segments::punch`].
    ///
    /// # Errors
    /// As [`Segments::punch`].
    pub fn remove(&mut self, file: u128) -> Result<Vec<Segment>> {
        self.truncate(file, 0)
    }

    /// The segments, of any file, whose bytes are in `range` of log `log` of `set`, cut to it: who
    /// moves bytes asks whose they are. Cost: all servers read all they have.
    ///
    /// # Errors
    /// As [`Segments::get_segments`]; `TooLarge` if a server has more than 65,536 of them: ask for
    /// fewer bytes.
    pub fn holders(&mut self, set: SetId, log: u64, range: Range<u64>) -> Result<Vec<Segment>> {
        let servers = self.map.servers().to_vec();
        let replies = self.ask_all(servers, &Request::Holders(set, log, range))?;
        let segments = replies.into_iter().map(ones_in).collect::<Result<Vec<_>>>()?;
        Ok(segments.concat())
    }

    /// Gives every rank all segments of `file`, so that none need be asked for any more; collective.
    /// Nobody may put segments of the file afterwards. Cost: the file's index along the log-ring,
    /// from each server.
    ///
    /// # Errors
    /// As [`Segments::get_segments`], and those of collectives.
    pub fn laminate(&mut self, file: u128) -> Result<Snapshot> {
        let drained = self.drain();
        self.agree(drained)?;
        let me = self.rank();
        let mut all = Vec::new();
        for server in self.map.servers().to_vec() {
            let mut index = Ok(Vec::new());
            if server == me {
                let runs = self.ask_all([me], &Request::Index(file));
                let runs = runs.and_then(|replies| {
                    replies.into_iter().map(runs_in).collect::<Result<Vec<_>>>()
                });
                index = runs.map(|runs| SegmentLog::encode_batch(&runs.concat()));
            }
            let bytes = gather::broadcast_result(&mut self.collectives, server, index)?;
            let runs = SegmentLog::decode_batch(&bytes);
            all.extend(runs.map_err(|damage| damage.of(&format!("the index of {server}"), 0))?);
        }
        Snapshot::of(file, all)
    }

    /// Goes on with another map, which all ranks take at the same time.
    pub(crate) fn set_map(&mut self, map: SliceMap) {
        self.map = Arc::new(map);
        let map = self.map.clone();
        self.exchange().server.set_map(map);
    }
}

fn runs_in(reply: Reply) -> Result<Vec<SegmentRun>> {
    match reply {
        Reply::Runs(runs) => Ok(runs),
        _ => Err(no_answer()),
    }
}

/// The segments of a reply to what is answered with single ones, and not too many: a run may stand
/// for more than memory holds, so one is refused.
fn ones_in(reply: Reply) -> Result<Vec<Segment>> {
    let runs = runs_in(reply)?;
    if runs.len() > SEGMENTS_MAX {
        return Err(no_answer());
    }
    let one = |run: SegmentRun| (run.count == 1).then_some(run.first).ok_or_else(no_answer);
    runs.into_iter().map(one).collect()
}

/// What of `asked` is still to be asked for after an answer of `found`, which leads on or is refused.
fn rest_of(asked: &Range<u64>, found: &[Segment]) -> Result<Option<Range<u64>>> {
    let Some(last) = found.last().filter(|_| found.len() == SEGMENTS_MAX) else { return Ok(None) };
    // Segments do not overlap, so an answer leads on by a byte for each.
    let at = last.end();
    if at > asked.end || at - asked.start.min(at) < SEGMENTS_MAX as u64 {
        return Err(no_answer());
    }
    Ok(Some(at..asked.end).filter(|rest| !rest.is_empty()))
}

pub(crate) fn no_answer() -> Error {
    Error::new(Kind::Corrupt, "a rank answered something else than it was asked")
}

#[cfg(test)]
mod tests {
    use esker_table::segment::LogPlace;

    use super::*;

    #[test]
    fn a_run_where_single_segments_are_due_is_refused() {
        let place = Some(LogPlace { set: SetId(1), log: 2, offset: 0 });
        let first = Segment { file: 9, offset: 0, length: 1, place, checksum: None, seq: 0 };
        let one = SegmentRun::one(first);
        assert_eq!(ones_in(Reply::Runs(vec![one, one])).unwrap(), [first, first]);
        assert!(ones_in(Reply::Runs(vec![one; SEGMENTS_MAX])).is_ok());
        assert!(ones_in(Reply::Runs(vec![one; SEGMENTS_MAX + 1])).is_err());
        let endless = SegmentRun { count: 1 << 62, stride: 1, log_stride: 1, first };
        assert!(endless.is_possible());
        for hostile in [Reply::Runs(vec![one, endless]), Reply::Number(1)] {
            assert_eq!(ones_in(hostile).unwrap_err().kind(), Kind::Corrupt);
        }
    }

    #[test]
    fn who_has_more_is_asked_on_and_who_does_not_lead_on_is_refused() {
        let segment = |at: u64| Segment::hole(9, at, 1);
        let many: Vec<Segment> = (100..100 + SEGMENTS_MAX as u64).map(segment).collect();
        let end = 100 + SEGMENTS_MAX as u64;
        assert_eq!(rest_of(&(0..u64::MAX), &many).unwrap(), Some(end..u64::MAX));
        assert_eq!(rest_of(&(0..end), &many).unwrap(), None);
        assert_eq!(rest_of(&(0..u64::MAX), &many[1..]).unwrap(), None);
        assert_eq!(rest_of(&(0..u64::MAX), &[]).unwrap(), None);
        for asked in [200..u64::MAX, 0..end - 1, end..u64::MAX] {
            assert_eq!(rest_of(&asked, &many).unwrap_err().kind(), Kind::Corrupt, "{asked:?}");
        }
    }
}
