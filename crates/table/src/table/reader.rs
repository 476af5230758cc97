// SPDX-License-Identifier: Apache-2.0
//! Table reader: finds records of one table, with one store request each if nothing is cached.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use esker_base::clock::SystemClock;
use esker_base::fuse_filter;
use esker_base::store::SharedStore;
use esker_base::wire::WireDamage;
use esker_base::{Bytes, Clock, Error, Result};

use super::footer::{FOOTER_BYTES, TableFooter};
use super::group_blocks::NearBlocks;
use super::index::BlockIndex;
use super::outlines::Outlines;
use super::pinned_blocks::PinnedBlocks;
use super::queue::BlockQueue;
use super::{TABLE_DATA_BYTES_MAX, TAIL_BYTES_MAX};
use crate::block::{BLOCK_BYTES_MAX, Block};
use crate::cache::{BlockCache, TableCache};
use crate::memory::{ZeroedArray, prefetch};
use crate::pace::RequestPace;
use crate::schema::{Key, RowBuffer, Schema};

/// Maximum blocks that a scan fetches in one request.
pub(crate) const READ_AHEAD_BLOCKS: usize = 64;

/// Maximum size of a table that is read whole when it is opened from a far store: that costs about
/// the round trip of one block, and saves those of all.
const WHOLE_BYTES_MAX: u64 = 64 << 10;

/// Counters of the cost of reads, for reports.
#[derive(Debug, Default)]
pub struct ReadCounters {
    /// Blocks fetched from the store.
    pub block_reads: AtomicU64,
    /// Tails fetched from the store.
    pub tail_reads: AtomicU64,
    /// The duration of requests for blocks.
    pub pace: RequestPace,
}

/// An open table. Its tail is in memory; its blocks are in a shared cache.
#[derive(Debug)]
pub struct Table {
    store: SharedStore,
    name: String,
    schema: &'static Schema,
    /// The filters as they are in the object, on huge pages, since probes are at random.
    filters: ZeroedArray<u8>,
    /// The blocks of a small table of a far store, read with the tail.
    blocks: Option<Bytes>,
    index: BlockIndex,
    footer: TableFooter,
    cache: Arc<BlockCache>,
    table_cache: TableCache,
    kept: PinnedBlocks,
    /// Outlines of blocks, once the cache has no room for the blocks themselves; `None` if the
    /// store has no file to map.
    outlines: OnceLock<Option<Outlines>>,
    queue: BlockQueue<Arc<Block>>,
    counters: Arc<ReadCounters>,
}

impl Drop for Table {
    fn drop(&mut self) {
        let outlines = self.outlines.get().and_then(Option::as_ref);
        self.cache.release(self.kept.bytes() + outlines.map_or(0, Outlines::held_bytes));
    }
}

/// One key of a batch.
#[derive(Clone, Copy, Debug)]
pub struct LookupKey<'a> {
    /// The key.
    pub key: Key<'a>,
    /// Its [`Schema::digest`].
    pub digest: u64,
}

/// A look-up of one key in one table. Its steps are separate so that the cache misses of several
/// tables can overlap.
#[derive(Debug)]
pub struct TableProbe<'a> {
    table: &'a Table,
    /// Blocks of the key's group, if the key's position follows from its hash.
    blocks: Option<NearBlocks>,
    block: usize,
    /// True if the block begins with the key's group.
    is_first_group: bool,
    /// True if no other table is asked for the key.
    is_alone: bool,
    /// The filter partition to ask before the search for the block.
    partition: Option<usize>,
    /// The filter's answer, once it was asked: whether the record may be there.
    may_contain: Option<bool>,
}

