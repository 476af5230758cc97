// SPDX-License-Identifier: Apache-2.0
//! Whole files of segments: lists the files that a tree has, reads all segments of one, and gives
//! up some.
//!
//! A tree that serves a share of the files hands parts of that share to other trees, and then no
//! longer shows them. [`TreeExtents::retain_segments`] is one commit, so a crash leaves either all
//! or none of it done.

use std::collections::BTreeSet;
use std::ops::Range;

use esker_base::Result;
use esker_table::run_writer::RunWriter;

use super::family::{SegmentMemtable, write_tables};
use super::tree::SegmentHome;
use super::{
    IntervalIndex, NestedRun, Segment, SegmentOverlay, SegmentRun, SegmentSource, SegmentTables,
    TreeExtents,
};

impl TreeExtents<'_> {
    /// Returns the files that have segments here, including holes, in order. Cost: a block read for
    /// each file and run of tables.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn segment_files(&self) -> Result<Vec<u128>> {
        let (files, older) = self.tree.read_family(|memtable: &SegmentMemtable| {
            memtable.buffer.files().collect::<BTreeSet<u128>>()
        });
        let mut files: BTreeSet<u128> = files;
        for SegmentMemtable { buffer, .. } in older.memtables() {
            files.extend(buffer.files());
        }
        for source in older.tables::<SegmentTables>().sources() {
            files.extend(source.files()?);
        }
        Ok(files.into_iter().collect())
    }

    /// Returns all segments of `file`, including holes, as runs that do not overlap, in no order.
    /// Cost: as a read of the whole file's segments; takes memory for each segment if several
    /// sources have some, or if they are not runs.
    ///
    /// # Errors
    /// As [`TreeExtents::segment_files`].
    pub fn segment_runs(&self, file: u128) -> Result<Vec<SegmentRun>> {
        let intervals = match self.only_source(file)? {
            SegmentHome::None => return Ok(Vec::new()),
            SegmentHome::Index(intervals) => Some(intervals),
            SegmentHome::Source(SegmentSource::Runs(runs)) => Some(runs.interval_index(file)?),
            SegmentHome::Source(SegmentSource::Rows(_)) | SegmentHome::Several => None,
        };
        if let Some(intervals) = intervals {
            return Ok(runs_of(&intervals));
        }
        let pieces = self.segments_within(file, 0..u64::MAX)?;
        Ok(runs_among(&pieces))
    }

    /// Returns the segments of `range` of `file` in order, cut to the range and including holes;
    /// there are none where nothing was ever put. Cost: as [`TreeExtents::read_segments`].
    ///
    /// # Errors
    /// As [`TreeExtents::segment_files`].
    pub fn segments_within(&self, file: u128, range: Range<u64>) -> Result<Vec<Segment>> {
        let mut overlay = SegmentOverlay::new(file, range);
        self.read_segments(&mut overlay)?;
        Ok(overlay.pieces().to_vec())
    }

    /// Flushes, and then keeps only the segments that `keep` retains: it receives runs, and adds to
    /// its list the parts of them that stay, which must not overlap those of other runs. Nothing
    /// may be put meanwhile. Cost: a flush, a read of all segments, a table of the remaining ones,
    /// a commit.
    ///
    /// # Errors
    /// As [`TreeExtents::segment_files`].
    pub fn retain_segments(
        &self,
        keep: &mut dyn FnMut(&SegmentRun, &mut Vec<SegmentRun>),
    ) -> Result<()> {
        self.tree.flush()?;
        let mut kept = Vec::new();
        for file in self.segment_files()? {
            let mut of_file = Vec::new();
            self.segment_runs(file)?.iter().for_each(|run| keep(run, &mut of_file));
            kept.push(of_file);
        }
        let (mut interval_indexes, mut loose) = (Vec::new(), Vec::new());
        for runs in &kept {
            match IntervalIndex::of_apart(runs) {
                Some(intervals) => interval_indexes.push(intervals),
                None => loose.push(runs),
            }
        }
        self.tree.replace_family(|writer| {
            let mut push_rows = |rows: &mut RunWriter| {
                for runs in &loose {
                    let mut all: Vec<Segment> =
                        runs.iter().flat_map(SegmentRun::segments).collect();
                    all.sort_unstable_by_key(|segment| segment.offset);
                    all.iter().try_for_each(|segment| rows.push(&segment.row()))?;
                }
                Ok(())
            };
            write_tables(writer, &mut push_rows, interval_indexes.iter())
        })
    }
}

/// Returns `pieces` of one file, which do not overlap, as runs where they form any; in no order.
#[must_use]
pub fn runs_among(pieces: &[Segment]) -> Vec<SegmentRun> {
    let ones = pieces.iter().map(|piece| SegmentRun::one(*piece));
    let nested_runs: Vec<NestedRun> = ones.clone().map(NestedRun::one).collect();
    IntervalIndex::of_disjoint(&nested_runs)
        .map_or_else(|| ones.collect(), |intervals| runs_of(&intervals))
}

fn runs_of(intervals: &IntervalIndex) -> Vec<SegmentRun> {
    intervals.runs().chain(intervals.loose_segments().iter().map(SegmentRun::one)).collect()
}
