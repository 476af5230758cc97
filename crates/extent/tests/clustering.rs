// SPDX-License-Identifier: Apache-2.0
//! Clustering on and off agree: batches of offsets get the same segments no matter which blocks are
//! read together (MetaKV §III-B, Algorithm 1), from files and from memory, before and after
//! compaction.
//!
//! α follows from the pace of the store, which the test sets. With expensive requests and free
//! bytes, regions are wide; the other way round, only adjacent blocks that were all asked for are
//! joined. Without clustering each block is read alone, for each key. The cache never answers.

use std::sync::Arc;

use esker_base::Random;
use esker_base::clock::SystemClock;
use esker_base::store::{CountedStore, MemoryStore, PosixStore, RequestCounts, SharedStore};
use esker_extent::{ExtentFamily, LogPlace, Segment, TreeExtents};
use esker_table::manifest::{Manifest, SetId};
use esker_table::schema::record::RECORD;
use esker_table::tables::TableSource;
use esker_table::tree::{Compaction, Durability, Tree, TreeOptions, TreeSetup};

use crate::records::put;

const SET: SetId = SetId(5 << 64 | 3);
const KEYS: u64 = 6_000;
const FILE: u128 = 3 << 64 | 1;
const FILE_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clustering {
    /// α is at its minimum.
    Wide,
    /// α is 1.
    Close,
    /// Every block is read alone.
    Off,
}

const ALL: [Clustering; 3] = [Clustering::Wide, Clustering::Close, Clustering::Off];

/// A tree, and the cost of its reads.
struct Subject {
    tree: Tree,
    source: TableSource,
    store: Arc<CountedStore>,
    /// For each clustering: number of reads, and their bytes.
    taken: [(u64, u64); 3],
}

/// The answers to a batch.
type Found = Vec<Option<Segment>>;

impl Subject {
    fn new(inner: SharedStore, compaction: Compaction) -> Self {
        let store = Arc::new(CountedStore::new(inner));
        let source = TableSource::new(store.clone(), 0);
        let options = TreeOptions {
            durability: Durability::None,
            compaction,
            memory_bytes: 1 << 18,
            background: false,
            ..TreeOptions::default()
        };
        let setup = TreeSetup {
            schema: &RECORD,
            family: &ExtentFamily,
            source: source.clone(),
            clock: Arc::new(SystemClock),
            options,
            sync_dependencies: Arc::new(|| Ok(())),
            log_companion: None,
            heartbeat: None,
        };
        let tree = Tree::create(setup, SET, Manifest::new(vec![], 0)).expect("a fresh set");
        Self { tree, source, store, taken: [(0, 0); 3] }
    }

    /// Sets the pace with some thousands of requests so that regions are found as `clustering`
    /// says.
    fn teach(&self, clustering: Clustering) {
        let (of_request, of_byte, percent) = match clustering {
            Clustering::Wide => (50_000_000, 0, 5),
            Clustering::Close | Clustering::Off => (0, 1_000, 100),
        };
        // Enough requests that earlier ones have no weight.
        for number in 0..4_000 {
            let bytes = 4_096 * (1 + number % 5);
            self.source.counters.pace.record(bytes, of_request + of_byte * bytes);
        }
        let alpha = self.source.counters.pace.percent_min(4_096.0);
        assert_eq!(alpha, percent, "{clustering:?}");
    }

    fn segments(&self, offsets: &[u64], clustering: Clustering) -> Found {
        let batch = if clustering == Clustering::Off { 1 } else { offsets.len() };
        let mut found = vec![None; offsets.len()];
        for (part, offsets) in offsets.chunks(batch.max(1)).enumerate() {
            let find =
                TreeExtents::of(&self.tree).find_segments(FILE, offsets, &mut |at, run, index| {
                    let before = found[part * batch + at].replace(run.segment(index));
                    assert_eq!(before, None, "an offset has one segment");
                });
            find.expect("segments");
        }
        found
    }

    /// Returns the answer of all three clusterings, which must agree.
    fn agree<A: PartialEq>(&mut self, what: &str, get: impl Fn(&Self, Clustering) -> A) -> A {
        let mut answers = ALL.map(|clustering| {
            self.teach(clustering);
            let before = self.store.counts();
            let answer = get(self, clustering);
            let RequestCounts { reads, read_bytes, .. } = self.store.counts() - before;
            let taken = &mut self.taken[clustering as usize];
            *taken = (taken.0 + reads, taken.1 + read_bytes);
            Some(answer)
        });
        assert!(answers[0] == answers[2], "{what}: wide regions and blocks alone differ");
        assert!(answers[1] == answers[2], "{what}: neighbours and blocks alone differ");
        answers[0].take().expect("an answer")
    }
}

