// SPDX-License-Identifier: Apache-2.0
//! Boosted trees: gradient-boosted regression trees for squared error.
//!
//! Each tree is fitted to the residuals of the trees before it, and counts with a small weight.
//! Splits are exact: all thresholds between values of all features are tried. Nothing is random, so
//! the same rows give the same trees. The project has its own code because the crates for it are
//! unmaintained, wrap C++, or save trees in forms of their own, while a model file is documented,
//! and checked when it is read. Invariant: a child's index is above its parent's, so that every
//! descent ends. Source: Friedman, Greedy function approximation: a gradient boosting machine,
//! 2001, §4.3.

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::rate_predictor::COEFFICIENT_MAX;

/// Trees of a model.
const TREES: usize = 200;

/// Maximum number of splits from the root to a leaf: interactions of three features.
const DEPTH_MAX: usize = 3;

/// Minimum number of rows that a leaf averages.
const LEAF_ROWS_MIN: usize = 5;

/// The weight of each tree.
const SHRINKAGE: f64 = 0.1;

/// One node of a tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TreeNode {
    /// Rows whose feature is at most the threshold go left.
    Split { feature: usize, threshold: f64, left: usize, right: usize },
    /// The value that the tree adds.
    Leaf(f64),
}

/// Trees whose values add up to the prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoostedTrees {
    /// The mean of the response.
    base: f64,
    /// Features of a row.
    features: usize,
    /// Each tree's nodes, the root first.
    trees: Vec<Vec<TreeNode>>,
}

impl BoostedTrees {
    /// Fits trees to rows of equally many features.
    ///
    /// # Errors
    /// `Invalid` if there are no rows, their lengths differ, or a value is not finite.
    pub fn fit(rows: &[Vec<f64>], response: &[f64]) -> Result<Self> {
        let features = rows.first().map_or(0, Vec::len);
        let is_usable = features > 0
            && rows.len() == response.len()
            && rows.iter().all(|row| row.len() == features)
            && rows.iter().flatten().chain(response).all(|value| value.is_finite());
        if !is_usable {
            let message = "trees need rows of equally many finite features, one for each response";
            return Err(Error::new(Kind::Invalid, message));
        }
        let base = response.iter().sum::<f64>() / response.len() as f64;
        let mut remainder: Vec<f64> = response.iter().map(|value| value - base).collect();
        let ranked = RankedRows::of(rows);
        let mut trees = Vec::with_capacity(TREES);
        for _ in 0..TREES {
            let mut nodes = Vec::new();
            let mut all: Vec<usize> = (0..rows.len()).collect();
            ranked.grow(&mut nodes, &remainder, &mut all, DEPTH_MAX);
            for (left, row) in remainder.iter_mut().zip(rows) {
                *left -= descend(&nodes, row);
            }
            trees.push(nodes);
        }
        Ok(Self { base, features, trees })
    }

    /// Returns the prediction for a row.
    ///
    /// # Panics
    /// If the row has fewer features than the trees.
    #[must_use]
    pub fn predict(&self, row: &[f64]) -> f64 {
        assert!(row.len() >= self.features, "all features of the trees");
        self.base + self.trees.iter().map(|tree| descend(tree, row)).sum::<f64>()
    }

    /// Checks trees that were read from a file, for rows of `features` features.
    ///
    /// # Errors
    /// The defect of the trees.
    pub fn validate(&self, features: usize) -> Result<(), String> {
        if self.features > features {
            return Err(format!("trees of {} features, at most {features} exist", self.features));
        }
        let is_value = |value: f64| value.abs() <= COEFFICIENT_MAX;
        if !is_value(self.base) {
            return Err(format!("a base of {}", self.base));
        }
        for (number, tree) in self.trees.iter().enumerate() {
            if tree.is_empty() {
                return Err(format!("tree {number} has no node"));
            }
            for (index, node) in tree.iter().enumerate() {
                let is_valid = match node {
                    TreeNode::Leaf(value) => is_value(*value),
                    TreeNode::Split { feature, threshold, left, right } => {
                        *feature < self.features
                            && threshold.is_finite()
                            && [left, right]
                                .iter()
                                .all(|child| (index + 1..tree.len()).contains(child))
                    }
                };
                if !is_valid {
                    return Err(format!("node {index} of tree {number} is not valid: {node:?}"));
                }
            }
        }
        Ok(())
    }
}

/// The value of the leaf that a row reaches.
fn descend(tree: &[TreeNode], row: &[f64]) -> f64 {
    let mut index = 0;
    loop {
        match &tree[index] {
            TreeNode::Leaf(value) => return *value,
            TreeNode::Split { feature, threshold, left, right } => {
                index = if row[*feature] <= *threshold { *left } else { *right };
            }
        }
    }
}

/// The rows by the ranks of their values, so that a split is found without sorting.
struct RankedRows {
    /// By feature: the distinct values, ascending.
    levels: Vec<Vec<f64>>,
    /// By feature: the rank of each row's value.
    ranks: Vec<Vec<usize>>,
}

