// SPDX-License-Identifier: Apache-2.0
//! Comparison: every number of the paper's tables and figures beside ours, as text.
//!
//! Each line says how the two compare. In tables, means and coefficients agree within a quarter;
//! correlations agree if both are significant and have the same sign, or if neither is significant.

use std::fmt::Write;

use super::contradictions::contradictions;
use super::figures::{PaperAgreement, base_variables, claims};
use super::printed_model::{APP2_PROCESSES, app2, predict};
use super::published::{HYPERDEX, PrintedCorrelation, PrintedSystem, SYSTEMS};
use super::tables::DatasetTables;
use crate::observation::StorageDevice;
use crate::regressors::value_of;
use crate::statistics::correlation::PearsonCorrelation;
use crate::statistics::least_squares::LinearFit;

/// The level below which a correlation counts.
const SIGNIFICANT_P_MAX: f64 = 0.05;

/// Characters of a line's subject.
const SUBJECT_WIDTH: usize = 55;

/// Returns the comparison of both systems; `tables` are those of the file system and of the
/// key-value store, `source` names their dataset.
#[must_use]
pub fn text(tables: &[DatasetTables; 2], source: &str) -> String {
    let mut out = String::new();
    let simulated = tables.iter().any(|table| table.is_simulated);
    line(
        &mut out,
        "Kougkas et al., Rethinking key-value store for parallel I/O optimization (2016)",
    );
    line(&mut out, &format!("Ours, Tables 2 to 5: {source}{}", marked(simulated)));
    line(&mut out, "Ours, figures: simulated systems (4 ms and 0.1 ms devices, gigabit Ethernet)");
    for (system, ours) in SYSTEMS.iter().zip(tables) {
        means(&mut out, system, ours);
    }
    for (system, ours) in SYSTEMS.iter().zip(tables) {
        group_lines(&mut out, system, ours);
    }
    for (system, ours) in SYSTEMS.iter().zip(tables) {
        correlation_lines(&mut out, system, ours);
    }
    for (system, ours) in SYSTEMS.iter().zip(tables) {
        coefficient_lines(&mut out, system, ours);
    }
    figure_lines(&mut out);
    app2_lines(&mut out, &tables[1]);
    line(&mut out, "\nWhere the paper contradicts itself");
    for contradiction in contradictions() {
        line(&mut out, &format!("  {}: {}", contradiction.place, contradiction.statement));
    }
    out
}

fn marked(simulated: bool) -> &'static str {
    if simulated { ", SIMULATED" } else { "" }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn heading(out: &mut String, text: &str) {
    let _ =
        writeln!(out, "\n{text:<width$}{:>18}{:>18}", "paper", "ours", width = SUBJECT_WIDTH + 2);
}

fn row(out: &mut String, subject: &str, printed: &str, ours: &str, remark: &str) {
    let _ = writeln!(out, "  {subject:<SUBJECT_WIDTH$}{printed:>18}{ours:>18}  {remark}");
}

/// A row of one printed number and ours, in MB/s.
fn rate_row(out: &mut String, subject: &str, printed: f64, ours: Option<f64>) {
    let (ours, remark) = match ours {
        Some(ours) => (format!("{ours:.2}"), PaperAgreement::of(ours, [printed, printed]).words()),
        None => ("-".into(), "no such rows"),
    };
    row(out, subject, &format!("{printed:.2}"), &ours, remark);
}

fn means(out: &mut String, system: &PrintedSystem, ours: &DatasetTables) {
    heading(out, &format!("Table 2, {}{}, MB/s", system.name, marked(ours.is_simulated)));
    rate_row(out, "mean", system.means.mean, Some(ours.means.mean));
    let (printed, deviation) = (system.means.standard_deviation, ours.means.standard_deviation);
    rate_row(out, "standard deviation", printed, Some(deviation));
    let (printed, error) = (system.means.standard_error, ours.means.standard_error);
    rate_row(out, "standard error of the mean", printed, Some(error));
    let rows = ours.means.count.to_string();
    row(out, "rows (paper: from deviation and error)", &system.rows().to_string(), &rows, "");
}

fn group_lines(out: &mut String, system: &PrintedSystem, ours: &DatasetTables) {
    heading(out, &format!("Table 3, {}{}, MB/s", system.name, marked(ours.is_simulated)));
    let printed = [
        ("a", 1, "contiguous", system.groups.access_pattern[0]),
        ("a", 2, "noncontiguous", system.groups.access_pattern[1]),
        ("d", 1, "HDD", system.groups.device[0]),
        ("d", 2, "SSD", system.groups.device[1]),
        ("m", 1, "1 metadata server", system.groups.metadata_servers[0]),
        ("m", 4, "4 metadata servers", system.groups.metadata_servers[1]),
    ];
    for (letter, category, subject, printed) in printed {
        let groups = ours.groups.iter().find(|(of, _)| *of == letter);
        let group =
            groups.and_then(|(_, means)| means.iter().find(|mean| mean.category == category));
        rate_row(out, subject, printed, group.map(|group| group.mean));
    }
    let subject = "same amount of metadata operations";
    rate_row(out, subject, system.groups.same_metadata, ours.many_metadata_mean);
}

fn correlation_lines(out: &mut String, system: &PrintedSystem, ours: &DatasetTables) {
    heading(out, &format!("Table 4, {}{}, r (p)", system.name, marked(ours.is_simulated)));
    for printed in system.correlations {
        let of_letter = ours.correlations.iter().find(|(letter, _)| *letter == printed.letter);
        let subject = variable_name(printed.letter);
        let cell = format!("{:.3} ({:.3})", printed.r, printed.p);
        match of_letter {
            Some((_, found)) => {
                let ours = format!("{:.3} ({:.3})", found.r, found.p);
                row(out, &subject, &cell, &ours, correlation_words(&printed, found));
            }
            None => row(out, &subject, &cell, "-", "constant in ours"),
        }
    }
}

