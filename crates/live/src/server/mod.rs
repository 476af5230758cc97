// SPDX-License-Identifier: Apache-2.0
//! Server: accepts connections to a seat of a live namespace, carries out their requests on the
//! session of its change set, and answers.
//!
//! ```text
//! connection (a task) → carry_out → session → answers → connection
//!                                      └ group_commit (a thread) releases durable answers
//! ```
//! Concurrency: reads of all connections run at once. Changes run one after another, under the lock
//! of the client windows, so that the records of their requests are in the order of the changes
//! (`client_window`).
//! What survives a crash: docs/guide/live.md.

mod admission;
mod carry_out;
mod client_files;
mod client_window;
mod connection;
mod done_moves;
mod freeze;
mod group_commit;
mod handshake;
mod metrics;
mod metrics_endpoint;
mod moving_files;
mod open_directories;
mod open_file_limits;
mod other_seats;
mod owed_records;
mod peer_user;
mod seat_placement;
mod seat_snapshot;
mod seen_links;
mod served_namespace;
mod spread_parts;

use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use esker_base::process::ProcessIdentity;
use esker_base::{Clock, Error, Random, Result};
use esker_fs::names::live_namespace::LiveNamespace;
use esker_fs::repository::Repository;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::session::SessionOptions;
use esker_fs::session::hold::HolderState;
use esker_table::manifest::Manifest;
use tokio::runtime::Runtime;

use self::done_moves::DoneMoves;
use self::group_commit::{GroupCommit, LEASE};
pub use self::metrics::ServerCounters;
use self::metrics::ServerMetrics;
use self::metrics_endpoint::answer_metrics;
use self::moving_files::release_files_later;
use self::open_file_limits::OpenFileLimits;
use self::other_seats::OtherSeats;
use self::served_namespace::{ServedNamespace, read_clients};
use self::spread_parts::keep_parts_later;
use crate::proof::UserSecret;
use crate::server_address::ServerAddress;

/// Time that connections have to end before the runtime drops them.
const END_PATIENCE: Duration = Duration::from_millis(500);

/// Descriptors that connections leave to the store, and to handshakes.
const STORE_DESCRIPTORS: usize = 768;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct LiveServerOptions {
    /// Options for opening the set: its durability and memory, the writer, and whether to take it
    /// over from a server that is alive. The identity is not used.
    pub session: SessionOptions,
    /// Address that accepts TCP connections; `None` for none. Port 0 stands for any.
    pub tcp: Option<SocketAddr>,
    /// The host name under which clients reach the TCP port.
    pub host: String,
    /// The secret that clients over TCP must know; without it, none are accepted.
    pub secret: Option<UserSecret>,
    /// File of the secret of the server's user, by which servers of other seats on other machines know
    /// this one, also if it accepts no TCP connections. Read at each connection to one, so it may be
    /// made later. Without the file, `secret` counts.
    pub secret_file: Option<PathBuf>,
    /// True to accept connections over the Unix socket from users other than the server's.
    pub allow_other: bool,
    /// True to answer each request only once its changes survive power loss, even if the client
    /// does not ask for that.
    pub always_durable: bool,
    /// Address that answers requests for metrics over HTTP; `None` for none. Port 0 stands for any.
    pub metrics: Option<SocketAddr>,
    /// Threads that carry out requests.
    pub threads: usize,
    /// Maximum number of connections; a user other than the server's may have a quarter of them.
    pub connections: usize,
    /// Times leases.
    pub clock: Arc<dyn Clock>,
}

