// SPDX-License-Identifier: Apache-2.0
//! Flusher: the background half of a partition, which turns buffers into tables and ends epochs.
//!
//! Write order, on which recovery rests: blocks, sync of the data log, slots and the epoch's frame,
//! sync of the index log. An epoch is durable once both syncs are done.
//! Concurrency: one thread owns everything except the pieces in flight; the caller sees only the
//! pool and the answers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use esker_base::Result;
use esker_base::store::AppendLog;

use super::buffer::{BucketRecords, BufferGeometry, RecordBucket, RecordBuffer};
use super::index_group::{IndexGroupBuilder, TableIndex};
use super::pieces::{PIECES_MAX, PieceWriter};
use super::pool::{RecordPool, closed};
use super::share::MemoryShare;
use super::sort::{BucketSorter, number_of};
use super::writer::PartitionSummary;
use super::{EpochEnd, PartitionSetup, RowOrder};
use crate::block::{BLOCK_BYTES, VariableBlock, rows_of_block};
use crate::checksum::{CHECKSUM_BYTES, LogChecksum, LogKind};
use crate::index::epoch::{BlockEnd, EpochIndex, EpochTable, IndexGroup};
use crate::index::frame::{self, FrameKind, IndexFrameHeader};
use crate::index::head::INDEX_MAGIC;
use crate::index::root::{IndexRoot, encode_footer};
use crate::record_layout::RecordLayout;

/// Requests from the caller.
pub(super) enum FlushJob {
    /// Write a table; later tables of the epoch are expected to have this many times as many rows.
    Table(RecordBuffer, u64),
    /// Keep an auxiliary table of this epoch.
    Auxiliary(Vec<u8>),
    /// Make the epoch durable.
    Epoch(EpochEnd, SyncSender<Result<()>>),
    /// Finish the logs.
    Finish(SyncSender<Result<PartitionSummary>>),
}

/// The logs and the data that waits to be written.
pub(super) struct PartitionFlusher {
    pub(super) setup: PartitionSetup,
    pub(super) geometry: BufferGeometry,
    share: MemoryShare,
    pub(super) pool: Arc<RecordPool>,
    data: DataLogWriter,
    index: GrowingLog,
    /// The log of auxiliary tables, if the format has any.
    auxiliary: Option<GrowingLog>,
    auxiliary_places: Vec<Range<u64>>,
    sorter: BucketSorter,
    staging: StagedBlocks,
    builder: IndexGroupBuilder,
    groups: Vec<IndexGroup>,
    tables: usize,
    record_bytes: u64,
    root: IndexRoot,
    copies: FrameCopies,
    written: PartitionSummary,
}

/// Payloads of the epochs' frames, for [`FrameKind::Copies`].
#[derive(Default)]
struct FrameCopies {
    payloads: Vec<Vec<u8>>,
    bytes: usize,
}

impl FrameCopies {
    /// Encodes the frame of copies for offset `start`, with those of all epochs, and their ranges
    /// in the log.
    fn encode(self, log: LogChecksum, start: u64) -> (Vec<u8>, Vec<Range<u64>>) {
        let (mut frames, mut places) = (Vec::new(), Vec::new());
        let at = |frames: &[u8]| start + (frame::HEADER_BYTES + frames.len()) as u64;
        for payload in self.payloads {
            let from = at(&frames);
            frame::encode(FrameKind::Epoch, &payload, log, from, &mut frames);
            places.push(from..at(&frames));
        }
        let mut out = Vec::with_capacity(frame::HEADER_BYTES + frames.len());
        frame::encode(FrameKind::Copies, &frames, log, start, &mut out);
        (out, places)
    }
}

/// The logs of a partition.
pub(super) struct PartitionLogs {
    pub(super) data: Box<dyn AppendLog>,
    pub(super) index: Box<dyn AppendLog>,
    pub(super) auxiliary: Option<Box<dyn AppendLog>>,
}

/// An append log and its length.
struct GrowingLog {
    log: Box<dyn AppendLog>,
    bytes: u64,
    checksum: LogChecksum,
}

/// The data log, its length once all pieces are written, and their writer.
struct DataLogWriter {
    log: Arc<dyn AppendLog>,
    bytes: u64,
    pieces: PieceWriter,
}

impl DataLogWriter {
    fn sync(&mut self) -> Result<()> {
        self.pieces.drain()?;
        self.log.sync()
    }
}

