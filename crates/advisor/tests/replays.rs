// SPDX-License-Identifier: Apache-2.0
//! Replays: every pattern on every player, wrong bytes, times of the trace, and files that are left
//! behind.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use esker_advisor::observation::StorageKind;
use esker_advisor::pattern::{PatternSize, TracePattern};
use esker_advisor::player::{
    BigFileTarget, LoadState, LoadedData, ObjectTarget, PlanDigest, PlanOptions, ReplayPacing,
    ReplayPlan, ReplayResult, ReplayTarget, SharedFileTarget, replay,
};
use esker_advisor::trace::strace::{StraceOptions, import_strace};
use esker_advisor::trace::{TraceOperation, TraceReader, TraceRecord};
use esker_base::clock::{ManualClock, SystemClock};
use esker_base::store::{CountedStore, SharedStore};
use esker_base::{Kind, Random, Result, store};
use esker_fs::names::IfTaken;
use esker_fs::repository::Repository;
use esker_fs::session::SessionOptions;
use esker_workbench::backend::{NullBackend, ObjectStoreBackend, PosixBackend};

use crate::patterns::{self, SIZE};
use crate::trace_files;

fn plan_of(trace: &[u8], options: PlanOptions) -> ReplayPlan {
    let reader = TraceReader::open(trace, "trace").expect("a trace");
    ReplayPlan::read(&reader, options).expect("a plan")
}

fn plan(pattern: TracePattern, size: &PatternSize) -> ReplayPlan {
    plan_of(&patterns::trace(pattern, size), PlanOptions::default())
}

/// Files of `store` that ranks share.
fn shared_files(store: SharedStore) -> SharedFileTarget {
    let (options, clock) = (SessionOptions::default(), Arc::new(SystemClock));
    SharedFileTarget::open(store, "replay", options, clock, Random::from_seed(3)).expect("a target")
}

/// The players: big file, small files, keys, and Esker's shared files.
fn targets(directory: &Path) -> Vec<(Box<dyn ReplayTarget>, &'static str)> {
    let [big, small] = ["big", "small"].map(|name| directory.join(name));
    let posix = PosixBackend::new(&small).expect("a directory");
    let [memory, shared] = ["memory:replays", "memory:shared"];
    let memory = store::url::connect(memory).expect("a store");
    let shared = store::url::connect(shared).expect("a store");
    let objects = |backend| Box::new(ObjectTarget::new(backend).expect("an object target"));
    vec![
        (Box::new(BigFileTarget::new(&big)), "posix-shared-file"),
        (objects(Box::new(posix)), "posix-small-files"),
        (objects(Box::new(ObjectStoreBackend::new(memory))), "store"),
        (Box::new(shared_files(shared)), "esker-shared-file"),
    ]
}

fn run(target: &dyn ReplayTarget, plan: &ReplayPlan, pacing: ReplayPacing) -> Result<ReplayResult> {
    replay(target, plan, pacing, 1, &SystemClock)
}

/// Closes of files that the rank has written since it closed them last.
fn closes_after_writes(plan: &ReplayPlan) -> u64 {
    let mut closes = 0;
    for steps in &plan.ranks {
        let mut written = HashSet::new();
        for step in steps {
            match step.operation {
                TraceOperation::Write => drop(written.insert(step.file)),
                TraceOperation::Close => closes += u64::from(written.remove(&step.file)),
                _ => {}
            }
        }
    }
    closes
}

