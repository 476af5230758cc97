// SPDX-License-Identifier: Apache-2.0
//! Summary: a result as text on one screen.
//!
//! The first table has the columns of MDWorkbench's Table 2, the second those of its Table 1.

use std::fmt::Write;

use crate::distribution::LatencyDistribution;
use crate::io500::Io500Phase;
use crate::operation::Operation;
use crate::pace::Pacing;
use crate::result::{PhaseKind, PhaseResult, RunResult};

/// Quantiles of the table of latencies.
pub const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("Q3", 0.75), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// Formats nanoseconds with three significant digits, such as `1.23 ms`.
#[must_use]
pub fn duration(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 999.5 => (ns, "ns"),
        ns if ns < 999.5e3 => (ns / 1e3, "µs"),
        ns if ns < 999.5e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let digits = decimals(value);
    format!("{value:.digits$} {unit}")
}

/// Decimals with which a number below 1000 has three significant digits once it is rounded.
fn decimals(value: f64) -> usize {
    match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    }
}

/// Formats a rate with three significant digits, such as `12.3 k`.
#[must_use]
pub fn rate(per_second: f64) -> String {
    let (value, unit) = match per_second {
        0.0 => return "0".to_owned(),
        rate if rate < 999.5 => (rate, ""),
        rate if rate < 999.5e3 => (rate / 1e3, " k"),
        rate => (rate / 1e6, " M"),
    };
    let digits = decimals(value);
    format!("{value:.digits$}{unit}")
}

/// The result as text.
#[must_use]
pub fn text(result: &RunResult) -> String {
    let mut out = String::new();
    write_all(&mut out, result).expect("strings grow");
    out
}

fn write_all(out: &mut String, result: &RunResult) -> std::fmt::Result {
    let size = &result.options.size;
    writeln!(
        out,
        "{}: N={} D={} P={} I={} S={} O={}, {} on {}",
        result.label(),
        size.ranks,
        size.datasets,
        size.objects,
        size.iterations,
        size.object_bytes,
        size.rank_offset,
        result.backend,
        if result.environment.file_system.is_empty() {
            &result.environment.host
        } else {
            &result.environment.file_system
        },
    )?;
    if let Some(mix) = &result.options.mix {
        writeln!(out, "mix: {mix}")?;
    }
    write_phases(out, result)?;
    write_latencies(out, result)?;
    write_open_loops(out, result)?;
    write_creation_rates(out, result)?;
    write_io500(out, result)?;
    writeln!(
        out,
        "\nmeasuring costs {:.0} ns an operation ({:.0} ns to read the clock, {:.0} ns to record)",
        result.timer.operation_ns, result.timer.reading_ns, result.timer.recording_ns
    )?;
    result.warnings.iter().try_for_each(|warning| writeln!(out, "warning: {warning}"))
}

/// Table 2: rate, balance, slowest operation, third quartiles.
fn write_phases(out: &mut String, result: &RunResult) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:<24}{:>9}{:>10}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "phase",
        "ops/s",
        "creates/s",
        "balance",
        "op max",
        "Q3 read",
        "Q3 stat",
        "Q3 create",
        "Q3 delete"
    )?;
    for phase in &result.phases {
        let q3 = |operation| match phase.operation(operation) {
            Some(found) if found.latency().count > 0 => {
                duration(found.latency().quantile_ns(0.75) as f64)
            }
            _ => "-".to_owned(),
        };
        write!(
            out,
            "{:<24}{:>9}{:>10}{:>8.0}%{:>10}{:>10}{:>10}{:>10}{:>10}",
            phase.plan.to_string(),
            rate(phase.rate()),
            rate(phase.create_rate()),
            100.0 * phase.balance(),
            duration(phase.max_ns() as f64),
            q3(Operation::Read),
            q3(Operation::Stat),
            q3(Operation::Create),
            q3(Operation::Delete),
        )?;
        match phase.failed() {
            0 => writeln!(out)?,
            failed => writeln!(out, "  {failed} failed")?,
        }
    }
    Ok(())
}

fn write_latencies(out: &mut String, result: &RunResult) -> std::fmt::Result {
    let is_benchmark = |phase: &&PhaseResult| {
        use PhaseKind::{Benchmark, Mixed, ReadOnly};
        matches!(phase.plan.kind, Benchmark | ReadOnly | Mixed)
    };
    let Some(phase) = result.phases.iter().find(is_benchmark) else { return Ok(()) };
    write!(out, "\n{:<24}{:>10}", phase.plan.to_string(), "calls")?;
    QUANTILES.iter().try_for_each(|(name, _)| write!(out, "{name:>9}"))?;
    writeln!(out, "{:>9}", "max")?;
    for found in &phase.operations {
        let latency = found.latency();
        write!(out, "  {:<22}{:>10}", found.operation, latency.count)?;
        for (_, quantile) in QUANTILES {
            write!(out, "{:>9}", duration(latency.quantile_ns(quantile) as f64))?;
        }
        writeln!(out, "{:>9}", duration(latency.max_ns as f64))?;
    }
    Ok(())
}

