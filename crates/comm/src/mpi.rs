// SPDX-License-Identifier: Apache-2.0
//! MPI: ranks that `mpirun` or `srun` started, over any network that their MPI supports.
//!
//! Channels are tags. Sends are synchronous in MPI's sense (`MPI_Issend`): they complete when the
//! receiver has matched them, so the bound on unsent bytes also bounds what MPI may buffer
//! anywhere. One thread makes all calls (MPI_THREAD_FUNNELED). Waits poll with backoff, since MPI
//! has no call that waits for one of several events.
//! When a rank dies, MPI or `mpirun` ends the whole job and names the rank.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use ::mpi::collective::CommunicatorCollectives;
use ::mpi::environment::Universe;
use ::mpi::point_to_point::{Destination, Source};
use ::mpi::request::{Request, StaticScope};
use ::mpi::topology::{Communicator, SimpleCommunicator};
use ::mpi::{Threading, datatype::Equivalence};
use esker_base::clock::SystemClock;
use esker_base::{Clock, Error, Kind, Result};

use crate::barrier::BarrierState;
use crate::queues::held_bytes;
use crate::transport::{
    CHANNEL_BYTES_MAX, DEADLINE, ReceivedMessage, SendOutcome, Transport, TransportCounters,
    check_send,
};
use crate::{Channel, NodeMap, Rank};

/// Polls of MPI before a wait begins to sleep between them; a round trip within a node takes fewer.
const LOOKS_AWAKE: u32 = 200;

/// Longest sleep between polls.
const NAP_MAX: Duration = Duration::from_micros(200);

/// Options of MPI ranks.
#[derive(Clone, Debug)]
pub struct MpiOptions {
    /// Bound on bytes sent but not yet taken, per channel; [`CHANNEL_BYTES_MAX`] by default.
    pub channel_bytes_max: usize,
    /// The deadline of calls that wait; [`DEADLINE`] by default.
    pub deadline: Duration,
    /// Consecutive ranks per node, overriding MPI's own answer: for trying out nodes on one
    /// machine.
    pub per_node: Option<u32>,
}

impl Default for MpiOptions {
    fn default() -> Self {
        Self { channel_bytes_max: CHANNEL_BYTES_MAX, deadline: DEADLINE, per_node: None }
    }
}

/// Runs `work` as this process's MPI rank. A failure aborts the whole job, after `report` was
/// called with the error. A process can call this once.
///
/// # Errors
/// `Exists` if MPI was initialized before, `Invalid` if it does not support MPI_THREAD_FUNNELED.
pub fn run<R>(
    options: &MpiOptions,
    work: impl FnOnce(&mut MpiTransport) -> Result<R>,
    report: impl FnOnce(&Error),
) -> Result<R> {
    let mut transport = MpiTransport::begin(options)?;
    let done = work(&mut transport).and_then(|result| transport.barrier().map(|()| result));
    match done.and_then(|result| transport.finish_sends().map(|()| result)) {
        Ok(result) => Ok(result),
        Err(error) => {
            report(&error);
            transport.world.abort(error.kind().exit_code().into())
        }
    }
}

/// A rank of an MPI job.
pub struct MpiTransport {
    nodes: Arc<NodeMap>,
    rank: Rank,
    options: MpiOptions,
    sends: Vec<PendingSend>,
    /// By channel: bytes of messages that their receivers have not taken.
    unsent: Vec<(Channel, usize)>,
    was_refused: bool,
    counters: TransportCounters,
    barrier: BarrierState,
    world: SimpleCommunicator,
    /// Finalizes MPI on drop, last.
    _universe: Universe,
}

impl std::fmt::Debug for MpiTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MpiTransport").field("rank", &self.rank).finish_non_exhaustive()
    }
}

/// A message that its receiver has not taken.
struct PendingSend {
    request: Request<'static, [u8], StaticScope>,
    bytes: LentBuffer,
    channel: Channel,
}

/// Bytes lent to MPI.
struct LentBuffer {
    start: *mut u8,
    length: usize,
    capacity: usize,
}

impl LentBuffer {
    fn new(bytes: Vec<u8>) -> (Self, &'static [u8]) {
        let mut bytes = ManuallyDrop::new(bytes);
        let (start, length, capacity) = (bytes.as_mut_ptr(), bytes.len(), bytes.capacity());
        // SAFETY: start and length are those of a vector that is never dropped, moved or changed
        // until `reclaim`, which asks that nothing refers to it any more.
        (Self { start, length, capacity }, unsafe { std::slice::from_raw_parts(start, length) })
    }

    /// Frees the bytes.
    ///
    /// # Safety
    /// The slice that `new` returned must not be used any more.
    unsafe fn reclaim(self) {
        // SAFETY: the parts are those of the vector that `new` took, which nobody else frees.
        drop(unsafe { Vec::from_raw_parts(self.start, self.length, self.capacity) });
    }
}

impl MpiTransport {
    fn begin(options: &MpiOptions) -> Result<Self> {
        let Some((universe, threading)) = ::mpi::initialize_with_threading(Threading::Funneled)
        else {
            return Err(Error::new(Kind::Exists, "MPI was already initialized in this process"));
        };
        if threading < Threading::Funneled {
            let what = format!("this MPI offers {threading:?}, but Funneled is needed");
            return Err(Error::new(Kind::Invalid, what));
        }
        // A communicator of its own keeps messages of other libraries apart.
        let world = universe.world().duplicate();
        let number = |rank: i32| u32::try_from(rank).expect("MPI counts from 0");
        let (rank, size) = (Rank(number(world.rank())), number(world.size()));
        let nodes = match options.per_node {
            Some(per_node) => NodeMap::even(size, per_node)?,
            None => {
                let mut label = [world.rank()];
                let node = world.split_shared(world.rank());
                ::mpi::collective::Root::broadcast_into(&node.process_at_rank(0), &mut label);
                let mut labels = vec![0; size as usize];
                world.all_gather_into(&label, &mut labels);
                NodeMap::of_labels(&labels)?
            }
        };
        Ok(Self {
            nodes: Arc::new(nodes),
            rank,
            options: options.clone(),
            sends: Vec::new(),
            unsent: Vec::new(),
            was_refused: false,
            counters: TransportCounters::default(),
            barrier: BarrierState::default(),
            world,
            _universe: universe,
        })
    }

