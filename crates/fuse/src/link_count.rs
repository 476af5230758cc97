// SPDX-License-Identifier: Apache-2.0
//! Link count: a directory has 2 links, and one for each subdirectory.
//!
//! Records do not store them, since a directory may have entries in several bases that do not know
//! of each other. A directory is counted by listing it when the kernel first asks for its
//! attributes; from then on its node maintains the count. A directory created in this mount is
//! known to be empty. A directory with more than [`ENTRIES_MAX`] entries is not counted and shows
//! one link, as ext4 does beyond 64,998 subdirectories; programs take that for "unknown".
//!
//! Concurrency: a node's count is locked while names of subdirectories change, and while it is
//! counted, so that no change is missed or counted twice. The counts of two nodes are locked in the
//! order of their numbers, before any lock of the session.

use esker_fs::inode::{FileKind, Inode};
use fuser::{Errno, FileAttr};
use parking_lot::MutexGuard;

use crate::attributes::ListedAttributes;
use crate::mount_state::MountState;
use crate::node_location::NodeLocation;
use crate::nodes::KernelNode;

/// Directories with more entries are not counted: a count of this many takes about 10 ms.
const ENTRIES_MAX: u32 = 1 << 16;

/// Number of subdirectories of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SubdirCount {
    /// Not counted yet.
    #[default]
    Unknown,
    /// Too many entries to count.
    Many,
    Counted(u32),
}

/// The locked counts of the directories in which a name changes; only one if both are the same.
pub(crate) struct LockedCounts<'a> {
    from: MutexGuard<'a, SubdirCount>,
    to: Option<MutexGuard<'a, SubdirCount>>,
}

impl SubdirCount {
    /// Adds `by`, if the count is known.
    pub(crate) fn change(&mut self, by: i32) {
        if let Self::Counted(count) = self {
            *count = count.saturating_add_signed(by);
        }
    }

    fn links(self) -> u32 {
        match self {
            Self::Counted(count) => count.saturating_add(2),
            Self::Unknown | Self::Many => 1,
        }
    }
}

impl<'a> LockedCounts<'a> {
    /// Locks the counts of `from` and `to`.
    pub(crate) fn lock(from: &'a KernelNode, to: &'a KernelNode) -> Self {
        if from.number == to.number {
            return Self { from: from.directories.lock(), to: None };
        }
        if from.number < to.number {
            let from = from.directories.lock();
            return Self { from, to: Some(to.directories.lock()) };
        }
        let to = to.directories.lock();
        Self { from: from.directories.lock(), to: Some(to) }
    }

    /// Records that `count` subdirectories moved from `from` to `to`.
    pub(crate) fn moved(&mut self, count: i32) {
        if let Some(to) = &mut self.to {
            self.from.change(-count);
            to.change(count);
        }
    }

    /// Records that `count` subdirectories of `to` were removed.
    pub(crate) fn removed(&mut self, count: i32) {
        self.to.as_mut().unwrap_or(&mut self.from).change(-count);
    }
}

impl MountState {
    /// The attributes for the kernel of `node`, whose inode is `inode`.
    pub(crate) fn attributes_with_links(
        &self,
        node: &KernelNode,
        inode: &Inode,
    ) -> Result<FileAttr, Errno> {
        let attributes = ListedAttributes::of(self.view.namespace(), inode);
        self.shown_as(node, attributes.map_err(|error| self.errno(&error))?)
    }

    /// The attributes for the kernel of `node`, from `attributes`.
    pub(crate) fn shown_as(
        &self,
        node: &KernelNode,
        mut attributes: ListedAttributes,
    ) -> Result<FileAttr, Errno> {
        if attributes.kind != FileKind::Directory {
            return Ok(attributes.file_attr(node.number));
        }
        // A removed directory has no links, which its inode says.
        let location = node.location.lock().clone();
        if let NodeLocation::Dir(dir) = location {
            let mut directories = node.directories.lock();
            if *directories == SubdirCount::Unknown {
                let counted = self.view.namespace().count_directories(&dir, ENTRIES_MAX);
                let counted = counted.map_err(|error| self.errno(&error))?;
                *directories = counted.map_or(SubdirCount::Many, SubdirCount::Counted);
            }
            attributes.nlink = directories.links();
        }
        Ok(attributes.file_attr(node.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_has_one_link_and_stays_unknown() {
        let mut counted = SubdirCount::Counted(0);
        assert_eq!(counted.links(), 2);
        counted.change(1);
        assert_eq!(counted, SubdirCount::Counted(1));
        for mut unknown in [SubdirCount::Unknown, SubdirCount::Many] {
            let before = unknown;
            unknown.change(-1);
            assert_eq!((unknown, unknown.links()), (before, 1));
        }
    }
}
