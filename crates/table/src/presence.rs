//! Presence filter: whether a shard has ever held a key, in one cache miss per generation.
//!
//! A create must know that its name does not exist yet in any of the writer's frozen memtables,
//! runs and tables. Asking each of their filters costs a miss apiece; this one filter over all of
//! them answers most creates at a cost that stays flat as tables add up.
//!
//! Bits: a stack of blocked Bloom filters, each `GROWTH` times as large as the one before. A key
//! sets one bit in each of the eight words of one 64-byte line. Memory: 13 bits a key of the room there is.
//! Concurrency: one owner at a time, the shard whose keys it knows.
//! Source: Putze, Sanders and Singler, Cache-, Hash- and Space-Efficient Bloom Filters, 2007;
//! Almeida et al., Scalable Bloom Filters, 2007.

use crate::memory::{Zeroable, ZeroedArray, prefetch};

const LINE_WORDS: usize = 8;
/// Odd multipliers that spread a digest differently over each word of a line.
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
/// Keys for which a line is meant: 512 bits at 13 bits a key.
const LINE_KEYS: usize = 39;
/// Lines of the first generation: 32 KiB.
const LINES_MIN: usize = 1 << 9;
/// How much larger each generation is than the one before: few are probed, not much is spare.
const GROWTH: usize = 8;

#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
struct Line([u64; LINE_WORDS]);

// SAFETY: an array of integers.
unsafe impl Zeroable for Line {}

/// The line of `digest` among `lines`.
fn line_of(lines: &[Line], digest: u64) -> usize {
    ((u128::from(digest) * lines.len() as u128) >> 64) as usize
}

/// The bits of a line that `digest` sets. Every word is computed alike, without branches or
/// look-ups, so that they are computed together.
#[inline]
fn pattern(digest: u64) -> [u64; LINE_WORDS] {
    SPREAD.map(|spread| 1 << (digest.wrapping_mul(spread) >> 58))
}

/// The keys that a shard has held.
#[derive(Debug, Default)]
pub struct Presence {
    generations: Vec<ZeroedArray<Line>>,
    /// Keys for which the newest generation has room.
    room: usize,
}

impl Presence {
    /// Hints the processor that `digest` is asked for soon.
    #[inline]
    pub fn prefetch(&self, digest: u64) {
        for lines in &self.generations {
            prefetch(&raw const lines[line_of(lines, digest)]);
        }
    }

    /// Where the lines of the two newest generations are and how many, the newest first. Older ones
    /// are small.
    #[must_use]
    pub fn lines_places(&self) -> [(*const u8, usize); 2] {
        let mut newest = self.generations.iter().rev();
        std::array::from_fn(|_| {
            newest
                .next()
                .map_or((std::ptr::null(), 0), |lines| (lines.as_ptr().cast(), lines.len()))
        })
    }

    /// Whether `digest` may have been inserted; never a wrong "no".
    #[inline]
    #[must_use]
    pub fn may_contain(&self, digest: u64) -> bool {
        let bits = pattern(digest);
        self.generations.iter().any(|lines| {
            let line = &lines[line_of(lines, digest)];
            line.0.iter().zip(bits).fold(0, |missing, (word, bits)| missing | (bits & !word)) == 0
        })
    }

    /// Adds `digest`.
    #[inline]
    pub fn insert(&mut self, digest: u64) {
        if self.room == 0 {
            self.grow();
        }
        self.room -= 1;
        let lines = self.generations.last_mut().expect("a generation with room");
        let line = line_of(lines, digest);
        for (word, bits) in lines[line].0.iter_mut().zip(pattern(digest)) {
            *word |= bits;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let count = self.generations.last().map_or(LINES_MIN, |last| last.len() * GROWTH);
        self.generations.push(ZeroedArray::new(count));
        self.room = count * LINE_KEYS;
    }

    /// Memory that the filter takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.generations.iter().map(|lines| lines.len() * size_of::<Line>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::mix;

    #[test]
    fn holds_every_key_and_few_others_over_generations() {
        let mut presence = Presence::default();
        assert!(!presence.may_contain(1));
        let total = 300_000u64;
        (0..total).for_each(|i| presence.insert(mix(i)));
        assert!((0..total).all(|i| presence.may_contain(mix(i))));
        let wrong = (total..total + 100_000).filter(|&i| presence.may_contain(mix(i))).count();
        assert!(wrong < 3_000, "{wrong} of 100,000 absent keys pass");
        assert!(presence.memory_bytes() < 4 << 20);
    }
}
