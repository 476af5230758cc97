// SPDX-License-Identifier: Apache-2.0
//! Fuse filter: an approximate set of 64-bit digests, at nine bits a digest and 0.4 % false
//! positives. Tables and indexed directories have filters of their keys.
//!
//! Layout: docs/format/table.md, "Filters". This file is its only encoder and decoder. A format that
//! has many keys divides them into partitions, so that building and probing one stays within a
//! processor's cache.
//! Source: Graf and Lemire, Binary Fuse Filters, 2022; the `xorf` crate.

use xorf::{BinaryFuse8, DmaSerializable};

use crate::wire::{WireDamage, WireInput};

/// A partition starts with the seed, the segment length, its mask and the total length of all
/// segments.
const DESCRIPTOR_BYTES: usize = 20;

/// Appends a filter over `digests` to `out` and clears them. Equal digests should be adjacent, as
/// they are in key order. An empty partition answers "maybe" to every key.
pub fn encode(digests: &mut Vec<u64>, out: &mut Vec<u8>) {
    digests.dedup();
    let built = BinaryFuse8::try_from(&*digests).or_else(|_| {
        // Different keys may, though rarely, share a digest.
        digests.sort_unstable();
        digests.dedup();
        BinaryFuse8::try_from(&*digests)
    });
    if let Ok(filter) = built {
        let mut descriptor = [0; DESCRIPTOR_BYTES];
        filter.dma_copy_descriptor_to(&mut descriptor);
        out.extend_from_slice(&descriptor);
        out.extend_from_slice(filter.dma_fingerprints());
    }
    digests.clear();
}

/// Verifies that probes of the partition `bytes` stay inside it.
pub fn check(bytes: &[u8]) -> Result<(), WireDamage> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut input = WireInput::new(bytes);
    input.u64()?;
    let (length, mask, total) = (input.u32()?, input.u32()?, input.u32()?);
    let reach = u64::from(total) + 2 * u64::from(length);
    if !length.is_power_of_two()
        || mask != length - 1
        || total == 0
        || total % length != 0
        || reach > input.left() as u64
    {
        return Err(WireDamage { offset: 8, what: "a filter whose probes stay inside it" });
    }
    Ok(())
}

/// Returns whether the partition `bytes`, already [`check`]ed, may hold `digest`.
#[inline]
#[must_use]
pub fn may_contain(bytes: &[u8], digest: u64) -> bool {
    if bytes.is_empty() {
        return true;
    }
    let (hash, probes) = probes(bytes, digest);
    let fingerprint = (hash ^ hash >> 32) as u8;
    probes.iter().fold(fingerprint, |rest, probe| rest ^ bytes[*probe]) == 0
}

/// Returns the offsets of the bytes that [`may_contain`] reads, for a caller that fetches them
/// ahead; none of an empty partition.
#[inline]
pub fn probe_offsets(bytes: &[u8], digest: u64) -> impl Iterator<Item = usize> {
    let offsets = (!bytes.is_empty()).then(|| probes(bytes, digest).1);
    offsets.into_iter().flatten()
}

/// The hash of `digest`, and the offsets of its three fingerprints in the partition `bytes`.
#[inline]
fn probes(bytes: &[u8], digest: u64) -> (u64, [usize; 3]) {
    let descriptor: &[u8; DESCRIPTOR_BYTES] = bytes.first_chunk().expect("it was checked");
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| descriptor[at + byte]));
    let seed = u64::from(word(0)) | u64::from(word(4)) << 32;
    let (segment, mask, total) = (word(8) as usize, word(12) as usize, word(16));
    let hash = murmur64(digest.wrapping_add(seed));
    let first = ((u128::from(hash) * u128::from(total)) >> 64) as usize;
    let second = (first + segment) ^ ((hash >> 18) as usize & mask);
    let third = (first + 2 * segment) ^ (hash as usize & mask);
    (hash, [first, second, third].map(|probe| DESCRIPTOR_BYTES + probe))
}

/// The finalizer of MurmurHash3.
#[inline]
fn murmur64(mut hash: u64) -> u64 {
    hash = (hash ^ hash >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ hash >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^ hash >> 33
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word_hash::mix;

    #[test]
    fn holds_every_key_and_few_others() {
        for count in [1u64, 2, 3, 10, 1_000, 65_536] {
            let mut digests: Vec<u64> = (0..count).map(mix).collect();
            digests.insert(0, mix(0));
            let mut bytes = Vec::new();
            encode(&mut digests, &mut bytes);
            check(&bytes).expect("our own filter");
            assert!((0..count).all(|i| may_contain(&bytes, mix(i))));
            let wrong = (count..count + 10_000).filter(|&i| may_contain(&bytes, mix(i))).count();
            assert!(wrong < 100, "{wrong} of 10,000 absent keys among {count} pass");
        }
    }

    #[test]
    fn hostile_descriptors_are_refused() {
        let mut bytes = Vec::new();
        encode(&mut (0..1_000).map(mix).collect(), &mut bytes);
        for at in 8..DESCRIPTOR_BYTES {
            for bit in 0..8 {
                let mut hostile = bytes.clone();
                hostile[at] ^= 1 << bit;
                if check(&hostile).is_ok() {
                    // A descriptor that passes must be safe to probe.
                    assert!((0..1_000).filter(|&i| may_contain(&hostile, mix(i))).count() <= 1_000);
                }
            }
        }
        for cut in 1..bytes.len() {
            assert!(check(&bytes[..cut]).is_err());
        }
    }
}
