// SPDX-License-Identifier: Apache-2.0
//! Nodes: the files behind the kernel's inode numbers, for as long as the kernel remembers them.
//!
//! A number derives from the file's identity, so that it is the same at every mount: for a
//! directory the low half of its id, for a file `FileId::number`. Identities are longer than
//! numbers, so two files may want the same number. The later file gets another, recorded in
//! `displaced`, since the kernel must never mistake one file for another.
//!
//! Invariant: a number is in the table while the kernel's look-up count for it is above 0. The root
//! is always known, and not in the table. Concurrency: sharded by number. `displaced` is locked
//! under a shard's lock. A node's `file` is held while the session opens the file, and shards and
//! the node's `location`, leaves, are locked under it; so no thread waits for `file` under a
//! shard's lock. `directories` follows the rules of `link_count`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use esker_fs::inode::{DirId, FileId, FileKind, Inode};
use esker_fs::stack::dir::Dir;
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

use crate::file::OpenedFile;
use crate::link_count::SubdirCount;
use crate::node_location::NodeLocation;

/// The number of the root, which the protocol fixes.
pub(crate) const ROOT: u64 = 1;
/// Number of locks of the table: enough that a few threads rarely collide.
const SHARDS: usize = 64;

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

struct KnownNode {
    node: Arc<KernelNode>,
    /// The kernel's look-up count: look-ups reported, less those forgotten.
    lookups: u64,
}

/// All files that the kernel knows.
pub(crate) struct NodeTable {
    root: Arc<KernelNode>,
    shards: Vec<Mutex<HashMap<u64, KnownNode>>>,
    /// Numbers of files whose preferred number was taken.
    displaced: Mutex<HashMap<u128, u64>>,
    displaced_count: AtomicUsize,
}

