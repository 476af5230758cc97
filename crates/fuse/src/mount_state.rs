// SPDX-License-Identifier: Apache-2.0
//! Mount state: the view, the nodes and the caches of a mount, on which the operations of the other
//! modules work.
//!
//! The kernel may cache names, attributes and pages: every change comes through it, so its cached
//! state stays valid. Concurrency: several threads answer requests. The kernel serializes changes
//! of one directory, and writes to one file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use esker_base::{Clock, Error, Kind};
use esker_fs::inode::FileKind;
use esker_fs::inode::timestamp;
use esker_fs::session::Session;
use fuser::{Errno, INodeNo, Notifier};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::failed_change::StaleName;
use crate::file::InPlacePolicy;
use crate::indexed::IndexedReaders;
use crate::listing::OpenListing;
use crate::node_location::NodeLocation;
use crate::node_table::NodeTable;
use crate::nodes::KernelNode;
use crate::statistics::{RequestKind, RequestStatistics};
use esker_fs::session::view::NamespaceView;

/// State of a mount.
pub(crate) struct MountState {
    pub(crate) view: NamespaceView,
    pub(crate) nodes: NodeTable<KernelNode>,
    pub(crate) indexed: IndexedReaders,
    /// Number of changes made, by which entries read ahead are recognized as stale.
    pub(crate) changes: AtomicU64,
    /// The mount's status for commands, as JSON.
    pub(crate) status: Vec<u8>,
    handles: Mutex<HashMap<u64, Arc<OpenListing>>>,
    next_handle: AtomicU64,
    /// Number of requests by kind, if the mount counts them.
    pub(crate) statistics: Option<RequestStatistics>,
    clock: Arc<dyn Clock>,
    /// The store's directory, whose free space is the mount's.
    pub(crate) store: Option<PathBuf>,
    pub(crate) writes_back: bool,
    pub(crate) in_place: InPlacePolicy,
    /// True if the kernel reads and writes files of the store directly; set by the handshake.
    pub(crate) passes_through: AtomicBool,
    /// Sends notifications to the kernel; set once the file system is mounted. The lock is a leaf.
    pub(crate) notifier: Mutex<Option<Notifier>>,
    /// Gets names that the kernel must look up again; a thread notifies it.
    pub(crate) stale_names: Sender<StaleName>,
    /// True if the handshake requests rings, and after it, if the kernel agreed to them.
    pub(crate) wants_rings: AtomicBool,
    /// True if each request to the store waits for a round trip to a server.
    pub(crate) is_far: bool,
    report: Box<dyn Fn(&Error) + Send + Sync>,
}

/// Everything that makes up a mount's state besides its view.
pub(crate) struct MountSetup {
    pub(crate) status: Vec<u8>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store: Option<PathBuf>,
    pub(crate) writes_back: bool,
    pub(crate) in_place: InPlacePolicy,
    pub(crate) counts_requests: bool,
    pub(crate) stale_names: Sender<StaleName>,
    pub(crate) report: Box<dyn Fn(&Error) + Send + Sync>,
}

impl MountState {
    pub(crate) fn new(view: NamespaceView, setup: MountSetup) -> Self {
        let root = NodeLocation::Dir(view.namespace().root().clone());
        let MountSetup {
            status,
            clock,
            store,
            writes_back,
            in_place,
            counts_requests,
            stale_names,
            report,
        } = setup;
        Self {
            is_far: view.namespace().is_far(),
            view,
            nodes: NodeTable::of_root(root),
            indexed: IndexedReaders::default(),
            changes: AtomicU64::new(0),
            status,
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            statistics: counts_requests.then(RequestStatistics::default),
            clock,
            store,
            writes_back,
            in_place,
            passes_through: AtomicBool::new(false),
            notifier: Mutex::default(),
            stale_names,
            wants_rings: AtomicBool::new(false),
            report,
        }
    }

    /// True if the kernel may read or write files of the store directly. It does not if it collects
    /// small writes.
    pub(crate) fn may_pass_through(&self) -> bool {
        match self.view.session() {
            None => true,
            Some(_) => self.in_place != InPlacePolicy::Never && !self.writes_back,
        }
    }

    /// True if `close` waits until the written data survives power loss: at durability `always`.
    pub(crate) fn flushes_at_close(&self) -> bool {
        self.view.session().is_some_and(|session| session.syncs_each_change())
    }

    /// The session, if this mount is writable.
    pub(crate) fn session(&self) -> Result<&Arc<Session>, Errno> {
        self.view.session().ok_or(Errno::EROFS)
    }

    /// Returns once all completed changes survive power loss.
    pub(crate) fn sync_all(&self) -> Result<(), Errno> {
        let synced = self.view.session().map_or(Ok(()), |session| session.sync());
        synced.map_err(|error| self.errno(&error))
    }

    /// The error number for the kernel; also reports errors that users cannot have caused.
    pub(crate) fn errno(&self, error: &Error) -> Errno {
        if is_of_store(error.kind()) {
            self.report(error);
        }
        Errno::from_i32(error.kind().errno())
    }

    /// Reports `error` to the mount's owner.
    pub(crate) fn report(&self, error: &Error) {
        (self.report)(error);
    }

    pub(crate) fn now_ns(&self) -> i64 {
        timestamp::of_clock(self.clock.now_ns())
    }

    /// Counts a change, before the reply to the kernel.
    pub(crate) fn record_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Lets the kernel ask for the attributes of `number` again; it may have forgotten the file.
    pub(crate) fn invalidate_attributes(&self, number: u64) {
        let notifier = self.notifier.lock().clone();
        if let Some(notifier) = notifier {
            let _ = notifier.inval_inode(INodeNo(number), -1, 0);
        }
    }

    pub(crate) fn forget(&self, number: u64, count: u64) {
        drop(self.nodes.forget(number, count));
    }

    /// True if `node` certainly has no extended attributes: before each first write to a file the
    /// kernel asks whether writing removes privileges.
    pub(crate) fn has_no_xattrs(&self, node: &KernelNode) -> bool {
        node.is_known_without_xattrs.load(Ordering::Relaxed)
    }

    /// Counts a request, if the mount counts them.
    #[inline]
    pub(crate) fn count(&self, kind: RequestKind) {
        if let Some(statistics) = &self.statistics {
            statistics.count(kind);
        }
    }

    pub(crate) fn open_handle(&self, number: u64) -> Result<u64, Errno> {
        let node = self.node(number)?;
        let is_indexed = node.kind == FileKind::Indexed;
        let keys = is_indexed.then(|| self.key_list(&node)).transpose()?;
        let handle = Arc::new(OpenListing::new(node, keys));
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles.lock().insert(number, handle);
        Ok(number)
    }

    pub(crate) fn handle(&self, number: u64) -> Result<Arc<OpenListing>, Errno> {
        self.handles.lock().get(&number).cloned().ok_or(Errno::EBADF)
    }

    pub(crate) fn close_handle(&self, number: u64) {
        drop(self.handles.lock().remove(&number));
    }
}

/// True for errors of the store or of the writer, which users of the mount cannot have caused.
pub(crate) fn is_of_store(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Corrupt
            | Kind::Unavailable
            | Kind::Closed
            | Kind::Fenced
            | Kind::NoSpace
            | Kind::ReadOnly
            | Kind::DeviceFailed
            | Kind::TooManyOpenFiles
    )
}
