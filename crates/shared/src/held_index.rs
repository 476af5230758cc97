// SPDX-License-Identifier: Apache-2.0
//! Held index: a copy of the index of a shared file that every rank holds.
//!
//! In an exchange every rank gets the segments that each rank has written since the last exchange,
//! and adds them in order of ranks, so all ranks hold the same index. In the next sync a rank sends
//! its segments to the owners, without the parts that others have overwritten in a later exchange
//! or that a higher rank has overwritten in the same one. No two ranks therefore send the same
//! bytes, and the order in which segments arrive does not matter.

use esker_base::Result;
use esker_comm::Rank;
use esker_extent::{Segment, SegmentLog, SegmentMap, SegmentOverlay, SegmentRun};

use crate::service::no_answer;
use crate::snapshot::SegmentSnapshot;

/// An index that this rank holds.
#[derive(Debug)]
pub(crate) struct HeldIndex {
    segments: SegmentSnapshot,
    /// This rank's segments that the indexes of all ranks have, and the owners do not.
    unsent: SegmentMap,
}

impl HeldIndex {
    /// The index `segments` of the owners.
    pub(crate) fn new(segments: SegmentSnapshot) -> Self {
        Self { segments, unsent: SegmentMap::default() }
    }

    /// The end of the last segment.
    pub(crate) fn end(&self) -> u64 {
        self.segments.end()
    }

    /// Fills the gaps of `overlay`.
    pub(crate) fn fill(&self, overlay: &mut SegmentOverlay) -> Result<()> {
        self.segments.fill(overlay)
    }

    /// Segments that the owners must get.
    pub(crate) fn unsent(&self) -> &SegmentMap {
        &self.unsent
    }

    /// Drops the unsent segments: the owners have them.
    pub(crate) fn set_sent(&mut self) {
        self.unsent = SegmentMap::default();
    }

    /// Adds the segments of `file` that ranks wrote, by rank, as encoded by
    /// [`SegmentLog::encode_batch`]; those of rank `me` are `own`.
    pub(crate) fn add(
        &mut self,
        file: u128,
        written: &[(Rank, Vec<u8>)],
        (me, own): (Rank, &SegmentMap),
    ) -> Result<()> {
        for (rank, bytes) in written {
            let what = || format!("the segments of {rank}");
            let runs = SegmentLog::decode_batch(bytes).map_err(|damage| damage.of(&what(), 0))?;
            if runs.iter().any(|run| run.first.file != file) {
                return Err(no_answer());
            }
            self.segments.insert(&runs);
            if *rank == me {
                own.iter().for_each(|segment| self.unsent.insert(segment));
            } else if !self.unsent.is_empty() {
                runs.iter().flat_map(SegmentRun::segments).for_each(|segment| self.cut(&segment));
            }
        }
        Ok(())
    }

    fn cut(&mut self, newer: &Segment) {
        self.unsent.remove(newer.file, newer.offset..newer.end());
    }
}
