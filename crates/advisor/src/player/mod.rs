// SPDX-License-Identifier: Apache-2.0
//! Player: replays a trace on a storage system, and measures.
//!
//! `replay_plan` has the calls of each rank. A target has the files: `big_file` accesses those of
//! the trace, `object_target` makes an object of each request, `shared_file_target` has ranks
//! share files of Esker, and `emulated_target` slows another
//! one down to `emulated_hardware`. The player loads the data that is read beforehand, drops
//! caches, and checks every byte after the call that reads it. Concurrency: a rank is a thread, or a
//! process of a job, with a connection of its own; ranks wait for each other before the first call,
//! at the barriers of the trace, and at the end. Source: Kougkas et al. 2016, §4.1.2 and §4.1.3.

mod big_file;
mod directory_lock;
mod emulated_hardware;
mod emulated_target;
mod load_marker;
#[cfg(feature = "mpi")]
mod mpi_file_target;
mod object_target;
mod replay_content;
mod replay_plan;
mod replay_result;
mod shared_file_target;

use std::time::Duration;

use esker_base::{Error, Kind, Result};
use esker_comm::threads::{self, ThreadOptions};
use esker_comm::{NodeMap, Transport};
use esker_workbench::distribution::LatencyDistribution;
use esker_workbench::gather::gather;
use esker_workbench::histogram::LatencyHistogram;
use esker_workbench::pace::{PaceClock, ServiceQueue, Waiting, request_exact_sleeps};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use self::big_file::BigFileTarget;
pub use self::emulated_hardware::RequestLayout;
pub use self::emulated_target::EmulatedTarget;
pub use self::load_marker::{LoadState, LoadedData, PlanDigest};
#[cfg(feature = "mpi")]
pub use self::mpi_file_target::{MpiFileCalls, MpiFileTarget};
pub use self::object_target::ObjectTarget;
pub use self::replay_content::{check_content, fill_content};
pub use self::replay_plan::{PlanOptions, ReplayFile, ReplayPlan, ReplayStep};
pub use self::replay_result::{ReplayResult, ReplayTiming};
pub use self::shared_file_target::{SHARED_FILE_PREFIX, SharedFileTarget};
use crate::observation::StorageKind;
use crate::trace::TraceOperation;

/// Time that a rank waits for the others at a barrier.
const BARRIER_DEADLINE: Duration = Duration::from_secs(86_400);

/// A storage system, and the way in which requests use it.
pub trait ReplayTarget: Send + Sync {
    /// The name in results and observations.
    fn system(&self) -> String;

    /// The category of the system.
    fn storage_kind(&self) -> StorageKind;

    /// The way in which it stores requests.
    fn layout(&self) -> RequestLayout;

    /// The target as the user names it.
    fn target(&self) -> String;

    /// The data that the target has.
    ///
    /// # Errors
    /// `NotEmpty` if the target has something else; as the system answers.
    fn load_state(&self) -> Result<LoadState>;

    /// Makes all data that the plan reads, durably, at a target without data. A failed load removes
    /// the data that it made; if the process dies in a load, the target is left in
    /// [`LoadState::Partial`].
    ///
    /// # Errors
    /// `NotEmpty` or `Conflict` if the target has something, which stays; as the system answers.
    fn load(&self, plan: &ReplayPlan) -> Result<()>;

    /// Takes loaded data out of caches, as far as the process may.
    ///
    /// # Errors
    /// As the system answers.
    fn drop_caches(&self) -> Result<()>;

    /// A connection for `rank`.
    ///
    /// # Errors
    /// As the system answers.
    fn connect(&self, rank: u32, plan: &ReplayPlan) -> Result<Box<dyn ReplayConnection + '_>>;

    /// Removes everything that `load` and replays made, even interrupted ones, and nothing else.
    ///
    /// # Errors
    /// `NotFound` if they made nothing; as [`ReplayTarget::load_state`].
    fn clear(&self) -> Result<()>;

    /// Ends the use of a target that keeps its data if `is_kept`.
    ///
    /// # Errors
    /// As the system answers.
    fn finish(&self, _is_kept: bool) -> Result<()> {
        Ok(())
    }
}

