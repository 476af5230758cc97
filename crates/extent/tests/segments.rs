// SPDX-License-Identifier: Apache-2.0
//! Random segments and runs in a tree, compared with files whose bytes record where they are, with
//! flushes, compactions, power loss and resumption.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_base::Random;
use esker_base::clock::SystemClock;
use esker_base::store::{CountedStore, FaultStore, MemoryStore, SharedStore};
use esker_extent::{ExtentFamily, LogPlace, Segment, SegmentOverlay, SegmentRun, TreeExtents};
use esker_table::manifest::{Manifest, SetId};
use esker_table::schema::record::RECORD;
use esker_table::tables::TableSource;
use esker_table::tree::{Compaction, Durability, Tree, TreeOptions, TreeSetup};

const SET: SetId = SetId(9 << 64 | 1);
const FILES: usize = 4;
const FILE_BYTES: usize = 2_048;

/// For each file, the log and offset of each of its bytes.
type Model = Vec<Vec<Option<(u64, u64)>>>;

fn setup(store: &SharedStore, durability: Durability) -> TreeSetup {
    let options = TreeOptions {
        durability,
        compaction: Compaction::Tiered,
        memory_bytes: 1 << 16,
        background: false,
        ..TreeOptions::default()
    };
    TreeSetup {
        schema: &RECORD,
        family: &ExtentFamily,
        source: TableSource::new(store.clone(), 1 << 20),
        clock: Arc::new(SystemClock),
        options,
        sync_dependencies: Arc::new(|| Ok(())),
        log_companion: None,
        heartbeat: None,
    }
}

fn file_id(file: usize) -> u128 {
    (3 << 64) | file as u128
}

fn apply_segment(model: &mut Model, segment: &Segment) {
    let file = (segment.file & 0xFF) as usize;
    for at in segment.offset..segment.end() {
        let place = segment.place.map(|place| (place.log, place.offset + at - segment.offset));
        model[file][at as usize] = place;
    }
}

fn random_run(random: &mut Random, file: usize) -> SegmentRun {
    let length = 1 + random.below(32);
    let stride = length * (1 + random.below(4)) + random.below(2) * random.below(9);
    let offset = random.below(FILE_BYTES as u64 - length);
    let room = (FILE_BYTES as u64 - offset - length) / stride + 1;
    let count = 1 + random.below(room.min(40));
    let place = LogPlace { set: SET, log: random.below(5), offset: random.below(10_000) };
    let file = file_id(file);
    let first = Segment { file, offset, length, place: Some(place), checksum: None, seq: 0 };
    SegmentRun { first, count, stride, log_stride: length + random.below(3) }
}

fn check(tree: &Tree, model: &Model, context: &str) {
    for (file, bytes) in model.iter().enumerate() {
        let mut overlay = SegmentOverlay::new(file_id(file), 0..FILE_BYTES as u64);
        TreeExtents::of(tree).read_segments(&mut overlay).expect("read");
        let mut read: Model = vec![vec![None; FILE_BYTES]; FILES];
        overlay.pieces().iter().for_each(|piece| apply_segment(&mut read, piece));
        assert!(read[file] == *bytes, "{context}: file {file}");
        let mut listed: Model = vec![vec![None; FILE_BYTES]; FILES];
        let runs = TreeExtents::of(tree).segment_runs(file_id(file)).expect("runs");
        runs.iter().flat_map(SegmentRun::segments).for_each(|one| apply_segment(&mut listed, &one));
        assert!(listed[file] == *bytes, "{context}: runs of file {file}");
        let has_bytes = bytes.iter().any(Option::is_some);
        let files = TreeExtents::of(tree).segment_files().expect("files");
        assert!(!has_bytes || files.contains(&file_id(file)), "{context}: file {file}");
        let offsets: Vec<u64> = (0..FILE_BYTES as u64).step_by(7).collect();
        let mut found = vec![None; offsets.len()];
        let mut take = |at: usize, run: &SegmentRun, index| {
            let segment = run.segment(index);
            assert!((segment.offset..segment.end()).contains(&offsets[at]), "{context}");
            found[at] =
                segment.place.map(|place| (place.log, place.offset + offsets[at] - segment.offset));
        };
        TreeExtents::of(tree).find_segments(file_id(file), &offsets, &mut take).expect("find");
        for (offset, found) in offsets.iter().zip(found) {
            assert_eq!(found, bytes[*offset as usize], "{context}: file {file}, offset {offset}");
        }
    }
}

