// SPDX-License-Identifier: Apache-2.0
//! Cross-validation: leaves out one family of workloads at a time, and so shows how well a method
//! predicts applications unlike those that were measured.
//!
//! A family is left out with all its cases on all systems, so that no case of a predicted family is
//! known in another configuration.

use std::collections::{BTreeMap, BTreeSet};

use esker_base::{Error, Kind, Result};

use super::decision_score::{ChoiceCase, DecisionScore};
use super::rate_predictor::{PredictionMethod, RatePredictor};
use crate::observation::{Observation, StorageKind};

/// Minimum number of families: with fewer, leaving one out shows nothing.
pub const FAMILIES_MIN: usize = 3;

/// The result of cross-validation for one method.
#[derive(Clone, Debug)]
pub struct ValidationResult {
    /// The method.
    pub method: PredictionMethod,
    /// By system: ln measured − ln predicted of every row, ascending.
    pub errors: BTreeMap<String, Vec<f64>>,
    /// The root of the mean square of all errors.
    pub error: f64,
    /// Decisions between systems.
    pub score: DecisionScore,
}

/// Rows of each test case with the numbers of their systems, for cases on at least two systems.
fn choices(observations: &[Observation]) -> Vec<Vec<usize>> {
    let mut cases: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (index, row) in observations.iter().enumerate() {
        cases.entry((&row.workload, &row.case)).or_default().push(index);
    }
    let several = cases.into_values().filter(|rows| {
        let systems: BTreeSet<&str> =
            rows.iter().map(|row| observations[*row].system.as_str()).collect();
        systems.len() > 1
    });
    several.collect()
}

/// The names of the systems of the rows.
#[must_use]
pub fn systems(observations: &[Observation]) -> BTreeMap<String, StorageKind> {
    observations.iter().map(|row| (row.system.clone(), row.kind)).collect()
}

/// Validates a method on rows without repetitions.
///
/// # Errors
/// `Invalid` if there are fewer than [`FAMILIES_MIN`] families, or a system has too few rows
/// outside one of them.
pub fn validate(
    method: PredictionMethod,
    observations: &[Observation],
) -> Result<ValidationResult> {
    let families: BTreeSet<&str> = observations.iter().map(|row| row.workload.as_str()).collect();
    if families.len() < FAMILIES_MIN {
        let message = format!(
            "families of workloads: {}; leaving one out needs at least {FAMILIES_MIN}: measure more",
            families.len()
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    let mut predicted = vec![0.0; observations.len()];
    for system in systems(observations).keys() {
        for family in &families {
            let mut of_system = Vec::new();
            let mut left_out = Vec::new();
            for (index, row) in observations.iter().enumerate() {
                if row.system != *system {
                    continue;
                }
                match row.workload == *family {
                    true => left_out.push(index),
                    false => of_system.push(row),
                }
            }
            if left_out.is_empty() {
                continue;
            }
            if of_system.is_empty() {
                let what = format!(
                    "{system} has rows of {family} only, and of no other family: measure it with more, \
                     or leave these rows out"
                );
                return Err(Error::new(Kind::Invalid, what));
            }
            let predictor = RatePredictor::fit(method, &of_system)
                .map_err(|error| error.within(format!("{system} without {family}")))?;
            for index in left_out {
                predicted[index] = predictor.predict(&observations[index].variables);
            }
        }
    }
    Ok(result(method, observations, &predicted))
}

fn result(
    method: PredictionMethod,
    observations: &[Observation],
    predicted: &[f64],
) -> ValidationResult {
    let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut squares = 0.0;
    for (row, predicted) in observations.iter().zip(predicted) {
        let error = (row.bandwidth() / predicted).ln();
        squares += error * error;
        errors.entry(row.system.clone()).or_default().push(error);
    }
    errors.values_mut().for_each(|errors| errors.sort_by(f64::total_cmp));
    let cases: Vec<ChoiceCase> = choices(observations)
        .iter()
        .map(|rows| {
            let best = (0..rows.len())
                .max_by(|left, right| predicted[rows[*left]].total_cmp(&predicted[rows[*right]]));
            ChoiceCase {
                measured: rows.iter().map(|row| observations[*row].bandwidth()).collect(),
                chosen: best.expect("a choice has rows"),
            }
        })
        .collect();
    ValidationResult {
        method,
        errors,
        error: (squares / observations.len() as f64).sqrt(),
        score: DecisionScore::of(&cases),
    }
}

/// Scores the rule "always this system", over the cases that ran on it.
#[must_use]
pub fn always(system: &str, observations: &[Observation]) -> DecisionScore {
    let cases: Vec<ChoiceCase> = choices(observations)
        .iter()
        .filter_map(|rows| {
            let chosen = rows.iter().position(|row| observations[*row].system == system)?;
            let measured = rows.iter().map(|row| observations[*row].bandwidth()).collect();
            Some(ChoiceCase { measured, chosen })
        })
        .collect();
    DecisionScore::of(&cases)
}
