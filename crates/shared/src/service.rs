// SPDX-License-Identifier: Apache-2.0
//! The segment service: every rank puts and finds segments of any file, and stores those of its
//! slices.
//!
//! A call batches its requests by owner, sends all of them, and then waits; callers need not wait
//! for puts. A rank answers others while it waits in a call, and in [`SegmentService::serve`]: a
//! rank that computes for long keeps others waiting.
//!
//! Order of writes: an owner puts segments in order of arrival, and segments sent by one rank
//! arrive in order. If two writes cover the same byte, the later wins if one rank made both, or if
//! the first writer waited for its put ([`SegmentService::wait`]) before the second began, ordered
//! by a message or a barrier. Otherwise either wins, the same one for all readers; two writes that
//! overlap in several slices may each win in some of them.
//! Durability: that of the parts' trees. Puts that a caller has waited for survive as the trees
//! promise; after [`SegmentService::sync`] they survive power loss.
//! Source: MetaKV §II (put, get, cursors), §III-C (collectives).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_comm::collective::{CollectiveOptions, Collectives};
use esker_comm::{Rank, Transport, TransportCounters};
use esker_extent::{Segment, SegmentLog, SegmentOverlay, SegmentRun, StridedSegments};
use esker_fs::session::Session;
use esker_table::manifest::SetId;

use crate::exchange::RequestExchange;
use crate::message::{OFFSETS_MAX, RankReply, RankRequest, SEGMENTS_MAX};
use crate::server::SegmentServer;
use crate::slices::{SLOTS, SliceMap};
use crate::snapshot::SegmentSnapshot;

/// Most runs in one put request.
const BATCH_RUNS: usize = 1 << 13;

/// A put in flight.
#[derive(Clone, Debug)]
#[must_use = "a put that nobody waits for may fail unseen until the next sync"]
pub struct PutTicket {
    requests: Range<u64>,
}

/// Look-ups in flight.
#[derive(Debug)]
#[must_use = "look-ups are for their answers"]
pub struct PendingLookup {
    /// Request ids, each with the indices of the offsets that its answer covers.
    asked: Vec<(u64, Vec<usize>)>,
    count: usize,
}

/// A rank's access to the segments of all files; it also serves the rank's own slices.
#[derive(Debug)]
pub struct SegmentService<T> {
    collectives: Collectives<RequestExchange<T>>,
    map: Arc<SliceMap>,
    /// Owners that hold segments of this rank which may not survive power loss.
    unsynced: BTreeSet<Rank>,
    /// The first put that no call has waited for.
    first_put: u64,
    /// Set once a put has failed that no caller can repeat.
    failed: Option<(Kind, String)>,
}

impl<T: Transport> SegmentService<T> {
    /// Creates the service over `transport`. A rank that is a server in `map` passes a session
    /// whose tree holds its segments and nothing else. Every rank creates one, with the same map.
    /// Sends nothing.
    pub fn new(
        transport: T,
        map: SliceMap,
        index: Option<Arc<Session>>,
        store: SharedStore,
    ) -> Self {
        let map = Arc::new(map);
        let server = SegmentServer::new(transport.rank(), index, store, map.clone());
        let exchange = RequestExchange::new(transport, server);
        let collectives = Collectives::new(exchange, CollectiveOptions::default());
        Self { collectives, map, unsynced: BTreeSet::new(), first_put: 0, failed: None }
    }

    /// This rank.
    #[must_use]
    pub fn rank(&mut self) -> Rank {
        self.exchange().rank()
    }

    /// Totals of the transport so far.
    pub fn counters(&mut self) -> TransportCounters {
        self.exchange().counters()
    }

    /// The map from slices to their owners.
    #[must_use]
    pub fn map(&self) -> &SliceMap {
        &self.map
    }

    pub(crate) fn exchange(&mut self) -> &mut RequestExchange<T> {
        self.collectives.transport()
    }

    /// Collectives during which ranks answer each other.
    pub(crate) fn collectives(&mut self) -> &mut Collectives<RequestExchange<T>> {
        &mut self.collectives
    }

    /// Answers other ranks for `wait`.
    ///
    /// # Errors
    /// `Unavailable` names a lost rank.
    pub fn serve(&mut self, wait: Duration) -> Result<()> {
        self.exchange().serve(wait)
    }

