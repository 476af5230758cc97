//! Block cache: parsed blocks of tables under one budget of bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::block::Block;

/// Average memory of a parsed block; only sizes the cache's own tables.
const BLOCK_BYTES_TYPICAL: u64 = 8 << 10;

#[derive(Clone, Debug)]
struct MemoryBytes;

impl Weighter<(u64, u32), Arc<Block>> for MemoryBytes {
    fn weight(&self, _: &(u64, u32), block: &Arc<Block>) -> u64 {
        block.memory_bytes() as u64
    }
}

/// Parsed blocks, shared by every tree that is given the cache.
#[derive(Debug)]
pub struct BlockCache {
    blocks: Option<Cache<(u64, u32), Arc<Block>, MemoryBytes>>,
    tables: AtomicU64,
}

impl BlockCache {
    /// A cache of at most `budget_bytes`; none at all when 0.
    #[must_use]
    pub fn new(budget_bytes: u64) -> Arc<Self> {
        let items = (budget_bytes / BLOCK_BYTES_TYPICAL).max(16) as usize;
        let blocks =
            (budget_bytes > 0).then(|| Cache::with_weighter(items, budget_bytes, MemoryBytes));
        Arc::new(Self { blocks, tables: AtomicU64::new(0) })
    }

    /// A number under which an opened table keeps its blocks, never used again.
    pub(crate) fn next_table(&self) -> u64 {
        self.tables.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn get(&self, table: u64, block: u32) -> Option<Arc<Block>> {
        self.blocks.as_ref()?.get(&(table, block))
    }

    pub(crate) fn insert(&self, table: u64, block: u32, parsed: &Arc<Block>) {
        if let Some(blocks) = &self.blocks {
            blocks.insert((table, block), parsed.clone());
        }
    }

    /// Memory that the cached blocks take.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.blocks.as_ref().map_or(0, Cache::weight)
    }
}
