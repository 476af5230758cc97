// SPDX-License-Identifier: Apache-2.0
//! Guarantees of both kinds of auxiliary table, over the same pairs.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::hash::key_hash;
use esker_base::Random;

const ENCODINGS: [AuxiliaryEncoding; 4] = [
    AuxiliaryEncoding::Ribbon,
    AuxiliaryEncoding::Cuckoo { fingerprint_bits: cuckoo::FINGERPRINT_BITS },
    AuxiliaryEncoding::Cuckoo { fingerprint_bits: 1 },
    AuxiliaryEncoding::Cuckoo { fingerprint_bits: cuckoo::FINGERPRINT_BITS_MAX },
];

fn encode(encoding: AuxiliaryEncoding, pairs: impl IntoIterator<Item = (u64, u32)>) -> Vec<u8> {
    let mut builder = AuxiliaryBuilder::new(encoding);
    pairs.into_iter().for_each(|(hash, source)| builder.insert(hash, source));
    builder.finish().expect("few small pairs")
}

fn parse(encoded: &[u8]) -> AuxiliaryTable {
    AuxiliaryTable::parse(Bytes::copy_from_slice(encoded)).expect("what was just encoded")
}

fn candidates(reader: &AuxiliaryTable, hash: u64) -> Vec<u32> {
    let mut found = vec![u32::MAX];
    reader.candidates(hash, &mut found);
    assert_eq!(found.remove(0), u32::MAX, "what was found before stays");
    let distinct: BTreeSet<u32> = found.iter().copied().collect();
    assert_eq!(distinct.len(), found.len(), "each source once");
    found
}

/// Every source of every key is a candidate; a ribbon has no others.
fn check(encoding: AuxiliaryEncoding, pairs: &[(u64, u32)]) {
    let mut model: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for (hash, source) in pairs {
        model.entry(*hash).or_default().insert(*source);
    }
    let reader = parse(&encode(encoding, pairs.iter().copied()));
    assert_eq!(reader.pairs() as usize, pairs.len());
    for (hash, sources) in &model {
        let found: BTreeSet<u32> = candidates(&reader, *hash).into_iter().collect();
        assert!(
            found.is_superset(sources),
            "{encoding:?}: {hash:x} has {sources:?}, not {found:?}"
        );
        if encoding == AuxiliaryEncoding::Ribbon {
            assert_eq!(&found, sources, "{hash:x}");
        }
    }
}

/// Hashes from a few values as well as from all, so that keys repeat and tables have hot spots.
fn pairs() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let hash = prop_oneof![any::<u64>(), 0..40_u64, (0..1000_u64).prop_map(|n| n << 54), Just(7)];
    let source = prop_oneof![0..3_u32, 0..4096_u32, 0..1_u32 << 15];
    prop::collection::vec((hash, source), 0..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_source_of_every_key_is_a_candidate(pairs in pairs()) {
        ENCODINGS.into_iter().for_each(|encoding| check(encoding, &pairs));
    }

    /// The order of arrival at a partition varies from run to run; the stored bytes must not.
    #[test]
    fn a_ribbon_does_not_depend_on_the_order(mut pairs in pairs()) {
        let before = encode(AuxiliaryEncoding::Ribbon, pairs.iter().copied());
        pairs.reverse();
        prop_assert_eq!(before, encode(AuxiliaryEncoding::Ribbon, pairs));
    }
}

#[test]
fn sizes_from_nothing_to_many() {
    let mut random = Random::from_seed(1);
    for count in [0, 1, 2, 3, 4, 5, 63, 64, 65, 511, 512, 513, 1 << 10, 3000, 40_000] {
        for sources in [1, 2, 3, 4096] {
            let pairs: Vec<(u64, u32)> = (0..count)
                .map(|_| (random.next_u64(), u32::try_from(random.below(sources)).expect("small")))
                .collect();
            ENCODINGS.into_iter().for_each(|encoding| check(encoding, &pairs));
        }
    }
}