impl TableProbe<'_> {
    /// Asks the filter if that comes before the search for the block, which it may save.
    #[inline]
    pub(crate) fn ask_filter_first(&mut self, wanted: &LookupKey) {
        let Some(partition) = self.partition else { return };
        let may_contain = self.table.partition_may_contain(partition, wanted.digest);
        self.may_contain = Some(may_contain);
        if may_contain {
            self.blocks = self.table.near_blocks(wanted);
            self.blocks.iter().for_each(|near| self.table.prefetch_outline(near.guess()));
        }
    }

    /// Finds the block of the key's record, if there is one, and prefetches the record.
    #[inline]
    pub(crate) fn advance(&mut self, wanted: &LookupKey) {
        if self.may_contain == Some(false) {
            return;
        }
        let table = self.table;
        let slots = table.table_cache.slots();
        let order = table.schema.last_key_int(&wanted.key.ints);
        let found = self.blocks.as_ref().zip(slots);
        let found = found.and_then(|(blocks, slots)| slots.block_of(blocks, order));
        self.is_first_group = found.is_some();
        self.block = found.unwrap_or_else(|| {
            let block = table.index.block_of(&wanted.key);
            let group = table.index.first_group(block, table.schema);
            self.is_first_group = group == &wanted.key.ints[..group.len()];
            block
        });
        table.cache.prefetch_record(&table.table_cache, self.block, wanted.digest);
        if table.outlines().is_some() && !table.table_cache.has_image(self.block) {
            if self.is_alone || self.may_contain.is_some() {
                // The guess was asked for when it was made.
                if self.blocks.is_none_or(|near| near.guess() != self.block) {
                    table.prefetch_outline(self.block);
                }
            }
            if self.may_contain.is_none() {
                prefetch_filter(table.filter_of(self.block), wanted.digest);
            }
        }
    }

    /// Asks the filter of a table that has outlines. If the record may be there, begins to fetch
    /// the memory that reading it takes.
    #[inline]
    pub(crate) fn ask_filter(&mut self, wanted: &LookupKey) {
        let table = self.table;
        if self.may_contain.is_none()
            && table.outlines().is_some()
            && !table.table_cache.has_image(self.block)
        {
            let may_contain = table.may_contain(self.block, wanted.digest);
            self.may_contain = Some(may_contain);
            if may_contain && !self.is_alone {
                table.prefetch_outline(self.block);
            }
        }
    }

    /// Reads the key's record into `out`, its strings only if `with_strings`; returns false if
    /// there is none. At most one store request.
    #[inline]
    pub(crate) fn get(
        &self,
        wanted: &LookupKey,
        with_strings: bool,
        out: &mut RowBuffer,
    ) -> Result<bool> {
        if self.may_contain == Some(false) {
            return Ok(false);
        }
        let table = self.table;
        let image = (&table.table_cache, self.block, self.is_first_group);
        match table.cache.get_record(image, wanted, with_strings, out) {
            Some(found) => Ok(found),
            None => self.get_in_block(wanted, with_strings, out),
        }
    }

    fn get_in_block(
        &self,
        wanted: &LookupKey,
        with_strings: bool,
        out: &mut RowBuffer,
    ) -> Result<bool> {
        let table = self.table;
        let asked = || table.may_contain(self.block, wanted.digest);
        if !self.may_contain.unwrap_or_else(asked) {
            return Ok(false);
        }
        let mut is_due = false;
        if let Some(outlines) = table.outlines()
            && let Some(outline) = outlines.get(self.block)
        {
            if !self.is_first_group {
                return Ok(false);
            }
            is_due = outline.is_due();
            let outline = (outline, table.index.block_range(self.block).start as usize);
            if !is_due
                && let Some(found) = outlines.get_record(
                    outline,
                    table.schema,
                    &wanted.key,
                    (with_strings, &mut *out),
                )
            {
                return Ok(found);
            }
            // A read of the whole block reports the damage.
        }
        let block = table.block_for_key(self.block, is_due)?;
        let Some(row) = block.find(&wanted.key) else {
            return Ok(false);
        };
        block.read(row, with_strings, out);
        Ok(true)
    }
}

