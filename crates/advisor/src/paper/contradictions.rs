// SPDX-License-Identifier: Apache-2.0
//! Contradictions: the places at which the paper contradicts itself, computed from its printed
//! numbers alone.
//!
//! Each check returns a contradiction only if the numbers disagree by more than their rounding, so
//! that a corrected number would silence it.

use serde::Serialize;

use super::published::{
    ADJUSTED_R_SQUARED_IN_TEXT, HYPERDEX, ORANGEFS, PrintedCoefficient, PrintedCorrelation,
    PrintedSystem, ROWS_IN_TEXT, SYSTEMS,
};
use crate::regressors::LETTERS;
use crate::statistics::distributions::{student_t_quantile, student_t_two_sided};

/// Half of the last digit of correlations and p-values, which have three.
const THIRD_DIGIT_HALF: f64 = 0.0005;

/// The letters of Table 1 that the text counts as independent variables: "10 independent
/// variables".
const VARIABLES_IN_TEXT: usize = 10;

/// Variables that the text counts in HyperDex's model: "only four variables".
const HYPERDEX_VARIABLES_IN_TEXT: usize = 4;

/// Two statements of the paper that cannot both be true.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PaperContradiction {
    /// The table or section.
    pub place: String,
    /// The statements and the arithmetic.
    pub statement: String,
}

fn found(place: impl Into<String>, statement: String) -> PaperContradiction {
    PaperContradiction { place: place.into(), statement }
}

/// Returns all contradictions in the order of the paper's tables.
#[must_use]
pub fn contradictions() -> Vec<PaperContradiction> {
    let mut all = Vec::new();
    all.extend(row_count());
    all.extend(SYSTEMS.iter().flat_map(|system| means_outside_groups(system)));
    all.extend(percentages());
    all.extend(SYSTEMS.iter().flat_map(|system| correlation_tails(system)));
    all.extend(SYSTEMS.iter().flat_map(|system| coefficient_arithmetic(system)));
    all.extend(variable_counts());
    if (ORANGEFS.adjusted_r_squared - ADJUSTED_R_SQUARED_IN_TEXT).abs() > THIRD_DIGIT_HALF {
        all.push(found(
            "Table 5 and §5.2.3",
            format!(
                "OrangeFS's adjusted R² is {} in the table and {ADJUSTED_R_SQUARED_IN_TEXT} in the \
                 text",
                ORANGEFS.adjusted_r_squared
            ),
        ));
    }
    all.extend(SYSTEMS.iter().flat_map(|system| opposite_signs(system)));
    all
}

/// Rows that Table 2 implies against those in the text.
fn row_count() -> Option<PaperContradiction> {
    let rows = SYSTEMS.map(PrintedSystem::rows);
    let sum = rows[0] + rows[1];
    (sum != ROWS_IN_TEXT as f64).then(|| {
        let [orangefs, hyperdex] = rows;
        let statement = format!(
            "(deviation / standard error)² gives {orangefs} rows of OrangeFS and {hyperdex} of \
             HyperDex, together {sum}; the text says {ROWS_IN_TEXT}"
        );
        found("Table 2", statement)
    })
}

/// The share of the second of two groups that makes their means the overall mean, if there is one.
#[must_use]
pub fn second_group_share(mean: f64, groups: [f64; 2]) -> Option<f64> {
    let share = (mean - groups[0]) / (groups[1] - groups[0]);
    (0.0..=1.0).contains(&share).then_some(share)
}

/// Overall means that no weighting of two groups gives.
fn means_outside_groups(system: &PrintedSystem) -> Vec<PaperContradiction> {
    let pairs = system.group_pairs();
    let outside =
        pairs.iter().filter(|(_, pair)| second_group_share(system.means.mean, *pair).is_none());
    outside
        .map(|(variable, [first, second])| {
            let statement = format!(
                "{}'s mean over all rows, {:.2}, is outside its means by {variable}, {first:.2} and \
                 {second:.2}: the tables are not over the same rows",
                system.name, system.means.mean
            );
            found("Tables 2 and 3", statement)
        })
        .collect()
}

