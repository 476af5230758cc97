// SPDX-License-Identifier: Apache-2.0
//! Write-once backends: indexed directories and shared files.

use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{SharedStore, url};
use esker_base::{Kind, Random};
use esker_fs::repository::Repository;
use esker_fs::session::SessionOptions;
use esker_workbench::backend::{Backend, IndexedDirectoryBackend, SharedFileBackend, conformance};
use esker_workbench::mix::OperationMix;
use esker_workbench::operation::Operation;
use esker_workbench::options::RunOptions;
use esker_workbench::progress::RunProgress;
use esker_workbench::result::{PhaseKind, RunResult};
use esker_workbench::run::run_threads;

fn store(name: &str) -> SharedStore {
    url::init(&format!("memory:write-once-{name}")).expect("a store")
}

fn indexed(store: &SharedStore, seed: u64) -> IndexedDirectoryBackend {
    let (options, clock) = (SessionOptions::default(), Arc::new(SystemClock));
    IndexedDirectoryBackend::open(store.clone(), "set", options, clock, Random::from_seed(seed))
        .expect("a session")
}

fn shared(store: &SharedStore, seed: u64) -> SharedFileBackend {
    let (options, clock) = (SessionOptions::default(), Arc::new(SystemClock));
    SharedFileBackend::open(store.clone(), "set", options, clock, Random::from_seed(seed))
        .expect("a session")
}

fn options() -> RunOptions {
    RunOptions { read_only: true, repeat: 2, ..RunOptions::new(conformance::SIZE) }
}

fn run(backend: &dyn Backend, options: &RunOptions) -> RunResult {
    let progress = RunProgress::new(options.size.ranks);
    run_threads(backend, options, &SystemClock, &progress).expect("a run")
}

/// Calls of `operation` in all phases of `kind`, none of which failed.
fn calls(result: &RunResult, kind: PhaseKind, operation: Operation) -> u64 {
    let phases = result.phases.iter().filter(|phase| phase.plan.kind == kind);
    let found = phases.flat_map(|phase| &phase.operations);
    let found = found.filter(|found| found.operation == operation);
    found.inspect(|found| assert_eq!(found.failed(), 0)).map(|found| found.service.count).sum()
}

#[test]
fn write_once_backends_conform() {
    conformance::write_once(&indexed(&store("indexed"), 1));
    conformance::write_once(&shared(&store("shared"), 2));
}

/// A run creates all objects, flushes once a rank, reads them in every repetition, and leaves
/// nothing in the store but what the next collection deletes.
#[test]
fn runs_write_once_and_read_repeatedly() {
    let store = store("runs");
    let backends: [&dyn Backend; 2] = [&indexed(&store, 3), &shared(&store, 4)];
    for backend in backends {
        let result = run(backend, &options());
        let size = conformance::SIZE;
        let datasets = u64::from(size.ranks * size.datasets);
        let kinds: Vec<PhaseKind> = result.phases.iter().map(|phase| phase.plan.kind).collect();
        let read = PhaseKind::ReadOnly;
        assert_eq!(kinds, [PhaseKind::Precreate, read, read], "{}", backend.kind());
        let created = calls(&result, PhaseKind::Precreate, Operation::Create);
        assert_eq!(created, datasets * size.objects);
        let flushed = calls(&result, PhaseKind::Precreate, Operation::Flush);
        assert_eq!(flushed, u64::from(size.ranks));
        for operation in [Operation::Stat, Operation::Read] {
            assert_eq!(calls(&result, read, operation), 2 * datasets * size.iterations);
        }
        assert!(result.warnings.iter().any(|warning| warning.contains("handing an object over")));
    }
    let repository = Repository::new(store);
    assert!(repository.names().expect("names").is_empty());
}

/// An indexed directory that a run keeps is read by later ones, until it is removed.
#[test]
fn indexed_directories_are_kept() {
    let store = store("kept");
    let kept = RunOptions { keep: true, ..options() };
    assert_eq!(run(&indexed(&store, 5), &kept).phases.len(), 3);
    let again = run(&indexed(&store, 6), &kept);
    assert_eq!(again.phases.len(), 2, "read-only phases alone");
    let reads = u64::from(kept.size.ranks * kept.size.datasets) * kept.size.iterations;
    assert_eq!(calls(&again, PhaseKind::ReadOnly, Operation::Read), 2 * reads);
    let last = indexed(&store, 7);
    assert_eq!(last.clear().expect("cleared"), reads);
    last.finish(false).expect("finished");
    assert!(Repository::new(store).names().expect("names").is_empty());
}

/// Runs that would delete, rename or create later are refused before anything is written, as are
/// runs that one of the two backends cannot do.
#[test]
fn what_cannot_be_done_is_refused() {
    let store = store("refused");
    let size = conformance::SIZE;
    let mix = |text: &str| Some(text.parse::<OperationMix>().expect("a mix"));
    let reading = RunOptions { mix: mix("stat=1,read=1"), read_only: false, ..options() };
    let both = [
        RunOptions { read_only: false, ..options() },
        RunOptions { names: true, ..options() },
        RunOptions { races: true, ..options() },
        RunOptions { mix: mix("stat=8,create=1,delete=1"), ..reading.clone() },
        RunOptions { mix: mix("stat=1,list=1"), ..reading.clone() },
    ];
    let waits = vec![1.0];
    let shared_only = [
        RunOptions { rates: vec![1e3], ..options() },
        RunOptions { waiting_factors: waits, ..options() },
        RunOptions { keep: true, ..options() },
        RunOptions::new(esker_workbench::pattern::WorkingSetSize { object_bytes: 0, ..size }),
    ];
    let (indexed, shared) = (indexed(&store, 8), shared(&store, 9));
    let refused = |backend: &dyn Backend, options: &RunOptions| {
        let progress = RunProgress::new(options.size.ranks);
        let error = run_threads(backend, options, &SystemClock, &progress).expect_err("refused");
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        assert_eq!(backend.read_marker().expect("no marker"), None);
    };
    for options in &both {
        refused(&indexed, options);
        refused(&shared, options);
    }
    for options in &shared_only {
        refused(&shared, &RunOptions { read_only: true, ..options.clone() });
    }
    assert_eq!(run(&indexed, &reading).phases.len(), 1 + 2);
}

/// Ranks that wait at the stonewall answer those that still read.
#[test]
fn a_stonewall_ends_shared_reads() {
    let stonewall_ns = Some(1_000_000);
    let result = run(&shared(&store("stonewall"), 10), &RunOptions { stonewall_ns, ..options() });
    let phases = result.phases.iter().filter(|phase| phase.plan.kind == PhaseKind::ReadOnly);
    assert_eq!(phases.map(|phase| phase.failed()).sum::<u64>(), 0);
}
