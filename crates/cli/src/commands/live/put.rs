// SPDX-License-Identifier: Apache-2.0
//! `esker live put`: writes files of live namespaces.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_live::LiveTree;
use esker_live::client::{LiveFile, Request};
use esker_live::wire::{AttributeRequest, TRANSFER_BYTES_MAX};

use super::trees::{LiveTrees, is_directory};
use crate::context::CommandContext;
use crate::interrupt;
use crate::location::StackPath;

/// Write a file of a live namespace; replaces its content
///
/// Into a directory it puts the file under its own name. Other clients see the content grow. A file whose
/// name is new is made; another one keeps its owner, mode and other names.
#[derive(Args)]
#[command(after_help = "Example:\n  date | esker live put - run:/results/date")]
pub struct LivePutArguments {
    /// The file to read, or - for standard input
    file: PathBuf,
    /// Its place, or the directory to put it into
    #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
    path: StackPath,
}

impl LivePutArguments {
    /// Writes it.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let mut trees = LiveTrees::new(context)?;
        let into = trees.act(&self.path, |tree| is_directory(tree, &self.path))?;
        let target = match self.file.file_name() {
            Some(name) if into && self.file.as_os_str() != "-" => self.path.join(name.as_bytes()),
            _ if self.path.path.ends_with(b"/") && !into => {
                let what = format!("{}: there is no such directory", self.path);
                return Err(Error::new(Kind::NotFound, what));
            }
            _ => self.path.clone(),
        };
        trees.act(&target, |tree| self.put(context, tree, &target))?;
        trees.leave();
        Ok(())
    }

    fn put(&self, context: &CommandContext, tree: &mut LiveTree, target: &StackPath) -> Result<()> {
        let failed = |error| Error::io(error, format!("read {}", self.file.display()));
        let mut source: Box<dyn Read> = match self.file.as_os_str() == "-" {
            true => Box::new(std::io::stdin()),
            false => Box::new(std::fs::File::open(&self.file).map_err(failed)?),
        };
        // Read before anything is changed: a source that cannot be read costs no content.
        let (mut piece, mut offset) = (vec![0; TRANSFER_BYTES_MAX], 0u64);
        let mut count = source.read(&mut piece).map_err(failed)?;
        let (mut dir, name) = tree.locate(&target.path)?;
        let (mut name, mode) = (name.to_vec(), 0o666 & !context.umask);
        // Durable requests are repeated if their server dies.
        match tree.change(Request::create(&dir, mode, &[&name]).durable()) {
            Err(error) if error.kind() == Kind::Exists => {
                (dir, name) = tree.locate_file(&target.path)?;
                let empty = AttributeRequest { size: Some(0), ..Default::default() };
                let file = LiveFile::at(&dir, &name);
                tree.change(Request::set_attributes(&file, &empty).durable())?;
            }
            created => created?,
        }
        interrupt::advise(format!("{target} has a part of the content: write it again"));
        while count > 0 {
            let file = LiveFile::at(&dir, &name);
            let written = tree.change(Request::write(&file, offset, &piece[..count]).durable());
            written.map_err(|error| only_a_part(error, offset))?;
            offset += count as u64;
            let read = source.read(&mut piece).map_err(failed);
            count = read.map_err(|error| only_a_part(error, offset))?;
        }
        Ok(())
    }
}

/// Adds to `error` that the file has only the first `offset` bytes.
fn only_a_part(error: Error, offset: u64) -> Error {
    let what = format!("{}; only the first {offset} bytes are written", error.context());
    Error::new(error.kind(), what).with_source(error)
}
