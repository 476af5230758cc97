// SPDX-License-Identifier: Apache-2.0
//! Storage advice: the better storage for one application, by the predictions of a model.
//!
//! The verdict names a system only if the model is sure: its prediction differs by
//! [`CLEAR_DIFFERENCE`] from the second best, and it is the faster system with a probability of
//! [`PROBABILITY_MIN`]. Otherwise the verdict is that no difference is seen, and either storage
//! will do.

use esker_base::{Error, Kind, Result};
use serde::Serialize;

use super::application_change::{PredictedChange, predicted_changes};
use crate::features::{StorageConfiguration, TraceFeatures};
use crate::model::advisor_model::{AdvisorModel, PredictedRate, SystemModel, probability_faster};
use crate::model::decision_score::CLEAR_DIFFERENCE;
use crate::observation::{AccessPattern, IoVariables, StorageDevice, StorageKind, TransferKind};

/// The probability from which a verdict names a system.
pub const PROBABILITY_MIN: f64 = 0.75;

/// Factors between the systems that are closer to 1 than this do not count as reasons.
const REASON_FACTOR_MIN: f64 = 1.05;

/// The expected rate of one system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpectedRate {
    /// The system.
    pub system: String,
    /// Its category.
    pub kind: StorageKind,
    /// The rate in MB/s and its interval.
    #[serde(flatten)]
    pub predicted: PredictedRate,
    /// Letters of variables outside the range that was measured.
    pub extrapolated: Vec<&'static str>,
    /// Those of them that were the same in all measurements.
    pub never_varied: Vec<&'static str>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum StorageVerdict {
    /// One system is faster than every other.
    Better {
        /// The system.
        system: String,
        /// The rate over that of the second best.
        factor: f64,
    },
    /// No system is known to be faster.
    NoDifferenceSeen,
}

/// A property of the application that separates the two best systems.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdviceReason {
    /// The property in words.
    pub property: &'static str,
    /// The factor by which it changes the rate of the better system over that of the other: above 1
    /// it is a reason for the better one, below 1 one against it.
    pub factor: f64,
}

/// The advice for one application on one configuration of storage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StorageAdvice {
    /// The verdict.
    #[serde(flatten)]
    pub verdict: StorageVerdict,
    /// The probability that the first system is faster than the second.
    pub probability: f64,
    /// The expected rates, the highest first; at least two.
    pub rates: Vec<ExpectedRate>,
    /// The properties that separate the first from the second, the largest effect first.
    pub reasons: Vec<AdviceReason>,
    /// Changes of the application that gain, the largest gain first.
    pub changes: Vec<PredictedChange>,
    /// The variables of the application.
    pub variables: IoVariables,
    /// True if the model was fitted to simulated times.
    pub is_simulated: bool,
    /// [`AdvisorModel::equal_rule`].
    pub equal_rule: Option<String>,
    /// Whether the application mostly reads or writes, if the measured runs did only the other.
    pub unmeasured_transfers: Option<TransferKind>,
}

impl StorageAdvice {
    /// Advises on the application with these features.
    ///
    /// # Errors
    /// `Invalid` if the application transfers nothing, the features contradict each other, or the
    /// model knows fewer than two systems.
    pub fn of(
        model: &AdvisorModel,
        features: &TraceFeatures,
        storage: &StorageConfiguration,
    ) -> Result<Self> {
        let run = features.variables(storage)?;
        let mut systems: Vec<(&SystemModel, PredictedRate)> =
            model.systems.iter().map(|system| (system, system.predict(&run))).collect();
        systems.sort_by(|left, right| right.1.rate.total_cmp(&left.1.rate));
        let [(best, best_rate), (second, second_rate), ..] = systems[..] else {
            let message = "the model knows fewer than two systems; measure another with \
                           `esker advise measure` and fit it again";
            return Err(Error::new(Kind::Invalid, message));
        };
        let probability = probability_faster(best, second, &run);
        let factor = best_rate.rate / second_rate.rate;
        let is_clear = probability >= PROBABILITY_MIN && factor > 1.0 + CLEAR_DIFFERENCE;
        let verdict = match is_clear {
            true => StorageVerdict::Better { system: best.system.clone(), factor },
            false => StorageVerdict::NoDifferenceSeen,
        };
        Ok(Self {
            verdict,
            probability,
            reasons: reasons(best, second, &run),
            changes: predicted_changes(model, features, &run, best_rate.rate),
            rates: systems
                .iter()
                .map(|(system, predicted)| ExpectedRate {
                    system: system.system.clone(),
                    kind: system.kind,
                    predicted: *predicted,
                    extrapolated: system.extrapolated(&run),
                    never_varied: system.never_varied(&run),
                })
                .collect(),
            is_simulated: model.is_simulated,
            equal_rule: model.equal_rule().map(str::to_owned),
            unmeasured_transfers: unmeasured_transfers(model, features),
            variables: run,
        })
    }
}

fn unmeasured_transfers(model: &AdvisorModel, features: &TraceFeatures) -> Option<TransferKind> {
    let mostly = match features.written_bytes > features.read_bytes {
        true => TransferKind::Write,
        false => TransferKind::Read,
    };
    let is_like = |kind: &TransferKind| [mostly, TransferKind::ReadWrite].contains(kind);
    let is_known = !model.transfers.is_empty();
    (is_known && !model.transfers.iter().any(is_like)).then_some(mostly)
}

/// The application with one property replaced by the one that costs least.
fn without(property: usize, run: &IoVariables) -> (&'static str, IoVariables) {
    let mut other = run.clone();
    let words = match property {
        0 => {
            other.metadata_operations = other.metadata_operations.min(2);
            "opens, closes and creates"
        }
        1 => {
            other.access_pattern = AccessPattern::Contiguous;
            other.gap_bytes = 0;
            "gaps between requests"
        }
        2 => {
            other.unaligned_bytes = 0;
            "requests across stripes"
        }
        3 => {
            other = run.with_request_bytes(run.request_bytes.max(run.input_bytes.min(1 << 20)));
            "small requests"
        }
        4 => {
            other.processes = 1;
            "many processes"
        }
        _ => {
            other.device = StorageDevice::Ssd;
            "hard disks"
        }
    };
    (words, other)
}

/// Properties of [`without`].
const PROPERTIES: usize = 6;

fn reasons(best: &SystemModel, second: &SystemModel, run: &IoVariables) -> Vec<AdviceReason> {
    let lead = |run: &IoVariables| best.predictor.predict(run) / second.predictor.predict(run);
    let mut reasons: Vec<AdviceReason> = (0..PROPERTIES)
        .filter_map(|property| {
            let (property, other) = without(property, run);
            let factor = lead(run) / lead(&other);
            let counts = factor.ln().abs() >= REASON_FACTOR_MIN.ln();
            (other != *run && counts).then_some(AdviceReason { property, factor })
        })
        .collect();
    reasons.sort_by(|left, right| right.factor.ln().abs().total_cmp(&left.factor.ln().abs()));
    reasons
}
