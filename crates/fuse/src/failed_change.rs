// SPDX-License-Identifier: Apache-2.0
//! Failed change: a change of names that failed although readers see it. Nodes and the kernel's
//! caches follow such changes.
//!
//! At durability `always` a change can be in memory although it failed: the store had no room for
//! the log, or the sync returned an error. Readers see such a change, and the next sync makes it
//! durable. The kernel takes an error for "nothing has changed" and keeps its names for as long as
//! the mount allowed. A node that kept the old name would reach the file that gets this name next.
//!
//! Concurrency: the kernel still holds the directories of the request, so their names do not change
//! meanwhile. A thread sends the notifications, because the kernel handles one of a directory only
//! after it has got the answers to changes of that directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::Receiver;

use esker_base::{Error, Kind};
use esker_fs::inode::{Inode, NameKind};
use esker_fs::stack::dir::Dir;
use fuser::{Errno, INodeNo, Notifier};

use crate::link_count::SubdirCount;
use crate::mount_state::{MountState, is_of_store};
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
    fn is_at(&self, location: &NodeLocation) -> bool {
        matches!(location, NodeLocation::Name(dir, name)
            if **name == *self.name && dir.id() == self.dir.id())
    }
}

impl MountState {
    /// The error number of a change of `names` that failed with `error`. If readers may see the
    /// change, updates the nodes of these names, and makes the kernel look the names up again. The
    /// caller holds no lock of a node.
    pub(crate) fn failed_change(&self, error: &Error, names: &[ChangedName]) -> Errno {
        if is_refusal(error.kind()) {
            return self.errno(error);
        }
        for name in names {
            // A recount is due even if the kernel knows no name in it.
            *name.parent.directories.lock() = SubdirCount::Unknown;
            // The thread ends with the mount, and the kernel's caches end with it.
            let _ = self.stale_names.send((name.parent.number, name.name.into()));
        }
        if let Some(found) = self.find_all(names) {
            self.update_locations(names, &found);
        }
        self.errno(error)
    }

    /// The inodes that readers find at `names`; `None` if some look-up fails, so that this is
    /// unknown.
    fn find_all(&self, names: &[ChangedName]) -> Option<Vec<Option<Inode>>> {
        let find =
            |name: &ChangedName| match self.view.namespace().lookup(name.dir, name.name, false) {
                Ok(inode) => Some(Some(inode)),
                Err(error) if error.kind() == Kind::NotFound => Some(None),
                Err(_) => None,
            };
        names.iter().map(find).collect()
    }

    /// Sets the places of the nodes of `names` to where the files were `found`. Nodes that were at
    /// one of the names, and are at none now, are gone.
    fn update_locations(&self, names: &[ChangedName], found: &[Option<Inode>]) {
        let affected = self.nodes.located(|location| names.iter().any(|name| name.is_at(location)));
        for node in affected {
            if !found.iter().flatten().any(|inode| inode.id == node.id) {
                let gone = self.removed_inode(&node);
                *node.location.lock() = NodeLocation::Gone(Box::new(gone));
            }
        }
        for (name, inode) in names.iter().zip(found) {
            if let Some(inode) = inode {
                self.found_at(inode, name);
            }
        }
    }

    /// Records the location of the file `inode`, if the kernel knows it. Handles of directories
    /// follow moves themselves.
    fn found_at(&self, inode: &Inode, at: &ChangedName) {
        let Some(kind) = inode.kind().filter(|_| !inode.is_directory()) else { return };
        let Some(node) = self.nodes.find(inode.id, kind) else { return };
        *node.location.lock() = match inode.nlink {
            0 | 1 => NodeLocation::Name(at.dir.clone(), at.name.into()),
            _ => self.link_location(inode),
        };
    }

    /// The inode of `node` once its last name is gone.
    fn removed_inode(&self, node: &KernelNode) -> Inode {
        let open = self.open_inode(node).ok().flatten();
        let mut inode =
            open.unwrap_or_else(|| Inode::new(NameKind::Is(node.kind), 0, self.now_ns()));
        (inode.id, inode.nlink) = (node.id, 0);
        inode
    }
}

/// True if a change that failed like this was refused before readers could see it. The session has
/// the superuser's identity, so only the store denies anything.
fn is_refusal(kind: Kind) -> bool {
    !is_of_store(kind) && !matches!(kind, Kind::Denied | Kind::Conflict)
}

/// Makes the kernel look up again each of the `names`, until their sender is dropped.
pub(crate) fn expire_names(notifier: &Notifier, names: &Receiver<StaleName>) {
    for (parent, name) in names {
        // It may know neither the name nor the directory.
        let _ = notifier.inval_entry(INodeNo(parent), OsStr::from_bytes(&name));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::store::{FaultStore, MemoryStore};
    use esker_fs::inode::FileKind;
    use esker_fuse_ring::AttrChanges;

    use super::*;
    use crate::make::{Caller, CreateRequest};
    use crate::test_state::state_of_session;

    /// Symptom: after an `unlink` that failed because the store did not answer, the file had no
    /// mode and no links, and a `chmod` that succeeded was lost. Cause: the node counted as gone
    /// before its name was looked up, which failed as well. Fix: nodes keep their places unless all
    /// look-ups succeed.
    #[test]
    fn a_file_stays_where_it_is_while_the_store_does_not_answer() {
        let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let (state, session) = state_of_session(store.clone());
        let request = CreateRequest::new(FileKind::File, 0o640);
        state.make(Caller { uid: 0, gid: 0 }, 1, b"f", &request).expect("made");
        session.flush().expect("flush");
        store.fail_one_in(1, Kind::Unavailable);
        state.unlink(1, b"f").expect_err("the store does not answer");
        store.fail_one_in(0, Kind::Unavailable);
        let lookup = || state.lookup(1, b"f").expect("the store answers").expect("it is there");
        let node = state.node(lookup().ino.0).expect("known");
        let shown = state.attributes(&node).expect("attributes");
        assert_eq!((shown.perm, shown.nlink), (0o640, 1));
        let wanted = AttrChanges { mode: Some(0o600), ..AttrChanges::default() };
        state.change(&node, &wanted, false).expect("changed");
        assert_eq!(lookup().perm, 0o600);
    }
}
