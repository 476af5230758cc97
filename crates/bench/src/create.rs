// SPDX-License-Identifier: Apache-2.0
//! Create: makes files with distinct names in random order; each is checked for collision and
//! logged, and written to tables by the end.

use std::sync::Arc;

use esker_base::Result;
use esker_base::clock::SystemClock;
use esker_base::store::{CountedStore, SharedStore};
use esker_fs::repository::{CACHE_BYTES, Repository};
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::dir::Dir;
use esker_table::manifest::SetId;
use esker_table::tree::{Durability, TreeOptions};

use crate::report::{BenchReport, ResourceMeter};
use crate::workers;
use crate::workload_size::{BENCH_NAME, WorkloadSize, directory_name};

/// A base has one in this many of the files that are created above it.
const BASE_SHARE: u64 = 4;

/// The name of a durability level on the command line.
#[must_use]
pub const fn durability_name(durability: Durability) -> &'static str {
    match durability {
        Durability::None => "none",
        Durability::Async => "async",
        Durability::Always => "always",
    }
}

/// Creates the files of `size` in new directories of a session on `bases` bases, and publishes
/// them as [`BENCH_NAME`]. Times every create, and the flush that writes the last of them to
/// tables, but not the bases, the directories or publishing.
///
/// Unless `publishes`, ends the session instead; its name is then its number.
pub fn create(
    store: &SharedStore,
    size: WorkloadSize,
    options: SessionOptions,
    (bases, publishes): (usize, bool),
) -> Result<BenchReport> {
    size.check()?;
    let counted = Arc::new(CountedStore::new(store.clone()));
    let repository = Repository::with(counted.clone(), CACHE_BYTES, Arc::new(SystemClock));
    let tree = TreeOptions { flush_threads: size.threads, ..options.tree };
    let options = SessionOptions { tree: TreeOptions::default(), ..options };
    let of_bases = options.clone().private();
    let bases: Vec<SetId> = (0..bases)
        .map(|number| base(&repository, number, &size, &of_bases))
        .collect::<Result<_>>()?;
    let options = SessionOptions { tree: tree.clone(), properties: size.properties(), ..options };
    let options = if publishes { options.private() } else { options };
    let session = repository.begin(&bases, options)?;
    let root = session.root().clone();
    let dirs: Vec<Dir> = (0..size.directories as usize)
        .map(|number| session.mkdir(&root, &directory_name(number), 0o755))
        .collect::<Result<_>>()?;
    let before = counted.counts();
    let logged = session.statistics().log_bytes;
    let meter = ResourceMeter::start();
    workers::run(size.threads, |thread| create_share(&session, &dirs, &size, thread))?;
    session.flush()?;
    let mut report = meter.stop("create", size.files)?;
    let statistics = session.statistics();
    let counts = counted.counts() - before;
    report.threads = size.threads;
    report.background = Some(tree.background);
    report.durability = Some(durability_name(tree.durability));
    report.store_bytes_written = counts.written_bytes + counts.log_bytes;
    report.table_bytes_per_record =
        Some(statistics.table_bytes as f64 / statistics.table_rows.max(1) as f64);
    report.wal_bytes_per_record = Some((statistics.log_bytes - logged) as f64 / size.files as f64);
    report.tables = Some(statistics.tables);
    if !publishes {
        session.end()?;
        return Ok(report);
    }
    let meter = ResourceMeter::start();
    let set = session.publish(BENCH_NAME)?;
    report.publish_seconds = Some(meter.seconds());
    drop(session);
    let fresh = Repository::with(store.clone(), 0, Arc::new(SystemClock));
    let meter = ResourceMeter::start();
    let namespace = fresh.open(&[set], esker_fs::stack::identity::Identity::of_process())?;
    report.open_seconds = Some(meter.seconds());
    drop(namespace);
    Ok(report)
}

/// Publishes a base that has a share of the files of `size`, in its own directories.
fn base(
    repository: &Repository,
    number: usize,
    size: &WorkloadSize,
    options: &SessionOptions,
) -> Result<SetId> {
    let session = repository.begin(&[], options.clone())?;
    for directory in 0..size.directories {
        let name = format!("base-{number}-{directory}");
        let dir = session.mkdir(session.root(), name.as_bytes(), 0o755)?;
        for file in 0..size.files.div_ceil(size.directories) / BASE_SHARE {
            session.create(&dir, file.to_string().as_bytes(), 0o644)?;
        }
    }
    session.publish(&format!("{BENCH_NAME}-base-{number}"))
}

fn create_share(session: &Session, dirs: &[Dir], size: &WorkloadSize, thread: usize) -> Result<()> {
    let insertions = size.insertions();
    let mut name = Vec::new();
    for insertion in (thread as u64..size.files).step_by(size.threads) {
        let file = insertions.at(insertion);
        size.set_name(file, insertion, &mut name);
        session.create(&dirs[size.directory(file)], &name, 0o644)?;
    }
    Ok(())
}
