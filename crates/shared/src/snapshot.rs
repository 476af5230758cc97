// SPDX-License-Identifier: Apache-2.0
//! Snapshot: all segments of a file at one moment, held by the caller; servers keep no state for
//! it.

use esker_base::Result;
use esker_extent::{Segment, SegmentBuffer, SegmentOverlay, SegmentRun};

use crate::service::no_answer;

/// All segments of a file at one moment; puts of others do not change it.
#[derive(Debug, Default)]
pub struct SegmentSnapshot {
    buffer: SegmentBuffer,
    file: u128,
    end: u64,
}

impl SegmentSnapshot {
    /// Builds a snapshot of `file` from the `runs` of all servers.
    pub(crate) fn of(file: u128, runs: Vec<SegmentRun>) -> Result<Self> {
        if runs.iter().any(|run| run.first.file != file) {
            return Err(no_answer());
        }
        let mut snapshot = Self { file, ..Self::default() };
        snapshot.insert(&runs);
        Ok(snapshot)
    }

    /// Adds `runs` of the same file, newer than all that are here.
    pub(crate) fn insert(&mut self, runs: &[SegmentRun]) {
        self.buffer.insert_batch(self.file, runs);
        let ends = runs.iter().filter(|run| run.first.place.is_some()).map(SegmentRun::end);
        self.end = ends.fold(self.end, u64::max);
    }

    /// The end of the last segment.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns up to `limit` whole segments that end after `from`, in order and without holes. Pass
    /// the end of the last one to continue.
    ///
    /// # Errors
    /// `TooLarge` if too many segments overlap.
    pub fn chunk(&self, from: u64, limit: usize) -> Result<Vec<Segment>> {
        let Some(intervals) = self.buffer.interval_index(self.file)? else { return Ok(Vec::new()) };
        let (mut found, mut from) = (Vec::new(), from);
        while found.len() < limit {
            let chunk = intervals.chunk(from, limit);
            let Some(last) = chunk.last() else { break };
            from = last.end();
            found.extend(chunk.into_iter().filter(|segment| segment.place.is_some()));
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Fills the gaps of `overlay`, which must be of the same file.
    ///
    /// # Errors
    /// As [`SegmentSnapshot::chunk`].
    pub fn fill(&self, overlay: &mut SegmentOverlay) -> Result<()> {
        self.buffer.fill(overlay)
    }
}
