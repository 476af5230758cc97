// SPDX-License-Identifier: Apache-2.0
//! Correlation: Pearson's r with its p-value, as in Table 4 of the paper.

use esker_base::{Error, Kind, Result};
use serde::Serialize;

use super::distributions::student_t_two_sided;
use super::summary::{mean, require_finite};

/// Rows below which a correlation has no p-value.
const ROWS_MIN: usize = 3;

/// Spread below this share of the mean is rounding: the sample counts as constant.
const CONSTANT_SPREAD_MAX: f64 = 1e-14;

/// The linear correlation of two samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PearsonCorrelation {
    /// r, from −1 to 1.
    pub r: f64,
    /// The probability of at least such an |r| if there is no correlation (two-sided).
    pub p: f64,
    /// Pairs of values.
    pub count: usize,
}

impl PearsonCorrelation {
    /// Correlates `x` and `y`.
    ///
    /// # Errors
    /// `Invalid` if the lengths differ, there are fewer than three pairs, a value is not finite, or
    /// one sample is constant.
    pub fn between(x: &[f64], y: &[f64]) -> Result<Self> {
        require_finite("x", x)?;
        require_finite("y", y)?;
        if x.len() != y.len() || x.len() < ROWS_MIN {
            let message = format!(
                "{} and {} values: a correlation needs as many of both, and {ROWS_MIN} or more",
                x.len(),
                y.len()
            );
            return Err(Error::new(Kind::Invalid, message));
        }
        let x = centred_direction("x", x)?;
        let y = centred_direction("y", y)?;
        let r: f64 = x.iter().zip(&y).map(|(x, y)| x * y).sum::<f64>().clamp(-1.0, 1.0);
        let degrees = (x.len() - 2) as f64;
        let t = r * (degrees / (1.0 - r * r)).sqrt();
        let p = if r.abs() < 1.0 { student_t_two_sided(t, degrees) } else { 0.0 };
        Ok(Self { r, p, count: x.len() })
    }
}

/// The distances to the mean, scaled to length 1, so that no product overflows.
fn centred_direction(name: &str, values: &[f64]) -> Result<Vec<f64>> {
    let mean = mean(values);
    let centred: Vec<f64> = values.iter().map(|value| value - mean).collect();
    let largest = centred.iter().fold(0f64, |largest, value| largest.max(value.abs()));
    if !mean.is_finite() || largest <= CONSTANT_SPREAD_MAX * mean.abs() {
        let message = format!("{name} is constant, so nothing correlates with it");
        return Err(Error::new(Kind::Invalid, message));
    }
    let scaled: Vec<f64> = centred.iter().map(|value| value / largest).collect();
    let length = scaled.iter().map(|value| value * value).sum::<f64>().sqrt();
    Ok(scaled.iter().map(|value| value / length).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_correlates_fully_and_a_constant_not_at_all() {
        let x = [1.0, 2.0, 3.0, 4.0];
        let falling = PearsonCorrelation::between(&x, &[8.0, 6.0, 4.0, 2.0]).expect("correlated");
        assert!((falling.r + 1.0).abs() < 1e-12 && falling.p < 1e-6, "{falling:?}");
        for wrong in [&[5.0; 4][..], &[0.0; 4], &[1.0, f64::NAN, 2.0, 3.0], &[1.0, 2.0]] {
            let error = PearsonCorrelation::between(&x, wrong).expect_err("no correlation");
            assert_eq!(error.kind(), Kind::Invalid);
        }
    }
}
