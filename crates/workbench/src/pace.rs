// SPDX-License-Identifier: Apache-2.0
//! Pace: when a rank's next operation begins.
//!
//! In a closed loop an operation begins once the one before has returned and its waiting time is
//! over. In an open loop operations begin at times that do not depend on the service; a rank that
//! is late begins at once, and the delay counts as response time. Otherwise a stall would be
//! measured once instead of once per operation that it delays (coordinated omission).
//! [`ServiceQueue`] separates the part of that delay that the workbench itself causes. Source:
//! MDWorkbench §3 (waiting factor); Tene, How NOT to Measure Latency, 2013.

use std::fmt::Debug;
use std::num::NonZeroU64;
use std::time::Duration;

use esker_base::clock::{ManualClock, SystemClock};
use esker_base::{Clock, Random};
use rustix::thread::set_current_timer_slack;
use serde::{Deserialize, Serialize};

use crate::recorder::OperationTiming;
use crate::reservoir::unit_interval;

/// Time by which the kernel may end a sleep too late, so that it can end several at once; 50 µs
/// unless set.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

/// A clock that can also wait.
pub trait PaceClock: Clock {
    /// Returns once the monotonic reading is at least `at_ns`; at once if it already is.
    fn wait_until_ns(&self, at_ns: u64, waiting: Waiting);
}

/// The way in which a rank waits: it sleeps, and polls the clock at the end. A thread that yields
/// instead loses the processor for milliseconds on a busy machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Polls for longer than nearly any sleep is late: for waits by whose length results are
    /// corrected.
    Exact,
    /// Polls for longer than most sleeps are late: for a rank that has a processor to itself.
    Polling,
    /// Does not poll, and leaves the processor to other ranks; returns some 20 µs late.
    Sleeping,
}

impl Waiting {
    /// The way in which each of `ranks` waits in an open loop on a machine with `processors`.
    #[must_use]
    pub const fn of(ranks: u32, processors: u32) -> Self {
        if ranks <= processors { Self::Polling } else { Self::Sleeping }
    }

    /// The end of a wait that is spent polling, in nanoseconds.
    const fn polled_ns(self) -> u64 {
        match self {
            Self::Exact => 80_000,
            Self::Polling => 30_000,
            Self::Sleeping => 0,
        }
    }
}

/// Lets sleeps of the calling thread end as early as the kernel can.
pub fn request_exact_sleeps() {
    // A kernel that refuses sleeps less exactly, which lateness shows.
    let _ = set_current_timer_slack(Some(TIMER_SLACK_NS));
}

