// SPDX-License-Identifier: Apache-2.0
//! Communicators: the ranks of a job and the messages between them.
//!
//! A communicator owns its transport behind a lock, and lends it to one user at a time: an indexed
//! directory that is written, or a job that shares files. All ranks use it in the same order, as an
//! MPI communicator. The transport ends with the communicator, or with its user if that lives
//! longer.
//!
//! The lock is only tried: a message function of the caller that calls back into the library, and a
//! second thread, get an error.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker::{Error, Kind, Rank, RankContext, Result, Store, Transport, tcp, threads};
use esker_comm::polled::{PolledOptions, PolledTransport};
use esker_comm::{Channel, NodeMap, ReceivedMessage, SendOutcome, TransportCounters};
use parking_lot::Mutex;

use crate::arguments::{bytes_mut, invalid, optional_text, put, put_new, slice_mut};
use crate::boundary::{call, count};
use crate::handle::{ClosedObject, Handle, handle_kind};
use crate::message_functions::{CMessageFunctions, MessageFunctions};
use crate::options::read_known;

/// Broadcasts of the caller and of this library.
const BROADCAST: Channel = Channel(0x6f00);

/// Answers of ranks to the question whether all can go on.
const AGREEMENT: Channel = Channel(0x6f01);

/// Maximum number of ranks that are threads of one process.
const THREADS_MAX: usize = 1 << 16;

/// The transport by which a rank reaches the others.
enum RankTransport {
    Threads(threads::ThreadTransport),
    Tcp(Box<tcp::TcpTransport>),
    Functions(Box<PolledTransport<MessageFunctions>>),
}

impl RankTransport {
    fn dynamic(&mut self) -> &mut (dyn Transport + Send) {
        match self {
            Self::Threads(transport) => transport,
            Self::Tcp(transport) => &mut **transport,
            Self::Functions(transport) => &mut **transport,
        }
    }

    fn counters(&self) -> TransportCounters {
        match self {
            Self::Threads(transport) => transport.counters(),
            Self::Tcp(transport) => transport.counters(),
            Self::Functions(transport) => transport.counters(),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Threads(transport) => {
                transport.finish();
                Ok(())
            }
            Self::Tcp(transport) => transport.finish(),
            Self::Functions(mut transport) => transport.finish_sends(),
        }
    }
}

/// A transport that is left when nothing uses it any more.
struct OwnedTransport(Mutex<Option<RankTransport>>);

impl OwnedTransport {
    fn finish(&self) -> Result<()> {
        self.0.lock().take().map_or(Ok(()), RankTransport::finish)
    }
}

impl Drop for OwnedTransport {
    fn drop(&mut self) {
        // A caller that wants to see an error closes the communicator last.
        let _ = self.finish();
    }
}

/// A rank of a job.
pub struct Communicator {
    transport: Arc<OwnedTransport>,
    is_lent: Arc<AtomicBool>,
    rank: Rank,
    nodes: Arc<NodeMap>,
    deadline: Duration,
}

handle_kind!(Communicator, 8, "communicator");

/// The transport of a communicator, lent to one user.
pub struct LentTransport {
    transport: Arc<OwnedTransport>,
    is_lent: Arc<AtomicBool>,
    rank: Rank,
    nodes: Arc<NodeMap>,
    deadline: Duration,
}

impl Drop for LentTransport {
    fn drop(&mut self) {
        self.is_lent.store(false, Ordering::Release);
    }
}

impl Communicator {
    fn new(mut transport: RankTransport) -> Self {
        let dynamic = transport.dynamic();
        let (rank, nodes) = (dynamic.rank(), dynamic.nodes().clone());
        let deadline = dynamic.deadline();
        let is_lent = Arc::new(AtomicBool::new(false));
        let transport = Arc::new(OwnedTransport(Mutex::new(Some(transport))));
        Self { transport, is_lent, rank, nodes, deadline }
    }

