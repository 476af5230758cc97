// SPDX-License-Identifier: Apache-2.0
//! Model: everything that ranks append, in any format, is read back exactly once, with its bytes
//! and in order; compared with a map of lists.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::Random;
use esker_base::store::{MemoryStore, SharedStore};
use esker_comm::{Routing, Transport, threads};
use esker_imd::hash::key_hash;
use esker_imd::{
    DirectoryOptions, DirectoryReader, DirectoryWriter, QueryCounts, RecordLayout, ValueFormat,
};
use parking_lot::Mutex;

/// Values of each key: by epoch, then rank by rank.
type Model = BTreeMap<Vec<u8>, Vec<(u32, u32, Vec<u8>)>>;

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    format: ValueFormat,
    layout: RecordLayout,
    ranks: u32,
    per_node: u32,
    routing: Routing,
    epochs: u32,
    records: u64,
    memory_bytes: u64,
}

impl Case {
    fn small(layout: RecordLayout) -> Self {
        Self {
            seed: 1,
            format: ValueFormat::Base,
            layout,
            ranks: 2,
            per_node: 16,
            routing: Routing::ThreeHop,
            epochs: 2,
            records: 200,
            memory_bytes: 1 << 20,
        }
    }
}

/// Keys repeat within and between epochs and ranks.
fn record(random: &mut Random, layout: RecordLayout, keys: u64) -> (Vec<u8>, Vec<u8>) {
    let number = random.below(keys);
    match layout {
        RecordLayout::Fixed { key_bytes, value_bytes } => {
            let mut key = vec![0; usize::from(key_bytes)];
            let width = key.len().min(8);
            key[..width].copy_from_slice(&number.to_be_bytes()[8 - width..]);
            let mut value = vec![0; value_bytes as usize];
            random.fill(&mut value);
            (key, value)
        }
        RecordLayout::Variable => {
            let length = 1 + (number * 7 % 255) as usize;
            let mut key = vec![b'k'; length];
            let digits = number.to_string().into_bytes();
            let width = digits.len().min(length);
            key[length - width..].copy_from_slice(&digits[..width]);
            let length = if random.one_in(50) { random.below(30_000) } else { random.below(60) };
            let mut value = vec![0; length as usize];
            random.fill(&mut value);
            (key, value)
        }
    }
}

fn write(store: &SharedStore, case: &Case) -> Model {
    let mut options = DirectoryOptions::new(77, case.format, case.layout);
    options.routing = case.routing;
    options.memory_bytes = case.memory_bytes;
    let model: Mutex<Model> = Mutex::default();
    threads::run(case.ranks, case.per_node, |transport| {
        let rank = transport.rank().0;
        let mut random = Random::from_seed(case.seed * 1000 + u64::from(rank));
        let mut imd = DirectoryWriter::create(store, "d/", transport, &options)?;
        let mut mine = Vec::new();
        for epoch in 0..case.epochs {
            // Some ranks have no records in some epochs.
            let records = if random.one_in(5) { 0 } else { random.below(case.records) };
            for _ in 0..records {
                let (key, mut value) = record(&mut random, case.layout, case.records);
                stamp(&mut value, rank, mine.len() as u32);
                imd.append(&key, &value)?;
                mine.push((key, epoch, value));
            }
            imd.epoch_flush()?;
        }
        let mut model = model.lock();
        for (key, epoch, value) in mine {
            model.entry(key).or_default().push((epoch, rank, value));
        }
        drop(model);
        imd.finish()
    })
    .unwrap_or_else(|error| panic!("{case:?}: {error}"));
    model.into_inner()
}

/// Checks for the same values in each epoch, those of one rank in order; ranks may interleave.
fn assert_same(case: &Case, key: &[u8], expected: &[(u32, u32, Vec<u8>)], got: &[(u32, Vec<u8>)]) {
    let epochs: Vec<u32> = got.iter().map(|value| value.0).collect();
    assert!(epochs.is_sorted(), "{case:?} {key:?}");
    let mut a: Vec<(u32, &[u8])> = expected.iter().map(|value| (value.0, &value.2[..])).collect();
    let mut b: Vec<(u32, &[u8])> = got.iter().map(|value| (value.0, &value.1[..])).collect();
    a.sort_unstable();
    b.sort_unstable();
    assert!(a == b, "{case:?}: {key:?} has {} values, expected {}", b.len(), a.len());
    let mut last: BTreeMap<(u32, [u8; 4]), [u8; 4]> = BTreeMap::new();
    for (epoch, value) in got {
        let Some((stamp, _)) = value.split_first_chunk::<8>() else { continue };
        let (rank, number) = stamp.split_at(4);
        let (rank, number): ([u8; 4], [u8; 4]) =
            (rank.try_into().expect("four"), number.try_into().expect("four"));
        let before = last.insert((*epoch, rank), number);
        assert!(before.is_none_or(|before| before < number), "{case:?}: {key:?} out of order");
    }
}

