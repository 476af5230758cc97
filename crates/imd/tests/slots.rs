// SPDX-License-Identifier: Apache-2.0
//! Slots: for any records and memory, finding a key reads little of the index.

use std::sync::Arc;

use esker_base::Random;
use esker_base::store::{MemoryStore, SharedStore};
use esker_comm::threads;
use esker_imd::index::epoch::IndexGroup;
use esker_imd::{
    DirectoryOptions, DirectoryReader, DirectoryWriter, QueryCounts, RecordLayout, ValueFormat,
};

/// Appends a record.
type Append<'a> = dyn FnMut(&[u8], &[u8]) + 'a;

/// Writes a directory of one rank with `append`; returns the bytes of one table's slot in the
/// index group with the largest slots.
fn largest_slot(
    layout: RecordLayout,
    memory_bytes: u64,
    append: impl Fn(&mut Append<'_>) + Sync,
) -> (SharedStore, u64) {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let mut options = DirectoryOptions::new(1, ValueFormat::Base, layout);
    options.memory_bytes = memory_bytes;
    threads::run(1, 1, |transport| {
        let mut imd = DirectoryWriter::create(&store, "d/", transport, &options)?;
        append(&mut |key, value| imd.append(key, value).expect("appended"));
        imd.epoch_flush()?;
        imd.finish()
    })
    .expect("written");
    let reader = DirectoryReader::open(&store, "d/", 0).expect("open");
    let mut counts = QueryCounts::default();
    let partition = reader.partition(0, &mut counts).expect("partition");
    let epoch = partition.epoch(0, &mut counts).expect("epoch");
    let of_index_group = |group: &IndexGroup| {
        let slots = 0..group.slot_ends.len();
        let bytes = slots.map(|slot| group.slot_range(slot)).map(|at| at.end - at.start);
        bytes.max().unwrap_or(0) / group.tables.len() as u64
    };
    let most = epoch.groups.iter().map(of_index_group).max().expect("an index group");
    (store, most)
}

/// Maximum bytes of one table's slot: 16 Ki rows of 15 bits, and the spread of hashes.
const SLOT_BYTES_MAX: u64 = 34 << 10;

#[test]
fn slots_are_small_whatever_the_memory_and_the_records() {
    for memory_kib in [512, 3 << 10, 16 << 10] {
        for value_bytes in [0, 40, 3000] {
            let layout = RecordLayout::Fixed { key_bytes: 8, value_bytes };
            let memory = memory_kib << 10;
            let rows = (2 * memory / (8 + u64::from(value_bytes))).min(250_000);
            let (_, most) = largest_slot(layout, memory, |append| {
                let mut random = Random::from_seed(memory);
                let value = vec![3; value_bytes as usize];
                (0..rows).for_each(|_| append(&random.next_u64().to_be_bytes(), &value));
            });
            assert!(most <= SLOT_BYTES_MAX, "{memory_kib} KiB, {value_bytes}: {most} bytes");
        }
    }
}

/// The first table of the epoch has few rows, and the others have very many.
#[test]
fn long_records_before_short_ones_do_not_make_slots_large() {
    const SHORT: u64 = 1_200_000;
    let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let (store, most) = largest_slot(RecordLayout::Variable, 24 << 20, |append| {
        let long = vec![1; 900_000];
        (SHORT..SHORT + 30).for_each(|number| append(&key(number), &long));
        (0..SHORT).for_each(|number| append(&key(number), &[2]));
    });
    assert!(most <= SLOT_BYTES_MAX, "{most} bytes");
    let reader = DirectoryReader::open(&store, "d/", 0).expect("open");
    let opened = reader.get(&key(7)).expect("get").counts;
    assert!(opened.index_reads > 1, "the index log is too large to be read as a whole: {opened:?}");
    // The partition is open now.
    for number in (0..SHORT).step_by(100_003) {
        let answer = reader.get(&key(number)).expect("get");
        assert_eq!(answer.values.len(), 1);
        let counts = answer.counts;
        assert!(counts.index_bytes <= 400 << 10 && counts.data_bytes <= 64 << 10, "{counts:?}");
    }
}

/// A cold reader fetches the index log's end, a slot of each epoch and a block of each epoch.
#[test]
fn a_cold_get_over_five_epochs_takes_six_reads_of_the_index_and_five_of_data() {
    const KEYS: u64 = 200_000;
    let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let store: SharedStore = Arc::new(MemoryStore::new());
    let layout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 8 };
    let mut options = DirectoryOptions::new(1, ValueFormat::Base, layout);
    options.memory_bytes = 32 << 20;
    threads::run(1, 1, |transport| {
        let mut imd = DirectoryWriter::create(&store, "d/", transport, &options)?;
        for epoch in 0..5_u64 {
            for number in 0..KEYS {
                imd.append(&key(number), &epoch.to_be_bytes())?;
            }
            imd.epoch_flush()?;
        }
        imd.finish()
    })
    .expect("written");
    let (mut gets, mut data_reads) = (0, 0);
    for number in (0..KEYS).step_by(499) {
        let answer =
            DirectoryReader::open(&store, "d/", 0).expect("open").get(&key(number)).expect("get");
        assert_eq!(answer.values.len(), 5);
        // One fewer where a slot is within the end that was read.
        assert!(answer.counts.index_reads <= 1 + 5, "{:?}", answer.counts);
        gets += 1;
        data_reads += answer.counts.data_reads;
    }
    assert!(data_reads >= 5 * gets && data_reads * 100 <= 506 * gets, "{data_reads} of {gets}");
}

#[test]
fn one_key_over_and_over_does_not_spoil_the_others() {
    let (store, _) =
        largest_slot(RecordLayout::Fixed { key_bytes: 8, value_bytes: 8 }, 8 << 20, |append| {
            (0..150_000_u64).for_each(|number| append(&[7; 8], &number.to_be_bytes()));
            (0..400_000_u64).for_each(|number| append(&(number << 9).to_be_bytes(), &[1; 8]));
        });
    let reader = DirectoryReader::open(&store, "d/", 0).expect("open");
    let all = reader.get(&[7; 8]).expect("get").values;
    assert!(all.iter().map(|value| &value.bytes[..]).eq((0..150_000_u64).map(u64::to_be_bytes)));
    let mut bytes = Vec::new();
    for number in (0..400_000_u64).step_by(10_007) {
        let answer = reader.get(&(number << 9).to_be_bytes()).expect("get");
        assert_eq!(answer.values.len(), 1);
        bytes.push(answer.counts.index_bytes);
    }
    bytes.sort_unstable();
    assert!(bytes[bytes.len() / 2] <= 128 << 10, "{bytes:?}");
}