/// Percentages of the text against the ratios of Table 3 and of the averages that it names.
fn percentages() -> Vec<PaperContradiction> {
    let [contiguous, gaps] = ORANGEFS.groups.access_pattern;
    let ratio = |groups: [f64; 2]| groups[1] / groups[0];
    let claims = [
        ("\"almost a 20% degradation\" of OrangeFS without contiguity", 20.0, {
            (1.0 - gaps / contiguous) * 100.0
        }),
        (
            "\"230% higher\" with OrangeFS on SSDs",
            230.0,
            (ratio(ORANGEFS.groups.device) - 1.0) * 100.0,
        ),
        ("\"benefit of 115%\" with HyperDex on SSDs", 115.0, {
            (ratio(HYPERDEX.groups.device) - 1.0) * 100.0
        }),
        ("\"almost a 400% increase\" of OrangeFS from 1 to 4 metadata servers", 400.0, {
            (ratio(ORANGEFS.groups.metadata_servers) - 1.0) * 100.0
        }),
        ("\"increase of 162%\" of HyperDex from 1 to 4 metadata servers", 162.0, {
            (ratio(HYPERDEX.groups.metadata_servers) - 1.0) * 100.0
        }),
        // Figure 12's averages: 179 MB/s of HyperDex, 25 of OrangeFS with increased metadata.
        ("\"756% difference\" with LANL App1", 756.0, (179.0 / 25.0 - 1.0) * 100.0),
    ];
    let wrong = claims.into_iter().filter(|(_, claimed, actual)| {
        // "Almost" may hide a tenth of the number.
        (claimed - actual).abs() > 0.1 * claimed
    });
    wrong
        .map(|(claim, _, actual)| {
            found("§4 and §5.2.1", format!("{claim} is {actual:+.1} % by the printed rates"))
        })
        .collect()
}

/// The p-values that a printed correlation may have, from the least to the greatest.
fn possible_tails(correlation: &PrintedCorrelation, rows: f64) -> [f64; 2] {
    [THIRD_DIGIT_HALF, -THIRD_DIGIT_HALF].map(|rounding| {
        let r = (correlation.r.abs() + rounding).max(0.0);
        student_t_two_sided(r * ((rows - 2.0) / (1.0 - r * r)).sqrt(), rows - 2.0)
    })
}

fn correlation_tails(system: &PrintedSystem) -> Vec<PaperContradiction> {
    let rows = system.rows();
    let wrong = system.correlations.iter().filter(|correlation| {
        let [least, greatest] = possible_tails(correlation, rows);
        correlation.p < least - THIRD_DIGIT_HALF || correlation.p > greatest + THIRD_DIGIT_HALF
    });
    wrong
        .map(|correlation| {
            let [least, greatest] = possible_tails(correlation, rows);
            let statement = format!(
                "{}: r({}) = {} over {rows} rows has p from {least:.3} to {greatest:.3}, not {}",
                system.name, correlation.letter, correlation.r, correlation.p
            );
            found("Table 4", statement)
        })
        .collect()
}

/// True if `printed`, with three decimals, may be `exact`, whose error is at most `error`.
fn may_be(printed: f64, exact: f64, error: f64) -> bool {
    (printed - exact).abs() <= error + THIRD_DIGIT_HALF
}

/// t, p and interval of each coefficient from the coefficient and its error.
fn coefficient_arithmetic(system: &PrintedSystem) -> Vec<PaperContradiction> {
    let degrees = system.rows() - system.coefficients.len() as f64;
    let critical = student_t_quantile(0.975, degrees);
    let mut wrong = Vec::new();
    for coefficient in system.coefficients {
        let PrintedCoefficient { letter, value, standard_error, t, p, interval, .. } = *coefficient;
        let name = if letter.is_empty() { "the constant" } else { letter };
        let [value_rounding, error_rounding] = coefficient.rounding;
        let quotient = value / standard_error;
        let t_error = (value_rounding + quotient.abs() * error_rounding) / standard_error * 1.05;
        if !may_be(t, quotient, t_error) {
            let statement = format!("{}: t of {name} is {quotient:.3}, not {t}", system.name);
            wrong.push(found("Table 5", statement));
        }
        let tail = student_t_two_sided(t, degrees);
        if (tail - p).abs() > 2.0 * THIRD_DIGIT_HALF {
            let statement = format!(
                "{}: t = {t} of {name} with {degrees} degrees of freedom has p = {tail:.3}, not {p}",
                system.name
            );
            wrong.push(found("Table 5", statement));
        }
        let half = critical * standard_error;
        let error = value_rounding + critical * error_rounding;
        let slack = error + coefficient.interval_rounding;
        let ends = [value - half, value + half];
        if ends.iter().zip(interval).any(|(end, printed)| (end - printed).abs() > slack) {
            let statement = format!(
                "{}: the interval of {name}, {value} ± {critical:.3} · {standard_error}, is \
                 {:.4e} to {:.4e}, not {:e} to {:e}",
                system.name, ends[0], ends[1], interval[0], interval[1]
            );
            wrong.push(found("Table 5", statement));
        }
    }
    wrong
}