/// One rank's connection to a target.
pub trait ReplayConnection {
    /// Does `step`. The buffer has the size of the request, and holds the bytes of a write before
    /// the call, and those of a read after it. Returns false for a call that the player leaves out.
    ///
    /// # Errors
    /// As the system answers.
    fn call(&mut self, step: &ReplayStep, buffer: &mut Vec<u8>) -> Result<bool>;

    /// Waits until `until_ns`; a rank of which others may ask something answers meanwhile.
    ///
    /// # Errors
    /// As the system answers.
    fn wait_until_ns(
        &mut self,
        until_ns: u64,
        clock: &dyn PaceClock,
        waiting: Waiting,
    ) -> Result<()> {
        clock.wait_until_ns(until_ns, waiting);
        Ok(())
    }

    /// Waits for all ranks if others may ask something of this one, which they cannot while it waits
    /// in a barrier of the replay. Collective.
    ///
    /// # Errors
    /// As the system answers.
    fn wait_for_ranks(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The times at which calls begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayPacing {
    /// The times of the trace, or as soon as the previous call has returned if that is later.
    Traced,
    /// As soon as the previous call has returned.
    Fast,
}

/// Replays `plan` on `target`, which was loaded with it. Each rank is a thread.
///
/// # Errors
/// `Corrupt` names the file and the byte that was read wrong; the errors of the system.
pub fn replay(
    target: &dyn ReplayTarget,
    plan: &ReplayPlan,
    pacing: ReplayPacing,
    processors: u32,
    clock: &dyn PaceClock,
) -> Result<ReplayResult> {
    let ranks = plan.rank_count();
    let options = ThreadOptions { deadline: BARRIER_DEADLINE, ..ThreadOptions::default() };
    let waiting = Waiting::of(ranks, processors);
    let player = RankPlayer { target, plan, pacing, waiting, clock, failure: Mutex::default() };
    let measured = threads::run_with(NodeMap::even(ranks, ranks)?, &options, |transport| {
        player.run(transport)
    });
    match (measured, player.failure.lock().take()) {
        (Err(_), Some(first)) => Err(first),
        (measured, _) => Ok(player.result(&measured?)),
    }
}

/// Replays the rank of this process, as [`replay`] does, in a job of as many ranks as the plan has.
/// Returns the result at rank 0, and `None` at the others. Collective.
///
/// # Errors
/// As [`replay`]; `Invalid` if the job has more ranks or fewer.
pub fn replay_in_job(
    target: &dyn ReplayTarget,
    plan: &ReplayPlan,
    pacing: ReplayPacing,
    clock: &dyn PaceClock,
    transport: &mut dyn Transport,
) -> Result<Option<ReplayResult>> {
    let ranks = plan.rank_count();
    if transport.size() != ranks {
        let what = format!(
            "the trace has {ranks} ranks, and the job {}: start as many as the trace has",
            transport.size()
        );
        return Err(Error::new(Kind::Invalid, what));
    }
    let (waiting, failure) = (Waiting::Sleeping, Mutex::default());
    let player = RankPlayer { target, plan, pacing, waiting, clock, failure };
    let measured = player.run(transport)?;
    Ok(gather(transport, measured)?.map(|measured| player.result(&measured)))
}

/// Times of one rank, from the beginning of its replay.
#[derive(Serialize, Deserialize)]
struct RankMeasurement {
    last_begin_ns: u64,
    end_ns: u64,
    latency: LatencyDistribution,
    lateness: LatencyDistribution,
    metadata_operations: u64,
    skipped: u64,
}

struct RankPlayer<'a> {
    target: &'a dyn ReplayTarget,
    plan: &'a ReplayPlan,
    pacing: ReplayPacing,
    waiting: Waiting,
    clock: &'a dyn PaceClock,
    /// The first failure of a rank; those of others may be its consequences.
    failure: Mutex<Option<Error>>,
}

impl RankPlayer<'_> {
    /// The result of all ranks, which began together.
    fn result(&self, measured: &[RankMeasurement]) -> ReplayResult {
        let Self { target, plan, .. } = self;
        let mut latency = LatencyDistribution::default();
        let mut lateness = LatencyDistribution::default();
        for rank in measured {
            latency.merge(&rank.latency);
            lateness.merge(&rank.lateness);
        }
        let latest = |of: fn(&RankMeasurement) -> u64| measured.iter().map(of).max().unwrap_or(0);
        let seconds = |ns: u64| ns as f64 / 1e9;
        let timing = (self.pacing == ReplayPacing::Traced).then(|| ReplayTiming {
            late_p50_ns: lateness.quantile_ns(0.5),
            late_p99_ns: lateness.quantile_ns(0.99),
            late_max_ns: lateness.max_ns,
            traced_seconds: seconds(plan.span_ns),
            replayed_seconds: seconds(latest(|rank| rank.last_begin_ns)),
        });
        ReplayResult {
            system: target.system(),
            kind: target.storage_kind(),
            ranks: plan.rank_count(),
            requests: plan.requests,
            bytes: plan.bytes,
            metadata_operations: measured.iter().map(|rank| rank.metadata_operations).sum(),
            skipped: plan.skipped + measured.iter().map(|rank| rank.skipped).sum::<u64>(),
            seconds: seconds(latest(|rank| rank.end_ns)),
            io_seconds: seconds(latest(|rank| rank.latency.sum_ns)),
            latency,
            timing,
        }
    }

