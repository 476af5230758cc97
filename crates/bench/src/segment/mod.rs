// SPDX-License-Identifier: Apache-2.0
//! Segment: segments of a shared file, put in batches by the ranks of a job, looked up, and listed.
//!
//! Clients are simulated in the process: their batches arrive one after another, interleaved at
//! random. The time of puts ends when everything is in the store and compaction is done; look-ups
//! start with empty caches.

mod describe;
pub mod pattern;

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{CountedStore, SharedStore};
use esker_base::{Clock, Error, Kind, Random, Result};
use esker_extent::{
    ExtentFamily, FilePiece, LogPlace, Segment, SegmentRun, StridedSegments, TreeExtents,
};
use esker_table::manifest::{Manifest, SetId};
use esker_table::object_name::ObjectFolder;
use esker_table::schema::record::RECORD;
use esker_table::tables::TableSource;
use esker_table::tree::{Tree, TreeOptions, TreeSetup};
use serde::Serialize;

use self::describe::describe;
use self::pattern::{BATCH, PatternSize, SegmentBatch};
use crate::permutation::Permutation;
use crate::report::ResourceMeter;

/// The id of the only file.
const FILE: u128 = 1;
/// Bytes of the block cache.
const CACHE_BYTES: u64 = 256 << 20;
/// Entries of an extent list that are returned at once.
const LIST_ENTRIES: usize = 1 << 16;

/// Results.
#[derive(Clone, Debug, Serialize)]
pub struct SegmentReport {
    /// `segment`.
    pub operation: &'static str,
    /// Number of segments.
    pub operations: u64,
    /// Number of descriptors that were put; 0 if segments were put singly.
    pub descriptors: usize,
    /// Seconds of all puts, until compaction is done.
    pub seconds: f64,
    /// Segments divided by these seconds.
    pub puts_per_second: f64,
    /// Segments divided by the time until the last put returned.
    pub acknowledged_per_second: f64,
    /// Longest time of a batch.
    pub worst_batch_ms: f64,
    /// Processor time of the puts.
    pub cpu_seconds: f64,
    /// Peak resident memory of the process since its start.
    pub peak_rss_bytes: u64,
    /// Bytes written to the store by the puts, including logs.
    pub store_bytes_written: u64,
    /// Bytes of tables divided by segments.
    pub store_bytes_per_segment: f64,
    /// Bytes of write-ahead logs divided by segments.
    pub wal_bytes_per_record: f64,
    /// Number of tables at the end.
    pub tables: usize,
    /// Look-ups per second, in batches, in the order of the puts.
    pub gets_per_second: f64,
    /// Look-ups per second, in batches, in random order.
    pub random_gets_per_second: f64,
    /// Entries per second of the extent list of the whole file.
    pub range_entries_per_second: f64,
}

/// Puts the batches of `size` into a new change set in `store`, looks up every segment, and
/// deletes the set.
///
/// # Errors
/// `Corrupt` for a wrong answer; errors of the store.
pub fn segment(
    store: &SharedStore,
    size: &PatternSize,
    as_descriptors: bool,
    options: TreeOptions,
) -> Result<SegmentReport> {
    let batches = size.batches()?;
    let counted = Arc::new(CountedStore::new(store.clone()));
    let set = SetId(Random::from_system().u128());
    let shared: SharedStore = counted.clone();
    let manifest = Manifest::new(vec![], SystemClock.now_ns());
    let tree = Tree::create(setup(&shared, &options), set, manifest)?;
    let mut report = if as_descriptors {
        let all = described(set, &batches);
        let report = put(&tree, &counted, &all, |strides| {
            TreeExtents::of(&tree).put_runs(FILE, &mut strides.runs())?;
            Ok(strides.segments().expect("as many as the batches have"))
        })?;
        SegmentReport { descriptors: all.len(), ..report }
    } else {
        let mut runs = Vec::with_capacity(BATCH);
        put(&tree, &counted, &batches, |batch| {
            TreeExtents::of(&tree).put_pieces(
                &log_of(set, batch.client),
                &batch.pieces,
                &mut runs,
            )?;
            Ok(batch.pieces.len() as u64)
        })?
    };
    drop(tree);
    let queries = SegmentQueries::new(batches);
    {
        let tree = reopened(&shared, &options, set)?;
        report.gets_per_second = find(&tree, &queries.offsets, &queries.answers)?;
        report.range_entries_per_second = list(&tree, &queries)?;
    }
    let (offsets, answers) = queries.in_random_order();
    let tree = reopened(&shared, &options, set)?;
    report.random_gets_per_second = find(&tree, &offsets, &answers)?;
    drop(tree);
    // Its segments refer to data that was never written, so nothing else can read the set.
    for object in store.list(&ObjectFolder::All(set).to_string())? {
        store.delete(&object.name)?;
    }
    Ok(report)
}

fn setup(store: &SharedStore, options: &TreeOptions) -> TreeSetup {
    TreeSetup {
        schema: &RECORD,
        family: &ExtentFamily,
        source: TableSource::new(store.clone(), CACHE_BYTES),
        clock: Arc::new(SystemClock),
        options: options.clone(),
        sync_dependencies: Arc::new(|| Ok(())),
        log_companion: None,
        heartbeat: None,
    }
}

/// Opens the set like a process that has read nothing of it.
fn reopened(store: &SharedStore, options: &TreeOptions, set: SetId) -> Result<Tree> {
    Tree::resume(setup(store, options), set, None, &mut |_| Ok(true))
}

/// Bytes written to the store.
fn written_bytes(counted: &CountedStore) -> u64 {
    let counts = counted.counts();
    counts.written_bytes + counts.log_bytes
}

