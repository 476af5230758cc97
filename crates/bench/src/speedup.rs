// SPDX-License-Identifier: Apache-2.0
//! Speed-up: one core that gets a key through the index, compared with all threads scanning for it.
//! Source: DeltaFS thesis §5.4.2, Figure 5.17a.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Random, Result};
use esker_imd::DirectoryReader;
use serde::Serialize;

use crate::report::ResourceMeter;

/// Number of keys, got one after another, each with a newly opened reader.
const GETS: usize = 100;

/// Results.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SpeedupReport {
    /// `imd_speedup`.
    pub operation: &'static str,
    /// Records in all epochs.
    pub records: u64,
    /// Number of threads that scanned.
    pub threads: usize,
    /// Seconds in which they read all records and compared the keys.
    pub scan_seconds: f64,
    /// Mean seconds in which one thread opened the directory and got all values of a key.
    pub get_seconds: f64,
    /// Store reads of such a get.
    pub store_reads_per_operation: f64,
    /// Bytes read by such a get.
    pub store_bytes_read_per_operation: f64,
    /// Scan time divided by get time.
    pub speedup: f64,
}

impl fmt::Display for SpeedupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} records: {} threads scan them in {:.3} s, a get from nothing takes {:.6} s with {:.1} \
             reads of {:.0} B in all: {:.0} times faster",
            self.records,
            self.threads,
            self.scan_seconds,
            self.get_seconds,
            self.store_reads_per_operation,
            self.store_bytes_read_per_operation,
            self.speedup,
        )
    }
}

/// Compares both for some keys of the directory with prefix `prefix`.
///
/// # Errors
/// `Corrupt` if they disagree; errors of the reader.
pub fn imd_speedup(store: &SharedStore, prefix: &str, threads: usize) -> Result<SpeedupReport> {
    let reader = DirectoryReader::open(store, prefix, 0)?;
    let keys = reader.sample(GETS, &mut Random::from_seed(1))?;
    let Some(wanted) = keys.first() else {
        return Err(Error::new(Kind::NotFound, "a directory without records"));
    };
    let (records, found) = (AtomicU64::new(0), AtomicU64::new(0));
    let meter = ResourceMeter::start();
    reader.scan_all(threads, |rows| {
        let hits = (0..rows.len()).filter(|&row| rows.key(row) == &wanted[..]).count();
        records.fetch_add(u64::from(rows.len()), Ordering::Relaxed);
        found.fetch_add(hits as u64, Ordering::Relaxed);
    })?;
    let scan_seconds = meter.seconds();
    let meter = ResourceMeter::start();
    let mut counts = esker_imd::QueryCounts::default();
    let mut first = 0;
    for (at, key) in keys.iter().enumerate() {
        let answer = DirectoryReader::open(store, prefix, 0)?.get(key)?;
        counts += answer.counts;
        if at == 0 {
            first = answer.values.len() as u64;
        }
    }
    let get_seconds = meter.seconds() / keys.len() as f64;
    let scanned = found.into_inner();
    if first != scanned {
        let what = format!("a get found {first} values, the scan {scanned}");
        return Err(Error::new(Kind::Corrupt, what));
    }
    let each = |count: u64| count as f64 / keys.len() as f64;
    Ok(SpeedupReport {
        operation: "imd_speedup",
        records: records.into_inner(),
        threads,
        scan_seconds,
        get_seconds,
        // Plus one read of the root object.
        store_reads_per_operation: each(counts.reads()) + 1.0,
        store_bytes_read_per_operation: each(counts.bytes()),
        speedup: scan_seconds / get_seconds,
    })
}