fn correlation_words(printed: &PrintedCorrelation, ours: &PearsonCorrelation) -> &'static str {
    let counts = [printed.p <= SIGNIFICANT_P_MAX, ours.p <= SIGNIFICANT_P_MAX];
    match counts {
        [true, true] if printed.r * ours.r > 0.0 => "agrees: significant, same sign",
        [false, false] => "agrees: neither is significant",
        [true, true] => "differs: other sign",
        [true, false] => "differs: ours is not significant",
        [false, true] => "differs: only ours is significant",
    }
}

fn variable_name(letter: &str) -> String {
    let name = match letter {
        "" => return "constant".into(),
        "s" => "servers",
        "m" => "metadata servers",
        "c" => "clients",
        "a" => "access pattern",
        "g" => "gap in bytes",
        "r" => "request bytes",
        "p" => "processes",
        "R" => "input bytes of a process",
        "d" => "storage device",
        "A" => "unaligned bytes",
        "M" => "metadata operations",
        _ => "",
    };
    format!("{letter}  {name}")
}

fn coefficient_lines(out: &mut String, system: &PrintedSystem, ours: &DatasetTables) {
    let simulated = marked(ours.is_simulated);
    heading(out, &format!("Table 5, {}{simulated}, coefficient (error)", system.name));
    let fit = &ours.regression.fit;
    for letter in std::iter::once("").chain(crate::regressors::LETTERS) {
        let printed = system.coefficients.iter().find(|printed| printed.letter == letter);
        let name =
            if letter.is_empty() { crate::statistics::least_squares::CONSTANT } else { letter };
        let found = fit.coefficient(name);
        let excluded = || "excluded".to_owned();
        let cell = printed.map_or_else(excluded, |it| short(it.value, it.standard_error));
        let own = found.map_or_else(excluded, |it| short(it.value, it.standard_error));
        let remark = match (printed, found) {
            (Some(printed), Some(found)) if printed.value * found.value > 0.0 => {
                "both keep it, same sign".into()
            }
            (Some(_), Some(_)) => "both keep it, other sign".into(),
            (None, None) => "both exclude it".into(),
            (Some(_), None) => "only the paper keeps it".into(),
            (None, Some(found)) => format!("only ours keeps it, p = {:.3}", found.p),
        };
        row(out, &variable_name(letter), &cell, &own, &remark);
    }
    let adjusted = format!("{:.3}", fit.adjusted_r_squared);
    let remark = PaperAgreement::of(
        fit.adjusted_r_squared,
        [system.adjusted_r_squared, system.adjusted_r_squared],
    );
    let printed = format!("{:.3}", system.adjusted_r_squared);
    row(out, "adjusted R²", &printed, &adjusted, remark.words());
    let p = fit.anova.map_or_else(|| "-".into(), |anova| format!("{:.3}", anova.p));
    row(out, "p of the analysis of variance", "0.000", &p, "");
    let diagnostics = diagnostics(ours);
    line(out, &format!("  ours only: {diagnostics}"));
}

fn diagnostics(ours: &DatasetTables) -> String {
    let largest = ours.inflation.iter().max_by(|left, right| left.factor.total_cmp(&right.factor));
    let mut text = format!("Durbin-Watson {:.2}", ours.durbin_watson);
    if let Some(largest) = largest {
        let _ = write!(text, ", largest VIF {:.2} ({})", largest.factor, largest.name);
    }
    if let Some(variance) = ours.variance {
        let _ = write!(text, ", Breusch-Pagan {:.1} (p {:.3})", variance.statistic, variance.p);
    }
    text
}

/// A coefficient and its error with four digits.
fn short(value: f64, error: f64) -> String {
    match value.abs() >= 0.01 {
        true => format!("{value:.3} ({error:.3})"),
        false => format!("{value:.1e} ({error:.0e})"),
    }
}

fn figure_lines(out: &mut String) {
    heading(out, "Figures, SIMULATED");
    for claim in claims() {
        let [from, to] = claim.printed;
        let printed = match from == to {
            true => format!("{from:.0}"),
            false => format!("{from:.0} to {to:.0}"),
        };
        let subject = format!("{:>3} {}", claim.figure, claim.subject);
        let ours = format!("{:.0}", claim.simulated);
        row(out, &subject, &printed, &ours, claim.agreement.words());
    }
}

/// Figure 15: HyperDex's rates for App2 by the printed model and by the model of our dataset.
fn app2_lines(out: &mut String, ours: &DatasetTables) {
    heading(out, &format!("Figure 15, App2 on HyperDex{}, MB/s", marked(ours.is_simulated)));
    for device in [StorageDevice::Hdd, StorageDevice::Ssd] {
        for processes in APP2_PROCESSES {
            let variables = app2(processes, device, &base_variables());
            let name = if device == StorageDevice::Hdd { "HDD" } else { "SSD" };
            let subject = format!("predicted, {processes} processes, {name}");
            let own = predict_own(&ours.regression.fit, |letter| value_of(letter, &variables));
            rate_row(out, &subject, predict(&HYPERDEX, &variables), own);
        }
    }
    line(
        out,
        "  OrangeFS's model needs g, R and M of App2, which the paper does not print; ours takes \
         the unprinted\n  variables from Table 1's example. Measured rates are only in the figure.",
    );
}

fn predict_own(fit: &LinearFit, value: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let values = fit.coefficients[1..].iter().map(|coefficient| value(&coefficient.name));
    Some(fit.predict(&values.collect::<Option<Vec<f64>>>()?))
}
