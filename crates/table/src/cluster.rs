// SPDX-License-Identifier: Apache-2.0
//! Supervised block clustering: chooses the neighbouring blocks that a batch of gets reads in one
//! request.
//!
//! A region is a span of blocks; its locality factor is the share of its blocks that were asked
//! for. Every region has a locality factor of at least α, Algorithm 1 keeps regions few, and those
//! with the most requests per block are served first.
//! Source: MetaKV §III-B, equations 1 and 2, Algorithm 1.

use std::ops::Range;

/// Minimum share of a region's blocks that were asked for, in percent: the paper's default, for
/// stores whose [`RequestPace`](crate::pace::RequestPace) is unknown.
pub const LOCALITY_PERCENT_MIN: usize = 80;

/// A block that a batch asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedBlock {
    /// Number of the block in its table.
    pub block: usize,
    /// Number of gets that need it.
    pub count: usize,
}

/// A span of blocks that is read in one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRegion {
    /// The blocks.
    pub blocks: Range<usize>,
    /// Number of its blocks that were asked for.
    pub requested: usize,
    /// Number of gets that they serve.
    pub count: usize,
}

impl BlockRegion {
    fn of(requested: RequestedBlock) -> Self {
        Self { blocks: requested.block..requested.block + 1, requested: 1, count: requested.count }
    }

    fn with(&self, later: &Self) -> Self {
        Self {
            blocks: self.blocks.start..later.blocks.end,
            requested: self.requested + later.requested,
            count: self.count + later.count,
        }
    }

    fn is_local(&self, percent_min: usize) -> bool {
        self.requested * 100 >= self.blocks.len() * percent_min
    }
}

/// Groups `requested`, in ascending order of blocks, into regions, densest first.
///
/// Each block joins the preceding regions, backwards for as long as the span from there to the
/// block stays local. Work: the number of blocks times the regions joined.
#[must_use]
pub(crate) fn cluster(requested: &[RequestedBlock], percent_min: usize) -> Vec<BlockRegion> {
    let mut regions: Vec<BlockRegion> = Vec::new();
    for &next in requested {
        debug_assert!(regions.last().is_none_or(|last| last.blocks.end <= next.block));
        let mut joined = BlockRegion::of(next);
        while let Some(last) = regions.last() {
            let wider = last.with(&joined);
            if !wider.is_local(percent_min) {
                break;
            }
            joined = wider;
            regions.pop();
        }
        regions.push(joined);
    }
    // Request density, count over length, descending; compared without division.
    regions.sort_by(|a, b| (b.count * a.blocks.len()).cmp(&(a.count * b.blocks.len())));
    regions
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_figure_6_joins_two_regions() {
        // Four blocks, two gaps, then four: the last request makes 8 of 10 blocks.
        let blocks = [0, 1, 2, 3, 6, 7, 8, 9].map(|block| RequestedBlock { block, count: 1 });
        assert_eq!(cluster(&blocks[..7], 80).len(), 2);
        let joined = cluster(&blocks, 80);
        assert_eq!(joined, [BlockRegion { blocks: 0..10, requested: 8, count: 8 }]);
    }

    #[test]
    fn the_densest_region_is_first() {
        let regions = cluster(
            &[RequestedBlock { block: 0, count: 1 }, RequestedBlock { block: 50, count: 9 }],
            80,
        );
        assert_eq!(regions[0].blocks, 50..51);
    }

    proptest! {
        #[test]
        fn regions_cover_all_are_local_and_cannot_be_joined(
            blocks in proptest::collection::btree_set(0usize..400, 0..200),
            percent in 1usize..=100,
        ) {
            let requested: Vec<_> = blocks.iter().map(|&block| RequestedBlock { block, count: 1 + block % 3 }).collect();
            let mut regions = cluster(&requested, percent);
            for pair in regions.windows(2) {
                prop_assert!(pair[0].count * pair[1].blocks.len() >= pair[1].count * pair[0].blocks.len());
            }
            regions.sort_by_key(|region| region.blocks.start);
            let covered: usize = regions.iter().map(|region| region.requested).sum();
            prop_assert_eq!(covered, blocks.len());
            for region in &regions {
                prop_assert!(region.is_local(percent));
                prop_assert_eq!(blocks.range(region.blocks.clone()).count(), region.requested);
            }
            for pair in regions.windows(2) {
                prop_assert!(pair[0].blocks.end <= pair[1].blocks.start);
                prop_assert!(!pair[0].with(&pair[1]).is_local(percent));
            }
        }
    }
}
