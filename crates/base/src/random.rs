// SPDX-License-Identifier: Apache-2.0
//! Random: a small seedable generator, so that a failing run can be replayed from its seed.
//!
//! The stream of a seed never changes between releases, since tests name seeds that once failed.
//! That, and 256 bits of state for ids that must not collide, is why this is not an external crate.
//! Not for keys or secrets.
//! Source: xoshiro256++ and its seeding by SplitMix64, Blackman and Vigna, "Scrambled linear
//! pseudorandom number generators", ACM TOMS 47(4), 2021.

use std::fs::File;
use std::io::Read;

use rustix::rand::{GetRandomFlags, getrandom};

/// A generator of pseudorandom numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// Makes the generator of `seed`: the same numbers on every machine and in every release.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut weyl = seed;
        let state = std::array::from_fn(|_| {
            weyl = weyl.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = weyl;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        });
        Self { state }
    }

    /// Makes a generator whose whole state comes from the kernel, so that its ids are unique.
    ///
    /// # Panics
    /// If neither `getrandom` nor `/dev/urandom` works: no id made afterwards could be trusted.
    #[must_use]
    pub fn from_system() -> Self {
        let mut bytes = [0_u8; 32];
        if getrandom(&mut bytes[..], GetRandomFlags::empty()).ok() != Some(bytes.len()) {
            File::open("/dev/urandom")
                .and_then(|mut source| source.read_exact(&mut bytes))
                .expect("the kernel gives randomness by getrandom or /dev/urandom");
        }
        let (words, _) = bytes.as_chunks::<8>();
        let mut state = [0; 4];
        for (slot, word) in state.iter_mut().zip(words) {
            *slot = u64::from_le_bytes(*word);
        }
        // All zeroes is the one state from which xoshiro never escapes.
        if state == [0; 4] { Self::from_seed(0) } else { Self { state } }
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let state = &mut self.state;
        let result = state[0].wrapping_add(state[3]).rotate_left(23).wrapping_add(state[0]);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// Returns a uniform number below `bound`, to within 2⁻⁶⁴; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(product >> 64).expect("the high half of a 128-bit product fits 64 bits")
    }

    /// Returns the next 128 bits, for an id.
    pub fn u128(&mut self) -> u128 {
        u128::from(self.next_u64()) << 64 | u128::from(self.next_u64())
    }

    /// Returns true with a chance of one in `chances`; never if `chances` is 0.
    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0 && chances > 0
    }

    /// Overwrites `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of the reference implementation in C for the state 1, 2, 3, 4.
    #[test]
    fn agrees_with_the_reference() {
        let mut random = Random { state: [1, 2, 3, 4] };
        let first: Vec<u64> = (0..4).map(|_| random.next_u64()).collect();
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn a_seed_repeats_itself() {
        let (mut a, mut b) = (Random::from_seed(7), Random::from_seed(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
        assert_ne!(Random::from_seed(7).next_u64(), Random::from_seed(8).next_u64());
    }

    #[test]
    fn below_stays_below() {
        let mut random = Random::from_seed(1);
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[usize::try_from(random.below(10)).expect("small")] = true;
        }
        assert_eq!(seen, [true; 10]);
    }

    #[test]
    fn ids_of_the_system_differ() {
        assert_ne!(Random::from_system().u128(), Random::from_system().u128());
    }

    #[test]
    fn fill_reaches_every_byte() {
        let mut random = Random::from_seed(3);
        let mut union = [0_u8; 13];
        for _ in 0..100 {
            let mut bytes = [0_u8; 13];
            random.fill(&mut bytes);
            for (all, byte) in union.iter_mut().zip(bytes) {
                *all |= byte;
            }
        }
        assert_eq!(union, [0xff; 13]);
    }
}
