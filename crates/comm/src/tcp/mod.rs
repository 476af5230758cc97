// SPDX-License-Identifier: Apache-2.0
//! TCP: ranks that are processes, on one machine or many.
//!
//! Ranks meet through a store (`rendezvous`). A rank then opens one connection to another for each
//! channel on which it sends to it, at the first send (`connection`). By the kernel's own flow
//! control, a full channel therefore delays no other, and three-hop routing needs few connections.
//! For barriers and to watch each other, every rank connects at the start to the ranks 1, 2, 4, …
//! above it. A rank that notices a loss notifies all ranks connected to it, so every rank learns of
//! it, by name. A rank whose own connection is refused waits for that notice (`peers`).
//! There is no other thread: bytes move during calls (`sockets`), and in the kernel between them.
//! Decision: sockets and epoll by `rustix` rather than tokio, since one owner makes all calls and a
//! runtime would only pass it the bytes from other threads.

mod acceptor;
mod connection;
mod frame;
mod handshake;
mod peers;
mod rendezvous;
mod sockets;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Error, Kind, Result, Store};

pub(crate) use self::peers::PEER_BYTES;
pub use self::rendezvous::clear;
use self::rendezvous::{RankAddress, Rendezvous};
use self::sockets::RankSockets;
use crate::barrier::BarrierState;
use crate::job::RankContext;
use crate::transport::{
    CHANNEL_BYTES_MAX, DEADLINE, Deadline, LOOK, ReceivedMessage, SendOutcome, Transport,
    TransportCounters, check_send,
};
use crate::{Channel, NodeMap, Rank};

/// Longest wait of a leaving rank for its last messages to be sent.
const GOODBYE: Duration = Duration::from_secs(10);

/// Length of the accept backlog, unless the kernel's own limit (`somaxconn`) is lower. Enough for
/// all ranks of a large job that begin to send to one rank at the same time.
const BACKLOG: i32 = 4096;

/// Messages received from memory between two polls of the sockets.
const RECEIVES_PER_LOOK: u32 = 16;

/// Options of TCP ranks.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Bound per channel, on sent and on received bytes each; [`CHANNEL_BYTES_MAX`] by default.
    pub channel_bytes_max: usize,
    /// The deadline of calls that wait, including the rendezvous; [`DEADLINE`] by default.
    pub deadline: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self { channel_bytes_max: CHANNEL_BYTES_MAX, deadline: DEADLINE }
    }
}

/// Runs `work` as the rank that `job` names, after meeting the others in `store`. Leaves the job
/// properly if `work` succeeds; otherwise the rank is lost to the others.
///
/// # Errors
/// As [`TcpTransport::connect`], as `work`, and as [`TcpTransport::finish`].
pub fn run<R>(
    store: &dyn Store,
    job: &RankContext,
    options: &TcpOptions,
    work: impl FnOnce(&mut TcpTransport) -> Result<R>,
) -> Result<R> {
    let mut transport = TcpTransport::connect(store, job, options)?;
    let result = work(&mut transport)?;
    transport.finish()?;
    Ok(result)
}

/// A rank that is a process and is connected to the others by TCP.
#[derive(Debug)]
pub struct TcpTransport {
    network: RankSockets,
    barrier: BarrierState,
    receives: u32,
}

impl TcpTransport {
    /// Meets the other ranks of `job` in `store`, and connects to some of them. Returns once all
    /// ranks have done so. Costs at most two write requests, and listings or reads until all ranks
    /// have arrived; rank 0 reads and deletes one object per rank.
    ///
    /// # Errors
    /// `Exists` if another process claimed this rank; `Unavailable` names ranks that did not arrive
    /// before the deadline or are already lost; errors of the store and the kernel.
    pub fn connect(store: &dyn Store, job: &RankContext, options: &TcpOptions) -> Result<Self> {
        let (listener, host) = listen(job)?;
        let port = listener.local_addr().map_err(|error| Error::io(error, "listen"))?.port();
        let rendezvous = Rendezvous { store, clock: &SystemClock, job, wait: options.deadline };
        let ranks = rendezvous.meet(&RankAddress { host, port, node: job.node.clone() })?;
        let network = RankSockets::new(job.rank, ranks, listener, options.clone())?;
        let mut transport = Self { network, barrier: BarrierState::default(), receives: 0 };
        transport.network.watch()?;
        // The loss of a rank is noticed only once it has answered.
        let deadline = Deadline::start(&transport);
        while let Some(rank) = transport.network.opening() {
            transport.network.progress(LOOK)?;
            transport.network.check_lost()?;
            deadline.check(&transport, || format!("{rank} answers no connection"))?;
        }
        transport.barrier()?;
        transport.network.mark_connected();
        if job.rank == Rank(0) {
            rendezvous.clear()?;
        }
        Ok(transport)
    }

