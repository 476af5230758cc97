// SPDX-License-Identifier: Apache-2.0
//! Row cache: images of cached blocks for point reads, beside the blocks that scans use.
//!
//! A block that point reads hit in the cache again gets an image (`image.rs`). Images are stored in
//! chunks of huge pages. Each block of an open table has a slot, half a cache line, with the
//! image's address and an interpolation table for its rows, so a warm read waits for only one cache
//! miss. The part that many images of a table share, their form, is kept once, beside the slots, so
//! that a read fetches only the key's row of an image.
//! Eviction: chunks are used in turn. When one is reused, images that were read since they were put
//! there stay, up to half of the chunk; the others are dropped.
//! Concurrency: readers take no lock, and write only a mark at the first read of an image. A slot's
//! state names the image and a generation. A writer that evicts an image clears the state before it
//! overwrites the words; a reader checks the state again after reading and discards what it read if
//! the state has changed (a sequence lock). Writers hold `fill_cursor`.
//! Source: sequence locks as in Boehm, Can Seqlocks Get Along with Programming Language Memory
//! Models?, 2012; CLOCK, Corbató 1968.

mod block_slots;
mod image;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use crate::block::{Block, DecodedBlock};
use crate::memory::ZeroedArray;
use crate::schema::RowBuffer;
use crate::table::LookupKey;
pub(crate) use block_slots::BlockSlots;
use block_slots::{BlockSlot, FORMS_MAX, OWN_FORM_LINES_MAX, PRESENT, READ, SlotLayout, UNFIT};
use image::{AtomicWords, BlockImage, ImageLayout, ImageView};

/// Maximum bytes of a chunk: a huge page.
const CHUNK_BYTES_MAX: u64 = 2 << 20;
/// Minimum bytes of a chunk; smaller ones would hold too few images.
const CHUNK_BYTES_MIN: u64 = 64 << 10;
/// Minimum number of chunks that share a budget, so that a reused chunk is a small part of it.
const CHUNKS_MIN: u64 = 8;
const LINE_WORDS: usize = 8;
/// An image takes at most one part in this many of a chunk.
const IMAGE_SHARE: usize = 4;

/// Once all chunks are in use, one in this many blocks hit without an image gets one. Making an
/// image costs about thirty reads of the block, and if more blocks are read than fit as images, an
/// image is evicted before it has been read that often.
const ADMITTED_ONE_IN: usize = 32;

/// Images under one budget, shared by all tables of a cache.
#[derive(Debug)]
pub(crate) struct RowCache {
    chunks: Box<[OnceLock<ZeroedArray<AtomicU64>>]>,
    /// Lines of a chunk, as a power of two.
    chunk_lines_log: u32,
    /// True if all chunks are in use.
    is_full: AtomicBool,
    /// Blocks hit without an image since then.
    image_misses: AtomicUsize,
    fill_cursor: Mutex<FillCursor>,
}

/// The chunk that takes new images.
#[derive(Debug)]
struct FillCursor {
    chunk: usize,
    used_words: usize,
    /// Incremented whenever a chunk is reused.
    generation: u64,
    /// The images of each chunk.
    residents: Vec<Vec<ResidentImage>>,
}

#[derive(Debug)]
struct ResidentImage {
    slots: Weak<BlockSlots>,
    block: usize,
    line: usize,
    words: usize,
}

/// Returns the byte by which a layout names an image's form, and the image's own words.
fn lay_out(
    slots: &BlockSlots,
    mut form: Vec<u64>,
    is_common: bool,
    words: Vec<u64>,
) -> (u8, Vec<u64>) {
    if is_common && let Some(number) = slots.number_of(&form) {
        return (number as u8, words);
    }
    let lines = form.len().div_ceil(LINE_WORDS);
    form.resize(lines * LINE_WORDS, 0);
    form.extend(words);
    ((FORMS_MAX + lines) as u8, form)
}

