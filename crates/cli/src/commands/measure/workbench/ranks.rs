// SPDX-License-Identifier: Apache-2.0
//! Ranks of `esker workbench run`: threads of this process, or processes that TCP or MPI connects.
//!
//! MPI is initialized on the initial thread, before the target is opened, and finalized before the
//! result is written. A rank that fails alone must not finalize MPI, which would wait for the others:
//! over MPI everything that can fail in one rank only runs inside `mpi::run_in`, which aborts the job.

use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{SharedStore, url};
use esker_base::{Error, Kind, Result};
use esker_comm::job::{self, RankContext};
#[cfg(feature = "mpi")]
use esker_comm::mpi::{self, MpiProcess, MpiThreads};
use esker_comm::tcp;
use esker_workbench::backend::{Backend, MPI_IO_PREFIX};
use esker_workbench::options::RunOptions;
use esker_workbench::progress::RunProgress;
use esker_workbench::result::RunResult;
use esker_workbench::run::{self, PHASE_DEADLINE};

use crate::context::CommandContext;
#[cfg(feature = "mpi")]
use crate::output::notice;
use crate::rank_transport::TransportName;
#[cfg(not(feature = "mpi"))]
use crate::rank_transport::built_without_mpi;
use crate::{progress, usage};

/// How the ranks of a run were started, and what connects them.
pub enum RankLaunch {
    /// Threads of this process.
    Threads,
    /// Processes that meet in a store.
    Tcp(RankContext),
    /// Processes of an MPI job.
    #[cfg(feature = "mpi")]
    Mpi(Arc<MpiProcess>),
}

impl RankLaunch {
    /// The ranks that measure `target`, over `transport` if that is given. Initializes MPI if it
    /// connects them.
    ///
    /// # Errors
    /// `Invalid` if this process was not started for `transport`, or if this build lacks it.
    pub fn of(transport: Option<TransportName>, target: &str) -> Result<Self> {
        match (transport, RankContext::from_env()) {
            (None, Ok(None)) => Ok(Self::Threads),
            // Their processes are MPI's anyway, and over MPI they need no store.
            (None, _) if target.starts_with(MPI_IO_PREFIX) && !is_of_esker_run() => Self::mpi(),
            (None, job) => Ok(job?.map_or(Self::Threads, Self::Tcp)),
            (Some(TransportName::Threads), job) => match job? {
                Some(RankContext { rank, size, .. }) if size > 1 => {
                    let what = format!(
                        "this is {rank} of a job of {size} processes, each of which would measure the \
                         target alone with --transport threads: leave it out, and they measure together"
                    );
                    Err(Error::new(Kind::Invalid, what))
                }
                _ => Ok(Self::Threads),
            },
            (Some(TransportName::Tcp), job) => job?.map(Self::Tcp).ok_or_else(|| {
                let what =
                    "not a rank of a job: start its ranks together, as `esker run --help` shows";
                Error::new(Kind::Invalid, what)
            }),
            (Some(TransportName::Mpi), _) => Self::mpi(),
        }
    }

    #[cfg(feature = "mpi")]
    fn mpi() -> Result<Self> {
        MpiProcess::begin(MpiThreads::Initial).map(Self::Mpi)
    }

    #[cfg(not(feature = "mpi"))]
    fn mpi() -> Result<Self> {
        Err(built_without_mpi())
    }

    /// Number of ranks; `None` if the command decides.
    pub fn ranks(&self) -> Option<u32> {
        match self {
            Self::Threads => None,
            Self::Tcp(job) => Some(job.size),
            #[cfg(feature = "mpi")]
            Self::Mpi(process) => Some(process.size()),
        }
    }

    /// MPI for targets that call it: the one that connects the ranks, or one of this process's own.
    #[cfg(feature = "mpi")]
    pub fn mpi_process(&self) -> Result<Arc<MpiProcess>> {
        match self {
            Self::Threads => MpiProcess::begin(MpiThreads::All),
            Self::Tcp(_) => MpiProcess::begin(MpiThreads::Initial),
            Self::Mpi(process) => Ok(process.clone()),
        }
    }

    /// Runs this process's ranks on the target that `open` opens; returns the result at rank 0.
    pub fn measure(
        self,
        context: &CommandContext,
        options: &RunOptions,
        counts: &Arc<RunProgress>,
        open: impl Fn(&Self) -> Result<Box<dyn Backend>>,
    ) -> Result<Option<RunResult>> {
        let on_target = |measure: &mut dyn FnMut(&dyn Backend) -> Result<Option<RunResult>>| {
            let backend = open(&self)?;
            // After a failure the library's session is dropped; other working sets stay.
            measure(&*backend).inspect_err(|_| drop(backend.finish(false)))
        };
        match &self {
            Self::Threads => on_target(&mut |backend| {
                progress::watch_workbench(counts, || {
                    run::run_threads(backend, options, &SystemClock, counts).map(Some)
                })
            }),
            Self::Tcp(job) => {
                let meet = meeting_store(context, job)?;
                let tcp_options =
                    tcp::TcpOptions { deadline: PHASE_DEADLINE, ..tcp::TcpOptions::default() };
                on_target(&mut |backend| {
                    tcp::run(&*meet, job, &tcp_options, |transport| {
                        run::run_rank(backend, options, &SystemClock, counts, transport)
                    })
                })
            }
            #[cfg(feature = "mpi")]
            Self::Mpi(process) => {
                let mpi_options =
                    mpi::MpiOptions { deadline: PHASE_DEADLINE, ..mpi::MpiOptions::default() };
                let work = |transport: &mut mpi::MpiTransport| {
                    on_target(&mut |backend| {
                        run::run_rank(backend, options, &SystemClock, counts, transport)
                    })
                };
                let report = |error: &Error| notice(error.to_string());
                mpi::run_in(process.clone(), &mpi_options, work, report)
            }
        }
    }
}

/// True if `esker run` started this process, whatever started `esker run`.
fn is_of_esker_run() -> bool {
    std::env::var(job::RANK).is_ok_and(|rank| !rank.is_empty())
}

/// The store in which the ranks of `job` meet. Its absence is a usage error, which ends the process.
fn meeting_store(context: &CommandContext, job: &RankContext) -> Result<SharedStore> {
    let Some(meet) = job.meet.as_deref().or(context.given_store()) else {
        usage::exit(
            "ranks that are processes meet in a store that all of them see: give --store URL or set \
             ESKER_STORE, or connect them by MPI with --transport mpi",
        )
    };
    url::connect(meet)
}
