// SPDX-License-Identifier: Apache-2.0
//! MPI: ranks that `mpirun` or `srun` started, over any network that their MPI supports.
//!
//! A [`PolledTransport`] whose channels are tags and whose sends are `MPI_Issend`. One thread makes
//! all calls. Other users of MPI in the process share its [`MpiProcess`].
//! When a rank dies, MPI or `mpirun` ends the whole job and names the rank.

mod process;

use std::sync::Arc;
use std::time::Duration;

use ::mpi::collective::CommunicatorCollectives;
use ::mpi::datatype::Equivalence;
use ::mpi::point_to_point::{Destination, Source};
use ::mpi::request::{Request, StaticScope};
use ::mpi::topology::{Communicator, SimpleCommunicator};
use esker_base::{Error, Result};

pub use self::process::{MpiProcess, MpiThreads};
use crate::polled::{MessagePassing, PolledOptions, PolledTransport};
use crate::transport::{CHANNEL_BYTES_MAX, DEADLINE, Transport};
use crate::{Channel, NodeMap, Rank};

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
/// As [`MpiProcess::begin`] and [`run_in`].
pub fn run<R>(
    options: &MpiOptions,
    work: impl FnOnce(&mut MpiTransport) -> Result<R>,
    report: impl FnOnce(&Error),
) -> Result<R> {
    run_in(MpiProcess::begin(MpiThreads::Initial)?, options, work, report)
}

/// As [`run`], in a process that has initialized MPI. Finalizes it at the end if `process` has no
/// other owner.
///
/// # Errors
/// `Unsupported` if this thread may not call MPI; `Invalid` for bad options, or if a launcher of
/// another MPI has started this process.
pub fn run_in<R>(
    process: Arc<MpiProcess>,
    options: &MpiOptions,
    work: impl FnOnce(&mut MpiTransport) -> Result<R>,
    report: impl FnOnce(&Error),
) -> Result<R> {
    let mut transport = begin(process, options)?;
    let done = work(&mut transport).and_then(|result| transport.barrier().map(|()| result));
    match done.and_then(|result| transport.finish_sends().map(|()| result)) {
        Ok(result) => Ok(result),
        Err(error) => {
            report(&error);
            transport.messages().world.abort(error.kind().exit_code().into())
        }
    }
}

/// A rank of an MPI job.
pub type MpiTransport = PolledTransport<MpiMessages>;

/// Messages of MPI.
pub struct MpiMessages {
    world: SimpleCommunicator,
    /// Dropped after `world`, which must not outlive MPI.
    _process: Arc<MpiProcess>,
}

fn begin(process: Arc<MpiProcess>, options: &MpiOptions) -> Result<MpiTransport> {
    process.check_thread()?;
    process.check_launcher()?;
    // A communicator of its own keeps messages of other libraries apart.
    let world = SimpleCommunicator::world().duplicate();
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
    let bounds =
        PolledOptions { channel_bytes_max: options.channel_bytes_max, deadline: options.deadline };
    Ok(PolledTransport::new(rank, nodes, bounds, MpiMessages { world, _process: process }))
}

impl MessagePassing for MpiMessages {
    type Request = Request<'static, [u8], StaticScope>;

    unsafe fn start_send(
        &mut self,
        to: Rank,
        channel: Channel,
        bytes: &'static [u8],
    ) -> Result<Self::Request> {
        let receiver = self.world.process_at_rank(i32::try_from(to.0).expect("a rank of MPI"));
        let tag = channel.0.into();
        Ok(receiver.immediate_synchronous_send_with_tag(StaticScope, bytes, tag))
    }

    fn test(&mut self, request: Self::Request) -> Result<Option<Self::Request>> {
        Ok(request.test().err())
    }

    fn receive(&mut self, channel: Channel) -> Result<Option<(Rank, Vec<u8>)>> {
        let found = self.world.any_process().immediate_matched_probe_with_tag(channel.0.into());
        let Some((message, status)) = found else { return Ok(None) };
        let length = usize::try_from(status.count(u8::equivalent_datatype()));
        let mut bytes = vec![0; length.expect("MPI counts bytes from 0")];
        message.matched_receive_into(&mut bytes[..]);
        let from = Rank(u32::try_from(status.source_rank()).expect("MPI counts from 0"));
        Ok(Some((from, bytes)))
    }
}