#[test]
fn every_pattern_is_replayed_by_every_player() {
    let directory = tempfile::tempdir().expect("a directory");
    let size = PatternSize { request_bytes: 5_000, gap_bytes: 77, shift_bytes: 3, ..SIZE };
    for pattern in TracePattern::ALL {
        for written in [0, 5, u64::MAX] {
            let plan = plan(pattern, &PatternSize { written, ..size });
            let closes_after_writes = closes_after_writes(&plan);
            for (target, name) in targets(directory.path()) {
                assert_eq!(target.load_state().expect("known"), LoadState::Absent);
                target.load(&plan).expect("loaded");
                let loaded = LoadState::Complete(LoadedData::of(&plan));
                assert_eq!(target.load_state().expect("known"), loaded);
                target.drop_caches().expect("dropped");
                let found = run(&*target, &plan, ReplayPacing::Fast).expect(name);
                assert_eq!((found.system.as_str(), found.ranks), (name, 4));
                assert_eq!((found.requests, found.bytes), (plan.requests, plan.bytes));
                assert!(found.seconds >= found.io_seconds && found.io_seconds > 0.0);
                let metadata = match (found.kind, name) {
                    (StorageKind::FileSystem, "posix-shared-file") => plan.metadata_operations,
                    (StorageKind::FileSystem, "esker-shared-file") => closes_after_writes,
                    _ => 0,
                };
                assert_eq!(found.metadata_operations, metadata, "{name}, {pattern:?}");
                target.clear().expect("cleared");
            }
            let left = std::fs::read_dir(directory.path()).expect("listed").count();
            assert_eq!(left, 0, "{pattern:?}: everything is removed");
        }
    }
}

#[test]
fn a_wrong_byte_stops_the_player() {
    let directory = tempfile::tempdir().expect("a directory");
    let plan = plan(TracePattern::Hpio, &PatternSize { gap_bytes: 100, ..SIZE });
    for (target, name) in targets(directory.path()).into_iter().take(2) {
        target.load(&plan).expect("loaded");
        let (path, offset) = match name {
            "posix-shared-file" => ("big/file-0", 65_536 + 100 + 4_097),
            _ => ("small/rank-0/set-0/object-1", 4_097),
        };
        let path = directory.path().join(path);
        let mut bytes = std::fs::read(&path).expect("a file");
        bytes[offset] ^= 0x10;
        std::fs::write(&path, bytes).expect("written");
        let error = run(&*target, &plan, ReplayPacing::Fast).expect_err("a wrong byte");
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        // The position in the traced file, for every player.
        let place = format!("{name}: /data at byte {}: expected ", 65_636 + 4_097);
        assert!(error.context().contains(&place), "{error}");
        target.clear().expect("cleared");
    }
}

#[test]
fn a_real_log_is_replayed() {
    let log = include_str!("data/python.strace");
    let options = StraceOptions { paths: vec![b"/tmp/app".to_vec()] };
    let (trace, _) = import_strace(log.as_bytes(), "log", Vec::new(), &options).expect("a log");
    let directory = tempfile::tempdir().expect("a directory");
    for writes_as_reads in [false, true] {
        let plan = plan_of(&trace, PlanOptions { writes_as_reads });
        assert_eq!(plan.ranks.len(), 2);
        assert!(plan.skipped > 0, "renames and the like");
        for (target, name) in targets(directory.path()) {
            target.load(&plan).expect("loaded");
            let found = run(&*target, &plan, ReplayPacing::Fast).expect(name);
            assert_eq!(found.bytes, plan.bytes);
            target.clear().expect("cleared");
        }
    }
}

/// Data that a replay keeps has the target's name, serves later replays, and is removed whole.
#[test]
fn shared_files_are_kept_under_their_name() {
    let store = store::url::connect("memory:kept").expect("a store");
    let repository = Repository::new(store.clone());
    let size = PatternSize { written: 4, ..SIZE };
    let plan = plan(TracePattern::IorStrided, &size);
    let target = shared_files(store.clone());
    let error = target.connect(0, &plan).err().expect("nothing is loaded");
    assert_eq!(error.kind(), Kind::NotFound);
    target.load(&plan).expect("loaded");
    assert_eq!(target.load(&plan).expect_err("loaded before").kind(), Kind::Conflict);
    run(&target, &plan, ReplayPacing::Fast).expect("replayed");
    run(&target, &plan, ReplayPacing::Traced).expect("replayed again");
    assert_eq!(repository.names().expect("names"), [], "nothing has a name before it is kept");
    target.finish(true).expect("kept");
    let open = repository.open_sessions().expect("sessions");
    assert_eq!(open.len(), 0, "no part of a job stays");
    let kept = shared_files(store.clone());
    let loaded = LoadState::Complete(LoadedData::of(&plan));
    assert_eq!(kept.load_state().expect("known"), loaded);
    run(&kept, &plan, ReplayPacing::Fast).expect("replayed");
    kept.clear().expect("cleared");
    assert_eq!(repository.names().expect("names"), []);
    assert_eq!(kept.clear().expect_err("nothing").kind(), Kind::NotFound);
    // A snapshot of something else stays.
    let session = repository.begin(&[], SessionOptions::default()).expect("begun");
    session.publish("replay").expect("published");
    let other = shared_files(store);
    assert_eq!(other.load_state().expect_err("no marker").kind(), Kind::NotEmpty);
    assert_eq!(other.load(&plan).expect_err("taken").kind(), Kind::Conflict);
    assert_eq!(other.clear().expect_err("not a replay's").kind(), Kind::NotEmpty);
    assert_eq!(repository.names().expect("names").len(), 1);
}

