// SPDX-License-Identifier: Apache-2.0
//! Server: handles the requests for the slices that this rank owns.
//!
//! Its segments are in the tree of a part of the job that holds nothing else, in order of arrival:
//! writes of a byte are ordered by their arrival here, no matter which rank sent them.
//! Invariant: the tree holds segments only of slices that this rank owns.

use std::ops::Range;
use std::sync::Arc;

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_comm::Rank;
use esker_extent::{
    LogPlace, OPERATION_SEGMENTS_MAX, Segment, SegmentOverlay, SegmentRun, TreeExtents,
};
use esker_fs::data::read_mapped;
use esker_fs::session::Session;
use esker_table::manifest::SetId;
use esker_table::tree::Tree;

use crate::message::{RankReply, RankRequest, SEGMENTS_MAX, ones};
use crate::slices::{SLOTS, SliceMap};

/// Bytes of a range's first scan step; steps double while they find few segments. This bounds one
/// step's result to about one answer, except where a sparse file becomes dense.
const LOOK_BYTES: u64 = 1 << 20;

/// The owner's side of the service.
#[derive(Debug)]
pub(crate) struct SegmentServer {
    me: Rank,
    /// Its tree holds the segments; `None` on a rank that is not a server.
    index: Option<Arc<Session>>,
    store: SharedStore,
    map: Arc<SliceMap>,
    /// Change sets whose logs this rank reads for others.
    sets: Vec<SetId>,
    /// Segments put or looked up, by slot, since the counters were last reset.
    load: Vec<u64>,
}

impl SegmentServer {
    pub fn new(
        me: Rank,
        index: Option<Arc<Session>>,
        store: SharedStore,
        map: Arc<SliceMap>,
    ) -> Self {
        Self { me, index, store, map, sets: Vec::new(), load: vec![0; SLOTS] }
    }

    /// Replaces the map after slices have moved.
    pub fn set_map(&mut self, map: Arc<SliceMap>) {
        self.map = map;
    }

    /// Reads the logs of `set` for others, too.
    pub fn add_set(&mut self, set: SetId) {
        self.sets.push(set);
    }

    /// Total load since the counters were last reset.
    pub fn work(&self) -> u64 {
        self.load.iter().fold(0, |sum, own| sum.saturating_add(*own))
    }

    /// Returns the load by slot, and resets the counters.
    pub fn take_load(&mut self) -> Vec<u64> {
        std::mem::replace(&mut self.load, vec![0; SLOTS])
    }

    /// The session whose tree holds this rank's segments.
    fn index(&self) -> Result<&Session> {
        let no_server = || Error::new(Kind::Invalid, format!("{} is not a server", self.me));
        self.index.as_deref().ok_or_else(no_server)
    }

    fn tree(&self) -> Result<&Tree> {
        Ok(self.index()?.namespace().layers().writer().expect("a session writes"))
    }