    /// Leaves the job, once all messages are sent. Call it after a barrier: messages that others
    /// sent and this rank has not received are lost. Dropping the transport without it makes the
    /// rank lost, and the calls of others fail.
    ///
    /// # Errors
    /// `Unavailable` if other ranks do not take the last messages, or are lost.
    pub fn finish(mut self) -> Result<()> {
        let end_ns = self.monotonic_ns() + GOODBYE.min(self.deadline()).as_nanos() as u64;
        self.network.say_goodbye();
        while self.network.has_unsent() {
            self.network.check_lost()?;
            if self.monotonic_ns() >= end_ns {
                let what = format!("{}: others do not take its last messages", self.rank());
                return Err(Error::new(Kind::Unavailable, what));
            }
            self.network.progress(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// The port on which this rank listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.network.port()
    }

    /// Number of this rank's connections now, and of those that it refused because the other end
    /// did not prove that it knows the job's secret.
    #[must_use]
    pub fn connections(&self) -> (usize, u64) {
        self.network.connections()
    }
}

/// Listens at the job's address, or on localhost if it has none.
fn listen(job: &RankContext) -> Result<(TcpListener, String)> {
    let local = Ipv4Addr::LOCALHOST.to_string();
    let host = job.address.clone().unwrap_or(local);
    let bound = match host.parse::<IpAddr>() {
        Ok(address) => TcpListener::bind((address, 0)),
        // Other ranks may resolve a name to any of the host's addresses.
        Err(_) => TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))),
    };
    let listener = bound.map_err(|error| Error::io(error, format!("listen at {host}")))?;
    // The standard library's backlog is 128.
    let listening = rustix::net::listen(&listener, BACKLOG);
    listening.map_err(|error| Error::io(error.into(), "listen"))?;
    listener.set_nonblocking(true).map_err(|error| Error::io(error, "listen"))?;
    Ok((listener, host))
}

impl Transport for TcpTransport {
    fn rank(&self) -> Rank {
        self.network.rank
    }

    fn nodes(&self) -> &Arc<NodeMap> {
        &self.network.nodes
    }

    fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<SendOutcome> {
        check_send(self.size(), to, channel, &bytes)?;
        self.network.check_lost()?;
        self.network.try_send(to, channel, bytes)
    }

    fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<ReceivedMessage>> {
        self.receives += 1;
        if self.receives >= RECEIVES_PER_LOOK {
            self.receives = 0;
            self.network.progress(Duration::ZERO)?;
        }
        if let Some(message) = self.network.take(channels)? {
            return Ok(Some(message));
        }
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = self.monotonic_ns().saturating_add(wait_ns);
        loop {
            // Poll even without a wait: messages that have arrived can then be received.
            let left_ns = end_ns.saturating_sub(self.monotonic_ns());
            let left = if self.network.is_lost() { 0 } else { left_ns };
            self.network.progress(Duration::from_nanos(left))?;
            self.receives = 0;
            if let Some(message) = self.network.take(channels)? {
                return Ok(Some(message));
            }
            self.network.check_lost()?;
            if left_ns == 0 || self.network.take_nudge() {
                return Ok(None);
            }
        }
    }

    fn barrier(&mut self) -> Result<()> {
        let mut barrier = std::mem::take(&mut self.barrier);
        let done = barrier.wait(self, |transport, rank| transport.network.has_left(rank));
        self.barrier = barrier;
        done
    }

    fn counters(&self) -> TransportCounters {
        self.network.counters()
    }

    fn deadline(&self) -> Duration {
        self.network.options.deadline
    }

    fn monotonic_ns(&self) -> u64 {
        SystemClock.monotonic_ns()
    }
}