impl LiveServerOptions {
    /// The options of a small server for clients of this machine and user.
    #[must_use]
    pub fn local(session: SessionOptions, clock: Arc<dyn Clock>) -> Self {
        Self {
            session,
            tcp: None,
            host: "localhost".to_owned(),
            secret: None,
            secret_file: None,
            allow_other: false,
            always_durable: false,
            metrics: None,
            threads: 2,
            connections: 64,
            clock,
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct LiveServer {
    served: Arc<ServedNamespace>,
    address: ServerAddress,
    repository: Repository,
    name: String,
    seat: u16,
    commit_thread: Option<JoinHandle<()>>,
    /// Address that answers requests for metrics.
    metrics: Option<SocketAddr>,
    runtime: Option<Runtime>,
}

impl LiveServer {
    /// Serves `seat` of the live namespace `name` of `repository` until [`LiveServer::end`]. If its last
    /// server may be alive, waits for a second after the takeover, so that no client of that
    /// server reads anything older. Cost: that of resuming the session, a write and a listing.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` if another server is alive, unless the options allow a takeover;
    /// errors of the store and of opening sockets.
    pub fn start(
        repository: &Repository,
        (name, seat): (&str, u16),
        mut options: LiveServerOptions,
    ) -> Result<Self> {
        options.connections = options.connections.min(connections_for_descriptors());
        let instance = Random::from_system().next_u64();
        // Before the set is taken over: a server that cannot listen leaves the one before alone.
        let listeners = BoundListeners::bind(instance, &options)?;
        let clock = options.clock.clone();
        let store = &**repository.store();
        let live = LiveNamespace::load(store, name)?;
        let set = live.seat(seat)?;
        let manifest = Manifest::load(store, set)?;
        let hold = repository.hold(set, &manifest)?;
        let may_live = hold.as_ref().is_some_and(|hold| {
            hold.writer.is_writing
                && !matches!(hold.state, HolderState::Ended | HolderState::Released)
        });
        let is_released = hold.as_ref().is_some_and(|hold| hold.state == HolderState::Released);
        let looked_ns = clock.monotonic_ns();
        options.session.tracks_creates = true;
        let session = repository.resume(set, options.session.clone())?;
        // The process that made the namespace may have died before this step.
        marker::hold(store, set, &MarkerHolder::Live(name.to_owned()))?;
        if may_live || options.session.take_over {
            std::thread::sleep(LEASE + LEASE / 10);
        }
        let epoch = session.epoch();
        // No other server came between.
        let follows_orderly_end = is_released && Some(epoch) == manifest.epoch.checked_add(1);
        let open_files = OpenFileLimits::new(rustix::process::geteuid().as_raw());
        let done_moves = DoneMoves::default();
        let clients = read_clients(&session, &*clock, (&open_files, &done_moves))?;
        let metrics = ServerMetrics::default();
        let (commit, commit_thread) = GroupCommit::start(
            session.acting_as(session.namespace().identity().clone()),
            clock,
            (looked_ns, metrics.commits.clone()),
        )?;
        let secret = (options.secret.clone(), options.secret_file.clone());
        let own = (seat, live.seats.len());
        let seats = OtherSeats::new(repository.store().clone(), name, own, (secret, done_moves));
        let shown = (session, clients, open_files);
        let served = ServedNamespace::new(
            shown,
            (seat, seats),
            (instance, epoch, follows_orderly_end),
            (commit, metrics),
            options.clone(),
        );
        let mut server = Self {
            address: address_of(instance, &options.host, &served),
            served: Arc::new(served),
            repository: repository.clone(),
            name: name.to_owned(),
            seat,
            commit_thread: Some(commit_thread),
            runtime: None,
            metrics: None,
        };
        server.listen(&options, listeners)?;
        server.address.put(store, (name, seat))?;
        Ok(server)
    }

    /// Begins to accept connections.
    fn listen(&mut self, options: &LiveServerOptions, listeners: BoundListeners) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.threads.max(1))
            .enable_all()
            .build()
            .map_err(|error| Error::io(error, "start the threads of the server"))?;
        let BoundListeners { unix: (name, unix), tcp, metrics } = listeners;
        connection::accept_unix(&runtime, unix, self.served.clone())?;
        self.address.unix = Some(name);
        if let Some((address, tcp)) = tcp {
            connection::accept_tcp(&runtime, tcp, self.served.clone())?;
            self.address.tcp = Some(format!("{}:{}", options.host, address.port()));
        }
        if let Some((address, metrics)) = metrics {
            self.metrics = Some(address);
            answer_metrics(&runtime, metrics, self.served.clone())?;
        }
        if self.served.seats().has_others() {
            keep_parts_later(&runtime, self.served.clone());
            release_files_later(&runtime, self.served.clone());
        }
        self.runtime = Some(runtime);
        Ok(())
    }

    /// The address at which the server accepts connections.
    #[must_use]
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// The address at which the server answers `GET /metrics` over HTTP.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Counts of the server's work so far.
    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        self.served.counters()
    }

    /// The reason that the server has stopped answering; `None` while it answers.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.served.commit().failure()
    }

    /// Ends the server: connections are closed, and the session is flushed and released, so that
    /// another server can begin at once. Cost: as `Session::end`, and a deletion.
    ///
    /// # Errors
    /// `Fenced` after a takeover, and other failures from before; errors of the store.
    pub fn end(mut self) -> Result<()> {
        if self.served.seats().has_others() {
            // Files that lost names here; the names that stay at their seats are garbage.
            let _ = self.served.seats().moving().wait_for_end(END_PATIENCE, self.served.clock());
        }
        let failure = self.stop();
        if let Some(failure) = failure {
            return Err(failure);
        }
        self.served.end()?;
        self.address.remove(&**self.repository.store(), (&self.name, self.seat))
    }

    /// Stops the threads; returns the reason if they had stopped before.
    fn stop(&mut self) -> Option<Error> {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(END_PATIENCE);
        }
        self.served.commit().end();
        if let Some(thread) = self.commit_thread.take() {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        self.served.commit().failure()
    }
}

impl Drop for LiveServer {
    /// Stops the server without ending the session, as a crash does.
    fn drop(&mut self) {
        self.stop();
    }
}

/// Number of connections for which this process may have descriptors, beside those that the store
/// needs.
fn connections_for_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    limit.saturating_sub(STORE_DESCRIPTORS).max(limit / 4)
}

/// The sockets of a server, which nobody accepts connections from yet.
struct BoundListeners {
    unix: (String, UnixListener),
    tcp: Option<(SocketAddr, TcpListener)>,
    metrics: Option<(SocketAddr, TcpListener)>,
}

impl BoundListeners {
    fn bind(instance: u64, options: &LiveServerOptions) -> Result<Self> {
        let name = format!("esker-live-{instance:016x}");
        let unix = UnixAddress::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(|error| Error::io(error, format!("listen at the Unix socket @{name}")))?;
        let bind = |address: SocketAddr, what: &str| {
            let failed = |error| Error::io(error, format!("listen at {address}{what}"));
            let bound = TcpListener::bind(address).map_err(failed)?;
            Ok((bound.local_addr().map_err(failed)?, bound))
        };
        let tcp = options.tcp.filter(|_| options.secret.is_some());
        Ok(Self {
            unix: (name, unix),
            tcp: tcp.map(|address| bind(address, "")).transpose()?,
            metrics: options.metrics.map(|address| bind(address, " for metrics")).transpose()?,
        })
    }
}

fn address_of(instance: u64, host: &str, served: &ServedNamespace) -> ServerAddress {
    let process = ProcessIdentity::current();
    ServerAddress {
        instance: format!("{instance:016x}"),
        epoch: served.welcome().epoch,
        host: host.to_owned(),
        boot: process.boot,
        pid: process.pid,
        uid: rustix::process::geteuid().as_raw(),
        began_ns: served.began_ns(),
        tcp: None,
        unix: None,
    }
}
