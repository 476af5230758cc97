// SPDX-License-Identifier: Apache-2.0
//! Prefix checksums: the CRC-32C of any range of a log in constant time, after one pass over the
//! log.
//!
//! Replay compares the checksum of every place after damage that looks like a chunk. Such places
//! may overlap without bound in a log with bytes that a user chose, so reading each one whole would
//! take quadratic time. A checksum is a remainder modulo the polynomial, so the checksum of a range
//! follows from those of the two prefixes that end at its ends: multiply the shorter prefix's
//! checksum by a power of x, which stands for the bytes after it, and add it to the longer one's.
//! Source: `crc32_combine` of zlib; Adler, "crcany".

use std::ops::Range;

/// A prefix is checksummed from the last multiple of this size.
const BLOCK_BYTES: usize = 1 << 10;
/// CRC-32C's polynomial; as in all values here, bit 31 is the coefficient of x⁰.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;
/// For each of the four bytes of a length, and each of its values, the power of x that stands for
/// that many bytes.
static POWERS: [[u32; 256]; 4] = powers();

/// The checksums of all prefixes of some bytes.
#[derive(Debug)]
pub(super) struct PrefixChecksums<'a> {
    bytes: &'a [u8],
    /// Those of the prefixes that end at multiples of [`BLOCK_BYTES`].
    at_blocks: Vec<u32>,
}

impl<'a> PrefixChecksums<'a> {
    /// Reads `bytes` once.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let mut at_blocks = Vec::with_capacity(bytes.len() / BLOCK_BYTES + 1);
        at_blocks.push(0);
        for block in bytes.chunks_exact(BLOCK_BYTES) {
            at_blocks.push(crc32c::crc32c_append(at_blocks[at_blocks.len() - 1], block));
        }
        Self { bytes, at_blocks }
    }

    /// Returns `crc32c_append(before, &bytes[range])`.
    ///
    /// # Panics
    /// If the range is not within the bytes, or has 4 GiB or more.
    pub(super) fn append(&self, before: u32, range: Range<usize>) -> u32 {
        let length = u32::try_from(range.len()).expect("a chunk's length fits 32 bits");
        let mut shorter = before ^ self.prefix(range.start);
        for (byte, powers) in length.to_le_bytes().into_iter().zip(&POWERS) {
            if byte > 0 {
                shorter = multiply(shorter, powers[usize::from(byte)]);
            }
        }
        shorter ^ self.prefix(range.end)
    }

    fn prefix(&self, end: usize) -> u32 {
        let block = end / BLOCK_BYTES;
        crc32c::crc32c_append(self.at_blocks[block], &self.bytes[block * BLOCK_BYTES..end])
    }
}

/// Multiplies two polynomials modulo [`POLYNOMIAL`].
const fn multiply(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, ONE);
    while bit > 0 {
        if a & bit != 0 {
            product ^= b;
        }
        // b times x.
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        bit >>= 1;
    }
    product
}

const fn powers() -> [[u32; 256]; 4] {
    let mut powers = [[ONE; 256]; 4];
    // One byte: x⁸.
    let (mut step, mut byte) = (ONE >> 8, 0);
    while byte < powers.len() {
        let mut value = 1;
        while value < 256 {
            powers[byte][value] = multiply(powers[byte][value - 1], step);
            value += 1;
        }
        step = multiply(powers[byte][255], step);
        byte += 1;
    }
    powers
}

#[cfg(test)]
mod tests {
    use esker_base::Random;

    use super::*;

    #[test]
    fn any_range_has_the_checksum_of_its_bytes() {
        let mut random = Random::from_seed(4);
        let bytes: Vec<u8> = (0..300_000).map(|_| random.next_u64() as u8).collect();
        let checksums = PrefixChecksums::new(&bytes);
        let ends = [0, 1, 255, 256, 1_023, 1_024, 65_536, 65_537, bytes.len() - 1, bytes.len()];
        let drawn = (0..2_000).map(|_| random.below(bytes.len() as u64 + 1) as usize);
        let ends: Vec<usize> = ends.into_iter().chain(drawn).collect();
        for pair in ends.windows(2) {
            let range = pair[0].min(pair[1])..pair[0].max(pair[1]);
            let before = random.next_u64() as u32;
            let expected = crc32c::crc32c_append(before, &bytes[range.clone()]);
            assert_eq!(checksums.append(before, range.clone()), expected, "{range:?}");
        }
    }

    #[test]
    fn every_byte_of_a_length_counts() {
        for length in [1_u64, 255, 256, 70_000, 1 << 24, (1 << 24) + 257] {
            let mut power = ONE;
            for (byte, powers) in length.to_le_bytes().into_iter().zip(&POWERS) {
                power = multiply(power, powers[usize::from(byte)]);
            }
            let zeros = vec![0; length as usize];
            // A checksum followed by zeros, without the inversions of CRC-32C.
            let appended = crc32c::crc32c_append(0, &zeros) ^ crc32c::crc32c_append(5, &zeros);
            assert_eq!(multiply(5, power), appended, "{length}");
        }
    }
}
