// SPDX-License-Identifier: Apache-2.0
//! MPI replay: traces on files that MPI-IO accesses, by threads or by the processes of an MPI job.
//!
//! Rank 0 loads and removes the data. A rank that fails aborts the job (`mpi::run_in`); unless it is
//! rank 0, the data stays, as after a signal.

use std::path::Path;

use esker_advisor::player::{ReplayResult, ReplayTarget};
use esker_base::Result;

use super::replay::AdviseReplay;
use crate::commands::measure::workbench::ranks::RankLaunch;
#[cfg(not(feature = "mpi"))]
use crate::rank_transport::built_without_mpi;

#[cfg(feature = "mpi")]
mod with_mpi {
    use std::sync::{Arc, Weak};

    use esker_advisor::player::{MpiFileCalls, MpiFileTarget, replay_in_job};
    use esker_base::clock::SystemClock;
    use esker_base::{Error, Kind};
    use esker_comm::mpi::{self, MpiOptions, MpiProcess, MpiTransport};
    use esker_comm::{Rank, Transport};
    use esker_workbench::backend::MPI_IO_PREFIX;
    use esker_workbench::run::PHASE_DEADLINE;
    use parking_lot::Mutex;

    use super::*;
    use crate::output::notice;

    /// MPI in this process, while somebody uses it.
    static PROCESS: Mutex<Weak<MpiProcess>> = Mutex::new(Weak::new());

    /// MPI for the threads of this process, which initializes it once.
    pub fn begin() -> Result<Arc<MpiProcess>> {
        let mut process = PROCESS.lock();
        if let Some(process) = process.upgrade() {
            return Ok(process);
        }
        let begun = RankLaunch::Threads.mpi_process()?;
        *process = Arc::downgrade(&begun);
        Ok(begun)
    }

    /// Files that the threads of this process access, each by itself.
    pub fn open(directory: &Path) -> Result<Box<dyn ReplayTarget>> {
        Ok(Box::new(MpiFileTarget::new(directory, MpiFileCalls::Independent, begin()?)?))
    }

    /// Replays the rank of this process; returns the result at rank 0.
    pub fn replay_in_processes(
        replay: &AdviseReplay,
        launch: &RankLaunch,
    ) -> Result<Option<ReplayResult>> {
        let RankLaunch::Mpi(process) = launch else {
            let what =
                "ranks that replay by MPI-IO are started by mpirun or srun, not by `esker run`";
            return Err(Error::new(Kind::Invalid, what));
        };
        let target = replay.arguments().target();
        let directory = Path::new(target.strip_prefix(MPI_IO_PREFIX).unwrap_or(target));
        let calls = match replay.arguments().is_collective() {
            true => MpiFileCalls::Collective,
            false => MpiFileCalls::Independent,
        };
        let work = |transport: &mut MpiTransport| {
            let plan = replay.arguments().plan()?;
            let target = MpiFileTarget::new(directory, calls, process.clone())?;
            let is_first = transport.rank() == Rank(0);
            let mut is_own = false;
            if is_first {
                is_own = replay.prepare(None, &target, &plan)?;
            }
            let mut measure = || {
                if is_first {
                    replay.drop_caches(&target)?;
                }
                transport.barrier()?;
                replay_in_job(&target, &plan, replay.pacing(), &SystemClock, transport)
            };
            let measured = measure();
            match is_first {
                true => replay.finish(None, &target, measured, is_own),
                false => measured,
            }
        };
        let options = MpiOptions { deadline: PHASE_DEADLINE, ..MpiOptions::default() };
        let report = |error: &Error| notice(error.to_string());
        mpi::run_in(process.clone(), &options, work, report)
    }
}

#[cfg(feature = "mpi")]
pub use with_mpi::{begin, open, replay_in_processes};

/// Fails: this build has no MPI.
#[cfg(not(feature = "mpi"))]
pub fn begin() -> Result<()> {
    Err(built_without_mpi())
}

/// Fails: this build has no MPI.
#[cfg(not(feature = "mpi"))]
pub fn open(_: &Path) -> Result<Box<dyn ReplayTarget>> {
    Err(built_without_mpi())
}

/// Fails: this build has no MPI.
#[cfg(not(feature = "mpi"))]
pub fn replay_in_processes(_: &AdviseReplay, _: &RankLaunch) -> Result<Option<ReplayResult>> {
    Err(built_without_mpi())
}
