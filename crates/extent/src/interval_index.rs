// SPDX-License-Identifier: Apache-2.0
//! Interval index: the segments of one file in one source; those in runs are found by arithmetic.
//!
//! Runs of one stride form a [`StrideGroup`]; segments in no group are a sorted list. No two
//! segments overlap: if any do, they are first cut to pieces in the order in which they were
//! written. Groups do not overlap each other: anything between the runs of a larger group is kept
//! as single segments.
//! Concurrency: immutable once built.

use std::convert::Infallible;
use std::ops::Range;

use esker_base::{Error, Kind, Result};
use hashbrown::HashMap;

use super::group::{LINES_MAX, StrideGroup, StrideLine};
use super::log_run_builder::RunPart;
use super::{LogRunBuilder, LooseSegments, NestedRun, Segment, SegmentMap, SegmentRun};

/// Maximum groups of a file.
const GROUPS_MAX: usize = 16;
/// Maximum phases of groups to walk while checking that single segments longer than a stride lie
/// between those of groups; the walk takes seconds. Programs write no such files.
const PHASES_WALKED_MAX: u64 = 1 << 26;
/// Maximum segments of the runs that fit no group; they become single segments.
const DISSOLVED_MAX: u64 = 1 << 18;
/// Maximum overlapping segments, which are cut one by one; more are refused.
pub(super) const CUT_MAX: u64 = 1 << 26;

/// The segments of one file, none of which overlap.
#[derive(Debug, Default)]
pub struct IntervalIndex {
    groups: Vec<StrideGroup>,
    /// The segments that are in no group, in order.
    singles: LooseSegments,
}

impl IntervalIndex {
    /// Builds an interval index of `written`, runs of one file; `None` if any two segments may
    /// overlap.
    #[must_use]
    pub fn of_apart(written: &[SegmentRun]) -> Option<Self> {
        let nests: Vec<NestedRun> = written.iter().map(|run| NestedRun::one(*run)).collect();
        Self::of_nests(&nests)
    }

    /// Builds an interval index as [`IntervalIndex::of_apart`] does, from nests; nests of one log
    /// are joined in the order of the log, unless the nests fit a few groups only as they are. The
    /// nests and single segments of an interval index therefore always make an interval index
    /// again.
    #[must_use]
    pub fn of_nests(written: &[NestedRun]) -> Option<Self> {
        Self::of_joined(written).or_else(|| Self::of_unjoined(written))
    }

    fn of_joined(written: &[NestedRun]) -> Option<Self> {
        let mut singles = LooseSegments::new(written.first()?.run.first.file);
        let mut strands: HashMap<_, Vec<&NestedRun>> = HashMap::new();
        for nest in written {
            match nest.run.first {
                Segment { place: Some(place), checksum: None, .. } => {
                    strands.entry((place.set, place.log)).or_default().push(nest);
                }
                _ => nest.runs().flat_map(|run| run.segments()).for_each(|one| singles.push(&one)),
            }
        }
        let mut nests = Vec::new();
        for ((set, log), mut of_log) in strands {
            let place = |nest: &NestedRun| nest.run.first.place.map(|place| place.offset);
            of_log.sort_by_key(|nest| (place(nest), nest.run.first.offset));
            let mut strand = LogRunBuilder::new(of_log[0].run.first.file, Some((set, log)));
            of_log.into_iter().for_each(|nest| strand.push_nest(nest));
            strand.close();
            nests.extend(strand.parts().filter_map(|part| match part {
                RunPart::Nest(nest) => Some(*nest),
                _ => None,
            }));
            // Loose segments do not keep the operation that wrote them; it is no longer needed.
            let seq = strand.seq_max();
            strand.singles().iter().for_each(|piece| singles.push(&strand.segment(piece, seq)));
        }
        Self::of_parts(nests, singles)
    }

    fn of_unjoined(written: &[NestedRun]) -> Option<Self> {
        let mut singles = LooseSegments::new(written.first()?.run.first.file);
        let (nests, alone): (Vec<NestedRun>, Vec<NestedRun>) =
            written.iter().partition(|nest| nest.run.count > 1);
        alone.iter().for_each(|nest| singles.push(&nest.run.first));
        Self::of_parts(nests, singles)
    }

