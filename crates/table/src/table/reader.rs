//! Table reader: finds records of one table, with one store request each if nothing is cached.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::clock::SystemClock;
use esker_base::store::SharedStore;
use esker_base::{Bytes, Clock, Error, Result};

use super::batch::Kept;
use super::footer::{FOOTER_BYTES, Footer};
use super::index::{GroupBlocks, Index};
use super::queue::Queue;
use super::{TABLE_DATA_BYTES_MAX, TAIL_BYTES_MAX};
use crate::block::{BLOCK_BYTES_MAX, Block};
use crate::cache::{BlockCache, Shelf};
use crate::filter;
use crate::hot::Slots;
use crate::pace::Pace;
use crate::schema::{Key, RowBuffer, Schema};
use crate::wire::Damage;

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
    pub pace: Pace,
}

/// An open table. Its tail is in memory; its blocks are in a shared cache.
#[derive(Debug)]
pub struct Table {
    store: SharedStore,
    name: String,
    schema: &'static Schema,
    /// Filters, index and footer, as in the object.
    tail: Bytes,
    /// The blocks of a small table of a far store, read with the tail.
    blocks: Option<Bytes>,
    index: Index,
    footer: Footer,
    cache: Arc<BlockCache>,
    shelf: Shelf,
    kept: Kept,
    queue: Queue<Arc<Block>>,
    counters: Arc<ReadCounters>,
}

impl Drop for Table {
    fn drop(&mut self) {
        self.cache.release(self.kept.bytes());
    }
}

/// One key of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The key.
    pub key: Key<'a>,
    /// Its [`Schema::digest`].
    pub digest: u64,
}

/// A record found by a batch: row `row` of `block` answers the batch's key `index`.
#[derive(Clone, Debug)]
pub struct Got {
    /// Index in the batch.
    pub index: usize,
    /// The block.
    pub block: Arc<Block>,
    /// The row in it.
    pub row: usize,
}

/// A look-up of one key in one table. Its steps are separate so that the cache misses of several
/// tables can overlap.
#[derive(Debug)]
pub struct Seek<'a> {
    table: &'a Table,
    /// Blocks of the key's group, if the key's position follows from its hash.
    blocks: Option<GroupBlocks>,
    block: usize,
    /// True if the block begins with the key's group.
    is_first_group: bool,
}

impl Seek<'_> {
    /// Finds the block of the key's record, if there is one, and prefetches the record.
    #[inline]
    pub fn advance(&mut self, wanted: &Wanted) {
        let table = self.table;
        let slots = table.shelf.slots();
        let order = table.schema.order(&wanted.key.ints);
        let found = self.blocks.as_ref().zip(slots);
        let found = found.and_then(|(blocks, slots)| slots.block_of(blocks, order));
        self.is_first_group = found.is_some();
        self.block = found.unwrap_or_else(|| {
            let block = table.index.block_of(&wanted.key);
            let group = table.index.first_group(block, table.schema);
            self.is_first_group = group == &wanted.key.ints[..group.len()];
            block
        });
        table.cache.prefetch_record(&table.shelf, self.block, wanted.digest);
    }

    /// Reads the key's record into `out`, its strings only if `with_strings`; returns false if
    /// there is none. At most one store request.
    #[inline]
    pub fn get(&self, wanted: &Wanted, with_strings: bool, out: &mut RowBuffer) -> Result<bool> {
        let table = self.table;
        let place = (&table.shelf, self.block, self.is_first_group);
        match table.cache.get_record(place, wanted, with_strings, out) {
            Some(found) => Ok(found),
            None => table.get_in_block(self.block, wanted, with_strings, out),
        }
    }
}

