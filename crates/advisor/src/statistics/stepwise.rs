// SPDX-License-Identifier: Apache-2.0
//! Stepwise: selection of variables by the rule of SPSS's STEPWISE, which the paper used: variables
//! with p = .053 and .078 remain in its Table 5, so its limits were the defaults, .05 to enter and
//! .10 to stay.
//!
//! Each round first removes the variable with the largest p above the removal limit; if there is
//! none, it adds the one with the smallest p below the entry limit. A variable enters only if it
//! and those in the model keep a tolerance of [`TOLERANCE_MIN`], SPSS's default. Source: Kougkas et
//! al. 2016, §5.2.2; IBM SPSS Statistics Algorithms, REGRESSION.

use esker_base::Result;
use serde::Serialize;

use super::collinearity::variance_inflation;
use super::design_matrix::DesignMatrix;
use super::least_squares::{FitProblem, LinearFit};

/// The largest p with which a variable enters.
pub const ENTRY_P_MAX: f64 = 0.05;

/// The largest p with which a variable stays. Above the entry limit, so that no variable that has
/// just entered leaves again.
pub const REMOVAL_P_MAX: f64 = 0.10;
const _: () = assert!(ENTRY_P_MAX < REMOVAL_P_MAX);

/// The smallest tolerance that a variable of the model may have.
pub const TOLERANCE_MIN: f64 = 1e-4;

/// One step of a selection.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SelectionStep {
    /// The variable.
    pub name: String,
    /// True if the variable entered; false if it was removed.
    pub entered: bool,
    /// Its p at that moment.
    pub p: f64,
    /// The adjusted R² of the model after the step; 0 for the constant alone.
    pub adjusted_r_squared: f64,
}

/// The outcome of a selection.
#[derive(Clone, Debug)]
pub struct StepwiseFit {
    /// Indices of the selected columns, in the order of the design matrix.
    pub selected: Vec<usize>,
    /// The names of those left out.
    pub excluded: Vec<String>,
    /// The steps.
    pub steps: Vec<SelectionStep>,
    /// The model of the selected columns.
    pub fit: LinearFit,
}

impl StepwiseFit {
    /// Selects among the columns of `design`. Columns that are constant are never selected.
    ///
    /// # Errors
    /// `Invalid` as [`LinearFit::of`] for the response; a fit of fewer rows than coefficients ends
    /// the selection instead.
    pub fn of(design: &DesignMatrix, response: &[f64]) -> Result<Self> {
        let mut selected: Vec<usize> = Vec::new();
        let mut fit = LinearFit::of(&design.select(&[]), response)?;
        let mut steps = Vec::new();
        // Each variable enters and leaves a few times at most; the bound guards against cycles.
        for _ in 0..4 * design.columns().len() {
            let step = match weakest(&selected, &fit) {
                Some((index, p)) => {
                    selected.retain(|other| *other != index);
                    fit = LinearFit::of(&design.select(&selected), response)?;
                    (index, p, false)
                }
                None => match strongest(design, response, &selected)? {
                    Some((index, p, entered)) => {
                        selected.push(index);
                        fit = entered;
                        (index, p, true)
                    }
                    None => break,
                },
            };
            let (index, p, entered) = step;
            steps.push(SelectionStep {
                name: design.names()[index].clone(),
                entered,
                p,
                adjusted_r_squared: fit.adjusted_r_squared,
            });
        }
        selected.sort_unstable();
        let fit = LinearFit::of(&design.select(&selected), response)?;
        let excluded = (0..design.names().len()).filter(|index| !selected.contains(index));
        let excluded = excluded.map(|index| design.names()[index].clone()).collect();
        Ok(Self { selected, excluded, steps, fit })
    }
}

/// The variable of the model with the largest p above the removal limit.
fn weakest(selected: &[usize], fit: &LinearFit) -> Option<(usize, f64)> {
    let candidates = selected.iter().zip(&fit.coefficients[1..]);
    candidates
        .map(|(index, coefficient)| (*index, coefficient.p))
        .filter(|(_, p)| *p > REMOVAL_P_MAX)
        .max_by(|left, right| left.1.total_cmp(&right.1))
}

/// The variable outside the model that would have the largest |t|, if its p is below the entry
/// limit, with the model in which it is the last variable.
fn strongest(
    design: &DesignMatrix,
    response: &[f64],
    selected: &[usize],
) -> Result<Option<(usize, f64, LinearFit)>> {
    if design.rows() <= selected.len() + 2 {
        return Ok(None);
    }
    let mut best: Option<(usize, f64, LinearFit)> = None;
    for index in (0..design.columns().len()).filter(|index| !selected.contains(index)) {
        let columns: Vec<usize> = selected.iter().copied().chain([index]).collect();
        let candidate = design.select(&columns);
        let fit = match LinearFit::attempt(&candidate, response) {
            Ok(fit) => fit,
            // It has no tolerance left.
            Err(FitProblem::Dependent(_)) => continue,
            Err(FitProblem::Unusable(error)) => return Err(error),
        };
        let inflation = variance_inflation(&candidate, &fit);
        if inflation.iter().any(|variable| variable.tolerance() < TOLERANCE_MIN) {
            continue;
        }
        let last = fit.coefficients.last().expect("the candidate is the last");
        // Many p-values are 0 in the last digit of a number; t still orders them.
        let (t, p) = (last.t.abs(), last.p);
        let is_better = best.as_ref().is_none_or(|(_, _, best)| {
            t > best.coefficients.last().expect("a candidate, too").t.abs()
        });
        if p <= ENTRY_P_MAX && is_better {
            best = Some((index, p, fit));
        }
    }
    Ok(best)
}
