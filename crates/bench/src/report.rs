// SPDX-License-Identifier: Apache-2.0
//! Report: the results of one benchmark, as a line for people or as JSON.

use std::fmt;

use esker_base::{Error, Result};
use serde::Serialize;

/// The results of one benchmark. Fields that do not apply are omitted from the JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BenchReport {
    /// The benchmark: `create`, `stat`, `list`, `remove`, `squash`.
    pub operation: &'static str,
    /// Number of operations: files, entries or records.
    pub operations: u64,
    /// Seconds that they took.
    pub seconds: f64,
    /// Operations divided by seconds.
    pub operations_per_second: f64,
    /// Processor time of all threads.
    pub cpu_seconds: f64,
    /// Peak resident memory of the process since its start.
    pub peak_rss_bytes: u64,
    /// Bytes written to the store, including logs.
    pub store_bytes_written: u64,
    /// Bytes of tables divided by the records in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_bytes_per_record: Option<f64>,
    /// Bytes of write-ahead logs divided by operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wal_bytes_per_record: Option<f64>,
    /// Number of tables at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tables: Option<usize>,
    /// Blocks read from the store divided by operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_reads_per_operation: Option<f64>,
    /// Seconds until all background work was done; equal to `seconds`, since none is left by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_seconds: Option<f64>,
    /// Bits of index logs and auxiliary tables divided by records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_bits_per_key: Option<f64>,
    /// Blocks of records searched, divided by operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_reads_per_operation: Option<f64>,
    /// Partitions searched, divided by operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions_per_operation: Option<f64>,
    /// Bytes read from the store divided by operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_bytes_read_per_operation: Option<f64>,
    /// Most memory that any rank used for records, tables, index and messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_memory_peak_bytes: Option<u64>,
    /// Threads that executed the operations.
    pub threads: usize,
    /// True if a background thread wrote tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub background: Option<bool>,
    /// Durability level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<&'static str>,
    /// The rate in each second, where it may change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<BenchRate>,
    /// Seconds to publish, included in `seconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish_seconds: Option<f64>,
    /// Seconds to open the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_seconds: Option<f64>,
}

/// The rate in a part of a benchmark.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BenchRate {
    /// Seconds from the start of the benchmark to the end of the part.
    pub seconds: f64,
    /// Operations in the part divided by its seconds.
    pub operations_per_second: f64,
    /// Sorted runs of tables at its end; a merge that is under way counts its own and all old ones.
    pub runs: usize,
}

impl fmt::Display for BenchRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = counted(self.runs as u64, "run");
        write!(f, "{:.0}/s in {runs} after {:.0} s", self.operations_per_second, self.seconds)
    }
}

/// A number and its noun, in the plural unless the number is 1.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} operations in {:.3} s, {:.0}/s; {:.3} s of processor time, {} MiB at most",
            self.operation,
            self.operations,
            self.seconds,
            self.operations_per_second,
            self.cpu_seconds,
            self.peak_rss_bytes >> 20,
        )?;
        if let Some(bytes) = self.table_bytes_per_record {
            let tables = counted(self.tables.unwrap_or_default() as u64, "table");
            write!(f, "; {bytes:.1} B a record in {tables}")?;
        }
        if let Some(bytes) = self.wal_bytes_per_record {
            write!(f, ", {bytes:.1} B logged")?;
        }
        if let Some(reads) = self.store_reads_per_operation {
            write!(f, "; {reads:.4} store reads each")?;
        }
        if let [first, .., last] = &self.rates[..] {
            write!(f, "; {first}, {last}")?;
        }
        if let Some(bits) = self.index_bits_per_key {
            write!(f, "; {bits:.2} bits of index a key")?;
        }
        if let Some(reads) = self.table_reads_per_operation {
            write!(f, "; {reads:.4} tables read each")?;
        }
        if let Some(partitions) = self.partitions_per_operation {
            write!(f, ", of {partitions:.4} partitions")?;
        }
        if let Some(bytes) = self.store_bytes_read_per_operation {
            write!(f, ", {bytes:.0} B read")?;
        }
        if let Some(bytes) = self.rank_memory_peak_bytes {
            write!(f, "; {:.1} MiB a rank", bytes as f64 / f64::from(1 << 20))?;
        }
        Ok(())
    }
}

/// Measures time, processor time and memory from its start to its end.
#[derive(Debug)]
pub struct ResourceMeter {
    started_ns: u64,
    cpu_ns: u64,
}

fn clock_ns(id: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl ResourceMeter {
    /// Starts measuring.
    #[must_use]
    pub fn start() -> Self {
        Self {
            started_ns: clock_ns(rustix::time::ClockId::Monotonic),
            cpu_ns: clock_ns(rustix::time::ClockId::ProcessCPUTime),
        }
    }

    /// Seconds since the start.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        (clock_ns(rustix::time::ClockId::Monotonic) - self.started_ns) as f64 / 1e9
    }

    /// Ends the measurement; returns the report of `operations` operations.
    pub fn stop(self, operation: &'static str, operations: u64) -> Result<BenchReport> {
        let seconds = self.seconds();
        let cpu_ns = clock_ns(rustix::time::ClockId::ProcessCPUTime) - self.cpu_ns;
        Ok(BenchReport {
            operation,
            operations,
            seconds,
            operations_per_second: operations as f64 / seconds.max(1e-9),
            cpu_seconds: cpu_ns as f64 / 1e9,
            peak_rss_bytes: peak_rss_bytes()?,
            ..BenchReport::default()
        })
    }
}

/// Peak resident memory of this process.
fn peak_rss_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| Error::io(error, "/proc/self/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib =
        line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.parse().ok());
    Ok(kib.unwrap_or(0u64) << 10)
}
