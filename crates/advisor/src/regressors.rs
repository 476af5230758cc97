// SPDX-License-Identifier: Apache-2.0
//! Regressors: the columns of the paper's equation, from the variables of observations.
//!
//! Source: Kougkas et al. 2016, §5.2.2.

use esker_base::Result;

use crate::observation::{IoVariables, Observation};
use crate::statistics::design_matrix::DesignMatrix;

/// The regressors in the order of the equation, by the letters of Table 1.
pub const LETTERS: [&str; 11] = ["s", "m", "c", "a", "g", "r", "p", "R", "d", "A", "M"];

/// Returns the value of the variable with this letter of Table 1, if it is a regressor.
#[must_use]
pub fn value_of(letter: &str, variables: &IoVariables) -> Option<f64> {
    Some(match letter {
        "s" => f64::from(variables.servers),
        "m" => f64::from(variables.metadata_servers),
        "c" => f64::from(variables.clients),
        "a" => f64::from(variables.access_pattern.code()),
        "g" => variables.gap_bytes as f64,
        "r" => variables.request_bytes as f64,
        "p" => f64::from(variables.processes),
        "R" => variables.input_bytes as f64,
        "d" => f64::from(variables.device.code()),
        "A" => variables.unaligned_bytes as f64,
        "M" => variables.metadata_operations as f64,
        _ => return None,
    })
}

/// Returns the paper's eleven regressors of the observations.
///
/// # Errors
/// None for observations that are valid.
pub fn paper_design(observations: &[&Observation]) -> Result<DesignMatrix> {
    let mut design = DesignMatrix::new(observations.len());
    for letter in LETTERS {
        let column = observations.iter().map(|observation| {
            value_of(letter, &observation.variables).expect("the letters are those of regressors")
        });
        design.push(letter, column.collect())?;
    }
    Ok(design)
}