fn variable_counts() -> Vec<PaperContradiction> {
    let mut wrong = Vec::new();
    if LETTERS.len() != VARIABLES_IN_TEXT {
        let statement = format!(
            "the equation has {} regressors, the text {VARIABLES_IN_TEXT}; and Table 5 numbers its \
             rows from b0 for s, the equation from b1",
            LETTERS.len()
        );
        wrong.push(found("§5.2.2", statement));
    }
    let in_model = HYPERDEX.coefficients.len() - 1;
    if in_model != HYPERDEX_VARIABLES_IN_TEXT {
        let statement = format!(
            "HyperDex's model has {in_model} variables, the text names \
             {HYPERDEX_VARIABLES_IN_TEXT} and leaves out the number of processes"
        );
        wrong.push(found("§5.2.3", statement));
    }
    wrong
}

/// Variables whose coefficient has another sign than their correlation: the model is not causal.
fn opposite_signs(system: &PrintedSystem) -> Vec<PaperContradiction> {
    let opposite = system.coefficients.iter().filter_map(|coefficient| {
        let correlation =
            system.correlations.iter().find(|other| other.letter == coefficient.letter)?;
        (correlation.r * coefficient.value < 0.0).then_some((coefficient, correlation))
    });
    opposite
        .map(|(coefficient, correlation)| {
            let statement = format!(
                "{}: {} correlates with the rate by {} but has the coefficient {}: the variables \
                 are collinear, and the model does not say what causes the rate",
                system.name, coefficient.letter, correlation.r, coefficient.value
            );
            found("Tables 4 and 5", statement)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statements() -> Vec<String> {
        contradictions().into_iter().map(|found| found.statement).collect()
    }

    #[track_caller]
    fn assert_found(words: &[&str]) {
        let all = statements();
        let found = all.iter().any(|text| words.iter().all(|word| text.contains(word)));
        assert!(found, "none has {words:?}: {all:#?}");
    }

    #[test]
    fn the_known_contradictions_are_found() {
        assert_found(&["687", "641", "1328", "1329"]);
        for variable in ["access pattern", "storage device", "metadata servers"] {
            assert_found(&["HyperDex", "212.55", variable]);
        }
        assert_found(&["t = 1.766", "677", "0.078", "0.058"]);
        assert_found(&["0.633", "0.0633"]);
        assert_found(&["11 regressors", "10"]);
        assert_found(&["5 variables", "4"]);
        assert_found(&["20%", "+14.7 %"]);
        assert_found(&["230%", "+130.7 %"]);
        assert_found(&["115%", "+15.5 %"]);
        assert_found(&["400%", "+266.7 %"]);
        assert_found(&["r", "a correlates", "-0.062", "21.929"]);
    }

    #[test]
    fn misprinted_intervals_are_found_and_correct_ones_pass() {
        assert_found(&["interval of R", "4.3"]);
        assert_found(&["interval of m", "HyperDex"]);
        let intervals = statements().iter().filter(|text| text.contains("interval of")).count();
        assert_eq!(intervals, 2, "{:#?}", statements());
    }

    #[test]
    fn consistent_numbers_are_not_accused() {
        let all = statements();
        let outside = all.iter().filter(|text| text.contains("OrangeFS's mean"));
        assert_eq!(outside.count(), 0, "{all:#?}");
        assert!(!all.iter().any(|text| text.contains(": t of ")), "{all:#?}");
        let shares = ORANGEFS.group_pairs().map(|(_, pair)| {
            second_group_share(ORANGEFS.means.mean, pair).expect("between the groups")
        });
        for (share, expected) in shares.into_iter().zip([0.165, 0.593, 0.800]) {
            assert!((share - expected).abs() < 5e-4, "{share} instead of {expected}");
        }
    }
}
