// SPDX-License-Identifier: Apache-2.0
//! The conformance suite as a program for `mpirun`: `scripts/test_mpi.sh` runs it under both MPIs.
//! The first argument sets the ranks per simulated node; `--rates` measures instead.

use std::process::ExitCode;
use std::time::Duration;

use esker_base::{Error, Kind, Result};
use esker_comm::mpi::{MpiOptions, MpiProcess, run};
use esker_comm::rates::{MeasurementSize, measure};
use esker_comm::{NodeMap, Transport, conformance};

fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    let per_node = word.parse().ok();
    let options =
        MpiOptions { per_node, deadline: Duration::from_secs(60), ..MpiOptions::default() };
    let ended = run(
        &options,
        |transport| {
            if word == "--rates" {
                return show_rates(transport);
            }
            conformance::all(transport);
            if let Some(per_node) = per_node
                && **transport.nodes() != NodeMap::even(transport.size(), per_node)?
            {
                return Err(Error::new(Kind::Invalid, "other nodes than asked for"));
            }
            if transport.rank().0 == 0 {
                let (size, nodes) = (transport.size(), transport.nodes().nodes());
                println!("{size} ranks on {nodes} nodes conform: {}", MpiProcess::library());
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

fn show_rates(transport: &mut dyn Transport) -> Result<()> {
    let rates = measure(transport, &MeasurementSize::default())?;
    if transport.rank().0 == 0 {
        println!(
            "{} ranks: {:.0} round trips/s; {:.0} small messages/s; {:.0} MB/s; {:.2} M records/s \
             direct, {:.2} M/s over three hops",
            transport.size(),
            rates.round_trips_per_second,
            rates.small_messages_per_second,
            rates.large_bytes_per_second / 1e6,
            rates.direct_records_per_second / 1e6,
            rates.three_hop_records_per_second / 1e6,
        );
    }
    Ok(())
}
