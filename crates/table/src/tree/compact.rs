// SPDX-License-Identifier: Apache-2.0
//! Compaction: merges runs of tables into fewer, by policy or when asked.
//!
//! Readers that hold an older version continue to read the replaced tables. Their objects stay,
//! listed as obsolete in the manifest, until garbage is collected.
//! A merge by policy that meets a damaged table leaves the table's run as it is, and merges the
//! others (`damaged_tables.rs`).

use std::collections::HashSet;
use std::sync::Arc;

use esker_base::Result;

use super::no_space::is_full;
use super::{Compaction, FlushState, TIER_RATIO, TIER_RUNS_MAX, Tree, TreeShared, TreeVersion};
use crate::manifest::TableRef;
use crate::merge::{RecordCursor, RecordMerge};
use crate::schema::{Key, Schema};
use crate::tables::{SortedRun, TableRuns};

impl Tree {
    /// Flushes, then merges all tables into one run. Reads and writes every record once.
    ///
    /// # Errors
    /// As [`Tree::flush`].
    pub fn compact(&self) -> Result<()> {
        self.flush()?;
        let inner = &*self.inner;
        let mut state = inner.lock_flush();
        let runs = inner.version.load().tables.runs.len();
        inner.with_rollback(&mut state, |state| {
            inner.compact_runs(state, 0, runs)?;
            inner.compact_family(state)
        })
    }
}

impl TreeShared {
    /// Compacts as the policy asks after a flush, or later if there is no room now.
    pub(super) fn compact_by_policy(&self, state: &mut FlushState) -> Result<()> {
        let began_ns = self.clock.monotonic_ns();
        if began_ns < state.compaction_due_ns {
            return Ok(());
        }
        let compacted = self.with_rollback(state, |state| self.compact_crowded(state));
        if is_full(&compacted) {
            state.compaction_due_ns = self.due_ns(began_ns);
            return Ok(());
        }
        compacted
    }

    fn compact_crowded(&self, state: &mut FlushState) -> Result<()> {
        let family_runs = self.version.load().family_tables.runs().len();
        if self.options.compaction != Compaction::Deferred
            && family_runs >= TIER_RUNS_MAX
            && !state.damaged.has_any_beside(&state.manifest.tables, self.schema.id)
        {
            let merged = self.compact_family(state);
            self.leave_out_damaged(state, merged)?;
        }
        loop {
            let version = self.version.load();
            let stretches = state.damaged.sound_stretches(&version.tables.runs);
            let window = match self.options.compaction {
                Compaction::Deferred => None,
                Compaction::Full => stretches.into_iter().find(|stretch| stretch.len() > 1),
                Compaction::Tiered => stretches.into_iter().find_map(|stretch| {
                    let (start, end) = crowded_tier(&version.tables.runs[stretch.clone()])?;
                    Some(stretch.start + start..stretch.start + end)
                }),
            };
            drop(version);
            let Some(window) = window else { return Ok(()) };
            let merged = self.compact_runs(state, window.start, window.end);
            self.leave_out_damaged(state, merged)?;
        }
    }

    /// Merges the runs `start..end`, newest first, into one that replaces them.
    fn compact_runs(&self, state: &mut FlushState, start: usize, end: usize) -> Result<()> {
        let version = self.version.load_full();
        let runs = &version.tables.runs;
        if end - start == 0 || (end - start == 1 && runs.len() > 1) {
            return Ok(());
        }
        let merged = &runs[start..end];
        let number = merged[0].number;
        self.backlog.start_merge(merged.iter().map(SortedRun::rows).sum());
        let cursors: Vec<RecordCursor> =
            merged.iter().map(|run| run.cursor(self.schema, &Key::FIRST, &Key::LAST)).collect();
        let mut tables = self.write_run(state, self.schema, |writer| {
            let mut merge = RecordMerge::new(cursors, &Key::FIRST)?;
            while merge.advance()? {
                writer.push(&merge.row())?;
            }
            Ok(())
        })?;
        for table in &mut tables {
            table.run = number;
        }
        let fresh = TableRuns::new(&tables, self.schema, &self.source);
        let gone = gone_of(self.schema, merged);
        self.replace(state, &gone, &tables, |version| {
            let runs = &mut version.tables.runs;
            runs.retain(|run| !merged.iter().any(|merged| merged.number == run.number));
            runs.extend(fresh.runs.iter().cloned());
            runs.sort_by_key(|run| std::cmp::Reverse(run.number));
        })?;
        let gone: Vec<u64> = gone.into_iter().map(|(_, run)| run).collect();
        self.inherit_merged(&gone);
        self.pending.lock().paid_merge = None;
        self.read_cost.reset();
        Ok(())
    }

