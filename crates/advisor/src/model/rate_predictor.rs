// SPDX-License-Identifier: Apache-2.0
//! Rate predictor: predicts the rate of one storage system by one of five methods.
//!
//! A prediction by any method stays within a factor of [`BEYOND_MEASURED_MAX`] of the rates it was
//! fitted to: no method knows anything about rates beyond these, and the linear one predicts
//! negative ones.

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::boosted_trees::BoostedTrees;
use super::random_forest::RandomForest;
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
    /// A random forest for the logarithm of the rate.
    RandomForest,
    /// The geometric mean of [`PredictionMethod::AVERAGED`].
    Mean,
}

impl PredictionMethod {
    /// All methods, the simplest first.
    pub const ALL: [Self; 5] =
        [Self::Linear, Self::LogLinear, Self::BoostedTrees, Self::RandomForest, Self::Mean];

    /// The methods whose mean is one as well. A linear one goes on beyond what was measured, and trees
    /// follow what is not linear, so that errors of one kind meet others in the mean.
    const AVERAGED: [Self; 3] = [Self::LogLinear, Self::BoostedTrees, Self::RandomForest];

    /// The words for a reader.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Linear => "linear (the paper's)",
            Self::LogLinear => "log-linear with interactions",
            Self::BoostedTrees => "boosted trees",
            Self::RandomForest => "random forest",
            Self::Mean => "mean of log-linear and trees",
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
    RandomForest(RandomForest),
    Mean(Vec<PredictionRule>),
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
        let rule = PredictionRule::fit(method, rows)?;
        let rates = || rows.iter().map(|row| row.bandwidth());
        let lowest = rates().fold(f64::INFINITY, f64::min);
        let highest = rates().fold(0.0, f64::max);
        Ok(Self { rule, measured: [lowest, highest] })
    }

    /// Returns the predicted rate in MB/s, which is positive.
    #[must_use]
    pub fn predict(&self, variables: &IoVariables) -> f64 {
        let [lowest, highest] = self.measured;
        self.rule.rate(variables).clamp(lowest / BEYOND_MEASURED_MAX, highest * BEYOND_MEASURED_MAX)
    }

    /// The weighted variables, the largest effect over `rows` first; none for trees.
    #[must_use]
    pub fn terms(&self) -> &[LinearTerm] {
        match &self.rule {
            PredictionRule::Linear { terms, .. } | PredictionRule::LogLinear { terms, .. } => terms,
            _ => &[],
        }
    }

    /// Checks a predictor that was read from a file.
    ///
    /// # Errors
    /// `Corrupt` says what is wrong with it.
    pub fn validate(&self) -> Result<()> {
        let [lowest, highest] = self.measured;
        let is_range = lowest >= RATE_MIN && lowest <= highest && highest <= RATE_MAX;
        let problem = match is_range {
            true => self.rule.problem(),
            false => Some(format!("rates from {lowest} to {highest}")),
        };
        problem.map_or(Ok(()), |problem| Err(Error::new(Kind::Corrupt, problem)))
    }
}

impl PredictionRule {
    fn fit(method: PredictionMethod, rows: &[&Observation]) -> Result<Self> {
        let rates = || rows.iter().map(|row| row.bandwidth());
        let logarithms: Vec<f64> = rates().map(f64::ln).collect();
        let features = || -> Vec<Vec<f64>> {
            rows.iter().map(|row| values(&row.variables)[..BASE_FEATURES].to_vec()).collect()
        };
        Ok(match method {
            PredictionMethod::Linear => {
                let rates: Vec<f64> = rates().collect();
                let chosen = StepwiseFit::of(&paper_design(rows)?, &rates)?;
                let (constant, terms) = terms_of(&chosen.fit);
                Self::Linear { constant, terms }
            }
            PredictionMethod::LogLinear => {
                let mut design = DesignMatrix::new(rows.len());
                for (index, name) in NAMES.iter().enumerate() {
                    let column = rows.iter().map(|row| values(&row.variables)[index]);
                    design.push(*name, column.collect())?;
                }
                let chosen = StepwiseFit::of(&design, &logarithms)?;
                let (constant, terms) = terms_of(&chosen.fit);
                Self::LogLinear { constant, terms }
            }
            PredictionMethod::BoostedTrees => {
                Self::BoostedTrees(BoostedTrees::fit(&features(), &logarithms)?)
            }
            PredictionMethod::RandomForest => {
                Self::RandomForest(RandomForest::fit(&features(), &logarithms)?)
            }
            PredictionMethod::Mean => {
                let rules = PredictionMethod::AVERAGED.map(|method| Self::fit(method, rows));
                Self::Mean(rules.into_iter().collect::<Result<_>>()?)
            }
        })
    }

    /// The predicted rate in MB/s, which the linear rule may make negative.
    fn rate(&self, variables: &IoVariables) -> f64 {
        match self {
            Self::Linear { constant, terms } => {
                sum(*constant, terms, |name| value_of(name, variables))
            }
            rule => rule.logarithm(variables).exp(),
        }
    }

    /// The logarithm of the predicted rate.
    fn logarithm(&self, variables: &IoVariables) -> f64 {
        let values = values(variables);
        match self {
            Self::Linear { .. } => unreachable!("a linear rule is in no mean"),
            Self::LogLinear { constant, terms } => {
                sum(*constant, terms, |name| index_of(name).map(|index| values[index]))
            }
            Self::BoostedTrees(trees) => trees.predict(&values),
            Self::RandomForest(forest) => forest.predict(&values),
            Self::Mean(rules) => {
                let sum: f64 = rules.iter().map(|rule| rule.logarithm(variables)).sum();
                sum / rules.len() as f64
            }
        }
    }

    /// Returns the defect of a rule that was read from a file.
    fn problem(&self) -> Option<String> {
        match self {
            Self::Linear { constant, terms } => {
                let known = |name: &str| crate::regressors::LETTERS.contains(&name);
                unknown_term(*constant, terms, known)
            }
            Self::LogLinear { constant, terms } => {
                unknown_term(*constant, terms, |name| index_of(name).is_some())
            }
            Self::BoostedTrees(trees) => trees.validate(BASE_FEATURES).err(),
            Self::RandomForest(forest) => forest.validate(BASE_FEATURES).err(),
            Self::Mean(rules)
                if rules.is_empty() || rules.len() > PredictionMethod::AVERAGED.len() =>
            {
                Some(format!("a mean of {} rules", rules.len()))
            }
            Self::Mean(rules) => rules.iter().find_map(|rule| match rule {
                Self::Linear { .. } | Self::Mean(_) => {
                    Some("a mean of a rule that predicts no logarithm".into())
                }
                rule => rule.problem(),
            }),
        }
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
