// SPDX-License-Identifier: Apache-2.0
//! Takeovers of damaged logs: after any damage a takeover finds every operation that intact chunks
//! record as synced, or reports `Corrupt`. It never reports the losses of a power loss as
//! `Corrupt`.
//!
//! Random writers, each with several logs that are all needed, write through [`WriterLogs`]. Then
//! every byte of every log is damaged in turn, before a takeover and after one that stopped
//! halfway.

use std::collections::BTreeMap;

use esker_base::random::Random;
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};

use super::*;
use crate::merge::RecordMerge;
use crate::object_name::ObjectFolder;
use crate::schema::record::{self, RECORD};
use crate::tree::{Durability, test_setup};
use crate::wal::{LOG_MAGIC, ShardLog};

const SET: SetId = SetId(7);
const EPOCHS: u64 = 3;
/// Shards whose logs get operations.
const LOGGED_SHARDS: usize = 3;

fn setup(store: &SharedStore) -> TreeSetup {
    let mut setup = test_setup::setup(store, Durability::None);
    setup.options.memory_bytes = 1 << 17;
    setup
}

fn resume(store: &SharedStore) -> Result<Tree> {
    Tree::resume(setup(store), SET, None, &mut |_| Ok(true))
}

/// The operations that a takeover of `store` finds: the key of each is its number.
fn found(store: &SharedStore) -> Result<Vec<u64>> {
    let tree = resume(store)?;
    let first = record::key(&[0]);
    let mut merge = RecordMerge::new(tree.group_cursors(&first, usize::MAX).cursors, &first)?;
    let mut keys = Vec::new();
    while merge.advance()? {
        keys.push(merge.row().ints[record::HEAD]);
    }
    Ok(keys)
}

type Objects = BTreeMap<String, Vec<u8>>;

fn objects(store: &SharedStore) -> Objects {
    let names = store.list("").expect("list").into_iter().map(|object| object.name);
    names.map(|name| (name.clone(), store.get(&name, u64::MAX).expect("get").to_vec())).collect()
}

fn store_of(objects: &Objects) -> SharedStore {
    let store: SharedStore = Arc::new(MemoryStore::new());
    for (name, bytes) in objects {
        store.put_if_absent(name, bytes).expect("put");
    }
    store
}

/// A chunk that was written: its log, its end there, and what it records as synced.
struct WrittenChunk {
    log: String,
    end: usize,
    synced_below: u64,
}

/// A writer of a few operations, with every log that it began.
struct SmallWriter {
    store: SharedStore,
    logs: WriterLogs,
    shards: Vec<ShardLog>,
    next: u64,
    synced_below: u64,
    /// The operations of all writers that have a row.
    rows: Vec<u64>,
    chunks: Vec<WrittenChunk>,
}

impl SmallWriter {
    fn begin(store: &SharedStore, mut manifest: Manifest, rows: Vec<u64>) -> Self {
        manifest.epoch += 1;
        manifest.claim(&**store, SET, 0).expect("claim");
        let mut logs = WriterLogs::new(store.clone(), SET, manifest.epoch << 32);
        logs.begin(Durability::Async).expect("a log");
        let mut shards = Vec::new();
        shards.resize_with(LOGGED_SHARDS, ShardLog::default);
        let (next, chunks) = (manifest.last_seq + 1, Vec::new());
        Self { store: store.clone(), logs, shards, next, synced_below: 0, rows, chunks }
    }

    fn put(&mut self, shard: usize, is_abandoned: bool) {
        let (log, seq) = (&mut self.shards[shard], self.next);
        self.next += 1;
        log.start(seq, usize::from(!is_abandoned));
        if !is_abandoned {
            let key = seq.to_be_bytes();
            let mut row = record::row(&key, b"v");
            row.ints[RECORD.seq()] = seq;
            RECORD.store(&mut row.ints);
            log.row(&RECORD, &row, None);
            self.rows.push(seq);
        }
    }

    fn gather(&mut self) {
        for (number, shard) in self.shards.iter_mut().enumerate() {
            self.logs.chunk.take(number, shard);
        }
    }

    fn write(&mut self) {
        self.logs.write().expect("write");
        for info in self.store.list(&ObjectFolder::Logs(SET).to_string()).expect("list") {
            let end = usize::try_from(info.bytes).expect("small");
            let known = self.chunks.iter().rfind(|chunk| chunk.log == info.name);
            if end > known.map_or(LOG_MAGIC.len(), |chunk| chunk.end) {
                let synced_below = self.synced_below;
                self.chunks.push(WrittenChunk { log: info.name, end, synced_below });
            }
        }
    }

    fn sync(&mut self) {
        self.gather();
        self.write();
        self.logs.sync().expect("sync");
        self.logs.acknowledged_below = self.next;
        self.synced_below = self.next;
    }

    fn rotate(&mut self) {
        self.logs.prepare().expect("a log");
        self.gather();
        self.shards.fill_with(ShardLog::default);
        self.logs.switch();
        self.write();
    }

    fn act(&mut self, random: &mut Random) {
        match random.next_u64() % 20 {
            0..10 => {
                let shard = random.next_u64() as usize % LOGGED_SHARDS;
                self.put(shard, random.next_u64().is_multiple_of(8));
            }
            10..14 => {
                self.gather();
                self.write();
            }
            14..18 => self.sync(),
            _ => self.rotate(),
        }
    }

    /// Rows below `below`.
    fn rows_below(&self, below: u64) -> usize {
        self.rows.iter().filter(|seq| **seq < below).count()
    }

