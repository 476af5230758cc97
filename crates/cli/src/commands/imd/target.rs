// SPDX-License-Identifier: Apache-2.0
//! Target: the path of a new or growing indexed directory, and the snapshot in which it is
//! published.

use clap::Args;
use esker_base::{Random, Result};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_imd::SessionDirectory;

use crate::change::{ChangedSession, MessageArgument, NewNameSource, SessionSettings};
use crate::context::CommandContext;
use crate::location::{StackArgument, StackPath};

/// The change set property that holds the future path of the directory that is written in it.
pub const TARGET: &str = "indexed directory";

/// Destination of a new directory.
#[derive(Args)]
pub struct DirectoryTarget {
    /// Path of the new directory
    #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
    target: StackPath,
    /// Publish as NEWNAME, on top of the target's name
    #[arg(long = "as", value_name = "NEWNAME")]
    new_name: Option<String>,
    #[command(flatten)]
    message: MessageArgument,
}

/// A snapshot with a new directory, or more epochs of one.
pub struct PublishedDirectory {
    /// Its name.
    pub name: String,
    /// The id of its set.
    pub set: String,
}

impl DirectoryTarget {
    /// Begins a session, lets `write` fill the directory and [place](Target::place) it, and
    /// publishes. Creates the store if there is none.
    pub fn publish<T>(
        &self,
        context: &CommandContext,
        write: impl FnOnce(&Session) -> Result<T>,
    ) -> Result<(T, PublishedDirectory)> {
        let repository = Repository::new(context.store_or_new()?);
        let new_name = self.new_name.as_deref();
        let (bases, published) =
            context.bases_and_name(&repository, &self.target.stack, new_name)?;
        let options = options_for(context, &self.target, &self.message);
        let published_by = (published, NewNameSource::of_option(new_name));
        let change = ChangedSession::begin(context, &bases, published_by, options)?;
        finish(change, published, write)
    }

    /// Links the finished directory at its path.
    pub fn publish_directory(
        &self,
        context: &CommandContext,
        session: &Session,
        directory: SessionDirectory,
    ) -> Result<()> {
        // As for a directory: users who may list it may also reach its keys.
        let mode = 0o777 & !context.umask;
        directory.create(session, &self.target.path, mode).map(drop)
    }
}

/// The directory that an append extends.
#[derive(Args)]
pub struct AppendTarget {
    /// The directory
    #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
    pub target: StackPath,
    /// Publish as NEWNAME and leave NAME unchanged; otherwise NAME then stands for the result
    #[arg(long = "as", value_name = "NEWNAME")]
    new_name: Option<String>,
    #[command(flatten)]
    message: MessageArgument,
}

impl AppendTarget {
    /// Begins a session on top of the target's name, lets `write` fill and append a directory, and
    /// publishes.
    pub fn publish<T>(
        &self,
        context: &CommandContext,
        write: impl FnOnce(&Session) -> Result<T>,
    ) -> Result<(T, PublishedDirectory)> {
        let repository = context.repository()?;
        let stack = &self.target.stack;
        let name = match (stack, &self.new_name) {
            (_, Some(new_name)) => new_name.as_str(),
            (StackArgument::Name(name), None) => name.as_str(),
            // The errors below suggest what to do.
            (StackArgument::Set(_), None) => "",
        };
        let (bases, published) = context.bases_and_name(&repository, stack, Some(name))?;
        let options = options_for(context, &self.target, &self.message);
        let change = match &self.new_name {
            None => ChangedSession::begin_succeeding(context, &bases, published, options)?,
            Some(_) => {
                let published_by = (published, NewNameSource::Option("--as"));
                ChangedSession::begin(context, &bases, published_by, options)?
            }
        };
        finish(change, published, write)
    }
}

fn options_for(
    context: &CommandContext,
    target: &StackPath,
    message: &MessageArgument,
) -> SessionOptions {
    let mut options = SessionSettings::for_few().options(context);
    let path = String::from_utf8_lossy(&target.path).into_owned();
    options.properties.insert(TARGET.to_owned(), path);
    options.properties.extend(message.property());
    options
}

fn finish<T>(
    change: ChangedSession,
    name: &str,
    write: impl FnOnce(&Session) -> Result<T>,
) -> Result<(T, PublishedDirectory)> {
    let set = change.session.set().to_string();
    let written = change.run_silently(write)?;
    Ok((written, PublishedDirectory { name: name.to_owned(), set }))
}

/// A new directory in `session`.
pub fn new_directory(session: &Session) -> SessionDirectory {
    SessionDirectory::new(session, &mut Random::from_system())
}
