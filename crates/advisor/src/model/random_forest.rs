// SPDX-License-Identifier: Apache-2.0
//! Random forest: the mean of deep regression trees, each grown from a random sample of the rows.
//!
//! One deep tree follows the noise of its rows; those of others differ in it. The samples are drawn
//! by a fixed seed, so the same rows give the same forest. Source: Breiman, Random forests, 2001, with
//! all features at each split.

use esker_base::{Random, Result};
use serde::{Deserialize, Serialize};

use super::regression_tree::{RankedRows, RegressionTree, TreeLimits, validate_all};

/// Trees of a forest.
const TREES: usize = 100;

const LIMITS: TreeLimits = TreeLimits { depth_max: 12, leaf_rows_min: 3 };

/// The seed of the samples.
const SEED: u64 = 0x0f0e;

/// Trees whose mean is the prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomForest {
    /// Features of a row.
    features: usize,
    trees: Vec<RegressionTree>,
}

impl RandomForest {
    /// Fits a forest to rows of equally many features.
    ///
    /// # Errors
    /// `Invalid` if there are no rows, their lengths differ, or a value is not finite.
    pub fn fit(rows: &[Vec<f64>], response: &[f64]) -> Result<Self> {
        let ranked = RankedRows::of(rows, response)?;
        let mut random = Random::from_seed(SEED);
        let count = rows.len() as u64;
        let trees = (0..TREES).map(|_| {
            let mut sample: Vec<usize> =
                rows.iter().map(|_| random.below(count) as usize).collect();
            ranked.grow(response, &mut sample, LIMITS)
        });
        Ok(Self { features: rows[0].len(), trees: trees.collect() })
    }

    /// Returns the prediction for a row.
    ///
    /// # Panics
    /// If the row has fewer features than the forest.
    #[must_use]
    pub fn predict(&self, row: &[f64]) -> f64 {
        assert!(row.len() >= self.features, "all features of the forest");
        let sum: f64 = self.trees.iter().map(|tree| tree.predict(row)).sum();
        sum / self.trees.len() as f64
    }

    /// Checks a forest that was read from a file, for rows of `features` features.
    ///
    /// # Errors
    /// The defect of the forest.
    pub fn validate(&self, features: usize) -> Result<(), String> {
        if self.features > features {
            return Err(format!("trees of {} features, at most {features} exist", self.features));
        }
        if self.trees.is_empty() {
            return Err("a forest without trees".into());
        }
        validate_all(&self.trees, self.features)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_learnt_noise_is_averaged_and_the_fit_is_repeatable() {
        let mut random = Random::from_seed(7);
        let mut noise = || random.below(2_000) as f64 / 1_000.0 - 1.0;
        let rows: Vec<Vec<f64>> =
            (0..600).map(|index: i32| vec![f64::from(index % 4), f64::from(index)]).collect();
        let truth = |row: &[f64]| 10.0 * row[0];
        let response: Vec<f64> = rows.iter().map(|row| truth(row) + noise()).collect();
        let forest = RandomForest::fit(&rows, &response).expect("a forest");
        let error = |row: &Vec<f64>| (forest.predict(row) - truth(row)).powi(2);
        let mean = rows.iter().map(error).sum::<f64>() / rows.len() as f64;
        // The noise has a mean square of a third.
        assert!(mean < 0.2, "{mean}");
        assert_eq!(forest, RandomForest::fit(&rows, &response).expect("a forest"));
        assert_eq!(forest.validate(2), Ok(()));
        assert!(forest.validate(1).is_err());
        assert!(RandomForest { features: 1, trees: vec![] }.validate(1).is_err());
    }
}