impl PaceClock for SystemClock {
    fn wait_until_ns(&self, at_ns: u64, waiting: Waiting) {
        let polled_ns = waiting.polled_ns();
        loop {
            let left_ns = at_ns.saturating_sub(self.monotonic_ns());
            if left_ns == 0 {
                return;
            } else if left_ns > polled_ns {
                std::thread::sleep(Duration::from_nanos(left_ns - polled_ns));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

impl PaceClock for ManualClock {
    fn wait_until_ns(&self, at_ns: u64, _: Waiting) {
        self.advance(Duration::from_nanos(at_ns.saturating_sub(self.monotonic_ns())));
    }
}

/// The distribution of the times between operations of an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// All equal.
    #[default]
    Constant,
    /// Exponential, as of many independent users.
    Poisson,
}

/// The rule by which the operations of a phase follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pacing {
    /// Each operation follows the one before, after a wait of this many times its duration.
    Closed {
        /// MDWorkbench's T, at least 0.
        waiting_factor: f64,
    },
    /// Operations begin at a rate.
    Open {
        /// Operations per second of all ranks together.
        rate: f64,
        /// Their distribution in time.
        arrivals: Arrivals,
    },
}

impl Pacing {
    /// The closed loop without waits.
    pub const UNTHROTTLED: Self = Self::Closed { waiting_factor: 0.0 };
}

/// The intended times of one rank's operations in an open loop.
#[derive(Debug)]
pub struct ArrivalSchedule {
    next_ns: f64,
    interval_ns: f64,
    arrivals: Arrivals,
    random: Random,
}

impl ArrivalSchedule {
    /// The schedule of `rank` of `ranks`, which together begin `rate` operations per second from
    /// `start_ns` on. Constant intervals of different ranks interleave.
    #[must_use]
    pub fn new(
        (rate, arrivals): (f64, Arrivals),
        (rank, ranks): (u32, u32),
        start_ns: u64,
        seed: u64,
    ) -> Self {
        let interval_ns = f64::from(ranks) * 1e9 / rate;
        let mut random = Random::from_seed(seed ^ u64::from(rank) << 32);
        let first_ns = match arrivals {
            Arrivals::Constant => interval_ns * f64::from(rank) / f64::from(ranks),
            Arrivals::Poisson => -unit_interval(&mut random).ln() * interval_ns,
        };
        Self { next_ns: start_ns as f64 + first_ns, interval_ns, arrivals, random }
    }

    /// The intended time of the next operation, in nanoseconds.
    pub fn next_ns(&mut self) -> u64 {
        let at_ns = self.next_ns;
        self.next_ns += match self.arrivals {
            Arrivals::Constant => self.interval_ns,
            Arrivals::Poisson => -unit_interval(&mut self.random).ln() * self.interval_ns,
        };
        at_ns as u64
    }
}

/// The queue in front of a service if the workbench began each call as soon as possible: at its
/// intended time, or when the previous call returns (Lindley's recursion, with measured service
/// times). If a call begins later than that, the difference is the lateness of the workbench: a
/// sleep that ends late, a processor that is not free, the time to make and check content, and the
/// delays that follow from these.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceQueue {
    free_ns: u64,
}

impl ServiceQueue {
    /// Adds a call and returns its lateness in nanoseconds: the part of its response time that
    /// neither the service nor its queue causes.
    pub fn lateness_ns(&mut self, intended_ns: u64, start_ns: u64, end_ns: u64) -> u64 {
        let possible_ns = intended_ns.max(self.free_ns);
        self.free_ns = possible_ns.saturating_add(end_ns.saturating_sub(start_ns));
        start_ns.saturating_sub(possible_ns)
    }
}

/// When the calls of one rank begin in its current phase.
#[derive(Debug)]
pub struct RankPace {
    waiting: Waiting,
    waiting_factor: f64,
    schedule: Option<ArrivalSchedule>,
    queue: ServiceQueue,
}

impl RankPace {
    /// A closed loop without waits, until a phase begins.
    #[must_use]
    pub fn new(waiting: Waiting) -> Self {
        Self { waiting, waiting_factor: 0.0, schedule: None, queue: ServiceQueue::default() }
    }

    /// Begins a phase at `start_ns`; ranks and seed as for [`ArrivalSchedule::new`].
    pub fn begin_phase(&mut self, pacing: Pacing, ranks: (u32, u32), start_ns: u64, seed: u64) {
        self.queue = ServiceQueue::default();
        (self.waiting_factor, self.schedule) = match pacing {
            Pacing::Closed { waiting_factor } => (waiting_factor, None),
            Pacing::Open { rate, arrivals } => {
                (0.0, Some(ArrivalSchedule::new((rate, arrivals), ranks, start_ns, seed)))
            }
        };
    }

    /// In an open loop, waits until the next call is due, and returns that time.
    #[inline]
    pub fn wait_for_turn(&mut self, clock: &dyn PaceClock) -> Option<u64> {
        let at_ns = self.schedule.as_mut()?.next_ns();
        clock.wait_until_ns(at_ns, self.waiting);
        Some(at_ns)
    }

    /// The times of a call whose turn was at `intended_ns`, with its lateness.
    #[inline]
    pub fn timing(
        &mut self,
        intended_ns: Option<u64>,
        start_ns: u64,
        end_ns: u64,
    ) -> OperationTiming {
        let late_ns = match intended_ns {
            Some(intended_ns) => self.queue.lateness_ns(intended_ns, start_ns, end_ns),
            None => 0,
        };
        OperationTiming { intended_ns, start_ns, end_ns, late_ns }
    }

    /// In a closed loop, waits after a call for the waiting factor times its duration. These waits
    /// are exact even if ranks share processors, since results are corrected by the factor.
    #[inline]
    pub fn wait_after(&self, clock: &dyn PaceClock, timing: &OperationTiming) {
        if self.waiting_factor > 0.0 {
            let runtime_ns = timing.end_ns.saturating_sub(timing.start_ns);
            let wait_ns = (self.waiting_factor * runtime_ns as f64) as u64;
            clock.wait_until_ns(timing.end_ns.saturating_add(wait_ns), Waiting::Exact);
        }
    }
}
