// SPDX-License-Identifier: Apache-2.0
//! Directory handle: state of an open directory that saves a session from reading it again, shared
//! by all its users.
//!
//! Times of a directory change with every create in it. They are kept here and written to its
//! record when the session syncs, flushes or publishes, as Linux does with `lazytime`. Until then
//! the session keeps the handle, even if all others are dropped.
//! Concurrency: attributes are atomics; `place` changes only under the session's structure lock.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use esker_base::{Error, Kind, Result};
use parking_lot::{Mutex, RwLock};

use crate::inode::{DirId, Inode};
use crate::stack::identity::{Identity, denied};
use crate::stack::path::check_name;

/// An open directory.
pub type Dir = Arc<DirNode>;

/// Directories whose records lack their latest times.
pub(crate) type TouchedDirs = Mutex<Vec<Dir>>;

/// State of an open directory. The fields that every create reads come first, in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct DirNode {
    id: DirId,
    mode: AtomicU32,
    /// Owner in the high half, group in the low.
    owner: AtomicU64,
    /// When an entry was last added or removed while the directory was open.
    mtime_ns: AtomicI64,
    /// True if the record lacks `mtime_ns`.
    is_touched: AtomicBool,
    is_removed: AtomicBool,
    /// True if this session made it where no layer below can have entries for it.
    is_absent_below: bool,
    /// Parent and name; `None` for the root.
    location: RwLock<Option<(Dir, Vec<u8>)>>,
    /// The list that keeps it while it is touched.
    touched: Weak<TouchedDirs>,
}

impl DirNode {
    pub(crate) fn new(
        inode: &Inode,
        location: Option<(Dir, Vec<u8>)>,
        is_absent_below: bool,
        touched: &Arc<TouchedDirs>,
    ) -> Dir {
        Arc::new(Self {
            id: inode.dir_id(),
            location: RwLock::new(location),
            mode: AtomicU32::new(inode.mode),
            owner: AtomicU64::new(u64::from(inode.uid) << 32 | u64::from(inode.gid)),
            mtime_ns: AtomicI64::new(0),
            is_touched: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
            is_absent_below,
            touched: Arc::downgrade(touched),
        })
    }

    /// Identity of the directory.
    #[must_use]
    pub fn id(&self) -> DirId {
        self.id
    }

    /// Permission bits.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    /// Owner and group.
    #[must_use]
    pub fn owner(&self) -> (u32, u32) {
        let owner = self.owner.load(Ordering::Relaxed);
        ((owner >> 32) as u32, owner as u32)
    }

    /// Parent, and name in it; `None` for the root.
    #[must_use]
    pub fn location(&self) -> Option<(Dir, Vec<u8>)> {
        self.location.read().clone()
    }

    pub(crate) fn set_location(&self, parent: Dir, name: Vec<u8>) {
        *self.location.write() = Some((parent, name));
    }

    pub(crate) fn set_attributes(&self, inode: &Inode) {
        self.mode.store(inode.mode, Ordering::Relaxed);
        self.owner.store(u64::from(inode.uid) << 32 | u64::from(inode.gid), Ordering::Relaxed);
    }

    pub(crate) fn is_absent_below(&self) -> bool {
        self.is_absent_below
    }

    /// True if `ancestor` is this directory or above it.
    pub(crate) fn is_within(&self, ancestor: DirId) -> bool {
        if self.id == ancestor {
            return true;
        }
        let mut above = self.parent();
        while let Some(dir) = above {
            if dir.id == ancestor {
                return true;
            }
            above = dir.parent();
        }
        false
    }

    pub(crate) fn parent(&self) -> Option<Dir> {
        self.location.read().as_ref().map(|(parent, _)| parent.clone())
    }

    pub(crate) fn set_removed(&self) {
        self.is_removed.store(true, Ordering::Relaxed);
    }

    /// Makes it usable again after it was removed and made again with its identity.
    pub(crate) fn set_made(&self) {
        self.is_removed.store(false, Ordering::Relaxed);
    }

    /// True if it was removed while it was open.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Relaxed)
    }

    /// Fails unless `name` can be in this directory. The links directory's own names are arbitrary
    /// bytes.
    #[inline]
    pub(crate) fn check_name(&self, name: &[u8]) -> Result<()> {
        if self.id == DirId::LINKS { Ok(()) } else { check_name(name) }
    }

    /// Fails if the directory was removed.
    #[inline]
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.is_removed() {
            return Err(Error::new(Kind::NotFound, "the directory was removed"));
        }
        Ok(())
    }

    /// Fails unless the directory grants `wanted`; `name` is the affected entry in it.
    #[inline]
    pub(crate) fn check(&self, identity: &Identity, wanted: u32, name: &[u8]) -> Result<()> {
        let (uid, gid) = self.owner();
        if identity.may(wanted, self.mode(), uid, gid, true) { Ok(()) } else { Err(denied(name)) }
    }

    /// Records that an entry was added or removed at `now_ns`.
    #[inline]
    pub(crate) fn touch(self: &Arc<Self>, now_ns: i64) {
        // Most creates fall into the clock tick of the one before: reading first keeps the cache
        // line shared.
        if self.mtime_ns.load(Ordering::Relaxed) < now_ns {
            self.mtime_ns.fetch_max(now_ns, Ordering::SeqCst);
        }
        if !self.is_touched() {
            self.remember_touch();
        }
    }

    #[cold]
    fn remember_touch(self: &Arc<Self>) {
        if !self.is_touched.swap(true, Ordering::SeqCst)
            && let Some(touched) = self.touched.upgrade()
        {
            touched.lock().push(self.clone());
        }
    }

    /// Puts times that the record lacks into `inode`. Returns the time of the last touch.
    pub(crate) fn overlay_times(&self, inode: &mut Inode) -> i64 {
        let mtime_ns = self.mtime_ns.load(Ordering::SeqCst);
        if self.is_touched() {
            inode.mtime_ns = mtime_ns;
            inode.ctime_ns = inode.ctime_ns.max(mtime_ns);
        }
        mtime_ns
    }

    pub(crate) fn is_touched(&self) -> bool {
        self.is_touched.load(Ordering::SeqCst)
    }

    /// Marks times up to a touch at `written_ns` as written to the record.
    pub(crate) fn times_written(self: &Arc<Self>, written_ns: i64) {
        self.forget_touch();
        // A concurrent touch either sees the cleared flag, or is seen here.
        if self.mtime_ns.load(Ordering::SeqCst) != written_ns {
            self.remember_touch();
        }
    }

    /// Discards unwritten times, since the record gets others.
    pub(crate) fn forget_touch(&self) {
        self.is_touched.store(false, Ordering::SeqCst);
    }
}

impl Drop for DirNode {
    /// Frees the directories above one after another: there may be too many for a recursion.
    fn drop(&mut self) {
        let mut next = self.location.get_mut().take();
        while let Some((parent, _)) = next {
            next = Arc::into_inner(parent).and_then(|mut node| node.location.get_mut().take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::{FileKind, NameKind};

    #[test]
    fn a_deep_chain_is_freed_without_recursion() {
        const STACK_BYTES: usize = 128 << 10;
        let free = || {
            let inode = Inode::new(NameKind::Is(FileKind::Directory), 0o755, 0);
            let touched = Arc::default();
            let mut dir = DirNode::new(&inode, None, true, &touched);
            for _ in 0..1_000_000 {
                dir = DirNode::new(&inode, Some((dir, b"d".to_vec())), true, &touched);
            }
            drop(dir);
        };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(free);
        thread.expect("a thread").join().expect("no failure");
    }
}
