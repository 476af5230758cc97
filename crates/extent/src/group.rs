// SPDX-License-Identifier: Apache-2.0
//! Group: runs of one stride that interleave, such as those of ranks that take turns.
//!
//! The phase of a run is its start modulo the stride. The runs of each phase, here called lines,
//! are sorted by start. Finding an offset takes a remainder, a search among phases, and an
//! interpolation search among lines, which are evenly spaced if a program wrote a pattern. Listing
//! a range walks over bands: sequences of periods in which no line begins or ends. A line is stored
//! as the number of its nested run and its index there, in 16 bytes.
//! Concurrency: immutable once built.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use super::{NestedRun, SegmentRun};

/// Maximum lines of all groups of a file together. It bounds the memory that a hostile table can
/// claim: a quarter of a gigabyte for the lines, and about one gigabyte while they are sorted.
/// Runs that do not fit are kept as single segments.
pub(super) const LINES_MAX: u64 = 1 << 24;

/// Lines of one stride, none of whose segments overlap.
#[derive(Debug)]
pub(super) struct StrideGroup {
    nested_runs: Vec<NestedRun>,
    stride: u64,
    /// The range from the first byte to the last.
    pub(super) range: Range<u64>,
    phases: Vec<StridePhase>,
    /// The lines of one phase after another, each phase by start.
    lines: Vec<StrideLine>,
}

/// Lines that start at the same offset within a period.
#[derive(Clone, Copy, Debug)]
struct StridePhase {
    /// That offset.
    start: u64,
    /// The length of the longest segment.
    length: u64,
    /// The lines, as a range of indices.
    from: u32,
    to: u32,
}

/// One run of a nested run.
#[derive(Clone, Copy, Debug)]
pub(super) struct StrideLine {
    start: u64,
    nested: u32,
    index: u32,
}

impl StrideLine {
    #[inline]
    fn run(&self, nested_runs: &[NestedRun]) -> SegmentRun {
        nested_runs[self.nested as usize].run(self.index.into())
    }

    /// The start of its last segment.
    #[inline]
    fn last_start(&self, nested_runs: &[NestedRun]) -> u64 {
        let run = &nested_runs[self.nested as usize].run;
        self.start + (run.count - 1) * run.stride
    }
}

/// A line that crosses the band, and the index of its segment there.
type ActiveLine = (SegmentRun, u64);

impl StrideGroup {
    /// Builds a group from `nested_runs`, all of one stride. Returns them unchanged if any two
    /// lines may overlap, or there are more than `lines_max`.
    pub(super) fn new(nested_runs: Vec<NestedRun>, lines_max: u64) -> Result<Self, Vec<NestedRun>> {
        match Self::sorted(&nested_runs, lines_max) {
            Some(group) => Ok(Self { nested_runs, ..group }),
            None => Err(nested_runs),
        }
    }

    /// Builds the group of `nested_runs`, which the caller then moves into it.
    fn sorted(nested_runs: &[NestedRun], lines_max: u64) -> Option<Self> {
        let stride = nested_runs.first()?.run.stride;
        let all = nested_runs.iter().try_fold(0u64, |sum, nested| {
            Some(sum.checked_add(nested.count)?).filter(|sum| *sum <= lines_max)
        })?;
        let mut keyed: Vec<(u64, StrideLine)> = Vec::with_capacity(all as usize);
        for (number, nested) in (0u32..).zip(nested_runs) {
            let (mut start, mut phase) =
                (nested.run.first.offset, nested.run.first.offset % stride);
            let step = nested.stride % stride;
            for index in 0..nested.count as u32 {
                keyed.push((phase, StrideLine { start, nested: number, index }));
                start = start.wrapping_add(nested.stride);
                let until_next = stride - phase;
                phase = if step >= until_next { step - until_next } else { phase + step };
            }
        }
        keyed.sort_unstable_by_key(|(phase, line)| (*phase, line.start));
        let (mut end, mut start) = (0, u64::MAX);
        let mut phases: Vec<StridePhase> = Vec::new();
        for (at, (phase, line)) in keyed.iter().enumerate() {
            let length = nested_runs[line.nested as usize].run.first.length;
            match phases.last_mut() {
                Some(last) if last.start == *phase => {
                    let before = &keyed[at - 1].1;
                    let before_length = nested_runs[before.nested as usize].run.first.length;
                    if before.last_start(nested_runs) + before_length > line.start {
                        return None;
                    }
                    last.length = last.length.max(length);
                    last.to += 1;
                }
                _ => {
                    let at = at as u32;
                    phases.push(StridePhase { start: *phase, length, from: at, to: at + 1 });
                }
            }
            start = start.min(line.start);
            end = end.max(line.last_start(nested_runs) + length);
        }
        let end_of = |phase: &StridePhase| phase.start.saturating_add(phase.length);
        let apart = phases.windows(2).all(|pair| end_of(&pair[0]) <= pair[1].start);
        let (first, last) = (phases.first()?, phases.last()?);
        // The last phase may reach into the next period, up to its first phase.
        if !apart || end_of(last) > first.start.checked_add(stride)? {
            return None;
        }
        let lines = keyed.into_iter().map(|(_, line)| line).collect();
        Some(Self { nested_runs: Vec::new(), stride, range: start..end, phases, lines })
    }