fn step(tree: &Tree, random: &mut Random, model: &mut Model) {
    let file = random.below(FILES as u64) as usize;
    match random.below(13) {
        0..6 => {
            let mut runs = vec![random_run(random, file)];
            // Some files are written by ranks that take turns, so nothing overlaps.
            if file == 0 {
                let rank = random.below(8);
                let from = random.below(8);
                let place = Some(LogPlace { set: SET, log: rank, offset: from * 64 });
                let (file, offset) = (file_id(0), from * 256 + rank * 16);
                let first = Segment { file, offset, length: 16, place, checksum: None, seq: 0 };
                runs = vec![SegmentRun { first, count: 2, stride: 128, log_stride: 32 }];
            }
            TreeExtents::of(tree).put_runs(file_id(file), &mut runs).expect("put");
            runs.iter().flat_map(SegmentRun::segments).for_each(|one| apply_segment(model, &one));
        }
        6..9 if file != 0 => {
            let mut segments = vec![random_run(random, file).first];
            if random.below(4) == 0 {
                segments[0].place = None;
            }
            TreeExtents::of(tree).put_segments(&mut segments).expect("put");
            segments.iter().for_each(|segment| apply_segment(model, segment));
        }
        9 => tree.flush().expect("flush"),
        10 => tree.sync().expect("sync"),
        11 => tree.compact().expect("compact"),
        12 if random.below(4) == 0 => give_up(tree, file, model),
        _ => {}
    }
}

/// Gives up the segments of `file` that begin in its second half.
fn give_up(tree: &Tree, file: usize, model: &mut Model) {
    let kept = |one: &Segment| one.file != file_id(file) || one.offset < FILE_BYTES as u64 / 2;
    let given_up =
        TreeExtents::of(tree).segments_within(file_id(file), 0..u64::MAX).expect("segments");
    let retained = TreeExtents::of(tree).retain_segments(&mut |run, out| match run
        .segments()
        .all(|one| kept(&one))
    {
        true => out.push(*run),
        false => out.extend(run.segments().filter(kept).map(SegmentRun::one)),
    });
    retained.expect("retain");
    for gone in given_up.iter().filter(|one| !kept(one)) {
        apply_segment(model, &Segment::hole(gone.file, gone.offset, gone.length));
    }
}

fn run(seed: u64) {
    let mut random = Random::from_seed(seed);
    let levels = [Durability::None, Durability::Async, Durability::Always];
    let durability = levels[random.below(3) as usize];
    let mut store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), seed));
    let shared: SharedStore = store.clone();
    let mut tree =
        Tree::create(setup(&shared, durability), SET, Manifest::new(vec![], 0)).expect("create");
    let mut model: Model = vec![vec![None; FILE_BYTES]; FILES];
    for number in 0..300 {
        step(&tree, &mut random, &mut model);
        let context = format!("seed {seed}, step {number}");
        if number % 10 == 0 {
            check(&tree, &model, &context);
        }
        if number % 75 == 74 {
            tree.sync().expect("sync");
            drop(tree);
            let left = store.after_power_loss().expect("what is left");
            store = Arc::new(FaultStore::new(left, seed));
            let shared: SharedStore = store.clone();
            let accepts = &mut |_: esker_table::LogContent| Ok(true);
            tree = Tree::resume(setup(&shared, durability), SET, None, accepts).expect("resume");
            check(&tree, &model, &context);
        }
    }
}

#[test]
fn segments_of_a_tree_show_the_newest_bytes() {
    let seeds = match std::env::var("ESKER_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("ESKER_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..6,
    };
    for seed in seeds {
        run(seed);
    }
}

