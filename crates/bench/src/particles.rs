// SPDX-License-Identifier: Apache-2.0
//! Particles: the synthetic records of `esker bench imd-write` and of the peers' drivers.
//!
//! Every epoch has one record of each of `keys` keys, as a simulation writes each of its particles
//! at each step; a key moves to the next rank with each epoch. Keys are 8 random bytes, all
//! different; values are a function of key and epoch and cannot be compressed, so any record can be
//! checked. `peers/README.md` has the definition; `make -C peers check` compares it with the
//! drivers.
//! Source: the benchmark of DeltaFS thesis §5.3.1.

use std::ops::Range;

/// Bytes of a key.
pub const KEY_BYTES: usize = 8;

/// Most bytes of a value.
pub const VALUE_BYTES_MAX: usize = 1 << 16;

/// Seed of the order of gets.
pub const SEED_GET: u64 = 5;

const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
const EPOCH_STEP: u64 = 0xD6E8_FEB8_6659_FD93;
const VALUE_MULTIPLIER: u64 = 0xFF51_AFD7_ED55_8CCD;

/// Size of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParticleCount {
    /// Number of keys, each written once per epoch.
    pub keys: u64,
    /// Bytes of each value, at most [`VALUE_BYTES_MAX`].
    pub value_bytes: usize,
    /// Number of ranks that write.
    pub ranks: u32,
}

impl ParticleCount {
    /// Key `number`, which is below `keys`.
    #[inline]
    #[must_use]
    pub fn key(number: u64) -> [u8; KEY_BYTES] {
        let mut z = number.wrapping_add(GAMMA);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).to_be_bytes()
    }

    /// Overwrites `value` with the value of `key` in `epoch`.
    #[inline]
    pub fn fill(key: [u8; KEY_BYTES], epoch: u32, value: &mut [u8]) {
        let start = u64::from(epoch).wrapping_mul(EPOCH_STEP);
        let mut word = u64::from_be_bytes(key).wrapping_add(start);
        let mut next = || {
            let mixed = word.wrapping_mul(VALUE_MULTIPLIER);
            word = word.wrapping_add(GAMMA);
            (mixed ^ (mixed >> 32)).to_le_bytes()
        };
        let (words, rest) = value.as_chunks_mut();
        words.iter_mut().for_each(|bytes| *bytes = next());
        rest.copy_from_slice(&next()[..rest.len()]);
    }

    /// The rank that writes key `number` in `epoch`.
    #[must_use]
    pub fn rank(&self, number: u64, epoch: u32) -> u32 {
        let rank = (number + u64::from(epoch)) % u64::from(self.ranks);
        u32::try_from(rank).expect("below the number of ranks")
    }

    /// The numbers of the keys that `rank` writes in `epoch`, in its order.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn of_rank(&self, rank: u32, epoch: u32) -> impl Iterator<Item = u64> + use<> {
        assert!(rank < self.ranks, "there is no rank {rank} of {}", self.ranks);
        let ranks = u64::from(self.ranks);
        let first = (u64::from(rank) + ranks - u64::from(epoch) % ranks) % ranks;
        let numbers: Range<u64> = first..self.keys.max(first);
        numbers.step_by(self.ranks as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_of_one_rank_in_each_epoch() {
        for ranks in [1, 2, 3, 7, 200] {
            let particles = ParticleCount { keys: 100, value_bytes: 0, ranks };
            for epoch in [0, 1, 2, 250, u32::MAX] {
                let mut writers = vec![0; 100];
                for rank in 0..ranks {
                    for number in particles.of_rank(rank, epoch) {
                        assert_eq!(particles.rank(number, epoch), rank);
                        writers[usize::try_from(number).expect("small")] += 1;
                    }
                }
                assert_eq!(writers, [1; 100], "{ranks} ranks, epoch {epoch}");
            }
        }
    }

    /// Values from peers/README.md.
    #[test]
    fn records_never_change() {
        assert_eq!(u64::from_be_bytes(ParticleCount::key(0)), 0xe220_a839_7b1d_cdaf);
        assert_eq!(u64::from_be_bytes(ParticleCount::key(1)), 0x910a_2dec_8902_5cc1);
        let mut value = [0; 12];
        ParticleCount::fill(ParticleCount::key(1), 3, &mut value);
        assert_eq!(value, [246, 124, 172, 220, 68, 86, 249, 7, 41, 9, 163, 31]);
    }
}
