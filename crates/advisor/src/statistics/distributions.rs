// SPDX-License-Identifier: Apache-2.0
//! Distributions: tail probabilities and quantiles of those that tests need, over `statrs`.
//!
//! Tail probabilities are computed as such, not as 1 − cdf, so that small ones keep their digits.
//! Quantiles of Student's t are polished by Newton's method, since those of the library stop at
//! about eight digits.

use statrs::distribution::{ChiSquared, Continuous, ContinuousCDF, Normal, StudentsT};
use statrs::function::beta::beta_reg;
use statrs::function::gamma::gamma_ur;

/// Newton steps from the library's quantile to the last digits: each doubles the digits.
const NEWTON_STEPS: usize = 3;

/// Returns the probability that |t| with `degrees` > 0 degrees of freedom exceeds |`t`|.
#[must_use]
pub fn student_t_two_sided(t: f64, degrees: f64) -> f64 {
    match t.is_infinite() {
        true => 0.0,
        false => beta_reg(degrees / 2.0, 0.5, degrees / (degrees + t * t)),
    }
}

/// Returns the value below which Student's t with `degrees` > 0 lies with `probability` in (0, 1).
#[must_use]
pub fn student_t_quantile(probability: f64, degrees: f64) -> f64 {
    let Ok(t) = StudentsT::new(0.0, 1.0, degrees) else { unreachable!("degrees are positive") };
    let mut quantile = t.inverse_cdf(probability);
    for _ in 0..NEWTON_STEPS {
        quantile -= (t.cdf(quantile) - probability) / t.pdf(quantile);
    }
    quantile
}

/// Returns the probability that F with these degrees of freedom exceeds `f`.
#[must_use]
pub fn f_upper_tail(f: f64, numerator_degrees: f64, denominator_degrees: f64) -> f64 {
    match f.is_infinite() {
        true => 0.0,
        false => beta_reg(
            denominator_degrees / 2.0,
            numerator_degrees / 2.0,
            denominator_degrees / (denominator_degrees + numerator_degrees * f.max(0.0)),
        ),
    }
}

/// Returns the probability that χ² with `degrees` > 0 exceeds `chi_squared`.
#[must_use]
pub fn chi_squared_upper_tail(chi_squared: f64, degrees: f64) -> f64 {
    debug_assert!(ChiSquared::new(degrees).is_ok());
    match chi_squared > 0.0 {
        true => gamma_ur(degrees / 2.0, chi_squared / 2.0),
        false => 1.0,
    }
}

/// Returns the value below which a standard normal variable lies with `probability` in (0, 1).
#[must_use]
pub fn normal_quantile(probability: f64) -> f64 {
    Normal::standard().inverse_cdf(probability)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_critical_value_and_its_misprinted_p() {
        // Table 5: 687 rows and 10 coefficients leave 677 degrees of freedom.
        assert!((student_t_quantile(0.975, 677.0) - 1.963).abs() < 5e-4);
        assert!((student_t_two_sided(1.766, 677.0) - 0.078).abs() < 5e-4);
    }

    #[test]
    fn tails_keep_their_digits() {
        let p = student_t_two_sided(40.0, 1000.0);
        assert!(p > 0.0 && p < 1e-200, "{p}");
        assert_eq!(student_t_two_sided(f64::INFINITY, 3.0), 0.0);
        assert_eq!(f_upper_tail(0.0, 3.0, 10.0), 1.0);
    }
}
