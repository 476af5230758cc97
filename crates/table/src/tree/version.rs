// SPDX-License-Identifier: Apache-2.0
//! Version: an immutable snapshot of all sources that a reader searches below the active memtable.

use std::sync::Arc;

use esker_base::Result;

use crate::family::FamilyTables;
use crate::memtable::FrozenMemtable;
use crate::run::CompressedRun;
use crate::schema::{RowBuffer, Schema};
use crate::table::LookupKey;
use crate::tables::TableRuns;

/// One snapshot. Each part is newest first, and the parts are in order of age.
#[derive(Clone, Debug)]
pub(super) struct TreeVersion {
    /// Frozen memtables that are being encoded.
    pub(super) frozen: Vec<Arc<FrozenMemtable>>,
    /// Compressed runs in memory.
    pub(super) compressed: Vec<Arc<CompressedRun>>,
    /// Tables in the store.
    pub(super) tables: TableRuns,
    /// Tables of the hosted family.
    pub(super) family_tables: Arc<dyn FamilyTables>,
}

impl TreeVersion {
    /// Reads the newest record of a key; returns false if there is none.
    #[inline]
    pub(super) fn get(
        &self,
        schema: &Schema,
        wanted: &LookupKey,
        with_strings: bool,
        out: &mut RowBuffer,
    ) -> Result<bool> {
        self.get_counting(schema, wanted, (with_strings, out), &mut 0)
    }

    /// Reads as [`TreeVersion::get`] does; adds the number of tables searched to `tables`.
    #[inline]
    pub(super) fn get_counting(
        &self,
        schema: &Schema,
        wanted: &LookupKey,
        (with_strings, out): (bool, &mut RowBuffer),
        tables: &mut usize,
    ) -> Result<bool> {
        for memtable in &self.frozen {
            if let Some(row) = memtable.get(&wanted.key) {
                out.set(&row);
                schema.restore(&mut out.ints);
                return Ok(true);
            }
        }
        if self.compressed.iter().any(|run| run.get(&wanted.key, with_strings, out)) {
            return Ok(true);
        }
        self.tables.get_counting(wanted, with_strings, out, tables)
    }
}
