// SPDX-License-Identifier: Apache-2.0
//! Report: results as one HTML page that opens from disk, without a script or a network.
//!
//! Plots are inline SVG, drawn here. A page has bounded size: timelines share [`POINTS_MAX`]
//! points.

pub mod paper;
pub mod plot_frame;
pub mod plots;

use self::plot_frame::{draw, escape};
use self::plots::{COLORS, PlotSeries};
use crate::compare::{ComparedFigure, compare, left_out};
use crate::operation::Operation;
use crate::pace::Pacing;
use crate::result::{PhaseKind, PhaseResult, RunResult};
use crate::summary::{OPEN_LOOP_HEADER, QUANTILES, duration, io500_rows, open_loop_rows, rate};

/// Points of all timelines of a page, of about ten bytes each.
const POINTS_MAX: usize = 150_000;

/// Points of one timeline: more only hide each other.
const TIMELINE_POINTS_MAX: usize = 4_000;

/// Lines of one plot that a reader can tell apart.
const SERIES_MAX: usize = COLORS.len();

/// Maximum number of results that a page compares figure by figure at its top. With more of them,
/// the table of phases and the distributions come first, and the reader unfolds the comparisons.
const COMPARED_FIRST_MAX: usize = 2;

/// Operations that a density needs to show more than chance.
const DENSITY_COUNT_MIN: u64 = 100;

/// Rows of the table of the slowest operations.
const SLOWEST_ROWS: usize = 12;

/// The colours of a timeline.
const TIMELINE_LEGEND: [&str; 2] = ["a sample", "the slowest"];

/// The style of pages, for the `style` element.
pub const STYLE: &str = include_str!("style.css");

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
    let has_many = results.len() > COMPARED_FIRST_MAX;
    if !has_many {
        comparisons(&mut out, results);
    }
    results.iter().for_each(|result| io500(&mut out, result));
    overview(&mut out, results);
    results.iter().for_each(|result| open_loops(&mut out, result));
    for result in results {
        if let Some(svg) = plots::saturation(&result.phases) {
            let title = titled(result, "saturation");
            let legend = ["service p50", "response p50", "response p99"].map(str::to_owned);
            draw(&mut out, format_args!("<h2>{}</h2><div class=\"plots\">", escape(&title)));
            figure(&mut out, "Rate against latency", &legend, &svg);
            out.push_str("</div>");
        }
    }
    distributions(&mut out, results);
    if has_many {
        comparisons(&mut out, results);
    }
    for result in results {
        ranks_and_timelines(&mut out, result, results.len());
    }
    results.iter().for_each(|result| quantiles(&mut out, result));
    results.iter().for_each(|result| slowest(&mut out, result));
    results.iter().for_each(|result| environment(&mut out, result));
    out.push_str("</main></body></html>\n");
    out
}

/// The title of a part of the page that is about one result; the label may be `null:`.
fn titled(result: &RunResult, what: &str) -> String {
    format!("{}: {what}", result.label().trim_end_matches(':'))
}

