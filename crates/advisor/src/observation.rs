// SPDX-License-Identifier: Apache-2.0
//! Observation: one measured run of one workload on one storage system, with the variables of the
//! paper's Table 1.
//!
//! Quantities are those of the paper: bytes and metadata operations are those of one process, so
//! that the rate is `p · R / T`. Its example row (Table 1) has p = 32, R = 67,108,864 and T =
//! 16,520,531 µs, which is 129.99 MB/s of 10^6 bytes, and M = 768 = 3 · R / r. Invariants:
//! `processes`, `request_bytes` and `input_bytes` are at least 1, `microseconds` is a positive
//! finite number, and the square of the rate neither overflows nor vanishes; `validate` checks
//! them. Source: Kougkas et al. 2016, §5.2.1.

mod csv_rows;
mod parquet_rows;
mod row_fields;

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

pub use csv_rows::{CSV_BYTES_MAX, read_csv, write_csv};
pub use parquet_rows::{read_parquet_rows, write_parquet_rows};
pub use row_fields::COLUMNS;

/// The least rate in MB/s; models refuse lower ones, and those above [`RATE_MAX`].
pub const RATE_MIN: f64 = 1e-20;
/// The greatest.
pub const RATE_MAX: f64 = 1e40;

/// Stands between a target in a store of Esker and the store.
pub const STORE_OPTION: &str = " --store ";

/// The order of a process's requests in its file (a).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessPattern {
    /// Each request begins where the one before ended.
    Contiguous,
    /// Gaps lie between the requests.
    Noncontiguous,
}

impl AccessPattern {
    /// The number of the category in Table 1: 1 contiguous, 2 noncontiguous.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Contiguous => 1,
            Self::Noncontiguous => 2,
        }
    }
}

/// The storage devices of the servers (d).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StorageDevice {
    /// Hard disks.
    Hdd,
    /// Solid-state disks.
    Ssd,
}

impl StorageDevice {
    /// The number of the category in Table 1: 1 hard disk, 2 solid-state disk.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Hdd => 1,
            Self::Ssd => 2,
        }
    }
}

/// The category of a storage system (f).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StorageKind {
    /// Files: OrangeFS in the paper.
    FileSystem,
    /// Values under keys: HyperDex in the paper.
    KeyValue,
}

impl StorageKind {
    /// The number of the category in Table 1: 1 file system, 2 key-value store.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::FileSystem => 1,
            Self::KeyValue => 2,
        }
    }
}

/// Whether requests read or write. Table 1 has no such variable: the paper's requests read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferKind {
    /// All read.
    Read,
    /// All write.
    Write,
    /// Some read and some write.
    ReadWrite,
}

impl TransferKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::ReadWrite];

    /// The word in rows.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "read-write",
        }
    }
}

/// The regressors: the configuration of the storage and the I/O of the application (Table 1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IoVariables {
    /// s: storage servers.
    pub servers: u32,
    /// m: metadata servers, or coordinators.
    pub metadata_servers: u32,
    /// c: clients, which are nodes that issue requests.
    pub clients: u32,
    /// a: whether requests are contiguous.
    pub access_pattern: AccessPattern,
    /// g: bytes between a request and the next; 0 if contiguous.
    pub gap_bytes: u64,
    /// r: bytes of each request, at least 1.
    pub request_bytes: u64,
    /// p: processes of the application, at least 1.
    pub processes: u32,
    /// R: bytes that each process transfers, at least 1.
    pub input_bytes: u64,
    /// d: the devices of the servers.
    pub device: StorageDevice,
    /// A: bytes by which requests are shifted from the boundaries of stripes; 0 if aligned.
    pub unaligned_bytes: u64,
    /// M: open, close and create operations of each process.
    pub metadata_operations: u64,
}

/// The variables of an observation that one machine only imitates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmulatedVariables {
    /// The servers are processes of one machine.
    pub servers: bool,
    /// The metadata servers are processes of one machine.
    pub metadata_servers: bool,
    /// The clients are processes of one machine.
    pub clients: bool,
    /// Delays and limits imitate the device.
    pub device: bool,
    /// A model computed the time: the whole row is simulated.
    pub time: bool,
}

