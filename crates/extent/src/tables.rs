// SPDX-License-Identifier: Apache-2.0
//! Tables of segments: tables of single segments and tables of runs, in one stack.
//!
//! A source is one sorted run of tables of either kind, in which no two segments overlap; of two
//! sources the newer has the bytes. The runs of a file are read as a whole, once, into an interval
//! index.

use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use esker_table::manifest::TableRef;
use esker_table::schema::{Key, Schema};
use esker_table::tables::{SortedRun, TableRuns, TableSource};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::{IntervalIndex, LogPlace, NestedRun, RUN, SEGMENT, Segment, SegmentRun, seek_key};

/// Approximate maximum memory of the interval indexes that a table keeps.
const INTERVAL_INDEXES_BYTES_MAX: usize = 64 << 20;

/// A sorted run of tables of runs.
#[derive(Debug)]
pub struct RunTables {
    tables: SortedRun,
    interval_indexes: Mutex<IntervalIndexes>,
}

#[derive(Debug, Default)]
struct IntervalIndexes {
    of_file: HashMap<u128, Arc<IntervalIndex>>,
    bytes: usize,
}

/// One source of segments.
#[derive(Clone, Debug)]
pub enum SegmentSource {
    /// Tables of single segments.
    Rows(SortedRun),
    /// Tables of runs.
    Runs(Arc<RunTables>),
}

/// All tables of segments of a change set, newest first.
#[derive(Clone, Debug, Default)]
pub struct SegmentTables {
    sources: Vec<SegmentSource>,
}

impl RunTables {
    /// Returns the segments of `file`. Cost: the blocks that hold its runs, the first time.
    ///
    /// # Errors
    /// `Corrupt` if runs overlap, and errors of the store.
    pub fn interval_index(&self, file: u128) -> Result<Arc<IntervalIndex>> {
        if let Some(intervals) = self.interval_indexes.lock().of_file.get(&file) {
            return Ok(intervals.clone());
        }
        let from = seek_key(file, 0);
        let mut rows = self.tables.merge(&RUN, &from, &RUN.group_last(&from))?;
        let mut nested_runs = Vec::new();
        while rows.advance()? {
            let nested = NestedRun::of_row(&rows.row())?;
            if nested.run.first.file != file {
                break;
            }
            nested_runs.push(nested);
        }
        let intervals = IntervalIndex::of_disjoint(&nested_runs).ok_or_else(|| {
            let what = format!("runs of segments of file {file:032x} overlap; run `esker verify`");
            Error::new(Kind::Corrupt, what)
        })?;
        let intervals = Arc::new(intervals);
        let mut interval_indexes = self.interval_indexes.lock();
        if interval_indexes.bytes > INTERVAL_INDEXES_BYTES_MAX {
            *interval_indexes = IntervalIndexes::default();
        }
        interval_indexes.bytes += intervals.bytes();
        interval_indexes.of_file.insert(file, intervals.clone());
        Ok(intervals)
    }

    /// Returns the files that have runs here, in order.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn files(&self) -> Result<Vec<u128>> {
        files(&self.tables, &RUN)
    }
}

fn files(tables: &SortedRun, schema: &'static Schema) -> Result<Vec<u128>> {
    let mut files = Vec::new();
    let mut from = Key::FIRST;
    loop {
        let mut rows = tables.merge(schema, &from, &Key::LAST)?;
        if !rows.advance()? {
            return Ok(files);
        }
        let ints = rows.key().ints;
        let file = u128::from(ints[0]) << 64 | u128::from(ints[1]);
        files.push(file);
        let Some(next) = file.checked_add(1) else { return Ok(files) };
        from = Key { ints: [(next >> 64) as u64, next as u64, 0], string: &[] };
    }
}

impl SegmentSource {
    /// [`TableRef::run`] of its tables.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.tables().number
    }

    /// The number of records in its tables.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.tables().tables.iter().map(|table| table.reference.rows).sum()
    }

    /// The schema of its tables.
    #[must_use]
    pub fn schema(&self) -> &'static Schema {
        match self {
            Self::Rows(_) => &SEGMENT,
            Self::Runs(_) => &RUN,
        }
    }

    /// Returns the files that have segments here, in order. One block read for each.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn files(&self) -> Result<Vec<u128>> {
        files(self.tables(), self.schema())
    }

    fn tables(&self) -> &SortedRun {
        match self {
            Self::Rows(tables) => tables,
            Self::Runs(runs) => &runs.tables,
        }
    }

    /// Finds the segments of `file` that have the bytes at `offsets`, and passes the index of each,
    /// its run, and its index in the run to `found`. Cost: about one block read for each where
    /// there are no runs, none for neighbours.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn find(
        &self,
        file: u128,
        offsets: &[u64],
        found: &mut impl FnMut(usize, &SegmentRun, u64),
    ) -> Result<()> {
        let tables = match self {
            Self::Runs(runs) => {
                runs.interval_index(file)?.find_batch(offsets, found);
                return Ok(());
            }
            Self::Rows(tables) => tables,
        };
        let mut order: Vec<(u64, usize)> = offsets.iter().copied().zip(0..).collect();
        order.sort_unstable();
        let keys: Vec<Key> = order.iter().map(|(offset, _)| seek_key(file, *offset)).collect();
        tables.seek_batch(&keys, &mut |index, row| {
            let segment = Segment::of_row(&row.row())?;
            let (offset, at) = order[index];
            if segment.file == file && segment.offset <= offset && segment.place.is_some() {
                found(at, &SegmentRun::one(segment), 0);
            }
            Ok(())
        })
    }

    /// Returns whether it has segments of `file`. About one block read.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn has(&self, file: u128) -> Result<bool> {
        let from = seek_key(file, 0);
        let mut rows = self.tables().merge(self.schema(), &from, &RUN.group_last(&from))?;
        Ok(rows.advance()? && rows.key().ints[..2] == from.ints[..2])
    }
}

impl SegmentSource {
    /// Passes the place of each record's first byte to `visit`. Cost: all its blocks.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn visit_places(&self, visit: &mut dyn FnMut(LogPlace)) -> Result<()> {
        let mut rows = self.tables().merge(self.schema(), &Key::FIRST, &Key::LAST)?;
        while rows.advance()? {
            let row = rows.row();
            let first = match self {
                Self::Rows(_) => Segment::of_row(&row)?,
                Self::Runs(_) => NestedRun::of_row(&row)?.run.first,
            };
            first.place.into_iter().for_each(&mut *visit);
        }
        Ok(())
    }
}

impl SegmentTables {
    /// Collects the tables of segments among `references`, which are in a manifest's order.
    #[must_use]
    pub fn new(references: &[TableRef], source: &TableSource) -> Self {
        let rows = TableRuns::new(references, &SEGMENT, source).runs.into_iter();
        let runs = TableRuns::new(references, &RUN, source).runs.into_iter();
        let runs = runs.map(|tables| {
            SegmentSource::Runs(Arc::new(RunTables { tables, interval_indexes: Mutex::default() }))
        });
        let mut sources: Vec<SegmentSource> = rows.map(SegmentSource::Rows).chain(runs).collect();
        sources.sort_by_key(|source| std::cmp::Reverse(source.number()));
        Self { sources }
    }

    /// Its sources, newest first.
    #[must_use]
    pub fn sources(&self) -> &[SegmentSource] {
        &self.sources
    }

    /// Puts the sources of `newer` on top of these.
    pub fn push(&mut self, newer: Self) {
        self.sources.splice(0..0, newer.sources);
    }
}
