// SPDX-License-Identifier: Apache-2.0
//! Simulated service: a backend whose calls take the time that a test states, on a manual clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esker_base::clock::ManualClock;
use esker_base::{Error, Kind, Result};
use esker_workbench::backend::{Backend, BackendConnection, NullBackend};
use esker_workbench::options::RunOptions;
use esker_workbench::pace::PaceClock;
use esker_workbench::pattern::{DatasetId, ObjectId, WorkingSetSize};
use esker_workbench::progress::RunProgress;
use esker_workbench::result::RunResult;
use esker_workbench::run::run_threads;

/// The duration of a call in nanoseconds by its number, and whether it succeeds.
pub type Behaviour = fn(u64) -> (u64, bool);

/// A service of one rank.
pub struct SimulatedBackend {
    clock: Arc<ManualClock>,
    marker: NullBackend,
    calls: AtomicU64,
    behaviour: Behaviour,
}

/// Runs `options` against a service with `behaviour`, on a manual clock.
pub fn simulate(options: &RunOptions, behaviour: Behaviour) -> RunResult {
    let clock = Arc::new(ManualClock::new(1));
    simulate_on(&clock, &*clock, options, behaviour)
}

/// The same, where the ranks wait on `pace`, another view of `clock`.
pub fn simulate_on(
    clock: &Arc<ManualClock>,
    pace: &dyn PaceClock,
    options: &RunOptions,
    behaviour: Behaviour,
) -> RunResult {
    let (marker, calls) = (NullBackend::default(), AtomicU64::new(0));
    let backend = SimulatedBackend { clock: clock.clone(), marker, calls, behaviour };
    run_threads(&backend, options, pace, &RunProgress::new(1)).expect("a run")
}

/// The marker of the working set that `options` leave on a service with `behaviour`.
pub fn marker_left(options: &RunOptions, behaviour: Behaviour) -> Vec<u8> {
    let clock = Arc::new(ManualClock::new(1));
    let (marker, calls) = (NullBackend::default(), AtomicU64::new(0));
    let backend = SimulatedBackend { clock: clock.clone(), marker, calls, behaviour };
    run_threads(&backend, options, &*clock, &RunProgress::new(1)).expect("a run");
    backend.read_marker().expect("an answer").expect("a marker")
}

/// A run of one rank with `iterations` of four calls, after as many creates.
pub fn options(iterations: u64) -> RunOptions {
    let (objects, object_bytes) = (iterations, 0);
    let (ranks, datasets, rank_offset) = (1, 1, 1);
    let size = WorkingSetSize { ranks, datasets, objects, iterations, object_bytes, rank_offset };
    RunOptions { keep: true, ..RunOptions::new(size) }
}

impl Backend for SimulatedBackend {
    fn target(&self) -> String {
        "simulated".to_owned()
    }

    fn kind(&self) -> &'static str {
        "simulated"
    }

    fn connect(&self, _: u32, _: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        Ok(Box::new(SimulatedConnection(self)))
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        self.marker.read_marker()
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        self.marker.write_marker(marker)
    }

    fn clear(&self) -> Result<u64> {
        self.marker.clear()
    }

    fn keeps_content(&self) -> bool {
        false
    }
}

struct SimulatedConnection<'a>(&'a SimulatedBackend);

impl SimulatedConnection<'_> {
    fn call(&self) -> Result<()> {
        let number = self.0.calls.fetch_add(1, Ordering::Relaxed);
        let (duration_ns, succeeds) = (self.0.behaviour)(number);
        self.0.clock.advance(Duration::from_nanos(duration_ns));
        match succeeds {
            true => Ok(()),
            false => Err(Error::new(Kind::Unavailable, format!("call {number}"))),
        }
    }
}

impl BackendConnection for SimulatedConnection<'_> {
    fn mkdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn rmdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn create(&mut self, _: ObjectId, _: &[u8]) -> Result<()> {
        self.call()
    }

    fn stat(&mut self, _: ObjectId) -> Result<u64> {
        self.call().map(|()| 0)
    }

    fn read(&mut self, _: ObjectId, _: &mut Vec<u8>) -> Result<()> {
        self.call()
    }

    fn delete(&mut self, _: ObjectId) -> Result<()> {
        self.call()
    }

    fn list(&mut self, _: DatasetId, _: bool) -> Result<u64> {
        self.call().map(|()| 0)
    }

    fn rename(&mut self, _: ObjectId, _: ObjectId) -> Result<()> {
        self.call()
    }
}
