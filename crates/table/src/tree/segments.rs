// SPDX-License-Identifier: Apache-2.0
//! Segments of a tree: put, read and merged; they share log, numbers and manifest with its records.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_base::{Error, Kind, Result};
use parking_lot::MutexGuard;

use super::update::SHARD_LOG_BYTES;
use super::{FlushState, LiveSegments, Tree, TreeShared};
use crate::manifest::TableRef;
use crate::memtable::FrozenMemtable;
use crate::run_writer::RunWriter;
use crate::segment::{
    FilePiece, IntervalIndex, NestedRun, OPERATION_SEGMENTS_MAX, RUN, SEGMENT, Segment,
    SegmentMerge, SegmentOverlay, SegmentRun, SegmentSource, SegmentTables, find_runs,
};

impl Tree {
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
    /// or have impossible numbers; `Closed`; and what the store reports.
    pub fn put_segments(&self, segments: &mut [Segment]) -> Result<u64> {
        let inner = &*self.inner;
        inner.check_writable()?;
        if segments.len() > OPERATION_SEGMENTS_MAX {
            let context = format!("{} segments in one operation", segments.len());
            return Err(Error::new(Kind::TooLarge, context));
        }
        let is_possible = |segment: &Segment| SegmentRun::one(*segment).is_possible();
        if !segments.iter().all(is_possible) {
            let context = "an empty segment, or one that ends past the limit of its file or log";
            return Err(Error::new(Kind::Invalid, context));
        }
        let mut live = inner.segments.lock();
        let seq = inner.next_seq.fetch_add(1, Ordering::AcqRel);
        let before = live.buffer.bytes();
        let mut logged = Vec::with_capacity(segments.len());
        for segment in segments.iter_mut() {
            segment.seq = seq;
            live.buffer.insert(*segment);
            logged.push(SegmentRun::one(*segment));
        }
        self.after_segments_write(live, seq, before, &logged)
    }

    /// Puts `runs`, all of `file`, as [`Tree::put_segments`] puts single segments. The file is then
    /// kept as runs, until it is written in another way.
    ///
    /// # Errors
    /// As [`Tree::put_segments`]; `Invalid` for runs with impossible numbers.
    pub fn put_runs(&self, file: u128, runs: &mut [SegmentRun]) -> Result<u64> {
        let inner = &*self.inner;
        inner.check_writable()?;
        let is_possible = |run: &SegmentRun| {
            run.is_possible()
                && run.first.file == file
                && run.count <= OPERATION_SEGMENTS_MAX as u64
        };
        if runs.len() > OPERATION_SEGMENTS_MAX || !runs.iter().all(is_possible) {
            let context = "runs of segments that overlap, are of another file, or too many at once";
            return Err(Error::new(Kind::Invalid, context));
        }
        let mut live = inner.segments.lock();
        let seq = inner.next_seq.fetch_add(1, Ordering::AcqRel);
        let before = live.buffer.bytes();
        runs.iter_mut().for_each(|run| run.first.seq = seq);
        live.buffer.insert_batch(file, runs);
        self.after_segments_write(live, seq, before, runs)
    }

    fn after_segments_write(
        &self,
        mut live: MutexGuard<'_, LiveSegments>,
        seq: u64,
        bytes_before: usize,
        runs: &[SegmentRun],
    ) -> Result<u64> {
        let inner = &*self.inner;
        let grown_bytes = live.buffer.bytes().saturating_sub(bytes_before);
        if inner.logs() {
            live.log.add(seq, runs);
        }
        let log_full = live.log.pending().len() >= SHARD_LOG_BYTES;
        drop(live);
        inner.after_write(seq, log_full, grown_bytes)?;
        Ok(seq)
    }