impl EmulatedVariables {
    /// All variables of the storage, or none.
    #[must_use]
    pub const fn storage(is_emulated: bool) -> Self {
        let [servers, metadata_servers, clients, device] = [is_emulated; 4];
        Self { servers, metadata_servers, clients, device, time: false }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The family of the workload, which cross-validation leaves out as a whole: `hpio`,
    /// `lanl-app1`.
    pub workload: String,
    /// The test case: rows with the same case replayed the same trace in the same configuration, on
    /// different systems or repeatedly.
    pub case: String,
    /// The storage system and the way in which it is used: `orangefs`, `posix-shared-file`.
    pub system: String,
    /// f: the category of that system.
    pub kind: StorageKind,
    /// The number of the repetition, from 0.
    pub repetition: u32,
    /// The regressors.
    pub variables: IoVariables,
    /// T: time spent in I/O, in microseconds.
    pub microseconds: f64,
    /// The variables that are imitated.
    pub emulated: EmulatedVariables,
    /// Whether it read or wrote, if this is known.
    pub transfers: Option<TransferKind>,
    /// The target of `esker advise replay` that the name of the system stands for, without passwords:
    /// `/scratch/m`, or `esker:NAME` and the store behind [`STORE_OPTION`]. Empty where it is unknown.
    pub target: String,
}

impl IoVariables {
    /// B: MB/s of 10^6 bytes if the processes spend `microseconds` in I/O.
    #[must_use]
    pub fn bandwidth(&self, microseconds: f64) -> f64 {
        f64::from(self.processes) * self.input_bytes as f64 / microseconds
    }

    /// Requests of each process.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.input_bytes.div_ceil(self.request_bytes.max(1))
    }

    /// The same I/O in requests of `bytes` each, at least 1. An application that opens a file for
    /// each request still does, for fewer or more of them.
    #[must_use]
    pub fn with_request_bytes(&self, bytes: u64) -> Self {
        let mut changed = Self { request_bytes: bytes.max(1), ..self.clone() };
        let (before, after) = (self.requests(), changed.requests());
        if self.metadata_operations >= before {
            let scaled = u128::from(self.metadata_operations) * u128::from(after)
                / u128::from(before.max(1));
            changed.metadata_operations = u64::try_from(scaled).unwrap_or(u64::MAX);
        }
        changed
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// `Invalid` names the variable that is 0.
    pub fn validate(&self) -> Result<()> {
        let counts = [
            ("processes", u64::from(self.processes)),
            ("request_bytes", self.request_bytes),
            ("input_bytes", self.input_bytes),
        ];
        match counts.iter().find(|(_, count)| *count == 0) {
            Some((name, _)) => Err(Error::new(Kind::Invalid, format!("{name} is 0, must be > 0"))),
            None => Ok(()),
        }
    }
}

impl Observation {
    /// B: the rate of all processes together, in MB/s of 10^6 bytes.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.variables.bandwidth(self.microseconds)
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// `Invalid` names the field that breaks one.
    pub fn validate(&self) -> Result<()> {
        self.variables.validate()?;
        let is_time = self.microseconds.is_finite() && self.microseconds > 0.0;
        if !is_time {
            let message = format!("time_us is {}, must be finite and > 0", self.microseconds);
            return Err(Error::new(Kind::Invalid, message));
        }
        let rate = self.bandwidth();
        match (RATE_MIN..=RATE_MAX).contains(&rate) {
            true => Ok(()),
            false => {
                let message = format!("time_us is {}: {rate} MB/s is no rate", self.microseconds);
                Err(Error::new(Kind::Invalid, message))
            }
        }
    }
}

/// Replaces the repetitions of each test case on each system by one row with their mean time, as
/// the paper does (§5.2.1); the first repetition gives everything else. Keeps the order of first
/// rows.
#[must_use]
pub fn mean_of_repetitions(observations: &[Observation]) -> Vec<Observation> {
    let mut index_of = std::collections::HashMap::new();
    let mut means: Vec<(Observation, f64)> = Vec::new();
    for observation in observations {
        let key = (&observation.workload, &observation.case, &observation.system);
        match index_of.get(&key) {
            Some(&index) => {
                let (mean, count): &mut (Observation, f64) = &mut means[index];
                *count += 1.0;
                mean.microseconds += (observation.microseconds - mean.microseconds) / *count;
            }
            None => {
                index_of.insert(key, means.len());
                means.push((observation.clone(), 1.0));
            }
        }
    }
    means.into_iter().map(|(mean, _)| mean).collect()
}