/// The open loops: offered and reached rates, and the lateness of the workbench itself.
fn write_open_loops(out: &mut String, result: &RunResult) -> std::fmt::Result {
    let rows = open_loop_rows(result);
    if rows.is_empty() {
        return Ok(());
    }
    let line = |out: &mut String, cells: &[&str]| {
        write!(out, "{:<24}", cells[0])?;
        cells[1..].iter().try_for_each(|cell| write!(out, "{cell:>10}"))?;
        writeln!(out)
    };
    writeln!(out)?;
    line(out, &OPEN_LOOP_HEADER)?;
    rows.iter().try_for_each(|row| line(out, &row.each_ref().map(String::as_str)))
}

/// The header of [`open_loop_rows`].
pub const OPEN_LOOP_HEADER: [&str; 8] =
    ["open loop", "offered", "reached", "p50", "p99", "late p50", "late p99", "late"];

/// For each open loop: name, offered and reached rate, quantiles of the response time, quantiles of
/// the lateness of the workbench, and its share of all response times.
#[must_use]
pub fn open_loop_rows(result: &RunResult) -> Vec<[String; 8]> {
    let row = |phase: &PhaseResult| {
        let found = phase.open_loop()?;
        let quantile = |of: &LatencyDistribution, share| duration(of.quantile_ns(share) as f64);
        Some([
            phase.plan.to_string(),
            rate(found.offered_rate),
            rate(phase.rate()),
            quantile(&found.response, 0.5),
            quantile(&found.response, 0.99),
            quantile(&found.lateness, 0.5),
            quantile(&found.lateness, 0.99),
            format!("{:.1} %", 100.0 * found.late_share()),
        ])
    };
    result.phases.iter().filter_map(row).collect()
}

/// The phases of IO500 with their latencies, and the score.
fn write_io500(out: &mut String, result: &RunResult) -> std::fmt::Result {
    let rows = io500_rows(result);
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{:<24}{:>10}{:>10}{:>10}{:>10}", "IO500 phase", "kIOPS", "p50", "p99", "max")?;
    for [name, kiops, p50, p99, max] in rows {
        writeln!(out, "  {name:<22}{kiops:>10}{p50:>10}{p99:>10}{max:>10}")?;
    }
    match &result.io500 {
        Some(score) => {
            writeln!(out, "  {:<22}{:>10.3}\n{}", "score", score.metadata_kiops, score.meaning)
        }
        None => writeln!(out, "no score: a phase did nothing"),
    }
}

/// For each phase of IO500 that ran: name, thousands of operations per second, p50, p99, maximum.
#[must_use]
pub fn io500_rows(result: &RunResult) -> Vec<[String; 5]> {
    let row = |phase: Io500Phase| {
        let kind = PhaseKind::Io500(phase);
        let found = result.phases.iter().find(|found| found.plan.kind == kind)?;
        let latency = found.operations.first()?.latency();
        Some([
            phase.name().to_owned(),
            format!("{:.3}", found.rate() / 1e3),
            duration(latency.quantile_ns(0.5) as f64),
            duration(latency.quantile_ns(0.99) as f64),
            duration(latency.max_ns as f64),
        ])
    };
    Io500Phase::ALL.into_iter().filter_map(row).collect()
}

/// Table 1: creation rates, with the virtual rate of throttled phases.
fn write_creation_rates(out: &mut String, result: &RunResult) -> std::fmt::Result {
    let throttled = |phase: &PhaseResult| matches!(phase.plan.pacing, Pacing::Closed { waiting_factor } if waiting_factor > 0.0);
    if !result.phases.iter().any(throttled) {
        return Ok(());
    }
    writeln!(out, "\n{:<24}{:>12}{:>16}", "creates/s", "measured", "times 1 + T")?;
    for phase in result.phases.iter().filter(|phase| phase.create_rate() > 0.0) {
        let corrected = phase.create_rate() * phase.virtual_factor();
        let name = phase.plan.to_string();
        writeln!(out, "{name:<24}{:>12}{:>16}", rate(phase.create_rate()), rate(corrected))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_also_where_rounding_adds_one() {
        let durations = [9.994, 9.996, 99.94, 99.96, 999.4, 999.6, 999_960.0, 999.6e6, 1e9];
        let shown = durations.map(duration);
        assert_eq!(
            shown,
            [
                "9.99 ns", "10.0 ns", "99.9 ns", "100 ns", "999 ns", "1.00 µs", "1.00 ms",
                "1.00 s", "1.00 s"
            ]
        );
        let shown = [0.0, 9.996, 999.4, 999.6, 999_600.0].map(rate);
        assert_eq!(shown, ["0", "10.0", "999", "1.00 k", "1.00 M"]);
    }
}
