// SPDX-License-Identifier: Apache-2.0
//! Rank sockets: the sockets of a rank and the messages in transit, moved by
//! [`RankSockets::progress`]. An [`Acceptor`] accepts connections; [`PeerTable`] tracks the state
//! of the other ranks.
//!
//! Memory: for each channel, unsent messages and received messages up to one bound each; a partial
//! frame counts in full. When a channel's received messages reach the bound, its sockets are not
//! read, and the rest stays with the sender's kernel.
//! A rank is lost when a connection to it ends before its goodbye, when another rank reports the
//! loss, or when the bytes it sends are not a frame. The first loss is kept as the cause; later
//! ones follow from it.

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Error, Kind, Result};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;

use super::TcpOptions;
use super::acceptor::{Acceptor, HELLO_WAIT};
use super::connection::{PeerRole, RankConnection};
use super::frame;
use super::handshake::{HandshakeHello, HandshakeNonce, JobSecret};
use super::peers::{PeerTable, VERDICT};
use super::rendezvous::MetRanks;
use crate::queues::{SendQueues, held_bytes};
use crate::transport::{ReceivedMessage, SendOutcome, TransportCounters};
use crate::{Channel, NodeMap, Rank};

/// Bytes per read of a socket.
const READ_BYTES: usize = 64 << 10;

/// Consecutive reads of one socket before the others get their turn.
const READS_PER_TURN: usize = 8;

/// The id of the listener's events; connections count from 1.
const LISTENER: u64 = 0;

/// The sockets of a rank.
#[derive(Debug)]
pub(super) struct RankSockets {
    pub rank: Rank,
    pub nodes: Arc<NodeMap>,
    pub options: TcpOptions,
    secret: JobSecret,
    peers: PeerTable,
    acceptor: Acceptor,
    epoll: OwnedFd,
    connections: HashMap<u64, RankConnection>,
    next_id: u64,
    outgoing: HashMap<(Rank, Channel), u64>,
    /// Ranks and channels of the open connections that other ranks opened.
    incoming: HashSet<(Rank, Channel)>,
    /// By channel: bytes of unsent messages.
    unsent: HashMap<Channel, usize>,
    unsent_all: u64,
    buffered_max: u64,
    queues: SendQueues<u64>,
    /// True if a send has been refused since there was last room.
    was_refused: bool,
    is_nudged: bool,
    lost: Option<(Rank, String)>,
    /// True once every rank is connected to those that it watches; ranks may leave only after that.
    has_met: bool,
    counters: TransportCounters,
    scratch: Vec<u8>,
}

