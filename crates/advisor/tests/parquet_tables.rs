// SPDX-License-Identifier: Apache-2.0
//! Tables of Parquet: rows of observations and back, tables of pyarrow, truncation and changes of
//! every byte, rows with no value or several.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use esker_advisor::observation::{
    Observation, read_csv, read_parquet_rows, write_csv, write_parquet_rows,
};
use esker_advisor::parquet_table::{ColumnValues, ParquetTable, write_parquet};
use esker_base::{Kind, Result};
use parquet::data_type::Int32Type;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::observations::example;

const ROWS: &[u8] = include_bytes!("data/rows.parquet");

const RECORDER: &[u8] = include_bytes!("data/recorder-3.parquet");

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).expect("a file");
    file
}

fn read_rows(file: File) -> Result<Vec<Observation>> {
    read_parquet_rows(&ParquetTable::open(file, "rows")?, "rows")
}

#[test]
fn rows_are_read_as_they_were_written() {
    let mut rows: Vec<Observation> = (0..20_000)
        .map(|repetition| Observation {
            repetition,
            microseconds: f64::from(repetition) / 7.0 + 1e-3,
            ..example()
        })
        .collect();
    rows[7].emulated.device = true;
    rows[8].system = "größer, \"quoted\"".to_owned();
    rows[9].variables.gap_bytes = i64::MAX as u64;
    let file = write_parquet_rows(tempfile::tempfile().expect("a file"), &rows, "rows");
    assert_eq!(read_rows(file.expect("rows")).expect("rows"), rows);
    let none = write_parquet_rows(tempfile::tempfile().expect("a file"), &[], "rows");
    assert_eq!(read_rows(none.expect("no rows")).expect("no rows"), []);

    rows[9].variables.gap_bytes += 1;
    let error = write_parquet_rows(Vec::new(), &rows, "rows").expect_err("too large");
    assert!(error.kind() == Kind::TooLarge && error.context().contains("gap_bytes"), "{error}");
}

#[test]
fn rows_of_pyarrow_are_read() {
    // The table has none of the columns that one may lack.
    let first = Observation { target: String::new(), transfers: None, ..example() };
    let mut second = write_csv(&[first]);
    second.push_str(
        "tile,tile-4,hyperdex,2,1,4,4,8,2,4096,65536,4,1048576,1,512,48,1234.5,device+time,,\n",
    );
    let expected = read_csv("rows", second.as_bytes()).expect("rows");
    assert_eq!(read_rows(file_of(ROWS)).expect("rows"), expected);
}

#[test]
fn rows_that_are_none_are_refused_with_their_number() {
    let mut rows = vec![example(), example()];
    rows[1].variables.processes = 0;
    let file = write_parquet_rows(tempfile::tempfile().expect("a file"), &rows, "rows");
    let error = read_rows(file.expect("rows")).expect_err("no processes");
    assert_eq!(error.kind(), Kind::Corrupt);
    assert_eq!(error.context(), "rows, row 1: processes is 0, must be > 0");
}

#[test]
fn tables_cut_anywhere_are_refused() {
    for table in [ROWS, RECORDER] {
        for end in 0..table.len() {
            let error = ParquetTable::open(file_of(&table[..end]), "cut").err();
            let error = error.unwrap_or_else(|| panic!("cut at {end}"));
            assert_eq!(error.kind(), Kind::Corrupt, "cut at {end}: {error}");
        }
    }
}

#[test]
fn tables_with_any_byte_changed_do_no_harm() {
    let columns = ["rank", "tstart", "func_id", "args_1", "args_4"];
    let mut refused = 0;
    for table in [ROWS, RECORDER] {
        let mut bytes = table.to_vec();
        for at in 0..bytes.len() {
            let original = bytes[at];
            for changed in [original ^ 0xff, original.wrapping_add(1), 0] {
                bytes[at] = changed;
                let opened = ParquetTable::open(file_of(&bytes), "changed");
                let read = opened.and_then(|opened| match opened.has_column("rank") {
                    true => opened.read(&columns, |_| Ok(())),
                    false => read_parquet_rows(&opened, "changed").map(drop),
                });
                if let Err(error) = read {
                    let kinds = [Kind::Corrupt, Kind::TooLarge];
                    assert!(kinds.contains(&error.kind()), "byte {at}: {error}");
                    refused += 1;
                }
            }
            bytes[at] = original;
        }
    }
    assert!(refused > 1_000, "{refused}");
}

/// A table with a repeated column of integers.
fn repeated(values: &[i32], definitions: &[i16], repetitions: &[i16]) -> ParquetTable {
    let schema = parse_message_type("message schema { repeated int32 a; }").expect("a schema");
    let mut file = tempfile::tempfile().expect("a file");
    let writer = SerializedFileWriter::new(&mut file, Arc::new(schema), Arc::default());
    let mut writer = writer.expect("a file");
    let mut group = writer.next_row_group().expect("a group");
    let mut column = group.next_column().expect("a column").expect("one column");
    let written =
        column.typed::<Int32Type>().write_batch(values, Some(definitions), Some(repetitions));
    written.expect("memory");
    column.close().expect("memory");
    group.close().expect("memory");
    writer.close().expect("a file");
    ParquetTable::open(file, "table").expect("a table")
}

#[test]
fn rows_have_one_value_in_each_column() {
    let read = |table: &ParquetTable| -> Result<Vec<i64>> {
        let mut found = Vec::new();
        table.read(&["a"], |batch| {
            found.extend((0..batch.rows()).filter_map(|row| batch.columns[0].int(row)));
            Ok(())
        })?;
        Ok(found)
    };
    assert_eq!(read(&repeated(&[5, 6], &[1, 1], &[0, 0])).expect("one each"), [5, 6]);
    for (values, definitions, repetitions) in [
        (&[5, 6, 7][..], &[1, 1, 1][..], &[0, 1, 0][..]),
        (&[5], &[1, 0], &[0, 0]),
        (&[], &[0, 0], &[0, 0]),
    ] {
        let error = read(&repeated(values, definitions, repetitions)).expect_err("not one each");
        assert_eq!(error.kind(), Kind::Corrupt);
        let expected = "column `a` has not one value for each row";
        assert!(error.context().contains(expected), "{error}");
    }
    let text = ("a", ColumnValues::Texts(vec!["x".into()]));
    let file = write_parquet(tempfile::tempfile().expect("a file"), &[text], "table");
    let table = ParquetTable::open(file.expect("a table"), "table").expect("a table");
    assert!(read(&table).expect("no integers").is_empty());
    let error = table.read(&["b"], |_| Ok(())).expect_err("no column");
    assert!(error.context().contains("no column `b`"), "{error}");
}
