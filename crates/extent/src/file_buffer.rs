// SPDX-License-Identifier: Apache-2.0
//! File buffer: the segments of one file in a memtable: a log run builder for each log, and the
//! order in which the builders grew.

use std::sync::{Arc, OnceLock};

use esker_base::{Error, Kind, Result};
use esker_table::SHARD_BYTES_MAX;
use esker_table::manifest::SetId;
use hashbrown::HashMap;

use super::interval_index::CUT_MAX;
use super::log_run_builder::RunPart;
use super::tree::PUT_SEGMENTS_MAX;
use super::{
    IntervalIndex, LogRunBuilder, LooseSegments, NestedRun, OPERATION_SEGMENTS_MAX, Segment,
    SegmentRun,
};

/// Bytes that a segment of a run counts for, in case it has to be cut, although cutting takes ten
/// times as much.
const RUN_SEGMENT_BYTES: usize = 16;
/// Bytes of a single segment: once in its builder, and again by offset once the interval index is
/// read.
const LOOSE_SEGMENT_BYTES: usize = 24 + 40;
/// Number of segments of a file beyond which each counts for [`CUT_SEGMENT_BYTES`].
const CHEAP_SEGMENTS_MAX: u64 = CUT_MAX / 2;
/// Bytes that cutting takes for a segment.
const CUT_SEGMENT_BYTES: usize = 128;
// The tree freezes a memtable before a file in it has more segments than can be cut.
const _: () = assert!(
    CHEAP_SEGMENTS_MAX
        + (SHARD_BYTES_MAX as u64 - CHEAP_SEGMENTS_MAX * RUN_SEGMENT_BYTES as u64)
            / CUT_SEGMENT_BYTES as u64
        + PUT_SEGMENTS_MAX
        + OPERATION_SEGMENTS_MAX as u64
        <= CUT_MAX
);

/// Segments of one file.
#[derive(Debug, Default)]
pub(super) struct FileBuffer {
    file: u128,
    builders: Vec<LogRunBuilder>,
    of_log: HashMap<Option<(SetId, u64)>, u32>,
    /// The builders that grew, in order.
    growth: Vec<RunGrowth>,
    bytes: usize,
    segments: u64,
    /// The interval index of all builders, once it has been asked for.
    interval_index: OnceLock<Arc<IntervalIndex>>,
}

/// A number of segments that one operation added to one builder.
#[derive(Clone, Copy, Debug)]
struct RunGrowth {
    seq: u64,
    builder: u32,
    segments: u32,
}

/// Yields the operation that wrote each segment of a builder.
struct SegmentSeqs<'a> {
    growth: std::slice::Iter<'a, (u64, u32)>,
    now: (u64, u32),
}

impl SegmentSeqs<'_> {
    #[inline]
    fn next(&mut self) -> u64 {
        while self.now.1 == 0 {
            self.now = *self.growth.next().expect("every segment grew");
        }
        self.now.1 -= 1;
        self.now.0
    }

    fn skip(&mut self, mut segments: u64) {
        while segments > 0 {
            if self.now.1 == 0 {
                self.now = *self.growth.next().expect("every segment grew");
            }
            let skipped = segments.min(self.now.1.into());
            self.now.1 -= skipped as u32;
            segments -= skipped;
        }
    }
}

impl FileBuffer {
    pub(super) fn new(file: u128) -> Self {
        Self { file, ..Self::default() }
    }

    /// Memory that it takes, in bytes, approximately.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds `runs`, newer than all that is here.
    pub(super) fn extend(&mut self, runs: &[SegmentRun]) {
        self.interval_index.take();
        let mut last: Option<(Option<(SetId, u64)>, u32)> = None;
        for run in runs {
            let log = run.first.place.map(|place| (place.set, place.log));
            let builder = match last {
                Some((of_log, builder)) if of_log == log => builder,
                _ => self.builder_of(log),
            };
            last = Some((log, builder));
            self.builders[builder as usize].push(run);
            let segment_bytes = match run.count {
                _ if self.segments > CHEAP_SEGMENTS_MAX => CUT_SEGMENT_BYTES,
                1 => LOOSE_SEGMENT_BYTES,
                _ => RUN_SEGMENT_BYTES,
            };
            self.bytes += run.count as usize * segment_bytes;
            self.segments += run.count;
            self.grow(builder, run);
        }
    }

    fn builder_of(&mut self, log: Option<(SetId, u64)>) -> u32 {
        *self.of_log.entry(log).or_insert_with(|| {
            self.builders.push(LogRunBuilder::new(self.file, log));
            self.bytes += size_of::<LogRunBuilder>();
            self.builders.len() as u32 - 1
        })
    }

