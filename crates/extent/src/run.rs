// SPDX-License-Identifier: Apache-2.0
//! Segment run: segments of one length at regular distances, in a file and in a log.
//!
//! A rank's writes into a shared file are rarely one range, and rarely random: they follow a
//! pattern. A run describes in one record a pattern that would take thousands of segments (MetaKV
//! §III-A, the phrases of its delta encoding). Its record is a [`NestedRun`](super::NestedRun).

use esker_table::manifest::SetId;

use super::{LogPlace, Segment};

/// `count` segments, each `stride` bytes after the previous one in the file, and `log_stride` in
/// the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRun {
    /// The first segment.
    pub first: Segment,
    /// Number of segments, at least 1.
    pub count: u64,
    /// Distance from the start of one segment to that of the next; at least their length, so that
    /// they do not overlap.
    pub stride: u64,
    /// The same distance in the log.
    pub log_stride: u64,
}

impl SegmentRun {
    /// Makes a run of `segment` alone.
    #[must_use]
    pub fn one(segment: Segment) -> Self {
        Self { count: 1, stride: segment.length, log_stride: segment.length, first: segment }
    }

    /// Returns whether its numbers are possible: it has segments, they do not overlap, all of them
    /// end within 64 bits, in the file and in the log of a set other than 0, and only a single
    /// segment has a checksum or is a hole.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let reach = |start: u64, stride: u64| {
            let span = (self.count.checked_sub(1)?).checked_mul(stride)?;
            start.checked_add(span)?.checked_add(self.first.length)
        };
        let log_start = self.first.place.map_or(0, |place| place.offset);
        let is_alone_or_plain =
            self.count == 1 || (self.first.place.is_some() && self.first.checksum.is_none());
        self.first.length > 0
            && self.first.place.is_none_or(|place| place.set != SetId::default())
            && is_alone_or_plain
            && (self.count == 1 || self.stride >= self.first.length)
            && reach(self.first.offset, self.stride).is_some()
            && reach(log_start, self.log_stride).is_some()
    }

    /// Returns segment `index`.
    #[must_use]
    #[inline]
    pub fn segment(&self, index: u64) -> Segment {
        debug_assert!(index < self.count);
        let place = self
            .first
            .place
            .map(|place| LogPlace { offset: place.offset + index * self.log_stride, ..place });
        Segment { offset: self.first.offset + index * self.stride, place, ..self.first }
    }

    /// Splits the run into pieces of at most `count_max` segments, in order.
    pub(super) fn cut(&self, count_max: u64) -> impl Iterator<Item = Self> + use<> {
        let run = *self;
        (0..run.count.div_ceil(count_max)).map(move |piece| Self {
            first: run.segment(piece * count_max),
            count: count_max.min(run.count - piece * count_max),
            ..run
        })
    }

    /// Returns all its segments, in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<> {
        let run = *self;
        (0..run.count).map(move |index| run.segment(index))
    }

    /// The end of its last segment in the file.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.end() + (self.count - 1) * self.stride
    }

    /// The set, the log and the end of its bytes in the log; `None` for holes.
    #[must_use]
    pub fn log_end(&self) -> Option<(SetId, u64, u64)> {
        let place = self.first.place?;
        let end = place.offset + (self.count - 1) * self.log_stride + self.first.length;
        Some((place.set, place.log, end))
    }
}
