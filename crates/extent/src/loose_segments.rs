// SPDX-License-Identifier: Apache-2.0
//! Loose segments: segments of one file that are in no run, by offset; 40 bytes each.

use esker_table::manifest::SetId;

use super::{LogPlace, Segment};

/// Above this number, segments are sorted in parts that fit a core's cache.
const SORT_MAX: usize = 1 << 14;
/// Number of those parts; more concurrent write streams are slower.
const BUCKETS: usize = 1 << 12;

/// Segments of one file, which do not overlap once they have been checked.
#[derive(Debug, Default)]
pub struct LooseSegments {
    file: u128,
    all: Vec<LooseSegment>,
    origins: Vec<CommonOrigin>,
}

#[derive(Clone, Copy, Debug)]
struct LooseSegment {
    offset: u64,
    length: u64,
    log_offset: u64,
    seq: u64,
    origin: u32,
}

/// The attributes that many segments share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CommonOrigin {
    log: Option<(SetId, u64)>,
    checksum: Option<u32>,
}

impl LooseSegment {
    #[inline]
    fn end(&self) -> u64 {
        self.offset + self.length
    }
}

impl LooseSegments {
    /// Makes an empty list of `file`.
    pub(super) fn new(file: u128) -> Self {
        Self { file, ..Self::default() }
    }

    /// The number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Memory that they take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.all[..]) + size_of_val(&self.origins[..])
    }

    /// Returns segment `index`.
    ///
    /// # Panics
    /// If `index` is out of bounds.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Segment {
        let LooseSegment { offset, length, log_offset, seq, origin } = self.all[index];
        let CommonOrigin { log, checksum } = self.origins[origin as usize];
        let place = log.map(|(set, log)| LogPlace { set, log, offset: log_offset });
        Segment { file: self.file, offset, length, place, checksum, seq }
    }

    /// Returns all of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Segment> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Returns the index of the first segment that ends after `offset`.
    #[inline]
    pub(super) fn after(&self, offset: u64) -> usize {
        self.all.partition_point(|single| single.end() <= offset)
    }

    /// Reserves room for `count` more.
    pub(super) fn reserve(&mut self, count: usize) {
        self.all.reserve_exact(count);
    }

    /// Adds a segment.
    #[inline]
    pub(super) fn push(&mut self, segment: &Segment) {
        let log = segment.place.map(|place| (place.set, place.log));
        let origin = CommonOrigin { log, checksum: segment.checksum };
        if self.origins.last() != Some(&origin) {
            self.origins.push(origin);
        }
        self.all.push(LooseSegment {
            offset: segment.offset,
            length: segment.length,
            log_offset: segment.place.map_or(0, |place| place.offset),
            seq: segment.seq,
            origin: (self.origins.len() - 1) as u32,
        });
    }

    /// Sorts the segments; returns whether none overlap.
    pub(super) fn sort(&mut self) -> bool {
        sort(&mut self.all);
        self.all.windows(2).all(|pair| pair[0].end() <= pair[1].offset)
    }
}

/// Sorts by offset: first into parts by the high bits, then each part.
fn sort(all: &mut Vec<LooseSegment>) {
    let (Some(low), Some(high)) =
        (all.iter().map(|one| one.offset).min(), all.iter().map(|one| one.offset).max())
    else {
        return;
    };
    if all.len() <= SORT_MAX || all.is_sorted_by_key(|one| one.offset) {
        return all.sort_unstable_by_key(|one| one.offset);
    }
    let bits = u64::BITS - (high - low).leading_zeros();
    let shift = bits.saturating_sub(BUCKETS.ilog2());
    let bucket = |one: &LooseSegment| ((one.offset - low) >> shift) as usize;
    let mut counts = vec![0usize; BUCKETS];
    all.iter().for_each(|one| counts[bucket(one)] += 1);
    let mut parts: Vec<Vec<LooseSegment>> = counts.into_iter().map(Vec::with_capacity).collect();
    all.iter().for_each(|one| parts[bucket(one)].push(*one));
    all.clear();
    for mut part in parts {
        part.sort_unstable_by_key(|one| one.offset);
        all.extend_from_slice(&part);
    }
}
