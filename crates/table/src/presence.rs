// SPDX-License-Identifier: Apache-2.0
//! Presence filter: tells whether older memtables of a shard ever held a key, in one cache miss per
//! generation.
//!
//! A create must know that its name does not exist yet in any of the writer's frozen memtables,
//! runs and tables. Asking each of their filters costs a miss apiece; this one filter over all of
//! them answers most creates at a cost that stays flat as tables accumulate. It learns the keys of
//! a memtable once that is frozen (`tree/key_history.rs`), by their tags, which name the slots of
//! the memtable's hash table. So creates do not write to it, it does not exist before the first
//! memtable is full, its size fits the keys it gets, and its lines are filled in order.
//!
//! Bits: a stack of blocked Bloom filters, each at least `GROWTH` times as large as all before it
//! together. A key sets one bit in each of the eight words of one 64-byte line. Memory: 13 bits for
//! each key of its capacity.
//! Concurrency: one owner at a time, the shard whose keys it holds.
//! Source: Putze, Sanders and Singler, Cache-, Hash- and Space-Efficient Bloom Filters, 2007;
//! Almeida et al., Scalable Bloom Filters, 2007.

use esker_base::word_hash::mix;

use crate::memory::{Zeroable, ZeroedArray, prefetch};

const LINE_WORDS: usize = 8;
/// Odd multipliers that spread a hash differently over each word of a line.
const SPREAD: [u64; LINE_WORDS] = [
    0x9E37_79B9_7F4A_7C15,
    0xBF58_476D_1CE4_E5B9,
    0x94D0_49BB_1331_11EB,
    0xD6E8_FEB8_6659_FD93,
    0xA076_1D64_78BD_642F,
    0xE703_7ED1_A0B4_28DB,
    0x8EBC_6AF0_9C88_C6E3,
    0x5899_65CC_7537_4CC3,
];
/// Capacity of a line in keys: 512 bits at 13 bits a key.
const LINE_KEYS: usize = 39;
/// Minimum number of lines of a generation: 32 KiB.
const LINES_MIN: usize = 1 << 9;
/// Minimum size of a generation relative to all before it: few generations to probe, little spare
/// room.
const GROWTH: usize = 4;

#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
struct FilterLine([u64; LINE_WORDS]);

// SAFETY: an array of integers.
unsafe impl Zeroable for FilterLine {}

/// The line of `tag` among `count`: neighbouring tags share a line.
#[inline]
#[must_use]
pub(crate) fn line_of(tag: u32, count: usize) -> usize {
    ((u64::from(tag) * count as u64) >> 32) as usize
}

/// The bits of a line that `tag` sets. The words are computed alike, without branches or table
/// look-ups, so that the compiler can vectorize them.
#[inline]
fn pattern(tag: u32) -> [u64; LINE_WORDS] {
    let hash = mix(u64::from(tag));
    SPREAD.map(|spread| 1 << (hash.wrapping_mul(spread) >> 58))
}

/// The keys of a shard's older memtables.
#[derive(Debug, Default)]
pub struct KeyPresence {
    generations: Vec<FilterGeneration>,
}

/// One filter, with room for a fixed number of keys.
#[derive(Debug)]
pub struct FilterGeneration {
    lines: ZeroedArray<FilterLine>,
    /// Keys that still fit.
    room: usize,
}

impl FilterGeneration {
    /// Adds the keys of `tags`, at most as many as there is room for. Cheap if they ascend.
    ///
    /// # Panics
    /// If there are more.
    pub fn extend(&mut self, tags: impl Iterator<Item = u32>) {
        let count = self.lines.len();
        for tag in tags {
            self.room = self.room.checked_sub(1).expect("callers ask for room");
            let line = &mut self.lines[line_of(tag, count)];
            for (word, bits) in line.0.iter_mut().zip(pattern(tag)) {
                *word |= bits;
            }
        }
    }
}

impl KeyPresence {
    /// Hints to the processor that `tag` is looked up soon.
    #[inline]
    pub fn prefetch(&self, tag: u32) {
        for FilterGeneration { lines, .. } in &self.generations {
            prefetch(&raw const lines[line_of(tag, lines.len())]);
        }
    }

    /// The addresses of the lines of the two newest generations and their counts, newest first.
    /// Older generations are small.
    #[must_use]
    pub(crate) fn lines_addresses(&self) -> [(*const u8, usize); 2] {
        let mut newest = self.generations.iter().rev();
        std::array::from_fn(|_| {
            newest.next().map_or((std::ptr::null(), 0), |FilterGeneration { lines, .. }| {
                (lines.as_ptr().cast(), lines.len())
            })
        })
    }

    /// Returns whether the key of `tag` may have been added; never a false "no".
    #[inline]
    #[must_use]
    pub fn may_contain(&self, tag: u32) -> bool {
        let bits = pattern(tag);
        self.generations.iter().any(|FilterGeneration { lines, .. }| {
            let line = &lines[line_of(tag, lines.len())];
            line.0.iter().zip(bits).fold(0, |missing, (word, bits)| missing | (bits & !word)) == 0
        })
    }

    /// Returns the newest generation if it has room for `keys` more.
    pub(crate) fn with_room(&mut self, keys: usize) -> Option<&mut FilterGeneration> {
        self.generations.last_mut().filter(|newest| newest.room >= keys)
    }

    /// Makes a generation with room for `keys`, to be added by [`KeyPresence::push`]. The caller
    /// can fill it while others continue reading the filter.
    #[must_use]
    pub fn next_generation(&self, keys: usize) -> FilterGeneration {
        let before: usize = self.generations.iter().map(|older| older.lines.len()).sum();
        let count = keys.div_ceil(LINE_KEYS).max(before * GROWTH).max(LINES_MIN);
        FilterGeneration { lines: ZeroedArray::new(count), room: count * LINE_KEYS }
    }

    /// Adds a generation.
    pub fn push(&mut self, generation: FilterGeneration) {
        self.generations.push(generation);
    }

    /// Memory that the filter takes, in bytes.
    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        self.generations.iter().map(|own| own.lines.len() * size_of::<FilterLine>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(range: std::ops::Range<u64>) -> Vec<u32> {
        let mut tags: Vec<u32> = range.map(|i| (mix(i) >> 32) as u32).collect();
        tags.sort_unstable();
        tags
    }

    #[test]
    fn holds_every_key_and_few_others_over_generations() {
        let mut presence = KeyPresence::default();
        assert!(!presence.may_contain(1));
        let (batch, total) = (30_000, 300_000);
        for start in (0..total).step_by(batch) {
            let tags = tags(start..start + batch as u64);
            if let Some(generation) = presence.with_room(batch) {
                generation.extend(tags.into_iter());
            } else {
                let mut generation = presence.next_generation(batch);
                generation.extend(tags.into_iter());
                presence.push(generation);
            }
        }
        assert_eq!(presence.generations.len(), 3);
        assert!(tags(0..total).into_iter().all(|tag| presence.may_contain(tag)));
        let others = tags(total..total + 100_000);
        let wrong = others.into_iter().filter(|&tag| presence.may_contain(tag)).count();
        assert!(wrong < 3_000, "{wrong} of 100,000 absent keys pass");
        assert!(presence.memory_bytes() < 2 << 20);
    }
}
