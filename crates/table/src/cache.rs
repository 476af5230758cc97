// SPDX-License-Identifier: Apache-2.0
//! Block cache: parsed blocks of tables, and images of the blocks that point reads hit again, under
//! one budget of bytes.
//!
//! Scans and first reads use parsed blocks; point reads use images (`row_cache/`). Images take up
//! to half of the budget as they are made; the rest is for blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::block::Block;
use crate::row_cache::{BlockSlots, RowCache};
use crate::schema::{RowBuffer, Schema};
use crate::table::LookupKey;

/// Typical memory of a parsed block; only sizes the cache's own tables.
const BLOCK_BYTES_TYPICAL: u64 = 8 << 10;

/// Once the cache is full, it admits one in this many of the blocks that point reads fetch, if a
/// fetch takes no longer than [`QUICK_READ_NS`]: freeing and allocating memory, and finding a block
/// to evict, takes as long as fetching a block from the kernel's memory. A block that is read often
/// still gets in.
const ADMITTED_ONE_IN: u64 = 8;
const QUICK_READ_NS: f64 = 50_000.0;

/// The cache's capacity is adjusted to the bytes that tables hold in steps of this size.
const HELD_STEP_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug)]
struct MemoryBytes;

impl Weighter<(u64, u32), Arc<Block>> for MemoryBytes {
    fn weight(&self, _: &(u64, u32), block: &Arc<Block>) -> u64 {
        block.memory_bytes() as u64
    }
}

/// The cache of parsed blocks, shared by all trees that are given it.
#[derive(Debug)]
pub struct BlockCache {
    budget_bytes: u64,
    blocks: Option<Cache<(u64, u32), Arc<Block>, MemoryBytes>>,
    row_cache: Option<RowCache>,
    /// Bytes of the budget that tables hold for themselves.
    held_bytes: AtomicU64,
    /// Bytes of all blocks ever inserted.
    inserted_bytes: AtomicU64,
    /// Blocks that point reads have fetched since the cache became full.
    fetched: AtomicU64,
    tables: AtomicU64,
}

/// The state that a cache keeps for one open table.
#[derive(Debug)]
pub(crate) struct TableCache {
    /// The table's number, which is never reused.
    table: u64,
    slots: Option<Arc<BlockSlots>>,
}

impl TableCache {
    /// The slots of the table's images, if it may have any.
    #[inline]
    pub(crate) fn slots(&self) -> Option<&BlockSlots> {
        self.slots.as_deref()
    }

    /// Returns whether block `block` has an image.
    #[inline]
    pub(crate) fn has_image(&self, block: usize) -> bool {
        self.slots().is_some_and(|slots| slots.has_image(block))
    }
}

impl BlockCache {
    /// Makes a cache of at most `budget_bytes`; nothing is cached if that is 0.
    #[must_use]
    pub(crate) fn new(budget_bytes: u64) -> Arc<Self> {
        let items = (budget_bytes / BLOCK_BYTES_TYPICAL).max(16) as usize;
        let blocks =
            (budget_bytes > 0).then(|| Cache::with_weighter(items, budget_bytes, MemoryBytes));
        let row_cache = RowCache::new(budget_bytes / 2);
        Arc::new(Self {
            budget_bytes,
            blocks,
            row_cache,
            held_bytes: AtomicU64::new(0),
            inserted_bytes: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            tables: AtomicU64::new(0),
        })
    }

    /// Makes the state of an open table; `firsts` are the last integers of the blocks' first keys.
    pub(crate) fn table_cache(
        &self,
        schema: &'static Schema,
        firsts: impl ExactSizeIterator<Item = u64>,
    ) -> TableCache {
        let table = self.tables.fetch_add(1, Ordering::Relaxed);
        TableCache {
            table,
            slots: self.row_cache.is_some().then(|| BlockSlots::new(schema, firsts)),
        }
    }

    pub(crate) fn get(&self, table_cache: &TableCache, block: usize) -> Option<Arc<Block>> {
        self.blocks.as_ref()?.get(&(table_cache.table, block as u32))
    }