    /// Lends the transport.
    pub fn lend(&self) -> Result<LentTransport> {
        if self.is_lent.swap(true, Ordering::Acquire) {
            let what =
                "communicator: a writer or a job uses it; finish that first, or make another";
            return Err(invalid(what));
        }
        Ok(LentTransport {
            transport: self.transport.clone(),
            is_lent: self.is_lent.clone(),
            rank: self.rank,
            nodes: self.nodes.clone(),
            deadline: self.deadline,
        })
    }

    fn size(&self) -> u32 {
        self.nodes.size()
    }
}

impl LentTransport {
    fn run<R>(&self, act: impl FnOnce(&mut (dyn Transport + Send)) -> Result<R>) -> Result<R> {
        let Some(mut transport) = self.transport.0.try_lock() else {
            return Err(invalid("communicator: another call uses it, of this or another thread"));
        };
        match transport.as_mut() {
            Some(transport) => act(transport.dynamic()),
            None => Err(Error::new(Kind::Closed, "communicator: it was closed")),
        }
    }

    /// The bit by which this rank differs from the one above it in the binomial tree of ranks.
    fn own_bit(&self) -> u32 {
        match self.rank.0 {
            0 => self.size().next_power_of_two(),
            rank => 1 << rank.trailing_zeros(),
        }
    }

    /// The ranks below this one in the tree.
    fn below(&self) -> Vec<Rank> {
        let (rank, size) = (self.rank.0, self.size());
        let bits = (0..self.own_bit().trailing_zeros()).rev().map(|bit| 1 << bit);
        bits.map(|bit: u32| rank + bit).filter(|below| *below < size).map(Rank).collect()
    }

    /// Agrees with all ranks that each of them can go on. Collective.
    pub fn agree<R>(&mut self, own: Result<R>) -> Result<R> {
        let below = self.below();
        let mut all_can = own.is_ok();
        for _ in &below {
            let answer = self.receive_soon(&[AGREEMENT], "an answer of another rank")?;
            all_can &= answer.bytes == [1];
        }
        if self.rank != Rank(0) {
            let above = Rank(self.rank.0 - self.own_bit());
            self.send(above, AGREEMENT, vec![all_can.into()])?;
        }
        let decided = self.broadcast(vec![all_can.into()])?;
        let own = own?;
        if decided != [1] {
            let what = "another rank cannot go on; its own call has the reason";
            return Err(Error::new(Kind::Unavailable, what));
        }
        Ok(own)
    }

    /// Sends `value` of rank 0 to all ranks along a binomial tree.
    pub fn broadcast(&mut self, value: Vec<u8>) -> Result<Vec<u8>> {
        let value = match self.rank {
            Rank(0) => value,
            _ => self.receive_soon(&[BROADCAST], "a broadcast of rank 0")?.bytes,
        };
        for below in self.below() {
            self.send(below, BROADCAST, value.clone())?;
        }
        Ok(value)
    }
}

impl Transport for LentTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn nodes(&self) -> &Arc<NodeMap> {
        &self.nodes
    }

    fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<SendOutcome> {
        self.run(|transport| transport.try_send(to, channel, bytes))
    }

    fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<ReceivedMessage>> {
        self.run(|transport| transport.receive(channels, wait))
    }

    fn barrier(&mut self) -> Result<()> {
        self.run(|transport| transport.barrier())
    }

    fn counters(&self) -> TransportCounters {
        let transport = self.transport.0.try_lock();
        transport.and_then(|open| open.as_ref().map(RankTransport::counters)).unwrap_or_default()
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn monotonic_ns(&self) -> u64 {
        self.run(|transport| Ok(transport.monotonic_ns())).unwrap_or(u64::MAX)
    }
}

