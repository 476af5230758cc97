// SPDX-License-Identifier: Apache-2.0
//! `esker import`: publishes a real tree as a snapshot, or as part of one.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use esker_base::Result;
use esker_fs::session::Session;
use esker_fs::traversal::import::ImportOptions;
use esker_fs::traversal::tally::TransferTally;

use super::report::report;
use crate::change::{
    ChangeArguments, ChangedSession, MessageArgument, NewNameSource, SessionSettings, TakeOver,
};
use crate::commands::change::mkdir::make_dirs;
use crate::context::CommandContext;
use crate::location::{StackArgument, StackPath};
use crate::{progress, usage};

/// Import a directory tree and publish it
///
/// Imports everything: directories, files, symbolic and hard links, named pipes, sockets and
/// devices, with modes, owners, times to the nanosecond and extended attributes. Only the superuser
/// can keep owners. Unreadable files are left out and reported, and the exit code says so.
///
/// With --base the tree is laid over other snapshots: directories merge, files replace files. With
/// @SETID:/path it goes into an open session, which stays open.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker import /usr/include headers
  esker import ./run7 climate-7:/runs/7 --base climate-6
  esker import ./more @3f2a:/more")]
pub struct ImportCommand {
    /// Directory to import
    #[arg(value_name = "DIR")]
    source: PathBuf,
    /// Name to publish, with the directory to import into, or an open session
    #[arg(value_name = "NAME[:/path]", value_parser = StackPath::parser())]
    target: StackPath,
    /// Build on this snapshot, whoever published it; of several, earlier ones win
    #[arg(long = "base", value_name = "NAME", value_parser = StackArgument::parser())]
    bases: Vec<StackArgument>,
    #[command(flatten)]
    reading: TreeReading,
    #[command(flatten)]
    message: MessageArgument,
    #[command(flatten)]
    settings: SessionSettings,
    #[command(flatten)]
    take_over: TakeOver,
}

impl ImportCommand {
    /// Imports the tree.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let change = match &self.target.stack {
            StackArgument::Name(name) => {
                let bases = context.sets_of(&context.repository()?, &self.bases)?;
                let mut options = self.settings.options(context);
                options.properties.extend(self.message.property());
                ChangedSession::begin(context, &bases, (name, NewNameSource::Argument), options)?
            }
            StackArgument::Set(_) if !self.bases.is_empty() => {
                usage::exit("a session gets its bases when it begins: leave out --base")
            }
            stack => {
                let (settings, take_over) = (self.settings.clone(), self.take_over);
                let message = self.message.clone();
                let arguments = ChangeArguments { new_name: None, message, settings, take_over };
                ChangedSession::open(context, stack, &arguments)?
            }
        };
        let tally = Arc::new(TransferTally::default());
        let (done, seconds) = context.timed(|| {
            change.run(context, |session| {
                progress::watch("import:", &tally, || self.import(session, &tally))
            })
        });
        done?;
        report(context, "imported", &tally, seconds)
    }

    fn import(&self, session: &Session, tally: &TransferTally) -> Result<()> {
        let target = make_dirs(session, &self.target.path, 0o755)?;
        session.import(&self.source, &target, &self.reading.options(session), tally)
    }
}

/// How a directory tree is read.
#[derive(Args)]
pub struct TreeReading {
    /// Threads that read the tree; more help if the source is across a network
    #[arg(long, default_value_t = 4, value_name = "N")]
    threads: usize,
    /// Stay on the file system of DIR
    #[arg(long, short = 'x')]
    one_file_system: bool,
}

impl TreeReading {
    /// The options of an import into `session`, which leaves out the store itself.
    pub fn options(&self, session: &Session) -> ImportOptions {
        // Only a store in a directory can be inside the tree; one on S3 cannot.
        let store = std::fs::metadata(session.namespace().layers().source().store.url()).ok();
        ImportOptions {
            threads: self.threads,
            one_file_system: self.one_file_system,
            excluded: store.map(|metadata| (metadata.dev(), metadata.ino())),
        }
    }
}
