// SPDX-License-Identifier: Apache-2.0
//! The family that a tree hosts: puts, reads, flushes and merges of its records.

use std::any::{Any, type_name};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_base::Result;

use super::commit::SHARD_LOG_BYTES;
use super::{FlushState, Tree, TreeShared, TreeVersion};
use crate::family::{FamilyMemtable, FamilyTables};
use crate::manifest::TableRef;
use crate::run_writer::RunWriter;
use crate::schema::Schema;
use crate::tables::TableRuns;

impl Tree {
    /// Puts records of the hosted family, whose memtable is `M`, as one operation: `put` receives
    /// the memtable and the operation's sequence number, and logs what it puts if the last argument
    /// is true. Returns the number.
    ///
    /// Once it returns, the operation survives crashes as the tree's durability promises. Cost: no
    /// store request but a share of a log write and, without a background thread, an occasional
    /// flush.
    ///
    /// # Errors
    /// `Closed`, and errors of the store.
    ///
    /// # Panics
    /// If the tree hosts another family.
    pub fn put_in_family<M: FamilyMemtable>(
        &self,
        put: impl FnOnce(&mut M, u64, bool),
    ) -> Result<u64> {
        let inner = &*self.inner;
        inner.check_writable()?;
        let mut live = inner.family_memtable.lock();
        let seq = inner.next_seq.fetch_add(1, Ordering::AcqRel);
        let before = live.bytes();
        put(cast_mut(&mut **live), seq, inner.logs());
        let grown_bytes = live.bytes().saturating_sub(before);
        let log_full = live.pending().len() >= SHARD_LOG_BYTES;
        drop(live);
        inner.after_write(seq, log_full, grown_bytes)?;
        Ok(seq)
    }

    /// Passes the active memtable of the hosted family to `read`, under the family's lock. Returns
    /// the answer and all older sources, which together have every record put so far.
    ///
    /// # Panics
    /// If the tree hosts another family.
    pub fn read_family<M: FamilyMemtable, T>(
        &self,
        read: impl FnOnce(&M) -> T,
    ) -> (T, OlderSources) {
        let answer = read(cast(&**self.inner.family_memtable.lock()));
        // Loaded after the active memtable was read, so it has everything frozen since.
        (answer, self.older_sources())
    }

    /// Returns everything below the active memtable, as of one moment.
    #[must_use]
    pub fn older_sources(&self) -> OlderSources {
        OlderSources(self.inner.version.load_full())
    }

    /// Flushes, then merges all tables of the hosted family. Reads and writes every record of it
    /// once.
    ///
    /// # Errors
    /// As [`Tree::flush`].
    pub fn compact_family(&self) -> Result<()> {
        self.flush()?;
        let inner = &*self.inner;
        inner.with_rollback(&mut inner.lock_flush(), |state| inner.compact_family(state))
    }

    /// Replaces all tables of the hosted family by those that `write` returns, in a manifest's
    /// order; records in memory stay. One commit.
    ///
    /// # Errors
    /// Errors of `write`; as [`Tree::flush`].
    pub fn replace_family(
        &self,
        write: impl FnOnce(&mut FamilyWriter) -> Result<Vec<TableRef>>,
    ) -> Result<()> {
        let inner = &*self.inner;
        inner.with_rollback(&mut inner.lock_flush(), |state| {
            let tables = write(&mut FamilyWriter::new(inner, state, false))?;
            inner.replace_family(state, &tables)
        })
    }
}

/// The sources of a tree below its active memtable, as of one moment.
#[derive(Debug)]
pub struct OlderSources(Arc<TreeVersion>);

impl OlderSources {
    /// The frozen memtables of the hosted family, newest first.
    ///
    /// # Panics
    /// If the tree hosts another family.
    pub fn memtables<M: FamilyMemtable>(&self) -> impl Iterator<Item = &M> {
        self.0.frozen.iter().map(|memtable| cast(memtable.family()))
    }

    /// The tables of the hosted family, which are older than the memtables.
    ///
    /// # Panics
    /// If the tree hosts another family.
    #[must_use]
    pub fn tables<T: FamilyTables>(&self) -> &T {
        cast(&*self.0.family_tables)
    }

    /// The tables of rows.
    #[must_use]
    pub fn rows(&self) -> &TableRuns {
        &self.0.tables
    }
}

/// Returns `part` as the type that its family gave it.
fn cast<T: Any>(part: &dyn Any) -> &T {
    part.downcast_ref()
        .unwrap_or_else(|| panic!("the tree hosts no family of {}", type_name::<T>()))
}

/// As [`cast`], for changes.
fn cast_mut<T: Any>(part: &mut dyn Any) -> &mut T {
    part.downcast_mut()
        .unwrap_or_else(|| panic!("the tree hosts no family of {}", type_name::<T>()))
}

/// Writes tables of a family, for a flush or a merge.
pub struct FamilyWriter<'a> {
    /// True if the set builds on no other, so that nothing is below its tables.
    pub is_bottom: bool,
    /// True if a memtable is written, false if tables are merged or replaced.
    is_flush: bool,
    tree: &'a TreeShared,
    state: &'a mut FlushState,
}

impl<'a> FamilyWriter<'a> {
    fn new(tree: &'a TreeShared, state: &'a mut FlushState, is_flush: bool) -> Self {
        let is_bottom = state.manifest.bases.is_empty();
        Self { is_bottom, is_flush, tree, state }
    }

    /// Announces that about `rows` rows are going to be written, so that the tree's writers can keep
    /// pace.
    pub fn start(&self, rows: u64) {
        match self.is_flush {
            true => self.tree.backlog.start_flush(rows),
            false => self.tree.backlog.start_merge(rows),
        }
    }

    /// Writes one sorted run of tables of `schema`; `fill` pushes its rows in key order.
    ///
    /// # Errors
    /// Errors of `fill` and of the store.
    pub fn write_run(
        &mut self,
        schema: &'static Schema,
        fill: impl FnOnce(&mut RunWriter) -> Result<()>,
    ) -> Result<Vec<TableRef>> {
        self.tree.write_run(self.state, schema, fill)
    }
}

impl TreeShared {
    /// Writes the records of a frozen memtable of the family.
    pub(super) fn flush_family(
        &self,
        state: &mut FlushState,
        memtable: &dyn FamilyMemtable,
    ) -> Result<Vec<TableRef>> {
        memtable.flush(&mut FamilyWriter::new(self, state, true))
    }

    /// Merges all tables of the family, if it finds that worthwhile.
    pub(super) fn compact_family(&self, state: &mut FlushState) -> Result<()> {
        let family = self.version.load().family_tables.clone();
        match family.merge(&mut FamilyWriter::new(self, state, false))? {
            Some(tables) => self.replace_family(state, &tables),
            None => Ok(()),
        }
    }

    fn replace_family(&self, state: &mut FlushState, tables: &[TableRef]) -> Result<()> {
        let gone = self.version.load().family_tables.runs();
        let fresh = self.family.tables().with_newer(tables, &self.source);
        self.replace(state, &gone, tables, |version| version.family_tables = fresh.clone())
    }
}
