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
    loose: LooseSegments,
}

impl IntervalIndex {
    /// Builds an interval index of `written`, runs of one file; `None` if any two segments may
    /// overlap.
    #[must_use]
    pub fn of_apart(written: &[SegmentRun]) -> Option<Self> {
        let nested_runs: Vec<NestedRun> = written.iter().map(|run| NestedRun::one(*run)).collect();
        Self::of_nested_runs(&nested_runs)
    }

    /// Builds an interval index as [`IntervalIndex::of_apart`] does, from nested runs; those of one
    /// log are joined in the order of the log, unless they fit a few groups only as they are. The
    /// nested runs and single segments of an interval index therefore always make an interval index
    /// again.
    #[must_use]
    pub fn of_nested_runs(written: &[NestedRun]) -> Option<Self> {
        Self::of_joined(written).or_else(|| Self::of_unjoined(written))
    }

    fn of_joined(written: &[NestedRun]) -> Option<Self> {
        let mut loose = LooseSegments::new(written.first()?.run.first.file);
        let mut by_log: HashMap<_, Vec<&NestedRun>> = HashMap::new();
        for nested in written {
            match nested.run.first {
                Segment { place: Some(place), checksum: None, .. } => {
                    by_log.entry((place.set, place.log)).or_default().push(nested);
                }
                _ => nested.runs().flat_map(|run| run.segments()).for_each(|one| loose.push(&one)),
            }
        }
        let mut nested_runs = Vec::new();
        for ((set, log), mut of_log) in by_log {
            let log_offset = |nested: &NestedRun| nested.run.first.place.map(|place| place.offset);
            of_log.sort_by_key(|nested| (log_offset(nested), nested.run.first.offset));
            let mut builder = LogRunBuilder::new(of_log[0].run.first.file, Some((set, log)));
            of_log.into_iter().for_each(|nested| builder.push_nested(nested));
            builder.close();
            nested_runs.extend(builder.parts().filter_map(|part| match part {
                RunPart::Nested(nested) => Some(*nested),
                _ => None,
            }));
            // Loose segments do not keep the operation that wrote them; it is no longer needed.
            let seq = builder.seq_max();
            builder
                .loose_segments()
                .iter()
                .for_each(|piece| loose.push(&builder.segment(piece, seq)));
        }
        Self::of_parts(nested_runs, loose)
    }

    fn of_unjoined(written: &[NestedRun]) -> Option<Self> {
        let mut loose = LooseSegments::new(written.first()?.run.first.file);
        let (nested_runs, alone): (Vec<NestedRun>, Vec<NestedRun>) =
            written.iter().partition(|nested| nested.run.count > 1);
        alone.iter().for_each(|nested| loose.push(&nested.run.first));
        Self::of_parts(nested_runs, loose)
    }

    /// Builds an interval index of `nested_runs` and `loose` of one file; `None` if any two
    /// segments may overlap.
    pub(super) fn of_parts(nested_runs: Vec<NestedRun>, mut loose: LooseSegments) -> Option<Self> {
        let mut by_stride: HashMap<u64, (u64, Vec<NestedRun>)> = HashMap::new();
        for nested in nested_runs {
            let of_stride = by_stride.entry(nested.run.stride).or_default();
            of_stride.0 = of_stride.0.saturating_add(nested.segments());
            of_stride.1.push(nested);
        }
        let mut strides: Vec<(u64, Vec<NestedRun>)> = by_stride.into_values().collect();
        strides.sort_unstable_by_key(|(segments, _)| std::cmp::Reverse(*segments));
        let mut groups: Vec<StrideGroup> = Vec::new();
        let (mut dissolved, mut lines_left) = (0u64, LINES_MAX);
        for (segments, of_stride) in strides {
            let nested_runs = match StrideGroup::new(of_stride, lines_left) {
                Ok(group) if groups.len() < GROUPS_MAX && group.is_apart(&groups) => {
                    lines_left -= group.lines();
                    groups.push(group);
                    continue;
                }
                Ok(group) => group.nested_runs().to_vec(),
                Err(nested_runs) => nested_runs,
            };
            dissolved = dissolved.saturating_add(segments);
            if dissolved > DISSOLVED_MAX {
                return None;
            }
            let runs = nested_runs.iter().flat_map(NestedRun::runs);
            runs.flat_map(|run| run.segments()).for_each(|one| loose.push(&one));
        }
        groups.sort_unstable_by_key(|group| group.range.start);
        let is_apart = loose.sort();
        let intervals = Self { groups, loose };
        (is_apart && intervals.loose_are_between()).then_some(intervals)
    }

