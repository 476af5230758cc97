//! Link counts of directories: 2, and one for each directory in it.
//!
//! Records do not have them: a directory may have entries in several bases, of which none knows the
//! others. A directory is counted when the kernel is first told of it, by listing it, and from then
//! on its node keeps the count. One that was made in this mount is known to be empty. A directory
//! with more than [`ENTRIES_MAX`] entries is not counted and has one link, as ext4 shows those with
//! more than 64,998 directories; programs take that for "not known".
//!
//! Concurrency: a node's count is locked while names of directories in it change, and while it is
//! counted, so that no change is missed or counted twice; of two nodes that with the lower number
//! first. Taken before any lock of the session.

use esker_fs::inode::{FileKind, Inode};
use fuser::{Errno, FileAttr};
use parking_lot::MutexGuard;

use crate::attributes::Attributes;
use crate::front::Front;
use crate::nodes::Node;
use crate::place::Place;

/// A directory with more entries is not counted: looking at so many takes about 10 ms.
const ENTRIES_MAX: u32 = 1 << 16;

/// How many directories are in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Directories {
    /// Nobody has asked yet.
    #[default]
    Unknown,
    /// Too many entries to count.
    Many,
    Counted(u32),
}

/// The counts of the directories in which a name changes, locked; one if both are the same.
pub(crate) struct Counts<'a> {
    from: MutexGuard<'a, Directories>,
    to: Option<MutexGuard<'a, Directories>>,
}

impl Directories {
    /// One more directory, or one less, or neither.
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

impl<'a> Counts<'a> {
    /// Locks the counts of `from` and `to`.
    pub(crate) fn lock(from: &'a Node, to: &'a Node) -> Self {
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

    /// So many more directories in `to`, and so many less in `from`.
    pub(crate) fn moved(&mut self, count: i32) {
        if let Some(to) = &mut self.to {
            self.from.change(-count);
            to.change(count);
        }
    }

    /// So many directories less in `to`.
    pub(crate) fn removed(&mut self, count: i32) {
        self.to.as_mut().unwrap_or(&mut self.from).change(-count);
    }
}

impl Front {
    /// What the kernel is told of `node`, whose inode is `inode`.
    pub(crate) fn shown(&self, node: &Node, inode: &Inode) -> Result<FileAttr, Errno> {
        let attributes = Attributes::of(&self.view, inode);
        self.shown_as(node, attributes.map_err(|error| self.errno(&error))?)
    }

    /// What the kernel is told of `node`, which has these attributes.
    pub(crate) fn shown_as(
        &self,
        node: &Node,
        mut attributes: Attributes,
    ) -> Result<FileAttr, Errno> {
        if attributes.kind != FileKind::Directory {
            return Ok(attributes.shown(node.number));
        }
        // One that was removed has no links, and says so itself.
        let place = node.place.lock().clone();
        if let Place::Dir(dir) = place {
            let mut directories = node.directories.lock();
            if *directories == Directories::Unknown {
                let counted = self.view.count_directories(&dir, ENTRIES_MAX);
                let counted = counted.map_err(|error| self.errno(&error))?;
                *directories = counted.map_or(Directories::Many, Directories::Counted);
            }
            attributes.nlink = directories.links();
        }
        Ok(attributes.shown(node.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_has_one_link_and_stays_unknown() {
        let mut counted = Directories::Counted(0);
        assert_eq!(counted.links(), 2);
        counted.change(1);
        assert_eq!(counted, Directories::Counted(1));
        for mut unknown in [Directories::Unknown, Directories::Many] {
            let before = unknown;
            unknown.change(-1);
            assert_eq!((unknown, unknown.links()), (before, 1));
        }
    }
}
