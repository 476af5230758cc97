// SPDX-License-Identifier: Apache-2.0
//! `esker diff`: shows the differences between two trees.

use std::process::ExitCode;

use clap::Args;
use esker_base::Result;
use esker_fs::repository::Repository;
use esker_fs::stack::namespace::FollowLinks;
use esker_fs::traversal::diff::{DiffAspect, Difference, diff};
use serde_json::json;

use crate::context::CommandContext;
use crate::location::StackPath;
use crate::{progress, text};

/// Show the differences between two trees
///
/// One line per path: A for added, D for deleted, M for modified with the aspects that differ:
/// kind, content, mode, owner, time, device, xattrs. Content that both trees have from the same
/// change set is not read.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker diff headers headers-2
  esker diff climate-6:/out climate-7:/out --json")]
pub struct DiffCommand {
    /// The old tree
    #[arg(value_name = "A[:/path]", value_parser = StackPath::parser())]
    before: StackPath,
    /// The new tree
    #[arg(value_name = "B[:/path]", value_parser = StackPath::parser())]
    after: StackPath,
    /// Exit with 1 if anything differs
    #[arg(long)]
    exit_code: bool,
    /// Ignore paths that differ only in times
    #[arg(long)]
    ignore_times: bool,
    /// Print only counts
    #[arg(short, long)]
    summarize: bool,
}

impl DiffCommand {
    /// Compares.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let (mut added, mut deleted, mut modified) = (0u64, 0u64, 0u64);
        let mut count = |difference: &Difference| {
            if self.ignore_times && difference.aspects == [DiffAspect::Time] {
                return Ok(());
            }
            match (difference.before, difference.after) {
                (None, _) => added += 1,
                (_, None) => deleted += 1,
                _ => modified += 1,
            }
            if self.summarize { Ok(()) } else { show(context, difference) }
        };
        let mut compare = |repository: &Repository| {
            let before = context.view(repository, &self.before.stack)?;
            let after = context.view(repository, &self.after.stack)?;
            for (view, location) in [(&before, &self.before), (&after, &self.after)] {
                let found = view.find(&location.path, FollowLinks::Yes);
                found.map_err(|error| location.in_error(error))?;
            }
            diff((&before, &self.before.path), (&after, &self.after.path), &mut count)
        };
        // On a terminal, the printed differences already show progress.
        if context.out.is_terminal() && !self.summarize {
            compare(&context.repository()?)?;
        } else {
            progress::watch_store(context, "diff:", compare)?;
        }
        if self.summarize {
            if context.out.is_json() {
                let counts = json!({"added": added, "deleted": deleted, "modified": modified});
                context.out.json(counts)?;
            } else {
                let counts = [added, deleted, modified].map(text::count);
                let [added, deleted, modified] = counts;
                context
                    .out
                    .line(format!("{added} added, {deleted} deleted, {modified} modified"))?;
            }
        }
        let differs = added + deleted + modified > 0;
        Ok(ExitCode::from(u8::from(self.exit_code && differs)))
    }
}

fn show(context: &CommandContext, difference: &Difference) -> Result<()> {
    let letter = match (difference.before, difference.after) {
        (None, _) => "A",
        (_, None) => "D",
        _ => "M",
    };
    let aspects: Vec<&str> = difference.aspects.iter().map(|aspect| word(*aspect)).collect();
    let out = &context.out;
    if out.is_json() {
        let mut object = serde_json::Map::new();
        object.insert("change".into(), letter.into());
        text::put_bytes(&mut object, "path", difference.path);
        object.insert("aspects".into(), aspects.into());
        for (key, inode) in [("before", difference.before), ("after", difference.after)] {
            let inode = inode.map(|inode| text::entry(difference.path, inode));
            object.insert(key.into(), inode.into());
        }
        return out.json(object);
    }
    out.raw(letter.as_bytes())?;
    out.raw(b" ")?;
    out.name(difference.path)?;
    if difference.after.or(difference.before).is_some_and(|inode| inode.is_directory())
        && !difference.path.ends_with(b"/")
    {
        out.raw(b"/")?;
    }
    if !aspects.is_empty() {
        out.raw(format!(" ({})", aspects.join(", ")).as_bytes())?;
    }
    out.raw(b"\n")
}

const fn word(aspect: DiffAspect) -> &'static str {
    match aspect {
        DiffAspect::Kind => "kind",
        DiffAspect::Content => "content",
        DiffAspect::Mode => "mode",
        DiffAspect::Owner => "owner",
        DiffAspect::Time => "time",
        DiffAspect::Device => "device",
        DiffAspect::Xattrs => "xattrs",
    }
}
