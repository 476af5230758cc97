// SPDX-License-Identifier: Apache-2.0
//! Report: what one operation cost, as the line of JSON that Esker's bench prints too.
//! Sources: getrusage for CPU, /proc/self/status VmHWM for the peak of memory, /proc/self/io
//! wchar for bytes handed to the kernel.

use std::time::Instant;

/// Time, CPU and bytes written at one moment.
#[derive(Clone, Copy)]
pub struct Reading {
    time: Instant,
    cpu_seconds: f64,
    bytes_written: u64,
}

impl Reading {
    pub fn now() -> Self {
        // SAFETY: getrusage only fills the struct it is given, for which zero is a value.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        Reading {
            time: Instant::now(),
            cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            bytes_written: proc_number("/proc/self/io", "wchar:"),
        }
    }

    pub fn seconds_since(&self, earlier: &Reading) -> f64 {
        self.time.duration_since(earlier.time).as_secs_f64()
    }

    pub fn cpu_seconds_since(&self, earlier: &Reading) -> f64 {
        self.cpu_seconds - earlier.cpu_seconds
    }

    pub fn bytes_written_since(&self, earlier: &Reading) -> u64 {
        self.bytes_written - earlier.bytes_written
    }
}

#[derive(Default)]
pub struct Report {
    pub operation: String,
    pub options: String,
    pub durability: String,
    pub threads: u64,
    pub operations: u64,
    pub records: u64,
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub settled_seconds: Option<f64>,
    pub store_bytes_written: u64,
    pub tables: u64,
    pub table_bytes: u64,
    pub wal_bytes_per_record: f64,
    pub table_reads: Option<u64>,
    pub index_bits_per_key: Option<f64>,
    /// Figures that only one operation has.
    pub more: Vec<(&'static str, f64)>,
}

impl Report {
    pub fn print(&self, json: bool) {
        let Report { tables, table_bytes, .. } = *self;
        let rate = self.operations as f64 / self.seconds;
        let per_record = table_bytes as f64 / self.records.max(1) as f64;
        let reads = self.table_reads.map(|reads| reads as f64 / self.operations.max(1) as f64);
        let peak = proc_number("/proc/self/status", "VmHWM:") << 10;
        let Report { operation, options, durability, threads, operations, .. } = self;
        let (seconds, cpu_seconds) = (self.seconds, self.cpu_seconds);
        if !json {
            print!(
                "rocksdb {options} {operation}: {:.3} M/s, {operations} in {seconds:.2} s, \
                 {cpu_seconds:.2} s CPU, {:.0} MiB peak, {per_record:.1} B/record, {tables} tables",
                rate / 1e6,
                peak as f64 / 1_048_576.0
            );
            if let Some(settled) = self.settled_seconds {
                print!(", settled after {settled:.2} s");
            }
            if let Some(reads) = reads {
                print!(", {reads:.3} reads/operation");
            }
            if let Some(bits) = self.index_bits_per_key {
                print!(", {bits:.2} index bits/key");
            }
            self.more.iter().for_each(|(name, value)| print!(", {name} {value:.2}"));
            println!();
            return;
        }
        print!(
            "{{\"engine\":\"rocksdb\",\"options\":\"{options}\",\"operation\":\"{operation}\",\
             \"threads\":{threads},\"durability\":\"{durability}\",\"operations\":{operations},\
             \"seconds\":{seconds:.6},\"operations_per_second\":{rate:.1},\
             \"cpu_seconds\":{cpu_seconds:.3},\"peak_rss_bytes\":{peak},\
             \"store_bytes_written\":{},\"table_bytes_per_record\":{per_record:.2},\
             \"wal_bytes_per_record\":{:.2},\"tables\":{tables}",
            self.store_bytes_written, self.wal_bytes_per_record
        );
        if let Some(settled) = self.settled_seconds {
            print!(",\"settled_seconds\":{settled:.6}");
        }
        if let Some(reads) = reads {
            print!(",\"store_reads_per_operation\":{reads:.4}");
        }
        if let Some(bits) = self.index_bits_per_key {
            print!(",\"index_bits_per_key\":{bits:.3}");
            // Tables are opened with the database, so all reads are of records.
            if let Some(reads) = reads {
                print!(",\"table_reads_per_operation\":{reads:.4}");
            }
        }
        self.more.iter().for_each(|(name, value)| print!(",\"{name}\":{value:.3}"));
        println!("}}");
    }
}

/// The number after `label` in a /proc file; 0 if it isn't there.
fn proc_number(path: &str, label: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(label));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