    pub(crate) fn insert(&self, table_cache: &TableCache, block: usize, parsed: &Arc<Block>) {
        if let Some(blocks) = &self.blocks {
            self.inserted_bytes.fetch_add(parsed.memory_bytes() as u64, Ordering::Relaxed);
            blocks.insert((table_cache.table, block as u32), parsed.clone());
        }
    }

    /// Returns whether the cache has been full and fetching a block takes so little time, `read_ns`
    /// on average, that the kernel must have it in memory.
    pub(crate) fn is_outgrown(&self, read_ns: Option<f64>) -> bool {
        let Some(blocks) = &self.blocks else { return false };
        self.inserted_bytes.load(Ordering::Relaxed) >= blocks.capacity()
            && read_ns.is_some_and(|ns| ns <= QUICK_READ_NS)
    }

    /// Returns whether a block that a point read has fetched should be inserted; a fetch takes
    /// `read_ns` on average.
    pub(crate) fn admits(&self, read_ns: Option<f64>) -> bool {
        !self.is_outgrown(read_ns)
            || self.fetched.fetch_add(1, Ordering::Relaxed).is_multiple_of(ADMITTED_ONE_IN)
    }

    /// Hints to the processor that [`BlockCache::get_record`] follows.
    #[inline]
    pub(crate) fn prefetch_record(&self, table_cache: &TableCache, block: usize, digest: u64) {
        if let (Some(row_cache), Some(slots)) = (&self.row_cache, &table_cache.slots) {
            row_cache.prefetch(slots, block, digest);
        }
    }

    /// Reads a key's record in `block`, if the block has an image; returns whether there is a
    /// record. `is_first_group` tells whether the block begins with the key's group.
    #[inline]
    pub(crate) fn get_record(
        &self,
        (table_cache, block, is_first_group): (&TableCache, usize, bool),
        wanted: &LookupKey,
        with_strings: bool,
        out: &mut RowBuffer,
    ) -> Option<bool> {
        let (row_cache, slots) = (self.row_cache.as_ref()?, table_cache.slots.as_ref()?);
        row_cache.get((slots, block, is_first_group), wanted, with_strings, out)
    }

    /// Records that a point read has found `parsed`, block `block`, in the cache; the block begins
    /// with the group `group`. It `is_due` for an image if it was read many times before.
    #[inline]
    pub(crate) fn promote(
        &self,
        (table_cache, block): (&TableCache, usize),
        (parsed, group): (&Block, &[u64]),
        is_due: bool,
    ) {
        if let (Some(row_cache), Some(slots)) = (&self.row_cache, &table_cache.slots)
            && !slots.is_image_decided(block)
            && (is_due || row_cache.admits())
        {
            row_cache.insert(slots, block, (parsed, group), || self.make_room(row_cache));
        }
    }

    /// Gives blocks the part of the budget that images do not use.
    fn make_room(&self, row_cache: &RowCache) {
        if let Some(blocks) = &self.blocks {
            let held = self.held_bytes.load(Ordering::Relaxed);
            blocks.set_capacity(self.budget_bytes.saturating_sub(row_cache.memory_bytes() + held));
        }
    }

    /// Sets `bytes` of the budget aside for a table to hold; returns false if there is no room. At
    /// most half of the budget may be set aside.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        let add = |held: u64| Some(held + bytes).filter(|held| *held <= self.budget_bytes / 2);
        let order = Ordering::Relaxed;
        let Ok(before) = self.held_bytes.fetch_update(order, order, add) else { return false };
        self.rebalance(before, before + bytes);
        true
    }

    /// Returns bytes that were set aside.
    pub(crate) fn release(&self, bytes: u64) {
        let before = self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.rebalance(before, before - bytes);
    }

    /// Gives blocks the part of the budget that is not held. Works in steps, since it locks the
    /// cache.
    fn rebalance(&self, before: u64, now: u64) {
        if let Some(blocks) = &self.blocks
            && before / HELD_STEP_BYTES != now / HELD_STEP_BYTES
        {
            let images = self.row_cache.as_ref().map_or(0, RowCache::memory_bytes);
            blocks.set_capacity(self.budget_bytes.saturating_sub(now + images));
        }
    }

    /// Memory that cached blocks and images take, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.blocks.as_ref().map_or(0, Cache::weight)
            + self.row_cache.as_ref().map_or(0, RowCache::memory_bytes)
    }
}
