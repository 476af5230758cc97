// SPDX-License-Identifier: Apache-2.0
//! Word hash: a fast hash of 64-bit words. Digests of keys in filters depend on it, so it never
//! changes.

/// Returns a hash of `word` in which every input bit reaches every output bit.
#[inline]
#[must_use]
pub fn mix(word: u64) -> u64 {
    let wide = u128::from(word ^ 0xA076_1D64_78BD_642F) * 0xE703_7ED1_A0B4_28DB;
    (wide as u64) ^ ((wide >> 64) as u64)
}
