//! Front: what a mount knows, on which the operations of the other modules work.
//!
//! Names, attributes and pages that the kernel was told of stay true, since every change comes
//! through it: that is why it may keep them.
//! Concurrency: requests are answered by several threads. The kernel lets one request at a time
//! change a directory, and writes to one file one after the other.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use esker_base::{Clock, Error, Kind};
use esker_fs::inode::FileKind;
use esker_fs::session::Session;
use esker_fs::timestamp;
use fuser::{Errno, Notifier};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::file::InPlace;
use crate::indexed::IndexedReaders;
use crate::listing::DirHandle;
use crate::nodes::{Node, Nodes};
use crate::place::Place;
use crate::view::View;

/// Blocks that stores without a known size are said to have, of 4 KiB each: 4 PiB.
const BLOCKS_UNKNOWN: u64 = 1 << 40;

/// What a mount knows.
pub(crate) struct Front {
    pub(crate) view: View,
    pub(crate) nodes: Nodes,
    pub(crate) indexed: IndexedReaders,
    /// How many changes were made, so that what was read ahead can be told to be stale.
    pub(crate) changes: AtomicU64,
    /// What commands are told of the mount, as JSON.
    pub(crate) status: Vec<u8>,
    handles: Mutex<HashMap<u64, Arc<DirHandle>>>,
    next_handle: AtomicU64,
    clock: Arc<dyn Clock>,
    /// The store's directory, whose room is the mount's.
    store: Option<PathBuf>,
    pub(crate) writes_back: bool,
    pub(crate) in_place: InPlace,
    /// Whether the kernel reads and writes files of the store itself, once it was asked.
    pub(crate) passes_through: AtomicBool,
    /// By which the kernel is told what it did not ask for, once it is mounted.
    pub(crate) notifier: OnceLock<Notifier>,
    report: Box<dyn Fn(&Error) + Send + Sync>,
}

/// What a front is made of besides what it shows.
pub(crate) struct Setup {
    pub(crate) status: Vec<u8>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store: Option<PathBuf>,
    pub(crate) writes_back: bool,
    pub(crate) in_place: InPlace,
    pub(crate) report: Box<dyn Fn(&Error) + Send + Sync>,
}

impl Front {
    pub(crate) fn new(view: View, setup: Setup) -> Self {
        let root = Place::Dir(view.root().clone());
        let Setup { status, clock, store, writes_back, in_place, report } = setup;
        Self {
            view,
            nodes: Nodes::new(root),
            indexed: IndexedReaders::default(),
            changes: AtomicU64::new(0),
            status,
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            clock,
            store,
            writes_back,
            in_place,
            passes_through: AtomicBool::new(false),
            notifier: OnceLock::new(),
            report,
        }
    }

    /// Whether the kernel may read, or write, files of the store itself. It does not where it collects
    /// small writes.
    pub(crate) fn may_pass_through(&self) -> bool {
        match self.view.session() {
            None => true,
            Some(_) => self.in_place != InPlace::Never && !self.writes_back,
        }
    }

    /// Whether `close` waits until what was written survives power loss: at durability `always`.
    pub(crate) fn flushes_at_close(&self) -> bool {
        self.view.session().is_some_and(|session| session.syncs_each_change())
    }

    /// The session, if this mount takes changes.
    pub(crate) fn session(&self) -> Result<&Arc<Session>, Errno> {
        self.view.session().ok_or(Errno::EROFS)
    }

    /// What the kernel is told of `error`; what users cannot have caused is reported too.
    pub(crate) fn errno(&self, error: &Error) -> Errno {
        let is_ours = matches!(
            error.kind(),
            Kind::Corrupt
                | Kind::Unavailable
                | Kind::Closed
                | Kind::Fenced
                | Kind::NoSpace
                | Kind::ReadOnly
                | Kind::DeviceFailed
                | Kind::TooManyOpenFiles
        );
        if is_ours {
            self.report(error);
        }
        Errno::from_i32(error.kind().errno())
    }

    /// Tells the mount's owner of `error`.
    pub(crate) fn report(&self, error: &Error) {
        (self.report)(error);
    }

    pub(crate) fn now_ns(&self) -> i64 {
        timestamp::of_clock(self.clock.now_ns())
    }

    /// Notes that a change was made, before the kernel is told so.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn forget(&self, number: u64, count: u64) {
        drop(self.nodes.forget(number, count));
    }

    /// Whether it is known that `node` has no extended attributes: the kernel asks before each
    /// first write to a file whether writing takes privileges away.
    pub(crate) fn has_no_xattrs(&self, node: &Node) -> bool {
        node.is_bare.load(Ordering::Relaxed)
    }

    pub(crate) fn open_handle(&self, number: u64) -> Result<u64, Errno> {
        let node = self.node(number)?;
        let is_indexed = node.kind == FileKind::Indexed;
        let keys = is_indexed.then(|| self.key_list(&node)).transpose()?;
        let handle = Arc::new(DirHandle::new(node, keys));
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles.lock().insert(number, handle);
        Ok(number)
    }

    pub(crate) fn handle(&self, number: u64) -> Result<Arc<DirHandle>, Errno> {
        self.handles.lock().get(&number).cloned().ok_or(Errno::EBADF)
    }

    pub(crate) fn close_handle(&self, number: u64) {
        drop(self.handles.lock().remove(&number));
    }

    /// Blocks of 4 KiB that the store has, that are free, and that anybody may take.
    pub(crate) fn space(&self) -> (u64, u64, u64) {
        let known = self.store.as_deref().and_then(|store| rustix::fs::statvfs(store).ok());
        known.map_or((BLOCKS_UNKNOWN, BLOCKS_UNKNOWN, BLOCKS_UNKNOWN), |room| {
            let of = |blocks: u64| blocks.saturating_mul(room.f_frsize) / 4096;
            (of(room.f_blocks), of(room.f_bfree), of(room.f_bavail))
        })
    }
}
