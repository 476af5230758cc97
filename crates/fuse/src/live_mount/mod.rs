// SPDX-License-Identifier: Apache-2.0
//! Mounts of live namespaces: a tree that many clients change, in the kernel's tree of files.
//!
//! `live_driver` answers the kernel by requests to the namespace's server (`esker_live`), with the
//! nodes, open files and listings of `live_state`; `names`, `content`, `live_listing` and `xattrs`
//! are the operations; `prefetched` saves look-ups, and `unsynced_changes` are those whose loss syncs
//! report. A mount is one client of the server, shared by the threads that answer the kernel, and acts
//! for its user; that of the superuser acts for all users of the machine, whose permissions the kernel
//! checks. What other clients see, and when: docs/guide/live.md.

mod content;
mod live_driver;
mod live_listing;
mod live_node;
mod live_state;
mod names;
mod prefetched;
mod seat_clients;
#[cfg(test)]
mod tests;
mod unsynced_changes;
mod xattrs;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use esker_base::store::SharedStore;
use esker_base::{Clock, Error, Kind, Result};
use esker_live::client::LiveClientOptions;
use esker_table::manifest::SetId;
use fuser::Errno;
use serde_json::{Value, json};

use self::live_driver::LiveDriver;
use self::live_state::{LiveSetup, LiveState};
use self::seat_clients::SeatClients;
use crate::control::{ControlListener, LIVE, SOURCE};
use crate::mount::{failed, kernel_config};
use crate::mount_run::{MountContent, MountEnding, MountRun};
use crate::mounted_directory::MountedDirectory;
use crate::prune::{KNOWN_FILES_MAX, prune_until};
use crate::server::answer_by_threads;
use crate::statistics::RequestStatistics;

/// Interval at which a thread compares the server with that of the open files.
const SERVER_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Intervals after which it sends a request of its own.
const IDLE_ROUNDS: u32 = 5;

/// Options of a mount of a live namespace.
pub struct LiveMountOptions {
    /// The client.
    pub client: LiveClientOptions,
    /// Threads that answer the kernel; at least 1.
    pub threads: usize,
    /// True if other users may access it.
    pub allows_others: bool,
    /// Time for which the kernel may cache names and attributes, and thus show what other clients
    /// have changed.
    pub ttl: Duration,
    /// True if each change survives power loss before its system call returns.
    pub is_durable: bool,
    /// True if the mount counts requests by kind.
    pub counts_requests: bool,
    /// The directory of the store on this machine, whose free space is the mount's.
    pub store: Option<PathBuf>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Receives errors that users did not cause, such as a server that cannot be reached.
    pub report: Box<dyn Fn(&Error) + Send + Sync>,
}

/// A mounted live namespace.
pub struct LiveMount {
    session: fuser::Session<LiveDriver>,
    running: MountRun<LiveState>,
}

impl LiveMount {
    /// Mounts the live namespace `name` of `store` at `mountpoint`. Requests wait until
    /// [`LiveMount::run`]. Cost: that of two connections to each seat.
    ///
    /// # Errors
    /// `Invalid` if `mountpoint` is not a directory; `NotFound`, `Unavailable` and `Denied` as
    /// [`LiveConnection::connect`](esker_live::client::LiveConnection::connect); `Denied` or
    /// `Unavailable` as the kernel answers.
    pub fn new(
        store: &SharedStore,
        name: &str,
        mountpoint: &Path,
        options: LiveMountOptions,
    ) -> Result<Self> {
        let io = |what: &str, error| Error::io(error, format!("{what} {}", mountpoint.display()));
        let mountpoint =
            mountpoint.canonicalize().map_err(|error| io("find the directory", error))?;
        let listener =
            ControlListener::new().map_err(|error| io("listen for requests to", error))?;
        let seats = SeatClients::connect(store, name, &options.client)?;
        let shown = format!("{LIVE}{name}");
        let config =
            kernel_config(&format!("{SOURCE}{shown}"), options.allows_others, options.threads);
        let setup = LiveSetup {
            seats,
            status: listener.status(&shown, None),
            ttl: options.ttl,
            is_durable: options.is_durable,
            counts_requests: options.counts_requests,
            store: options.store,
            clock: options.clock,
            report: options.report,
        };
        let state = Arc::new(LiveState::new(setup));
        let session = fuser::Session::new(LiveDriver(state.clone()), &mountpoint, &config)
            .map_err(|error| failed("mount at", &mountpoint, &error))?;
        *state.notifier.lock() = Some(session.notifier());
        let directory = MountedDirectory::new(mountpoint, session.as_fd())?;
        Ok(Self { session, running: MountRun::new(state, directory, listener) })
    }

    /// Answers the kernel until the mount ends.
    ///
    /// # Errors
    /// Those that the kernel reports.
    pub fn run(self) -> Result<MountEnding> {
        let Self { session, running } = self;
        running.run(KNOWN_FILES_MAX, move |ends| answer_by_threads(session, ends))
    }
}

impl MountContent for LiveState {
    fn publish(&self, name: &str, directory: &MountedDirectory) -> Result<Value> {
        directory.write_pages();
        let set = SetId(self.snapshot(name)?);
        Ok(json!({"published": name, "set": set.to_string()}))
    }

    fn compact(&self) -> Result<Value> {
        let what = "the server of a live namespace compacts it";
        Err(Error::new(Kind::Unsupported, what))
    }

    /// The server writes; takeovers are its own matter.
    fn check_writer(&self) -> Result<()> {
        Ok(())
    }

    fn requests(&self) -> Option<Value> {
        self.statistics.as_ref().map(RequestStatistics::report)
    }

    fn write_before_end(&self, directory: &MountedDirectory) -> Result<()> {
        directory.write_pages();
        Ok(())
    }

    /// After a takeover, opens at the new server what programs have open, so that it outlives its
    /// names there. A mount that is idle asks for a sign of life to notice the takeover.
    fn work_until(&self, end: &Receiver<()>) {
        let mut rounds = 0u32;
        while end.recv_timeout(SERVER_CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            rounds = rounds.wrapping_add(1);
            self.send_rest();
            if rounds.is_multiple_of(IDLE_ROUNDS) {
                self.notice_takeover();
            }
            self.open_again_after_takeover();
            self.report_losses();
        }
    }

    fn prune_until(&self, device: &OwnedFd, known_max: usize, end: &Receiver<()>) {
        prune_until(&self.nodes, device, known_max, end);
    }

    fn close_all(&self) -> Result<(), Errno> {
        self.close_files().and_then(|()| self.sync().map(drop))
    }
}