/// Puts rank and sequence number of a value in front of it, if there is room.
fn stamp(value: &mut [u8], rank: u32, number: u32) {
    if let Some(stamp) = value.first_chunk_mut::<8>() {
        stamp[..4].copy_from_slice(&rank.to_be_bytes());
        stamp[4..].copy_from_slice(&number.to_be_bytes());
    }
}

fn check(store: &SharedStore, case: &Case, model: &Model) {
    for cache_bytes in [0, 1 << 20] {
        let reader = DirectoryReader::open(store, "d/", cache_bytes).expect("open");
        assert_eq!(reader.epochs_complete().expect("epochs"), case.epochs, "{case:?}");
        let keys: Vec<&Vec<u8>> = model.keys().collect();
        let answers = reader.get_many(&keys, 0..u32::MAX, 2).expect("get_many");
        for ((key, expected), values) in model.iter().zip(answers.values) {
            let got: Vec<(u32, Vec<u8>)> =
                values.iter().map(|value| (value.epoch, value.bytes.to_vec())).collect();
            assert_same(case, key, expected, &got);
        }
        for key in keys.iter().step_by(97) {
            let one = reader.get_epochs(key, 1..2).expect("get");
            let expected = model[*key].iter().filter(|value| value.0 == 1).count();
            assert_eq!(one.values.len(), expected, "{case:?}");
        }
        assert!(reader.get(b"absent k").expect("get").values.is_empty());
        check_scans(&reader, case, model);
    }
}

fn check_scans(reader: &DirectoryReader, case: &Case, model: &Model) {
    for epoch in 0..case.epochs {
        let mut all: BTreeMap<Vec<u8>, Vec<(u32, Vec<u8>)>> = BTreeMap::new();
        let mut order: Vec<Vec<u8>> = Vec::new();
        let visit = |key: &[u8], value: &[u8]| {
            all.entry(key.to_vec()).or_default().push((epoch, value.to_vec()));
            order.push(key.to_vec());
            Ok(true)
        };
        reader.scan(epoch, visit).expect("scan");
        if case.format == ValueFormat::Ordered {
            assert!(order.is_sorted(), "{case:?}");
        } else {
            assert!(order.is_sorted_by_key(|key| key_hash(key) >> 44), "{case:?}");
        }
        let mut expected = model.clone();
        expected.values_mut().for_each(|values| values.retain(|value| value.0 == epoch));
        expected.retain(|_, values| !values.is_empty());
        assert!(all.keys().eq(expected.keys()), "{case:?} epoch {epoch}");
        for (key, expected) in &expected {
            assert_same(case, key, expected, &all[key]);
        }
        if case.format == ValueFormat::Ordered && !expected.is_empty() {
            let keys: Vec<&Vec<u8>> = expected.keys().collect();
            let (low, high) = (keys[keys.len() / 3], keys[keys.len() / 2]);
            let mut got: Vec<Vec<u8>> = Vec::new();
            let visit = |key: &[u8], _: &[u8]| {
                got.push(key.to_vec());
                Ok(true)
            };
            reader.range(low, high, epoch, visit).expect("range");
            assert!(got.is_sorted(), "{case:?}");
            let count: usize = expected.range(low.clone()..=high.clone()).map(|e| e.1.len()).sum();
            assert_eq!(got.len(), count, "{case:?}");
        }
    }
}

