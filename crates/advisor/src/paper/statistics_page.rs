// SPDX-License-Identifier: Apache-2.0
//! Statistics page: the regressions of Table 5 with plots of their residuals, as one HTML page.
//!
//! Each system has three plots, as the paper's Figures 13 and 14: residuals over predicted rates,
//! which show a variance that is not constant and curves that the line misses; the normal Q-Q plot;
//! and the histogram with the normal density. Residuals are standardised. Plots and style are those
//! of the workbench's reports: no script, no network.

use std::fmt::Write;

use esker_workbench::report::plot_frame::{PlotAxis, PlotFrame, escape};
use esker_workbench::report::plots::COLORS;
use esker_workbench::report::{STYLE, figure, table};

use super::tables::DatasetTables;
use crate::statistics::least_squares::{CoefficientEstimate, LinearFit};
use crate::statistics::residuals::{histogram, quantile_points, standardised};

/// Bins of a histogram: an odd number, so that one is around 0.
const BINS: usize = 25;

/// The least range of residuals on both sides of 0, in standard deviations.
const REACH_MIN: f64 = 3.0;

/// Points of the normal density.
const DENSITY_POINTS: u32 = 120;

/// Plots have one kind of dots, so that none shines through another.
const DOT_STYLE: &str = ".dots{stroke-width:2.4;stroke-opacity:.8}";

/// The title of the axis of residuals.
const RESIDUAL: &str = "residual / standard deviation";

/// The page of the `tables` of both systems, of the dataset `source`.
#[must_use]
pub fn page(tables: &[DatasetTables; 2], source: &str) -> String {
    let title = escape(&format!("Regressions of {source}"));
    let mut out = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}{DOT_STYLE}</style></head><body><main><h1>{title}</h1>"
    );
    if tables.iter().any(|table| table.is_simulated) {
        out.push_str(
            "<p class=\"warning\">Service models computed times of this dataset: they are no measurements.</p>",
        );
    }
    for of_system in tables {
        system(&mut out, of_system);
    }
    out.push_str("</main></body></html>\n");
    out
}

fn system(out: &mut String, tables: &DatasetTables) {
    let fit = &tables.regression.fit;
    write!(out, "<h2>{}</h2>", escape(&tables.systems.join(", "))).expect("strings grow");
    paragraph(out, &summary(tables));
    out.push_str("<div class=\"plots\">");
    figure(out, "Residuals over predicted rates", &[], &residuals_over_predicted(fit));
    let legend = ["residuals", "normal"].map(str::to_owned);
    figure(out, "Normal Q-Q plot of residuals", &legend, &quantile_plot(fit));
    figure(out, "Histogram of residuals", &legend, &residual_histogram(fit));
    out.push_str("</div>");
    coefficients(out, tables);
    let excluded = &tables.regression.excluded;
    if !excluded.is_empty() {
        paragraph(out, &format!("Excluded by stepwise selection: {}", excluded.join(", ")));
    }
}

fn paragraph(out: &mut String, text: &str) {
    write!(out, "<p>{}</p>", escape(text)).expect("strings grow");
}

fn summary(tables: &DatasetTables) -> String {
    let fit = &tables.regression.fit;
    let mut text = format!(
        "{} rows, adjusted R² {:.3}, Durbin-Watson {:.2}",
        fit.count, fit.adjusted_r_squared, tables.durbin_watson
    );
    if let Some(anova) = fit.anova {
        let (above, below) = (anova.regression_degrees, anova.residual_degrees);
        write!(text, ", F({above:.0}, {below:.0}) = {:.1} (p {})", anova.f, probability(anova.p))
            .expect("strings grow");
    }
    if let Some(variance) = tables.variance {
        let p = probability(variance.p);
        write!(text, ", Breusch-Pagan {:.1} (p {p})", variance.statistic).expect("strings grow");
    }
    text
}

/// Table 5 with intervals and variance inflation.
fn coefficients(out: &mut String, tables: &DatasetTables) {
    let row = |(index, estimate): (usize, &CoefficientEstimate)| {
        // The constant has no inflation.
        let inflation = index.checked_sub(1).and_then(|index| tables.inflation.get(index));
        let inflation = inflation.map_or_else(|| "–".to_owned(), |it| format!("{:.2}", it.factor));
        vec![
            estimate.name.clone(),
            digits(estimate.value),
            digits(estimate.standard_error),
            format!("{:.3}", estimate.t),
            probability(estimate.p),
            format!("{} to {}", digits(estimate.lower), digits(estimate.upper)),
            inflation,
        ]
    };
    let rows: Vec<_> = tables.regression.fit.coefficients.iter().enumerate().map(row).collect();
    let header = ["", "coefficient", "standard error", "t", "p", "95 % interval", "VIF"];
    table(out, &header, &[0], &rows);
}

