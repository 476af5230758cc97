// SPDX-License-Identifier: Apache-2.0
//! Counter features: the features of an application from the counters of a Darshan log.
//!
//! | feature | counters |
//! |---|---|
//! | M (opens, closes) | `OPENS` without `FILENOS` and `DUPS`; every open file is closed; creates are not counted |
//! | R (bytes) | `BYTES_READ`, `BYTES_WRITTEN` |
//! | r (request) | the median of `ACCESS1` to `ACCESS4` by their counts |
//! | a (contiguous) | `CONSEC_READS`, `CONSEC_WRITES` |
//! | g (gap) | the mean of `STRIDE1` to `STRIDE4`, which are distances from end to beginning |
//! | A (unaligned) | `FILE_NOT_ALIGNED`, `FILE_ALIGNMENT`; the shift is that of the median request |
//! | p | the processes of the job |
//!
//! POSIX counts what MPI-IO does below it, so MPI-IO counts only where a log has no POSIX. Streams
//! (STDIO) have no sizes of requests: all have their mean size.
//! Source: Kougkas et al. 2016, Table 1; the counters of Darshan.

use std::collections::HashMap;

use esker_base::Result;

use super::counters::{CounterRecord, RANK_SHARED, mpiio, posix, stdio};
use super::{DarshanLog, DarshanModule};
use crate::features::{SMALL_REQUEST_BYTES, STRIPE_BYTES_DEFAULT, TraceFeatures};
use crate::trace::SizeCounts;

/// Upper ends of the bins of sizes that hold small requests only.
const SMALL_BINS: usize = 3;

/// Longer times of a job are those of a damaged log.
const JOB_SECONDS_MAX: f64 = 1e9;

/// The bin from 10 KiB to 100 KiB, in which requests of [`SMALL_REQUEST_BYTES`] are.
const MIDDLE_BIN: std::ops::Range<u64> = 10_240..102_400;

#[derive(Default)]
struct FeatureSums {
    features: TraceFeatures,
    /// Requests by size, and by alignment of their file.
    sizes: SizeCounts,
    alignments: SizeCounts,
    stride_bytes: u128,
    strides: u128,
    /// The rank that used a file, or [`RANK_SHARED`].
    files: HashMap<u64, i64>,
    /// Seconds by rank; shared files are those of their slowest rank.
    seconds: HashMap<i64, f64>,
    processes: u32,
}

/// The features of `log`.
pub fn features(log: &DarshanLog<'_>) -> Result<TraceFeatures> {
    let mut sums = FeatureSums { processes: log.job().processes, ..FeatureSums::default() };
    log.for_each(DarshanModule::Posix, |record| {
        sums.add_posix(record);
        Ok(())
    })?;
    if !log.has(DarshanModule::Posix) {
        log.for_each(DarshanModule::MpiIo, |record| {
            sums.add_mpiio(record);
            Ok(())
        })?;
    }
    log.for_each(DarshanModule::Stdio, |record| {
        // `<STDOUT>` and the like are not files.
        if !log.name(record.file).starts_with('<') {
            sums.add_stdio(record);
        }
        Ok(())
    })?;
    Ok(sums.finish(|file| log.name(file)))
}

/// Counters that do not apply are -1.
fn count(record: &CounterRecord, at: usize) -> u64 {
    u64::try_from(record.counters[at]).unwrap_or(0)
}

fn add_up(total: &mut u64, more: u64) {
    *total = total.saturating_add(more);
}

impl FeatureSums {
    fn add_posix(&mut self, record: &CounterRecord) {
        let of = |at| count(record, at);
        let (reads, writes) = (of(posix::READS), of(posix::WRITES));
        let bytes = [of(posix::BYTES_READ), of(posix::BYTES_WRITTEN)];
        self.add_transfers(record, [reads, writes], bytes);
        let opens = of(posix::OPENS).saturating_sub(of(posix::FILENOS) + of(posix::DUPS));
        self.add_opens(opens);
        let others = of(posix::STATS).saturating_add(of(posix::RENAME_SOURCES));
        add_up(&mut self.features.other_metadata, others);
        let bins = |from: usize| (from..from + SMALL_BINS).map(of).fold(0, u64::saturating_add);
        let mut small = bins(posix::SIZE_READ).saturating_add(bins(posix::SIZE_WRITE));
        for index in 0..4 {
            let (size, times) = (of(posix::ACCESSES + index), of(posix::ACCESS_COUNTS + index));
            self.add_size(size, times);
            if MIDDLE_BIN.contains(&size) && size < SMALL_REQUEST_BYTES {
                small = small.saturating_add(times);
            }
            let (stride, times) = (of(posix::STRIDES + index), of(posix::STRIDE_COUNTS + index));
            if stride > 0 {
                let bytes = u128::from(stride) * u128::from(times);
                self.stride_bytes = self.stride_bytes.saturating_add(bytes);
                self.strides += u128::from(times);
            }
        }
        let requests = reads.saturating_add(writes);
        add_up(&mut self.features.small_requests, small.min(requests));
        let unaligned = of(posix::FILE_NOT_ALIGNED).min(requests);
        add_up(&mut self.features.unaligned_requests, unaligned);
        self.alignments.add_times(of(posix::FILE_ALIGNMENT), requests);
        // Darshan keeps the last position of reads and of writes; the first of each follows
        // nothing.
        let sharers = if record.rank == RANK_SHARED { u64::from(self.processes) } else { 1 };
        let firsts = [reads, writes].map(|requests| requests.min(sharers)).iter().sum();
        let contiguous = of(posix::CONSEC_READS).saturating_add(of(posix::CONSEC_WRITES));
        let contiguous = contiguous.min(requests);
        let following = requests.saturating_sub(firsts).max(contiguous);
        add_up(&mut self.features.contiguous_requests, contiguous);
        add_up(&mut self.features.following_requests, following);
        let times = [posix::READ_TIME, posix::WRITE_TIME, posix::META_TIME];
        self.add_seconds(record, times, posix::SLOWEST_RANK_TIME);
    }

