// SPDX-License-Identifier: Apache-2.0
//! Advisor model: a predictor for each storage system, by the method that cross-validation found
//! best, with the distribution of its errors.
//!
//! Saved as JSON: docs/format/advisor-model.md. Readers check every number and name, so that a
//! damaged file is `Corrupt` and never a wrong prediction or an endless descent.

use std::collections::{BTreeMap, BTreeSet};

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::cross_validation::{ValidationResult, always, systems, validate};
use super::decision_score::DecisionScore;
use super::rate_predictor::{PredictionMethod, RatePredictor};
use crate::observation::{
    EmulatedVariables, IoVariables, Observation, StorageKind, TransferKind, mean_of_repetitions,
};
use crate::regressors::{LETTERS, value_of};
use crate::statistics::summary::quantile_of_sorted;

/// The name of the format.
const FORMAT: &str = "esker-advisor-model";

/// Its version; readers know the earlier ones.
const VERSION: u32 = 2;

/// The longest file that is read.
pub const MODEL_BYTES_MAX: usize = 64 << 20;

/// Logarithms of factors between a prediction and a measurement: the range of all rates.
const ERROR_MAX: f64 = 200.0;

/// Quantiles of errors that a model keeps, evenly from the first to the last.
const ERROR_QUANTILES: usize = 41;

/// The share of runs that a prediction interval holds.
pub const INTERVAL_SHARE: f64 = 0.90;

/// A predictor of one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SystemModel {
    /// The system.
    pub system: String,
    /// Its category.
    pub kind: StorageKind,
    /// Rows of the system.
    pub rows: usize,
    /// The predictor.
    pub predictor: RatePredictor,
    /// Quantiles of ln measured − ln predicted under cross-validation, ascending.
    pub error_quantiles: Vec<f64>,
    /// The least and the greatest value of each variable, by the order of [`LETTERS`].
    pub ranges: Vec<[f64; 2]>,
    /// The target of `esker advise replay` that was measured; empty if it is unknown or was emulated.
    #[serde(default)]
    pub target: String,
}

/// The result of cross-validation for a method, or for a rule that does not predict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodEvaluation {
    /// The method, or `always` and a system.
    pub name: String,
    /// The typical factor between measured and predicted rates; absent for fixed rules.
    pub error_factor: Option<f64>,
    /// Decisions.
    pub score: DecisionScore,
}

/// A model of all systems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdvisorModel {
    format: String,
    version: u32,
    /// The method of all predictors.
    pub method: PredictionMethod,
    /// True if a model computed the times of any row.
    pub is_simulated: bool,
    /// The families of workloads.
    pub families: Vec<String>,
    /// Whether the measured runs read or wrote; empty if this is unknown of any.
    #[serde(default)]
    pub transfers: BTreeSet<TransferKind>,
    /// The systems.
    pub systems: Vec<SystemModel>,
    /// All methods and fixed rules.
    pub evaluations: Vec<MethodEvaluation>,
}

/// A predicted rate with its interval, in MB/s.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PredictedRate {
    /// The prediction.
    pub rate: f64,
    /// The lower end of the interval that holds [`INTERVAL_SHARE`] of runs.
    pub lower: f64,
    /// The upper end.
    pub upper: f64,
}

impl SystemModel {
    /// Predicts the rate of a run.
    #[must_use]
    pub fn predict(&self, variables: &IoVariables) -> PredictedRate {
        let rate = self.predictor.predict(variables);
        let tail = (1.0 - INTERVAL_SHARE) / 2.0;
        let factor = |share| quantile_of_sorted(&self.error_quantiles, share).exp();
        PredictedRate { rate, lower: rate * factor(tail), upper: rate * factor(1.0 - tail) }
    }

    /// The letters of variables outside the range that was measured.
    #[must_use]
    pub fn extrapolated(&self, variables: &IoVariables) -> Vec<&'static str> {
        self.letters(variables, |value, [least, greatest]| value < least || value > greatest)
    }

    /// The letters of variables that all measurements have with one and the same value, and the run
    /// with another: nothing is known of their effect.
    #[must_use]
    pub fn never_varied(&self, variables: &IoVariables) -> Vec<&'static str> {
        self.letters(variables, |value, [least, greatest]| least == greatest && value != least)
    }

    fn letters(
        &self,
        variables: &IoVariables,
        has: impl Fn(f64, [f64; 2]) -> bool,
    ) -> Vec<&'static str> {
        let ranges = LETTERS.into_iter().zip(&self.ranges);
        let found = ranges.filter(|(letter, range)| {
            has(value_of(letter, variables).expect("a letter of Table 1"), **range)
        });
        found.map(|(letter, _)| letter).collect()
    }
}

