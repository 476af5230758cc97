// SPDX-License-Identifier: Apache-2.0
//! Threads: ranks that are threads of one process, for tests, simulated nodes and programs that are
//! not parallel jobs.
//!
//! Every rank has an inbox (`inbox`); a send locks the receiver's inbox and moves the message
//! into it. A message is therefore never copied, and its receiver accounts for the buffered bytes.
//! Lock order: no two inboxes are locked at once.

mod inbox;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Error, Kind, Result};
use parking_lot::Mutex;

use self::inbox::{Delivery, RankInbox};
use crate::barrier::BarrierState;
use crate::transport::{
    CHANNEL_BYTES_MAX, DEADLINE, ReceivedMessage, SendOutcome, Transport, TransportCounters,
    check_send,
};
use crate::{Channel, NodeMap, Rank};

/// Stack of a rank's thread. Pages are committed only when used, so a thousand ranks cost little.
const STACK_BYTES: usize = 1 << 20;

/// Options of ranks that are threads.
#[derive(Clone, Debug)]
pub struct ThreadOptions {
    /// Bound on buffered bytes per channel; [`CHANNEL_BYTES_MAX`] by default.
    pub channel_bytes_max: usize,
    /// The deadline of calls that wait; [`DEADLINE`] by default.
    pub deadline: Duration,
}

impl Default for ThreadOptions {
    fn default() -> Self {
        Self { channel_bytes_max: CHANNEL_BYTES_MAX, deadline: DEADLINE }
    }
}

/// Runs `work` as every rank of a job of `ranks`, `per_node` on each node, and returns their
/// results in rank order.
///
/// # Errors
/// The first error that a rank returned. That rank is lost to the others, whose calls then fail.
///
/// # Panics
/// If a rank panics, once all ranks have ended.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use esker_comm::{Channel, Rank, Transport, threads};
///
/// const GREETINGS: Channel = Channel(1);
/// let heard = threads::run(4, 2, |transport| {
///     let next = Rank((transport.rank().0 + 1) % transport.size());
///     transport.send(next, GREETINGS, b"hello".to_vec())?;
///     Ok(transport.receive_soon(&[GREETINGS], "a greeting")?.from)
/// })?;
/// assert_eq!(heard, [Rank(3), Rank(0), Rank(1), Rank(2)]);
/// # Ok::<(), esker_base::Error>(())
/// ```
pub fn run<R: Send>(
    ranks: u32,
    per_node: u32,
    work: impl Fn(&mut ThreadTransport) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    run_with(NodeMap::even(ranks, per_node)?, &ThreadOptions::default(), work)
}

