// SPDX-License-Identifier: Apache-2.0
//! Squash: merges a whole stack of change sets into one that depends on none and shows the same
//! tree.
//!
//! Two passes over the stack. The first finds the directories to which a path leads
//! (`stack/dir_tree.rs`). The second merges, in parallel over key ranges chosen from the tables'
//! indexes, so that workers read only what they need and exchange nothing. It drops shadowed
//! records, tombstones that hide nothing, and records of unreachable directories. File data stays in
//! its data logs, which the new set keeps, or is copied.
//! Invariants: (1) generations never decrease, so identities of directories are never reused; (2)
//! if branches of the stack have a file under several names, each name gets its own identity and
//! content, as the stack shows it (`stack/lineage.rs`), and link counts that branches got wrong are
//! corrected; (3) the new set marks the sets to whose logs it refers before it commits the
//! references, and only then releases its bases, which mark them until then.
//! Compaction of one sealed set (`Repository::compact`) is the second pass alone.
//! Source: DESIGN §5; DeltaFS thesis §4.3 (log compaction), §5 on parallel compaction.

mod copy;
mod file_data;
mod segments;
mod worker;

use std::collections::{BTreeMap, HashSet};

use esker_base::store::Store;
use esker_base::{Error, Kind, Result};
use esker_extent::{RUN, SEGMENT, SegmentSource, SegmentTables};
use esker_table::key_ranges::split_keys;
use esker_table::manifest::{Manifest, SetId, SetState, TableRef};
use esker_table::set_writer::SetWriter;
use esker_table::tables::TableRuns;

use self::file_data::LogReferences;
use self::segments::MappedFile;
pub use self::worker::SquashCounts;
use self::worker::{MergedRange, SquashJob, SquashPlan, merge_range};
use crate::inode::INODE;
use crate::repository::{Repository, complete_manifest};
use crate::retention::condemn;
use crate::retention::dependency;
use crate::retention::marker::MarkerHolder;
use crate::retention::provisional_markers::ProvisionalMarkers;
use crate::stack::dir_tree::{DirTree, in_parallel};
use crate::stack::layers::{LayerStack, load_stack};

/// Settings of a squash.
#[derive(Clone, Debug)]
pub struct SquashOptions {
    /// Number of merging threads.
    pub threads: usize,
    /// True to copy file data into the new set, which then needs no other set. If false, the new
    /// set refers to data logs of the merged sets, and keeps those logs.
    pub copy_data: bool,
    /// Descriptive properties of the new set, for users.
    pub properties: BTreeMap<String, String>,
    /// Identity of the squashing process, for other users who find the new set without a name.
    pub writer: Option<SetWriter>,
}

impl Default for SquashOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, copy_data: false, properties: BTreeMap::new(), writer: None }
    }
}

/// Result of a squash or compaction.
#[derive(Clone, Debug, Default)]
pub struct SquashReport {
    /// Number of merged sets.
    pub sets: usize,
    /// Records and bytes.
    pub counts: SquashCounts,
    /// Directories to which a path leads; 0 for a compaction, which does not check.
    pub directories: usize,
    /// Tables written.
    pub tables: usize,
    /// Their bytes.
    pub table_bytes: u64,
    /// Number of sets to whose data logs the new set refers.
    pub referenced_sets: usize,
    /// Duration, by the monotonic clock.
    pub elapsed_ns: u64,
}

impl SquashReport {
    fn of(sets: usize, tables: &[TableRef], counts: SquashCounts, elapsed_ns: u64) -> Self {
        Self {
            sets,
            counts,
            directories: 0,
            tables: tables.len(),
            table_bytes: tables.iter().map(|table| table.bytes).sum(),
            referenced_sets: 0,
            elapsed_ns,
        }
    }
}

