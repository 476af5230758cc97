// SPDX-License-Identifier: Apache-2.0
//! Page samples: the calls of a trace of any length that a page shows, in bounded memory.
//!
//! Every k-th call is kept; whenever too many are, every second one of them is dropped and k
//! doubles.

use hashbrown::HashMap;

use super::{SizeCounts, TraceBatch, TraceOperation, TraceRecord};

/// Maximum number of calls that are kept.
const SAMPLES_MAX: usize = 24_000;

/// Samples and counts of a trace.
#[derive(Debug, Default)]
pub struct PageSamples {
    /// Every k-th call, in order.
    pub calls: Vec<TraceRecord>,
    step: u64,
    rows: u64,
    /// Calls by operation number.
    pub operations: [u64; TraceOperation::ALL.len()],
    /// Sizes of requests.
    pub sizes: SizeCounts,
    /// Distances from the end of a request to the next of the same rank in the same file, backwards
    /// too; 0 is contiguous.
    pub distances: SizeCounts,
    /// Bytes by file.
    pub file_bytes: HashMap<u32, u64>,
    ends: HashMap<(u32, u32), u64>,
    /// The end of the last call.
    pub end_ns: u64,
    /// The greatest rank.
    pub rank_max: u32,
}

impl PageSamples {
    /// Adds a batch.
    pub fn add(&mut self, batch: &TraceBatch) {
        for record in batch.records() {
            self.step = self.step.max(1);
            if self.rows.is_multiple_of(self.step) {
                self.calls.push(record);
                if self.calls.len() == SAMPLES_MAX {
                    let mut index = 0;
                    self.calls.retain(|_| {
                        index += 1;
                        index % 2 == 1
                    });
                    self.step *= 2;
                }
            }
            self.rows += 1;
            self.operations[usize::from(record.operation.number())] += 1;
            self.end_ns = self.end_ns.max(record.end_ns);
            self.rank_max = self.rank_max.max(record.rank);
            let moved = record.bytes_moved();
            if record.operation.is_transfer() && moved > 0 {
                self.sizes.add(moved);
                let bytes = self.file_bytes.entry(record.file.0).or_default();
                *bytes = bytes.saturating_add(moved);
                let key = (record.rank, record.file.0);
                if let Some(end) = self.ends.insert(key, record.offset + moved) {
                    self.distances.add(end.abs_diff(record.offset));
                }
            }
        }
    }

    /// The number of calls.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The file with the most bytes, the first of several.
    #[must_use]
    pub fn largest_file(&self) -> Option<u32> {
        let files = self.file_bytes.iter().map(|(file, bytes)| (*bytes, std::cmp::Reverse(*file)));
        files.max().map(|(_, file)| file.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_even_and_bounded() {
        let mut samples = PageSamples::default();
        let mut batch = TraceBatch::default();
        for begin_ns in 0..100_000 {
            let record = TraceRecord::new(0, TraceOperation::Stat);
            batch.push(&TraceRecord { begin_ns, end_ns: begin_ns, ..record });
        }
        samples.add(&batch);
        assert!((SAMPLES_MAX / 2..=SAMPLES_MAX).contains(&samples.calls.len()));
        let distance = samples.calls[1].begin_ns;
        let is_even = |pair: &[TraceRecord]| pair[1].begin_ns - pair[0].begin_ns == distance;
        assert!(samples.calls.windows(2).all(is_even));
        assert_eq!((samples.rows(), samples.operations[6]), (100_000, 100_000));
        assert_eq!(samples.largest_file(), None);
    }
}
