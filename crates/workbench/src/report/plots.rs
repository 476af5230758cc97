// SPDX-License-Identifier: Apache-2.0
//! Plots: the figures of the report; each says which figure of MDWorkbench it redraws.

use crate::distribution::{LatencyDistribution, bucket_start};
use crate::operation::Operation;
use crate::pace::Pacing;
use crate::report::plot_frame::{PlotAxis, PlotFrame, draw, escape};
use crate::result::{PhaseResult, RankSummary};
use crate::summary::{duration, rate};

/// Colours that people with colour blindness tell apart (Okabe and Ito 2008).
pub const COLORS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c00"];

/// Outliers of a timeline that have a text.
const MARKED_MAX: usize = 40;

/// Smallest share that the tail of a distribution shows.
const TAIL_MIN: f64 = 1e-6;

/// Points of a density, equally far apart on the logarithmic axis.
const DENSITY_POINTS: usize = 160;

/// Half the width of the interval whose share a density shows, as a logarithm to base 10.
const DENSITY_HALF_WIDTH: f64 = 0.05;

/// Minimum number of operations for a timeline: fewer show only chance.
const TIMELINE_COUNT_MIN: usize = 10;

/// A distribution with its name and colour.
pub struct PlotSeries<'a> {
    /// The name in the legend.
    pub name: String,
    /// The latencies.
    pub latency: &'a LatencyDistribution,
    /// The colour.
    pub color: &'static str,
}

fn short_duration(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 999.5 => (ns, "ns"),
        ns if ns < 999.5e3 => (ns / 1e3, "µs"),
        ns if ns < 999.5e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{value:.0} {unit}")
}

fn latency_axis<'a>(all: impl Iterator<Item = &'a LatencyDistribution>) -> PlotAxis {
    let ends = all.filter(|latency| latency.count > 0);
    let ends = ends.flat_map(|latency| [latency.min_ns.max(1) as f64, latency.max_ns as f64]);
    PlotAxis::log("latency", ends, short_duration)
}

