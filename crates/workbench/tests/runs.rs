// SPDX-License-Identifier: Apache-2.0
//! Whole runs on real backends: the files they leave, the working sets they reuse, and the bytes
//! they verify.

use std::path::Path;

use esker_base::Kind;
use esker_base::clock::SystemClock;
use esker_workbench::backend::{Backend, PosixBackend};
use esker_workbench::io500::Io500Phase;
use esker_workbench::operation::Operation;
use esker_workbench::options::RunOptions;
use esker_workbench::pattern::WorkingSetSize;
use esker_workbench::progress::RunProgress;
use esker_workbench::result::{PhaseKind, PhaseResult, RunResult};
use esker_workbench::run::{cleanup, run_threads};

/// Three ranks with two datasets of ten objects each.
pub fn options() -> RunOptions {
    let (ranks, datasets, rank_offset) = (3, 2, 1);
    let (objects, iterations, object_bytes) = (10, 4, 100);
    RunOptions::new(WorkingSetSize {
        ranks,
        datasets,
        objects,
        iterations,
        object_bytes,
        rank_offset,
    })
}

pub fn run(path: &Path, options: &RunOptions) -> esker_base::Result<RunResult> {
    let backend = PosixBackend::new(path)?;
    run_threads(&backend, options, &SystemClock, &RunProgress::new(options.size.ranks))
}

/// The numbers of the objects of the first dataset.
fn numbers(path: &Path) -> Vec<u64> {
    numbers_in(path, "rank-0/set-0")
}

/// The numbers of the objects of a dataset.
pub fn numbers_in(path: &Path, dataset: &str) -> Vec<u64> {
    let entries = std::fs::read_dir(path.join(dataset)).expect("a dataset");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
    let number = |name: std::ffi::OsString| {
        let name = name.into_string().expect("UTF-8");
        name.strip_prefix("object-").expect("an object").parse().expect("a number")
    };
    let mut numbers: Vec<u64> = entries.map(name).map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_run_measures_every_call_and_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let result = run(&path, &RunOptions { repeat: 2, ..options() }).expect("a run");
    assert!(!path.exists());
    let kinds: Vec<PhaseKind> = result.phases.iter().map(|phase| phase.plan.kind).collect();
    let [precreate, benchmark, cleanup] =
        [PhaseKind::Precreate, PhaseKind::Benchmark, PhaseKind::Cleanup];
    assert_eq!(kinds, [precreate, benchmark, benchmark, cleanup]);
    let count = |phase: usize, operation| {
        result.phases[phase].operation(operation).map_or(0, |found| found.service.count)
    };
    assert_eq!((count(0, Operation::Create), count(0, Operation::Mkdir)), (60, 6));
    for operation in [Operation::Stat, Operation::Read, Operation::Delete, Operation::Create] {
        assert_eq!((count(1, operation), count(2, operation)), (24, 24), "{operation}");
    }
    assert_eq!((count(3, Operation::Delete), count(3, Operation::Rmdir)), (60, 6));
    assert_eq!(result.phases.iter().map(|phase| phase.failed()).sum::<u64>(), 0);
    let balance = result.phases[1].balance();
    assert!((0.0..=1.0).contains(&balance) && result.phases[1].operations[0].ranks.len() == 3);
    assert_eq!(result.backend, "posix");
    assert!(!result.environment.file_system.is_empty());
}

#[test]
fn a_kept_working_set_is_reused_where_it_was_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let kept = RunOptions { keep: true, ..options() };
    run(&path, &kept).expect("a run");
    assert_eq!(numbers(&path), (4..14).collect::<Vec<u64>>());
    let again = run(&path, &kept).expect("another run");
    assert_eq!(again.phases[0].plan.kind, PhaseKind::Benchmark, "nothing is created again");
    assert_eq!((numbers(&path), again.phases[0].failed()), ((8..18).collect(), 0));
    let read_only = RunOptions { read_only: true, ..kept.clone() };
    let read = run(&path, &read_only).expect("a run that changes nothing");
    assert_eq!((numbers(&path), read.phases[0].count()), ((8..18).collect(), 48));
    let mut other = kept.clone();
    other.size.objects += 1;
    let refused = run(&path, &other).expect_err("another working set");
    assert_eq!(refused.kind(), Kind::Invalid);
    assert!(refused.to_string().contains("-P 10"), "{refused}");
    let last = run(&path, &options()).expect("the last run");
    assert_eq!(last.phases.last().map(|phase| phase.failed()), Some(0), "all were there");
    assert!(!path.exists());
}

#[test]
fn a_names_phase_leaves_the_working_set_as_it_was() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let kept = RunOptions { keep: true, names: true, ..options() };
    let result = run(&path, &kept).expect("a run");
    let phase = result.phases.last().expect("phases");
    assert_eq!((phase.plan.kind, phase.failed()), (PhaseKind::Names, 0));
    let counts: Vec<(Operation, u64)> =
        phase.operations.iter().map(|found| (found.operation, found.service.count)).collect();
    let expected = [
        (Operation::Mkdir, 24),
        (Operation::Rmdir, 24),
        (Operation::List, 6),
        (Operation::ListAttributes, 6),
        (Operation::Rename, 48),
    ];
    assert_eq!(counts, expected);
    assert_eq!(numbers(&path), (4..14).collect::<Vec<u64>>());
    assert_eq!(std::fs::read_dir(path.join("rank-0")).expect("a rank").count(), 2);
    let last = run(&path, &options()).expect("the contents are still right");
    assert_eq!(last.phases.iter().map(|phase| phase.failed()).sum::<u64>(), 0);
}