impl Table {
    /// Opens the table `name` of `bytes` bytes and reads its last `tail_bytes` or, from a far
    /// store, all of it if it is small. One store request.
    ///
    /// # Errors
    /// `Corrupt` if anything in the tail is not as written, and what the store reports.
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
        let shelf = cache.shelf(schema, index.first_orders(schema));
        let (kept, queue) = (Kept::default(), Queue::default());
        Ok(Self {
            store,
            name,
            schema,
            tail,
            blocks,
            index,
            footer,
            cache,
            shelf,
            kept,
            queue,
            counters,
        })
    }

    fn parse_tail(
        schema: &'static Schema,
        tail: &[u8],
        data_bytes: u64,
    ) -> Result<(Footer, Index), Damage> {
        let body = tail.len() - FOOTER_BYTES;
        let shift = |damage: Damage, by| Damage { offset: damage.offset + by, ..damage };
        let footer = Footer::decode(&tail[body..]).map_err(|damage| shift(damage, body))?;
        let wrong = |what| Damage { offset: body, what };
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
        let index = Index::decode(schema, index, blocks, data_bytes, footer.filter_bytes)
            .map_err(|damage| shift(damage, filters.len()))?;
        index.check_filters(filters)?;
        Ok((footer, index))
    }

    /// The object's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the footer.
    #[must_use]
    pub fn footer(&self) -> &Footer {
        &self.footer
    }

    /// Returns the index of its blocks.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Memory that the open table takes, without cached blocks, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let slots = self.shelf.slots().map_or(0, Slots::memory_bytes);
        let blocks = self.blocks.as_ref().map_or(0, Bytes::len);
        self.tail.len() + blocks + self.index.memory_bytes() + slots
    }

    /// Returns whether block `block` may hold a key of `digest`.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, block: usize, digest: u64) -> bool {
        filter::may_contain(&self.tail[self.index.filter_place(block)], digest)
    }

    /// Starts the look-up of a key, and prefetches what it needs.
    #[inline]
    pub fn seek(&self, wanted: &Wanted) -> Seek<'_> {
        let blocks = self.shelf.slots().and_then(|slots| {
            let blocks = self.index.group_blocks(&wanted.key)?;
            slots.prefetch(&blocks, self.schema.order(&wanted.key.ints));
            Some(blocks)
        });
        Seek { table: self, blocks, block: 0, is_first_group: false }
    }

    /// Reads a key's record into `out`, its strings only if `with_strings`; returns false if there
    /// is none. At most one store request.
    pub fn get(&self, wanted: &Wanted, with_strings: bool, out: &mut RowBuffer) -> Result<bool> {
        let mut seek = self.seek(wanted);
        seek.advance(wanted);
        seek.get(wanted, with_strings, out)
    }

    fn get_in_block(
        &self,
        number: usize,
        wanted: &Wanted,
        with_strings: bool,
        out: &mut RowBuffer,
    ) -> Result<bool> {
        if !self.may_contain(number, wanted.digest) {
            return Ok(false);
        }
        let block = match self.cache.get(&self.shelf, number) {
            Some(block) => {
                let group = self.index.first_group(number, self.schema);
                self.cache.warm_up(&self.shelf, number, &block, group);
                block
            }
            None => {
                let block = self.fetch(number)?;
                if self.cache.admits(self.counters.pace.mean_ns()) {
                    self.cache.insert(&self.shelf, number, &block);
                }
                block
            }
        };
        let Some(row) = block.find(&wanted.key) else {
            return Ok(false);
        };
        block.read(row, with_strings, out);
        Ok(true)
    }

    /// Returns block `number`, if it is in the cache.
    pub(super) fn cached(&self, number: usize) -> Option<Arc<Block>> {
        self.cache.get(&self.shelf, number)
    }

    /// The cache that it shares with other tables.
    pub(super) fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// The blocks held for batches.
    pub(super) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// The blocks that batches wait for.
    pub(super) fn queue(&self) -> &Queue<Arc<Block>> {
        &self.queue
    }

    /// Returns α of this table's blocks on its store.
    pub(super) fn percent_min(&self) -> usize {
        let blocks = self.index.blocks();
        let bytes = blocks.checked_sub(1).map_or(0, |last| self.index.place(last).end);
        self.counters.pace.percent_min(bytes as f64 / blocks.max(1) as f64)
    }

    /// Makes one store request and records its duration; none for a table that is in memory.
    pub(super) fn read(&self, place: Range<u64>) -> Result<Bytes> {
        if let Some(blocks) = self.blocks.as_ref().filter(|all| place.end <= all.len() as u64) {
            return Ok(blocks.slice(place.start as usize..place.end as usize));
        }
        let start_ns = SystemClock.monotonic_ns();
        let bytes = self.store.get_range(&self.name, place)?;
        self.counters.pace.note(bytes.len() as u64, SystemClock.monotonic_ns() - start_ns);
        Ok(bytes)
    }

    /// Parses block `number`, just read, and inserts it into the cache.
    pub(super) fn keep_in_cache(&self, number: usize, bytes: Bytes) -> Result<Arc<Block>> {
        let block = self.parse_block(number, bytes)?;
        self.cache.insert(&self.shelf, number, &block);
        Ok(block)
    }

    fn parse_block(&self, number: usize, bytes: Bytes) -> Result<Arc<Block>> {
        self.counters.block_reads.fetch_add(1, Ordering::Relaxed);
        let base = self.index.place(number).start;
        let block =
            Block::parse(self.schema, bytes).map_err(|damage| damage.of(&self.name, base))?;
        Ok(Arc::new(block))
    }

    /// Returns block `number`, from the cache or with one store request.
    pub fn block(&self, number: usize) -> Result<Arc<Block>> {
        if let Some(block) = self.cache.get(&self.shelf, number) {
            return Ok(block);
        }
        let block = self.fetch(number)?;
        self.cache.insert(&self.shelf, number, &block);
        Ok(block)
    }

    /// Returns block `number`, with one store request.
    fn fetch(&self, number: usize) -> Result<Arc<Block>> {
        let place = self.index.place(number);
        if place.end - place.start > BLOCK_BYTES_MAX as u64 {
            return Err(Error::corrupt(&self.name, place.start, "a block over the limit"));
        }
        self.parse_block(number, self.read(place)?)
    }

    /// Reads the encoded bytes of consecutive blocks from `number` on, at most `READ_AHEAD_BLOCKS`
    /// and only before `end`, in one request; for scans, which bypass the cache.
    pub fn read_ahead(&self, number: usize, end: usize) -> Result<Vec<Bytes>> {
        let end = end.min(self.index.blocks()).min(number + READ_AHEAD_BLOCKS);
        let base = self.index.place(number).start;
        let stop = self.index.place(end - 1).end;
        let bytes = self.read(base..stop)?;
        Ok((number..end)
            .map(|block| {
                let place = self.index.place(block);
                bytes.slice((place.start - base) as usize..(place.end - base) as usize)
            })
            .collect())
    }

    /// Parses the bytes that [`Table::read_ahead`] returned for block `number`.
    pub fn parse_scanned(&self, number: usize, bytes: Bytes) -> Result<Arc<Block>> {
        self.parse_block(number, bytes)
    }
}
