// SPDX-License-Identifier: Apache-2.0
//! `esker live import`: a real tree becomes a directory of a live namespace at once.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_fs::traversal::tally::TransferTally;
use esker_live::client::BulkInsertion;
use serde_json::json;

use super::{connect, live_name};
use crate::change::SessionSettings;
use crate::commands::transfer::import::TreeReading;
use crate::commands::transfer::report::report;
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::{interrupt, progress, usage};

/// Import a directory tree as a new directory of a live namespace, at once
///
/// The command writes the tree into the store by itself, as fast as `esker import`, and the server
/// then makes it part of the namespace in a moment, whatever its size. Others see nothing of the
/// directory before, and all of it afterwards. Unreadable files are left out and reported, and the
/// exit code says so. It needs a user who can write the store: the server's. Other users copy into
/// a mount.
#[derive(Args)]
#[command(after_help = "\
Example:
  esker live import ./run7 run:/results/run7")]
pub struct LiveImportArguments {
    /// Directory to import
    #[arg(value_name = "DIR")]
    source: PathBuf,
    /// The directory that it becomes, in one that exists
    #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
    target: StackPath,
    #[command(flatten)]
    reading: TreeReading,
}

impl LiveImportArguments {
    /// Imports the tree.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let source = std::fs::metadata(&self.source);
        let source =
            source.map_err(|error| Error::io(error, format!("open {}", self.source.display())))?;
        if !source.is_dir() {
            let what = format!(
                "{}: not a directory; `esker live put` copies one file",
                self.source.display()
            );
            return Err(Error::new(Kind::NotADirectory, what));
        }
        if self.target.path.iter().all(|byte| *byte == b'/') {
            usage::exit(format!("{}: give a new directory, as in run:/results", self.target))
        }
        let repository = context.repository()?;
        let mut tree = connect(repository.store(), live_name(&self.target))?;
        tree.check_may_insert()?;
        let place = |error: Error| self.target.in_error(error);
        let (parent, name) = tree.locate(&self.target.path).map_err(place)?;
        // Before the work rather than after it.
        match tree.lookup(&parent, name) {
            Err(error) if error.kind() == Kind::NotFound => {}
            Ok(_) => {
                let what = format!("{}: exists; an import makes a new directory", self.target);
                return Err(Error::new(Kind::Exists, what));
            }
            Err(error) => return Err(place(error)),
        }
        let options = SessionSettings::for_many().options(context);
        let insertion = BulkInsertion::begin(&repository, 0o777 & !context.umask, options)?;
        let tally = Arc::new(TransferTally::default());
        let (done, seconds) = context.timed(|| {
            let session = insertion.session();
            let reading = self.reading.options(session);
            progress::watch("import:", &tally, || {
                session.import(&self.source, insertion.dir(), &reading, &tally)
            })?;
            interrupt::advise(format!("`esker live ls` shows whether {} is there", self.target));
            insertion.insert(&mut tree, &parent, name).map_err(place)
        });
        done?;
        tree.close()?;
        report(context, "imported", &tally, seconds)
    }
}

/// Makes the directory `from` of a snapshot the directory `to` of a live namespace.
pub fn insert(context: &CommandContext, from: &StackPath, to: &StackPath) -> Result<()> {
    let name = from.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let [name] = &name.collect::<Vec<_>>()[..] else {
        usage::exit(format!("{from}: only a directory in the root can be inserted"))
    };
    let repository = context.repository()?;
    let sets = context.sets_of(&repository, std::slice::from_ref(&from.stack))?;
    let mut tree = connect(repository.store(), live_name(to))?;
    let (parent, target) = tree.locate(&to.path).map_err(|error| to.in_error(error))?;
    let inserted = tree.insert_set((sets[0], name), &parent, target);
    inserted.map_err(|error| to.in_error(error))?;
    tree.close()?;
    match context.out.is_json() {
        true => {
            let (to, set) = (to.to_string(), sets[0].to_string());
            context.out.json(json!({"inserted": to, "set": set}))
        }
        false => context.out.line(format!("inserted {from} as {to}")),
    }
}
