// SPDX-License-Identifier: Apache-2.0
//! Compare: two runs side by side, with confidence intervals and a plain verdict.
//!
//! Operations of one phase are not independent, so single latencies are not resampled. The units
//! are repetitions of a phase and, within a repetition, ranks: a two-level bootstrap. Percentile
//! intervals of few repetitions are too narrow; they are widened by √(n / (n - 1)) and the ratio of
//! Student's t to the normal quantile, for the smaller number n of repetitions (Hesterberg 2015,
//! What Teachers Should Know About the Bootstrap, §4.3). With one repetition there is no verdict.

use std::fmt;

use esker_base::Random;
use serde::Serialize;

use crate::mix::OperationMix;
use crate::operation::Operation;
use crate::result::{PhaseKind, PhaseResult, RankSummary, RunResult};

/// Resamples of one interval.
const RESAMPLES: usize = 2_000;

/// The quantile of the normal distribution for 95 %.
const NORMAL_95: f64 = 1.96;

/// Student's t for 95 % by degrees of freedom, from 1; beyond the last [`NORMAL_95`] is close
/// enough.
const STUDENT_95: [f64; 20] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
];

/// The outcome of a comparison of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComparisonVerdict {
    /// The second run is faster.
    Faster,
    /// The second run is slower.
    Slower,
    /// The interval has 1 in it.
    NoDifferenceSeen,
    /// One of the runs has only one repetition.
    TooFewRepetitions,
}

impl fmt::Display for ComparisonVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifferenceSeen => "no difference seen",
            Self::TooFewRepetitions => "no verdict",
        })
    }
}

/// One figure of two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedFigure {
    /// The phase.
    pub phase: String,
    /// The figure, such as `create p99`.
    pub figure: String,
    /// Its value in the first run: operations per second, or nanoseconds.
    pub first: f64,
    /// Its value in the second run.
    pub second: f64,
    /// The second divided by the first.
    pub ratio: f64,
    /// 95 % interval of the ratio.
    pub interval: (f64, f64),
    /// The verdict.
    pub verdict: ComparisonVerdict,
}

/// A sample: values by repetition and rank, each with its weight.
type RepeatedSample = Vec<Vec<(f64, f64)>>;

/// A figure of one rank.
type RankFigure = fn(&RankSummary) -> f64;

/// Compares the phases that both runs have; mixed phases only if they have the same mix.
#[must_use]
pub fn compare(first: &RunResult, second: &RunResult) -> Vec<ComparedFigure> {
    let mut figures = Vec::new();
    let (groups, has_other_mix) = (second.groups(), shares(first) != shares(second));
    for ours in first.groups() {
        let Some(theirs) = counterpart(&ours, &groups, has_other_mix) else { continue };
        let phase = ours[0].plan.name();
        let rates = |group: &[&PhaseResult]| -> RepeatedSample {
            group.iter().map(|phase| vec![(phase.rate(), 1.0)]).collect()
        };
        figures.extend(figure(&phase, "rate", true, &rates(&ours), &rates(theirs)));
        for operation in Operation::ALL {
            let values: [(&str, RankFigure); 3] = [
                ("mean", |rank| rank.mean_ns),
                ("p50", |rank| rank.p50_ns as f64),
                ("p99", |rank| rank.p99_ns as f64),
            ];
            for (name, value) in values {
                let name = format!("{operation} {name}");
                let ours = latencies(&ours, operation, value);
                let theirs = latencies(theirs, operation, value);
                figures.extend(figure(&phase, &name, false, &ours, &theirs));
            }
        }
    }
    figures
}

/// The names of the phases that [`compare`] leaves out, each after the label of the run that has
/// it.
#[must_use]
pub fn left_out<'a>(first: &'a RunResult, second: &'a RunResult) -> Vec<(&'a str, String)> {
    let has_other_mix = shares(first) != shares(second);
    let mut alone = Vec::new();
    for (run, other) in [(first, second), (second, first)] {
        let (groups, others) = (run.groups(), other.groups());
        let unpaired = groups.iter().filter(|g| counterpart(g, &others, has_other_mix).is_none());
        alone.extend(unpaired.map(|group| (run.label(), group[0].plan.name())));
    }
    alone
}

/// The one of `groups` with which `ours`, a phase of the other run, is compared.
fn counterpart<'a, 'b>(
    ours: &[&PhaseResult],
    groups: &'a [Vec<&'b PhaseResult>],
    has_other_mix: bool,
) -> Option<&'a Vec<&'b PhaseResult>> {
    let plan = &ours[0].plan;
    let is_paired = plan.kind != PhaseKind::Mixed || !has_other_mix;
    groups.iter().find(|group| is_paired && group[0].plan.is_repeated_by(plan))
}

/// The shares of the run's mixed phases; empty if it has none.
fn shares(run: &RunResult) -> Vec<(Operation, f64)> {
    run.options.mix.iter().flat_map(OperationMix::shares).collect()
}

fn latencies(group: &[&PhaseResult], operation: Operation, value: RankFigure) -> RepeatedSample {
    let of_phase = |phase: &&PhaseResult| {
        let ranks = phase.operation(operation).map_or(&[][..], |found| &found.ranks);
        let ranks = ranks.iter().filter(|rank| rank.count > 0);
        ranks.map(|rank| (value(rank), rank.count as f64)).collect::<Vec<_>>()
    };
    group.iter().map(of_phase).filter(|ranks| !ranks.is_empty()).collect()
}

