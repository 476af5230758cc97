// SPDX-License-Identifier: Apache-2.0
//! Query: stat, list and remove on the files that create left.

use std::ops::ControlFlow;
use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{CountedStore, SharedStore};
use esker_base::{Error, Kind, Result};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::list::DirCursor;
use esker_fs::stack::namespace::Namespace;
use esker_table::tables::TableRuns;

use crate::create::durability_name;
use crate::permutation::{Permutation, SEED_REMOVE, SEED_STAT, SEED_WARM};
use crate::rates::RateMeter;
use crate::report::{BenchReport, ResourceMeter};
use crate::workers;
use crate::workload_size::{BENCH_NAME, WorkloadSize, directory_name};

/// Bytes of the block cache for removals: as large as the tuned cache of the peers.
const WARM_CACHE_BYTES: u64 = 1 << 30;
/// A warm run looks up one in this many files before it is timed.
const WARM_SHARE: u64 = 16;

/// Options of look-ups and listings.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueryOptions {
    /// Number of operations; one per file if `None`.
    pub operations: Option<u64>,
    /// Threads that execute them.
    pub threads: usize,
    /// Bytes of the block cache; 0 caches nothing, not even between two look-ups.
    pub cache_bytes: u64,
    /// True to look up names that never existed.
    pub absent: bool,
    /// True to look up in the session that create left open, whose runs are merged when reads have
    /// paid for that; false for the snapshot that it published.
    pub in_session: bool,
}

/// The session that create left open, or its snapshot.
enum CreatedNamespace {
    Session(Box<Session>),
    Snapshot(Box<Namespace>),
}

impl CreatedNamespace {
    fn namespace(&self) -> &Namespace {
        match self {
            Self::Session(session) => session.namespace(),
            Self::Snapshot(namespace) => namespace,
        }
    }

    /// The tables that readers search now.
    fn tables(&self) -> Vec<TableRuns> {
        let layers = self.namespace().layers();
        let bases = layers.bases().iter().map(|base| base.tables.clone());
        let own = layers.writer().map(|tree| tree.older_sources().rows().clone());
        own.into_iter().chain(bases).collect()
    }

    fn runs(&self) -> usize {
        self.tables().iter().map(|tables| tables.runs.len()).sum()
    }
}

/// Resumes the session that create left open.
fn resume(repository: &Repository) -> Result<(Session, WorkloadSize)> {
    for open in repository.open_sessions()? {
        let Ok(manifest) = &open.node.manifest else { continue };
        if let Ok(size) = WorkloadSize::of_properties(&manifest.properties) {
            return Ok((repository.resume(open.node.set, SessionOptions::default())?, size));
        }
    }
    let context = "no session: make one by `esker bench create --keep-session`";
    Err(Error::new(Kind::NotFound, context))
}

/// The files that create left.
struct CreatedFiles {
    repository: Repository,
    counted: Arc<CountedStore>,
    created: CreatedNamespace,
    size: WorkloadSize,
    dirs: Vec<Dir>,
}

/// Opens the files that create left, with a cache of `cache_bytes`.
fn open(store: &SharedStore, cache_bytes: u64, in_session: bool) -> Result<CreatedFiles> {
    let counted = Arc::new(CountedStore::new(store.clone()));
    let repository = Repository::with(counted.clone(), cache_bytes, Arc::new(SystemClock));
    let (created, size) = if in_session {
        let (session, size) = resume(&repository)?;
        (CreatedNamespace::Session(Box::new(session)), size)
    } else {
        let set = repository.resolve(BENCH_NAME)?.set;
        let namespace = repository.open(&[set], Identity::of_process())?;
        let properties = &namespace.layers().bases()[0].manifest.properties;
        let size = WorkloadSize::of_properties(properties)?;
        (CreatedNamespace::Snapshot(Box::new(namespace)), size)
    };
    let dirs = open_dirs(created.namespace(), &size)?;
    Ok(CreatedFiles { repository, counted, created, size, dirs })
}

fn open_dirs(namespace: &Namespace, size: &WorkloadSize) -> Result<Vec<Dir>> {
    (0..size.directories as usize).map(|number| namespace.dir(directory_name(number))).collect()
}

fn block_reads(left: &CreatedFiles) -> u64 {
    left.repository.source().counters.block_reads.load(std::sync::atomic::Ordering::Relaxed)
}

/// Looks up random names. In a warm run, the cache holds the blocks that a 1/16 sample and one
/// listing left. The report has the rate in each second: reads of a session may trigger a merge of
/// its runs.
pub fn stat(store: &SharedStore, options: QueryOptions) -> Result<BenchReport> {
    let left = open(store, options.cache_bytes, options.in_session)?;
    let operations = options.operations.unwrap_or(left.size.files);
    if options.cache_bytes > 0 {
        list_all(&left)?;
        let sample = left.size.files.div_ceil(WARM_SHARE);
        stat_share(&left, SEED_WARM, (0, 1), (sample, false), &|_| ())?;
        left.created.tables().iter().try_for_each(TableRuns::warm)?;
    }
    let reads = block_reads(&left);
    let meter = ResourceMeter::start();
    let runs = || left.created.runs();
    let rates = RateMeter::start(&runs);
    workers::run(options.threads, |thread| {
        let share = (thread, options.threads);
        let looked_up = |count| rates.count(thread, count);
        stat_share(&left, SEED_STAT, share, (operations, options.absent), &looked_up)
    })?;
    let mut report = meter.stop("stat", operations)?;
    report.rates = rates.stop(operations);
    report.threads = options.threads;
    report.store_reads_per_operation =
        Some((block_reads(&left) - reads) as f64 / operations.max(1) as f64);
    Ok(report)
}

