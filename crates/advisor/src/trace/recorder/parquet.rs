// SPDX-License-Identifier: Apache-2.0
//! Parquet: the calls in a table of `recorder2parquet`, of version 3 of Recorder.
//!
//! Each argument has a column of its own, so paths with blanks are whole. Times are seconds in floats
//! of 32 bits: after 1,000 seconds, they are 61 µs apart. Calls that begin at the same time keep the
//! order of their rows. Source: uiuc-hpc/Recorder, tools/recorder2parquet.cpp.

use std::fmt::Display;

use esker_base::{Error, Kind, Result};

use super::call::RecorderCall;
use crate::parquet_table::{ParquetTable, RowBatch};

/// The columns of a call before its arguments.
const CALL_COLUMNS: [&str; 5] = ["rank", "tstart", "tend", "func_id", "arg_count"];

/// The columns of arguments.
const ARGUMENT_COLUMNS: [&str; 10] = [
    "args_1", "args_2", "args_3", "args_4", "args_5", "args_6", "args_7", "args_8", "args_9",
    "args_10",
];

/// Reads the calls of `rank` in `table`, which errors name `object`. The error that `take` gets says
/// that a call is none that Recorder writes.
///
/// # Errors
/// `Corrupt`, with the row, for a table that is not of `recorder2parquet` or has calls of another
/// rank; as `take` and the file system answer.
pub fn read_parquet(
    table: &ParquetTable,
    rank: u32,
    object: &str,
    mut take: impl FnMut(&RecorderCall<'_>, &dyn Fn() -> Error) -> Result<()>,
) -> Result<()> {
    let columns: Vec<&str> = CALL_COLUMNS.into_iter().chain(ARGUMENT_COLUMNS).collect();
    table.read(&columns, |batch| {
        for row in 0..batch.rows() {
            let number = batch.first_row + row as u64;
            let corrupt = |what: &dyn Display| {
                Error::new(Kind::Corrupt, format!("{object}, row {number}: {what}"))
            };
            let wrong = || corrupt(&"no call as `recorder2parquet` writes it");
            let of_rank = batch.columns[0].int(row).ok_or_else(wrong)?;
            if of_rank != i64::from(rank) {
                let what = format!("a call of rank {of_rank} in the table of rank {rank}");
                return Err(corrupt(&format!("{what}; the name says the rank, as in 0.parquet")));
            }
            take(&call(batch, row).ok_or_else(wrong)?, &wrong)?;
        }
        Ok(())
    })
}

fn call(batch: &RowBatch, row: usize) -> Option<RecorderCall<'_>> {
    let [_, begin, end, function, count, arguments @ ..] = &batch.columns[..] else { return None };
    let count = usize::try_from(count.int(row)?).ok()?.min(arguments.len());
    let arguments = arguments[..count].iter().map(|argument| argument.text(row));
    let (begin_ns, end_ns) = (nanoseconds(begin.float(row)?)?, nanoseconds(end.float(row)?)?);
    let arguments = arguments.collect::<Option<Vec<_>>>()?;
    let function = function.text(row)?;
    (begin_ns <= end_ns).then_some(RecorderCall {
        begin_ns,
        end_ns,
        result: None,
        function,
        arguments,
    })
}

fn nanoseconds(seconds: f64) -> Option<u64> {
    let nanoseconds = (seconds * 1e9).round();
    (0.0..i64::MAX as f64).contains(&nanoseconds).then_some(nanoseconds as u64)
}
