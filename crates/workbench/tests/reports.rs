// SPDX-License-Identifier: Apache-2.0
//! Results as JSON, CSV, text and pages.

use esker_base::clock::SystemClock;
use esker_base::{Clock, Kind, Random};
use esker_workbench::histogram::LatencyHistogram;
use esker_workbench::operation::Operation;
use esker_workbench::options::RunOptions;
use esker_workbench::pace::Pacing;
use esker_workbench::recorder::RankOperation;
use esker_workbench::report::page;
use esker_workbench::reservoir::LatencyPoint;
use esker_workbench::result::{PhaseKind, PhasePlan, PhaseResult, RankPhase, RunResult};
use esker_workbench::slowest::SlowOperation;
use esker_workbench::{csv, summary};

use crate::simulated_service::{options, simulate};

/// Largest page of a run of 256 ranks.
const PAGE_BYTES_MAX: usize = 5_000_000;

/// Longest time to read and draw such a page.
const PAGE_SECONDS_MAX: f64 = 5.0;

fn result(label: &str, service_ns: fn(u64) -> (u64, bool)) -> RunResult {
    let run = RunOptions { label: label.to_owned(), repeat: 3, saturation: true, ..options(300) };
    simulate(&run, service_ns)
}

/// A slow run with an odd name, and a fast one.
pub fn pair() -> [RunResult; 2] {
    let slow = result("<slow> & \"odd\"", |call| (100_000 + call % 7 * 1_000, true));
    [slow, result("fast", |call| (10_000 + call % 5 * 1_000, true))]
}

/// The names of all elements are closed in the reverse order of opening.
fn check_nesting(html: &str) {
    const VOID: [&str; 2] = ["meta", "!DOCTYPE"];
    let mut open: Vec<&str> = Vec::new();
    for piece in html.split('<').skip(1) {
        let (tag, _) = piece.split_once('>').expect("a tag ends");
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed), "at {tag}");
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn a_page_stands_alone_and_shows_every_plot() {
    let html = page(&pair());
    check_nesting(&html);
    for forbidden in ["http:", "https:", "<script", "@import", "url("] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    for shown in [
        "fast compared with &lt;slow&gt; &amp; &quot;odd&quot;",
        "Density of create",
        "Tail of stat",
        "Timeline of read",
        "99th percentile by rank",
        "Rate against latency",
        "Q3 delete",
        "faster",
        "cost of measuring",
    ] {
        assert!(html.contains(shown), "{shown}");
    }
    assert!(!html.contains("NaN") && !html.contains("inf"), "numbers are finite");
}

#[test]
fn results_survive_json_and_hostile_ones_are_refused() {
    let [result, _] = pair();
    let json = serde_json::to_vec(&result).expect("JSON");
    let read = RunResult::parse("a.json", &json).expect("the same result");
    // Fractions may differ in their last digit; counts and nanoseconds do not.
    for (written, read) in result.phases.iter().zip(&read.phases) {
        assert!((written.seconds / read.seconds - 1.0).abs() < 1e-12);
        for (written, read) in written.operations.iter().zip(&read.operations) {
            assert_eq!((&written.service, &written.points), (&read.service, &read.points));
            assert_eq!((&written.response, &written.slowest), (&read.response, &read.slowest));
        }
    }
    let text = String::from_utf8(json).expect("UTF-8");
    let newer = text.replacen("\"version\":3", "\"version\":4", 1);
    let kind =
        |text: &str| RunResult::parse("a.json", text.as_bytes()).expect_err("refused").kind();
    assert_eq!(kind(&newer), Kind::Invalid);
    for cut in (0..text.len()).step_by(997) {
        assert_eq!(kind(&text[..cut]), Kind::Corrupt, "cut at {cut}");
    }
    let count = text.find("\"service\":{\"count\":").expect("a distribution");
    let broken = format!("{}9{}", &text[..count + 19], &text[count + 19..]);
    assert_eq!(kind(&broken), Kind::Corrupt);
}

/// Symptom: `workbench compare` and `report` panicked on a result whose counts overflow, or took
/// all memory for a rate close to 0. Cause: only the counts of one distribution were checked; the
/// step of an axis was rounded to 0. Fix: readers refuse phases whose counts together are
/// impossible, and an axis has a few ticks.
#[test]
fn results_with_impossible_numbers_are_refused_or_shown() {
    let [good, _] = pair();
    let refused = |change: fn(&mut PhaseResult)| {
        let mut result = good.clone();
        result.phases.iter_mut().for_each(change);
        let json = serde_json::to_vec(&result).expect("JSON");
        let kind = RunResult::parse("a", &json).map(drop).map_err(|error| error.kind());
        assert_eq!(kind, Err(Kind::Corrupt));
    };
    refused(|phase| {
        for operation in &mut phase.operations {
            operation.service.count = u64::MAX;
            operation.service.buckets = vec![(9, u64::MAX)];
        }
    });
    refused(|phase| {
        for kind in ["NotFound", "NoSpace"] {
            phase.operations[0].failures.insert(kind.to_owned(), u64::MAX);
        }
    });
    for rate in [5e-324, f64::MIN_POSITIVE, f64::MAX, -1.0, 0.0] {
        let mut result = good.clone();
        for phase in &mut result.phases {
            (phase.seconds, phase.seconds_min) = (rate, rate);
            if let Pacing::Open { rate: own, .. } = &mut phase.plan.pacing {
                *own = rate;
            }
        }
        let json = serde_json::to_vec(&result).expect("JSON");
        let read = RunResult::parse("a", &json).expect("possible");
        let html = page(&[read.clone(), good.clone()]);
        check_nesting(&html);
        assert!(html.len() < PAGE_BYTES_MAX, "{rate}: {} bytes", html.len());
        assert!(!summary::text(&read).is_empty() && !csv::table(&read).is_empty());
    }
}