/// The densities of `series` over the logarithm of the latency (Figure 4 of the paper).
#[must_use]
pub fn density(title: &str, series: &[PlotSeries<'_>]) -> String {
    let x = latency_axis(series.iter().map(|series| series.latency));
    let curves: Vec<Vec<(f64, f64)>> =
        series.iter().map(|series| density_curve(series.latency, x.range)).collect();
    let high = curves.iter().flatten().map(|point| point.1).fold(0.0, f64::max);
    let y = PlotAxis::linear("share in a tenth of a decade", high * 1.05, percent);
    let mut frame = PlotFrame::new(title, x, y);
    for (curve, series) in curves.into_iter().zip(series) {
        frame.line(curve.into_iter(), series.color);
    }
    frame.finish()
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The share of latencies in a tenth of a decade around each of [`DENSITY_POINTS`].
fn density_curve(latency: &LatencyDistribution, (low, high): (f64, f64)) -> Vec<(f64, f64)> {
    let width = (high / low).ln() / (DENSITY_POINTS - 1) as f64;
    let ends = cumulative_shares(latency);
    let reach = 10f64.powf(DENSITY_HALF_WIDTH);
    let point = |index| {
        let at = low * (f64::from(index) * width).exp();
        (at, share_below(&ends, at * reach) - share_below(&ends, at / reach))
    };
    (0..DENSITY_POINTS as u32).map(point).collect()
}

/// The beginnings and ends of the buckets, each with the share of latencies below it.
fn cumulative_shares(latency: &LatencyDistribution) -> Vec<(f64, f64)> {
    let all = latency.count.max(1) as f64;
    let (mut ends, mut below) = (Vec::with_capacity(2 * latency.buckets.len()), 0);
    for &(last, count) in &latency.buckets {
        ends.push((bucket_start(last).max(1) as f64, below as f64 / all));
        below += count;
        ends.push((last.max(1) as f64 + 1.0, below as f64 / all));
    }
    ends
}

/// The share below `at`; inside a bucket latencies are taken to be evenly spread.
fn share_below(ends: &[(f64, f64)], at: f64) -> f64 {
    let after = ends.partition_point(|end| end.0 <= at);
    match (ends[..after].last(), ends.get(after)) {
        (Some(from), Some(to)) => from.1 + (to.1 - from.1) * (at - from.0) / (to.0 - from.0),
        (Some(last), None) => last.1,
        (None, _) => 0.0,
    }
}

/// The share of operations that take longer, on logarithmic axes.
#[must_use]
pub fn tail(title: &str, series: &[PlotSeries<'_>]) -> String {
    let x = latency_axis(series.iter().map(|series| series.latency));
    let smallest = series.iter().map(|series| 1.0 / series.latency.count.max(1) as f64);
    let smallest = smallest.fold(0.1, f64::min).max(TAIL_MIN);
    let y = PlotAxis::log("share that takes longer", [smallest, 1.0].into_iter(), tail_label);
    let mut frame = PlotFrame::new(title, x, y);
    for series in series.iter().filter(|series| series.latency.count > 0) {
        let all = series.latency.count as f64;
        let mut below = 0;
        let mut points = vec![(series.latency.min_ns.max(1) as f64, 1.0)];
        for &(last, count) in &series.latency.buckets {
            let before = 1.0 - below as f64 / all;
            below += count;
            points.push((last.min(series.latency.max_ns) as f64, before));
            points.push((last.min(series.latency.max_ns) as f64, 1.0 - below as f64 / all));
        }
        frame.line(points.into_iter(), series.color);
    }
    frame.finish()
}

fn tail_label(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 1.0 { format!("{percent:.0} %") } else { format!("{percent} %") }
}

/// Latencies over time (Figure 5 of the paper): a sample, and the slowest; `None` for few
/// operations.
#[must_use]
pub fn timeline(phase: &PhaseResult, operation: Operation, points_max: usize) -> Option<String> {
    let found = phase.operation(operation);
    let found = found.filter(|found| found.points.len() >= TIMELINE_COUNT_MIN)?;
    let (points, slowest) = (&found.points, &found.slowest);
    let sampled = points.iter().map(|point| (point.at_ns, point.latency_ns));
    let all = || sampled.clone().chain(slowest.iter().map(|slow| (slow.at_ns, slow.latency_ns)));
    let y = PlotAxis::log("latency", all().map(|point| point.1.max(1) as f64), short_duration);
    let end = all().map(|point| point.0).max().unwrap_or(1) as f64;
    let x = PlotAxis::linear("since the phase began", end, short_time);
    let mut frame = PlotFrame::new(&format!("{operation} over time"), x, y);
    let step = points.len().div_ceil(points_max.max(1)).max(1);
    let shown = points.iter().step_by(step);
    let shown = shown.map(|point| (point.at_ns as f64, point.latency_ns.max(1) as f64));
    frame.dots(shown, COLORS[0]);
    for slow in slowest.iter().take(MARKED_MAX) {
        let text =
            format!("{} by rank {}: {}", duration(slow.latency_ns as f64), slow.rank, slow.path);
        frame.marked_dot((slow.at_ns as f64, slow.latency_ns as f64), COLORS[1], &text);
    }
    Some(frame.finish())
}

fn short_time(ns: f64) -> String {
    if ns == 0.0 {
        return "0".to_owned();
    }
    let (value, unit) = match ns {
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let digits = usize::from(value.fract() > 0.01);
    format!("{value:.digits$} {unit}")
}

/// The 99th percentile of each rank and operation, as colours.
#[must_use]
pub fn heat_map(phase: &PhaseResult) -> String {
    const ROW: f64 = 26.0;
    const LEFT: f64 = 98.0;
    let operations: Vec<_> = phase.operations.iter().filter(|o| !o.ranks.is_empty()).collect();
    let ranks = operations.iter().map(|o| o.ranks.len()).max().unwrap_or(1).max(1);
    let (width, height) = (420.0, ROW * operations.len() as f64 + 46.0);
    let cell = (width - LEFT - 8.0) / ranks as f64;
    let mut svg =
        format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"p99 by rank\">");
    for (row, found) in operations.iter().enumerate() {
        let y = row as f64 * ROW;
        let middle = y + ROW / 2.0 + 4.0;
        let (low, high) = range(&found.ranks);
        draw(
            &mut svg,
            format_args!(
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                found.operation
            ),
        );
        for (column, rank) in found.ranks.iter().enumerate() {
            let heat = ((rank.p99_ns.max(1) as f64 / low).ln() / (high / low).ln().max(1e-9))
                .clamp(0.0, 1.0);
            // From pale to dark blue; the lightness alone carries the value, also in print.
            let lightness = 95.0 - 67.0 * heat;
            let x = LEFT + column as f64 * cell;
            let text = format!(
                "rank {}: p99 {}, p50 {}, max {}, {} calls",
                rank.rank,
                duration(rank.p99_ns as f64),
                duration(rank.p50_ns as f64),
                duration(rank.max_ns as f64),
                rank.count
            );
            draw(
                &mut svg,
                format_args!(
                    "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{cell:.2}\" height=\"{}\" \
                     fill=\"hsl(205 90% {lightness:.0}%)\"><title>{}</title></rect>",
                    ROW - 2.0,
                    escape(&text)
                ),
            );
        }
    }
    let y = ROW * operations.len() as f64 + 14.0;
    draw(
        &mut svg,
        format_args!(
            "<text x=\"{LEFT}\" y=\"{y}\">rank 0</text><text x=\"{}\" y=\"{y}\" \
             text-anchor=\"end\">rank {}</text><text x=\"{LEFT}\" y=\"{}\">each row from its \
             least p99 (pale) to its greatest</text></svg>",
            width - 8.0,
            ranks - 1,
            y + 18.0
        ),
    );
    svg
}

/// The range of the 99th percentiles of `ranks`, wide enough that noise does not look like heat.
fn range(ranks: &[RankSummary]) -> (f64, f64) {
    let values = ranks.iter().map(|rank| rank.p99_ns.max(1) as f64);
    let (low, high) =
        values.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    (low, high.max(low * 2.0))
}

/// Offered rate against response time, over all open loops with their repetitions; `None` if there
/// are fewer than two rates.
#[must_use]
pub fn saturation(phases: &[PhaseResult]) -> Option<String> {
    let mut loops: Vec<(f64, LatencyDistribution, LatencyDistribution)> = Vec::new();
    for phase in phases {
        let Pacing::Open { rate, .. } = phase.plan.pacing else { continue };
        if !loops.iter().any(|all| all.0 == rate) {
            loops.push((rate, LatencyDistribution::default(), LatencyDistribution::default()));
        }
        let all = loops.iter_mut().find(|all| all.0 == rate).expect("just pushed");
        for operation in &phase.operations {
            all.1.merge(&operation.service);
            all.2.merge(operation.latency());
        }
    }
    if loops.len() < 2 {
        return None;
    }
    loops.sort_by(|a, b| a.0.total_cmp(&b.0));
    let curves = [
        loops.iter().map(|all| (all.0, all.1.quantile_ns(0.5) as f64)).collect::<Vec<_>>(),
        loops.iter().map(|all| (all.0, all.2.quantile_ns(0.5) as f64)).collect(),
        loops.iter().map(|all| (all.0, all.2.quantile_ns(0.99) as f64)).collect(),
    ];
    let y = PlotAxis::log("latency", curves.iter().flatten().map(|point| point.1), short_duration);
    let high = loops.last().map_or(1.0, |last| last.0) * 1.05;
    let x = PlotAxis::linear("offered operations/s", high, rate);
    let mut frame = PlotFrame::new("rate against latency", x, y);
    for (curve, color) in curves.iter().zip(COLORS) {
        frame.line(curve.iter().copied(), color);
        for &point in curve {
            let text = format!("{}/s: {}", rate(point.0), duration(point.1));
            frame.marked_dot(point, color, &text);
        }
    }
    Some(frame.finish())
}
