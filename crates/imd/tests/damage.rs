// SPDX-License-Identifier: Apache-2.0
//! Damage: no flipped or missing byte is read as something else, errors name the partition, and
//! other partitions stay readable.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore, Store};
use esker_base::{Kind, Random};
use esker_comm::{Transport, threads};
use esker_imd::hash::{home, key_hash};
use esker_imd::write::PAGE_BYTES;
use esker_imd::{
    DirectoryOptions, DirectoryReader, DirectoryWriter, RecordLayout, ValueFormat, verify,
};

const KEYS: u64 = 60;
const RANKS: u32 = 2;

fn value(key: u64) -> [u8; 5] {
    [key as u8, 1, 2, 3, (key >> 3) as u8]
}

/// The objects of a small directory of two partitions and two epochs.
fn objects(format: ValueFormat, layout: RecordLayout) -> BTreeMap<String, Vec<u8>> {
    let memory = Arc::new(MemoryStore::new());
    let store: SharedStore = memory.clone();
    let mut options = DirectoryOptions::new(1, format, layout);
    options.memory_bytes = 1 << 20;
    threads::run(RANKS, RANKS, |transport| {
        let rank = transport.rank().0;
        let mut imd = DirectoryWriter::create(&store, "d/", transport, &options)?;
        for _ in 0..2 {
            for key in (u64::from(rank)..KEYS).step_by(RANKS as usize) {
                imd.append(&key.to_be_bytes(), &value(key))?;
            }
            imd.epoch_flush()?;
        }
        imd.finish()
    })
    .expect("written");
    let names = memory.list("d/").expect("listed").into_iter().map(|object| object.name);
    names.map(|name| (name.clone(), memory.get(&name, 1 << 20).expect("read").to_vec())).collect()
}

fn store_of(objects: &BTreeMap<String, Vec<u8>>) -> SharedStore {
    let memory = MemoryStore::new();
    for (name, bytes) in objects {
        memory.put_if_absent(name, bytes).expect("put");
    }
    Arc::new(memory)
}

/// Checks that every key reads correctly or fails with `Corrupt` and a partition's number, and that
/// the partition `whole`, if given, never fails. Returns true if anything noticed the damage.
fn check(store: &SharedStore, damaged: &str, whole: Option<u32>) -> bool {
    let mut noticed = false;
    let reader = match DirectoryReader::open(store, "d/", 0) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Corrupt), "{damaged}: {error}");
            return true;
        }
    };
    for key in 0..KEYS {
        let partition = home(key_hash(&key.to_be_bytes()), RANKS).0;
        match reader.get_epochs(&key.to_be_bytes(), 0..2) {
            Ok(answer) => {
                let right = answer.values.iter().all(|found| found.bytes[..] == value(key));
                assert!(
                    right && answer.values.len() <= 2,
                    "{damaged}: key {key} has another value"
                );
                // An unfinished directory may lack the last epoch, and reports that.
                let count = answer.values.len();
                let complete = reader.epochs_complete().unwrap_or(0);
                assert!(count >= complete as usize, "{damaged}: key {key} has {count} values");
                noticed |= count < 2;
            }
            Err(error) => {
                noticed = true;
                assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                assert!(error.to_string().contains("partition"), "{damaged}: {error}");
                assert_ne!(Some(partition), whole, "{damaged}: {error}");
            }
        }
    }
    noticed
}

/// The partition that stays whole when `name` is damaged, for formats that read no other.
fn whole_partition(format: ValueFormat, name: &str) -> Option<u32> {
    let touched = name.strip_prefix("d/0000000")?.chars().next()?.to_digit(10)?;
    (format == ValueFormat::Base).then_some(1 - touched)
}

fn layouts() -> [RecordLayout; 2] {
    [RecordLayout::Fixed { key_bytes: 8, value_bytes: 5 }, RecordLayout::Variable]
}

