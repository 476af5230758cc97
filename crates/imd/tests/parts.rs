// SPDX-License-Identifier: Apache-2.0
//! Parts: directories that sessions write and append to, in different formats and with different
//! numbers of ranks, are read together.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Kind, Random, Result};
use esker_comm::{Transport, threads};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_imd::{
    DirectoryWriter, IndexedReader, RecordLayout, SessionDirectory, ValueFormat, entry,
};

/// Writes `keys` in the epoch of `step`; the value of key n has n bytes.
fn write(
    store: &SharedStore,
    session: &Session,
    (format, ranks): (ValueFormat, u32),
    keys: std::ops::Range<u8>,
    step: u64,
) -> Result<SessionDirectory> {
    let place = SessionDirectory::new(session, &mut Random::from_seed(step));
    let mut options = place.options(format, RecordLayout::Variable);
    options.memory_bytes = 4 << 20;
    threads::run(ranks, ranks, |transport| {
        let rank = transport.rank().0;
        let mut imd = DirectoryWriter::create(store, &place.prefix(), transport, &options)?;
        for key in keys.clone().filter(|key| u32::from(*key) % ranks == rank) {
            imd.append(&[key, 0], &vec![key; usize::from(key)])?;
        }
        imd.epoch_flush_at(step)?;
        imd.finish()
    })?;
    Ok(place)
}

fn open(session: &Session, store: &SharedStore) -> IndexedReader {
    let found =
        entry::find(session.namespace(), b"/p").expect("found").expect("an indexed directory");
    found.open(store, 1 << 20).expect("open")
}

#[test]
fn parts_of_any_format_are_one_directory() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = Repository::new(store.clone());
    let session = repository.begin(&[], SessionOptions::default()).expect("begin");
    let parts = [
        (ValueFormat::Base, 3, 0..60_u8),
        (ValueFormat::Pointer, 2, 50..100),
        (ValueFormat::Lossy, 2, 90..110),
        (ValueFormat::Ordered, 1, 0..5),
    ];
    let mut expected: BTreeMap<u8, Vec<u32>> = BTreeMap::new();
    for (epoch, (format, ranks, keys)) in (0_u32..).zip(parts) {
        keys.clone().for_each(|key| expected.entry(key).or_default().push(epoch));
        let step = u64::from(epoch) * 10;
        let place = write(&store, &session, (format, ranks), keys, step).expect("written");
        match epoch {
            0 => place.create(&session, b"/p", 0o755).expect("create"),
            _ => place.append(&session, b"/p").expect("append"),
        };
    }
    let reader = open(&session, &store);
    assert_eq!(reader.steps().expect("finished"), [0, 10, 20, 30]);
    assert_eq!(reader.epochs_complete().expect("finished"), 4);
    for (key, epochs) in &expected {
        let values = reader.get(&[*key, 0]).expect("get").values;
        assert_eq!(values.iter().map(|value| value.epoch).collect::<Vec<_>>(), *epochs);
        assert!(values.iter().all(|value| value.bytes.len() == usize::from(*key)));
    }
    let only = reader.get_many(&[[55, 0]], 1..3, 1).expect("get");
    assert_eq!(only.values[0].iter().map(|value| value.epoch).collect::<Vec<_>>(), [1]);

    let mut keys = Vec::new();
    reader
        .keys(|key| {
            keys.push(key[0]);
            Ok(true)
        })
        .expect("keys");
    keys.sort_unstable();
    assert_eq!(keys, expected.keys().copied().collect::<Vec<_>>(), "each once");
    let mut listed = reader.list(110).expect("list").expect("few enough");
    listed.sort_unstable();
    let sizes = expected.iter().map(|(key, epochs)| (*key, u64::from(*key) * epochs.len() as u64));
    let listed = listed.iter().map(|(key, bytes)| (key[0], *bytes));
    assert_eq!(listed.collect::<Vec<_>>(), sizes.collect::<Vec<_>>());
    assert!(reader.list(109).expect("list").is_none());

    let mut scanned = 0;
    for epoch in 0..4 {
        reader
            .scan(epoch, |_, _| {
                scanned += 1;
                Ok(true)
            })
            .expect("scan");
    }
    assert_eq!(scanned, expected.values().flatten().count());
    assert_eq!(reader.sample(50, &mut Random::from_seed(1)).expect("sample").len(), 50);
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = Repository::new(store.clone());
    let session = repository.begin(&[], SessionOptions::default()).expect("begin");
    let base = (ValueFormat::Base, 1);
    let first = write(&store, &session, base, 0..9, 5).expect("written");
    let absent = first.append(&session, b"/p").expect_err("nothing to append to");
    assert_eq!(absent.kind(), Kind::NotFound);
    first.create(&session, b"/p", 0o755).expect("create");
    let same = write(&store, &session, base, 0..9, 4).expect("written");
    let error = same.append(&session, b"/p").expect_err("an earlier step");
    assert_eq!(error.kind(), Kind::Invalid);
    let unfinished = SessionDirectory { set: session.set(), number: 77 };
    assert_eq!(unfinished.create(&session, b"/q", 0o755).expect_err("none").kind(), Kind::NotFound);
    session.mkdir(session.root(), b"d", 0o755).expect("mkdir");
    let error = same.append(&session, b"/d").expect_err("a plain directory");
    assert_eq!(error.kind(), Kind::NotADirectory);
    assert_eq!(open(&session, &store).steps().expect("steps"), [5]);
}
