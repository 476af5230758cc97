// SPDX-License-Identifier: Apache-2.0
//! Machine: actors that take turns, and a plan of faults that applies to their requests.
//!
//! An actor keeps its turn until a request at which the random schedule passes it on. Time advances
//! only with requests and stalls, so a run is a function of its options.
//! Concurrency: `core` guards everything and is never held while an actor computes. An actor
//! without the turn waits on its own condition variable.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use esker_base::Random;
use esker_base::clock::{Clock, ManualClock};
use esker_base::store::FaultEffect;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::disk::SimulatedDisk;
use crate::fault::{FaultKind, RequestFault};
use crate::process::ActorProcess;

/// Most time that a request takes, in nanoseconds.
const REQUEST_NS_MAX: u64 = 2_000_000;
/// A run with more requests counts as one that never ends.
const REQUESTS_MAX: u64 = 5_000_000;

/// An actor of a run, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActorId(pub usize);

/// Options of a machine.
#[derive(Clone, Debug)]
pub struct MachineOptions {
    /// Determines the schedule, and the random effects of faults.
    pub seed: u64,
    /// The turn passes on at one in this many requests, on average.
    pub switch_one_in: u64,
    /// Wall time at the start, in nanoseconds since 1970.
    pub start_ns: u64,
    /// The faults, by request.
    pub faults: Vec<RequestFault>,
    /// True to keep each request in the trace.
    pub is_traced: bool,
}

/// Outcome of a run.
#[derive(Clone, Debug, Default)]
pub struct RunOutcome {
    /// The first failure, if any.
    pub failure: Option<String>,
    /// Number of requests.
    pub requests: u64,
    /// A digest of every request in order: equal for two runs of the same options.
    pub digest: u64,
    /// The trace, if requested.
    pub trace: Vec<String>,
}

/// The machine.
pub struct SimulatedMachine {
    core: Mutex<MachineCore>,
    /// One per actor, on which it waits for its turn.
    wakeups: Vec<Condvar>,
    clock: Arc<ManualClock>,
}

impl fmt::Debug for SimulatedMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("actors", &self.wakeups.len()).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActorStatus {
    Ready,
    /// Waiting until this many requests have been made.
    Stalled(u64),
    Done,
}

pub(crate) struct MachineCore {
    pub(crate) disk: SimulatedDisk,
    random: Random,
    switch_one_in: u64,
    /// Latest first.
    faults: Vec<RequestFault>,
    statuses: Vec<ActorStatus>,
    turn: usize,
    /// Processes are numbered; all but the newest of an actor are dead.
    next_process: u64,
    living: Vec<Option<u64>>,
    full_until: u64,
    /// While set, turns do not pass, requests do not fail, and time stands still.
    is_paused: bool,
    is_traced: bool,
    outcome: RunOutcome,
}

/// Fate of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFate {
    Done,
    Failed { kind: esker_base::Kind, effect: FaultEffect },
    Dead { effect: FaultEffect },
}

/// The actor and process that make a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestCaller {
    pub(crate) actor: usize,
    pub(crate) process: u64,
}

