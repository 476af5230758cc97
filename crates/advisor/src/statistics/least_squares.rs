// SPDX-License-Identifier: Apache-2.0
//! Least squares: ordinary least squares with a constant. Gives coefficients, their errors, and the
//! analysis of variance, as in Table 5 of the paper.
//!
//! Invariant: every number of a fit is finite. A response that the variables explain exactly leaves
//! no error to estimate and is refused.

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::design_matrix::DesignMatrix;
use super::distributions::{f_upper_tail, student_t_quantile, student_t_two_sided};
use super::householder;
use super::summary::{centred_square_sum, mean, require_finite};

/// The name of the constant among the coefficients.
pub const CONSTANT: &str = "Constant";

/// The level of confidence intervals.
pub const CONFIDENCE: f64 = 0.95;

/// Residuals below this share of the response's spread are rounding: the fit is exact.
const EXACT_SHARE_MAX: f64 = 1e-12;

/// One coefficient of a fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoefficientEstimate {
    /// The variable, or [`CONSTANT`].
    pub name: String,
    /// The estimate.
    pub value: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Estimate over standard error.
    pub t: f64,
    /// The two-sided p-value of t.
    pub p: f64,
    /// The lower end of the interval at [`CONFIDENCE`].
    pub lower: f64,
    /// The upper end.
    pub upper: f64,
}

/// The analysis of variance of a fit; absent for the constant alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnovaTable {
    /// The sum of squares that the variables explain.
    pub regression_squares: f64,
    /// Its degrees of freedom.
    pub regression_degrees: f64,
    /// The sum of squared residuals.
    pub residual_squares: f64,
    /// Its degrees of freedom.
    pub residual_degrees: f64,
    /// The F statistic.
    pub f: f64,
    /// Its p-value.
    pub p: f64,
}

/// A fitted linear model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearFit {
    /// The constant first, then the variables in the order of the design matrix.
    pub coefficients: Vec<CoefficientEstimate>,
    /// Rows.
    pub count: usize,
    /// The share of the variance that the variables explain.
    pub r_squared: f64,
    /// The same, adjusted for the number of variables.
    pub adjusted_r_squared: f64,
    /// The standard deviation of the residuals.
    pub residual_error: f64,
    /// The analysis of variance.
    pub anova: Option<AnovaTable>,
    /// (XᵀX)⁻¹, constant first.
    pub inverse_gram: Vec<Vec<f64>>,
    /// Measured minus predicted, by row.
    #[serde(skip)]
    pub residuals: Vec<f64>,
    /// Predicted, by row.
    #[serde(skip)]
    pub fitted: Vec<f64>,
}

/// The reason for which there is no fit.
#[derive(Debug)]
pub(super) enum FitProblem {
    /// This column of the design is constant or a combination of those before it.
    Dependent(usize),
    /// The rows or the response do not allow a fit.
    Unusable(Error),
}

impl From<Error> for FitProblem {
    fn from(error: Error) -> Self {
        Self::Unusable(error)
    }
}

impl LinearFit {
    /// Regresses `response` on the columns of `design` and a constant.
    ///
    /// # Errors
    /// `Invalid` if rows are no more than coefficients, a value is not finite, a column is constant
    /// or a combination of others, the response is constant, or the fit is exact.
    pub fn of(design: &DesignMatrix, response: &[f64]) -> Result<Self> {
        Self::attempt(design, response).map_err(|problem| match problem {
            FitProblem::Dependent(index) => dependent_column(design, index),
            FitProblem::Unusable(error) => error,
        })
    }

