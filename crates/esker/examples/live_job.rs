// SPDX-License-Identifier: Apache-2.0
//! A live namespace whose servers are ranks of the job that uses it: all ranks create files in one
//! directory, see each other's at once, and publish a snapshot. As processes:
//!
//! ```sh
//! esker run -n 4 live_job
//! esker ls live-job:/checkpoint
//! ```
//!
//! Built with the feature `mpi` it talks over MPI: `mpirun -n 4 live_job`.

use std::env;

use esker::{Error, Kind, RankContext, Repository, Transport, threads};

const RANKS: u32 = 4;
const FILES: u32 = 1000;
/// Creates of one request.
const BATCH: usize = 128;

/// One rank, whatever connects it to the others.
fn rank(repository: &Repository, transport: impl Transport) -> esker::Result<()> {
    let (me, ranks) = (transport.rank().0, transport.size());
    // Two ranks of each node are servers, too.
    let job = repository.live_job("checkpoint").servers_per_node(2).begin(transport)?;
    if me == 0 {
        // Its names are at all servers. After a crash it is there.
        match job.namespace().create_spread_dir("/checkpoint") {
            Err(error) if error.kind() == Kind::Exists => {}
            made => made?,
        }
    }
    job.barrier()?;
    let names: Vec<String> = (0..FILES).map(|number| format!("{me}.{number:04}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    for batch in names.chunks(BATCH) {
        for created in job.namespace().create_many("/checkpoint", batch)? {
            match created {
                Err(error) if error.kind() == Kind::Exists => {}
                created => created?,
            }
        }
    }
    job.namespace().write(format!("/checkpoint/{me}.summary"), format!("{FILES} files\n"))?;
    job.barrier()?;
    // Another rank's files, as soon as they are made.
    let neighbour = (me + 1) % ranks;
    let summary = job.namespace().read(format!("/checkpoint/{neighbour}.summary"))?;
    assert_eq!(summary, format!("{FILES} files\n").into_bytes());
    let published = job.snapshot("live-job");
    job.remove()?;
    published?;
    if me == 0 {
        println!("{ranks} ranks made {} files in one directory", ranks * FILES);
    }
    Ok(())
}

/// Runs this process's rank over TCP.
#[cfg(not(feature = "mpi"))]
fn run_process(url: &str, context: &RankContext) -> esker::Result<()> {
    let (store, repository) = (esker::Store::open(url)?, Repository::open(url)?);
    let options = esker::tcp::TcpOptions::default();
    esker::tcp::run(&**store.objects(), context, &options, |ranks| rank(&repository, ranks))
}

/// Runs this process's rank over MPI.
#[cfg(feature = "mpi")]
fn run_process(url: &str, _: &RankContext) -> esker::Result<()> {
    let repository = Repository::open(url)?;
    let report = |error: &esker::Error| eprintln!("live_job: {error}");
    esker::mpi::run(&esker::mpi::MpiOptions::default(), |ranks| rank(&repository, ranks), report)
}

pub(crate) fn main() -> esker::Result<()> {
    if let Some(context) = RankContext::from_env()? {
        let unset = |_| Error::new(Kind::Invalid, "set ESKER_STORE to the URL of a store");
        let url = env::var("ESKER_STORE").map_err(unset)?;
        return run_process(&url, &context);
    }
    // Without `esker run` all ranks are in this process.
    let repository = Repository::create("memory:live_job")?;
    threads::run(RANKS, 2, |transport| rank(&repository, transport))?;
    let files = repository.snapshot("live-job")?.entries("/checkpoint")?.count();
    assert_eq!(files, (RANKS * (FILES + 1)) as usize);
    Ok(())
}
