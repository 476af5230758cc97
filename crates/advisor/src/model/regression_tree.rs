// SPDX-License-Identifier: Apache-2.0
//! Regression tree: splits rows by thresholds of their features until those of a leaf are alike.
//!
//! Splits are exact: all thresholds between values of all features are tried. Invariant: a child's
//! index is above its parent's, so that every descent ends.

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::rate_predictor::COEFFICIENT_MAX;

/// One node of a tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TreeNode {
    /// Rows whose feature is at most the threshold go left.
    Split { feature: usize, threshold: f64, left: usize, right: usize },
    /// The value of the rows that end here.
    Leaf(f64),
}

/// The limits of a tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct TreeLimits {
    /// Maximum number of splits from the root to a leaf.
    pub depth_max: usize,
    /// Minimum number of rows that a leaf averages.
    pub leaf_rows_min: usize,
}

/// A tree: its nodes, the root first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct RegressionTree(pub(super) Vec<TreeNode>);

impl RegressionTree {
    /// Returns the value of the leaf that a row reaches.
    pub(super) fn predict(&self, row: &[f64]) -> f64 {
        let mut index = 0;
        loop {
            match &self.0[index] {
                TreeNode::Leaf(value) => return *value,
                TreeNode::Split { feature, threshold, left, right } => {
                    index = if row[*feature] <= *threshold { *left } else { *right };
                }
            }
        }
    }

    /// Checks a tree that was read from a file, for rows of `features` features.
    ///
    /// # Errors
    /// The defect of the tree.
    pub(super) fn validate(&self, features: usize) -> Result<(), String> {
        let Self(nodes) = self;
        if nodes.is_empty() {
            return Err("has no node".into());
        }
        for (index, node) in nodes.iter().enumerate() {
            let is_valid = match node {
                TreeNode::Leaf(value) => value.abs() <= COEFFICIENT_MAX,
                TreeNode::Split { feature, threshold, left, right } => {
                    *feature < features
                        && threshold.is_finite()
                        && [left, right]
                            .iter()
                            .all(|child| (index + 1..nodes.len()).contains(child))
                }
            };
            if !is_valid {
                return Err(format!("has a node {index} that is not valid: {node:?}"));
            }
        }
        Ok(())
    }

    /// Multiplies all values.
    pub(super) fn scale(&mut self, factor: f64) {
        for node in &mut self.0 {
            if let TreeNode::Leaf(value) = node {
                *value *= factor;
            }
        }
    }
}

/// Checks trees that were read from a file, for rows of `features` features.
///
/// # Errors
/// The defect of one of them, with its number.
pub(super) fn validate_all(trees: &[RegressionTree], features: usize) -> Result<(), String> {
    for (number, tree) in trees.iter().enumerate() {
        tree.validate(features).map_err(|problem| format!("tree {number} {problem}"))?;
    }
    Ok(())
}

/// The responses of the rows with one value of a feature.
#[derive(Clone, Copy, Default)]
struct LevelSum {
    rank: usize,
    sum: f64,
    rows: usize,
}

/// The sums by rank, ascending, of the ranks that members have.
fn level_sums(
    levels: usize,
    rank_of: impl Fn(usize) -> usize,
    response: &[f64],
    members: &[usize],
) -> Vec<LevelSum> {
    if levels <= members.len() {
        let mut sums = vec![LevelSum::default(); levels];
        for row in members {
            let rank = rank_of(*row);
            let LevelSum { sum, rows, .. } = sums[rank];
            sums[rank] = LevelSum { rank, sum: sum + response[*row], rows: rows + 1 };
        }
        sums.retain(|level| level.rows > 0);
        return sums;
    }
    // A few rows of many levels.
    let mut ordered: Vec<(usize, usize)> =
        members.iter().map(|row| (rank_of(*row), *row)).collect();
    ordered.sort_by_key(|(rank, _)| *rank);
    let mut sums: Vec<LevelSum> = Vec::new();
    for (rank, row) in ordered {
        match sums.last_mut().filter(|level| level.rank == rank) {
            Some(level) => {
                level.sum += response[row];
                level.rows += 1;
            }
            None => sums.push(LevelSum { rank, sum: response[row], rows: 1 }),
        }
    }
    sums
}

/// Rows by the ranks of their values, so that a split is found without sorting.
pub(super) struct RankedRows {
    /// By feature: the distinct values, ascending.
    levels: Vec<Vec<f64>>,
    /// By feature: the rank of each row's value.
    ranks: Vec<Vec<usize>>,
}

