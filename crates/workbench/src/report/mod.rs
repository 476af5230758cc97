// SPDX-License-Identifier: Apache-2.0
//! Report: results as one HTML page that opens from disk, without a script or a network.
//!
//! Plots are inline SVG, drawn here. A page has bounded size: timelines share [`POINTS_MAX`] points.

pub mod paper;
pub mod plot_frame;
pub mod plots;

use self::plot_frame::{draw, escape};
use self::plots::{COLORS, PlotSeries};
use crate::compare::{ComparedFigure, compare};
use crate::operation::Operation;
use crate::pace::Pacing;
use crate::result::{PhaseResult, RunResult};
use crate::summary::{OPEN_LOOP_HEADER, QUANTILES, duration, io500_rows, open_loop_rows, rate};

/// Points of all timelines of a page, of about ten bytes each.
const POINTS_MAX: usize = 150_000;

/// Points of one timeline: more only hide each other.
const TIMELINE_POINTS_MAX: usize = 4_000;

/// Lines of one plot that a reader can tell apart.
const SERIES_MAX: usize = COLORS.len();

/// Operations that a density needs to show more than chance.
const DENSITY_COUNT_MIN: u64 = 100;

/// Rows of the table of the slowest operations.
const SLOWEST_ROWS: usize = 12;

const STYLE: &str = include_str!("style.css");

/// The page for one result, or for several side by side; the first is the base of comparisons.
#[must_use]
pub fn page(results: &[RunResult]) -> String {
    let labels: Vec<&str> = results.iter().map(RunResult::label).collect();
    let title = format!("Metadata latency: {}", labels.join(", "));
    let title = escape(&title);
    let mut out = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1>"
    );
    comparisons(&mut out, results);
    results.iter().for_each(|result| io500(&mut out, result));
    overview(&mut out, results);
    results.iter().for_each(|result| open_loops(&mut out, result));
    for result in results {
        if let Some(svg) = plots::saturation(&result.phases) {
            let title = format!("Saturation: {}", result.label());
            let legend = ["service p50", "response p50", "response p99"].map(str::to_owned);
            draw(&mut out, format_args!("<h2>{}</h2><div class=\"plots\">", escape(&title)));
            figure(&mut out, "Rate against latency", &legend, &svg);
            out.push_str("</div>");
        }
    }
    distributions(&mut out, results);
    for result in results {
        ranks_and_timelines(&mut out, result, results.len());
    }
    results.iter().for_each(|result| quantiles(&mut out, result));
    results.iter().for_each(|result| slowest(&mut out, result));
    results.iter().for_each(|result| environment(&mut out, result));
    out.push_str("</main></body></html>\n");
    out
}

fn figure(out: &mut String, title: &str, legend: &[String], svg: &str) {
    draw(out, format_args!("<figure><figcaption>{}", escape(title)));
    if legend.len() > 1 {
        out.push_str("<span class=\"legend\">");
        for (name, color) in legend.iter().zip(COLORS) {
            let name = escape(name);
            draw(out, format_args!("<span><i style=\"background:{color}\"></i>{name}</span>"));
        }
        out.push_str("</span>");
    }
    draw(out, format_args!("</figcaption>{svg}</figure>"));
}

