// SPDX-License-Identifier: Apache-2.0
//! Measurement of services whose latencies are known.

use esker_workbench::distribution::{LatencyDistribution, bucket_start};
use esker_workbench::operation::Operation;
use esker_workbench::options::RunOptions;
use esker_workbench::pace::Arrivals;
use esker_workbench::result::{PhaseResult, RunResult};

use crate::simulated_service::{marker_left, options, simulate};

/// The service time of a good call.
const SERVICE_NS: u64 = 100_000;

/// Number of the call that stalls, and how long it takes.
const STALLED_CALL: u64 = 5_000;
const STALL_NS: u64 = 1_000_000_000;

/// The latencies of all operations of a phase.
fn latencies(phase: &PhaseResult) -> LatencyDistribution {
    let mut all = LatencyDistribution::default();
    phase.operations.iter().for_each(|found| all.merge(found.latency()));
    all
}

fn services(phase: &PhaseResult) -> LatencyDistribution {
    let mut all = LatencyDistribution::default();
    phase.operations.iter().for_each(|found| all.merge(&found.service));
    all
}

/// Number of latencies of at least `ns`, within a bucket.
fn at_least(latencies: &LatencyDistribution, ns: u64) -> u64 {
    let slow = latencies.buckets.iter().filter(|bucket| bucket_start(bucket.0) >= ns);
    slow.map(|bucket| bucket.1).sum()
}

/// The probability that a customer of an M/D/1 queue waits at most `t` service times at the load
/// `rho` (Erlang 1909): (1 - ρ) Σ (ρ (k - t))^k / k! · e^(-ρ (k - t)), for k up to t.
fn md1_waits_at_most(t: f64, rho: f64) -> f64 {
    let mut sum = 0.0;
    let mut factorial = 1.0;
    for k in 0..=t.floor() as i32 {
        factorial *= f64::from(k.max(1));
        let x = rho * (f64::from(k) - t);
        sum += x.powi(k) / factorial * (-x).exp();
    }
    (1.0 - rho) * sum
}

#[test]
fn open_loops_reproduce_the_response_times_of_a_queue() {
    for (rho, seed) in [(0.3, 1), (0.7, 2), (0.85, 3)] {
        let rate = rho * 1e9 / SERVICE_NS as f64;
        let run = RunOptions {
            waiting_factors: Vec::new(),
            rates: vec![rate],
            arrivals: Arrivals::Poisson,
            seed,
            ..options(100_000)
        };
        let result = simulate(&run, |_| (SERVICE_NS, true));
        let phase = &result.phases[1];
        let (response, service) = (latencies(phase), services(phase));
        assert_eq!((service.min_ns, service.max_ns), (SERVICE_NS, SERVICE_NS));
        let wait = response.mean_ns() / SERVICE_NS as f64 - 1.0;
        let expected = rho / (2.0 * (1.0 - rho));
        assert!((wait / expected - 1.0).abs() < 0.05, "load {rho}: waits {wait}, not {expected}");
        for t in [0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0] {
            let limit_ns = (SERVICE_NS as f64 * (1.0 + t)) as u64;
            let longer = at_least(&response, limit_ns) as f64 / response.count as f64;
            let expected = md1_waits_at_most(t, rho);
            assert!(
                (1.0 - longer - expected).abs() < 0.012,
                "load {rho}: {} of the calls wait up to {t}, not {expected}",
                1.0 - longer
            );
        }
    }
}

fn stalled(run: &RunOptions) -> RunResult {
    simulate(run, |call| (if call == STALLED_CALL { STALL_NS } else { SERVICE_NS }, true))
}

/// A stall of a second appears in each statistic as it must: in a closed loop it is one slow call;
/// in an open loop of 1,000 calls a second it delays the thousand calls of that second.
#[test]
fn a_stall_appears_wherever_it_must() {
    let open = RunOptions {
        waiting_factors: Vec::new(),
        rates: vec![1_000.0],
        points_max: 1_000_000,
        ..options(2_000)
    };
    // Calls 0 to 1,999 create the working set.
    let result = stalled(&open);
    let phase = &result.phases[1];
    let (response, service) = (latencies(phase), services(phase));
    assert_eq!((service.max_ns, at_least(&service, STALL_NS / 2)), (STALL_NS, 1));
    // After u seconds of the stall 1 - u + 0.1 u are left for a call: over 0.1 s for all u < 1.
    let delayed = at_least(&response, STALL_NS / 10);
    assert!((990..=1_010).contains(&delayed), "{delayed} calls were delayed");
    assert!(response.quantile_ns(0.95) > STALL_NS / 2, "the percentiles show the stall");
    assert!(service.quantile_ns(0.999) < 2 * SERVICE_NS, "one slow call of 8,000");
    let points = phase.operations.iter().flat_map(|found| &found.points);
    let slow_points = points.filter(|point| point.latency_ns > STALL_NS / 10).count();
    assert!(slow_points > 900, "{slow_points} points of the timelines are in the stall");
    let kept: usize = phase
        .operations
        .iter()
        .map(|o| o.slowest.iter().filter(|slow| slow.latency_ns >= STALL_NS / 10).count())
        .sum();
    assert!((990..=1_010).contains(&kept), "{kept} outliers have their paths");
    assert!(phase.max_ns() >= STALL_NS);
    let closed = stalled(&RunOptions { points_max: 1_000_000, ..options(2_000) });
    let phase = &closed.phases[1];
    assert_eq!((latencies(phase).max_ns, at_least(&latencies(phase), STALL_NS / 2)), (STALL_NS, 1));
    let stalled = phase.operations.iter().find(|found| found.service.max_ns == STALL_NS);
    let stalled = stalled.expect("one kind of operation stalled");
    assert_eq!(stalled.ranks[0].max_ns, STALL_NS);
    let slowest = &stalled.slowest[0];
    assert_eq!((slowest.latency_ns, slowest.rank), (STALL_NS, 0));
    // Calls of the benchmark begin with number 2,000, four to an object.
    let object = format!("rank-0/set-0/object-{}", (STALLED_CALL - 2_000) / 4);
    assert_eq!((slowest.path.as_str(), stalled.operation), (object.as_str(), Operation::Stat));
    assert!((phase.seconds - (7_999.0 * 1e-4 + 1.0)).abs() < 1e-6, "{}", phase.seconds);
}