/// Nothing is loaded here, so the second rank reads what the first has written, or nothing.
#[test]
fn a_close_of_a_shared_file_shows_what_was_written_and_makes_it_durable() {
    let trace = trace_files::trace(|writer| {
        let file = writer.file(b"/data").expect("a path");
        let mut push = |rank, operation, bytes: u64| {
            let result = i64::try_from(bytes).expect("a few");
            let record = TraceRecord { file, bytes, result, ..TraceRecord::new(rank, operation) };
            writer.push(&record).expect("a record");
        };
        for (rank, operation) in [(0, TraceOperation::Write), (1, TraceOperation::Read)] {
            if rank == 1 {
                push(rank, TraceOperation::Barrier, 0);
            }
            push(rank, TraceOperation::Open, 0);
            push(rank, operation, 5_000);
            push(rank, TraceOperation::Close, 0);
            if rank == 0 {
                push(rank, TraceOperation::Barrier, 0);
            }
        }
    });
    let mut plan = plan_of(&trace, PlanOptions::default());
    plan.files[0].read.clear();
    let counted =
        Arc::new(CountedStore::new(store::url::connect("memory:closes").expect("a store")));
    let target = shared_files(counted.clone());
    target.load(&plan).expect("loaded");
    let before = counted.counts();
    let found = run(&target, &plan, ReplayPacing::Fast).expect("the bytes of the other rank");
    assert_eq!((found.requests, found.metadata_operations), (2, 1));
    // Of the data log and of the log of the owner's part, at least.
    assert!((counted.counts() - before).syncs >= 2, "{:?}", counted.counts() - before);
    target.clear().expect("cleared");
}

/// A snapshot to which somebody has added a file is more than the data of a replay.
#[test]
fn a_snapshot_with_more_than_the_data_of_a_replay_stays() {
    let store = store::url::connect("memory:added").expect("a store");
    let repository = Repository::new(store.clone());
    let plan = plan(TracePattern::Hpio, &SIZE);
    let target = shared_files(store.clone());
    target.load(&plan).expect("loaded");
    target.finish(true).expect("kept");
    let base = repository.resolve("replay").expect("a name").set;
    let session = repository.begin(&[base], SessionOptions::default()).expect("begun");
    let root = session.root().clone();
    session
        .create_file(&root, b"thesis", 0o644)
        .and_then(|file| session.close_file(file))
        .expect("made");
    let set = session.complete().expect("complete");
    repository.publish_replacing(set, "replay", IfTaken::ReplaceUnlessMoved).expect("published");
    let other = shared_files(store);
    assert_eq!(other.clear().expect_err("a file of somebody").kind(), Kind::NotEmpty);
    assert_eq!(repository.resolve("replay").expect("a name").set, set);
}

