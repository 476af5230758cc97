//! Network: the sockets of a rank and what is on its way in them, moved by [`Network::progress`].
//!
//! Memory: of each channel, up to the bound of what is sent and not gone, and of what came and is not
//! received, a frame of which a part came counting whole. Where the second is reached the sockets of
//! the channel are not read, and the sender's kernel keeps the rest.
//! A rank is lost when a connection with it ends before it said goodbye, when another says so, or
//! when what it sends is no frame. The first loss is the cause and is kept; others follow from it.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Error, Kind, Result};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;

use super::Options;
use super::connection::{Connection, Role};
use super::frame::{self, Frame};
use super::greeting::{self, Hello, Secret};
use super::meeting::{Entry, Met};
use crate::queues::{Queues, held_bytes};
use crate::transport::{Counters, Message, Sent};
use crate::{Channel, NodeMap, Rank};

/// Bytes read from a socket at once.
const READ_BYTES: usize = 64 << 10;

/// Reads from one socket before the others have their turn.
const READS_PER_TURN: usize = 8;

/// Who connects has to say who it is within this time.
const HELLO_WAIT: Duration = Duration::from_secs(10);

/// Connections of which this is still open, besides one of each rank for each channel: more are
/// closed at once.
const STRANGERS_MAX: usize = 1024;

/// Which the listener's events carry; connections count from 1.
const LISTENER: u64 = 0;

/// The sockets of a rank.
#[derive(Debug)]
pub(super) struct Network {
    pub rank: Rank,
    pub nodes: Arc<NodeMap>,
    pub options: Options,
    secret: Secret,
    peers: Vec<Peer>,
    /// The names or addresses of hosts, and what was found for them.
    hosts: Vec<(String, Option<SocketAddr>)>,
    /// Why ranks cannot be reached.
    unreachable: HashMap<Rank, String>,
    listener: TcpListener,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    next_id: u64,
    outgoing: HashMap<(Rank, Channel), u64>,
    /// By channel: bytes of messages not gone.
    unsent: HashMap<Channel, usize>,
    unsent_all: u64,
    buffered_max: u64,
    queues: Queues<u64>,
    strangers: usize,
    refused_strangers: u64,
    /// A send was refused since there was last room.
    was_refused: bool,
    is_nudged: bool,
    lost: Option<(Rank, String)>,
    counters: Counters,
    scratch: Vec<u8>,
}

/// What is known of a rank; small, since there is one of every rank of the job.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// Among the hosts.
    host: u32,
    port: u16,
    has_goodbye: bool,
    /// Connections it opened that have not said goodbye.
    incoming: u32,
}

/// What a rank that is connected by TCP keeps of every rank of its job, in bytes.
pub(crate) const PEER_BYTES: usize = size_of::<Peer>();

/// The ranks as peers, and the hosts that they name.
fn peers(entries: &[Entry]) -> (Vec<Peer>, Vec<(String, Option<SocketAddr>)>) {
    let mut numbers = HashMap::new();
    let mut hosts = Vec::new();
    let peers = entries.iter().map(|entry| {
        let host = *numbers.entry(&entry.host[..]).or_insert_with(|| {
            hosts.push((entry.host.clone(), None));
            u32::try_from(hosts.len() - 1).expect("no more hosts than ranks")
        });
        Peer { host, port: entry.port, has_goodbye: false, incoming: 0 }
    });
    (peers.collect(), hosts)
}

