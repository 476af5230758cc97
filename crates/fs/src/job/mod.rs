// SPDX-License-Identifier: Apache-2.0
//! Jobs: several writers of one job, each with its own part of the job's change set, and joining
//! the parts.
//!
//! Ranks do not communicate while they write. Publishing moves references to tables, never records:
//! the job's set shows the tables of all parts. Only names that several parts changed need a
//! decision (`resolve.rs`); the winning records are a small run above all others.
//! Invariant: no change of a part is left out without being reported.
//! Source: DESIGN §5; DeltaFS thesis §4.3 (no false sharing).

pub(crate) mod claim;
mod conflict;
mod cover;
mod file_names;
mod find;
mod link_counts;
mod lost_names;
mod moved_files;
mod part_views;
mod parts;
mod removed_trees;
mod resolve;
mod same_file;
mod withdrawn;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::str::FromStr;

use esker_base::{Error, Kind, Random, Result};
use esker_extent::{RUN, SEGMENT};
use esker_table::manifest::{JobMembership, Manifest, SetId, SetState, TableRef};
use esker_table::run_writer::RunWriter;
use esker_table::schema::{Key, KeyBuffer, Schema};
use esker_table::set_writer::SetWriter;
use esker_table::tables::TableRuns;
use hashbrown::{HashMap, HashSet};

use self::conflict::ConflictList;
pub use self::conflict::{ConflictKind, PartConflict};
use self::cover::FileCover;
use self::find::PartFindings;
use self::link_counts::corrected_counts;
use self::lost_names::{ChangedFiles, changed_files, restored_names};
use self::part_views::PartViews;
pub use self::parts::JobPart;
pub(crate) use self::parts::joined_job;
use self::resolve::{JobLayers, PartResolution};
use crate::inode::{INODE, Inode, identity_root};
use crate::names;
use crate::names::publication::check_part_stays;
use crate::repository::{Repository, best_effort, complete_manifest};
use crate::retention::condemn;
use crate::retention::dependency;
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::provisional_markers::ProvisionalMarkers;
use crate::retention::session_marker;
use crate::stack::dir_tree::DirTree;
use crate::stack::layers::{LayerStack, load_stack};

/// Segments of a file are looked up in ranges of this size, so that memory does not grow with the
/// file.
const WINDOW_BYTES: usize = 64 << 20;

/// Identity of a job, on which its ranks agree beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u128);

impl JobId {
    /// Returns a new unique identity.
    #[must_use]
    pub fn random() -> Self {
        Self(Random::from_system().u128())
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = u128::from_str_radix(text, 16).ok().filter(|_| digits);
        id.map(Self).ok_or_else(|| {
            Error::new(Kind::Invalid, format!("{text:?} is not a job id (32 hex digits)"))
        })
    }
}

/// Result of publishing a job.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// The job's change set.
    pub set: SetId,
    /// Number of parts it shows.
    pub parts: usize,
    /// Number of tables of parts that it shows.
    pub tables: usize,
    /// Number of sorted runs that they form.
    pub runs: usize,
    /// Number of names with compatible changes of several parts, such as times of directories.
    pub merged: u64,
    /// Names with conflicting changes.
    pub conflicts: Vec<PartConflict>,
}

impl Repository {
    /// Publishes the complete `parts`, in order of their ranks, as one change set called `name`. If
    /// changes of a name conflict, a change wins over a removal, also over that of a directory
    /// above; a directory that one part moved stays moved; a directory wins over a file. Otherwise
    /// the change with the lowest sequence number wins, and among equals that of the lowest rank.
    /// Parts that wrote to one file conflict even if they wrote different ranges of it. Every
    /// conflict is reported.
    /// Cost: a read of the parts' tables where their keys overlap, one small table, a commit; with
    /// conflicts, or if parts removed directories of bases or changed files with several names, also
    /// a scan of all directories.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `Invalid` if a part is not complete or builds on another, or if
    /// parts with names build on different bases.
    pub fn publish_job(&self, parts: &[SetId], name: &str) -> Result<JobReport> {
        self.publish_job_as(None, parts, name, |_| Ok(()))
    }

