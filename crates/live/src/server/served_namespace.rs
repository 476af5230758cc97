// SPDX-License-Identifier: Apache-2.0
//! Served namespace: the state that all connections of a server share.

use std::sync::Arc;

use esker_base::process::ProcessIdentity;
use esker_base::{Clock, Error, Kind, Random, Result};
use esker_fs::session::Session;
use esker_fs::stack::identity::Identity;
use esker_table::manifest::SetId;
use hashbrown::HashMap;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::LiveServerOptions;
use super::admission::ConnectionAdmission;
use super::client_files::ClientFiles;
use super::client_window::ClientWindow;
use super::done_moves::DoneMoves;
use super::freeze::Freeze;
use super::group_commit::GroupCommit;
use super::metrics::{NamespaceGauges, ServerCounters, ServerMetrics};
use super::open_file_limits::OpenFileLimits;
use super::other_seats::OtherSeats;
use crate::client::PATIENCE_MAX;
use crate::wire::ServerWelcome;

/// The server forgets a client that has not been connected for this long: such a client does not
/// repeat requests any more.
const CLIENT_MEMORY_NS: u64 = 600_000_000_000;

/// Clients of one user that are remembered although they are not connected: of the server's user, and
/// of another. Each may have some megabytes of answers.
const OWN_LEFT_MAX: usize = 4096;
const USER_LEFT_MAX: usize = 1024;

/// A client, connected or not.
#[derive(Debug)]
pub(super) struct KnownClient {
    pub window: ClientWindow,
    files: Arc<ClientFiles>,
    /// True once it has connected to this server: those of the server before may yet come back.
    has_connected: bool,
    connections: u32,
    left_ns: u64,
}

/// All clients. Its lock is held while changes are carried out.
pub(super) type KnownClients = HashMap<u64, KnownClient>;

/// The state that all connections share.
#[derive(Debug)]
pub(super) struct ServedNamespace {
    session: Session,
    set: SetId,
    /// The seat of the set.
    seat: u16,
    seats: OtherSeats,
    freeze: Freeze,
    /// Instance and epoch, and whether the server before ended in order.
    identity: (u64, u64, bool),
    began_ns: u64,
    options: LiveServerOptions,
    clients: Mutex<KnownClients>,
    admission: Arc<ConnectionAdmission>,
    open_files: Arc<OpenFileLimits>,
    commit: Arc<GroupCommit>,
    metrics: ServerMetrics,
}

/// Reads the clients of earlier servers from the records in `session`, and into `done_moves` the requests
/// of clients of other seats. The files that they open count within `open_files`.
///
/// # Errors
/// `Corrupt` for records that no server wrote; errors of the store.
pub(super) fn read_clients(
    session: &Session,
    clock: &dyn Clock,
    (open_files, done_moves): (&Arc<OpenFileLimits>, &DoneMoves),
) -> Result<KnownClients> {
    let left_ns = clock.monotonic_ns();
    let mut clients = KnownClients::new();
    for record in session.requests()? {
        if done_moves.read(&record, clock)? {
            continue;
        }
        let window = ClientWindow::of_record(&record)?;
        clients.insert(
            record.client,
            KnownClient {
                files: Arc::new(ClientFiles::new(open_files, window.uid())),
                window,
                has_connected: false,
                connections: 0,
                left_ns,
            },
        );
    }
    Ok(clients)
}

impl ServedNamespace {
    /// The state that serves `session` to its `clients`, and to new ones, within the limits of
    /// `open_files`.
    pub fn new(
        (session, clients, open_files): (Session, KnownClients, Arc<OpenFileLimits>),
        (seat, seats): (u16, OtherSeats),
        identity: (u64, u64, bool),
        (commit, metrics): (Arc<GroupCommit>, ServerMetrics),
        options: LiveServerOptions,
    ) -> Self {
        let own_uid = rustix::process::geteuid().as_raw();
        Self {
            identity,
            seat,
            seats,
            freeze: Freeze::default(),
            set: session.set(),
            session,
            began_ns: options.clock.now_ns(),
            admission: ConnectionAdmission::new(options.connections, own_uid),
            open_files,
            options,
            clients: Mutex::new(clients),
            commit,
            metrics,
        }
    }

    /// The session, for the identity of a user.
    pub fn session_of(&self, identity: Identity) -> Session {
        self.session.acting_as(identity)
    }

    /// The session, for the server itself.
    pub fn session(&self) -> &Session {
        &self.session
    }

    pub fn commit(&self) -> &Arc<GroupCommit> {
        &self.commit
    }

    pub fn clock(&self) -> &dyn Clock {
        &*self.options.clock
    }

    pub fn metrics(&self) -> &ServerMetrics {
        &self.metrics
    }

    pub fn options(&self) -> &LiveServerOptions {
        &self.options
    }

    pub fn clients(&self) -> &Mutex<KnownClients> {
        &self.clients
    }

    pub fn set(&self) -> SetId {
        self.set
    }

    /// The seat that the server serves.
    pub fn seat(&self) -> u16 {
        self.seat
    }

    pub fn seats(&self) -> &OtherSeats {
        &self.seats
    }

    pub fn freeze(&self) -> &Freeze {
        &self.freeze
    }

