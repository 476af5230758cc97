// SPDX-License-Identifier: Apache-2.0
//! Ribbon: a static function from the keys of an epoch to their sources. A present key has exactly
//! its sources as candidates, at 1.04 times the bits of a source, and keys are not stored.
//!
//! A key is a linear equation over bits: the XOR of some of [`BAND_BITS`] neighbouring slots,
//! chosen by its digest, is its source. Solving all equations gives the slots. Equations come
//! sorted by their first slot, so solving is one pass forward and one pass back over memory.
//!
//! Layout: docs/format/auxiliary.md. This file is its only encoder and decoder.
//! Invariant: a key in the exact list has all its sources there, and only there. The list holds
//! keys with several sources and keys whose equation contradicts others, about 1 in 1,000. Building
//! therefore needs no seeds to retry and always terminates.
//! Concurrency: immutable once built.
//! Source: Dillinger and Walzer, Ribbon filter: practically smaller than Bloom and Xor, 2021;
//! keys that do not fit go elsewhere as in Dillinger, Hübschle-Schneider, Sanders and Walzer, Fast
//! succinct retrieval and approximate membership using ribbon, SEA 2022.

use esker_base::Bytes;
use esker_base::packed_bits;
use esker_base::wire::WireDamage;

use super::exact::{self, ExactList};
use super::{AuxiliaryHeader, CHECKSUM_BYTES, HEADER_BYTES, KeyRankPair, KindByte};

/// Maximum number of slots that an equation spans.
pub const BAND_BITS: u32 = 64;

/// Slots per spare slot. Measured with 8 Mi keys of 4,096 sources, 1 spare in 20 / 24 / 28 / 32 /
/// 40 slots: 12.61 / 12.53 / 12.48 / 12.45 / 12.42 bits a key, and 0.02 / 0.03 / 0.06 / 0.08 / 0.13
/// % of the keys listed. With 64 sources, more spare slots are no worse.
const SLOTS_PER_SPARE: usize = 32;

/// Slots after the last possible first slot.
const SLOTS_TAIL: usize = BAND_BITS as usize - 1;

/// Up to this many pairs are sorted directly; more are first split by their digests.
const SORT_PAIRS_MAX: usize = 512;

/// Encodes `pairs`, which may repeat and come in any order; leaves them in an unspecified order.
pub(super) fn encode(pairs: &mut Vec<KeyRankPair>) -> Vec<u8> {
    let inserted = u32::try_from(pairs.len()).expect("at most PAIRS_MAX");
    let source_bits = super::source_bits(pairs);
    for pair in pairs.iter_mut() {
        pair.hash = super::digest(pair.hash);
    }
    sort(pairs, u64::BITS);
    pairs.dedup();
    let (slots, listed) = solve(pairs, source_bits);

    let mut out = Vec::with_capacity(
        HEADER_BYTES
            + packed_bits::bytes(slots.len(), source_bits)
            + 16 * listed.len()
            + CHECKSUM_BYTES
            + 4,
    );
    let count = u32::try_from(slots.len()).expect("not many more slots than pairs");
    let header = AuxiliaryHeader {
        kind: KindByte::Ribbon,
        source_bits,
        small: [BAND_BITS as u8, 0],
        pairs: inserted,
        large: count,
        listed: exact::keys(&listed),
    };
    header.put(&mut out);
    packed_bits::pack(&mut out, slots.iter().map(|slot| u64::from(*slot)), source_bits);
    exact::put(&mut out, &listed, source_bits);
    super::put_checksum(&mut out);
    out
}

/// Solves sorted pairs: returns the slots, and the pairs that are not in them.
fn solve(pairs: &[KeyRankPair], source_bits: u32) -> (Vec<u32>, Vec<KeyRankPair>) {
    let mut listed = Vec::new();
    let groups = || pairs.chunk_by(|a, b| a.hash == b.hash);
    let keys = groups().filter(|group| group.len() == 1).count();
    if source_bits == 0 {
        return (Vec::new(), listed);
    }
    let mut band = BandMatrix::new(keys);
    for group in groups() {
        if group.len() > 1 || !band.insert(group[0]) {
            listed.extend_from_slice(group);
        }
    }
    (band.solution(), listed)
}

/// Number of slots for `keys` keys.
fn slots_for(keys: usize) -> usize {
    if keys == 0 { 0 } else { keys + keys / SLOTS_PER_SPARE + SLOTS_TAIL + 1 }
}

