// SPDX-License-Identifier: Apache-2.0
//! `esker live mv`: renames files and directories of live namespaces.

use std::process::ExitCode;

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_live::LiveTree;

use super::trees::{LiveTrees, for_each_path, is_directory};
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::usage;

/// Rename files and directories of a live namespace
///
/// The last argument is the new path, or a directory to move into.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker live mv run:/results/date run:/date
  esker live mv run:/results/a run:/results/b run:/archive")]
pub struct LiveMoveArguments {
    /// Paths to rename, then the new path; all in one live namespace
    #[arg(required = true, num_args = 2.., value_name = "NAME:/path", value_parser = StackPath::parser())]
    paths: Vec<StackPath>,
}

impl LiveMoveArguments {
    /// Renames them.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let (target, sources) = self.paths.split_last().expect("clap asks for two");
        if let Some(other) = sources.iter().find(|source| source.stack != target.stack) {
            usage::exit(format!("{other} is not in {}: mv moves within one", target.stack))
        }
        let mut trees = LiveTrees::new(context)?;
        let into = trees.act(target, |tree| is_directory(tree, target))?;
        trees.leave();
        if sources.len() > 1 && !into {
            let what = format!("{target} is not a directory, which several files need");
            return Err(Error::new(Kind::NotADirectory, what));
        }
        if target.path.ends_with(b"/") && !into {
            return Err(Error::new(
                Kind::NotFound,
                format!("{target}: there is no such directory"),
            ));
        }
        for_each_path(context, sources, |tree, source| {
            let target = if into { target.join(source.last()) } else { target.clone() };
            rename(tree, source, &target)
                .map_err(|error| error.within(format!("rename {source} to {target}")))
        })
    }
}

fn rename(tree: &mut LiveTree, source: &StackPath, target: &StackPath) -> Result<()> {
    let (old_dir, old) = tree.locate(&source.path)?;
    let (dir, name) = tree.locate(&target.path)?;
    tree.rename((&old_dir, old), (&dir, name)).map_err(|error| match error.kind() {
        Kind::CrossDevice => {
            let what = format!("{}; `mv` in a mount copies others", error.context());
            Error::new(Kind::CrossDevice, what)
        }
        _ => error,
    })?;
    tree.sync()
}
