// SPDX-License-Identifier: Apache-2.0
//! Collinearity: tolerance and variance inflation of the variables of a fit.
//!
//! The tolerance of a variable is 1 − R² of its regression on the others; its variance inflation
//! factor is the reciprocal, which (XᵀX)⁻¹ and the variable's spread give without a regression
//! each.

use serde::Serialize;

use super::design_matrix::DesignMatrix;
use super::least_squares::LinearFit;
use super::summary::centred_square_sum;

/// Collinearity of one variable with the others of its fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VarianceInflation {
    /// The variable.
    pub name: String,
    /// The factor by which collinearity multiplies the variance of its coefficient, at least 1.
    pub factor: f64,
}

impl VarianceInflation {
    /// The share of the variable that the others do not explain.
    #[must_use]
    pub fn tolerance(&self) -> f64 {
        1.0 / self.factor
    }
}

/// Returns the inflation for each column of `design`, from which `fit` was made.
///
/// # Panics
/// If `fit` is of other variables.
#[must_use]
pub fn variance_inflation(design: &DesignMatrix, fit: &LinearFit) -> Vec<VarianceInflation> {
    assert_eq!(design.columns().len() + 1, fit.coefficients.len(), "the fit of this design");
    let columns = design.names().iter().zip(design.columns());
    columns
        .enumerate()
        .map(|(index, (name, column))| VarianceInflation {
            name: name.clone(),
            factor: centred_square_sum(column) * fit.inverse_gram[index + 1][index + 1],
        })
        .collect()
}
