//! Lattice: the segments of one file in one source, found by arithmetic where they are runs.
//!
//! Runs of one stride S that interleave, as those of ranks that take turns do, are told apart by
//! where in a period of S they start. So a group of runs with one stride is a sorted list of such
//! phases, and for each phase the runs that have it, in order: to find an offset takes a remainder
//! and two binary searches, and to list a range a walk over periods and phases. Segments that are
//! in no run are a sorted list. All this only if no two overlap; if any do, they are cut to pieces
//! first, in the order in which they were written.
//! Concurrency: immutable once built.

use std::ops::Range;

use esker_base::{Error, Kind, Result};

use super::{LogPlace, Segment, SegmentMap, SegmentRun};

/// A file's segments fall into at most this many groups; more are cut to single ones.
const GROUPS_MAX: usize = 16;
/// Segments that overlap are cut one by one; more than this are refused.
const CUT_MAX: u64 = 1 << 26;
/// Segments that are looked at together.
const CHUNK_SEGMENTS: usize = 1 << 12;
/// Fewer segments than this are not worth a run.
const RUN_MIN: usize = 4;

/// The segments of one file, none of which overlap.
#[derive(Debug, Default)]
pub struct Lattice {
    groups: Vec<Group>,
    /// Those that are in no group, in order.
    singles: Vec<Segment>,
}

/// Runs of one stride.
#[derive(Debug)]
struct Group {
    stride: u64,
    /// From the first byte to the last.
    range: Range<u64>,
    phases: Vec<Phase>,
    /// Phase after phase, in each by offset.
    runs: Vec<SegmentRun>,
    /// Where each starts, close together to be searched.
    starts: Vec<u64>,
}

/// Runs that start at the same place of a period.
#[derive(Clone, Copy, Debug)]
struct Phase {
    /// Where that is.
    start: u64,
    /// The longest segments.
    length: u64,
    /// Its runs, as indices.
    from: u32,
    to: u32,
}

impl Group {
    /// Sorts `runs`, which have one stride; `None` if any two may overlap.
    fn new(stride: u64, mut runs: Vec<SegmentRun>) -> Option<Self> {
        let phase = |run: &SegmentRun| run.first.offset % stride;
        runs.sort_by_cached_key(|run| (phase(run), run.first.offset));
        join(&mut runs);
        let starts = runs.iter().map(|run| run.first.offset).collect();
        let mut phases: Vec<Phase> = Vec::new();
        for (at, run) in runs.iter().enumerate() {
            let (start, at) = (phase(run), u32::try_from(at).ok()?);
            match phases.last_mut() {
                Some(last) if last.start == start => {
                    if runs[at as usize - 1].end() > run.first.offset {
                        return None;
                    }
                    last.length = last.length.max(run.first.length);
                    last.to = at + 1;
                }
                _ => phases.push(Phase { start, length: run.first.length, from: at, to: at + 1 }),
            }
        }
        let apart = phases.windows(2).all(|pair| pair[0].start + pair[0].length <= pair[1].start);
        let (first, last) = (phases.first()?, phases.last()?);
        // The last may reach into the next period, up to the first.
        if !apart || last.start + last.length > first.start.checked_add(stride)? {
            return None;
        }
        let start = runs.iter().map(|run| run.first.offset).min()?;
        let end = runs.iter().map(SegmentRun::end).max()?;
        Some(Self { stride, range: start..end, phases, runs, starts })
    }

    /// The run of `phase` whose range of starts has or is before `offset`, and the index in it.
    #[inline]
    fn at(&self, phase: &Phase, offset: u64) -> Option<(usize, u64)> {
        let starts = &self.starts[phase.from as usize..phase.to as usize];
        let after = starts.partition_point(|start| *start <= offset);
        let place = after.checked_sub(1)?;
        let run = &self.runs[phase.from as usize + place];
        let index = (offset - run.first.offset) / self.stride;
        let within = offset - run.first.offset - index * self.stride;
        (index < run.count && within < run.first.length)
            .then_some((phase.from as usize + place, index))
    }

    /// The run and the index in it of the segment that has the byte at `offset`.
    #[inline]
    fn find(&self, offset: u64) -> Option<(usize, u64)> {
        if !self.range.contains(&offset) {
            return None;
        }
        let remainder = offset % self.stride;
        let after = self.phases.partition_point(|phase| phase.start <= remainder);
        // Before the first phase of a period is what reaches over from the last.
        let phase = match after.checked_sub(1) {
            Some(before) => &self.phases[before],
            None => self.phases.last()?,
        };
        self.at(phase, offset)
    }

