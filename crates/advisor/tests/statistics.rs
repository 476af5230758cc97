// SPDX-License-Identifier: Apache-2.0
//! Statistics against statsmodels and scipy (golden/make_golden.py), and degenerate input.

use esker_advisor::statistics::collinearity::variance_inflation;
use esker_advisor::statistics::correlation::PearsonCorrelation;
use esker_advisor::statistics::design_matrix::DesignMatrix;
use esker_advisor::statistics::distributions::{
    chi_squared_upper_tail, f_upper_tail, student_t_quantile, student_t_two_sided,
};
use esker_advisor::statistics::least_squares::LinearFit;
use esker_advisor::statistics::residuals::{
    breusch_pagan, durbin_watson, histogram, quantile_points,
};
use esker_advisor::statistics::stepwise::StepwiseFit;
use esker_advisor::statistics::summary::SampleSummary;
use esker_base::Kind;
use proptest::prelude::*;
use serde_json::Value;

/// The bar of all comparisons, relative to the number, absolute below 1.
const DIFFERENCE_MAX: f64 = 1e-9;

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/statistics.json")).expect("golden numbers")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(number).collect()
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().map(|text| text.as_str().expect("a text")).collect()
}

#[track_caller]
fn assert_same(what: &str, ours: f64, expected: &Value) {
    let expected = number(expected);
    let difference = (ours - expected).abs() / expected.abs().max(1.0);
    assert!(difference <= DIFFERENCE_MAX, "{what}: {ours} instead of {expected}");
}

/// Small tail probabilities must have the right digits, too.
#[track_caller]
fn assert_same_digits(what: &str, ours: f64, expected: &Value) {
    let expected = number(expected);
    let difference = (ours - expected).abs() / expected.abs().max(f64::MIN_POSITIVE);
    assert!(difference <= DIFFERENCE_MAX, "{what}: {ours:e} instead of {expected:e}");
}

fn design(of: &Value) -> DesignMatrix {
    let columns = of["columns"].as_array().expect("columns");
    let mut design = DesignMatrix::new(of["response"].as_array().expect("rows").len());
    for (name, column) in texts(&of["names"]).into_iter().zip(columns) {
        design.push(name, numbers(column)).expect("a column");
    }
    design
}

#[test]
fn fits_agree_with_statsmodels() {
    for expected in golden()["fits"].as_array().expect("fits") {
        let design = design(expected);
        let fit = LinearFit::of(&design, &numbers(&expected["response"])).expect("a fit");
        let coefficients = expected["coefficients"].as_array().expect("coefficients");
        assert_eq!(fit.coefficients.len(), coefficients.len());
        for (ours, expected) in fit.coefficients.iter().zip(coefficients) {
            assert_eq!(ours.name, expected["name"].as_str().expect("a name"));
            assert_same_digits("coefficient", ours.value, &expected["value"]);
            assert_same_digits("standard error", ours.standard_error, &expected["standard_error"]);
            assert_same_digits("t", ours.t, &expected["t"]);
            assert_same_digits("p", ours.p, &expected["p"]);
            assert_same("lower", ours.lower, &expected["lower"]);
            assert_same("upper", ours.upper, &expected["upper"]);
        }
        assert_same("R²", fit.r_squared, &expected["r_squared"]);
        assert_same("adjusted R²", fit.adjusted_r_squared, &expected["adjusted_r_squared"]);
        let anova = fit.anova.expect("variables");
        assert_same("regression", anova.regression_squares, &expected["regression_squares"]);
        assert_same("residual", anova.residual_squares, &expected["residual_squares"]);
        assert_same("F", anova.f, &expected["f"]);
        assert_same_digits("p of F", anova.p, &expected["f_p"]);
    }
}

