// SPDX-License-Identifier: Apache-2.0
//! Residuals: tests and plots that show whether a fit's assumptions hold (Figures 13 and 14 of the
//! paper).

use esker_base::{Error, Kind, Result};
use serde::Serialize;

use super::design_matrix::DesignMatrix;
use super::distributions::{chi_squared_upper_tail, normal_quantile};
use super::least_squares::LinearFit;

/// A test of constant variance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BreuschPagan {
    /// n · R² of the regression of the squared residuals on the variables.
    pub statistic: f64,
    /// The probability of at least that if the variance is constant.
    pub p: f64,
}

/// One point of a Q-Q plot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QuantilePoint {
    /// The quantile of a standard normal variable.
    pub normal: f64,
    /// The standardised residual.
    pub residual: f64,
}

/// Residuals over the standard deviation of the residuals.
#[must_use]
pub fn standardised(fit: &LinearFit) -> Vec<f64> {
    fit.residuals.iter().map(|residual| residual / fit.residual_error).collect()
}

/// The statistic of Durbin and Watson: near 2 if residuals of successive rows are independent.
#[must_use]
pub fn durbin_watson(fit: &LinearFit) -> f64 {
    let steps = fit.residuals.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum::<f64>();
    steps / fit.residuals.iter().map(|residual| residual * residual).sum::<f64>()
}

/// Tests whether the variance of the residuals depends on the variables, in Koenker's form, which
/// does not need them to be normal.
///
/// # Errors
/// `Invalid` if the fit has no variables, or all squared residuals are equal.
pub fn breusch_pagan(design: &DesignMatrix, fit: &LinearFit) -> Result<BreuschPagan> {
    if design.columns().is_empty() {
        let message = "a fit without variables has none on which the variance could depend";
        return Err(Error::new(Kind::Invalid, message));
    }
    // In units of the residual error, squares neither overflow nor vanish.
    let squares: Vec<f64> = standardised(fit).iter().map(|residual| residual * residual).collect();
    let of_squares = LinearFit::of(design, &squares)?;
    let statistic = fit.count as f64 * of_squares.r_squared.max(0.0);
    let p = chi_squared_upper_tail(statistic, design.columns().len() as f64);
    Ok(BreuschPagan { statistic, p })
}

/// The points of the normal Q-Q plot, ascending, at Blom's positions (i − 3/8) / (n + 1/4), which
/// SPSS uses.
#[must_use]
pub fn quantile_points(fit: &LinearFit) -> Vec<QuantilePoint> {
    let mut sorted = standardised(fit);
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let point = |(index, residual): (usize, f64)| QuantilePoint {
        normal: normal_quantile((index as f64 + 1.0 - 0.375) / (count + 0.25)),
        residual,
    };
    sorted.into_iter().enumerate().map(point).collect()
}

/// Returns counts of the standardised residuals in `bins` bins of equal width from −`reach` to
/// `reach`; residuals beyond count in the outermost bins.
///
/// # Panics
/// If `bins` is 0.
#[must_use]
pub fn histogram(fit: &LinearFit, bins: usize, reach: f64) -> Vec<usize> {
    assert!(bins > 0, "at least one bin");
    let mut counts = vec![0; bins];
    for residual in standardised(fit) {
        let position = (residual + reach) / (2.0 * reach) * bins as f64;
        counts[(position.max(0.0) as usize).min(bins - 1)] += 1;
    }
    counts
}
