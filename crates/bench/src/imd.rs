// SPDX-License-Identifier: Apache-2.0
//! Imd: writes an indexed directory of particles, and gets records from it.
//! Source: the benchmark of DeltaFS thesis §5.3.1. The drivers of the peers do the same work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::store::{CountedStore, SharedStore};
use esker_base::{Error, Kind, Result};
use esker_comm::{Transport, threads};
use esker_imd::directory::PartitionTotals;
use esker_imd::{DirectoryOptions, DirectoryReader, DirectoryWriter, QueryCounts, WriteSummary};

use crate::particles::{ParticleCount, SEED_GET, VALUE_BYTES_MAX};
use crate::permutation::Permutation;
use crate::report::{BenchReport, ResourceMeter};
use crate::workers;

/// A warm run gets one in this many keys before it is timed.
const WARM_SHARE: u64 = 16;

/// Parameters of a write.
#[derive(Clone, Debug)]
pub struct ImdWrite {
    /// Numbers of keys and ranks, and bytes of values.
    pub particles: ParticleCount,
    /// Number of epochs; every key is written in each.
    pub epochs: u32,
    /// Options of the directory.
    pub options: DirectoryOptions,
    /// Ranks per simulated node, for routing.
    pub per_node: u32,
}

impl ImdWrite {
    fn records(&self) -> u64 {
        self.particles.keys * u64::from(self.epochs)
    }

    /// Adds the totals of the write to the report.
    fn give(&self, report: &mut BenchReport, all: &WriteSummary) {
        let totals = &all.totals;
        let each = |bytes: u64| bytes as f64 / self.records().max(1) as f64;
        report.settled_seconds = Some(report.seconds);
        report.index_bits_per_key = Some(8.0 * each(totals.index_bytes + totals.auxiliary_bytes));
        report.table_bytes_per_record = Some(each(totals.data_bytes + totals.value_bytes));
        report.tables = usize::try_from(totals.tables).ok();
        report.rank_memory_peak_bytes = Some(all.memory_peak);
        report.threads = self.particles.ranks as usize;
    }

    fn check(&self) -> Result<()> {
        if self.particles.value_bytes <= VALUE_BYTES_MAX {
            return Ok(());
        }
        let what =
            format!("values of {} bytes: {VALUE_BYTES_MAX} at most", self.particles.value_bytes);
        Err(Error::new(Kind::Invalid, what))
    }
}

/// Writes one rank's part, over any transport.
///
/// # Errors
/// Errors of the writer.
pub fn write_rank<T: Transport>(
    store: &SharedStore,
    prefix: &str,
    transport: T,
    work: &ImdWrite,
) -> Result<WriteSummary> {
    work.check()?;
    let rank = transport.rank().0;
    let mut imd = DirectoryWriter::create(store, prefix, transport, &work.options)?;
    let mut value = vec![0; work.particles.value_bytes];
    for epoch in 0..work.epochs {
        for number in work.particles.of_rank(rank, epoch) {
            let key = ParticleCount::key(number);
            ParticleCount::fill(key, epoch, &mut value);
            imd.append(&key, &value)?;
        }
        imd.epoch_flush()?;
    }
    imd.finish()
}

/// Writes with ranks that are threads. Times from the first rank's start until the directory is
/// finished and durable.
///
/// # Errors
/// Errors of the writer.
pub fn imd_write(
    store: &SharedStore,
    prefix: &str,
    work: &ImdWrite,
) -> Result<(BenchReport, WriteSummary)> {
    let counted = Arc::new(CountedStore::new(store.clone()));
    let shared: SharedStore = counted.clone();
    let meter = ResourceMeter::start();
    let summaries = threads::run(work.particles.ranks, work.per_node, |transport| {
        write_rank(&shared, prefix, transport, work)
    })?;
    let mut report = meter.stop("imd_write", work.records())?;
    let counts = counted.counts();
    report.store_bytes_written = counts.log_bytes + counts.written_bytes;
    let mut all = WriteSummary { epochs: u64::from(work.epochs), ..WriteSummary::default() };
    for summary in summaries {
        all.totals.add(&summary.totals);
        all.memory_peak = all.memory_peak.max(summary.memory_peak);
    }
    work.give(&mut report, &all);
    Ok((report, all))
}

