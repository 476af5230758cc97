// SPDX-License-Identifier: Apache-2.0
//! Open: finds the epochs of an index log, from its end, or from its start if it has no footer.
//!
//! The writer of a log without a footer died. Opening such a log walks it frame by frame; it ends
//! where no whole frame follows. The slots of the last epoch are then verified, since the sync that
//! makes the epoch durable may have been the one that failed.

use std::ops::Range;

use bytes::Bytes;
use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};

use super::counts::QueryCounts;
use super::lost;
use crate::checksum::{LogChecksum, LogKind};
use crate::index::epoch::EpochIndex;
use crate::index::frame::{self, FrameKind, HEADER_BYTES, IndexFrameHeader};
use crate::index::head::{INDEX_MAGIC, IndexLogHead};
use crate::index::root::{FOOTER_BYTES, IndexRoot, decode_footer};
use crate::schema::{DirectorySchema, SCHEMA_BYTES_MAX};

/// Index logs up to this size are read as a whole when a partition is opened.
pub const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// Bytes at the end of a larger index log that are read first: the root and usually all epochs.
const TAIL_BYTES: u64 = 128 << 10;

/// An open index log.
#[derive(Debug)]
pub(crate) struct IndexLog {
    store: SharedStore,
    pub(crate) checksum: LogChecksum,
    pub(crate) name: String,
    /// Bytes of the log.
    pub(crate) bytes: u64,
    /// The end of the log, or all of it; `tail_start` is its offset.
    tail: Bytes,
    tail_start: u64,
    pub(crate) head: IndexLogHead,
    /// The payload of the schema's frame; `None` in a finished log, since the root object has the
    /// schema.
    schema: Option<Range<u64>>,
    /// The frames of the epochs.
    pub(crate) epochs: Vec<Range<u64>>,
    /// True if its writer finished it.
    pub(crate) is_finished: bool,
}

