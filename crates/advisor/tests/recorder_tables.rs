// SPDX-License-Identifier: Apache-2.0
//! Tables of Recorder: calls as in its text, tables of pyarrow, other ranks and other tables.
//!
//! No table of a real job was to be had: these have the columns that `recorder2parquet.cpp` declares,
//! repeated ones among them.

use std::fs::File;
use std::io::{Seek, Write};
use std::sync::Arc;

use esker_advisor::parquet_table::{ColumnValues, ParquetTable, write_parquet};
use esker_advisor::trace::recorder::RecorderImport;
use esker_advisor::trace::{ImportSummary, TraceOperation};
use esker_base::{Kind, Result};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, FloatType, Int32Type};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use crate::recorder_texts::{Call, NEW, calls_of, import};

/// A call: begin, end, function and arguments.
type Row = (f32, f32, String, Vec<String>);

/// The calls of a text of version 3.
fn rows(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let (head, arguments) = line.split_once(" ( ").expect("a call");
        let words: Vec<&str> = head.split(' ').collect();
        let arguments = arguments.trim_end_matches(')').replace("/s/a b", "/s/a\0b");
        let arguments = arguments.split_whitespace().map(|word| word.replace('\0', " ")).collect();
        let [begin, end] = [words[0], words[1]].map(|word| word.parse().expect("seconds"));
        (begin, end, words[2].to_owned(), arguments)
    };
    text.lines().map(row).collect()
}

/// Writes a column whose repetition and definition level is 1 or, if optional, whose definition is.
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, &mut File>,
    values: &[T::T],
    repetitions: Option<&[i16]>,
) {
    let mut column = group.next_column().expect("a column").expect("as many as in the schema");
    let definitions = vec![1; values.len()];
    let typed = column.typed::<T>();
    typed.write_batch(values, Some(&definitions), repetitions).expect("memory");
    column.close().expect("memory");
}

/// A table with the columns of `recorder2parquet`.
fn table(rank: i32, rows: &[Row]) -> ParquetTable {
    let arguments: String =
        (1..=10).map(|number| format!("optional binary args_{number} (UTF8);")).collect();
    let schema = format!(
        "message schema {{ repeated int32 rank; repeated int32 thread_id; repeated float tstart; \
         repeated float tend; optional binary func_id (UTF8); repeated int32 arg_count; \
         {arguments} }}"
    );
    let schema = Arc::new(parse_message_type(&schema).expect("a schema"));
    let mut file = tempfile::tempfile().expect("a file");
    let mut writer = SerializedFileWriter::new(&mut file, schema, Arc::default()).expect("a file");
    for rows in rows.chunks(8) {
        let mut group = writer.next_row_group().expect("a group");
        let repetitions = vec![0; rows.len()];
        let ints = |value: fn(&Row) -> i32| rows.iter().map(value).collect::<Vec<_>>();
        let floats = |value: fn(&Row) -> f32| rows.iter().map(value).collect::<Vec<_>>();
        column::<Int32Type>(&mut group, &vec![rank; rows.len()], Some(&repetitions));
        column::<Int32Type>(&mut group, &ints(|_| 9), Some(&repetitions));
        column::<FloatType>(&mut group, &floats(|row| row.0), Some(&repetitions));
        column::<FloatType>(&mut group, &floats(|row| row.1), Some(&repetitions));
        let functions: Vec<_> = rows.iter().map(|row| ByteArray::from(&row.2[..])).collect();
        column::<ByteArrayType>(&mut group, &functions, None);
        column::<Int32Type>(&mut group, &ints(|row| row.3.len() as i32), Some(&repetitions));
        for number in 0..10 {
            let argument = |row: &Row| row.3.get(number).map_or("", String::as_str).into();
            let arguments: Vec<ByteArray> = rows.iter().map(argument).collect();
            column::<ByteArrayType>(&mut group, &arguments, None);
        }
        group.close().expect("memory");
    }
    writer.close().expect("a file");
    file.rewind().expect("a file");
    ParquetTable::open(file, "table").expect("a table")
}