    /// As [`LinearFit::of`], with a dependent column told apart from other problems.
    pub(super) fn attempt(design: &DesignMatrix, response: &[f64]) -> Result<Self, FitProblem> {
        require_finite("the response", response)?;
        let (rows, width) = (design.rows(), design.columns().len() + 1);
        if response.len() != rows {
            return invalid(format!("{} responses for {rows} rows", response.len()));
        }
        if rows <= width {
            return invalid(format!(
                "{rows} rows do not determine {width} coefficients and their errors; measure at \
                 least {}",
                width + 1
            ));
        }
        let total = centred_square_sum(response);
        let scale = response.iter().fold(0f64, |scale, value| scale.max(value.abs()));
        if total.sqrt() <= EXACT_SHARE_MAX * scale || total <= 0.0 {
            return invalid("the response is constant, so nothing explains it".into());
        }
        let mut columns = vec![vec![1.0; rows]];
        columns.extend_from_slice(design.columns());
        let solution = householder::solve(&columns, response).map_err(|index| {
            // The constant comes first, and a column of ones depends on nothing.
            FitProblem::Dependent(index.saturating_sub(1))
        })?;
        let fitted: Vec<f64> = (0..rows)
            .map(|row| columns.iter().zip(&solution.coefficients).map(|(x, b)| x[row] * b).sum())
            .collect();
        let residuals: Vec<f64> =
            response.iter().zip(&fitted).map(|(measured, fitted)| measured - fitted).collect();
        let residual: f64 = residuals.iter().map(|residual| residual * residual).sum();
        if residual.sqrt() <= EXACT_SHARE_MAX * total.sqrt() {
            return invalid("the variables explain the response exactly: no error is left".into());
        }
        let degrees = (rows - width) as f64;
        let names = std::iter::once(CONSTANT).chain(design.names().iter().map(String::as_str));
        Ok(Self {
            coefficients: estimates(names, &solution, residual / degrees, degrees),
            count: rows,
            r_squared: 1.0 - residual / total,
            adjusted_r_squared: 1.0 - residual / degrees / (total / (rows - 1) as f64),
            residual_error: (residual / degrees).sqrt(),
            anova: analysis_of_variance(total, residual, width - 1, degrees),
            inverse_gram: solution.inverse_gram,
            residuals,
            fitted,
        })
    }

    /// Residual degrees of freedom.
    #[must_use]
    pub fn residual_degrees(&self) -> f64 {
        (self.count - self.coefficients.len()) as f64
    }

    /// The coefficient of a variable, if the fit has it.
    #[must_use]
    pub fn coefficient(&self, name: &str) -> Option<&CoefficientEstimate> {
        self.coefficients.iter().find(|coefficient| coefficient.name == name)
    }

    /// The prediction for one row, whose values are in the order of the variables.
    ///
    /// # Panics
    /// If their number differs from that of the variables.
    #[must_use]
    pub fn predict(&self, row: &[f64]) -> f64 {
        assert_eq!(row.len() + 1, self.coefficients.len(), "a value for every variable");
        let terms = row.iter().zip(&self.coefficients[1..]);
        self.coefficients[0].value + terms.map(|(x, b)| x * b.value).sum::<f64>()
    }
}

fn estimates<'a>(
    names: impl Iterator<Item = &'a str>,
    solution: &householder::QrSolution,
    variance: f64,
    degrees: f64,
) -> Vec<CoefficientEstimate> {
    let critical = student_t_quantile(0.5 + CONFIDENCE / 2.0, degrees);
    names
        .zip(&solution.coefficients)
        .enumerate()
        .map(|(index, (name, value))| {
            let standard_error = (variance * solution.inverse_gram[index][index]).sqrt();
            let t = value / standard_error;
            CoefficientEstimate {
                name: name.into(),
                value: *value,
                standard_error,
                t,
                p: student_t_two_sided(t, degrees),
                lower: value - critical * standard_error,
                upper: value + critical * standard_error,
            }
        })
        .collect()
}

fn analysis_of_variance(
    total: f64,
    residual: f64,
    variables: usize,
    degrees: f64,
) -> Option<AnovaTable> {
    if variables == 0 {
        return None;
    }
    let regression_degrees = variables as f64;
    // A sum of squares is not negative; only rounding of an explained share near 0 makes it so.
    let regression = (total - residual).max(0.0);
    let f = regression / regression_degrees / (residual / degrees);
    Some(AnovaTable {
        regression_squares: regression,
        regression_degrees,
        residual_squares: residual,
        residual_degrees: degrees,
        f,
        p: f_upper_tail(f, regression_degrees, degrees),
    })
}

fn dependent_column(design: &DesignMatrix, index: usize) -> Error {
    let name = &design.names()[index];
    let column = &design.columns()[index];
    let message = match centred_square_sum(column).sqrt() <= EXACT_SHARE_MAX * mean(column).abs() {
        true => format!("{name} is constant; vary it or leave it out"),
        false => format!("{name} is a combination of the variables before it; leave one out"),
    };
    Error::new(Kind::Invalid, message)
}

fn invalid<T>(message: String) -> Result<T, FitProblem> {
    Err(FitProblem::Unusable(Error::new(Kind::Invalid, message)))
}
