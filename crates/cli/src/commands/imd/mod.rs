//! `esker imd`: indexed directories, whose files are the records of a key.

mod get;
mod import;
mod info;
mod range;
mod target;
mod write;

use clap::{Args, Subcommand};
use esker_base::{Error, Kind, Result};
use esker_imd::Reader;
use esker_imd::entry::{self, IndexedEntry};

use crate::context::Context;
use crate::location::Location;

/// Write and read indexed directories
///
/// An indexed directory takes records of a key and a value from all ranks of a job, in epochs, and
/// is one entry of a namespace. Each key is a file in it, which holds the values that the key got.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker imd write run:/particles --store /scratch/store --ranks 4 --keys 1000000 --epochs 5
  esker imd info run:/particles
  esker imd get run:/particles 0000000000000042
  esker cat run:/particles/0000000000000042")]
pub struct Imd {
    #[command(subcommand)]
    command: ImdCommand,
}

#[derive(Subcommand)]
enum ImdCommand {
    Write(write::Write),
    Import(import::Import),
    Get(get::Get),
    Range(range::Range),
    Info(info::Info),
}

impl Imd {
    /// Does it.
    pub fn run(self, context: &Context) -> Result<()> {
        match self.command {
            ImdCommand::Write(command) => command.run(context),
            ImdCommand::Import(command) => command.run(context),
            ImdCommand::Get(command) => command.run(context),
            ImdCommand::Range(command) => command.run(context),
            ImdCommand::Info(command) => command.run(context),
        }
    }
}

/// The indexed directory at `target`, and its entry.
pub fn open(
    context: &Context,
    target: &Location,
    cache_bytes: u64,
) -> Result<(IndexedEntry, Reader)> {
    let repository = context.repository()?;
    let view = context.view(&repository, &target.stack)?;
    match entry::find(&view, &target.path)? {
        Some(found) if found.rest.is_empty() => {
            let reader = found.open(repository.store(), cache_bytes)?;
            Ok((found, reader))
        }
        _ => {
            // What is there says more, if nothing is.
            view.stat(&target.path, esker_fs::namespace::Follow::Yes)?;
            Err(Error::new(Kind::Invalid, format!("{target}: no indexed directory")))
        }
    }
}
