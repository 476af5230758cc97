// SPDX-License-Identifier: Apache-2.0
//! `esker imd`: indexed directories, in which each file holds the records of a key.

mod adopt;
mod append;
mod dumps;
mod epoch_range;
mod get;
mod import;
pub mod info;
mod range;
pub mod target;
pub mod value_format;

use clap::{Args, Subcommand};
use esker_base::{Error, Kind, Result};
use esker_fs::inode::timestamp;
use esker_fs::inode::{FileKind, Inode, NameKind};
use esker_fs::repository::Repository;
use esker_imd::IndexedReader;
use esker_imd::entry::{self, IndexedEntry};
use esker_table::manifest::Manifest;
use esker_table::object_name::ObjectFolder;

use self::target::TARGET;
use crate::commands::measure::bench::BenchWords;
use crate::context::CommandContext;
use crate::location::{StackArgument, StackPath};
use crate::output::notice;
use crate::text;

/// Write and read indexed directories
///
/// An indexed directory takes records of a key and a value from all ranks of a job, in epochs, and
/// is one entry of a namespace. Each key is a file in it, which holds the key's values.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker imd import run:/particles --preset vpic tracers.*
  esker bench imd-write run:/synthetic --ranks 4 --keys 1000000 --epochs 5
  esker imd show run:/particles
  esker imd get run:/particles 0000000000000042
  esker cat run:/particles/0000000000000042")]
pub struct ImdArguments {
    #[command(subcommand)]
    command: ImdCommand,
}

#[derive(Subcommand)]
enum ImdCommand {
    Import(import::ImdImportCommand),
    Append(append::ImdAppendCommand),
    Adopt(adopt::ImdAdoptCommand),
    Get(get::ImdGetCommand),
    Range(range::ImdRangeCommand),
    #[command(name = "show", visible_aliases = ["info", "stat"])]
    Info(info::ImdInfoCommand),
    /// The name by which earlier versions had `esker bench imd-write`
    #[command(hide = true, disable_help_flag = true)]
    Write(BenchWords),
}

impl ImdArguments {
    /// Runs the subcommand.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        match self.command {
            ImdCommand::Write(words) => words.run(Some("imd-write"), context),
            ImdCommand::Import(command) => command.run(context),
            ImdCommand::Append(command) => command.run(context),
            ImdCommand::Adopt(command) => command.run(context),
            ImdCommand::Get(command) => command.run(context),
            ImdCommand::Range(command) => command.run(context),
            ImdCommand::Info(command) => command.run(context),
        }
    }
}

/// The indexed directory at `target`, and its entry. If a command died while writing it in its
/// session: the flushed epochs, with a notice.
pub fn open(
    context: &CommandContext,
    target: &StackPath,
    cache_bytes: u64,
) -> Result<(IndexedEntry, IndexedReader)> {
    let repository = context.repository()?;
    let view = context.view(&repository, &target.stack)?;
    let found = entry::find(&view, &target.path)?;
    if found.is_none()
        && let Some(left) = open_left(context, &repository, target, cache_bytes)?
    {
        return Ok(left);
    }
    match found {
        Some(found) if found.rest.is_empty() => {
            let reader = found.open(repository.store(), cache_bytes)?;
            Ok((found, reader))
        }
        _ => {
            // If nothing is there, this error is more specific.
            view.stat(&target.path, esker_fs::stack::namespace::FollowLinks::Yes)?;
            Err(Error::new(Kind::NotADirectory, format!("{target}: no indexed directory")))
        }
    }
}

/// The directory that a dead command was writing for `target`, which has no entry yet.
fn open_left(
    context: &CommandContext,
    repository: &Repository,
    target: &StackPath,
    cache_bytes: u64,
) -> Result<Option<(IndexedEntry, IndexedReader)>> {
    let StackArgument::Set(_) = &target.stack else { return Ok(None) };
    let (store, set) = (repository.store(), context.set_of(repository, &target.stack)?);
    let manifest = Manifest::load(&**store, set)?;
    if manifest.properties.get(TARGET).map(String::as_bytes) != Some(&target.path[..]) {
        return Ok(None);
    }
    let folder = ObjectFolder::AllIndexed(set).to_string();
    let [number] = &store.list_names(&folder)?[..] else { return Ok(None) };
    let prefixes = vec![format!("{folder}{number}/")];
    let reader = IndexedReader::open(store, &prefixes, cache_bytes)?;
    let epochs = text::counted(u64::from(reader.epochs_complete()?), "epoch");
    notice(format!(
        "{target} is incomplete: {epochs} that all ranks had flushed when its writer ended"
    ));
    let inode =
        Inode::new(NameKind::Is(FileKind::Indexed), 0, timestamp::of_clock(manifest.created_ns));
    Ok(Some((IndexedEntry { inode, prefixes, rest: Vec::new() }, reader)))
}
