// SPDX-License-Identifier: Apache-2.0
//! Measures auxiliary tables for one partition of a job: keys built per second, queries per second,
//! bits per key and candidates per query.
//!
//! `cargo run --release -p esker-imd --example auxiliary -- [KEYS] [SOURCES]` (defaults: 8 Mi and
//! 4,096, the thesis' settings). Keys are distinct, each from a random source; queries are for
//! inserted keys.

use esker_base::clock::{Clock, SystemClock};
use esker_base::{Bytes, Random};
use esker_imd::auxiliary::{AuxiliaryBuilder, AuxiliaryEncoding, AuxiliaryTable};
use esker_imd::hash::key_hash;

const QUERIES: u64 = 1_000_000;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let mut next = |default| arguments.next().map_or(default, |word| word.expect("a number"));
    let (keys, sources) = (next(8 << 20), next(4096));
    println!("{keys} keys of {sources} sources, {QUERIES} queries of present keys");
    for fingerprint_bits in [3, 4, 5, 6, 8] {
        measure(AuxiliaryEncoding::Cuckoo { fingerprint_bits }, keys, sources);
    }
    measure(AuxiliaryEncoding::Ribbon, keys, sources);
}

fn measure(encoding: AuxiliaryEncoding, keys: u64, sources: u64) {
    let clock = SystemClock;
    let mut random = Random::from_seed(7);
    let mut builder = AuxiliaryBuilder::new(encoding);
    let mut expected = Vec::new();
    for key in 0..keys {
        let source = u32::try_from(random.below(sources)).expect("ranks have 32 bits");
        builder.insert(key_hash(&key.to_le_bytes()), source);
        expected.push(source);
    }
    let start = clock.monotonic_ns();
    let encoded = builder.finish().expect("fits");
    let built = (clock.monotonic_ns() - start) as f64 / 1e9;

    let bytes = encoded.len() as f64;
    let reader = AuxiliaryTable::parse(Bytes::from(encoded)).expect("what was just encoded");
    let mut found = Vec::new();
    let mut candidates = 0;
    let start = clock.monotonic_ns();
    for _ in 0..QUERIES {
        let key = random.below(keys);
        found.clear();
        reader.candidates(key_hash(&key.to_le_bytes()), &mut found);
        let source = expected[usize::try_from(key).expect("in memory")];
        assert!(found.contains(&source), "the source of a present key is a candidate");
        candidates += found.len();
    }
    let queried = (clock.monotonic_ns() - start) as f64 / 1e9;
    let shape = match &reader {
        AuxiliaryTable::Cuckoo(table) => {
            format!("slots {:?}, listed {}", table.slots().collect::<Vec<_>>(), table.listed())
        }
        AuxiliaryTable::Ribbon(table) => format!("listed {}", table.listed()),
    };
    println!(
        "{encoding:?}: {:.2} M keys/s built, {:.2} M queries/s, {:.2} bits a key, {:.3} candidates a query; {shape}",
        keys as f64 / built / 1e6,
        QUERIES as f64 / queried / 1e6,
        bytes * 8.0 / keys as f64,
        candidates as f64 / QUERIES as f64,
    );
}