/// Each epoch's keys differ in range from those of the last: its bounds fit them badly, and the
/// next epoch gets new cuts.
#[test]
fn ordered_partitions_follow_keys_that_move() {
    let layout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 8 };
    let mut options = DirectoryOptions::new(1, ValueFormat::Ordered, layout);
    options.memory_bytes = 1 << 20;
    let store: SharedStore = Arc::new(MemoryStore::new());
    threads::run(4, 2, |transport| {
        let mut random = Random::from_seed(transport.rank().0.into());
        let mut imd = DirectoryWriter::create(&store, "d/", transport, &options)?;
        // Two epochs of each range: the bounds of the second reflect it.
        for epoch in 0..6_u64 {
            for _ in 0..5_000 {
                let key = (epoch / 2) << 40 | random.below(1 << 40);
                imd.append(&key.to_be_bytes(), &epoch.to_be_bytes())?;
            }
            imd.epoch_flush()?;
        }
        imd.finish()
    })
    .expect("written");
    let reader = DirectoryReader::open(&store, "d/", 0).expect("open");
    let bounds = &reader.directory().expect("finished").bounds;
    let rows = |epoch: u32| -> Vec<u32> {
        let rows_of = |partition| {
            let mut counts = QueryCounts::default();
            let partition = reader.partition(partition, &mut counts).expect("partition");
            let epoch = partition.epoch(epoch, &mut counts).expect("epoch");
            epoch.groups.iter().flat_map(|part| &part.tables).map(|table| table.rows).sum()
        };
        (0..4).map(rows_of).collect()
    };
    for epoch in 0..6 {
        let rows = rows(epoch);
        assert_eq!(rows.iter().sum::<u32>(), 20_000);
        let most = rows.iter().max().expect("four");
        let fits_well = epoch % 2 == 1 || epoch == 0;
        assert!(fits_well == (*most < 6_500), "epoch {epoch}: {rows:?}");
        // Bounds are renegotiated only where the load was skewed.
        let is_new = epoch > 0 && bounds[epoch as usize] != bounds[epoch as usize - 1];
        assert_eq!(is_new, epoch == 3 || epoch == 5, "epoch {epoch}");
    }
}

fn run(case: &Case) {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let model = write(&store, case);
    check(&store, case, &model);
}

#[test]
fn every_format_gives_back_what_was_appended() {
    for (seed, format) in (1..).zip(ValueFormat::ALL) {
        for layout in
            [RecordLayout::Fixed { key_bytes: 8, value_bytes: 40 }, RecordLayout::Variable]
        {
            let records = if layout == RecordLayout::Variable { 2_000 } else { 20_000 };
            let case = Case {
                seed,
                format,
                layout,
                ranks: 4,
                per_node: 2,
                routing: Routing::ThreeHop,
                epochs: 3,
                records,
                memory_bytes: 1 << 20,
            };
            run(&case);
            run(&Case { ranks: 1, per_node: 1, routing: Routing::Direct, ..case });
        }
    }
}

#[test]
fn random_directories_agree_with_the_model() {
    let mut random = Random::from_seed(20);
    for seed in 100..130 {
        let ranks = 1 + random.below(6) as u32;
        let layout = match random.below(4) {
            0 => RecordLayout::Fixed { key_bytes: 8, value_bytes: random.below(100) as u32 },
            1 => RecordLayout::Fixed { key_bytes: 1 + random.below(30) as u8, value_bytes: 9000 },
            2 => RecordLayout::Fixed { key_bytes: 1 + random.below(4) as u8, value_bytes: 3 },
            _ => RecordLayout::Variable,
        };
        run(&Case {
            seed,
            format: ValueFormat::ALL[random.below(5) as usize],
            layout,
            ranks,
            per_node: 1 + random.below(3) as u32,
            routing: if random.one_in(2) { Routing::Direct } else { Routing::ThreeHop },
            epochs: 1 + random.below(4) as u32,
            records: 1 + random.below(1_000),
            memory_bytes: (600 << 10) + random.below(4 << 20),
        });
    }
}

#[test]
fn two_hundred_and_fifty_six_ranks_agree_with_the_model() {
    let layout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 16 };
    run(&Case {
        seed: 256,
        format: ValueFormat::Base,
        layout,
        ranks: 256,
        per_node: 16,
        routing: Routing::ThreeHop,
        epochs: 2,
        records: 200,
        memory_bytes: 1 << 20,
    });
    let case = Case { seed: 257, format: ValueFormat::Ordered, ..Case::small(layout) };
    run(&Case { ranks: 64, routing: Routing::Direct, ..case });
}

#[test]
fn memory_stays_under_the_bound() {
    let layout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 40 };
    for format in ValueFormat::ALL {
        let bound = 4 << 20;
        let mut options = DirectoryOptions::new(1, format, layout);
        options.memory_bytes = bound;
        let store: SharedStore = Arc::new(MemoryStore::new());
        let summaries = threads::run(2, 1, |transport| {
            let rank = u64::from(transport.rank().0);
            let mut imd = DirectoryWriter::create(&store, "d/", transport, &options)?;
            for number in 0..100_000_u64 {
                let key = (number * 2 + rank).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
                imd.append(&key, &[7; 40])?;
            }
            imd.epoch_flush()?;
            imd.finish()
        })
        .expect("written");
        for summary in summaries {
            assert!(summary.memory_peak <= bound, "{format:?}: {} bytes", summary.memory_peak);
            assert!(summary.totals.tables > 1, "{format:?} wrote more than fits memory");
        }
    }
}
