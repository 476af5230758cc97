// SPDX-License-Identifier: Apache-2.0
//! Mixed phases: exact shares in random order, and a working set that keeps its size.

use std::path::Path;

use esker_base::{Kind, Result};
use esker_workbench::compare::compare;
use esker_workbench::mix::{MixedCalls, OperationMix};
use esker_workbench::operation::Operation;
use esker_workbench::options::RunOptions;
use esker_workbench::pace::Pacing;
use esker_workbench::result::{PhaseKind, PhaseResult};
use esker_workbench::{report, summary};

use crate::runs::{self, numbers_in};
use crate::simulated_service::{options, simulate};

const MIX: &str = "stat=60,read=30,create=5,delete=5";

fn mix(text: &str) -> OperationMix {
    text.parse().expect("a mix")
}

fn count(phase: &PhaseResult, operation: Operation) -> u64 {
    phase.operation(operation).map_or(0, |found| found.service.count)
}

/// Each operation has its share of the calls and latencies of its own, in both loops.
#[test]
fn operations_have_their_shares_in_both_loops() {
    let run = RunOptions { mix: Some(mix(MIX)), rates: vec![1_000.0], repeat: 2, ..options(1_000) };
    let result = simulate(&run, |call| (10_000 + call % 2, true));
    assert_eq!(result.phases.len(), 5, "precreate, and both loops twice");
    for phase in &result.phases[1..] {
        let operations = [Operation::Stat, Operation::Read, Operation::Create, Operation::Delete];
        let counts = operations.map(|operation| count(phase, operation));
        assert_eq!((phase.plan.kind, counts), (PhaseKind::Mixed, [2_400, 1_200, 200, 200]));
        let is_open = matches!(phase.plan.pacing, Pacing::Open { .. });
        for found in &phase.operations {
            assert_eq!((found.response.is_some(), found.failed()), (is_open, 0));
        }
    }
    let text = summary::text(&result);
    assert!(text.contains("mix: create 5 %, stat 60 %, read 30 %, delete 5 %"), "{text}");
    assert!(text.contains("mixed at 1000/s #2"), "{text}");
    assert!(report::page(&[result]).contains("Timeline of delete"));
}

/// The order is random, the same for a seed, and does not end in long runs of one operation.
#[test]
fn a_seed_draws_an_order() {
    let size = options(1_000).size;
    let draw = |seed| MixedCalls::new(mix(MIX).calls(&size), seed).collect::<Vec<Operation>>();
    let calls = draw(1);
    assert_eq!((calls.len(), &calls), (4_000, &draw(1)));
    assert_ne!(calls, draw(2));
    for quarter in calls.chunks(1_000) {
        let stats = quarter.iter().filter(|operation| **operation == Operation::Stat).count();
        // Five standard deviations of 1,000 of 4,000 draws without replacement are 67.
        assert!(stats.abs_diff(600) < 67, "{stats} of 1,000");
        let deletes = quarter.iter().filter(|operation| **operation == Operation::Delete).count();
        assert!(deletes.abs_diff(50) < 30, "{deletes} of 1,000");
    }
}

fn check_datasets(path: &Path, first: u64) {
    for rank in 0..3 {
        for number in 0..2 {
            let dataset = format!("rank-{rank}/set-{number}");
            let expected: Vec<u64> = (first..first + 10).collect();
            assert_eq!(numbers_in(path, &dataset), expected, "{dataset}");
        }
    }
}

/// Every dataset has as many objects as before, whose oldest were deleted, and other runs use them.
#[test]
fn a_mixed_phase_shifts_every_dataset() -> Result<()> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let kept = RunOptions {
        mix: Some(mix("stat=40,read=20,create=12.5,delete=12.5,list=10,list-attributes=5")),
        keep: true,
        repeat: 2,
        ..runs::options()
    };
    let result = runs::run(&path, &kept)?;
    for phase in &result.phases[1..] {
        // An eighth of 16 calls for each of 3 ranks and 2 datasets.
        assert_eq!([Operation::Create, Operation::Delete].map(|of| count(phase, of)), [12, 12]);
        assert_eq!((phase.count(), phase.failed()), (96, 0), "{phase:?}");
    }
    check_datasets(&path, 4);
    let benchmark = runs::run(&path, &RunOptions { keep: true, ..runs::options() })?;
    assert_eq!(benchmark.phases[0].failed(), 0);
    check_datasets(&path, 8);
    let last = runs::run(&path, &runs::options())?;
    assert_eq!(last.phases.iter().map(PhaseResult::failed).sum::<u64>(), 0);
    assert!(!path.exists());
    Ok(())
}

