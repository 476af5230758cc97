// SPDX-License-Identifier: Apache-2.0
//! Rank transport: the kinds of ranks that commands take as `--transport`.

use clap::ValueEnum;
#[cfg(not(feature = "mpi"))]
use esker_base::{Error, Kind};

/// The kind of a job's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportName {
    /// Threads of this process
    Threads,
    /// Processes, started by `esker run`, srun or mpirun
    Tcp,
    /// Processes started by mpirun or srun and connected by MPI, if built in
    Mpi,
}

/// The error of builds that lack MPI.
#[cfg(not(feature = "mpi"))]
pub fn built_without_mpi() -> Error {
    let what = "this esker was built without MPI: build it with `cargo build --release -p \
                esker-cli --features mpi`, where MPICC names the MPI's compiler";
    Error::new(Kind::Invalid, what)
}
