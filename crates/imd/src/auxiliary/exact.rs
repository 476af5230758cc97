// SPDX-License-Identifier: Apache-2.0
//! Exact list: the few keys of an auxiliary table that its compact part did not take, stored in
//! full.
//!
//! Layout (docs/format/auxiliary.md): number of sources, ascending digests, the end of each
//! digest's sources, sources. This file is its only encoder and decoder.
//! Invariants: digests strictly ascend; every digest has at least one source.
//! Concurrency: immutable.

use esker_base::Bytes;
use esker_base::packed_bits;
use esker_base::wire::{WireDamage, WireInput};

use super::KeyRankPair;

/// Bytes of a digest.
const DIGEST_BYTES: usize = 8;

/// Number of distinct keys in the ascending `pairs`.
pub fn keys(pairs: &[KeyRankPair]) -> u32 {
    let keys = pairs.chunk_by(|a, b| a.hash == b.hash).count();
    u32::try_from(keys).expect("at most PAIRS_MAX")
}

/// Appends the list of `pairs`, whose `hash` field holds the digest here; they strictly ascend.
pub fn put(out: &mut Vec<u8>, pairs: &[KeyRankPair], source_bits: u32) {
    let total = u32::try_from(pairs.len()).expect("at most PAIRS_MAX");
    out.extend_from_slice(&total.to_le_bytes());
    let mut ends = Vec::new();
    let mut end = 0;
    for group in pairs.chunk_by(|a, b| a.hash == b.hash) {
        out.extend_from_slice(&group[0].hash.to_le_bytes());
        end += group.len() as u64;
        ends.push(end);
    }
    packed_bits::pack(out, ends.into_iter(), packed_bits::width_of(u64::from(total)));
    packed_bits::pack(out, pairs.iter().map(|pair| u64::from(pair.source)), source_bits);
}

/// An encoded list.
#[derive(Clone, Debug)]
pub struct ExactList {
    digests: Bytes,
    ends: Bytes,
    end_bits: u32,
    sources: Bytes,
    source_bits: u32,
}

impl ExactList {
    /// Parses `bytes` as a list of `keys` keys; `base` is their offset in the object.
    pub fn parse(
        bytes: &Bytes,
        base: usize,
        keys: u32,
        source_bits: u32,
    ) -> Result<Self, WireDamage> {
        let at = |offset, what| WireDamage { offset: base + offset, what };
        let mut input = WireInput::new(bytes);
        let total = input.u32().map_err(|damage| at(damage.offset, damage.what))? as usize;
        let (keys, end_bits) = (keys as usize, packed_bits::width_of(total as u64));
        let digests = input.at()..input.at() + keys * DIGEST_BYTES;
        let ends = digests.end..digests.end + packed_bits::bytes(keys, end_bits);
        let sources = ends.end..ends.end + packed_bits::bytes(total, source_bits);
        if sources.end != bytes.len() {
            return Err(at(0, "a list that fills its bytes"));
        }
        let list = Self {
            digests: bytes.slice(digests),
            ends: bytes.slice(ends.clone()),
            end_bits,
            sources: bytes.slice(sources),
            source_bits,
        };
        let ascending = (1..keys).all(|index| list.digest(index - 1) < list.digest(index));
        let mut last = 0;
        let growing =
            (0..keys).all(|index| list.end(index) > std::mem::replace(&mut last, list.end(index)));
        if !ascending || !growing || last != total {
            return Err(at(ends.start, "ascending keys with their sources"));
        }
        Ok(list)
    }

    /// The sources of the key with `digest`; empty if it is not listed.
    pub fn sources(&self, digest: u64) -> impl Iterator<Item = u32> + '_ {
        let range = self.find(digest).map_or(0..0, |index| {
            let start = index.checked_sub(1).map_or(0, |before| self.end(before));
            start..self.end(index)
        });
        range.map(|index| {
            let source = packed_bits::get(&self.sources, index, self.source_bits);
            u32::try_from(source).expect("at most 32 bits")
        })
    }

    fn find(&self, digest: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.digests.len() / DIGEST_BYTES);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.digest(middle).cmp(&digest) {
                std::cmp::Ordering::Equal => return Some(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    fn digest(&self, index: usize) -> u64 {
        let at = index * DIGEST_BYTES;
        let bytes = &self.digests[at..at + DIGEST_BYTES];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn end(&self, index: usize) -> usize {
        usize::try_from(packed_bits::get(&self.ends, index, self.end_bits))
            .expect("at most 32 bits")
    }
}