    #[inline]
    fn grow(&mut self, builder: u32, run: &SegmentRun) {
        let seq = run.first.seq;
        let mut count = run.count;
        if let Some(last) = self.growth.last_mut()
            && (last.builder, last.seq) == (builder, seq)
            && let Some(segments) =
                u32::try_from(count).ok().and_then(|count| last.segments.checked_add(count))
        {
            last.segments = segments;
            return;
        }
        while count > 0 {
            let segments = u32::try_from(count).unwrap_or(u32::MAX);
            self.growth.push(RunGrowth { seq, builder, segments });
            self.bytes += size_of::<RunGrowth>();
            count -= u64::from(segments);
        }
    }

    /// Returns the segments of all builders together.
    ///
    /// # Errors
    /// `TooLarge` if too many overlap.
    pub(super) fn interval_index(&self) -> Result<Arc<IntervalIndex>> {
        let mut cut_max = u64::MAX;
        self.interval_index_within(&mut cut_max)
    }

    /// Returns the interval index as [`FileBuffer::interval_index`] does. If its segments have to
    /// be cut to pieces, they may be at most `cut_max`, from which their number is subtracted.
    ///
    /// # Errors
    /// `TooLarge` if too many overlap.
    pub(super) fn interval_index_within(&self, cut_max: &mut u64) -> Result<Arc<IntervalIndex>> {
        if let Some(intervals) = self.interval_index.get() {
            return Ok(intervals.clone());
        }
        let (nested_runs, loose) = self.parts();
        let intervals = match IntervalIndex::of_parts(nested_runs, loose) {
            Some(intervals) => intervals,
            None => {
                *cut_max = cut_max.checked_sub(self.segments).ok_or_else(|| {
                    let what = "more overlapping segments than one memtable can have";
                    Error::new(Kind::TooLarge, what)
                })?;
                IntervalIndex::cut(self.segments, self.in_order())?
            }
        };
        Ok(self.interval_index.get_or_init(|| Arc::new(intervals)).clone())
    }

    /// Returns the nested runs and single segments of all builders.
    fn parts(&self) -> (Vec<NestedRun>, LooseSegments) {
        let (mut nested_runs, mut loose) = (Vec::new(), LooseSegments::new(self.file));
        let mut growth: Vec<Vec<(u64, u32)>> = vec![Vec::new(); self.builders.len()];
        for RunGrowth { seq, builder, segments } in &self.growth {
            growth[*builder as usize].push((*seq, *segments));
        }
        loose.reserve(self.builders.iter().map(|builder| builder.loose_segments().len()).sum());
        for (builder, growth) in self.builders.iter().zip(&growth) {
            let mut seqs = SegmentSeqs { growth: growth.iter(), now: (0, 0) };
            let mut pieces = builder.loose_segments().iter();
            for part in builder.parts() {
                match part {
                    RunPart::Nested(nested) => {
                        seqs.skip(nested.segments());
                        nested_runs.push(*nested);
                    }
                    RunPart::Loose(count) => {
                        for piece in pieces.by_ref().take(*count) {
                            loose.push(&builder.segment(piece, seqs.next()));
                        }
                    }
                    RunPart::Other(segment) => {
                        seqs.skip(1);
                        loose.push(segment);
                    }
                }
            }
            match builder.open() {
                Some(open) if open.count == 1 => loose.push(&open.first),
                Some(open) => nested_runs.push(NestedRun::one(*open)),
                None => {}
            }
        }
        (nested_runs, loose)
    }

    /// Returns all segments in the order in which they were written.
    fn in_order(&self) -> impl Iterator<Item = Segment> {
        let mut builders: Vec<_> = self.builders.iter().map(LogRunBuilder::segments).collect();
        self.growth.iter().flat_map(move |growth| {
            let own = builders[growth.builder as usize].by_ref().take(growth.segments as usize);
            own.map(|segment| Segment { seq: growth.seq, ..segment }).collect::<Vec<_>>()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogPlace;

    /// Symptom: with over a gigabyte of memory, flushes failed with `TooLarge` once a file had been
    /// written often enough, and so did every resumption.
    /// Cause: the tree let a memtable grow until a file had more segments than can be cut.
    #[test]
    fn a_memtable_is_full_before_a_file_has_more_segments_than_can_be_cut() {
        let mut written = FileBuffer::new(1);
        let place = Some(LogPlace { set: SetId(1), log: 1, offset: 0 });
        let first = Segment { place, ..Segment::hole(1, 0, 4) };
        let count = OPERATION_SEGMENTS_MAX as u64;
        while written.bytes() < SHARD_BYTES_MAX {
            let first = Segment { offset: written.growth.len() as u64 % 7, ..first };
            written.extend(&[SegmentRun { first, count, stride: 8, log_stride: 4 }]);
        }
        let segments = written.segments + PUT_SEGMENTS_MAX;
        assert!(segments <= CUT_MAX, "{segments} segments");
    }
}
