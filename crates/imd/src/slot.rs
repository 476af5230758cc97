// SPDX-License-Identifier: Apache-2.0
//! Slot: the places of one table's rows within a small range of hashes; filter and index in one.
//!
//! Rows are sorted by place, so a slot is a sorted list of places. Truncated to `low_bits` below
//! the average gap, it costs about `low_bits` + 2.5 bits a row (Elias–Fano). A probe finds whether
//! a key may be present and in which rows, so no block index is needed.
//! ```text
//! upper  for each of rows * 3 / 2 buckets: a one for each row in it, then a zero
//! lower  for each row: low_bits bits
//! ```
//! Each part is padded to whole bytes. An absent key matches with a probability of about
//! 1 in 1.5 * 2^low_bits.
//! Source: replaces the per-table filter of DeltaFS thesis §5.3.1. Elias 1974 and Fano 1971; as a
//! filter: Geil, Farach-Colton, Owens, "Quotient filters", 2018. Building it from sorted rows takes
//! some 4 ns a key; a binary fuse filter takes some 40.

use std::ops::Range;

use esker_base::packed_bits;

use crate::hash::PLACE_BITS;

/// Maximum number of bits below the average gap: a bucket's lower parts then fit a word.
pub const LOW_BITS_MAX: u32 = 20;

/// A table is cut into at most 2^`SLOT_BITS_MAX` slots.
pub const SLOT_BITS_MAX: u32 = 20;

/// Buckets of a slot of `rows` rows: 1.5 a row is the cheapest for a given match probability.
const fn buckets(rows: u32) -> u64 {
    rows as u64 + rows as u64 / 2 + 1
}

const fn upper_bytes(rows: u32) -> u64 {
    (rows as u64 + buckets(rows)).div_ceil(8)
}

/// Encoded bytes of a slot of `rows` rows.
#[must_use]
pub const fn bytes(rows: u32, low_bits: u32) -> u64 {
    if rows == 0 { 0 } else { upper_bytes(rows) + (rows as u64 * low_bits as u64).div_ceil(8) }
}

/// The slot of `place` in a table of 2^`slot_bits` slots.
#[inline]
#[must_use]
pub const fn slot_of(place: u64, slot_bits: u32) -> u64 {
    place >> (PLACE_BITS - slot_bits)
}

/// Concatenates the bucket number of `place` and its lower bits.
#[inline]
const fn quantize(place: u64, slot_bits: u32, low_bits: u32, rows: u32) -> u64 {
    // Position within the slot's range, as a 64-bit fraction.
    let fraction = place << (64 - PLACE_BITS + slot_bits);
    let scale = buckets(rows) << low_bits;
    ((fraction as u128 * scale as u128) >> 64) as u64
}

/// Appends the slot of `places`, which ascend and all belong to one slot, to `out`.
pub fn encode(places: &[u64], slot_bits: u32, low_bits: u32, out: &mut Vec<u8>) {
    let Ok(rows) = u32::try_from(places.len()) else { unreachable!("a table's rows fit 32 bits") };
    if rows == 0 {
        return;
    }
    let start = out.len();
    let upper = usize::try_from(upper_bytes(rows)).expect("a slot fits memory");
    out.resize(start + upper, 0);
    let mask = (1 << low_bits) - 1;
    {
        let upper = &mut out[start..];
        for (row, &place) in places.iter().enumerate() {
            let bit = quantize(place, slot_bits, low_bits, rows) >> low_bits;
            let bit = bit as usize + row;
            upper[bit / 8] |= 1 << (bit % 8);
        }
    }
    let lower = places.iter().map(|&place| quantize(place, slot_bits, low_bits, rows) & mask);
    packed_bits::pack(out, lower, low_bits);
}

/// The rows, counted from the slot's first, that may have a key of `place`; empty if there are
/// none. `slot` has [`bytes()`] bytes; the answer is below `rows` for any content.
#[must_use]
pub fn find(slot: &[u8], rows: u32, slot_bits: u32, low_bits: u32, place: u64) -> Range<u32> {
    if rows == 0 || slot.len() as u64 != bytes(rows, low_bits) {
        return 0..0;
    }
    let quantized = quantize(place, slot_bits, low_bits, rows);
    let (bucket, wanted) = (quantized >> low_bits, quantized & ((1 << low_bits) - 1));
    let (upper, lower) = slot.split_at(upper_bytes(rows) as usize);
    let first = after_zeros(upper, bucket);
    // The number of ones before the bucket is the number of bits less the zeros.
    let mut row = (first - bucket).min(u64::from(rows)) as u32;
    let mut bit = first;
    let mut found = 0..0;
    while row < rows && is_one(upper, bit) {
        let low = packed_bits::get(lower, row as usize, low_bits);
        if low == wanted {
            if found.is_empty() {
                found.start = row;
            }
            found.end = row + 1;
        } else if low > wanted {
            break;
        }
        (row, bit) = (row + 1, bit + 1);
    }
    found
}

