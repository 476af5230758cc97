// SPDX-License-Identifier: Apache-2.0
//! Rate predictor: predicts the rate of one storage system by one of three methods.
//!
//! A prediction by any method stays within a factor of [`BEYOND_MEASURED_MAX`] of the rates it was
//! fitted to: no method knows anything about rates beyond these, and the linear one predicts
//! negative ones.

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::boosted_trees::BoostedTrees;
use super::response_features::{BASE_FEATURES, NAMES, index_of, values};
use crate::observation::{IoVariables, Observation, RATE_MAX, RATE_MIN};
use crate::regressors::{paper_design, value_of};
use crate::statistics::design_matrix::DesignMatrix;
use crate::statistics::least_squares::LinearFit;
use crate::statistics::stepwise::StepwiseFit;

/// The factor by which a prediction may exceed the highest, or fall below the lowest, measured
/// rate.
pub const BEYOND_MEASURED_MAX: f64 = 2.0;

/// Numbers in a model that was read: sums of their products with any features are finite.
pub const COEFFICIENT_MAX: f64 = 1e100;

/// A way to predict rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictionMethod {
    /// The paper's: stepwise regression of the rate.
    Linear,
    /// Stepwise regression of the logarithm of the rate, with interactions.
    LogLinear,
    /// Gradient-boosted trees for the logarithm of the rate.
    BoostedTrees,
}

impl PredictionMethod {
    /// All methods, the simplest first.
    pub const ALL: [Self; 3] = [Self::Linear, Self::LogLinear, Self::BoostedTrees];

    /// The words for a reader.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Linear => "linear (the paper's)",
            Self::LogLinear => "log-linear with interactions",
            Self::BoostedTrees => "boosted trees",
        }
    }
}

/// A weighted variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearTerm {
    /// The letter of Table 1, or the name of a feature.
    pub name: String,
    /// Its coefficient.
    pub coefficient: f64,
}

/// The part of a predictor that its method determines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PredictionRule {
    Linear { constant: f64, terms: Vec<LinearTerm> },
    LogLinear { constant: f64, terms: Vec<LinearTerm> },
    BoostedTrees(BoostedTrees),
}

/// A fitted predictor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatePredictor {
    rule: PredictionRule,
    /// The lowest and the highest rate of the rows, in MB/s.
    measured: [f64; 2],
}

impl RatePredictor {
    /// Fits `method` to the rows of one system.
    ///
    /// # Errors
    /// `Invalid` if the rows are too few, or all have the same rate.
    pub fn fit(method: PredictionMethod, rows: &[&Observation]) -> Result<Self> {
        let rates: Vec<f64> = rows.iter().map(|row| row.bandwidth()).collect();
        let logarithms: Vec<f64> = rates.iter().map(|rate| rate.ln()).collect();
        let rule = match method {
            PredictionMethod::Linear => {
                let chosen = StepwiseFit::of(&paper_design(rows)?, &rates)?;
                let (constant, terms) = terms_of(&chosen.fit);
                PredictionRule::Linear { constant, terms }
            }
            PredictionMethod::LogLinear => {
                let mut design = DesignMatrix::new(rows.len());
                for (index, name) in NAMES.iter().enumerate() {
                    let column = rows.iter().map(|row| values(&row.variables)[index]);
                    design.push(*name, column.collect())?;
                }
                let chosen = StepwiseFit::of(&design, &logarithms)?;
                let (constant, terms) = terms_of(&chosen.fit);
                PredictionRule::LogLinear { constant, terms }
            }
            PredictionMethod::BoostedTrees => {
                let rows: Vec<Vec<f64>> = rows
                    .iter()
                    .map(|row| values(&row.variables)[..BASE_FEATURES].to_vec())
                    .collect();
                PredictionRule::BoostedTrees(BoostedTrees::fit(&rows, &logarithms)?)
            }
        };
        let lowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = rates.iter().copied().fold(0.0, f64::max);
        Ok(Self { rule, measured: [lowest, highest] })
    }

    /// Returns the predicted rate in MB/s, which is positive.
    #[must_use]
    pub fn predict(&self, variables: &IoVariables) -> f64 {
        let rate = match &self.rule {
            PredictionRule::Linear { constant, terms } => {
                sum(*constant, terms, |name| value_of(name, variables))
            }
            PredictionRule::LogLinear { constant, terms } => {
                let values = values(variables);
                sum(*constant, terms, |name| index_of(name).map(|index| values[index])).exp()
            }
            PredictionRule::BoostedTrees(trees) => trees.predict(&values(variables)).exp(),
        };
        let [lowest, highest] = self.measured;
        rate.clamp(lowest / BEYOND_MEASURED_MAX, highest * BEYOND_MEASURED_MAX)
    }

    /// The weighted variables, the largest effect over `rows` first; none for trees.
    #[must_use]
    pub fn terms(&self) -> &[LinearTerm] {
        match &self.rule {
            PredictionRule::Linear { terms, .. } | PredictionRule::LogLinear { terms, .. } => terms,
            PredictionRule::BoostedTrees(_) => &[],
        }
    }

    /// Checks a predictor that was read from a file.
    ///
    /// # Errors
    /// `Corrupt` says what is wrong with it.
    pub fn validate(&self) -> Result<()> {
        let [lowest, highest] = self.measured;
        let is_range = lowest >= RATE_MIN && lowest <= highest && highest <= RATE_MAX;
        let problem = match &self.rule {
            _ if !is_range => Some(format!("rates from {lowest} to {highest}")),
            PredictionRule::Linear { constant, terms } => {
                let known = |name: &str| crate::regressors::LETTERS.contains(&name);
                unknown_term(*constant, terms, known)
            }
            PredictionRule::LogLinear { constant, terms } => {
                unknown_term(*constant, terms, |name| index_of(name).is_some())
            }
            PredictionRule::BoostedTrees(trees) => trees.validate(BASE_FEATURES).err(),
        };
        problem.map_or(Ok(()), |problem| Err(Error::new(Kind::Corrupt, problem)))
    }
}

fn terms_of(fit: &LinearFit) -> (f64, Vec<LinearTerm>) {
    let terms = fit.coefficients[1..].iter().map(|coefficient| LinearTerm {
        name: coefficient.name.clone(),
        coefficient: coefficient.value,
    });
    (fit.coefficients[0].value, terms.collect())
}

fn sum(constant: f64, terms: &[LinearTerm], value: impl Fn(&str) -> Option<f64>) -> f64 {
    let weighted = terms.iter().map(|term| {
        term.coefficient * value(&term.name).expect("fits and `validate` allow known names only")
    });
    constant + weighted.sum::<f64>()
}

fn unknown_term(
    constant: f64,
    terms: &[LinearTerm],
    is_known: impl Fn(&str) -> bool,
) -> Option<String> {
    let is_coefficient = |value: f64| value.abs() <= COEFFICIENT_MAX;
    if !is_coefficient(constant) {
        return Some(format!("the constant is {constant}"));
    }
    let is_wrong = |term: &&LinearTerm| !is_coefficient(term.coefficient) || !is_known(&term.name);
    let wrong = terms.iter().find(is_wrong)?;
    Some(format!("no such variable, or no finite coefficient: {wrong:?}"))
}
