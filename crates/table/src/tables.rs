// SPDX-License-Identifier: Apache-2.0
//! Tables of a change set as its readers see them: sorted runs, newest first.
//!
//! Concurrency: immutable; the first reader that needs a table reads its tail.

use std::sync::{Arc, OnceLock};

use arrayvec::ArrayVec;
use esker_base::Result;
use esker_base::store::SharedStore;

use crate::block::Block;
use crate::cache::BlockCache;
use crate::manifest::TableRef;
use crate::merge::{RecordCursor, RecordMerge};
use crate::schema::{Key, Row, RowBuffer, Schema};
use crate::table::{LookupKey, ReadCounters, Table, TableProbe};

/// Maximum runs in which a point read seeks its key together, so that their cache misses overlap.
const SEEK_RUNS_MAX: usize = 4;

/// The source of tables: a store, and the state that readers of its tables share.
#[derive(Clone, Debug)]
pub struct TableSource {
    /// The store.
    pub store: SharedStore,
    /// The cache of parsed blocks.
    pub cache: Arc<BlockCache>,
    /// Counters of the cost of reads.
    pub counters: Arc<ReadCounters>,
}

impl TableSource {
    /// Reads from `store` with a cache of `cache_bytes`.
    #[must_use]
    pub fn new(store: SharedStore, cache_bytes: u64) -> Self {
        Self { store, cache: BlockCache::new(cache_bytes), counters: Arc::default() }
    }
}

/// A table of a manifest, opened when first needed.
#[derive(Debug)]
pub struct TableHandle {
    /// The manifest's reference to the table.
    pub reference: TableRef,
    schema: &'static Schema,
    source: TableSource,
    open: OnceLock<Arc<Table>>,
}

impl TableHandle {
    pub(crate) fn new(
        reference: TableRef,
        schema: &'static Schema,
        source: TableSource,
    ) -> Arc<Self> {
        Arc::new(Self { reference, schema, source, open: OnceLock::new() })
    }

    /// Returns the open table. One store request the first time.
    #[inline]
    pub(crate) fn open(&self) -> Result<&Arc<Table>> {
        match self.open.get() {
            Some(table) => Ok(table),
            None => self.open_now(),
        }
    }