impl Repository {
    /// Merges the stack of `bases`, of which earlier ones win, into one change set that depends on
    /// none and shows the same tree; publish it with [`Repository::publish`] or give it up with
    /// [`Repository::abandon`]. Cost: every table is read twice, once without decoding most of it,
    /// and every visible record is written once. File data is not read: the new set refers to it,
    /// and keeps the data logs that have it, but nothing else of the merged sets; each of these
    /// costs a marker and a read of its manifest, and each set that was merged into them a listing.
    /// With [`SquashOptions::copy_data`] all visible data is read and written once.
    ///
    /// # Errors
    /// As [`Repository::open`]; `Corrupt` if a table, or copied file data, is damaged.
    pub fn squash(
        &self,
        bases: &[SetId],
        options: &SquashOptions,
    ) -> Result<(SetId, SquashReport)> {
        let store = &**self.store();
        let set = self.draw_set_id();
        // The bases are held as by a session until the new set no longer needs them.
        let mut markers = ProvisionalMarkers::hold_session(store, set, bases)?;
        let stack = LayerStack::new(self.source().clone(), load_stack(self.source(), bases)?, None);
        markers.may_begin(set, &**self.clock());
        let report = self.squash_into(set, (bases, &stack), &mut markers, options)?;
        markers.keep_needed(|marker| marker.holder != MarkerHolder::Set(set))?;
        Ok((set, report))
    }

    fn squash_into(
        &self,
        set: SetId,
        (bases, stack): (&[SetId], &LayerStack),
        markers: &mut ProvisionalMarkers<'_>,
        options: &SquashOptions,
    ) -> Result<SquashReport> {
        let store = &**self.store();
        let start_ns = self.clock().monotonic_ns();
        let mut manifest = Manifest::new(bases.to_vec(), self.clock().now_ns());
        manifest.properties.clone_from(&options.properties);
        let now_ns = self.clock().now_ns();
        manifest.writer = options.writer.as_ref().map(|writer| writer.beginning(now_ns));
        manifest.commit(store, set, self.clock().now_ns())?;
        let layers: Vec<&TableRuns> = stack.bases().iter().map(|base| &base.tables).collect();
        let tree = DirTree::of(&layers, options.threads)?;
        let job = SquashJob {
            store: self.store(),
            set,
            epoch: manifest.epoch,
            run: 1,
            layers: &layers,
            bottom: true,
            squash: Some(SquashPlan { tree: &tree, stack, copies_data: options.copy_data }),
        };
        let MergedRanges { mut tables, mut counts, mapped, mut references } =
            merge_all(&job, options.threads)?;
        let segments = stack.bases().iter().flat_map(|base| base.segments.sources()).cloned();
        let segments: Vec<SegmentSource> = segments.collect();
        let content = segments::merge(&job, job.run + 1, &segments, mapped)?;
        counts.data_bytes += content.counts.data_bytes;
        references.extend(content.data.references);
        tables.splice(0..0, content.tables);
        let elapsed_ns = self.clock().monotonic_ns() - start_ns;
        let mut report = SquashReport::of(stack.bases().len(), &tables, counts, elapsed_ns);
        report.directories = tree.directories();
        manifest.referenced_logs = references.sorted();
        report.referenced_sets = manifest.referenced_logs.len();
        for logs in &manifest.referenced_logs {
            markers.hold(logs.set, MarkerHolder::Data(set))?;
            condemn::keep_data(store, logs.set)?;
        }
        manifest.bases.clear();
        manifest.merged_sets = merged_sets(store, stack)?;
        manifest.last_seq = tables.iter().map(|table| table.seq_max).max().unwrap_or(0);
        manifest.tables = tables;
        complete_manifest(&mut manifest);
        manifest.commit(store, set, self.clock().now_ns())?;
        Ok(report)
    }

    /// Merges the tables of the published set `name` into one run; the tree it shows does not
    /// change. Readers that have it open continue with the old tables, which are collected after a
    /// grace period. Cost: every record of the set, not of its bases, is read and written once.
    ///
    /// # Errors
    /// `NotFound`; `Fenced` if another process compacts it at the same time.
    pub fn compact(&self, name: &str) -> Result<SquashReport> {
        let named = self.resolve(name)?;
        self.compact_set(named.set, 1)
    }

