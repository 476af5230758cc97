// SPDX-License-Identifier: Apache-2.0
//! Live state: the connection, the nodes and the open listings of a mount of a live namespace.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use esker_base::{Clock, Error, Kind, Result};
use esker_live::client::{Answer, Request, SharedConnection, SyncPoint};
use esker_live::wire::{LiveAttributes, take_attributes};
use fuser::{Errno, FileAttr, INodeNo, Notifier};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::live_listing::LiveListing;
use super::live_node::{ContentState, LiveNode, NodeOpens};
use super::prefetched::PrefetchedEntries;
use super::seat_clients::SeatClients;
use super::unsynced_changes::UnsyncedChanges;
use crate::attributes::ListedAttributes;
use crate::mount_state::is_of_store;
use crate::node_table::{NodeTable, ROOT};
use crate::statistics::{RequestKind, RequestStatistics};

/// Syncs of one call: each takeover meanwhile takes one more.
const SYNC_ATTEMPTS: u32 = 8;

/// State of a mount of a live namespace.
pub(crate) struct LiveState {
    pub(super) seats: SeatClients,
    pub(super) nodes: NodeTable<LiveNode>,
    /// Entries of directories that were read ahead.
    pub(super) prefetched: PrefetchedEntries,
    unsynced: UnsyncedChanges,
    pub(super) clock: Arc<dyn Clock>,
    /// Losses of changes that the mount's owner knows of.
    reported_losses: AtomicU64,
    /// The root as it was last shown: commands find a mount that has no server.
    pub(super) root: Mutex<Option<LiveAttributes>>,
    /// Number of files that programs have open.
    pub(super) open_files: AtomicUsize,
    listings: Mutex<HashMap<u64, Arc<LiveListing>>>,
    next_listing: AtomicU64,
    /// Time for which the kernel may cache names and attributes.
    pub(super) ttl: Duration,
    is_durable: bool,
    /// True if the mount acts for all users of the machine.
    pub(super) is_superuser: bool,
    /// The mount's status for commands, as JSON.
    pub(super) status: Vec<u8>,
    pub(super) statistics: Option<RequestStatistics>,
    /// The store's directory, whose free space is the mount's.
    pub(super) store: Option<PathBuf>,
    /// Sends notifications to the kernel; set once the file system is mounted.
    pub(super) notifier: Mutex<Option<Notifier>>,
    report: Box<dyn Fn(&Error) + Send + Sync>,
}

/// Everything that makes up the state besides the nodes.
pub(super) struct LiveSetup {
    pub(super) seats: SeatClients,
    pub(super) status: Vec<u8>,
    pub(super) ttl: Duration,
    pub(super) is_durable: bool,
    pub(super) counts_requests: bool,
    pub(super) store: Option<PathBuf>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) report: Box<dyn Fn(&Error) + Send + Sync>,
}

impl LiveState {
    pub(super) fn new(setup: LiveSetup) -> Self {
        let LiveSetup { seats, status, ttl, is_durable, counts_requests, store, clock, report } =
            setup;
        Self {
            seats,
            nodes: NodeTable::new(LiveNode::root()),
            prefetched: PrefetchedEntries::default(),
            unsynced: UnsyncedChanges::default(),
            clock,
            reported_losses: AtomicU64::new(0),
            root: Mutex::default(),
            open_files: AtomicUsize::new(0),
            listings: Mutex::default(),
            next_listing: AtomicU64::new(1),
            ttl,
            is_durable,
            is_superuser: rustix::process::geteuid().is_root(),
            status,
            statistics: counts_requests.then(RequestStatistics::default),
            store,
            notifier: Mutex::default(),
            report,
        }
    }

    /// The node with inode number `number`.
    pub(super) fn node(&self, number: u64) -> Result<Arc<LiveNode>, Errno> {
        self.nodes.get(number).ok_or(Errno::ESTALE)
    }

