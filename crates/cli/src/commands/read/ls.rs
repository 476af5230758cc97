// SPDX-License-Identifier: Apache-2.0
//! `esker ls`: lists directories.

use std::process::ExitCode;

use clap::Args;
use esker_base::Result;
use esker_fs::inode::Inode;
use esker_fs::inode::indexed::{self, IndexedPart};
use esker_fs::stack::identity::READ;
use esker_fs::stack::list::DirCursor;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_fs::traversal::walk::{WalkNext, WalkOrder, WalkStep, normalized};
use esker_imd::{IndexedReader, entry};

use super::listing_format::{EntryCounts, ListingFormat, SortOrder};
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::output::CommandProblems;
use crate::text;
use crate::users::UserNames;

/// Directories with more entries are not counted, as in a mount.
const COUNTED_MAX: usize = 1 << 16;

/// List directories
///
/// Prints one entry per line; for an indexed directory its keys, in stored order, unless -l or -d
/// asks for the entry itself. The size of a directory is the number of its entries, and its link
/// count is 2 plus one for each subdirectory, as in a mount; they are - and 1 if the directory
/// cannot be listed or has too many entries. In stored order (--sort none) a directory is not held in
/// memory. Times are UTC. In a pipe, names are written byte by
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
    #[command(flatten)]
    format: ListingFormat,
}

/// State for listing a location.
struct ListingNeeds<'a> {
    format: &'a ListingFormat,
    context: &'a CommandContext,
    users: UserNames,
    problems: CommandProblems,
}

impl ListCommand {
    /// Lists.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let repository = context.repository()?;
        let users = self.format.users();
        let problems = CommandProblems::default();
        let listing = ListingNeeds { format: &self.format, context, users, problems };
        let views = context.views(&repository, &self.locations)?;
        for (index, (location, view)) in views.into_iter().enumerate() {
            self.format.head(&context.out, &self.locations, index)?;
            listing.problems.pass(context, location, listing.location(&view, location))?;
        }
        Ok(listing.problems.exit_code())
    }
}

impl ListingNeeds<'_> {
    fn location(&self, view: &Namespace, location: &StackPath) -> Result<()> {
        let path = normalized(&location.path);
        if self.format.recursive {
            return self.tree(view, location, &path);
        }
        if let Some(key) = entry::find_key(view, &location.path)? {
            let (inode, _) = key.key_file(&view.layers().source().store)?;
            return self.entry(view, &path, &path, &inode);
        }
        let follow = if self.format.directory || self.format.long {
            FollowLinks::No
        } else {
            FollowLinks::Yes
        };
        let found = view.find(&location.path, follow)?;
        let parts = indexed::parts_of(&found.inode);
        if !parts.is_empty() && !self.format.directory && !self.format.long {
            view.identity().check(READ, &found.inode, &path)?;
            return self.keys(view, &path, &parts);
        }
        if self.format.directory || !found.inode.is_directory() {
            return self.entry(view, &path, &path, &found.inode);
        }
        let dir = view.dir(&location.path)?;
        let parent = if path == b"/" { Vec::new() } else { path };
        let mut cursor = DirCursor::default();
        let page_entries = if self.format.order() == SortOrder::None { 1024 } else { usize::MAX };
        loop {
            let entries = view.read_dir(&dir, &cursor, page_entries);
            let mut entries = entries?;
            let is_last = entries.len() < page_entries;
            if let Some(last) = entries.last() {
                cursor = DirCursor::after(&last.name);
            }
            entries.retain(|entry| self.format.lists(&entry.name));
            self.format
                .sort(&mut entries, |entry| (&entry.name, entry.inode.size, entry.inode.mtime_ns));
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

    fn tree(&self, view: &Namespace, location: &StackPath, path: &[u8]) -> Result<()> {
        let order = if self.format.order() == SortOrder::None {
            WalkOrder::Stored
        } else {
            WalkOrder::Name
        };
        view.traverse(path, FollowLinks::Yes, order, &mut |step| match step {
            WalkStep::Entry(visit) => {
                if visit.depth > 0 && !self.format.lists(visit.name()) {
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
        let counts = || match inode.is_directory() {
            true => directory_counts(view, path).unwrap_or((1, None)),
            false => (inode.nlink, None),
        };
        self.format.print((out, &self.users), (name, inode), counts)
    }
}

/// Number of links and of entries of the directory at `path`; the entries are not counted beyond
/// `COUNTED_MAX`.
fn directory_counts(view: &Namespace, path: &[u8]) -> Result<EntryCounts> {
    let dir = view.dir(path)?;
    let entries = view.read_dir(&dir, &DirCursor::default(), COUNTED_MAX + 1)?;
    if entries.len() > COUNTED_MAX {
        return Ok((1, None));
    }
    let directories = entries.iter().filter(|entry| entry.inode.is_directory()).count();
    let links = u32::try_from(directories + 2).expect("few entries");
    Ok((links, Some(entries.len())))
}
