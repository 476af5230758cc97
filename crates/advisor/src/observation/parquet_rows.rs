// SPDX-License-Identifier: Apache-2.0
//! Parquet rows: observations as a table of Parquet, with the columns of the CSV:
//! docs/format/advisor-observations.md.
//!
//! Numbers are integers of 64 bits, the time is a double, and the rest UTF-8. A reader takes any
//! integers and floats, as Python and R write them.

use std::io::Write;

use esker_base::{Error, Kind, Result};
use parquet::data_type::ByteArray;

use super::Observation;
use super::csv_rows::CSV_BYTES_MAX;
use super::row_fields::{COLUMNS, RowFields, fields, is_optional};
use crate::parquet_table::{ColumnValues, ParquetTable, write_parquet};

/// Columns of text.
const TEXT_COLUMNS: [&str; 6] = ["workload", "case", "system", "emulated", "transfers", "target"];

/// The most bytes of text that a reader accepts, as in CSV.
const TEXT_BYTES_MAX: usize = CSV_BYTES_MAX;

/// The most rows that a reader accepts.
const ROWS_MAX: usize = 10_000_000;

/// Writes `observations` to `output`, which errors name `object`.
///
/// # Errors
/// `TooLarge` for a number over 2^63 - 1; as the output answers.
pub fn write_parquet_rows<W: Write + Send>(
    output: W,
    observations: &[Observation],
    object: &str,
) -> Result<W> {
    let rows: Vec<[String; COLUMNS.len()]> = observations.iter().map(fields).collect();
    let mut columns = Vec::new();
    for (index, column) in COLUMNS.into_iter().enumerate() {
        let texts = rows.iter().map(|row| row[index].as_str());
        let values = if TEXT_COLUMNS.contains(&column) {
            ColumnValues::Texts(texts.map(ByteArray::from).collect())
        } else if column == "time_us" {
            let numbers = texts.map(|text| text.parse().expect("a number is its own text"));
            ColumnValues::Floats(numbers.collect())
        } else {
            let too_large = |text| {
                Error::new(
                    Kind::TooLarge,
                    format!("{object}: {column} is {text}, which Parquet has no integer for"),
                )
            };
            let integers = texts.map(|text| text.parse().map_err(|_| too_large(text)));
            ColumnValues::Ints(integers.collect::<Result<_>>()?)
        };
        columns.push((column, values));
    }
    write_parquet(output, &columns, object)
}

/// Reads the observations of `table`, which errors name `object`.
///
/// # Errors
/// `TooLarge` if there are more than ten million, or over a gibibyte of text; `Corrupt`, with the
/// row, if a column is missing or a field is not a value of its column; as the file system answers.
pub fn read_parquet_rows(table: &ParquetTable, object: &str) -> Result<Vec<Observation>> {
    let mut observations = Vec::new();
    let columns: Vec<&str> = COLUMNS
        .into_iter()
        .filter(|column| !is_optional(column) || table.has_column(column))
        .collect();
    let mut text_bytes = 0_usize;
    let places = COLUMNS.map(|column| columns.iter().position(|found| *found == column));
    table.read(&columns, |batch| {
        if observations.len() + batch.rows() > ROWS_MAX {
            let what = format!("{object}: more than {ROWS_MAX} rows");
            return Err(Error::new(Kind::TooLarge, what));
        }
        // An entry of a dictionary may be the text of every row.
        text_bytes += batch.columns.iter().map(ColumnValues::text_bytes).sum::<usize>();
        if text_bytes > TEXT_BYTES_MAX {
            let what = format!("{object}: texts of more than {TEXT_BYTES_MAX} bytes");
            return Err(Error::new(Kind::TooLarge, what));
        }
        for row in 0..batch.rows() {
            let number = batch.first_row + row as u64;
            let corrupt =
                |what: &str| Error::new(Kind::Corrupt, format!("{object}, row {number}: {what}"));
            let texts = batch.columns.iter().map(|column| field_text(column, row));
            let texts: Vec<String> =
                texts.collect::<Option<_>>().ok_or_else(|| corrupt("not UTF-8"))?;
            let text = |place: Option<usize>| place.map_or("", |place| texts[place].as_str());
            let fields = RowFields(places.map(text));
            let observation = fields.observation().map_err(|problem| corrupt(&problem))?;
            observation.validate().map_err(|error| corrupt(error.context()))?;
            observations.push(observation);
        }
        Ok(())
    })?;
    Ok(observations)
}

fn field_text(column: &ColumnValues, row: usize) -> Option<String> {
    match column {
        ColumnValues::Ints(values) => values.get(row).map(i64::to_string),
        // A whole number has no fraction in its text.
        ColumnValues::Floats(values) => values.get(row).map(f64::to_string),
        ColumnValues::Texts(_) => column.text(row).map(str::to_owned),
    }
}
