// SPDX-License-Identifier: Apache-2.0
//! Trace reader: an Arrow IPC file in, batches of records out, with one batch in memory.
//!
//! The file may come from anybody: every length is checked against the bytes that are there and
//! against the limits of a trace before memory is allocated, and every value of a batch before it
//! is passed on. Files that other libraries have rewritten are accepted, if they are uncompressed
//! and have no absent values. Concurrency: a reader is shared freely, each thread with a batch of
//! its own. Layout: docs/format/advisor-trace.md.

use esker_base::{Error, Kind, Result};
use esker_workbench::arrow_message::{
    CONTINUATION, HEADER_DICTIONARY_BATCH, HEADER_RECORD_BATCH, MAGIC, METADATA_V5,
};

use super::flat_table::{FlatTable, FlatTableError};
use super::trace_columns::{TRACE_COLUMNS, TraceColumnKind, TraceOrigin, check_schema};
use super::{
    BATCH_ROWS_MAX, PATH_BYTES_MAX, PATHS_BYTES_MAX, TraceBatch, TraceFile, TraceOperation,
    TraceSource,
};

/// Longest metadata of a message or footer: a footer has 24 bytes for each 65,536 records.
const METADATA_BYTES_MAX: u64 = 64 << 20;

/// Bytes after the footer: its length, and the magic.
const TAIL_BYTES: u64 = 4 + MAGIC.len() as u64;

/// The columns that a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnSelection {
    /// All.
    All,
    /// All but process and thread.
    Accesses,
}

impl ColumnSelection {
    fn has(self, name: &str) -> bool {
        self == Self::All || !matches!(name, "process" | "thread")
    }
}

/// The position of a message, and the lengths of its metadata and its body.
#[derive(Clone, Copy, Debug)]
struct MessageBlock {
    at: u64,
    metadata_bytes: u64,
    body_bytes: u64,
}

/// An open trace.
#[derive(Debug)]
pub struct TraceReader<S> {
    source: S,
    object: String,
    origin: TraceOrigin,
    /// The texts of all paths, one after the other, and where each ends.
    paths: String,
    path_ends: Vec<usize>,
    batches: Vec<MessageBlock>,
}

impl<S: TraceSource> TraceReader<S> {
    /// Opens a trace, reads its footer and all paths; errors name it `object`.
    ///
    /// # Errors
    /// `Corrupt` with the place for bytes that are not a trace, or only a part of one; `Invalid`
    /// for another version of the format; `TooLarge` for paths over the limits.
    pub fn open(source: S, object: impl Into<String>) -> Result<Self> {
        let object = object.into();
        let origin = TraceOrigin::default();
        let (paths, path_ends, batches) = (String::new(), Vec::new(), Vec::new());
        let mut reader = Self { source, object, origin, paths, path_ends, batches };
        let dictionaries = reader.read_footer()?;
        for (index, block) in dictionaries.into_iter().enumerate() {
            reader.read_paths(block, index > 0)?;
        }
        Ok(reader)
    }

    /// The origin of the trace.
    #[must_use]
    pub fn origin(&self) -> &TraceOrigin {
        &self.origin
    }

    /// The number of batches.
    #[must_use]
    pub fn batches(&self) -> usize {
        self.batches.len()
    }

    /// The number of paths; numbers of files are below it. The first path stands for no file.
    #[must_use]
    pub fn paths(&self) -> usize {
        self.path_ends.len()
    }

    /// The path of a file.
    #[must_use]
    pub fn path(&self, file: TraceFile) -> &str {
        let index = file.0 as usize;
        let from = if index == 0 { 0 } else { self.path_ends[index - 1] };
        &self.paths[from..self.path_ends[index]]
    }

    /// Reads the batch at `index` over `batch`.
    ///
    /// # Errors
    /// `Corrupt` with the place for values that no trace has; as the source answers.
    pub fn read_batch(
        &self,
        index: usize,
        columns: ColumnSelection,
        batch: &mut TraceBatch,
    ) -> Result<()> {
        let block = self.batches[index];
        let metadata = self.metadata(block)?;
        let header = self.header(block, &metadata, HEADER_RECORD_BATCH)?;
        let layout = self.layout(block, &header)?;
        if layout.buffers.len() != 2 * TRACE_COLUMNS.len() {
            let what = format!("{} buffers, expected two a column", layout.buffers.len());
            return Err(self.corrupt(block.at, what));
        }
        batch.clear();
        let mut bytes = Vec::new();
        for (column, (name, kind)) in TRACE_COLUMNS.into_iter().enumerate() {
            if !columns.has(name) {
                continue;
            }
            let [at, length] = layout.buffers[2 * column + 1];
            let values_bytes = (layout.rows * kind.bytes()) as u64;
            if length < values_bytes {
                let what = format!("column {name} has {length} bytes, expected {values_bytes}");
                return Err(self.corrupt(block.at, what));
            }
            self.read_body(block, at, values_bytes, &mut bytes)?;
            decode_column(name, kind, &bytes, batch);
        }
        self.check(block, index, batch)
    }