/// The first slot and the coefficients of a key; bit 0 of the coefficients is set.
#[inline]
fn equation(digest: u64, slots: usize) -> (usize, u64) {
    let first = (u128::from(digest) * (slots - SLOTS_TAIL) as u128) >> 64;
    let coefficients = (digest ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let first = usize::try_from(first).expect("below the number of slots");
    (first, (coefficients ^ (coefficients >> 32)) | 1)
}

/// Equations in echelon form: the equation of slot i begins at slot i.
struct BandMatrix {
    coefficients: Vec<u64>,
    values: Vec<u32>,
}

impl BandMatrix {
    fn new(keys: usize) -> Self {
        let slots = slots_for(keys);
        Self { coefficients: vec![0; slots], values: vec![0; slots] }
    }

    /// Adds the equation of a key; false if it contradicts earlier ones.
    fn insert(&mut self, pair: KeyRankPair) -> bool {
        let (mut slot, mut coefficients) = equation(pair.hash, self.coefficients.len());
        let mut value = pair.source;
        loop {
            let taken = self.coefficients[slot];
            if taken == 0 {
                self.coefficients[slot] = coefficients;
                self.values[slot] = value;
                return true;
            }
            coefficients ^= taken;
            value ^= self.values[slot];
            if coefficients == 0 {
                return value == 0;
            }
            let skip = coefficients.trailing_zeros();
            coefficients >>= skip;
            slot += skip as usize;
        }
    }

    /// Slots that solve all equations; slots that no equation needs are 0.
    fn solution(self) -> Vec<u32> {
        let Self { coefficients, mut values } = self;
        let count = values.len();
        // The window of the last slots extends beyond the end.
        values.resize(count + SLOTS_TAIL, 0);
        for slot in (0..count).rev() {
            let row = coefficients[slot];
            let window: &[u32; 64] =
                values[slot..slot + 64].try_into().expect("the tail was appended");
            // Bit 0 is the slot itself, which holds the equation's value so far.
            let solved = if row == 0 { 0 } else { select(window, row) };
            values[slot] = solved;
        }
        values.truncate(count);
        values
    }
}

/// The XOR of the values whose bits are set, without branches so that it vectorizes.
#[inline]
fn select(window: &[u32; 64], bits: u64) -> u32 {
    let halves = [bits as u32, (bits >> 32) as u32];
    let mut sums = [0_u32; 8];
    for (half, values) in halves.iter().zip(window.chunks_exact(32)) {
        for (group, lanes) in values.chunks_exact(8).enumerate() {
            let byte = half >> (8 * group);
            for lane in 0..8 {
                let chosen = (byte & (1 << lane) != 0) as u32;
                sums[lane] ^= lanes[lane] & chosen.wrapping_neg();
            }
        }
    }
    sums.iter().fold(0, |sum, lane| sum ^ lane)
}

/// Sorts by the lowest `left` bits of the digest, whose higher bits agree, then by source.
///
/// In place, so that memory holds an epoch's pairs only once. Digests are evenly spread, so
/// splitting by eight bits at a time gives parts of about one size. Source: `MacIlroy`, Bostic and
/// `McIlroy`, Engineering radix sort, 1993 (American flag sort).
fn sort(pairs: &mut [KeyRankPair], left: u32) {
    if pairs.len() <= SORT_PAIRS_MAX || left < 8 {
        pairs.sort_unstable();
        return;
    }
    let shift = left - 8;
    let digit = |pair: &KeyRankPair| (pair.hash >> shift) as usize & 0xff;
    let mut ends = [0_usize; 256];
    for pair in pairs.iter() {
        ends[digit(pair)] += 1;
    }
    let mut next = [0_usize; 256];
    let mut end = 0;
    for (start, count) in next.iter_mut().zip(&mut ends) {
        *start = end;
        end += *count;
        *count = end;
    }
    for part in 0..256 {
        while next[part] < ends[part] {
            let mut carried = pairs[next[part]];
            loop {
                let home = digit(&carried);
                let place = next[home];
                next[home] += 1;
                if home == part {
                    pairs[place] = carried;
                    break;
                }
                std::mem::swap(&mut pairs[place], &mut carried);
            }
        }
    }
    let mut start = 0;
    for end in ends {
        sort(&mut pairs[start..end], shift);
        start = end;
    }
}

/// An encoded static function.
#[derive(Clone, Debug)]
pub struct RibbonTable {
    header: AuxiliaryHeader,
    slots: Bytes,
    exact: ExactList,
}

impl RibbonTable {
    pub(super) fn parse(header: AuxiliaryHeader, bytes: Bytes) -> Result<Self, WireDamage> {
        let AuxiliaryHeader { source_bits, small, large: slots, listed, .. } = header;
        if small != [BAND_BITS as u8, 0] {
            return Err(WireDamage { offset: 10, what: "equations of 64 slots" });
        }
        if slots != 0 && (slots as usize <= SLOTS_TAIL || source_bits == 0) {
            return Err(WireDamage { offset: 16, what: "a possible number of slots" });
        }
        let end = bytes.len() - CHECKSUM_BYTES;
        let list = HEADER_BYTES + packed_bits::bytes(slots as usize, source_bits);
        if list > end {
            return Err(WireDamage { offset: HEADER_BYTES, what: "more bytes than there are" });
        }
        let exact = ExactList::parse(&bytes.slice(list..end), list, listed, source_bits)?;
        Ok(Self { header, slots: bytes.slice(HEADER_BYTES..list), exact })
    }

    /// Appends the sources of the key with `hash`: exactly those it was inserted with, if it was
    /// inserted.
    pub fn candidates(&self, hash: u64, found: &mut Vec<u32>) {
        let digest = super::digest(hash);
        let before = found.len();
        found.extend(self.exact.sources(digest));
        if found.len() > before || self.header.pairs == 0 {
            return;
        }
        if self.header.source_bits == 0 {
            found.push(0);
        } else if self.header.large > 0 {
            found.push(self.evaluate(digest));
        }
    }

    fn evaluate(&self, digest: u64) -> u32 {
        let (first, mut coefficients) = equation(digest, self.header.large as usize);
        let mut sum = 0;
        while coefficients != 0 {
            let slot = first + coefficients.trailing_zeros() as usize;
            sum ^= packed_bits::get(&self.slots, slot, self.header.source_bits);
            coefficients &= coefficients - 1;
        }
        u32::try_from(sum).expect("at most 32 bits")
    }

    /// Number of pairs inserted, duplicates included.
    #[must_use]
    pub fn pairs(&self) -> u32 {
        self.header.pairs
    }

    /// Number of keys in the exact list.
    #[must_use]
    pub fn listed(&self) -> u32 {
        self.header.listed
    }
}