fn thread_ranks(size: u32, per_node: u32) -> Result<Vec<threads::ThreadTransport>> {
    let options = threads::ThreadOptions::default();
    Ok(threads::transports(NodeMap::even(size, per_node)?, &options))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_comm_self(comm: *mut Handle<Communicator>) -> c_int {
    call(|| unsafe {
        put_new(comm, || {
            let alone = thread_ranks(1, 1)?.pop().expect("a job of one rank has one");
            Ok(Communicator::new(RankTransport::Threads(alone)))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_comm_threads(
    ranks: usize,
    ranks_per_node: u32,
    comms: *mut Handle<Communicator>,
) -> c_int {
    call(|| unsafe {
        if ranks == 0 || ranks > THREADS_MAX {
            return Err(invalid(format!("{ranks} ranks: 1 to {THREADS_MAX} can be threads")));
        }
        let comms = slice_mut(comms, ranks, "comms")?;
        comms.fill(Handle::NULL);
        let per_node = if ranks_per_node == 0 { ranks as u32 } else { ranks_per_node };
        for (target, transport) in comms.iter_mut().zip(thread_ranks(ranks as u32, per_node)?) {
            *target = Handle::new(Communicator::new(RankTransport::Threads(transport)))?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_comm_from_environment(
    meet: *const c_char,
    comm: *mut Handle<Communicator>,
) -> c_int {
    call(|| unsafe {
        let meet = optional_text(meet, "meet")?;
        put_new(comm, || {
            let Some(job) = RankContext::from_env()? else {
                let alone = thread_ranks(1, 1)?.pop().expect("a job of one rank has one");
                return Ok(Communicator::new(RankTransport::Threads(alone)));
            };
            let url = meet.or(job.meet.as_deref()).ok_or_else(|| {
                invalid("the ranks have no store to meet in: give its URL, or set ESKER_MEET")
            })?;
            let store = Store::open(url)?;
            let options = tcp::TcpOptions::default();
            let transport = tcp::TcpTransport::connect(&**store.objects(), &job, &options)?;
            Ok(Communicator::new(RankTransport::Tcp(Box::new(transport))))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_comm_from_functions(
    functions: *const CMessageFunctions,
    comm: *mut Handle<Communicator>,
) -> c_int {
    call(|| unsafe {
        if functions.is_null() {
            return Err(invalid("functions is NULL"));
        }
        let (functions, is_known) = read_known(functions, "functions")?;
        let context = functions.context();
        put_new(comm, || {
            is_known?;
            let (functions, rank, nodes) = MessageFunctions::new(&functions, context)?;
            let options = PolledOptions::default();
            let transport = PolledTransport::new(rank, nodes, options, functions);
            Ok(Communicator::new(RankTransport::Functions(Box::new(transport))))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_comm_rank(
    comm: Handle<Communicator>,
    rank: *mut u32,
    size: *mut u32,
) -> c_int {
    call(|| unsafe {
        let (own, ranks) = comm.with(|comm| Ok((comm.rank.0, comm.size())))?;
        put(rank, own, "rank")?;
        put(size, ranks, "size")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_comm_barrier(comm: Handle<Communicator>) -> c_int {
    call(|| comm.with(|comm| comm.lend()?.barrier()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_comm_broadcast(
    comm: Handle<Communicator>,
    buffer: *mut c_void,
    buffer_bytes: usize,
) -> i64 {
    count(|| unsafe {
        // A rank without a buffer takes part, so that the others do not wait for it.
        let buffer = bytes_mut(buffer, buffer_bytes, "buffer");
        let value = comm.with(|comm| {
            let own = buffer.as_deref().ok().filter(|_| comm.rank == Rank(0));
            comm.lend()?.broadcast(own.unwrap_or_default().to_vec())
        })?;
        let buffer = buffer?;
        if value.len() != buffer.len() {
            let what = format!("rank 0 sent {} bytes, not {}", value.len(), buffer.len());
            return Err(invalid(what));
        }
        buffer.copy_from_slice(&value);
        Ok(value.len() as u64)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_comm_close(comm: Handle<Communicator>) -> c_int {
    call(|| match comm.take()? {
        ClosedObject::Owned(comm) if !comm.is_lent.load(Ordering::Acquire) => {
            comm.transport.finish()
        }
        ClosedObject::Owned(_) | ClosedObject::InUse | ClosedObject::Inherited => Ok(()),
    })
}
