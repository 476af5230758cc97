// SPDX-License-Identifier: Apache-2.0
//! The simulation with plain files: one for each rank and epoch. To find an electron, all of them
//! must be read. `plasma-indexed` does the same with an indexed directory.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use esker_base::{Error, Result};
use esker_comm::Transport;
use plasma::electron::{KEY_BYTES, RECORD_BYTES};
use plasma::program::{self, Options};
use plasma::{Electron, Simulation};

/// Two streams of electrons, written to one file for each rank and epoch
#[derive(Parser)]
enum Command {
    /// Simulate and write
    Run {
        /// Directory for the files
        directory: PathBuf,
        #[command(flatten)]
        options: Options,
    },
    /// Print an electron's position in each epoch
    Trace {
        /// Directory with the files
        directory: PathBuf,
        /// The electron's number
        id: u64,
    },
}

fn main() -> ExitCode {
    program::exit(match Command::parse() {
        Command::Run { directory, options } => {
            options.run(|transport| write(&directory, &options, transport))
        }
        Command::Trace { directory, id } => {
            trace(&directory, id).map(|found| program::print_trace(&found))
        }
    })
}

fn write(directory: &Path, options: &Options, transport: &mut dyn Transport) -> Result<()> {
    std::fs::create_dir_all(directory).map_err(|error| failed(error, directory))?;
    let mut simulation = Simulation::new(&options.setup(), transport)?;
    for epoch in 0..options.epochs {
        for _ in 0..options.steps {
            simulation.step(transport)?;
        }
        let path = directory.join(format!("electrons.{epoch}.{}", transport.rank().0));
        let write = || {
            let mut file = BufWriter::new(File::create(&path)?);
            for electron in simulation.electrons() {
                file.write_all(&electron.key())?;
                file.write_all(&electron.state())?;
            }
            file.into_inner()?.sync_all()
        };
        write().map_err(|error| failed(error, &path))?;
        transport.barrier()?;
    }
    program::print_fastest(simulation.electrons(), transport)
}

/// Scans every record of every file.
fn trace(directory: &Path, id: u64) -> Result<Vec<(u32, Electron)>> {
    let mut found = Vec::new();
    let files = std::fs::read_dir(directory).map_err(|error| failed(error, directory))?;
    for file in files {
        let path = file.map_err(|error| failed(error, directory))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut words = name.split('.');
        let (Some("electrons"), Some(epoch)) = (words.next(), words.next()) else { continue };
        let epoch = epoch.parse().map_err(|_| program::no_electron(name))?;
        let mut bytes = Vec::new();
        let mut read = || File::open(&path)?.read_to_end(&mut bytes);
        read().map_err(|error| failed(error, &path))?;
        for record in bytes.as_chunks::<RECORD_BYTES>().0 {
            let (key, state) = record.split_at(KEY_BYTES);
            if key == id.to_be_bytes() {
                let electron = Electron::parse(key, state);
                found.push((epoch, electron.ok_or_else(|| program::no_electron(name))?));
            }
        }
    }
    found.sort_by_key(|(epoch, _)| *epoch);
    Ok(found)
}

fn failed(error: std::io::Error, path: &Path) -> Error {
    Error::io(error, path.display().to_string())
}
