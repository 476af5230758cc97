// SPDX-License-Identifier: Apache-2.0
//! `esker du`: sums up the sizes of trees.

use std::process::ExitCode;

use clap::{ArgAction, Args};
use esker_base::Result;

use crate::context::CommandContext;
use crate::location::StackPath;
use crate::output::CommandProblems;
use crate::text;

/// Sum up sizes below directories
///
/// Counts bytes of content, each file once however many names it has. `esker show` shows the space
/// that a change set takes in the store.
#[derive(Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  esker du -sh headers:/
  esker du -h --max-depth 1 headers:/"
)]
pub struct DuCommand {
    /// Directories or files
    #[arg(required = true, value_name = "NAME[:/path]", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Show only the total of each argument
    #[arg(short, long, conflicts_with = "max_depth")]
    summarize: bool,
    /// Show directories down to this depth
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// Show files too
    #[arg(short, long)]
    all: bool,
    /// Sizes as 1.5 KiB
    #[arg(short = 'h', short_alias = 'H', long)]
    human: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

impl DuCommand {
    /// Sums up.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let repository = context.repository()?;
        let depth_max = if self.summarize { Some(0) } else { self.max_depth };
        let problems = CommandProblems::default();
        for (location, view) in context.views(&repository, &self.locations)? {
            let summed = view.usage(
                &location.path,
                &mut |visit, usage| {
                    let is_file = !visit.inode.is_directory();
                    if depth_max.is_some_and(|depth| visit.depth > depth)
                        || (is_file && visit.depth > 0 && !self.all)
                    {
                        return Ok(());
                    }
                    let out = &context.out;
                    if out.is_json() {
                        let mut object = serde_json::Map::new();
                        text::put_bytes(&mut object, "path", visit.path);
                        object.insert("bytes".into(), usage.bytes.into());
                        object.insert("entries".into(), usage.entries.into());
                        return out.json(object);
                    }
                    let bytes = match self.human {
                        true => text::bytes(usage.bytes),
                        false => usage.bytes.to_string(),
                    };
                    out.raw(format!("{bytes:>12} {:>9} ", usage.entries).as_bytes())?;
                    out.name(visit.path)?;
                    out.raw(b"\n")
                },
                &mut |visit, error| problems.report(&location.stack, visit.path, &error),
            );
            problems.pass(context, location, summed)?;
        }
        Ok(problems.exit_code())
    }
}
