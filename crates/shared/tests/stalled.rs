// SPDX-License-Identifier: Apache-2.0
//! Ranks that wait for one that does not answer: a call fails at its deadline; repeated after the
//! other rank answers, it succeeds only if nothing was lost. The test controls the clock.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use esker_base::{Kind, Random, Result};
use esker_comm::threads::{self, ThreadTransport};
use esker_comm::transport::DEADLINE;
use esker_comm::{
    Channel, NodeMap, Rank, ReceivedMessage, SendOutcome, Transport, TransportCounters,
};
use esker_extent::Segment;
use esker_fs::repository::Repository;
use esker_shared::message::{REPLY, REQUEST};
use esker_shared::{SharedFile, SharedJob};

use crate::campaign;
use crate::support::{JOB, memory, options, repository, same};

/// The fate of requests that a rank sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requests {
    Pass,
    /// The channel has no room.
    Refused,
    /// The transport takes them, and the receiver is busy computing.
    Unanswered,
}

/// A transport whose requests stall, and whose clock then jumps ahead instead of waiting.
#[derive(Debug)]
struct Stalling<'a> {
    inner: &'a mut ThreadTransport,
    requests: Rc<Cell<Requests>>,
    held: Vec<(Rank, Vec<u8>)>,
    ahead_ns: u64,
    was_refused: bool,
}

impl Stalling<'_> {
    fn requests(&self) -> Requests {
        self.requests.get()
    }

    fn send_held(&mut self) -> Result<()> {
        while let Some((to, bytes)) = self.held.first().cloned() {
            match self.inner.try_send(to, REQUEST, bytes)? {
                SendOutcome::Done => drop(self.held.remove(0)),
                SendOutcome::Full(_) => break,
            }
        }
        Ok(())
    }
}

impl Transport for Stalling<'_> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn nodes(&self) -> &Arc<NodeMap> {
        self.inner.nodes()
    }

    fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<SendOutcome> {
        match self.requests() {
            Requests::Refused if channel == REQUEST => {
                self.was_refused = true;
                Ok(SendOutcome::Full(bytes))
            }
            Requests::Unanswered if channel == REQUEST => {
                self.held.push((to, bytes));
                Ok(SendOutcome::Done)
            }
            Requests::Pass if channel == REQUEST && !self.held.is_empty() => {
                self.send_held()?;
                if self.held.is_empty() {
                    return self.inner.try_send(to, channel, bytes);
                }
                Ok(SendOutcome::Full(bytes))
            }
            _ => self.inner.try_send(to, channel, bytes),
        }
    }

    fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<ReceivedMessage>> {
        let awaits_reply = channels.contains(&REPLY);
        let is_stalled = match self.requests() {
            Requests::Pass => {
                self.send_held()?;
                false
            }
            Requests::Unanswered => awaits_reply,
            Requests::Refused => awaits_reply && !self.held.is_empty(),
        };
        if !std::mem::take(&mut self.was_refused) && !is_stalled {
            return self.inner.receive(channels, wait);
        }
        self.ahead_ns += wait.as_nanos() as u64;
        self.inner.receive(channels, Duration::ZERO)
    }

    fn barrier(&mut self) -> Result<()> {
        self.inner.barrier()
    }

    fn counters(&self) -> TransportCounters {
        self.inner.counters()
    }

    fn deadline(&self) -> Duration {
        self.inner.deadline()
    }

    fn monotonic_ns(&self) -> u64 {
        self.inner.monotonic_ns() + self.ahead_ns
    }
}

type Job<'a> = SharedJob<Stalling<'a>>;

/// Runs `work` as two ranks, of which the first `servers` serve; each may stall its requests.
fn run_stalling(
    servers: u32,
    work: impl Fn(&mut Job, &mut SharedFile, &Cell<Requests>) -> Result<()> + Sync,
) {
    let (store, options) = (memory(), options(servers, 100));
    let repository: Repository = repository(&store);
    let nodes = NodeMap::even(2, 2).expect("two ranks");
    let patient = threads::ThreadOptions { deadline: DEADLINE, ..Default::default() };
    let done = threads::run_with(nodes, &patient, |transport| {
        let requests = Rc::new(Cell::new(Requests::Pass));
        let stalling = Stalling {
            inner: transport,
            requests: requests.clone(),
            held: Vec::new(),
            ahead_ns: 0,
            was_refused: false,
        };
        let mut job = SharedJob::begin(stalling, &repository, JOB, &[], &options)?;
        let mut file = job.open("/f", Some(0o644))?;
        work(&mut job, &mut file, &requests)?;
        job.segments().barrier()
    });
    done.unwrap_or_else(|error| panic!("{error:?}"));
}

fn assert_gave_up(done: Result<()>) {
    let error = done.expect_err("nobody answers");
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("gave up waiting"), "{error}");
}

/// Rank 1's writes are there once a sync has succeeded, as it does once rank 0 answers.
fn assert_synced(job: &mut Job, file: &mut SharedFile, wanted: &[u8]) -> Result<()> {
    job.sync(file)?;
    same(&job.read(file, 0, 1 << 20)?, wanted, "after a sync that succeeded");
    Ok(())
}