    /// Sends `requests`, to be carried out in order, and returns their answers.
    pub(super) fn call_all<const N: usize>(
        &self,
        requests: [Request; N],
    ) -> Result<[Result<Answer>; N], Errno> {
        let may_change = requests.iter().any(Request::is_change);
        let answers = self.seats.call_all(requests).map_err(|error| self.errno(&error));
        if may_change {
            // Also what was read while they were under way may be older.
            self.prefetched.invalidate();
        }
        answers
    }

    /// Sends `request` and returns its answer.
    pub(super) fn call(&self, request: Request) -> Result<Answer, Errno> {
        let [answer] = self.call_all([request])?;
        answer.map_err(|error| self.errno(&error))
    }

    /// Sends `request` with the next one, or in a moment; its answer is lost.
    pub(super) fn call_later(&self, request: Request) -> Result<(), Errno> {
        let sent = self.seats.of(&request).and_then(|seat| seat.submit_unanswered(request));
        sent.map_err(|error| self.errno(&error))
    }

    /// Sends what was to be sent later.
    pub(super) fn send_rest(&self) {
        for (_, seat) in self.seats.all() {
            // Requests of programs get the same error.
            let _ = seat.connection.finish_unanswered();
        }
    }

    /// The change as it is sent: durable if the mount's changes are.
    pub(super) fn change(&self, request: Request) -> Request {
        if self.is_durable { request.durable() } else { request }
    }

    /// The outcome of a request of one item.
    pub(super) fn done(&self, answer: Result<Answer>) -> Result<(), Errno> {
        answer.and_then(|answer| answer.outcome()).map_err(|error| self.errno(&error))
    }

    /// The attributes in an answer of one item.
    pub(super) fn attributes_in(&self, answer: Result<Answer>) -> Result<LiveAttributes, Errno> {
        let found = answer.and_then(|answer| answer.only(take_attributes));
        found.map_err(|error| self.errno(&error))
    }

    /// Runs `change`, which changes `files`, so that syncs of these report its loss.
    pub(super) fn track_change<T>(
        &self,
        files: &[u128],
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let losses = self.seats.losses();
        let changed = change();
        // A change that failed may be done in part.
        self.record_changes(files, losses);
        changed
    }

    /// Records changes of `files` that were answered, and before which there were `losses`.
    pub(super) fn record_changes(&self, files: &[u128], losses: u64) {
        if !self.is_durable && self.unsynced.add(files, losses) {
            // If it fails, the next change tries again.
            let _ = self.sync();
        }
    }

    /// Returns once all completed changes survive power loss, with the number of losses of changes
    /// before.
    pub(super) fn sync(&self) -> Result<u64, Errno> {
        for _ in 0..SYNC_ATTEMPTS {
            let (number, points) = self.begin_sync();
            let mut has_synced = true;
            for ((seat, client), point) in self.seats.all().zip(&points) {
                let server = client.syncing.server();
                self.done(client.syncing.call(Request::sync().for_seat(seat)))?;
                // Only a server that answered the changes has them to sync.
                if [server, client.syncing.server()] != [point.server; 2] {
                    // The client that makes changes has yet to learn of a takeover, and what was
                    // lost in it.
                    has_synced = false;
                    self.call(Request::null().for_seat(seat))?;
                }
            }
            if has_synced {
                return Ok(self.end_sync(number, &points));
            }
        }
        Err(Errno::EIO)
    }

    /// The number of a sync that begins, and the moments up to which it covers changes, by seat.
    pub(super) fn begin_sync(&self) -> (u64, Vec<SyncPoint>) {
        let points = self.seats.all().map(|(_, client)| client.connection.sync_point());
        (self.unsynced.begin_sync(), points.collect())
    }