impl RankedRows {
    /// Ranks rows of equally many features.
    ///
    /// # Errors
    /// `Invalid` if there are no rows, their lengths differ, they are not as many as the responses, or
    /// a value is not finite.
    pub(super) fn of(rows: &[Vec<f64>], response: &[f64]) -> Result<Self> {
        let features = rows.first().map_or(0, Vec::len);
        let is_usable = features > 0
            && rows.len() == response.len()
            && rows.iter().all(|row| row.len() == features)
            && rows.iter().flatten().chain(response).all(|value| value.is_finite());
        if !is_usable {
            let message = "trees need rows of equally many finite features, one for each response";
            return Err(Error::new(Kind::Invalid, message));
        }
        let (mut levels, mut ranks) = (Vec::new(), Vec::new());
        for feature in 0..features {
            let mut distinct: Vec<f64> = rows.iter().map(|row| row[feature]).collect();
            distinct.sort_by(f64::total_cmp);
            distinct.dedup();
            let rank = |row: &Vec<f64>| distinct.partition_point(|level| *level < row[feature]);
            ranks.push(rows.iter().map(rank).collect());
            levels.push(distinct);
        }
        Ok(Self { levels, ranks })
    }

    /// Grows a tree for the responses of the rows in `members`; a row may be there several times.
    pub(super) fn grow(
        &self,
        response: &[f64],
        members: &mut [usize],
        limits: TreeLimits,
    ) -> RegressionTree {
        let mut nodes = Vec::new();
        self.grow_below(&mut nodes, response, members, limits);
        RegressionTree(nodes)
    }

    /// Appends the subtree for the rows in `members` to `nodes`.
    fn grow_below(
        &self,
        nodes: &mut Vec<TreeNode>,
        response: &[f64],
        members: &mut [usize],
        limits: TreeLimits,
    ) {
        let TreeLimits { depth_max, leaf_rows_min } = limits;
        let split = match depth_max {
            0 => None,
            _ => self.best_split(response, members, leaf_rows_min),
        };
        let Some((feature, rank)) = split else {
            let sum: f64 = members.iter().map(|row| response[*row]).sum();
            nodes.push(TreeNode::Leaf(sum / members.len() as f64));
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
        let limits = TreeLimits { depth_max: depth_max - 1, leaf_rows_min };
        nodes.push(TreeNode::Leaf(0.0));
        self.grow_below(nodes, response, below, limits);
        let right = nodes.len();
        self.grow_below(nodes, response, above, limits);
        nodes[index] = TreeNode::Split { feature, threshold, left: index + 1, right };
    }

    /// The feature, and the last rank on the left, that explain most of the responses: the largest
    /// Σ²/n of both sides together.
    fn best_split(
        &self,
        response: &[f64],
        members: &[usize],
        leaf_rows_min: usize,
    ) -> Option<(usize, usize)> {
        let total: f64 = members.iter().map(|row| response[*row]).sum();
        let count = members.len();
        let unsplit = total * total / count as f64;
        let mut best: Option<(f64, usize, usize)> = None;
        for (feature, (levels, ranks)) in self.levels.iter().zip(&self.ranks).enumerate() {
            let (mut sum, mut below) = (0.0, 0);
            for LevelSum { rank, sum: of_level, rows } in
                level_sums(levels.len(), |row| ranks[row], response, members)
            {
                sum += of_level;
                below += rows;
                let above = count - below;
                if below < leaf_rows_min || above < leaf_rows_min {
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

    #[test]
    fn damaged_trees_are_refused() {
        let loops = TreeNode::Split { feature: 0, threshold: 0.0, left: 0, right: 1 };
        let beyond = TreeNode::Split { feature: 0, threshold: 0.0, left: 1, right: 9 };
        let unknown = TreeNode::Split { feature: 4, threshold: 0.0, left: 1, right: 2 };
        for node in [loops, beyond, unknown, TreeNode::Leaf(f64::NAN)] {
            let leaves = [TreeNode::Leaf(1.0), TreeNode::Leaf(2.0)];
            let tree = RegressionTree([vec![node], leaves.to_vec()].concat());
            assert!(tree.validate(1).is_err(), "{tree:?}");
        }
        assert!(RegressionTree(vec![]).validate(1).is_err());
        let whole = TreeNode::Split { feature: 0, threshold: 0.0, left: 1, right: 2 };
        let tree = RegressionTree(vec![whole, TreeNode::Leaf(1.0), TreeNode::Leaf(2.0)]);
        assert_eq!(tree.validate(1), Ok(()));
        assert_eq!([-1.0, 0.0, 0.5].map(|value| tree.predict(&[value])), [1.0, 1.0, 2.0]);
    }

    #[test]
    fn unusable_rows_are_refused() {
        for (rows, response) in [
            (vec![], vec![]),
            (vec![vec![]], vec![1.0]),
            (vec![vec![1.0], vec![1.0, 2.0]], vec![1.0, 2.0]),
            (vec![vec![1.0]], vec![1.0, 2.0]),
            (vec![vec![f64::NAN]], vec![1.0]),
        ] {
            assert!(RankedRows::of(&rows, &response).is_err(), "{rows:?}");
        }
    }
}