    /// Like [`Repository::compact`], for a set and with several threads.
    ///
    /// # Errors
    /// As [`Repository::compact`]; `Invalid` if the set is not sealed, or has its own identities:
    /// a session that is about to adopt its tables relies on them.
    pub fn compact_set(&self, set: SetId, threads: usize) -> Result<SquashReport> {
        let store = &**self.store();
        let start_ns = self.clock().monotonic_ns();
        let mut manifest = condemn::load_live(store, set)?;
        if manifest.state != SetState::Sealed {
            let context = format!("change set {set} is open; its session compacts it");
            return Err(Error::new(Kind::Invalid, context));
        }
        if manifest.has_own_identities {
            let context = format!(
                "@{set} was filled for a bulk insertion, and its tables stay as they are; `esker \
                 squash @{set}` makes a compact copy"
            );
            return Err(Error::new(Kind::Invalid, context));
        }
        if is_compact(set, &manifest) {
            return Ok(SquashReport::of(1, &[], SquashCounts::default(), 0));
        }
        // The process that commits the higher epoch owns its table numbers.
        manifest.epoch += 1;
        manifest.claim(store, set, self.clock().now_ns())?;
        let tables = TableRuns::new(&manifest.tables, &INODE, self.source());
        let run = manifest.tables.iter().map(|table| table.run).max().unwrap_or(0) + 1;
        let job = SquashJob {
            store: self.store(),
            set,
            epoch: manifest.epoch,
            run,
            layers: &[&tables],
            // The set may be stacked on sets in which its tombstones hide something.
            bottom: false,
            squash: None,
        };
        let MergedRanges { tables: mut merged, counts, .. } = merge_all(&job, threads)?;
        let segments = SegmentTables::new(&manifest.tables, self.source());
        let has_runs = segments.sources().iter().any(|source| source.schema().id == RUN.id);
        if !has_runs {
            let content = segments::merge(&job, run + 1, segments.sources(), Vec::new())?;
            merged.splice(0..0, content.tables);
        }
        let elapsed_ns = self.clock().monotonic_ns() - start_ns;
        let report = SquashReport::of(1, &merged, counts, elapsed_ns);
        dependency::keep_data_of_tables(set, &mut manifest);
        let (old, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut manifest.tables).into_iter().partition(|table| {
                table.schema == INODE.id || (table.schema == SEGMENT.id && !has_runs)
            });
        let own = old.iter().filter(|table| table.set == set);
        manifest.obsolete.extend(own.map(|table| table.number));
        manifest.tables = merged.into_iter().chain(others).collect();
        manifest.commit(store, set, self.clock().now_ns())?;
        Ok(report)
    }
}

/// Returns the sets of `stack`, and those that were merged into them, unless they are gone: nothing
/// that exists builds on them. Cost: a listing for each of the latter.
fn merged_sets(store: &dyn Store, stack: &LayerStack) -> Result<Vec<SetId>> {
    let mut found: Vec<SetId> = stack.bases().iter().map(|base| base.set).collect();
    let mut known: HashSet<SetId> = found.iter().copied().collect();
    let earlier = stack.bases().iter().flat_map(|base| &base.manifest.merged_sets);
    for set in earlier.copied().filter(|set| known.insert(*set)) {
        match Manifest::newest_number(store, set) {
            Err(error) if error.kind() == Kind::NotFound => {}
            number => {
                number?;
                found.push(set);
            }
        }
    }
    Ok(found)
}

/// True if the set's own tables are already one run of each kind. Tables of runs stay as they are,
/// and so do those of single segments, since their relative age matters.
fn is_compact(set: SetId, manifest: &Manifest) -> bool {
    let has_runs = manifest.tables.iter().any(|table| table.schema == RUN.id);
    let kinds = if has_runs { &[INODE.id][..] } else { &[INODE.id, SEGMENT.id] };
    kinds.iter().all(|schema| {
        let mut tables = manifest.tables.iter().filter(|table| table.schema == *schema);
        let first = tables.clone().next().map(|table| table.run);
        tables.all(|table| Some(table.run) == first && table.set == set)
    })
}

/// Combined result of all ranges.
#[derive(Default)]
struct MergedRanges {
    /// Tables in key order.
    tables: Vec<TableRef>,
    counts: SquashCounts,
    mapped: Vec<MappedFile>,
    references: LogReferences,
}

/// Merges all ranges of a job.
fn merge_all(job: &SquashJob, threads: usize) -> Result<MergedRanges> {
    let ranges = split_keys(job.layers, threads)?;
    let mut done: Vec<MergedRange> = in_parallel(threads, ranges.len(), 1, |at, out| {
        out.push(merge_range(job, at, &ranges[at])?);
        Ok(())
    })?;
    done.sort_unstable_by_key(|done| done.range);
    let mut merged = MergedRanges::default();
    for done in done {
        merged.counts.add(&done.counts);
        merged.tables.extend(done.tables);
        merged.mapped.extend(done.mapped);
        merged.references.extend(done.data.references);
    }
    Ok(merged)
}
