// SPDX-License-Identifier: Apache-2.0
//! Runs of histories from seeds, each on its own machine.
//!
//! `ESKER_SEED=n` replays one seed, `ESKER_SEEDS=n` runs the first n. A failing seed is shrunk, and
//! the trace of the smallest failing history is printed.

use std::sync::Arc;
use std::time::Duration;

use esker_sim::{ActorId, MachineOptions, RunOutcome, SimulatedMachine};
use parking_lot::Mutex;

use crate::campaign;
use crate::checks::World;
use crate::history::History;
use crate::keeper::Keeper;
use crate::shrink::shrink;
use crate::truth::Truth;
use crate::writer::Writer;

/// Start of the simulated clock.
const START_NS: u64 = 3_000_000_000_000_000_000;
/// Number of seeds in a quick test.
const SEEDS: u64 = 200;
/// Seeds that failed once. A name stood for a set being deleted; resumed sessions read tables of
/// their bases that a compaction replaced and a collection without a grace period deleted; a fenced
/// writer deleted the tables of its last commit; a log lost unsynced bytes between the two readings
/// of a takeover; the model counted the answer to a sync in place, which came after a takeover, as a state,
/// and took a path through a symbolic link for that of the file in place; a writer that was taken
/// over read a file whose log the new writer had deleted, and was told that there is no such object.
const SEEDS_FAILED: &[u64] = &[
    2_607_458_550,
    1_920_601_955,
    9_848_171,
    669_970_399,
    183_974_610,
    14_127_492,
    888_491_794,
    1_311_418_306,
    389_307_023,
    292_985_406,
];
/// Time to shrink a failing history.
const SHRINK_TIME: Duration = Duration::from_secs(20);

/// Runs `history`.
fn run(history: &History, is_traced: bool) -> RunOutcome {
    let machine = SimulatedMachine::new(
        history.actors.len(),
        MachineOptions {
            seed: history.seed,
            switch_one_in: history.switch_one_in,
            start_ns: START_NS,
            faults: history.faults.clone(),
            is_traced,
        },
    );
    let truth = Mutex::new(Truth::default());
    let world = Arc::new(World { machine: machine.clone(), history: history.clone(), truth });
    let actors = history.actors.iter().enumerate().map(|(number, steps)| {
        let world = &world;
        let is_keeper = steps.first().is_some_and(|step| step.kind.is_of_keeper());
        let act: Box<dyn FnOnce() + Send + '_> = if is_keeper {
            Box::new(move || Keeper::new(world, ActorId(number)).run(steps))
        } else {
            Box::new(move || Writer::new(world, ActorId(number)).run(steps))
        };
        act
    });
    machine.run(actors.collect());
    if !machine.has_failed() {
        world.check_end();
    }
    machine.outcome()
}

/// Runs the histories of `seeds`, then prints the smallest history that fails like the first
/// failure. Returns the total number of requests.
fn check(seeds: impl Iterator<Item = u64>) -> u64 {
    let (mut failures, mut requests) = (Vec::new(), 0);
    for seed in seeds {
        let outcome = run(&History::from_seed(seed), false);
        requests += outcome.requests;
        if let Some(failure) = outcome.failure {
            println!("seed {seed}: {failure}");
            failures.push((seed, failure));
        }
    }
    let Some((first, failure)) = failures.first() else { return requests };
    let history = History::from_seed(*first);
    let smallest = shrink(&history, failure, SHRINK_TIME, |history| run(history, false));
    let outcome = run(&smallest, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    println!("{smallest:#?}");
    let seeds: Vec<u64> = failures.iter().map(|(seed, _)| *seed).collect();
    let shown = outcome.failure.unwrap_or_default();
    panic!("seeds {seeds:?} fail; ESKER_SEED=n replays one. The first, made smaller:\n{shown}");
}

#[test]
fn a_job_keeps_what_it_promised() {
    let requests = match number("ESKER_SEED") {
        Some(seed) => check(std::iter::once(seed)),
        None => {
            let first = 0..number("ESKER_SEEDS").unwrap_or(SEEDS);
            check(SEEDS_FAILED.iter().copied().chain(first))
        }
    };
    println!("{requests} requests");
}

/// The number in environment variable `variable`.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number")))
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_a_job_keeps_what_it_promised() {
    let mut requests = 0;
    campaign::soak(|seed| requests += check(std::iter::once(seed)));
    println!("{requests} requests");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1_000..1_010 {
        let history = History::from_seed(seed);
        let (first, second) = (run(&history, true), run(&history, true));
        let differing =
            first.trace.iter().zip(&second.trace).find(|(first, second)| first != second);
        assert_eq!(differing, None, "seed {seed}");
        assert_eq!((first.digest, first.failure), (second.digest, second.failure), "seed {seed}");
    }
}
