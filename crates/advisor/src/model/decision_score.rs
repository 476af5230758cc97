// SPDX-License-Identifier: Apache-2.0
//! Decision score: the share of decisions that choose the best storage system, and the cost of
//! wrong ones.
//!
//! Regret is the share of the best system's rate that the chosen one lacks. Accuracy counts only
//! cases in which the best exceeds the second by [`CLEAR_DIFFERENCE`]: in others the choice hardly
//! matters, which regret shows.

use serde::{Deserialize, Serialize};

/// The difference above which a case has a right decision.
pub const CLEAR_DIFFERENCE: f64 = 0.10;

/// One case with a choice: rates by system, at least two.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceCase {
    /// Measured rates in MB/s, positive.
    pub measured: Vec<f64>,
    /// The index of the chosen system.
    pub chosen: usize,
}

/// The score over cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DecisionScore {
    /// Cases.
    pub cases: usize,
    /// Cases in which the best exceeds the second by [`CLEAR_DIFFERENCE`].
    pub clear_cases: usize,
    /// Clear cases in which the best was chosen.
    pub right: usize,
    /// The mean regret over all cases.
    pub mean_regret: f64,
    /// The largest regret.
    pub max_regret: f64,
}

impl DecisionScore {
    /// Scores the cases.
    #[must_use]
    pub fn of(cases: &[ChoiceCase]) -> Self {
        let mut score = Self { cases: cases.len(), ..Self::default() };
        for case in cases {
            let mut sorted = case.measured.clone();
            sorted.sort_by(|left, right| right.total_cmp(left));
            let chosen = case.measured[case.chosen];
            if sorted[0] > sorted[1] * (1.0 + CLEAR_DIFFERENCE) {
                score.clear_cases += 1;
                score.right += usize::from(chosen >= sorted[0]);
            }
            let regret = 1.0 - chosen / sorted[0];
            score.mean_regret += regret / cases.len() as f64;
            score.max_regret = score.max_regret.max(regret);
        }
        score
    }

    /// The share of right decisions among clear cases; 1 if there are none.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        match self.clear_cases {
            0 => 1.0,
            clear => self.right as f64 / clear as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_cases_cost_regret_but_no_accuracy() {
        let case = |measured: [f64; 2], chosen| ChoiceCase { measured: measured.to_vec(), chosen };
        let score = DecisionScore::of(&[
            case([100.0, 50.0], 0),
            case([100.0, 50.0], 1),
            case([100.0, 95.0], 1),
            case([10.0, 40.0], 1),
        ]);
        assert_eq!((score.cases, score.clear_cases, score.right), (4, 3, 2));
        assert!((score.accuracy() - 2.0 / 3.0).abs() < 1e-12);
        assert!((score.mean_regret - (0.5 + 0.05) / 4.0).abs() < 1e-12);
        assert!((score.max_regret - 0.5).abs() < 1e-12);
        assert_eq!(DecisionScore::of(&[]).accuracy(), 1.0);
    }
}