    /// Calls `visit` with each batch, in order.
    ///
    /// # Errors
    /// As [`TraceReader::read_batch`] and `visit`.
    pub fn for_each(
        &self,
        columns: ColumnSelection,
        mut visit: impl FnMut(&TraceBatch) -> Result<()>,
    ) -> Result<()> {
        let mut batch = TraceBatch::default();
        for index in 0..self.batches() {
            self.read_batch(index, columns, &mut batch)?;
            visit(&batch)?;
        }
        Ok(())
    }

    fn corrupt(&self, at: u64, what: impl std::fmt::Display) -> Error {
        Error::corrupt(&self.object, at, what)
    }

    fn broken(&self, base: u64) -> impl Fn(FlatTableError) -> Error + '_ {
        move |error| self.corrupt(base + error.at as u64, format!("expected {}", error.expected))
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.source.read_at(bytes, at).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                self.corrupt(at, format!("expected {} bytes more", bytes.len()))
            }
            _ => Error::io(error, format!("{} at byte {at}", self.object)),
        })
    }

    fn read_footer(&mut self) -> Result<Vec<MessageBlock>> {
        let length = self.source.length().map_err(|error| Error::io(error, self.object.clone()))?;
        let mut magic = [0; MAGIC.len()];
        let mut tail = [0; TAIL_BYTES as usize];
        if length < MAGIC.len() as u64 + 2 + TAIL_BYTES {
            return Err(self.corrupt(0, format!("{length} bytes are no trace")));
        }
        self.read(0, &mut magic)?;
        if magic != *MAGIC {
            return Err(self.corrupt(0, "not an Arrow file: it does not begin with ARROW1"));
        }
        let tail_at = length - TAIL_BYTES;
        self.read(tail_at, &mut tail)?;
        if tail[4..] != *MAGIC {
            let what = "the trace has no end: its writer was interrupted, or the file is truncated";
            return Err(self.corrupt(tail_at + 4, what));
        }
        let footer_bytes = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
        if footer_bytes > METADATA_BYTES_MAX || footer_bytes > tail_at - MAGIC.len() as u64 {
            return Err(self.corrupt(tail_at, format!("a footer of {footer_bytes} bytes")));
        }
        let base = tail_at - footer_bytes;
        let mut footer = vec![0; footer_bytes as usize];
        self.read(base, &mut footer)?;
        let broken = |error: FlatTableError| {
            let what = format!("expected {}", error.expected);
            Error::corrupt(&self.object, base + error.at as u64, what)
        };
        let root = FlatTable::root(&footer).map_err(broken)?;
        if root.i16(0).map_err(broken)? != METADATA_V5 {
            return Err(self.corrupt(base, "expected metadata of version 5 of Arrow"));
        }
        let schema = root.table(1).map_err(broken)?;
        let schema = schema.ok_or_else(|| self.corrupt(base, "the footer has no schema"))?;
        let origin = check_schema(&self.object, base, &schema)?;
        let block = |words: [u64; 3]| {
            // The length of the metadata is of 32 bits, and padding.
            let [at, metadata_bytes, body_bytes] = [words[0], words[1] & 0xffff_ffff, words[2]];
            let end = at.checked_add(metadata_bytes).and_then(|end| end.checked_add(body_bytes));
            let is_inside = end.is_some_and(|end| end <= base);
            match is_inside && (8..=METADATA_BYTES_MAX).contains(&metadata_bytes) {
                true => Ok(MessageBlock { at, metadata_bytes, body_bytes }),
                false => Err(Error::corrupt(&self.object, base, format!("a block at {words:?}"))),
            }
        };
        let dictionaries = root.structs::<3>(2).map_err(broken)?.map(block);
        let dictionaries = dictionaries.collect::<Result<Vec<_>>>()?;
        let batches: Vec<_> =
            root.structs::<3>(3).map_err(broken)?.map(block).collect::<Result<_>>()?;
        for blocks in [&dictionaries, &batches] {
            self.check_order(base, blocks)?;
        }
        self.origin = origin;
        self.batches = batches;
        Ok(dictionaries)
    }

    /// Checks that messages follow each other: a footer that names one of them many times would
    /// claim more records or paths than the file has room for.
    fn check_order(&self, base: u64, blocks: &[MessageBlock]) -> Result<()> {
        let end = |block: &MessageBlock| block.at + block.metadata_bytes + block.body_bytes;
        match blocks.windows(2).find(|pair| pair[1].at < end(&pair[0])) {
            Some(pair) => {
                let what =
                    format!("a message at {} before the end of that at {}", pair[1].at, pair[0].at);
                Err(self.corrupt(base, what))
            }
            None => Ok(()),
        }
    }

    /// The metadata of a message, without its frame.
    fn metadata(&self, block: MessageBlock) -> Result<Vec<u8>> {
        let mut metadata = vec![0; block.metadata_bytes as usize];
        self.read(block.at, &mut metadata)?;
        let (frame, rest) = metadata.split_at(8);
        if frame[..4] != CONTINUATION {
            return Err(self.corrupt(block.at, "expected a message, which begins with ffffffff"));
        }
        let length = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]) as usize;
        if length > rest.len() {
            return Err(self.corrupt(block.at + 4, format!("metadata of {length} bytes")));
        }
        metadata.drain(..8);
        metadata.truncate(length);
        Ok(metadata)
    }

    /// The header of a message that must be of `kind`.
    fn header<'m>(
        &self,
        block: MessageBlock,
        metadata: &'m [u8],
        kind: u8,
    ) -> Result<FlatTable<'m>> {
        let broken = self.broken(block.at + 8);
        let root = FlatTable::root(metadata).map_err(&broken)?;
        let found = root.u8(1, 0).map_err(&broken)?;
        let body_bytes = root.i64(3).map_err(&broken)?;
        if found != kind || u64::try_from(body_bytes) != Ok(block.body_bytes) {
            let what = format!(
                "a message of kind {found} with {body_bytes} bytes; the footer has kind {kind} with {}",
                block.body_bytes
            );
            return Err(self.corrupt(block.at, what));
        }
        let header = root.table(2).map_err(&broken)?;
        header.ok_or_else(|| self.corrupt(block.at, "a message without a header"))
    }

    /// The rows and buffers of a record batch, inside its body.
    fn layout(&self, block: MessageBlock, batch: &FlatTable<'_>) -> Result<BatchLayout> {
        let broken = self.broken(block.at + 8);
        let rows = batch.i64(0).map_err(&broken)?;
        let rows = usize::try_from(rows).ok().filter(|rows| *rows <= BATCH_ROWS_MAX);
        let Some(rows) = rows else {
            let what = format!("a batch of over {BATCH_ROWS_MAX} records");
            return Err(self.corrupt(block.at, what));
        };
        if batch.table(3).map_err(&broken)?.is_some() {
            let what = format!(
                "{} at byte {}: the batch is compressed; write the trace without compression",
                self.object, block.at
            );
            return Err(Error::new(Kind::Invalid, what));
        }
        for [count, absent] in batch.structs::<2>(1).map_err(&broken)? {
            if count != rows as u64 || absent != 0 {
                let what = format!("a column of {count} values, {absent} absent, of {rows}");
                return Err(self.corrupt(block.at, what));
            }
        }
        let buffers: Vec<_> = batch.structs::<2>(2).map_err(&broken)?.collect();
        for [at, length] in &buffers {
            if at.checked_add(*length).is_none_or(|end| end > block.body_bytes) {
                let what = format!("a buffer of {length} bytes at {at} of {}", block.body_bytes);
                return Err(self.corrupt(block.at, what));
            }
        }
        Ok(BatchLayout { rows, buffers })
    }

    /// Reads `length` bytes at `at` of the body; the caller has checked them against its end.
    fn read_body(
        &self,
        block: MessageBlock,
        at: u64,
        length: u64,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        out.resize(usize::try_from(length).expect("bounded by the caller"), 0);
        self.read(block.at + block.metadata_bytes + at, out)
    }

    /// Adds the paths of a dictionary batch.
    fn read_paths(&mut self, block: MessageBlock, is_delta: bool) -> Result<()> {
        let metadata = self.metadata(block)?;
        let header = self.header(block, &metadata, HEADER_DICTIONARY_BATCH)?;
        let broken = self.broken(block.at + 8);
        if header.flag(2).map_err(&broken)? != is_delta {
            let what = "expected one dictionary of paths and extensions of it";
            return Err(self.corrupt(block.at, what));
        }
        let data = header.table(1).map_err(&broken)?;
        let data = data.ok_or_else(|| self.corrupt(block.at, "a dictionary without data"))?;
        let layout = self.layout(block, &data)?;
        let [_, ends, texts] = layout.buffers[..] else {
            return Err(self.corrupt(block.at, "expected three buffers of a dictionary"));
        };
        drop(broken);
        let (mut positions, mut bytes) = (Vec::new(), Vec::new());
        let positions_bytes = 4 * (layout.rows as u64 + 1);
        let total = self.paths.len() as u64 + texts[1];
        if layout.rows == 0 {
            return Ok(());
        }
        if ends[1] < positions_bytes || total > PATHS_BYTES_MAX {
            let what = format!("a dictionary of {} bytes of positions, {total} of paths", ends[1]);
            return Err(self.corrupt(block.at, what));
        }
        self.read_body(block, ends[0], positions_bytes, &mut positions)?;
        self.read_body(block, texts[0], texts[1], &mut bytes)?;
        let text_at = block.at + block.metadata_bytes + texts[0];
        let text = std::str::from_utf8(&bytes)
            .map_err(|error| self.corrupt(text_at + error.valid_up_to() as u64, "not UTF-8"))?;
        let positions: Vec<usize> = positions
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")) as usize)
            .collect();
        for pair in positions.windows(2) {
            let [from, to] = [pair[0], pair[1]];
            let path = text.get(from..to).filter(|path| path.len() <= PATH_BYTES_MAX);
            let Some(path) = path else {
                return Err(self.corrupt(text_at, format!("a path from {from} to {to}")));
            };
            self.paths.push_str(path);
            self.path_ends.push(self.paths.len());
        }
        Ok(())
    }

    /// Checks the values of a batch.
    fn check(&self, block: MessageBlock, index: usize, batch: &TraceBatch) -> Result<()> {
        let wrong = |row: usize, what: String| {
            Err(self.corrupt(block.at, format!("batch {index}, record {row}: {what}")))
        };
        let operations = TraceOperation::ALL.len();
        if let Some(row) =
            batch.operation.iter().position(|found| usize::from(*found) >= operations)
        {
            return wrong(row, format!("operation {}", batch.operation[row]));
        }
        let paths = self.path_ends.len();
        if let Some(row) = batch.file.iter().position(|file| *file as usize >= paths) {
            return wrong(row, format!("file {} of {paths}", batch.file[row]));
        }
        let ends = batch.offset.iter().zip(&batch.bytes);
        let is_far = |(offset, bytes): (&u64, &u64)| {
            offset.checked_add(*bytes).is_none_or(|end| i64::try_from(end).is_err())
        };
        if let Some(row) = ends.map(is_far).position(|is_far| is_far) {
            let (offset, bytes) = (batch.offset[row], batch.bytes[row]);
            return wrong(row, format!("{bytes} bytes at offset {offset}"));
        }
        let mut times = batch.begin_ns.iter().zip(&batch.end_ns);
        if let Some(row) = times.position(|(begin, end)| end < begin) {
            return wrong(row, "the call ends before it begins".to_owned());
        }
        Ok(())
    }
}