#[inline]
fn is_one(bits: &[u8], at: u64) -> bool {
    bits.get((at / 8) as usize).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
}

/// The position after the first `zeros` zeros; beyond the end if there are fewer.
fn after_zeros(upper: &[u8], zeros: u64) -> u64 {
    let mut left = zeros;
    let mut at = 0;
    if left == 0 {
        return 0;
    }
    let (words, rest) = upper.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        let here = u64::from(word.count_zeros());
        if here >= left {
            return at + nth_zero(word, left) + 1;
        }
        left -= here;
        at += 64;
    }
    let mut tail = [0xff; 8];
    tail[..rest.len()].copy_from_slice(rest);
    let word = u64::from_le_bytes(tail);
    if u64::from(word.count_zeros()) >= left { at + nth_zero(word, left) + 1 } else { at + 64 }
}

/// The position of the `n`-th zero of `word`, counted from 1; `word` has at least `n`.
fn nth_zero(word: u64, n: u64) -> u64 {
    let mut zeros = !word;
    for _ in 1..n {
        zeros &= zeros - 1;
    }
    u64::from(zeros.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use esker_base::Random;

    use super::*;

    fn sorted_places(random: &mut Random, rows: usize, slot_bits: u32) -> Vec<u64> {
        let width = PLACE_BITS - slot_bits;
        let slot = random.below(1 << slot_bits) << width;
        let mut places: Vec<u64> = (0..rows).map(|_| slot | random.below(1 << width)).collect();
        places.sort_unstable();
        places
    }

    #[test]
    fn every_place_is_found_and_others_seldom() {
        let mut random = Random::from_seed(1);
        for (rows, slot_bits, low_bits) in [(1, 0, 9), (2, 3, 9), (100, 5, 11), (3000, 12, 9)] {
            let places = sorted_places(&mut random, rows, slot_bits);
            let mut out = vec![7];
            encode(&places, slot_bits, low_bits, &mut out);
            let slot = &out[1..];
            let rows = u32::try_from(rows).expect("few");
            assert_eq!(slot.len() as u64, bytes(rows, low_bits));
            for (row, &place) in places.iter().enumerate() {
                let row = u32::try_from(row).expect("few");
                assert!(find(slot, rows, slot_bits, low_bits, place).contains(&row));
            }
            let width = PLACE_BITS - slot_bits;
            let base = places[0] >> width << width;
            let probes = 20_000;
            let hits = (0..probes)
                .filter(|_| {
                    let place = base | random.below(1 << width);
                    !find(slot, rows, slot_bits, low_bits, place).is_empty()
                })
                .count();
            let expected = f64::from(probes) / (1.5 * f64::from(1 << low_bits));
            assert!((hits as f64) < 2.0 * expected + 10.0, "{hits} of {probes}");
        }
    }

    #[test]
    fn equal_places_are_one_range() {
        let places = [5, 9, 9, 9, 1 << 39];
        let mut out = Vec::new();
        encode(&places, 0, 9, &mut out);
        assert!(find(&out, 5, 0, 9, 9).contains(&1) && find(&out, 5, 0, 9, 9).contains(&3));
        assert_eq!(find(&out, 5, 0, 9, 1 << 39), 4..5);
    }

    #[test]
    fn hostile_slots_answer_with_rows_that_exist() {
        let mut random = Random::from_seed(2);
        for _ in 0..2000 {
            let rows = u32::try_from(random.below(70)).expect("small");
            let mut slot = vec![0; usize::try_from(bytes(rows, 9)).expect("small")];
            random.fill(&mut slot);
            let found = find(&slot, rows, 0, 9, random.below(1 << PLACE_BITS));
            assert!(found.start <= found.end && found.end <= rows);
        }
        assert!(find(&[], 3, 0, 9, 1).is_empty());
    }
}