impl IndexLog {
    /// Opens the log `name` of a partition. The directory's id and the size of the log are
    /// optional.
    ///
    /// # Errors
    /// `Corrupt` if the log is missing, is not an index log, or belongs to another partition or
    /// directory.
    pub(crate) fn open(
        store: &SharedStore,
        name: String,
        (partition, directory): (u32, Option<u128>),
        bytes: Option<u64>,
        counts: &mut QueryCounts,
    ) -> Result<Self> {
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => {
                counts.index_reads += 1;
                store.size(&name).map_err(|error| lost(&name, error))?
            }
        };
        let tail_start = if bytes <= WHOLE_BYTES_MAX { 0 } else { bytes - TAIL_BYTES };
        let tail = store.get_range(&name, tail_start..bytes);
        let tail = tail.map_err(|error| lost(&name, error))?;
        counts.index_reads += 1;
        counts.index_bytes += tail.len() as u64;
        let unknown = IndexLogHead {
            directory: directory.unwrap_or(0),
            partition,
            partitions: 1,
            format: crate::record_layout::ValueFormat::Base,
            layout: crate::record_layout::RecordLayout::Variable,
        };
        let mut log = Self {
            store: store.clone(),
            checksum: LogChecksum::HEAD,
            name,
            bytes,
            tail,
            tail_start,
            head: unknown,
            schema: None,
            epochs: Vec::new(),
            is_finished: false,
        };
        let directory = match directory {
            Some(directory) => directory,
            None => log.read_head(counts)?.0.directory,
        };
        log.checksum = LogChecksum::new(directory, partition, LogKind::Index);
        let footer_at = bytes.saturating_sub(FOOTER_BYTES).max(tail_start);
        let footer = log.tail.slice((footer_at - tail_start) as usize..);
        match decode_footer(&footer, log.checksum, footer_at, &log.name)? {
            Some(root) => log.read_root(root, counts)?,
            None => log.walk(counts)?,
        }
        if (log.head.directory, log.head.partition) != (directory, partition) {
            let what = format!(
                "the index of partition {} of directory {:032x}",
                log.head.partition, log.head.directory
            );
            return Err(Error::corrupt(&log.name, 0, what));
        }
        Ok(log)
    }

    /// The head of the log, and the offset of the frame after it.
    fn read_head(&self, counts: &mut QueryCounts) -> Result<(IndexLogHead, u64)> {
        let magic = INDEX_MAGIC.len() as u64;
        let begins = self.read(0..magic.min(self.bytes), counts)?;
        if begins[..] != INDEX_MAGIC[..] {
            let what = format!(
                "it begins with {:?}, expected {:?}: not an index log, or one of another version, \
                 which needs the release that wrote it",
                String::from_utf8_lossy(&begins),
                String::from_utf8_lossy(INDEX_MAGIC)
            );
            return Err(Error::corrupt(&self.name, 0, what));
        }
        let frame = self.frame_at(magic, counts)?;
        let frame = frame.filter(|(header, _)| header.kind == FrameKind::Head);
        let Some((_, payload)) = frame else {
            return Err(Error::corrupt(&self.name, magic, "an index log without a head"));
        };
        let bytes = self.read(payload.clone(), counts)?;
        let head = IndexLogHead::decode(&bytes).map_err(|bad| bad.of(&self.name, payload.start))?;
        Ok((head, payload.end))
    }

    /// The checksum of the frame at `at`.
    fn checksum_at(&self, at: u64) -> LogChecksum {
        if at == INDEX_MAGIC.len() as u64 { LogChecksum::HEAD } else { self.checksum }
    }

    fn read_root(&mut self, place: Range<u64>, counts: &mut QueryCounts) -> Result<()> {
        let bytes = self.read(place.clone(), counts)?;
        let payload =
            frame::decode(FrameKind::Root, &bytes, self.checksum, place.start, &self.name)?;
        let at = place.start + HEADER_BYTES as u64;
        let root = IndexRoot::decode(payload, place.start).map_err(|bad| bad.of(&self.name, at))?;
        self.head = IndexLogHead::decode(&root.head).map_err(|bad| bad.of(&self.name, at))?;
        self.epochs = root.epochs;
        self.is_finished = true;
        self.keep_epochs(counts)
    }

    /// Reads all epoch frames that are not in memory with one request, if they are adjacent.
    fn keep_epochs(&mut self, counts: &mut QueryCounts) -> Result<()> {
        let Some(first) = self.epochs.first().map(|epoch| epoch.start) else { return Ok(()) };
        let frames: u64 = self.epochs.iter().map(|epoch| epoch.end - epoch.start).sum();
        let missing = first..self.tail_start;
        // Otherwise the slots of epochs are between them.
        if missing.is_empty() || missing.end - missing.start > frames.min(WHOLE_BYTES_MAX) {
            return Ok(());
        }
        let before = self.read(missing, counts)?;
        self.tail = [&before[..], &self.tail[..]].concat().into();
        self.tail_start = first;
        Ok(())
    }

    /// Verifies every frame of a finished log from its start, including those that no query reads.
    ///
    /// # Errors
    /// `Corrupt` if one is damaged.
    pub(crate) fn check_frames(&self, counts: &mut QueryCounts) -> Result<()> {
        let (_, mut at) = self.read_head(counts)?;
        let end = self.bytes - FOOTER_BYTES;
        while at < end {
            let Some((_, payload)) = self.frame_at(at, counts)? else {
                return Err(Error::corrupt(&self.name, at, "no whole frame"));
            };
            at = payload.end;
        }
        Ok(())
    }

    /// Finds the epochs of a log without a footer.
    fn walk(&mut self, counts: &mut QueryCounts) -> Result<()> {
        let mut at;
        (self.head, at) = self.read_head(counts)?;
        let mut last = None;
        while let Some((header, payload)) = self.frame_at(at, counts)? {
            if header.kind == FrameKind::Schema {
                self.schema = Some(payload.clone());
            }
            if header.kind == FrameKind::Epoch {
                last = Some(self.epochs.len());
                self.epochs.push(at..payload.end);
            }
            at = payload.end;
        }
        if let Some(last) = last
            && !self.slots_are_whole(last, counts)?
        {
            self.epochs.pop();
        }
        Ok(())
    }

    /// The header of the frame at `at` and the range of its payload, if the frame is whole.
    fn frame_at(
        &self,
        at: u64,
        counts: &mut QueryCounts,
    ) -> Result<Option<(IndexFrameHeader, Range<u64>)>> {
        let start = at + HEADER_BYTES as u64;
        if start > self.bytes {
            return Ok(None);
        }
        let checksum = self.checksum_at(at);
        let Some(header) = IndexFrameHeader::decode(checksum, &self.read(at..start, counts)?, at)
        else {
            return Ok(None);
        };
        let Some(end) = start.checked_add(header.bytes).filter(|&end| end <= self.bytes) else {
            return Ok(None);
        };
        if header.kind != FrameKind::IndexGroup
            && !header.fits(checksum, &self.read(start..end, counts)?, at)
        {
            return Ok(None);
        }
        Ok(Some((header, start..end)))
    }

    fn slots_are_whole(&self, epoch: usize, counts: &mut QueryCounts) -> Result<bool> {
        let epoch = self.epoch(epoch, counts)?;
        for group in &epoch.groups {
            for slot in 0..group.slot_ends.len() {
                let place = group.slot_range(slot);
                let bytes = self.read(place.clone(), counts)?;
                match self.checksum.open(&bytes, place.start, &self.name) {
                    Ok(_) => (),
                    Err(error) if error.kind() == Kind::Corrupt => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(true)
    }

    /// The schema of an unfinished log; the default schema if the writer died before it wrote one.
    ///
    /// # Errors
    /// `Corrupt` if the frame is damaged.
    pub(crate) fn schema(&self, counts: &mut QueryCounts) -> Result<DirectorySchema> {
        let Some(payload) = self.schema.clone() else { return Ok(DirectorySchema::default()) };
        if payload.end - payload.start > SCHEMA_BYTES_MAX as u64 {
            let what = "a schema that is too long";
            return Err(Error::corrupt(&self.name, payload.start, what));
        }
        let bytes = self.read(payload.clone(), counts)?;
        DirectorySchema::decode(&bytes, self.head.layout)
            .map_err(|bad| bad.of(&self.name, payload.start))
    }

    /// Decodes epoch number `epoch`.
    ///
    /// # Errors
    /// `Corrupt` if its frame is damaged.
    pub(crate) fn epoch(&self, epoch: usize, counts: &mut QueryCounts) -> Result<EpochIndex> {
        let place = self.epochs[epoch].clone();
        let bytes = self.read(place.clone(), counts)?;
        let payload =
            frame::decode(FrameKind::Epoch, &bytes, self.checksum, place.start, &self.name)?;
        let at = place.start + HEADER_BYTES as u64;
        let decoded = EpochIndex::decode(payload, self.head.row_layout(), place.start);
        let decoded = decoded.map_err(|bad| bad.of(&self.name, at))?;
        if decoded.number as usize != epoch {
            let what = format!("epoch {}, expected {epoch}", decoded.number);
            return Err(Error::corrupt(&self.name, at, what));
        }
        Ok(decoded)
    }

    /// Bytes of the log, if they are in memory.
    pub(crate) fn in_memory(&self, range: &Range<u64>) -> Option<Bytes> {
        let start = range.start.checked_sub(self.tail_start)?;
        let end = range.end.checked_sub(self.tail_start)?;
        let inside = start <= end && end <= self.tail.len() as u64;
        inside.then(|| self.tail.slice(start as usize..end as usize))
    }

    /// Bytes of the log, from memory or the store.
    pub(crate) fn read(&self, range: Range<u64>, counts: &mut QueryCounts) -> Result<Bytes> {
        if let Some(bytes) = self.in_memory(&range) {
            return Ok(bytes);
        }
        counts.index_reads += 1;
        counts.index_bytes += range.end - range.start;
        self.store.get_range(&self.name, range).map_err(|error| lost(&self.name, error))
    }
}