    fn run(&self, transport: &mut dyn Transport) -> Result<RankMeasurement> {
        let rank = transport.rank().0;
        request_exact_sleeps();
        // All ranks are there: one that could not start is lost to the others here.
        transport.barrier()?;
        let mut connection = self.target.connect(rank, self.plan)?;
        let played = self.play(&mut *connection, rank, transport);
        // Others may fail as soon as the connection has gone.
        played.map_err(|error| {
            let consequence = Error::new(error.kind(), error.context());
            self.failure.lock().get_or_insert(error);
            consequence
        })
    }

    fn play(
        &self,
        connection: &mut dyn ReplayConnection,
        rank: u32,
        transport: &mut dyn Transport,
    ) -> Result<RankMeasurement> {
        let (mut latency, mut lateness) =
            (LatencyHistogram::default(), LatencyHistogram::default());
        let (mut queue, mut buffer) = (ServiceQueue::default(), Vec::new());
        let (mut metadata_operations, mut skipped) = (0, 0);
        transport.barrier()?;
        let start_ns = self.clock.monotonic_ns();
        let mut last_begin_ns = start_ns;
        for step in &self.plan.ranks[rank as usize] {
            if step.operation == TraceOperation::Barrier {
                connection.wait_for_ranks()?;
                transport.barrier()?;
                continue;
            }
            self.prepare(step, &mut buffer);
            let intended_ns = start_ns.saturating_add(step.begin_ns);
            if self.pacing == ReplayPacing::Traced {
                connection.wait_until_ns(intended_ns, self.clock, self.waiting)?;
            }
            let begin_ns = self.clock.monotonic_ns();
            let is_done = connection.call(step, &mut buffer)?;
            let end_ns = self.clock.monotonic_ns();
            last_begin_ns = begin_ns;
            if !is_done {
                skipped += 1;
                continue;
            }
            latency.record(end_ns - begin_ns);
            lateness.record(queue.lateness_ns(intended_ns, begin_ns, end_ns));
            metadata_operations += u64::from(step.operation.is_open_close());
            if step.operation == TraceOperation::Read {
                self.check(step, &buffer)?;
            }
        }
        let end_ns = self.clock.monotonic_ns();
        connection.wait_for_ranks()?;
        transport.barrier()?;
        Ok(RankMeasurement {
            last_begin_ns: last_begin_ns - start_ns,
            end_ns: end_ns - start_ns,
            latency: latency.distribution(),
            lateness: lateness.distribution(),
            metadata_operations,
            skipped,
        })
    }

    /// Makes the content of a write, or the room for a read, before the call.
    fn prepare(&self, step: &ReplayStep, buffer: &mut Vec<u8>) {
        buffer.resize(usize::try_from(step.bytes).expect("bounded by the plan"), 0);
        if step.operation == TraceOperation::Write {
            fill_content(step.file, step.offset, buffer);
        }
    }

    fn check(&self, step: &ReplayStep, found: &[u8]) -> Result<()> {
        let path = &self.plan.files[step.file as usize].path;
        let name = format!("{}: {path}", self.target.system());
        if found.len() as u64 != step.bytes {
            let what = format!("expected {} bytes, read {}", step.bytes, found.len());
            return Err(Error::corrupt(&name, step.offset, what));
        }
        check_content(&name, step.file, step.offset, found)
    }
}