impl MachineCore {
    pub(crate) fn is_dead(&self, caller: RequestCaller) -> bool {
        self.outcome.failure.is_some() || self.living[caller.actor] != Some(caller.process)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn record(&mut self, text: impl FnOnce() -> String) {
        if self.is_traced {
            let line = format!("{:6} {}", self.outcome.requests, text());
            self.outcome.trace.push(line);
        }
    }

    fn fail(&mut self, text: &str) {
        self.record(|| format!("FAILED: {text}"));
        self.outcome.failure.get_or_insert_with(|| text.to_owned());
    }

    /// Draws the actor that has the next turn; `None` once all are done.
    fn draw(&mut self) -> Option<usize> {
        let requests = self.outcome.requests;
        let is_ready = |status: &ActorStatus| match status {
            ActorStatus::Ready => true,
            ActorStatus::Stalled(until) => *until <= requests,
            ActorStatus::Done => false,
        };
        let pick = |core: &mut Self, wanted: &dyn Fn(&ActorStatus) -> bool| {
            let found: Vec<usize> =
                (0..core.statuses.len()).filter(|&at| wanted(&core.statuses[at])).collect();
            let place = core.random.below(found.len() as u64);
            usize::try_from(place).ok().and_then(|place| found.get(place).copied())
        };
        // If only stalled actors are left, the stall of one of them ends.
        let next =
            pick(self, &is_ready).or_else(|| pick(self, &|status| *status != ActorStatus::Done))?;
        self.statuses[next] = ActorStatus::Ready;
        Some(next)
    }
}

impl SimulatedMachine {
    /// A machine for `actors` actors.
    #[must_use]
    pub fn new(actors: usize, options: MachineOptions) -> Arc<Self> {
        let MachineOptions { seed, switch_one_in, start_ns, mut faults, is_traced } = options;
        faults.sort_by_key(|fault| std::cmp::Reverse(fault.at));
        let core = MachineCore {
            disk: SimulatedDisk::default(),
            random: Random::from_seed(seed),
            switch_one_in,
            faults,
            statuses: vec![ActorStatus::Ready; actors],
            turn: 0,
            next_process: 0,
            living: vec![None; actors + 1],
            full_until: 0,
            is_paused: false,
            is_traced,
            outcome: RunOutcome::default(),
        };
        Arc::new(Self {
            core: Mutex::new(core),
            wakeups: (0..actors).map(|_| Condvar::new()).collect(),
            clock: Arc::new(ManualClock::new(start_ns)),
        })
    }

    /// The clock of the store.
    #[must_use]
    pub fn clock(&self) -> &Arc<ManualClock> {
        &self.clock
    }

    /// Runs each of `actors` on a thread of its own until all are done.
    pub fn run(self: &Arc<Self>, actors: Vec<Box<dyn FnOnce() + Send + '_>>) {
        assert_eq!(actors.len(), self.wakeups.len(), "a machine is made for its actors");
        {
            let mut core = self.core.lock();
            let Some(first) = core.draw() else { return };
            core.turn = first;
        }
        std::thread::scope(|scope| {
            for (actor, act) in actors.into_iter().enumerate() {
                scope.spawn(move || {
                    self.wait(&mut self.core.lock(), actor);
                    let acted = std::panic::catch_unwind(AssertUnwindSafe(act));
                    let mut core = self.core.lock();
                    if let Err(panic) = acted {
                        let text = panic
                            .downcast_ref::<String>()
                            .cloned()
                            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                        core.fail(&format!("panic: {}", text.unwrap_or_default()));
                    }
                    core.statuses[actor] = ActorStatus::Done;
                    core.living[actor] = None;
                    if let Some(next) = core.draw() {
                        core.turn = next;
                        self.wakeups[next].notify_one();
                    }
                });
            }
        });
    }

    /// The outcome so far.
    #[must_use]
    pub fn outcome(&self) -> RunOutcome {
        self.core.lock().outcome.clone()
    }

    /// Records a failure, which ends the run.
    pub fn fail(&self, text: &str) {
        self.core.lock().fail(text);
    }

    /// Returns whether the run has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.core.lock().outcome.failure.is_some()
    }

    /// Adds a line to the trace.
    pub fn record(&self, text: impl FnOnce() -> String) {
        self.core.lock().record(text);
    }

    /// The number of the process that put the last object, by name, below `prefix`.
    #[must_use]
    pub fn last_writer(&self, prefix: &str) -> Option<u64> {
        self.core.lock().disk.last_writer(prefix)
    }

    /// Runs `act`, in which the actor that has the turn compares the store's content with the
    /// reference. Meanwhile turns do not pass, requests do not fail, and time stands still.
    pub fn pause<T>(&self, act: impl FnOnce() -> T) -> T {
        self.core.lock().is_paused = true;
        let done = act();
        self.core.lock().is_paused = false;
        done
    }

    /// Starts a process of `actor`, whose earlier processes are dead from now on. Its store is the
    /// machine's.
    #[must_use]
    pub fn start_process(self: &Arc<Self>, ActorId(actor): ActorId) -> Arc<ActorProcess> {
        let mut core = self.core.lock();
        core.next_process += 1;
        let process = core.next_process;
        core.living[actor] = Some(process);
        Arc::new(ActorProcess::new(Arc::clone(self), RequestCaller { actor, process }))
    }

