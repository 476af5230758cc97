// SPDX-License-Identifier: Apache-2.0
//! Launch: starts the ranks of a job on this machine, and ends them together.
//!
//! Each rank is a process group of its own, so the processes that it starts end with it. A rank
//! learns its identity from the variables of [`job`]. Output passes through unchanged. Rank 0 reads
//! this process's input, unless that is a terminal; the others read nothing. Signals that end or
//! inform a program are forwarded to all ranks.
//! When a rank fails, the others get SIGTERM, and SIGKILL after `GRACE`. After a forwarded signal
//! that ends programs, ranks have the same time before SIGTERM, since a second signal cuts short
//! their handling of the first. When this process dies, the kernel kills the ranks.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use esker_base::store::{SharedStore, url};
use esker_base::{Clock, Error, Kind, Random, Result};
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::{Rank, job, tcp};

/// Time that ranks may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// Time after the first failure to collect further ones: a lost rank fails at the same time as
/// those that noticed its loss.
const SETTLE: Duration = Duration::from_millis(100);

const LOOK: Duration = Duration::from_millis(5);

/// A program to run as the ranks of a job.
#[derive(Clone, Debug)]
pub struct JobLaunch {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Variables that its environment has beside those of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks per simulated node; all on one node if `None`.
    pub per_node: Option<u32>,
    /// URL of the store in which ranks meet and work. If `None`, they meet in a directory that is
    /// removed afterwards.
    pub store: Option<String>,
}

/// Outcome of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobOutcome {
    /// All ranks succeeded.
    Success,
    /// This rank failed first, with an exit code.
    Exit(Rank, u8),
    /// This rank was the first to be killed, by this signal.
    Killed(Rank, i32),
    /// This process received a terminating signal, of this number, and forwarded it to the ranks.
    Interrupted(i32),
}

impl JobOutcome {
    /// The launcher's exit code: that of the rank, or 128 plus the signal's number, as in a shell.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Exit(_, code) => code,
            Self::Killed(_, signal) | Self::Interrupted(signal) => {
                u8::try_from(signal).unwrap_or(0).saturating_add(128)
            }
        }
    }
}

/// Runs a job to its end. The process ignores the forwarded signals from then on, so it should exit
/// soon after.
///
/// # Errors
/// `NotFound` or `Denied` if the program cannot be started; `Invalid` for no ranks or a store that
/// processes cannot share; errors of opening the store.
pub fn run(launch: &JobLaunch, clock: &dyn Clock) -> Result<JobOutcome> {
    if launch.ranks == 0 || launch.per_node == Some(0) || launch.command.is_empty() {
        let what = "a job has a program, at least one rank, and at least one on each node";
        return Err(Error::new(Kind::Invalid, what));
    }
    let id = format!("run-{:016x}", Random::from_system().next_u64());
    let place = RunDir::open(launch, &id)?;
    // From here on no signal is lost.
    let signals = Signals::new([SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2]);
    let signals = signals.map_err(|error| Error::io(error, "listen for signals"))?;
    let mut ranks = RankProcesses { running: Vec::new(), ended: Vec::new(), signals, clock };
    let outcome = ranks.start(launch, &id, &place.url).and_then(|()| ranks.watch());
    if matches!(outcome, Ok(JobOutcome::Interrupted(_))) {
        ranks.await_all();
    }
    ranks.end_all();
    place.clear(&id);
    outcome
}

/// The store in which ranks meet.
struct RunDir {
    url: String,
    store: SharedStore,
    /// A temporary directory, to be removed.
    directory: Option<PathBuf>,
}

impl RunDir {
    fn open(launch: &JobLaunch, id: &str) -> Result<Self> {
        if let Some(given) = &launch.store {
            if given.starts_with("memory:") {
                let what = "processes share no memory: give a directory or a bucket as the store";
                return Err(Error::new(Kind::Invalid, what));
            }
            let store = url::open(given)?;
            return Ok(Self { url: store.url(), store, directory: None });
        }
        let directory = std::env::temp_dir().join(format!("esker-{id}"));
        let store = url::init(&directory.to_string_lossy())?;
        Ok(Self { url: store.url(), store, directory: Some(directory) })
    }

    /// Removes the objects that ranks which failed to meet have left.
    fn clear(&self, id: &str) {
        // A failure is harmless: nothing reads these objects any more.
        let _ = match &self.directory {
            Some(directory) => std::fs::remove_dir_all(directory)
                .map_err(|error| Error::io(error, "remove the directory to meet in")),
            None => tcp::clear(&*self.store, id),
        };
    }
}

struct RankProcesses<'a> {
    running: Vec<(Rank, Child)>,
    /// In the order in which they were reaped.
    ended: Vec<(Rank, ExitStatus)>,
    signals: Signals,
    clock: &'a dyn Clock,
}

