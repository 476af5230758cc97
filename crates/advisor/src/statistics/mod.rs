// SPDX-License-Identifier: Apache-2.0
//! Statistics: the procedures by which the paper reads its dataset (Tables 2–5, Figures 13–14).
//!
//! `summary`, `group_means` and `correlation` describe; `design_matrix` → `householder` →
//! `least_squares` fit a linear model; `stepwise` chooses its variables; `collinearity` and
//! `residuals` check its assumptions. `distributions` is the only file that knows `statrs`.
//! Invariant: no result is NaN. Input that determines no answer (a constant or collinear column,
//! too few rows, a value that is not finite) is `Invalid`, and the error names it. Checked against
//! statsmodels to 1e-9 (tests/golden).

pub mod collinearity;
pub mod correlation;
pub mod design_matrix;
pub mod distributions;
pub mod group_means;
mod householder;
pub mod least_squares;
pub mod residuals;
pub mod stepwise;
pub mod summary;
