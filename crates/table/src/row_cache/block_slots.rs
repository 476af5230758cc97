// SPDX-License-Identifier: Apache-2.0
//! Block slots: for each block of a table, the address of its image and the approximate position of
//! each row in it.
//!
//! A slot is half a cache line: the state of the block's image, and the starts of the buckets by
//! which its rows are found. The forms that many images of the table share are kept beside the
//! slots.
//! Concurrency: see `RowCache`; a common form never changes once it is counted.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::image::{AtomicWords, BUCKETS};
use crate::memory::{Zeroable, ZeroedArray, prefetch};
use crate::schema::{RelativeColumns, Schema};
use crate::table::NearBlocks;

pub(super) const GENERATIONS: u64 = 1 << 14;
/// Maximum common forms of a table, which are also limited to a share of its blocks.
pub(super) const FORMS_MAX: usize = 128;
pub(super) const FORM_SHARE: usize = 8;
/// Maximum words of a common form.
pub(super) const FORM_WORDS_MAX: usize = 32;
/// Maximum lines of an image's own form.
pub(super) const OWN_FORM_LINES_MAX: usize = u8::MAX as usize - FORMS_MAX;

/// State of the image of one block. Bit 0 is set if there is an image, bit 1 if it was read; then
/// follow 14 bits of generation, a byte for its form, a byte for the words of a row, and the line
/// where it starts. The form is the number of a common form, or [`FORMS_MAX`] plus the number of
/// lines of the image's own form, which comes first.
pub(super) const PRESENT: u64 = 1;
pub(super) const READ: u64 = 2;
/// State of a block for which no image is possible.
pub(super) const UNFIT: u64 = 2;

/// The places of the images of a table's blocks.
#[derive(Debug)]
pub(crate) struct BlockSlots {
    pub(super) slots: ZeroedArray<BlockSlot>,
    pub(super) forms: ZeroedArray<AtomicU64>,
    /// Number of common forms; a form never changes once it is counted.
    forms_count: AtomicUsize,
    pub(super) schema: &'static Schema,
    pub(super) followers: RelativeColumns,
}

#[derive(Debug)]
#[repr(align(32))]
pub(super) struct BlockSlot {
    pub(super) state: AtomicU64,
    /// The last integer of the block's first key.
    pub(super) first: AtomicU64,
    /// The starts of its buckets, which never change for a block.
    pub(super) starts: [AtomicU64; BUCKETS / 8],
}

// SAFETY: integers.
unsafe impl Zeroable for BlockSlot {}

impl BlockSlots {
    /// Makes slots for blocks; `firsts` are the last integers of their first keys.
    pub(crate) fn new(
        schema: &'static Schema,
        firsts: impl ExactSizeIterator<Item = u64>,
    ) -> Arc<Self> {
        let slots: ZeroedArray<BlockSlot> = ZeroedArray::new(firsts.len());
        for (slot, first) in slots.iter().zip(firsts) {
            slot.first.store(first, Ordering::Relaxed);
        }
        let forms = slots.len().div_ceil(FORM_SHARE).min(FORMS_MAX);
        let forms = ZeroedArray::new(forms * FORM_WORDS_MAX);
        let (forms_count, followers) = (AtomicUsize::new(0), schema.followers());
        Arc::new(Self { slots, forms, forms_count, schema, followers })
    }

    /// Hints to the processor that [`BlockSlots::block_of`] follows.
    #[inline]
    pub(crate) fn prefetch(&self, blocks: &NearBlocks) {
        let start = self.slots.as_ptr().wrapping_add(blocks.guess());
        prefetch(start.wrapping_sub(1));
        prefetch(start.wrapping_add(1));
    }

