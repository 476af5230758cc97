// SPDX-License-Identifier: Apache-2.0
//! Dumps of a real simulation: VPIC, 4 ranks, tracers dumped at six steps. Skipped with a message
//! if the shared folder is absent.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore};
use esker_comm::threads;
use esker_imd::import::{DumpLayout, DumpStep, append_all, survey};
use esker_imd::{DirectoryOptions, DirectoryReader, DirectoryWriter, ValueFormat, WriteSummary};

const TRACERS: u64 = 16_384;
const STEPS: [u64; 6] = [0, 100, 200, 300, 400, 500];

/// The dumps, if they are present.
fn dumps() -> Option<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/vpic");
    let Ok(entries) = folder.read_dir() else {
        eprintln!("skipped: no dumps of a simulation in {}", folder.display());
        return None;
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.file_name().is_some_and(|name| name != "README.md"));
    paths.sort();
    assert_eq!(paths.len(), 24, "six steps of four ranks");
    Some(paths)
}

fn import(paths: &[PathBuf], format: ValueFormat, ranks: u32) -> (SharedStore, Vec<WriteSummary>) {
    let layout = DumpLayout::vpic();
    let steps: Vec<DumpStep> = survey(paths, &layout).expect("good dumps");
    assert_eq!(steps.iter().map(|step| step.number).collect::<Vec<_>>(), STEPS);
    let store: SharedStore = Arc::new(MemoryStore::new());
    let mut options = DirectoryOptions::new(1, format, layout.record_layout());
    options.memory_bytes = 8 << 20;
    let summaries = threads::run(ranks, ranks, |transport| {
        let mut imd = DirectoryWriter::create(&store, "", transport, &options)?;
        append_all(&mut imd, &steps, &layout)?;
        imd.finish()
    });
    (store, summaries.expect("import"))
}

/// Every record of all files by tracer and epoch, read without the code under test.
fn full_scan(paths: &[PathBuf]) -> BTreeMap<(u64, u32), Vec<u8>> {
    let mut all = BTreeMap::new();
    for path in paths {
        let bytes = std::fs::read(path).expect("a dump");
        let number = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let epoch = u32::try_from(number(31) / 100).expect("a step");
        for record in bytes[115..].as_chunks::<32>().0 {
            let weight = f32::from_le_bytes(record[28..].try_into().expect("four"));
            let id = (f64::from(weight) * 2_f64.powi(100)) as u64;
            let before = all.insert((id, epoch), record.to_vec());
            assert_eq!(before, None, "a tracer once an epoch");
        }
    }
    assert_eq!(all.len() as u64, TRACERS * 6);
    all
}

#[test]
fn every_tracer_is_traced_through_time() {
    let Some(paths) = dumps() else { return };
    let all = full_scan(&paths);
    for (format, ranks) in [
        (ValueFormat::Base, 4),
        (ValueFormat::Pointer, 3),
        (ValueFormat::Lossy, 4),
        (ValueFormat::Static, 4),
        (ValueFormat::Ordered, 2),
    ] {
        let (store, summaries) = import(&paths, format, ranks);
        assert!(summaries.iter().all(|summary| summary.epochs == 6));
        let reader = DirectoryReader::open(&store, "", 64 << 20).expect("open");
        assert_eq!(reader.epochs_complete().expect("finished"), 6);
        let keys: Vec<[u8; 8]> = (1..=TRACERS).map(u64::to_be_bytes).collect();
        let answers = reader.get_many(&keys, 0..u32::MAX, 2).expect("get");
        for (values, id) in answers.values.iter().zip(1..) {
            let epochs: Vec<u32> = values.iter().map(|value| value.epoch).collect();
            assert_eq!(epochs, [0, 1, 2, 3, 4, 5], "{format:?}, tracer {id}");
            for value in values {
                let wanted = &all[&(id, value.epoch)];
                assert_eq!(&value.bytes[..], wanted, "{format:?}, tracer {id}");
            }
        }
        let absent = reader.get(&(TRACERS + 1).to_be_bytes()).expect("get");
        assert!(absent.values.is_empty());
    }
}

/// Tracers move between ranks: a static function gives the exact rank that has each one's records.
#[test]
fn a_static_directory_asks_one_rank_for_each_epoch() {
    let Some(paths) = dumps() else { return };
    let (store, _) = import(&paths, ValueFormat::Static, 4);
    let reader = DirectoryReader::open(&store, "", 64 << 20).expect("open");
    let mut partitions = 0;
    for id in 1..=500_u64 {
        let answer = reader.get_epochs(&id.to_be_bytes(), 3..4).expect("get");
        assert_eq!(answer.values.len(), 1);
        partitions += answer.counts.partitions;
    }
    assert_eq!(partitions, 500);
}