impl Network {
    pub fn new(rank: Rank, met: Met, listener: TcpListener, options: Options) -> Result<Self> {
        let failure = |error: rustix::io::Errno| Error::io(error.into(), "epoll");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failure)?;
        let id = EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, id, EventFlags::IN).map_err(failure)?;
        let (peers, hosts) = peers(&met.entries);
        Ok(Self {
            rank,
            nodes: Arc::new(met.nodes),
            options,
            secret: met.secret,
            peers,
            hosts,
            unreachable: HashMap::new(),
            listener,
            epoll,
            connections: HashMap::new(),
            next_id: LISTENER + 1,
            outgoing: HashMap::new(),
            unsent: HashMap::new(),
            unsent_all: 0,
            buffered_max: 0,
            queues: Queues::default(),
            strangers: 0,
            refused_strangers: 0,
            was_refused: false,
            is_nudged: false,
            lost: None,
            counters: Counters::default(),
            scratch: vec![0; READ_BYTES],
        })
    }

    /// Connects to the ranks 1, 2, 4, … above this one.
    pub fn watch(&mut self) -> Result<()> {
        let size = self.nodes.size();
        let mut distance = 1;
        while distance < u64::from(size) {
            let above = (u64::from(self.rank.0) + distance) % u64::from(size);
            let above = Rank(u32::try_from(above).expect("below the size"));
            self.connection_to(above, Channel::BARRIER)?;
            distance *= 2;
        }
        Ok(())
    }

    pub fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<Sent> {
        let length = bytes.len();
        if to == self.rank {
            if !self.queues.has_room(channel, length, self.options.channel_bytes_max) {
                return Ok(Sent::Full(bytes));
            }
            self.queues.put(Message { from: to, channel, bytes });
        } else {
            self.check_reachable(to)?;
            let unsent = self.unsent.get(&channel).copied().unwrap_or(0);
            if unsent > 0 && unsent + held_bytes(length) > self.options.channel_bytes_max {
                self.was_refused = true;
                return Ok(Sent::Full(bytes));
            }
            let id = self.connection_to(to, channel)?;
            self.check_connection(id, to)?;
            *self.unsent.entry(channel).or_default() += held_bytes(length);
            self.unsent_all += held_bytes(length) as u64;
            self.connection(id).put(frame::Kind::Message, channel, bytes);
            self.write(id);
            self.check_reachable(to)?;
        }
        self.counters.sent_messages += 1;
        self.counters.sent_bytes += length as u64;
        self.note_buffered();
        Ok(Sent::Done)
    }

    /// Says why, if nothing can be sent to `to` over the connection any more.
    fn check_connection(&mut self, id: u64, to: Rank) -> Result<()> {
        let is_sound = |network: &Self| {
            network.connections.get(&id).is_some_and(|connection| !connection.is_broken())
        };
        if is_sound(self) {
            return Ok(());
        }
        self.progress(Duration::ZERO)?;
        self.check_lost()?;
        self.check_reachable(to)?;
        if is_sound(self) {
            return Ok(());
        }
        Err(Error::new(Kind::Unavailable, format!("the connection to {to} has ended")))
    }

    /// The next message of one of `channels` that is here.
    pub fn take(&mut self, channels: &[Channel]) -> Result<Option<Message>> {
        let taken = self.queues.take(channels, self.options.channel_bytes_max);
        let Some((message, waiting)) = taken else { return Ok(None) };
        for id in waiting {
            if self.connections.contains_key(&id) {
                self.watch_connection(id);
            }
        }
        self.counters.received_messages += 1;
        self.counters.received_bytes += message.bytes.len() as u64;
        Ok(Some(message))
    }

    /// Moves what can be moved; waits for up to `wait` until something can.
    pub fn progress(&mut self, wait: Duration) -> Result<()> {
        let timeout = Timespec::try_from(wait.min(HELLO_WAIT)).expect("some seconds");
        let mut events = Vec::with_capacity(64);
        let spare = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, spare, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io(error.into(), "wait for messages")),
        }
        for event in events {
            let (id, flags) = (event.data.u64(), event.flags);
            if id == LISTENER {
                self.accept();
                continue;
            }
            // An earlier event may have closed it.
            if !self.connections.contains_key(&id) {
                continue;
            }
            // What had come before an end or a failure is read first.
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                self.read(id);
            }
            if flags.contains(EventFlags::OUT) && self.connections.contains_key(&id) {
                self.write(id);
            }
        }
        self.drop_silent_strangers();
        Ok(())
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    let wait_ns = u64::try_from(HELLO_WAIT.as_nanos()).expect("seconds");
                    let deadline_ns = SystemClock.monotonic_ns() + wait_ns;
                    if self.strangers >= STRANGERS_MAX {
                        self.refused_strangers += 1;
                        continue;
                    }
                    if let Ok(connection) = Connection::accepted(socket, deadline_ns) {
                        self.strangers += 1;
                        self.add(connection);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The other gave up, or this process has too many files open for now.
                Err(_) => return,
            }
        }
    }

    fn drop_silent_strangers(&mut self) {
        if self.strangers == 0 {
            return;
        }
        let now_ns = SystemClock.monotonic_ns();
        let is_over = |connection: &Connection| matches!(connection.role, Role::Stranger { deadline_ns } if deadline_ns < now_ns);
        let over = self.connections.iter().filter(|(_, connection)| is_over(connection));
        let over: Vec<u64> = over.map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.refuse(id));
    }

    fn refuse(&mut self, id: u64) {
        self.refused_strangers += 1;
        self.close(id);
    }

    /// The connection over which this rank sends to `to` on `channel`; opens it.
    fn connection_to(&mut self, to: Rank, channel: Channel) -> Result<u64> {
        if let Some(id) = self.outgoing.get(&(to, channel)) {
            return Ok(*id);
        }
        let address = self.resolve(to)?;
        let mut connection = Connection::open(address, Role::Opening { to, channel })
            .map_err(|error| Error::io(error, format!("connect to {to} at {address}")))?;
        let hello = Hello { from: self.rank, to, channel }.encode(&self.secret);
        connection.put(frame::Kind::Hello, channel, hello);
        let id = self.add(connection);
        self.outgoing.insert((to, channel), id);
        self.write(id);
        Ok(id)
    }

    fn resolve(&mut self, to: Rank) -> Result<SocketAddr> {
        let peer = self.peers[to.index()];
        let (host, known) = &mut self.hosts[peer.host as usize];
        let mut address = match known {
            Some(address) => *address,
            None => {
                let found = (&host[..], peer.port).to_socket_addrs();
                let found = found.and_then(|mut all| all.next().ok_or(ErrorKind::NotFound.into()));
                let what = || format!("find {to} at {host}:{}", peer.port);
                *known.insert(found.map_err(|error| Error::io(error, what()))?)
            }
        };
        address.set_port(peer.port);
        Ok(address)
    }

    fn add(&mut self, connection: Connection) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.connections.insert(id, connection);
        self.watch_connection(id);
        id
    }

    fn connection(&mut self, id: u64) -> &mut Connection {
        self.connections.get_mut(&id).expect("a connection that is open")
    }

    /// Has the kernel tell of whatever the connection can do now.
    fn watch_connection(&mut self, id: u64) {
        let connection = self.connections.get_mut(&id).expect("a connection that is open");
        let wants_room = connection.wants_to_write();
        let flags = if wants_room { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let data = EventData::new_u64(id);
        let done = if connection.is_watched {
            epoll::modify(&self.epoll, &*connection, data, flags)
        } else {
            epoll::add(&self.epoll, &*connection, data, flags)
        };
        (connection.is_watched, connection.is_watched_for_room) = (true, wants_room);
        if let Err(error) = done {
            self.fail(id, &io::Error::from(error).to_string());
        }
    }

    /// Leaves what comes to the kernel until the channel has room.
    fn pause(&mut self, id: u64, channel: Channel) {
        self.queues.wait_for_room(channel, id);
        let connection = self.connections.get_mut(&id).expect("a connection that is open");
        if std::mem::take(&mut connection.is_watched) {
            // It is in the set, since it was watched.
            let _ = epoll::delete(&self.epoll, &*connection);
        }
    }

    fn read(&mut self, id: u64) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connections.get_mut(&id) else { break };
            let mut space = scratch.len();
            if let Role::Incoming { channel, .. } = connection.role
                && !self.queues.has_room(channel, 0, self.options.channel_bytes_max)
            {
                // A frame that has begun is finished, since its room is taken already.
                match connection.decoder.missing_bytes() {
                    Some(missing) => space = space.min(missing.max(1)),
                    None => {
                        self.pause(id, channel);
                        break;
                    }
                }
            }
            match (&connection.socket).read(&mut scratch[..space]) {
                Ok(0) => {
                    self.end(id);
                    break;
                }
                Ok(count) => {
                    self.decode(id, &scratch[..count]);
                    if count < space {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.fail(id, &error.to_string());
                    break;
                }
            }
        }
        self.scratch = scratch;
    }

    fn decode(&mut self, id: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let before = connection.decoder.pending_bytes();
            let decoded = connection.decoder.next(&mut bytes);
            let after = connection.decoder.pending_bytes();
            if let Role::Incoming { channel, .. } = connection.role {
                self.queues.release(channel, before);
                self.queues.reserve(channel, after);
            }
            let done = decoded.and_then(|frame| match frame {
                Some(frame) => self.take_frame(id, frame),
                None => Ok(()),
            });
            if let Err(error) = done
                && self.connections.contains_key(&id)
            {
                self.fail(id, &error.to_string());
            }
        }
        self.note_buffered();
    }

    fn take_frame(&mut self, id: u64, frame: Frame) -> Result<()> {
        let role = self.connection(id).role;
        match (role, frame.kind) {
            (Role::Stranger { .. }, frame::Kind::Hello) => self.greet(id, &frame),
            (Role::Stranger { .. }, _) => self.refuse(id),
            (Role::Opening { to, channel }, frame::Kind::Welcome)
                if greeting::is_welcome(&frame.payload, &self.secret) =>
            {
                let connection = self.connection(id);
                connection.role = Role::Outgoing { to, channel };
                self.write(id);
            }
            (Role::Incoming { from, channel }, frame::Kind::Message)
                if frame.channel == channel =>
            {
                self.queues.put(Message { from, channel, bytes: frame.payload });
            }
            (Role::Incoming { .. } | Role::Outgoing { .. }, frame::Kind::Lost) => {
                let rank = frame.payload.try_into().map(u32::from_le_bytes).map(Rank);
                let rank = rank.ok().filter(|rank| rank.0 < self.nodes.size());
                let rank = rank.ok_or_else(|| Error::corrupt("stream", 0, "no rank is lost"))?;
                let by = role.peer().expect("it has said who it is");
                self.lose(rank, &format!("as {by} says"));
            }
            (Role::Incoming { .. } | Role::Outgoing { .. }, frame::Kind::Goodbye) => {
                let connection = self.connection(id);
                let is_first = !std::mem::replace(&mut connection.has_goodbye, true);
                let peer = &mut self.peers[role.peer().expect("it has said who it is").index()];
                peer.has_goodbye = true;
                if is_first && matches!(role, Role::Incoming { .. }) {
                    peer.incoming -= 1;
                }
            }
            (role, kind) => {
                return Err(Error::corrupt("stream", 0, format!("{kind:?} for {role:?}")));
            }
        }
        Ok(())
    }

    /// Lets a rank in that says what only ranks of the job know.
    fn greet(&mut self, id: u64, frame: &Frame) {
        let hello = Hello::decode(&frame.payload, &self.secret).filter(|hello| {
            let is_rank = hello.from.0 < self.nodes.size() && hello.from != self.rank;
            is_rank && hello.to == self.rank && hello.channel <= Channel::MAX
        });
        let role = hello.map(|hello| Role::Incoming { from: hello.from, channel: hello.channel });
        let role = role.filter(|role| {
            // A second one could overtake the first.
            !self.connections.values().any(|connection| connection.role == *role)
        });
        let Some(role) = role else { return self.refuse(id) };
        self.strangers -= 1;
        let welcome = self.secret.accepter.to_vec();
        let lost = self.lost.as_ref().map(|(rank, _)| rank.0.to_le_bytes().to_vec());
        let connection = self.connection(id);
        connection.role = role;
        connection.decoder.trust();
        connection.put(frame::Kind::Welcome, Channel(0), welcome);
        if let Some(lost) = lost {
            connection.put(frame::Kind::Lost, Channel(0), lost);
        }
        self.peers[role.peer().expect("an incoming one").index()].incoming += 1;
        self.write(id);
    }

    fn write(&mut self, id: u64) {
        let connection = self.connections.get_mut(&id).expect("a connection that is open");
        let before = connection.unsent();
        let done = connection.write();
        if done.is_err() {
            connection.abandon();
        }
        let after = connection.unsent();
        let wants_room = connection.wants_to_write();
        let should_watch = wants_room != connection.is_watched_for_room && connection.is_watched;
        if let Role::Outgoing { channel, .. } | Role::Opening { channel, .. } = connection.role {
            self.note_gone(channel, before - after);
        }
        // Why it failed shows when reading, after what the other may have said before: the kernel
        // tells of every connection that is broken.
        if done.is_ok() && should_watch {
            self.watch_connection(id);
        }
    }

    fn note_gone(&mut self, channel: Channel, bytes: usize) {
        let unsent = self.unsent.entry(channel).or_default();
        *unsent -= bytes;
        self.unsent_all -= bytes as u64;
        if self.was_refused && *unsent <= self.options.channel_bytes_max / 2 {
            self.was_refused = false;
            self.is_nudged = true;
        }
    }

    /// The other end closed the connection.
    fn end(&mut self, id: u64) {
        match self.connection(id).role {
            Role::Stranger { .. } => self.refuse(id),
            _ => self.fail(id, "the connection ended"),
        }
    }

    /// The connection is of no use any more: its rank is lost, unless it has left.
    fn fail(&mut self, id: u64, why: &str) {
        let connection = self.connection(id);
        let (role, has_goodbye) = (connection.role, connection.has_goodbye);
        self.close(id);
        let Some(rank) = role.peer() else {
            self.refused_strangers += 1;
            return;
        };
        let peer = &mut self.peers[rank.index()];
        if has_goodbye || peer.has_goodbye {
            return;
        }
        match role {
            // It may have left before: who watches it knows whether it is lost.
            Role::Opening { .. } => {
                self.unreachable.insert(rank, why.to_owned());
            }
            _ => self.lose(rank, why),
        }
    }

    fn close(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if connection.is_watched {
            let _ = epoll::delete(&self.epoll, &connection);
        }
        match connection.role {
            Role::Stranger { .. } => self.strangers -= 1,
            Role::Incoming { from, channel } => {
                self.queues.release(channel, connection.decoder.pending_bytes());
                if !connection.has_goodbye {
                    self.peers[from.index()].incoming -= 1;
                }
            }
            // Stays among `outgoing`, so that nothing is sent after what may not have arrived.
            Role::Opening { channel, .. } | Role::Outgoing { channel, .. } => {
                self.note_gone(channel, connection.unsent());
            }
        }
    }

    /// Tells all others.
    fn lose(&mut self, rank: Rank, why: &str) {
        if self.lost.is_some() || rank == self.rank {
            return;
        }
        self.lost = Some((rank, why.to_owned()));
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if connection.role.peer().is_some_and(|peer| peer != rank) {
                connection.put(frame::Kind::Lost, Channel(0), rank.0.to_le_bytes().to_vec());
                self.write(id);
            }
        }
    }

    /// Says goodbye on all connections.
    pub fn say_goodbye(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if connection.role.peer().is_some() {
                connection.put(frame::Kind::Goodbye, Channel(0), Vec::new());
                self.write(id);
            }
        }
    }

    /// Whether something of what was sent, or of a goodbye, is still here.
    pub fn has_unsent(&self) -> bool {
        let peers = &self.peers;
        let is_there = |rank: Rank| !peers[rank.index()].has_goodbye;
        self.connections
            .values()
            .any(|connection| connection.has_out() && connection.role.peer().is_some_and(is_there))
    }

    /// Whether `rank` has left, and all it had sent is here.
    pub fn has_left(&self, rank: Rank) -> bool {
        let peer = &self.peers[rank.index()];
        peer.has_goodbye && peer.incoming == 0
    }

    fn check_reachable(&self, to: Rank) -> Result<()> {
        let peer = &self.peers[to.index()];
        let what = match self.unreachable.get(&to) {
            _ if peer.has_goodbye => format!("{to} has left the job and takes no messages"),
            Some(why) => format!("{to} cannot be reached: {why}"),
            None => return Ok(()),
        };
        Err(Error::new(Kind::Unavailable, what))
    }

    pub fn check_lost(&self) -> Result<()> {
        match &self.lost {
            None => Ok(()),
            Some((rank, why)) => {
                Err(Error::new(Kind::Unavailable, format!("{rank} is lost: {why}")))
            }
        }
    }

    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Whether a send that was refused may succeed now; says so once.
    pub fn take_nudge(&mut self) -> bool {
        std::mem::take(&mut self.is_nudged)
    }

    fn buffered(&self) -> u64 {
        self.unsent_all + self.queues.bytes().0
    }

    fn note_buffered(&mut self) {
        self.buffered_max = self.buffered_max.max(self.buffered());
    }

    pub fn counters(&self) -> Counters {
        let (buffered_bytes, buffered_bytes_max) = (self.buffered(), self.buffered_max);
        Counters { buffered_bytes, buffered_bytes_max, ..self.counters }
    }

    pub fn port(&self) -> u16 {
        self.peers[self.rank.index()].port
    }

    pub fn connections(&self) -> (usize, u64) {
        (self.connections.len(), self.refused_strangers)
    }
}

/// Sockets of a rank that is not dropped properly are closed by the kernel, which is the same.
impl Drop for Network {
    fn drop(&mut self) {
        for connection in self.connections.values() {
            let socket: &TcpStream = &connection.socket;
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
    }
}
