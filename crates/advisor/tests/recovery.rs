// SPDX-License-Identifier: Apache-2.0
//! Known coefficients are recovered from synthetic rates, and variables without effect excluded.
//!
//! The design is the simulated dataset's; the rates are Table 5 as printed with normal noise. An
//! estimate is within two standard errors of the truth in 95 of 100 datasets, and a variable
//! without effect enters in 5 of 100, so that the tests count over many datasets.

use esker_advisor::observation::Observation;
use esker_advisor::paper::printed_model::predict;
use esker_advisor::paper::published::{PrintedSystem, SYSTEMS};
use esker_advisor::paper::simulated_dataset::{SEED, dataset};
use esker_advisor::regressors::paper_design;
use esker_advisor::statistics::distributions::normal_quantile;
use esker_advisor::statistics::least_squares::CONSTANT;
use esker_advisor::statistics::stepwise::StepwiseFit;
use esker_base::Random;

/// The standard deviation of the noise, in MB/s: OrangeFS's, 111 · √(1 − .633).
const NOISE: f64 = 67.0;

const DATASETS: u64 = 60;

/// Chooses a model from rates that `system`'s printed coefficients and noise make.
fn recover(system: &PrintedSystem, rows: &[Observation], seed: u64) -> StepwiseFit {
    let mut random = Random::from_seed(seed);
    let rows: Vec<&Observation> = rows.iter().filter(|row| row.kind == system.kind).collect();
    let rates: Vec<f64> = rows
        .iter()
        .map(|row| {
            let uniform = (random.below(1 << 32) as f64 + 0.5) / (1_u64 << 32) as f64;
            predict(system, &row.variables) + NOISE * normal_quantile(uniform)
        })
        .collect();
    StepwiseFit::of(&paper_design(&rows).expect("a design"), &rates).expect("a model")
}

#[test]
fn printed_coefficients_are_recovered_within_two_standard_errors() {
    let rows = dataset(SEED);
    for system in SYSTEMS {
        let (mut estimates, mut within) = (0.0, 0.0);
        for seed in 0..DATASETS {
            let found = recover(system, &rows, seed);
            for printed in system.coefficients {
                let name = if printed.letter.is_empty() { CONSTANT } else { printed.letter };
                // Weak ones may be missing in some datasets; the next test counts them.
                let Some(estimate) = found.fit.coefficient(name) else { continue };
                estimates += 1.0;
                let distance = (estimate.value - printed.value).abs();
                within += f64::from(u8::from(distance <= 2.0 * estimate.standard_error));
            }
        }
        assert!(estimates >= 0.8 * (DATASETS * system.coefficients.len() as u64) as f64);
        let share = within / estimates;
        assert!((0.92..=0.99).contains(&share), "{}: {share} within 2 errors", system.name);
    }
}

#[test]
fn variables_without_effect_are_excluded_and_strong_ones_kept() {
    let rows = dataset(SEED);
    for system in SYSTEMS {
        let mut entered = vec![0_u64; system.excluded.len()];
        for seed in 0..DATASETS {
            let found = recover(system, &rows, seed);
            for (count, letter) in entered.iter_mut().zip(system.excluded) {
                *count += u64::from(found.fit.coefficient(letter).is_some());
            }
            for letter in ["c", "d"] {
                assert!(found.fit.coefficient(letter).is_some(), "{}: {letter}", system.name);
            }
        }
        for (count, letter) in entered.iter().zip(system.excluded) {
            assert!(
                *count * 100 <= 15 * DATASETS,
                "{}: {letter} entered in {count} of {DATASETS} datasets",
                system.name
            );
        }
    }
}
