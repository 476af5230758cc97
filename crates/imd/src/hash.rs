// SPDX-License-Identifier: Apache-2.0
//! Hash of a key: determines its partition, its place in a table and its fingerprint.
//!
//! The high bits choose the partition, so a partition is one contiguous range of hashes; the
//! following bits order the rows of a table. Part of the format: never changed.

use xxhash_rust::xxh3::xxh3_64;

/// Minimum bytes of a key.
pub const KEY_BYTES_MIN: usize = 1;

/// Maximum bytes of a key: its length is stored in one byte.
pub const KEY_BYTES_MAX: usize = 255;

/// Hashes a key of any length: 64-bit XXH3, seed 0.
#[inline]
#[must_use]
pub fn key_hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// Bits of a place that order the rows of a table.
pub const PLACE_BITS: u32 = 40;

/// The partition of `hash` among `partitions`, and its position in that partition's range as a
/// fraction with [`PLACE_BITS`] bits. Each partition gets an equal, contiguous range of hashes.
///
/// # Panics
/// If `partitions` is 0.
#[inline]
#[must_use]
pub fn home(hash: u64, partitions: u32) -> (u32, u64) {
    assert!(partitions > 0, "an indexed directory has at least one partition");
    let product = u128::from(hash) * u128::from(partitions);
    let (partition, within) = ((product >> 64) as u64, product as u64);
    let partition = u32::try_from(partition).expect("a product's high half is below its factors");
    (partition, within >> (64 - PLACE_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_contiguous_and_equal() {
        let last = (1 << PLACE_BITS) - 1;
        assert_eq!(home(0, 3), (0, 0));
        assert_eq!(home(u64::MAX, 3), (2, last));
        assert_eq!(home(u64::MAX / 2, 2), (0, last));
        assert_eq!(home(u64::MAX / 2 + 1, 2), (1, 0));
        assert_eq!(home(u64::MAX, 1), (0, last));
        assert_eq!(home(u64::MAX, u32::MAX).0, u32::MAX - 1);
    }

    #[test]
    fn hash_never_changes() {
        assert_eq!(key_hash(b"a"), 0xe6c6_32b6_1e96_4e1f);
        assert_eq!(key_hash(&42_u64.to_le_bytes()), 0xd5a6_f8c8_38df_27c8);
    }
}
