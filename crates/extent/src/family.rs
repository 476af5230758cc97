// SPDX-License-Identifier: Apache-2.0
//! The family of segments: how a tree keeps them in memory, logs them, and stores them in tables.
//!
//! A memtable becomes two sorted runs of tables: single segments, and runs of segments.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::Result;
use esker_base::wire::{WireDamage, WireInput};
use esker_table::family::{Family, FamilyMemtable, FamilyTables, OperationVisitor};
use esker_table::manifest::TableRef;
use esker_table::run_writer::RunWriter;
use esker_table::tables::TableSource;
use esker_table::tree::FamilyWriter;

use super::{
    IntervalIndex, NestedRun, RUN, SEGMENT, SegmentBuffer, SegmentLog, SegmentMerge, SegmentRun,
    SegmentSource, SegmentTables,
};

/// The family of segments.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtentFamily;

/// The segments of a memtable, and the log of their operations.
#[derive(Debug, Default)]
pub struct SegmentMemtable {
    pub(crate) buffer: SegmentBuffer,
    pub(crate) log: SegmentLog,
}

/// The content of an operation, as logs yield it.
type LoggedRuns = Vec<SegmentRun>;

/// Returns the runs of segments of an operation that a log yielded.
///
/// # Panics
/// If it is an operation of another family.
#[must_use]
pub fn logged_runs(operation: &dyn Any) -> &[SegmentRun] {
    operation.downcast_ref::<LoggedRuns>().expect("an operation on segments")
}

impl Family for ExtentFamily {
    fn memtable(&self) -> Box<dyn FamilyMemtable> {
        Box::new(SegmentMemtable::default())
    }

    fn tables(&self) -> Arc<dyn FamilyTables> {
        Arc::new(SegmentTables::default())
    }
}

impl FamilyMemtable for SegmentMemtable {
    fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    fn pending(&mut self) -> &mut Vec<u8> {
        self.log.pending()
    }

    fn decode(
        &mut self,
        input: &mut WireInput,
        visit: &mut OperationVisitor,
    ) -> Result<u64, WireDamage> {
        let mut runs = LoggedRuns::new();
        let seq = self.log.decode(input, &mut runs)?;
        visit(seq, &runs);
        Ok(seq)
    }

    fn replay(&mut self, operation: &dyn Any) {
        logged_runs(operation).iter().for_each(|run| self.buffer.insert_run(*run));
    }

    fn flush(&self, writer: &mut FamilyWriter) -> Result<Vec<TableRef>> {
        let parts = self.buffer.for_tables()?;
        writer.start(parts.row_count());
        write_tables(
            writer,
            &mut |rows| parts.rows(&mut |segment| rows.push(&segment.row())),
            parts.runs.iter().map(|intervals| &**intervals),
        )
    }
}

impl FamilyTables for SegmentTables {
    fn with_newer(&self, newer: &[TableRef], source: &TableSource) -> Arc<dyn FamilyTables> {
        let mut all = self.clone();
        all.push(Self::new(newer, source));
        Arc::new(all)
    }

    fn runs(&self) -> Vec<(u16, u64)> {
        self.sources().iter().map(|source| (source.schema().id, source.number())).collect()
    }

    /// Merges files that are stored as runs alone into one run of tables of runs, all others into
    /// one of single segments. Drops holes that have nothing below them.
    fn merge(&self, writer: &mut FamilyWriter) -> Result<Option<Vec<TableRef>>> {
        let sources = self.sources();
        let of_runs = sources.iter().filter(|source| source.schema().id == RUN.id).count();
        if sources.len() < 2 || (sources.len() == 2 && of_runs == 1) {
            return Ok(None);
        }
        let interval_indexes = files_of_runs_alone(sources)?;
        writer.start(sources.iter().map(SegmentSource::rows).sum());
        let bottom = writer.is_bottom;
        let mut push_rows = |rows: &mut RunWriter| {
            let mut merge =
                SegmentMerge::new(sources, &|file| interval_indexes.contains_key(&file))?;
            while let Some(segment) = merge.read()? {
                if segment.place.is_some() || !bottom {
                    rows.push(&segment.row())?;
                }
            }
            Ok(())
        };
        write_tables(writer, &mut push_rows, interval_indexes.values()).map(Some)
    }
}

/// Writes one run of tables of the single segments that `push_rows` pushes, and one of
/// `interval_indexes`, which are in order of files.
pub(crate) fn write_tables<'a>(
    writer: &mut FamilyWriter,
    push_rows: &mut dyn FnMut(&mut RunWriter) -> Result<()>,
    mut interval_indexes: impl Iterator<Item = &'a IntervalIndex>,
) -> Result<Vec<TableRef>> {
    let rows = writer.write_run(&SEGMENT, push_rows)?;
    let mut tables = writer.write_run(&RUN, |runs| {
        interval_indexes.try_for_each(|intervals| push_runs(intervals, runs))
    })?;
    tables.extend(rows);
    Ok(tables)
}

/// Returns the files that all sources store as runs, never as rows, each with the interval index of
/// its runs, if it is worth storing as runs.
fn files_of_runs_alone(sources: &[SegmentSource]) -> Result<BTreeMap<u128, IntervalIndex>> {
    let mut written: BTreeMap<u128, Vec<NestedRun>> = BTreeMap::new();
    // Oldest first, as they were written.
    for source in sources.iter().rev() {
        if let SegmentSource::Runs(runs) = source {
            for file in runs.files()? {
                let intervals = runs.interval_index(file)?;
                let all = written.entry(file).or_default();
                all.extend(nested_runs_of(&intervals));
            }
        }
    }
    let mut interval_indexes = BTreeMap::new();
    for (file, nested_runs) in written {
        let mut is_alone = true;
        for source in sources {
            is_alone &= source.schema().id == RUN.id || !source.has(file)?;
        }
        if is_alone && let Some(intervals) = IntervalIndex::of_nested_runs(&nested_runs) {
            interval_indexes.insert(file, intervals);
        }
    }
    Ok(interval_indexes)
}

/// Returns all segments of an interval index; those in no run as runs of one.
fn nested_runs_of(intervals: &IntervalIndex) -> impl Iterator<Item = NestedRun> {
    let loose =
        intervals.loose_segments().iter().map(|single| NestedRun::one(SegmentRun::one(single)));
    intervals.nested_runs().copied().chain(loose)
}

/// Writes all of an interval index as records of runs, in key order.
fn push_runs(intervals: &IntervalIndex, writer: &mut RunWriter) -> Result<()> {
    let mut nested_runs: Vec<NestedRun> = nested_runs_of(intervals).collect();
    nested_runs.sort_unstable_by_key(|nested| nested.run.first.end());
    nested_runs.iter().try_for_each(|nested| writer.push(&nested.row()))
}
