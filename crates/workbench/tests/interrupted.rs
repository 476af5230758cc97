// SPDX-License-Identifier: Apache-2.0
//! Interrupted runs: they end at every possible call, as by a kill, and cleanup removes their
//! remains.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::clock::SystemClock;
use esker_base::{Error, Kind, Result};
use esker_workbench::backend::{Backend, BackendConnection, PosixBackend};
use esker_workbench::options::RunOptions;
use esker_workbench::pattern::{DatasetId, ObjectId, WorkingSetSize};
use esker_workbench::progress::RunProgress;
use esker_workbench::run::{cleanup, run_threads};

/// A backend that does nothing more after a number of calls.
struct DyingBackend {
    inner: PosixBackend,
    left: AtomicU64,
}

impl DyingBackend {
    fn live<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        match left {
            Ok(_) => call(),
            Err(_) => Err(Error::new(Kind::Closed, "the process is dead")),
        }
    }
}

impl Backend for DyingBackend {
    fn target(&self) -> String {
        self.inner.target()
    }

    fn kind(&self) -> &'static str {
        "posix"
    }

    fn connect(&self, rank: u32, size: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        Ok(Box::new(DyingConnection(self, self.inner.connect(rank, size)?)))
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        self.inner.read_marker()
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        self.live(|| self.inner.write_marker(marker))
    }

    fn clear(&self) -> Result<u64> {
        self.live(|| self.inner.clear())
    }
}

struct DyingConnection<'a>(&'a DyingBackend, Box<dyn BackendConnection + 'a>);

impl BackendConnection for DyingConnection<'_> {
    fn add_rank(&mut self, rank: u32) -> Result<()> {
        self.0.live(|| self.1.add_rank(rank))
    }

    fn remove_rank(&mut self, rank: u32) -> Result<()> {
        self.0.live(|| self.1.remove_rank(rank))
    }

    fn mkdir(&mut self, dataset: DatasetId) -> Result<()> {
        self.0.live(|| self.1.mkdir(dataset))
    }

    fn rmdir(&mut self, dataset: DatasetId) -> Result<()> {
        self.0.live(|| self.1.rmdir(dataset))
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        self.0.live(|| self.1.create(object, content))
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        self.0.live(|| self.1.stat(object))
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        self.0.live(|| self.1.read(object, content))
    }

    fn delete(&mut self, object: ObjectId) -> Result<()> {
        self.0.live(|| self.1.delete(object))
    }

    fn list(&mut self, dataset: DatasetId, with_attributes: bool) -> Result<u64> {
        self.0.live(|| self.1.list(dataset, with_attributes))
    }

    fn rename(&mut self, old: ObjectId, new: ObjectId) -> Result<()> {
        self.0.live(|| self.1.rename(old, new))
    }
}

/// Runs with `calls` left; returns false if they were enough.
fn run_and_die(path: &Path, options: &RunOptions, calls: u64) -> bool {
    let inner = PosixBackend::new(path).expect("a directory");
    let backend = DyingBackend { inner, left: AtomicU64::new(calls) };
    let progress = RunProgress::new(options.size.ranks);
    // The measurements do not matter: a dead process reports nothing.
    let _ = run_threads(&backend, options, &SystemClock, &progress);
    backend.live(|| Ok(())).is_err()
}

#[test]
fn cleanup_removes_what_any_interrupted_run_leaves() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let mut options = crate::runs::options();
    options.size.objects = 2;
    options.size.iterations = 1;
    let mut calls = 0;
    while run_and_die(&path, &options, calls) {
        let left = PosixBackend::new(&path).expect("a directory");
        match cleanup(&left) {
            Ok(_) => assert!(!path.exists(), "something is left after {calls} calls"),
            Err(error) => {
                assert_eq!(error.kind(), Kind::NotFound, "{error} after {calls} calls");
                std::fs::remove_dir(&path).expect("an empty directory");
            }
        }
        calls += 1;
    }
    assert!(calls > 60, "only {calls} calls were interrupted");
}

/// A working set that was being changed is not measured as if it were whole.
#[test]
fn an_interrupted_working_set_is_not_reused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let options = crate::runs::options();
    assert!(run_and_die(&path, &options, 40));
    let backend = PosixBackend::new(&path).expect("a directory");
    let progress = RunProgress::new(options.size.ranks);
    let refused = run_threads(&backend, &options, &SystemClock, &progress).expect_err("refused");
    assert_eq!(refused.kind(), Kind::Conflict);
    assert!(refused.to_string().contains("esker workbench cleanup"), "{refused}");
}
