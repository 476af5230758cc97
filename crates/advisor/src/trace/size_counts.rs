// SPDX-License-Identifier: Apache-2.0
//! Size counts: the number of occurrences of each number of bytes, in bounded memory.
//!
//! The first [`EXACT_SIZES_MAX`] sizes are counted exactly, which is enough for applications; of
//! any further size only the seven highest bits are kept, an error below 1 %.

use hashbrown::HashMap;

/// Sizes that are counted exactly.
const EXACT_SIZES_MAX: usize = 1 << 16;

/// Bits that are kept of other sizes.
const KEPT_BITS: u32 = 7;

/// Counts by size.
#[derive(Clone, Debug, Default)]
pub struct SizeCounts {
    counts: HashMap<u64, u64>,
    total: u64,
    /// The size that came last and its count, which is not in `counts` yet: sizes repeat.
    last: (u64, u64),
}

impl SizeCounts {
    /// Counts `bytes` once more.
    pub fn add(&mut self, bytes: u64) {
        self.total += 1;
        if self.last.0 != bytes {
            self.flush();
            self.last = (bytes, 0);
        }
        self.last.1 += 1;
    }

    /// Counts `bytes` `times` more.
    pub fn add_times(&mut self, bytes: u64, times: u64) {
        self.flush();
        self.total = self.total.saturating_add(times);
        self.last = (bytes, times);
    }

    /// The number of values.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The median, the lower one of two; 0 without values.
    #[must_use]
    pub fn median(&self) -> u64 {
        let mut before = 0_u64;
        let half = self.total.div_ceil(2);
        let sorted = self.sorted();
        let found = sorted.iter().find(|(_, count)| {
            before = before.saturating_add(*count);
            before >= half
        });
        found.map_or(0, |(bytes, _)| *bytes)
    }

    /// Sizes and counts, the smallest size first.
    #[must_use]
    pub fn sorted(&self) -> Vec<(u64, u64)> {
        let mut counts = self.clone();
        counts.flush();
        let mut sorted: Vec<_> = counts.counts.into_iter().collect();
        sorted.sort_unstable();
        sorted
    }

    fn flush(&mut self) {
        let (bytes, count) = self.last;
        if count == 0 {
            return;
        }
        let is_full = self.counts.len() >= EXACT_SIZES_MAX;
        let key = match is_full && !self.counts.contains_key(&bytes) {
            true => rounded(bytes),
            false => bytes,
        };
        let counted = self.counts.entry(key).or_default();
        *counted = counted.saturating_add(count);
        self.last.1 = 0;
    }
}

/// `bytes` with its [`KEPT_BITS`] highest bits.
fn rounded(bytes: u64) -> u64 {
    let dropped = (u64::BITS - bytes.leading_zeros()).saturating_sub(KEPT_BITS);
    bytes >> dropped << dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_exact_for_few_sizes() {
        let mut counts = SizeCounts::default();
        assert_eq!((counts.median(), counts.total()), (0, 0));
        for bytes in [5, 5, 9, 1, 7] {
            counts.add(bytes);
        }
        assert_eq!(counts.median(), 5);
        assert_eq!(counts.sorted(), [(1, 1), (5, 2), (7, 1), (9, 1)]);
        counts.add(9);
        assert_eq!((counts.median(), counts.total()), (5, 6));
    }

    #[test]
    fn memory_is_bounded_and_medians_stay_near() {
        let mut counts = SizeCounts::default();
        let sizes = 3 * EXACT_SIZES_MAX as u64;
        (0..sizes).for_each(|bytes| counts.add(1_000_000 + 10 * bytes));
        assert!(counts.counts.len() <= EXACT_SIZES_MAX + 64 * (1 << KEPT_BITS));
        let median = 1_000_000 + 10 * (sizes / 2);
        assert!(counts.median().abs_diff(median) * 100 <= median, "{}", counts.median());
        assert_eq!(counts.total(), sizes);
    }
}
