// SPDX-License-Identifier: Apache-2.0
//! Remove: removes and moves names, and updates the files behind them.

use std::sync::Arc;

use esker_base::Kind;
use esker_fs::inode::{FileKind, Inode};
use esker_fs::ops::{RenameFlags, RenameOutcome};
use esker_fs::stack::dir::Dir;
use fuser::Errno;

use crate::failed_change::ChangedName;
use crate::link_count::LockedCounts;
use crate::mount_state::MountState;
use crate::node_location::NodeLocation;
use crate::nodes::KernelNode;

impl MountState {
    pub(crate) fn unlink(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let session = self.session()?;
        let parent = self.node(parent)?;
        let dir = self.dir(&parent)?;
        let removed = session.unlink(&dir, name);
        self.record_change();
        let name = ChangedName { parent: &parent, dir: &dir, name };
        let inode = removed.map_err(|error| self.failed_change(&error, &[name]))?;
        self.lost_name(&inode);
        Ok(())
    }

    /// Removes a directory as the kernel sees it: an empty one, or an indexed one, whose keys
    /// cannot be removed one by one.
    pub(crate) fn rmdir(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let session = self.session()?;
        let parent = self.node(parent)?;
        let dir = self.dir(&parent)?;
        let mut count = parent.directories.lock();
        let removed = match session.rmdir(&dir, name) {
            Err(error) if error.kind() == Kind::NotADirectory => session.unlink(&dir, name),
            removed => removed,
        };
        self.record_change();
        if removed.is_ok() {
            count.change(-1);
        }
        drop(count);
        let name = ChangedName { parent: &parent, dir: &dir, name };
        let inode = removed.map_err(|error| self.failed_change(&error, &[name]))?;
        self.lost_name(&inode);
        Ok(())
    }

    /// Updates the node of `inode`, which lost a name and has `nlink` names left; open files stay
    /// usable.
    fn lost_name(&self, inode: &Inode) {
        if let Some(node) = self.nodes.find(inode.id, inode.kind().unwrap_or(FileKind::File)) {
            *node.location.lock() = match inode.nlink {
                0 => NodeLocation::Gone(Box::new(inode.clone())),
                // Also where fewer names were counted than there are.
                _ => self.link_location(inode),
            };
        }
    }

    /// Renames `name` in `parent` to `new_name` in `new_parent`.
    pub(crate) fn rename(
        &self,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let session = self.session()?;
        let (parent, new_parent) = (self.node(parent)?, self.node(new_parent)?);
        let (dir, new_dir) = (self.dir(&parent)?, self.dir(&new_parent)?);
        let mut counts = LockedCounts::lock(&parent, &new_parent);
        let renamed = session.rename((&dir, name), (&new_dir, new_name), flags);
        self.record_change();
        let renamed = match renamed {
            Ok(renamed) => renamed,
            Err(error) => {
                drop(counts);
                let from = ChangedName { parent: &parent, dir: &dir, name };
                let to = ChangedName { parent: &new_parent, dir: &new_dir, name: new_name };
                return Err(self.failed_change(&error, &[from, to]));
            }
        };
        // Two names of one file: nothing to do.
        let Some(RenameOutcome { moved, other }) = renamed else { return Ok(()) };
        let directories =
            |inode: &Inode| i32::from(inode.kind().is_some_and(FileKind::is_shown_as_directory));
        let back = other.as_ref().map_or(0, directories);
        match flags {
            RenameFlags::Exchange => counts.moved(directories(&moved) - back),
            _ => {
                counts.moved(directories(&moved));
                counts.removed(back);
            }
        }
        drop(counts);
        match other {
            Some(other) if flags == RenameFlags::Exchange => self.moved(&other, &dir, name),
            Some(replaced) => self.lost_name(&replaced),
            None => {}
        }
        self.moved(&moved, &new_dir, new_name);
        Ok(())
    }

    /// Records that the file `inode` is now at `name` in `dir`. Directory handles follow moves
    /// themselves.
    fn moved(&self, inode: &Inode, dir: &Dir, name: &[u8]) {
        let node: Option<Arc<KernelNode>> =
            self.nodes.find(inode.id, inode.kind().unwrap_or(FileKind::File));
        let Some(node) = node else { return };
        let mut location = node.location.lock();
        if let NodeLocation::Name(at, _) = &*location
            && at.id() != self.view.namespace().links().id()
        {
            *location = NodeLocation::Name(dir.clone(), name.into());
        }
    }
}