impl RankSockets {
    pub fn new(
        rank: Rank,
        ranks: MetRanks,
        listener: TcpListener,
        options: TcpOptions,
    ) -> Result<Self> {
        let failure = |error: rustix::io::Errno| Error::io(error.into(), "epoll");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failure)?;
        let mut acceptor = Acceptor::new(listener, LISTENER);
        acceptor.watch(&epoll, SystemClock.monotonic_ns()).map_err(failure)?;
        Ok(Self {
            rank,
            nodes: Arc::new(ranks.nodes),
            options,
            secret: ranks.secret,
            peers: PeerTable::new(&ranks.entries),
            acceptor,
            epoll,
            connections: HashMap::new(),
            next_id: LISTENER + 1,
            outgoing: HashMap::new(),
            incoming: HashSet::new(),
            unsent: HashMap::new(),
            unsent_all: 0,
            buffered_max: 0,
            queues: SendQueues::default(),
            was_refused: false,
            is_nudged: false,
            lost: None,
            has_met: false,
            counters: TransportCounters::default(),
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

    /// A rank to which this one has connected and that has not welcomed it yet.
    pub fn opening(&self) -> Option<Rank> {
        self.connections.values().find_map(|connection| match connection.role {
            PeerRole::Opening { .. } | PeerRole::Proving { .. } => connection.role.peer(),
            _ => None,
        })
    }

    /// Records that every rank is connected to those that it watches.
    pub fn mark_connected(&mut self) {
        self.has_met = true;
    }

    pub fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<SendOutcome> {
        let length = bytes.len();
        if to == self.rank {
            if !self.queues.has_room(channel, length, self.options.channel_bytes_max) {
                return Ok(SendOutcome::Full(bytes));
            }
            self.queues.put(ReceivedMessage { from: to, channel, bytes });
        } else {
            if !self.is_reachable(to)? {
                return Ok(SendOutcome::Full(bytes));
            }
            let unsent = self.unsent.get(&channel).copied().unwrap_or(0);
            if unsent > 0 && unsent + held_bytes(length) > self.options.channel_bytes_max {
                self.was_refused = true;
                return Ok(SendOutcome::Full(bytes));
            }
            let id = self.connection_to(to, channel)?;
            if !self.is_sound(id, to)? {
                return Ok(SendOutcome::Full(bytes));
            }
            *self.unsent.entry(channel).or_default() += held_bytes(length);
            self.unsent_all += held_bytes(length) as u64;
            self.connection(id).put(frame::TcpFrameKind::Message, channel, bytes);
            self.write(id);
        }
        self.counters.sent_messages += 1;
        self.counters.sent_bytes += length as u64;
        self.record_buffered();
        Ok(SendOutcome::Done)
    }

    /// As [`PeerTable::check_reachable`].
    fn is_reachable(&self, to: Rank) -> Result<bool> {
        let wait = VERDICT.min(self.options.deadline);
        self.peers.check_reachable(to, || SystemClock.monotonic_ns(), wait)
    }

    /// Returns whether messages can be sent to `to` over the connection. If not, fails with the
    /// reason, or returns false while that is still unknown.
    fn is_sound(&mut self, id: u64, to: Rank) -> Result<bool> {
        let is_sound = |network: &Self| {
            network.connections.get(&id).is_some_and(|connection| !connection.is_broken())
        };
        if is_sound(self) {
            return Ok(true);
        }
        self.progress(Duration::ZERO)?;
        self.check_lost()?;
        if !self.is_reachable(to)? {
            return Ok(false);
        }
        if is_sound(self) {
            return Ok(true);
        }
        Err(Error::new(Kind::Unavailable, format!("the connection to {to} has ended")))
    }

    /// Takes the next received message of one of `channels`.
    pub fn take(&mut self, channels: &[Channel]) -> Result<Option<ReceivedMessage>> {
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

    /// Sends and receives as much as possible; waits up to `wait` for the first event.
    pub fn progress(&mut self, wait: Duration) -> Result<()> {
        let wait = wait.min(HELLO_WAIT).min(self.acceptor.wait(SystemClock.monotonic_ns()));
        let timeout = Timespec::try_from(wait).expect("some seconds");
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
            // Bytes that arrived before an end or a failure are read first.
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                self.read(id);
            }
            if flags.contains(EventFlags::OUT) && self.connections.contains_key(&id) {
                self.write(id);
            }
        }
        let now_ns = SystemClock.monotonic_ns();
        let is_stranger =
            |id: u64| self.connections.get(&id).is_some_and(|known| known.role.is_stranger());
        let silent = self.acceptor.silent(now_ns, is_stranger);
        silent.into_iter().for_each(|id| self.refuse(id));
        let watched = self.acceptor.watch(&self.epoll, now_ns);
        watched.map_err(|error| Error::io(error.into(), "wait for connections"))
    }

    fn accept(&mut self) {
        let now_ns = SystemClock.monotonic_ns();
        while let Some(socket) = self.acceptor.accept(self.rank, now_ns) {
            // A connection that has already ended is dropped silently.
            let Ok(connection) = RankConnection::accepted(socket) else { continue };
            let id = self.add(connection);
            self.acceptor.let_in(id, now_ns);
        }
    }

    fn refuse(&mut self, id: u64) {
        self.acceptor.refused += 1;
        self.close(id);
    }

    /// The connection on which this rank sends to `to` on `channel`; opens it if necessary.
    fn connection_to(&mut self, to: Rank, channel: Channel) -> Result<u64> {
        if let Some(id) = self.outgoing.get(&(to, channel)) {
            return Ok(*id);
        }
        let address = self.peers.resolve(to)?;
        let hello =
            HandshakeHello { from: self.rank, to, channel, nonce: HandshakeNonce::random() };
        let mut connection = RankConnection::open(address, PeerRole::Opening { hello })
            .map_err(|error| Error::io(error, format!("connect to {to} at {address}")))?;
        connection.put(frame::TcpFrameKind::Hello, channel, hello.encode());
        let id = self.add(connection);
        self.outgoing.insert((to, channel), id);
        self.write(id);
        Ok(id)
    }

    fn add(&mut self, connection: RankConnection) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.connections.insert(id, connection);
        self.watch_connection(id);
        id
    }

    fn connection(&mut self, id: u64) -> &mut RankConnection {
        self.connections.get_mut(&id).expect("a connection that is open")
    }

    /// Watches the connection for all that it can do now.
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

    /// Stops reading the connection until its channel has room; meanwhile the kernel keeps the
    /// bytes.
    fn pause(&mut self, id: u64, channel: Channel) {
        self.queues.wait_for_room(channel, id);
        let connection = self.connections.get_mut(&id).expect("a connection that is open");
        if std::mem::take(&mut connection.is_watched) {
            // It was watched, so it is in the epoll set.
            let _ = epoll::delete(&self.epoll, &*connection);
        }
    }