/// Interleaved ranks take only a handful of records, even over several flushes.
#[test]
fn ranks_that_take_turns_stay_runs() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let setup = setup(&store, Durability::Async);
    let tree = Tree::create(setup, SET, Manifest::new(vec![], 0)).expect("create");
    let (ranks, batches) = (16u64, 64u64);
    for batch in 0..batches {
        for rank in 0..ranks {
            let place = Some(LogPlace { set: SET, log: rank, offset: batch * 32 * 100 });
            let offset = (batch * 32 * ranks + rank) * 100;
            let first = Segment { file: 7, offset, length: 100, place, checksum: None, seq: 0 };
            let run = SegmentRun { first, count: 32, stride: ranks * 100, log_stride: 100 };
            TreeExtents::of(&tree).put_runs(7, &mut [run]).expect("put");
        }
        if batch % 20 == 19 {
            tree.flush().expect("flush");
        }
    }
    tree.compact().expect("compact");
    let tables = tree.manifest().tables.clone();
    assert_eq!(tables.iter().map(|table| table.rows).sum::<u64>(), ranks, "{tables:?}");
    let mut overlay = SegmentOverlay::new(7, 0..batches * 32 * ranks * 100);
    TreeExtents::of(&tree).read_segments(&mut overlay).expect("read");
    assert!(overlay.is_covered());
    assert_eq!(overlay.pieces().len() as u64, batches * 32 * ranks);
}

/// Batches find segments in no pattern, with or without their blocks in memory. Blocks that are not
/// in memory are read by regions, in fewer requests than there are blocks if a batch needs many.
#[test]
fn batches_find_single_segments_by_regions() {
    const SEGMENTS: u64 = 30_000;
    for (cache_bytes, sparse) in [(0, 1), (64 << 10, 1), (64 << 20, 1), (64 << 20, 97)] {
        let store = Arc::new(CountedStore::new(Arc::new(MemoryStore::new())));
        let shared: SharedStore = store.clone();
        let mut random = Random::from_seed(cache_bytes + sparse);
        // Distinct places of 8 bytes, each holding 1 to 8 bytes.
        let mut places: Vec<u64> = (0..SEGMENTS * 3).collect();
        for at in (1..places.len()).rev() {
            places.swap(at, random.below(at as u64 + 1) as usize);
        }
        let tree = Tree::create(setup(&shared, Durability::None), SET, Manifest::new(vec![], 0))
            .expect("create");
        let mut written = Vec::new();
        for (batch, places) in places[..SEGMENTS as usize].chunks(500).enumerate() {
            let log = batch as u64 % 7;
            let mut segments: Vec<Segment> = places
                .iter()
                .map(|place| {
                    let own = LogPlace { set: SET, log, offset: random.below(1 << 40) };
                    let length = 1 + random.below(8);
                    Segment { place: Some(own), ..Segment::hole(7, place * 8, length) }
                })
                .collect();
            TreeExtents::of(&tree).put_segments(&mut segments).expect("put");
            written.extend(segments);
        }
        tree.compact().expect("compact");
        drop(tree);
        let mut setup = setup(&shared, Durability::None);
        setup.source = TableSource::new(shared.clone(), cache_bytes);
        let counters = setup.source.counters.clone();
        let tree = Tree::resume(setup, SET, None, &mut |_| Ok(true)).expect("resume");
        for round in 0..2 {
            let blocks_before = counters.block_reads.load(Ordering::Relaxed);
            let reads_before = store.counts().reads;
            for asked in written.chunks(1_000) {
                let asked: Vec<_> = asked.iter().step_by(sparse as usize).collect();
                let mut offsets: Vec<u64> = asked.iter().map(|one| one.end() - 1).collect();
                offsets.push(SEGMENTS * 3 * 8 + 5);
                let mut found = vec![None; offsets.len()];
                TreeExtents::of(&tree)
                    .find_segments(7, &offsets, &mut |at, run, index| {
                        found[at] = Some(run.segment(index));
                    })
                    .expect("find");
                assert_eq!(found.pop(), Some(None), "nothing is behind the end");
                for (asked, found) in asked.into_iter().zip(found) {
                    assert_eq!(found, Some(*asked));
                }
            }
            let blocks = counters.block_reads.load(Ordering::Relaxed) - blocks_before;
            let reads = store.counts().reads - reads_before;
            match (cache_bytes, round) {
                // Every batch needs nearly every block.
                (0, _) if sparse == 1 => assert!(reads * 4 < blocks, "{reads} of {blocks} blocks"),
                (0x400_0000, 1) => assert_eq!((reads, blocks), (0, 0), "all is in memory"),
                _ => {}
            }
        }
    }
}