    /// Like [`Repository::publish_job`], on behalf of `writer`: if its process dies before the
    /// job's set has its name, the next collection discards that set. If `check` fails for the
    /// report, nothing is published and the parts stay as they are.
    pub fn publish_job_as(
        &self,
        writer: Option<&SetWriter>,
        parts: &[SetId],
        name: &str,
        check: impl FnOnce(&JobReport) -> Result<()>,
    ) -> Result<JobReport> {
        let store = &**self.store();
        names::check(name)?;
        if names::is_taken(store, name)? {
            return Err(names::taken(name));
        }
        let (markers, report, manifests) = self.begin_and_join(parts, writer)?;
        if let Err(refused) = check(&report) {
            // A collection discards the set, too.
            let _ = self.abandon(report.set);
            return Err(refused);
        }
        self.publish(report.set, name)?;
        markers.keep();
        for (part, known) in parts.iter().zip(&manifests) {
            best_effort(session_marker::release_published(store, *part, known))?;
        }
        Ok(report)
    }

    /// Makes a complete set that joins `parts`; tries again if a collection takes one that has no
    /// name yet. Returns the set's markers, its report, and the manifests of the parts.
    fn begin_and_join(
        &self,
        parts: &[SetId],
        writer: Option<&SetWriter>,
    ) -> Result<(ProvisionalMarkers<'_>, JobReport, Vec<Manifest>)> {
        let mut tries = 0;
        loop {
            tries += 1;
            let set = self.draw_set_id();
            // A publication that fails may have given the set its name, so a failure here leaves
            // the markers on the parts.
            let markers = ProvisionalMarkers::hold_session(&**self.store(), set, &[])?;
            match self.join_parts(set, parts, writer) {
                Err(error) if condemn::is_race(&error) && tries < condemn::TRIES_MAX => {}
                joined => return joined.map(|(report, manifests)| (markers, report, manifests)),
            }
        }
    }

    /// Makes `set` the complete set that joins `parts`. Returns the manifests of the parts, too.
    fn join_parts(
        &self,
        set: SetId,
        parts: &[SetId],
        writer: Option<&SetWriter>,
    ) -> Result<(JobReport, Vec<Manifest>)> {
        let store = &**self.store();
        for part in parts {
            marker::hold(store, *part, &MarkerHolder::Set(set))?;
        }
        let manifests = self.load_parts(parts)?;
        let mut manifest = self.begin_joined(set, &manifests, writer)?;
        let source = self.source();
        let tables: Vec<TableRuns> =
            manifests.iter().map(|part| TableRuns::new(&part.tables, &INODE, source)).collect();
        let below = LayerStack::new(source.clone(), load_stack(source, &manifest.bases)?, None);
        let layers =
            JobLayers { parts, tables: &tables, below: &below, manifests: &manifests, source };
        let mut found = PartFindings::in_parts(&tables, parts, identity_root(set, &manifest))?;
        let mut views = PartViews::new(&layers);
        found.keep_moves(&layers)?;
        found.forget_unseen(&mut views)?;
        found.forget_removed_files(&mut views)?;
        let changed = changed_files(&found, &layers)?;
        let mut resolved = PartResolution::of(&found, &changed, &mut views)?;
        manifest.tables = stack_runs(&manifests);
        // Some parts may consist of data only.
        dependency::keep_data_of(&mut manifest, parts);
        let runs = manifest.tables.first().map_or(0, |table| table.run);
        let shown = manifest.tables.len();
        // Commit before anything is written to the set: from here on a manifest needs its markers,
        // its tables and those of the parts. If a collector swept the markers, this fails.
        manifest.commit(store, set, self.clock().now_ns())?;
        // From here on the parts are parts because of this set, so no rank begins another one. One
        // that was given up before may have a successor.
        let stay = |part: &SetId| check_part_stays(*part, &condemn::load_live(store, *part)?);
        if let Err(error) = parts.iter().try_for_each(stay) {
            // The sets are then no longer parts because of this one.
            drop(condemn::doom_now(&mut manifest, store, set, self.clock().now_ns()));
            return Err(error);
        }
        let mut top = RunsAbove { repository: self, set, run: runs, next_table: 1 << 32 };
        top.push_records(&mut manifest, &resolved.top)?;
        top.push_covers(&mut manifest, &resolved.covers, &layers)?;
        let conflicts = &mut resolved.conflicts;
        let is_tree_needed = found.has_moves_of_several_parts()
            || !changed.is_empty()
            || resolved.are_counts_uncertain
            || !conflicts.is_empty();
        if is_tree_needed {
            top.push_corrections(&mut manifest, (&found, &changed), &mut views, conflicts)?;
        }
        // Records above the parts may come from sets below them.
        let highest = manifest.tables.iter().filter(|table| table.set == set);
        let highest = highest.map(|table| table.seq_max).max().unwrap_or(0);
        manifest.last_seq = manifest.last_seq.max(highest);
        complete_manifest(&mut manifest);
        manifest.commit(store, set, self.clock().now_ns())?;
        let report = JobReport {
            set,
            parts: parts.len(),
            tables: shown,
            runs: usize::try_from(runs).unwrap_or(usize::MAX),
            merged: resolved.merged,
            conflicts: resolved.conflicts.into_vec(),
        };
        Ok((report, manifests))
    }

