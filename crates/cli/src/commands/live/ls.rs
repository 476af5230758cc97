// SPDX-License-Identifier: Apache-2.0
//! `esker live ls`: lists directories of live namespaces.

use std::process::ExitCode;

use clap::Args;
use esker_base::{Kind, Result};
use esker_fs::inode::FileKind;
use esker_fs::stack::namespace::FollowLinks;
use esker_fs::traversal::walk::normalized;
use esker_live::LiveTree;
use esker_live::client::{LiveDir, LiveEntry, LivePlace};

use super::trees::{LiveTrees, inode_at, seats_of};
use crate::commands::read::listing_format::ListingFormat;
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::output::CommandProblems;
use crate::text;
use crate::users::UserNames;

/// List directories of a live namespace
///
/// Prints one entry per line, as `esker ls` does. The size of a directory is -, and its link count 1.
#[derive(Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  esker live ls run:/results
  esker live ls -lR run:/
  esker live ls -d --json run:/results | jq .seats     which servers have it"
)]
pub struct LiveListArguments {
    /// Directories, or files
    #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
    paths: Vec<StackPath>,
    #[command(flatten)]
    format: ListingFormat,
}

/// State of a command that lists.
struct LiveListing<'a> {
    format: &'a ListingFormat,
    context: &'a CommandContext,
    users: UserNames,
    problems: CommandProblems,
}

/// A directory whose entries are being listed.
struct ListedDirectory {
    dir: LiveDir,
    path: Vec<u8>,
    left: std::vec::IntoIter<LiveEntry>,
}

impl LiveListArguments {
    /// Lists.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let (users, problems) = (self.format.users(), CommandProblems::default());
        let listing = LiveListing { format: &self.format, context, users, problems };
        let mut trees = LiveTrees::new(context)?;
        for (index, location) in self.paths.iter().enumerate() {
            self.format.head(&context.out, &self.paths, index)?;
            let listed = trees.of(location).and_then(|tree| listing.location(tree, location));
            let is_unserved = listed.as_ref().is_err_and(|error| error.kind() == Kind::Unavailable);
            listing.problems.pass(context, location, listed)?;
            if is_unserved {
                break;
            }
        }
        trees.leave();
        Ok(listing.problems.exit_code())
    }
}

impl LiveListing<'_> {
    fn location(&self, tree: &mut LiveTree, location: &StackPath) -> Result<()> {
        let path = normalized(&location.path);
        let is_itself = self.format.directory || self.format.long;
        let follow = if is_itself { FollowLinks::No } else { FollowLinks::Yes };
        let place = tree.resolve(&location.path, follow)?;
        if self.format.directory || place.attributes.kind != FileKind::Directory {
            return self.entry(tree, &path, &path, &place);
        }
        let dir = match place.name.is_empty() {
            true => place.dir,
            false => place.dir.child(&place.name, &place.attributes),
        };
        let mut open = vec![self.directory(tree, dir, path)?];
        while let Some(listed) = open.last_mut() {
            let Some(LiveEntry { name, attributes }) = listed.left.next() else {
                open.pop();
                continue;
            };
            let path = match &listed.path[..] {
                b"/" => [b"/", &name[..]].concat(),
                parent => [parent, b"/", &name].concat(),
            };
            let place = LivePlace { dir: listed.dir.clone(), name, attributes };
            let shown = if self.format.recursive { &path } else { &place.name };
            self.entry(tree, &path, shown, &place)?;
            if !self.format.recursive || place.attributes.kind != FileKind::Directory {
                continue;
            }
            match self.directory(
                tree,
                place.dir.child(&place.name, &place.attributes),
                path.clone(),
            ) {
                Ok(inner) => open.push(inner),
                Err(error) if error.kind() == Kind::Unavailable => return Err(error),
                // Others may remove and move directories meanwhile.
                Err(error) => self.problems.report(&location.stack, &path, &error),
            }
        }
        Ok(())
    }

    /// Reads a directory, in the order in which it is shown.
    fn directory(
        &self,
        tree: &mut LiveTree,
        dir: LiveDir,
        path: Vec<u8>,
    ) -> Result<ListedDirectory> {
        // Names and kinds need no other server.
        let mut entries = match self.context.out.is_json() || self.format.needs_attributes() {
            true => tree.list(&dir)?,
            false => tree.list_as_named(&dir)?,
        };
        entries.retain(|entry| self.format.lists(&entry.name));
        self.format.sort(&mut entries, |entry| {
            (&entry.name, entry.attributes.size, entry.attributes.mtime_ns)
        });
        Ok(ListedDirectory { dir, path, left: entries.into_iter() })
    }

    fn entry(
        &self,
        tree: &mut LiveTree,
        path: &[u8],
        name: &[u8],
        place: &LivePlace,
    ) -> Result<()> {
        let out = &self.context.out;
        if !out.is_json() && !self.format.needs_attributes() {
            out.name(name)?;
            return out.raw(b"\n");
        }
        let inode = match inode_at(tree, place) {
            // A symbolic link that was removed or replaced since it was listed.
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Invalid) => return Ok(()),
            found => found?,
        };
        if out.is_json() {
            let mut object = text::entry(path, &inode);
            object.insert("seats".into(), seats_of(place).into());
            return out.json(object);
        }
        self.format.print((out, &self.users), (name, &inode), || (inode.nlink, None))
    }
}