/// Symptom: after a merge, reads of a file with many segments failed with `Corrupt`, and so did all
/// later merges.
/// Cause: a reader joined the single segments of a table to runs again. Such a run could have the
/// stride of a group of the writer's, and not fit it. Then no run was in a group, and there were
/// too many segments to keep one by one.
/// Fix: a reader takes the runs as they were written if they do not fit when they are joined.
#[test]
fn a_reader_accepts_every_index_that_a_merge_writes() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let mut setup = setup(&store, Durability::None);
    setup.options.compaction = Compaction::Deferred;
    let tree = Tree::create(setup, SET, Manifest::new(vec![], 0)).expect("create");
    let extents = TreeExtents::of(&tree);
    let run = |log, (offset, count, stride), (log_offset, log_stride)| {
        let place = Some(LogPlace { set: SET, log, offset: log_offset });
        SegmentRun {
            first: Segment { place, ..Segment::hole(7, offset, 100) },
            count,
            stride,
            log_stride,
        }
    };
    // Two runs that alternate in one log. Together they are a run of half the stride. They are
    // between two segments of a third one, so a merge keeps them as single segments.
    let base = 500 << 31;
    let mut runs = vec![
        run(2, (base + 50, 8, 1_000), (0, 200)),
        run(2, (base + 550, 8, 1_000), (100, 200)),
        run(3, (base - 200, 100, 1 << 20), (0, 100)),
    ];
    let many = 1 << 20;
    runs.extend((0..66).map(|at| run(1, (at * many * 500, many, 500), (at * many * 100, 100))));
    for run in &runs {
        extents.put_runs(7, &mut [*run]).expect("put");
        tree.flush().expect("flush");
    }
    for _ in 0..2 {
        tree.compact_family().expect("merge");
        for run in &runs {
            for index in [0, run.count - 1] {
                let wanted = run.segment(index);
                let range = wanted.offset..wanted.end();
                let found = extents.segments_within(7, range).expect("read");
                assert_eq!(found.len(), 1);
                assert_eq!((found[0].offset, found[0].place), (wanted.offset, wanted.place));
            }
        }
        extents.put_runs(7, &mut [run(4, (base * 2, 5, 300), (0, 100))]).expect("put");
    }
}

/// A put of more segments than an operation can have becomes several operations.
#[test]
fn a_put_of_very_many_segments_is_complete() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let setup = || {
        let mut setup = setup(&store, Durability::Async);
        setup.options.memory_bytes = 1 << 30;
        setup
    };
    let tree = Tree::create(setup(), SET, Manifest::new(vec![], 0)).expect("create");
    let many = 1 << 20;
    let run = |at: u64| {
        let place = Some(LogPlace { set: SET, log: 1, offset: at * many * 4 });
        let first = Segment { place, ..Segment::hole(7, at * many * 8, 4) };
        SegmentRun { first, count: many, stride: 8, log_stride: 4 }
    };
    let mut runs: Vec<SegmentRun> = (0..20).map(run).collect();
    let last = TreeExtents::of(&tree).put_runs(7, &mut runs).expect("put");
    assert_eq!((runs[0].first.seq, runs[19].first.seq), (last - 2, last));
    tree.sync().expect("sync");
    drop(tree);
    let tree = Tree::resume(setup(), SET, None, &mut |_| Ok(true)).expect("resume");
    let found = TreeExtents::of(&tree).segment_runs(7).expect("runs");
    assert_eq!(found.iter().map(|run| run.count).sum::<u64>(), 20 * many);
}