impl RowCache {
    /// Makes a store of images of at most `budget_bytes`; `None` if that is too little.
    pub(crate) fn new(budget_bytes: u64) -> Option<Self> {
        let chunk_bytes = 1 << (budget_bytes / CHUNKS_MIN).clamp(1, CHUNK_BYTES_MAX).ilog2();
        if chunk_bytes < CHUNK_BYTES_MIN {
            return None;
        }
        let chunks = usize::try_from(budget_bytes / chunk_bytes).ok()?;
        Some(Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            chunk_lines_log: (chunk_bytes / 64).ilog2(),
            is_full: AtomicBool::new(false),
            image_misses: AtomicUsize::new(0),
            fill_cursor: Mutex::new(FillCursor {
                chunk: 0,
                used_words: 0,
                generation: 0,
                residents: (0..chunks).map(|_| Vec::new()).collect(),
            }),
        })
    }

    fn chunk_words(&self) -> usize {
        LINE_WORDS << self.chunk_lines_log
    }

    /// Memory that the chunks in use take, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let used = self.chunks.iter().filter(|chunk| chunk.get().is_some()).count();
        (used * self.chunk_words() * 8) as u64
    }

    #[inline]
    fn words(&self, state: u64) -> Option<AtomicWords<'_>> {
        let line = (state >> 32) as usize;
        let chunk = self.chunks.get(line >> self.chunk_lines_log)?.get()?;
        let start = (line & ((1 << self.chunk_lines_log) - 1)) * LINE_WORDS;
        Some(AtomicWords(&chunk[start..]))
    }

    /// Returns the image of `slot` that `state` names, and whether its form is its own.
    #[inline]
    fn view<'a>(
        &'a self,
        slots: &'a BlockSlots,
        slot: &BlockSlot,
        state: u64,
    ) -> Option<(ImageView<'a>, bool)> {
        let (words, layout) = (self.words(state)?, SlotLayout::of(state));
        let image_layout = ImageLayout { starts: slot.starts(), stride: layout.stride };
        Some(match usize::from(layout.form).checked_sub(FORMS_MAX) {
            None => {
                let form = slots.form(usize::from(layout.form));
                (ImageView { form, rows: words, layout: image_layout }, false)
            }
            Some(lines) => {
                let rows = AtomicWords(words.0.get(lines * LINE_WORDS..)?);
                (ImageView { form: words, rows, layout: image_layout }, true)
            }
        })
    }

    /// Hints to the processor that `digest` is looked up in `block` soon.
    #[inline]
    pub(crate) fn prefetch(&self, slots: &BlockSlots, block: usize, digest: u64) {
        let slot = &slots.slots[block];
        let state = slot.state.load(Ordering::Relaxed);
        if state & PRESENT != 0
            && let Some((view, is_own)) = self.view(slots, slot, state)
        {
            view.prefetch(digest);
            if is_own {
                view.prefetch_form();
            }
        }
    }

    /// Reads a key's record in `block` into `out`, its strings only if `with_strings`. Returns
    /// whether there is a record, or `None` if the block has no image; `out` is then arbitrary.
    /// `is_first_group` tells whether the block begins with the key's group.
    #[inline]
    pub(crate) fn get(
        &self,
        (slots, block, is_first_group): (&BlockSlots, usize, bool),
        wanted: &LookupKey,
        with_strings: bool,
        out: &mut RowBuffer,
    ) -> Option<bool> {
        let slot = &slots.slots[block];
        let state = slot.state.load(Ordering::Acquire);
        if state & PRESENT == 0 {
            return None;
        }
        let (view, _) = self.view(slots, slot, state)?;
        let row_at = view.find(slots.schema, wanted, is_first_group);
        if let Some(row_at) = row_at {
            view.read(row_at, (&slots.followers, &wanted.key), with_strings, out);
        }
        // The record is valid only if the image was still there afterwards.
        fence(Ordering::Acquire);
        if (slot.state.load(Ordering::Relaxed) ^ state) & !READ != 0 {
            return None;
        }
        if state & READ == 0 {
            let (set, relaxed) = (state | READ, Ordering::Relaxed);
            let _ = slot.state.compare_exchange(state, set, relaxed, relaxed);
        }
        Some(row_at.is_some())
    }

    /// Returns whether a block hit without an image should get one.
    #[inline]
    pub(crate) fn admits(&self) -> bool {
        !self.is_full.load(Ordering::Relaxed)
            || self.image_misses.fetch_add(1, Ordering::Relaxed).is_multiple_of(ADMITTED_ONE_IN)
    }

    /// Gives an image to `block`, whose slot has none yet and which begins with the group `group`.
    /// Calls `grown` if that took memory.
    #[cold]
    pub(crate) fn insert(
        &self,
        slots: &Arc<BlockSlots>,
        number: usize,
        (block, group): (&Block, &[u64]),
        grown: impl FnOnce(),
    ) {
        let words_max = self.chunk_words() / IMAGE_SHARE;
        let image = if block.memory_bytes() <= 2 * 8 * words_max {
            let mut decoded = DecodedBlock::default();
            block.decode(&mut decoded);
            let image = BlockImage::of(slots.schema, group, &decoded);
            image.filter(|image| {
                image.form.len() <= OWN_FORM_LINES_MAX * LINE_WORDS
                    && image.form.len() + LINE_WORDS + image.words.len() <= words_max
            })
        } else {
            None
        };
        // The thread that holds the lock is inserting another image, perhaps this one.
        let Some(mut cursor) = self.fill_cursor.try_lock() else {
            return;
        };
        let slot = &slots.slots[number];
        if slot.state.load(Ordering::Relaxed) != 0 {
            return;
        }
        let Some(image) = image else {
            slot.state.store(UNFIT, Ordering::Relaxed);
            return;
        };
        let (form, words) = lay_out(slots, image.form, image.is_form_common, image.words);
        let layout = SlotLayout { form, stride: image.layout.stride };
        if cursor.used_words + words.len() > self.chunk_words() {
            self.recycle(&mut cursor);
        }
        let chunk = self.chunks[cursor.chunk].get();
        let chunk = chunk.unwrap_or_else(|| {
            let new = ZeroedArray::new(self.chunk_words());
            let new = self.chunks[cursor.chunk].get_or_init(|| new);
            grown();
            new
        });
        for (own, start) in slot.starts.iter().zip(image.layout.starts) {
            own.store(start, Ordering::Relaxed);
        }
        let (slots, line) = (Arc::downgrade(slots), 0);
        let resident = ResidentImage { slots, block: number, line, words: words.len() };
        self.store_image(&mut cursor, chunk, resident, &words, layout);
    }

    /// Puts an image into the free part of the chunk that is being filled.
    fn store_image(
        &self,
        cursor: &mut FillCursor,
        chunk: &[AtomicU64],
        resident: ResidentImage,
        words: &[u64],
        layout: SlotLayout,
    ) {
        let start = cursor.used_words;
        for (own, word) in chunk[start..].iter().zip(words) {
            own.store(*word, Ordering::Relaxed);
        }
        cursor.used_words = (start + words.len()).next_multiple_of(LINE_WORDS);
        let line = (cursor.chunk << self.chunk_lines_log) + start / LINE_WORDS;
        if let Some(slots) = resident.slots.upgrade() {
            slots.slots[resident.block].publish(line, layout, cursor.generation);
            cursor.residents[cursor.chunk].push(ResidentImage { line, ..resident });
        }
    }

    /// Advances to the next chunk; if that was used before, only images that were read stay in it.
    fn recycle(&self, cursor: &mut FillCursor) {
        cursor.chunk = (cursor.chunk + 1) % self.chunks.len();
        cursor.used_words = 0;
        cursor.generation += 1;
        let residents = std::mem::take(&mut cursor.residents[cursor.chunk]);
        let Some(chunk) = self.chunks[cursor.chunk].get() else {
            return;
        };
        self.is_full.store(true, Ordering::Relaxed);
        let chunk_start = cursor.chunk << self.chunk_lines_log;
        let (mut stay, mut stay_words) = (Vec::new(), 0);
        for resident in residents {
            let Some(slots) = resident.slots.upgrade() else {
                continue;
            };
            let state = slots.slots[resident.block].state.swap(0, Ordering::Relaxed);
            if state & READ != 0 && stay_words + resident.words <= self.chunk_words() / 2 {
                let start = (resident.line - chunk_start) * LINE_WORDS;
                let words = &chunk[start..start + resident.words];
                let words: Vec<u64> =
                    words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
                stay_words += words.len().next_multiple_of(LINE_WORDS);
                stay.push((resident, words, SlotLayout::of(state)));
            }
        }
        // A reader that sees words written to the chunk from here on also sees the cleared states.
        fence(Ordering::Release);
        for (resident, words, layout) in stay {
            self.store_image(cursor, chunk, resident, &words, layout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockBuilder;
    use crate::schema::record::{self, RECORD};
    use crate::table::GroupBlocks;

    const BLOCKS: usize = 200;
    const ROWS: u64 = 100;

    fn key(block: usize, row: u64) -> [u8; 8] {
        // The last byte is not zero, so the key's integer is the whole key.
        ((block as u64) << 32 | row << 8 | 1).to_be_bytes()
    }

    fn block(number: usize) -> Block {
        let mut builder = BlockBuilder::new(&RECORD);
        for row in 0..ROWS {
            let key = key(number, row);
            let value = [key, key, key].concat();
            let mut row = record::row(&key, &value);
            RECORD.store(&mut row.ints);
            builder.push(&row);
        }
        let mut bytes = Vec::new();
        builder.finish(&mut bytes);
        Block::parse(&RECORD, bytes.into()).expect("our own block")
    }

    /// Reads a record and checks that it is the right one; returns whether the block had an image.
    fn read(cache: &RowCache, slots: &BlockSlots, number: usize, row: u64) -> bool {
        let key = key(number, row);
        let key = record::key(&key);
        let wanted = LookupKey { key, digest: RECORD.digest(&key) };
        let mut out = RowBuffer::default();
        cache.prefetch(slots, number, wanted.digest);
        match cache.get((slots, number, true), &wanted, true, &mut out) {
            None => false,
            Some(found) => {
                assert_eq!(found, row < ROWS);
                let own = super::tests::key(number, row);
                assert!(!found || out.strings[record::VALUE] == [own, own, own].concat());
                true
            }
        }
    }

    fn slots() -> Arc<BlockSlots> {
        BlockSlots::new(&RECORD, (0..BLOCKS).map(|block| (block as u64) << 32))
    }

    #[test]
    fn what_is_read_stays_and_the_rest_goes() {
        let cache = RowCache::new(CHUNKS_MIN * CHUNK_BYTES_MIN).expect("a budget for eight chunks");
        let (slots, blocks): (_, Vec<Block>) = (slots(), (0..BLOCKS).map(block).collect());
        let mut grown = 0;
        for (number, block) in blocks.iter().enumerate() {
            cache.insert(&slots, number, (block, &[]), || grown += 1);
            assert!(read(&cache, &slots, number, 3) || number > 0);
            // The first block is read all the time, so it outlives many others.
            assert!(read(&cache, &slots, 0, ROWS - 1), "after {number} blocks");
            assert!(read(&cache, &slots, 0, ROWS + 5));
        }
        assert_eq!(grown, CHUNKS_MIN);
        assert_eq!(cache.memory_bytes(), CHUNKS_MIN * CHUNK_BYTES_MIN);
        let there = (0..BLOCKS).filter(|&number| read(&cache, &slots, number, 0)).count();
        assert!((20..BLOCKS - 20).contains(&there), "{there} of {BLOCKS} blocks");
        drop(slots);
        let others = super::tests::slots();
        (0..BLOCKS).for_each(|number| cache.insert(&others, number, (&blocks[number], &[]), || ()));
        assert!(read(&cache, &others, BLOCKS - 1, 7));
    }

    #[test]
    fn blocks_of_uneven_keys_are_found_too() {
        let squares = |block: u64| (block * block) << 40;
        let slots = BlockSlots::new(&RECORD, (0..300u32).map(|block| squares(u64::from(block))));
        for (start, end) in [(0, 300), (0, 1), (7, 8), (100, 250)] {
            let group = GroupBlocks::new((start, end), (None, u64::MAX), true);
            for order in (0..300).flat_map(|block| [squares(block), squares(block) + 5]) {
                let starts_before = (start..end).rfind(|block| squares(u64::from(*block)) <= order);
                let expected = starts_before.filter(|block| squares(u64::from(*block)) != order);
                let found = slots.block_of(&group.near(order, &[]), order);
                assert_eq!(
                    found,
                    expected.map(|block| block as usize),
                    "{order} of {start}..{end}"
                );
            }
        }
    }

    #[test]
    fn readers_never_see_half_of_an_image() {
        let cache = RowCache::new(CHUNKS_MIN * CHUNK_BYTES_MIN).expect("a budget for eight chunks");
        let (slots, blocks): (_, Vec<Block>) = (slots(), (0..BLOCKS).map(block).collect());
        std::thread::scope(|scope| {
            for reader in 0..2u64 {
                let (cache, slots) = (&cache, &slots);
                scope.spawn(move || {
                    for step in 0..300_000u64 {
                        let at = esker_base::word_hash::mix(step ^ reader << 40);
                        read(cache, slots, at as usize % BLOCKS, at >> 32 & 127);
                    }
                });
            }
            for step in 0..3_000 {
                let number = esker_base::word_hash::mix(step) as usize % BLOCKS;
                cache.insert(&slots, number, (&blocks[number], &[]), || ());
            }
        });
    }
}