struct BatchLayout {
    rows: usize,
    buffers: Vec<[u64; 2]>,
}

/// Appends the values of a column, which are whole.
fn decode_column(name: &str, kind: TraceColumnKind, bytes: &[u8], batch: &mut TraceBatch) {
    let narrow = |out: &mut Vec<u32>| {
        out.extend(bytes.as_chunks::<4>().0.iter().map(|value| u32::from_le_bytes(*value)));
    };
    let wide = |out: &mut Vec<u64>| {
        out.extend(bytes.as_chunks::<8>().0.iter().map(|value| u64::from_le_bytes(*value)));
    };
    match (name, kind.bytes()) {
        ("rank", _) => narrow(&mut batch.rank),
        ("process", _) => narrow(&mut batch.process),
        ("thread", _) => narrow(&mut batch.thread),
        ("operation", _) => batch.operation.extend(bytes),
        ("file", _) => narrow(&mut batch.file),
        ("offset", _) => wide(&mut batch.offset),
        ("bytes", _) => wide(&mut batch.bytes),
        ("begin_ns", _) => wide(&mut batch.begin_ns),
        ("end_ns", _) => wide(&mut batch.end_ns),
        ("result", _) => {
            let values = bytes.as_chunks::<8>().0.iter();
            batch.result.extend(values.map(|value| i64::from_le_bytes(*value)));
        }
        _ => unreachable!("the columns of a trace are fixed"),
    }
}
