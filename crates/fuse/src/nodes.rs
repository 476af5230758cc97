// SPDX-License-Identifier: Apache-2.0
//! Nodes: the files of a mounted view that the kernel knows.
//!
//! Concurrency: a node's `file` is held while the session opens the file, and shards of the table
//! and the node's `location`, leaves, are locked under it. `directories` follows the rules of
//! `link_count`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_fs::inode::{FileKind, Inode};
use esker_fs::stack::dir::Dir;
use parking_lot::Mutex;

use crate::file::OpenedFile;
use crate::link_count::SubdirCount;
use crate::node_location::NodeLocation;
use crate::node_table::{NodeTable, NumberedNode, ROOT};

/// A file that the kernel knows.
#[derive(Debug)]
pub(crate) struct KernelNode {
    /// Its inode number.
    pub(crate) number: u64,
    /// Its identity.
    pub(crate) id: u128,
    pub(crate) kind: FileKind,
    pub(crate) location: Mutex<NodeLocation>,
    /// Its content, while it is open.
    pub(crate) file: Mutex<Option<OpenedFile>>,
    /// For a directory: the state of its link count.
    pub(crate) directories: Mutex<SubdirCount>,
    /// For a directory: true if the last file created in it got large.
    pub(crate) grows_large: AtomicBool,
    /// True if it certainly has no extended attributes.
    pub(crate) is_known_without_xattrs: AtomicBool,
}

impl KernelNode {
    fn new(number: u64, (id, kind): (u128, FileKind), location: NodeLocation) -> Self {
        Self {
            number,
            id,
            kind,
            location: Mutex::new(location),
            file: Mutex::default(),
            directories: Mutex::default(),
            grows_large: AtomicBool::new(false),
            is_known_without_xattrs: AtomicBool::new(false),
        }
    }
}

impl NumberedNode for KernelNode {
    fn number(&self) -> u64 {
        self.number
    }

    fn id(&self) -> u128 {
        self.id
    }

    fn is_unused(&self) -> bool {
        // An opener holds this lock while it reads the store.
        self.file.try_lock().is_some_and(|file| file.is_none())
    }
}

impl NodeTable<KernelNode> {
    /// A table of the root at `location` alone.
    pub(crate) fn of_root(location: NodeLocation) -> Self {
        Self::new(KernelNode::new(ROOT, (0, FileKind::Directory), location))
    }

    /// The node of `inode`, with one more kernel look-up; `location` gives its location if it is
    /// new.
    #[inline]
    pub(crate) fn intern(
        &self,
        inode: &Inode,
        location: impl FnOnce() -> NodeLocation,
    ) -> Arc<KernelNode> {
        let (id, kind) = (inode.id, inode.kind().unwrap_or(FileKind::File));
        self.intern_id(id, kind, |number| KernelNode::new(number, (id, kind), location()))
    }

    /// As [`NodeTable::intern`], for a file whose only name is `name` in `dir`.
    #[inline]
    pub(crate) fn intern_plain(
        &self,
        id: u128,
        kind: FileKind,
        dir: &Dir,
        name: &[u8],
    ) -> Arc<KernelNode> {
        let location = || NodeLocation::Name(dir.clone(), name.into());
        self.intern_id(id, kind, |number| KernelNode::new(number, (id, kind), location()))
    }

    /// The nodes at locations for which `is_so` returns true. Cost: looks at every node.
    pub(crate) fn located(&self, is_so: impl Fn(&NodeLocation) -> bool) -> Vec<Arc<KernelNode>> {
        self.filtered(|node| is_so(&node.location.lock()))
    }

    /// Every open file.
    pub(crate) fn open(&self) -> Vec<Arc<KernelNode>> {
        // An opener holds the lock of its file while it looks up nodes.
        let known = self.filtered(|_| true).into_iter();
        known.filter(|node| node.file.lock().is_some()).collect()
    }
}

#[cfg(test)]
mod tests {
    use esker_fs::inode::NameKind;

    use super::*;

    fn file(id: u128) -> Inode {
        let mut inode = Inode::new(NameKind::Is(FileKind::Directory), 0o755, 0);
        inode.id = id;
        inode
    }

    fn nodes() -> NodeTable<KernelNode> {
        NodeTable::of_root(NodeLocation::Gone(Box::new(file(0))))
    }

    fn intern(nodes: &NodeTable<KernelNode>, id: u128) -> Arc<KernelNode> {
        let inode = file(id);
        nodes.intern(&inode, || NodeLocation::Gone(Box::new(inode.clone())))
    }

    #[test]
    fn numbers_stay_until_they_are_forgotten_as_often_as_told() {
        let nodes = nodes();
        let number = intern(&nodes, 77).number;
        assert_eq!(intern(&nodes, 77).number, number);
        assert!(nodes.forget(number, 1).is_none());
        assert!(nodes.get(number).is_some());
        assert!(nodes.forget(number, 1).is_some());
        assert!(nodes.get(number).is_none());
        assert!(nodes.forget(number, 1).is_none());
    }

    #[test]
    fn two_files_never_share_a_number() {
        let nodes = nodes();
        // The low halves are equal, and 0 and 1 are reserved.
        let ids = [5, 5 | 1 << 64, 5 | 1 << 65, 1, 1 << 70, u128::from(u64::MAX)];
        let numbers: Vec<u64> = ids.iter().map(|id| intern(&nodes, *id).number).collect();
        let distinct: std::collections::BTreeSet<u64> = numbers.iter().copied().collect();
        assert_eq!(distinct.len(), ids.len());
        assert!(distinct.iter().all(|number| *number > ROOT && *number < u64::MAX));
        // A displaced file keeps its number after the other is forgotten.
        nodes.forget(numbers[0], 1);
        assert_eq!(intern(&nodes, ids[1]).number, numbers[1]);
        assert_eq!(nodes.find(ids[1], FileKind::Directory).expect("known").number, numbers[1]);
        // It is forgotten like any other.
        assert!(nodes.forget(numbers[1], 2).is_some());
        assert_eq!(nodes.displaced_count(), 1);
    }

    /// Symptom: a mount could stop for ever when it was unmounted while a file was being opened.
    /// Cause: a listing of open files waited for the file under the lock of its shard; the opener,
    /// which had the file, waited for the shard of the file's directory.
    /// Fix: the listing waits under no lock.
    #[test]
    fn open_files_are_listed_while_a_file_is_being_opened() {
        let nodes = nodes();
        let node = intern(&nodes, 77);
        let opening = node.file.lock();
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let nodes = &nodes;
            let listing = scope.spawn(move || {
                sender.send(rustix::thread::gettid()).expect("the test waits");
                nodes.open().len()
            });
            let thread = receiver.recv().expect("it begins").as_raw_nonzero();
            let stat = format!("/proc/self/task/{thread}/stat");
            let is_asleep = || {
                let stat = std::fs::read_to_string(&stat).expect("the thread is there");
                stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
            };
            // Until it waits for the file.
            while !is_asleep() {
                std::thread::yield_now();
            }
            let is_free = nodes.is_unlocked();
            drop(opening);
            assert_eq!(listing.join().expect("it ends"), 0);
            assert!(is_free, "a shard is locked while the file is waited for");
        });
    }

    #[test]
    fn the_root_is_never_forgotten() {
        let nodes = nodes();
        assert_eq!(intern(&nodes, 0).number, ROOT);
        assert!(nodes.forget(ROOT, u64::MAX).is_none());
        assert!(nodes.get(ROOT).is_some());
    }
}