impl GrowingLog {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.log.append(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Blocks on their way to the data log.
struct StagedBlocks {
    checksum: LogChecksum,
    bytes: Vec<u8>,
    /// Bytes of whole blocks.
    at: usize,
    piece_bytes: usize,
    /// Bytes to keep allocated in a row, for blocks of one size.
    ready_bytes: usize,
}

impl PartitionFlusher {
    pub(super) fn new(
        setup: PartitionSetup,
        geometry: BufferGeometry,
        share: MemoryShare,
        pool: Arc<RecordPool>,
        logs: PartitionLogs,
    ) -> Result<Self> {
        let data: Arc<dyn AppendLog> = Arc::from(logs.data);
        let pieces = PieceWriter::start(Arc::clone(&data), setup.partition)?;
        let checksum = |kind| LogChecksum::new(setup.directory, setup.partition, kind);
        let log = |log, kind| GrowingLog { log, bytes: 0, checksum: checksum(kind) };
        Ok(Self {
            setup,
            geometry,
            share,
            pool,
            data: DataLogWriter { log: data, bytes: 0, pieces },
            index: log(logs.index, LogKind::Index),
            auxiliary: logs.auxiliary.map(|auxiliary| log(auxiliary, LogKind::Auxiliary)),
            auxiliary_places: Vec::new(),
            sorter: BucketSorter::default(),
            staging: StagedBlocks {
                checksum: checksum(LogKind::Data),
                bytes: Vec::new(),
                at: 0,
                piece_bytes: share.piece_bytes,
                ready_bytes: 0,
            },
            builder: IndexGroupBuilder::default(),
            groups: Vec::new(),
            tables: 0,
            record_bytes: 0,
            root: IndexRoot::default(),
            copies: FrameCopies::default(),
            written: PartitionSummary::default(),
        })
    }

    /// Writes the magic, the head and the schema. They become durable with the first epoch.
    pub(super) fn begin(&mut self, head: &[u8], schema: &[u8]) -> Result<()> {
        let mut out = INDEX_MAGIC.to_vec();
        let offset = out.len() as u64;
        frame::encode(FrameKind::Head, head, LogChecksum::HEAD, offset, &mut out);
        let offset = out.len() as u64;
        frame::encode(FrameKind::Schema, schema, self.index.checksum, offset, &mut out);
        self.root.head = head.to_vec();
        self.index.append(&out)
    }

    /// Runs jobs until the channel closes.
    pub(super) fn run(mut self, jobs: &Receiver<FlushJob>) {
        let mut failed = false;
        while let Ok(job) = jobs.recv() {
            match job {
                FlushJob::Table(buffer, scale) if !failed => {
                    if let Err(error) = self.write_table(buffer, scale) {
                        failed = true;
                        self.pool.fail(error);
                    }
                    self.pool.end_writing();
                }
                FlushJob::Table(..) => self.pool.end_writing(),
                FlushJob::Auxiliary(bytes) if !failed => {
                    if let Err(error) = self.keep_auxiliary(bytes) {
                        failed = true;
                        self.pool.fail(error);
                    }
                }
                FlushJob::Auxiliary(_) => (),
                FlushJob::Epoch(end, answer) => {
                    let done = if failed { Err(closed()) } else { self.end_epoch(end) };
                    failed |= done.is_err();
                    // Nobody listens if the caller has given up.
                    let _ = answer.send(done);
                }
                FlushJob::Finish(answer) => {
                    let done = if failed { Err(closed()) } else { self.finish() };
                    let _ = answer.send(done);
                    return;
                }
            }
        }
    }

    fn write_table(&mut self, buffer: RecordBuffer, scale: u64) -> Result<()> {
        let rows = buffer.rows();
        if rows == 0 {
            return Ok(());
        }
        if self.builder.is_too_coarse(rows) {
            self.write_index_group()?;
        }
        let table = EpochTable { offset: self.data.bytes, ..EpochTable::default() };
        let mut slots = self.builder.begin(rows, scale, self.tables, self.setup.row_order);
        let spans = match self.geometry.layout {
            RecordLayout::Fixed { key_bytes, value_bytes } => {
                let widths = (usize::from(key_bytes), value_bytes as usize);
                self.write_fixed(buffer, rows, widths, &mut slots)?;
                Vec::new()
            }
            RecordLayout::Variable => self.write_variable(buffer, &mut slots)?,
        };
        self.builder.add(EpochTable { spans, ..table }, slots);
        self.tables += 1;
        self.written.tables += 1;
        self.written.rows += rows;
        self.written.index_memory_peak =
            self.written.index_memory_peak.max(self.builder.memory_bytes());
        let by_key = self.setup.row_order == RowOrder::Key;
        if by_key || self.builder.memory_bytes() > self.share.index_bytes {
            self.write_index_group()?;
        }
        Ok(())
    }

    /// Writes rows of fixed layout: each goes straight to its position in a block.
    fn write_fixed(
        &mut self,
        buffer: RecordBuffer,
        rows: u64,
        (key_bytes, value_bytes): (usize, usize),
        slots: &mut TableIndex,
    ) -> Result<()> {
        let stride = key_bytes + value_bytes;
        self.record_bytes += rows * stride as u64;
        let full_rows = rows_of_block(stride) as usize;
        let block_bytes = full_rows * stride + CHECKSUM_BYTES;
        let staging = &mut self.staging;
        staging.ready_bytes = staging.piece_bytes + block_bytes;
        staging.bytes.resize(staging.ready_bytes, 0);
        let mut left = usize::try_from(rows).expect("a buffer's rows fit memory");
        let mut block_rows = full_rows.min(left);
        let mut row = 0;
        for mut bucket in buffer.buckets {
            bucket.close();
            let records = bucket.records(self.geometry);
            let sorted =
                sort_bucket(&mut self.sorter, &bucket, &records, self.geometry, &self.setup);
            for &sorted in sorted {
                let (key, value) = records.fixed(number_of(sorted)).split_at(key_bytes);
                let block = &mut staging.bytes[staging.at..];
                let key_at = row * key_bytes;
                block[key_at..key_at + key_bytes].copy_from_slice(key);
                let value_at = block_rows * key_bytes + row * value_bytes;
                block[value_at..value_at + value_bytes].copy_from_slice(value);
                slots.push(sorted, key);
                row += 1;
                if row == block_rows {
                    slots.end_block();
                    staging.seal(block_rows * stride, &mut self.data)?;
                    left -= block_rows;
                    (row, block_rows) = (0, full_rows.min(left));
                }
            }
            self.pool.give(bucket.into_chunks());
        }
        staging.flush(&mut self.data)
    }

    /// Writes rows of variable layout: a block ends with the row that fills it.
    fn write_variable(
        &mut self,
        buffer: RecordBuffer,
        slots: &mut TableIndex,
    ) -> Result<Vec<BlockEnd>> {
        let mut spans = Vec::new();
        let mut row_end = 0;
        let mut block = VariableBlock::default();
        for mut bucket in buffer.buckets {
            bucket.close();
            let records = bucket.records(self.geometry);
            let sorted =
                sort_bucket(&mut self.sorter, &bucket, &records, self.geometry, &self.setup);
            for &sorted in sorted {
                let (key, value) = records.get(number_of(sorted));
                block.push(key, value);
                slots.push(sorted, key);
                if block.bytes() >= BLOCK_BYTES {
                    slots.end_block();
                    self.record_bytes += block.bytes() as u64;
                    row_end += block.rows();
                    let end = self.staging.seal_variable(&mut block, &mut self.data)?;
                    spans.push(BlockEnd { row_end, end });
                }
            }
            self.pool.give(bucket.into_chunks());
        }
        if block.rows() > 0 {
            slots.end_block();
            self.record_bytes += block.bytes() as u64;
            row_end += block.rows();
            let end = self.staging.seal_variable(&mut block, &mut self.data)?;
            spans.push(BlockEnd { row_end, end });
        }
        self.staging.flush(&mut self.data)?;
        Ok(spans)
    }

    /// Writes the pending slots.
    fn write_index_group(&mut self) -> Result<()> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let mut out = Vec::with_capacity(frame::HEADER_BYTES);
        let checksum = self.index.checksum;
        let header = IndexFrameHeader::of_index_group(self.builder.encoded_bytes());
        header.encode(checksum, self.index.bytes, &mut out);
        self.index.append(&out)?;
        let (offset, piece_bytes) = (self.index.bytes, self.staging.piece_bytes);
        let index = &mut self.index;
        let append = |piece: &[u8]| index.append(piece);
        let group = self.builder.write(checksum, offset, piece_bytes, append)?;
        self.groups.push(group);
        Ok(())
    }

    fn keep_auxiliary(&mut self, mut table: Vec<u8>) -> Result<()> {
        let log = self.auxiliary.as_mut().expect("the format has auxiliary tables");
        let start = log.bytes;
        log.checksum.seal(&mut table, 0, start);
        log.append(&table)?;
        self.auxiliary_places.push(start..log.bytes);
        Ok(())
    }

    fn end_epoch(&mut self, end: EpochEnd) -> Result<()> {
        self.pool.check()?;
        self.data.sync()?;
        if let Some(auxiliary) = &self.auxiliary {
            auxiliary.log.sync()?;
        }
        self.write_index_group()?;
        let epoch = EpochIndex {
            number: u32::try_from(self.root.epochs.len()).expect("epochs fit 32 bits"),
            step: end.step,
            data_bytes: self.data.bytes,
            value_bytes: end.value_bytes,
            record_bytes: std::mem::take(&mut self.record_bytes),
            groups: std::mem::take(&mut self.groups),
            auxiliary: std::mem::take(&mut self.auxiliary_places),
        };
        let mut payload = Vec::new();
        epoch.encode(self.geometry.layout, &mut payload);
        let start = self.index.bytes;
        let mut out = Vec::with_capacity(frame::HEADER_BYTES + payload.len());
        frame::encode(FrameKind::Epoch, &payload, self.index.checksum, start, &mut out);
        self.index.append(&out)?;
        self.index.log.sync()?;
        self.root.epochs.push(start..self.index.bytes);
        self.copies.bytes += payload.len();
        if self.copies.bytes <= self.share.piece_bytes {
            self.copies.payloads.push(payload);
        }
        self.tables = 0;
        self.written.epochs += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<PartitionSummary> {
        self.pool.check()?;
        self.root.data_bytes = self.data.bytes;
        // The frame of a single epoch is next to the root already.
        let epochs = self.root.epochs.len();
        if epochs > 1 && self.copies.payloads.len() == epochs {
            let copies = std::mem::take(&mut self.copies);
            let (frame, places) = copies.encode(self.index.checksum, self.index.bytes);
            self.index.append(&frame)?;
            self.root.epochs = places;
        }
        let mut payload = Vec::new();
        self.root.encode(&mut payload);
        let start = self.index.bytes;
        let mut out = Vec::new();
        frame::encode(FrameKind::Root, &payload, self.index.checksum, start, &mut out);
        let end = start + out.len() as u64;
        encode_footer(&(start..end), self.index.checksum, end, &mut out);
        self.index.append(&out)?;
        self.index.log.sync()?;
        self.data.sync()?;
        self.written.index_bytes = self.index.bytes;
        self.written.data_bytes = self.data.bytes;
        self.written.auxiliary_bytes = self.auxiliary.as_ref().map_or(0, |log| log.bytes);
        self.written.memory_peak = self.pool.bytes_peak()
            + self.sorter.memory_bytes()
            + (self.staging.bytes.capacity() * (1 + PIECES_MAX)) as u64
            + self.written.index_memory_peak;
        Ok(self.written)
    }
}

impl StagedBlocks {
    /// Appends the checksum to the block of `body` bytes that starts at `at`; returns the end of
    /// the block in the data log.
    #[inline]
    fn seal(&mut self, body: usize, data: &mut DataLogWriter) -> Result<u64> {
        let (start, end) = (self.at, self.at + body);
        let offset = data.bytes + start as u64;
        let sum = self.checksum.of(&self.bytes[start..end], offset);
        self.bytes[end..end + CHECKSUM_BYTES].copy_from_slice(&sum.to_le_bytes());
        self.at = end + CHECKSUM_BYTES;
        let end = data.bytes + self.at as u64;
        if self.at >= self.piece_bytes {
            self.flush(data)?;
        }
        Ok(end)
    }

    fn seal_variable(
        &mut self,
        block: &mut VariableBlock,
        data: &mut DataLogWriter,
    ) -> Result<u64> {
        self.bytes.truncate(self.at);
        // Reserve at once: gradual growth would leave spare capacity.
        let needed = self.at.max(self.piece_bytes) + BLOCK_BYTES + block.encoded_bytes_max();
        self.bytes.reserve_exact(needed - self.at);
        block.encode(&mut self.bytes);
        let body = self.bytes.len() - self.at;
        self.bytes.resize(self.bytes.len() + CHECKSUM_BYTES, 0);
        self.seal(body, data)
    }

    /// Submits all whole blocks to the store.
    fn flush(&mut self, data: &mut DataLogWriter) -> Result<()> {
        let at = std::mem::take(&mut self.at);
        if at > 0 {
            self.bytes = data.pieces.submit(std::mem::take(&mut self.bytes), at)?;
            data.bytes += at as u64;
            self.bytes.resize(self.ready_bytes, 0);
        }
        Ok(())
    }
}

fn sort_bucket<'s>(
    sorter: &'s mut BucketSorter,
    bucket: &RecordBucket,
    records: &BucketRecords<'_>,
    geometry: BufferGeometry,
    setup: &PartitionSetup,
) -> &'s [u64] {
    match setup.row_order {
        RowOrder::Hash => sorter.by_place(bucket, records, geometry, setup.partitions),
        RowOrder::Key => sorter.by_key(bucket.rows(), records),
    }
}
