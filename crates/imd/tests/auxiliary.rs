// SPDX-License-Identifier: Apache-2.0
//! Auxiliary tables match the document, byte by byte.

use esker_base::Bytes;
use esker_imd::auxiliary::{AuxiliaryBuilder, AuxiliaryEncoding, AuxiliaryTable};

use crate::golden::assert_documented;

/// Encodes pairs, compares them with the document and returns the candidates of each hash.
fn documented(
    name: &str,
    encoding: AuxiliaryEncoding,
    pairs: &[(u64, u32)],
    hashes: &[u64],
) -> Vec<Vec<u32>> {
    let mut builder = AuxiliaryBuilder::new(encoding);
    pairs.iter().for_each(|(hash, source)| builder.insert(*hash, *source));
    let encoded = builder.finish().expect("few small pairs");
    assert_documented("auxiliary.md", name, &encoded);
    let reader = AuxiliaryTable::parse(Bytes::from(encoded)).expect("what was just encoded");
    let find = |hash: &u64| {
        let mut found = Vec::new();
        reader.candidates(*hash, &mut found);
        found
    };
    hashes.iter().map(find).collect()
}

#[test]
fn cuckoo_tables() {
    let pairs = [(1, 1), (2, 2), (3, 3), (3, 1), (3, 3)];
    let found = documented(
        "cuckoo",
        AuxiliaryEncoding::Cuckoo { fingerprint_bits: 4 },
        &pairs,
        &[1, 2, 3, 4],
    );
    assert_eq!(found, [vec![1], vec![2], vec![3, 1], vec![]]);
}

#[test]
fn ribbon() {
    let pairs = [(1, 1), (2, 2), (3, 3), (3, 1), (3, 3)];
    let found = documented("ribbon", AuxiliaryEncoding::Ribbon, &pairs, &[1, 2, 3]);
    assert_eq!(found, [vec![1], vec![2], vec![1, 3]]);
}
