// SPDX-License-Identifier: Apache-2.0
//! Arrow: the table of a result as an Arrow IPC file (Feather version 2), which data frames map
//! into memory.
//!
//! ```text
//! "ARROW1" 0 0 | message: schema | message: record batch, and its buffers | end | footer | its
//! length, u32 | "ARROW1"
//! ```
//! One record batch without compression: tables have at most some thousand rows. Metadata is in
//! FlatBuffers. A message is `ffffffff`, the length of its metadata, the metadata padded to 8 bytes
//! (`arrow_message`), and its buffers. Writing this subset here spares the crates of Arrow, whose
//! build takes longer than that of the workbench; `flatbuffers` alone is small. Layout:
//! <https://arrow.apache.org/docs/format/Columnar.html> and the `.fbs` files beside it.

use flatbuffers::FlatBufferBuilder;

use crate::arrow_message::{
    FinishedTable, HEADER_RECORD_BATCH, HEADER_SCHEMA, MAGIC, METADATA_V5, end_of_file, message,
    pad, structs, table,
};
use crate::result::RunResult;
use crate::result_table::{COLUMNS, ColumnType, TableCell, rows};

// Constants of Schema.fbs, Message.fbs and File.fbs.
const TYPE_INT: u8 = 2;
const TYPE_FLOATING_POINT: u8 = 3;
const TYPE_LARGE_UTF8: u8 = 20;
const PRECISION_DOUBLE: i16 = 2;
const INT_BITS: i32 = 64;

/// The result as an Arrow IPC file with the rows and columns of the CSV.
#[must_use]
pub fn file(result: &RunResult) -> Vec<u8> {
    let rows = rows(result);
    let mut batch = RecordBatch { rows: rows.len(), ..RecordBatch::default() };
    for (index, (_, kind)) in COLUMNS.iter().enumerate() {
        batch.push_column(*kind, rows.iter().map(|row| &row[index]));
    }
    let mut out = MAGIC.to_vec();
    pad(&mut out);
    let message = schema_message();
    out.extend(message);
    let (batch_at, message) = (out.len(), batch.message());
    out.extend(&message);
    out.extend(&batch.body);
    out.extend(end_of_file(&footer([batch_at, message.len(), batch.body.len()])));
    out
}

/// The columns of a record batch, one after the other.
#[derive(Default)]
struct RecordBatch {
    rows: usize,
    /// For each column the number of values and of absent ones.
    nodes: Vec<[u64; 2]>,
    /// For each buffer its position in the body and its length.
    buffers: Vec<[u64; 2]>,
    body: Vec<u8>,
}

impl RecordBatch {
    /// Adds the validity bits, unless all cells are there, and the values; texts have the positions
    /// of their ends before them.
    fn push_column<'a>(&mut self, kind: ColumnType, cells: impl Iterator<Item = &'a TableCell>) {
        let (mut validity, mut values) = (vec![0u8; self.rows.div_ceil(8)], Vec::new());
        let (mut offsets, mut text) = (0u64.to_le_bytes().to_vec(), Vec::new());
        let mut absent = 0;
        for (index, cell) in cells.enumerate() {
            validity[index / 8] |= u8::from(!matches!(cell, TableCell::Absent)) << (index % 8);
            match cell {
                TableCell::Text(cell) => {
                    text.extend(cell.as_bytes());
                    offsets.extend((text.len() as u64).to_le_bytes());
                }
                TableCell::Integer(value) => {
                    values.extend(i64::try_from(*value).unwrap_or(i64::MAX).to_le_bytes());
                }
                TableCell::Number(value) => values.extend(value.to_le_bytes()),
                TableCell::Absent => {
                    absent += 1;
                    values.extend([0; 8]);
                }
            }
        }
        self.nodes.push([self.rows as u64, absent]);
        self.push_buffer(if absent == 0 { &[] } else { &validity });
        if kind == ColumnType::Text {
            self.push_buffer(&offsets);
            self.push_buffer(&text);
        } else {
            self.push_buffer(&values);
        }
    }

    fn push_buffer(&mut self, bytes: &[u8]) {
        self.buffers.push([self.body.len(), bytes.len()].map(|number| number as u64));
        self.body.extend(bytes);
        pad(&mut self.body);
    }

    fn message(&self) -> Vec<u8> {
        let mut builder = FlatBufferBuilder::new();
        let buffers = structs(&mut builder, &self.buffers);
        let nodes = structs(&mut builder, &self.nodes);
        let batch = table(&mut builder, |batch| {
            batch.value(0, self.rows as i64);
            batch.value(1, nodes);
            batch.value(2, buffers);
        });
        message(builder, HEADER_RECORD_BATCH, batch, self.body.len())
    }
}

fn schema_message() -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let schema = schema(&mut builder);
    message(builder, HEADER_SCHEMA, schema, 0)
}

/// Little-endian, which is the default.
fn schema(builder: &mut FlatBufferBuilder<'_>) -> FinishedTable {
    let fields = COLUMNS.map(|(name, kind)| {
        let name = builder.create_string(name);
        let (type_number, type_table) = column_type(builder, kind);
        // Readers expect the vector of children even where a type has none.
        let children = builder.create_vector::<FinishedTable>(&[]);
        table(builder, |field| {
            field.value(0, name);
            field.value(3, type_table);
            field.value(5, children);
            field.value(1, kind.is_optional());
            field.value(2, type_number);
        })
    });
    let fields = builder.create_vector(&fields);
    table(builder, |schema| schema.value(1, fields))
}

fn column_type(builder: &mut FlatBufferBuilder<'_>, kind: ColumnType) -> (u8, FinishedTable) {
    match kind {
        ColumnType::Text => (TYPE_LARGE_UTF8, table(builder, |_| {})),
        ColumnType::Integer | ColumnType::OptionalInteger => {
            let int = table(builder, |int| {
                int.value(0, INT_BITS);
                int.value(1, true);
            });
            (TYPE_INT, int)
        }
        ColumnType::Number | ColumnType::OptionalNumber => {
            let double = table(builder, |number| number.value(0, PRECISION_DOUBLE));
            (TYPE_FLOATING_POINT, double)
        }
    }
}

/// Names the record batch: its position, and the lengths of its metadata and its body.
fn footer(batch: [usize; 3]) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let schema = schema(&mut builder);
    let dictionaries = structs::<3>(&mut builder, &[]);
    let batches = structs(&mut builder, &[batch.map(|number| number as u64)]);
    let footer = table(&mut builder, |footer| {
        footer.value(1, schema);
        footer.value(2, dictionaries);
        footer.value(3, batches);
        footer.value(0, METADATA_V5);
    });
    builder.finish_minimal(footer);
    builder.finished_data().to_vec()
}
