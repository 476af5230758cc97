// SPDX-License-Identifier: Apache-2.0
//! Segments of a tree: put, read and merged; they share log, numbers and manifest with its records.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use esker_table::tables::TableRuns;
use esker_table::tree::Tree;

use super::family::SegmentMemtable;
use super::{
    FilePiece, IntervalIndex, OPERATION_SEGMENTS_MAX, Segment, SegmentOverlay, SegmentRun,
    SegmentSource, SegmentTables, find_runs,
};

/// Maximum segments of all runs of an operation, so that the tree can freeze its memtable in time.
pub(crate) const PUT_SEGMENTS_MAX: u64 = 1 << 23;
const _: () = assert!(OPERATION_SEGMENTS_MAX as u64 <= PUT_SEGMENTS_MAX, "an operation has a run");

/// The segments of a tree that hosts the [`ExtentFamily`](super::ExtentFamily). The methods panic
/// on any other tree.
#[derive(Clone, Copy, Debug)]
pub struct TreeExtents<'a> {
    pub(crate) tree: &'a Tree,
}

impl<'a> TreeExtents<'a> {
    /// The segments of `tree`.
    #[must_use]
    pub fn of(tree: &'a Tree) -> Self {
        Self { tree }
    }

    /// Puts `segments` over older ones, as one operation, and sets their sequence number; their
    /// bytes are already in their logs. Recovery stops at an operation with a segment whose
    /// checksum no longer matches its bytes.
    ///
    /// Once it returns, the segments survive crashes as the tree's durability promises. Cost: no
    /// store request but a share of a log write and, without a background thread, an occasional
    /// flush.
    ///
    /// # Errors
    /// `TooLarge` for more than [`OPERATION_SEGMENTS_MAX`]; `Invalid` for segments that are empty
    /// or have impossible numbers; `Closed`; and errors of the store.
    pub fn put_segments(&self, segments: &mut [Segment]) -> Result<u64> {
        if segments.len() > OPERATION_SEGMENTS_MAX {
            let context = format!("{} segments in one operation", segments.len());
            return Err(Error::new(Kind::TooLarge, context));
        }
        let is_possible = |segment: &Segment| SegmentRun::one(*segment).is_possible();
        if !segments.iter().all(is_possible) {
            let context = "an empty segment, or one that ends past the limit of its file or log";
            return Err(Error::new(Kind::Invalid, context));
        }
        let mut logged = Vec::with_capacity(segments.len());
        self.tree.put_in_family(|memtable: &mut SegmentMemtable, seq, is_logged| {
            for segment in segments {
                segment.seq = seq;
                memtable.buffer.insert(*segment);
                logged.push(SegmentRun::one(*segment));
            }
            if is_logged {
                memtable.log.add(seq, &logged);
            }
        })
    }

    /// Puts `runs`, all of `file`, as [`TreeExtents::put_segments`] puts single segments; as
    /// several operations, of which it returns the last, if they have over eight million segments.
    /// The file is then kept as runs, until it is written in another way.
    ///
    /// # Errors
    /// As [`TreeExtents::put_segments`]; `Invalid` for runs with impossible numbers.
    pub fn put_runs(&self, file: u128, runs: &mut [SegmentRun]) -> Result<u64> {
        let is_possible = |run: &SegmentRun| {
            run.is_possible()
                && run.first.file == file
                && run.count <= OPERATION_SEGMENTS_MAX as u64
        };
        if runs.len() > OPERATION_SEGMENTS_MAX || !runs.iter().all(is_possible) {
            let context = "runs of segments that overlap, are of another file, or too many at once";
            return Err(Error::new(Kind::Invalid, context));
        }
        let mut rest = runs;
        loop {
            let (operation, later) = rest.split_at_mut(operation_runs(rest));
            let seq =
                self.tree.put_in_family(|memtable: &mut SegmentMemtable, seq, is_logged| {
                    operation.iter_mut().for_each(|run| run.first.seq = seq);
                    memtable.buffer.insert_batch(file, operation);
                    if is_logged {
                        memtable.log.add(seq, operation);
                    }
                })?;
            if later.is_empty() {
                return Ok(seq);
            }
            rest = later;
        }
    }

    /// Finds runs among `pieces` and puts them as [`TreeExtents::put_runs`] does. `log` is a
    /// segment of their file, without offsets, that names the log of all their bytes.
    ///
    /// # Errors
    /// As [`TreeExtents::put_runs`].
    pub fn put_pieces(
        &self,
        log: &Segment,
        pieces: &[FilePiece],
        runs: &mut Vec<SegmentRun>,
    ) -> Result<u64> {
        runs.clear();
        find_runs(log, pieces, runs);
        self.put_runs(log.file, runs)
    }