impl NodeTable {
    pub(crate) fn new(root: NodeLocation) -> Self {
        Self {
            root: Arc::new(KernelNode::new(ROOT, (0, FileKind::Directory), root)),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            displaced: Mutex::default(),
            displaced_count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<u64, KnownNode>> {
        self.shards[(number % SHARDS as u64) as usize].lock()
    }

    /// The node with this number; `None` if the kernel has never learned or has forgotten it.
    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<Arc<KernelNode>> {
        if number == ROOT {
            return Some(self.root.clone());
        }
        self.shard(number).get(&number).map(|known| known.node.clone())
    }

    /// The node of the file `id`, if the kernel knows it.
    pub(crate) fn find(&self, id: u128, kind: FileKind) -> Option<Arc<KernelNode>> {
        self.get(self.number(id, kind)).filter(|node| node.id == id)
    }

    /// The number of the file; for an unknown file, its preferred number, which may be taken by
    /// then.
    #[inline]
    pub(crate) fn number(&self, id: u128, kind: FileKind) -> u64 {
        if self.displaced_count.load(Ordering::Acquire) > 0
            && let Some(number) = self.displaced.lock().get(&id)
        {
            return *number;
        }
        number_of(id, kind)
    }

    /// The node of `inode`, with one more kernel look-up; `location` gives its location if it is
    /// new.
    #[inline]
    pub(crate) fn intern(
        &self,
        inode: &Inode,
        location: impl FnOnce() -> NodeLocation,
    ) -> Arc<KernelNode> {
        self.intern_id(inode.id, inode.kind().unwrap_or(FileKind::File), location)
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
        self.intern_id(id, kind, || NodeLocation::Name(dir.clone(), name.into()))
    }

    fn intern_id(
        &self,
        id: u128,
        kind: FileKind,
        location: impl FnOnce() -> NodeLocation,
    ) -> Arc<KernelNode> {
        if kind == FileKind::Directory && id == DirId::ROOT.0 {
            return self.root.clone();
        }
        let mut number = self.number(id, kind);
        let mut is_displaced = false;
        loop {
            let mut shard = self.shard(number);
            match shard.get_mut(&number) {
                None => {
                    let node = Arc::new(KernelNode::new(number, (id, kind), location()));
                    shard.insert(number, KnownNode { node: node.clone(), lookups: 1 });
                    if is_displaced {
                        self.displaced.lock().insert(id, number);
                        self.displaced_count.fetch_add(1, Ordering::Release);
                    }
                    return node;
                }
                Some(known) if known.node.id == id => {
                    known.lookups += 1;
                    return known.node.clone();
                }
                Some(_) => {
                    is_displaced = true;
                    number = usable(number.wrapping_add(0x9e37_79b9_7f4a_7c15));
                }
            }
        }
    }

    /// Subtracts `count` from the kernel's look-ups of `number`. Returns the node if the kernel has
    /// forgotten it.
    pub(crate) fn forget(&self, number: u64, count: u64) -> Option<Arc<KernelNode>> {
        if number == ROOT {
            return None;
        }
        let mut shard = self.shard(number);
        let known = shard.get_mut(&number)?;
        known.lookups = known.lookups.saturating_sub(count);
        if known.lookups > 0 {
            return None;
        }
        let known = shard.remove(&number)?;
        if self.displaced_count.load(Ordering::Acquire) > 0
            && self.displaced.lock().remove(&known.node.id).is_some()
        {
            self.displaced_count.fetch_sub(1, Ordering::Release);
        }
        Some(known.node)
    }

    /// Number of files that the kernel knows.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Numbers of closed files: up to one in `share` of all, in any order.
    pub(crate) fn unused(&self, share: usize) -> Vec<u64> {
        let of_shard = |shard: &Mutex<HashMap<u64, KnownNode>>| -> Vec<u64> {
            let shard = shard.lock();
            // An opener holds this lock while it reads the store.
            let is_closed =
                |known: &&KnownNode| known.node.file.try_lock().is_some_and(|file| file.is_none());
            let closed = shard.values().filter(is_closed);
            closed.take(shard.len().div_ceil(share)).map(|known| known.node.number).collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// The nodes at locations for which `is_so` returns true. Cost: looks at every node.
    pub(crate) fn located(&self, is_so: impl Fn(&NodeLocation) -> bool) -> Vec<Arc<KernelNode>> {
        let of_shard = |shard: &Mutex<HashMap<u64, KnownNode>>| -> Vec<Arc<KernelNode>> {
            let shard = shard.lock();
            let found = shard.values().filter(|known| is_so(&known.node.location.lock()));
            found.map(|known| known.node.clone()).collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Every open file.
    pub(crate) fn open(&self) -> Vec<Arc<KernelNode>> {
        let of_shard = |shard: &Mutex<HashMap<u64, KnownNode>>| -> Vec<Arc<KernelNode>> {
            shard.lock().values().map(|known| known.node.clone()).collect()
        };
        let known = self.shards.iter().flat_map(of_shard);
        // An opener holds this lock while it looks up nodes.
        known.filter(|node| node.file.lock().is_some()).collect()
    }
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

/// The number that a file would like to have.
fn number_of(id: u128, kind: FileKind) -> u64 {
    match kind {
        FileKind::Directory if id == DirId::ROOT.0 => ROOT,
        FileKind::Directory => usable(id as u64),
        _ => usable(FileId(id).number()),
    }
}

/// Numbers that the protocol or programs give a meaning are not for files.
fn usable(number: u64) -> u64 {
    if number <= ROOT || number == u64::MAX { number ^ (1 << 63) ^ 2 } else { number }
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

    fn nodes() -> NodeTable {
        NodeTable::new(NodeLocation::Gone(Box::new(file(0))))
    }

    fn intern(nodes: &NodeTable, id: u128) -> Arc<KernelNode> {
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
        assert_eq!(nodes.displaced_count.load(Ordering::Relaxed), 1);
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
            let is_free = nodes.shards.iter().all(|shard| shard.try_lock().is_some());
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