    /// Returns whether its bytes are entirely before or after those of each of `others`.
    pub(super) fn is_apart(&self, others: &[Self]) -> bool {
        let own = &self.range;
        others.iter().all(|other| own.end <= other.range.start || other.range.end <= own.start)
    }

    /// The nested runs that it is made of.
    pub(super) fn nested_runs(&self) -> &[NestedRun] {
        &self.nested_runs
    }

    /// Returns the maximum number of phases that a visit of `length` bytes examines without finding
    /// a segment.
    pub(super) fn phases_walked(&self, length: u64) -> u64 {
        if length < self.stride { 0 } else { self.phases.len() as u64 }
    }

    pub(super) fn lines(&self) -> u64 {
        self.lines.len() as u64
    }

    /// Memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.lines[..])
            + size_of_val(&self.phases[..])
            + size_of_val(&self.nested_runs[..])
    }

    /// Returns the last line of `phase` that starts at or before `offset`.
    #[inline]
    fn line_at(&self, phase: &StridePhase, offset: u64) -> Option<usize> {
        let lines = &self.lines[phase.from as usize..phase.to as usize];
        let (first, last) = (lines.first()?.start, lines.last()?.start);
        if offset < first {
            return None;
        }
        let base = phase.from as usize;
        if offset >= last {
            return Some(base + lines.len() - 1);
        }
        let share = (offset - first) as f64 / (last - first) as f64;
        let guess = ((share * (lines.len() - 1) as f64) as usize).min(lines.len() - 1);
        // The line is in `low..high`.
        let (mut low, mut high, mut step) = (guess, guess, 1);
        if lines[guess].start <= offset {
            high += 1;
            while high < lines.len() && lines[high].start <= offset {
                low = high;
                high = (high + step).min(lines.len());
                step *= 2;
            }
        } else {
            while lines[low].start > offset {
                high = low;
                low = low.saturating_sub(step);
                step *= 2;
            }
        }
        Some(base + low + lines[low..high].partition_point(|line| line.start <= offset) - 1)
    }

    /// Returns the segment that has the byte at `offset`: its line, its run, and its index in the
    /// run.
    #[inline]
    pub(super) fn find(&self, offset: u64) -> Option<(StrideLine, SegmentRun, u64)> {
        if !self.range.contains(&offset) {
            return None;
        }
        let remainder = offset % self.stride;
        let after = self.phases.partition_point(|phase| phase.start <= remainder);
        // Before the first phase of a period, only the last phase of the previous one can reach.
        let phase = match after.checked_sub(1) {
            Some(before) => &self.phases[before],
            None => self.phases.last()?,
        };
        let line = self.lines[self.line_at(phase, offset)?];
        let run = line.run(&self.nested_runs);
        let index = (offset - line.start) / self.stride;
        let within = offset - line.start - index * self.stride;
        (index < run.count && within < run.first.length).then_some((line, run, index))
    }

    /// Returns the line after `line` in its nested run, if it starts at `offset`.
    #[inline]
    pub(super) fn follows(
        &self,
        line: &StrideLine,
        offset: u64,
    ) -> Option<(StrideLine, SegmentRun)> {
        let nested = &self.nested_runs[line.nested as usize];
        let index = line.index + 1;
        let start = line.start.checked_add(nested.stride)?;
        (u64::from(index) < nested.count && start == offset).then(|| {
            let line = StrideLine { start, index, ..*line };
            (line, line.run(&self.nested_runs))
        })
    }

    /// Visits, in order, the segments that overlap `range`, as runs and indices.
    pub(super) fn visit<E>(
        &self,
        range: &Range<u64>,
        visit: &mut impl FnMut(&SegmentRun, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let from = range.start.max(self.range.start);
        let to = range.end.min(self.range.end);
        if from >= to {
            return Ok(());
        }
        if let Some((_, run, index)) = self.find(from)
            && run.segment(index).offset < from
        {
            visit(&run, index)?;
        }
        // The visit examines the phases in the period of `from` one by one, so that a visit that
        // ends early, or has a small range, costs no more than what it finds.
        let first = from - from % self.stride;
        let begins = self.phases.partition_point(|phase| phase.start < from - first);
        self.visit_period(begins, first, to, visit)?;
        let Some(second) = first.checked_add(self.stride).filter(|second| *second < to) else {
            return Ok(());
        };
        let ends = self.stride_end(second, to);
        if ends < self.phases.len() {
            return self.visit_period(0, second, to, visit);
        }
        self.visit_bands(second..to, visit)
    }

    /// Returns how many phases begin before `to` in the period at `period`.
    fn stride_end(&self, period: u64, to: u64) -> usize {
        self.phases.partition_point(|phase| phase.start < to - period)
    }

    /// Visits the segments that begin in the period at `period` and before `to`, from the phase
    /// number `begins` on.
    fn visit_period<E>(
        &self,
        begins: usize,
        period: u64,
        to: u64,
        visit: &mut impl FnMut(&SegmentRun, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let ends = self.stride_end(period, to).max(begins);
        for phase in &self.phases[begins..ends] {
            let Some(start) = period.checked_add(phase.start) else { break };
            let Some(line) = self.line_at(phase, start) else { continue };
            let (line, run) = (&self.lines[line], self.lines[line].run(&self.nested_runs));
            let index = (start - line.start) / self.stride;
            if index < run.count {
                visit(&run, index)?;
            }
        }
        Ok(())
    }

    /// Visits the segments that begin in `range`, which starts with a period.
    fn visit_bands<E>(
        &self,
        range: Range<u64>,
        visit: &mut impl FnMut(&SegmentRun, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut bands = LineBands::new(self, range.start);
        let mut active: Vec<ActiveLine> = Vec::new();
        let mut period = range.start;
        while period < range.end {
            let band = bands.advance(period, &mut active);
            let last = active.last().map_or(period, |(run, index)| run.segment(*index).offset);
            if last >= range.end {
                return self.visit_period(0, period, range.end, visit);
            }
            let periods = band.min((range.end - 1 - last) / self.stride + 1);
            if !active.is_empty() {
                for period in 0..periods {
                    for (run, index) in &active {
                        visit(run, index + period)?;
                    }
                }
            }
            let after = periods.checked_mul(self.stride).and_then(|by| period.checked_add(by));
            let Some(after) = after else { return Ok(()) };
            period = after;
        }
        Ok(())
    }
}

/// The bands of a group in order. A step from one band to the next examines only the phases whose
/// lines change, so all bands together take time in proportion to the number of lines, wherever
/// lines begin and end.
struct LineBands<'a> {
    group: &'a StrideGroup,
    /// The period at which a phase changes next, the phase, and its first line that may not have
    /// ended.
    changes: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// By phase, the line that crosses the band, which starts at the offset.
    active: BTreeMap<u32, (SegmentRun, u64)>,
}

impl<'a> LineBands<'a> {
    /// The bands from the period at `period` on.
    fn new(group: &'a StrideGroup, period: u64) -> Self {
        let first = |(number, phase): (u32, &StridePhase)| {
            let before = group.line_at(phase, period.saturating_add(phase.start));
            Reverse((period, number, before.map_or(phase.from, |line| line as u32)))
        };
        let changes = (0u32..).zip(&group.phases).map(first).collect();
        Self { group, changes, active: BTreeMap::new() }
    }

    /// Collects the lines that have a segment in the period at `period`, which follows the previous
    /// band, into `active`. Returns the number of periods for which these lines stay the same.
    fn advance(&mut self, period: u64, active: &mut Vec<ActiveLine>) -> u64 {
        while let Some(&Reverse((at, number, line))) = self.changes.peek()
            && at <= period
        {
            self.changes.pop();
            if let Some((at, line)) = self.change(period, number, line) {
                self.changes.push(Reverse((at, number, line)));
            }
        }
        let stride = self.group.stride;
        active.clear();
        active.extend(self.active.iter().map(|(number, (run, start))| {
            let phase = &self.group.phases[*number as usize];
            (*run, (period + phase.start - start) / stride)
        }));
        self.changes.peek().map_or(u64::MAX, |Reverse((at, ..))| (at - period) / stride)
    }

    /// Finds the line of phase `number` that has a segment in the period at `period`, starting at
    /// `line`. Returns the period at which the phase changes next, if it does, and the line at
    /// which to start then.
    fn change(&mut self, period: u64, number: u32, mut line: u32) -> Option<(u64, u32)> {
        let (group, phase) = (self.group, &self.group.phases[number as usize]);
        self.active.remove(&number);
        let start = period.checked_add(phase.start)?;
        while line < phase.to && group.lines[line as usize].last_start(&group.nested_runs) < start {
            line += 1;
        }
        let next = group.lines[..phase.to as usize].get(line as usize)?;
        if next.start > start {
            return Some((period.checked_add(next.start - start)?, line));
        }
        let run = next.run(&group.nested_runs);
        self.active.insert(number, (run, next.start));
        let periods = run.count - (start - next.start) / group.stride;
        Some((periods.checked_mul(group.stride)?.checked_add(period)?, line))
    }
}
