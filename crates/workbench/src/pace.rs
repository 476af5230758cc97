// SPDX-License-Identifier: Apache-2.0
//! Pace: when a rank's next operation begins.
//!
//! In a closed loop an operation begins once the one before has returned and its waiting time is
//! over. In an open loop operations begin at times that do not depend on the service; a rank that is
//! late begins at once, and the delay counts as response time. Otherwise a stall would be measured
//! once instead of once per operation that it delays (coordinated omission).
//! Source: MDWorkbench §3 (waiting factor); Tene, How NOT to Measure Latency, 2013.

use std::fmt::Debug;
use std::time::Duration;

use esker_base::clock::{ManualClock, SystemClock};
use esker_base::{Clock, Random};
use serde::{Deserialize, Serialize};

use crate::reservoir::unit_interval;

/// The end of a wait that is spent polling the clock: a sleep returns up to this much too late. A
/// thread that yields instead loses the processor for milliseconds on a busy machine.
const POLLED_NS: u64 = 80_000;

/// A clock that can also wait.
pub trait PaceClock: Clock {
    /// Returns once the monotonic reading is at least `at_ns`; at once if it already is.
    fn wait_until_ns(&self, at_ns: u64);
}

impl PaceClock for SystemClock {
    fn wait_until_ns(&self, at_ns: u64) {
        loop {
            let left_ns = at_ns.saturating_sub(self.monotonic_ns());
            if left_ns == 0 {
                return;
            } else if left_ns > POLLED_NS {
                std::thread::sleep(Duration::from_nanos(left_ns - POLLED_NS));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

impl PaceClock for ManualClock {
    fn wait_until_ns(&self, at_ns: u64) {
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

/// How the operations of a phase follow each other.
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
