//! TCP: ranks that are processes, on one machine or many.
//!
//! Ranks meet through a store ([`meeting`]). Then a rank opens a connection to another for each
//! channel on which it sends to it, when it first does ([`connection`]): so a channel that is full
//! holds up no other, by the kernel's own flow control, and three-hop routing needs few. For barriers
//! and to watch over each other, every rank has connections to those 1, 2, 4, … above it from the
//! start; whoever notices a loss tells all it is connected with, so everybody learns of it and by name.
//! A rank that is connected with none of those, and is refused, waits for that word ([`peers`]).
//! There is no other thread: bytes move during calls ([`network`]), and in the kernel between them.
//! Decision: sockets and epoll by `rustix` rather than tokio, since one owner makes all calls and a
//! runtime would only hand bytes to it from other threads.

mod connection;
mod door;
mod frame;
mod greeting;
mod meeting;
mod network;
mod peers;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Error, Kind, Result, Store};

pub use self::meeting::clear;
use self::meeting::{Entry, Meeting};
use self::network::Network;
pub(crate) use self::peers::PEER_BYTES;
use crate::barrier::Barrier;
use crate::job::Job;
use crate::transport::{
    CHANNEL_BYTES_MAX, Counters, DEADLINE, Deadline, LOOK, Message, Sent, Transport, check_send,
};
use crate::{Channel, NodeMap, Rank};

/// How long a rank that leaves waits for its last messages to go.
const GOODBYE: Duration = Duration::from_secs(10);

/// Connections that the kernel keeps until they are accepted, unless its own bound (`somaxconn`) is
/// less: as many as ranks of a large job that begin to send to one at the same time.
const BACKLOG: i32 = 4096;

/// Messages that are received from memory before the sockets are looked at again.
const RECEIVES_PER_LOOK: u32 = 16;

/// How TCP ranks behave.
#[derive(Clone, Debug)]
pub struct Options {
    /// [`CHANNEL_BYTES_MAX`], unless it is to be something else; for what is sent and what came each.
    pub channel_bytes_max: usize,
    /// [`DEADLINE`], unless it is to be something else; for the meeting, too.
    pub deadline: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { channel_bytes_max: CHANNEL_BYTES_MAX, deadline: DEADLINE }
    }
}

/// Runs `work` as the rank that `job` says, which meets the others in `store`, and leaves the job
/// properly if it succeeds; else it is lost to the others.
///
/// # Errors
/// As [`TcpTransport::connect`], as `work`, and as [`TcpTransport::finish`].
pub fn run<R>(
    store: &dyn Store,
    job: &Job,
    options: &Options,
    work: impl FnOnce(&mut TcpTransport) -> Result<R>,
) -> Result<R> {
    let mut transport = TcpTransport::connect(store, job, options)?;
    let result = work(&mut transport)?;
    transport.finish()?;
    Ok(result)
}

/// A rank that is a process, and reaches the others by TCP.
#[derive(Debug)]
pub struct TcpTransport {
    network: Network,
    barrier: Barrier,
    receives: u32,
}

impl TcpTransport {
    /// Meets the other ranks of `job` in `store`, and connects to some. Returns once all ranks have.
    /// Two write requests at most, and a listing or read now and then until all have come; rank 0
    /// reads and deletes an object of each rank.
    ///
    /// # Errors
    /// `Exists` if another process took itself for this rank; `Unavailable` if ranks did not come
    /// before the deadline, which are named, or are lost already; those of the store and the kernel.
    pub fn connect(store: &dyn Store, job: &Job, options: &Options) -> Result<Self> {
        let (listener, host) = listen(job)?;
        let port = listener.local_addr().map_err(|error| Error::io(error, "listen"))?.port();
        let meeting = Meeting { store, clock: &SystemClock, job, wait: options.deadline };
        let met = meeting.meet(&Entry { host, port, node: job.node.clone() })?;
        let network = Network::new(job.rank, met, listener, options.clone())?;
        let mut transport = Self { network, barrier: Barrier::default(), receives: 0 };
        transport.network.watch()?;
        // Only of a rank that has answered it shows that it is lost.
        let deadline = Deadline::start(&transport);
        while let Some(rank) = transport.network.opening() {
            transport.network.progress(LOOK)?;
            transport.network.check_lost()?;
            deadline.check(&transport, || format!("{rank} answers no connection"))?;
        }
        transport.barrier()?;
        transport.network.note_met();
        if job.rank == Rank(0) {
            meeting.clear()?;
        }
        Ok(transport)
    }

    /// Leaves the job, once what was sent is gone. Leave after a barrier: what others have sent and
    /// this rank has not received is lost. Dropping the transport instead is being lost: others fail.
    ///
    /// # Errors
    /// `Unavailable` if others do not take what was sent, or are lost.
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

    /// The port at which others reach this rank.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.network.port()
    }

    /// Connections of this rank now, and how many it refused because the other end did not prove that
    /// it knows the job's secret.
    #[must_use]
    pub fn connections(&self) -> (usize, u64) {
        self.network.connections()
    }
}

/// Listens where the job says, else on this host alone.
fn listen(job: &Job) -> Result<(TcpListener, String)> {
    let local = Ipv4Addr::LOCALHOST.to_string();
    let host = job.address.clone().unwrap_or(local);
    let bound = match host.parse::<IpAddr>() {
        Ok(address) => TcpListener::bind((address, 0)),
        // By a name others may mean any of the host's addresses.
        Err(_) => TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))),
    };
    let listener = bound.map_err(|error| Error::io(error, format!("listen at {host}")))?;
    // The standard library asks for 128.
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

    fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<Sent> {
        check_send(self.size(), to, channel, &bytes)?;
        self.network.check_lost()?;
        self.network.try_send(to, channel, bytes)
    }

    fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<Message>> {
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
            // Without a wait a look is still taken: what has come is there to be received.
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

    fn counters(&self) -> Counters {
        self.network.counters()
    }

    fn deadline(&self) -> Duration {
        self.network.options.deadline
    }

    fn monotonic_ns(&self) -> u64 {
        SystemClock.monotonic_ns()
    }
}