/// Operation k looks up insertion `P(k mod files)`; thread t executes k = t, t + threads, … Passes
/// the number of look-ups so far to `looked_up`.
fn stat_share(
    left: &CreatedFiles,
    seed: u64,
    (thread, threads): (usize, usize),
    (operations, absent): (u64, bool),
    looked_up: &impl Fn(u64),
) -> Result<()> {
    let (size, mut count) = (&left.size, 0);
    let (order, insertions) = (Permutation::new(size.files, seed), size.insertions());
    let mut name = Vec::new();
    for operation in (thread as u64..operations).step_by(threads) {
        let insertion = order.at(operation % size.files);
        let mut file = insertions.at(insertion);
        if absent {
            file += size.files;
        }
        size.set_name(file, insertion, &mut name);
        let found = left.created.namespace().lookup(&left.dirs[size.directory(file)], &name, false);
        match found {
            Ok(inode) if !absent && inode.nlink == 1 => drop(std::hint::black_box(&inode)),
            Err(error) if absent && error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
            Ok(_) => {
                let name = String::from_utf8_lossy(&name);
                return Err(Error::new(Kind::Corrupt, format!("{name}: unexpected result")));
            }
        }
        count += 1;
        looked_up(count);
    }
    Ok(())
}

/// Lists every directory: names and attributes of all entries.
pub fn list(store: &SharedStore, options: QueryOptions) -> Result<BenchReport> {
    let left = open(store, options.cache_bytes, options.in_session)?;
    if options.cache_bytes > 0 {
        list_all(&left)?;
    }
    let reads = block_reads(&left);
    let meter = ResourceMeter::start();
    workers::run(options.threads, |thread| {
        left.dirs
            .iter()
            .skip(thread)
            .step_by(options.threads)
            .try_for_each(|dir| list_dir(left.created.namespace(), dir).map(drop))
    })?;
    let mut report = meter.stop("list", left.size.files)?;
    report.threads = options.threads;
    report.store_reads_per_operation =
        Some((block_reads(&left) - reads) as f64 / left.size.files as f64);
    Ok(report)
}

fn list_all(left: &CreatedFiles) -> Result<()> {
    let mut count = 0;
    for dir in &left.dirs {
        count += list_dir(left.created.namespace(), dir)?;
    }
    if count != left.size.files {
        let context = format!("{count} entries listed of {} files made", left.size.files);
        return Err(Error::new(Kind::Corrupt, context));
    }
    Ok(())
}

/// Lists one directory; returns its number of entries. Each name and its attributes go to a
/// consumer that the compiler cannot remove, as in the peers' drivers.
fn list_dir(namespace: &Namespace, dir: &Dir) -> Result<u64> {
    let mut count = 0;
    namespace.list(dir, &DirCursor::default(), &mut |entry| {
        std::hint::black_box((entry.name(), &entry.inode()?));
        count += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(count)
}

/// Removes every file in random order, in a session on top of the files that create left; ends with
/// a flush. The session is then abandoned.
pub fn remove(store: &SharedStore, threads: usize, options: SessionOptions) -> Result<BenchReport> {
    let left = open(store, WARM_CACHE_BYTES, false)?;
    let base = left.created.namespace().layers().bases()[0].set;
    let tree = options.tree.clone();
    let session = left.repository.begin(&[base], options.private())?;
    let dirs = open_dirs(session.namespace(), &left.size)?;
    let before = left.counted.counts();
    let meter = ResourceMeter::start();
    workers::run(threads, |thread| remove_share(&session, &dirs, &left.size, (thread, threads)))?;
    session.flush()?;
    let mut report = meter.stop("remove", left.size.files)?;
    let counts = left.counted.counts() - before;
    let statistics = session.statistics();
    report.threads = threads;
    report.background = Some(tree.background);
    report.durability = Some(durability_name(tree.durability));
    report.store_bytes_written = counts.written_bytes + counts.log_bytes;
    report.tables = Some(statistics.tables);
    report.table_bytes_per_record =
        Some(statistics.table_bytes as f64 / statistics.table_rows.max(1) as f64);
    report.wal_bytes_per_record = Some(statistics.log_bytes as f64 / left.size.files as f64);
    left.repository.abandon_session(&session)?;
    Ok(report)
}

fn remove_share(
    session: &Session,
    dirs: &[Dir],
    size: &WorkloadSize,
    (thread, threads): (usize, usize),
) -> Result<()> {
    let (order, insertions) = (Permutation::new(size.files, SEED_REMOVE), size.insertions());
    let mut name = Vec::new();
    for operation in (thread as u64..size.files).step_by(threads) {
        let insertion = order.at(operation);
        let file = insertions.at(insertion);
        size.set_name(file, insertion, &mut name);
        session.unlink(&dirs[size.directory(file)], &name)?;
    }
    Ok(())
}
