// SPDX-License-Identifier: Apache-2.0
//! Arrow files: read back by a reader of their own, and by pyarrow where there is one.

use std::path::Path;

use esker_workbench::pace::{Arrivals, Pacing};
use esker_workbench::result::RunResult;
use esker_workbench::result_table::{COLUMNS, ColumnType, TableCell, rows};
use esker_workbench::{arrow, csv, parquet};

use crate::reports::pair;

/// A result that has absent cells in both loops, and a label of several bytes a letter.
fn result() -> RunResult {
    let [mut result, _] = pair();
    result.options.label = "Größe, \"tmpfs\"".to_owned();
    result.phases[1].plan.pacing = Pacing::Open { rate: 500.0, arrivals: Arrivals::Constant };
    result
}

fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..BYTES].copy_from_slice(&bytes[at..at + BYTES]);
    u64::from_le_bytes(word)
}

/// The position of the table or vector to which the offset at `at` points.
fn follow(bytes: &[u8], at: usize) -> usize {
    at + number::<4>(bytes, at) as usize
}

/// The position of the field at `slot` of the table at `table`.
fn field(bytes: &[u8], table: usize, slot: usize) -> usize {
    // Tables share equal vtables, which lie before or after them.
    let distance = number::<4>(bytes, table) as u32 as i32;
    let vtable = table.checked_add_signed(-distance as isize).expect("inside");
    assert!(4 + 2 * slot < number::<2>(bytes, vtable) as usize, "slot {slot} is absent");
    table + number::<2>(bytes, vtable + 4 + 2 * slot) as usize
}

/// Items of `words` words of eight bytes of the vector at the field.
fn items(bytes: &[u8], table: usize, slot: usize, words: usize) -> Vec<Vec<u64>> {
    let vector = follow(bytes, field(bytes, table, slot));
    let item = |index: usize| {
        let word = |word: usize| number::<8>(bytes, vector + 4 + 8 * (index * words + word));
        (0..words).map(word).collect()
    };
    (0..number::<4>(bytes, vector) as usize).map(item).collect()
}

/// Reads the names and the cells, following every offset from the end of the file.
fn read(file: &[u8]) -> (Vec<String>, Vec<Vec<TableCell>>) {
    assert!(file.starts_with(b"ARROW1\0\0") && file.ends_with(b"ARROW1"));
    let footer_bytes = number::<4>(file, file.len() - 10) as usize;
    let footer = &file[file.len() - 10 - footer_bytes..file.len() - 10];
    let root = follow(footer, 0);
    assert_eq!(number::<2>(footer, field(footer, root, 0)), 4, "version 5 of the metadata");
    let schema = follow(footer, field(footer, root, 1));
    let fields = follow(footer, field(footer, schema, 1));
    let names = (0..number::<4>(footer, fields) as usize).map(|index| {
        let column = follow(footer, fields + 4 + 4 * index);
        let name = follow(footer, field(footer, column, 0));
        let bytes = number::<4>(footer, name) as usize;
        String::from_utf8(footer[name + 4..name + 4 + bytes].to_vec()).expect("UTF-8")
    });
    let blocks = items(footer, root, 3, 3);
    let [at, metadata_bytes, body_bytes] = blocks[0][..] else { panic!("{blocks:?}") };
    assert_eq!((blocks.len(), at % 8, metadata_bytes % 8, body_bytes % 8), (1, 0, 0, 0));
    let (at, metadata_bytes) = (at as usize, metadata_bytes as usize);
    assert_eq!(number::<4>(file, at), 0xffff_ffff);
    assert_eq!(number::<4>(file, at + 4) as usize, metadata_bytes - 8);
    let message = &file[at + 8..at + metadata_bytes];
    let root = follow(message, 0);
    assert_eq!(number::<1>(message, field(message, root, 1)), 3, "a record batch");
    assert_eq!(number::<8>(message, field(message, root, 3)), body_bytes);
    let batch = follow(message, field(message, root, 2));
    let count = number::<8>(message, field(message, batch, 0)) as usize;
    let (nodes, buffers) = (items(message, batch, 1, 2), items(message, batch, 2, 2));
    let body = &file[at + metadata_bytes..][..body_bytes as usize];
    let mut buffers = buffers.iter().map(|of| &body[of[0] as usize..][..of[1] as usize]);
    let mut rows = vec![Vec::new(); count];
    for ((_, kind), node) in COLUMNS.iter().zip(&nodes) {
        let (validity, values) = (buffers.next().expect("bits"), buffers.next().expect("values"));
        let text = match kind {
            ColumnType::Text => buffers.next().expect("texts"),
            _ => &[],
        };
        assert_eq!((node[0] as usize, validity.is_empty()), (count, node[1] == 0));
        for (index, row) in rows.iter_mut().enumerate() {
            let is_valid = validity.is_empty() || validity[index / 8] >> (index % 8) & 1 == 1;
            row.push(match kind {
                _ if !is_valid => TableCell::Absent,
                ColumnType::Text => {
                    let [from, to] =
                        [index, index + 1].map(|index| number::<8>(values, 8 * index) as usize);
                    TableCell::Text(String::from_utf8(text[from..to].to_vec()).expect("UTF-8"))
                }
                ColumnType::Integer | ColumnType::OptionalInteger => {
                    TableCell::Integer(number::<8>(values, 8 * index))
                }
                ColumnType::Number | ColumnType::OptionalNumber => {
                    TableCell::Number(f64::from_bits(number::<8>(values, 8 * index)))
                }
            });
        }
    }
    (names.collect(), rows)
}

#[test]
fn arrow_files_have_the_rows_of_the_table() {
    let mut result = result();
    let (names, cells) = read(&arrow::file(&result));
    assert_eq!(names, COLUMNS.map(|(name, _)| name));
    assert!(cells.iter().flatten().any(|cell| *cell == TableCell::Absent));
    assert_eq!(cells, rows(&result));
    result.phases.clear();
    assert_eq!(read(&arrow::file(&result)).1, Vec::<Vec<TableCell>>::new());
}

/// Reads both formats with pyarrow, whose readers are independent of these writers.
const READ_TABLES: &str = r#"
import csv, sys
import pyarrow.parquet as parquet
import pyarrow.feather as feather
parquet_path, arrow_path, csv_path = sys.argv[1:]
with open(csv_path, newline="") as file:
    rows = list(csv.DictReader(file))
for table in [parquet.read_table(parquet_path), feather.read_table(arrow_path)]:
    table.validate(full=True)
    table = table.to_pylist()
    assert len(table) == len(rows) > 0, (len(table), len(rows))
    for read, row in zip(table, rows):
        assert list(read) == list(row), (list(read), list(row))
        for name, value in read.items():
            text = row[name]
            same = text == "" if value is None else type(value)(text) == value
            assert same, (name, value, text)
"#;

#[test]
fn parquet_and_arrow_files_are_those_of_the_csv() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = std::process::Command::new(&python).args(["-c", "import pyarrow.parquet"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {python} has no pyarrow; PYTHON names another interpreter");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(Path::new(&path), bytes).expect("written");
        path
    };
    let result = result();
    let files = [
        write("result.parquet", &parquet::file(&result)),
        write("result.arrow", &arrow::file(&result)),
        write("result.csv", csv::table(&result).as_bytes()),
    ];
    let script = ["-c", READ_TABLES];
    let output = std::process::Command::new(&python).args(script).args(&files).output();
    let output = output.expect("python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