    /// Name and version of the MPI library.
    #[must_use]
    pub fn library() -> String {
        ::mpi::environment::library_version().unwrap_or_default()
    }

    fn unsent(&mut self, channel: Channel) -> &mut usize {
        let place = self.unsent.iter().position(|(known, _)| *known == channel);
        let place = place.unwrap_or_else(|| {
            self.unsent.push((channel, 0));
            self.unsent.len() - 1
        });
        &mut self.unsent[place].1
    }

    /// Frees the bytes of completed sends; returns whether that made room for a refused send.
    fn reap_sends(&mut self) -> bool {
        let sends = std::mem::take(&mut self.sends);
        let mut has_room = false;
        for PendingSend { request, bytes, channel } in sends {
            match request.test() {
                Ok(_) => {
                    let held = held_bytes(bytes.length);
                    // SAFETY: the request is complete, so MPI no longer reads its bytes.
                    unsafe { bytes.reclaim() };
                    self.counters.buffered_bytes -= held as u64;
                    let half = self.options.channel_bytes_max / 2;
                    let unsent = self.unsent(channel);
                    *unsent -= held;
                    has_room |= *unsent <= half;
                }
                Err(request) => self.sends.push(PendingSend { request, bytes, channel }),
            }
        }
        has_room && std::mem::take(&mut self.was_refused)
    }

    fn finish_sends(&mut self) -> Result<()> {
        let end_ns = self.monotonic_ns().saturating_add(self.options.deadline.as_nanos() as u64);
        while !self.sends.is_empty() {
            self.reap_sends();
            if self.monotonic_ns() > end_ns {
                let what = format!("{}: others do not take its last messages", self.rank);
                return Err(Error::new(Kind::Unavailable, what));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn take(&mut self, channels: &[Channel]) -> Option<ReceivedMessage> {
        for channel in channels {
            let found = self.world.any_process().immediate_matched_probe_with_tag(channel.0.into());
            let Some((message, status)) = found else { continue };
            let length = usize::try_from(status.count(u8::equivalent_datatype()));
            let mut bytes = vec![0; length.expect("MPI counts bytes from 0")];
            message.matched_receive_into(&mut bytes[..]);
            self.counters.received_messages += 1;
            self.counters.received_bytes += bytes.len() as u64;
            let from = Rank(u32::try_from(status.source_rank()).expect("MPI counts from 0"));
            return Some(ReceivedMessage { from, channel: *channel, bytes });
        }
        None
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn nodes(&self) -> &Arc<NodeMap> {
        &self.nodes
    }

    fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<SendOutcome> {
        check_send(self.size(), to, channel, &bytes)?;
        let held = held_bytes(bytes.len());
        let bytes_max = self.options.channel_bytes_max;
        if *self.unsent(channel) > 0 && *self.unsent(channel) + held > bytes_max {
            self.reap_sends();
            if *self.unsent(channel) > 0 && *self.unsent(channel) + held > bytes_max {
                self.was_refused = true;
                return Ok(SendOutcome::Full(bytes));
            }
        }
        self.counters.sent_messages += 1;
        self.counters.sent_bytes += bytes.len() as u64;
        self.counters.buffered_bytes += held as u64;
        self.counters.buffered_bytes_max =
            self.counters.buffered_bytes_max.max(self.counters.buffered_bytes);
        *self.unsent(channel) += held;
        let (bytes, slice) = LentBuffer::new(bytes);
        let receiver = self.world.process_at_rank(i32::try_from(to.0).expect("a rank of MPI"));
        let tag = channel.0.into();
        let request = receiver.immediate_synchronous_send_with_tag(StaticScope, slice, tag);
        self.sends.push(PendingSend { request, bytes, channel });
        Ok(SendOutcome::Done)
    }

    fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<ReceivedMessage>> {
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = self.monotonic_ns().saturating_add(wait_ns);
        let mut looks = 0;
        loop {
            if let Some(message) = self.take(channels) {
                return Ok(Some(message));
            }
            if self.reap_sends() || self.monotonic_ns() >= end_ns {
                return Ok(None);
            }
            looks += 1;
            if looks < LOOKS_AWAKE {
                std::thread::yield_now();
            } else {
                std::thread::sleep(
                    (Duration::from_micros(10) * (looks / LOOKS_AWAKE)).min(NAP_MAX),
                );
            }
        }
    }

    fn barrier(&mut self) -> Result<()> {
        let mut barrier = std::mem::take(&mut self.barrier);
        let done = barrier.wait(self, |_, _| false);
        self.barrier = barrier;
        done
    }

    fn counters(&self) -> TransportCounters {
        self.counters
    }

    fn deadline(&self) -> Duration {
        self.options.deadline
    }

    fn monotonic_ns(&self) -> u64 {
        SystemClock.monotonic_ns()
    }
}

impl Drop for MpiTransport {
    /// Leaks the bytes of incomplete sends: MPI may read them until the process ends.
    fn drop(&mut self) {
        std::mem::take(&mut self.sends).into_iter().for_each(|send| std::mem::forget(send.request));
    }
}