    /// Records that the sync `number` has succeeded, for the changes up to `points`; returns the
    /// number of losses before that. Takeovers since then lost nothing of what it covers.
    pub(super) fn end_sync(&self, number: u64, points: &[SyncPoint]) -> u64 {
        for ((_, client), point) in self.seats.all().zip(points) {
            client.connection.set_synced(*point);
        }
        let losses = points.iter().map(|point| point.losses).sum();
        self.unsynced.end_sync(number, losses);
        losses
    }

    /// As [`LiveState::sync`], for a program that syncs the file `number`. After a takeover that may
    /// have lost changes, fails once for each file that the kernel knew, and for each whose changes
    /// may be lost.
    pub(super) fn sync_file(&self, number: u64) -> Result<(), Errno> {
        let losses = self.sync()?;
        let node = self.node(number)?;
        let was_known = node.losses.fetch_max(losses, Ordering::AcqRel) < losses;
        let was_changed = self.unsynced.take_loss(node.id);
        if was_known || was_changed { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Reports a takeover that may have lost changes, if there was one since the last call.
    pub(super) fn report_losses(&self) {
        let losses = self.seats.losses();
        if self.reported_losses.swap(losses, Ordering::AcqRel) < losses {
            let what = "the server died: changes that it had answered and not synced may be lost; \
                        programs learn that when they sync";
            (self.report)(&Error::new(Kind::DeviceFailed, what));
        }
    }

    /// Publishes the current state as the snapshot `name`; returns its set.
    pub(super) fn snapshot(&self, name: &str) -> Result<u128> {
        // A snapshot is not repeated, so find the server first.
        let syncing = &self.seats.root().syncing;
        syncing.call(Request::null())?;
        syncing.call(Request::snapshot(name))?.only(|input| input.u128())
    }

    /// Sends a request that does nothing, if files are open, so that a takeover is noticed.
    pub(super) fn notice_takeover(&self) {
        if self.open_files.load(Ordering::Relaxed) > 0 {
            for (seat, client) in self.seats.all() {
                // Requests of programs get the same error.
                let _ = client.connection.call(Request::null().for_seat(seat));
            }
        }
    }

    /// After a takeover, opens at the new server what programs have open.
    pub(super) fn open_again_after_takeover(&self) {
        for (seat, client) in self.seats.all().filter(|(_, client)| client.has_new_server()) {
            let server = client.connection.server();
            if self.open_all(seat, &client.connection) {
                client.set_opened(server);
            }
        }
    }

    /// Opens the files of `seat` that programs have open; false if there is no server again.
    fn open_all(&self, seat: u16, connection: &SharedConnection) -> bool {
        for node in self.nodes.filtered(|_| true) {
            let opens = node.opens.lock();
            let open = || Request::open(&node.reference().file());
            if let Some(open) = (opens.count > 0).then(open).filter(|open| open.seat() == seat) {
                // A file whose name is gone was lost with the old server: programs get ESTALE.
                let opened = connection.call(open);
                if opened.is_err_and(|error| error.kind() == Kind::Unavailable) {
                    // All are opened at the next one.
                    return false;
                }
            }
        }
        true
    }

    /// The error number for the kernel; also reports errors that users cannot have caused.
    pub(super) fn errno(&self, error: &Error) -> Errno {
        match error.kind() {
            // The file or directory is not where the kernel saw it last: it looks the path up again.
            Kind::Conflict | Kind::Fenced => {
                self.prefetched.invalidate();
                Errno::ESTALE
            }
            kind => {
                if is_of_store(kind) {
                    (self.report)(error);
                }
                Errno::from_i32(kind.errno())
            }
        }
    }

    /// Counts one more open of a file whose `opens` these are, at which it had `state`. Returns true
    /// if the kernel's pages are still valid.
    pub(super) fn count_open(&self, opens: &mut NodeOpens, state: ContentState) -> bool {
        opens.count += 1;
        if opens.count == 1 {
            self.open_files.fetch_add(1, Ordering::Relaxed);
        }
        opens.seen.replace(state) == Some(state)
    }

    /// The attributes of `node` for the kernel.
    pub(super) fn shown(&self, node: &LiveNode, attributes: &LiveAttributes) -> FileAttr {
        node.mode.store(attributes.mode, Ordering::Relaxed);
        *node.shown.lock() = Some(ContentState::of(attributes));
        if node.number == ROOT {
            *self.root.lock() = Some(attributes.clone());
        }
        ListedAttributes::of_live(attributes).file_attr(node.number)
    }

    /// The node of a file found as `name` in `parent`, with one more kernel look-up.
    pub(super) fn intern(
        &self,
        parent: &Arc<LiveNode>,
        name: &[u8],
        found: &LiveAttributes,
    ) -> Arc<LiveNode> {
        let of = (found.id, found.kind);
        let node = self.nodes.intern_id(of.0, of.1, |number| {
            let node = LiveNode::at(number, (of, found.seat), (parent, name));
            node.losses.store(self.seats.losses(), Ordering::Relaxed);
            node
        });
        node.moved(parent, name, found.seat_file);
        node
    }

    /// The node of a file that was made as `name` in `parent` by a request before which there were
    /// `losses`.
    pub(super) fn intern_made(
        &self,
        parent: &Arc<LiveNode>,
        (name, made): (&[u8], &LiveAttributes),
        losses: u64,
    ) -> Arc<LiveNode> {
        self.record_changes(&[parent.id, made.id], losses);
        self.intern(parent, name, made)
    }

    /// Opens the file of `node` again if another server has taken over from `server` since.
    pub(super) fn open_again_since(&self, node: &LiveNode, server: u64) {
        let open = Request::open(&node.reference().file());
        if let Ok(connection) = self.seats.of(&open)
            && connection.server() != server
        {
            let _ = connection.call(open);
        }
    }

    pub(super) fn forget(&self, number: u64, count: u64) {
        drop(self.nodes.forget(number, count));
    }

    /// Lets the kernel ask for the attributes of `number` again.
    pub(super) fn invalidate_attributes(&self, number: u64) {
        let notifier = self.notifier.lock().clone();
        if let Some(notifier) = notifier {
            let _ = notifier.inval_inode(INodeNo(number), -1, 0);
        }
    }

    /// Counts a request, if the mount counts them.
    pub(super) fn count(&self, kind: RequestKind) {
        if let Some(statistics) = &self.statistics {
            statistics.count(kind);
        }
    }

    /// True if `node` is still at its name, or this mount has removed its last one: then only an open
    /// file or directory leads to it. `at_name` is the answer to a look-up of the name.
    pub(super) fn is_reachable(&self, node: &LiveNode, at_name: Result<Answer>) -> bool {
        let found = at_name.and_then(|answer| answer.only(take_attributes));
        let is_at_name = found.is_ok_and(|found| found.id == node.id);
        if !is_at_name {
            self.prefetched.invalidate();
        }
        is_at_name || node.is_unnamed.load(Ordering::Relaxed)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// `ESTALE` if another client has put another one at its name: the kernel looks the path up
    /// again.
    pub(super) fn open_listing(&self, number: u64) -> Result<u64, Errno> {
        let node = self.node(number)?;
        if let Some((dir, name)) = node.parent_and_name() {
            let [at_name] = self.call_all([Request::lookup(&dir, &[&name])])?;
            if !self.is_reachable(&node, at_name) {
                return Err(Errno::ESTALE);
            }
        }
        let listing = Arc::new(LiveListing::new(node));
        let number = self.next_listing.fetch_add(1, Ordering::Relaxed);
        self.listings.lock().insert(number, listing);
        Ok(number)
    }

    pub(super) fn listing(&self, number: u64) -> Result<Arc<LiveListing>, Errno> {
        self.listings.lock().get(&number).cloned().ok_or(Errno::EBADF)
    }

    pub(super) fn close_listing(&self, number: u64) {
        drop(self.listings.lock().remove(&number));
    }
}
