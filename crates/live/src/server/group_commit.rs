// SPDX-License-Identifier: Apache-2.0
//! Group commit: one thread syncs the session for all requests that wait for it, and checks whether
//! the set still belongs to this server.
//!
//! A sync ends with a check of the set's manifests, so a fenced server never gives a durable
//! answer. A server gives answers without durability for [`LEASE`] after its last check began, and
//! a server that takes over waits as long before it answers anything, so after the takeover no
//! client sees a state from before it. Durability does not depend on time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_base::{Clock, Error, Kind, Result};
use esker_fs::session::Session;
use parking_lot::{Condvar, Mutex};
use prometheus::Histogram;
use tokio::sync::watch;

use super::owed_records::OwedRecords;

/// Time after the beginning of a check of the set for which its server answers reads.
pub(super) const LEASE: Duration = Duration::from_secs(1);
/// Interval of syncs and checks of a server without requests for any.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// State of the commits, as waiting requests see it.
#[derive(Clone, Debug, Default)]
struct CommitProgress {
    /// Requests for commits up to this one are done.
    done: u64,
    /// The reason that no commit succeeds any more.
    failure: Option<Arc<Error>>,
}

#[derive(Debug, Default)]
struct CommitDemand {
    /// Number of the last request for a commit.
    wanted: u64,
    is_ending: bool,
}

/// The thread that syncs a session.
#[derive(Debug)]
pub(super) struct GroupCommit {
    session: Session,
    /// Records that a sync must not leave behind.
    owed_records: OwedRecords,
    clock: Arc<dyn Clock>,
    demand: Mutex<CommitDemand>,
    demanded: Condvar,
    progress: watch::Sender<CommitProgress>,
    /// Time at which the last successful check began, by the monotonic clock.
    looked_ns: AtomicU64,
    /// Time at which the last successful sync began, by the monotonic clock.
    synced_ns: AtomicU64,
    has_failed: AtomicBool,
    /// Durations of syncs, in seconds.
    durations: Histogram,
}

impl GroupCommit {
    /// Begins to commit `session`, whose set this process checked at `looked_ns`, when it opened
    /// it. `durations` gets the durations of syncs.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start(
        session: Session,
        clock: Arc<dyn Clock>,
        (looked_ns, durations): (u64, Histogram),
    ) -> Result<(Arc<Self>, JoinHandle<()>)> {
        let commit = Arc::new(Self {
            session,
            owed_records: OwedRecords::default(),
            clock,
            demand: Mutex::default(),
            demanded: Condvar::new(),
            progress: watch::Sender::new(CommitProgress::default()),
            looked_ns: AtomicU64::new(looked_ns),
            synced_ns: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            durations,
        });
        let thread = std::thread::Builder::new().name("esker-live-commit".into());
        let run = commit.clone();
        let thread = thread.spawn(move || run.run());
        let thread = thread.map_err(|error| Error::io(error, "start the thread that syncs"))?;
        Ok((commit, thread))
    }

    fn run(&self) {
        loop {
            let mut demand = self.demand.lock();
            let done = self.progress.borrow().done;
            if demand.wanted == done && !demand.is_ending {
                self.demanded.wait_for(&mut demand, LOOK_INTERVAL);
            }
            let (wanted, is_ending) = (demand.wanted, demand.is_ending);
            drop(demand);
            if is_ending && wanted == done {
                return;
            }
            let began_ns = self.clock.monotonic_ns();
            match self.owed_records.put(&self.session).and_then(|()| self.session.sync()) {
                Ok(()) => {
                    self.looked_ns.store(began_ns, Ordering::Release);
                    self.synced_ns.store(began_ns, Ordering::Release);
                    let lasted_ns = self.clock.monotonic_ns().saturating_sub(began_ns);
                    self.durations.observe(lasted_ns as f64 / 1e9);
                    self.progress.send_modify(|progress| progress.done = wanted);
                }
                // Durable answers wait for free space. Other answers, and failures of changes, are
                // given while this server owns the set.
                Err(error) if error.kind() == Kind::NoSpace => {
                    if is_ending {
                        return;
                    }
                    if let Err(error) = self.session.check_owner() {
                        self.fail(error);
                        return;
                    }
                    self.looked_ns.store(began_ns, Ordering::Release);
                    let mut demand = self.demand.lock();
                    if !demand.is_ending {
                        self.demanded.wait_for(&mut demand, LOOK_INTERVAL);
                    }
                }
                Err(error) => {
                    self.fail(error);
                    return;
                }
            }
        }
    }

    /// Records of requests that are put before the next sync.
    pub fn owed_records(&self) -> &OwedRecords {
        &self.owed_records
    }

    /// Ends all commits with `error`.
    fn fail(&self, error: Error) {
        self.has_failed.store(true, Ordering::Release);
        let error = Arc::new(error);
        self.progress.send_modify(|progress| progress.failure = Some(error));
    }

    /// Requests a commit of everything done so far. Returns its number for [`GroupCommit::wait`].
    pub fn demand(&self) -> u64 {
        let mut demand = self.demand.lock();
        demand.wanted += 1;
        self.demanded.notify_one();
        demand.wanted
    }

    /// Returns once the commit that was demanded as `number` is done.
    ///
    /// # Errors
    /// The failure of this or an earlier commit; the server then answers nothing any more.
    pub async fn wait(&self, number: u64) -> Result<()> {
        let mut progress = self.progress.subscribe();
        let reached = progress
            .wait_for(|progress| progress.done >= number || progress.failure.is_some())
            .await
            .expect("the sender is part of this value");
        match &reached.failure {
            Some(failure) if reached.done < number => Err(copy_of(failure)),
            _ => Ok(()),
        }
    }

    /// Returns once no commit succeeds any more.
    pub async fn failed(&self) {
        let mut progress = self.progress.subscribe();
        let failed = progress.wait_for(|progress| progress.failure.is_some()).await;
        failed.expect("the sender is part of this value");
    }

    /// True if answers may be given without another check.
    pub fn has_lease(&self) -> bool {
        let age_ns =
            self.clock.monotonic_ns().saturating_sub(self.looked_ns.load(Ordering::Acquire));
        u128::from(age_ns) < LEASE.as_nanos() && !self.has_failed.load(Ordering::Acquire)
    }

    /// True if everything done until `done_ns`, by the monotonic clock, survives power loss.
    pub fn has_synced(&self, done_ns: u64) -> bool {
        self.synced_ns.load(Ordering::Acquire) > done_ns
    }

    /// The reason that no commit succeeds any more.
    pub fn failure(&self) -> Option<Error> {
        self.progress.borrow().failure.as_deref().map(copy_of)
    }

    /// Ends the thread once everything demanded is done.
    pub fn end(&self) {
        self.demand.lock().is_ending = true;
        self.demanded.notify_one();
    }
}

fn copy_of(error: &Error) -> Error {
    Error::new(error.kind(), error.to_string())
}
