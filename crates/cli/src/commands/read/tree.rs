// SPDX-License-Identifier: Apache-2.0
//! `esker tree`: draws a tree.

use std::process::ExitCode;

use clap::Args;
use esker_base::Result;
use esker_fs::inode::{DirId, FileKind, Inode};
use esker_fs::stack::list::{DirCursor, DirEntry};
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_fs::traversal::walk::{loop_error, normalized};
use serde_json::json;

use crate::context::CommandContext;
use crate::location::StackPath;
use crate::output::CommandProblems;
use crate::text;

/// Draw a tree
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker tree -L 2 headers:/
  esker tree -d headers:/linux")]
pub struct TreeCommand {
    /// Where to start
    #[arg(value_name = "NAME[:/path]", value_parser = StackPath::parser())]
    location: StackPath,
    /// Show only directories
    #[arg(short, long)]
    directories: bool,
    /// Show at most this many levels below the start
    #[arg(short = 'L', long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true)]
    level: usize,
    /// Include names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// Show sizes of files
    #[arg(short, long)]
    size: bool,
    /// Use only ASCII characters
    #[arg(long)]
    ascii: bool,
}

/// A directory that is being drawn.
struct TreeFrame {
    id: DirId,
    path: Vec<u8>,
    entries: std::vec::IntoIter<DirEntry>,
    indent_bytes: usize,
}

impl TreeCommand {
    /// Draws.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let repository = context.repository()?;
        let view = context.view(&repository, &self.location.stack)?;
        let path = normalized(&self.location.path);
        let found = view.stat(&path, FollowLinks::Yes);
        let inode = found.map_err(|error| self.location.in_error(error))?;
        self.show(context, &path, &[], &path, &inode)?;
        let (mut directories, mut files) = (0u64, 0u64);
        let problems = CommandProblems::default();
        let mut indent = String::new();
        let mut frames = Vec::new();
        if inode.is_directory() && self.level > 0 {
            frames.push(self.frame(&view, path, 0)?);
        }
        while let Some(frame) = frames.last_mut() {
            indent.truncate(frame.indent_bytes);
            let Some(entry) = frame.entries.next() else {
                frames.pop();
                continue;
            };
            let is_last = frame.entries.len() == 0;
            let (branch, below) = self.lines(is_last);
            let parent = if frame.path == b"/" { &b""[..] } else { &frame.path };
            let path = [parent, b"/", &entry.name].concat();
            let drawn = format!("{indent}{branch}");
            self.show(context, &entry.name, drawn.as_bytes(), &path, &entry.inode)?;
            if !entry.inode.is_directory() {
                files += 1;
                continue;
            }
            directories += 1;
            if frames.len() < self.level {
                indent.push_str(below);
                let indent_bytes = indent.len();
                let is_loop = frames.iter().any(|frame| frame.id == entry.inode.dir_id());
                let below = match is_loop {
                    true => Err(loop_error()),
                    false => self.frame(&view, path.clone(), indent_bytes),
                };
                match below {
                    Ok(frame) => frames.push(frame),
                    Err(error) => problems.report(&self.location.stack, &path, &error),
                }
            }
        }
        if context.out.is_json() {
            context.out.json(json!({"directories": directories, "files": files}))?;
        } else {
            let directories = text::counted(directories, "directory");
            context.out.line(format!("\n{directories}, {}", text::counted(files, "file")))?;
        }
        Ok(problems.exit_code())
    }

    fn lines(&self, is_last: bool) -> (&'static str, &'static str) {
        match (self.ascii, is_last) {
            (false, false) => ("├── ", "│   "),
            (false, true) => ("└── ", "    "),
            (true, false) => ("|-- ", "|   "),
            (true, true) => ("`-- ", "    "),
        }
    }

    fn frame(&self, view: &Namespace, path: Vec<u8>, indent_bytes: usize) -> Result<TreeFrame> {
        let dir = view.dir(&path)?;
        let mut entries = view.read_dir(&dir, &DirCursor::default(), usize::MAX)?;
        entries.retain(|entry| {
            (self.all || !entry.name.starts_with(b"."))
                && (!self.directories || entry.inode.is_directory())
        });
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(TreeFrame { id: dir.id(), path, entries: entries.into_iter(), indent_bytes })
    }

    fn show(
        &self,
        context: &CommandContext,
        name: &[u8],
        drawn: &[u8],
        path: &[u8],
        inode: &Inode,
    ) -> Result<()> {
        let out = &context.out;
        if out.is_json() {
            return out.json(text::entry(path, inode));
        }
        out.raw(drawn)?;
        if self.size {
            out.raw(format!("[{:>9}] ", text::bytes(inode.size)).as_bytes())?;
        }
        out.name(name)?;
        if inode.kind() == Some(FileKind::Symlink) {
            out.raw(b" -> ")?;
            out.name(&inode.content)?;
        }
        out.raw(b"\n")
    }
}
