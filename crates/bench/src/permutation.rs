// SPDX-License-Identifier: Apache-2.0
//! Permutation: a random order of N numbers without a table.
//!
//! A Feistel network of four rounds over the bits of N, iterated until the result is below N. The
//! peers' drivers use the same one (`peers/README.md`), so that all do the same work.

const ROUNDS: usize = 4;
const MULTIPLIER: u64 = 0xD6E8_FEB8_6659_FD93;

/// Seed of the order in which files are created.
pub const SEED_CREATE: u64 = 1;
/// Seed of the order in which they are looked up.
pub const SEED_STAT: u64 = 2;
/// Seed of the order in which they are removed.
pub const SEED_REMOVE: u64 = 3;
/// Seed of the order of look-ups that warm caches.
pub const SEED_WARM: u64 = 4;

/// A permutation of the numbers below `count`.
#[derive(Clone, Debug)]
pub struct Permutation {
    count: u64,
    left_bits: u32,
    right_bits: u32,
    keys: [u64; ROUNDS],
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn scramble(x: u64, key: u64) -> u64 {
    let mut z = (x ^ key).wrapping_mul(MULTIPLIER);
    z = (z ^ (z >> 32)).wrapping_mul(MULTIPLIER);
    z >> 32
}

impl Permutation {
    /// The permutation of the numbers below `count` that `seed` selects.
    ///
    /// # Panics
    /// If `count` is 0.
    #[must_use]
    pub fn new(count: u64, mut seed: u64) -> Self {
        assert!(count > 0, "there is something to permute");
        let bits = (64 - (count - 1).leading_zeros()).max(2);
        let left_bits = bits / 2;
        let keys = std::array::from_fn(|_| splitmix(&mut seed));
        Self { count, left_bits, right_bits: bits - left_bits, keys }
    }

    /// The number at `index`, which must be below the count.
    #[inline]
    #[must_use]
    pub fn at(&self, index: u64) -> u64 {
        let left_mask = (1 << self.left_bits) - 1;
        let right_mask = (1 << self.right_bits) - 1;
        let mut value = index;
        loop {
            let mut left = value >> self.right_bits;
            let mut right = value & right_mask;
            left ^= scramble(right, self.keys[0]) & left_mask;
            right ^= scramble(left, self.keys[1]) & right_mask;
            left ^= scramble(right, self.keys[2]) & left_mask;
            right ^= scramble(left, self.keys[3]) & right_mask;
            value = left << self.right_bits | right;
            if value < self.count {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_one_that_the_rivals_use() {
        let first = |count, seed, take| -> Vec<u64> {
            let permutation = Permutation::new(count, seed);
            (0..take).map(|index| permutation.at(index)).collect()
        };
        assert_eq!(first(10, 1, 10), [1, 2, 8, 7, 6, 4, 0, 3, 5, 9]);
        assert_eq!(first(1_000_003, 1, 3), [343_053, 712_846, 781_663]);
        assert_eq!(first(1_000_003, 2, 3), [270_831, 166_013, 663_486]);
    }

    #[test]
    fn takes_every_number_once() {
        for count in [1, 2, 3, 10, 1_000] {
            let permutation = Permutation::new(count, 7);
            let mut numbers: Vec<u64> = (0..count).map(|index| permutation.at(index)).collect();
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..count));
        }
    }
}
