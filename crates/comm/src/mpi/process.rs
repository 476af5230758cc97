// SPDX-License-Identifier: Apache-2.0
//! MPI process: MPI in this process, from its initialization to its finalization.
//!
//! A process initializes MPI once and finalizes it once; everything that calls MPI shares one
//! [`MpiProcess`] and keeps it alive. Finalization waits for the other processes of the job.
//! Concurrency: threads may call MPI as [`MpiThreads`] says; [`MpiProcess::check_thread`] refuses
//! the others.

use std::sync::Arc;
use std::thread::ThreadId;

use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::topology::Communicator;
use esker_base::{Error, Kind, Result};

use crate::job;

/// Variables in which launchers state the number of ranks that they have started.
const LAUNCHED_RANKS: [&str; 3] = [job::RANKS, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// The threads of a process that call MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpiThreads {
    /// The thread that initializes MPI (MPI_THREAD_FUNNELED).
    Initial,
    /// All threads, at any time (MPI_THREAD_MULTIPLE).
    All,
}

/// MPI in this process; finalized when the last owner drops it.
pub struct MpiProcess {
    threads: MpiThreads,
    initial: ThreadId,
    /// Finalizes MPI on drop.
    universe: Universe,
}

impl std::fmt::Debug for MpiProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MpiProcess").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl MpiProcess {
    /// Initializes MPI, for calls by `threads`. The calling thread becomes the initial one.
    ///
    /// # Errors
    /// `Exists` if MPI was initialized before in this process; `Unsupported` if it does not allow
    /// calls by `threads`.
    pub fn begin(threads: MpiThreads) -> Result<Arc<Self>> {
        let needed = match threads {
            MpiThreads::Initial => Threading::Funneled,
            MpiThreads::All => Threading::Multiple,
        };
        let Some((universe, provided)) = ::mpi::initialize_with_threading(needed) else {
            return Err(Error::new(Kind::Exists, "MPI was already initialized in this process"));
        };
        check_level(provided, needed)?;
        Ok(Arc::new(Self { threads, initial: std::thread::current().id(), universe }))
    }

    /// Number of processes that MPI has connected, this one included.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.universe.world().size()).expect("MPI counts from 0")
    }

    /// Checks that the calling thread may call MPI.
    ///
    /// # Errors
    /// `Unsupported` if MPI was initialized for calls by another thread only.
    pub fn check_thread(&self) -> Result<()> {
        if self.threads == MpiThreads::All || self.initial == std::thread::current().id() {
            return Ok(());
        }
        let what = "MPI was initialized for one thread, and another one calls it: use processes as \
                    ranks, or initialize it for all threads";
        Err(Error::new(Kind::Unsupported, what))
    }

    /// Name and version of the MPI library, one line.
    #[must_use]
    pub fn library() -> String {
        let version = ::mpi::environment::library_version().unwrap_or_default();
        // Open MPI counts the zero byte that ends the text.
        let line = version.lines().next().unwrap_or_default().trim_end_matches('\0');
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Checks that the launcher has started as many ranks as MPI has connected.
    ///
    /// # Errors
    /// `Invalid` if MPI sees this process alone, and the launcher has started others.
    pub(super) fn check_launcher(&self) -> Result<()> {
        if self.size() > 1 {
            return Ok(());
        }
        for name in LAUNCHED_RANKS {
            let value = std::env::var(name).unwrap_or_default();
            if value.parse::<u32>().is_ok_and(|ranks| ranks > 1) {
                let what = format!(
                    "the launcher has started {value} ranks ({name}), but {} connects this process to \
                     no other: start the ranks by the mpirun of that MPI",
                    Self::library()
                );
                return Err(Error::new(Kind::Invalid, what));
            }
        }
        Ok(())
    }
}

fn check_level(provided: Threading, needed: Threading) -> Result<()> {
    if provided >= needed {
        return Ok(());
    }
    let [provided, needed] = [provided, needed].map(|level| format!("{level:?}").to_uppercase());
    let what = format!(
        "{} provides MPI_THREAD_{provided}, but MPI_THREAD_{needed} is needed: use processes as \
         ranks, started by mpirun, or an MPI that provides it",
        MpiProcess::library()
    );
    Err(Error::new(Kind::Unsupported, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_levels_of_threading_are_refused() {
        let levels =
            [Threading::Single, Threading::Funneled, Threading::Serialized, Threading::Multiple];
        for (index, provided) in levels.into_iter().enumerate() {
            for (needed_index, needed) in levels.into_iter().enumerate() {
                let checked = check_level(provided, needed);
                assert_eq!(checked.is_ok(), index >= needed_index, "{provided:?} {needed:?}");
            }
        }
        let refused = check_level(Threading::Serialized, Threading::Multiple).expect_err("lower");
        assert_eq!(refused.kind(), Kind::Unsupported);
        let said = refused.to_string();
        assert!(said.contains("provides MPI_THREAD_SERIALIZED, but MPI_THREAD_MULTIPLE"), "{said}");
    }
}