/// Every rank writes one common key, such as a record of its settings, among others.
#[test]
fn a_key_of_every_rank() {
    let others = (0..20_000_u64).map(|key| (key_hash(&key.to_le_bytes()), (key % 512) as u32));
    let pairs: Vec<(u64, u32)> = others.chain((0..2_000).map(|rank| (99, rank))).collect();
    for encoding in ENCODINGS {
        check(encoding, &pairs);
        let encoded = encode(encoding, pairs.iter().copied());
        let bits = encoded.len() as f64 * 8.0 / pairs.len() as f64;
        assert!(bits < 60.0, "{encoding:?} takes {bits} bits a pair");
    }
}

/// All keys of one partition of 4,096, as in the thesis: hashes that agree in their high bits.
#[test]
fn hashes_of_one_partition() {
    let mut random = Random::from_seed(3);
    let pairs: Vec<(u64, u32)> = (0..30_000)
        .map(|_| (random.next_u64() >> 12 | 5 << 52, random.below(4096) as u32))
        .collect();
    ENCODINGS.into_iter().for_each(|encoding| check(encoding, &pairs));
    let ribbon = encode(AuxiliaryEncoding::Ribbon, pairs.iter().copied());
    assert!(ribbon.len() * 8 < pairs.len() * 13, "{} bytes", ribbon.len());
}

/// Bits a key and partitions a query at the thesis' settings, scaled down to 512 K keys.
/// `cargo run --release -p esker-imd --example auxiliary` measures them in full.
#[test]
fn bits_and_candidates_at_4096_sources() {
    let count: u64 = 1 << 19;
    let source = |key: u64| (key_hash(&(key ^ 1 << 40).to_le_bytes()) % 4096) as u32;
    let pairs = || (0..count).map(|key| (key_hash(&key.to_le_bytes()), source(key)));
    let measure = |encoding| {
        let encoded = encode(encoding, pairs());
        let reader = parse(&encoded);
        let total: usize = (0..count)
            .map(|key| {
                let found = candidates(&reader, key_hash(&key.to_le_bytes()));
                assert!(found.contains(&source(key)));
                found.len()
            })
            .sum();
        (encoded.len() as f64 * 8.0 / count as f64, total as f64 / count as f64)
    };
    let (bits, partitions) = measure(AuxiliaryEncoding::Ribbon);
    assert!(bits <= 12.6, "ribbon: {bits} bits a key");
    assert!((partitions - 1.0).abs() < f64::EPSILON, "ribbon: {partitions} partitions a query");
    let (bits, partitions) =
        measure(AuxiliaryEncoding::Cuckoo { fingerprint_bits: cuckoo::FINGERPRINT_BITS });
    assert!((16.8..=17.1).contains(&bits), "cuckoo: {bits} bits a key");
    // The thesis measured 1.88 with 100 queries.
    assert!((1.80..=1.98).contains(&partitions), "cuckoo: {partitions} partitions a query");
}

#[test]
fn tables_of_the_thesis_are_nearly_full() {
    for (keys, tables) in [(1_100_000, vec![1 << 20, 1 << 17]), (1 << 20, vec![1 << 20, 1 << 16])] {
        let pairs = (0..keys).map(|key: u64| (key_hash(&key.to_le_bytes()), (key % 4096) as u32));
        let AuxiliaryTable::Cuckoo(table) = parse(&encode(
            AuxiliaryEncoding::Cuckoo { fingerprint_bits: cuckoo::FINGERPRINT_BITS },
            pairs,
        )) else {
            unreachable!("cuckoo tables were encoded")
        };
        assert_eq!(table.slots().collect::<Vec<_>>(), tables, "{keys} keys");
        assert_eq!(table.listed(), 0);
    }
}

