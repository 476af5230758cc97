// SPDX-License-Identifier: Apache-2.0
//! Parquet: the table of a result in the columnar format that data frames read.
//!
//! One row group, one data page for each column, PLAIN values without compression: tables have at
//! most some thousand rows. Metadata is in Thrift's compact protocol. Writing this subset here
//! spares a Parquet library, whose other parts would not be used. Layout:
//! <https://parquet.apache.org/docs/file-format/>.

use crate::result::RunResult;
use crate::result_table::{COLUMNS, ColumnType, TableCell, rows};

const MAGIC: &[u8; 4] = b"PAR1";

// Types of fields of the compact protocol.
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

// Constants of parquet.thrift.
const REQUIRED: i64 = 0;
const OPTIONAL: i64 = 1;
const UTF8: i64 = 0;
const PLAIN: i64 = 0;
const RLE: i64 = 3;
const UNCOMPRESSED: i64 = 0;
const DATA_PAGE: i64 = 0;

/// The result as a Parquet file with the rows and columns of the CSV.
#[must_use]
pub fn file(result: &RunResult) -> Vec<u8> {
    let rows = rows(result);
    let mut out = MAGIC.to_vec();
    let mut chunks = Vec::new();
    for (index, (name, kind)) in COLUMNS.iter().enumerate() {
        let offset = out.len();
        let page = page(*kind, rows.iter().map(|row| &row[index]));
        out.extend(page_header(page.len(), rows.len()));
        out.extend(page);
        chunks.push(column_chunk(name, *kind, rows.len(), offset, out.len() - offset));
    }
    let group_bytes = out.len() - MAGIC.len();
    let mut schema = vec![root_element()];
    schema.extend(COLUMNS.iter().map(|(name, kind)| schema_element(name, *kind)));
    let mut group = ThriftStruct::default();
    group.list(1, STRUCT, &chunks);
    group.integer(2, I64, group_bytes as i64);
    group.integer(3, I64, rows.len() as i64);
    let mut footer = ThriftStruct::default();
    footer.integer(1, I32, 1);
    footer.list(2, STRUCT, &schema);
    footer.integer(3, I64, rows.len() as i64);
    footer.list(4, STRUCT, &[group.finish()]);
    footer.text(6, &result.program);
    let footer = footer.finish();
    let footer_bytes = u32::try_from(footer.len()).expect("a footer has some kilobytes");
    out.extend(footer);
    out.extend(footer_bytes.to_le_bytes());
    out.extend(MAGIC);
    out
}

const fn physical_type(kind: ColumnType) -> i64 {
    match kind {
        ColumnType::Integer | ColumnType::OptionalInteger => 2,
        ColumnType::Number | ColumnType::OptionalNumber => 5,
        ColumnType::Text => 6,
    }
}

/// Definition levels, if values may be absent, and the values.
fn page<'a>(kind: ColumnType, cells: impl ExactSizeIterator<Item = &'a TableCell>) -> Vec<u8> {
    let (count, mut levels, mut values) = (cells.len(), Vec::new(), Vec::new());
    levels.resize(count.div_ceil(8), 0u8);
    for (index, cell) in cells.enumerate() {
        levels[index / 8] |= u8::from(!matches!(cell, TableCell::Absent)) << (index % 8);
        match cell {
            TableCell::Text(text) => {
                let bytes = u32::try_from(text.len()).expect("names are short");
                values.extend(bytes.to_le_bytes());
                values.extend(text.as_bytes());
            }
            TableCell::Integer(value) => {
                values.extend(i64::try_from(*value).unwrap_or(i64::MAX).to_le_bytes());
            }
            TableCell::Number(value) => values.extend(value.to_le_bytes()),
            TableCell::Absent => {}
        }
    }
    if !kind.is_optional() {
        return values;
    }
    // One run of bit-packed groups of eight.
    let mut run = Vec::new();
    varint(&mut run, (levels.len() as u64) << 1 | 1);
    run.extend(levels);
    let run_bytes = u32::try_from(run.len()).expect("a bit for each row");
    [&run_bytes.to_le_bytes()[..], &run, &values].concat()
}

fn page_header(bytes: usize, values: usize) -> Vec<u8> {
    let mut data = ThriftStruct::default();
    data.integer(1, I32, values as i64);
    data.integer(2, I32, PLAIN);
    data.integer(3, I32, RLE);
    data.integer(4, I32, RLE);
    let mut header = ThriftStruct::default();
    header.integer(1, I32, DATA_PAGE);
    header.integer(2, I32, bytes as i64);
    header.integer(3, I32, bytes as i64);
    header.structure(5, &data.finish());
    header.finish()
}

fn column_chunk(
    name: &str,
    kind: ColumnType,
    values: usize,
    offset: usize,
    bytes: usize,
) -> Vec<u8> {
    let mut metadata = ThriftStruct::default();
    metadata.integer(1, I32, physical_type(kind));
    metadata.list(2, I32, &[PLAIN, RLE].map(zigzag));
    metadata.list(3, BINARY, &[binary(name)]);
    metadata.integer(4, I32, UNCOMPRESSED);
    metadata.integer(5, I64, values as i64);
    metadata.integer(6, I64, bytes as i64);
    metadata.integer(7, I64, bytes as i64);
    metadata.integer(9, I64, offset as i64);
    let mut chunk = ThriftStruct::default();
    chunk.integer(2, I64, offset as i64);
    chunk.structure(3, &metadata.finish());
    chunk.finish()
}

fn root_element() -> Vec<u8> {
    let mut element = ThriftStruct::default();
    element.text(4, "schema");
    element.integer(5, I32, COLUMNS.len() as i64);
    element.finish()
}

fn schema_element(name: &str, kind: ColumnType) -> Vec<u8> {
    let repetition = if kind.is_optional() { OPTIONAL } else { REQUIRED };
    let mut element = ThriftStruct::default();
    element.integer(1, I32, physical_type(kind));
    element.integer(3, I32, repetition);
    element.text(4, name);
    if kind == ColumnType::Text {
        element.integer(6, I32, UTF8);
    }
    element.finish()
}

/// A structure in the compact protocol; fields ascend.
#[derive(Default)]
struct ThriftStruct {
    bytes: Vec<u8>,
    last_field: u8,
}

impl ThriftStruct {
    /// Field numbers here are at most 15 apart, so one byte holds distance and type.
    fn field(&mut self, number: u8, kind: u8) {
        self.bytes.push((number - self.last_field) << 4 | kind);
        self.last_field = number;
    }

    fn integer(&mut self, number: u8, kind: u8, value: i64) {
        self.field(number, kind);
        self.bytes.extend(zigzag(value));
    }

    fn text(&mut self, number: u8, text: &str) {
        self.field(number, BINARY);
        self.bytes.extend(binary(text));
    }

    fn structure(&mut self, number: u8, finished: &[u8]) {
        self.field(number, STRUCT);
        self.bytes.extend(finished);
    }

    fn list(&mut self, number: u8, kind: u8, elements: &[Vec<u8>]) {
        self.field(number, LIST);
        match u8::try_from(elements.len()) {
            Ok(count) if count < 15 => self.bytes.push(count << 4 | kind),
            _ => {
                self.bytes.push(0xf0 | kind);
                varint(&mut self.bytes, elements.len() as u64);
            }
        }
        elements.iter().for_each(|element| self.bytes.extend(element));
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn zigzag(value: i64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, (value << 1 ^ value >> 63).cast_unsigned());
    out
}

fn binary(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, text.len() as u64);
    out.extend(text.as_bytes());
    out
}
