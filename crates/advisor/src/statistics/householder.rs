// SPDX-License-Identifier: Apache-2.0
//! Householder: QR factors of a tall matrix by Householder reflections, for least squares.
//!
//! Columns are scaled to length 1 first, so that bytes (10^8) and flags (1) are equally well
//! conditioned, and a column's diagonal element in R is the share of it that earlier columns do not
//! explain.
//! Source: Golub and Van Loan, Matrix Computations, §5.2.1 and §5.3.2.

/// A column counts as a combination of earlier ones if these explain all but this share of it.
const INDEPENDENT_SHARE_MIN: f64 = 1e-9;

/// The solution of a least-squares problem.
#[derive(Debug)]
pub struct QrSolution {
    /// The coefficients of the columns.
    pub coefficients: Vec<f64>,
    /// (XᵀX)⁻¹, row by row.
    pub inverse_gram: Vec<Vec<f64>>,
}

/// Solves min ‖y − X b‖ for columns of one length, which is at least their number.
///
/// # Errors
/// The index of the first column that is a linear combination of those before it.
pub fn solve(columns: &[Vec<f64>], y: &[f64]) -> Result<QrSolution, usize> {
    let width = columns.len();
    assert!(width <= y.len(), "at least as many rows as columns");
    let mut scales = Vec::with_capacity(width);
    let mut work: Vec<Vec<f64>> = Vec::with_capacity(width);
    for (index, column) in columns.iter().enumerate() {
        let scale = length(column);
        if scale <= 0.0 || !scale.is_finite() {
            return Err(index);
        }
        scales.push(scale);
        work.push(column.iter().map(|value| value / scale).collect());
    }
    let mut response = y.to_vec();
    let mut diagonal = Vec::with_capacity(width);
    for step in 0..width {
        let norm = length(&work[step][step..]);
        if norm < INDEPENDENT_SHARE_MIN {
            return Err(step);
        }
        // The sign that avoids cancellation.
        let reflected = if work[step][step] > 0.0 { -norm } else { norm };
        let mut reflector = work[step][step..].to_vec();
        reflector[0] -= reflected;
        let square = dot(&reflector, &reflector);
        for column in work.iter_mut().skip(step + 1) {
            reflect(&mut column[step..], &reflector, square);
        }
        reflect(&mut response[step..], &reflector, square);
        diagonal.push(reflected);
    }
    let upper = |row: usize, column: usize| match row == column {
        true => diagonal[row],
        false => work[column][row],
    };
    let inverse = upper_inverse(width, upper);
    let coefficients = (0..width)
        .map(|row| {
            let sum: f64 = (row..width).map(|k| inverse[k][row] * response[k]).sum();
            sum / scales[row]
        })
        .collect();
    let inverse_gram = (0..width)
        .map(|row| {
            let entry = |column: usize| {
                let from = row.max(column);
                let sum: f64 = (from..width).map(|k| inverse[k][row] * inverse[k][column]).sum();
                sum / (scales[row] * scales[column])
            };
            (0..width).map(entry).collect()
        })
        .collect();
    Ok(QrSolution { coefficients, inverse_gram })
}

/// Applies the reflection along `reflector` to `values`.
fn reflect(values: &mut [f64], reflector: &[f64], square: f64) {
    let factor = 2.0 * dot(reflector, values) / square;
    for (value, along) in values.iter_mut().zip(reflector) {
        *value -= factor * along;
    }
}

/// The columns of the inverse of an upper triangular matrix, each by back substitution.
fn upper_inverse(width: usize, upper: impl Fn(usize, usize) -> f64) -> Vec<Vec<f64>> {
    let column_of = |column: usize| {
        let mut inverse = vec![0.0; width];
        inverse[column] = 1.0 / upper(column, column);
        for row in (0..column).rev() {
            let sum: f64 = (row + 1..=column).map(|k| upper(row, k) * inverse[k]).sum();
            inverse[row] = -sum / upper(row, row);
        }
        inverse
    };
    (0..width).map(column_of).collect()
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

/// The Euclidean length, without overflow of squares.
fn length(values: &[f64]) -> f64 {
    let largest = values.iter().fold(0f64, |largest, value| largest.max(value.abs()));
    if largest <= 0.0 || !largest.is_finite() {
        return largest;
    }
    let square: f64 = values.iter().map(|value| (value / largest) * (value / largest)).sum();
    largest * square.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_through_exact_points_is_found_and_dependent_columns_are_named() {
        let columns = [vec![1.0; 4], vec![0.0, 1.0, 2.0, 3.0]];
        let solution = solve(&columns, &[5.0, 7.0, 9.0, 11.0]).expect("independent");
        assert!((solution.coefficients[0] - 5.0).abs() < 1e-12, "{solution:?}");
        assert!((solution.coefficients[1] - 2.0).abs() < 1e-12, "{solution:?}");
        // (XᵀX)⁻¹ of n = 4, Σx = 6, Σx² = 14.
        assert!((solution.inverse_gram[0][0] - 0.7).abs() < 1e-12, "{solution:?}");
        assert!((solution.inverse_gram[0][1] + 0.3).abs() < 1e-12, "{solution:?}");
        assert!((solution.inverse_gram[1][1] - 0.2).abs() < 1e-12, "{solution:?}");
        let sum = vec![1.0, 2.0, 3.0, 4.0];
        let dependent = [columns[0].clone(), columns[1].clone(), sum];
        assert_eq!(solve(&dependent, &[0.0; 4]).err(), Some(2));
        assert_eq!(solve(&[vec![0.0; 4]], &[0.0; 4]).err(), Some(0));
    }
}
