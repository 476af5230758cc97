// SPDX-License-Identifier: Apache-2.0
//! `esker put`: writes one file.

use std::fs::File;
use std::io::{Read, stdin};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use clap::Args;
use esker_base::{Error, Kind, Result, shell_word};
use esker_fs::session::Session;
use esker_fs::stack::namespace::FollowLinks;

use crate::change::{ChangeArguments, ChangedSession};
use crate::context::CommandContext;
use crate::location::{StackArgument, StackPath};
use crate::quantity;

/// Write a file from a local file or standard input
///
/// If the target is a directory, the file keeps its own name; an existing file is replaced. Works
/// on a published name with --as, which publishes the result under a new name, or in an open
/// session.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker put notes.txt headers:/NOTES --as with-notes
  date | esker put - @3f2a:/started")]
pub struct PutCommand {
    /// File to read; - for standard input
    #[arg(value_name = "FILE")]
    source: PathBuf,
    /// Where to write it
    #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
    target: StackPath,
    /// Permission bits of a new file; by default those of FILE, or 666, less the umask
    #[arg(long, value_parser = quantity::mode, value_name = "OCTAL")]
    mode: Option<u32>,
    #[command(flatten)]
    change: ChangeArguments,
}

impl PutCommand {
    /// Writes it.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let (mut reader, source_mode) = self.open()?;
        let mode = self.mode.unwrap_or(source_mode & !context.umask & 0o777);
        ChangedSession::open(context, &self.target.stack, &self.change)?
            .run(context, |session| self.write(session, &mut *reader, mode))
    }

    fn open(&self) -> Result<(Box<dyn Read>, u32)> {
        if self.source.as_os_str() == "-" {
            return Ok((Box::new(stdin()), 0o666));
        }
        let failure = |error| Error::io(error, format!("open {}", self.source.display()));
        let file = File::open(&self.source).map_err(failure)?;
        let metadata = file.metadata().map_err(failure)?;
        if metadata.is_dir() {
            let what = format!("{}: a directory: {}", self.source.display(), self.import_advice());
            return Err(Error::new(Kind::IsADirectory, what));
        }
        Ok((Box::new(file), metadata.mode()))
    }

    /// How to do to a directory what was to be done to a file.
    fn import_advice(&self) -> String {
        let (source, path) = (self.source.as_os_str().as_bytes(), &self.target.path);
        let (source, path) = (shell_word(source), String::from_utf8_lossy(path));
        let (target, base) = match (&self.target.stack, &self.change.new_name) {
            (StackArgument::Name(name), Some(new_name)) => {
                (new_name.clone(), format!(" --base {name}"))
            }
            (StackArgument::Set(_), None) => (self.target.stack.to_string(), String::new()),
            _ => return "see `esker import --help`".into(),
        };
        let target = shell_word(format!("{target}:{path}").as_bytes());
        format!("import it by `esker import {source} {target}{base}`")
    }

    fn write(&self, session: &Session, reader: &mut dyn Read, mode: u32) -> Result<()> {
        let mut target = self.target.clone();
        let exists = match session.namespace().stat(&target.path, FollowLinks::Yes) {
            Ok(inode) if inode.is_directory() => {
                let name =
                    self.source.file_name().filter(|name| *name != "-").ok_or_else(|| {
                        let what = format!("{target} is a directory; name the file in it");
                        Error::new(Kind::IsADirectory, what)
                    })?;
                target = target.join(name.as_bytes());
                session.namespace().stat(&target.path, FollowLinks::Yes).is_ok()
            }
            Ok(_) => true,
            Err(error) if error.kind() == Kind::NotFound => false,
            Err(error) => return Err(target.in_error(error)),
        };
        let mut fill = |buffer: &mut [u8]| loop {
            match reader.read(buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => {
                    let failure =
                        |error| Error::io(error, format!("read {}", self.source.display()));
                    break read.map_err(failure);
                }
            }
        };
        let mut write = || match exists {
            true => {
                let found = session.namespace().find(&target.path, FollowLinks::Yes)?;
                session.rewrite(&found.dir, &found.name, &mut fill)
            }
            false => {
                let (dir, name) = session.namespace().locate(&target.path)?;
                session.create_with(&dir, name, mode, &mut fill)
            }
        };
        write().map(drop).map_err(|error| target.in_error(error))
    }
}
