// SPDX-License-Identifier: Apache-2.0
//! Failed changes of names that readers see: nodes and the kernel's caches follow them.
//!
//! At durability `always` a change can be in memory although it failed: the store had no room for the
//! log, or the sync returned an error. Readers see such a change, and the next sync makes it
//! durable. The kernel takes an error for "nothing has changed" and keeps its names for as long as
//! the mount allowed. A node that kept the old name would reach the file that gets this name next.
//!
//! Concurrency: the kernel still holds the directories of the request, so their names do not change
//! meanwhile. A thread sends the notifications, because the kernel handles one of a directory only
//! after it has got the answers to changes of that directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use esker_base::{Error, Kind};
use esker_fs::dir::Dir;
use esker_fs::inode::{Inode, NameKind};
use fuser::{Errno, INodeNo, Notifier};

use crate::front::MountFront;
use crate::link_count::SubdirCount;
use crate::node_location::NodeLocation;
use crate::nodes::KernelNode;

/// A name that the kernel may remember wrongly: the number of its directory, and the name.
pub(crate) type StaleName = (u64, Box<[u8]>);

/// A name that a change was to make, move or remove.
#[derive(Clone, Copy)]
pub(crate) struct ChangedName<'a> {
    pub(crate) parent: &'a KernelNode,
    pub(crate) dir: &'a Dir,
    pub(crate) name: &'a [u8],
}

impl ChangedName<'_> {
    fn is_place(&self, place: &NodeLocation) -> bool {
        matches!(place, NodeLocation::Name(dir, name)
            if **name == *self.name && dir.id() == self.dir.id())
    }
}

impl MountFront {
    /// The error number of a change of `names` that failed with `error`. If readers may see the
    /// change, updates the nodes of these names, and makes the kernel look the names up again. The
    /// caller holds no lock of a node.
    pub(crate) fn failed_change(&self, error: &Error, names: &[ChangedName]) -> Errno {
        if is_refusal(error.kind()) {
            return self.errno(error);
        }
        let moved_away = self.nodes.placed(|place| names.iter().any(|name| name.is_place(place)));
        for node in moved_away {
            let gone = self.removed_inode(&node);
            *node.place.lock() = NodeLocation::Gone(Box::new(gone));
        }
        for name in names {
            // A recount is due even if the kernel knows no name in it.
            *name.parent.directories.lock() = SubdirCount::Unknown;
            if let Ok(inode) = self.view.lookup(name.dir, name.name, false) {
                self.found_at(&inode, name);
            }
            let stale = (name.parent.number, name.name.into());
            // The thread ends with the mount, and the kernel's caches end with it.
            let _ = self.stale_names.send(stale);
        }
        self.errno(error)
    }

    /// Records the place of the file `inode`, if the kernel knows it. Handles of directories follow
    /// moves themselves.
    fn found_at(&self, inode: &Inode, at: &ChangedName) {
        let Some(kind) = inode.kind().filter(|_| !inode.is_directory()) else { return };
        let Some(node) = self.nodes.find(inode.id, kind) else { return };
        *node.place.lock() = match inode.nlink {
            0 | 1 => NodeLocation::Name(at.dir.clone(), at.name.into()),
            _ => self.link_place(inode),
        };
    }

    /// The inode of `node` once its last name is gone.
    fn removed_inode(&self, node: &Arc<KernelNode>) -> Inode {
        let open = self.open_inode(node).ok().flatten();
        let mut inode =
            open.unwrap_or_else(|| Inode::new(NameKind::Is(node.kind), 0, self.now_ns()));
        (inode.id, inode.nlink) = (node.id, 0);
        inode
    }
}

/// True if a change that failed like this was refused before readers could see it.
fn is_refusal(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::NoSpace
            | Kind::Unavailable
            | Kind::DeviceFailed
            | Kind::Denied
            | Kind::ReadOnly
            | Kind::TooManyOpenFiles
            | Kind::Corrupt
            | Kind::Conflict
            | Kind::Fenced
            | Kind::Closed
    )
}

/// Makes the kernel look up again each of the `names`, until their sender is dropped.
pub(crate) fn expire_names(notifier: &Notifier, names: &Receiver<StaleName>) {
    for (parent, name) in names {
        // It may know neither the name nor the directory.
        let _ = notifier.inval_entry(INodeNo(parent), OsStr::from_bytes(&name));
    }
}