    fn extents(&self) -> Result<TreeExtents<'_>> {
        self.tree().map(TreeExtents::of)
    }

    /// Executes `request`.
    pub fn answer(&mut self, request: RankRequest) -> Result<RankReply> {
        match request {
            RankRequest::Put(runs) => self.put(runs).map(|()| RankReply::Runs(Vec::new())),
            RankRequest::Sync => self.tree()?.sync().map(|()| RankReply::Runs(Vec::new())),
            RankRequest::Range(file, range) => {
                let (pieces, _) = self.first_pieces(file, range, |_| true)?;
                pieces.iter().for_each(|piece| self.count_put(piece, 1));
                Ok(RankReply::Runs(ones(&pieces)))
            }
            RankRequest::Locate(file, offsets) => self.locate(file, &offsets),
            RankRequest::Punch(file, range) => self.punch(file, range),
            RankRequest::Index(file) => Ok(RankReply::Runs(self.extents()?.segment_runs(file)?)),
            RankRequest::End(file) => {
                let runs = self.extents()?.segment_runs(file)?;
                let placed = runs.iter().filter(|run| run.first.place.is_some());
                Ok(RankReply::Number(placed.map(SegmentRun::end).max().unwrap_or(0)))
            }
            RankRequest::Holders(set, log, range) => self.holders(set, log, &range),
            RankRequest::Fetch(runs) => self.fetch(&runs),
        }
    }

    fn count_put(&mut self, segment: &Segment, count: u64) {
        let slot = self.map.slot(segment.file, segment.offset);
        self.load[slot] = self.load[slot].saturating_add(count);
    }

    fn put(&mut self, mut runs: Vec<SegmentRun>) -> Result<()> {
        let Some(first) = runs.first() else { return Ok(()) };
        let file = first.first.file;
        for run in &runs {
            if run.first.file != file || !self.map.is_all_of(self.me, run) {
                let what = format!("segments of file {file:032x} that are not {}'s", self.me);
                return Err(Error::new(Kind::Invalid, what));
            }
            self.count_put(&run.first, run.count);
        }
        self.extents()?.put_runs(file, &mut runs).map(drop)
    }

    fn locate(&mut self, file: u128, offsets: &[u64]) -> Result<RankReply> {
        if offsets.contains(&u64::MAX) {
            return Err(Error::new(Kind::Invalid, "an offset beyond the last possible byte"));
        }
        // An absent byte is answered with a hole of one byte.
        let absent = |offset: &u64| Segment::hole(file, *offset, 1);
        let mut found: Vec<Segment> = offsets.iter().map(absent).collect();
        self.extents()?.find_segments(file, offsets, &mut |at, run, index| {
            found[at] = run.segment(index);
        })?;
        found.iter().for_each(|segment| self.count_put(segment, 1));
        Ok(RankReply::Runs(ones(&found)))
    }

    /// The first `wanted` pieces of `range`, cut to it, and the end of the part of the range that
    /// they cover: the end of the range, or of the last piece if there are [`SEGMENTS_MAX`].
    fn first_pieces(
        &self,
        file: u128,
        range: Range<u64>,
        wanted: impl Fn(&Segment) -> bool,
    ) -> Result<(Vec<Segment>, u64)> {
        let extents = self.extents()?;
        let (mut found, mut at, mut span) = (Vec::new(), range.start, LOOK_BYTES);
        while at < range.end {
            let end = at.saturating_add(span).min(range.end);
            let mut pieces = extents.segments_within(file, at..end)?;
            if pieces.len() < SEGMENTS_MAX / 4 {
                span = span.saturating_mul(2);
            }
            at = end;
            // A piece that may continue is read again, as a whole.
            let cut = pieces.pop_if(|last| end < range.end && last.end() == end);
            at = cut.map_or(at, |cut| cut.offset);
            found.extend(pieces.into_iter().filter(&wanted));
            if found.len() >= SEGMENTS_MAX {
                found.truncate(SEGMENTS_MAX);
                let end = found[SEGMENTS_MAX - 1].end();
                return Ok((found, end));
            }
        }
        Ok((found, range.end))
    }

    /// Puts holes only where this rank or a layer below has bytes in `range`, which bounds the cost
    /// of a punch by the data present. Returns this rank's segments that the holes hide.
    fn punch(&mut self, file: u128, range: Range<u64>) -> Result<RankReply> {
        let is_placed = |piece: &Segment| piece.place.is_some();
        let (freed, end) = self.first_pieces(file, range.clone(), is_placed)?;
        let mut below = SegmentOverlay::new(file, range.start..end);
        self.index()?.shared_content().add_below(&mut below)?;
        let mut holes: Vec<Segment> = Vec::new();
        for piece in freed.iter().chain(below.pieces()).filter(|piece| is_placed(piece)) {
            for (owner, part) in self.map.pieces(file, piece.offset..piece.end()) {
                let hole = Segment::hole(file, part.start, part.end - part.start);
                match holes.last_mut().filter(|last| last.is_followed_by(&hole)) {
                    _ if owner != self.me => {}
                    Some(last) => *last = last.joined(&hole),
                    None => holes.push(hole),
                }
            }
        }
        for batch in holes.chunks_mut(OPERATION_SEGMENTS_MAX) {
            self.extents()?.put_segments(batch)?;
        }
        Ok(RankReply::Runs(ones(&freed)))
    }

    fn holders(&self, set: SetId, log: u64, range: &Range<u64>) -> Result<RankReply> {
        let mut found = Vec::new();
        for file in self.extents()?.segment_files()? {
            for run in self.extents()?.segment_runs(file)? {
                let is_there = |place: &LogPlace| (place.set, place.log) == (set, log);
                let Some(place) = run.first.place.filter(is_there) else { continue };
                for index in indices_within(&run, place.offset, range) {
                    if found.len() == SEGMENTS_MAX {
                        let what = format!(
                            "{} has more than {SEGMENTS_MAX} segments in bytes {range:?} of the log: \
                             ask for fewer bytes",
                            self.me
                        );
                        return Err(Error::new(Kind::TooLarge, what));
                    }
                    let segment = run.segment(index);
                    let at = segment.place.map_or(0, |place| place.offset);
                    let start = range.start.max(at) - at;
                    let end = range.end.min(at + segment.length) - at;
                    let part = segment.part(segment.offset + start, segment.offset + end);
                    found.push(SegmentRun::one(part));
                }
            }
        }
        Ok(RankReply::Runs(found))
    }

    fn fetch(&self, runs: &[SegmentRun]) -> Result<RankReply> {
        let mut pieces: Vec<Segment> = Vec::with_capacity(runs.len());
        let mut end = 0;
        for run in runs {
            if run.first.place.is_none_or(|place| !self.sets.contains(&place.set)) {
                let what = format!("bytes in logs that are not {}'s", self.me);
                return Err(Error::new(Kind::Invalid, what));
            }
            pieces.push(Segment { offset: end, ..run.first });
            end += run.first.length;
        }
        Ok(RankReply::Bytes(read_mapped(&*self.store, 0..end, &pieces)?.to_vec()))
    }
}