    fn add_mpiio(&mut self, record: &CounterRecord) {
        let of = |at| count(record, at);
        let kinds = |first| (0..4).map(|kind| of(first + 2 * kind)).fold(0, u64::saturating_add);
        let requests = [kinds(mpiio::INDEP_READS), kinds(mpiio::INDEP_WRITES)];
        let bytes = [of(mpiio::BYTES_READ), of(mpiio::BYTES_WRITTEN)];
        self.add_transfers(record, requests, bytes);
        let opens = of(mpiio::INDEP_OPENS).saturating_add(of(mpiio::COLL_OPENS));
        self.add_opens(opens);
        for index in 0..4 {
            self.add_size(of(mpiio::ACCESSES + index), of(mpiio::ACCESS_COUNTS + index));
        }
        let times = [mpiio::READ_TIME, mpiio::WRITE_TIME, mpiio::META_TIME];
        self.add_seconds(record, times, mpiio::SLOWEST_RANK_TIME);
    }

    fn add_stdio(&mut self, record: &CounterRecord) {
        let of = |at| count(record, at);
        let (reads, writes) = (of(stdio::READS), of(stdio::WRITES));
        let bytes = [of(stdio::BYTES_READ), of(stdio::BYTES_WRITTEN)];
        self.add_transfers(record, [reads, writes], bytes);
        self.add_opens(of(stdio::OPENS));
        for (requests, bytes) in [reads, writes].into_iter().zip(bytes) {
            let mean = bytes.checked_div(requests).unwrap_or(0);
            self.add_size(mean, requests);
            if mean < SMALL_REQUEST_BYTES {
                add_up(&mut self.features.small_requests, requests);
            }
        }
        let times = [stdio::READ_TIME, stdio::WRITE_TIME, stdio::META_TIME];
        self.add_seconds(record, times, stdio::SLOWEST_RANK_TIME);
    }

    fn add_transfers(&mut self, record: &CounterRecord, requests: [u64; 2], bytes: [u64; 2]) {
        add_up(&mut self.features.reads, requests[0]);
        add_up(&mut self.features.writes, requests[1]);
        add_up(&mut self.features.read_bytes, bytes[0]);
        add_up(&mut self.features.written_bytes, bytes[1]);
        if bytes[0] > 0 || bytes[1] > 0 {
            let rank = self.files.entry(record.file).or_insert(record.rank);
            if *rank != record.rank {
                *rank = RANK_SHARED;
            }
        }
    }

    fn add_opens(&mut self, opens: u64) {
        add_up(&mut self.features.opens, opens);
        add_up(&mut self.features.closes, opens);
    }

    fn add_size(&mut self, size: u64, times: u64) {
        if size > 0 {
            self.sizes.add_times(size, times);
        }
    }

    fn add_seconds(&mut self, record: &CounterRecord, times: [usize; 3], slowest: usize) {
        let seconds = match record.rank {
            RANK_SHARED => record.times[slowest],
            _ => times.iter().map(|at| record.times[*at]).sum(),
        };
        if seconds > 0.0 && seconds < JOB_SECONDS_MAX {
            *self.seconds.entry(record.rank).or_default() += seconds;
        }
    }

    fn finish(self, name: impl Fn(u64) -> String) -> TraceFeatures {
        let mut features = self.features;
        features.processes = self.processes;
        features.request_bytes_median = self.sizes.median();
        let alignment = self.alignments.median();
        features.stripe_bytes = if alignment > 1 { alignment } else { STRIPE_BYTES_DEFAULT };
        if features.unaligned_requests > 0 {
            features.unaligned_bytes_median = features.request_bytes_median % features.stripe_bytes;
        }
        let gap = self.stride_bytes / self.strides.max(1);
        features.gap_bytes_mean = u64::try_from(gap).unwrap_or(u64::MAX);
        features.files = self.files.len() as u64;
        let shared = self.files.values().filter(|rank| **rank == RANK_SHARED).count();
        features.shared_files = if self.processes > 1 { shared as u64 } else { 0 };
        let mut directories: HashMap<String, u64> = HashMap::new();
        for file in self.files.keys() {
            let name = name(*file);
            let directory = name.rsplit_once('/').map_or("", |(directory, _)| directory);
            *directories.entry(directory.to_owned()).or_default() += 1;
        }
        features.files_in_directory_max = directories.into_values().max().unwrap_or_default();
        let shared = self.seconds.get(&RANK_SHARED).copied().unwrap_or_default();
        let own = self.seconds.iter().filter(|(rank, _)| **rank != RANK_SHARED);
        features.io_seconds = shared + own.map(|(_, seconds)| *seconds).fold(0.0, f64::max);
        features
    }
}