fn probability(p: f64) -> String {
    if p < 0.000_5 { "< 0.001".to_owned() } else { format!("{p:.3}") }
}

/// A number with the digits that it needs, at most five: sums of steps have errors in their last
/// ones.
fn digits(value: f64) -> String {
    let rounded: f64 = format!("{value:.4e}").parse().expect("a number");
    let text = match rounded.abs() {
        size if size != 0.0 && !(1e-3..1e6).contains(&size) => format!("{rounded:e}"),
        _ => rounded.to_string(),
    };
    text.replace('-', "−")
}

/// The range of an axis on which all residuals are.
fn reach(residuals: &[f64]) -> f64 {
    1.05 * residuals.iter().fold(REACH_MIN, |reach, residual| reach.max(residual.abs()))
}

fn residuals_over_predicted(fit: &LinearFit) -> String {
    let residuals = standardised(fit);
    let ends = fit
        .fitted
        .iter()
        .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    let margin = 0.03 * (ends.1 - ends.0);
    let x = (ends.0 - margin, ends.1 + margin);
    let reach = reach(&residuals);
    let mut frame = PlotFrame::new(
        "Residuals over predicted rates",
        PlotAxis::linear_between("predicted rate in MB/s", x, digits),
        PlotAxis::linear_between(RESIDUAL, (-reach, reach), digits),
    );
    frame.line([(x.0, 0.0), (x.1, 0.0)].into_iter(), COLORS[1]);
    frame.dots(fit.fitted.iter().copied().zip(residuals), COLORS[0]);
    frame.finish()
}

fn quantile_plot(fit: &LinearFit) -> String {
    let points = quantile_points(fit);
    let residuals: Vec<f64> = points.iter().map(|point| point.residual).collect();
    let reach = reach(&residuals);
    // Quantiles ascend.
    let width = 1.05 * points.last().map_or(1.0, |point| point.normal);
    let mut frame = PlotFrame::new(
        "Normal Q-Q plot of residuals",
        PlotAxis::linear_between("quantile of the normal distribution", (-width, width), digits),
        PlotAxis::linear_between(RESIDUAL, (-reach, reach), digits),
    );
    let end = width.min(reach);
    frame.line([(-end, -end), (end, end)].into_iter(), COLORS[1]);
    frame.dots(points.iter().map(|point| (point.normal, point.residual)), COLORS[0]);
    frame.finish()
}

fn residual_histogram(fit: &LinearFit) -> String {
    let reach = reach(&standardised(fit));
    let counts = histogram(fit, BINS, reach);
    let width = 2.0 * reach / BINS as f64;
    let normal = |x: f64| {
        let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
        fit.count as f64 * width * density
    };
    let highest = counts.iter().map(|count| *count as f64).fold(normal(0.0), f64::max);
    let mut frame = PlotFrame::new(
        "Histogram of residuals",
        PlotAxis::linear_between(RESIDUAL, (-reach, reach), digits),
        PlotAxis::linear("rows", 1.05 * highest, digits),
    );
    let step = |(bin, count): (usize, &usize)| {
        let begin = width * bin as f64 - reach;
        [(begin, *count as f64), (begin + width, *count as f64)]
    };
    let ends = [(-reach, 0.0), (reach, 0.0)];
    let steps = counts.iter().enumerate().flat_map(step);
    frame.line(ends[..1].iter().copied().chain(steps).chain(ends[1..].iter().copied()), COLORS[0]);
    let x = |point| 2.0 * reach * f64::from(point) / f64::from(DENSITY_POINTS) - reach;
    frame.line((0..=DENSITY_POINTS).map(|point| (x(point), normal(x(point)))), COLORS[1]);
    frame.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_more_digits_than_they_need() {
        for (value, text) in [
            (0.0, "0"),
            (-2.0, "−2"),
            (0.1 + 0.2, "0.3"),
            (1_500.0, "1500"),
            (2e7, "2e7"),
            (6.430_61e-7, "6.4306e−7"),
        ] {
            assert_eq!(digits(value), text);
        }
    }
}
