// SPDX-License-Identifier: Apache-2.0
//! Measurements: rows are complete, are not measured twice, and survive interruption at any byte.

use std::cell::Cell;
use std::path::Path;

use esker_advisor::features::StorageConfiguration;
use esker_advisor::measure::{
    ExperimentDesign, MeasureOptions, MeasureSummary, MeasuredSystem, ObservationFile, measure,
};
use esker_advisor::observation::{EmulatedVariables, Observation, StorageDevice, read_csv};
use esker_advisor::pattern::{PatternSize, TracePattern, write_pattern};
use esker_advisor::player::{
    BigFileTarget, LoadState, LoadedData, ObjectTarget, PlanOptions, ReplayPlan, ReplayTarget,
};
use esker_advisor::trace::{TraceReader, features};
use esker_base::clock::{ManualClock, SystemClock};
use esker_base::{Error, Kind, Result};
use esker_workbench::backend::PosixBackend;

const REAL: StorageConfiguration = StorageConfiguration {
    servers: 1,
    metadata_servers: 1,
    clients: 1,
    device: StorageDevice::Ssd,
};

fn design() -> ExperimentDesign {
    ExperimentDesign {
        patterns: vec![TracePattern::Hpio, TracePattern::WorkbenchMix],
        request_bytes: vec![512],
        gap_bytes: vec![0, 64],
        shift_bytes: vec![0],
        processes: vec![2],
        input_bytes: 2_048,
        is_write: false,
        storage: vec![REAL],
        is_emulated: false,
        repetitions: 2,
        seed: 3,
    }
}

const fn options(budget_ns: u64) -> MeasureOptions {
    MeasureOptions { budget_ns, processors: 2 }
}

fn systems(directory: &Path) -> Vec<MeasuredSystem<'_>> {
    let small = || -> Result<Box<dyn ReplayTarget>> {
        Ok(Box::new(ObjectTarget::new(Box::new(PosixBackend::new(&directory.join("small"))?))?))
    };
    let big = || -> Result<Box<dyn ReplayTarget>> {
        Ok(Box::new(BigFileTarget::new(&directory.join("big"))))
    };
    vec![
        MeasuredSystem { name: "big".to_owned(), target: "/big".to_owned(), open: Box::new(big) },
        MeasuredSystem {
            name: "small".to_owned(),
            target: "/small".to_owned(),
            open: Box::new(small),
        },
    ]
}

fn run(directory: &Path, budget_ns: u64) -> (MeasureSummary, Vec<Observation>) {
    let (path, options) = (directory.join("rows.csv"), options(budget_ns));
    let mut reported = Vec::new();
    let mut report = |row: &Observation, _: &MeasureSummary| reported.push(row.clone());
    let summary =
        measure(&design(), &systems(directory), &path, &options, &SystemClock, &mut report);
    (summary.expect("measured"), reported)
}

fn rows(directory: &Path) -> Vec<Observation> {
    let bytes = std::fs::read(directory.join("rows.csv")).expect("a file");
    read_csv("rows.csv", &bytes).expect("rows")
}

#[test]
fn a_measurement_has_all_rows_once() {
    let directory = tempfile::tempdir().expect("a directory");
    // No time: the file has its header, and no row.
    let (summary, _) = run(directory.path(), 0);
    assert_eq!((summary.runs, summary.added, summary.left()), (12, 0, 12));
    assert_eq!(rows(directory.path()), []);
    let (summary, reported) = run(directory.path(), u64::MAX);
    assert_eq!((summary.added, summary.left()), (12, 0));
    let found = rows(directory.path());
    assert_eq!(found, reported);
    for row in &found {
        assert_eq!((row.variables.processes, row.variables.request_bytes), (2, 512));
        // The mix reads half of it, and writes the other.
        assert_eq!(row.variables.input_bytes, 2_048, "{row:?}");
        assert!(row.bandwidth() > 0.0);
    }
    let (summary, _) = run(directory.path(), u64::MAX);
    assert_eq!((summary.skipped, summary.added), (12, 0));
    assert_eq!(rows(directory.path()), found);
    let left: Vec<_> = std::fs::read_dir(directory.path()).expect("listed").flatten().collect();
    assert_eq!(left.len(), 1, "only the rows: {left:?}");
}