/// A template for the segments of `client`, in its log.
fn log_of(set: SetId, client: u64) -> Segment {
    Segment { place: Some(LogPlace { set, log: client, offset: 0 }), ..Segment::hole(FILE, 0, 1) }
}

/// The descriptors of each client, in the order of clients.
fn described(set: SetId, batches: &[SegmentBatch]) -> Vec<StridedSegments> {
    let mut of_client: BTreeMap<u64, Vec<FilePiece>> = BTreeMap::new();
    for batch in batches {
        of_client.entry(batch.client).or_default().extend_from_slice(&batch.pieces);
    }
    of_client
        .into_iter()
        .flat_map(|(client, mut pieces)| {
            // Shuffled batches were written in the order of the log.
            pieces.sort_unstable_by_key(|piece| piece.log_offset);
            describe(&log_of(set, client), &pieces)
        })
        .collect()
}

/// Puts all `batches`, each by a call of `one`, which returns its number of segments; then waits
/// until everything is in the store and compaction is done.
fn put<B>(
    tree: &Tree,
    counted: &CountedStore,
    batches: &[B],
    mut one: impl FnMut(&B) -> Result<u64>,
) -> Result<SegmentReport> {
    let clock = SystemClock;
    let written_before = written_bytes(counted);
    let meter = ResourceMeter::start();
    let (mut worst_ns, mut segments) = (0, 0);
    let mut last_ns = clock.monotonic_ns();
    for batch in batches {
        segments += one(batch)?;
        let now_ns = clock.monotonic_ns();
        worst_ns = worst_ns.max(now_ns - last_ns);
        last_ns = now_ns;
    }
    let acknowledged_seconds = meter.seconds();
    tree.compact()?;
    let measured = meter.stop("segment", segments)?;
    let tables = tree.manifest().tables.clone();
    let table_bytes: u64 = tables.iter().map(|table| table.bytes).sum();
    Ok(SegmentReport {
        operation: "segment",
        operations: measured.operations,
        descriptors: 0,
        seconds: measured.seconds,
        puts_per_second: measured.operations_per_second,
        acknowledged_per_second: segments as f64 / acknowledged_seconds.max(1e-9),
        worst_batch_ms: worst_ns as f64 / 1e6,
        cpu_seconds: measured.cpu_seconds,
        peak_rss_bytes: measured.peak_rss_bytes,
        store_bytes_written: written_bytes(counted) - written_before,
        store_bytes_per_segment: table_bytes as f64 / segments as f64,
        wal_bytes_per_record: tree.statistics().log_bytes as f64 / segments as f64,
        tables: tables.len(),
        gets_per_second: 0.0,
        random_gets_per_second: 0.0,
        range_entries_per_second: 0.0,
    })
}

/// Look-ups with the expected answers: log, and offset in it.
struct SegmentQueries {
    offsets: Vec<u64>,
    answers: Vec<(u32, u64)>,
    /// Total bytes of all segments.
    bytes: u64,
}

impl SegmentQueries {
    fn new(batches: Vec<SegmentBatch>) -> Self {
        let (mut offsets, mut answers, mut bytes) = (Vec::new(), Vec::new(), 0);
        for batch in batches {
            for piece in batch.pieces {
                offsets.push(piece.offset);
                answers.push((batch.client as u32, piece.log_offset));
                bytes += piece.length;
            }
        }
        Self { offsets, answers, bytes }
    }

    fn in_random_order(&self) -> (Vec<u64>, Vec<(u32, u64)>) {
        let count = self.offsets.len() as u64;
        let order = Permutation::new(count, 6);
        let places = (0..count).map(|at| order.at(at) as usize);
        places.map(|at| (self.offsets[at], self.answers[at])).unzip()
    }
}

fn wrong(offset: u64) -> Error {
    Error::new(Kind::Corrupt, format!("the segment at {offset} is not the one that was put"))
}

/// Looks up `offsets` in batches and compares each answer; returns look-ups per second.
fn find(tree: &Tree, offsets: &[u64], answers: &[(u32, u64)]) -> Result<f64> {
    let meter = ResourceMeter::start();
    for (offsets, answers) in offsets.chunks(BATCH).zip(answers.chunks(BATCH)) {
        let mut right = 0;
        TreeExtents::of(tree).find_segments(
            FILE,
            offsets,
            &mut |at, run: &SegmentRun, index| {
                let segment = run.segment(index);
                let within = offsets[at].wrapping_sub(segment.offset);
                let place = segment.place.map(|place| (place.log as u32, place.offset + within));
                right += usize::from(place == Some(answers[at]));
            },
        )?;
        if right != offsets.len() {
            return Err(wrong(offsets[0]));
        }
    }
    Ok(offsets.len() as f64 / meter.seconds().max(1e-9))
}

/// Lists the extents of the whole file in batches; returns entries per second.
fn list(tree: &Tree, queries: &SegmentQueries) -> Result<f64> {
    let meter = ResourceMeter::start();
    let mut listed: Vec<(FilePiece, u64)> = Vec::with_capacity(LIST_ENTRIES);
    let (mut entries, mut bytes) = (0usize, 0);
    TreeExtents::of(tree).visit_segments(FILE, 0..u64::MAX, &mut |run, index| {
        if listed.len() == LIST_ENTRIES {
            std::hint::black_box(&listed);
            listed.clear();
        }
        let place = run.first.place.unwrap_or_default();
        let piece = FilePiece {
            offset: run.first.offset + index * run.stride,
            length: run.first.length,
            log_offset: place.offset + index * run.log_stride,
        };
        listed.push((piece, place.log));
        entries += 1;
        bytes += piece.length;
    })?;
    let rate = entries as f64 / meter.seconds().max(1e-9);
    // Neighbours in file and log may have been joined.
    if bytes == queries.bytes { Ok(rate) } else { Err(wrong(bytes)) }
}