    /// Commits `tables` in place of those of the runs `gone`, and shows readers the version that
    /// `shows` returns.
    pub(super) fn replace(
        &self,
        state: &mut FlushState,
        gone: &[(u16, u64)],
        tables: &[TableRef],
        shows: impl Fn(&mut TreeVersion),
    ) -> Result<()> {
        let rest = |table: &TableRef| {
            let is_gone = gone.contains(&(table.schema, table.run));
            (!is_gone).then(|| table.clone())
        };
        self.replace_tables(state, rest, tables, shows)
    }

    /// Commits `tables`, and the part of each earlier table that `rest` leaves; shows readers the
    /// version that `shows` returns.
    pub(super) fn replace_tables(
        &self,
        state: &mut FlushState,
        rest: impl Fn(&TableRef) -> Option<TableRef>,
        tables: &[TableRef],
        shows: impl Fn(&mut TreeVersion),
    ) -> Result<()> {
        self.commit(state, |manifest| {
            let old = std::mem::take(&mut manifest.tables);
            let mut kept: Vec<TableRef> = old.iter().filter_map(rest).collect();
            // Another reference, to another key range, may still show the same object.
            let shown: HashSet<_> = kept.iter().map(|table| (table.set, table.number)).collect();
            let own = old.iter().filter(|table| table.set == self.set);
            let gone = own.filter(|table| !shown.contains(&(table.set, table.number)));
            manifest.obsolete.extend(gone.map(|table| table.number));
            kept.extend(tables.iter().cloned());
            kept.sort_by(|a, b| b.run.cmp(&a.run).then_with(|| a.first.key().cmp(&b.first.key())));
            manifest.tables = kept;
        })?;
        self.version.rcu(|version| {
            let mut version = TreeVersion::clone(version);
            shows(&mut version);
            version
        });
        self.price_merges();
        Ok(())
    }

    /// Updates the tables that the set had when it was opened after a merge of the runs `merged`,
    /// newest first, so that the old tables can be closed.
    pub(super) fn inherit_merged(&self, merged: &[u64]) {
        let Some(inherited) = self.inherited.get() else { return };
        let before = inherited.load();
        let is_inherited = |number: &u64| before.runs.iter().any(|run| run.number == *number);
        if !merged.iter().any(is_inherited) {
            return;
        }
        // The runs that the set had when it was opened, or adopted, are older than all others, and a
        // merged run is as new as the newest of its runs. It may have more keys than were inherited, which
        // only costs look-ups in it.
        let newest = before.runs.iter().map(|run| run.number).chain([merged[0]]).max();
        let mut runs = self.version.load().tables.runs.clone();
        runs.retain(|run| Some(run.number) <= newest);
        inherited.store(Arc::new(TableRuns { runs }));
    }
}

/// Returns the keys by which a manifest names `runs` of tables of `schema`.
fn gone_of(schema: &Schema, runs: &[SortedRun]) -> Vec<(u16, u64)> {
    runs.iter().map(|run| (schema.id, run.number)).collect()
}

/// Returns the newest neighbouring runs of one size class, if there are too many.
fn crowded_tier(runs: &[SortedRun]) -> Option<(usize, usize)> {
    let sizes: Vec<u64> = runs.iter().map(SortedRun::bytes).collect();
    for start in 0..sizes.len() {
        let (mut least, mut most) = (sizes[start], sizes[start]);
        let mut end = start + 1;
        while end < sizes.len() {
            (least, most) = (least.min(sizes[end]), most.max(sizes[end]));
            if most > least.saturating_mul(TIER_RATIO) {
                break;
            }
            end += 1;
        }
        if end - start >= TIER_RUNS_MAX {
            return Some((start, end));
        }
    }
    None
}