    /// Builds an interval index of `nested_runs`, whose segments must not overlap. Nested runs that
    /// do not fit a few groups take memory for each segment. Returns `None` if two segments
    /// overlap, or there are too many.
    #[must_use]
    pub fn of_disjoint(nested_runs: &[NestedRun]) -> Option<Self> {
        if let Some(intervals) = Self::of_nested_runs(nested_runs) {
            return Some(intervals);
        }
        let all =
            nested_runs.iter().fold(0u64, |sum, nested| sum.saturating_add(nested.segments()));
        if all > CUT_MAX {
            return None;
        }
        let mut loose =
            LooseSegments::new(nested_runs.first().map_or(0, |nested| nested.run.first.file));
        for run in nested_runs.iter().flat_map(NestedRun::runs) {
            run.segments().for_each(|segment| loose.push(&segment));
        }
        loose.sort().then(|| Self { loose, ..Self::default() })
    }

    /// Returns whether no single segment overlaps one of a group; false also if it takes too long
    /// to find out, as it may for hostile segments.
    fn loose_are_between(&self) -> bool {
        let mut left = PHASES_WALKED_MAX;
        self.groups.iter().all(|group| {
            let from = self.loose.after(group.range.start);
            let inside = (from..self.loose.len()).map(|at| self.loose.get(at));
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
        let mut loose = LooseSegments::new(file);
        map.iter().for_each(|segment| loose.push(&segment));
        Ok(Self { loose, ..Self::default() })
    }

    /// Returns its nested runs, which hold all but the single segments, in no order.
    pub fn nested_runs(&self) -> impl Iterator<Item = &NestedRun> {
        self.groups.iter().flat_map(StrideGroup::nested_runs)
    }

    /// Returns its runs, in no order.
    pub fn runs(&self) -> impl Iterator<Item = SegmentRun> {
        self.nested_runs().flat_map(NestedRun::runs)
    }

    /// Returns the segments that are in no run, in order.
    #[must_use]
    pub fn loose_segments(&self) -> &LooseSegments {
        &self.loose
    }

    /// Memory that it takes, in bytes, approximately.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let groups: usize = self.groups.iter().map(StrideGroup::bytes).sum();
        self.loose.bytes() + groups
    }

    /// Returns the segment that has the byte at `offset`.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<Segment> {
        for group in &self.groups {
            if let Some((_, run, index)) = group.find(offset) {
                return Some(run.segment(index));
            }
        }
        let after = self.loose.after(offset);
        let single = (after < self.loose.len()).then(|| self.loose.get(after));
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
        for at in self.loose.after(range.start)..self.loose.len() {
            let single = self.loose.get(at);
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
        if !self.groups.is_empty() && !self.loose.is_empty() {
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
        let start = self.loose.after(from);
        let end = self.loose.len().min(start.saturating_add(limit));
        let loose: Vec<Segment> = (start..end).map(|at| self.loose.get(at)).collect();
        // Each part is complete up to the end of its last segment.
        let bound_of = |part: &[Segment]| match part.last() {
            Some(last) if part.len() >= limit => last.end(),
            _ => u64::MAX,
        };
        let bound = bound_of(&found).min(bound_of(&loose));
        if found.is_empty() {
            return loose;
        }
        found.extend(loose);
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
        let mut loose = self.loose.iter().peekable();
        // Groups are apart and in order.
        for group in &self.groups {
            group.visit(&(0..u64::MAX), &mut |run, index| {
                let segment = run.segment(index);
                while let Some(single) = loose.next_if(|single| single.offset < segment.offset) {
                    visit(&single)?;
                }
                visit(&segment)
            })?;
        }
        loose.try_for_each(|single| visit(&single))
    }

    /// Finds the segments that have the bytes at `offsets`, and passes each index, its run and the
    /// index in that run to `found`. Offsets that follow one another as in a nested run are found
    /// by addition.
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
