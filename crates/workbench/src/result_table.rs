// SPDX-License-Identifier: Apache-2.0
//! Result table: one row per phase and operation, which CSV, Parquet and Arrow files hold alike.
//! Invariant: a row has a cell for each of [`COLUMNS`], of its type.

use crate::pace::Pacing;
use crate::result::{OperationResult, PhaseResult, RunResult};

/// The type of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// Words.
    Text,
    /// Counts and nanoseconds.
    Integer,
    /// Fractions.
    Number,
    /// Fractions that some phases do not have.
    OptionalNumber,
    /// Nanoseconds that some phases do not have.
    OptionalInteger,
}

impl ColumnType {
    /// True if cells of the column may be absent.
    #[must_use]
    pub const fn is_optional(self) -> bool {
        matches!(self, Self::OptionalNumber | Self::OptionalInteger)
    }
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub enum TableCell {
    /// Words.
    Text(String),
    /// A count or nanoseconds.
    Integer(u64),
    /// A fraction.
    Number(f64),
    /// Nothing.
    Absent,
}

/// The names and types of the columns.
pub const COLUMNS: [(&str, ColumnType); 34] = [
    ("label", ColumnType::Text),
    ("backend", ColumnType::Text),
    ("target", ColumnType::Text),
    ("ranks", ColumnType::Integer),
    ("datasets", ColumnType::Integer),
    ("objects", ColumnType::Integer),
    ("iterations", ColumnType::Integer),
    ("object_bytes", ColumnType::Integer),
    ("rank_offset", ColumnType::Integer),
    ("phase", ColumnType::Text),
    ("repetition", ColumnType::Integer),
    ("waiting_factor", ColumnType::OptionalNumber),
    ("offered_rate", ColumnType::OptionalNumber),
    ("seconds", ColumnType::Number),
    ("balance", ColumnType::Number),
    ("operation", ColumnType::Text),
    ("count", ColumnType::Integer),
    ("failed", ColumnType::Integer),
    ("rate", ColumnType::Number),
    ("mean_ns", ColumnType::Number),
    ("min_ns", ColumnType::Integer),
    ("p25_ns", ColumnType::Integer),
    ("p50_ns", ColumnType::Integer),
    ("p75_ns", ColumnType::Integer),
    ("p90_ns", ColumnType::Integer),
    ("p99_ns", ColumnType::Integer),
    ("p999_ns", ColumnType::Integer),
    ("p9999_ns", ColumnType::Integer),
    ("max_ns", ColumnType::Integer),
    ("service_p50_ns", ColumnType::Integer),
    ("service_p99_ns", ColumnType::Integer),
    ("late_p50_ns", ColumnType::OptionalInteger),
    ("late_p99_ns", ColumnType::OptionalInteger),
    ("late_max_ns", ColumnType::OptionalInteger),
];

const QUANTILES: [f64; 7] = [0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999];

/// The rows of `result`. Latencies are response times in open loops.
#[must_use]
pub fn rows(result: &RunResult) -> Vec<Vec<TableCell>> {
    let phases = result.phases.iter();
    let pairs = phases.flat_map(|phase| phase.operations.iter().map(move |found| (phase, found)));
    pairs.map(|(phase, found)| row(result, phase, found)).collect()
}

fn row(result: &RunResult, phase: &PhaseResult, found: &OperationResult) -> Vec<TableCell> {
    use TableCell::{Absent, Integer, Number, Text};
    let (size, latency) = (&result.options.size, found.latency());
    let text = |text: &str| Text(text.to_owned());
    let mut row = vec![text(result.label()), text(&result.backend), text(&result.target)];
    let parameters = [
        u64::from(size.ranks),
        u64::from(size.datasets),
        size.objects,
        size.iterations,
        size.object_bytes,
        u64::from(size.rank_offset),
    ];
    row.extend(parameters.map(Integer));
    row.extend([Text(phase.plan.name()), Integer(u64::from(phase.plan.repetition))]);
    row.extend(match phase.plan.pacing {
        Pacing::Closed { waiting_factor } => [Number(waiting_factor), Absent],
        Pacing::Open { rate, .. } => [Absent, Number(rate)],
    });
    row.extend([phase.seconds, phase.balance()].map(Number));
    row.extend([text(found.operation.name()), Integer(latency.count), Integer(found.failed())]);
    let rate = latency.count as f64 / phase.seconds.max(1e-9);
    row.extend([rate, latency.mean_ns()].map(Number));
    row.push(Integer(latency.min_ns));
    row.extend(QUANTILES.map(|quantile| Integer(latency.quantile_ns(quantile))));
    row.push(Integer(latency.max_ns));
    row.extend([0.5, 0.99].map(|quantile| Integer(found.service.quantile_ns(quantile))));
    row.extend([0.5, 0.99, 1.0].map(|quantile| match &found.lateness {
        Some(lateness) => Integer(lateness.quantile_ns(quantile)),
        None => Absent,
    }));
    row
}