impl RankProcesses<'_> {
    fn start(&mut self, launch: &JobLaunch, id: &str, meet: &str) -> Result<()> {
        let per_node = launch.per_node.unwrap_or(launch.ranks);
        for rank in Rank::all(launch.ranks) {
            let mut command = Command::new(&launch.command[0]);
            command
                .args(&launch.command[1..])
                .envs(launch.environment.iter().map(|(name, value)| (name, value)))
                .env(job::RANK, rank.0.to_string())
                .env(job::RANKS, launch.ranks.to_string())
                .env(job::JOB, id)
                .env(job::NODE, (rank.0 / per_node).to_string())
                .env(job::MEET, meet)
                .env(job::ADDRESS, "127.0.0.1")
                .process_group(0);
            if let Some(store) = &launch.store {
                command.env("ESKER_STORE", store);
            }
            // The kernel stops a process of a background group that reads from the terminal.
            if rank != Rank(0) || std::io::stdin().is_terminal() {
                command.stdin(Stdio::null());
            }
            let with_us = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
            // SAFETY: between fork and exec it makes one system call, and neither allocates nor
            // takes a lock.
            unsafe { command.pre_exec(with_us) };
            let child = command.spawn().map_err(|error| {
                Error::io(error, format!("start {}", launch.command[0].to_string_lossy()))
            })?;
            self.running.push((rank, child));
        }
        Ok(())
    }

    /// Returns once all ranks have succeeded or one has failed.
    fn watch(&mut self) -> Result<JobOutcome> {
        loop {
            self.reap()?;
            if self.ended.iter().any(|(_, status)| !status.success()) {
                self.finish()?;
                return Ok(self.first_failure());
            }
            if self.running.is_empty() {
                return Ok(JobOutcome::Success);
            }
            let received: Vec<i32> = self.signals.wait().collect();
            for signal in received {
                if signal == SIGCHLD {
                    continue;
                }
                self.signal(signal);
                if signal != SIGUSR1 && signal != SIGUSR2 {
                    return Ok(JobOutcome::Interrupted(signal));
                }
            }
        }
    }

    fn reap(&mut self) -> Result<()> {
        let mut still = Vec::new();
        for (rank, mut child) in self.running.drain(..) {
            let waited = child.try_wait();
            match waited.map_err(|error| Error::io(error, format!("wait for {rank}")))? {
                Some(status) => self.ended.push((rank, status)),
                None => still.push((rank, child)),
            }
        }
        self.running = still;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let end_ns = self.clock.monotonic_ns() + SETTLE.as_nanos() as u64;
        while !self.running.is_empty() && self.clock.monotonic_ns() < end_ns {
            std::thread::sleep(LOOK);
            self.reap()?;
        }
        Ok(())
    }

    /// The cause among ranks that failed together: the first that was killed; else the first that
    /// failed for a reason other than the loss of a rank; else the first.
    fn first_failure(&self) -> JobOutcome {
        let failed = self.ended.iter().filter(|(_, status)| !status.success());
        let unavailable = i32::from(Kind::Unavailable.exit_code());
        let first = failed.min_by_key(|(_, status)| match (status.signal(), status.code()) {
            (Some(_), _) => 0,
            (None, code) if code != Some(unavailable) => 1,
            _ => 2,
        });
        let (rank, status) = first.expect("asked when one has failed");
        match status.signal() {
            Some(signal) => JobOutcome::Killed(*rank, signal),
            None => JobOutcome::Exit(
                *rank,
                status.code().and_then(|code| code.try_into().ok()).unwrap_or(1),
            ),
        }
    }

    fn signal(&self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        for (_, child) in &self.running {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            // A rank that has just ended needs no signal.
            let _ = group.map(|group| kill_process_group(group, signal));
        }
    }

    /// Ends the ranks that still run, by force if necessary.
    fn end_all(&mut self) {
        if self.running.is_empty() {
            return;
        }
        self.signal(SIGTERM);
        if self.await_all() {
            return;
        }
        self.signal(signal_hook::consts::SIGKILL);
        for (_, child) in &mut self.running {
            let _ = child.wait();
        }
    }

    /// Waits up to [`GRACE`], forwarding terminating signals meanwhile; returns whether all ranks
    /// have ended.
    fn await_all(&mut self) -> bool {
        let end_ns = self.clock.monotonic_ns() + GRACE.as_nanos() as u64;
        while self.clock.monotonic_ns() < end_ns {
            if self.reap().is_err() || self.running.is_empty() {
                return true;
            }
            let received: Vec<i32> = self.signals.pending().collect();
            received.into_iter().filter(|signal| *signal != SIGCHLD).for_each(|it| self.signal(it));
            std::thread::sleep(LOOK);
        }
        false
    }
}
