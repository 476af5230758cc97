// SPDX-License-Identifier: Apache-2.0
//! Boosted trees: gradient-boosted regression trees for squared error.
//!
//! Each tree is fitted to the residuals of the trees before it, and counts with a small weight.
//! Nothing is random, so the same rows give the same trees. The project has its own code because the
//! crates for it are unmaintained, wrap C++, or save trees in forms of their own, while a model file
//! is documented, and checked when it is read. Source: Friedman, Greedy function approximation: a
//! gradient boosting machine, 2001, §4.3.

use esker_base::Result;
use serde::{Deserialize, Serialize};

use super::rate_predictor::COEFFICIENT_MAX;
use super::regression_tree::{RankedRows, RegressionTree, TreeLimits};

/// Trees of a model.
const TREES: usize = 200;

/// A tree has interactions of three features.
const LIMITS: TreeLimits = TreeLimits { depth_max: 3, leaf_rows_min: 5 };

/// The weight of each tree.
const SHRINKAGE: f64 = 0.1;

/// Trees whose values add up to the prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoostedTrees {
    /// The mean of the response.
    base: f64,
    /// Features of a row.
    features: usize,
    trees: Vec<RegressionTree>,
}

impl BoostedTrees {
    /// Fits trees to rows of equally many features.
    ///
    /// # Errors
    /// `Invalid` if there are no rows, their lengths differ, or a value is not finite.
    pub fn fit(rows: &[Vec<f64>], response: &[f64]) -> Result<Self> {
        let ranked = RankedRows::of(rows, response)?;
        let base = response.iter().sum::<f64>() / response.len() as f64;
        let mut remainder: Vec<f64> = response.iter().map(|value| value - base).collect();
        let mut trees = Vec::with_capacity(TREES);
        for _ in 0..TREES {
            let mut all: Vec<usize> = (0..rows.len()).collect();
            let mut tree = ranked.grow(&remainder, &mut all, LIMITS);
            tree.scale(SHRINKAGE);
            for (left, row) in remainder.iter_mut().zip(rows) {
                *left -= tree.predict(row);
            }
            trees.push(tree);
        }
        Ok(Self { base, features: rows[0].len(), trees })
    }

    /// Returns the prediction for a row.
    ///
    /// # Panics
    /// If the row has fewer features than the trees.
    #[must_use]
    pub fn predict(&self, row: &[f64]) -> f64 {
        assert!(row.len() >= self.features, "all features of the trees");
        self.base + self.trees.iter().map(|tree| tree.predict(row)).sum::<f64>()
    }

    /// Checks trees that were read from a file, for rows of `features` features.
    ///
    /// # Errors
    /// The defect of the trees.
    pub fn validate(&self, features: usize) -> Result<(), String> {
        if self.features > features {
            return Err(format!("trees of {} features, at most {features} exist", self.features));
        }
        if self.base.is_nan() || self.base.abs() > COEFFICIENT_MAX {
            return Err(format!("a base of {}", self.base));
        }
        super::regression_tree::validate_all(&self.trees, self.features)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two features of which only the product of flags matters, and one that is noise.
    fn rows() -> (Vec<Vec<f64>>, Vec<f64>) {
        let rows: Vec<Vec<f64>> = (0..400)
            .map(|index: i32| {
                let [a, b] = [index % 2, index / 2 % 2].map(f64::from);
                vec![a, b, f64::from(index * 7919 % 101)]
            })
            .collect();
        let response = rows.iter().map(|row| 3.0 + 5.0 * row[0] * row[1]).collect();
        (rows, response)
    }

    #[test]
    fn an_interaction_is_learnt_and_the_fit_is_repeatable() {
        let (rows, response) = rows();
        let trees = BoostedTrees::fit(&rows, &response).expect("trees");
        for (row, expected) in rows.iter().zip(&response) {
            assert!((trees.predict(row) - expected).abs() < 1e-6, "{row:?}");
        }
        assert_eq!(trees, BoostedTrees::fit(&rows, &response).expect("trees"));
        assert_eq!(trees.validate(3), Ok(()));
    }

    #[test]
    fn damaged_trees_are_refused() {
        let tree = |base, features, trees| BoostedTrees { base, features, trees };
        assert!(tree(0.0, 9, vec![]).validate(3).is_err());
        assert!(tree(f64::NAN, 1, vec![]).validate(3).is_err());
        let problem = tree(0.0, 1, vec![RegressionTree(vec![])]).validate(3);
        assert_eq!(problem, Err("tree 0 has no node".into()));
    }
}
