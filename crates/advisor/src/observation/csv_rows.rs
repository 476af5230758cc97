// SPDX-License-Identifier: Apache-2.0
//! CSV rows: observations as CSV, with the header [`COLUMNS`]: docs/format/advisor-observations.md.
//!
//! A reader accepts the columns in any order and ignores columns that it does not know. Bytes that
//! are no such table give `Corrupt` with the line.

use csv::StringRecord;
use esker_base::{Error, Kind, Result};

use super::Observation;
use super::row_fields::{COLUMNS, RowFields, fields, is_optional};

/// The longest file that a reader accepts: ten million rows of typical length.
pub const CSV_BYTES_MAX: usize = 1 << 30;

/// Returns the observations as CSV with a header line.
#[must_use]
pub fn write_csv(observations: &[Observation]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let written = writer.write_record(COLUMNS).and_then(|()| {
        observations.iter().try_for_each(|observation| writer.write_record(fields(observation)))
    });
    written.expect("memory takes every row, and every row has all columns");
    let bytes = writer.into_inner().expect("memory takes the last rows");
    String::from_utf8(bytes).expect("fields are text, and CSV of text is text")
}

/// Reads observations; `name` is that of the file, for errors.
///
/// # Errors
/// `TooLarge` if the file is over [`CSV_BYTES_MAX`]; `Corrupt`, with the line, if a column is
/// missing or appears twice, or a field is not a value of its column.
pub fn read_csv(name: &str, bytes: &[u8]) -> Result<Vec<Observation>> {
    if bytes.len() > CSV_BYTES_MAX {
        let message = format!("{name}: {} bytes, at most {CSV_BYTES_MAX} are read", bytes.len());
        return Err(Error::new(Kind::TooLarge, message));
    }
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(bytes);
    let headers = reader.headers().map_err(|error| unreadable(name, &error))?.clone();
    let columns = column_indices(name, &headers)?;
    let mut observations = Vec::new();
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| unreadable(name, &error))? {
        let line = record.position().map_or(0, csv::Position::line);
        // Every record has as many fields as the header.
        let row = RowFields(columns.map(|index| index.map_or("", |index| &record[index])));
        let observation = row.observation().map_err(|problem| corrupt(name, line, &problem))?;
        observation.validate().map_err(|error| corrupt(name, line, error.context()))?;
        observations.push(observation);
    }
    Ok(observations)
}

/// The places of [`COLUMNS`] in the header; none for those that a table may lack.
fn column_indices(name: &str, headers: &StringRecord) -> Result<[Option<usize>; COLUMNS.len()]> {
    let mut indices = [None; COLUMNS.len()];
    for (index, column) in indices.iter_mut().zip(COLUMNS) {
        let mut found = headers.iter().enumerate().filter(|(_, header)| *header == column);
        *index = match (found.next(), found.next()) {
            (Some((index, _)), None) => Some(index),
            (None, _) if is_optional(column) => None,
            (None, _) => return Err(corrupt(name, 1, &format!("no column `{column}`"))),
            (Some(_), Some(_)) => {
                return Err(corrupt(name, 1, &format!("two columns `{column}`")));
            }
        };
    }
    Ok(indices)
}

fn unreadable(name: &str, error: &csv::Error) -> Error {
    let line = error.position().map_or(1, csv::Position::line);
    corrupt(name, line, &error.to_string())
}

fn corrupt(name: &str, line: u64, problem: &str) -> Error {
    Error::new(Kind::Corrupt, format!("{name}, line {line}: {problem}"))
}