fn table(out: &mut String, header: &[&str], rows: &[Vec<String>]) {
    out.push_str("<div class=\"table\"><table><thead><tr>");
    header.iter().for_each(|cell| draw(out, format_args!("<th>{}</th>", escape(cell))));
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        row.iter().for_each(|cell| draw(out, format_args!("<td>{}</td>", escape(cell))));
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn comparisons(out: &mut String, results: &[RunResult]) {
    let Some((base, others)) = results.split_first() else { return };
    for other in others {
        let (first, second) = (escape(base.label()), escape(other.label()));
        draw(out, format_args!("<h2>{second} compared with {first}</h2>"));
        let rows: Vec<Vec<String>> = compare(base, other).iter().map(compared_row).collect();
        if rows.is_empty() {
            out.push_str("<p>The runs have no phase in common.</p>");
            continue;
        }
        let header =
            ["phase", "figure", base.label(), other.label(), "ratio", "95 % interval", "verdict"];
        table(out, &header, &rows);
        out.push_str(
            "<p>Intervals: bootstrap over repetitions and ranks, widened for few repetitions. A phase \
             that ran once gets no verdict: use --repeat 3 or more.</p>",
        );
    }
}

/// A compared figure as the cells of a row.
#[must_use]
pub fn compared_row(figure: &ComparedFigure) -> Vec<String> {
    let show = |value: f64| match figure.figure == "rate" {
        true => format!("{}/s", rate(value)),
        false => duration(value),
    };
    let (low, high) = figure.interval;
    let interval = if high == f64::MAX {
        "-".to_owned()
    } else {
        format!("{} to {}", ratio(low), ratio(high))
    };
    vec![
        figure.phase.clone(),
        figure.figure.clone(),
        show(figure.first),
        show(figure.second),
        ratio(figure.ratio),
        interval,
        figure.verdict.to_string(),
    ]
}

/// A ratio with three significant digits, as far as they are worth reading.
fn ratio(value: f64) -> String {
    match value {
        value if !(0.001..1e4).contains(&value) => format!("{value:.0e}"),
        value if value < 0.1 => format!("{value:.4}"),
        value if value < 10.0 => format!("{value:.2}"),
        value => format!("{value:.0}"),
    }
}

/// The phases and the score of IO500.
fn io500(out: &mut String, result: &RunResult) {
    let rows: Vec<Vec<String>> = io500_rows(result).into_iter().map(Vec::from).collect();
    if rows.is_empty() {
        return;
    }
    let title = format!("{}: metadata phases of IO500", result.label());
    draw(out, format_args!("<h2>{}</h2>", escape(&title)));
    table(out, &["phase", "kIOPS", "p50", "p99", "max"], &rows);
    if let Some(score) = &result.io500 {
        let (kiops, meaning) = (score.metadata_kiops, escape(&score.meaning));
        draw(out, format_args!("<p><b>Score: {kiops:.3} kIOPS.</b> {meaning}</p>"));
    }
}

/// The paper's Tables 1 and 2 in one.
fn overview(out: &mut String, results: &[RunResult]) {
    out.push_str("<h2>Phases</h2>");
    let mut rows = Vec::new();
    for result in results {
        for phase in &result.phases {
            let size = &result.options.size;
            let q3 = |operation| match phase.operation(operation) {
                Some(found) if found.latency().count > 0 => {
                    duration(found.latency().quantile_ns(0.75) as f64)
                }
                _ => "–".to_owned(),
            };
            let mut row = vec![result.label().to_owned(), phase.plan.to_string()];
            row.extend([size.ranks.to_string(), size.datasets.to_string()]);
            row.extend([phase.iterations.to_string(), size.objects.to_string()]);
            row.extend([rate(phase.rate()), rate(phase.create_rate())]);
            row.push(rate(phase.create_rate() * phase.virtual_factor()));
            row.push(format!("{:.1} %", 100.0 * phase.balance()));
            row.push(duration(phase.max_ns() as f64));
            row.extend([Operation::Read, Operation::Stat].map(q3));
            row.extend([Operation::Create, Operation::Delete].map(q3));
            row.push(phase.failed().to_string());
            rows.push(row);
        }
    }
    let header = [
        "run",
        "phase",
        "N",
        "D",
        "I",
        "P",
        "ops/s",
        "creates/s",
        "× (1 + T)",
        "balance",
        "op max",
        "Q3 read",
        "Q3 stat",
        "Q3 create",
        "Q3 delete",
        "failed",
    ];
    table(out, &header, &rows);
    for result in results {
        for warning in &result.warnings {
            let (label, warning) = (escape(result.label()), escape(warning));
            draw(out, format_args!("<p class=\"warning\">{label}: {warning}</p>"));
        }
    }
}

/// What open loops offered and reached, and how late the workbench itself was.
fn open_loops(out: &mut String, result: &RunResult) {
    let rows: Vec<Vec<String>> = open_loop_rows(result).into_iter().map(Vec::from).collect();
    if rows.is_empty() {
        return;
    }
    draw(out, format_args!("<h2>{}: open loops</h2>", escape(result.label())));
    table(out, &OPEN_LOOP_HEADER, &rows);
    out.push_str(
        "<p>Response times (p50, p99) count from the time at which a call should have begun. Late is \
         the part of them that neither the service nor the queue in front of it causes: the workbench \
         began the call later than it could have. The last column is its share of all response \
         times.</p>",
    );
}

/// Densities and tails: one plot per operation, with phases and runs as lines.
fn distributions(out: &mut String, results: &[RunResult]) {
    out.push_str("<h2>Distributions</h2><div class=\"plots\">");
    for operation in Operation::ALL {
        let mut series = Vec::new();
        for result in results {
            for group in result.groups() {
                let Some(found) = group[0].operation(operation) else { continue };
                let is_open = matches!(group[0].plan.pacing, Pacing::Open { .. });
                let has_few = result.phases.len() <= SERIES_MAX;
                if found.latency().count == 0 || is_open && !has_few || series.len() == SERIES_MAX {
                    continue;
                }
                let phase = group[0].plan.name();
                let name = match results.len() {
                    1 => phase,
                    _ => format!("{}, {phase}", result.label()),
                };
                let color = COLORS[series.len()];
                series.push(PlotSeries { name, latency: found.latency(), color });
            }
        }
        let most = series.iter().map(|series| series.latency.count).max().unwrap_or(0);
        if most < DENSITY_COUNT_MIN {
            continue;
        }
        let legend: Vec<String> = series.iter().map(|series| series.name.clone()).collect();
        let title = format!("Density of {operation}");
        figure(out, &title, &legend, &plots::density(&title, &series));
        let title = format!("Tail of {operation}");
        figure(out, &title, &legend, &plots::tail(&title, &series));
    }
    out.push_str("</div>");
}

fn ranks_and_timelines(out: &mut String, result: &RunResult, results: usize) {
    let groups = result.groups();
    let plots: usize = groups.iter().map(|group| group[0].operations.len()).sum();
    let points = (POINTS_MAX / results / plots.max(1)).min(TIMELINE_POINTS_MAX);
    for group in groups {
        let phase: &PhaseResult = group[0];
        let title = format!("{}: {}", result.label(), phase.plan.name());
        draw(out, format_args!("<h2>{}</h2><div class=\"plots\">", escape(&title)));
        for operation in Operation::ALL {
            if let Some(svg) = plots::timeline(phase, operation, points) {
                figure(out, &format!("Timeline of {operation}"), &[], &svg);
            }
        }
        figure(out, "99th percentile by rank", &[], &plots::heat_map(phase));
        out.push_str("</div>");
    }
}

fn quantiles(out: &mut String, result: &RunResult) {
    draw(out, format_args!("<h2>{}: quantiles</h2>", escape(result.label())));
    let mut rows = Vec::new();
    for phase in &result.phases {
        for found in phase.operations.iter().filter(|found| found.latency().count > 0) {
            let latency = found.latency();
            let mut row = vec![phase.plan.to_string(), found.operation.to_string()];
            row.push(latency.count.to_string());
            row.push(duration(latency.mean_ns()));
            let quantile = |(_, share): (&str, f64)| duration(latency.quantile_ns(share) as f64);
            row.extend(QUANTILES.map(quantile));
            row.push(duration(latency.max_ns as f64));
            rows.push(row);
        }
    }
    let mut header = vec!["phase", "operation", "calls", "mean"];
    header.extend(QUANTILES.map(|(name, _)| name));
    header.push("max");
    table(out, &header, &rows);
}

fn slowest(out: &mut String, result: &RunResult) {
    let mut all: Vec<_> = result
        .phases
        .iter()
        .flat_map(|phase| phase.operations.iter().map(move |operation| (phase, operation)))
        .flat_map(|(phase, o)| o.slowest.iter().map(move |slow| (slow, phase, o.operation)))
        .collect();
    all.sort_by(|a, b| b.0.cmp(a.0));
    let row =
        |(slow, phase, operation): &(&crate::slowest::SlowOperation, &PhaseResult, Operation)| {
            vec![
                duration(slow.latency_ns as f64),
                operation.to_string(),
                phase.plan.to_string(),
                duration(slow.at_ns as f64),
                slow.rank.to_string(),
                slow.path.clone(),
            ]
        };
    let rows: Vec<Vec<String>> = all.iter().take(SLOWEST_ROWS).map(row).collect();
    draw(out, format_args!("<h2>{}: slowest operations</h2>", escape(result.label())));
    table(out, &["latency", "operation", "phase", "began after", "rank", "object"], &rows);
}

fn environment(out: &mut String, result: &RunResult) {
    let of = &result.environment;
    let rows = [
        ("target", format!("{} ({})", result.target, result.backend)),
        ("file system", format!("{} at {}", of.file_system, of.mount)),
        ("service", of.service.clone()),
        ("mix", result.options.mix.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("host", format!("{}, {}", of.host, of.kernel)),
        ("processors", format!("{} × {}", of.processors, of.cpu)),
        ("memory", format!("{} MiB", of.memory_bytes >> 20)),
        ("load", format!("{} before, {} after", of.load_before, of.load_after)),
        ("stolen, idle", format!("{:.1} %, {:.1} %", of.steal_percent, of.idle_percent)),
        ("cost of measuring", format!("{:.0} ns an operation", result.timer.operation_ns)),
        ("program", result.program.clone()),
    ];
    draw(out, format_args!("<h2>{}: environment</h2>", escape(result.label())));
    let stated = rows.into_iter().filter(|(_, value)| !value.is_empty());
    let rows: Vec<_> = stated.map(|(name, value)| vec![name.to_owned(), value]).collect();
    table(out, &["", ""], &rows);
}
