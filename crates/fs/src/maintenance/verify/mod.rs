// SPDX-License-Identifier: Apache-2.0
//! Verification: reads everything that change sets consist of and reports all damage.
//!
//! Order: names, markers and manifests (`references.rs`) → every block and record of every table
//! (`table.rs`), each object once however many sets show it → file data (`extents.rs`) → the tree
//! of each stack (`paths.rs`, `generations.rs`, `identities.rs`) → the paths of damaged files
//! (`damage.rs`).
//! Damage of one object is a finding and does not end the verification; only a store that does not
//! answer does. Sets that change or are deleted meanwhile are verified again (`again.rs`).

mod again;
mod damage;
mod extents;
mod generations;
mod identities;
mod paths;
mod references;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId, TableRef};
use esker_table::schema::KeyBuffer;
use esker_table::tables::TableSource;

use self::damage::DamagedObjects;
use self::extents::ReferencedExtents;
use self::identities::InheritedFiles;
use self::paths::SeenRecords;
use self::table::TableOutcome;
use crate::repository::Repository;
use crate::stack::dir_tree::in_parallel;

/// Maximum number of findings of each kind reported individually for one object.
const FINDINGS_PER_OBJECT_MAX: usize = 100;

/// Prefix of the object of a finding about a published name.
const NAME_OBJECT: &str = "published name ";

fn name_object(name: &str) -> String {
    format!("{NAME_OBJECT}{name}")
}

/// The targets of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VerifyTargets {
    /// Every set, name and marker of the store.
    #[default]
    All,
    /// These names and everything they build on.
    Names(Vec<String>),
    /// These sets and everything they build on.
    Sets(Vec<SetId>),
}

/// Called with the bytes verified so far and the total. Tables come first; their records determine
/// how many bytes of data follow. Called from several threads.
pub type VerifyProgress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Reads all of the indexed directory under a prefix of a store and reports each damage; returns
/// how many bytes it read. In practice `esker_imd::verify`, which this crate does not depend on.
pub type IndexedCheck =
    Arc<dyn Fn(&SharedStore, &str, &mut dyn FnMut(Error)) -> Result<u64> + Send + Sync>;

/// Settings of a verification.
#[derive(Clone)]
pub struct VerifyOptions {
    /// The names and sets to verify.
    pub targets: VerifyTargets,
    /// Also reads all file data; otherwise only checks that its logs exist and are long enough.
    pub data: bool,
    /// Reads indexed directories, with `data`; otherwise only checks that they are complete.
    pub indexed: Option<IndexedCheck>,
    /// Number of reading threads.
    pub threads: usize,
    /// Called to report progress.
    pub progress: Option<VerifyProgress>,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { targets: VerifyTargets::All, data: true, indexed: None, threads, progress: None }
    }
}

impl fmt::Debug for VerifyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifyOptions")
            .field("targets", &self.targets)
            .field("data", &self.data)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Normal, but worth knowing: garbage, link counts that `remove_tree` leaves behind.
    Information,
    /// Nothing is lost, but something is not as it was written.
    Warning,
    /// Something is lost or wrong, or could be lost by the next collection.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Information => "information",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Something that is not as expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The object, set, name or path.
    pub object: String,
    /// Byte offset in the object, if known.
    pub offset: Option<u64>,
    /// The expected state.
    pub expected: String,
    /// The state found instead.
    pub got: String,
    /// Affected paths, as commands take them; not all if there are many.
    pub paths: Vec<String>,
    /// Number of further affected paths.
    pub more_paths: usize,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, self.object)?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": expected {}, got {}", self.expected, self.got)?;
        if !self.paths.is_empty() {
            write!(f, "; hits {}", self.paths.join(", "))?;
        }
        match self.more_paths {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl Finding {
    fn new(
        severity: Severity,
        object: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        let (object, expected, got) = (object.into(), expected.into(), got.into());
        let (paths, more_paths) = (Vec::new(), 0);
        Self { severity, object, offset: None, expected, got, paths, more_paths }
    }

    fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Returns the finding for `error`, which occurred while `object` was read. Errors other than
    /// damaged or missing objects are returned as they are.
    fn of_error(object: &str, error: Error) -> Result<Self> {
        let severity = Severity::Error;
        match error.kind() {
            Kind::NotFound => Ok(Self::new(severity, object, "an object", "none")),
            Kind::Corrupt | Kind::Invalid | Kind::TooLarge => {
                // "object at byte 12: what was expected"
                let place = error.context().split_once(" at byte ");
                let place = place.and_then(|(_, rest)| rest.split_once(": "));
                let parsed = place.and_then(|(at, what)| Some((at.parse().ok()?, what.to_owned())));
                Ok(match parsed {
                    Some((offset, what)) => {
                        Self::new(severity, object, what, "something else").at(offset)
                    }
                    None => Self::new(severity, object, "an object as written", error.to_string()),
                })
            }
            _ => Err(error),
        }
    }
}

/// Result of a verification.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Findings, the most severe first.
    pub findings: Vec<Finding>,
    /// Change sets examined, except those that are being deleted.
    pub sets: usize,
    /// Published names examined.
    pub names: usize,
    /// Tables read.
    pub tables: usize,
    /// Records read.
    pub records: u64,
    /// Bytes of tables read.
    pub table_bytes: u64,
    /// Bytes of file data read.
    pub data_bytes: u64,
    /// Reachable directories, summed over the examined stacks.
    pub directories: u64,
}

impl VerifyReport {
    /// True if nothing is lost or wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.count(Severity::Error) == 0
    }

    /// Returns how many findings have `severity`.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