/// The probability that the first system is faster than the second. It treats the errors that
/// cross-validation found as independent; in truth the errors of one run on two systems are alike
/// rather than opposite, so the true probability is further from one half.
#[must_use]
pub fn probability_faster(first: &SystemModel, second: &SystemModel, run: &IoVariables) -> f64 {
    let lead = (first.predictor.predict(run) / second.predictor.predict(run)).ln();
    let pairs = first
        .error_quantiles
        .iter()
        .flat_map(|ours| second.error_quantiles.iter().map(move |theirs| lead + ours - theirs));
    let counts = pairs.fold((0.0, 0.0), |(faster, all), difference| {
        let half = f64::from(u8::from(difference >= 0.0)) + f64::from(u8::from(difference > 0.0));
        (faster + half / 2.0, all + 1.0)
    });
    counts.0 / counts.1
}

impl AdvisorModel {
    /// Validates all methods on the observations, with repetitions averaged, and fits the best: the
    /// one with the least mean regret, and among equals the one with the least error. Without cases
    /// on two systems there is no regret.
    ///
    /// # Errors
    /// `Invalid` if there are too few rows or families, a rate does not vary, or rows of one system
    /// are of two targets.
    pub fn fit(observations: &[Observation]) -> Result<Self> {
        let targets = targets(observations)?;
        let observations = in_order(observations);
        let mut results = PredictionMethod::ALL
            .into_iter()
            .map(|method| validate(method, &observations))
            .collect::<Result<Vec<ValidationResult>>>()?;
        let mut evaluations: Vec<MethodEvaluation> = results.iter().map(evaluation).collect();
        for system in systems(&observations).keys() {
            let score = always(system, &observations);
            let name = format!("always {system}");
            evaluations.push(MethodEvaluation { name, error_factor: None, score });
        }
        results.sort_by(|left, right| {
            let regret = left.score.mean_regret.total_cmp(&right.score.mean_regret);
            regret.then(left.error.total_cmp(&right.error))
        });
        let best = &results[0];
        let mut families: Vec<String> =
            observations.iter().map(|row| row.workload.clone()).collect();
        families.sort();
        families.dedup();
        Ok(Self {
            format: FORMAT.into(),
            version: VERSION,
            method: best.method,
            is_simulated: observations.iter().any(|row| row.emulated.time),
            families,
            transfers: all_known(&observations),
            systems: systems(&observations)
                .into_iter()
                .map(|(system, kind)| {
                    let target = targets.get(system.as_str()).copied().unwrap_or_default();
                    system_model(best, &system, kind, target, &observations)
                })
                .collect::<Result<Vec<SystemModel>>>()?,
            evaluations,
        })
    }

    /// The fixed rule, such as `always files`, that decided as well as the model or better when both
    /// were tried on workloads left out. A model that has one gives no better advice than the rule.
    #[must_use]
    pub fn equal_rule(&self) -> Option<&str> {
        let is_ours = |evaluation: &&MethodEvaluation| evaluation.name == self.method.words();
        let ours = self.evaluations.iter().find(is_ours)?.score;
        // A rule for a system that ran only some of the cases cannot be compared.
        let is_rule = |evaluation: &&MethodEvaluation| {
            evaluation.error_factor.is_none() && evaluation.score.cases == ours.cases
        };
        let rules = self.evaluations.iter().filter(is_rule);
        let regret = |rule: &MethodEvaluation| rule.score.mean_regret;
        let best = rules.min_by(|left, right| regret(left).total_cmp(&regret(right)))?;
        (ours.cases > 0 && regret(best) <= ours.mean_regret).then_some(&best.name)
    }