#[test]
fn a_builder_can_be_used_again() {
    for encoding in ENCODINGS {
        let mut builder = AuxiliaryBuilder::new(encoding);
        builder.insert(1, 2);
        let first = builder.finish().expect("one pair");
        assert!(builder.is_empty());
        builder.insert(1, 2);
        assert_eq!(builder.len(), 1);
        assert_eq!(builder.finish().expect("one pair"), first);
    }
}

#[test]
fn sources_of_all_bits() {
    check(AuxiliaryEncoding::Ribbon, &[(1, u32::MAX), (2, 0), (3, 1 << 31), (3, 5)]);
    let mut builder = AuxiliaryBuilder::new(AuxiliaryEncoding::Cuckoo { fingerprint_bits: 4 });
    builder.insert(1, u32::MAX);
    assert_eq!(builder.finish().expect_err("36 bits").kind(), Kind::TooLarge);
    assert_eq!(builder.len(), 1, "the builder keeps its pairs");
    check(AuxiliaryEncoding::Cuckoo { fingerprint_bits: 4 }, &[(1, (1 << 28) - 1), (2, 0)]);
}

/// Pairs for the damage tests: both kinds list some keys.
fn damaged_pairs() -> Vec<(u64, u32)> {
    let hot = (0..70).map(|source| (u64::MAX, source));
    (0..90_u64).map(|key| (key_hash(&key.to_le_bytes()), (key % 16) as u32)).chain(hot).collect()
}

#[test]
fn a_cut_table_is_refused_at_every_length() {
    for encoding in ENCODINGS {
        let encoded = encode(encoding, damaged_pairs());
        for length in 0..encoded.len() {
            let cut = Bytes::copy_from_slice(&encoded[..length]);
            assert!(AuxiliaryTable::parse(cut).is_err(), "{encoding:?} cut to {length} bytes");
        }
        let mut longer = encoded.clone();
        longer.push(0);
        assert!(AuxiliaryTable::parse(Bytes::from(longer)).is_err());
    }
}

/// A flip is detected; if somebody fixes the checksum, queries still do not panic.
#[test]
fn flips_are_found_and_never_panic() {
    for encoding in ENCODINGS {
        let encoded = encode(encoding, damaged_pairs());
        for at in 0..encoded.len() {
            for bit in 0..8 {
                let mut flipped = encoded.clone();
                flipped[at] ^= 1 << bit;
                assert!(
                    AuxiliaryTable::parse(Bytes::copy_from_slice(&flipped)).is_err(),
                    "byte {at}"
                );
                let body = flipped.len() - CHECKSUM_BYTES;
                flipped.truncate(body);
                put_checksum(&mut flipped);
                let Ok(reader) = AuxiliaryTable::parse(Bytes::from(flipped)) else { continue };
                for hash in (0..20).chain([u64::MAX, u64::MAX / 2]) {
                    candidates_of_any(&reader, hash);
                }
            }
        }
    }
}

fn candidates_of_any(reader: &AuxiliaryTable, hash: u64) {
    let mut found = Vec::new();
    reader.candidates(hash, &mut found);
    assert!(found.len() < 1000, "no more than the table has");
}

/// Counts that promise gigabytes in a few bytes are refused before anything is allocated.
#[test]
fn counts_beyond_the_bytes_are_refused() {
    for encoding in ENCODINGS {
        let encoded = encode(encoding, damaged_pairs());
        for at in (9..HEADER_BYTES).chain([HEADER_BYTES, encoded.len() - CHECKSUM_BYTES - 1]) {
            for value in [0x7f, 0x80, 0xff] {
                let mut hostile = encoded.clone();
                hostile[at] = value;
                hostile.truncate(encoded.len() - CHECKSUM_BYTES);
                put_checksum(&mut hostile);
                if let Ok(reader) = AuxiliaryTable::parse(Bytes::from(hostile)) {
                    (0..50).for_each(|hash| candidates_of_any(&reader, hash));
                }
            }
        }
    }
}
