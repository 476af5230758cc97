// SPDX-License-Identifier: Apache-2.0
//! Measurements: rows are complete, are not measured twice, and survive interruption at any byte.

use std::cell::Cell;
use std::path::Path;

use esker_advisor::features::StorageConfiguration;
use esker_advisor::measure::{
    ExperimentDesign, MeasureOptions, MeasureSummary, MeasuredSystem, ObservationFile, measure,
};
use esker_advisor::observation::{EmulatedVariables, Observation, StorageDevice, read_csv};
use esker_advisor::pattern::TracePattern;
use esker_advisor::player::{BigFileTarget, ObjectTarget, ReplayTarget};
use esker_base::clock::SystemClock;
use esker_base::{Error, Kind, Result};
use esker_workbench::backend::PosixBackend;

fn design() -> ExperimentDesign {
    ExperimentDesign {
        patterns: vec![TracePattern::Hpio, TracePattern::WorkbenchMix],
        request_bytes: vec![512],
        gap_bytes: vec![0, 64],
        shift_bytes: vec![0],
        processes: vec![2],
        input_bytes: 2_048,
        is_write: false,
        repetitions: 2,
        seed: 3,
    }
}

fn options(budget_ns: u64) -> MeasureOptions {
    let device = StorageDevice::Ssd;
    let storage = StorageConfiguration { servers: 1, metadata_servers: 1, clients: 1, device };
    MeasureOptions { storage, emulated: EmulatedVariables::default(), budget_ns, processors: 2 }
}

fn systems(directory: &Path) -> Vec<MeasuredSystem<'_>> {
    let small = || -> Result<Box<dyn ReplayTarget>> {
        Ok(Box::new(ObjectTarget::new(Box::new(PosixBackend::new(&directory.join("small"))?))?))
    };
    let big = || -> Result<Box<dyn ReplayTarget>> {
        Ok(Box::new(BigFileTarget::new(&directory.join("big"))))
    };
    vec![
        MeasuredSystem { name: "big".to_owned(), open: Box::new(big) },
        MeasuredSystem { name: "small".to_owned(), open: Box::new(small) },
    ]
}

fn run(directory: &Path, budget_ns: u64) -> (MeasureSummary, Vec<Observation>) {
    let (path, options) = (directory.join("rows.csv"), options(budget_ns));
    let mut reported = Vec::new();
    let mut report = |row: &Observation| reported.push(row.clone());
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
        let per_process = if row.workload == "hpio" { 2_048 } else { 4_096 };
        assert_eq!(row.variables.input_bytes, per_process, "{row:?}");
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
    let systems = [MeasuredSystem { name: "big".to_owned(), open: Box::new(failing) }];
    let path = directory.path().join("rows.csv");
    let options = options(u64::MAX);
    let go = || measure(&design(), &systems, &path, &options, &SystemClock, &mut |_| {});
    assert_eq!(go().expect_err("the fourth run").kind(), Kind::Unavailable);
    let summary = go().expect("the rest");
    assert_eq!((summary.skipped, summary.added), (3, 3));
}
