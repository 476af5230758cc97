// SPDX-License-Identifier: Apache-2.0
//! Strided segments: segments at regular distances in several dimensions, in one descriptor: a
//! rank's part of an array, or an MPI file view.

use super::{LogPlace, OPERATION_SEGMENTS_MAX, Segment, SegmentRun};

/// A dimension: `count` repetitions of the dimension inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrideDimension {
    /// Number of repetitions, at least 1.
    pub count: u64,
    /// Distance from the start of one repetition to that of the next.
    pub stride: u64,
    /// The same distance in the log.
    pub log_stride: u64,
}

/// Segments of one length in several dimensions; `dimensions[0]` is the innermost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedSegments {
    /// The first segment.
    pub first: Segment,
    /// The dimensions; empty for that segment alone.
    pub dimensions: Vec<StrideDimension>,
}

impl StridedSegments {
    /// The number of segments, unless it overflows.
    #[must_use]
    pub fn segments(&self) -> Option<u64> {
        self.dimensions.iter().try_fold(1u64, |all, dimension| all.checked_mul(dimension.count))
    }

    /// The number of runs they take.
    fn run_count(&self) -> Option<u64> {
        let inner = self.inner().count.div_ceil(OPERATION_SEGMENTS_MAX as u64);
        self.outer().iter().try_fold(inner, |all, dimension| all.checked_mul(dimension.count))
    }

    /// Returns whether its numbers are possible: those of its runs are, there are at most
    /// [`OPERATION_SEGMENTS_MAX`] runs, and all of them end within 64 bits, in the file and in the
    /// log.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let reach = |start: u64, stride: fn(&StrideDimension) -> u64| {
            let all = self.outer().iter();
            all.map(|dimension| (dimension, stride(dimension))).try_fold(start, |end, of| {
                end.checked_add(of.0.count.checked_sub(1)?.checked_mul(of.1)?)
            })
        };
        let (inner, place) = (self.whole_run(), self.first.place.unwrap_or_default());
        let last = || {
            let offset = reach(self.first.offset, |dimension| dimension.stride)?;
            let log_offset = reach(place.offset, |dimension| dimension.log_stride)?;
            let place = inner.first.place.map(|place| LogPlace { offset: log_offset, ..place });
            Some(SegmentRun { first: Segment { offset, place, ..inner.first }, ..inner })
        };
        let is_alone_or_plain = self.segments() == Some(1)
            || (self.first.place.is_some() && self.first.checksum.is_none());
        inner.count > 0
            && is_alone_or_plain
            && self.run_count().is_some_and(|runs| runs <= OPERATION_SEGMENTS_MAX as u64)
            && inner.is_possible()
            && last().is_some_and(|last| last.is_possible())
    }

    fn inner(&self) -> StrideDimension {
        let alone =
            StrideDimension { count: 1, stride: self.first.length, log_stride: self.first.length };
        self.dimensions.first().copied().unwrap_or(alone)
    }

    fn outer(&self) -> &[StrideDimension] {
        self.dimensions.get(1..).unwrap_or_default()
    }

    /// Returns the innermost dimension, from the first segment on.
    fn whole_run(&self) -> SegmentRun {
        let StrideDimension { count, stride, log_stride } = self.inner();
        SegmentRun { first: self.first, count, stride, log_stride }
    }

    /// Returns its runs, in order, each of at most [`OPERATION_SEGMENTS_MAX`] segments.
    ///
    /// # Panics
    /// If the strides are not possible.
    #[must_use]
    pub fn runs(&self) -> Vec<SegmentRun> {
        assert!(self.is_possible(), "strides that were checked");
        let mut runs: Vec<SegmentRun> =
            self.whole_run().cut(OPERATION_SEGMENTS_MAX as u64).collect();
        for dimension in self.outer() {
            let inside = runs.len();
            for index in 1..dimension.count {
                for at in 0..inside {
                    let mut run = runs[at];
                    run.first.offset += index * dimension.stride;
                    if let Some(place) = &mut run.first.place {
                        place.offset += index * dimension.log_stride;
                    }
                    runs.push(run);
                }
            }
        }
        runs
    }
}
