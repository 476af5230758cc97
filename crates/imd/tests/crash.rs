// SPDX-License-Identifier: Apache-2.0
//! Crashes: wherever in the sequence of store operations the world stops, epochs acknowledged by
//! `epoch_flush` are present and whole, nothing appears that was never appended, and the reader
//! reports which epochs are complete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_comm::{NodeMap, Transport, threads};
use esker_imd::{
    DirectoryOptions, DirectoryReader, DirectoryWriter, RecordLayout, ValueFormat, verify,
};

const KEYS: u64 = 40;
const EPOCHS: u32 = 3;

fn value(key: u64, epoch: u32) -> Vec<u8> {
    let length = 3 + (key as usize * 7 + epoch as usize) % 300;
    (0..length).map(|at| (key as usize + at * 3 + epoch as usize) as u8).collect()
}

/// Writes with two ranks; returns the number of epochs acknowledged as durable on every rank.
fn write(store: &SharedStore, format: ValueFormat) -> u32 {
    let mut options = DirectoryOptions::new(1, format, RecordLayout::Variable);
    options.memory_bytes = 1 << 20;
    let told = [AtomicU32::new(0), AtomicU32::new(0)];
    let patient = threads::ThreadOptions::default();
    let nodes = NodeMap::even(2, 2).expect("two ranks");
    let done: Result<Vec<()>> = threads::run_with(nodes, &patient, |transport| {
        let rank = transport.rank().0;
        let mut imd = DirectoryWriter::create(store, "d/", transport, &options)?;
        for epoch in 0..EPOCHS {
            for key in (u64::from(rank)..KEYS).step_by(2) {
                imd.append(&key.to_be_bytes(), &value(key, epoch))?;
            }
            imd.epoch_flush()?;
            told[rank as usize].store(epoch + 1, Ordering::SeqCst);
        }
        imd.finish().map(drop)
    });
    drop(done);
    told.iter().map(|told| told.load(Ordering::SeqCst)).max().unwrap_or(0)
}

/// Checks what a reader finds if `durable` epochs were acknowledged.
fn check(store: &SharedStore, durable: u32, what: &str) {
    let reader = match DirectoryReader::open(store, "d/", 0) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(durable == 0, "{what}: {error}");
            assert!(matches!(error.kind(), Kind::NotFound | Kind::Corrupt), "{what}: {error}");
            return;
        }
    };
    let complete = match reader.epochs_complete() {
        Ok(complete) => complete,
        Err(error) => {
            assert!(durable == 0, "{what}: {error}");
            assert!(error.to_string().contains("partition"), "{what}: {error}");
            return;
        }
    };
    assert!((durable..=EPOCHS).contains(&complete), "{what}: {complete} of {durable}");
    for key in 0..KEYS {
        let values = reader.get_epochs(&key.to_be_bytes(), 0..complete).expect(what).values;
        let expected: Vec<Vec<u8>> = (0..complete).map(|epoch| value(key, epoch)).collect();
        let got: Vec<&[u8]> = values.iter().map(|value| &value.bytes[..]).collect();
        assert!(got == expected, "{what}: key {key}");
        // A reader sees nothing of later epochs, which some rank may have lost.
        let all = reader.get(&key.to_be_bytes()).expect(what).values;
        assert!(all == values, "{what}: key {key} has values of an epoch that is not complete");
    }
    let mut damage = Vec::new();
    verify(store, "d/", &mut |error| damage.push(error)).expect(what);
    assert!(damage.is_empty(), "{what}: {damage:?}");
}

fn stop_everywhere(format: ValueFormat, stride: usize) {
    let count = {
        let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let shared: SharedStore = store.clone();
        assert_eq!(write(&shared, format), EPOCHS);
        check(&shared, EPOCHS, "no fault");
        store.operations()
    };
    for stop in (1..=count + 1).step_by(stride) {
        for effect in [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full] {
            let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), stop * 31));
            store.stop_at(stop, effect);
            let shared: SharedStore = store.clone();
            let durable = write(&shared, format);
            let what = format!("{format:?} stopped at {stop} of {count} with {effect:?}");
            check(&store.after_process_death().expect("image"), durable, &what);
            check(&store.after_power_loss().expect("image"), durable, &format!("{what}, power"));
        }
    }
}

#[test]
fn base_survives_a_stop_at_every_operation() {
    stop_everywhere(ValueFormat::Base, 1);
}

#[test]
fn pointer_survives_a_stop_at_every_operation() {
    stop_everywhere(ValueFormat::Pointer, 1);
}

#[test]
fn lossy_static_and_ordered_survive_stops() {
    stop_everywhere(ValueFormat::Lossy, 2);
    stop_everywhere(ValueFormat::Static, 3);
    stop_everywhere(ValueFormat::Ordered, 2);
}

/// Symptom: after a crash in an epoch, reads of all epochs failed with `Corrupt`, though earlier
/// ones were whole.
/// Cause: a rank's tables of the epoch were durable, with pointers to values that another rank had
/// not synced; in other formats its keys showed one more epoch than the others'.
/// Fix: readers see the epochs that are complete in all partitions.
#[test]
fn epochs_that_a_rank_has_lost_are_not_read() {
    for format in ValueFormat::ALL {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let mut options = DirectoryOptions::new(1, format, RecordLayout::Variable);
        options.memory_bytes = 1 << 20;
        let lengths = threads::run(2, 2, |transport| {
            let rank = transport.rank().0;
            let mut imd = DirectoryWriter::create(&store, "d/", transport, &options)?;
            let mut lengths = BTreeMap::new();
            for epoch in 0..2 {
                for key in (u64::from(rank)..KEYS).step_by(2) {
                    imd.append(&key.to_be_bytes(), &value(key, epoch))?;
                }
                imd.epoch_flush()?;
                if epoch == 0 {
                    for object in store.list("d/")? {
                        lengths.insert(object.name, object.bytes as usize);
                    }
                    imd.transport().barrier()?;
                }
            }
            Ok(lengths)
        });
        let lengths = lengths.expect("no fault").swap_remove(0);
        // Rank 1 stopped before it synced anything of epoch 1.
        let after: SharedStore = Arc::new(MemoryStore::new());
        for object in store.list("d/").expect("a listing") {
            let bytes = store.get(&object.name, 1 << 20).expect("an object");
            let is_lost = object.name.starts_with("d/00000001-");
            let length = if is_lost { lengths[&object.name] } else { bytes.len() };
            after.put_if_absent(&object.name, &bytes[..length]).expect("put");
        }
        let reader = DirectoryReader::open(&after, "d/", 0).expect("open");
        assert_eq!(reader.epochs_complete().expect("both partitions"), 1, "{format:?}");
        assert_eq!(reader.epochs_incomplete().expect("both partitions"), 1, "{format:?}");
        let mut scanned = 0;
        for epoch in 0..2 {
            let count = |_: &[u8], _: &[u8]| {
                scanned += 1;
                Ok(true)
            };
            reader.scan(epoch, count).expect("a scan");
        }
        assert_eq!(scanned, KEYS, "{format:?}");
        check(&after, 1, &format!("{format:?}"));
    }
}