#[test]
fn diagnostics_agree_with_statsmodels() {
    for expected in golden()["fits"].as_array().expect("fits") {
        let design = design(expected);
        let fit = LinearFit::of(&design, &numbers(&expected["response"])).expect("a fit");
        let inflation = expected["inflation"].as_array().expect("inflation");
        for (ours, expected) in variance_inflation(&design, &fit).iter().zip(inflation) {
            assert_same("VIF", ours.factor, expected);
            assert!((ours.tolerance() * ours.factor - 1.0).abs() < 1e-15);
        }
        assert_same("Durbin-Watson", durbin_watson(&fit), &expected["durbin_watson"]);
        let pagan = breusch_pagan(&design, &fit).expect("a test");
        assert_same("Breusch-Pagan", pagan.statistic, &expected["breusch_pagan"]);
        assert_same_digits("its p", pagan.p, &expected["breusch_pagan_p"]);
        let points = quantile_points(&fit);
        for (index, point) in points.iter().enumerate() {
            assert_same("quantile", point.normal, &expected["normal_quantiles"][index]);
            assert_same("residual", point.residual, &expected["sorted_residuals"][index]);
        }
        assert_eq!(histogram(&fit, 7, 3.0).iter().sum::<usize>(), points.len());
    }
}

#[test]
fn selections_agree_with_the_rule_over_statsmodels() {
    let golden = golden();
    let selections = golden["selections"].as_array().expect("selections");
    for expected in selections {
        let design = design(expected);
        let ours = StepwiseFit::of(&design, &numbers(&expected["response"])).expect("a selection");
        let names: Vec<&str> =
            ours.selected.iter().map(|index| design.names()[*index].as_str()).collect();
        assert_eq!(names, texts(&expected["selected"]));
        let steps = expected["steps"].as_array().expect("steps");
        assert_eq!(ours.steps.len(), steps.len(), "{:?}", ours.steps);
        for (step, expected) in ours.steps.iter().zip(steps) {
            assert_eq!(step.name, expected[0].as_str().expect("a name"));
            assert_eq!(step.entered, expected[1].as_bool().expect("a flag"));
            assert_same_digits("p of the step", step.p, &expected[2]);
        }
        for (ours, expected) in
            ours.fit.coefficients.iter().zip(expected["values"].as_array().expect("values"))
        {
            assert_same_digits("coefficient", ours.value, expected);
        }
        let adjusted = &expected["adjusted_r_squared"];
        assert_same("adjusted R²", ours.fit.adjusted_r_squared, adjusted);
        assert_eq!(ours.selected.len() + ours.excluded.len(), design.names().len());
    }
    let removed = |step: &Value| step[1] == Value::Bool(false);
    let first = selections[0]["steps"].as_array().expect("steps");
    assert!(first.iter().any(removed), "the golden data exercise removal");
    assert!(texts(&selections[2]["selected"]).is_empty(), "and a model without variables");
}

#[test]
fn correlations_and_summaries_agree_with_scipy() {
    let golden = golden();
    for expected in golden["correlations"].as_array().expect("correlations") {
        let ours = PearsonCorrelation::between(&numbers(&expected["x"]), &numbers(&expected["y"]))
            .expect("a correlation");
        assert_same("r", ours.r, &expected["r"]);
        assert_same_digits("p", ours.p, &expected["p"]);
    }
    let expected = &golden["summary"];
    let ours = SampleSummary::of(&numbers(&expected["values"])).expect("a summary");
    assert_same("mean", ours.mean, &expected["mean"]);
    assert_same("deviation", ours.standard_deviation, &expected["standard_deviation"]);
    assert_same("error", ours.standard_error, &expected["standard_error"]);
    assert_same("median", ours.median, &expected["median"]);
}

#[test]
fn distributions_agree_with_scipy() {
    let golden = golden();
    for expected in golden["student_t"].as_array().expect("quantiles") {
        let (probability, degrees) = (number(&expected["probability"]), &expected["degrees"]);
        let ours = student_t_quantile(probability, number(degrees));
        assert_same("quantile of t", ours, &expected["quantile"]);
    }
    for expected in golden["student_t_tails"].as_array().expect("tails") {
        let ours = student_t_two_sided(number(&expected["t"]), number(&expected["degrees"]));
        assert_same_digits("tail of t", ours, &expected["p"]);
    }
    for expected in golden["f_tails"].as_array().expect("tails") {
        let [f, a, b] = ["f", "numerator", "denominator"].map(|name| number(&expected[name]));
        assert_same_digits("tail of F", f_upper_tail(f, a, b), &expected["p"]);
    }
    for expected in golden["chi_squared_tails"].as_array().expect("tails") {
        let [statistic, degrees] = ["statistic", "degrees"].map(|name| number(&expected[name]));
        assert_same_digits(
            "tail of χ²",
            chi_squared_upper_tail(statistic, degrees),
            &expected["p"],
        );
    }
}

