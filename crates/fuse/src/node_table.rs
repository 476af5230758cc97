// SPDX-License-Identifier: Apache-2.0
//! Node table: the files behind the kernel's inode numbers, for as long as the kernel remembers
//! them.
//!
//! A number derives from the file's identity, so that it is the same at every mount: for a
//! directory the low half of its id, for a file `FileId::number`. Identities are longer than
//! numbers, so two files may want the same number. The later file gets another, recorded in
//! `displaced`, since the kernel must never mistake one file for another.
//!
//! Invariant: a number is in the table while the kernel's look-up count for it is above 0. The root
//! is always known, and not in the table. Concurrency: sharded by number. `displaced` is locked
//! under a shard's lock. No thread waits for a lock of a node under a shard's lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use esker_fs::inode::{DirId, FileId, FileKind};
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

/// The number of the root, which the protocol fixes.
pub(crate) const ROOT: u64 = 1;
/// Number of locks of the table: enough that a few threads rarely collide.
const SHARDS: usize = 64;

/// The part of a node that the table reads.
pub(crate) trait NumberedNode {
    /// Its inode number.
    fn number(&self) -> u64;
    /// Its identity.
    fn id(&self) -> u128;
    /// True if no program has it open. Waits for no lock: a node that is locked is in use.
    fn is_unused(&self) -> bool;
}

type Shard<N> = HashMap<u64, KnownNode<N>>;

struct KnownNode<N> {
    node: Arc<N>,
    /// The kernel's look-up count: look-ups reported, less those forgotten.
    lookups: u64,
}

/// All files that the kernel knows.
pub(crate) struct NodeTable<N> {
    root: Arc<N>,
    shards: Vec<Mutex<Shard<N>>>,
    /// Numbers of files whose preferred number was taken.
    displaced: Mutex<HashMap<u128, u64>>,
    displaced_count: AtomicUsize,
}

impl<N: NumberedNode> NodeTable<N> {
    /// A table of `root` alone.
    pub(crate) fn new(root: N) -> Self {
        Self {
            root: Arc::new(root),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            displaced: Mutex::default(),
            displaced_count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, Shard<N>> {
        self.shards[(number % SHARDS as u64) as usize].lock()
    }

    /// The node with this number; `None` if the kernel has never learned or has forgotten it.
    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<Arc<N>> {
        if number == ROOT {
            return Some(self.root.clone());
        }
        self.shard(number).get(&number).map(|known| known.node.clone())
    }

    /// The node of the file `id`, if the kernel knows it.
    pub(crate) fn find(&self, id: u128, kind: FileKind) -> Option<Arc<N>> {
        self.get(self.number(id, kind)).filter(|node| node.id() == id)
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

    /// The node of the file `id`, with one more kernel look-up; `make` makes it, with its number, if
    /// it is new.
    #[inline]
    pub(crate) fn intern_id(
        &self,
        id: u128,
        kind: FileKind,
        make: impl FnOnce(u64) -> N,
    ) -> Arc<N> {
        if kind == FileKind::Directory && id == DirId::ROOT.0 {
            return self.root.clone();
        }
        let mut number = self.number(id, kind);
        let mut is_displaced = false;
        loop {
            let mut shard = self.shard(number);
            match shard.get_mut(&number) {
                None => {
                    let node = Arc::new(make(number));
                    shard.insert(number, KnownNode { node: node.clone(), lookups: 1 });
                    if is_displaced {
                        self.displaced.lock().insert(id, number);
                        self.displaced_count.fetch_add(1, Ordering::Release);
                    }
                    return node;
                }
                Some(known) if known.node.id() == id => {
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
    pub(crate) fn forget(&self, number: u64, count: u64) -> Option<Arc<N>> {
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
            && self.displaced.lock().remove(&known.node.id()).is_some()
        {
            self.displaced_count.fetch_sub(1, Ordering::Release);
        }
        Some(known.node)
    }

    /// Number of files whose preferred number was taken.
    #[cfg(test)]
    pub(crate) fn displaced_count(&self) -> usize {
        self.displaced_count.load(Ordering::Relaxed)
    }

    /// True if no shard is locked.
    #[cfg(test)]
    pub(crate) fn is_unlocked(&self) -> bool {
        self.shards.iter().all(|shard| shard.try_lock().is_some())
    }

    /// Number of files that the kernel knows.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Numbers of closed files: up to one in `share` of all, in any order.
    pub(crate) fn unused(&self, share: usize) -> Vec<u64> {
        let of_shard = |shard: &Mutex<Shard<N>>| -> Vec<u64> {
            let shard = shard.lock();
            let closed = shard.values().filter(|known| known.node.is_unused());
            closed.take(shard.len().div_ceil(share)).map(|known| known.node.number()).collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// All nodes for which `is_so` returns true, which must not wait for a lock of a node. Cost:
    /// looks at every node.
    pub(crate) fn filtered(&self, is_so: impl Fn(&N) -> bool) -> Vec<Arc<N>> {
        let of_shard = |shard: &Mutex<Shard<N>>| -> Vec<Arc<N>> {
            let shard = shard.lock();
            let found = shard.values().filter(|known| is_so(&known.node));
            found.map(|known| known.node.clone()).collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
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