    /// Checks the result of a takeover of `objects`, in which every operation below `synced_below`
    /// is recorded as synced; returns whether it reported damage.
    fn check(&self, objects: &Objects, synced_below: u64, what: &str) -> bool {
        match found(&store_of(objects)) {
            Ok(keys) => {
                let least = self.rows_below(synced_below);
                assert!(keys.len() >= least, "{what}: {} of {least} rows", keys.len());
                assert_eq!(keys, self.rows[..keys.len()], "{what}: no prefix");
                false
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
                assert!(
                    error.to_string().contains(&ObjectFolder::Logs(SET).to_string()),
                    "{what}: {error}"
                );
                true
            }
        }
    }

    /// Damages each byte of each log of `objects`, cuts each log there, and removes each log.
    /// Returns how often a takeover reported damage.
    fn check_damage(&self, objects: &Objects, what: &str) -> usize {
        let recorded = |intact: &dyn Fn(&WrittenChunk) -> bool| {
            let intact = self.chunks.iter().filter(|chunk| intact(chunk));
            intact.map(|chunk| chunk.synced_below).max().unwrap_or(0)
        };
        let synced_below = recorded(&|chunk| objects.contains_key(&chunk.log));
        let mut reported = 0;
        for (log, bytes) in objects.iter().filter(|(name, _)| name.contains("/wal/")) {
            let mut damaged = objects.clone();
            damaged.remove(log);
            let others = recorded(&|chunk| objects.contains_key(&chunk.log) && chunk.log != *log);
            reported += usize::from(self.check(&damaged, others, &format!("{what}: no {log}")));
            for at in 0..bytes.len() {
                let what = format!("{what}: {log} at byte {at}");
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                damaged.insert(log.clone(), flipped);
                reported += usize::from(self.check(&damaged, synced_below, &what));
                damaged.insert(log.clone(), bytes[..at].to_vec());
                let left = recorded(&|chunk| {
                    objects.contains_key(&chunk.log) && (chunk.log != *log || chunk.end <= at)
                });
                reported += usize::from(self.check(&damaged, left, &format!("{what}: cut")));
            }
        }
        reported
    }
}

/// Symptom: damage of one log silently took synced operations that later logs held.
/// Cause: each log was judged alone.
/// Fix: chunks record the operations that were synced, and a takeover checks that it has them all.
#[test]
fn damage_of_any_byte_takes_no_operation_that_is_recorded_as_synced() {
    let mut reported = 0;
    for seed in 0..3 {
        let mut random = Random::from_seed(seed);
        let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), seed));
        let store: SharedStore = fault.clone();
        let (mut manifest, mut rows) = (Manifest::new(vec![], 0), Vec::new());
        for epoch in 0..EPOCHS {
            let mut writer = SmallWriter::begin(&store, manifest, rows);
            (0..40).for_each(|_| writer.act(&mut random));
            let what = format!("seed {seed}, epoch {epoch}");
            for _ in 0..20 {
                let left = objects(&fault.after_power_loss().expect("image"));
                assert!(!writer.check(&left, writer.synced_below, &what), "{what}: power loss");
            }
            let whole = objects(&store);
            reported += writer.check_damage(&whole, &what);
            let stopped = Arc::new(FaultStore::new(store_of(&whole), seed));
            stopped.stop_at(1 + random.next_u64() % 30, FaultEffect::Partial);
            let image: SharedStore = stopped.clone();
            drop(resume(&image));
            let left = objects(&stopped.after_process_death().expect("image"));
            writer.check_damage(&left, &format!("{what}, after a takeover that stopped"));
            // The process dies, and the next writer takes over.
            let end = found(&store).expect("takeover").len();
            rows = writer.rows;
            rows.truncate(end);
            manifest = Manifest::load(&*store, SET).expect("manifest");
        }
    }
    assert!(reported > 1_000, "{reported} damages were reported");
}

/// Symptom: a takeover lost operations that its first reading of a log had found.
/// Cause: it reads the logs twice, and did not compare what it found.
/// Fix: it fails if the second reading finds less, and a further attempt replays the rest.
#[test]
fn a_log_that_is_read_worse_the_second_time_is_replayed_again() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let mut writer = SmallWriter::begin(&store, Manifest::new(vec![], 0), Vec::new());
    for shard in [0, 1, 2] {
        writer.put(shard, false);
        writer.sync();
    }
    let objects = objects(&store);
    let (log, bytes) = objects.iter().find(|(name, _)| name.contains("/wal/")).expect("a log");
    for at in LOG_MAGIC.len()..bytes.len() {
        let store = store_of(&objects);
        let mut rows = 0;
        // At the end of the first reading the log decays.
        let mut decay = |_: LogContent| {
            rows += 1;
            if rows == writer.rows.len() {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1;
                store.delete(log).and_then(|()| store.put_if_absent(log, &flipped)).expect("decay");
            }
            Ok(true)
        };
        let error = Tree::resume(setup(&store), SET, None, &mut decay).expect_err("it has decayed");
        assert_eq!(error.kind(), Kind::Conflict, "byte {at}: {error}");
        assert!(error.to_string().contains(log), "byte {at}: {error}");
        match found(&store) {
            // Only the operations of the last sync may be lost unseen.
            Ok(keys) => assert!(keys == [1, 2] || keys == [1, 2, 3], "byte {at}: {keys:?}"),
            Err(error) => assert_eq!(error.kind(), Kind::Corrupt, "byte {at}: {error}"),
        }
    }
}