/// A verification in progress.
struct Verification<'a> {
    repository: &'a Repository,
    options: &'a VerifyOptions,
    /// Bypasses the shared cache, so that the verification reads the bytes in the store.
    source: TableSource,
    manifests: BTreeMap<SetId, Manifest>,
    /// Number of the newest manifest of each set when it was examined; `None` if it had none.
    numbers: BTreeMap<SetId, Option<u64>>,
    /// Sets whose trees are checked.
    roots: BTreeSet<SetId>,
    /// A published name of each set that has one.
    names: BTreeMap<SetId, String>,
    damage: DamagedObjects,
    report: VerifyReport,
}

impl Repository {
    /// Verifies change sets: checksums, order and statistics of every table, every record, file
    /// data, references, and the tree of each stack; names the paths that damage affects. Cost: a
    /// read of all tables, a second read of those with directories, two more if something is
    /// damaged, and a read of all file data if requested. Memory: a few bytes and the name per
    /// directory, 32 bytes for each record of a file that another set made and, with data, 48 bytes
    /// per file.
    ///
    /// # Errors
    /// `NotFound` for a target that does not exist; errors of the store, except that damaged and
    /// missing objects are findings.
    pub fn verify(&self, options: &VerifyOptions) -> Result<VerifyReport> {
        let mut verification = Verification::new(self, options);
        verification.check_references()?;
        verification.check_tables()?;
        verification.check_again()?;
        let mut report = verification.report;
        report.findings.sort_by(|a, b| {
            b.severity
                .cmp(&a.severity)
                .then_with(|| (&a.object, a.offset).cmp(&(&b.object, b.offset)))
        });
        report.findings.dedup();
        Ok(report)
    }
}

impl<'a> Verification<'a> {
    fn new(repository: &'a Repository, options: &'a VerifyOptions) -> Self {
        Self {
            repository,
            options,
            source: TableSource::new(repository.store().clone(), 0),
            manifests: BTreeMap::new(),
            numbers: BTreeMap::new(),
            roots: BTreeSet::new(),
            names: BTreeMap::new(),
            damage: DamagedObjects::default(),
            report: VerifyReport::default(),
        }
    }

    fn find(&mut self, finding: Finding) {
        self.report.findings.push(finding);
    }

    /// Returns the name by which commands find a set.
    fn shown_name(&self, set: SetId) -> String {
        self.names.get(&set).cloned().unwrap_or_else(|| format!("@{set}"))
    }

    /// Checks tables, the data to which their records refer, and the trees they form.
    fn check_tables(&mut self) -> Result<()> {
        let mut objects: BTreeMap<(SetId, u64), Vec<(SetId, TableRef)>> = BTreeMap::new();
        for (set, manifest) in &self.manifests {
            for table in &manifest.tables {
                let shown = objects.entry((table.set, table.number)).or_default();
                shown.push((*set, table.clone()));
            }
        }
        let objects: Vec<Vec<(SetId, TableRef)>> = objects.into_values().collect();
        let total = objects.iter().fold(0u64, |sum, shown| sum.saturating_add(shown[0].1.bytes));
        let done = AtomicU64::new(0);
        let outcomes = in_parallel(self.options.threads, objects.len(), 1, |at, out| {
            let bytes = objects[at][0].1.bytes;
            out.push(table::check(&self.source, &objects[at], self.options.data)?);
            let done = done.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
            if let Some(progress) = &self.options.progress {
                progress(done, total);
            }
            Ok(())
        })?;
        self.report.tables = outcomes.len();
        let mut extents = ReferencedExtents::default();
        let (mut dirs, mut inherited) = (paths::DirsOfSets::new(), BTreeMap::new());
        let mut were_directories: BTreeMap<SetId, Vec<Arc<Vec<KeyBuffer>>>> = BTreeMap::new();
        for outcome in outcomes {
            let TableOutcome { findings, unreadable, records, bytes, sets, .. } = outcome;
            let TableOutcome { dirs: own, extents: found, files, were_directories: names, .. } =
                outcome;
            for (table, keys, finding) in unreadable {
                self.damage.add_table(&table, keys, &finding);
            }
            self.report.findings.extend(findings);
            let names = Arc::new(names);
            self.report.records += records;
            self.report.table_bytes = self.report.table_bytes.saturating_add(bytes);
            for set in &sets {
                let all = dirs.entry(*set).or_default();
                own.iter().for_each(|(dir, count)| *all.entry(*dir).or_default() += count);
                let all: &mut InheritedFiles = inherited.entry(*set).or_default();
                all.extend(&files);
                were_directories.entry(*set).or_default().push(names.clone());
                self.check_closure(*set, &found);
            }
            extents.merge(found);
        }
        self.check_extents(extents)?;
        self.check_paths(&SeenRecords { dirs, inherited, were_directories })?;
        self.name_paths_of_damage()
    }
}

/// Collects findings of one object up to a limit.
struct LimitedFindings {
    findings: Vec<Finding>,
    left_out: usize,
}

impl LimitedFindings {
    fn new() -> Self {
        Self { findings: Vec::new(), left_out: 0 }
    }

    fn push(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_PER_OBJECT_MAX {
            self.findings.push(finding);
        } else {
            self.left_out += 1;
        }
    }

    fn finish(mut self, object: &str) -> Vec<Finding> {
        if self.left_out > 0 {
            let got = format!("{} findings more", self.left_out);
            self.findings.push(Finding::new(Severity::Error, object, "no more", got));
        }
        self.findings
    }
}
