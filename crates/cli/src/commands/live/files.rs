// SPDX-License-Identifier: Apache-2.0
//! Files of live namespaces: the commands that use them through the server.

use std::process::ExitCode;

use clap::Subcommand;
use esker_base::Result;

use super::ls::LiveListArguments;
use super::mkdir::LiveMkdirArguments;
use super::mv::LiveMoveArguments;
use super::put::LivePutArguments;
use super::rm::LiveRemoveArguments;
use super::stat::LiveStatArguments;
use super::trees::for_each_path;
use crate::context::CommandContext;
use crate::location::StackPath;

/// Operations on files of a live namespace.
#[derive(Subcommand)]
pub enum LiveFileAction {
    Ls(LiveListArguments),
    Stat(LiveStatArguments),
    Mkdir(LiveMkdirArguments),
    Put(LivePutArguments),
    /// Print files of a live namespace
    #[command(after_help = "Example:\n  esker live cat run:/results/date")]
    Cat {
        /// The files
        #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
        paths: Vec<StackPath>,
    },
    Rm(LiveRemoveArguments),
    Mv(LiveMoveArguments),
}

impl LiveFileAction {
    /// Runs the operation. Changes are durable once it returns.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        match self {
            Self::Ls(arguments) => arguments.run(context),
            Self::Stat(arguments) => arguments.run(context),
            Self::Mkdir(arguments) => arguments.run(context),
            Self::Put(arguments) => arguments.run(context).map(|()| ExitCode::SUCCESS),
            Self::Cat { paths } => for_each_path(context, &paths, |tree, path| {
                let (dir, name) = tree.locate_file(&path.path)?;
                let content = tree.read(&dir, &name)?;
                context.out.raw(&content)
            }),
            Self::Rm(arguments) => arguments.run(context),
            Self::Mv(arguments) => arguments.run(context),
        }
    }
}
