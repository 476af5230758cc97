//! Segments of a tree: put, read, merged; they share log, numbers and manifest with its records.

use std::ops::Range;
use std::sync::atomic::Ordering;

use esker_base::{Error, Kind, Result};

use super::update::SHARD_LOG_BYTES;
use super::{FlushState, Inner, Tree};
use crate::merge::Cursor;
use crate::schema::Key;
use crate::segment::{OPERATION_SEGMENTS_MAX, Overlay, SEGMENT, Segment, SegmentMerge};

impl Tree {
    /// Puts `segments` over what is there, as one operation; their bytes are in their logs.
    /// Recovery stops at an operation of whose segments one has a checksum that its bytes do not
    /// have any more. Their sequence number is set here.
    ///
    /// Survives what the tree's durability promises once it returns. Cost: no store request but a
    /// share of a log write, and at times, without a background thread, a flush.
    ///
    /// # Errors
    /// `TooLarge` for more than [`OPERATION_SEGMENTS_MAX`]; `Closed`; what the store reports.
    ///
    /// # Panics
    /// If a segment is empty.
    pub fn put_segments(&self, segments: &mut [Segment]) -> Result<u64> {
        let inner = &*self.inner;
        inner.check_failure()?;
        if segments.len() > OPERATION_SEGMENTS_MAX {
            let context = format!("{} segments in one operation", segments.len());
            return Err(Error::new(Kind::TooLarge, context));
        }
        let mut live = inner.segments.lock();
        let seq = inner.next_seq.fetch_add(1, Ordering::AcqRel);
        let before = live.map.bytes();
        for segment in segments.iter_mut() {
            segment.seq = seq;
            live.map.insert(*segment);
        }
        let grown_bytes = live.map.bytes().saturating_sub(before);
        if inner.logs() {
            live.log.add(seq, segments);
        }
        let log_full = live.log.pending().len() >= SHARD_LOG_BYTES;
        drop(live);
        inner.settle(seq, log_full, grown_bytes)?;
        Ok(seq)
    }

    /// Fills the gaps of `overlay` with what this tree says of its range. Cost: nothing but memory
    /// while that is in memory, else about a block read a run of tables.
    ///
    /// # Errors
    /// `Corrupt`, and what the store reports.
    pub fn read_segments(&self, overlay: &mut Overlay) -> Result<()> {
        let inner = &*self.inner;
        let (file, Range { start, end }) = (overlay.file(), overlay.range());
        overlay.add(inner.segments.lock().map.overlapping(file, start, end));
        // Loaded after the active memtable was read: what was frozen since is in it.
        let version = inner.version.load();
        for memtable in &version.frozen {
            overlay.add(memtable.segments().overlapping(file, start, end));
        }
        overlay.add_tables(&version.segments)
    }
}

impl Inner {
    /// Merges all runs of segments into one; holes go if nothing is below them.
    pub(super) fn compact_segments(&self, state: &mut FlushState) -> Result<()> {
        let version = self.version.load_full();
        let runs = &version.segments.runs;
        let Some(newest) = runs.first() else {
            return Ok(());
        };
        let bottom = state.manifest.bases.is_empty();
        if runs.len() < 2 {
            return Ok(());
        }
        let cursors: Vec<Cursor> =
            runs.iter().map(|run| run.cursor(&SEGMENT, &Key::FIRST, &Key::LAST)).collect();
        let mut tables = self.write_run(state, &SEGMENT, |writer| {
            let mut merge = SegmentMerge::new(cursors)?;
            while let Some(segment) = merge.read()? {
                if segment.place.is_some() || !bottom {
                    writer.push(&segment.row())?;
                }
            }
            Ok(())
        })?;
        for table in &mut tables {
            table.run = newest.number;
        }
        self.replace(state, &SEGMENT, runs, &tables)
    }
}