fn key(number: u64) -> Vec<u8> {
    // Some keys share the integer by which the table sorts first.
    [&(number / 3).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()[..], &[number as u8]].concat()
}

/// Writes one round: records over others, and segments over others.
fn write(subject: &Subject, random: &mut Random) {
    for _ in 0..1_500 {
        let mut value = vec![0; random.below(300) as usize];
        random.fill(&mut value);
        put(&subject.tree, &key(random.below(KEYS)), &value).expect("a put");
    }
    let segment = |random: &mut Random| {
        let place = LogPlace { set: SET, log: random.below(9), offset: random.next_u64() >> 20 };
        let place = Some(place).filter(|_| !random.one_in(9));
        let (offset, length) = (random.below(FILE_BYTES), 1 + random.below(400));
        Segment { file: FILE, offset, length, place, checksum: None, seq: 0 }
    };
    let mut segments: Vec<Segment> = (0..3_000).map(|_| segment(random)).collect();
    TreeExtents::of(&subject.tree).put_segments(&mut segments).expect("segments");
}

/// Compares small batches, large ones, and one of all keys.
fn compare(subject: &mut Subject, random: &mut Random, is_compacted: bool, what: &str) {
    let chances =
        if is_compacted { &[1_500, 1_000, 700, 500, 300, 200, 50, 6, 1][..] } else { &[700, 20] };
    for &chances in chances {
        let count = 4 + 4_000 / chances;
        let offsets: Vec<u64> = (0..count).map(|_| random.below(FILE_BYTES + 500)).collect();
        let found =
            subject.agree(what, |subject, clustering| subject.segments(&offsets, clustering));
        for (offset, segment) in offsets.iter().zip(&found) {
            assert!(segment.is_none_or(|one| (one.offset..one.end()).contains(offset)), "{what}");
        }
        assert!(found.iter().any(Option::is_some) || chances > 6, "{what}");
    }
}

fn history(seed: u64, store: SharedStore) {
    let mut random = Random::from_seed(seed);
    let kinds = [Compaction::Deferred, Compaction::Tiered, Compaction::Full];
    let mut subject = Subject::new(store, kinds[seed as usize % 3]);
    for round in 0..3 {
        write(&subject, &mut random);
        if round < 2 {
            subject.tree.flush().expect("flush");
        }
        // Part of the last records are in memory.
        compare(&mut subject, &mut random, false, &format!("seed {seed}, round {round}"));
    }
    subject.tree.compact().expect("compact");
    subject.taken = [(0, 0); 3];
    compare(&mut subject, &mut random, true, &format!("seed {seed}, compacted"));
    together(&subject, &mut random, &format!("seed {seed}, together"));
    let [wide, close, off] = subject.taken;
    println!("seed {seed}: reads and bytes {wide:?} wide, {close:?} close, {off:?} alone");
    assert!(wide.0 * 5 < close.0 * 4 && close.0 * 10 < off.0, "{wide:?}, {close:?}, {off:?}");
    assert!(wide.1 > close.1, "wide regions have what nobody asked for");
}

/// Batches of several threads, which share the blocks that they read.
fn together(subject: &Subject, random: &mut Random, what: &str) {
    subject.teach(Clustering::Wide);
    let mut batch = || -> Vec<u64> { (0..800).map(|_| random.below(FILE_BYTES)).collect() };
    let batches: [Vec<u64>; 4] = std::array::from_fn(|_| batch());
    std::thread::scope(|scope| {
        for offsets in &batches {
            scope.spawn(move || {
                let found = subject.segments(offsets, Clustering::Wide);
                assert!(found == subject.segments(offsets, Clustering::Off), "{what}");
            });
        }
    });
}

#[test]
fn clustering_on_and_off_agree_in_memory() {
    (0..3).for_each(|seed| history(seed, Arc::new(MemoryStore::new())));
}

#[test]
fn clustering_on_and_off_agree_on_files() {
    for seed in 10..13 {
        let dir = tempfile::tempdir().expect("a directory");
        history(seed, Arc::new(PosixStore::new(dir.path()).expect("a store")));
    }
}