    /// Returns the first manifest of the set that joins `parts`, after putting markers on its
    /// bases.
    fn begin_joined(
        &self,
        set: SetId,
        parts: &[Manifest],
        writer: Option<&SetWriter>,
    ) -> Result<Manifest> {
        let now_ns = self.clock().now_ns();
        let mut manifest = Manifest::new(Vec::new(), now_ns);
        manifest.writer =
            writer.map(|writer| SetWriter { is_private: true, ..writer.beginning(now_ns) });
        for part in parts {
            for base in &part.bases {
                if !manifest.bases.contains(base) {
                    marker::hold(&**self.store(), *base, &MarkerHolder::Set(set))?;
                    manifest.bases.push(*base);
                }
            }
            manifest.last_seq = manifest.last_seq.max(part.last_seq);
            manifest.data_sets.extend_from_slice(&part.data_sets);
        }
        manifest.properties = common_properties(parts);
        let membership = parts.iter().find_map(|part| part.job);
        manifest.job = membership.map(|part| JobMembership { rank: None, ..part });
        manifest.has_own_identities = parts.iter().any(|part| part.has_own_identities);
        let is_alike = |part: &Manifest| {
            let own = part.has_own_identities;
            own == manifest.has_own_identities
                && (!own || part.job.map(|own| own.job) == membership.map(|own| own.job))
        };
        if !parts.iter().all(is_alike) {
            let what = "some parts are insertable, and others are not: begin all of \
                        them alike";
            return Err(Error::new(Kind::Invalid, what));
        }
        Ok(manifest)
    }

    fn load_parts(&self, parts: &[SetId]) -> Result<Vec<Manifest>> {
        let unique: HashSet<SetId> = parts.iter().copied().collect();
        if parts.is_empty() || unique.len() < parts.len() {
            return Err(Error::new(Kind::Invalid, "a job needs parts, each listed once"));
        }
        let mut manifests = Vec::with_capacity(parts.len());
        let mut part_of: HashMap<JobMembership, SetId> = HashMap::new();
        for part in parts {
            let manifest = condemn::load_live(&**self.store(), *part)?;
            if let Some(membership) = manifest.job.filter(|membership| membership.rank.is_some())
                && let Some(other) = part_of.insert(membership, *part)
            {
                let context = format!(
                    "@{other} and @{part} are parts of one rank; drop one of them with `esker \
                     session drop`, or delete its name"
                );
                return Err(Error::new(Kind::Invalid, context));
            }
            if manifest.state != SetState::Sealed {
                let context = format!(
                    "part {part} is not complete; its writer completes it or, if the writer is \
                     gone, `esker session complete @{part}` does"
                );
                return Err(Error::new(Kind::Invalid, context));
            }
            if let Some(base) = manifest.bases.iter().find(|base| unique.contains(*base)) {
                let context = format!("part {part} builds on {base}, which is also a part");
                return Err(Error::new(Kind::Invalid, context));
            }
            manifests.push(manifest);
        }
        check_bases(parts, &manifests)?;
        Ok(manifests)
    }
}