    /// Visits the segments of `file` that overlap `range`, as runs and indices in them, ordered by
    /// offset within each stride. For a file that is not stored as runs alone, visits its segments
    /// in order, cut to the range. Cost: as [`TreeExtents::find_segments`].
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn visit_segments(
        &self,
        file: u128,
        range: Range<u64>,
        visit: &mut impl FnMut(&SegmentRun, u64),
    ) -> Result<()> {
        let intervals = match self.only_source(file)? {
            SegmentHome::Index(intervals) => Some(intervals),
            SegmentHome::Source(SegmentSource::Runs(runs)) => Some(runs.interval_index(file)?),
            _ => None,
        };
        if let Some(intervals) = intervals {
            let Ok(()) = intervals.visit(&range, &mut |run, index| {
                visit(run, index);
                Ok::<(), Infallible>(())
            });
            return Ok(());
        }
        let mut overlay = SegmentOverlay::new(file, range);
        self.read_segments(&mut overlay)?;
        for piece in overlay.pieces().iter().filter(|piece| piece.place.is_some()) {
            visit(&SegmentRun::one(*piece), 0);
        }
        Ok(())
    }

    /// Finds the segments of `file` that have the bytes at `offsets`, and passes the index of each
    /// offset found, its run, and its index in that run to `found`. Cost: reading the file's runs,
    /// the first time; for a file that is not stored as runs alone, one look-up for each offset.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn find_segments(
        &self,
        file: u128,
        offsets: &[u64],
        found: &mut impl FnMut(usize, &SegmentRun, u64),
    ) -> Result<()> {
        match self.only_source(file)? {
            SegmentHome::Index(intervals) => {
                intervals.find_batch(offsets, found);
                return Ok(());
            }
            SegmentHome::Source(source) => return source.find(file, offsets, found),
            SegmentHome::None => return Ok(()),
            SegmentHome::Several => {}
        }
        for (at, &offset) in offsets.iter().enumerate() {
            let mut overlay = SegmentOverlay::new(file, offset..offset.saturating_add(1));
            self.read_segments(&mut overlay)?;
            if let [segment] = overlay.pieces()
                && segment.place.is_some()
            {
                found(at, &SegmentRun::one(*segment), 0);
            }
        }
        Ok(())
    }

    /// Returns the source that has segments of `file`, if there is only one.
    pub(crate) fn only_source(&self, file: u128) -> Result<SegmentHome> {
        let (live, older) = self.tree.read_family(|memtable: &SegmentMemtable| {
            let buffer = &memtable.buffer;
            if !buffer.has(file) {
                return Ok(SegmentHome::None);
            }
            Ok(buffer.interval_index(file)?.map_or(SegmentHome::Several, SegmentHome::Index))
        });
        let mut only: SegmentHome = live?;
        for SegmentMemtable { buffer, .. } in older.memtables() {
            if !buffer.has(file) {
                continue;
            }
            only = match (only, buffer.interval_index(file)?) {
                (SegmentHome::None, Some(intervals)) => SegmentHome::Index(intervals),
                _ => return Ok(SegmentHome::Several),
            };
        }
        for source in older.tables::<SegmentTables>().sources() {
            if source.has(file)? {
                only = match only {
                    SegmentHome::None => SegmentHome::Source(source.clone()),
                    _ => return Ok(SegmentHome::Several),
                };
            }
        }
        Ok(only)
    }

    /// Fills the gaps of `overlay` with this tree's segments in its range. Cost: none while they
    /// are in memory, else about one block read per run of tables.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn read_segments(&self, overlay: &mut SegmentOverlay) -> Result<()> {
        let (filled, older) =
            self.tree.read_family(|memtable: &SegmentMemtable| memtable.buffer.fill(overlay));
        filled?;
        for SegmentMemtable { buffer, .. } in older.memtables() {
            buffer.fill(overlay)?;
        }
        overlay.add_tables(older.tables())
    }

    /// Returns the tree's tables of rows and of segments, both as of one moment.
    #[must_use]
    pub fn all_tables(&self) -> (TableRuns, SegmentTables) {
        let older = self.tree.older_sources();
        (older.rows().clone(), older.tables::<SegmentTables>().clone())
    }
}

/// The source of all segments of a file.
pub(crate) enum SegmentHome {
    None,
    Index(Arc<IntervalIndex>),
    Source(SegmentSource),
    /// Several sources, or a memtable that does not keep them as runs.
    Several,
}

/// Returns how many of `runs`, from the first on, one operation can put.
fn operation_runs(runs: &[SegmentRun]) -> usize {
    let mut segments = 0;
    let fits = |run: &&SegmentRun| {
        segments += run.count;
        segments <= PUT_SEGMENTS_MAX
    };
    runs.iter().take_while(fits).count()
}