    /// Builds an interval index of `nests` and `singles` of one file; `None` if any two segments
    /// may overlap.
    pub(super) fn of_parts(nests: Vec<NestedRun>, mut singles: LooseSegments) -> Option<Self> {
        let mut by_stride: HashMap<u64, (u64, Vec<NestedRun>)> = HashMap::new();
        for nest in nests {
            let of_stride = by_stride.entry(nest.run.stride).or_default();
            of_stride.0 = of_stride.0.saturating_add(nest.segments());
            of_stride.1.push(nest);
        }
        let mut strides: Vec<(u64, Vec<NestedRun>)> = by_stride.into_values().collect();
        strides.sort_unstable_by_key(|(segments, _)| std::cmp::Reverse(*segments));
        let mut groups: Vec<StrideGroup> = Vec::new();
        let (mut dissolved, mut lines_left) = (0u64, LINES_MAX);
        for (segments, of_stride) in strides {
            let nests = match StrideGroup::new(of_stride, lines_left) {
                Ok(group) if groups.len() < GROUPS_MAX && group.is_apart(&groups) => {
                    lines_left -= group.lines();
                    groups.push(group);
                    continue;
                }
                Ok(group) => group.nests().to_vec(),
                Err(nests) => nests,
            };
            dissolved = dissolved.saturating_add(segments);
            if dissolved > DISSOLVED_MAX {
                return None;
            }
            let runs = nests.iter().flat_map(NestedRun::runs);
            runs.flat_map(|run| run.segments()).for_each(|one| singles.push(&one));
        }
        groups.sort_unstable_by_key(|group| group.range.start);
        let is_apart = singles.sort();
        let lattice = Self { groups, singles };
        (is_apart && lattice.singles_are_between()).then_some(lattice)
    }

    /// Builds an interval index of `nests`, whose segments must not overlap. Nests that do not fit
    /// a few groups take memory for each segment. Returns `None` if two segments overlap, or there
    /// are too many.
    #[must_use]
    pub fn of_disjoint(nests: &[NestedRun]) -> Option<Self> {
        if let Some(lattice) = Self::of_nests(nests) {
            return Some(lattice);
        }
        let all = nests.iter().fold(0u64, |sum, nest| sum.saturating_add(nest.segments()));
        if all > CUT_MAX {
            return None;
        }
        let mut singles = LooseSegments::new(nests.first().map_or(0, |nest| nest.run.first.file));
        for run in nests.iter().flat_map(NestedRun::runs) {
            run.segments().for_each(|segment| singles.push(&segment));
        }
        singles.sort().then(|| Self { singles, ..Self::default() })
    }

    /// Returns whether no single segment overlaps one of a group; false also if it takes too long
    /// to find out, as it may for hostile segments.
    fn singles_are_between(&self) -> bool {
        let mut left = PHASES_WALKED_MAX;
        self.groups.iter().all(|group| {
            let from = self.singles.after(group.range.start);
            let inside = (from..self.singles.len()).map(|at| self.singles.get(at));
            let mut inside = inside.take_while(|single| single.offset < group.range.end);
            inside.all(|single| {
                let Some(rest) = left.checked_sub(group.phases_walked(single.length)) else {
                    return false;
                };
                left = rest;
                let range = single.offset..single.end();
                group.visit(&range, &mut |_, _| Err(())).is_ok()
            })
        })
    }

    /// Builds an interval index of `written`, `segments` segments that overlap, in the order in
    /// which they were written: the later one has the bytes. Takes memory for each segment.
    ///
    /// # Errors
    /// `TooLarge` if there are too many.
    pub fn cut(segments: u64, written: impl Iterator<Item = Segment>) -> Result<Self> {
        if segments > CUT_MAX {
            let what = format!("{segments} segments of one file, some of which overlap");
            return Err(Error::new(Kind::TooLarge, what));
        }
        let (mut map, mut file) = (SegmentMap::default(), 0);
        for segment in written {
            file = segment.file;
            map.insert(segment);
        }
        let mut singles = LooseSegments::new(file);
        map.iter().for_each(|segment| singles.push(&segment));
        Ok(Self { singles, ..Self::default() })
    }

    /// Returns its nests, which hold all but the single segments, in no order.
    pub fn nests(&self) -> impl Iterator<Item = &NestedRun> {
        self.groups.iter().flat_map(StrideGroup::nests)
    }

    /// Returns its runs, in no order.
    pub fn runs(&self) -> impl Iterator<Item = SegmentRun> {
        self.nests().flat_map(NestedRun::runs)
    }

    /// Returns the segments that are in no run, in order.
    #[must_use]
    pub fn singles(&self) -> &LooseSegments {
        &self.singles
    }

