// SPDX-License-Identifier: Apache-2.0
//! Shrinking: searches for a smaller history that still fails.
//!
//! Removing a step shifts the schedule of all others, so each candidate is tried with several
//! seeds.

use std::time::Duration;

use esker_base::clock::{Clock, SystemClock};
use esker_sim::RunOutcome;

use crate::history::History;

/// Schedule seeds tried per candidate.
const SEEDS_PER_CANDIDATE: u64 = 3;

/// Words that identify a failure: ids and counts differ from history to history.
const WORDS: usize = 5;

/// The class of the failure that `text` describes.
pub fn failure_class(text: &str) -> String {
    let is_plain = |word: &&str| !word.contains(|letter: char| letter.is_ascii_digit());
    text.split_whitespace().filter(is_plain).take(WORDS).collect::<Vec<_>>().join(" ")
}

/// The smallest history found within `time` that fails like `failure`.
pub fn shrink(
    history: &History,
    failure: &str,
    time: Duration,
    run: impl Fn(&History) -> RunOutcome,
) -> History {
    let class = failure_class(failure);
    let fails = |candidate: &History| {
        run(candidate).failure.is_some_and(|failure| failure_class(&failure) == class)
    };
    let clock = SystemClock;
    let end_ns = clock.monotonic_ns() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut best = history.clone();
    let mut is_smaller = true;
    while is_smaller {
        is_smaller = false;
        for candidate in candidates(&best) {
            if clock.monotonic_ns() > end_ns {
                return best;
            }
            let failing = (0..SEEDS_PER_CANDIDATE)
                .map(|turn| History { seed: candidate.seed + turn, ..candidate.clone() })
                .find(&fails);
            if let Some(smaller) = failing {
                best = smaller;
                is_smaller = true;
                break;
            }
        }
    }
    best
}

/// Histories with parts of `history` removed, the smallest first.
fn candidates(history: &History) -> Vec<History> {
    let mut candidates = Vec::new();
    for actor in 0..history.actors.len() {
        if !history.actors[actor].is_empty() {
            let mut smaller = history.clone();
            smaller.actors[actor].clear();
            candidates.push(smaller);
        }
    }
    for fault in 0..history.faults.len() {
        let mut smaller = history.clone();
        smaller.faults.remove(fault);
        candidates.push(smaller);
    }
    if history.clock_offsets_s.iter().any(|offset| *offset != 0) {
        let mut smaller = history.clone();
        smaller.clock_offsets_s.fill(0);
        candidates.push(smaller);
    }
    let longest = history.actors.iter().map(Vec::len).max().unwrap_or(0);
    let mut part = longest.next_power_of_two() / 2;
    while part > 0 {
        for (actor, steps) in history.actors.iter().enumerate() {
            for start in (0..steps.len()).step_by(part).rev() {
                let mut smaller = history.clone();
                smaller.actors[actor].drain(start..steps.len().min(start + part));
                candidates.push(smaller);
            }
        }
        part /= 2;
    }
    candidates
}