    /// Visits the visible records in whose integer `column` there is, in stored form, a value that
    /// `is_wanted`: each with its key and in readable form. Skips blocks in which no value is
    /// wanted where their encoding shows that. Cost: all blocks, read ahead around the cache.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn visit_where(
        &self,
        column: usize,
        is_wanted: &dyn Fn(u64) -> bool,
        visit: &mut dyn FnMut(&Key, &Row),
    ) -> Result<()> {
        let table = self.open()?;
        let (mut values, mut row_buffer) = (Vec::new(), RowBuffer::default());
        let mut number = table.index().block_of(&self.reference.first.key());
        let end = table.index().block_of(&self.reference.last.key()) + 1;
        while number < end {
            for bytes in table.read_ahead(number, end)? {
                let block = table.parse_block(number, bytes)?;
                number += 1;
                if block.constant(column).is_some_and(|value| !is_wanted(value)) {
                    continue;
                }
                values.clear();
                block.column(column, &mut values);
                for row in (0..values.len()).filter(|&row| is_wanted(values[row])) {
                    block.read(row, true, &mut row_buffer);
                    let row = row_buffer.row();
                    let key = self.schema.key(&row);
                    if self.reference.shows(&key) {
                        visit(&key, &row);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns approximately the visible part of `whole`, a size of the table; all of it if the
    /// table is not open yet. No store request.
    fn visible_of(&self, whole: u64) -> u64 {
        let Some(table) = self.open.get() else { return whole };
        let (index, reference) = (table.index(), &self.reference);
        let (first, last) =
            (index.block_of(&reference.first.key()), index.block_of(&reference.last.key()));
        let shown = u128::from(whole) * (last + 1).saturating_sub(first) as u128;
        (shown / index.blocks().max(1) as u128) as u64
    }

    /// Returns a handle of the same table that shows the part named by `reference`.
    #[must_use]
    pub(crate) fn with_visible(self: &Arc<Self>, reference: TableRef) -> Arc<Self> {
        if reference == self.reference {
            return self.clone();
        }
        let (schema, source, open) = (self.schema, self.source.clone(), self.open.clone());
        Arc::new(Self { reference, schema, source, open })
    }

    #[cold]
    fn open_now(&self) -> Result<&Arc<Table>> {
        let table = Table::open(
            self.source.store.clone(),
            self.reference.name(),
            self.schema,
            (self.reference.bytes, self.reference.tail_bytes),
            self.source.cache.clone(),
            self.source.counters.clone(),
        )?;
        Ok(self.open.get_or_init(|| Arc::new(table)))
    }
}

/// The block in which a key was last sought, and its position in the run.
#[derive(Debug)]
pub struct LastBlock {
    table: usize,
    number: usize,
    block: Arc<Block>,
}

/// Tables that do not overlap, in key order.
#[derive(Clone, Debug)]
pub struct SortedRun {
    /// [`TableRef::run`] of all its tables.
    pub number: u64,
    /// Its tables.
    pub tables: Vec<Arc<TableHandle>>,
}

impl SortedRun {
    /// Approximate bytes of the visible parts of its tables.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.visible_of(table.reference.bytes)).sum()
    }

    /// Approximate number of records in the visible parts of its tables.
    #[must_use]
    pub(crate) fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.visible_of(table.reference.rows)).sum()
    }

    /// Index of the first table whose range ends at or after `key`.
    fn table_of(&self, key: &Key) -> usize {
        self.tables.partition_point(|table| table.reference.last.key() < *key)
    }

    fn table_showing(&self, key: &Key) -> Option<&Arc<TableHandle>> {
        let table = self.tables.get(self.table_of(key))?;
        table.reference.shows(key).then_some(table)
    }

    /// Reads the first record at or after `key` into `out`, in readable form and without strings;
    /// returns false if there is none. Costs at most two block reads; a block already in `last` is
    /// not read again. Leaves the block that it read in `last`.
    pub(crate) fn seek(
        &self,
        key: &Key,
        last: &mut Option<LastBlock>,
        out: &mut RowBuffer,
    ) -> Result<bool> {
        for (at, handle) in self.tables.iter().enumerate().skip(self.table_of(key)) {
            let table = handle.open()?;
            let first = handle.reference.first.key().max(*key);
            for number in table.index().block_of(&first)..table.index().blocks() {
                let sought = match last {
                    Some(sought) if (sought.table, sought.number) == (at, number) => sought,
                    _ => {
                        let block = table.block(number)?;
                        last.insert(LastBlock { table: at, number, block })
                    }
                };
                let row = sought.block.lower_bound(&first);
                if row < sought.block.rows() {
                    if sought.block.key_ints(row) > handle.reference.last.ints {
                        break;
                    }
                    sought.block.read(row, false, out);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Seeks each of `keys`, which must ascend, as [`SortedRun::seek`] does. Passes the index of
    /// each key, and its record if there is one, to `found`. Cost: blocks that are not in memory,
    /// read by regions.
    pub fn seek_batch(
        &self,
        keys: &[Key],
        found: &mut dyn FnMut(usize, &RowBuffer) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while let Some(key) = keys.get(at)
            && let Some(handle) = self.tables.get(self.table_of(key))
        {
            let (first, last) = (handle.reference.first.key(), handle.reference.last.key());
            let end = at + keys[at..].partition_point(|key| *key <= last);
            let from = keys[at..end].iter().map(|key| first.max(*key));
            let from: Vec<Key> = from.collect();
            let mut beyond = Vec::new();
            handle.open()?.seek_batch(&from, &mut |index, row| match row {
                Some(row) if row.ints[..last.ints.len()] <= last.ints[..] => found(at + index, row),
                _ => {
                    beyond.push(at + index);
                    Ok(())
                }
            })?;
            // If the key's block has no such record, it is in the next block or the next table.
            let (mut sought, mut row) = (None, RowBuffer::default());
            for index in beyond {
                if self.seek(&keys[index], &mut sought, &mut row)? {
                    found(index, &row)?;
                }
            }
            at = end;
        }
        Ok(())
    }

    /// Returns the records from `from` on, as a merge of this run alone; it may stop after `to`.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn merge(&self, schema: &'static Schema, from: &Key, to: &Key) -> Result<RecordMerge> {
        RecordMerge::new(vec![self.cursor(schema, from, to)], from)
    }

    /// Returns a cursor over records from `from` on; it may stop after `to`.
    #[must_use]
    pub(crate) fn cursor(&self, schema: &'static Schema, from: &Key, to: &Key) -> RecordCursor {
        let start = self.table_of(from);
        let count =
            self.tables[start..].partition_point(|table| table.reference.first.key() <= *to);
        RecordCursor::over_tables(schema, self.tables[start..start + count].to_vec(), from, to)
    }
}

/// All runs of a change set, newest first.
///
/// ```
/// use std::sync::Arc;
/// use esker_base::store::{MemoryStore, SharedStore};
/// use esker_table::manifest::SetId;
/// use esker_table::run_writer::RunWriter;
/// use esker_table::schema::record::{self, RECORD};
/// use esker_table::schema::{Key, RowBuffer};
/// use esker_table::table::LookupKey;
/// use esker_table::tables::{TableRuns, TableSource};
///
/// let store: SharedStore = Arc::new(MemoryStore::new());
/// let mut references = Vec::new();
/// let mut next_table = 0;
/// // The newer run first, as a manifest lists them.
/// for (run, value) in [(2, b"newer"), (1, b"older")] {
///     let mut writer = RunWriter::new(&RECORD, &store, SetId(1), run, &mut next_table);
///     let mut row = record::row(b"key", value);
///     RECORD.store(&mut row.ints);
///     writer.push(&row)?;
///     references.extend(writer.finish()?);
/// }
/// let tables = TableRuns::new(&references, &RECORD, &TableSource::new(store, 1 << 20));
/// let (key, mut row) = (record::key(b"key"), RowBuffer::default());
/// assert!(tables.get(&LookupKey { key, digest: RECORD.digest(&key) }, true, &mut row)?);
/// assert_eq!(row.strings[record::VALUE], b"newer");
/// let mut oldest = tables.runs[1].merge(&RECORD, &Key::FIRST, &Key::LAST)?;
/// assert!(oldest.advance()? && oldest.row().strings[record::VALUE] == b"older");
/// # Ok::<(), esker_base::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TableRuns {
    /// The runs.
    pub runs: Vec<SortedRun>,
}

impl TableRuns {
    /// Collects the tables of `schema` among `references`, which are in a manifest's order.
    #[must_use]
    pub fn new(references: &[TableRef], schema: &'static Schema, source: &TableSource) -> Self {
        let mut runs: Vec<SortedRun> = Vec::new();
        for reference in references.iter().filter(|reference| reference.schema == schema.id) {
            let table = TableHandle::new(reference.clone(), schema, source.clone());
            match runs.last_mut().filter(|run| run.number == reference.run) {
                Some(run) => run.tables.push(table),
                None => runs.push(SortedRun { number: reference.run, tables: vec![table] }),
            }
        }
        Self { runs }
    }

    /// Returns the references that a manifest lists for these tables.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn references(&self) -> Vec<TableRef> {
        let tables = self.runs.iter().flat_map(|run| &run.tables);
        tables.map(|table| table.reference.clone()).collect()
    }

    /// Reads the newest record of a key into `out`; returns false if no table has one. Costs one
    /// store request for each table whose filter says maybe, until the first that has the key.
    #[inline]
    pub fn get(&self, wanted: &LookupKey, with_strings: bool, out: &mut RowBuffer) -> Result<bool> {
        self.get_counting(wanted, with_strings, out, &mut 0)
    }

    /// Reads as [`TableRuns::get`] does; adds the number of tables searched to `tables`.
    #[inline]
    pub(crate) fn get_counting(
        &self,
        wanted: &LookupKey,
        with_strings: bool,
        out: &mut RowBuffer,
        tables: &mut usize,
    ) -> Result<bool> {
        let is_alone = self.runs.len() == 1;
        for runs in self.runs.chunks(SEEK_RUNS_MAX) {
            let mut seeks: ArrayVec<(&TableHandle, Option<TableProbe>), SEEK_RUNS_MAX> =
                ArrayVec::new();
            for run in runs {
                if let Some(handle) = run.table_showing(&wanted.key) {
                    // A table that was never opened may not be needed this time either.
                    let table = handle.open.get();
                    seeks.push((handle, table.map(|table| table.seek(wanted, is_alone))));
                }
            }
            *tables += seeks.len();
            let mut each_open = |step: fn(&mut TableProbe, &LookupKey)| {
                let open = seeks.iter_mut().filter_map(|(_, seek)| seek.as_mut());
                open.for_each(|seek| step(seek, wanted));
            };
            each_open(|seek, wanted| seek.ask_filter_first(wanted));
            each_open(|seek, wanted| seek.advance(wanted));
            each_open(|seek, wanted| seek.ask_filter(wanted));
            for (handle, seek) in &seeks {
                let found = match seek {
                    Some(seek) => seek.get(wanted, with_strings, out),
                    None => handle.open()?.get(wanted, with_strings, out),
                };
                if found? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns whether a table may have a record of the key, according to the filters in memory. A
    /// table that was never opened may. No store request.
    #[must_use]
    pub(crate) fn may_contain(&self, wanted: &LookupKey) -> bool {
        let mut tables = self.runs.iter().filter_map(|run| run.table_showing(&wanted.key));
        tables.any(|handle| match handle.open.get() {
            Some(table) => table.may_contain(table.index().block_of(&wanted.key), wanted.digest),
            None => true,
        })
    }

    /// Reads every block once; a cache that is large enough then holds them all.
    pub fn warm(&self) -> Result<()> {
        for table in self.runs.iter().flat_map(|run| &run.tables) {
            let table = table.open()?;
            (0..table.index().blocks()).try_for_each(|block| table.block(block).map(drop))?;
        }
        Ok(())
    }

    /// Pushes cursors over each run's records from `from` on, newest run first; they may stop after
    /// `to`.
    pub fn cursors(
        &self,
        schema: &'static Schema,
        from: &Key,
        to: &Key,
        out: &mut Vec<RecordCursor>,
    ) {
        out.extend(self.runs.iter().map(|run| run.cursor(schema, from, to)));
    }
}
