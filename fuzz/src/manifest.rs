// SPDX-License-Identifier: Apache-2.0
//! Manifests: arbitrary bytes under a valid checksum, valid ones with some bytes changed, and
//! takeovers of their sets.

use std::sync::Arc;

use esker_base::clock::ManualClock;
use esker_base::store::{MemoryStore, SharedStore};
use esker_extent::ExtentFamily;
use esker_table::internals::{decode_manifest, encode_manifest, encode_manifest_unchecked};
use esker_table::manifest::{JobMembership, Manifest, SetId, SetState, TableRef};
use esker_table::object_name::ObjectName;
use esker_table::schema::RowBuffer;
use esker_table::schema::record::{self, RECORD};
use esker_table::tables::TableSource;
use esker_table::tree::{Compaction, Durability, Tree, TreeOptions, TreeSetup};

use crate::choices::Choices;
use crate::records;

/// The set that [`resume`] takes over.
pub const SET: SetId = SetId(1);

pub fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let ours = !choices.u8().is_multiple_of(4);
    let made = made(&mut choices);
    let mut encoded = if ours { encode_manifest_unchecked(&made) } else { choices.rest().to_vec() };
    // The checksum is not mutated but recomputed.
    let body = encoded.len() - encoded.len().min(4);
    encoded.truncate(body);
    let changed = choices.mutate(&mut encoded) || !ours;
    encoded.extend_from_slice(&crc32c::crc32c(&encoded).to_le_bytes());
    let decoded = decode_manifest(&encoded);
    if let Ok(manifest) = &decoded {
        assert_eq!(
            decode_manifest(&encode_manifest(manifest).expect("what was read")).as_ref(),
            Ok(manifest)
        );
        take_over(manifest, &encoded);
    }
    // Some random manifests are refused: tables that overlap, numbers without successors.
    if !changed && let Ok(manifest) = decoded {
        assert_eq!(manifest, made);
    }
}

fn made(choices: &mut Choices) -> Manifest {
    let mut manifest = Manifest::new(Vec::new(), choices.u64());
    manifest.number = number(choices);
    manifest.epoch = number(choices);
    manifest.last_seq = number(choices);
    manifest.log_floor = number(choices);
    manifest.state = [SetState::Open, SetState::Sealed, SetState::Doomed][choices.below(16) % 3];
    manifest.bases = (0..choices.u8() % 3).map(|_| SetId(u128::from(choices.u64()))).collect();
    for run in (0..u64::from(choices.u8() % 4)).rev() {
        let (a, b) = (records::key(&RECORD, choices), records::key(&RECORD, choices));
        let (first, last) = if a.key() <= b.key() { (a, b) } else { (b, a) };
        manifest.tables.push(TableRef {
            set: SET,
            number: number(choices),
            schema: if choices.u8() < 0xE0 { RECORD.id } else { 1 },
            run: run * 2 + number(choices) % 4,
            bytes: 1_000 + number(choices),
            tail_bytes: number(choices) % 2_000,
            rows: number(choices),
            seq_max: choices.u64(),
            first,
            last,
        });
    }
    manifest.obsolete = (0..choices.u8() % 4).map(|_| choices.u64()).collect();
    manifest.merged_sets =
        (0..choices.u8() % 3).map(|_| SetId(u128::from(choices.u64()))).collect();
    manifest.data_sets = (0..choices.u8() % 3).map(|_| SetId(u128::from(choices.u64()))).collect();
    manifest.has_unsealed_logs = choices.u8() % 4 == 0;
    if choices.u8() % 4 == 0 {
        let rank = (choices.u8() % 2 == 0).then(|| u32::from(choices.u8()));
        manifest.job = Some(JobMembership { job: u128::from(choices.u64()), rank });
    }
    for _ in 0..choices.u8() % 3 {
        manifest.properties.insert(text(choices), text(choices));
    }
    manifest
}

/// Usually a number that a manifest may have.
fn number(choices: &mut Choices) -> u64 {
    let value = choices.u64();
    if choices.u8() < 0xFC { value & 0xFFFF } else { value >> 1 }
}

fn text(choices: &mut Choices) -> String {
    String::from_utf8_lossy(&choices.string(40)).into_owned()
}

/// Opens the set like a writer, and uses it, which relies on its numbers.
fn take_over(manifest: &Manifest, encoded: &[u8]) {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let name = ObjectName::Manifest(SET, manifest.number).to_string();
    store.put_if_absent(&name, encoded).expect("put");
    if let Ok(tree) = resume(&store) {
        use_tree(&tree);
    }
}

/// Takes over the set in `store`, without threads.
pub fn resume(store: &SharedStore) -> esker_base::Result<Tree> {
    let setup = TreeSetup {
        schema: &RECORD,
        family: &ExtentFamily,
        source: TableSource::new(store.clone(), 1 << 16),
        clock: Arc::new(ManualClock::new(1)),
        options: TreeOptions {
            durability: Durability::None,
            compaction: Compaction::Full,
            memory_bytes: 1 << 20,
            background: false,
            flush_threads: 1,
            ..TreeOptions::default()
        },
        sync_dependencies: Arc::new(|| Ok(())),
        log_companion: None,
        heartbeat: None,
    };
    Tree::resume(setup, SET, None, &mut |_| Ok(true))
}

/// Reads and writes. The store's tables may be missing, which must only be an error.
pub fn use_tree(tree: &Tree) {
    let mut row = RowBuffer::default();
    let key = record::key(b"key");
    let _found = tree.get(&key, true, &mut row);
    let _other = tree.get(&record::key(b"other"), true, &mut row);
    let _put = tree.update([key], None, |_, batch| {
        batch.put(&mut [record::row(b"key", b"value")]);
        Ok(())
    });
    let _flushed = tree.flush();
    let _statistics = tree.statistics();
    let _compacted = tree.compact();
}