#[test]
fn a_file_cut_at_any_byte_is_completed() {
    let directory = tempfile::tempdir().expect("a directory");
    run(directory.path(), u64::MAX);
    let path = directory.path().join("rows.csv");
    let whole = std::fs::read(&path).expect("a file");
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).expect("written");
        let file = ObservationFile::open(&path).expect("a part of a file");
        let complete = whole[..length].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(file.rows(), complete.saturating_sub(1), "cut at {length}");
        drop(file);
        let kept = std::fs::read(&path).expect("a file");
        assert!(whole.starts_with(&kept) && kept.ends_with(b"\n"));
    }
    std::fs::write(&path, &whole[..whole.len() - 3]).expect("written");
    let (summary, _) = run(directory.path(), u64::MAX);
    assert_eq!((summary.skipped, summary.added), (11, 1));
    assert_eq!(rows(directory.path()).len(), 12);
    std::fs::write(&path, "something else").expect("written");
    assert_eq!(ObservationFile::open(&path).expect_err("no rows").kind(), Kind::Corrupt);
}

/// The clock is moved only by waits, so times are those of the emulated hardware alone.
#[test]
fn emulated_storage_decides_the_times() {
    let directory = tempfile::tempdir().expect("a directory");
    let with = |servers, device| StorageConfiguration { servers, device, ..REAL };
    let storage =
        vec![with(1, StorageDevice::Hdd), with(1, StorageDevice::Ssd), with(4, StorageDevice::Ssd)];
    let design = ExperimentDesign {
        patterns: vec![TracePattern::IorSegmented],
        request_bytes: vec![1 << 20],
        gap_bytes: vec![0],
        processes: vec![1],
        input_bytes: 4 << 20,
        storage: storage.clone(),
        is_emulated: true,
        repetitions: 1,
        ..design()
    };
    let (path, options) = (directory.path().join("rows.csv"), options(u64::MAX));
    let clock = ManualClock::new(1);
    let systems = systems(directory.path());
    let summary = measure(&design, &systems, &path, &options, &clock, &mut |_, _| {});
    assert_eq!(summary.expect("measured").added, 6);
    let found = rows(directory.path());
    let everything = EmulatedVariables::storage(true);
    assert!(found.iter().all(|row| row.emulated == everything), "{found:?}");
    let time_of = |system: &str, storage: StorageConfiguration| {
        let is_it = |row: &&Observation| {
            let variables = &row.variables;
            row.system == system
                && (variables.servers, variables.device) == (storage.servers, storage.device)
        };
        found.iter().find(is_it).expect("a row").microseconds
    };
    let [hard_disk, one, four] = [0, 1, 2].map(|index| time_of("big", storage[index]));
    // 4 MiB at 100 MB/s and what was read ahead, an access, and an open and a close of 0.7 ms; the
    // solid-state disk is five times as fast, but the interface is not.
    assert!((42_000.0..60_000.0).contains(&hard_disk), "{hard_disk} us");
    assert!((33_500.0..38_000.0).contains(&one), "{one} us");
    // The client's interface is the bottleneck however many servers there are.
    assert!((33_500.0..=one).contains(&four), "{four} us");
    // Each small file costs an access and two metadata operations.
    let small = time_of("small", storage[0]);
    assert!((4.0 * (4_000.0 + 1_400.0) + 41_900.0..70_000.0).contains(&small), "{small} us");
}

/// Symptom: after a system's directory was changed in the command, rows of two storages had one name.
#[test]
fn rows_of_a_system_are_of_one_target() {
    let directory = tempfile::tempdir().expect("a directory");
    run(directory.path(), 0);
    let path = directory.path().join("rows.csv");
    let mut systems = systems(directory.path());
    let mut go = |target: &str| {
        target.clone_into(&mut systems[0].target);
        measure(&design(), &systems, &path, &options(u64::MAX), &SystemClock, &mut |_, _| {})
    };
    assert_eq!(go("/big").expect("measured").added, 12);
    let error = go("/elsewhere").expect_err("another storage");
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
    assert!(error.context().contains("are of /big, not of /elsewhere"), "{error}");
    assert!(rows(directory.path()).iter().all(|row| row.target == format!("/{}", row.system)));
}

/// Symptom: rows were appended below columns in another order, and read as something else.
#[test]
fn files_with_other_columns_are_not_continued() {
    let directory = tempfile::tempdir().expect("a directory");
    run(directory.path(), u64::MAX);
    let path = directory.path().join("rows.csv");
    let text = std::fs::read_to_string(&path).expect("a file");
    let without_target = |line: &str| format!("{}\n", line.rsplit_once(',').expect("columns").0);
    let other: String = text.lines().map(without_target).collect();
    std::fs::write(&path, &other).expect("written");
    let error = ObservationFile::open(&path).expect_err("other columns");
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), other);
}

#[test]
fn one_measurement_at_a_time_appends() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("rows.csv");
    let first = ObservationFile::open(&path).expect("opened");
    assert_eq!(ObservationFile::open(&path).expect_err("in use").kind(), Kind::Conflict);
    drop(first);
    ObservationFile::open(&path).expect("opened again");
}

