// SPDX-License-Identifier: Apache-2.0
//! Live job: a live namespace whose servers are ranks of the job that uses it.
//!
//! Some ranks of each node serve seats, in threads of their own, and all ranks are clients. So the
//! metadata service begins with the job, is as large as it, and ends with it.
//! Source: DeltaFS thesis §4.4, Fig. 4.9a (early integration: metadata servers beside the clients of a job)
//! and 4.10b (as many servers as clients, and requests of 96 creates).

use std::cell::RefCell;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::process::ProcessIdentity;
use esker_base::{Error, Kind, Result};
use esker_comm::collective::{CollectiveOptions, Collectives, Reduction};
use esker_comm::{Rank, Transport, job};
use esker_fs::names::live_namespace::{LiveNamespace as LiveLayout, SEATS_MAX};
use esker_fs::session::SessionOptions;
use esker_live::proof::UserSecret;
use esker_live::{LiveServer, LiveServerOptions};
use esker_table::manifest::SetId;
use esker_table::tree::Durability;

use crate::live::LiveNamespace;
use crate::repository::Repository;
use crate::session_builder::SessionBuilder;
use crate::snapshot_ref::SnapshotRef;

/// Threads of a server.
const SERVER_THREADS: usize = 2;
/// Connections to a server beside those of the ranks, of which each may have two: those of the server of
/// another seat, and of other clients.
const SEAT_CONNECTIONS: usize = 32;
const OTHER_CONNECTIONS: usize = 256;
/// Time for which a rank waits for a server.
const PATIENCE: Duration = Duration::from_secs(30);

/// Describes a live namespace that ranks of a job serve; all ranks use equal values.
#[derive(Clone, Debug)]
#[must_use = "the job begins with `begin`"]
pub struct LiveJobBuilder {
    repository: Repository,
    name: String,
    bases: Vec<SnapshotRef>,
    servers_per_node: u32,
    listens: bool,
    session: SessionBuilder,
}

impl Repository {
    /// Describes the live namespace `name` of a job whose ranks serve it.
    pub fn live_job(&self, name: impl Into<String>) -> LiveJobBuilder {
        LiveJobBuilder {
            repository: self.clone(),
            name: name.into(),
            bases: Vec::new(),
            servers_per_node: 1,
            listens: false,
            session: self.session(),
        }
    }
}

impl LiveJobBuilder {
    /// Builds on a snapshot, below those that were given before. A namespace that exists keeps those
    /// with which it was made.
    pub fn on(mut self, snapshot: impl Into<SnapshotRef>) -> Self {
        self.bases.push(snapshot.into());
        self
    }

    /// Ranks of each node that are servers; one unless it is given. A new namespace gets a seat for
    /// each of them, 256 at most.
    pub fn servers_per_node(mut self, servers: u32) -> Self {
        self.servers_per_node = servers.max(1);
        self
    }

    /// Lets clients on other machines connect, also if all ranks are on one: mounts and `esker live` of
    /// this user, who shares a secret with the servers, by default `~/.config/esker/live-secret`.
    pub fn listen(mut self) -> Self {
        self.listens = true;
        self
    }

