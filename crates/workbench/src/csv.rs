// SPDX-License-Identifier: Apache-2.0
//! CSV: the table of a result, for spreadsheets and data frames.

use crate::result::RunResult;
use crate::result_table::{COLUMNS, TableCell, rows};

/// The result as CSV with a header. Latencies are response times in open loops.
#[must_use]
pub fn table(result: &RunResult) -> String {
    let mut out = COLUMNS.map(|(name, _)| name).join(",");
    out.push('\n');
    for row in rows(result) {
        out.push_str(&row.iter().map(cell).collect::<Vec<_>>().join(","));
        out.push('\n');
    }
    out
}

fn cell(cell: &TableCell) -> String {
    match cell {
        TableCell::Text(text) => quoted(text),
        TableCell::Integer(number) => number.to_string(),
        TableCell::Number(number) => number.to_string(),
        TableCell::Absent => String::new(),
    }
}

/// A field that may have commas, quotes or line ends.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
