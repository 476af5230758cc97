// SPDX-License-Identifier: Apache-2.0
//! Damaged tables: tables that a merge could not read. Their runs stay out of later merges, so that
//! damage stops no writer, and is never merged away: reads of the damaged part and verification
//! report it.
//!
//! Merges only join neighbouring runs, so a damaged run divides the others into stretches that are
//! merged each for itself. The tables are forgotten when the tree is closed: the next writer's first
//! merge finds the damage again, or the table repaired.
//! Source: LevelDB, where an error of a compaction stops all writes instead
//! (`DBImpl::RecordBackgroundError`).

use std::collections::BTreeSet;
use std::ops::Range;

use esker_base::{Error, Kind, Result};

use super::{FlushState, TreeShared};
use crate::manifest::TableRef;
use crate::tables::SortedRun;

/// Tables that merges could not read, by the names of their objects.
#[derive(Debug, Default)]
pub(super) struct DamagedTables(BTreeSet<String>);

impl DamagedTables {
    /// Adds those of `tables` that `error`, of a merge of some of them, names as unreadable. Returns
    /// false if there are none: then the error has another reason.
    pub(super) fn add_named(&mut self, error: &Error, tables: &[TableRef]) -> bool {
        let is_of_reading =
            matches!(error.kind(), Kind::Corrupt | Kind::NotFound | Kind::DeviceFailed);
        if !is_of_reading {
            return false;
        }
        let names = tables.iter().map(TableRef::name);
        let before = self.0.len();
        self.0.extend(names.filter(|name| error.context().contains(name)));
        self.0.len() > before
    }

    fn has(&self, table: &TableRef) -> bool {
        !self.0.is_empty() && self.0.contains(&table.name())
    }

    /// True if one of `runs` has a damaged table.
    pub(super) fn has_run_of(&self, runs: &[SortedRun]) -> bool {
        let mut tables = runs.iter().flat_map(|run| &run.tables);
        tables.any(|table| self.has(&table.reference))
    }

    /// True if one of `tables` of another schema than `schema` is damaged.
    pub(super) fn has_any_beside(&self, tables: &[TableRef], schema: u16) -> bool {
        tables.iter().any(|table| table.schema != schema && self.has(table))
    }

    /// Returns the longest ranges of `runs` without a damaged one, in order.
    pub(super) fn sound_stretches(&self, runs: &[SortedRun]) -> Vec<Range<usize>> {
        let mut stretches = Vec::new();
        let mut start = 0;
        for (at, run) in runs.iter().enumerate() {
            if self.has_run_of(std::slice::from_ref(run)) {
                stretches.push(start..at);
                start = at + 1;
            }
        }
        stretches.push(start..runs.len());
        stretches.retain(|stretch| !stretch.is_empty());
        stretches
    }
}

impl TreeShared {
    /// Leaves the tables that `merged` could not read out of later merges, and deletes what it has
    /// written.
    ///
    /// # Errors
    /// That of `merged` if it has another reason.
    pub(super) fn leave_out_damaged(
        &self,
        state: &mut FlushState,
        merged: Result<()>,
    ) -> Result<()> {
        let Err(error) = merged else { return Ok(()) };
        if !state.damaged.add_named(&error, &state.manifest.tables) {
            return Err(error);
        }
        // Tables that stay are collected with those that writers of earlier epochs left.
        let _ = self.delete_uncommitted(state);
        Ok(())
    }
}
