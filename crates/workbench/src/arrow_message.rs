// SPDX-License-Identifier: Apache-2.0
//! Arrow message: the frame of schemas and batches in Arrow IPC files, and the writing of their
//! metadata, for the writers of results and of traces.
//!
//! A message is `ffffffff`, the length of its metadata, the metadata padded to [`ALIGNMENT`], and
//! its buffers. Metadata is in FlatBuffers.
//! Layout: <https://arrow.apache.org/docs/format/Columnar.html> and the `.fbs` files beside it.

use flatbuffers::{FlatBufferBuilder, Push, TableFinishedWIPOffset, VOffsetT, Vector, WIPOffset};

/// Begins and ends a file.
pub const MAGIC: &[u8; 6] = b"ARROW1";

/// Begins a message; without metadata behind it, ends the messages of a file.
pub const CONTINUATION: [u8; 4] = [0xff; 4];

/// Messages and buffers begin at multiples of this many bytes.
pub const ALIGNMENT: usize = 8;

// Constants of Schema.fbs and Message.fbs.
/// The version of the metadata.
pub const METADATA_V5: i16 = 4;
/// The kind of a schema.
pub const HEADER_SCHEMA: u8 = 1;
/// The kind of a dictionary batch.
pub const HEADER_DICTIONARY_BATCH: u8 = 2;
/// The kind of a record batch.
pub const HEADER_RECORD_BATCH: u8 = 3;

/// A table that is written.
pub type FinishedTable = WIPOffset<TableFinishedWIPOffset>;

/// Extends `out` with zeros to [`ALIGNMENT`].
pub fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
}

/// A table of FlatBuffers whose fields are being written.
pub struct TableFields<'a, 'b>(&'a mut FlatBufferBuilder<'b>);

impl TableFields<'_, '_> {
    /// Writes the field that the schema has at position `slot`, from 0.
    pub fn value(&mut self, slot: VOffsetT, value: impl Push) {
        // The vtable begins with its own length and that of the table, of two bytes each.
        self.0.push_slot_always(4 + 2 * slot, value);
    }
}

/// Writes a table whose fields `write` adds.
pub fn table(
    builder: &mut FlatBufferBuilder<'_>,
    write: impl FnOnce(&mut TableFields<'_, '_>),
) -> FinishedTable {
    let start = builder.start_table();
    write(&mut TableFields(builder));
    builder.end_table(start)
}

/// A vector of structs whose fields are, with their padding, words of eight bytes.
pub fn structs<'b, const WORDS: usize>(
    builder: &mut FlatBufferBuilder<'b>,
    items: &[[u64; WORDS]],
) -> WIPOffset<Vector<'b, u64>> {
    builder.start_vector::<u64>(WORDS * items.len());
    // FlatBuffers grow towards their beginning.
    for word in items.as_flattened().iter().rev() {
        builder.push(*word);
    }
    builder.end_vector::<u64>(items.len())
}

/// A message without its buffers, which have `body_bytes`.
#[must_use]
pub fn message(
    mut builder: FlatBufferBuilder<'_>,
    kind: u8,
    header: FinishedTable,
    body_bytes: usize,
) -> Vec<u8> {
    let message = table(&mut builder, |message| {
        message.value(3, body_bytes as i64);
        message.value(2, header);
        message.value(0, METADATA_V5);
        message.value(1, kind);
    });
    builder.finish_minimal(message);
    let mut metadata = builder.finished_data().to_vec();
    pad(&mut metadata);
    let bytes = u32::try_from(metadata.len()).expect("metadata has some kilobytes");
    [&CONTINUATION[..], &bytes.to_le_bytes(), &metadata].concat()
}

/// The end of a file with this `footer`, which follows the last message.
#[must_use]
pub fn end_of_file(footer: &[u8]) -> Vec<u8> {
    let footer_bytes = u32::try_from(footer.len()).expect("footers are bounded by their writers");
    [&CONTINUATION[..], &[0; 4], footer, &footer_bytes.to_le_bytes(), MAGIC].concat()
}