    /// Memory of each server for changes that are not in the store yet.
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.session = self.session.memory_bytes(bytes);
        self
    }

    /// Serves the namespace even if servers of an earlier job seem to be alive, for callers that know
    /// they are not. One that is alive after all stops.
    pub fn take_over(mut self) -> Self {
        self.session = self.session.take_over();
        self
    }

    /// Begins to serve the namespace, which is made if there is none: otherwise it goes on, with
    /// everything that was synced, whatever the number of its servers was. Collective: all ranks call
    /// it. A server has connections of all ranks, so the limit on open files (`ulimit -n`) of its process must
    /// allow for them. Cost: at each server that of resuming a session for each of its seats, and a second if
    /// an earlier server may be alive.
    ///
    /// # Errors
    /// `NotFound` if a base does not exist; `Conflict` if an earlier server is alive; `Unavailable`
    /// names a lost rank. A failure of one rank is that of all.
    pub fn begin<T: Transport>(self, mut transport: T) -> Result<LiveJob<T>> {
        let (me, size) = (transport.rank(), transport.size());
        let servers = transport.nodes().first_of_each(self.servers_per_node);
        let servers: Vec<Rank> = servers.take(SEATS_MAX).collect();
        // Separates these collectives from earlier ones over the same transport.
        transport.barrier()?;
        let mut collectives = Collectives::new(transport, CollectiveOptions::default());
        let made = if me == Rank(0) { self.make(servers.len()) } else { Ok(0) };
        let made = made.map(|seats| seats.to_le_bytes().to_vec());
        let seats = collectives.broadcast_result(Rank(0), made)?;
        let wrong = |_| Error::new(Kind::Corrupt, "rank 0 sent no number of seats");
        let seats = seats.try_into().map(u16::from_le_bytes).map_err(wrong)?;
        let own = servers.iter().position(|server| *server == me);
        let own_seats = (0..seats).filter(|seat| Some(usize::from(*seat) % servers.len()) == own);
        let machine = number_of_machine();
        let mut machines = |by| collectives.all_reduce_u64(Rank(0), machine, by);
        let listens = self.listens || machines(Reduction::Min)? != machines(Reduction::Max)?;
        let started = self.start(own_seats.collect(), (listens, size, seats));
        let (servers, failure) = match started {
            Ok(servers) => (servers, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        let begun = collectives.agree(failure).and_then(|()| {
            let live = self.repository.live_within(&self.name, PATIENCE);
            collectives.agree(live)
        });
        match begun {
            Ok(live) => {
                let collectives = RefCell::new(collectives);
                Ok(LiveJob { rank: me, collectives, servers, live, builder: self })
            }
            Err(error) => {
                // Others can serve them at once.
                servers.into_iter().for_each(|server| drop(server.end()));
                Err(error)
            }
        }
    }

    /// The options of the session of a seat.
    fn options(&self) -> SessionOptions {
        self.session.options(Some(Durability::Async))
    }

    /// Makes the namespace with `seats`, unless it exists; returns the number that it has.
    fn make(&self, seats: usize) -> Result<u16> {
        let sets = &self.repository.sets;
        let bases = self.repository.resolve_all(self.bases.clone())?;
        let live = match sets.create_live(&self.name, &bases, seats, self.options()) {
            Err(error) if error.kind() == Kind::Exists => {
                LiveLayout::load(&**sets.store(), &self.name)?
            }
            made => made?,
        };
        Ok(u16::try_from(live.seats.len()).expect("at most the maximum"))
    }

    /// Starts the servers of `seats`, for a job of `size` ranks. If one fails, ends the others.
    fn start(
        &self,
        seats: Vec<u16>,
        (listens, size, all_seats): (bool, u32, u16),
    ) -> Result<Vec<LiveServer>> {
        let mut servers = Vec::with_capacity(seats.len());
        if seats.is_empty() {
            return Ok(servers);
        }
        let mut session = self.options();
        session.tree.memory_bytes /= seats.len();
        let secret_file = UserSecret::default_path();
        let secret = match (listens, &secret_file) {
            (false, _) => None,
            (true, Some(path)) => Some(UserSecret::read_or_make(path)?),
            (true, None) => {
                let what = "servers on several machines need a secret: set HOME or XDG_CONFIG_HOME";
                return Err(Error::new(Kind::Invalid, what));
            }
        };
        let all_seats = usize::from(all_seats);
        let clients = usize::try_from(size).unwrap_or(usize::MAX).saturating_mul(2);
        let host = std::env::var(job::ADDRESS).ok().filter(|address| !address.is_empty());
        let options = LiveServerOptions {
            tcp: listens.then(|| ([0, 0, 0, 0], 0).into()),
            host: host.unwrap_or_else(|| ProcessIdentity::current().host),
            secret,
            secret_file,
            threads: SERVER_THREADS,
            connections: clients.saturating_add(all_seats * SEAT_CONNECTIONS + OTHER_CONNECTIONS),
            ..LiveServerOptions::local(session, std::sync::Arc::new(SystemClock))
        };
        let start = |seat: u16| {
            LiveServer::start(&self.repository.sets, (&self.name, seat), options.clone())
                .map_err(|error| error.within(format!("serve seat {seat} of {}", self.name)))
        };
        // At once: one that takes over waits for a second.
        let started: Vec<Result<LiveServer>> = std::thread::scope(|scope| {
            let starts = seats.into_iter().map(|seat| scope.spawn(move || start(seat)));
            let starts: Vec<_> = starts.collect();
            starts.into_iter().map(|start| start.join().expect("a start does not panic")).collect()
        });
        let mut failure = None;
        for server in started {
            match server {
                Ok(server) => servers.push(server),
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        let Some(failure) = failure else { return Ok(servers) };
        servers.into_iter().for_each(|server| drop(server.end()));
        Err(failure)
    }
}

/// A rank of a job whose ranks serve a live namespace, and use it.
///
/// All ranks make the *collective* calls, in the same order. Servers answer at any time, in threads
/// of their own. A directory is at one server, a new one at the less loaded of two; one made by
/// [`LiveNamespace::create_spread_dir`] is at all of them. Other clients, such as mounts and
/// `esker live ls`, reach the namespace as any other while the job serves it. If a rank dies, calls
/// that need its server fail with `Unavailable` after half a minute; a job that begins again, or
/// `esker live serve`, goes on with what was synced.
///
/// # Examples
/// ```
/// use esker::{Repository, threads};
///
/// let repository = Repository::create("memory:")?;
/// threads::run(4, 2, |transport| {
///     let job = repository.live_job("run").begin(transport)?;
///     let live = job.namespace();
///     if job.rank().0 == 0 {
///         live.create_spread_dir("/particles")?;
///     }
///     job.barrier()?;
///     let names: Vec<String> = (0..100).map(|n| format!("{}.{n}", job.rank().0)).collect();
///     let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
///     for created in live.create_many("/particles", &names)? {
///         created?;
///     }
///     job.snapshot("step-1")?;
///     job.remove()
/// })?;
/// assert_eq!(repository.snapshot("step-1")?.entries("/particles")?.count(), 400);
/// # Ok::<(), esker::Error>(())
/// ```
pub struct LiveJob<T> {
    rank: Rank,
    /// Borrowed during calls only, which never call back.
    collectives: RefCell<Collectives<T>>,
    /// The servers of this rank's seats.
    servers: Vec<LiveServer>,
    live: LiveNamespace,
    builder: LiveJobBuilder,
}

impl<T> fmt::Debug for LiveJob<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.servers.len();
        f.debug_struct("LiveJob")
            .field("name", &self.builder.name)
            .field("servers", &servers)
            .finish_non_exhaustive()
    }
}

impl<T: Transport> LiveJob<T> {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The namespace, as a client of its servers.
    #[must_use]
    pub fn namespace(&self) -> &LiveNamespace {
        &self.live
    }

    /// The number of seats that this rank serves.
    #[must_use]
    pub fn seats_served(&self) -> usize {
        self.servers.len()
    }

    /// Returns once all ranks have called it. Collective.
    ///
    /// # Errors
    /// `Unavailable` names a lost rank.
    pub fn barrier(&self) -> Result<()> {
        self.collectives.borrow_mut().transport().barrier()
    }

    /// Publishes the state of the namespace, with everything that any rank has changed before, as the
    /// snapshot `name`, and returns its set. Survives power loss once it returns. Collective.
    ///
    /// # Errors
    /// `Exists`; `Unavailable` if a server does not answer, or names a lost rank.
    pub fn snapshot(&self, name: &str) -> Result<SetId> {
        self.barrier()?;
        let taken = match self.rank {
            Rank(0) => self.live.snapshot(name).map(|set| set.0.to_le_bytes().to_vec()),
            _ => Ok(Vec::new()),
        };
        let set = self.collectives.borrow_mut().broadcast_result(Rank(0), taken)?;
        let wrong = |_| Error::new(Kind::Corrupt, "rank 0 sent no identity of a snapshot");
        set.try_into().map(|set| SetId(u128::from_le_bytes(set))).map_err(wrong)
    }

    /// Ends the job's servers. The namespace stays: another job, or `esker live serve`, goes on with
    /// it at once. Collective; the servers of this rank end also if another one is lost. Cost: a flush and a
    /// commit of each seat.
    ///
    /// # Errors
    /// `Fenced` if another server took over; errors of the store; `Unavailable` names a lost rank. A
    /// failure of one rank is that of all.
    pub fn end(self) -> Result<()> {
        self.end_servers().map(drop)
    }

    /// Ends the job's servers, and removes the namespace; snapshots of it stay. Collective.
    ///
    /// # Errors
    /// As [`LiveJob::end`].
    pub fn remove(self) -> Result<()> {
        let (rank, builder) = (self.rank, self.builder.clone());
        let mut collectives = self.end_servers()?;
        let removed = match rank {
            Rank(0) => {
                let sets = &builder.repository.sets;
                sets.remove_live(&builder.name, &builder.options()).map(|()| Vec::new())
            }
            _ => Ok(Vec::new()),
        };
        collectives.broadcast_result(Rank(0), removed)?;
        collectives.transport().barrier()
    }

    fn end_servers(self) -> Result<Collectives<T>> {
        let Self { collectives, servers, live, .. } = self;
        let mut collectives = collectives.into_inner();
        live.leave();
        // No server ends before all clients have; but each ends, also if a rank is lost.
        let left = collectives.transport().barrier();
        let ended: Vec<Result<()>> = servers.into_iter().map(LiveServer::end).collect();
        left?;
        collectives.agree(ended.into_iter().collect::<Result<()>>())?;
        collectives.transport().barrier()?;
        Ok(collectives)
    }
}

/// A number that processes share that reach each other's Unix sockets.
fn number_of_machine() -> u64 {
    let process = ProcessIdentity::current();
    let mut hasher = DefaultHasher::new();
    (process.host, process.boot).hash(&mut hasher);
    hasher.finish()
}
