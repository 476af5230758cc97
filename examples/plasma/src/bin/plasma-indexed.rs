// SPDX-License-Identifier: Apache-2.0
//! The simulation with an indexed directory: an electron's records are found by its number, in each
//! epoch, without reading the others. `plasma-files` does the same with plain files.

use std::process::ExitCode;

use clap::Parser;
use esker_base::Result;
use esker_base::store::{SharedStore, url};
use esker_comm::Transport;
use esker_imd::{DirectoryReader, DirectoryWriter, RecordLayout, ValueFormat};
use plasma::electron::{KEY_BYTES, STATE_BYTES};
use plasma::exchange;
use plasma::program::{self, DIRECTORY, Options};
use plasma::{Electron, Simulation};

/// Two streams of electrons, written to an indexed directory
#[derive(Parser)]
enum Command {
    /// Simulate and write
    Run {
        /// The store for the directory; it is created if it does not exist
        store: String,
        #[command(flatten)]
        options: Options,
    },
    /// Print an electron's position in each epoch
    Trace {
        /// The store with the directory
        store: String,
        /// The electron's number
        id: u64,
    },
}

fn main() -> ExitCode {
    program::exit(match Command::parse() {
        Command::Run { store, options } => {
            options.run(|transport| write(&store, &options, transport))
        }
        Command::Trace { store, id } => url::open(&store)
            .and_then(|store| trace(&store, id))
            .map(|found| program::print_trace(&found)),
    })
}

fn write(store: &str, options: &Options, transport: &mut dyn Transport) -> Result<()> {
    let store = program::make_store(store, transport)?;
    let id = exchange::random_id(transport)?;
    let shape = RecordLayout::Fixed { key_bytes: KEY_BYTES as u8, value_bytes: STATE_BYTES as u32 };
    let settings = esker_imd::DirectoryOptions::new(id, ValueFormat::Base, shape);
    let mut directory = DirectoryWriter::create(&store, DIRECTORY, &mut *transport, &settings)?;
    let mut simulation = Simulation::new(&options.setup(), directory.transport())?;
    for _ in 0..options.epochs {
        for _ in 0..options.steps {
            simulation.step(directory.transport())?;
        }
        for electron in simulation.electrons() {
            directory.append(&electron.key(), &electron.state())?;
        }
        directory.epoch_flush()?;
    }
    directory.finish()?;
    program::print_fastest(simulation.electrons(), transport)
}

/// Looks up one key.
fn trace(store: &SharedStore, id: u64) -> Result<Vec<(u32, Electron)>> {
    let key = id.to_be_bytes();
    let reader = DirectoryReader::open(store, DIRECTORY, 0)?;
    if reader.directory().is_none() {
        let complete = reader.epochs_complete()?;
        eprintln!("plasma: the job did not end: its first {complete} epochs are complete");
    }
    let answer = reader.get(&key)?;
    let electrons = answer.values.iter().map(|value| {
        let electron = Electron::parse(&key, &value.bytes);
        Ok((value.epoch, electron.ok_or_else(|| program::no_electron(DIRECTORY))?))
    });
    electrons.collect()
}