/// R counted requests of the largest size, so that loops of smaller ones had too few bytes.
#[test]
fn patterns_transfer_the_bytes_that_they_are_asked_for() {
    let (input_bytes, request_bytes) = (1 << 20, 4_096);
    for pattern in TracePattern::ALL {
        let size = PatternSize {
            ranks: 4,
            requests: pattern.requests_of(input_bytes, request_bytes),
            request_bytes,
            gap_bytes: 0,
            shift_bytes: 0,
            interval_ns: 0,
            written: 0,
            last_bytes: None,
            is_file_per_rank: false,
        };
        let (trace, _) = write_pattern(pattern, &size, Vec::new()).expect("a trace");
        let reader = TraceReader::open(&trace[..], "trace").expect("a trace");
        let found = features(&reader, 65_536).expect("features").variables(&REAL).expect("some");
        let least = input_bytes - 2 * 4_160;
        let range = least..=input_bytes;
        assert!(range.contains(&found.input_bytes), "{pattern:?}: {}", found.input_bytes);
        assert_eq!(pattern.requests_of(0, request_bytes), 0);
        let one_loop = pattern.requests_of(1, request_bytes);
        assert!((1..=3).contains(&one_loop), "{pattern:?}: {one_loop}");
    }
}

/// A system that fails in the middle leaves the rows so far, and its data is removed.
#[test]
fn a_failure_keeps_the_rows() {
    let directory = tempfile::tempdir().expect("a directory");
    let opened = Cell::new(0);
    let failing = || -> Result<Box<dyn ReplayTarget>> {
        opened.set(opened.get() + 1);
        match opened.get() {
            4 => Err(Error::new(Kind::Unavailable, "gone")),
            _ => Ok(Box::new(BigFileTarget::new(&directory.path().join("big")))),
        }
    };
    let systems = [MeasuredSystem {
        name: "big".to_owned(),
        target: "/big".to_owned(),
        open: Box::new(failing),
    }];
    let path = directory.path().join("rows.csv");
    let options = options(u64::MAX);
    let go = || measure(&design(), &systems, &path, &options, &SystemClock, &mut |_, _| {});
    assert_eq!(go().expect_err("the fourth run").kind(), Kind::Unavailable);
    let summary = go().expect("the rest");
    assert_eq!((summary.skipped, summary.added), (3, 3));
}

/// Symptom: after a measurement was killed in a run, the same command failed at a key-value store
/// or small files, since these had a working set.
#[test]
fn a_measurement_goes_on_after_a_run_that_was_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let size = design().cases().expect("valid")[0].size;
    let (trace, _) = write_pattern(TracePattern::Hpio, &size, Vec::new()).expect("a trace");
    let reader = TraceReader::open(&trace[..], "trace").expect("a trace");
    let plan = ReplayPlan::read(&reader, PlanOptions::default()).expect("a plan");
    let plan = ReplayPlan { is_measured: true, ..plan };
    for system in systems(directory.path()) {
        (system.open)().expect("opened").load(&plan).expect("loaded");
    }
    let (summary, _) = run(directory.path(), u64::MAX);
    assert_eq!((summary.added, summary.left()), (12, 0));

    // Data that a replay keeps is not removed for a measurement.
    let kept = ReplayPlan { is_measured: false, ..plan };
    for system in systems(directory.path()) {
        let target = (system.open)().expect("opened");
        target.load(&kept).expect("loaded");
        drop(target);
        let path = directory.path().join("others.csv");
        let options = self::options(u64::MAX);
        let name = system.name.clone();
        let measured = measure(&design(), &[system], &path, &options, &SystemClock, &mut |_, _| {});
        assert_eq!(measured.expect_err("data is kept").kind(), Kind::Exists, "{name}");
        let systems = systems(directory.path());
        let system = systems.iter().find(|system| system.name == name).expect("it is there");
        let state = (system.open)().expect("opened").load_state().expect("known");
        assert_eq!(state, LoadState::Complete(LoadedData::of(&kept)), "{name}");
    }
}

/// Symptom: a measurement in a directory with files of others failed, and removed those that were
/// named like its own. Cause: it cleared a directory that it had not loaded.
#[test]
fn the_files_of_others_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let mine = directory.path().join("big/file-0");
    std::fs::create_dir(directory.path().join("big")).expect("made");
    std::fs::write(&mine, "mine").expect("written");
    let path = directory.path().join("rows.csv");
    let systems = &systems(directory.path())[..1];
    let error =
        measure(&design(), systems, &path, &options(u64::MAX), &SystemClock, &mut |_, _| {});
    assert_eq!(error.expect_err("others' files").kind(), Kind::NotEmpty);
    assert_eq!(std::fs::read(&mine).expect("it stays"), b"mine");
    let target = BigFileTarget::new(mine.parent().expect("a directory"));
    assert_eq!(target.clear().expect_err("no data of a replay").kind(), Kind::NotFound);
    assert!(mine.exists());
}
