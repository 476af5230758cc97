// SPDX-License-Identifier: Apache-2.0
//! `esker live mkdir`: makes directories in live namespaces.

use std::process::ExitCode;

use clap::Args;
use esker_base::{Kind, Result};
use esker_live::LiveTree;
use esker_live::client::Request;

use super::trees::for_each_path;
use crate::commands::change::mkdir::parent_of;
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::output::notice;
use crate::quantity;

/// Make directories in a live namespace
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker live mkdir -p run:/results/monday
  esker live mkdir --spread run:/steps      one large directory, shared by all servers")]
pub struct LiveMkdirArguments {
    /// Spread the names in each of them over all seats, so that all servers share the work of one
    /// large directory. With N seats, N-1 of N renames in it are between seats and wait for three
    /// syncs
    #[arg(long)]
    spread: bool,
    /// Make missing parents too; existing directories are not an error
    #[arg(short, long)]
    parents: bool,
    /// Permission bits; by default 777 less the umask
    #[arg(short, long, value_parser = quantity::mode, value_name = "OCTAL")]
    mode: Option<u32>,
    /// The directories
    #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
    paths: Vec<StackPath>,
}

impl LiveMkdirArguments {
    /// Makes them.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let masked = 0o777 & !context.umask;
        for_each_path(context, &self.paths, |tree, path| {
            if !self.parents {
                return self.make(tree, path, masked);
            }
            if let Some(parent) = parent_of(&path.path) {
                tree.make_directories(parent, masked)?;
                tree.sync()?;
            }
            match self.make(tree, path, masked) {
                Err(error) if matches!(error.kind(), Kind::Exists | Kind::Invalid) => {
                    let dir = tree.dir(&path.path)?;
                    if self.spread && tree.seats() > 1 && !dir.is_spread() {
                        notice(format!("{path} exists, and is not spread"));
                    }
                    Ok(())
                }
                made => made,
            }
        })
    }

    fn make(&self, tree: &mut LiveTree, path: &StackPath, masked: u32) -> Result<()> {
        let (dir, name) = tree.locate(&path.path)?;
        let mode = self.mode.unwrap_or(masked);
        if !self.spread {
            return tree.change(Request::make_directory(&dir, mode, &[name]).durable());
        }
        tree.make_spread_directory(&dir, name, mode)?;
        if tree.seats() == 1 {
            notice(format!("{path} is a plain directory: its namespace has one seat"));
        }
        Ok(())
    }
}
