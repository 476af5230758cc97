// SPDX-License-Identifier: Apache-2.0
//! Features: the counts of a trace from which models and advice know an application.
//!
//! Totals are over all processes. [`TraceFeatures::variables`] gives the regressors of the paper's
//! Table 1, which are those of one process.
//! Invariants: parts of a count do not exceed it; `validate` checks that.
//! Source: Kougkas et al. 2016, §4.1.1 (IOSIG: offset and size determine the pattern) and §5.2.1.

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::observation::{AccessPattern, IoVariables, StorageDevice, TransferKind};

/// Requests of fewer bytes count as small: the stripe of the paper's file system.
pub const SMALL_REQUEST_BYTES: u64 = 64 << 10;

/// The stripe that alignment refers to if the trace or the user names no other.
pub const STRIPE_BYTES_DEFAULT: u64 = 64 << 10;

/// The storage for which a prediction is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageConfiguration {
    /// Storage servers.
    pub servers: u32,
    /// Metadata servers.
    pub metadata_servers: u32,
    /// Nodes that issue requests.
    pub clients: u32,
    /// The devices of the servers.
    pub device: StorageDevice,
}

/// Counts over one trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceFeatures {
    /// Processes (ranks) that transfer bytes.
    pub processes: u32,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// The median size of a read or write; 0 without any.
    pub request_bytes_median: u64,
    /// Reads and writes of fewer than [`SMALL_REQUEST_BYTES`].
    pub small_requests: u64,
    /// The stripe that the two following counts refer to.
    pub stripe_bytes: u64,
    /// Reads and writes whose offset is not a multiple of the stripe.
    pub unaligned_requests: u64,
    /// The median distance of these to the boundary before them; 0 without any.
    pub unaligned_bytes_median: u64,
    /// Reads and writes that begin where the one before of the same process in the same file ended.
    pub contiguous_requests: u64,
    /// Reads and writes that are not the first of their process in their file: those that can be
    /// contiguous.
    pub following_requests: u64,
    /// The mean distance between a request and the next, over those that are not contiguous; steps
    /// back count as positive.
    pub gap_bytes_mean: u64,
    /// Opens, those that create a file included.
    pub opens: u64,
    /// Closes.
    pub closes: u64,
    /// Opens that create a file.
    pub creates: u64,
    /// Other metadata operations: stat, rename, remove, make a directory, list.
    pub other_metadata: u64,
    /// Files that bytes are read from or written to.
    pub files: u64,
    /// The files among them that several processes use.
    pub shared_files: u64,
    /// The largest number of files in one directory.
    pub files_in_directory_max: u64,
    /// The longest time that one process spent in I/O, in seconds; 0 if the trace has no times.
    pub io_seconds: f64,
}

impl TraceFeatures {
    /// Reads and writes.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    /// Bytes read and written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }

    /// Whether requests read or write, by their bytes.
    #[must_use]
    pub fn transfers(&self) -> TransferKind {
        match (self.read_bytes, self.written_bytes) {
            (0, 1..) => TransferKind::Write,
            (_, 0) => TransferKind::Read,
            _ => TransferKind::ReadWrite,
        }
    }

    /// Contiguous if most of the requests that can be contiguous are.
    #[must_use]
    pub fn access_pattern(&self) -> AccessPattern {
        match self.contiguous_requests.saturating_mul(2) >= self.following_requests {
            true => AccessPattern::Contiguous,
            false => AccessPattern::Noncontiguous,
        }
    }

    /// True if most requests begin at a boundary of a stripe.
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        self.unaligned_requests.saturating_mul(2) <= self.requests()
    }

    /// Returns the regressors of this application on `storage`.
    ///
    /// # Errors
    /// `Invalid` if the trace transfers no bytes.
    pub fn variables(&self, storage: &StorageConfiguration) -> Result<IoVariables> {
        self.validate()?;
        if self.bytes() == 0 || self.processes == 0 {
            let message = "the trace transfers no bytes, so no rate can be predicted; trace a run \
                           that reads or writes";
            return Err(Error::new(Kind::Invalid, message));
        }
        let processes = u64::from(self.processes);
        let access_pattern = self.access_pattern();
        let metadata = self.opens.saturating_add(self.closes).saturating_add(self.creates);
        Ok(IoVariables {
            servers: storage.servers,
            metadata_servers: storage.metadata_servers,
            clients: storage.clients,
            access_pattern,
            gap_bytes: match access_pattern {
                AccessPattern::Contiguous => 0,
                AccessPattern::Noncontiguous => self.gap_bytes_mean,
            },
            request_bytes: self.request_bytes_median.max(1),
            processes: self.processes,
            input_bytes: self.bytes().div_ceil(processes),
            device: storage.device,
            unaligned_bytes: if self.is_aligned() { 0 } else { self.unaligned_bytes_median },
            metadata_operations: metadata.div_ceil(processes),
        })
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// `Invalid` names the count that exceeds the whole it is part of.
    pub fn validate(&self) -> Result<()> {
        let parts = [
            ("small_requests", self.small_requests, self.requests()),
            ("unaligned_requests", self.unaligned_requests, self.requests()),
            ("following_requests", self.following_requests, self.requests()),
            ("contiguous_requests", self.contiguous_requests, self.following_requests),
            ("creates", self.creates, self.opens),
            ("shared_files", self.shared_files, self.files),
        ];
        match parts.into_iter().find(|(_, part, whole)| part > whole) {
            Some((name, part, whole)) => {
                Err(Error::new(Kind::Invalid, format!("{name} is {part} of only {whole}")))
            }
            None => Ok(()),
        }
    }
}