fn import_tables(tables: &[(u32, ParquetTable)]) -> Result<(Vec<Call>, ImportSummary)> {
    let mut import = RecorderImport::new(Vec::new(), "job", &[])?;
    tables.iter().try_for_each(|(rank, table)| import.add_parquet(*rank, table, "table"))?;
    let (trace, summary) = import.finish()?;
    Ok((calls_of(&trace), summary))
}

#[test]
fn tables_have_the_calls_of_the_text() {
    let (trace, of_text) = import(&[NEW, NEW]).expect("texts");
    let tables = [0, 1].map(|rank| (rank, table(rank as i32, &rows(NEW))));
    let (found, summary) = import_tables(&tables).expect("tables");
    assert_eq!(found, calls_of(&trace));
    assert_eq!(summary, of_text);
    assert!(found.iter().any(|call| call.1 == "/s/a b"));
}

#[test]
fn paths_with_blanks_are_renamed() {
    // The text does not say where the first path ends.
    let names = ["/s/old name".to_owned(), "/s/new name".to_owned()];
    let renames = vec![(0.5, 0.75, "rename".to_owned(), names.to_vec())];
    let (found, summary) = import_tables(&[(0, table(0, &renames))]).expect("a table");
    let paths: Vec<_> = found.iter().map(|call| (call.0, call.1.as_str())).collect();
    assert_eq!(
        paths,
        [(TraceOperation::Rename, "/s/old name"), (TraceOperation::RenameTarget, "/s/new name")]
    );
    assert_eq!(summary.incomplete, 0);
}

#[test]
fn tables_of_pyarrow_are_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/recorder-3.parquet");
    let table = ParquetTable::open(File::open(path).expect("a file"), path).expect("a table");
    let (found, _) = import_tables(&[(0, table)]).expect("a table");
    let found: Vec<_> = found.iter().map(|call| (call.0, call.2, call.3)).collect();
    let expected = [
        (TraceOperation::Create, 0, 0),
        (TraceOperation::Write, 0, 100),
        (TraceOperation::Write, 4_096, 10),
        (TraceOperation::Barrier, 0, 0),
        (TraceOperation::Close, 0, 0),
    ];
    assert_eq!(found, expected);
}

#[test]
fn other_tables_are_refused_with_the_place() {
    let refused = |table: ParquetTable, expected: &str| {
        let error = import_tables(&[(0, table)]).expect_err(expected);
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        assert!(error.context().contains(expected), "{error}");
    };
    refused(table(3, &rows(NEW)), "table, row 0: a call of rank 3 in the table of rank 0");
    let call = |begin, end| (begin, end, "close".to_owned(), vec!["/s/a".to_owned()]);
    for (begin, end) in [(2.0, 1.0), (-1.0, 1.0), (0.0, f32::NAN), (0.0, f32::INFINITY)] {
        let rows = [call(0.5, 0.5), call(begin, end)];
        refused(table(0, &rows), "table, row 1: no call as `recorder2parquet` writes it");
    }
    let far = "pwrite".to_owned();
    let arguments = ["/s/a", "0x7f", "9", "9223372036854775807"].map(str::to_owned).to_vec();
    refused(table(0, &[(0.0, 1.0, far, arguments)]), "row 0: no call");

    let rank = ("rank", ColumnValues::Ints(vec![0]));
    let file = write_parquet(tempfile::tempfile().expect("a file"), &[rank], "table");
    refused(
        ParquetTable::open(file.expect("a table"), "table").expect("a table"),
        "no column `tstart`",
    );
    let mut text = tempfile::tempfile().expect("a file");
    text.write_all(b"PAR1 is not all of it").expect("a file");
    let error = ParquetTable::open(text, "text").err().expect("no table");
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
}
