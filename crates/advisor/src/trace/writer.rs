// SPDX-License-Identifier: Apache-2.0
//! Trace writer: records in, an Arrow IPC file out, with a bounded number of records in memory.
//!
//! Paths go to the file as they appear: a dictionary batch with the new ones precedes the record
//! batch that refers to them first, and all but the first extend it. The footer comes last, so a
//! trace whose writer was interrupted is refused by readers.
//! Layout: docs/format/advisor-trace.md.

use std::collections::HashMap;
use std::io::Write;

use esker_base::{Error, Kind, Result};
use esker_workbench::arrow_message::{
    ALIGNMENT, FinishedTable, HEADER_DICTIONARY_BATCH, HEADER_RECORD_BATCH, MAGIC, end_of_file,
    message, pad, structs, table,
};
use flatbuffers::FlatBufferBuilder;

use super::path_text::path_text;
use super::trace_columns::{PATHS_DICTIONARY, TraceOrigin, footer, schema_message};
use super::{PATH_BYTES_MAX, PATHS_BYTES_MAX, TraceBatch, TraceFile, TraceRecord};

/// Records of a batch: 3.6 MiB in memory.
const BATCH_ROWS: usize = 1 << 16;

/// Bytes of new paths after which a batch is written, even if it has few records.
const NEW_PATHS_BYTES_MAX: usize = 1 << 20;

/// Writes a trace to `W`.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    out: W,
    object: String,
    origin: TraceOrigin,
    position: u64,
    batch: TraceBatch,
    files: HashMap<String, TraceFile>,
    /// Paths that no dictionary batch has yet, with their ends.
    new_paths: String,
    new_ends: Vec<i32>,
    paths_bytes: u64,
    dictionaries: Vec<[u64; 3]>,
    batches: Vec<[u64; 3]>,
    rows: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace; errors name it `object`.
    ///
    /// # Errors
    /// As `out` answers.
    pub fn new(out: W, object: impl Into<String>, origin: TraceOrigin) -> Result<Self> {
        let mut writer = Self {
            out,
            object: object.into(),
            origin,
            position: 0,
            batch: TraceBatch::default(),
            files: HashMap::new(),
            new_paths: String::new(),
            new_ends: Vec::new(),
            paths_bytes: 0,
            dictionaries: Vec::new(),
            batches: Vec::new(),
            rows: 0,
        };
        let mut start = MAGIC.to_vec();
        pad(&mut start);
        start.extend(schema_message(&writer.origin));
        writer.put(&start)?;
        writer.file(b"")?;
        Ok(writer)
    }

    /// The number of records so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The file of the path `path`; the same for the same path.
    ///
    /// # Errors
    /// `TooLarge` for a path, or for paths in all, over the limits of a trace.
    pub fn file(&mut self, path: &[u8]) -> Result<TraceFile> {
        self.file_of_text(&path_text(path))
    }

    /// The file of the path whose text, as traces have it, is `text`; the same for the same text.
    ///
    /// # Errors
    /// As [`TraceWriter::file`].
    pub fn file_of_text(&mut self, text: &str) -> Result<TraceFile> {
        if let Some(file) = self.files.get(text) {
            return Ok(*file);
        }
        let total = self.paths_bytes + text.len() as u64;
        if text.len() > PATH_BYTES_MAX || total > PATHS_BYTES_MAX {
            let what = format!(
                "{}: a path of {} bytes after {} bytes of other paths; a trace holds paths of \
                 {PATH_BYTES_MAX} bytes and {PATHS_BYTES_MAX} bytes in all",
                self.object,
                text.len(),
                self.paths_bytes
            );
            return Err(Error::new(Kind::TooLarge, what));
        }
        if self.new_paths.len() + text.len() > NEW_PATHS_BYTES_MAX {
            self.write_batch()?;
        }
        let number = u32::try_from(self.files.len()).expect("paths are bounded in bytes");
        self.paths_bytes = total;
        self.new_paths.push_str(text);
        let end = i32::try_from(self.new_paths.len()).expect("new paths are bounded");
        self.new_ends.push(end);
        self.files.insert(text.to_owned(), TraceFile(number));
        Ok(TraceFile(number))
    }

    /// Appends a record, whose file this writer has given.
    ///
    /// # Errors
    /// `Invalid` for a record that no reader accepts; as the output answers.
    pub fn push(&mut self, record: &TraceRecord) -> Result<()> {
        let is_known = (record.file.0 as usize) < self.files.len();
        let end = record.offset.checked_add(record.bytes);
        let fits = end.is_some_and(|end| i64::try_from(end).is_ok());
        if !is_known || !fits || record.end_ns < record.begin_ns {
            let what = format!("{}: record {} is invalid: {record:?}", self.object, self.rows);
            return Err(Error::new(Kind::Invalid, what));
        }
        self.batch.push(record);
        self.rows += 1;
        if self.batch.len() == BATCH_ROWS {
            self.write_batch()?;
        }
        Ok(())
    }

    /// Writes the remaining records and the footer, and returns the output, flushed but not synced.
    ///
    /// # Errors
    /// As the output answers.
    pub fn finish(mut self) -> Result<W> {
        self.write_batch()?;
        let footer = footer(&self.origin, &self.dictionaries, &self.batches);
        self.put(&end_of_file(&footer))?;
        self.out.flush().map_err(|error| Error::io(error, self.object.clone()))?;
        Ok(self.out)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.position += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|error| Error::io(error, self.object.clone()))
    }

    fn put_message(&mut self, metadata: &[u8], body: &[u8]) -> Result<[u64; 3]> {
        assert!(self.position.is_multiple_of(ALIGNMENT as u64), "messages are padded");
        let block = [self.position, metadata.len() as u64, body.len() as u64];
        self.put(metadata)?;
        self.put(body)?;
        Ok(block)
    }

    fn write_batch(&mut self) -> Result<()> {
        if !self.new_ends.is_empty() {
            self.write_paths()?;
        }
        if self.batch.is_empty() {
            return Ok(());
        }
        let mut body = BatchBody::new(self.batch.len());
        let batch = &self.batch;
        body.column(batch.rank.iter().map(|value| value.to_le_bytes()));
        body.column(batch.process.iter().map(|value| value.to_le_bytes()));
        body.column(batch.thread.iter().map(|value| value.to_le_bytes()));
        body.column(batch.operation.iter().map(|value| [*value]));
        body.column(batch.file.iter().map(|value| value.to_le_bytes()));
        body.column(batch.offset.iter().map(|value| value.to_le_bytes()));
        body.column(batch.bytes.iter().map(|value| value.to_le_bytes()));
        body.column(batch.begin_ns.iter().map(|value| value.to_le_bytes()));
        body.column(batch.end_ns.iter().map(|value| value.to_le_bytes()));
        body.column(batch.result.iter().map(|value| value.to_le_bytes()));
        let mut builder = FlatBufferBuilder::new();
        let header = body.header(&mut builder);
        let metadata = message(builder, HEADER_RECORD_BATCH, header, body.bytes.len());
        let block = self.put_message(&metadata, &body.bytes)?;
        self.batches.push(block);
        self.batch.clear();
        Ok(())
    }

    fn write_paths(&mut self) -> Result<()> {
        let mut body = BatchBody::new(self.new_ends.len());
        let ends = std::mem::take(&mut self.new_ends);
        let starts = std::iter::once(0).chain(ends);
        body.column(starts.map(i32::to_le_bytes));
        body.buffer(self.new_paths.as_bytes());
        self.new_paths.clear();
        let is_delta = !self.dictionaries.is_empty();
        let mut builder = FlatBufferBuilder::new();
        let data = body.header(&mut builder);
        let dictionary = table(&mut builder, |dictionary| {
            dictionary.value(0, PATHS_DICTIONARY);
            dictionary.value(1, data);
            dictionary.value(2, is_delta);
        });
        let metadata = message(builder, HEADER_DICTIONARY_BATCH, dictionary, body.bytes.len());
        let block = self.put_message(&metadata, &body.bytes)?;
        self.dictionaries.push(block);
        Ok(())
    }
}