#[test]
fn every_flipped_byte_is_noticed_or_harmless() {
    let mut random = Random::from_seed(3);
    for (format, layout) in ValueFormat::ALL.into_iter().zip(layouts().into_iter().cycle()) {
        let objects = objects(format, layout);
        assert!(!check(&store_of(&objects), "nothing", None), "{format:?}: all is there");
        for (name, bytes) in &objects {
            for at in 0..bytes.len() {
                // Pages of values are mostly zeros.
                if bytes.len() > 4096 && !random.one_in(16) {
                    continue;
                }
                let mut flipped = objects.clone();
                let byte = flipped.get_mut(name).expect("an object");
                byte[at] ^= 1 << random.below(8);
                let store = store_of(&flipped);
                let what = format!("{format:?}: byte {at} of {name}");
                check(&store, &what, whole_partition(format, name));
                let mut told = 0;
                verify(&store, "d/", &mut |_| told += 1).expect("damage is told");
                assert!(told > 0, "{what} is not told");
            }
        }
    }
}

#[test]
fn missing_and_cut_logs_are_named() {
    for (format, layout) in ValueFormat::ALL.into_iter().zip(layouts().into_iter().cycle()) {
        let objects = objects(format, layout);
        for (name, bytes) in &objects {
            let mut missing = objects.clone();
            missing.remove(name);
            let whole = whole_partition(format, name);
            let noticed = check(&store_of(&missing), &format!("{format:?} without {name}"), whole);
            // Without the root object it is an unfinished directory.
            assert!(noticed || name.ends_with("root"), "{format:?} without {name}");
            for cut in (0..bytes.len()).step_by(bytes.len() / 40 + 1) {
                let mut short = objects.clone();
                short.insert(name.clone(), bytes[..cut].to_vec());
                check(&store_of(&short), &format!("{format:?}: {name} cut at {cut}"), whole);
            }
        }
    }
}

#[test]
fn a_partition_of_another_directory_is_refused() {
    let mut mixed = objects(ValueFormat::Base, RecordLayout::Variable);
    let first = mixed["d/00000000-index"].clone();
    mixed.insert("d/00000001-index".to_owned(), first);
    assert!(check(&store_of(&mixed), "mixed", Some(0)));
}

/// Symptom: after the logs of two ranks were swapped, a reader returned other keys' values, or
/// none, and no error.
/// Cause: checksums covered the offset of bytes, but not their directory, partition and log.
/// Fix: they cover all of these.
#[test]
fn logs_that_changed_places_are_refused() {
    for (format, layout) in ValueFormat::ALL.into_iter().zip(layouts().into_iter().cycle()) {
        let objects = objects(format, layout);
        for log in ["index", "data", "values", "aux"] {
            let [first, second] = [0, 1].map(|rank| format!("d/0000000{rank}-{log}"));
            let mut changed = objects.clone();
            let (Some(a), Some(b)) = (objects.get(&first), objects.get(&second)) else { continue };
            changed.insert(first, b.clone());
            changed.insert(second, a.clone());
            let (store, what) = (store_of(&changed), format!("{format:?}: {log}"));
            assert!(check(&store, &what, None), "{what}");
            let mut told = 0;
            verify(&store, "d/", &mut |_| told += 1).expect("damage is told");
            assert!(told >= 2, "{what}: {told}");
        }
    }
}

/// Symptom: verify accepted a log of values that had lost whole pages at its end.
/// Cause: it read only the pages that were present.
/// Fix: it compares the lengths of all logs with those in the root object, or in the last epoch.
#[test]
fn logs_of_another_length_are_told() {
    for (format, layout) in ValueFormat::ALL.into_iter().zip(layouts().into_iter().cycle()) {
        for is_finished in [true, false] {
            let mut objects = objects(format, layout);
            if !is_finished {
                objects.remove("d/root");
            }
            for (name, bytes) in objects.iter().filter(|(name, _)| !name.ends_with("root")) {
                let told = |length: usize| {
                    let mut changed = objects.clone();
                    changed.entry(name.clone()).or_default().resize(length, 0);
                    let mut told = Vec::new();
                    let verified = verify(&store_of(&changed), "d/", &mut |error| {
                        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                        told.push(error.to_string());
                    });
                    verified.expect("damage is told");
                    told
                };
                let what = format!("{format:?}: {name} of {}", bytes.len());
                assert_eq!(told(bytes.len()), [""; 0], "{what}");
                let is_index = name.ends_with("index");
                for cut in (0..bytes.len()).step_by(PAGE_BYTES) {
                    // An index log without a footer ends with its last whole epoch.
                    assert!(!told(cut).is_empty() || is_index && !is_finished, "{what} at {cut}");
                }
                assert_eq!(!told(bytes.len() + PAGE_BYTES).is_empty(), is_finished, "{what}");
            }
        }
    }
}