/// After a time limit at any moment, ranks make their missing calls outside the measured time.
#[test]
fn a_time_limit_leaves_equal_datasets() -> Result<()> {
    let directory = tempfile::tempdir().expect("a directory");
    for (number, limit_ns) in [0, 20_000, 200_000, 2_000_000].into_iter().enumerate() {
        let path = directory.path().join(number.to_string());
        let mut limited = RunOptions {
            mix: Some(mix("stat=1,create=1,delete=1")),
            stonewall_ns: Some(limit_ns),
            keep: true,
            repeat: 3,
            ..runs::options()
        };
        (limited.size.objects, limited.size.iterations) = (400, 250);
        let result = runs::run(&path, &limited)?;
        assert_eq!(result.phases.iter().map(PhaseResult::failed).sum::<u64>(), 0);
        let first = numbers_in(&path, "rank-0/set-0")[0];
        for dataset in ["rank-0/set-0", "rank-1/set-1", "rank-2/set-0"] {
            let expected: Vec<u64> = (first..first + 400).collect();
            assert_eq!(numbers_in(&path, dataset), expected, "{dataset} after {limit_ns} ns");
        }
        let changed: u64 = result.phases[1..].iter().map(|p| count(p, Operation::Delete)).sum();
        assert!(changed <= first * 6, "what is made up for is in no count");
    }
    Ok(())
}

/// A mix without creates and deletes leaves the working set as it was.
#[test]
fn a_mix_can_be_read_only() -> Result<()> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("set");
    let kept = RunOptions { mix: Some(mix("stat=3,read=1")), keep: true, ..runs::options() };
    let result = runs::run(&path, &kept)?;
    let phase = &result.phases[1];
    assert_eq!([Operation::Stat, Operation::Read].map(|of| count(phase, of)), [72, 24]);
    check_datasets(&path, 0);
    Ok(())
}

#[test]
fn undefined_mixes_are_refused() {
    for text in ["", "stat", "stat=x", "stat=-1", "stat=inf", "stat=0", "stat=1,stat=2", "chmod=1"]
    {
        let refused = text.parse::<OperationMix>().expect_err(text);
        assert_eq!(refused.kind(), Kind::Invalid, "{text}");
    }
    let mut size = options(1_000).size;
    let refused = |text: &str, size| mix(text).check(&size).expect_err(text).to_string();
    let unbalanced = refused("stat=9,create=1", size);
    assert!(
        unbalanced.contains("create=1 and delete=0: give both the same weight"),
        "{unbalanced}"
    );
    // The working set of `options` has as many objects as a dataset has iterations.
    let emptied = refused("stat=50,create=25,delete=25", size);
    assert!(emptied.contains("deletes 1000 objects of each dataset"), "{emptied}");
    size.iterations = 1;
    let short = refused("stat=99,read=1", size);
    assert!(short.contains("too short for the share of read"), "{short}");
    let both = RunOptions { mix: Some(mix(MIX)), read_only: true, ..options(1_000) };
    assert_eq!(both.check().expect_err("both").kind(), Kind::Invalid);
}

/// The calls of a phase add up for any weights.
#[test]
fn shares_use_all_calls() {
    let mut size = options(1_000).size;
    (size.datasets, size.objects) = (3, 10_000);
    for text in
        ["stat=1,read=1,list=1", "stat=0.1,read=7,create=3.3,delete=3.3", "create=1,delete=1"]
    {
        for iterations in [1, 7, 999] {
            size.iterations = iterations;
            let calls = mix(text).calls(&size);
            let all: u64 = calls.iter().map(|(_, calls)| calls).sum();
            assert_eq!(all, 4 * 3 * iterations, "{text}");
        }
    }
}

/// Phases of different mixes have nothing to compare.
#[test]
fn only_equal_mixes_are_compared() {
    let run = |text: &str| {
        let run = RunOptions { mix: Some(mix(text)), repeat: 2, ..options(100) };
        simulate(&run, |_| (10_000, true))
    };
    let has_mixed = |other: &str| {
        let figures = compare(&run(MIX), &run(other));
        assert!(figures.iter().any(|figure| figure.phase == "precreate"));
        figures.iter().any(|figure| figure.phase == "mixed")
    };
    assert!(
        has_mixed(MIX)
            && has_mixed("stat=120,read=60,create=10,delete=10")
            && !has_mixed("stat=1,read=1")
    );
}
