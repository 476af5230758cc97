// SPDX-License-Identifier: Apache-2.0
//! Buffer: the segments of a memtable. Files written in runs keep one log run builder per log,
//! which costs a write little more than appending; all others use a map in which newer segments cut
//! older ones. Within a memtable a file uses one or the other.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use esker_base::Result;

use super::file_buffer::FileBuffer;
use super::{IntervalIndex, Segment, SegmentMap, SegmentOverlay, SegmentRun};

/// Maximum segments of a file that are in no run; a file with more is stored as rows instead of
/// runs.
const LOOSE_SEGMENTS_MAX: usize = 1 << 16;

/// Maximum overlapping segments of all files of a memtable together, since cutting them takes
/// memory for each. A memtable of three gigabytes has this many; in a forged log a few bytes can
/// stand for a million.
const CUT_SEGMENTS_MAX: u64 = 3 << 26;

/// The segments of a memtable.
#[derive(Debug, Default)]
pub struct SegmentBuffer {
    map: SegmentMap,
    runs: BTreeMap<u128, FileBuffer>,
    runs_bytes: usize,
}

impl SegmentBuffer {
    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty() && self.runs.is_empty()
    }

    /// Memory that the segments take, in bytes, approximately.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.map.bytes() + self.runs_bytes
    }

    /// Adds a segment, newer than all that are here.
    pub fn insert(&mut self, segment: Segment) {
        if self.runs.contains_key(&segment.file) {
            self.push(SegmentRun::one(segment));
        } else {
            self.map.insert(segment);
        }
    }

    /// Adds a run, newer than all that are here.
    pub fn insert_run(&mut self, run: SegmentRun) {
        if run.count == 1 { self.insert(run.first) } else { self.push(run) }
    }

    /// Adds all of `runs` as [`SegmentBuffer::insert_run`] does; single segments come in thousands.
    /// A file that uses the map changes to runs with its first run of several segments: cutting
    /// that run to pieces could take a million times as much memory.
    pub fn insert_batch(&mut self, file: u128, runs: &[SegmentRun]) {
        let mut single = Vec::new();
        if self.map.has(file) {
            if runs.iter().all(|run| run.count == 1) {
                return runs.iter().for_each(|run| self.map.insert(run.first));
            }
            single = self.map.take_file(file).into_iter().map(SegmentRun::one).collect();
        }
        let written = self.runs.entry(file).or_insert_with(|| FileBuffer::new(file));
        let before = written.bytes();
        written.extend(&single);
        written.extend(runs);
        self.runs_bytes += written.bytes() - before;
    }

    fn push(&mut self, run: SegmentRun) {
        self.insert_batch(run.first.file, &[run]);
    }

    /// Fills gaps of `overlay` from these segments.
    ///
    /// # Errors
    /// `TooLarge` if too many segments of the file overlap.
    pub fn fill(&self, overlay: &mut SegmentOverlay) -> Result<()> {
        let (file, range) = (overlay.file(), overlay.range());
        match self.runs.get(&file) {
            Some(written) => overlay.add(written.interval_index()?.overlapping(&range).into_iter()),
            None => {
                let Range { start, end } = range;
                overlay.add(self.map.overlapping(file, start, end));
            }
        }
        Ok(())
    }

    /// Returns the interval index of `file`, if it is written in runs.
    ///
    /// # Errors
    /// As [`SegmentBuffer::fill`].
    pub fn interval_index(&self, file: u128) -> Result<Option<Arc<IntervalIndex>>> {
        self.runs.get(&file).map(FileBuffer::interval_index).transpose()
    }

    /// Returns whether there are any segments of `file`.
    #[must_use]
    pub fn has(&self, file: u128) -> bool {
        self.runs.contains_key(&file) || self.map.has(file)
    }

    /// Returns the files that have segments, some of them twice.
    pub fn files(&self) -> impl Iterator<Item = u128> {
        self.runs.keys().copied().chain(self.map.files())
    }

    /// Returns the segments for a table of rows and for a table of runs, each in key order.
    ///
    /// # Errors
    /// As [`SegmentBuffer::fill`].
    pub fn for_tables(&self) -> Result<ForTables<'_>> {
        let (mut rows, mut runs) = (Vec::new(), Vec::new());
        let mut cut_max = CUT_SEGMENTS_MAX;
        for (file, written) in &self.runs {
            let intervals = written.interval_index_within(&mut cut_max)?;
            match prefers_rows(&intervals) {
                true => rows.push((*file, intervals)),
                false => runs.push(intervals),
            }
        }
        Ok(ForTables { map: &self.map, rows, runs })
    }
}