fn matrix(columns: &[(&str, &[f64])]) -> DesignMatrix {
    let mut design = DesignMatrix::new(columns[0].1.len());
    for (name, values) in columns {
        design.push(*name, values.to_vec()).expect("a column");
    }
    design
}

#[test]
fn degenerate_input_is_invalid_and_named() {
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let y = [1.0, 3.0, 2.0, 5.0, 4.0, 7.0];
    let twice = x.map(|value| 2.0 * value + 1.0);
    let cases: [(&str, DesignMatrix, &[f64]); 6] = [
        ("k is constant", matrix(&[("x", &x), ("k", &[7e7; 6])]), &y),
        ("twice is a combination", matrix(&[("x", &x), ("twice", &twice)]), &y),
        ("2 rows do not determine 2", matrix(&[("x", &x[..2])]), &y[..2]),
        (
            "the response has NaN in row 1",
            matrix(&[("x", &x)]),
            &[1.0, f64::NAN, 1.0, 1.0, 1.0, 1.0],
        ),
        ("the response is constant", matrix(&[("x", &x)]), &[3.0; 6]),
        ("exactly", matrix(&[("x", &x)]), &twice),
    ];
    for (expected, design, response) in cases {
        let error = LinearFit::of(&design, response).expect_err(expected);
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains(expected), "{error} lacks {expected:?}");
    }
    let mut design = DesignMatrix::new(6);
    assert!(design.push("bad", vec![f64::INFINITY; 6]).is_err());
    assert!(design.push("short", vec![1.0; 5]).is_err());
    design.push("x", x.to_vec()).expect("a column");
    assert!(design.push("x", x.to_vec()).is_err(), "a name twice");
    assert!(SampleSummary::of(&[1.0]).is_err());
    assert!(SampleSummary::of(&[1.0, f64::NAN]).is_err());
}

#[test]
fn a_selection_never_takes_constant_or_repeated_columns() {
    let x: Vec<f64> = (0..40).map(f64::from).collect();
    let noise = |index: usize| ((index * 7919) % 101) as f64 / 10.0;
    let y: Vec<f64> = x.iter().enumerate().map(|(index, x)| 3.0 * x + noise(index)).collect();
    let twice: Vec<f64> = x.iter().map(|x| 2.0 * x).collect();
    let design = matrix(&[("k", &[1.0; 40]), ("x", &x), ("twice", &twice)]);
    let ours = StepwiseFit::of(&design, &y).expect("a selection");
    assert_eq!(ours.selected.len(), 1, "{:?}", ours.steps);
    assert!(ours.excluded.contains(&"k".to_owned()));
}

proptest! {
    #[test]
    fn a_fit_has_finite_numbers_or_is_refused(
        rows in 1usize..12,
        values in proptest::collection::vec(
            prop_oneof![-3.0..3.0f64, Just(0.0), Just(1.0), -1e18..1e18f64, Just(f64::NAN)], 48),
    ) {
        let mut design = DesignMatrix::new(rows);
        for (index, column) in values.chunks(12).take(3).enumerate() {
            let _ = design.push(format!("v{index}"), column[..rows].to_vec());
        }
        let response = &values[36..36 + rows];
        for fit in [
            LinearFit::of(&design, response),
            StepwiseFit::of(&design, response).map(|stepwise| stepwise.fit),
        ] {
            let Ok(fit) = fit else { continue };
            for estimate in &fit.coefficients {
                let numbers = [
                    estimate.value, estimate.standard_error, estimate.t, estimate.p,
                    estimate.lower, estimate.upper,
                ];
                prop_assert!(numbers.iter().all(|number| number.is_finite()), "{estimate:?}");
            }
            prop_assert!(fit.r_squared.is_finite() && fit.adjusted_r_squared.is_finite());
            prop_assert!(durbin_watson(&fit).is_finite());
        }
    }
}
