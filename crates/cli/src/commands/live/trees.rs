// SPDX-License-Identifier: Apache-2.0
//! Trees: the live namespaces that the paths of a command are in, each connected to once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::process::ExitCode;

use esker_base::store::SharedStore;
use esker_base::{Kind, Result};
use esker_fs::inode::{FileKind, Inode, NameKind};
use esker_fs::stack::namespace::FollowLinks;
use esker_live::LiveTree;
use esker_live::client::LivePlace;

use super::{connect, live_name};
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::output::CommandProblems;

/// Connections to live namespaces by name.
pub struct LiveTrees {
    store: SharedStore,
    trees: BTreeMap<String, LiveTree>,
}

impl LiveTrees {
    /// No connection yet.
    pub fn new(context: &CommandContext) -> Result<Self> {
        Ok(Self { store: context.store()?, trees: BTreeMap::new() })
    }

    /// The live namespace that `path` is in.
    pub fn of(&mut self, path: &StackPath) -> Result<&mut LiveTree> {
        let name = live_name(path);
        match self.trees.entry(name.to_owned()) {
            Entry::Occupied(tree) => Ok(tree.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(connect(&self.store, name)?)),
        }
    }

    /// Runs `act` on the live namespace of `path`.
    pub fn act<T>(
        &mut self,
        path: &StackPath,
        act: impl FnOnce(&mut LiveTree) -> Result<T>,
    ) -> Result<T> {
        act(self.of(path)?).map_err(|error| path.in_error(error))
    }

    /// Ends the connections, once all answers are there.
    pub fn leave(self) {
        self.trees.into_values().for_each(LiveTree::leave);
    }
}

/// Runs `act` for each of `paths` in its live namespace, in order. Goes on after failures, each of which
/// it reports, unless servers do not answer.
pub fn for_each_path(
    context: &CommandContext,
    paths: &[StackPath],
    mut act: impl FnMut(&mut LiveTree, &StackPath) -> Result<()>,
) -> Result<ExitCode> {
    let (mut trees, problems) = (LiveTrees::new(context)?, CommandProblems::default());
    for path in paths {
        let done = trees.of(path).and_then(|tree| act(tree, path));
        let Err(error) = done else { continue };
        if context.out.reader_left() {
            return Err(error);
        }
        let is_unserved = error.kind() == Kind::Unavailable;
        problems.report_plain(&path.in_error(error));
        if is_unserved {
            // Each further one would wait as long.
            break;
        }
    }
    trees.leave();
    Ok(problems.exit_code())
}

/// True if `path` leads to a directory.
pub fn is_directory(tree: &mut LiveTree, path: &StackPath) -> Result<bool> {
    match tree.resolve(&path.path, FollowLinks::Yes) {
        Ok(place) => Ok(place.attributes.kind == FileKind::Directory),
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The file at `place` as an inode. Asks the server for the target of a symbolic link.
pub fn inode_at(tree: &mut LiveTree, place: &LivePlace) -> Result<Inode> {
    let attributes = &place.attributes;
    let content = match attributes.kind {
        FileKind::Symlink => tree.read_symlink(&place.dir, &place.name)?,
        _ => Vec::new(),
    };
    Ok(Inode {
        id: attributes.id,
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        nlink: attributes.nlink,
        rdev: attributes.rdev,
        size: attributes.size,
        atime_ns: attributes.atime_ns,
        mtime_ns: attributes.mtime_ns,
        ctime_ns: attributes.ctime_ns,
        content,
        ..Inode::new(NameKind::Is(attributes.kind), 0, 0)
    })
}

/// The seats that have the file at `place`; of a spread directory, all that have names in it.
pub fn seats_of(place: &LivePlace) -> Vec<u16> {
    let attributes = &place.attributes;
    if place.name.is_empty() {
        return place.dir.parts().map(|part| part.place.seat).collect();
    }
    match (attributes.kind, attributes.seat_file) {
        (FileKind::Directory, _) => {
            let dir = place.dir.child(&place.name, attributes);
            dir.parts().map(|part| part.place.seat).collect()
        }
        (_, Some(file)) => vec![file.seat],
        (_, None) => vec![place.dir.seat_of(&place.name)],
    }
}