/// Returns whether a file with these segments is better stored as rows.
pub(super) fn prefers_rows(intervals: &IntervalIndex) -> bool {
    intervals.loose_segments().len() > LOOSE_SEGMENTS_MAX
}

/// The segments that a memtable writes to tables.
#[derive(Debug)]
pub struct ForTables<'a> {
    map: &'a SegmentMap,
    rows: Vec<(u128, Arc<IntervalIndex>)>,
    /// Interval indexes stored in a table of runs, by file.
    pub runs: Vec<Arc<IntervalIndex>>,
}

impl ForTables<'_> {
    /// Number of records that the rows take.
    #[must_use]
    pub fn row_count(&self) -> u64 {
        let count_records = |intervals: &IntervalIndex| {
            intervals.loose_segments().len() + intervals.nested_runs().count()
        };
        let of_rows = self.rows.iter().map(|(_, intervals)| count_records(intervals));
        let of_runs = self.runs.iter().map(|intervals| count_records(intervals));
        (self.map.len() + of_rows.chain(of_runs).sum::<usize>()) as u64
    }

    /// Passes single segments to `visit`, in key order.
    ///
    /// # Errors
    /// Errors of `visit`.
    pub fn rows(&self, visit: &mut dyn FnMut(&Segment) -> Result<()>) -> Result<()> {
        let mut rows = self.rows.iter().peekable();
        let mut visit_indexes =
            |before: Option<u128>, visit: &mut dyn FnMut(&Segment) -> Result<()>| {
                let is_due = |file: u128| before.is_none_or(|before| file < before);
                while let Some((_, intervals)) = rows.next_if(|(file, _)| is_due(*file)) {
                    intervals.for_each(visit)?;
                }
                Ok(())
            };
        for segment in self.map.iter() {
            visit_indexes(Some(segment.file), visit)?;
            visit(&segment)?;
        }
        visit_indexes(None, visit)
    }
}

#[cfg(test)]
mod tests {
    use esker_base::Kind;

    use super::*;
    use crate::{LogPlace, OPERATION_SEGMENTS_MAX};
    use esker_table::manifest::SetId;

    /// Returns a run of a million segments of `file`, `step` bytes after the first run of the file.
    fn run(file: u128, step: u64) -> SegmentRun {
        let place = Some(LogPlace { set: SetId(1), log: 1, offset: 0 });
        let first = Segment { place, ..Segment::hole(file, step, 4) };
        SegmentRun { first, count: OPERATION_SEGMENTS_MAX as u64, stride: 8, log_stride: 4 }
    }

    #[test]
    fn segments_of_all_files_that_overlap_are_bounded() {
        let mut buffer = SegmentBuffer::default();
        // More segments of one file than may be cut, so the test takes no memory.
        for step in 0..200 {
            buffer.insert_run(run(1, step % 7));
        }
        assert_eq!(buffer.for_tables().expect_err("they overlap").kind(), Kind::TooLarge);
        let mut written = FileBuffer::new(1);
        written.extend(&[run(1, 0), run(1, 1)]);
        let mut cut_max = 1 << 20;
        let refused = written.interval_index_within(&mut cut_max).expect_err("two million");
        assert_eq!(refused.kind(), Kind::TooLarge);
        // Runs that do not overlap do not count.
        let mut buffer = SegmentBuffer::default();
        for file in 0..200 {
            buffer.insert_run(run(file, 0));
        }
        assert_eq!(buffer.for_tables().expect("apart").row_count(), 200);
    }
}