/// Fails unless all of `parts` that have names build on the same sets.
fn check_bases(parts: &[SetId], manifests: &[Manifest]) -> Result<()> {
    let has_names = |part: &Manifest| part.tables.iter().any(|table| table.schema == INODE.id);
    let mut named = parts.iter().zip(manifests).filter(|(_, manifest)| has_names(manifest));
    let Some((first, known)) = named.next() else { return Ok(()) };
    let Some((other, _)) = named.find(|(_, manifest)| manifest.bases != known.bases) else {
        return Ok(());
    };
    let context = format!(
        "parts @{first} and @{other} build on different snapshots: all parts of a job begin on the \
         same ones"
    );
    Err(Error::new(Kind::Invalid, context))
}

/// Returns the tables of a joined set and of all its bases, in order of precedence.
fn with_bases<'a>(joined: &'a TableRuns, below: &'a LayerStack) -> Vec<&'a TableRuns> {
    let bases = below.bases().iter().map(|base| &base.tables);
    std::iter::once(joined).chain(bases).collect()
}

/// Returns the properties on which the parts agree: what differs describes a part.
fn common_properties(parts: &[Manifest]) -> BTreeMap<String, String> {
    let mut values: BTreeMap<&String, HashSet<&String>> = BTreeMap::new();
    for (property, value) in parts.iter().flat_map(|part| &part.properties) {
        values.entry(property).or_default().insert(value);
    }
    let common = values.into_iter().filter(|(_, values)| values.len() == 1);
    common
        .flat_map(|(property, values)| {
            values.into_iter().map(|value| (property.clone(), value.clone()))
        })
        .collect()
}

/// The runs of the job's set that override those of its parts.
struct RunsAbove<'a> {
    repository: &'a Repository,
    set: SetId,
    /// Number of the newest run.
    run: u64,
    /// Number of the next table.
    next_table: u64,
}