#[test]
fn tables_have_a_row_for_each_phase_and_operation() {
    let [result, _] = pair();
    let table = csv::table(&result);
    let rows: usize = result.phases.iter().map(|phase| phase.operations.len()).sum();
    assert_eq!(table.lines().count(), rows + 1);
    assert!(table.lines().nth(1).is_some_and(|row| row.starts_with("\"<slow> & \"\"odd\"\"\",")));
    let cells: usize = esker_workbench::result_table::rows(&result).iter().map(Vec::len).sum();
    assert_eq!(cells, rows * esker_workbench::result_table::COLUMNS.len());
    let text = summary::text(&result);
    for shown in ["Q3 create", "benchmark #3", "p99.9", "measuring costs"] {
        assert!(text.contains(shown), "{shown}\n{text}");
    }
}

/// A hundred million operations of 256 ranks, with as many points and outliers as are kept. The
/// bound on time holds for release builds: `cargo test --release -p esker-workbench --test main
/// a_page_of_256 -- --nocapture` asserts and prints it.
#[test]
fn a_page_of_256_ranks_is_small() {
    let mut random = Random::from_seed(9);
    let rank_operation = |rank: u32, operation: Operation, random: &mut Random| {
        let mut histogram = LatencyHistogram::default();
        for _ in 0..2_000 {
            histogram.record(1_000 << random.below(12) | random.below(1_000));
        }
        let mut service = histogram.distribution();
        service.buckets.iter_mut().for_each(|bucket| bucket.1 *= 50);
        service.count *= 50;
        let point = |random: &mut Random| LatencyPoint {
            at_ns: random.below(60_000_000_000),
            latency_ns: 1_000 + random.below(1 << 24),
        };
        let slow = |random: &mut Random| SlowOperation {
            latency_ns: 100_000_000 + random.below(1 << 30),
            at_ns: random.below(60_000_000_000),
            rank,
            path: format!("rank-{rank}/set-0/object-{}", random.below(1 << 30)),
        };
        RankOperation {
            operation,
            service,
            response: None,
            lateness: None,
            points: (0..390).map(|_| point(random)).collect(),
            slowest: (0..200).map(|_| slow(random)).collect(),
            outliers_dropped: 0,
            failures: Default::default(),
            first_failure: None,
        }
    };
    let mut phase = |kind, operations: &[Operation]| {
        let mut rank_phase = |rank| RankPhase {
            rank,
            plan: PhasePlan::of(kind),
            duration_ns: 60_000_000_000 + u64::from(rank),
            iterations: 100,
            stonewall: None,
            entries: 0,
            preemptions: 0,
            operations: operations.iter().map(|o| rank_operation(rank, *o, &mut random)).collect(),
        };
        let ranks: Vec<RankPhase> = (0..256).map(&mut rank_phase).collect();
        PhaseResult::of_ranks(ranks, 100_000)
    };
    let mixed = [Operation::Create, Operation::Stat, Operation::Read, Operation::Delete];
    let phases = vec![
        phase(PhaseKind::Precreate, &[Operation::Create]),
        phase(PhaseKind::Benchmark, &mixed),
        phase(PhaseKind::Cleanup, &[Operation::Delete]),
    ];
    let [mut result, _] = pair();
    result.phases = phases;
    assert!(result.phases.iter().map(PhaseResult::count).sum::<u64>() >= 100_000_000);
    let json = serde_json::to_vec(&result).expect("JSON");
    let clock = SystemClock;
    let start_ns = clock.monotonic_ns();
    let html = page(&[RunResult::parse("a.json", &json).expect("a result")]);
    let seconds = (clock.monotonic_ns() - start_ns) as f64 / 1e9;
    println!("{} bytes of results: {} bytes of page in {seconds:.2} s", json.len(), html.len());
    check_nesting(&html);
    assert!(html.len() < PAGE_BYTES_MAX, "{} bytes", html.len());
    if cfg!(not(debug_assertions)) {
        assert!(seconds < PAGE_SECONDS_MAX, "{seconds} s");
    }
}