    /// Returns the model as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers are finite and keys are text") + "\n"
    }

    /// Reads a model; `name` is that of the file.
    ///
    /// # Errors
    /// `TooLarge` over [`MODEL_BYTES_MAX`]; `Invalid` for another version; `Corrupt` for anything
    /// that `to_json` does not write.
    pub fn from_json(name: &str, bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MODEL_BYTES_MAX {
            let message = format!("{name}: {} bytes, at most {MODEL_BYTES_MAX}", bytes.len());
            return Err(Error::new(Kind::TooLarge, message));
        }
        #[derive(Deserialize)]
        struct Header {
            format: String,
            version: u32,
        }
        let corrupt = |problem: &dyn std::fmt::Display| {
            let message = format!("{name}: {problem}; fit it again with `esker advise model`");
            Error::new(Kind::Corrupt, message)
        };
        let header: Header = serde_json::from_slice(bytes).map_err(|error| corrupt(&error))?;
        if header.format != FORMAT {
            return Err(corrupt(&format!("format {:?}, not {FORMAT:?}", header.format)));
        }
        if !(1..=VERSION).contains(&header.version) {
            let message =
                format!("{name}: version {}, this program reads 1 to {VERSION}", header.version);
            return Err(Error::new(Kind::Invalid, message));
        }
        let model: Self = serde_json::from_slice(bytes).map_err(|error| corrupt(&error))?;
        if model.systems.is_empty() {
            return Err(corrupt(&"no system"));
        }
        for system in &model.systems {
            let problem = |problem: String| corrupt(&format!("{}: {problem}", system.system));
            system.predictor.validate().map_err(|error| problem(error.context().into()))?;
            let is_ascending = system.error_quantiles.is_sorted();
            let are_errors = system.error_quantiles.iter().all(|value| value.abs() <= ERROR_MAX);
            if system.error_quantiles.len() != ERROR_QUANTILES || !is_ascending || !are_errors {
                return Err(problem(format!("not {ERROR_QUANTILES} ascending error quantiles")));
            }
            if system.ranges.len() != LETTERS.len() {
                return Err(problem(format!("not {} ranges", LETTERS.len())));
            }
        }
        Ok(model)
    }
}

fn evaluation(result: &ValidationResult) -> MethodEvaluation {
    MethodEvaluation {
        name: result.method.words().into(),
        error_factor: Some(result.error.exp()),
        score: result.score,
    }
}

fn system_model(
    best: &ValidationResult,
    system: &str,
    kind: StorageKind,
    target: &str,
    observations: &[Observation],
) -> Result<SystemModel> {
    let rows: Vec<&Observation> = observations.iter().filter(|row| row.system == system).collect();
    let errors = &best.errors[system];
    let share = |index: usize| index as f64 / (ERROR_QUANTILES - 1) as f64;
    let range = |letter: &&str| {
        rows.iter().fold([f64::INFINITY, f64::NEG_INFINITY], |[least, greatest], row| {
            let value = value_of(letter, &row.variables).expect("a letter of Table 1");
            [least.min(value), greatest.max(value)]
        })
    };
    Ok(SystemModel {
        system: system.into(),
        kind,
        rows: rows.len(),
        predictor: RatePredictor::fit(best.method, &rows)?,
        error_quantiles: (0..ERROR_QUANTILES)
            .map(|index| quantile_of_sorted(errors, share(index)))
            .collect(),
        ranges: LETTERS.iter().map(range).collect(),
        // A command on the real storage does not try the one that was emulated.
        target: match rows.iter().all(|row| row.emulated == EmulatedVariables::default()) {
            true => target.to_owned(),
            false => String::new(),
        },
    })
}

/// The target of each system, as far as rows name it.
///
/// # Errors
/// `Invalid` if rows of one system are of two.
fn targets(observations: &[Observation]) -> Result<BTreeMap<&str, &str>> {
    let mut targets: BTreeMap<&str, &str> = BTreeMap::new();
    for row in observations.iter().filter(|row| !row.target.is_empty()) {
        let target = *targets.entry(&row.system).or_insert(&row.target);
        if target != row.target {
            let (system, other) = (&row.system, &row.target);
            let what = format!(
                "rows of {system} are of {target} and of {other}: give these systems two names"
            );
            return Err(Error::new(Kind::Invalid, what));
        }
    }
    Ok(targets)
}

/// The rows without repetitions, in one order whatever that of `observations`: samples are drawn by
/// the numbers of rows.
fn in_order(observations: &[Observation]) -> Vec<Observation> {
    fn key(row: &Observation) -> (&str, &str, &str, u32) {
        (&row.workload, &row.case, &row.system, row.repetition)
    }
    let mut sorted = observations.to_vec();
    sorted.sort_by(|left, right| {
        let time = left.microseconds.total_cmp(&right.microseconds);
        key(left).cmp(&key(right)).then(time)
    });
    mean_of_repetitions(&sorted)
}

/// Whether the rows read or wrote; nothing if this is unknown of one.
fn all_known(rows: &[Observation]) -> BTreeSet<TransferKind> {
    let known: Option<BTreeSet<TransferKind>> = rows.iter().map(|row| row.transfers).collect();
    known.unwrap_or_default()
}
