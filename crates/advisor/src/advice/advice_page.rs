// SPDX-License-Identifier: Apache-2.0
//! Advice page: the advice as one HTML page, in the style of the workbench's pages: no script, no
//! network.

use std::fmt::Write;

use esker_workbench::report::STYLE;
use esker_workbench::report::plot_frame::escape;

use super::advice_text::{application, cautions, change_factor, reason_words, verdict};
use super::storage_advice::StorageAdvice;
use crate::features::TraceFeatures;
use crate::regressors::{LETTERS, value_of};

/// Width and height of a system's row in the plot of rates.
const ROW: [f64; 2] = [640.0, 34.0];

/// The beginning of the axis, right of the names.
const AXIS_BEGIN: f64 = 210.0;

/// Returns the page on the application in `name`.
#[must_use]
pub fn page(advice: &StorageAdvice, features: &TraceFeatures, name: &str) -> String {
    let title = escape(&format!("Storage for {name}"));
    let mut out = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1>\
         <p><b>{}</b></p><p>{}</p>",
        escape(&verdict(advice)),
        escape(&application(advice, features))
    );
    for caution in cautions(advice) {
        let _ = write!(out, "<p class=\"warning\">{}.</p>", escape(&caution));
    }
    if advice.is_simulated {
        out.push_str(
            "<p class=\"warning\">The model was fitted to simulated storage, not to measurements.</p>",
        );
    }
    out.push_str("<h2>Expected rates</h2>");
    rates_plot(&mut out, advice);
    rates_table(&mut out, advice);
    out.push_str("<h2>What separates the first two</h2>");
    list(
        &mut out,
        advice.reasons.iter().map(|reason| reason_words(reason.property, reason.factor)),
        "No property of the application does by 5 % or more.",
    );
    out.push_str("<h2>Changes of the application</h2>");
    list(
        &mut out,
        advice.changes.iter().map(|change| {
            let gain = change_factor(change.factor);
            let words = change.change.words();
            format!(
                "{words}: {gain} {:.0} MB/s on {}; {}",
                change.rate, change.system, change.command
            )
        }),
        "None is expected to gain 5 % or more.",
    );
    out.push_str("<h2>Variables</h2>");
    variables_table(&mut out, advice);
    out.push_str("</main></body></html>\n");
    out
}

/// Intervals as bars and predictions as dots, on one axis from 0.
fn rates_plot(out: &mut String, advice: &StorageAdvice) {
    let [width, height] = ROW;
    let highest = advice.rates.iter().map(|rate| rate.predicted.upper.max(rate.predicted.rate));
    let highest = highest.fold(f64::MIN_POSITIVE, f64::max);
    let x = |rate: f64| AXIS_BEGIN + rate / highest * (width - AXIS_BEGIN - 10.0);
    let total = height * advice.rates.len() as f64 + 20.0;
    let _ = write!(
        out,
        "<figure><figcaption>MB/s; a bar holds 90 % of runs</figcaption>\
         <svg viewBox=\"0 0 {width} {total}\" role=\"img\">"
    );
    for (index, rate) in advice.rates.iter().enumerate() {
        let middle = height * (index as f64 + 0.5);
        let [left, right, dot] =
            [rate.predicted.lower, rate.predicted.upper, rate.predicted.rate].map(x);
        let _ = write!(
            out,
            "<text x=\"0\" y=\"{:.1}\">{}</text><rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
             height=\"10\" fill=\"#9ecae1\"/><circle cx=\"{dot:.1}\" cy=\"{middle:.1}\" r=\"5\" \
             fill=\"#0072b2\"/>",
            middle + 4.0,
            escape(&rate.system),
            middle - 5.0,
            (right - left).max(0.0)
        );
    }
    let _ = write!(
        out,
        "<text x=\"{AXIS_BEGIN}\" y=\"{:.1}\">0</text><text x=\"{:.1}\" y=\"{:.1}\" \
         text-anchor=\"end\">{highest:.0}</text></svg></figure>",
        total - 4.0,
        width - 10.0,
        total - 4.0
    );
}

fn rates_table(out: &mut String, advice: &StorageAdvice) {
    out.push_str(
        "<div class=\"table\"><table><tr><th class=\"text\">system</th><th>MB/s</th><th>from</th>\
         <th>to</th><th class=\"text\">beyond what was measured</th></tr>",
    );
    for rate in &advice.rates {
        let _ = write!(
            out,
            "<tr><td class=\"text\">{}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td>\
             <td class=\"text\">{}</td></tr>",
            escape(&rate.system),
            rate.predicted.rate,
            rate.predicted.lower,
            rate.predicted.upper,
            rate.extrapolated.join(", ")
        );
    }
    out.push_str("</table></div>");
}

fn variables_table(out: &mut String, advice: &StorageAdvice) {
    out.push_str("<div class=\"table\"><table><tr>");
    for letter in LETTERS {
        let _ = write!(out, "<th>{letter}</th>");
    }
    out.push_str("</tr><tr>");
    for letter in LETTERS {
        let value = value_of(letter, &advice.variables).expect("a letter of Table 1");
        let _ = write!(out, "<td>{value}</td>");
    }
    out.push_str("</tr></table></div>");
}

fn list(out: &mut String, lines: impl ExactSizeIterator<Item = String>, none: &str) {
    if lines.len() == 0 {
        let _ = write!(out, "<p>{none}</p>");
        return;
    }
    out.push_str("<ul>");
    for line in lines {
        let _ = write!(out, "<li>{}</li>", escape(&line));
    }
    out.push_str("</ul>");
}