impl Table {
    /// Opens the table `name` of `bytes` bytes and reads its last `tail_bytes` or, from a far
    /// store, all of it if it is small. One store request.
    ///
    /// # Errors
    /// `Corrupt` if anything in the tail is not as written, and errors of the store.
    pub fn open(
        store: SharedStore,
        name: String,
        schema: &'static Schema,
        (bytes, tail_bytes): (u64, u64),
        cache: Arc<BlockCache>,
        counters: Arc<ReadCounters>,
    ) -> Result<Self> {
        if tail_bytes > bytes || tail_bytes > TAIL_BYTES_MAX || tail_bytes < FOOTER_BYTES as u64 {
            return Err(Error::corrupt(&name, bytes, "its manifest gives an impossible tail"));
        }
        let base = bytes - tail_bytes;
        if base > TABLE_DATA_BYTES_MAX {
            return Err(Error::corrupt(&name, base, "its manifest gives it too many bytes"));
        }
        let is_whole = bytes <= WHOLE_BYTES_MAX && store.requests_at_once() > 1;
        let start = if is_whole { 0 } else { base };
        let mut read = store.get_range(&name, start..bytes)?;
        let tail = read.split_off((base - start) as usize);
        let blocks = is_whole.then_some(read);
        counters.tail_reads.fetch_add(1, Ordering::Relaxed);
        let (footer, index) =
            Self::parse_tail(schema, &tail, base).map_err(|damage| damage.of(&name, base))?;
        let mut filters = ZeroedArray::new(footer.filter_bytes as usize);
        filters.copy_from_slice(&tail[..footer.filter_bytes as usize]);
        let table_cache = cache.table_cache(schema, index.first_orders(schema));
        let (kept, queue, outlines) =
            (PinnedBlocks::default(), BlockQueue::default(), OnceLock::new());
        Ok(Self {
            store,
            name,
            schema,
            filters,
            blocks,
            index,
            footer,
            cache,
            table_cache,
            kept,
            outlines,
            queue,
            counters,
        })
    }

    fn parse_tail(
        schema: &'static Schema,
        tail: &[u8],
        data_bytes: u64,
    ) -> Result<(TableFooter, BlockIndex), WireDamage> {
        let body = tail.len() - FOOTER_BYTES;
        let shift = |damage: WireDamage, by| WireDamage { offset: damage.offset + by, ..damage };
        let footer = TableFooter::decode(&tail[body..]).map_err(|damage| shift(damage, body))?;
        let wrong = |what| WireDamage { offset: body, what };
        if footer.schema != schema.id {
            return Err(wrong("a table of the schema its manifest gives"));
        }
        if footer.filter_bytes.checked_add(footer.index_bytes) != Some(body as u64) {
            return Err(wrong("filters and index that fill the tail"));
        }
        if footer.tail_checksum != crc32c::crc32c(&tail[..body]) {
            return Err(wrong("the checksum of filters and index"));
        }
        let (filters, index) = tail[..body].split_at(footer.filter_bytes as usize);
        let blocks = footer.blocks as usize;
        let index = BlockIndex::decode(schema, index, blocks, data_bytes, footer.filter_bytes)
            .map_err(|damage| shift(damage, filters.len()))?;
        index.check_filters(filters)?;
        Ok((footer, index))
    }

    /// The object's name.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the footer.
    #[must_use]
    pub(crate) fn footer(&self) -> &TableFooter {
        &self.footer
    }

    /// Returns the index of its blocks.
    #[must_use]
    pub fn index(&self) -> &BlockIndex {
        &self.index
    }

    /// Returns whether block `block` may hold a key of `digest`.
    #[inline]
    #[must_use]
    pub(crate) fn may_contain(&self, block: usize, digest: u64) -> bool {
        fuse_filter::may_contain(self.filter_of(block), digest)
    }

    #[inline]
    fn filter_of(&self, block: usize) -> &[u8] {
        &self.filters[self.index.filter_range(block)]
    }