/// With a clock that moves only in waits, every call begins when it does in the trace.
#[test]
fn times_of_the_trace_are_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let size = PatternSize { ranks: 1, requests: 50, request_bytes: 64, ..SIZE };
    let plan = plan(TracePattern::RequestSize, &size);
    let target = BigFileTarget::new(&directory.path().join("big"));
    target.load(&plan).expect("loaded");
    let clock = ManualClock::new(1);
    let found = replay(&target, &plan, ReplayPacing::Traced, 2, &clock).expect("replayed");
    let timing = found.timing.expect("of a replay that keeps times");
    assert_eq!((timing.late_p50_ns, timing.late_max_ns), (0, 0));
    assert_eq!((timing.traced_seconds, timing.replayed_seconds), (0.05, 0.05));
    assert!(timing.span_error() < 1e-12);
    let fast = replay(&target, &plan, ReplayPacing::Fast, 2, &clock).expect("replayed");
    assert_eq!((fast.timing, fast.seconds), (None, 0.0));
}

/// Ranks of a foreign trace may have different numbers of barriers; no rank waits for ever.
#[test]
fn uneven_barriers_are_left_out() {
    let trace = trace_files::trace(|writer| {
        let file = writer.file(b"/data").expect("a path");
        for rank in [3, 8] {
            let transfer = TraceRecord {
                file,
                bytes: 10,
                result: 10,
                ..TraceRecord::new(rank, TraceOperation::Read)
            };
            writer.push(&transfer).expect("a record");
            if rank == 3 {
                writer.push(&TraceRecord::new(rank, TraceOperation::Barrier)).expect("a record");
            }
        }
    });
    let plan = plan_of(&trace, PlanOptions::default());
    assert_eq!((plan.ranks.len(), plan.skipped), (2, 1));
    let directory = tempfile::tempdir().expect("a directory");
    let target = BigFileTarget::new(directory.path());
    target.load(&plan).expect("loaded");
    run(&target, &plan, ReplayPacing::Fast).expect("replayed");
}

#[test]
fn other_directories_and_services_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("mine"), "x").expect("written");
    let plan = plan(TracePattern::Hpio, &SIZE);
    let error = BigFileTarget::new(directory.path()).load(&plan).expect_err("others' files");
    assert_eq!(error.kind(), Kind::NotEmpty);
    let null = Box::new(NullBackend::default());
    let Err(error) = ObjectTarget::new(null) else { panic!("nothing is kept") };
    assert_eq!(error.kind(), Kind::Unsupported);
    let empty = trace_files::trace(|_| {});
    let reader = TraceReader::open(&empty[..], "trace").expect("a trace");
    let error = ReplayPlan::read(&reader, PlanOptions::default()).expect_err("no requests");
    assert_eq!(error.kind(), Kind::Invalid);
}

/// Symptom: an interrupted load counted as complete until a replay read a wrong byte, and the data
/// of one trace as that of another. Cause: the marker said only that the directory is a replay's.
/// Fix: it names the plan, and becomes complete after the data.
#[test]
fn a_partial_load_and_that_of_another_trace_are_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let plans = [TracePattern::Hpio, TracePattern::LanlApp1].map(|pattern| plan(pattern, &SIZE));
    assert_ne!(PlanDigest::of(&plans[0]), PlanDigest::of(&plans[1]));
    let moved = plan(TracePattern::Hpio, &PatternSize { shift_bytes: 512, ..SIZE });
    assert_ne!(PlanDigest::of(&plans[0]), PlanDigest::of(&moved), "requests of one size elsewhere");
    for (target, name) in targets(directory.path()).into_iter().take(2) {
        target.load(&plans[0]).expect("loaded");
        assert!(target.load(&plans[1]).is_err(), "{name}: loaded over another");
        let loaded = LoadState::Complete(LoadedData::of(&plans[0]));
        assert_eq!(target.load_state().expect("known"), loaded, "{name}: and kept");
        let marker = directory.path().join(match name {
            "posix-shared-file" => "big/esker-replay",
            _ => "small/working-set.json",
        });
        let text = std::fs::read_to_string(&marker).expect("a marker");
        std::fs::write(&marker, text.replace("true", "false")).expect("written");
        let partial = LoadState::Partial(LoadedData::of(&plans[0]));
        assert_eq!(target.load_state().expect("known"), partial, "{name}");
        target.clear().expect("cleared");
        assert_eq!(target.clear().expect_err("nothing").kind(), Kind::NotFound, "{name}");
    }
    let left = std::fs::read_dir(directory.path()).expect("listed").count();
    assert_eq!(left, 0, "everything is removed");
}