/// Symptom to be excluded: a service that returns other bytes looks fast.
#[test]
fn wrong_bytes_count_as_failures() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let kept = RunOptions { keep: true, ..options() };
    run(&path, &kept).expect("a run");
    std::fs::copy(path.join("rank-1/set-0/object-5"), path.join("rank-0/set-0/object-5"))
        .expect("another object's bytes");
    let result = run(&path, &kept).expect("a run that finds it");
    let read = result.phases[0].operation(Operation::Read).expect("reads");
    assert_eq!((read.failures.get("Corrupt"), read.service.count), (Some(&1), 23));
    let first = read.first_failure.as_deref().unwrap_or_default();
    assert!(first.contains("rank-0/set-0/object-5 at byte 0"), "{first}");
}

/// With a time limit all ranks do as many iterations as the fastest.
#[test]
fn stonewalls_end_phases_with_equal_iterations() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let limited = RunOptions { stonewall_ns: Some(0), keep: true, ..options() };
    let result = run(&path, &limited).expect("a run");
    let phase = &result.phases[1];
    assert_eq!((phase.iterations, phase.count()), (0, 0));
    assert_eq!(numbers(&path), (0..10).collect::<Vec<u64>>());
    let long = RunOptions { stonewall_ns: Some(u64::MAX), ..limited };
    let phase = &run(&path, &long).expect("a run").phases[0];
    assert_eq!((phase.iterations, phase.count()), (4, 96));
    assert!(phase.stonewall_rate.is_some_and(|rate| rate > 0.0));
    let backend = PosixBackend::new(&path).expect("a directory");
    assert_eq!(cleanup(&backend).expect("cleaned up"), 60);
    assert_eq!(backend.kind(), "posix");
}

/// The phases of IO500 run in its order, find the files that they wrote, and leave nothing.
#[test]
fn io500_phases_run_in_their_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let mut preset = RunOptions { io500: true, ..options() };
    preset.size.object_bytes = 3_901;
    let result = run(&path, &preset).expect("a run");
    assert!(!path.exists());
    let kinds: Vec<PhaseKind> = result.phases.iter().map(|phase| phase.plan.kind).collect();
    assert_eq!(kinds, Io500Phase::ALL.map(PhaseKind::Io500));
    for phase in &result.phases {
        assert_eq!(phase.failed(), 0, "{}: {phase:?}", phase.plan);
        let expected = match phase.plan.kind {
            // Three own directories and the shared one.
            PhaseKind::Io500(Io500Phase::Find) => (4, 60),
            _ => (30, 0),
        };
        assert_eq!((phase.count(), phase.entries), expected, "{}", phase.plan);
    }
    let score = result.io500.as_ref().expect("a score").metadata_kiops;
    let logs = result.phases.iter().map(|phase| (phase.rate() / 1e3).ln()).sum::<f64>();
    assert!((score / (logs / 8.0).exp() - 1.0).abs() < 1e-12);
    let json = serde_json::to_vec(&result).expect("JSON");
    let parsed = RunResult::parse("result", &json).expect("parsed");
    let plans =
        |of: &RunResult| of.phases.iter().map(|phase| phase.plan.clone()).collect::<Vec<_>>();
    assert_eq!(plans(&parsed), plans(&result));
    let text = esker_workbench::summary::text(&result);
    assert!(text.contains("not a valid IO500 submission"), "{text}");
    assert!(text.contains("mdtest-hard-delete"), "{text}");
}

/// Writes end at the stonewall once all ranks have as many files; later phases find just those.
#[test]
fn io500_writes_wear_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let preset = RunOptions { io500: true, stonewall_ns: Some(2_000_000), ..options() };
    let size = WorkingSetSize { objects: 1 << 20, iterations: 1, ..preset.size };
    let result = run(&path, &RunOptions { size, ..preset }).expect("a run");
    let of = |phase| {
        let mut phases = result.phases.iter();
        phases.find(|found| found.plan.kind == PhaseKind::Io500(phase)).expect("the phase")
    };
    let (easy, hard) = (of(Io500Phase::EasyWrite), of(Io500Phase::HardWrite));
    assert!(easy.iterations < 1 << 20 && easy.stonewall_rate.is_some());
    assert_eq!(easy.count(), 3 * easy.iterations, "all ranks wrote as many");
    assert_eq!(of(Io500Phase::EasyDelete).count(), easy.count());
    assert_eq!(of(Io500Phase::HardRead).count(), hard.count());
    assert_eq!(of(Io500Phase::Find).entries, easy.count() + hard.count());
    assert_eq!(result.phases.iter().map(PhaseResult::failed).sum::<u64>(), 0);
}

/// A kept working set stays as it was: the phases of IO500 would mix their files with its objects.
#[test]
fn io500_phases_refuse_a_kept_working_set() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    run(&path, &RunOptions { keep: true, ..options() }).expect("a run");
    let refused = run(&path, &RunOptions { io500: true, ..options() }).expect_err("refused");
    assert_eq!(refused.kind(), Kind::Invalid);
    assert_eq!(run(&path, &options()).expect("still complete").phases[0].failed(), 0);
}

/// One of several racing creates succeeds; the others have a distribution of their own.
#[test]
fn races_have_one_winner_each() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let kept = RunOptions { keep: true, races: true, ..options() };
    let result = run(&path, &kept).expect("a run");
    let phase = result.phases.last().expect("phases");
    assert_eq!((phase.plan.kind, phase.failed()), (PhaseKind::Races, 0));
    let count = |operation| phase.operation(operation).map_or(0, |found| found.service.count);
    let counts = [Operation::Create, Operation::CreateLost, Operation::Delete].map(count);
    assert_eq!(counts, [4, 8, 4], "four races of three ranks");
    assert_eq!(numbers(&path), (4..14).collect::<Vec<u64>>());
}