/// The buffers of a batch, and their positions.
struct BatchBody {
    rows: usize,
    nodes: Vec<[u64; 2]>,
    buffers: Vec<[u64; 2]>,
    bytes: Vec<u8>,
}

impl BatchBody {
    fn new(rows: usize) -> Self {
        Self { rows, nodes: Vec::new(), buffers: Vec::new(), bytes: Vec::new() }
    }

    /// Adds a column without absent values: no validity bits, and its values or positions.
    fn column<const BYTES: usize>(&mut self, values: impl Iterator<Item = [u8; BYTES]>) {
        self.nodes.push([self.rows as u64, 0]);
        self.buffer(&[]);
        let from = self.bytes.len();
        values.for_each(|value| self.bytes.extend(value));
        self.buffers.push([from, self.bytes.len() - from].map(|number| number as u64));
        pad(&mut self.bytes);
    }

    fn buffer(&mut self, bytes: &[u8]) {
        self.buffers.push([self.bytes.len(), bytes.len()].map(|number| number as u64));
        self.bytes.extend(bytes);
        pad(&mut self.bytes);
    }

    fn header(&self, builder: &mut FlatBufferBuilder<'_>) -> FinishedTable {
        let buffers = structs(builder, &self.buffers);
        let nodes = structs(builder, &self.nodes);
        table(builder, |batch| {
            batch.value(0, self.rows as i64);
            batch.value(1, nodes);
            batch.value(2, buffers);
        })
    }
}