    /// Visits, in order, the runs and indices of segments that overlap `range`.
    #[inline]
    fn visit<E>(
        &self,
        range: &Range<u64>,
        visit: &mut impl FnMut(&SegmentRun, u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let from = range.start.max(self.range.start);
        let to = range.end.min(self.range.end);
        if from >= to {
            return Ok(());
        }
        if let Some((run, index)) = self.find(from)
            && self.runs[run].segment(index).offset < from
        {
            visit(&self.runs[run], index)?;
        }
        let mut next: Vec<usize> = self
            .phases
            .iter()
            .map(|phase| {
                let runs = &self.runs[phase.from as usize..phase.to as usize];
                phase.from as usize + runs.partition_point(|run| run.end() <= from)
            })
            .collect();
        let mut period = from - from % self.stride;
        loop {
            let mut soonest = u64::MAX;
            for (phase, next) in self.phases.iter().zip(&mut next) {
                let Some(start) = period.checked_add(phase.start) else { break };
                if start >= to {
                    break;
                }
                while *next < phase.to as usize && self.runs[*next].end() <= start {
                    *next += 1;
                }
                let Some(run) = self.runs[..phase.to as usize].get(*next) else { continue };
                if run.first.offset <= start && start >= from {
                    visit(run, (start - run.first.offset) / self.stride)?;
                    soonest = 0;
                } else {
                    soonest = soonest.min(run.first.offset);
                }
            }
            let Some(following) = period.checked_add(self.stride) else { return Ok(()) };
            // Over a gap at once, if none of the phases had anything.
            period = following.max(soonest.min(to) - soonest.min(to) % self.stride);
            if period >= to {
                return Ok(());
            }
        }
    }
}

/// How many segments there are in `runs`.
fn segments_of(runs: &[SegmentRun]) -> u64 {
    runs.iter().fold(0, |sum, run| sum.saturating_add(run.count))
}

/// Joins neighbours in `runs` of which one goes on where the other ends.
fn join(runs: &mut Vec<SegmentRun>) {
    runs.dedup_by(|next, run| {
        let (Some(place), Some(own)) = (next.first.place, run.first.place) else {
            return false;
        };
        let goes_on = (next.first.length, next.log_stride) == (run.first.length, run.log_stride)
            && next.first.offset == run.first.offset + run.count * run.stride
            && (place.set, place.log) == (own.set, own.log)
            && place.offset == own.offset + run.count * run.log_stride;
        if goes_on {
            run.count += next.count;
            run.first.seq = run.first.seq.max(next.first.seq);
        }
        goes_on
    });
}

/// A range of a file and where its bytes are in a log, as a writer hands over thousands at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the file it starts.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
    /// Where in the log they are.
    pub log_offset: u64,
}

/// Finds runs among `pieces`, whose bytes are all in the log of `log`, a segment of their file
/// without offsets; what is in none comes as a run of one.
pub fn find_runs(log: &Segment, pieces: &[Piece], out: &mut Vec<SegmentRun>) {
    let mut at = 0;
    while at < pieces.len() {
        let piece = pieces[at];
        let place = log.place.map(|place| LogPlace { offset: piece.log_offset, ..place });
        let first = Segment { offset: piece.offset, length: piece.length, place, ..*log };
        let (count, stride, log_stride) = run_at(&pieces[at..], |piece| *piece);
        out.push(SegmentRun { first, count: count as u64, stride, log_stride });
        at += count;
    }
}

/// How many of `items` from the first on are a run, and its strides.
#[inline]
fn run_at<T>(items: &[T], piece: impl Fn(&T) -> Piece) -> (usize, u64, u64) {
    let first = piece(&items[0]);
    let alone = (1, first.length, first.length);
    let Some(second) = items.get(1).map(&piece) else { return alone };
    let stride = second.offset.wrapping_sub(first.offset);
    let log_stride = second.log_offset.wrapping_sub(first.log_offset);
    if second.offset < first.offset || stride < first.length || second.log_offset < first.log_offset
    {
        return alone;
    }
    let mut wanted = first;
    let count = items.iter().take_while(|item| {
        let goes_on = piece(item) == wanted;
        wanted.offset = wanted.offset.wrapping_add(stride);
        wanted.log_offset = wanted.log_offset.wrapping_add(log_stride);
        goes_on
    });
    let count = count.count();
    if count < RUN_MIN { alone } else { (count, stride, log_stride) }
}