    /// Finds runs among `pieces` and puts them as [`Tree::put_runs`] does. `log` is a segment of
    /// their file, without offsets, that names the log of all their bytes.
    ///
    /// # Errors
    /// As [`Tree::put_runs`].
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
    /// in order, cut to the range. Cost: as [`Tree::find_segments`].
    ///
    /// # Errors
    /// `Corrupt`, and what the store reports.
    pub fn visit_segments(
        &self,
        file: u128,
        range: Range<u64>,
        visit: &mut impl FnMut(&SegmentRun, u64),
    ) -> Result<()> {
        let lattice = match self.only_source(file)? {
            SegmentHome::Lattice(lattice) => Some(lattice),
            SegmentHome::Source(SegmentSource::Runs(runs)) => Some(runs.lattice(file)?),
            _ => None,
        };
        if let Some(lattice) = lattice {
            let Ok(()) = lattice.visit(&range, &mut |run, index| {
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
    /// `Corrupt`, and what the store reports.
    pub fn find_segments(
        &self,
        file: u128,
        offsets: &[u64],
        found: &mut impl FnMut(usize, &SegmentRun, u64),
    ) -> Result<()> {
        match self.only_source(file)? {
            SegmentHome::Lattice(lattice) => {
                lattice.find_batch(offsets, found);
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
    pub(super) fn only_source(&self, file: u128) -> Result<SegmentHome> {
        let inner = &*self.inner;
        let mut only = SegmentHome::None;
        {
            let live = inner.segments.lock();
            if live.buffer.has(file) {
                only =
                    live.buffer.lattice(file)?.map_or(SegmentHome::Several, SegmentHome::Lattice);
            }
        }
        let version = inner.version.load();
        for memtable in version.frozen.iter().filter(|memtable| memtable.segments().has(file)) {
            only = match (only, memtable.segments().lattice(file)?) {
                (SegmentHome::None, Some(lattice)) => SegmentHome::Lattice(lattice),
                _ => return Ok(SegmentHome::Several),
            };
        }
        for source in version.segments.sources() {
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
    /// `Corrupt`, and what the store reports.
    pub fn read_segments(&self, overlay: &mut SegmentOverlay) -> Result<()> {
        let inner = &*self.inner;
        inner.segments.lock().buffer.fill(overlay)?;
        // Loaded after the active memtable was read, so it has everything frozen since.
        let version = inner.version.load();
        for memtable in &version.frozen {
            memtable.segments().fill(overlay)?;
        }
        overlay.add_tables(&version.segments)
    }
}

/// The source of all segments of a file.
pub(super) enum SegmentHome {
    None,
    Lattice(Arc<IntervalIndex>),
    Source(SegmentSource),
    /// Several sources, or a memtable that does not keep them as runs.
    Several,
}

impl TreeShared {
    /// Writes the segments of a frozen memtable: single ones and runs, each as a run of tables.
    pub(super) fn write_segments(
        &self,
        state: &mut FlushState,
        memtable: &FrozenMemtable,
    ) -> Result<[Vec<TableRef>; 2]> {
        let parts = memtable.segments().for_tables()?;
        self.backlog.start_flush(parts.row_count());
        let rows = self.write_run(state, &SEGMENT, |writer| {
            parts.rows(&mut |segment| writer.push(&segment.row()))
        })?;
        let runs = self.write_run(state, &RUN, |writer| {
            parts.runs.iter().try_for_each(|lattice| push_runs(lattice, writer))
        })?;
        Ok([rows, runs])
    }

    /// Merges all tables of segments: files that are stored as runs alone into one run of tables of
    /// runs, all others into one of single segments. Drops holes that have nothing below them.
    pub(super) fn compact_segments(&self, state: &mut FlushState) -> Result<()> {
        let version = self.version.load_full();
        let sources = version.segments.sources();
        let of_runs = sources.iter().filter(|source| source.schema().id == RUN.id).count();
        if sources.len() < 2 || (sources.len() == 2 && of_runs == 1) {
            return Ok(());
        }
        let lattices = files_of_runs_alone(sources)?;
        let of_segments = |table: &&TableRef| table.schema != self.schema.id;
        let tables = state.manifest.tables.iter().filter(of_segments);
        self.backlog.start_merge(tables.map(|table| table.rows).sum());
        let bottom = state.manifest.bases.is_empty();
        let rows = self.write_run(state, &SEGMENT, |writer| {
            let mut merge = SegmentMerge::new(sources, &|file| lattices.contains_key(&file))?;
            while let Some(segment) = merge.read()? {
                if segment.place.is_some() || !bottom {
                    writer.push(&segment.row())?;
                }
            }
            Ok(())
        })?;
        let runs = self.write_run(state, &RUN, |writer| {
            lattices.values().try_for_each(|lattice| push_runs(lattice, writer))
        })?;
        let gone: Vec<(u16, u64)> =
            sources.iter().map(|source| (source.schema().id, source.number())).collect();
        let tables: Vec<TableRef> = runs.into_iter().chain(rows).collect();
        let fresh = SegmentTables::new(&tables, &self.source);
        self.replace(state, &gone, &tables, |version| version.segments = fresh.clone())
    }
}

/// Returns the files that all sources store as runs, never as rows, each with the lattice of its
/// runs, if it is worth storing as runs.
fn files_of_runs_alone(sources: &[SegmentSource]) -> Result<BTreeMap<u128, IntervalIndex>> {
    let mut written: BTreeMap<u128, Vec<NestedRun>> = BTreeMap::new();
    // Oldest first, as they were written.
    for source in sources.iter().rev() {
        if let SegmentSource::Runs(runs) = source {
            for file in runs.files()? {
                let lattice = runs.lattice(file)?;
                let all = written.entry(file).or_default();
                all.extend(nests_of(&lattice));
            }
        }
    }
    let mut lattices = BTreeMap::new();
    for (file, nests) in written {
        let mut is_alone = true;
        for source in sources {
            is_alone &= source.schema().id == RUN.id || !source.has(file)?;
        }
        if is_alone && let Some(lattice) = IntervalIndex::of_nests(&nests) {
            lattices.insert(file, lattice);
        }
    }
    Ok(lattices)
}

/// Returns all segments of a lattice; those in no run as runs of one.
fn nests_of(lattice: &IntervalIndex) -> impl Iterator<Item = NestedRun> {
    let singles = lattice.singles().iter().map(|single| NestedRun::one(SegmentRun::one(single)));
    lattice.nests().copied().chain(singles)
}

/// Writes all of a lattice as records of runs, in key order.
pub(super) fn push_runs(lattice: &IntervalIndex, writer: &mut RunWriter) -> Result<()> {
    let mut nests: Vec<NestedRun> = nests_of(lattice).collect();
    nests.sort_unstable_by_key(|nest| nest.run.first.end());
    nests.iter().try_for_each(|nest| writer.push(&nest.row()))
}