/// As [`run`], with a given node map and options.
///
/// # Errors
/// As [`run`].
pub fn run_with<R: Send>(
    nodes: NodeMap,
    options: &ThreadOptions,
    work: impl Fn(&mut ThreadTransport) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let size = nodes.size();
    let job = Arc::new(ThreadJob::new(nodes, options));
    let failure = Mutex::new(None);
    let mut results = Vec::new();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for rank in Rank::all(size) {
            let (job, failure, work) = (&job, &failure, &work);
            let thread = std::thread::Builder::new()
                .name(rank.to_string())
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, move || run_rank(job, rank, failure, work));
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    job.lose(rank);
                    let error = Error::io(error, format!("start a thread for {rank}"));
                    failure.lock().get_or_insert(RankFailure::Returned(error));
                }
            }
        }
        results = threads.into_iter().map(|thread| thread.join().ok().flatten()).collect();
    });
    match failure.into_inner() {
        Some(RankFailure::Panicked(panic)) => resume_unwind(panic),
        Some(RankFailure::Returned(error)) => Err(error),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

/// Returns the transports of a job's ranks, in rank order, for a program that starts its threads
/// itself. A rank leaves the job by [`ThreadTransport::finish`]; one that drops its transport is
/// lost to the others, whose calls then fail.
#[must_use]
pub fn transports(nodes: NodeMap, options: &ThreadOptions) -> Vec<ThreadTransport> {
    let job = Arc::new(ThreadJob::new(nodes, options));
    Rank::all(job.nodes.size()).map(|rank| ThreadTransport::new(job.clone(), rank)).collect()
}

/// End of the first failed rank.
enum RankFailure {
    Returned(Error),
    Panicked(Box<dyn Any + Send>),
}

fn run_rank<R>(
    job: &Arc<ThreadJob>,
    rank: Rank,
    failure: &Mutex<Option<RankFailure>>,
    work: impl Fn(&mut ThreadTransport) -> Result<R>,
) -> Option<R> {
    let mut transport = ThreadTransport::new(job.clone(), rank);
    // State that a panic leaves inconsistent is used only to shut down.
    let failed = match catch_unwind(AssertUnwindSafe(|| work(&mut transport))) {
        Ok(Ok(result)) => {
            transport.finish();
            return Some(result);
        }
        Ok(Err(error)) if job.nodes.size() == 1 => RankFailure::Returned(error),
        Ok(Err(error)) => RankFailure::Returned(error.within(rank)),
        Err(panic) => RankFailure::Panicked(panic),
    };
    failure.lock().get_or_insert(failed);
    // The rank is lost to the others once its failure is known.
    drop(transport);
    None
}

/// State shared by the ranks of a job.
#[derive(Debug)]
struct ThreadJob {
    nodes: Arc<NodeMap>,
    options: ThreadOptions,
    /// By rank.
    inboxes: Vec<RankInbox>,
    /// 0, or 1 plus the number of the first lost rank.
    lost: AtomicU64,
}

impl ThreadJob {
    fn new(nodes: NodeMap, options: &ThreadOptions) -> Self {
        let inboxes = Rank::all(nodes.size()).map(|_| RankInbox::default()).collect();
        Self { nodes: Arc::new(nodes), options: options.clone(), inboxes, lost: AtomicU64::new(0) }
    }

    fn leave(&self, rank: Rank) {
        let waiting = self.inboxes[rank.index()].close();
        self.nudge(&waiting);
    }

    fn lose(&self, rank: Rank) {
        let code = u64::from(rank.0) + 1;
        // Only the first loss is the cause; later ones follow from it.
        let _ = self.lost.compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
        self.inboxes[rank.index()].close();
        self.inboxes.iter().for_each(RankInbox::nudge);
    }

    fn nudge(&self, ranks: &[Rank]) {
        ranks.iter().for_each(|rank| self.inboxes[rank.index()].nudge());
    }

    fn check_lost(&self) -> Result<()> {
        match self.lost.load(Ordering::SeqCst) {
            0 => Ok(()),
            code => Err(Error::new(Kind::Unavailable, format!("rank {} is lost", code - 1))),
        }
    }
}

/// A rank that is a thread.
#[derive(Debug)]
pub struct ThreadTransport {
    job: Arc<ThreadJob>,
    rank: Rank,
    counters: TransportCounters,
    barrier: BarrierState,
    has_left: bool,
}

impl ThreadTransport {
    fn new(job: Arc<ThreadJob>, rank: Rank) -> Self {
        let (counters, barrier) = (TransportCounters::default(), BarrierState::default());
        Self { job, rank, counters, barrier, has_left: false }
    }

    /// Leaves the job. Messages that others have sent and this rank has not received are lost, so a
    /// rank leaves after a barrier.
    pub fn finish(mut self) {
        self.has_left = true;
        self.job.leave(self.rank);
    }
}

impl Drop for ThreadTransport {
    fn drop(&mut self) {
        if !self.has_left {
            self.job.lose(self.rank);
        }
    }
}

impl Transport for ThreadTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn nodes(&self) -> &Arc<NodeMap> {
        &self.job.nodes
    }

    fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<SendOutcome> {
        check_send(self.size(), to, channel, &bytes)?;
        self.job.check_lost()?;
        let length = bytes.len() as u64;
        let message = ReceivedMessage { from: self.rank, channel, bytes };
        let inbox = &self.job.inboxes[to.index()];
        match inbox.put(message, self.job.options.channel_bytes_max) {
            Delivery::Done => {}
            Delivery::Full(message) => return Ok(SendOutcome::Full(message.bytes)),
            Delivery::Closed => {
                let what = format!("{to} has left the job and takes no messages");
                return Err(Error::new(Kind::Unavailable, what));
            }
        }
        self.counters.sent_messages += 1;
        self.counters.sent_bytes += length;
        Ok(SendOutcome::Done)
    }

    fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<ReceivedMessage>> {
        let inbox = &self.job.inboxes[self.rank.index()];
        let lost = || self.job.lost.load(Ordering::SeqCst) != 0;
        let taken = inbox.take(channels, wait, self.job.options.channel_bytes_max, lost);
        let Some((message, waiting)) = taken else {
            return self.job.check_lost().map(|()| None);
        };
        self.job.nudge(&waiting);
        self.counters.received_messages += 1;
        self.counters.received_bytes += message.bytes.len() as u64;
        Ok(Some(message))
    }

    fn barrier(&mut self) -> Result<()> {
        let mut barrier = std::mem::take(&mut self.barrier);
        let done =
            barrier.wait(self, |transport, rank| transport.job.inboxes[rank.index()].is_closed());
        self.barrier = barrier;
        done
    }

    fn counters(&self) -> TransportCounters {
        let (buffered_bytes, buffered_bytes_max) = self.job.inboxes[self.rank.index()].bytes();
        TransportCounters { buffered_bytes, buffered_bytes_max, ..self.counters }
    }

    fn deadline(&self) -> Duration {
        self.job.options.deadline
    }

    fn monotonic_ns(&self) -> u64 {
        SystemClock.monotonic_ns()
    }
}
