// SPDX-License-Identifier: Apache-2.0
//! Group means: the "compare means" of the paper's Table 3.

use esker_base::{Error, Kind, Result};
use serde::Serialize;

use super::summary::{centred_square_sum, mean, require_finite};

/// The mean of the values of one category.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupMean {
    /// The category.
    pub category: u64,
    /// Values of that category, at least 1.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation; absent for a single value.
    pub standard_deviation: Option<f64>,
}

/// Returns the means of `values` by the category of each, in ascending order of categories.
///
/// # Errors
/// `Invalid` if the lengths differ, or a value is not finite.
pub fn group_means(categories: &[u64], values: &[f64]) -> Result<Vec<GroupMean>> {
    require_finite("the response", values)?;
    if categories.len() != values.len() {
        let message = format!("{} categories for {} values", categories.len(), values.len());
        return Err(Error::new(Kind::Invalid, message));
    }
    let mut groups: std::collections::BTreeMap<u64, Vec<f64>> = std::collections::BTreeMap::new();
    for (category, value) in categories.iter().zip(values) {
        groups.entry(*category).or_default().push(*value);
    }
    let means = groups.into_iter().map(|(category, values)| GroupMean {
        category,
        count: values.len(),
        mean: mean(&values),
        standard_deviation: (values.len() > 1)
            .then(|| (centred_square_sum(&values) / (values.len() - 1) as f64).sqrt()),
    });
    Ok(means.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_own_means() {
        let means = group_means(&[2, 1, 2], &[3.0, 10.0, 5.0]).expect("means");
        assert_eq!((means[0].category, means[0].count, means[0].mean), (1, 1, 10.0));
        assert_eq!(means[0].standard_deviation, None);
        assert_eq!((means[1].category, means[1].count, means[1].mean), (2, 2, 4.0));
        assert!((means[1].standard_deviation.expect("two values") - 2f64.sqrt()).abs() < 1e-15);
        assert!(group_means(&[1], &[1.0, 2.0]).is_err());
        assert!(group_means(&[1], &[f64::NAN]).is_err());
    }
}
