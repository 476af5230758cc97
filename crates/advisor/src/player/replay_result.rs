// SPDX-License-Identifier: Apache-2.0
//! Replay result: the duration of a replay, and its deviations from the times of the trace.

use esker_workbench::distribution::LatencyDistribution;
use serde::Serialize;

use crate::observation::StorageKind;

/// The measurements of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayResult {
    /// The storage system and the player.
    pub system: String,
    /// The category of the system.
    pub kind: StorageKind,
    /// Ranks, which were threads.
    pub ranks: u32,
    /// Reads and writes.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Opens, creates and closes that the player made.
    pub metadata_operations: u64,
    /// Calls of the trace that the player does not make.
    pub skipped: u64,
    /// From the first call to the end of the last one.
    pub seconds: f64,
    /// The time in calls of the rank that spent most there: T of the paper.
    pub io_seconds: f64,
    /// Durations of calls.
    pub latency: LatencyDistribution,
    /// Deviations from the times of the trace; absent if the replay was as fast as possible.
    pub timing: Option<ReplayTiming>,
}

/// Lateness of calls, as far as neither the storage nor the previous call caused it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayTiming {
    /// The median.
    pub late_p50_ns: u64,
    /// The 99th percentile.
    pub late_p99_ns: u64,
    /// The greatest.
    pub late_max_ns: u64,
    /// From the first to the last beginning in the trace.
    pub traced_seconds: f64,
    /// The same in the replay.
    pub replayed_seconds: f64,
}

impl ReplayTiming {
    /// The relative error of the time between the first and the last beginning.
    #[must_use]
    pub fn span_error(&self) -> f64 {
        let error = (self.replayed_seconds - self.traced_seconds).abs();
        if self.traced_seconds > 0.0 { error / self.traced_seconds } else { 0.0 }
    }

    /// A lateness as a share of the mean time between the calls of a rank.
    #[must_use]
    pub fn share(&self, late_ns: u64, result: &ReplayResult) -> f64 {
        let calls_of_rank = result.latency.count as f64 / f64::from(result.ranks.max(1));
        let interval = self.traced_seconds / calls_of_rank.max(1.0);
        if interval > 0.0 { late_ns as f64 / 1e9 / interval } else { 0.0 }
    }
}

impl ReplayResult {
    /// Bytes in a second of I/O, in MB/s of 10^6 bytes: B of the paper.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.io_seconds.max(1e-9)
    }
}