    #[inline]
    fn partition_may_contain(&self, partition: usize, digest: u64) -> bool {
        fuse_filter::may_contain(self.partition(partition), digest)
    }

    #[inline]
    fn partition(&self, partition: usize) -> &[u8] {
        &self.filters[self.index.partition_range(partition)]
    }

    /// Begins to look for a key's record, and to fetch the memory that this takes; `is_alone` if no
    /// other table is asked for it. Most of several tables do not have the record: once the blocks
    /// outgrow the cache, the look-up asks the filter before it searches for the block.
    #[inline]
    pub(crate) fn seek(&self, wanted: &LookupKey, is_alone: bool) -> TableProbe<'_> {
        let asks_first = !is_alone && self.outlines().is_some();
        let partition = asks_first.then(|| self.index.partition_of(&wanted.key)).flatten();
        let mut blocks = None;
        match partition {
            Some(partition) => prefetch_filter(self.partition(partition), wanted.digest),
            None => blocks = self.near_blocks(wanted),
        }
        if is_alone {
            blocks.iter().for_each(|near| self.prefetch_outline(near.guess()));
        }
        TableProbe {
            table: self,
            blocks,
            block: 0,
            is_first_group: false,
            is_alone,
            partition,
            may_contain: None,
        }
    }

    /// The blocks in which a key's record may be, if its position follows from its hash; begins to
    /// fetch the memory that finding the right one takes.
    #[inline]
    fn near_blocks(&self, wanted: &LookupKey) -> Option<NearBlocks> {
        let slots = self.table_cache.slots()?;
        let blocks = self.index.near_blocks(&wanted.key)?;
        slots.prefetch(&blocks);
        Some(blocks)
    }

    /// Hints the processor that block `number` is read by its outline, if it has one. Prefetches
    /// only the block's pages: translating their addresses takes as long as finding out whether the
    /// guess at the block is right.
    #[inline]
    fn prefetch_outline(&self, number: usize) {
        if let Some(outlines) = self.outlines() {
            outlines.prefetch_cell(number);
            outlines.prefetch_block(&self.index.block_range(number));
        }
    }

    /// Reads a key's record into `out`, its strings only if `with_strings`; returns false if there
    /// is none. At most one store request.
    pub fn get(&self, wanted: &LookupKey, with_strings: bool, out: &mut RowBuffer) -> Result<bool> {
        let mut seek = self.seek(wanted, true);
        seek.advance(wanted);
        seek.get(wanted, with_strings, out)
    }

    /// Returns block `number`, from the cache or by one store request, for a point read; `is_due`
    /// if it was read many times without the cache. Keeps the outline of a block that the cache
    /// does not admit.
    fn block_for_key(&self, number: usize, is_due: bool) -> Result<Arc<Block>> {
        let group = self.index.first_group(number, self.schema);
        if let Some(block) = self.cache.get(&self.table_cache, number) {
            self.cache.promote((&self.table_cache, number), (&block, group), is_due);
            return Ok(block);
        }
        let block = self.fetch(number)?;
        let read_ns = self.counters.pace.mean_ns();
        if is_due || self.cache.admits(read_ns) {
            self.cache.insert(&self.table_cache, number, &block);
        }
        if self.cache.is_outgrown(read_ns) {
            let range = self.index.block_range(self.index.blocks() - 1);
            let (object, blocks) = ((&self.store, &*self.name), self.index.blocks());
            let open = || Outlines::open(object, range.end, blocks, &self.cache);
            if let Some(outlines) = self.outlines.get_or_init(open) {
                outlines.insert(number, (&block, group), &self.cache);
            }
        }
        Ok(block)
    }

    #[inline]
    fn outlines(&self) -> Option<&Outlines> {
        self.outlines.get()?.as_ref()
    }

    /// Returns block `number`, if it is in the cache.
    pub(super) fn cached(&self, number: usize) -> Option<Arc<Block>> {
        self.cache.get(&self.table_cache, number)
    }

    /// The cache that it shares with other tables.
    pub(super) fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// The blocks held for batches.
    pub(super) fn kept(&self) -> &PinnedBlocks {
        &self.kept
    }

    /// The blocks that batches wait for.
    pub(super) fn queue(&self) -> &BlockQueue<Arc<Block>> {
        &self.queue
    }

    /// Returns α of this table's blocks on its store.
    pub(super) fn percent_min(&self) -> usize {
        let blocks = self.index.blocks();
        let bytes = blocks.checked_sub(1).map_or(0, |last| self.index.block_range(last).end);
        self.counters.pace.percent_min(bytes as f64 / blocks.max(1) as f64)
    }

    /// Makes one store request and records its duration; none for a table that is in memory.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Bytes> {
        if let Some(blocks) = self.blocks.as_ref().filter(|all| range.end <= all.len() as u64) {
            return Ok(blocks.slice(range.start as usize..range.end as usize));
        }
        let start_ns = SystemClock.monotonic_ns();
        let bytes = self.store.get_range(&self.name, range)?;
        self.counters.pace.record(bytes.len() as u64, SystemClock.monotonic_ns() - start_ns);
        Ok(bytes)
    }

    /// Parses block `number`, just read, and inserts it into the cache.
    pub(super) fn keep_in_cache(&self, number: usize, bytes: Bytes) -> Result<Arc<Block>> {
        let block = self.parse_block(number, bytes)?;
        self.cache.insert(&self.table_cache, number, &block);
        Ok(block)
    }

    /// Parses the bytes that [`Table::read_ahead`] returned for block `number`.
    pub(crate) fn parse_block(&self, number: usize, bytes: Bytes) -> Result<Arc<Block>> {
        self.counters.block_reads.fetch_add(1, Ordering::Relaxed);
        let base = self.index.block_range(number).start;
        let block =
            Block::parse(self.schema, bytes).map_err(|damage| damage.of(&self.name, base))?;
        Ok(Arc::new(block))
    }

    /// Returns block `number`, from the cache or with one store request.
    pub(crate) fn block(&self, number: usize) -> Result<Arc<Block>> {
        if let Some(block) = self.cache.get(&self.table_cache, number) {
            return Ok(block);
        }
        let block = self.fetch(number)?;
        self.cache.insert(&self.table_cache, number, &block);
        Ok(block)
    }

    /// Returns block `number`, with one store request.
    fn fetch(&self, number: usize) -> Result<Arc<Block>> {
        let range = self.index.block_range(number);
        if range.end - range.start > BLOCK_BYTES_MAX as u64 {
            return Err(Error::corrupt(&self.name, range.start, "a block over the limit"));
        }
        self.parse_block(number, self.read(range)?)
    }

    /// Reads the encoded bytes of consecutive blocks from `number` on, at most `READ_AHEAD_BLOCKS`
    /// and only before `end`, in one request; for scans, which bypass the cache.
    pub(crate) fn read_ahead(&self, number: usize, end: usize) -> Result<Vec<Bytes>> {
        let end = end.min(self.index.blocks()).min(number + READ_AHEAD_BLOCKS);
        let base = self.index.block_range(number).start;
        let stop = self.index.block_range(end - 1).end;
        let bytes = self.read(base..stop)?;
        Ok((number..end)
            .map(|block| {
                let range = self.index.block_range(block);
                bytes.slice((range.start - base) as usize..(range.end - base) as usize)
            })
            .collect())
    }
}

/// Begins to fetch the bytes of the filter `partition` that a look-up of `digest` reads.
#[inline]
fn prefetch_filter(partition: &[u8], digest: u64) {
    fuse_filter::probe_offsets(partition, digest)
        .for_each(|offset| prefetch(&raw const partition[offset]));
}