/// Symptom: a short trace of many ranks with the largest requests took all memory.
#[test]
fn buffers_of_all_ranks_are_bounded() {
    let of = |ranks| {
        let trace = trace_files::trace(|writer| {
            let file = writer.file(b"/data").expect("a path");
            for rank in 0..ranks {
                let record = TraceRecord::new(rank, TraceOperation::Read);
                let (bytes, result) = (1 << 30, 1 << 30);
                writer.push(&TraceRecord { file, bytes, result, ..record }).expect("a record");
            }
        });
        let reader = TraceReader::open(&trace[..], "trace").expect("a trace");
        ReplayPlan::read(&reader, PlanOptions::default())
    };
    assert_eq!(of(16).expect("a plan").ranks.len(), 16);
    assert_eq!(of(17).expect_err("too much").kind(), Kind::TooLarge);
}

/// Symptom: two commands removed each other's data, and failed for files that were gone.
#[test]
fn one_command_at_a_time_replays_in_a_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let plan = plan(TracePattern::Hpio, &SIZE);
    let [first, second] = [0; 2].map(|_| targets(directory.path()));
    for ((target, name), (other, _)) in first.into_iter().zip(second).take(2) {
        target.load(&plan).expect("loaded");
        for answer in [other.load_state().map(drop), other.clear()] {
            assert_eq!(
                answer.expect_err("the other one is there").kind(),
                Kind::Conflict,
                "{name}"
            );
        }
        other.load(&plan).expect_err("the other one has loaded");
        run(&*target, &plan, ReplayPacing::Fast).expect("replayed");
        drop(target);
        run(&*other, &plan, ReplayPacing::Fast).expect("replayed");
        other.clear().expect("cleared");
    }
}

/// Symptom: files that were named like those of a replay were removed with it.
#[test]
fn files_that_no_replay_made_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let big = directory.path().join("big");
    let plan = plan(TracePattern::Hpio, &SIZE);
    let target = BigFileTarget::new(&big);
    target.load(&plan).expect("loaded");
    std::fs::write(big.join("file-77"), "mine").expect("written");
    target.clear().expect("cleared");
    assert_eq!(std::fs::read(big.join("file-77")).expect("it stays"), b"mine");

    std::fs::rename(big.join("file-77"), big.join("esker-replay.new")).expect("renamed");
    assert!(!BigFileTarget::has_data(&big));
    assert_eq!(target.clear().expect_err("nothing").kind(), Kind::NotFound);
    assert_eq!(target.load(&plan).expect_err("not empty").kind(), Kind::NotEmpty);
    assert_eq!(std::fs::read(big.join("esker-replay.new")).expect("it stays"), b"mine");
}

/// Symptom: a replay that only reads needed the right to write, and removed the data without it.
#[test]
fn files_that_are_read_need_no_right_to_write() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = BigFileTarget::new(&directory.path().join("big"));
    let read_only = plan(TracePattern::Hpio, &SIZE);
    target.load(&read_only).expect("loaded");
    let mut connection = target.connect(0, &read_only).expect("connected");
    let mut buffer = vec![0; 65_536];
    let step = read_only.ranks[0].iter().find(|step| step.operation == TraceOperation::Read);
    connection.call(step.expect("a read"), &mut buffer).expect("read");
    let path = directory.path().join("big/file-0").canonicalize().expect("a path");
    let is_it =
        |entry: &std::fs::DirEntry| std::fs::read_link(entry.path()).ok() == Some(path.clone());
    let open: Vec<_> = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten().collect();
    let open = open.into_iter().find(is_it).expect("the file is open").file_name();
    let information = std::path::Path::new("/proc/self/fdinfo").join(open);
    let information = std::fs::read_to_string(information).expect("flags");
    let flags = information.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags");
    let flags = u32::from_str_radix(flags.trim(), 8).expect("octal");
    assert_eq!(flags & 0o3, 0, "opened to be read: {flags:o}");
}