    fn read(&mut self, id: u64) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connections.get_mut(&id) else { break };
            let mut space = scratch.len();
            if let PeerRole::Incoming { channel, .. } = connection.role
                && !self.queues.has_room(channel, 0, self.options.channel_bytes_max)
            {
                // A partial frame is completed, since its room is already reserved.
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
            if let PeerRole::Incoming { channel, .. } = connection.role {
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
        self.record_buffered();
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
        if let Some(channel) = connection.role.sends() {
            self.release_queued(channel, before - after);
        }
        // A later read shows the reason, after any bytes that the other end had sent: epoll reports
        // every broken connection.
        if done.is_ok() && should_watch {
            self.watch_connection(id);
        }
    }

    fn release_queued(&mut self, channel: Channel, bytes: usize) {
        let unsent = self.unsent.entry(channel).or_default();
        *unsent -= bytes;
        self.unsent_all -= bytes as u64;
        if self.was_refused && *unsent <= self.options.channel_bytes_max / 2 {
            self.was_refused = false;
            self.is_nudged = true;
        }
    }

    /// Handles the end of the stream from the other side.
    fn end(&mut self, id: u64) {
        if self.connection(id).role.is_stranger() {
            self.refuse(id);
        } else {
            self.fail(id, "the connection ended");
        }
    }

    /// Closes a failed connection. Its rank is lost, unless it has left.
    fn fail(&mut self, id: u64, why: &str) {
        let connection = self.connection(id);
        let (role, has_goodbye) = (connection.role, connection.has_goodbye);
        self.close(id);
        let Some(rank) = role.peer() else {
            self.acceptor.refused += 1;
            return;
        };
        if has_goodbye || self.peers.has_goodbye(rank) {
            return;
        }
        match role {
            // It may have left properly: the ranks that watch it know whether it is lost.
            PeerRole::Opening { .. } | PeerRole::Proving { .. } if self.has_met => {
                self.peers.mark_unreachable(rank, why, SystemClock.monotonic_ns());
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
            PeerRole::Stranger | PeerRole::Challenged { .. } => self.acceptor.release_stranger(),
            PeerRole::Incoming { from, channel } => {
                self.queues.release(channel, connection.decoder.pending_bytes());
                self.incoming.remove(&(from, channel));
                if !connection.has_goodbye {
                    self.peers.end_connection(from);
                }
            }
            // Stays in `outgoing`, so that nothing is sent after messages that may not have
            // arrived.
            PeerRole::Opening { .. } | PeerRole::Proving { .. } | PeerRole::Outgoing { .. } => {
                let channel = connection.role.sends().expect("this rank opened it");
                self.release_queued(channel, connection.unsent());
            }
        }
    }

    /// Records the first loss, and reports it to all connected ranks.
    fn lose(&mut self, rank: Rank, why: &str) {
        if self.lost.is_some() || rank == self.rank {
            return;
        }
        self.lost = Some((rank, why.to_owned()));
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if connection.role.peer().is_some_and(|peer| peer != rank) {
                connection.put(
                    frame::TcpFrameKind::Lost,
                    Channel(0),
                    rank.0.to_le_bytes().to_vec(),
                );
                self.write(id);
            }
        }
    }

    /// Queues a goodbye on all connections.
    pub fn say_goodbye(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if connection.role.peer().is_some() {
                connection.put(frame::TcpFrameKind::Goodbye, Channel(0), Vec::new());
                self.write(id);
            }
        }
    }

    /// True while a message or goodbye is unsent, or a welcome is outstanding. If the socket were
    /// closed earlier, the other end's kernel would drop bytes that it has not read.
    pub fn has_unsent(&self) -> bool {
        let is_there = |rank: Rank| !self.peers.has_goodbye(rank);
        let is_busy = |connection: &RankConnection| {
            connection.has_out() || matches!(connection.role, PeerRole::Proving { .. })
        };
        self.connections
            .values()
            .any(|connection| is_busy(connection) && connection.role.peer().is_some_and(is_there))
    }

    /// Returns whether `rank` has left and all its messages have arrived.
    pub fn has_left(&self, rank: Rank) -> bool {
        self.peers.has_left(rank)
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

    /// Returns true once after a refused send may succeed again.
    pub fn take_nudge(&mut self) -> bool {
        std::mem::take(&mut self.is_nudged)
    }

    fn buffered(&self) -> u64 {
        self.unsent_all + self.queues.bytes().0
    }

    fn record_buffered(&mut self) {
        self.buffered_max = self.buffered_max.max(self.buffered());
    }

    pub fn counters(&self) -> TransportCounters {
        let (buffered_bytes, buffered_bytes_max) = (self.buffered(), self.buffered_max);
        TransportCounters { buffered_bytes, buffered_bytes_max, ..self.counters }
    }

    pub fn port(&self) -> u16 {
        self.peers.port(self.rank)
    }

    pub fn connections(&self) -> (usize, u64) {
        (self.connections.len(), self.acceptor.refused)
    }
}

/// Shuts down all sockets. If a process ends without this drop, the kernel does the same.
impl Drop for RankSockets {
    fn drop(&mut self) {
        for connection in self.connections.values() {
            let socket: &TcpStream = &connection.socket;
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
    }
}

mod frames;
#[cfg(test)]
mod tests;