impl RunsAbove<'_> {
    /// Adds a run with `records`, in key order.
    fn push_records(
        &mut self,
        manifest: &mut Manifest,
        records: &[(KeyBuffer, Inode)],
    ) -> Result<()> {
        self.push(manifest, &INODE, |out| {
            records.iter().try_for_each(|(key, inode)| {
                let key = key.key();
                let mut row = inode.row(&key);
                INODE.store(&mut row.ints);
                out.push(&row)
            })
        })
    }

    /// Adds a run with the content of `covers`.
    fn push_covers(
        &mut self,
        manifest: &mut Manifest,
        covers: &[FileCover],
        layers: &JobLayers,
    ) -> Result<()> {
        let mut covers: Vec<&FileCover> = covers.iter().collect();
        covers.sort_by_key(|cover| cover.file);
        // A file at several names may have been found in two ways.
        covers.dedup_by_key(|cover| cover.file);
        self.push(manifest, &SEGMENT, |out| {
            covers.iter().try_for_each(|cover| cover.write(layers, out))
        })
    }

    /// Adds what takes the tree of the job's set: names that changed files would lose, paths of
    /// conflicts, and link counts. Cost: a scan of all directories.
    fn push_corrections(
        &mut self,
        manifest: &mut Manifest,
        (found, changed): (&PartFindings, &ChangedFiles),
        views: &mut PartViews,
        conflicts: &mut ConflictList,
    ) -> Result<()> {
        let layers = views.layers();
        let mut joined = TableRuns::new(&manifest.tables, &INODE, layers.source);
        let mut tree = DirTree::of(&with_bases(&joined, layers.below), 1)?;
        let all = with_bases(&joined, layers.below);
        let names = restored_names(changed, found, (&tree, &all), views, conflicts)?;
        if !names.is_empty() {
            self.push_records(manifest, &names)?;
            joined = TableRuns::new(&manifest.tables, &INODE, layers.source);
            tree = DirTree::of(&with_bases(&joined, layers.below), 1)?;
        }
        conflicts.add_paths(found, &tree, layers.parts);
        self.push_records(manifest, &corrected_counts(&tree, &joined)?)
    }

    fn push(
        &mut self,
        manifest: &mut Manifest,
        schema: &'static Schema,
        write: impl FnOnce(&mut RunWriter) -> Result<()>,
    ) -> Result<()> {
        self.run += 1;
        let store = self.repository.store();
        let mut out = RunWriter::new(schema, store, self.set, self.run, &mut self.next_table);
        write(&mut out)?;
        manifest.tables.splice(0..0, out.finish()?);
        Ok(())
    }
}

/// Returns the tables of all parts in as few runs as their key ranges allow, in a manifest's order.
/// The runs of one part stay in order. The order between parts does not matter: keys that two of
/// them have are never read from these runs.
fn stack_runs(parts: &[Manifest]) -> Vec<TableRef> {
    let mut depths: Vec<Vec<TableRef>> = Vec::new();
    for part in parts {
        let tables = part.tables.iter().filter(|table| table.schema == INODE.id);
        let mut depth = 0;
        let mut run = None;
        for table in tables {
            depth += usize::from(run.is_some_and(|run| run != table.run));
            run = Some(table.run);
            depths.resize(depths.len().max(depth + 1), Vec::new());
            depths[depth].push(table.clone());
        }
    }
    let mut runs: Vec<Vec<TableRef>> = Vec::new();
    for mut tables in depths {
        tables.sort_by(|a, b| a.first.key().cmp(&b.first.key()));
        let start = runs.len();
        for (run, table) in assign_runs(&tables).into_iter().zip(tables) {
            runs.resize(runs.len().max(start + run + 1), Vec::new());
            runs[start + run].push(table);
        }
    }
    // Where several parts have segments, those of the lower rank are shown.
    for part in parts {
        let segments: Vec<&TableRef> = part
            .tables
            .iter()
            .filter(|table| [SEGMENT.id, RUN.id].contains(&table.schema))
            .collect();
        let of_runs = segments.chunk_by(|a, b| a.run == b.run);
        runs.extend(of_runs.map(|run| run.iter().map(|table| (*table).clone()).collect()));
    }
    let count = runs.len() as u64;
    let numbered = runs.into_iter().zip((1..=count).rev());
    numbered
        .flat_map(|(tables, run)| tables.into_iter().map(move |table| TableRef { run, ..table }))
        .collect()
}

/// Returns, for each of `tables`, in order of first keys, the run that it joins. The number of runs
/// is minimal with no overlap within a run: a table joins the run that ends first, if it begins
/// after that end.
fn assign_runs(tables: &[TableRef]) -> Vec<usize> {
    let mut ends: BinaryHeap<Reverse<(Key, usize)>> = BinaryHeap::new();
    let mut assigned = Vec::with_capacity(tables.len());
    for table in tables {
        let next_run = ends.len();
        let free = ends.peek().filter(|Reverse((end, _))| *end < table.first.key());
        let run = free.map_or(next_run, |Reverse((_, run))| *run);
        if run < next_run {
            ends.pop();
        }
        ends.push(Reverse((table.last.key(), run)));
        assigned.push(run);
    }
    assigned
}
