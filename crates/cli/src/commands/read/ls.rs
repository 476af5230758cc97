// SPDX-License-Identifier: Apache-2.0
//! `esker ls`: lists directories.

use std::process::ExitCode;

use clap::{ArgAction, Args, ValueEnum};
use esker_base::Result;
use esker_fs::inode::indexed::{self, IndexedPart};
use esker_fs::inode::{FileKind, Inode};
use esker_fs::stack::identity::READ;
use esker_fs::stack::list::{DirCursor, DirEntry};
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_fs::traversal::walk::{WalkNext, WalkOrder, WalkStep, normalized};
use esker_imd::{IndexedReader, entry};

use crate::context::CommandContext;
use crate::location::StackPath;
use crate::output::CommandProblems;
use crate::text;
use crate::users::UserNames;

/// Directories with more entries are not counted, as in a mount.
const COUNTED_MAX: usize = 1 << 16;

/// Order of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum SortOrder {
    /// By name
    #[default]
    Name,
    /// Largest first
    Size,
    /// Newest first
    Time,
    /// As stored; does not hold the directory in memory
    None,
}

/// List directories
///
/// Prints one entry per line; for an indexed directory its keys, in stored order, unless -l or -d
/// asks for the entry itself. The size of a directory is the number of its entries, and its link
/// count is 2 plus one for each subdirectory, as in a mount; they are - and 1 if the directory
/// cannot be listed or has too many entries. Times are UTC. In a pipe, names are written byte by
/// byte; on a terminal, unprintable characters are escaped.
#[derive(Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  esker ls headers:/linux
  esker ls -lh --sort size headers:/
  esker ls -R --json headers:/ | jq -r .path"
)]
pub struct ListCommand {
    /// Directories, or files
    #[arg(required = true, value_name = "NAME[:/path]", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Also show mode, links, owner, group, size and time
    #[arg(short, long)]
    long: bool,
    /// Include names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// List directories themselves, not their contents
    #[arg(short, long)]
    directory: bool,
    /// List everything below, each with its path
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Sizes as 1.5 KiB
    #[arg(short = 'h', short_alias = 'H', long)]
    human: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Show owners and groups by number
    #[arg(short, long)]
    numeric: bool,
    /// Order of entries
    #[arg(long, value_enum, default_value_t, value_name = "ORDER")]
    sort: SortOrder,
    /// Newest first, as --sort time
    #[arg(short = 't', conflicts_with = "sort")]
    by_time: bool,
    /// Largest first, as --sort size
    #[arg(short = 'S', conflicts_with_all = ["sort", "by_time"])]
    by_size: bool,
    /// Reverse the order
    #[arg(short, long)]
    reverse: bool,
    /// Print the id of each file first: the same for all names of one file
    #[arg(short, long)]
    inode: bool,
    /// One entry per line, which is always so
    #[arg(short = '1')]
    one: bool,
}

/// State for listing a location.
struct ListingNeeds<'a> {
    ls: &'a ListCommand,
    context: &'a CommandContext,
    users: UserNames,
    problems: CommandProblems,
}

impl ListCommand {
    /// Lists.
    pub fn run(mut self, context: &CommandContext) -> Result<ExitCode> {
        if self.by_time {
            self.sort = SortOrder::Time;
        } else if self.by_size {
            self.sort = SortOrder::Size;
        }
        let repository = context.repository()?;
        let users =
            if self.long && !self.numeric { UserNames::of_machine() } else { UserNames::none() };
        let several = self.locations.len() > 1 && !self.directory && !context.out.is_json();
        let listing =
            ListingNeeds { ls: &self, context, users, problems: CommandProblems::default() };
        let views = context.views(&repository, &self.locations)?;
        for (index, (location, view)) in views.into_iter().enumerate() {
            if several {
                let gap = if index > 0 { "\n" } else { "" };
                context
                    .out
                    .line(format!("{gap}{}:", text::printable(location.to_string().as_bytes())))?;
            }
            listing.problems.pass(context, location, listing.location(&view, location))?;
        }
        Ok(listing.problems.exit_code())
    }
}

