// SPDX-License-Identifier: Apache-2.0
//! Run writer: writes sorted records into as many tables as they need.

use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::Result;
use esker_base::store::SharedStore;

use crate::block::DecodedBlock;
use crate::manifest::{SetId, TableRef};
use crate::schema::{Row, Schema};
use crate::table::TableWriter;

/// Records between two updates of the caller's counter.
const TOLD_ROWS: u64 = 1 << 12;

/// A sorted run being written. Dropping it unfinished leaves tables that no manifest names.
pub struct RunWriter<'a> {
    schema: &'static Schema,
    store: &'a SharedStore,
    set: SetId,
    run: u64,
    next_table: &'a mut u64,
    open: Option<TableWriter>,
    done: Vec<TableRef>,
    /// Records not yet added to `written`.
    untold: u64,
    written: Option<&'a AtomicU64>,
}

impl<'a> RunWriter<'a> {
    /// Starts run `run` of `set`. Tables are numbered from `next_table`, which is advanced as they
    /// are written.
    pub fn new(
        schema: &'static Schema,
        store: &'a SharedStore,
        set: SetId,
        run: u64,
        next_table: &'a mut u64,
    ) -> Self {
        Self {
            schema,
            store,
            set,
            run,
            next_table,
            open: None,
            done: Vec::new(),
            untold: 0,
            written: None,
        }
    }

    /// Counts records in `written`, in batches.
    #[must_use]
    pub(crate) fn counting(self, written: &'a AtomicU64) -> Self {
        Self { written: Some(written), ..self }
    }

    fn count_rows(&mut self, rows: u64) {
        self.untold += rows;
        if self.untold >= TOLD_ROWS {
            if let Some(written) = self.written {
                written.fetch_add(self.untold, Ordering::Relaxed);
            }
            self.untold = 0;
        }
    }

    fn table(&mut self) -> Result<&mut TableWriter> {
        if self.is_table_full() {
            self.close()?;
        }
        if self.open.is_none() {
            let name = self.reference(*self.next_table).name();
            self.open = Some(TableWriter::new(self.schema, self.store.create(&name)?));
        }
        Ok(self.open.as_mut().expect("opened just now"))
    }

    fn reference(&self, number: u64) -> TableRef {
        TableRef {
            set: self.set,
            number,
            schema: self.schema.id,
            run: self.run,
            bytes: 0,
            tail_bytes: 0,
            rows: 0,
            seq_max: 0,
            first: Default::default(),
            last: Default::default(),
        }
    }

    /// Returns whether the next record begins another table.
    #[must_use]
    pub(crate) fn is_table_full(&self) -> bool {
        self.open.as_ref().is_some_and(TableWriter::is_full)
    }

    /// Adds a record in stored form. Its key must be greater than all before it.
    #[inline]
    pub fn push(&mut self, row: &Row) -> Result<()> {
        self.count_rows(1);
        match &mut self.open {
            Some(table) if !table.is_full() => table.push(row),
            _ => self.table()?.push(row),
        }
    }

    /// Adds an encoded block. Its keys must be greater than all before them.
    pub fn push_block(&mut self, encoded: &[u8], decoded: &DecodedBlock) -> Result<()> {
        self.count_rows(decoded.rows() as u64);
        self.table()?.push_block(encoded, decoded)
    }

    fn close(&mut self) -> Result<()> {
        let Some(table) = self.open.take() else {
            return Ok(());
        };
        // A table whose `finish` fails may exist in the store, so its number is not used again.
        let number = *self.next_table;
        *self.next_table += 1;
        let summary = table.finish()?;
        self.done.push(TableRef {
            bytes: summary.bytes,
            tail_bytes: summary.tail_bytes,
            rows: summary.rows,
            seq_max: summary.seq_max,
            first: summary.first,
            last: summary.last,
            ..self.reference(number)
        });
        Ok(())
    }

    /// Makes the last table durable and returns the references for a manifest.
    pub fn finish(mut self) -> Result<Vec<TableRef>> {
        self.close()?;
        Ok(self.done)
    }
}
