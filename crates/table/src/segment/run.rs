//! Segment run: segments of one length at one distance from each other, in a file and in a log.
//!
//! What a rank writes into a shared file is hardly ever one range, and hardly ever random: it is a
//! pattern, and a run says at once what would be thousands of segments (MetaKV §III-A, the phrases
//! of its delta encoding). Its record is a [`Nest`](super::Nest).

use super::{LogPlace, Segment};
use crate::manifest::SetId;

/// `count` segments, each `stride` behind the one before in the file, and `log_stride` in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRun {
    /// The first of them.
    pub first: Segment,
    /// How many there are, at least 1.
    pub count: u64,
    /// From the start of one to that of the next; at least their length, so that they do not
    /// overlap.
    pub stride: u64,
    /// The same in the log.
    pub log_stride: u64,
}

impl SegmentRun {
    /// `segment` alone.
    #[must_use]
    pub fn one(segment: Segment) -> Self {
        Self { count: 1, stride: segment.length, log_stride: segment.length, first: segment }
    }

    /// Whether its numbers make sense: it has segments, they do not overlap, all of them end within
    /// 64 bits, in the file and in the log of a set other than 0, and only one alone has a checksum
    /// or is a hole.
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

    /// Segment `index` of it.
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

    /// The run in pieces of at most `count_max` segments, in order.
    pub(super) fn cut(&self, count_max: u64) -> impl Iterator<Item = Self> + use<> {
        let run = *self;
        (0..run.count.div_ceil(count_max)).map(move |piece| Self {
            first: run.segment(piece * count_max),
            count: count_max.min(run.count - piece * count_max),
            ..run
        })
    }

    /// All its segments, in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<> {
        let run = *self;
        (0..run.count).map(move |index| run.segment(index))
    }

    /// Where in the file the last of them ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.end() + (self.count - 1) * self.stride
    }

    /// How far it reaches in its log.
    #[must_use]
    pub fn log_end(&self) -> Option<(SetId, u64, u64)> {
        let place = self.first.place?;
        let end = place.offset + (self.count - 1) * self.log_stride + self.first.length;
        Some((place.set, place.log, end))
    }
}
