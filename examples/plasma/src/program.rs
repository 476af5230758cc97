// SPDX-License-Identifier: Apache-2.0
//! Program: the common parts of the two programs: their options, and the setup of ranks.

use std::process::ExitCode;

use esker_base::store::{SharedStore, url};
use esker_base::{Error, Kind, Result};
use esker_comm::job::RankContext;
use esker_comm::{Rank, Transport, tcp, threads};

use crate::electron::Electron;
use crate::setup::Setup;

/// Number of electrons, the fastest, whose numbers are printed at the end.
const FASTEST: usize = 5;

/// Name in the store of the directory that `plasma-indexed` creates.
pub const DIRECTORY: &str = "electrons/";

/// Options of both programs.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of ranks, each a thread; ignored by ranks that were started as processes
    #[arg(long, default_value_t = 4)]
    pub ranks: u32,
    /// Total number of electrons
    #[arg(long, default_value_t = 100_000)]
    pub electrons: u64,
    /// Number of epochs: how often all electrons are written
    #[arg(long, default_value_t = 20)]
    pub epochs: u32,
    /// Steps between two epochs
    #[arg(long, default_value_t = 20)]
    pub steps: u32,
    /// Exchange messages over MPI, among ranks that mpirun started
    #[cfg(feature = "mpi")]
    #[arg(long)]
    pub mpi: bool,
}

impl Options {
    /// The parameters of the simulation.
    #[must_use]
    pub fn setup(&self) -> Setup {
        Setup { electrons: self.electrons, ..Setup::two_streams() }
    }

    /// Runs `work` as every rank: as one rank if `esker run`, `srun` or `mpirun` started this
    /// process, otherwise as all of them, in threads.
    ///
    /// # Errors
    /// The first error of a rank.
    pub fn run(&self, work: impl Fn(&mut dyn Transport) -> Result<()> + Sync) -> Result<()> {
        #[cfg(feature = "mpi")]
        if self.mpi {
            let report = |error: &Error| eprintln!("plasma: {error}");
            return esker_comm::mpi::run(&Default::default(), |transport| work(transport), report);
        }
        let Some(job) = RankContext::from_env()? else {
            return threads::run(self.ranks, self.ranks, |transport| work(transport)).map(drop);
        };
        let meet = job.meet.as_ref().ok_or_else(|| {
            let what = "ranks that are processes meet in a store: name one by ESKER_MEET";
            Error::new(Kind::Invalid, what)
        })?;
        let store = url::open(meet)?;
        tcp::run(&*store, &job, &tcp::TcpOptions::default(), |transport| work(transport))
    }
}

/// The store at `url`, which rank 0 creates if it does not exist. Collective.
///
/// # Errors
/// Errors of opening or creating it, and of the transport.
pub fn make_store(url: &str, transport: &mut dyn Transport) -> Result<SharedStore> {
    if transport.rank() == Rank(0)
        && let Err(error) = url::open(url)
    {
        if error.kind() != Kind::NotFound {
            return Err(error);
        }
        url::init(url)?;
    }
    transport.barrier()?;
    url::open(url)
}

/// Prints the numbers of the fastest electrons, which are interesting to trace.
///
/// # Errors
/// Errors of the transport.
pub fn print_fastest(electrons: &[Electron], transport: &mut dyn Transport) -> Result<()> {
    let fastest = crate::exchange::fastest(transport, electrons, FASTEST)?;
    if transport.rank().0 == 0 {
        let ids: Vec<String> = fastest.iter().map(|electron| electron.id.to_string()).collect();
        println!("fastest: {}", ids.join(" "));
    }
    Ok(())
}

/// Prints an electron's state in each epoch.
pub fn print_trace(trace: &[(u32, Electron)]) {
    println!("epoch,x,y,vx,vy,vz");
    for (epoch, electron) in trace {
        let ([x, y], [vx, vy, vz]) = (electron.place, electron.velocity);
        println!("{epoch},{x},{y},{vx},{vy},{vz}");
    }
}

/// The exit code for the shell, and a message for people if it failed.
#[must_use]
pub fn exit(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plasma: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

/// The error for a malformed record.
#[must_use]
pub fn no_electron(place: &str) -> Error {
    Error::new(Kind::Corrupt, format!("{place}: not a record of an electron"))
}
