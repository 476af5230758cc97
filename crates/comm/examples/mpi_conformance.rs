//! The conformance suite as a program for `mpirun`: `scripts/test_mpi.sh` runs it under both MPIs.

use std::process::ExitCode;
use std::time::Duration;

use esker_base::{Error, Kind};
use esker_comm::mpi::{MpiTransport, Options, run};
use esker_comm::{NodeMap, Transport, conformance};

fn main() -> ExitCode {
    let per_node = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let options = Options { per_node, deadline: Duration::from_secs(60), ..Options::default() };
    let ended = run(
        &options,
        |transport| {
            conformance::all(transport);
            if let Some(per_node) = per_node
                && **transport.nodes() != NodeMap::even(transport.size(), per_node)?
            {
                return Err(Error::new(Kind::Invalid, "other nodes than asked for"));
            }
            if transport.rank().0 == 0 {
                let (size, nodes) = (transport.size(), transport.nodes().nodes());
                let library = MpiTransport::library();
                let library = library.lines().next().unwrap_or_default();
                println!("{size} ranks on {nodes} nodes conform: {library}");
            }
            Ok(())
        },
        |error| eprintln!("mpi_conformance: {error}"),
    );
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mpi_conformance: {error}");
            ExitCode::FAILURE
        }
    }
}