/// Failed calls take a second here, which no latency shows.
#[test]
fn failed_calls_change_counts_but_no_latencies() {
    let result = simulate(&options(2_000), |call| match call % 10 {
        3 => (STALL_NS, false),
        _ => (SERVICE_NS, true),
    });
    for (phase, calls) in result.phases.iter().zip([2_000, 8_000]) {
        assert_eq!((phase.failed(), phase.count() - phase.mkdirs()), (calls / 10, calls * 9 / 10));
        let all = services(phase);
        assert_eq!(all.max_ns, SERVICE_NS, "{}", phase.plan);
        let kinds: Vec<_> = phase.operations.iter().flat_map(|o| o.failures.keys()).collect();
        assert!(kinds.iter().all(|kind| *kind == "Unavailable"), "{kinds:?}");
        assert!(phase.operations.iter().any(|o| o.first_failure.is_some()));
    }
    assert!(result.warnings.iter().any(|warning| warning.contains("800 calls failed")));
}

trait Mkdirs {
    fn mkdirs(&self) -> u64;
}

impl Mkdirs for PhaseResult {
    fn mkdirs(&self) -> u64 {
        self.operation(Operation::Mkdir).map_or(0, |found| found.service.count)
    }
}

/// With the waiting factor T a rank calls 1 / (1 + T) of the time.
#[test]
fn waiting_factors_throttle_the_rank() {
    let run = RunOptions { waiting_factors: vec![0.0, 4.0], ..options(500) };
    let result = simulate(&run, |_| (SERVICE_NS, true));
    let (fast, slow) = (&result.phases[1], &result.phases[2]);
    assert!((fast.rate() / slow.rate() - 5.0).abs() < 0.01);
    assert!((slow.create_rate() * slow.virtual_factor() / fast.create_rate() - 1.0).abs() < 0.01);
    assert_eq!(services(slow).max_ns, SERVICE_NS);
}

/// The service answers in the same time for any T, so the adaptive mode stops at once.
#[test]
fn the_adaptive_mode_stops_when_latencies_no_longer_fall() {
    let run = RunOptions { adaptive: true, ..options(100) };
    let names: Vec<String> = simulate(&run, |_| (SERVICE_NS, true))
        .phases
        .iter()
        .map(|phase| phase.plan.to_string())
        .collect();
    assert_eq!(names, ["precreate", "benchmark", "benchmark T=1"]);
}

/// A sweep offers shares of the rate that the closed loop reached.
#[test]
fn saturation_sweeps_offer_shares_of_the_peak() {
    let run = RunOptions { saturation: true, ..options(2_000) };
    let result = simulate(&run, |_| (SERVICE_NS, true));
    let sweep = &result.phases[2..];
    assert_eq!(sweep.len(), 9);
    let below = &sweep[0];
    assert!((below.rate() / 1_000.0 - 1.0).abs() < 0.01, "a tenth of 10,000: {}", below.rate());
    assert!(latencies(below).max_ns < SERVICE_NS * 102 / 100, "no queue far below the peak");
    let above = sweep.last().expect("the last rate");
    assert!((above.rate() / 10_000.0 - 1.0).abs() < 0.01, "over the peak: {}", above.rate());
    assert!(latencies(above).quantile_ns(0.5) > 100 * SERVICE_NS, "the queue grows");
}

/// Symptom: a kept working set that lacked objects was taken for complete by the next run. Cause:
/// each phase marked it complete, whether or not it, or a phase before it, had failed to create.
/// Fix: once a change has failed the working set stays partial.
#[test]
fn a_working_set_that_lacks_an_object_stays_partial() {
    let is_complete = |behaviour| {
        let marker = marker_left(&options(4), behaviour);
        String::from_utf8(marker).expect("JSON").contains(r#""is_complete":true"#)
    };
    assert!(is_complete(|_| (1, true)));
    // Call 0 makes the dataset, and call 1 creates its first object; later phases succeed.
    assert!(!is_complete(|call| (1, call != 1)));
}
