// SPDX-License-Identifier: Apache-2.0
//! `esker mkdir`: creates directories.

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_fs::session::Session;
use esker_fs::stack::dir::Dir;

use super::one_stack;
use crate::change::{ChangeArguments, ChangedSession};
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::quantity;

/// Create directories
///
/// Works on a published name with --as, which publishes the result under a new name, or in an open
/// session.
#[derive(Args)]
// As of the program of this name, -m is another option.
#[command(mut_arg("message", |argument| argument.short(None::<char>)))]
#[command(after_help = "\
Examples:
  esker mkdir -p headers:/a/b --as with-dirs
  esker mkdir @3f2a:/results")]
pub struct MkdirCommand {
    /// Directories, all in one name or session
    #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Create missing parents too; existing directories are not an error
    #[arg(short, long)]
    parents: bool,
    /// Permission bits; by default 777 less the umask
    #[arg(short, long, value_parser = quantity::mode, value_name = "OCTAL")]
    mode: Option<u32>,
    #[command(flatten)]
    change: ChangeArguments,
}

impl MkdirCommand {
    /// Creates them.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let stack = one_stack(&self.locations);
        let masked = 0o777 & !context.umask;
        let mode = self.mode.unwrap_or(masked);
        ChangedSession::open(context, stack, &self.change)?.run(context, |session| {
            self.locations.iter().try_for_each(|location| {
                let made = self.make(session, &location.path, (mode, masked));
                made.map(drop).map_err(|error| location.in_error(error))
            })
        })
    }
}

impl MkdirCommand {
    /// Creates the directory at `path` with `mode`, and missing parents with `mode_of_parents`.
    fn make(
        &self,
        session: &Session,
        path: &[u8],
        (mode, mode_of_parents): (u32, u32),
    ) -> Result<Dir> {
        if !self.parents {
            let (dir, name) = session.namespace().locate(path)?;
            return session.mkdir(&dir, name, mode);
        }
        // As in mkdir(1), the mode applies only to the last directory.
        if let Some(parent) = parent_of(path) {
            make_dirs(session, parent, mode_of_parents)?;
        }
        make_dirs(session, path, mode)
    }
}

/// Returns the path of the directory that contains `path`; `None` for the root.
pub fn parent_of(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|&byte| byte != b'/')?;
    path[..=end].iter().rposition(|&byte| byte == b'/').map(|slash| &path[..=slash])
}

/// Opens the directory at `path`, creating it and missing parents with `mode`.
pub fn make_dirs(session: &Session, path: &[u8], mode: u32) -> Result<Dir> {
    match session.namespace().dir(path) {
        Err(error) if error.kind() == Kind::NotFound => {}
        found => return found,
    }
    let parent = match parent_of(path) {
        Some(parent) => make_dirs(session, parent, mode)?,
        None => return Err(Error::new(Kind::NotFound, "the root is not there")),
    };
    let (_, name) = esker_fs::stack::path::split_last(path)?;
    session.mkdir(&parent, name, mode)
}