/// Writes a plot with its title, and the colours of several series.
pub fn figure(out: &mut String, title: &str, legend: &[String], svg: &str) {
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

/// Writes a table; the columns `texts` have words, the others numbers.
pub fn table(out: &mut String, header: &[&str], texts: &[usize], rows: &[Vec<String>]) {
    let class = |column: usize| if texts.contains(&column) { " class=\"text\"" } else { "" };
    out.push_str("<div class=\"table\"><table><thead><tr>");
    for (column, cell) in header.iter().enumerate() {
        draw(out, format_args!("<th{}>{}</th>", class(column), escape(cell)));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            draw(out, format_args!("<td{}>{}</td>", class(column), escape(cell)));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn comparisons(out: &mut String, results: &[RunResult]) {
    let Some((base, others)) = results.split_first() else { return };
    for other in others {
        let (first, second) = (escape(base.label()), escape(other.label()));
        let is_folded = results.len() > COMPARED_FIRST_MAX;
        let heading = format!("{second} compared with {first}");
        match is_folded {
            true => draw(out, format_args!("<details><summary>{heading}</summary>")),
            false => draw(out, format_args!("<h2>{heading}</h2>")),
        }
        // The verdict comes before the numbers, so that it is in sight on a phone.
        let row = |figure: &ComparedFigure| {
            let cells = compared_row(figure);
            [0, 1, 6, 4, 5, 2, 3].map(|column| cells[column].clone()).into()
        };
        let rows: Vec<Vec<String>> = compare(base, other).iter().map(row).collect();
        if rows.is_empty() {
            out.push_str("<p>The runs have no phase in common.</p>");
        } else {
            let (base, other) = (base.label(), other.label());
            let header = ["phase", "figure", "verdict", "ratio", "95 % interval", base, other];
            table(out, &header, &[0, 1, 2], &rows);
            out.push_str(
                "<p>Intervals: bootstrap over repetitions and ranks, widened for few repetitions. A \
                 phase that ran once gets no verdict: use --repeat 3 or more.</p>",
            );
        }
        let alone = left_out(base, other);
        let alone: Vec<String> =
            alone.iter().map(|(label, phase)| escape(&format!("{phase} of {label}"))).collect();
        if !alone.is_empty() {
            let alone = alone.join(", ");
            draw(out, format_args!("<p>Not compared, since the other run has none: {alone}.</p>"));
        }
        if is_folded {
            out.push_str("</details>");
        }
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
    let title = titled(result, "metadata phases of IO500");
    draw(out, format_args!("<h2>{}</h2>", escape(&title)));
    table(out, &["phase", "kIOPS", "p50", "p99", "max"], &[0], &rows);
    if let Some(score) = &result.io500 {
        let (kiops, meaning) = (score.metadata_kiops, escape(&score.meaning));
        draw(out, format_args!("<p><b>Score: {kiops:.3} kIOPS.</b> {meaning}</p>"));
    }
}

/// The paper's Tables 1 and 2 in one.
fn overview(out: &mut String, results: &[RunResult]) {
    out.push_str("<h2>Phases</h2>");
    for result in results {
        let size = &result.options.size;
        let parameters = format!(
            "N={} D={} P={} I={} S={} O={}",
            size.ranks,
            size.datasets,
            size.objects,
            size.iterations,
            size.object_bytes,
            size.rank_offset
        );
        draw(out, format_args!("<p>{}</p>", escape(&titled(result, &parameters))));
    }
    out.push_str(
        "<p>N: ranks, D: datasets a rank, P: objects a dataset, I: iterations, S: bytes an object, \
         O: offset in ranks.</p>",
    );
    let has_waits = results.iter().flat_map(|result| &result.phases).any(|phase| {
        matches!(phase.plan.pacing, Pacing::Closed { waiting_factor } if waiting_factor > 0.0)
    });
    let mut header = vec!["phase", "iterations", "ops/s", "creates/s"];
    header.extend(has_waits.then_some("× (1 + T)"));
    header.extend(["balance", "op max", "Q3 read", "Q3 stat", "Q3 create", "Q3 delete", "failed"]);
    let row = |phase: &PhaseResult| {
        let q3 = |operation| match phase.operation(operation) {
            Some(found) if found.latency().count > 0 => {
                duration(found.latency().quantile_ns(0.75) as f64)
            }
            _ => "–".to_owned(),
        };
        let iterations = match phase.iterations {
            0 => "–".to_owned(),
            iterations => iterations.to_string(),
        };
        let mut row = vec![phase.plan.to_string(), iterations];
        row.extend([rate(phase.rate()), rate(phase.create_rate())]);
        row.extend(has_waits.then(|| rate(phase.create_rate() * phase.virtual_factor())));
        row.push(format!("{:.1} %", 100.0 * phase.balance()));
        row.push(duration(phase.max_ns() as f64));
        row.extend([Operation::Read, Operation::Stat].map(q3));
        row.extend([Operation::Create, Operation::Delete].map(q3));
        row.push(phase.failed().to_string());
        row
    };
    let has_others = results.len() > 1;
    if has_others {
        header.insert(0, "run");
    }
    let mut rows = Vec::new();
    for result in results {
        for phase in &result.phases {
            let label = has_others.then(|| result.label().to_owned());
            rows.push(label.into_iter().chain(row(phase)).collect());
        }
    }
    table(out, &header, if has_others { &[0, 1] } else { &[0] }, &rows);
    for result in results {
        for warning in &result.warnings {
            let warning = escape(&titled(result, warning));
            draw(out, format_args!("<p class=\"warning\">{warning}</p>"));
        }
    }
}

/// The offered and reached rates of open loops, and the lateness of the workbench itself.
fn open_loops(out: &mut String, result: &RunResult) {
    let rows: Vec<Vec<String>> = open_loop_rows(result).into_iter().map(Vec::from).collect();
    if rows.is_empty() {
        return;
    }
    draw(out, format_args!("<h2>{}</h2>", escape(&titled(result, "open loops"))));
    table(out, &OPEN_LOOP_HEADER, &[0], &rows);
    out.push_str(
        "<p>Response times (p50, p99) count from the time at which a call should have begun. Late is \
         the part of them that neither the service nor the queue in front of it causes: the workbench \
         began the call later than it could have. The last column is its share of all response \
         times.</p>",
    );
}

/// Densities and tails: one plot per operation, with phases and runs as lines.
fn distributions(out: &mut String, results: &[RunResult]) {
    let has_many = results.len() > COMPARED_FIRST_MAX;
    out.push_str("<h2>Distributions</h2><div class=\"pairs\">");
    // With many runs a plot leaves out the phases around the benchmark, so that each run has one
    // line.
    let is_around =
        |phase: &PhaseResult| matches!(phase.plan.kind, PhaseKind::Precreate | PhaseKind::Cleanup);
    let lines: Vec<(&RunResult, &PhaseResult)> = results
        .iter()
        .flat_map(|result| result.groups().into_iter().map(move |group| (result, group[0])))
        .filter(|(_, phase)| !(has_many && is_around(phase)))
        .collect();
    for operation in Operation::ALL {
        let mut series = Vec::new();
        for (line, (result, phase)) in lines.iter().enumerate() {
            let Some(found) = phase.operation(operation) else { continue };
            let is_open = matches!(phase.plan.pacing, Pacing::Open { .. });
            let has_few = result.phases.len() <= SERIES_MAX;
            let is_shown = found.latency().count >= DENSITY_COUNT_MIN && (has_few || !is_open);
            if !is_shown || series.len() == SERIES_MAX {
                continue;
            }
            let phase = phase.plan.name();
            let name = match results.len() {
                1 => phase,
                _ => format!("{}, {phase}", result.label()),
            };
            // A line has one colour on the whole page, if there are enough.
            let color = COLORS[if lines.len() <= SERIES_MAX { line } else { series.len() }];
            series.push(PlotSeries { name, latency: found.latency(), color });
        }
        if series.is_empty() {
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
        let title = titled(result, &phase.plan.name());
        draw(out, format_args!("<h2>{}</h2><div class=\"plots\">", escape(&title)));
        for operation in Operation::ALL {
            if let Some(svg) = plots::timeline(phase, operation, points) {
                let title = format!("Timeline of {operation}");
                figure(out, &title, &TIMELINE_LEGEND.map(str::to_owned), &svg);
            }
        }
        figure(out, "99th percentile by rank", &[], &plots::heat_map(phase));
        out.push_str("</div>");
    }
}

fn quantiles(out: &mut String, result: &RunResult) {
    draw(out, format_args!("<h2>{}</h2>", escape(&titled(result, "quantiles"))));
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
    table(out, &header, &[0, 1], &rows);
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
    draw(out, format_args!("<h2>{}</h2>", escape(&titled(result, "slowest operations"))));
    let header = ["latency", "operation", "phase", "began after", "rank", "object"];
    table(out, &header, &[1, 2, 5], &rows);
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
    draw(out, format_args!("<h2>{}</h2>", escape(&titled(result, "environment"))));
    let stated = rows.into_iter().filter(|(_, value)| !value.is_empty());
    let rows: Vec<_> = stated.map(|(name, value)| vec![name.to_owned(), value]).collect();
    table(out, &["", ""], &[0, 1], &rows);
}
