// SPDX-License-Identifier: Apache-2.0
//! Group blocks: predicts which block of a group holds a key, by the last integer of the key alone.
//!
//! The last integers of a group's keys are hashes, so a hash's share of the hash range predicts the
//! number of its block. In a group of millions of keys the prediction is several blocks off in the
//! middle, since hashes are evenly spread only on the whole. Each group therefore has anchors,
//! which record the true position of every few predicted blocks. They take half a byte a block,
//! stay in the processor's cache, and make the guess right for most keys, so that a reader can at
//! once fetch a line of memory that no cache holds.

use std::ops::Range;

use super::TABLE_DATA_BYTES_MAX;
use crate::block::BLOCK_BYTES_MIN;
use crate::schema::KEY_INTS_MAX;

/// Predicted blocks from one anchor to the next, as a power of two.
const ANCHOR_BLOCKS_LOG: u32 = 3;
/// Bits of a block's fraction in anchors.
const FRACTION_BITS: u32 = 8;
const _: () =
    assert!(TABLE_DATA_BYTES_MAX / (BLOCK_BYTES_MIN as u64) < 1 << (u32::BITS - FRACTION_BITS));
/// Smaller groups have no anchors.
const ANCHORED_BLOCKS_MIN: u32 = 2 << ANCHOR_BLOCKS_LOG;

/// A group with which blocks begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupStart {
    /// The integers that name it; those past the schema's are 0.
    pub(super) ints: [u64; KEY_INTS_MAX - 1],
    pub(super) blocks: GroupBlocks,
}

/// The blocks that start with keys of one group, and how the last integers of its keys, which are
/// evenly spread, lie in them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupBlocks {
    start: u32,
    end: u32,
    /// The first of its anchors, if it has any.
    anchor: Option<u32>,
    /// Approximately the integer with which the first block starts.
    low: u64,
    /// Blocks that 2^64 integers take.
    density: u64,
}

/// The blocks that start with keys of one group, and the one that should hold a key.
#[derive(Clone, Copy, Debug)]
pub struct NearBlocks {
    start: u32,
    end: u32,
    guess: u32,
}

impl NearBlocks {
    /// The blocks.
    #[inline]
    #[must_use]
    pub(crate) fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The block in which the key should be.
    #[inline]
    #[must_use]
    pub(crate) fn guess(&self) -> usize {
        self.guess as usize
    }
}

impl GroupBlocks {
    /// Makes the blocks `start` to `end` of a group, which hold integers up to `bounds.1`. The
    /// first block starts with `bounds.0`; if that is `None`, the group begins in the block before,
    /// on average in the middle of it. Likewise, if the group `ends_before` the table does, it ends
    /// in the middle of the last block.
    pub(crate) fn new(
        (start, end): (u32, u32),
        bounds: (Option<u64>, u64),
        ends_before: bool,
    ) -> Self {
        let half_if = |condition| if condition { 0.5 } else { 0.0 };
        let (before, behind) = (half_if(bounds.0.is_none()), half_if(ends_before));
        let low = bounds.0.unwrap_or(0);
        let blocks = f64::from(end.saturating_sub(start)) + before - behind;
        let block_width = bounds.1.saturating_sub(low).max(1) as f64 / blocks;
        let density = (2f64.powi(64) / block_width) as u64;
        let low = low.saturating_add((before * block_width) as u64);
        Self { start, end, anchor: None, low, density }
    }

    /// Appends the group's anchors to `anchors`, if it is large enough; `firsts` are the last
    /// integers with which its blocks start. Hostile ones may not ascend.
    fn anchor(&mut self, firsts: impl Fn(u32) -> u64, anchors: &mut Vec<u32>) {
        let count = self.end - self.start;
        if count < ANCHORED_BLOCKS_MIN {
            return;
        }
        self.anchor = u32::try_from(anchors.len()).ok();
        let (mut block, mut before) = (0, 0);
        for cell in 0..=count.div_ceil(1 << ANCHOR_BLOCKS_LOG) {
            let share = u128::from(cell << ANCHOR_BLOCKS_LOG) << 64;
            let above = share / u128::from(self.density.max(1));
            let order = self.low.saturating_add(u64::try_from(above).unwrap_or(u64::MAX));
            while block + 1 < count && firsts(block + 1) <= order {
                block += 1;
            }
            let from = firsts(block);
            let to = if block + 1 < count { firsts(block + 1) } else { u64::MAX };
            let share = order.saturating_sub(from) as f64 / to.saturating_sub(from).max(1) as f64;
            let fraction = (share * f64::from(1 << FRACTION_BITS)) as u32;
            let position = block << FRACTION_BITS | fraction.min((1 << FRACTION_BITS) - 1);
            before = position.max(before);
            anchors.push(before);
        }
    }

    /// Returns the blocks, and the one that should hold a key whose last integer is `order`,
    /// according to `anchors`, the anchors of all groups.
    #[inline]
    pub(crate) fn near(&self, order: u64, anchors: &[u32]) -> NearBlocks {
        let last = self.end - self.start - 1;
        let above = u128::from(order.saturating_sub(self.low));
        let position = (above * u128::from(self.density)) >> (64 - FRACTION_BITS);
        let position = (position as u64).min(u64::from(last) << FRACTION_BITS | 0xFF);
        let cell_bits = FRACTION_BITS + ANCHOR_BLOCKS_LOG;
        let anchor = self.anchor.map(|first| first as usize + (position >> cell_bits) as usize);
        let position = match anchor.and_then(|at| anchors.get(at..at + 2)) {
            None => position,
            Some(pair) => {
                let span = u64::from(pair[1].saturating_sub(pair[0]));
                u64::from(pair[0]) + ((span * (position & ((1 << cell_bits) - 1))) >> cell_bits)
            }
        };
        let guess = self.start + ((position >> FRACTION_BITS) as u32).min(last);
        NearBlocks { start: self.start, end: self.end, guess }
    }
}

/// The groups of `firsts`, of a table that ends with `last`, and their anchors. Hostile keys may
/// not ascend; the caller finds out.
pub(super) fn groups_of(
    firsts: &[[u64; KEY_INTS_MAX]],
    last: &[u64; KEY_INTS_MAX],
    group_ints: usize,
) -> (Vec<GroupStart>, Vec<u32>) {
    let (mut end, mut anchors) = (0, Vec::new());
    let group_of = |blocks: &[[u64; KEY_INTS_MAX]]| {
        let start = end;
        end += blocks.len();
        let ints = std::array::from_fn(|at| if at < group_ints { blocks[0][at] } else { 0 });
        // Other tables may have keys of the first and of the last group.
        let low = (start == 0).then(|| blocks[0][group_ints]);
        let ends_before = end < firsts.len();
        let high = if ends_before { u64::MAX } else { last[group_ints] };
        let range = (start as u32, end as u32);
        let mut group = GroupBlocks::new(range, (low, high), ends_before);
        group.anchor(|block| blocks[block as usize][group_ints], &mut anchors);
        GroupStart { ints, blocks: group }
    };
    let groups = firsts.chunk_by(|a, b| a[..group_ints] == b[..group_ints]).map(group_of);
    (groups.collect(), anchors)
}
