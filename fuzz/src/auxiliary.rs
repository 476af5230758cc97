// SPDX-License-Identifier: Apache-2.0
//! Auxiliary tables: arbitrary bytes under a valid checksum, and valid tables with some bytes
//! changed.

use esker_base::Bytes;
use esker_imd::auxiliary::{AuxiliaryBuilder, AuxiliaryEncoding, AuxiliaryTable, MAGIC};

use crate::choices::Choices;

/// Bytes of the checksum at the end.
const CHECKSUM_BYTES: usize = 4;
/// More sources than any input of a campaign holds.
const SOURCES_MAX: usize = 1 << 16;

pub fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    if choices.u8().is_multiple_of(4) {
        let mut encoded = MAGIC.to_vec();
        encoded.extend_from_slice(choices.rest());
        query(with_checksum(encoded), &[0, 1, u64::MAX]);
        return;
    }
    let encoding = match choices.u8() % 4 {
        0 => AuxiliaryEncoding::Cuckoo { fingerprint_bits: 1 + u32::from(choices.u8() % 16) },
        _ => AuxiliaryEncoding::Ribbon,
    };
    let mut builder = AuxiliaryBuilder::new(encoding);
    let mut pairs = Vec::new();
    for _ in 0..choices.below(300) {
        let source = choices.u64() & if choices.u8() < 0xF0 { 0xFFFF } else { 0xFFFF_FFFF };
        pairs.push((choices.u64(), u32::try_from(source).expect("masked")));
    }
    pairs.iter().for_each(|(hash, source)| builder.insert(*hash, *source));
    let Ok(mut encoded) = builder.finish() else { return };
    encoded.truncate(encoded.len() - CHECKSUM_BYTES);
    let changed = choices.mutate(&mut encoded);
    let hashes: Vec<u64> = pairs.iter().map(|(hash, _)| *hash).collect();
    let found = query(with_checksum(encoded), &hashes);
    if !changed {
        let found = found.expect("what was just encoded");
        assert!(pairs.iter().zip(&found).all(|((_, source), found)| found.contains(source)));
    }
}

fn with_checksum(mut encoded: Vec<u8>) -> Bytes {
    let checksum = crc32c::crc32c(&encoded);
    encoded.extend_from_slice(&checksum.to_le_bytes());
    Bytes::from(encoded)
}

/// The results for each hash, if the bytes are accepted.
fn query(encoded: Bytes, hashes: &[u64]) -> Option<Vec<Vec<u32>>> {
    let reader = AuxiliaryTable::parse(encoded).ok()?;
    let find = |hash: &u64| {
        let mut found = Vec::new();
        reader.candidates(*hash, &mut found);
        assert!(found.len() < SOURCES_MAX);
        found
    };
    Some(hashes.iter().map(find).collect())
}