/// Writes as rank 0 of a job of processes, whose other ranks call [`write_rank`]. Times as
/// [`imd_write`]; processor time, memory and bytes written are those of this process alone.
///
/// # Errors
/// Errors of the writer.
pub fn imd_write_as_first<T: Transport>(
    store: &SharedStore,
    prefix: &str,
    transport: &mut T,
    work: &ImdWrite,
) -> Result<(BenchReport, WriteSummary)> {
    let counted = Arc::new(CountedStore::new(store.clone()));
    let shared: SharedStore = counted.clone();
    let meter = ResourceMeter::start();
    let mut all = write_rank(&shared, prefix, transport, work)?;
    let mut report = meter.stop("imd_write", work.records())?;
    let counts = counted.counts();
    report.store_bytes_written = counts.log_bytes + counts.written_bytes;
    let reader = DirectoryReader::open(store, prefix, 0)?;
    all.totals = PartitionTotals::default();
    for part in reader.directory().iter().flat_map(|directory| &directory.partitions) {
        all.totals.add(part);
    }
    work.give(&mut report, &all);
    Ok((report, all))
}

/// Parameters of a get benchmark.
#[derive(Clone, Copy, Debug)]
pub struct ImdGet {
    /// The particles that were written.
    pub particles: ParticleCount,
    /// Number of epochs.
    pub epochs: u32,
    /// Number of gets.
    pub operations: u64,
    /// Threads that execute them.
    pub threads: usize,
    /// Bytes of the read cache; 0 keeps only the end of each partition's index log.
    pub cache_bytes: u64,
}

/// Gets keys in random order, each from one epoch, and compares the values.
///
/// # Errors
/// `Corrupt` for a wrong value; errors of the reader.
pub fn imd_get(store: &SharedStore, prefix: &str, work: &ImdGet) -> Result<BenchReport> {
    let reader = DirectoryReader::open(store, prefix, work.cache_bytes)?;
    let order = Permutation::new(work.particles.keys, SEED_GET);
    let counted = CountedQueries::default();
    if work.cache_bytes > 0 {
        let warm = (work.particles.keys / WARM_SHARE).max(1);
        (0..warm)
            .try_for_each(|at| get(&reader, work, order.at(at), at, &CountedQueries::default()))?;
    }
    let meter = ResourceMeter::start();
    workers::run(work.threads, |thread| {
        let mine = (thread as u64..work.operations).step_by(work.threads);
        for at in mine {
            get(&reader, work, order.at(at % work.particles.keys), at, &counted)?;
        }
        Ok(())
    })?;
    let mut report = meter.stop("imd_get", work.operations)?;
    let each = |count: &AtomicU64| {
        Some(count.load(Ordering::Relaxed) as f64 / work.operations.max(1) as f64)
    };
    report.threads = work.threads;
    report.store_reads_per_operation = each(&counted.reads);
    report.store_bytes_read_per_operation = each(&counted.bytes);
    report.table_reads_per_operation = each(&counted.tables);
    report.partitions_per_operation = each(&counted.partitions);
    Ok(report)
}

#[derive(Debug, Default)]
struct CountedQueries {
    reads: AtomicU64,
    bytes: AtomicU64,
    tables: AtomicU64,
    partitions: AtomicU64,
}

impl CountedQueries {
    fn add(&self, counts: &QueryCounts) {
        let add = |count: &AtomicU64, more| count.fetch_add(more, Ordering::Relaxed);
        add(&self.reads, counts.reads());
        add(&self.bytes, counts.bytes());
        add(&self.tables, counts.tables);
        add(&self.partitions, counts.partitions);
    }
}

/// Executes get `at`, of key `number`.
fn get(
    reader: &DirectoryReader,
    work: &ImdGet,
    number: u64,
    at: u64,
    counted: &CountedQueries,
) -> Result<()> {
    let epoch =
        u32::try_from(at % u64::from(work.epochs.max(1))).expect("below a number of epochs");
    let key = ParticleCount::key(number);
    let answer = reader.get_epochs(&key, epoch..epoch + 1)?;
    counted.add(&answer.counts);
    let mut expected = vec![0; work.particles.value_bytes];
    ParticleCount::fill(key, epoch, &mut expected);
    match &answer.values[..] {
        [value] if value.bytes[..] == expected[..] => Ok(()),
        values => {
            let count = values.len();
            let what = format!("key {number} of epoch {epoch} has {count} values, or another one");
            Err(Error::new(Kind::Corrupt, what))
        }
    }
}