impl Lattice {
    /// The segments of `written`, runs of one file; `None` if any two may overlap.
    #[must_use]
    pub fn of_apart(written: &[SegmentRun]) -> Option<Self> {
        let (mut runs, singles) = runs_of_all(written);
        runs.sort_unstable_by_key(|run| run.stride);
        let strides: Vec<&[SegmentRun]> = runs.chunk_by(|a, b| a.stride == b.stride).collect();
        if strides.len() > GROUPS_MAX {
            return None;
        }
        let mut groups = Vec::with_capacity(strides.len());
        for of_stride in strides {
            groups.push(Group::new(of_stride[0].stride, of_stride.to_vec())?);
        }
        groups.sort_unstable_by_key(|group| group.range.start);
        let apart = groups.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start);
        let lattice = Self { groups, singles };
        (apart && lattice.singles_are_apart()).then_some(lattice)
    }

    /// The segments of `runs`, of which none overlap: also where they do not fit a few groups; then
    /// memory is taken for each segment. `None` if two overlap, or there are too many.
    #[must_use]
    pub fn of_disjoint(runs: &[SegmentRun]) -> Option<Self> {
        if let Some(lattice) = Self::of_apart(runs) {
            return Some(lattice);
        }
        if segments_of(runs) > CUT_MAX {
            return None;
        }
        let mut singles: Vec<Segment> = runs.iter().flat_map(SegmentRun::segments).collect();
        singles.sort_unstable_by_key(|single| single.offset);
        let lattice = Self { groups: Vec::new(), singles };
        lattice.singles_are_apart().then_some(lattice)
    }

    fn singles_are_apart(&self) -> bool {
        let singles = &self.singles;
        singles.windows(2).all(|pair| pair[0].end() <= pair[1].offset)
            && self.groups.iter().all(|group| {
                singles.iter().all(|single| {
                    let mut overlaps = Ok(());
                    if single.offset < group.range.end && group.range.start < single.end() {
                        overlaps = group.visit(&(single.offset..single.end()), &mut |_, _| Err(()));
                    }
                    overlaps.is_ok()
                })
            })
    }

    /// As [`Lattice::of_apart`] of runs that overlap, in the order in which they were written: the
    /// later has the bytes. Takes memory for each segment.
    ///
    /// # Errors
    /// `TooLarge` if there are too many.
    pub fn cut(written: &[SegmentRun]) -> Result<Self> {
        let segments = segments_of(written);
        if segments > CUT_MAX {
            let what = format!("{segments} segments of one file, some of which overlap");
            return Err(Error::new(Kind::TooLarge, what));
        }
        let mut map = SegmentMap::default();
        for segment in written.iter().flat_map(SegmentRun::segments) {
            map.insert(segment);
        }
        Ok(Self { groups: Vec::new(), singles: map.iter().collect() })
    }

    /// Its runs, those of one group after the other.
    pub fn runs(&self) -> impl Iterator<Item = &SegmentRun> {
        self.groups.iter().flat_map(|group| &group.runs)
    }

    /// Segments that are in no run, in order.
    #[must_use]
    pub fn singles(&self) -> &[Segment] {
        &self.singles
    }

    /// Memory that it takes, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.singles.len() * size_of::<Segment>()
            + self.runs().count() * (size_of::<SegmentRun>() + size_of::<Phase>())
    }

    /// The segment that has the byte at `offset`.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<Segment> {
        for group in &self.groups {
            if let Some((run, index)) = group.find(offset) {
                return Some(group.runs[run].segment(index));
            }
        }
        let after = self.singles.partition_point(|single| single.end() <= offset);
        self.singles.get(after).filter(|single| single.offset <= offset).copied()
    }

    /// Visits the segments that overlap `range`, in order of offsets within each group and within
    /// those that are in none; returns what `visit` fails with.
    ///
    /// # Errors
    /// What `visit` returns.
    pub fn visit<E>(
        &self,
        range: &Range<u64>,
        visit: &mut impl FnMut(&SegmentRun, u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for group in &self.groups {
            group.visit(range, visit)?;
        }
        let start = self.singles.partition_point(|single| single.end() <= range.start);
        for single in &self.singles[start..] {
            if single.offset >= range.end {
                break;
            }
            visit(&SegmentRun::one(*single), 0)?;
        }
        Ok(())
    }

    /// The segments that overlap `range`, in order.
    #[must_use]
    pub fn overlapping(&self, range: &Range<u64>) -> Vec<Segment> {
        let mut found = Vec::new();
        let mut collect = |run: &SegmentRun, index| {
            found.push(run.segment(index));
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(()) = self.visit(range, &mut collect);
        if self.groups.len() + usize::from(!self.singles.is_empty()) > 1 {
            found.sort_unstable_by_key(|segment| segment.offset);
        }
        found
    }

    /// Up to `limit` segments from `from` on, at which none of them may begin earlier, in order; all
    /// of those before the end of the last.
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
        let start = self.singles.partition_point(|single| single.end() <= from);
        let singles = &self.singles[start..];
        let singles = &singles[..singles.len().min(limit)];
        // Each part is complete up to where it was full.
        let bound_of = |part: &[Segment]| match part.last() {
            Some(last) if part.len() >= limit => last.end(),
            _ => u64::MAX,
        };
        let bound = bound_of(&found).min(bound_of(singles));
        found.extend_from_slice(singles);
        found.retain(|segment| segment.offset < bound);
        found.sort_unstable_by_key(|segment| segment.offset);
        found
    }

    /// Passes all segments to `visit`, in order.
    ///
    /// # Errors
    /// What `visit` returns.
    pub fn for_each<E>(
        &self,
        visit: &mut (impl FnMut(&Segment) -> std::result::Result<(), E> + ?Sized),
    ) -> std::result::Result<(), E> {
        let mut from = 0;
        loop {
            let chunk = self.chunk(from, CHUNK_SEGMENTS);
            let Some(last) = chunk.last() else { return Ok(()) };
            from = last.end();
            chunk.iter().try_for_each(&mut *visit)?;
        }
    }

    /// Finds the segments that have the bytes at `offsets`; `found` is told the index, the run and
    /// the index in it. Offsets that follow one another as a run does are found by addition.
    pub fn find_batch(&self, offsets: &[u64], found: &mut impl FnMut(usize, &SegmentRun, u64)) {
        // Where the last was found, and which offset would be the next of that run.
        let mut last: Option<(&SegmentRun, u64)> = None;
        let mut expected = u64::MAX;
        for (at, &offset) in offsets.iter().enumerate() {
            if let Some((run, index)) = &mut last
                && offset == expected
                && *index + 1 < run.count
            {
                *index += 1;
                expected = offset + run.stride;
                found(at, run, *index);
                continue;
            }
            last = self.groups.iter().find_map(|group| {
                let (run, index) = group.find(offset)?;
                Some((&group.runs[run], index))
            });
            match last {
                Some((run, index)) => {
                    expected = offset.saturating_add(run.stride);
                    found(at, run, index);
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

/// All of `written` as runs that are as long as they can be, and those in none in order.
fn runs_of_all(written: &[SegmentRun]) -> (Vec<SegmentRun>, Vec<Segment>) {
    let (mut runs, mut singles): (Vec<_>, Vec<Segment>) = (Vec::new(), Vec::new());
    for run in written {
        match run.count {
            1 => singles.push(run.first),
            _ => runs.push(*run),
        }
    }
    if singles.len() >= RUN_MIN {
        // Writes one by one: those of one log, in the order of the log, may be runs too.
        let log = |segment: &Segment| segment.place.map(|place| (place.set, place.log));
        singles.sort_by_key(log);
        let mut rest = Vec::new();
        for of_log in singles.chunk_by(|a, b| log(a) == log(b)) {
            let mut at = 0;
            while at < of_log.len() {
                let piece = |segment: &Segment| Piece {
                    offset: segment.offset,
                    length: segment.length,
                    log_offset: segment.place.map_or(0, |place| place.offset),
                };
                let first = of_log[at];
                let (count, stride, log_stride) = run_at(&of_log[at..], piece);
                match count {
                    1 => rest.push(first),
                    _ if first.place.is_none() => rest.extend_from_slice(&of_log[at..at + count]),
                    _ => runs.push(SegmentRun { first, count: count as u64, stride, log_stride }),
                }
                at += count;
            }
        }
        singles = rest;
    }
    singles.sort_unstable_by_key(|single| single.offset);
    (runs, singles)
}