    /// Returns once every rank has called it; answers others meanwhile. Slices do not move.
    ///
    /// # Errors
    /// As [`Transport::barrier`].
    pub fn barrier(&mut self) -> Result<()> {
        self.exchange().barrier()
    }

    /// Puts `segments`, of any files and including holes, in this order over existing ones. Waits,
    /// answering others, only while too many requests are in flight. Costs a message per owner and
    /// file.
    ///
    /// # Errors
    /// `Invalid` for an empty segment; `Unavailable` names a lost rank.
    pub fn put_segments(&mut self, segments: &[Segment]) -> Result<PutTicket> {
        let runs: Vec<SegmentRun> = segments.iter().map(|one| SegmentRun::one(*one)).collect();
        self.put_runs(&runs)
    }

    /// As [`SegmentService::put_segments`], for runs: one run describes a strided write.
    ///
    /// # Errors
    /// As [`SegmentService::put_segments`]; `Invalid` for a run whose numbers are inconsistent.
    pub fn put_runs(&mut self, runs: &[SegmentRun]) -> Result<PutTicket> {
        let first = self.exchange().next_id();
        let mut batches: BTreeMap<(Rank, u128), Vec<SegmentRun>> = BTreeMap::new();
        let map = self.map.clone();
        if !runs.iter().all(SegmentRun::is_possible) {
            return Err(Error::new(Kind::Invalid, "an invalid run of segments"));
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
        Ok(PutTicket { requests: first..self.exchange().next_id() })
    }

    /// As [`SegmentService::put_runs`], for segments at regular distances in several dimensions,
    /// given as one descriptor. The service sends it as the runs of its innermost dimension.
    ///
    /// # Errors
    /// As [`SegmentService::put_runs`]; `Invalid` for strides of over
    /// [`esker_extent::OPERATION_SEGMENTS_MAX`] runs.
    pub fn put_strides(&mut self, strides: &StridedSegments) -> Result<PutTicket> {
        if !strides.is_possible() {
            return Err(Error::new(Kind::Invalid, "invalid strides, or strides of too many runs"));
        }
        self.put_runs(&strides.runs())
    }

    fn put_batch(&mut self, owner: Rank, batch: Vec<SegmentRun>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.unsynced.insert(owner);
        self.exchange().ask(owner, RankRequest::Put(batch)).map(drop)
    }

    /// Returns once all ranks can see the put segments; from then on they also survive as the
    /// durability of the owners' trees promises.
    ///
    /// # Errors
    /// The error that an owner reports, naming it; `Unavailable` names a lost rank.
    pub fn wait(&mut self, ticket: PutTicket) -> Result<()> {
        self.exchange().await_puts(ticket.requests.start, ticket.requests.end)
    }

    /// Waits for all puts. Once a put has failed at an owner without any caller having waited for
    /// it, this call and [`SegmentService::sync`] fail forever: its segments are lost, and a retry
    /// must not report them as durable. After a timeout the call may be repeated, since the answers
    /// may still arrive.
    ///
    /// # Errors
    /// As [`SegmentService::wait`]; the first failure that was not reported to a caller.
    pub fn drain(&mut self) -> Result<()> {
        if let Some((kind, what)) = &self.failed {
            return Err(Error::new(*kind, format!("segments were lost before: {what}")));
        }
        let (first, next) = (self.first_put, self.exchange().next_id());
        self.exchange().await_replies(first, next)?;
        self.first_put = next;
        let awaited = self.exchange().await_puts(first, next);
        awaited.inspect_err(|error| self.give_up(error))
    }

    /// Returns `own` if it is a success at all ranks. Otherwise fails at all: at a rank that has an
    /// error with that error, at the others with that of the lowest failed rank. Collective, and a
    /// barrier.
    pub(crate) fn agree<R>(&mut self, own: Result<R>) -> Result<R> {
        self.collectives.agree(own)
    }

    /// Makes every later sync fail: the segments put so far are no longer certain to be durable.
    pub(crate) fn give_up(&mut self, error: &Error) {
        self.failed = Some((error.kind(), error.to_string()));
    }

    /// Returns once all segments that this rank put survive power loss. Sync this rank's data logs
    /// first. A sync that failed because an owner could not sync may be repeated.
    /// Costs a message and a sync per owner.
    ///
    /// # Errors
    /// As [`SegmentService::drain`].
    pub fn sync(&mut self) -> Result<()> {
        self.drain()?;
        // All owners are asked again if one fails.
        self.ask_all(self.unsynced.clone(), &RankRequest::Sync)?;
        self.unsynced.clear();
        Ok(())
    }

    /// Sends `request` to each of `ranks`; returns their answers in the same order.
    fn ask_all(
        &mut self,
        ranks: impl IntoIterator<Item = Rank>,
        request: &RankRequest,
    ) -> Result<Vec<RankReply>> {
        let requests = ranks.into_iter().map(|rank| (rank, request.clone()));
        self.exchange().ask_each(requests)
    }

    /// Sends `request` for the range of each of `parts`, and again from the end of each answer that
    /// may be incomplete. Returns the segments of all answers.
    fn ask_in_turns(
        &mut self,
        mut parts: Vec<(Rank, Range<u64>)>,
        request: impl Fn(Range<u64>) -> RankRequest,
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

    /// Starts to look up the segments of `file` that have the bytes at `offsets`. Costs a message
    /// per owner and [`OFFSETS_MAX`] offsets.
    ///
    /// # Errors
    /// `Invalid` for an offset beyond the last possible byte; `Unavailable` names a lost rank.
    pub fn start_get(&mut self, file: u128, offsets: &[u64]) -> Result<PendingLookup> {
        let mut of_owners: BTreeMap<Rank, Vec<usize>> = BTreeMap::new();
        for (index, offset) in offsets.iter().enumerate() {
            of_owners.entry(self.map.owner(file, *offset)).or_default().push(index);
        }
        let first = self.exchange().next_id();
        let mut asked = Vec::new();
        for (owner, indices) in of_owners {
            for indices in indices.chunks(OFFSETS_MAX) {
                let wanted = indices.iter().map(|index| offsets[*index]).collect();
                let sent = self.exchange().ask(owner, RankRequest::Locate(file, wanted));
                let id = sent.inspect_err(|_| self.forget_since(first))?;
                asked.push((id, indices.to_vec()));
            }
        }
        Ok(PendingLookup { asked, count: offsets.len() })
    }

    /// Drops the answers to request `first` and all later ones.
    pub(crate) fn forget_since(&mut self, first: u64) {
        let next = self.exchange().next_id();
        self.exchange().forget(first, next);
    }

    /// Returns the results of a look-up, in its order: segments, cut to one slice; `None` for a
    /// hole or an absent byte.
    ///
    /// # Errors
    /// The error that an owner reports, naming it; `Corrupt` for a malformed answer.
    pub fn finish_get(&mut self, lookup: PendingLookup) -> Result<Vec<Option<Segment>>> {
        let requests = lookup.asked.first().zip(lookup.asked.last());
        let requests = requests.map_or(0..0, |(first, last)| first.0..last.0 + 1);
        let found = self.take_found(lookup);
        if found.is_err() {
            self.exchange().forget(requests.start, requests.end);
        }
        found
    }

    fn take_found(&mut self, lookup: PendingLookup) -> Result<Vec<Option<Segment>>> {
        let mut found = vec![None; lookup.count];
        for (id, indices) in lookup.asked {
            let segments = ones_in(self.exchange().answer(id)?)?;
            if segments.len() != indices.len() {
                let what = "an owner answered a wrong number of look-ups";
                return Err(Error::new(Kind::Corrupt, what));
            }
            for (index, segment) in indices.into_iter().zip(segments) {
                found[index] = Some(segment).filter(|segment| segment.place.is_some());
            }
        }
        Ok(found)
    }

    /// Combines [`SegmentService::start_get`] and [`SegmentService::finish_get`].
    ///
    /// # Errors
    /// As both.
    pub fn get_segments(&mut self, file: u128, offsets: &[u64]) -> Result<Vec<Option<Segment>>> {
        let lookup = self.start_get(file, offsets)?;
        self.finish_get(lookup)
    }

    /// Returns the segment that has the byte at `offset` of `file`, if there is one.
    ///
    /// # Errors
    /// As [`SegmentService::get_segments`].
    pub fn locate(&mut self, file: u128, offset: u64) -> Result<Option<Segment>> {
        Ok(self.get_segments(file, &[offset])?.pop().flatten())
    }

    /// Returns the content of `range` of `file`, in order and without gaps: segments cut to the
    /// range, and holes. Costs a message per owner of a part of the range, and per 65,536 segments.
    ///
    /// # Errors
    /// As [`SegmentService::get_segments`].
    pub fn get_range(&mut self, file: u128, range: Range<u64>) -> Result<Vec<Segment>> {
        let mut overlay = SegmentOverlay::new(file, range.clone());
        self.fill(&mut overlay)?;
        let gap = Segment::hole(file, range.start, range.end.saturating_sub(range.start));
        overlay.add(Some(gap).filter(|gap| gap.length > 0).into_iter());
        Ok(overlay.pieces().to_vec())
    }

    /// Fills the gaps of `overlay` with segments of the owners.
    pub(crate) fn fill(&mut self, overlay: &mut SegmentOverlay) -> Result<()> {
        let (file, range) = (overlay.file(), overlay.range());
        // For each owner, the part of the range from its first slice to its last; beyond this many
        // pieces, any server may have some.
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
        let mut pieces = self.ask_in_turns(parts, |part| RankRequest::Range(file, part))?;
        pieces.sort_unstable_by_key(|piece| piece.offset);
        let is_apart = pieces.windows(2).all(|pair| pair[0].end() <= pair[1].offset);
        if !is_apart || pieces.iter().any(|piece| piece.file != file) {
            let what = format!("owners of file {file:032x} answered with overlapping segments");
            return Err(Error::new(Kind::Corrupt, what));
        }
        overlay.add(pieces.into_iter());
        Ok(())
    }

    /// Returns all current segments of `file`, for listing and searching locally. Costs a message
    /// to each server, and the file's index: a few bytes per segment, less in runs.
    ///
    /// # Errors
    /// As [`SegmentService::get_segments`].
    pub fn snapshot(&mut self, file: u128) -> Result<SegmentSnapshot> {
        let servers = self.map.servers().to_vec();
        let mut runs = Vec::new();
        for reply in self.ask_all(servers, &RankRequest::Index(file))? {
            runs.append(&mut runs_in(reply)?);
        }
        SegmentSnapshot::of(file, runs)
    }

    /// The end of the last segment of `file`.
    ///
    /// # Errors
    /// As [`SegmentService::get_segments`].
    pub fn end(&mut self, file: u128) -> Result<u64> {
        let servers = self.map.servers().to_vec();
        let replies = self.ask_all(servers, &RankRequest::End(file))?;
        replies.into_iter().try_fold(0_u64, |end, reply| match reply {
            RankReply::Number(number) => Ok(end.max(number)),
            _ => Err(no_answer()),
        })
    }

    /// Makes `range` of `file` a hole, which also hides bytes of layers below the job; returns the
    /// segments whose bytes are freed. Costs a message to each server, and one per 65,536 segments
    /// that it has in the range.
    ///
    /// # Errors
    /// As [`SegmentService::get_segments`].
    pub fn punch(&mut self, file: u128, range: Range<u64>) -> Result<Vec<Segment>> {
        self.unsynced.extend(self.map.servers());
        let parts = self.map.servers().iter().map(|server| (*server, range.clone())).collect();
        self.ask_in_turns(parts, |part| RankRequest::Punch(file, part))
    }

    /// Makes everything from `size` on a hole; otherwise as [`SegmentService::punch`].
    ///
    /// # Errors
    /// As [`SegmentService::punch`].
    pub fn truncate(&mut self, file: u128, size: u64) -> Result<Vec<Segment>> {
        self.punch(file, size..u64::MAX)
    }

    /// Removes all of `file`; otherwise as [`SegmentService::punch`].
    ///
    /// # Errors
    /// As [`SegmentService::punch`].
    pub fn remove(&mut self, file: u128) -> Result<Vec<Segment>> {
        self.truncate(file, 0)
    }

    /// Returns the segments, of any file, whose bytes are in `range` of log `log` of `set`, cut to
    /// it. For callers that move bytes and need their owners. Every server reads its whole index.
    ///
    /// # Errors
    /// As [`SegmentService::get_segments`]; `TooLarge` if a server has more than 65,536 of them:
    /// ask for a shorter range.
    pub fn holders(&mut self, set: SetId, log: u64, range: Range<u64>) -> Result<Vec<Segment>> {
        let servers = self.map.servers().to_vec();
        let replies = self.ask_all(servers, &RankRequest::Holders(set, log, range))?;
        let segments = replies.into_iter().map(ones_in).collect::<Result<Vec<_>>>()?;
        Ok(segments.concat())
    }

    /// Gives every rank all segments of `file` as of this call, so that look-ups need no further
    /// messages: they miss later puts, also of this rank. Collective. Costs a broadcast along the
    /// log-ring of each server's index of the file.
    ///
    /// # Errors
    /// As [`SegmentService::get_segments`], and errors of collectives.
    pub fn laminate(&mut self, file: u128) -> Result<SegmentSnapshot> {
        let drained = self.drain();
        self.agree(drained)?;
        let me = self.rank();
        let mut all = Vec::new();
        for server in self.map.servers().to_vec() {
            let mut index = Ok(Vec::new());
            if server == me {
                let runs = self.ask_all([me], &RankRequest::Index(file));
                let runs = runs.and_then(|replies| {
                    replies.into_iter().map(runs_in).collect::<Result<Vec<_>>>()
                });
                index = runs.map(|runs| SegmentLog::encode_batch(&runs.concat()));
            }
            let bytes = self.collectives.broadcast_result(server, index)?;
            let runs = SegmentLog::decode_batch(&bytes);
            all.extend(runs.map_err(|damage| damage.of(&format!("the index of {server}"), 0))?);
        }
        SegmentSnapshot::of(file, all)
    }

    /// Switches to another map; all ranks do so at the same time.
    pub(crate) fn set_map(&mut self, map: SliceMap) {
        self.map = Arc::new(map);
        let map = self.map.clone();
        self.exchange().server.set_map(map);
    }
}

fn runs_in(reply: RankReply) -> Result<Vec<SegmentRun>> {
    match reply {
        RankReply::Runs(runs) => Ok(runs),
        _ => Err(no_answer()),
    }
}

/// The segments of a reply that consists of single segments within bounds. Runs are refused, since
/// one may stand for more segments than memory holds.
fn ones_in(reply: RankReply) -> Result<Vec<Segment>> {
    let runs = runs_in(reply)?;
    if runs.len() > SEGMENTS_MAX {
        return Err(no_answer());
    }
    let one = |run: SegmentRun| (run.count == 1).then_some(run.first).ok_or_else(no_answer);
    runs.into_iter().map(one).collect()
}

/// The part of `asked` that an answer of `found` leaves open. Refuses an answer that makes no
/// progress.
fn rest_of(asked: &Range<u64>, found: &[Segment]) -> Result<Option<Range<u64>>> {
    let Some(last) = found.last().filter(|_| found.len() == SEGMENTS_MAX) else { return Ok(None) };
    // Segments do not overlap, so each advances the range by at least a byte.
    let at = last.end();
    if at > asked.end || at - asked.start.min(at) < SEGMENTS_MAX as u64 {
        return Err(no_answer());
    }
    Ok(Some(at..asked.end).filter(|rest| !rest.is_empty()))
}

pub(crate) fn no_answer() -> Error {
    Error::new(Kind::Corrupt, "a rank sent an answer of the wrong kind")
}

#[cfg(test)]
mod tests {
    use esker_extent::LogPlace;

    use super::*;

    #[test]
    fn a_run_where_single_segments_are_due_is_refused() {
        let place = Some(LogPlace { set: SetId(1), log: 2, offset: 0 });
        let first = Segment { file: 9, offset: 0, length: 1, place, checksum: None, seq: 0 };
        let one = SegmentRun::one(first);
        assert_eq!(ones_in(RankReply::Runs(vec![one, one])).unwrap(), [first, first]);
        assert!(ones_in(RankReply::Runs(vec![one; SEGMENTS_MAX])).is_ok());
        assert!(ones_in(RankReply::Runs(vec![one; SEGMENTS_MAX + 1])).is_err());
        let endless = SegmentRun { count: 1 << 62, stride: 1, log_stride: 1, first };
        assert!(endless.is_possible());
        for hostile in [RankReply::Runs(vec![one, endless]), RankReply::Number(1)] {
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