/// Symptom: a sync returned `Ok` though no owner had the segments of earlier writes: their bytes
/// were missing from the file forever.
/// Cause: a send that timed out waiting for answers to earlier requests had taken the unsent
/// segments, and dropped them.
/// Fix: they stay until all are sent.
#[test]
fn segments_stay_until_they_are_sent() {
    run_stalling(1, |job, file, requests| {
        if job.segments().rank() == Rank(1) {
            requests.set(Requests::Unanswered);
            // The most requests that may be unanswered.
            for at in 0..256 {
                let _ = job.segments().put_segments(&[Segment::hole(99, at * 7, 1)])?;
            }
            job.write(file, 10, &[7; 250])?;
            assert_gave_up(job.sync(file));
            assert_gave_up(job.sync(file));
            requests.set(Requests::Pass);
            assert_synced(job, file, &[&[0; 10][..], &[7; 250]].concat())?;
        }
        Ok(())
    });
}

/// Symptom: a sync failed forever although all ranks were well.
/// Cause: a request that found no room in its channel before the deadline counted as sent, and the
/// sync waited for its answer.
/// Fix: a request counts as unanswered only once the transport has it.
#[test]
fn a_request_that_was_never_sent_awaits_no_answer() {
    run_stalling(1, |job, file, requests| {
        if job.segments().rank() == Rank(1) {
            requests.set(Requests::Refused);
            job.write(file, 0, &[3; 250])?;
            assert_gave_up(job.sync(file));
            requests.set(Requests::Pass);
            assert_synced(job, file, &[3; 250])?;
        }
        Ok(())
    });
}

/// Symptom: after a sync that timed out waiting for an owner, every later one failed with "segments
/// were lost before".
/// Cause: no answer before the deadline counted as a loss.
/// Fix: the sync fails, and the next one waits for the same answers.
#[test]
fn an_answer_that_comes_late_is_no_loss() {
    run_stalling(1, |job, file, requests| {
        if job.segments().rank() == Rank(1) {
            requests.set(Requests::Unanswered);
            job.write(file, 0, &[5; 250])?;
            assert_gave_up(job.sync(file));
            assert_gave_up(job.sync(file));
            requests.set(Requests::Pass);
            assert_synced(job, file, &[5; 250])?;
        }
        Ok(())
    });
}

/// A rank writes and syncs while its requests stall from time to time: a sync succeeds once nothing
/// stalls, and all ranks read what a successful sync covered.
fn history(seed: u64) {
    const FILE_BYTES: u64 = 3_000;
    let wanted = Mutex::new(Vec::new());
    run_stalling(1, |job, file, requests| {
        if job.segments().rank() == Rank(1) {
            let mut random = Random::from_seed(seed);
            let mut model = Vec::new();
            for step in 0..60 {
                match random.below(9) {
                    0 => requests.set(Requests::Refused),
                    1 => requests.set(Requests::Unanswered),
                    2 | 3 => requests.set(Requests::Pass),
                    4 | 5 => match (job.sync(file), requests.get()) {
                        (Ok(()), Requests::Pass) => {
                            let got = job.read(file, 0, 1 << 20)?;
                            same(&got, &model, &format!("seed {seed}, step {step}"));
                        }
                        // There was nothing left to send, and no answer to wait for.
                        (Ok(()), _) => {}
                        (Err(error), stalled) => {
                            assert_ne!(stalled, Requests::Pass, "seed {seed}, {step}: {error}");
                        }
                    },
                    _ => {
                        let offset = random.below(FILE_BYTES);
                        let bytes = vec![1 + step as u8; 1 + random.below(400) as usize];
                        job.write(file, offset, &bytes)?;
                        let range = offset as usize..offset as usize + bytes.len();
                        model.resize(model.len().max(range.end), 0);
                        model[range].copy_from_slice(&bytes);
                    }
                }
            }
            requests.set(Requests::Pass);
            assert_synced(job, file, &model)?;
            *wanted.lock().expect("no rank has panicked") = model;
        }
        job.barrier()?;
        let wanted = wanted.lock().expect("no rank has panicked").clone();
        same(&job.read(file, 0, 1 << 20)?, &wanted, &format!("seed {seed}: in the end"));
        Ok(())
    });
}

#[test]
fn a_sync_that_succeeds_has_sent_all_whatever_stalled_before() {
    campaign::quick(0..40, history);
}

/// Symptom: when rank 0 could not cut a file, or a rank could not send its earlier writes, the
/// others waited for it until their deadline, and did not learn why.
/// Cause: the failed rank returned without reaching the barriers at which the others waited.
/// Fix: ranks agree on the outcome of each step.
#[test]
fn all_ranks_learn_why_a_file_was_not_cut() {
    for failing in [Rank(0), Rank(1)] {
        // Both ranks serve, so each sends requests to the other.
        run_stalling(2, |job, file, requests| {
            let me = job.segments().rank();
            job.write(file, u64::from(me.0) * 1_000, &[1 + me.0 as u8; 1_000])?;
            if failing == Rank(0) {
                job.sync(file)?;
            }
            job.barrier()?;
            if me == failing {
                requests.set(Requests::Refused);
            }
            let error = job.truncate(file, 500).expect_err("a rank cannot send");
            assert_eq!(error.kind(), Kind::Unavailable, "{error}");
            let wanted = if me == failing { "takes no requests" } else { "gave up waiting" };
            assert!(error.to_string().contains(wanted), "{me}: {error}");
            assert!(error.to_string().contains(&failing.to_string()), "{me}: {error}");
            // All are well again, and no rank is a call ahead of the others.
            requests.set(Requests::Pass);
            assert!(job.truncate(file, 500)? > 0);
            assert_eq!(job.stat(file)?.size, 500);
            same(&job.read(file, 0, 4_000)?, &[1; 500], "cut");
            job.barrier()
        });
    }
}