    /// A process outside the run, which reads the store between turns: without faults or turns.
    #[must_use]
    pub fn observer(self: &Arc<Self>) -> Arc<ActorProcess> {
        self.start_process(ActorId(self.wakeups.len()))
    }

    pub(crate) fn is_dead(&self, caller: RequestCaller) -> bool {
        self.core.lock().is_dead(caller)
    }

    fn is_observer(&self, caller: RequestCaller) -> bool {
        caller.actor == self.wakeups.len()
    }

    fn wait(&self, core: &mut MutexGuard<'_, MachineCore>, actor: usize) {
        while core.turn != actor {
            self.wakeups[actor].wait(core);
        }
    }

    fn pass_turn(&self, core: &mut MutexGuard<'_, MachineCore>, actor: usize) {
        let next = core.draw().expect("the actor itself is not done");
        if next != actor {
            core.turn = next;
            self.wakeups[next].notify_one();
            self.wait(core, actor);
        }
    }

    /// Starts a request: waits for the turn and draws the request's fate. The disk stays locked
    /// until the request is done.
    pub(crate) fn begin(
        &self,
        caller: RequestCaller,
        what: &str,
        name: &str,
        needs_room: bool,
    ) -> (MutexGuard<'_, MachineCore>, RequestFate) {
        let mut core = self.core.lock();
        if self.is_observer(caller) {
            return (core, RequestFate::Done);
        }
        let dead = RequestFate::Dead { effect: FaultEffect::None };
        if core.is_dead(caller) {
            return (core, dead);
        }
        if core.is_paused {
            return (core, RequestFate::Done);
        }
        let chances = core.switch_one_in;
        if core.random.one_in(chances) {
            self.pass_turn(&mut core, caller.actor);
        }
        if core.is_dead(caller) {
            return (core, dead);
        }
        let step_ns = core.random.below(REQUEST_NS_MAX);
        self.clock.advance(Duration::from_nanos(step_ns));
        core.outcome.requests += 1;
        let line = format!("{} {what} {name}", caller.actor);
        let digest = core.outcome.digest;
        core.outcome.digest = line
            .bytes()
            .fold(digest, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        core.record(|| format!("actor {line}"));
        if core.outcome.requests > REQUESTS_MAX {
            core.fail("the run does not end");
        }
        let fate = self.draw_fate(&mut core, caller, needs_room);
        (core, fate)
    }

    fn draw_fate(
        &self,
        core: &mut MutexGuard<'_, MachineCore>,
        caller: RequestCaller,
        needs_room: bool,
    ) -> RequestFate {
        while core.faults.last().is_some_and(|fault| fault.at <= core.outcome.requests) {
            let fault = core.faults.pop().expect("there is a last one");
            core.record(|| format!("fault {:?}", fault.kind));
            match fault.kind {
                FaultKind::Error { kind, effect } => return RequestFate::Failed { kind, effect },
                FaultKind::ProcessDeath { effect, loses_buffers } => {
                    core.living[caller.actor] = None;
                    if loses_buffers {
                        let MachineCore { disk, random, .. } = &mut **core;
                        disk.lose_buffers(caller.process, random);
                    }
                    return RequestFate::Dead { effect };
                }
                FaultKind::PowerLoss => {
                    core.living.iter_mut().for_each(|living| *living = None);
                    let MachineCore { disk, random, .. } = &mut **core;
                    disk.lose_power(random);
                    return RequestFate::Dead { effect: FaultEffect::None };
                }
                FaultKind::Stall { requests, time } => {
                    self.clock.advance(time);
                    core.statuses[caller.actor] =
                        ActorStatus::Stalled(core.outcome.requests + requests);
                    self.pass_turn(core, caller.actor);
                    if core.is_dead(caller) {
                        return RequestFate::Dead { effect: FaultEffect::None };
                    }
                }
                FaultKind::Full { requests } => core.full_until = core.outcome.requests + requests,
            }
        }
        if needs_room && core.outcome.requests <= core.full_until {
            return RequestFate::Failed {
                kind: esker_base::Kind::NoSpace,
                effect: FaultEffect::None,
            };
        }
        RequestFate::Done
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }
}