impl RankedRows {
    fn of(rows: &[Vec<f64>]) -> Self {
        let mut levels = Vec::new();
        let mut ranks = Vec::new();
        for feature in 0..rows.first().map_or(0, Vec::len) {
            let mut distinct: Vec<f64> = rows.iter().map(|row| row[feature]).collect();
            distinct.sort_by(f64::total_cmp);
            distinct.dedup();
            let rank = |row: &Vec<f64>| distinct.partition_point(|level| *level < row[feature]);
            ranks.push(rows.iter().map(rank).collect());
            levels.push(distinct);
        }
        Self { levels, ranks }
    }

    /// Appends the subtree for the rows in `members` to `nodes`.
    fn grow(
        &self,
        nodes: &mut Vec<TreeNode>,
        remainder: &[f64],
        members: &mut [usize],
        depth: usize,
    ) {
        let split = if depth == 0 { None } else { self.best_split(remainder, members) };
        let Some((feature, rank)) = split else {
            let sum: f64 = members.iter().map(|row| remainder[*row]).sum();
            nodes.push(TreeNode::Leaf(SHRINKAGE * sum / members.len() as f64));
            return;
        };
        let ranks = &self.ranks[feature];
        // A fixed order of rows, so that sums are rounded alike on every machine.
        members.sort_by_key(|row| (ranks[*row] > rank, *row));
        let middle = members.partition_point(|row| ranks[*row] <= rank);
        let (below, above) = members.split_at_mut(middle);
        let next = above.iter().map(|row| ranks[*row]).min().expect("a split has two sides");
        let last = below.iter().map(|row| ranks[*row]).max().expect("a split has two sides");
        let levels = &self.levels[feature];
        let threshold = levels[last] + (levels[next] - levels[last]) / 2.0;
        let index = nodes.len();
        nodes.push(TreeNode::Leaf(0.0));
        self.grow(nodes, remainder, below, depth - 1);
        let right = nodes.len();
        self.grow(nodes, remainder, above, depth - 1);
        nodes[index] = TreeNode::Split { feature, threshold, left: index + 1, right };
    }

    /// The feature, and the last rank on the left, that explain most of the remainder: the largest
    /// Σ²/n of both sides together.
    fn best_split(&self, remainder: &[f64], members: &[usize]) -> Option<(usize, usize)> {
        let total: f64 = members.iter().map(|row| remainder[*row]).sum();
        let count = members.len();
        let unsplit = total * total / count as f64;
        let mut best: Option<(f64, usize, usize)> = None;
        for (feature, (levels, ranks)) in self.levels.iter().zip(&self.ranks).enumerate() {
            let mut sums = vec![(0.0, 0_usize); levels.len()];
            for row in members {
                let (sum, rows) = &mut sums[ranks[*row]];
                *sum += remainder[*row];
                *rows += 1;
            }
            let (mut sum, mut below) = (0.0, 0);
            for (rank, (of_level, rows)) in sums.iter().enumerate() {
                sum += of_level;
                below += rows;
                let above = count - below;
                if *rows == 0 || below < LEAF_ROWS_MIN || above < LEAF_ROWS_MIN {
                    continue;
                }
                let explained =
                    sum * sum / below as f64 + (total - sum) * (total - sum) / above as f64;
                if explained > best.map_or(unsplit * (1.0 + 1e-12) + 1e-12, |(most, ..)| most) {
                    best = Some((explained, feature, rank));
                }
            }
        }
        best.map(|(_, feature, rank)| (feature, rank))
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
    fn unusable_rows_and_damaged_trees_are_refused() {
        assert!(BoostedTrees::fit(&[], &[]).is_err());
        assert!(BoostedTrees::fit(&[vec![1.0], vec![1.0, 2.0]], &[1.0, 2.0]).is_err());
        assert!(BoostedTrees::fit(&[vec![f64::NAN]], &[1.0]).is_err());
        let loops = TreeNode::Split { feature: 0, threshold: 0.0, left: 0, right: 1 };
        let beyond = TreeNode::Split { feature: 0, threshold: 0.0, left: 1, right: 9 };
        let unknown = TreeNode::Split { feature: 4, threshold: 0.0, left: 1, right: 2 };
        for node in [loops, beyond, unknown, TreeNode::Leaf(f64::NAN)] {
            let leaves = [TreeNode::Leaf(1.0), TreeNode::Leaf(2.0)];
            let tree = [vec![node], leaves.to_vec()].concat();
            let trees = BoostedTrees { base: 0.0, features: 1, trees: vec![tree] };
            assert!(trees.validate(3).is_err(), "{trees:?}");
        }
        assert!(BoostedTrees { base: 0.0, features: 9, trees: vec![] }.validate(3).is_err());
        assert!(BoostedTrees { base: 0.0, features: 1, trees: vec![vec![]] }.validate(3).is_err());
    }
}
