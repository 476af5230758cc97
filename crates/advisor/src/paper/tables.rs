// SPDX-License-Identifier: Apache-2.0
//! Tables: Tables 2 to 5 of a dataset, for one category of storage, in the form of the paper.

use esker_base::{Error, Kind, Result};

use crate::observation::{Observation, StorageKind};
use crate::regressors::{LETTERS, paper_design, value_of};
use crate::statistics::collinearity::{VarianceInflation, variance_inflation};
use crate::statistics::correlation::PearsonCorrelation;
use crate::statistics::design_matrix::DesignMatrix;
use crate::statistics::group_means::{GroupMean, group_means};
use crate::statistics::residuals::{BreuschPagan, breusch_pagan, durbin_watson};
use crate::statistics::stepwise::StepwiseFit;
use crate::statistics::summary::SampleSummary;

/// The variables by which Table 3 compares means.
pub const GROUPING_LETTERS: [&str; 3] = ["a", "d", "m"];

/// Tables 2 to 5 of the rows of one category.
#[derive(Clone, Debug)]
pub struct DatasetTables {
    /// The category.
    pub kind: StorageKind,
    /// The systems of that category in the dataset.
    pub systems: Vec<String>,
    /// True if a model computed the times of any row.
    pub is_simulated: bool,
    /// Table 2.
    pub means: SampleSummary,
    /// Table 3: a letter and the means of its groups.
    pub groups: Vec<(&'static str, Vec<GroupMean>)>,
    /// Table 3's last column: the mean over the rows with more metadata operations than requests.
    pub many_metadata_mean: Option<f64>,
    /// Table 4, for all regressors that vary.
    pub correlations: Vec<(&'static str, PearsonCorrelation)>,
    /// Table 5.
    pub regression: StepwiseFit,
    /// Collinearity of the selected variables.
    pub inflation: Vec<VarianceInflation>,
    /// The Durbin–Watson statistic: near 2 if residuals of successive rows are independent.
    pub durbin_watson: f64,
    /// The test that the variance of residuals is constant; absent without variables.
    pub variance: Option<BreuschPagan>,
    /// The design of all regressors.
    pub design: DesignMatrix,
}

/// Computes the tables of the rows of `kind`.
///
/// # Errors
/// `NotFound` if there are none; `Invalid` if they are too few or all have one rate.
pub fn of_kind(observations: &[Observation], kind: StorageKind) -> Result<DatasetTables> {
    let rows: Vec<&Observation> = observations.iter().filter(|row| row.kind == kind).collect();
    if rows.is_empty() {
        let message = format!("the dataset has no rows of kind {} (f)", kind.code());
        return Err(Error::new(Kind::NotFound, message));
    }
    let rates: Vec<f64> = rows.iter().map(|row| row.bandwidth()).collect();
    let design = paper_design(&rows)?;
    let regression = StepwiseFit::of(&design, &rates)?;
    let selected = design.select(&regression.selected);
    let many: Vec<f64> = rows
        .iter()
        .filter(|row| row.variables.metadata_operations > row.variables.requests())
        .map(|row| row.bandwidth())
        .collect();
    let mut systems: Vec<String> = rows.iter().map(|row| row.system.clone()).collect();
    systems.sort();
    systems.dedup();
    Ok(DatasetTables {
        kind,
        systems,
        is_simulated: rows.iter().any(|row| row.emulated.time),
        means: SampleSummary::of(&rates)?,
        groups: groups(&rows, &rates)?,
        many_metadata_mean: (!many.is_empty())
            .then(|| many.iter().sum::<f64>() / many.len() as f64),
        correlations: LETTERS
            .into_iter()
            .zip(design.columns())
            // A variable that does not vary has no correlation.
            .filter_map(|(letter, column)| {
                Some((letter, PearsonCorrelation::between(column, &rates).ok()?))
            })
            .collect(),
        inflation: variance_inflation(&selected, &regression.fit),
        durbin_watson: durbin_watson(&regression.fit),
        variance: breusch_pagan(&selected, &regression.fit).ok(),
        regression,
        design,
    })
}

fn groups(rows: &[&Observation], rates: &[f64]) -> Result<Vec<(&'static str, Vec<GroupMean>)>> {
    let of_letter = |letter| {
        let category = |row: &&Observation| {
            let value = value_of(letter, &row.variables).expect("a letter of Table 1");
            // Categories and counts of servers are small whole numbers.
            value as u64
        };
        let categories: Vec<u64> = rows.iter().map(category).collect();
        Ok((letter, group_means(&categories, rates)?))
    };
    GROUPING_LETTERS.into_iter().map(of_letter).collect()
}