    /// Returns the last of the blocks of `near` that starts before `order`; `None` if one starts at
    /// `order` or all start after it.
    #[inline]
    pub(crate) fn block_of(&self, near: &NearBlocks, order: u64) -> Option<usize> {
        let (blocks, guess) = (near.range(), near.guess());
        // Blocks are nearly as evenly spread as their keys, so the first step in either direction
        // is usually the last. It has no branch, which would wait for memory.
        let back = usize::from(guess > blocks.start) & usize::from(self.first_of(guess) > order);
        let next = (guess + 1).min(blocks.end - 1);
        let ahead = usize::from(next > guess) & usize::from(self.first_of(next) <= order);
        let mut block = guess - back + ahead;
        let ends = block + 1 == blocks.end || self.first_of(block + 1) > order;
        if self.first_of(block) > order || !ends {
            block = self.search(&blocks, block, order)?;
        }
        (self.first_of(block) != order).then_some(block)
    }

    /// Returns the last of `blocks` that starts at or before `order`, searching from `near` in
    /// growing steps.
    #[cold]
    pub(super) fn search(&self, blocks: &Range<usize>, near: usize, order: u64) -> Option<usize> {
        let (mut low, mut high, mut step) = (near, near, 1);
        while low > blocks.start && self.first_of(low) > order {
            (high, low) = (low, low.saturating_sub(step).max(blocks.start));
            step *= 2;
        }
        while high < blocks.end && self.first_of(high) <= order {
            (low, high) = (high, (high + step).min(blocks.end));
            step *= 2;
        }
        let firsts = &self.slots[low..high];
        let before = firsts.partition_point(|slot| slot.first.load(Ordering::Relaxed) <= order);
        (low + before).checked_sub(1).filter(|block| *block >= blocks.start)
    }

    #[inline]
    pub(super) fn first_of(&self, block: usize) -> u64 {
        self.slots[block].first.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn form(&self, number: usize) -> AtomicWords<'_> {
        let start = number * FORM_WORDS_MAX;
        AtomicWords(self.forms.get(start..start + FORM_WORDS_MAX).unwrap_or_default())
    }

    /// Returns the number of a common form, and makes the form common if there is room. The caller
    /// holds `fill_cursor`.
    pub(super) fn number_of(&self, form: &[u64]) -> Option<usize> {
        let count = self.forms_count.load(Ordering::Relaxed);
        let words = form.iter().copied().chain(std::iter::repeat(0)).take(FORM_WORDS_MAX);
        if form.len() > FORM_WORDS_MAX {
            return None;
        }
        let is_own = |number: &usize| {
            let own = self.form(*number).0.iter().map(|word| word.load(Ordering::Relaxed));
            own.eq(words.clone())
        };
        if let Some(number) = (0..count).find(is_own) {
            return Some(number);
        }
        let own = self.form(count).0;
        own.iter().zip(words).for_each(|(own, word)| own.store(word, Ordering::Relaxed));
        self.forms_count.store(count + usize::from(!own.is_empty()), Ordering::Relaxed);
        (!own.is_empty()).then_some(count)
    }

    /// Returns whether `block` has an image.
    #[inline]
    pub(crate) fn has_image(&self, block: usize) -> bool {
        self.slots[block].state.load(Ordering::Relaxed) & PRESENT != 0
    }

    /// Returns whether `block` has an image, or cannot have one.
    pub(crate) fn is_image_decided(&self, block: usize) -> bool {
        self.slots[block].state.load(Ordering::Relaxed) != 0
    }
}

impl BlockSlot {
    #[inline]
    pub(super) fn starts(&self) -> [u64; BUCKETS / 8] {
        std::array::from_fn(|at| self.starts[at].load(Ordering::Relaxed))
    }

    pub(super) fn publish(&self, image_line: usize, layout: SlotLayout, generation: u64) {
        let state = PRESENT
            | (generation % GENERATIONS) << 2
            | u64::from(layout.form) << 16
            | u64::from(layout.stride) << 24
            | (image_line as u64) << 32;
        self.state.store(state, Ordering::Release);
    }
}

/// The parts of a state that describe an image's layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotLayout {
    pub(super) form: u8,
    pub(super) stride: u8,
}

impl SlotLayout {
    pub(super) fn of(state: u64) -> Self {
        Self { form: (state >> 16) as u8, stride: (state >> 24) as u8 }
    }
}