impl ListingNeeds<'_> {
    fn location(&self, view: &Namespace, location: &StackPath) -> Result<()> {
        let path = normalized(&location.path);
        if self.ls.recursive {
            return self.tree(view, location, &path);
        }
        if let Some(key) = entry::find_key(view, &location.path)? {
            let (inode, _) = key.key_file(&view.layers().source().store)?;
            return self.entry(view, &path, &path, &inode);
        }
        let follow =
            if self.ls.directory || self.ls.long { FollowLinks::No } else { FollowLinks::Yes };
        let found = view.find(&location.path, follow)?;
        let parts = indexed::parts_of(&found.inode);
        if !parts.is_empty() && !self.ls.directory && !self.ls.long {
            view.identity().check(READ, &found.inode, &path)?;
            return self.keys(view, &path, &parts);
        }
        if self.ls.directory || !found.inode.is_directory() {
            return self.entry(view, &path, &path, &found.inode);
        }
        let dir = view.dir(&location.path)?;
        let parent = if path == b"/" { Vec::new() } else { path };
        let mut cursor = DirCursor::default();
        let page_entries = if self.ls.sort == SortOrder::None { 1024 } else { usize::MAX };
        loop {
            let entries = view.read_dir(&dir, &cursor, page_entries);
            let mut entries = entries?;
            let is_last = entries.len() < page_entries;
            if let Some(last) = entries.last() {
                cursor = DirCursor::after(&last.name);
            }
            entries.retain(|entry| self.ls.all || !entry.name.starts_with(b"."));
            self.sort(&mut entries);
            for entry in entries {
                let path = [&parent[..], b"/", &entry.name].concat();
                self.entry(view, &path, &entry.name, &entry.inode)?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Lists the keys of an indexed directory, in the order of their hashes.
    fn keys(&self, view: &Namespace, path: &[u8], parts: &[IndexedPart]) -> Result<()> {
        let prefixes: Vec<String> = parts.iter().map(IndexedPart::prefix).collect();
        let reader = IndexedReader::open(&view.layers().source().store, &prefixes, 0)?;
        let (names, out) = (reader.key_names(), &self.context.out);
        reader.keys(|key| {
            let name = names.name_of_key(key);
            if out.is_json() {
                let path = [path, b"/", name.as_bytes()].concat();
                let mut object = serde_json::Map::new();
                text::put_bytes(&mut object, "path", &path);
                object.insert("kind".into(), "key".into());
                out.json(object)?;
            } else {
                out.line(name)?;
            }
            Ok(true)
        })
    }

    fn sort(&self, entries: &mut [DirEntry]) {
        match self.ls.sort {
            SortOrder::None => return,
            SortOrder::Name => entries.sort_by(|a, b| a.name.cmp(&b.name)),
            SortOrder::Size => {
                entries.sort_by(|a, b| (b.inode.size, &a.name).cmp(&(a.inode.size, &b.name)));
            }
            SortOrder::Time => entries
                .sort_by(|a, b| (b.inode.mtime_ns, &a.name).cmp(&(a.inode.mtime_ns, &b.name))),
        }
        if self.ls.reverse {
            entries.reverse();
        }
    }

    fn tree(&self, view: &Namespace, location: &StackPath, path: &[u8]) -> Result<()> {
        let order =
            if self.ls.sort == SortOrder::None { WalkOrder::Stored } else { WalkOrder::Name };
        view.traverse(path, FollowLinks::Yes, order, &mut |step| match step {
            WalkStep::Entry(visit) => {
                if visit.depth > 0 && !self.ls.all && visit.name().starts_with(b".") {
                    return Ok(WalkNext::Past);
                }
                if visit.depth > 0 || !visit.inode.is_directory() {
                    self.entry(view, visit.path, visit.path, visit.inode)?;
                }
                Ok(WalkNext::Into)
            }
            WalkStep::Left(_) => Ok(WalkNext::Into),
            WalkStep::Unreadable(visit, error) => {
                self.problems.report(&location.stack, visit.path, &error);
                Ok(WalkNext::Into)
            }
        })
    }

    fn entry(&self, view: &Namespace, path: &[u8], name: &[u8], inode: &Inode) -> Result<()> {
        let out = &self.context.out;
        if out.is_json() {
            return out.json(text::entry(path, inode));
        }
        if self.ls.inode {
            out.raw(format!("{:032x} ", inode.id).as_bytes())?;
        }
        if self.ls.long {
            out.raw(self.columns(view, path, inode).as_bytes())?;
        }
        out.name(name)?;
        if self.ls.long && inode.kind() == Some(FileKind::Symlink) {
            out.raw(b" -> ")?;
            out.name(&inode.content)?;
        }
        out.raw(b"\n")
    }

    fn columns(&self, view: &Namespace, path: &[u8], inode: &Inode) -> String {
        let (nlink, entries) = match inode.is_directory() {
            true => directory_counts(view, path).unwrap_or((1, None)),
            false => (inode.nlink, None),
        };
        let size = match inode.kind() {
            Some(FileKind::Directory) => entries.map_or("-".into(), |count| count.to_string()),
            Some(FileKind::CharDevice | FileKind::BlockDevice) => {
                format!("{}, {}", rustix::fs::major(inode.rdev), rustix::fs::minor(inode.rdev))
            }
            _ if self.ls.human => text::bytes(inode.size),
            _ => inode.size.to_string(),
        };
        format!(
            "{} {:>3} {:<8} {:<8} {size:>10} {} ",
            text::mode(inode),
            nlink,
            self.users.user(inode.uid),
            self.users.group(inode.gid),
            text::minute(inode.mtime_ns),
        )
    }
}

/// Number of links and of entries of the directory at `path`; the entries are not counted beyond
/// `COUNTED_MAX`.
fn directory_counts(view: &Namespace, path: &[u8]) -> Result<(u32, Option<usize>)> {
    let dir = view.dir(path)?;
    let entries = view.read_dir(&dir, &DirCursor::default(), COUNTED_MAX + 1)?;
    if entries.len() > COUNTED_MAX {
        return Ok((1, None));
    }
    let directories = entries.iter().filter(|entry| entry.inode.is_directory()).count();
    let links = u32::try_from(directories + 2).expect("few entries");
    Ok((links, Some(entries.len())))
}
