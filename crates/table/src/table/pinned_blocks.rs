// SPDX-License-Identifier: Apache-2.0
//! Pinned blocks: the blocks that a table holds for batches, which look up many keys at once. A
//! batch reads blocks that are not in memory by regions (MetaKV §III-B); for blocks in memory it
//! overlaps the cache misses of several keys.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrayvec::ArrayVec;
use esker_base::Result;

use super::reader::Table;
use crate::block::Block;
use crate::cluster::RequestedBlock;
use crate::memory::prefetch_value;
use crate::schema::{Key, RowBuffer};

/// Number of keys whose cache misses overlap.
const TOGETHER: usize = 16;

/// Blocks that a table holds for batches: found by number, without a lock.
#[derive(Debug, Default)]
pub(super) struct PinnedBlocks {
    blocks: OnceLock<Box<[OnceLock<Arc<Block>>]>>,
}

impl PinnedBlocks {
    fn get(&self, number: usize) -> Option<&Arc<Block>> {
        self.blocks.get()?.get(number)?.get()
    }

    /// Memory that the blocks take, for the cache's budget.
    pub(super) fn bytes(&self) -> u64 {
        let all = self.blocks.get().into_iter().flat_map(|blocks| blocks.iter());
        all.filter_map(OnceLock::get).map(|block| block.memory_bytes() as u64).sum()
    }
}

/// A block of a batch.
enum PinnedBlock<'a> {
    Kept(&'a Arc<Block>),
    Own(Arc<Block>),
}

impl PinnedBlock<'_> {
    #[inline]
    fn block(&self) -> &Arc<Block> {
        match self {
            Self::Kept(block) => block,
            Self::Own(block) => block,
        }
    }
}

impl Table {
    /// Reads `missing`, in ascending order, region by region, together with the blocks that other
    /// batches wait for, and passes each to `take`. Blocks that nobody asked for are dropped.
    fn read_regions(
        &self,
        missing: &[RequestedBlock],
        take: &mut dyn FnMut(usize, &Arc<Block>),
    ) -> Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        let read = |blocks: Range<usize>, numbers: &[usize]| {
            let start = self.index().block_range(blocks.start).start;
            let bytes = self.read(start..self.index().block_range(blocks.end - 1).end)?;
            let own = |number: &usize| {
                let own = self.index().block_range(*number);
                let own = (own.start - start) as usize..(own.end - start) as usize;
                self.keep_in_cache(*number, bytes.slice(own))
            };
            numbers.iter().map(own).collect()
        };
        self.queue().read(missing, self.percent_min(), &read, take)
    }

    /// Holds `block` if the cache's budget has room for it.
    fn keep(&self, number: usize, block: &Arc<Block>) {
        let all = || (0..self.index().blocks()).map(|_| OnceLock::new()).collect();
        let blocks = self.kept().blocks.get_or_init(all);
        if let Some(slot) = blocks.get(number)
            && slot.get().is_none()
            && self.cache().reserve(block.memory_bytes() as u64)
            && slot.set(block.clone()).is_err()
        {
            self.cache().release(block.memory_bytes() as u64);
        }
    }

    /// Reads the first record at or after each of `keys`, which ascend, in readable form and
    /// without strings, and passes its index and the record to `found`; passes no record if the
    /// key's block has none. Cost: the blocks that are not in memory, by regions.
    pub(crate) fn seek_batch(
        &self,
        keys: &[Key],
        found: &mut dyn FnMut(usize, Option<&RowBuffer>) -> Result<()>,
    ) -> Result<()> {
        let mut last = 0;
        let mut number_of = |key: &Key| {
            last = self.index().block_from(last, key);
            last
        };
        let numbers: Vec<usize> = keys.iter().map(&mut number_of).collect();
        let (mut missing, mut own) = (Vec::new(), Vec::new());
        for same in numbers.chunk_by(|a, b| a == b) {
            let number = same[0];
            if self.kept().get(number).is_some() {
                continue;
            }
            match self.cached(number) {
                Some(block) => own.push((number, block)),
                None => missing.push(RequestedBlock { block: number, count: same.len() }),
            }
        }
        self.read_regions(&missing, &mut |number, block| own.push((number, block.clone())))?;
        own.sort_unstable_by_key(|(number, _)| *number);
        own.iter().for_each(|(number, block)| self.keep(*number, block));
        let mut row = RowBuffer::default();
        for (part, numbers) in numbers.chunks(TOGETHER).enumerate() {
            let held: ArrayVec<PinnedBlock, TOGETHER> = numbers
                .iter()
                .map(|number| match self.kept().get(*number) {
                    Some(block) => PinnedBlock::Kept(block),
                    None => {
                        let at = own.partition_point(|(own, _)| own < number);
                        PinnedBlock::Own(own[at].1.clone())
                    }
                })
                .collect();
            let keys = &keys[part * TOGETHER..][..held.len()];
            held.iter().for_each(|held| prefetch_value(&**held.block()));
            held.iter().for_each(|held| held.block().prefetch_columns());
            held.iter().zip(keys).for_each(|(held, key)| held.block().prefetch_near(key));
            for (at, (held, key)) in held.iter().zip(keys).enumerate() {
                let block = held.block();
                let row_at = block.lower_bound(key);
                let is_here = row_at < block.rows();
                if is_here {
                    block.read(row_at, false, &mut row);
                }
                found(part * TOGETHER + at, is_here.then_some(&row))?;
            }
        }
        Ok(())
    }
}
