// SPDX-License-Identifier: Apache-2.0
//! Open loops whose generator is late, and ranks that share processors.
//!
//! Symptom: with more ranks than processors an open loop missed rates far below saturation, and
//! response times rose to tens of milliseconds. Cause: each rank polled the clock for the last 80
//! µs before a call, and so kept working ranks from the processor. The delay counted as the
//! service's latency. Fix: ranks that share processors sleep, with an exact timer, and the part of
//! response times that the workbench adds is recorded separately.

use std::sync::Arc;
use std::time::Duration;

use esker_base::Clock;
use esker_base::clock::{ManualClock, SystemClock};
use esker_workbench::distribution::LatencyDistribution;
use esker_workbench::options::RunOptions;
use esker_workbench::pace::{Arrivals, PaceClock, Pacing, RankPace, Waiting, request_exact_sleeps};
use esker_workbench::result::{OpenLoop, RunResult};
use esker_workbench::summary;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use crate::simulated_service::{options, simulate_on};

const SERVICE_NS: u64 = 100_000;

/// A clock whose waits end late by a constant time.
#[derive(Debug)]
struct LateClock {
    clock: Arc<ManualClock>,
    late_ns: u64,
}

impl Clock for LateClock {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }
}

impl PaceClock for LateClock {
    fn wait_until_ns(&self, at_ns: u64, waiting: Waiting) {
        if at_ns > self.monotonic_ns() {
            self.clock.wait_until_ns(at_ns + self.late_ns, waiting);
        }
    }
}

fn run(options: &RunOptions, late_ns: u64) -> RunResult {
    let clock = Arc::new(ManualClock::new(1));
    let late = LateClock { clock: clock.clone(), late_ns };
    simulate_on(&clock, &late, options, |_| (SERVICE_NS, true))
}

fn open_loop(result: &RunResult) -> OpenLoop {
    result.phases[1].open_loop().expect("an open loop")
}

/// A response time is exactly what a punctual generator measures plus the lateness, also where one
/// late call delays those after it.
#[test]
fn lateness_is_what_a_punctual_generator_does_not_measure() {
    for (load, arrivals) in
        [(0.1, Arrivals::Constant), (0.5, Arrivals::Poisson), (0.95, Arrivals::Poisson)]
    {
        let rate = load * 1e9 / SERVICE_NS as f64;
        let (waiting_factors, rates) = (Vec::new(), vec![rate]);
        let options = RunOptions { waiting_factors, rates, arrivals, ..options(10_000) };
        let (punctual, late) = (open_loop(&run(&options, 0)), open_loop(&run(&options, 30_000)));
        assert_eq!((punctual.lateness.max_ns, punctual.late_share()), (0, 0.0));
        assert!(late.lateness.max_ns >= 30_000 && late.response.sum_ns > punctual.response.sum_ns);
        let without = late.response.sum_ns - late.lateness.sum_ns;
        assert_eq!(without, punctual.response.sum_ns, "load {load}");
        if arrivals == Arrivals::Constant {
            // The first call is due at once.
            assert_eq!(late.lateness.sum_ns, 30_000 * (late.lateness.count - 1));
        }
    }
}

/// A reader sees how late the workbench was, and is warned where that matters.
#[test]
fn lateness_is_shown() {
    let (waiting_factors, rates) = (Vec::new(), vec![1_000.0]);
    let options = RunOptions { waiting_factors, rates, ..options(1_000) };
    let result = run(&options, 30_000);
    let text = summary::text(&result);
    // 30 of 130 µs.
    for shown in ["late p99", "30.0 µs", "23.1 %", "the workbench began calls late"] {
        assert!(text.contains(shown), "{shown}\n{text}");
    }
    let warns =
        |late_ns| run(&options, late_ns).warnings.iter().any(|w| w.contains("began calls late"));
    assert!(warns(30_000) && !warns(1_000));
    let in_closed_loop = &result.phases[0].operations[0].lateness;
    assert_eq!(*in_closed_loop, None::<LatencyDistribution>);
}

/// A clock that keeps how it was asked to wait.
#[derive(Debug)]
struct WaitingClock {
    clock: ManualClock,
    waits: Mutex<Vec<Waiting>>,
}

impl Clock for WaitingClock {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }
}

impl PaceClock for WaitingClock {
    fn wait_until_ns(&self, at_ns: u64, waiting: Waiting) {
        self.waits.lock().push(waiting);
        self.clock.wait_until_ns(at_ns, waiting);
    }
}

/// Ranks that share processors sleep until calls of open loops are due; the waits of closed loops
/// are exact, as results are corrected by the waiting factor.
#[test]
fn only_open_loops_leave_processors_to_others() {
    let clock = WaitingClock { clock: ManualClock::new(1), waits: Mutex::default() };
    let mut pace = RankPace::new(Waiting::Sleeping);
    let arrivals = Arrivals::Constant;
    pace.begin_phase(Pacing::Open { rate: 1_000.0, arrivals }, (0, 1), 0, 1);
    assert_eq!([(); 2].map(|()| pace.wait_for_turn(&clock)), [Some(0), Some(1_000_000)]);
    pace.begin_phase(Pacing::Closed { waiting_factor: 4.0 }, (0, 1), 0, 1);
    assert_eq!(pace.wait_for_turn(&clock), None);
    let start_ns = clock.monotonic_ns();
    let timing = pace.timing(None, start_ns, start_ns + 5_000);
    pace.wait_after(&clock, &timing);
    assert_eq!(clock.monotonic_ns(), start_ns + 25_000);
    use Waiting::{Exact, Sleeping};
    assert_eq!(*clock.waits.lock(), [Sleeping, Sleeping, Exact]);
}

/// A rank that sleeps uses little of the processor under any load of the machine: a late wake-up
/// makes it less. Polling uses all of it.
#[test]
fn ranks_that_share_processors_leave_them_to_others() {
    request_exact_sleeps();
    let used = |waiting| {
        let processor_ns = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        let clock = SystemClock;
        let (start_ns, used_ns) = (clock.monotonic_ns(), processor_ns());
        for _ in 0..500 {
            clock.wait_until_ns(clock.monotonic_ns() + 80_000, waiting);
        }
        let used_ns = Duration::from_nanos(processor_ns() - used_ns);
        used_ns.as_secs_f64() / Duration::from_nanos(clock.monotonic_ns() - start_ns).as_secs_f64()
    };
    let share = used(Waiting::Sleeping);
    assert!(share < 0.5, "{share} of the processor");
    let ways = [(1, 1), (2, 2), (3, 2), (64, 2)].map(|(ranks, all)| Waiting::of(ranks, all));
    use Waiting::{Polling, Sleeping};
    assert_eq!(ways, [Polling, Polling, Sleeping, Sleeping]);
}
