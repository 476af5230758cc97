// SPDX-License-Identifier: Apache-2.0
//! `esker live rm`: removes files and directories of live namespaces.

use std::process::ExitCode;

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_fs::inode::FileKind;
use esker_live::LiveTree;
use esker_live::client::Request;

use super::trees::for_each_path;
use crate::context::CommandContext;
use crate::location::StackPath;

/// Remove files and directories of a live namespace
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker live rm run:/results/date run:/results
  esker live rm -r run:/results")]
pub struct LiveRemoveArguments {
    /// Remove directories and everything in them; without it they must be empty
    #[arg(short, long)]
    recursive: bool,
    /// Ignore paths that do not exist
    #[arg(short, long)]
    force: bool,
    /// The files and directories, in order
    #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
    paths: Vec<StackPath>,
}

impl LiveRemoveArguments {
    /// Removes them.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        for_each_path(context, &self.paths, |tree, path| match self.remove(tree, path) {
            Err(error) if self.force && error.kind() == Kind::NotFound => Ok(()),
            removed => removed,
        })
    }

    fn remove(&self, tree: &mut LiveTree, path: &StackPath) -> Result<()> {
        let (dir, name) = tree.locate(&path.path).map_err(|error| match error.kind() {
            Kind::Invalid => Error::new(Kind::Invalid, "the root cannot be removed"),
            _ => error,
        })?;
        match tree.lookup(&dir, name)?.kind {
            FileKind::Directory if self.recursive => tree.remove_tree(&dir, name),
            FileKind::Directory => tree
                .change(Request::remove_directory(&dir, &[name]).durable())
                .map_err(advise_recursion),
            _ => tree.change(Request::unlink(&dir, &[name]).durable()),
        }
    }
}

fn advise_recursion(error: Error) -> Error {
    match error.kind() {
        Kind::NotEmpty => {
            let what = format!("{}: add -r to remove all that is in it", error.context());
            Error::new(Kind::NotEmpty, what)
        }
        _ => error,
    }
}
