// SPDX-License-Identifier: Apache-2.0
//! Summary: descriptive statistics of one sample, as in Table 2 of the paper.

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

/// Count, location and spread of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleSummary {
    /// Values, at least 2.
    pub count: usize,
    /// The arithmetic mean.
    pub mean: f64,
    /// The standard deviation, with count − 1.
    pub standard_deviation: f64,
    /// The standard error of the mean.
    pub standard_error: f64,
    /// The smallest value.
    pub min: f64,
    /// The median; for an even count, the mean of the middle two.
    pub median: f64,
    /// The largest value.
    pub max: f64,
}

impl SampleSummary {
    /// Describes `values`.
    ///
    /// # Errors
    /// `Invalid` if there are fewer than two, or one is not finite.
    pub fn of(values: &[f64]) -> Result<Self> {
        require_finite("the sample", values)?;
        if values.len() < 2 {
            let message = format!("{} values have no spread, at least 2 do", values.len());
            return Err(Error::new(Kind::Invalid, message));
        }
        let count = values.len() as f64;
        let mean = mean(values);
        let standard_deviation = (centred_square_sum(values) / (count - 1.0)).sqrt();
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Ok(Self {
            count: values.len(),
            mean,
            standard_deviation,
            standard_error: standard_deviation / count.sqrt(),
            min: sorted[0],
            median: quantile_of_sorted(&sorted, 0.5),
            max: sorted[sorted.len() - 1],
        })
    }
}

/// The arithmetic mean of at least one value.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The sum of squared distances to the mean.
pub(crate) fn centred_square_sum(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean) * (value - mean)).sum()
}

/// The quantile at `fraction` in [0, 1] of ascending values, interpolated linearly.
///
/// # Panics
/// If there are none.
#[must_use]
pub fn quantile_of_sorted(sorted: &[f64], fraction: f64) -> f64 {
    let position = fraction * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

/// Refuses values that are not finite; errors call them `name`.
pub(crate) fn require_finite(name: &str, values: &[f64]) -> Result<()> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => {
            let message =
                format!("{name} has {} in row {index}, must be a finite number", values[index]);
            Err(Error::new(Kind::Invalid, message))
        }
        None => Ok(()),
    }
}
