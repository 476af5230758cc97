// SPDX-License-Identifier: Apache-2.0
//! Squash: merges several change sets with distinct files into one.

use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{CountedStore, SharedStore};
use esker_base::{Error, Kind, Result};
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::repository::{CACHE_BYTES, Repository};
use esker_fs::session::SessionOptions;
use esker_fs::stack::dir::Dir;
use esker_table::manifest::SetId;
use esker_table::tree::TreeOptions;

use crate::report::{BenchReport, ResourceMeter};
use crate::workload_size::{WorkloadSize, directory_name};

/// The published name of the squashed set.
pub const SQUASH_NAME: &str = "bench-squashed";

/// Creates `sets` change sets, each with the files of `size`, numbered consecutively over the sets
/// in the same directories, and squashes them with the threads of `size`. Times the squash alone.
pub fn squash(
    store: &SharedStore,
    sets: u64,
    size: WorkloadSize,
    options: SessionOptions,
) -> Result<BenchReport> {
    size.check()?;
    if sets == 0 {
        return Err(Error::new(Kind::Invalid, "squashing takes at least one set"));
    }
    let counted = Arc::new(CountedStore::new(store.clone()));
    let repository = Repository::with(counted.clone(), CACHE_BYTES, Arc::new(SystemClock));
    let session = SessionOptions { tree: TreeOptions::default(), ..options }.private();
    let bases = (0..sets)
        .map(|number| make_set(&repository, number, &size, &session))
        .collect::<Result<Vec<SetId>>>()?;
    let before = counted.counts();
    let meter = ResourceMeter::start();
    let writer = session.heartbeat.map(|heartbeat| heartbeat.writer);
    let options = SquashOptions { threads: size.threads, writer, ..SquashOptions::default() };
    let (set, squashed) = repository.squash(&bases, &options)?;
    let mut report = meter.stop("squash", sets * size.files)?;
    let counts = counted.counts() - before;
    repository.publish(set, SQUASH_NAME)?;
    report.threads = size.threads;
    report.store_bytes_written = counts.written_bytes + counts.log_bytes;
    report.tables = Some(squashed.tables);
    report.table_bytes_per_record = Some(squashed.table_bytes as f64 / (sets * size.files) as f64);
    Ok(report)
}

fn make_set(
    repository: &Repository,
    number: u64,
    size: &WorkloadSize,
    options: &SessionOptions,
) -> Result<SetId> {
    let session = repository.begin(&[], options.clone())?;
    let root = session.root().clone();
    let dirs: Vec<Dir> = (0..size.directories as usize)
        .map(|number| session.mkdir(&root, &directory_name(number), 0o755))
        .collect::<Result<_>>()?;
    let insertions = size.insertions();
    let mut name = Vec::new();
    for insertion in 0..size.files {
        let file = number * size.files + insertions.at(insertion);
        size.set_name(file, insertion, &mut name);
        session.create(&dirs[size.directory(file)], &name, 0o644)?;
    }
    session.publish(&format!("bench-{number}"))
}