    /// About how many entries the seat has.
    pub fn entries(&self) -> u64 {
        self.session.statistics().table_rows
    }

    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }

    pub fn admission(&self) -> &Arc<ConnectionAdmission> {
        &self.admission
    }

    /// The answer that ends a handshake.
    pub fn welcome(&self) -> ServerWelcome {
        let (instance, epoch, follows_orderly_end) = self.identity;
        ServerWelcome { instance, epoch, follows_orderly_end }
    }

    /// Registers a connection of `client`, which proved to be `identity`, and returns the files that
    /// it has open. Forgets clients that have not been connected for long.
    ///
    /// # Errors
    /// `Denied` if the client belongs to another user.
    pub fn connect(&self, client: u64, identity: &Identity) -> Result<Arc<ClientFiles>> {
        let now_ns = self.clock().monotonic_ns();
        let mut clients = self.clients.lock();
        let is_forgotten = |known: &KnownClient| {
            known.connections == 0 && now_ns.saturating_sub(known.left_ns) > CLIENT_MEMORY_NS
        };
        let forgotten: Vec<u64> = clients
            .iter()
            .filter(|(known, state)| **known != client && is_forgotten(state))
            .map(|(known, _)| *known)
            .collect();
        for known in forgotten {
            self.forget(&mut clients, known);
        }
        self.bound_left_clients(&mut clients, (client, identity.uid))?;
        let known = clients.entry(client).or_insert_with(|| KnownClient {
            window: ClientWindow::new(client, identity.uid, Random::from_system().next_u64()),
            files: Arc::new(ClientFiles::new(&self.open_files, identity.uid)),
            has_connected: false,
            connections: 0,
            left_ns: now_ns,
        });
        if known.window.uid() != identity.uid {
            let what = format!("client {client:016x} is one of another user");
            return Err(Error::new(Kind::Denied, what));
        }
        known.connections += 1;
        known.has_connected = true;
        Ok(known.files.clone())
    }

    /// Forgets the client of `uid` that left first, if too many of that user have left: a user that
    /// connects again and again as another client takes a bounded part of the memory. One that may
    /// still come back to repeat its requests is not forgotten; new clients wait.
    fn bound_left_clients(
        &self,
        clients: &mut KnownClients,
        (coming, uid): (u64, u32),
    ) -> Result<()> {
        if clients.contains_key(&coming) {
            return Ok(());
        }
        let own_uid = rustix::process::geteuid().as_raw();
        let left_max = if uid == own_uid { OWN_LEFT_MAX } else { USER_LEFT_MAX };
        let has_left = |known: &KnownClient| {
            known.has_connected && known.connections == 0 && known.window.uid() == uid
        };
        let left = clients.iter().filter(|(_, known)| has_left(known));
        if left.clone().count() <= left_max {
            return Ok(());
        }
        let oldest = left.min_by_key(|(_, known)| known.left_ns);
        let Some((oldest, left_ns)) = oldest.map(|(client, known)| (*client, known.left_ns)) else {
            return Ok(());
        };
        let away_ns = self.clock().monotonic_ns().saturating_sub(left_ns);
        if u128::from(away_ns) <= PATIENCE_MAX.as_nanos() {
            let what = format!(
                "more than {left_max} clients of user {uid} have gone without an end, and may come \
                 back; try again in some minutes"
            );
            return Err(Error::new(Kind::Unavailable, what));
        }
        self.forget(clients, oldest);
        Ok(())
    }

    /// Forgets a client that will not come back, and closes its files.
    fn forget(&self, clients: &mut KnownClients, client: u64) {
        if let Some(known) = clients.remove(&client) {
            known.files.close_all(&self.session);
        }
        self.commit.owed_records().forget(client);
        // A record that stays is removed by a later server.
        let _ = self.session.remove_request(client);
    }

    /// Registers the end of a connection of `client`; `forever` if it will not come back.
    pub fn disconnect(&self, client: u64, forever: bool) {
        let mut clients = self.clients.lock();
        let Some(known) = clients.get_mut(&client) else { return };
        known.connections -= 1;
        known.left_ns = self.clock().monotonic_ns();
        if forever && known.connections == 0 {
            self.forget(&mut clients, client);
        }
    }

    /// Counts of the server's work so far.
    pub fn counters(&self) -> ServerCounters {
        self.metrics.counters()
    }

    /// The metrics in Prometheus' text format.
    pub fn metrics_text(&self) -> String {
        let session = self.session.statistics();
        self.metrics.text(&NamespaceGauges {
            clients: self.clients.lock().len(),
            open_connections: self.admission.connections(),
            log_bytes: session.log_bytes,
            table_bytes: session.table_bytes,
            table_rows: session.table_rows,
            runs: session.runs,
            processor_ns: processor_ns(),
            began_ns: self.began_ns,
        })
    }

    /// The state of the server for operators.
    pub fn status(&self) -> Value {
        let statistics = self.session.statistics();
        let process = ProcessIdentity::current();
        let clients = self.clients.lock();
        let connected = clients.values().filter(|client| client.connections > 0).count();
        drop(clients);
        json!({
            "set": self.set.to_string(),
            "seat": self.seat,
            "host": process.host,
            "pid": process.pid,
            "instance": format!("{:016x}", self.identity.0),
            "epoch": self.identity.1,
            "began_ns": self.began_ns,
            "processor_ns": processor_ns(),
            "clients": connected,
            "counters": self.counters(),
            "session": {
                "entries": self.entries(),
                "log_bytes": statistics.log_bytes,
                "table_bytes": statistics.table_bytes,
                "table_rows": statistics.table_rows,
                "runs": statistics.runs,
            },
        })
    }

    /// Ends the session, so that another server can begin at once.
    ///
    /// # Errors
    /// As `Session::end`.
    pub fn end(&self) -> Result<()> {
        if self.commit.owed_records().put(&self.session).is_err() {
            // There may be room by now, which a flush finds out.
            self.session.flush()?;
            self.commit.owed_records().put(&self.session)?;
        }
        self.session.end()
    }
}

/// Processor time of this process.
fn processor_ns() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec.cast_unsigned() * 1_000_000_000 + used.tv_nsec.cast_unsigned()
}