fn figure(
    phase: &str,
    name: &str,
    more_is_faster: bool,
    first: &RepeatedSample,
    second: &RepeatedSample,
) -> Option<ComparedFigure> {
    let (a, b) = (mean(first.iter().flatten())?, mean(second.iter().flatten())?);
    if a <= 0.0 || b <= 0.0 {
        return None;
    }
    let ratio = b / a;
    let repetitions = first.len().min(second.len());
    let (interval, verdict) = if repetitions < 2 {
        ((0.0, f64::MAX), ComparisonVerdict::TooFewRepetitions)
    } else {
        let (low, high) = interval(first, second, ratio, repetitions);
        let verdict = match (low > 1.0, high < 1.0) {
            (false, false) => ComparisonVerdict::NoDifferenceSeen,
            (is_more, _) if is_more == more_is_faster => ComparisonVerdict::Faster,
            _ => ComparisonVerdict::Slower,
        };
        ((low, high), verdict)
    };
    let (phase, figure) = (phase.to_owned(), name.to_owned());
    Some(ComparedFigure { phase, figure, first: a, second: b, ratio, interval, verdict })
}

/// The 95 % interval of the ratio of the means of two samples.
fn interval(
    first: &RepeatedSample,
    second: &RepeatedSample,
    ratio: f64,
    repetitions: usize,
) -> (f64, f64) {
    // A fixed seed: the same results always give the same verdict.
    let mut random = Random::from_seed(0x636f_6d70);
    let mut logs: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            let (a, b) = (resample(first, &mut random)?, resample(second, &mut random)?);
            Some((b / a).ln())
        })
        .collect();
    logs.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| logs[((logs.len() - 1) as f64 * share).round() as usize];
    let degrees = repetitions - 1;
    let student = STUDENT_95.get(degrees - 1).copied().unwrap_or(NORMAL_95);
    let widening = (repetitions as f64 / degrees as f64).sqrt() * student / NORMAL_95;
    let center = ratio.ln();
    let bound = |share| (center + widening * (at(share) - center)).exp();
    (bound(0.025), bound(0.975))
}

fn resample(sample: &RepeatedSample, random: &mut Random) -> Option<f64> {
    let mut values = Vec::new();
    for _ in 0..sample.len() {
        let repetition = &sample[random.below(sample.len() as u64) as usize];
        let draw = |_| repetition[random.below(repetition.len() as u64) as usize];
        values.extend((0..repetition.len()).map(draw));
    }
    mean(values.iter())
}

fn mean<'a>(values: impl Iterator<Item = &'a (f64, f64)>) -> Option<f64> {
    let (sum, weights) = values.fold((0.0, 0.0), |(sum, weights), (value, weight)| {
        (sum + value * weight, weights + weight)
    });
    (weights > 0.0).then(|| sum / weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `repetitions` of four ranks around `center`, with `noise` between repetitions.
    fn sample(center: f64, noise: f64, repetitions: usize, random: &mut Random) -> RepeatedSample {
        let mut draw = |width: f64| 1.0 + width * (random.below(2_001) as f64 / 1_000.0 - 1.0);
        let repetition = |_| {
            let level = center * draw(noise);
            (0..4).map(|_| (level * draw(noise / 4.0), 100.0)).collect()
        };
        (0..repetitions).map(repetition).collect()
    }

    fn verdict(first: &RepeatedSample, second: &RepeatedSample) -> ComparisonVerdict {
        figure("benchmark", "create p50", false, first, second).expect("a figure").verdict
    }

    #[test]
    fn clear_differences_are_seen_in_the_right_direction() {
        let mut random = Random::from_seed(3);
        let (fast, slow) = (sample(1e5, 0.02, 5, &mut random), sample(2e5, 0.02, 5, &mut random));
        assert_eq!(verdict(&slow, &fast), ComparisonVerdict::Faster);
        assert_eq!(verdict(&fast, &slow), ComparisonVerdict::Slower);
        let rate = figure("benchmark", "rate", true, &fast, &slow).expect("a figure");
        assert_eq!(rate.verdict, ComparisonVerdict::Faster, "more operations per second");
    }

    /// If services are equal, a 95 % interval excludes 1 in about one of twenty comparisons.
    #[test]
    fn equal_services_rarely_differ() {
        let mut random = Random::from_seed(4);
        for repetitions in [2, 3, 5] {
            let differing = (0..200).filter(|_| {
                let (a, b) = (
                    sample(1e5, 0.1, repetitions, &mut random),
                    sample(1e5, 0.1, repetitions, &mut random),
                );
                verdict(&a, &b) != ComparisonVerdict::NoDifferenceSeen
            });
            let differing = differing.count();
            // Expected 10; a binomial of 200 and 0.05 exceeds 22 once in ten thousand.
            assert!(differing <= 22, "{differing} of 200 with {repetitions} repetitions");
        }
    }

    #[test]
    fn one_repetition_gives_no_verdict() {
        let mut random = Random::from_seed(5);
        let (one, many) = (sample(1e5, 0.1, 1, &mut random), sample(9e5, 0.1, 5, &mut random));
        assert_eq!(verdict(&one, &many), ComparisonVerdict::TooFewRepetitions);
    }
}