    /// Memory that it takes, in bytes, approximately.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let groups: usize = self.groups.iter().map(StrideGroup::bytes).sum();
        self.singles.bytes() + groups
    }

    /// Returns the segment that has the byte at `offset`.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<Segment> {
        for group in &self.groups {
            if let Some((_, run, index)) = group.find(offset) {
                return Some(run.segment(index));
            }
        }
        let after = self.singles.after(offset);
        let single = (after < self.singles.len()).then(|| self.singles.get(after));
        single.filter(|single| single.offset <= offset)
    }

    /// Visits the segments that overlap `range`, by offset within each group and within the loose
    /// segments. Stops with the error of `visit` if it fails.
    ///
    /// # Errors
    /// Errors of `visit`.
    pub fn visit<E>(
        &self,
        range: &Range<u64>,
        visit: &mut impl FnMut(&SegmentRun, u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for group in &self.groups {
            group.visit(range, visit)?;
        }
        for at in self.singles.after(range.start)..self.singles.len() {
            let single = self.singles.get(at);
            if single.offset >= range.end {
                break;
            }
            visit(&SegmentRun::one(single), 0)?;
        }
        Ok(())
    }

    /// Returns the segments that overlap `range`, in order.
    #[must_use]
    pub fn overlapping(&self, range: &Range<u64>) -> Vec<Segment> {
        let mut found = Vec::new();
        let mut collect = |run: &SegmentRun, index| {
            found.push(run.segment(index));
            Ok::<(), Infallible>(())
        };
        let Ok(()) = self.visit(range, &mut collect);
        if !self.groups.is_empty() && !self.singles.is_empty() {
            found.sort_unstable_by_key(|segment| segment.offset);
        }
        found
    }

    /// Returns up to `limit` segments from `from` on, in order; no segment may cross `from`. The
    /// result is complete up to the end of its last segment.
    #[must_use]
    pub fn chunk(&self, from: u64, limit: usize) -> Vec<Segment> {
        let mut found: Vec<Segment> = Vec::new();
        for group in &self.groups {
            let full = group.visit(&(from..u64::MAX), &mut |run, index| {
                found.push(run.segment(index));
                if found.len() >= limit { Err(()) } else { Ok(()) }
            });
            if full.is_err() {
                break;
            }
        }
        let start = self.singles.after(from);
        let end = self.singles.len().min(start.saturating_add(limit));
        let singles: Vec<Segment> = (start..end).map(|at| self.singles.get(at)).collect();
        // Each part is complete up to the end of its last segment.
        let bound_of = |part: &[Segment]| match part.last() {
            Some(last) if part.len() >= limit => last.end(),
            _ => u64::MAX,
        };
        let bound = bound_of(&found).min(bound_of(&singles));
        if found.is_empty() {
            return singles;
        }
        found.extend(singles);
        found.retain(|segment| segment.offset < bound);
        found.sort_unstable_by_key(|segment| segment.offset);
        found
    }

    /// Passes all segments to `visit`, in order.
    ///
    /// # Errors
    /// Errors of `visit`.
    pub fn for_each<E>(
        &self,
        visit: &mut (impl FnMut(&Segment) -> std::result::Result<(), E> + ?Sized),
    ) -> std::result::Result<(), E> {
        let mut singles = self.singles.iter().peekable();
        // Groups are apart and in order.
        for group in &self.groups {
            group.visit(&(0..u64::MAX), &mut |run, index| {
                let segment = run.segment(index);
                while let Some(single) = singles.next_if(|single| single.offset < segment.offset) {
                    visit(&single)?;
                }
                visit(&segment)
            })?;
        }
        singles.try_for_each(|single| visit(&single))
    }

    /// Finds the segments that have the bytes at `offsets`, and passes each index, its run and the
    /// index in that run to `found`. Offsets that follow one another as in a nest are found by
    /// addition.
    pub fn find_batch(&self, offsets: &[u64], found: &mut impl FnMut(usize, &SegmentRun, u64)) {
        // The last segment found, and the next offset of its run.
        let mut last: Option<(&StrideGroup, StrideLine, SegmentRun, u64)> = None;
        let mut expected = u64::MAX;
        for (at, &offset) in offsets.iter().enumerate() {
            if let Some((group, line, run, index)) = &mut last {
                if offset == expected && *index + 1 < run.count {
                    *index += 1;
                    expected = offset.wrapping_add(run.stride);
                    found(at, run, *index);
                    continue;
                }
                if let Some(next) = group.follows(line, offset) {
                    (*line, *run) = next;
                    *index = 0;
                    expected = offset.saturating_add(run.stride);
                    found(at, run, 0);
                    continue;
                }
            }
            last = self.groups.iter().find_map(|group| {
                let (line, run, index) = group.find(offset)?;
                Some((group, line, run, index))
            });
            match &last {
                Some((_, _, run, index)) => {
                    expected = offset.saturating_add(run.stride);
                    found(at, run, *index);
                }
                None => {
                    if let Some(single) = self.find(offset) {
                        found(at, &SegmentRun::one(single), 0);
                    }
                }
            }
        }
    }
}