/// The indices of the segments of `run` that have bytes in `range` of its log; the run's first
/// segment is at `start` of the log.
fn indices_within(run: &SegmentRun, start: u64, range: &Range<u64>) -> Range<u64> {
    let length = run.first.length;
    if range.is_empty() || range.end <= start {
        return 0..0;
    }
    if run.log_stride == 0 {
        return 0..if range.start < start + length { run.count } else { 0 };
    }
    let first = (range.start + 1).saturating_sub(start + length).div_ceil(run.log_stride);
    let end = (range.end - start).div_ceil(run.log_stride).min(run.count);
    first.min(end)..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_those_of_segments_that_have_bytes_of_the_range() {
        for (start, length, count, log_stride) in
            [(10, 5, 7, 5), (0, 1, 20, 3), (3, 10, 4, 2), (7, 4, 3, 0), (50, 1, 1, 1)]
        {
            let place = Some(LogPlace { set: SetId(1), log: 2, offset: start });
            let first = Segment { file: 9, offset: 0, length, place, checksum: None, seq: 0 };
            let run = SegmentRun { first, count, stride: 10, log_stride };
            for low in 0..70 {
                for high in low..70 {
                    let has_some = |index: &u64| {
                        let at = start + index * log_stride;
                        low < high && at < high && at + length > low
                    };
                    let wanted: Vec<u64> = (0..count).filter(has_some).collect();
                    let got: Vec<u64> = indices_within(&run, start, &(low..high)).collect();
                    assert_eq!(got, wanted, "{run:?} in {low}..{high}");
                }
            }
        }
        let place = Some(LogPlace { set: SetId(1), log: 2, offset: 0 });
        let first = Segment { file: 9, offset: 0, length: 1, place, checksum: None, seq: 0 };
        let endless = SegmentRun { first, count: 1 << 62, stride: 1, log_stride: 1 };
        assert_eq!(indices_within(&endless, 0, &(7..9)), 7..9);
        assert!(indices_within(&endless, 0, &(u64::MAX - 1..u64::MAX)).is_empty());
    }
}
