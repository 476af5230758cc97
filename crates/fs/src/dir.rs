//! Directory handle: what a session must know of a directory to work in it without reading it
//! again, shared by all who use the directory.
//!
//! Times of a directory change with every create in it; they are kept here and written to its
//! record when the session syncs, flushes or publishes, as Linux does with `lazytime`.
//! Concurrency: attributes are atomics; `place` changes only under the session's structure lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use esker_base::{Error, Kind, Result};
use parking_lot::RwLock;

use crate::identity::{Identity, denied};
use crate::inode::{DirId, Inode};

/// An open directory.
pub type Dir = Arc<DirNode>;

/// What is known of an open directory.
#[derive(Debug)]
pub struct DirNode {
    id: DirId,
    /// Parent and name; none for the root.
    place: RwLock<Option<(Dir, Vec<u8>)>>,
    mode: AtomicU32,
    /// Owner in the high half, group in the low.
    owner: AtomicU64,
    mtime_ns: AtomicU64,
    /// Whether `mtime_ns` is newer than the record's.
    is_touched: AtomicBool,
    is_removed: AtomicBool,
    /// Whether it was made by this session where no layer below can have entries for it.
    is_fresh: bool,
}

impl DirNode {
    pub(crate) fn new(inode: &Inode, place: Option<(Dir, Vec<u8>)>, is_fresh: bool) -> Dir {
        Arc::new(Self {
            id: inode.dir_id(),
            place: RwLock::new(place),
            mode: AtomicU32::new(inode.mode),
            owner: AtomicU64::new(u64::from(inode.uid) << 32 | u64::from(inode.gid)),
            mtime_ns: AtomicU64::new(inode.mtime_ns),
            is_touched: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
            is_fresh,
        })
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> DirId {
        self.id
    }

    /// Its permission bits.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    /// Its owner and group.
    #[must_use]
    pub fn owner(&self) -> (u32, u32) {
        let owner = self.owner.load(Ordering::Relaxed);
        ((owner >> 32) as u32, owner as u32)
    }

    /// Its parent and its name there; none for the root.
    #[must_use]
    pub fn place(&self) -> Option<(Dir, Vec<u8>)> {
        self.place.read().clone()
    }

    pub(crate) fn set_place(&self, parent: Dir, name: Vec<u8>) {
        *self.place.write() = Some((parent, name));
    }

    pub(crate) fn set_attributes(&self, inode: &Inode) {
        self.mode.store(inode.mode, Ordering::Relaxed);
        self.owner.store(u64::from(inode.uid) << 32 | u64::from(inode.gid), Ordering::Relaxed);
        self.mtime_ns.store(inode.mtime_ns, Ordering::Relaxed);
        self.is_touched.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// Whether `ancestor` is this directory or above it.
    pub(crate) fn is_within(&self, ancestor: DirId) -> bool {
        if self.id == ancestor {
            return true;
        }
        let mut place = self.place();
        while let Some((parent, _)) = place {
            if parent.id == ancestor {
                return true;
            }
            place = parent.place();
        }
        false
    }

    pub(crate) fn set_removed(&self) {
        self.is_removed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Relaxed)
    }

    /// Fails if the directory was removed.
    #[inline]
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.is_removed() {
            return Err(Error::new(Kind::NotFound, "the directory was removed"));
        }
        Ok(())
    }

    /// Fails unless the directory grants `wanted`; `name` is what is wanted in it.
    #[inline]
    pub(crate) fn check(&self, identity: &Identity, wanted: u32, name: &[u8]) -> Result<()> {
        let (uid, gid) = self.owner();
        if identity.may(wanted, self.mode(), uid, gid, true) { Ok(()) } else { Err(denied(name)) }
    }

    /// Notes that an entry came or went at `now_ns`.
    #[inline]
    pub(crate) fn touch(&self, now_ns: u64) {
        // Most creates fall into the tick of the one before: reading keeps the line shared.
        if self.mtime_ns.load(Ordering::Relaxed) < now_ns {
            self.mtime_ns.fetch_max(now_ns, Ordering::Relaxed);
        }
        if !self.is_touched.load(Ordering::Relaxed) {
            self.is_touched.store(true, Ordering::Release);
        }
    }

    /// Puts times that the record does not have yet into `inode`.
    pub(crate) fn overlay_times(&self, inode: &mut Inode) {
        if self.is_touched.load(Ordering::Acquire) {
            inode.mtime_ns = inode.mtime_ns.max(self.mtime_ns.load(Ordering::Relaxed));
            inode.ctime_ns = inode.ctime_ns.max(inode.mtime_ns);
        }
    }

    /// Takes the times that the record does not have yet.
    pub(crate) fn take_touch(&self) -> Option<u64> {
        let touched = self.is_touched.swap(false, Ordering::AcqRel);
        touched.then(|| self.mtime_ns.load(Ordering::Relaxed))
    }
}
